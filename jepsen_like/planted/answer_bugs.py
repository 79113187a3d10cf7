"""Bugs of commits, outcomes and reads: S3, S4, S5.6, S7, S9, S10, S13."""

from __future__ import annotations

from jepsen_like.planted.bug import (
    CORE,
    ENGINE,
    PlantedBug,
    by_tests,
    in_chaos,
    in_client_worlds,
    in_worlds,
)
from jepsen_like.planted.source_patch import Edit

LEADER = CORE + "leader.py"
FOLLOWER = CORE + "follower.py"
REPLICA = CORE + "replica.py"
SEQUENCER = CORE + "sequencer.py"
DEDUPE = CORE + "dedupe.py"
READS = CORE + "reads.py"
SERVED = "raftstore/engine/reads/reader.py"
RULES = "raftstore/engine/reads/read_rules.py"
FRESHNESS = "raftstore/core/proof_requests.py"
COMMIT_TEST = "tests/unit/core/test_rules_commit.py::test_"
LOG_TEST = "tests/unit/core/test_rules_log.py::test_"
STALL_TEST = "tests/unit/engine/test_stalls.py::test_"
ENGINE_TEST = "tests/unit/engine/test_rules_engine.py::test_"
SIX = "one of the six rules that random chaos does not guard"

_ACKED_UNCOMMITTED = Edit(
    SEQUENCER,
    "        assert written.last_seq <= state.commit_seq, "
    '"OK only after the commit (S4.4)"\n'
    "        assert written.outcome_known\n",
    "",
)
"""Without it the code itself notices, and nobody learns whether anybody else would."""

COMMIT_BUGS: tuple[PlantedBug, ...] = (
    by_tests(
        "S3.1",
        "old-term-committed-by-counting",
        "A leader commits a record of an old term as soon as a majority holds it.",
        Edit(LEADER, "if state.lineage.term_at(held) != state.term:", "if False:"),
        tests=(COMMIT_TEST + "figure_8_commits_nothing_that_a_later_term_may_still_replace",),
        why=SIX,
    ),
    in_worlds(
        "S3.1",
        "quorum-off-by-one",
        "A record commits when one member less than a majority holds it.",
        Edit(
            CORE + "quorum.py",
            "held = seqs[majority(len(seqs)) - 1] if seqs else 0",
            "held = seqs[max(0, majority(len(seqs)) - 2)] if seqs else 0",
        ),
    ),
    in_worlds(
        "S3.2",
        "acks-counted-instead-of-members",
        "Acks are counted, the leader's own too: two of one member are taken for two members'.",
        Edit(
            LEADER,
            "held = quorum_seq(state.configs.current, self._matches())",
            "told = self.__dict__.setdefault('told', [])\n"
            "        told[:] = sorted([*told, *self._matches().values()])[-9:]\n"
            "        held = told[-(len(state.configs.current.voters) // 2 + 1)]",
        ),
    ),
    by_tests(
        "S3.3",
        "leader-counts-itself-early",
        "A leader counts itself before its own sync.",
        Edit(LEADER, "match[state.me] = state.durable_seq", "match[state.me] = state.last_seq"),
        tests=(COMMIT_TEST + "leader_counts_itself_only_after_its_own_sync",),
        why=SIX,
    ),
    by_tests(
        "S3.4",
        "log-end-acknowledged",
        "A follower acknowledges the end of its log, verified or not.",
        Edit(
            FOLLOWER,
            "match = Seq(min(state.verified_seq, state.durable_seq))",
            "match = state.durable_seq",
        ),
        tests=(COMMIT_TEST + "follower_acks_what_is_verified_and_never_its_end",),
        why=SIX,
    ),
    by_tests(
        "S3.4",
        "ack-of-an-old-term",
        "Acks of any term count.",
        Edit(
            REPLICA,
            "if event.message.term != state.term or state.stopped is not None:",
            "if state.stopped is not None:",
        ),
        Edit(
            LEADER,
            'assert ack.term == self._term, "acks of another term do not count (S1.4)"',
            "assert self._term",
        ),
        tests=(LOG_TEST + "ack_of_another_term_is_not_counted",),
        why=SIX + ": the engine fences such acks, too",
    ),
    in_worlds(
        "S3.4",
        "equal-length-taken-for-equal",
        "A log as long as the leader's is taken for the leader's log.",
        Edit(
            FOLLOWER,
            "if state.lineage.holds(notice.last_term, notice.last_seq):",
            "if notice.last_seq <= state.last_seq:",
        ),
    ),
    in_worlds(
        "S3.5",
        "unverified-records-committed",
        "A follower commits what it has not verified against its leader.",
        Edit(
            FOLLOWER,
            "commit_seq = Seq(min(state.leader_commit, state.verified_seq))",
            "commit_seq = Seq(min(state.leader_commit, state.last_seq))",
        ),
    ),
    by_tests(
        "S3.6",
        "strangers-counted",
        "Learners and strangers count towards a commit.",
        Edit(
            CORE + "quorum.py",
            "sorted((match.get(node, 0) for node in group), reverse=True)",
            "sorted(match.values(), reverse=True)",
        ),
        tests=("tests/unit/core/test_quorum.py::test_quorum_seq_ignores_strangers_and_learners",),
        why="the worlds have no learners before membership changes",
    ),
    in_chaos(
        "S10",
        "condition-not-checked",
        "A conditional write is applied whatever the row is.",
        Edit("raftstore/state_machines/table.py", "if present != expected:", "if False:"),
        workload="cas_register",
        nemesis="kill-leader,slow-link",
    ),
    in_client_worlds(
        "S10",
        "timestamps-go-back",
        "Timestamps follow the leader's clock backwards.",
        Edit(
            SEQUENCER,
            "return min(max(wall_ms, state.last_timestamp_ms + 1), WALL_MS_MAX)",
            "return wall_ms",
        ),
        clock_rate_spread="0.1",
    ),
    by_tests(
        "S13",
        "differing-histories-unnoticed",
        "Different histories below the commit seq go unnoticed.",
        Edit(
            CORE + "state.py",
            "if ours is not None and ours != commit_hash:",
            "if False:",
        ),
        tests=(LOG_TEST + "other_chain_hash_at_a_committed_seq_stops_serving",),
        why="it guards against other bugs, and there is none to notice",
    ),
)

