"""Mutations of what is answered about the fate of a write (N4, S4.5, S5.6, S7.1)."""

from __future__ import annotations

from tests.mutations.guard import chaos, directed, worlds
from tests.mutations.mutation import Mutation, mutation
from tests.mutations.syntax import Edit

FATES = "tests/unit/engine/reads/test_fates.py::test_n4_"
FATE = "tests/unit/core/test_fate.py::test_n4_"
LEADER_READS = "tests/unit/engine/reads/test_leader_reads.py::test_"
CONFIRMATIONS = "tests/unit/engine/channel/test_read_confirmations.py::test_"
DEADLINES = "tests/unit/engine/test_deadlines.py::test_"

FATE_RULES: tuple[Mutation, ...] = (
    mutation(
        "S4.1-fate",
        "A write that is not committed is called committed.",
        Edit(
            "_outcome_of_written",
            "if written.last_seq > state.commit_seq:\n"
            "    return WriteOutcomeFound(WriteOutcome.PENDING, *place)",
            "if written.last_seq > state.commit_seq:\n    pass",
        ),
        directed(FATE + "write_that_is_not_committed_yet_is_pending"),
    ),
    mutation(
        "S4.5-fate",
        "A write that was forgotten is called not applied.",
        Edit(
            "write_outcome_of",
            "if not state.dedupe.is_complete_for(guid):\n"
            "    return WriteOutcomeFound(WriteOutcome.UNKNOWN)",
            "",
        ),
        directed(FATE + "forgotten_write_is_unknown"),
    ),
    mutation(
        "S4.5-fate-forgotten",
        "A write of a session that was forgotten counts as never made.",
        Edit(
            "DedupeTable.is_complete_for",
            "self._forgotten_seq == 0",
            "True",
        ),
        directed(FATE + "any_write_of_no_session_is_unknown_once_a_session_was_forgotten"),
    ),
    mutation(
        "S5.6-fence",
        "A write is called not applied, and sequenced when its message arrives.",
        Edit(
            "write_outcome_of",
            "if not fence.add(guid):\n    return WriteOutcomeFound(WriteOutcome.OVERLOADED)",
            "",
        ),
        directed(
            FATE + "write_told_to_be_not_applied_is_refused_when_it_comes_late",
            FATES + "write_that_arrives_after_its_fate_was_told_is_refused",
        ),
    ),
    mutation(
        "S7.0-leader",
        "A read at level leader does not wait for what its leader has acknowledged.",
        Edit(
            "Reader.on_request",
            "min_seq = Seq(max(min_seq, runner.core.commit_seq))",
            "pass",
        ),
        directed(LEADER_READS + "s7_0_leader_read_shows_what_its_client_was_told_is_written"),
        chaos("leader_sessions", "slow-disk", "pause-follower"),
    ),
    mutation(
        "S7.1-fate",
        "A leader answers fates without asking whether it still leads.",
        Edit(
            "WriteOutcomes.on_request",
            "runner.request_read("
            "partial(self.on_confirmed, token), partial(self.on_refused, token), now_ms)",
            "self.on_confirmed(token, Seq(0)) or 0",
        ),
        directed(FATES + "leader_of_the_past_tells_no_fate"),
        chaos("write_fates", "isolate-leader", "pause-leader"),
    ),
    mutation(
        "S7.1-owner",
        "A question for a confirmed leader that was dropped is answered all the same.",
        Edit(
            "ReadConfirmations.drop",
            "self._open.pop(token, None)",
            "self._open.get(token)",
        ),
        directed(CONFIRMATIONS + "dropped_question_is_answered_to_nobody_and_costs_nothing"),
    ),
    mutation(
        "S7.1-owner-once",
        "A question for a confirmed leader is answered as often as its number is reported.",
        Edit(
            "ReadConfirmations.confirm",
            "self._open.pop(token, None)",
            "self._open.get(token)",
        ),
        directed(CONFIRMATIONS + "each_answer_goes_to_its_owner_once"),
    ),
    mutation(
        "engine-deadline-replaced",
        "A moment that was put off is due all the same.",
        Edit(
            "Deadlines._settle",
            "due.get(heap[0][1]) != heap[0][0]",
            "heap[0][1] not in due",
        ),
        directed(DEADLINES + "newer_moment_replaces_the_one_before"),
    ),
    mutation(
        "S7.1-fate-term",
        "What an earlier leadership was asked is answered by a later one of the same node.",
        Edit(
            "WriteOutcomes._try_answer",
            "runner.core.tell_write_outcome(request.guid) if is_of_term else None",
            "runner.core.tell_write_outcome(request.guid)",
        ),
        directed(FATES + "question_of_an_earlier_leadership_is_not_answered_by_a_later_one"),
    ),
    mutation(
        "S7.1-leader",
        "A leader answers reads of level leader before a commit of its own term.",
        Edit(
            "Reader._refusal",
            "not runner.core.leader_is_ready",
            "False",
        ),
        directed(
            LEADER_READS + "s7_1_leader_answers_no_read_before_a_commit_of_its_own_term",
            why="a leader commits the first record of its term within a round trip of its election",
        ),
    ),
    mutation(
        "S4.1-pending-called-committed",
        "A write that is in the leader's log is called committed before it is.",
        Edit(
            "_outcome_of_written",
            "written.last_seq > state.commit_seq",
            "False",
        ),
        directed(
            FATE + "write_that_is_not_committed_yet_is_pending",
            why="the round that a question waits for takes as long as the commit of the write",
        ),
    ),
    mutation(
        "S4.5-absent-called-forgotten",
        "A write that is not in the log is called unknown, as if it had been forgotten.",
        Edit(
            "write_outcome_of",
            "not state.dedupe.is_complete_for(guid)",
            "True",
        ),
        chaos("write_fates", "isolate-leader", "loss", "kill-leader"),
    ),
    mutation(
        "S5.6-fate-without-a-fence",
        "A write that was called not applied is sequenced when its message arrives.",
        Edit(
            "write_outcome_of",
            "not fence.add(guid)",
            "False",
        ),
        directed(
            FATE + "write_told_to_be_not_applied_is_refused_when_it_comes_late",
            FATES + "write_that_arrives_after_its_fate_was_told_is_refused",
            why="a copy would have to reach the same leader in the same term after its "
            "publisher gave it up and asked, and messages of one client arrive in order",
        ),
    ),
    mutation(
        "S7.1-read-before-applied",
        "A confirmed read is answered before its seq is applied.",
        Edit(
            "Reader.on_confirmed",
            "max(waiting.min_seq, read_seq)",
            "0",
        ),
        Edit(
            "ReadRounds._answer_applied",
            "self._confirmed and self._confirmed[0][0] <= self._state.applied_seq",
            "self._confirmed",
        ),
        chaos("register", "kill-leader", "slow-disk"),
    ),
    mutation(
        "S7.3-lag-under-reported",
        "A replica reports no lag while it has still to apply what is committed.",
        Edit(
            "Reader.lag",
            "known_lag(self._watch.known_commit(runner), applied, age, age_max)",
            "0",
        ),
        worlds(apply_max_ms="20"),
    ),
    mutation(
        "S7.3-at-least-ignored",
        "A read is served before the position it asked for is applied.",
        Edit(
            "Reader.on_request",
            "not linearizable and applied >= min_seq and refusal is None",
            "not linearizable and refusal is None",
        ),
        chaos("sessions", "isolate-follower", "pause-follower"),
    ),
    mutation(
        "S7.3-served-by-arrival-age",
        "A report of the leader is as young as its arrival, however long it waited on its way.",
        Edit(
            "Reader.freshness",
            "core.fresh_as_of(applied)",
            "runner.leader_info_heard_ms if lag == 0 else core.fresh_as_of(applied)",
        ),
        chaos("bounded_time", "pause-leader", "slow-link", "isolate-leader"),
    ),
)
