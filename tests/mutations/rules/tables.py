"""Mutations of stored tables: S0.4, S0.8, S2.5 and S10."""

from __future__ import annotations

from tests.mutations.guard import directed, disk_runs
from tests.mutations.mutation import Mutation, mutation
from tests.mutations.syntax import Edit

UNIT = "tests/unit/storage/"
DATABASES = UNIT + "tables/test_table_databases.py::test_"
SHARED = UNIT + "tables/test_shared_database.py::test_"
LOST_TRUNCATION = (
    "tests/unit/storage/test_store.py::"
    "test_records_that_a_lost_truncation_brings_back_are_not_taken_for_applied"
)
TABLE_STORE = "tests/contract/test_table_store.py::test_"

TABLES_RULES: tuple[Mutation, ...] = (
    mutation(
        "S0.8-files",
        "The files of a dropped channel's table stay.",
        Edit(
            "TablesDirectory._remove",
            "path.exists()",
            "False",
        ),
        directed(TABLE_STORE + "channel_that_goes_leaves_no_key_of_any_sort"),
    ),
    mutation(
        "S0.4-dropped-readers",
        "The table of a dropped channel is closed under a reader's snapshot.",
        Edit(
            "ChannelDatabase._is_unused",
            "self._is_retired and not self._shown and not self._holds",
            "self._is_retired and not self._holds",
        ),
        directed(DATABASES + "dropped_table_is_kept_until_its_last_reader_has_closed_it"),
    ),
    mutation(
        "S10-shared-beside",
        "The state beside the rows is not copied from a database that all channels shared.",
        Edit(
            "channel_end",
            'channel + b"\\xff"',
            'channel + b"\\x02"',
        ),
        directed(SHARED + "every_channel_gets_a_database_of_its_own_with_the_same_contents"),
    ),
    mutation(
        "S10-shared-removed-early",
        "Half a copy of a channel counts as its table.",
        Edit(
            "_copy",
            "target.with_name(target.name + COPYING_SUFFIX)",
            "target",
        ),
        Edit("_copy", "copying.rename(target)", "pass"),
        directed(SHARED + "copy_that_was_interrupted_goes_on_at_the_next_start"),
    ),
    mutation(
        "S0.4-one-channel-rebuilt",
        "Damage of one channel that a read found has all channels built again.",
        Edit(
            "ask_for_rebuild",
            "channel is None",
            "True",
        ),
        directed(
            UNIT
            + "tables/test_damaged_tables.py::"
            + "test_damage_found_by_a_read_has_only_its_channel_built_again"
        ),
    ),
    mutation(
        "S10-made-ahead",
        "A new channel's database is made by the thread that applies.",
        Edit(
            "LevelDbTables.open_channel",
            "database.prepare(self._making.submit)",
            "pass",
        ),
        directed(DATABASES + "database_of_a_new_channel_is_made_ahead_of_its_first_record"),
    ),
    mutation(
        "S0.4-made-while-closed",
        "Tables are closed while the database of a new channel is being made.",
        Edit("ChannelDatabase.close", "wait((self._making,))", "pass"),
        directed(
            UNIT + "tables/test_channel_database.py::test_close_waits_for_a_database_in_the_making"
        ),
    ),
    mutation(
        "S0.4-channels-max",
        "A table is created for whose channels a node has no files.",
        Edit(
            "TableCommands._refuse_channels",
            "channels <= self._channels_max",
            "True",
        ),
        directed(
            "tests/unit/engine/catalog/test_requests.py::"
            "test_table_that_brings_a_node_more_channels_than_it_has_files_for_is_refused"
        ),
    ),
    mutation(
        "S10-order",
        "Records are applied out of their order.",
        Edit(
            "AppliedChannel.queue",
            "record.base_seq != self.queued_seq + 1 or self.in_pieces",
            "False",
        ),
        directed(TABLE_STORE + "record_is_refused_when_it_leaves_a_gap_or_comes_twice"),
    ),
    mutation(
        "S10-atomic",
        "The applied position is not in the atomic batch of its rows.",
        Edit(
            "Applier._flush",
            "batch.put(applied_key(channel), encode_applied(channel, state.unflushed))",
            "pass",
        ),
        directed(
            UNIT + "tables/test_leveldb_tables.py::test_rows_and_position_are_one_atomic_batch"
        ),
        disk_runs(),
    ),
    mutation(
        "S2.5-lost-truncation",
        "Records that a lost truncation brings back count as applied.",
        Edit(
            "ChannelIndex.may_hold",
            "promised.seq <= self.last_part.last_seq and self.end.term == promised.term",
            "promised.seq <= self.last_part.last_seq",
        ),
        directed(LOST_TRUNCATION + "[6]"),
    ),
    mutation(
        "S2.5-lost-truncation-refused",
        "A node whose log lost a truncation with its end never starts again.",
        Edit(
            "reconcile",
            "term is not None and log.open_channel(channel).shortfall is None",
            "term is not None",
        ),
        directed(LOST_TRUNCATION + "[4]"),
    ),
    mutation(
        "M27-placed-on-a-leaving-node",
        "A table of which a node began to drain meanwhile is told as dropped by another client.",
        Edit("TableCommands._create", "isinstance(answer, PubAck) and answer.conflict", "False"),
        directed(
            "tests/unit/engine/catalog/test_table_commands_alone.py::"
            "test_table_that_a_draining_node_was_to_host_is_placed_anew"
        ),
    ),
)
