"""Ablations of what publishers and readers are told: S4 to S7, S9, S10."""

from __future__ import annotations

from tests.ablations.ablation import CORE, Ablation, Edit, directed

LOG = "tests/unit/core/test_rules_log.py::test_"
COMMIT = "tests/unit/core/test_rules_commit.py::test_"
DEDUPE = "tests/unit/core/test_dedupe.py::test_"
SEQUENCING = "tests/unit/core/test_sequencer.py::test_"

REPLICA = CORE + "replica.py"
LEADER = CORE + "leader.py"
STATE = CORE + "state.py"
FOLLOWER = CORE + "follower.py"
SEQUENCER = CORE + "sequencer.py"
READS = CORE + "reads.py"
HAND_OVER = CORE + "hand_over.py"

OUTCOMES: tuple[Ablation, ...] = (
    directed(
        "S4.1-timeout",
        "a quorum timeout is called not applied",
        SEQUENCER,
        "reject(state, waiter.client, waiter, QuorumTimeoutError.code, text)",
        "reject(state, waiter.client, waiter, UnavailableError.code, text)",
        COMMIT + "quorum_timeout_is_unknown_and_the_record_stays",
    ),
    directed(
        "S4.3-step-down",
        "a publish pending at a step-down is called not applied",
        SEQUENCER,
        "reject(self._state, waiter.client, waiter, LeadershipLostError.code, text)",
        "reject(self._state, waiter.client, waiter, UnavailableError.code, text)",
        COMMIT + "pending_publish_is_unknown_after_a_step_down",
    ),
    Ablation(
        "S4.4-commit-first",
        "a publish is acknowledged when it is written",
        (
            Edit(
                LEADER,
                "self.sequencer.await_outcome(client, message)",
                "self.sequencer._acknowledge(\n"
                "            client, message.guid, self._state.dedupe.find(message.guid)\n"
                "        )",
            ),
            Edit(
                SEQUENCER,
                "        assert written.last_seq <= state.commit_seq, "
                '"OK only after the commit (S4.4)"\n',
                "",
            ),
        ),
        tests=(COMMIT + "publish_is_acknowledged_after_its_commit_only",),
    ),
    directed(
        "S4.5-wait",
        "a retry of an uncommitted write is answered at once",
        SEQUENCER,
        "elif written.last_seq > state.commit_seq:",
        "elif False:",
        COMMIT + "retry_of_an_uncommitted_write_waits_for_the_first_one",
    ),
    directed(
        "S4.5-dedupe",
        "a retry is written a second time",
        SEQUENCER,
        "if verdict is not Verdict.NEW:",
        "if False:",
        COMMIT + "retry_of_a_committed_write_is_answered_with_the_same_place",
    ),
    directed(
        "S4.5-floor",
        "a write below its session's floor counts as new",
        CORE + "dedupe.py",
        "expired = session is not None and guid_counter(guid) <= session.floor",
        "expired = False",
        DEDUPE + "counter_at_or_below_the_floor_is_expired",
    ),
    directed(
        "S4.5-unsure",
        "a forgotten session that wrote again is sure of itself",
        CORE + "dedupe.py",
        "_Session(self._forgotten_seq)",
        "_Session(Seq(0))",
        DEDUPE + "forgotten_session_stays_in_doubt_when_it_is_reduced_to_its_floor",
    ),
    directed(
        "S4.5-age",
        "a retry of a session that was forgotten counts as new without proof of its age",
        CORE + "dedupe.py",
        "        expired |= (in_doubt or after_seq > 0) and after_seq < forgotten_to\n",
        "",
        DEDUPE + "no_timestamp_makes_a_retry_new",
    ),
    directed(
        "S4.5-claim",
        "whatever a publisher says of its write's age proves it",
        CORE + "dedupe.py",
        "(in_doubt or after_seq > 0) and after_seq < forgotten_to",
        "in_doubt and after_seq == 0 < forgotten_to",
        DEDUPE + "no_written_guid_looks_new_however_late_its_retry_comes",
    ),
    directed(
        "S4.5-settled",
        "a retry whose first attempt is in doubt is as good as a first attempt",
        SEQUENCER,
        "in_doubt=message.attempt > 0 and not message.is_settled,",
        "in_doubt=False,",
        SEQUENCING + "retry_of_a_forgotten_session_is_never_written_a_second_time",
    ),
    directed(
        "S4.1-won",
        "whoever led an earlier term does not know whether it sequenced a write",
        STATE,
        "        if term not in self._won_terms:\n            return False",
        "        if True:\n            return False",
        SEQUENCING + "deposed_leader_does_not_deny_a_write_that_it_may_have_forgotten",
    ),
    directed(
        "S4.1-forgotten",
        "a deposed leader denies a write whose outcome it has forgotten",
        STATE,
        "self.dedupe.find(guid) is not None or not self.dedupe.is_complete_for(guid)",
        "self.dedupe.find(guid) is not None",
        SEQUENCING + "deposed_leader_does_not_deny_a_write_that_it_may_have_forgotten",
    ),
    directed(
        "S4.6-digest",
        "one guid may name two payloads",
        CORE + "dedupe.py",
        "same = written.digest == digest",
        "same = True",
        COMMIT + "guid_with_another_payload_is_refused",
    ),
    directed(
        "S5.1-payload",
        "metadata without its payload is stored",
        FOLLOWER,
        "payload = payload_of(self._payloads, head)\n",
        'payload = payload_of(self._payloads, head) or b""\n',
        LOG + "metadata_without_its_payload_is_nothing",
    ),
    directed(
        "S5.2-correlation",
        "payloads correlate without their length",
        CORE + "pending.py",
        "return held.payload if held is not None and len(held.payload) == length else None",
        "return held.payload if held is not None else None",
        "tests/unit/core/test_pending.py::test_payload_is_found_by_guid_digest_and_length_only",
    ),
    directed(
        "S5.3-orphans",
        "orphan payloads are held for ever",
        CORE + "pending.py",
        "while self._held and next(iter(self._held.values())).drop_at_ms <= now_ms:",
        "while False:",
        "tests/unit/core/test_pending.py::test_orphan_payload_expires_silently",
    ),
    directed(
        "S5.4-fetch",
        "a missing payload is waited for without end",
        FOLLOWER,
        'self._leave_steady("missing_pubmsg", wait[0])',
        "self._payload_wait = None",
        LOG + "missing_payload_is_fetched_after_a_moment",
    ),
    directed(
        "S5.6-other-leader",
        "a leader sequences what was addressed to another",
        REPLICA,
        "if message.leader != state.me:",
        "if message.leader != state.me and self._leader is None:",
        LOG + "payload_addressed_to_another_leader_is_never_sequenced",
    ),
    directed(
        "S5.6-other-term",
        "a leader sequences what was addressed to another term",
        REPLICA,
        "if self._leader is None or message.term != state.term:",
        "if self._leader is None:",
        LOG + "payload_addressed_to_another_leader_is_never_sequenced",
    ),
    directed(
        "S5.6-refused",
        "a refused attempt may come true later",
        SEQUENCER,
        "if before is not None and message.attempt <= before.attempt:",
        "if False:",
        COMMIT + "refused_attempt_stays_refused_when_its_copy_arrives_late",
    ),
    directed(
        "S7.1-own-term",
        "a leader confirms reads before it committed in its term",
        READS,
        "if state.lineage.term_at(state.commit_seq) != state.term:",
        "if False:",
        COMMIT + "leader_confirms_no_read_before_a_record_of_its_term_is_committed",
    ),
    directed(
        "S7.1-quorum",
        "a leader answers reads without asking anybody",
        READS,
        "if not has_quorum(config, self._round.confirmed):",
        "if not self._round.confirmed:",
        COMMIT + "read_waits_for_a_quorum_of_confirmations",
    ),
    directed(
        "S7.1-after-arrival",
        "confirmations from before the read count",
        READS,
        "if self._round is not None and reply.round_id == self._round.round_id:",
        "if self._round is not None:",
        COMMIT + "confirmation_of_an_earlier_round_does_not_count",
    ),
    directed(
        "S7.1-applied",
        "a confirmed read is answered before it is applied",
        READS,
        "while self._confirmed and self._confirmed[0][0] <= self._state.applied_seq:",
        "while self._confirmed:",
        COMMIT + "read_waits_until_its_seq_is_applied",
    ),
    directed(
        "S7.3-told",
        "a leader tells old commit positions before it committed in its term",
        CORE + "leader.py",
        "return self._state.commit_seq if self.knows_position else Seq(0)",
        "return self._state.commit_seq",
        COMMIT + "leader_tells_no_commit_position_before_a_record_of_its_term_is_committed",
    ),
    directed(
        "S9-equal",
        "a target that is behind is asked to take over",
        HAND_OVER,
        "if progress is not None and progress.match_seq == state.last_seq:",
        "if progress is not None:",
        COMMIT + "hand_over_waits_for_an_equal_target",
    ),
    directed(
        "S9-stop",
        "writes are accepted during a hand-over",
        SEQUENCER,
        "if self.refusal is not None:",
        "if False:",
        COMMIT + "hand_over_stops_accepting_and_resumes_after_its_timeout",
    ),
    directed(
        "S9-resume",
        "a failed hand-over leaves the channel closed",
        HAND_OVER,
        "            self._sequencer.refusal = stalled\n",
        "            assert stalled is None\n",
        COMMIT + "hand_over_stops_accepting_and_resumes_after_its_timeout",
    ),
)
