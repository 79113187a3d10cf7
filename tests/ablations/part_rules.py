"""Ablations of records that are applied in pieces: what readers see, and what a crash leaves."""

from __future__ import annotations

from tests.ablations.ablation import STORAGE, Ablation, directed

CONTRACT = "tests/contract/test_parts.py::test_"
FEED = "tests/unit/engine/test_batch_feed.py::test_"
QUEUE = "tests/unit/storage/test_apply_queue.py::test_"
TABLES = "raftstore/storage/tables/leveldb_tables.py"
PARTS = "raftstore/storage/tables/parts.py"
SIMULATED = "raftstore/testing/sim_tables.py"

PART_RULES: tuple[Ablation, ...] = (
    directed(
        "S10-view",
        "a reader sees some slices of a record and not the others",
        TABLES,
        "            self._views.show(channel, self._shared(channel), label)\n",
        "",
        CONTRACT + "reads_see_the_state_before_until_the_last_part",
    ),
    directed(
        "S10-view-simulated",
        "a simulated reader sees some slices of a record and not the others",
        SIMULATED,
        "            table.view = table.copy()\n",
        "            table.view = table\n",
        CONTRACT + "reads_see_the_state_before_until_the_last_part",
    ),
    directed(
        "S10-view-of-one-key",
        "a read of one key looks behind the view",
        TABLES,
        "        if view is not None:  # Whatever",
        "        if view is not None and len(keys) != 1:  # Whatever",
        CONTRACT + "get_many_never_reads_behind_the_view",
    ),
    directed(
        "S10-view-first",
        "a record is written in pieces while one before it is not applied",
        "raftstore/storage/tables/applied_channel.py",
        "record.base_seq == self.applied.seq + 1 and",
        "record.base_seq == self.queued_seq + 1 and",
        CONTRACT + "pieces_are_refused_out_of_their_order",
    ),
    directed(
        "S10-queue-channel",
        "what is queued for a channel overtakes what is before it",
        "raftstore/storage/tables/apply_queue.py",
        "            is_first = job.state.channel not in blocked\n",
        "            is_first = True\n",
        QUEUE + "nothing_overtakes_within_its_channel_nor_other_work",
    ),
    directed(
        "S10-queue-work",
        "records overtake other work, which relies on all that was queued before it",
        "raftstore/storage/tables/apply_queue.py",
        "            if not isinstance(job, ApplyRecords | ApplyPart):\n                break\n",
        "            if not isinstance(job, ApplyRecords | ApplyPart):\n                continue\n",
        QUEUE + "nothing_overtakes_within_its_channel_nor_other_work",
    ),
    directed(
        "S10-mark",
        "a start serves a channel that holds some slices of a record",
        PARTS,
        "        batch.put(marker_key(state.channel), encode_applied(state.channel, position))\n",
        "",
        CONTRACT + "channel_with_a_mark_serves_nothing_until_replayed",
    ),
    directed(
        "S10-mark-unread",
        "a start does not look for the mark of a record in slices",
        TABLES,
        "        return marked_seq if marked_seq > self.applied_seq(channel) else Seq(0)",
        "        return Seq(0)",
        CONTRACT + "channel_with_a_mark_serves_nothing_until_replayed",
    ),
    directed(
        "S10-last-slice",
        "a record counts as applied before its last slice",
        PARTS,
        '            faults.reach("batch.mid-slice"',
        "            of, at = state.channel, position\n"
        "            batch.put(applied_key(of), encode_applied(of, at))\n"
        "            batch.write()\n"
        '            faults.reach("batch.mid-slice"',
        CONTRACT + "crash_after_each_slice_replays_to_the_same_state",
    ),
    directed(
        "S10-own-rows",
        "rows that a batch wrote itself are taken for rows that were there before it",
        "raftstore/state_machines/batches/staging.py",
        "if (row := read(key)) is None or row.seq == seq",
        "if (row := read(key)) is None",
        CONTRACT + "crash_after_each_slice_replays_to_the_same_state",
    ),
    directed(
        "S10-own-merges",
        "a merge that a crash cut in two is made again of what it led to",
        "raftstore/state_machines/table.py",
        "known = merged_before(*of, state_get) if mode == MERGE else None",
        "known = None",
        CONTRACT + "merge_that_a_crash_cut_in_two_ends_as_where_it_was_not",
    ),
    directed(
        "S10-torn-version",
        "what a crash left in slices is kept as a version",
        TABLES,
        "            label = part.version if self.unserved_until(channel) == 0 else -1\n",
        "            label = part.version\n",
        CONTRACT + "channel_with_a_mark_serves_nothing_until_replayed",
    ),
    directed(
        "S0.3-mark-of-pieces",
        "a record in slices that the log lost goes unnoticed",
        STORAGE + "reconcile.py",
        "max(tables.stored_position(channel), tables.stored_marker(channel))",
        "tables.stored_position(channel)",
        "tests/unit/storage/test_store.py::"
        "test_record_in_pieces_beyond_the_log_makes_the_channel_recovering",
    ),
    directed(
        "S10-barrier",
        "a batch is planned before the staged rows in front of it are applied",
        "raftstore/engine/channel/apply_feed.py",
        "        if self._outstanding:\n",
        "        if False:\n",
        FEED + "barrier_waits_for_the_staged_records_before_it",
    ),
    directed(
        "S13-broken-batch",
        "a channel goes on behind a batch whose rows are not all there",
        "raftstore/engine/channel/apply_feed.py",
        "            self._is_broken = True\n            self._on_broken(batch.broken)\n"
        "            return False\n",
        "            pass\n",
        FEED + "listed_chunk_missing_stops_the_channel_everywhere",
    ),
    directed(
        "S13-broken-served",
        "a channel whose batch cannot be applied goes on answering",
        "raftstore/core/replica.py",
        "            case Broken(reason):\n                self._state.stop_serving(reason)\n",
        "            case Broken():\n                pass\n",
        "tests/unit/engine/test_rules_serving.py::test_runner_of_a_broken_channel_stops_serving",
    ),
    directed(
        "S10-staged-digest",
        "rows become visible that nobody listed",
        "raftstore/engine/channel/batch_feed.py",
        "(found[0].base_seq, found[0].digest) != (ref.base_seq, ref.digest)",
        "found[0].base_seq != ref.base_seq",
        FEED + "log_that_holds_other_rows_than_were_staged_stops_the_node",
    ),
    directed(
        "S10-served-in-pieces",
        "a node answers from a channel that a crash left in pieces",
        "raftstore/engine/reads/read_rules.py",
        "    if runner.unserved_until:  # S10\n",
        "    if False:\n",
        "tests/unit/engine/test_rules_serving.py::"
        "test_channel_that_a_stop_left_in_pieces_serves_nothing",
    ),
)
