"""Bugs of atomic micro-batches: of the coordinator, of the channels, and of who reads them."""

from __future__ import annotations

from jepsen_like.planted.bug import PlantedBug, by_tests, in_chaos
from jepsen_like.planted.source_patch import Edit

MACHINES = "raftstore/machines/"
DECIDES = "raftstore/state_machines/batches/coordinator.py"
STAGING = "raftstore/state_machines/batches/staging.py"
GATE = "if verdict.name in (ALREADY, OK) and not table.is_everywhere(verdict.n):"
BANK = "bank_batches"
APPLY_TEST = "tests/unit/state_machines/test_staging.py::test_apply_table"
LEADERS = "kill-leader,isolate-leader"

COORDINATOR_BUGS: tuple[PlantedBug, ...] = (
    in_chaos(
        "S4.4",
        "batch-told-when-decided",
        "Success of a batch is told when it is decided, not when every channel has applied it.",
        Edit(
            "raftstore/engine/batches/coordinator.py",
            GATE,
            "if verdict.name == ALREADY and not table.is_everywhere(verdict.n):",
        ),
        workload=BANK,
        nemesis=LEADERS,
    ),
    by_tests(
        "S4.4",
        "batch-already-before-applied",
        "A replay is told that its batch is in the table before every channel has applied it.",
        Edit(
            "raftstore/engine/batches/coordinator.py",
            "            self._tell(table, waiter, verdict, now_ms)\n"
            "            return\n        # The tasks of a batch",
            "            if verdict.name == ALREADY:\n"
            "                self._answer(waiter, verdict)\n"
            "            else:\n"
            "                self._tell(table, waiter, verdict, now_ms)\n"
            "            return\n        # The tasks of a batch",
        ),
        tests=(
            "tests/unit/engine/test_batches.py::"
            "test_success_is_told_only_when_every_touched_channel_has_applied",
        ),
        why="a replay would have to begin between the decision and the last channel, and somebody "
        "to look into that very channel before it follows",
    ),
    in_chaos(
        "S4.5",
        "batch-forgotten-by-the-next-leader",
        "A new leader of the coordinator does not know the batches that were decided before it.",
        Edit(
            DECIDES,
            "    if last is not None and asked.batch_id == last.batch_id:",
            "    if last is not None and asked.batch_id == last.batch_id "
            "and isinstance(asked, BeginBatch):",
        ),
        Edit(
            DECIDES,
            "    if last is not None and asked.batch_id <= last.batch_id:",
            "    if last is not None and asked.batch_id < last.batch_id:",
        ),
        Edit(
            "raftstore/engine/batches/coordinator.py",
            "            is_current=table.is_current,\n        )\n        if verdict is not None:",
            "            is_current=table.is_current,\n        )\n"
            "        if verdict is not None and not (\n"
            "            verdict.name == ALREADY and verdict.n < table.since\n"
            "        ):",
        ),
        Edit(
            "raftstore/engine/batches/coordinated_table.py",
            "        self.refresh()\n\n    def refresh",
            "        self.refresh()\n"
            "        head = read_table(self.state)\n"
            "        self.since = 0 if head is None else head.next_commit\n\n"
            "    def refresh",
        ),
        workload=BANK,
        nemesis=LEADERS,
    ),
    in_chaos(
        "S1.4",
        "batch-fence-skipped",
        "An attempt is committed after its writer has begun another one.",
        Edit(
            DECIDES,
            "    if now is None or (now.attempt, now.batch_id) != (asked.attempt, asked.batch_id):",
            "    if now is None:",
        ),
        workload=BANK,
        nemesis="step-down",
    ),
    by_tests(
        "S11",
        "batch-floor-ignores-the-outbox",
        "The rows of a decided batch are garbage before its channel has applied it.",
        Edit(
            "raftstore/state_machines/batches/txn_state.py",
            "            unfinished = min(unfinished, entry.attempt)",
            "            pass",
        ),
        tests=("tests/unit/state_machines/test_coordinator.py::test_floor_has_two_terms",),
        why="a channel asks about rows that are a minute old, and no world keeps a decided batch "
        "from a channel for so long",
    ),
)

