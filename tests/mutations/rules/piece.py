"""Mutations of records that are applied in pieces: what readers see, and what a crash leaves."""

from __future__ import annotations

from tests.mutations.guard import directed
from tests.mutations.mutation import Mutation, mutation
from tests.mutations.syntax import Edit

CONTRACT = "tests/contract/test_pieces.py::test_"
FEED = "tests/unit/engine/channel/test_batch_feed.py::test_"
QUEUE = "tests/unit/storage/tables/test_apply_queue.py::test_"
RULES_SERVING = "tests/unit/engine/reads/test_rules_serving.py::test_"

PIECE_RULES: tuple[Mutation, ...] = (
    mutation(
        "S0.3-mark-of-pieces",
        "A record in slices that the log lost goes unnoticed.",
        Edit(
            "reconcile",
            "max(tables.stored_position(channel), tables.stored_marker(channel))",
            "tables.stored_position(channel)",
        ),
        directed(
            "tests/unit/storage/test_store.py::"
            "test_record_in_pieces_beyond_the_log_makes_the_channel_recovering"
        ),
    ),
    mutation(
        "S10-view",
        "A reader sees some slices of a record and not the others.",
        Edit(
            "LevelDbTables.apply_piece",
            "self._views.show(channel, self._shared(channel), label)",
            "",
        ),
        directed(CONTRACT + "reads_see_the_state_before_until_the_last_part"),
    ),
    mutation(
        "S10-view-simulated",
        "A simulated reader sees some slices of a record and not the others.",
        Edit(
            "SimTables.apply_piece",
            "table.copy()",
            "table",
        ),
        directed(CONTRACT + "reads_see_the_state_before_until_the_last_part"),
    ),
    mutation(
        "S10-view-of-one-key",
        "A read of one key looks behind the view.",
        Edit(
            "LevelDbTables.get_many",
            "view is not None",
            "view is not None and len(keys) != 1",
        ),
        directed(CONTRACT + "get_many_never_reads_behind_the_view"),
    ),
    mutation(
        "S10-view-first",
        "A record is written in pieces while one before it is not applied.",
        Edit(
            "AppliedChannel.queue_piece",
            "self.applied.seq",
            "self.queued_seq",
        ),
        directed(CONTRACT + "pieces_are_refused_out_of_their_order"),
    ),
    mutation(
        "S10-queue-channel",
        "What is queued for a channel overtakes what is before it.",
        Edit(
            "ApplyQueue._place",
            "job.state.channel not in blocked",
            "True",
        ),
        directed(QUEUE + "nothing_overtakes_within_its_channel_nor_other_work"),
    ),
    mutation(
        "S10-queue-work",
        "Records overtake other work, which relies on all that was queued before it.",
        Edit(
            "ApplyQueue._place",
            "break",
            "continue",
        ),
        directed(QUEUE + "nothing_overtakes_within_its_channel_nor_other_work"),
    ),
    mutation(
        "S10-mark",
        "A start serves a channel that holds some slices of a record.",
        Edit(
            "PieceWriter._write_slice",
            "batch.put(marker_key(state.channel), encode_applied(state.channel, position))",
            "",
        ),
        directed(CONTRACT + "channel_with_a_mark_serves_nothing_until_replayed"),
    ),
    mutation(
        "S10-mark-unread",
        "A start does not look for the mark of a record in slices.",
        Edit(
            "LevelDbTables.unserved_until",
            "marked_seq if marked_seq > self.applied_seq(channel) else Seq(0)",
            "Seq(0)",
        ),
        directed(CONTRACT + "channel_with_a_mark_serves_nothing_until_replayed"),
    ),
    mutation(
        "S10-last-slice",
        "A record counts as applied before its last slice.",
        Edit(
            "PieceWriter._write_slice",
            'faults.reach("batch.mid-slice")',
            "of, at = state.channel, position\n"
            "batch.put(applied_key(of), encode_applied(of, at))\n"
            "batch.write()\n"
            'faults.reach("batch.mid-slice")',
        ),
        directed(CONTRACT + "crash_after_each_slice_replays_to_the_same_state"),
    ),
    mutation(
        "S10-own-rows",
        "Rows that a batch wrote itself are taken for rows that were there before it.",
        Edit(
            "rows_of",
            "(row := read(key)) is None or row.seq == seq",
            "(row := read(key)) is None",
        ),
        directed(CONTRACT + "crash_after_each_slice_replays_to_the_same_state"),
    ),
    mutation(
        "S10-own-merges",
        "A merge that a crash cut in two is made again of what it led to.",
        Edit(
            "StagingMachine.rows_of",
            "merged_before(*of, state_get) if mode == MERGE else None",
            "None",
        ),
        directed(CONTRACT + "merge_that_a_crash_cut_in_two_ends_as_where_it_was_not"),
    ),
    mutation(
        "S10-torn-version",
        "What a crash left in slices is kept as a version.",
        Edit(
            "LevelDbTables.apply_piece",
            "piece.version if self.unserved_until(channel) == 0 else -1",
            "piece.version",
        ),
        directed(CONTRACT + "channel_with_a_mark_serves_nothing_until_replayed"),
    ),
    mutation(
        "S10-barrier",
        "A batch is planned before the staged rows in front of it are applied.",
        Edit(
            "ApplyFeed._begin_batch",
            "self._outstanding",
            "False",
        ),
        directed(FEED + "barrier_waits_for_the_staged_records_before_it"),
    ),
    mutation(
        "S10-staged-digest",
        "Rows become visible that nobody listed.",
        Edit(
            "BatchFeed._chunk",
            "(found[0].base_seq, found[0].digest) != (ref.base_seq, ref.digest)",
            "found[0].base_seq != ref.base_seq",
        ),
        directed(FEED + "log_that_holds_other_rows_than_were_staged_stops_the_node"),
    ),
    mutation(
        "S10-served-in-pieces",
        "A node answers from a channel that a crash left in pieces.",
        Edit(
            "serving_refusal",
            "runner.unserved_until",
            "False",
        ),
        directed(RULES_SERVING + "channel_that_a_stop_left_in_pieces_serves_nothing"),
    ),
    mutation(
        "S13-broken-batch",
        "A channel goes on behind a batch whose rows are not all there.",
        Edit(
            "ApplyFeed._begin_batch",
            "self._is_broken = True\nself._on_broken(batch.broken)\nreturn False",
            "pass",
        ),
        directed(FEED + "listed_chunk_missing_stops_the_channel_everywhere"),
    ),
    mutation(
        "S13-broken-served",
        "A channel whose batch cannot be applied goes on answering.",
        Edit(
            "Replica._dispatch",
            "case Broken(reason):\n    self._state.stop_serving(reason)",
            "case Broken():\n    pass",
        ),
        directed(RULES_SERVING + "runner_of_a_broken_channel_stops_serving"),
    ),
    mutation(
        "S10-batch-read-behind-the-view",
        "A read sees the pieces of a batch that are written already.",
        Edit(
            "LevelDbTables._source",
            "self._databases[channel].source if view is None else view.snapshot",
            "self._databases[channel].source",
        ),
        directed(
            CONTRACT + "reads_see_the_state_before_until_the_last_part",
            why="worlds have tables without a disk, which show a view of their own",
        ),
    ),
)
