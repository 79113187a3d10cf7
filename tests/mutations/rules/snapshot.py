"""Mutations of snapshots: one commit of all partitions, never an older one than before."""

from __future__ import annotations

from tests.mutations.guard import chaos, directed
from tests.mutations.mutation import Mutation, mutation
from tests.mutations.syntax import Edit

ANEW = "tests/integration/client/test_tables_made_anew.py::test_"
ROUNDS = "tests/unit/client/test_vector.py::test_"
READS = "tests/integration/client/test_snapshots.py::test_"
NODES = "tests/unit/engine/batches/test_batches.py::test_"

SNAPSHOT_RULES: tuple[Mutation, ...] = (
    mutation(
        "S0.8-commits",
        "A batch of a dropped table names a state of the one made anew.",
        Edit(
            "check_is_of",
            "given.table_uuid != info.uuid or len(given.vector) not in (0, info.partitions)",
            "False",
        ),
        directed(ANEW + "batch_or_snapshot_of_a_dropped_table_is_refused"),
    ),
    mutation(
        "S13-snapshots",
        "Who waits for a commit gets it from a channel that stopped serving meanwhile.",
        Edit(
            "CommitReads._try_answer",
            "self._reader.serving_refusal(runner)",
            "None",
        ),
        directed(
            NODES + "reader_who_waits_for_a_commit_hears_nothing_of_a_channel_that_stopped_serving"
        ),
    ),
    mutation(
        "snapshots-bounded",
        "A bounded snapshot is as old as any.",
        Edit(
            "SnapshotOpening._min_seqs",
            "spec.read.level is Level.ANY",
            "spec.read.level is not Level.LINEARIZABLE",
        ),
        directed(READS + "bounded_snapshot_has_what_a_replica_within_the_bound_has_or_is_refused"),
    ),
    mutation(
        "snapshots-late",
        "Channels that are behind stand as they are.",
        Edit(
            "VectorRound.late",
            "found < wanted",
            "False",
        ),
        directed(
            ROUNDS + "snapshots_are_one_commit_and_never_go_back",
            ROUNDS + "two_readers_see_batches_in_one_order",
        ),
    ),
    mutation(
        "snapshots-above",
        "A state above the vector is taken.",
        Edit(
            "VectorRound.on_reply",
            "lower.at(other) > higher.at(other) or (\n"
            "    lower.n == higher.n and lower.at(other) != higher.at(other)\n"
            ")",
            "False and (\n    lower.n == higher.n and lower.at(other) != higher.at(other)\n)",
        ),
        directed(ROUNDS + "state_above_the_vector_is_an_error_of_the_store"),
    ),
    mutation(
        "snapshots-floor",
        "A client forgets what it has seen.",
        Edit(
            "SnapshotOpening._round",
            "max(spec.floor, self._context.floors.of(info.uuid), key=lambda commit: commit.n)",
            "spec.floor",
        ),
        directed(READS + "snapshots_of_a_client_never_go_back"),
    ),
    mutation(
        "snapshots-acknowledged",
        "What was acknowledged row by row may be missing.",
        Edit(
            "SnapshotOpening._min_seqs",
            "spec.read.level is Level.ANY or spec.exactly is not None",
            "True",
        ),
        directed(READS + "linearizable_snapshot_asks_the_leaders_first_and_then_any_replica"),
    ),
    mutation(
        "snapshots-min-seq",
        "A replica answers before it has applied what the reader knows of.",
        Edit(
            "CommitReads._try_answer",
            "head.n < _needed(request) or applied < request.min_seq",
            "head.n < _needed(request)",
        ),
        directed(NODES + "snapshot_waits_for_rows_that_were_written_one_by_one"),
    ),
    mutation(
        "snapshots-idle",
        "A state is forgotten before its reader said.",
        Edit(
            "Scans._pin_due_ms",
            "state.idle_ms or self._settings.scan_pin_idle_ms",
            "self._settings.scan_pin_idle_ms",
        ),
        directed(NODES + "snapshot_stays_pinned_as_long_as_its_reader_asked_for"),
    ),
    mutation(
        "S7.3-batch-version-of-another-commit",
        "Who asks for the state of a commit is given the state of a later one.",
        Edit(
            "CommitReads._try_answer",
            "request.as_of and head.n > request.as_of",
            "False",
        ),
        Edit(
            "CommitReads._try_answer",
            "commit, vector = head.n, head.vector",
            "commit, vector = head.n, head.vector\n"
            "if request.as_of:\n"
            "    commit, vector = request.as_of, ()",
        ),
        chaos("bank_batches", "pause-follower", "slow-link"),
    ),
    mutation(
        "S7.3-snapshots-that-go-back",
        "A client does not begin from the newest commit that it has seen.",
        Edit(
            "VectorRound.__init__",
            "self._top = floor",
            "self._top = Commit()",
        ),
        chaos("bank_batches", "pause-follower", "isolate-follower"),
    ),
)
