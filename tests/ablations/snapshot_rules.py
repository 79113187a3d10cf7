"""Ablations of snapshots: one commit of all partitions, never an older one than before."""

from __future__ import annotations

from tests.ablations.ablation import Ablation, directed

VECTOR = "raftstore/client/cluster/vector.py"
OPENING = "raftstore/client/scans/snapshot_opening.py"
NODE = "raftstore/engine/reads/commit_reads.py"
PINS = "raftstore/engine/reads/scans.py"

ROUNDS = "tests/unit/client/test_vector.py::test_"
READS = "tests/integration/client/test_snapshots.py::test_"
ANEW = "tests/integration/client/test_tables_made_anew.py::test_"
NODES = "tests/unit/engine/test_batches.py::test_"

SNAPSHOT_RULES: tuple[Ablation, ...] = (
    directed(
        "snapshots-bounded",
        "a bounded snapshot is as old as any",
        OPENING,
        "if spec.read.level is Level.ANY or spec.exactly is not None:",
        "if spec.read.level is not Level.LINEARIZABLE or spec.exactly is not None:",
        READS + "bounded_snapshot_has_what_a_replica_within_the_bound_has_or_is_refused",
    ),
    directed(
        "S13-snapshots",
        "who waits for a commit gets it from a channel that stopped serving meanwhile",
        NODE,
        "        refusal = self._host.serving_refusal(runner)\n",
        "        refusal = None\n",
        NODES + "reader_who_waits_for_a_commit_hears_nothing_of_a_channel_that_stopped_serving",
    ),
    directed(
        "snapshots-late",
        "channels that are behind stand as they are",
        VECTOR,
        "            if found < wanted:",
        "            if False:",
        ROUNDS + "snapshots_are_one_commit_and_never_go_back",
        ROUNDS + "two_readers_see_batches_in_one_order",
    ),
    directed(
        "snapshots-above",
        "a state above the vector is taken",
        VECTOR,
        "            if lower.at(other) > higher.at(other) or (",
        "            if False and (",
        ROUNDS + "state_above_the_vector_is_an_error_of_the_store",
    ),
    directed(
        "snapshots-floor",
        "a client forgets what it has seen",
        OPENING,
        "floor = max(spec.floor, self._context.floors.of(info.uuid), key=lambda commit: commit.n)",
        "floor = spec.floor",
        READS + "snapshots_of_a_client_never_go_back",
    ),
    directed(
        "snapshots-acknowledged",
        "what was acknowledged row by row may be missing",
        OPENING,
        "        if spec.read.level is Level.ANY or spec.exactly is not None:",
        "        if True:",
        READS + "linearizable_snapshot_asks_the_leaders_first_and_then_any_replica",
    ),
    directed(
        "snapshots-min-seq",
        "a replica answers before it has applied what the reader knows of",
        NODE,
        " or applied < request.min_seq:",
        ":",
        NODES + "snapshot_waits_for_rows_that_were_written_one_by_one",
    ),
    directed(
        "snapshots-idle",
        "a state is forgotten before its reader said",
        PINS,
        "        idle = state.idle_ms or self._settings.scan_pin_idle_ms",
        "        idle = self._settings.scan_pin_idle_ms",
        NODES + "snapshot_stays_pinned_as_long_as_its_reader_asked_for",
    ),
    directed(
        "S0.8-commits",
        "a batch of a dropped table names a state of the one made anew",
        OPENING,
        "    if told.table_uuid != info.uuid or len(told.vector) not in (0, info.partitions):",
        "    if False:",
        ANEW + "batch_or_snapshot_of_a_dropped_table_is_refused",
    ),
)
