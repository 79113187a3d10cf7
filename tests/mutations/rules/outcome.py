"""Mutations of what publishers and readers get: S4 to S7, S9, S10."""

from __future__ import annotations

from tests.mutations.guard import chaos, client_worlds, directed, worlds
from tests.mutations.mutation import Mutation, mutation
from tests.mutations.syntax import Edit

DEDUPE = "tests/unit/core/test_dedupe.py::test_"
LOG = "tests/unit/core/test_rules_log.py::test_"
SEQUENCING = "tests/unit/core/test_sequencer.py::test_"
COMMIT = "tests/unit/core/test_rules_commit.py::test_"
PENDING = "tests/unit/core/test_pending.py::test_"

OUTCOME_RULES: tuple[Mutation, ...] = (
    mutation(
        "S4.1-timeout",
        "A write without a quorum in time is called not applied, and may commit later.",
        Edit(
            "Sequencer.on_timer",
            "QuorumTimeoutError",
            "UnavailableError",
        ),
        directed(
            COMMIT + "quorum_timeout_is_unknown_and_the_record_stays",
            why="the retry of a write that was stored meets its own record, and that "
            "answer is unknown",
        ),
    ),
    mutation(
        "S4.1-won",
        "The leader of an earlier term does not know whether it sequenced a write.",
        Edit(
            "ChannelState.may_have_sequenced",
            "term not in self._won_terms",
            "True",
        ),
        directed(SEQUENCING + "deposed_leader_does_not_deny_a_write_that_it_may_have_forgotten"),
    ),
    mutation(
        "S4.1-forgotten",
        "A deposed leader denies a write whose outcome it has forgotten.",
        Edit(
            "ChannelState.may_have_sequenced",
            "self.dedupe.find(guid) is not None or not self.dedupe.is_complete_for(guid)",
            "self.dedupe.find(guid) is not None",
        ),
        directed(SEQUENCING + "deposed_leader_does_not_deny_a_write_that_it_may_have_forgotten"),
    ),
    mutation(
        "S4.3-step-down",
        "A write pending when its leader steps down is called not applied.",
        Edit(
            "Sequencer.on_leadership_lost",
            "LeadershipLostError",
            "UnavailableError",
        ),
        directed(
            COMMIT + "pending_publish_is_unknown_after_a_step_down",
            why="the retry of a write that was stored meets its own record, as after a "
            "quorum timeout",
        ),
    ),
    mutation(
        "S4.4-commit-first",
        "A publish is acknowledged when it is written.",
        Edit(
            "Leader.on_publish",
            "self.sequencer.await_outcome(client, message)",
            "self.sequencer._acknowledge(\n"
            "    client, message.guid, self._state.dedupe.find(message.guid)\n"
            ")",
        ),
        Edit(
            "Sequencer._acknowledge",
            'assert written.last_seq <= state.commit_seq, f"OK for seq {written.last_seq}, '
            'committed are {state.commit_seq} (S4.4)"',
            "",
        ),
        directed(COMMIT + "publish_is_acknowledged_after_its_commit_only"),
    ),
    mutation(
        "S4.5-wait",
        "A retry of an uncommitted write is answered at once.",
        Edit(
            "Sequencer._answer_known",
            "written.last_seq > state.commit_seq",
            "False",
        ),
        directed(COMMIT + "retry_of_an_uncommitted_write_waits_for_the_first_one"),
        worlds(fault_interval_ms="200"),
    ),
    mutation(
        "S4.5-dedupe",
        "A retry is written a second time.",
        Edit(
            "Sequencer.admit",
            "verdict is not Verdict.NEW",
            "False",
        ),
        directed(COMMIT + "retry_of_a_committed_write_is_answered_with_the_same_place"),
        chaos("publish_log", "loss", "pause-leader"),
        worlds(seeds=range(1, 13)),
    ),
    mutation(
        "S4.5-floor",
        "A write below its session's floor counts as new.",
        Edit(
            "DedupeTable.judge",
            "session is not None and guid_counter(guid) <= session.floor",
            "False",
        ),
        directed(
            DEDUPE + "counter_at_or_below_the_floor_is_expired",
            why="a session writes too little in a world to leave its window",
        ),
    ),
    mutation(
        "S4.5-unsure",
        "A forgotten session that wrote again is sure of itself.",
        Edit(
            "DedupeTable._remember",
            "self._forgotten_seq",
            "Seq(0)",
        ),
        directed(DEDUPE + "forgotten_session_stays_in_doubt_when_it_is_reduced_to_its_floor"),
    ),
    mutation(
        "S4.5-age",
        "A retry of a session that was forgotten counts as new without proof of its age.",
        Edit(
            "DedupeTable.judge",
            "expired |= (in_doubt or after_seq > 0) and after_seq < forgotten_to",
            "",
        ),
        directed(DEDUPE + "no_timestamp_makes_a_retry_new"),
    ),
    mutation(
        "S4.5-claim",
        "Whatever a publisher says of its write's age proves it.",
        Edit(
            "DedupeTable.judge",
            "(in_doubt or after_seq > 0) and after_seq < forgotten_to",
            "in_doubt and after_seq == 0 < forgotten_to",
        ),
        directed(DEDUPE + "no_written_guid_looks_new_however_late_its_retry_comes"),
    ),
    mutation(
        "S4.5-settled",
        "A retry whose first attempt is in doubt is as good as a first attempt.",
        Edit(
            "Sequencer.admit",
            "message.attempt > 0 and not message.is_settled",
            "False",
        ),
        directed(SEQUENCING + "retry_of_a_forgotten_session_is_never_written_a_second_time"),
    ),
    mutation(
        "S4.6-digest",
        "One GUID may name two payloads.",
        Edit(
            "DedupeTable.judge",
            "written.digest == digest",
            "True",
        ),
        directed(COMMIT + "guid_with_another_payload_is_refused"),
        client_worlds(),
    ),
    mutation(
        "S5.1-payload",
        "A record whose payload is missing is stored empty and acknowledged.",
        Edit(
            "Follower._take",
            "payload_of(self._payloads, head)",
            'payload_of(self._payloads, head) or b""',
        ),
        directed(LOG + "metadata_without_its_payload_is_nothing"),
        worlds(payload_loss_percent="10"),
    ),
    mutation(
        "S5.2-correlation",
        "Payloads correlate without their length.",
        Edit(
            "PendingPayloads.find",
            "held is not None and len(held.payload) == length",
            "held is not None",
        ),
        directed(PENDING + "payload_is_found_by_guid_digest_and_length_only"),
    ),
    mutation(
        "S5.3-orphans",
        "Orphan payloads are held for ever.",
        Edit(
            "PendingPayloads.expire",
            "self._held and next(iter(self._held.values())).drop_at_ms <= now_ms",
            "False",
        ),
        directed(PENDING + "orphan_payload_expires_silently"),
    ),
    mutation(
        "S5.3-next-orphan",
        "When one payload is gone the others are expired no more.",
        Edit(
            "PendingPayloads._arm",
            "next(iter(self._held.values())).drop_at_ms if self._held else None",
            "None",
        ),
        directed(PENDING + "orphan_payload_expires_silently"),
    ),
    mutation(
        "S5.4-fetch",
        "A payload that got lost is waited for without end.",
        Edit(
            "Follower.on_payload_source",
            'self._leave_steady("missing_pubmsg", seq)',
            "self._payload_wait = None",
        ),
        directed(LOG + "missing_payload_is_fetched_after_a_moment"),
        worlds(payload_loss_percent="40"),
    ),
    mutation(
        "S5.6-other-leader",
        "A leader sequences what was addressed to another.",
        Edit(
            "Replica._on_publish",
            "message.leader != state.me",
            "message.leader != state.me and self._leader is None",
        ),
        directed(LOG + "payload_addressed_to_another_leader_is_never_sequenced"),
    ),
    mutation(
        "S5.6-other-term",
        "A leader sequences what was addressed to another term.",
        Edit(
            "Replica._on_publish",
            "self._leader is None or message.term != state.term",
            "self._leader is None",
        ),
        directed(LOG + "payload_addressed_to_another_leader_is_never_sequenced"),
    ),
    mutation(
        "S5.6-refused",
        "A late copy of a refused write is accepted.",
        Edit(
            "Sequencer._refusal",
            "before is not None and message.attempt <= before.attempt",
            "False",
        ),
        directed(
            COMMIT + "refused_attempt_stays_refused_when_its_copy_arrives_late",
            why="a late copy has to outlive a hand-over of its leader that fails",
        ),
    ),
    mutation(
        "S7.1-own-term",
        "A leader confirms reads before a record of its term is committed.",
        Edit(
            "ReadRounds._start_round",
            "state.lineage.term_at(state.commit_seq) != state.term",
            "False",
        ),
        directed(COMMIT + "leader_confirms_no_read_before_a_record_of_its_term_is_committed"),
        chaos("register", "kill-leader", "step-down", "isolate-leader"),
    ),
    mutation(
        "S7.1-quorum",
        "A leader answers linearizable reads without asking anybody.",
        Edit(
            "ReadRounds.advance",
            "has_quorum(config, self._round.confirmed)",
            "self._round.confirmed",
        ),
        directed(COMMIT + "read_waits_for_a_quorum_of_confirmations"),
        chaos("register", "isolate-leader", "pause-leader"),
        worlds(seeds=range(1, 25), readers="8", fault_interval_ms="200"),
    ),
    mutation(
        "S7.1-after-arrival",
        "Confirmations from before the read count.",
        Edit(
            "ReadRounds.on_reply",
            "self._round is not None and reply.round_id == self._round.round_id",
            "self._round is not None",
        ),
        directed(
            COMMIT + "confirmation_of_an_earlier_round_does_not_count",
            "tests/model/test_read_rounds.py::"
            "test_old_confirmation_serves_no_later_read[a second read at a leader of the past]",
        ),
    ),
    mutation(
        "S7.1-applied",
        "A confirmed read is answered before it is applied.",
        Edit(
            "ReadRounds._answer_applied",
            "self._confirmed and self._confirmed[0][0] <= self._state.applied_seq",
            "self._confirmed",
        ),
        directed(COMMIT + "read_waits_until_its_seq_is_applied"),
    ),
    mutation(
        "S7.3-told",
        "A leader reports old commit positions before it committed in its term.",
        Edit(
            "Leader.reported_commit_seq",
            "self._state.commit_seq if self.knows_position else Seq(0)",
            "self._state.commit_seq",
        ),
        directed(
            COMMIT + "leader_tells_no_commit_position_before_a_record_of_its_term_is_committed"
        ),
    ),
    mutation(
        "S9-equal",
        "A target that is behind is asked to take over.",
        Edit(
            "HandOver.advance",
            "progress is not None and progress.match_seq == state.last_seq",
            "progress is not None",
        ),
        directed(
            COMMIT + "hand_over_waits_for_an_equal_target",
            why="votes still compare histories (S1.1), so that only the hand-over fails",
        ),
    ),
    mutation(
        "S9-stop",
        "Writes are accepted during a hand-over.",
        Edit(
            "Sequencer._refusal",
            "self.refusal is not None",
            "False",
        ),
        directed(COMMIT + "hand_over_stops_accepting_and_resumes_after_its_timeout"),
    ),
    mutation(
        "S9-resume",
        "A failed hand-over leaves the channel closed.",
        Edit("HandOver.on_timer", "self._reopen()", "pass"),
        directed(COMMIT + "hand_over_stops_accepting_and_resumes_after_its_timeout"),
    ),
    mutation(
        "S4.1-refused-after-it-was-stored",
        "A write that is stored already is refused as overload when others wait.",
        Edit(
            "Sequencer.await_outcome",
            "self._waiting.add(client, message, written, self._state.now_ms)",
            "if len(self._waiting) >= 1:\n"
            '    reject(self._state, client, message, OverloadedError.code, "too '
            'many wait")\n'
            "    return\n"
            "self._waiting.add(client, message, written, self._state.now_ms)",
        ),
        worlds(writers="6"),
    ),
    mutation(
        "S5.2-payload-by-guid-alone",
        "Payloads correlate by their GUID, whatever their digest and length.",
        Edit(
            "PendingPayloads.find",
            "held = self._held.get((guid, digest))\n"
            "return held.payload if held is not None and len(held.payload) == length "
            "else None",
            "held = next((held for key, held in self._held.items() if key[0] == guid), "
            "None)\n"
            "return held.payload if held is not None else None",
        ),
        client_worlds(),
    ),
    mutation(
        "S10-timestamps-go-back",
        "Timestamps follow the leader's clock backwards.",
        Edit(
            "Sequencer.next_timestamp_ms",
            "min(max(wall_ms, state.tail.last_timestamp_ms + 1), WALL_MS_MAX)",
            "wall_ms",
        ),
        client_worlds(clock_rate_spread="0.1"),
    ),
)
