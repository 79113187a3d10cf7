"""Mutations of replica snapshots: a table or a base taken from another replica."""

from __future__ import annotations

from tests.mutations.guard import directed
from tests.mutations.mutation import Mutation, mutation
from tests.mutations.syntax import Edit

COPIES = "tests/unit/storage/test_table_copies.py::test_"

REPLICA_SNAPSHOT_RULES: tuple[Mutation, ...] = (
    mutation(
        "S6.4-half-table",
        "Half a copied table serves: a generation counts although it is not said to be complete.",
        Edit(
            "is_complete",
            "not generation.number or (tables / generation.name / COMPLETE_NAME).exists()",
            "True",
        ),
        directed(COPIES + "stop_at_any_step_leaves_the_former_table_or_the_copied_one"),
    ),
    mutation(
        "S6.4-former-table",
        "The former table comes back when the copied one that replaced it is damaged.",
        Edit(
            "TablesDirectory._channels",
            "number != current",
            "number > current",
        ),
        directed(COPIES + "stop_at_any_step_leaves_the_former_table_or_the_copied_one"),
    ),
    mutation(
        "S6.4-copy-read-back",
        "A copied table may hold keys that are not its channel's.",
        Edit(
            "LevelDbCopy._check",
            "stored_key[:cut] != self.channel",
            "False",
        ),
        directed(COPIES + "keys_of_another_channel_are_found_when_a_copy_is_read_back"),
    ),
    mutation(
        "S0.3-damage-sent",
        "A damaged row is sent on to another replica.",
        Edit(
            "LevelDbReads.copy_page",
            "self._check_pair(channel, key, stored)",
            "",
        ),
        directed(COPIES + "damage_at_the_sender_is_found_before_it_is_sent"),
    ),
    mutation(
        "S0.4-replaced-readers",
        "A table that a copy replaced is never removed.",
        Edit(
            "LevelDbTables.install",
            "self._applier.enqueue_job(former.retire)",
            "",
        ),
        directed(COPIES + "reader_of_the_former_table_goes_on_and_then_it_is_removed"),
    ),
)