OUTCOME_BUGS: tuple[PlantedBug, ...] = (
    by_tests(
        "S4.1",
        "quorum-timeout-called-not-applied",
        "A write without a quorum in time is called not applied, and may commit later.",
        Edit(
            SEQUENCER,
            "reject(state, waiter.client, waiter, QuorumTimeoutError.code, text)",
            "reject(state, waiter.client, waiter, UnavailableError.code, text)",
        ),
        tests=(COMMIT_TEST + "quorum_timeout_is_unknown_and_the_record_stays",),
        why="the retry of a write that was stored meets its own record, and that answer is unknown",
    ),
    in_chaos(
        "S4.2",
        "uncommitted-records-served",
        "Records are applied and read before they are committed.",
        Edit(
            CORE + "state.py",
            "apply_to = Seq(min(self.commit_seq, self.durable_seq))",
            # Not while the cluster is born: that would end the run before there is a client.
            "apply_to = self.durable_seq if self.commit_seq > 20 else Seq(\n"
            "            min(self.commit_seq, self.durable_seq)\n"
            "        )",
        ),
        workload="list_append",
        nemesis="kill-leader,isolate-leader",
    ),
    in_chaos(
        "S4.2",
        "applied-beyond-the-commit",
        "The engine hands one batch to the tables that reaches beyond the commit seq.",
        Edit(
            "raftstore/engine/channel/runner.py",
            "self.feed.advance(apply_to)",
            "self.feed.advance(\n"
            '                    apply_to if self.name[0] == "_" else self.core.durable_seq\n'
            "                )",
        ),
        _ACKED_UNCOMMITTED,
        workload="scan_snapshot",
        nemesis="kill-leader,isolate-leader",
    ),
    by_tests(
        "S4.3",
        "step-down-called-not-applied",
        "A write pending when its leader steps down is called not applied.",
        Edit(
            SEQUENCER,
            "reject(self._state, waiter.client, waiter, LeadershipLostError.code, text)",
            "reject(self._state, waiter.client, waiter, UnavailableError.code, text)",
        ),
        tests=(COMMIT_TEST + "pending_publish_is_unknown_after_a_step_down",),
        why="the retry of a write that was stored meets its own record, as after a quorum timeout",
    ),
    in_chaos(
        "S4.4",
        "ack-before-commit",
        "A write is acknowledged when the leader has written it.",
        Edit(
            LEADER,
            "self.sequencer.await_outcome(client, message)",
            "self.sequencer._acknowledge(\n"
            "            client, message.guid, self._state.dedupe.find(message.guid)\n"
            "        )",
        ),
        _ACKED_UNCOMMITTED,
        workload="bank",
        nemesis="kill-leader,isolate-leader",
    ),
    in_worlds(
        "S4.1",
        "refused-after-it-was-stored",
        "A write that is stored already is refused as overload when others wait.",
        Edit(
            SEQUENCER,
            "        assert written is not None\n        self._waiting.add(",
            "        assert written is not None\n"
            "        if len(self._waiting) >= 1:\n"
            "            reject(self._state, client, message, OverloadedError.code, "
            '"too many wait")\n'
            "            return\n"
            "        self._waiting.add(",
        ),
        writers="6",
    ),
    in_chaos(
        "S4.5",
        "retry-written-again",
        "A retry is written a second time.",
        Edit(SEQUENCER, "if verdict is not Verdict.NEW:", "if False:"),
        workload="publish_log",
        nemesis="loss,pause-leader",
    ),
    in_chaos(
        "S4.5",
        "dedupe-forgotten-after-failover",
        "A new leader knows only the writes of its own term.",
        Edit(
            REPLICA,
            "        self._leader = Leader(state)\n",
            "        state.dedupe = type(state.dedupe)()\n        self._leader = Leader(state)\n",
        ),
        workload="publish_log",
        nemesis="kill-leader,pause-leader",
    ),
    in_worlds(
        "S4.5",
        "uncommitted-duplicate-acknowledged",
        "A retry of an uncommitted write is answered at once.",
        Edit(SEQUENCER, "elif written.last_seq > state.commit_seq:", "elif False:"),
        fault_interval_ms="200",
    ),
    by_tests(
        "S4.5",
        "session-floor-ignored",
        "A write below its session's floor counts as new.",
        Edit(
            DEDUPE,
            "expired = session is not None and guid_counter(guid) <= session.floor",
            "expired = False",
        ),
        tests=("tests/unit/core/test_dedupe.py::test_counter_at_or_below_the_floor_is_expired",),
        why="a session writes too little in a world to leave its window",
    ),
    in_client_worlds(
        "S4.6",
        "guid-names-two-payloads",
        "One GUID may name two payloads.",
        Edit(DEDUPE, "same = written.digest == digest", "same = True"),
    ),
    in_worlds(
        "S5.6",
        "sequenced-for-another-leader",
        "A leader sequences what was addressed to another leader.",
        Edit(
            REPLICA,
            "if message.leader != state.me:",
            "if message.leader != state.me and self._leader is None:",
        ),
        Edit(
            REPLICA,
            "if self._leader is None or message.term != state.term:",
            "if self._leader is None:",
        ),
        fault_interval_ms="200",
    ),
    by_tests(
        "S5.6",
        "refused-attempt-comes-true",
        "A late copy of a refused write is accepted.",
        Edit(
            SEQUENCER, "if before is not None and message.attempt <= before.attempt:", "if False:"
        ),
        tests=(COMMIT_TEST + "refused_attempt_stays_refused_when_its_copy_arrives_late",),
        why="a late copy has to outlive a hand-over of its leader that fails",
    ),
)