CHANNEL_BUGS: tuple[PlantedBug, ...] = (
    in_chaos(
        "S4.2",
        "batch-applied-on-arrival",
        "Staged rows are written when they are committed, not when their batch is.",
        Edit(
            "raftstore/state_machines/table.py",
            "            return ApplyResult((), state_writes=stage(record, state))",
            "            from raftstore.protocol.staged import decode_staged\n\n"
            "            flat = iter(decode_staged(record.payload)[1])\n"
            "            pairs = tuple(zip(flat, flat, strict=True))\n"
            "            return ApplyResult(pairs, state_writes=stage(record, state))",
        ),
        workload=BANK,
        nemesis="kill-leader",
    ),
    by_tests(
        "S10",
        "batch-chain-not-checked",
        "A channel applies decided batches as they come, and not along their chain.",
        Edit(STAGING, "    if batch.prev != head.n:", "    if False:"),
        tests=(APPLY_TEST,),
        why="a coordinator sends a channel one batch at a time, and the next when that is applied",
    ),
    by_tests(
        "S10",
        "batch-applied-again",
        "A decided batch that arrives twice is applied twice.",
        Edit(STAGING, "    if batch.n <= head.n:", "    if False:"),
        tests=(APPLY_TEST,),
        why="a leader answers for a batch that it has applied, and makes no second record",
    ),
    in_chaos(
        "S10",
        "batch-with-its-losers",
        "Rows of a task's run that does not count become visible with the batch.",
        Edit(
            STAGING,
            "    listed = listed_of(batch.attempt, batch.winners, batch.part, refs)",
            "    listed = [ref for ref in refs if ref.attempt == batch.attempt]",
        ),
        Edit(
            STAGING,
            "    found = part_of(batch.part.partition, listed)",
            "    found = batch.part",
        ),
        workload=BANK,
        nemesis="step-down",
    ),
    by_tests(
        "S13",
        "batch-manifest-not-checked",
        "A batch is applied without rows that its manifest lists.",
        Edit(STAGING, "    if found != batch.part:", "    if False:"),
        tests=(
            "tests/unit/state_machines/test_staging.py::"
            "test_chunks_that_are_not_those_of_the_manifest_break_the_channel",
        ),
        why="nothing takes listed rows away unless another rule is broken, too",
    ),
    by_tests(
        "S10",
        "batch-mark-ignored",
        "After a crash in the middle of a batch the channel serves what is there of it.",
        Edit(
            "raftstore/engine/channel/runner.py",
            "        self.unserved_until = host.tables.unserved_until(channel)",
            "        self.unserved_until = Seq(0)",
        ),
        tests=(
            "tests/jepsen/test_batch_failpoints.py::"
            "test_channel_that_a_crash_left_in_pieces_serves_nothing_until_it_is_whole",
        ),
        why="a node that has just started hears of the commit before anybody asks it",
    ),
)

VIEW_BUGS: tuple[PlantedBug, ...] = (
    by_tests(
        "S10",
        "batch-read-behind-the-view",
        "A read sees the pieces of a batch that are written already.",
        Edit(
            "raftstore/storage/tables/leveldb_tables.py",
            "        return self._database if view is None else view.snapshot",
            "        return self._database",
        ),
        tests=(
            "tests/contract/test_parts.py::test_reads_see_the_state_before_until_the_last_part",
        ),
        why="worlds have tables without a disk, which show a view of their own",
    ),
    in_chaos(
        "S7.3",
        "batch-version-of-another-commit",
        "Who asks for the state of a commit is given the state of a later one.",
        Edit(
            "raftstore/engine/reads/commit_reads.py",
            "        if request.as_of and head.n > request.as_of:\n",
            "        if False:\n",
        ),
        Edit(
            "raftstore/engine/reads/commit_reads.py",
            "        commit, vector = head.n, head.vector\n",
            "        commit, vector = head.n, head.vector\n"
            "        if request.as_of:\n"
            "            commit, vector = request.as_of, ()\n",
        ),
        workload=BANK,
        nemesis="pause-follower,slow-link",
    ),
    in_chaos(
        "S7.3",
        "snapshots-that-go-back",
        "A client does not begin from the newest commit that it has seen.",
        Edit(
            "raftstore/client/cluster/vector.py",
            "        self._top = floor\n",
            "        self._top = Commit()\n",
        ),
        workload=BANK,
        nemesis="pause-follower,isolate-follower",
    ),
)

BATCH_BUGS: tuple[PlantedBug, ...] = (*COORDINATOR_BUGS, *CHANNEL_BUGS, *VIEW_BUGS)
