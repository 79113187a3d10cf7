"""Bugs of what is asked beside rows: fates of writes, pages of pinned scans, micro-batches."""

from __future__ import annotations

from jepsen_like.planted.bug import CORE, PlantedBug, by_tests, in_chaos
from jepsen_like.planted.source_patch import Edit

FATE = CORE + "fate.py"
SCANS = "raftstore/engine/reads/scans.py"
RULES = "raftstore/engine/reads/read_rules.py"
FATES = "write_fates"
FATE_TEST = "tests/unit/core/test_fate.py::test_n4_"
LEADER_READS = "tests/unit/engine/test_leader_reads.py::test_s7_1_"
FATES_TEST = "tests/unit/engine/test_fates.py::test_n4_"

READS = CORE + "reads.py"
ROUNDS_TEST = "tests/model/test_read_rounds.py::test_"

ROUND_BUGS: tuple[PlantedBug, ...] = (
    by_tests(
        "S7.1",
        "repeated-round-takes-reads-in",
        "A round that is sent again after a pause takes in the reads that came since.",
        Edit(
            READS,
            "                self._ask(self._round)\n        self.advance()",
            "                self._round.reads += self._waiting\n"
            "                self._waiting = []\n"
            "                self._ask(self._round)\n        self.advance()",
        ),
        tests=(ROUNDS_TEST + "repeated_round_takes_no_later_read_in",),
        why="a confirmation from before a write has to arrive after the round was sent again",
    ),
    by_tests(
        "S7.1",
        "lease-survives-a-hand-over",
        "A leader that was confirmed a moment ago reads by a lease while its successor leads.",
        Edit(
            READS,
            "        self._round.confirmed[state.me] = None\n",
            "        self._round.confirmed[state.me] = None\n"
            "        if state.now_ms - (state.freshness.newest_ms or -1000) <= 150:\n"
            "            self._round.confirmed |= dict.fromkeys(state.configs.current.voters)\n",
        ),
        tests=(ROUNDS_TEST + "no_read_is_stale_while_leadership_is_handed_over",),
        why="the old leader would have to hear of its successor later than clients do",
    ),
)
QUERY_BUGS: tuple[PlantedBug, ...] = (
    *ROUND_BUGS,
    by_tests(
        "S4.1",
        "pending-called-committed",
        "A write that is in the leader's log is called committed before it is.",
        Edit(FATE, "if written.last_seq > state.commit_seq:", "if False:"),
        tests=(FATE_TEST + "write_that_is_not_committed_yet_is_pending",),
        why="the round that a question waits for takes as long as the commit of the write",
    ),
    in_chaos(
        "S4.5",
        "absent-called-forgotten",
        "A write that is not in the log is called unknown, as if it had been forgotten.",
        Edit(FATE, "if not state.dedupe.is_complete_for(guid):", "if True:"),
        workload=FATES,
        nemesis="isolate-leader,loss,kill-leader",
    ),
    by_tests(
        "S5.6",
        "fate-without-a-fence",
        "A write that was called not applied is sequenced when its message arrives.",
        Edit(FATE, "if not fence.add(guid):", "if False:"),
        tests=(
            FATE_TEST + "write_told_to_be_not_applied_is_refused_when_it_comes_late",
            FATES_TEST + "write_that_arrives_after_its_fate_was_told_is_refused",
        ),
        why="a copy would have to reach the same leader in the same term after its publisher gave "
        "it up and asked, and messages of one client arrive in order",
    ),
    in_chaos(
        "S7.0",
        "leader-reads-what-is-applied",
        "A read at level leader does not wait for what its leader has acknowledged.",
        Edit(
            "raftstore/engine/reads/reader.py",
            "min_seq = Seq(max(min_seq, runner.core.commit_seq))",
            "pass",
        ),
        workload="leader_sessions",
        nemesis="slow-disk,pause-follower",
    ),
    by_tests(
        "S7.1",
        "leader-answers-too-young",
        "A leader answers reads of level leader before a commit of its own term.",
        Edit(
            "raftstore/engine/reads/reader.py", "and not runner.core.leader_is_ready:", "and False:"
        ),
        tests=(LEADER_READS + "leader_answers_no_read_before_a_commit_of_its_own_term",),
        why="a leader commits the first record of its term within a round trip of its election",
    ),
    in_chaos(
        "S7.1",
        "fate-told-by-a-deposed-leader",
        "A leader tells fates without asking whether it still leads.",
        Edit(
            "raftstore/engine/reads/write_outcomes.py",
            "        runner.request_read(self._tokens, now_ms)\n",
            "        self.on_confirmed(self._tokens)\n",
        ),
        workload=FATES,
        nemesis="isolate-leader,pause-leader",
    ),
    in_chaos(
        "S7.3",
        "expired-pin-answered-anew",
        "A page of a pin that is gone is read from the present state.",
        Edit(
            SCANS,
            'self._rules.fail(client, request, "page_expired", text)',
            "self.begin(client, request, runner, deadline_ms, now_ms)",
        ),
        workload="paged_scan",
        nemesis="kill-follower,kill-leader",
    ),
    in_chaos(
        "S7.3",
        "pinned-page-of-the-present",
        "Pages of a pinned scan are read from the present state.",
        Edit(
            SCANS,
            "        state.used_ms = now_ms\n        self._start(",
            "        state.used_ms = now_ms\n"
            "        state.snapshot = self._host.tables.snapshot(runner.channel)\n"
            "        self._start(",
        ),
        workload="paged_scan",
        nemesis="slow-link",
    ),
    in_chaos(
        "S7.3",
        "batch-bound-ignored",
        "A read bounded in micro-batches is served however many the replica is behind.",
        Edit(RULES, "if most <= bound:", "if most >= 0:"),
        workload="bounded_batches",
        nemesis="isolate-follower,pause-follower,slow-disk",
    ),
)