READ_BUGS: tuple[PlantedBug, ...] = (
    in_chaos(
        "S7.1",
        "read-without-a-quorum",
        "A leader answers linearizable reads without asking anybody.",
        Edit(
            READS,
            "if not has_quorum(config, self._round.confirmed):",
            "if not self._round.confirmed:",
        ),
        workload="register",
        nemesis="isolate-leader,pause-leader",
    ),
    in_chaos(
        "S7.1",
        "read-on-a-fresh-leader",
        "A leader confirms reads before a record of its term is committed.",
        Edit(
            READS,
            "if state.lineage.term_at(state.commit_seq) != state.term:",
            "if False:",
        ),
        workload="register",
        nemesis="kill-leader,step-down,isolate-leader",
    ),
    in_chaos(
        "S7.1",
        "confirmations-from-before-the-read",
        "Confirmations of earlier rounds count for a read that came later.",
        Edit(
            READS,
            "is_proof_wanted=is_proof_wanted,",
            "is_proof_wanted=is_proof_wanted,\n"
            "            confirmed=self.__dict__.setdefault('past', {}),",
        ),
        workload="cas_register",
        nemesis="isolate-leader,pause-leader",
    ),
    in_chaos(
        "S7.1",
        "read-before-applied",
        "A confirmed read is answered before its seq is applied.",
        Edit(
            SERVED,
            "waiting.min_seq = Seq(max(waiting.min_seq, read_seq))",
            "waiting.min_seq = Seq(0)",
        ),
        Edit(
            READS,
            "while self._confirmed and self._confirmed[0][0] <= self._state.applied_seq:",
            "while self._confirmed:",
        ),
        workload="register",
        nemesis="kill-leader,slow-disk",
    ),
    in_worlds(
        "S7.3",
        "lag-under-reported",
        "A replica reports no lag while it has still to apply what is committed.",
        Edit(
            SERVED,
            "return known_lag(self._host.known_commit(runner), applied, age, age_max), age",
            "return 0, age",
        ),
        apply_max_ms="20",
    ),
    in_chaos(
        "S7.3",
        "max-lag-ignored",
        "A bounded read is served however far the replica is behind.",
        Edit(RULES, "if lag > bound else None", "if lag < 0 else None"),
        workload="bounded_reads",
        nemesis="isolate-follower,pause-follower,slow-disk",
    ),
    in_chaos(
        "S7.3",
        "at-least-ignored",
        "A read is served before the position it asked for is applied.",
        Edit(
            SERVED,
            "if not linearizable and applied >= min_seq and refusal is None:",
            "if not linearizable and refusal is None:",
        ),
        workload="sessions",
        nemesis="isolate-follower,pause-follower",
    ),
    in_chaos(
        "S7.3",
        "served-by-arrival-age",
        "A word of the leader is as young as its arrival, however long it waited on its way.",
        Edit(
            SERVED,
            "as_of = core.fresh_as_of(applied)",
            "as_of = runner.leader_info_heard_ms if lag == 0 else core.fresh_as_of(applied)",
        ),
        workload="bounded_time",
        nemesis="pause-leader,slow-link,isolate-leader",
    ),
    in_chaos(
        "S7.3",
        "proof-dated-by-its-reply",
        "A proof counts from its reply on, not from its request: what came between is missed.",
        Edit(
            FRESHNESS,
            "state.freshness.learn(self._sent_ms, reply.read_seq)",
            "state.freshness.learn(state.now_ms, reply.read_seq)",
        ),
        workload="bounded_time",
        nemesis="slow-link,pause-follower,reorder",
    ),
    in_chaos(
        "S7.3",
        "max-staleness-ignored",
        "A read bounded in time is served however old the state may be.",
        Edit(RULES, "if age > bound else None", "if age < 0 else None"),
        workload="bounded_time",
        nemesis="isolate-follower,pause-follower,slow-disk",
    ),
    by_tests(
        "S7.3",
        "stop-unnoticed",
        "A node that stood still trusts what waited for it, and its own leadership.",
        Edit(
            ENGINE + "node_runner.py", "            self._stalled(now_ms)\n", "            pass\n"
        ),
        tests=(
            STALL_TEST + "stopped_follower_does_not_take_buffered_positions_for_fresh",
            STALL_TEST + "stopped_leader_does_not_take_its_leadership_for_granted",
        ),
        why="bounds of time never trust arrivals, and rows are judged with ten seconds to spare",
    ),
    by_tests(
        "S7.3",
        "old-position-counts-as-fresh",
        "A position of the leader that is long past counts as its present one.",
        Edit(
            "raftstore/policy/lag.py",
            "if age_ms is None or age_ms > age_max_ms:",
            "if age_ms is None:",
        ),
        tests=(ENGINE_TEST + "old_position_of_the_leader_is_infinite_lag",),
        why="drawn faults end before ten seconds, but for rare long ones",
    ),
    by_tests(
        "S9",
        "unequal-target-takes-over",
        "A target that is behind is asked to take over.",
        Edit(
            CORE + "hand_over.py",
            "if progress is not None and progress.match_seq == state.last_seq:",
            "if progress is not None:",
        ),
        tests=(COMMIT_TEST + "hand_over_waits_for_an_equal_target",),
        why="votes still compare histories (S1.1), so that only the hand-over fails",
    ),
)
