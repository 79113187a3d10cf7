"""Mutations of levels: what newer versions write waits until every node can read it."""

from __future__ import annotations

from tests.mutations.guard import directed
from tests.mutations.mutation import Mutation, mutation
from tests.mutations.syntax import Edit

CORE = "tests/unit/core/test_sequencer.py::test_"
PURE = "tests/unit/policy/test_levels.py::test_"
WORLDS = "tests/unit/engine/test_levels.py::test_"

LEVEL_RULES: tuple[Mutation, ...] = (
    mutation(
        "level-lowest",
        "The newest node decides what all must be able to read.",
        Edit(
            "lowest_level",
            "min(levels, default=0)",
            "max(levels, default=0)",
        ),
        directed(
            PURE + "lowest_level_is_that_of_the_oldest_node",
            WORLDS + "what_an_older_node_cannot_read_is_refused_until_it_is_upgraded",
        ),
    ),
    mutation(
        "level-records",
        "A leader sequences records that some node cannot read.",
        Edit(
            "RequestHandler.on_publish",
            "self._controller.refusal_of(message.kind)",
            "None",
        ),
        directed(WORLDS + "what_an_older_node_cannot_read_is_refused_until_it_is_upgraded"),
    ),
    mutation(
        "level-commands",
        "A table is edited while some node would stop at the command.",
        Edit(
            "TableCommands.on_edit_table",
            "self._view.refusal_of_format(EDITED_FORMAT)",
            "None",
        ),
        directed(WORLDS + "what_an_older_node_cannot_read_is_refused_until_it_is_upgraded"),
    ),
    mutation(
        "level-downgrade",
        "The catalog is believed although the node itself told less.",
        Edit(
            "CatalogController.levels",
            "min(level, self._told_levels.get(node, level))",
            "level",
        ),
        directed(WORLDS + "downgrade_is_believed_before_the_catalog_says_it"),
    ),
    mutation(
        "level-unknown",
        "A node that told this leader nothing is entered as an old one.",
        Edit(
            "CatalogController._register_nodes",
            "0 if known is None else known.level",
            "0",
        ),
        directed(WORLDS + "new_metadata_leader_keeps_the_level_of_a_node_that_is_away"),
    ),
    mutation(
        "level-storm",
        "A level is registered again and again while its command is under way.",
        Edit(
            "CatalogController._register_nodes",
            "self._registering.get(node) == (endpoint, level)",
            "False",
        ),
        directed(WORLDS + "level_is_proposed_once_while_its_command_is_under_way"),
    ),
    mutation(
        "level-outcome",
        "A write that has a seq already is called too new.",
        Edit(
            "Sequencer.admit",
            "verdict is not Verdict.NEW",
            "verdict is not Verdict.NEW and refusal is None",
        ),
        directed(
            CORE + "refusal_of_the_engine_changes_no_outcome",
            WORLDS + "mark_that_was_written_before_a_downgrade_keeps_its_outcome",
        ),
    ),
    mutation(
        "level-spark",
        "A query fails because one node cannot read marks yet.",
        Edit(
            "_mark",
            "StoreTooOldError",
            "ZeroDivisionError",
        ),
        directed(
            "tests/unit/spark/test_datasource.py::"
            "test_batch_goes_on_without_its_mark_while_a_node_could_not_read_it"
        ),
    ),
)
