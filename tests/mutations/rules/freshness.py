"""Mutations of what a node may believe of its leaders after it stood still: S7.1 and S7.3."""

from __future__ import annotations

from tests.mutations.guard import chaos, directed
from tests.mutations.mutation import Mutation, mutation
from tests.mutations.syntax import Edit

ROUND_MODEL = "tests/model/test_read_rounds.py::test_"
FRESHNESS = "tests/unit/core/test_freshness.py::test_"
STALLS = "tests/unit/engine/test_stalls.py::test_"

FRESHNESS_RULES: tuple[Mutation, ...] = (
    mutation(
        "S7.1-fresh",
        "A round that started before a replica asked is its proof.",
        Edit(
            "ReadRounds.on_fresh_request",
            "self._askers",
            "self._round.askers if self._round else self._askers",
        ),
        directed(FRESHNESS + "leader_answers_after_a_round_that_started_after_the_request"),
    ),
    mutation(
        "S7.1-join",
        "A read joins the round that is under way when it comes.",
        Edit(
            "ReadRounds.request",
            "self._waiting",
            "self._round.reads if self._round else self._waiting",
        ),
        directed(
            ROUND_MODEL + "round_proves_nothing_of_what_came_after_it_began[reads during a round]"
        ),
    ),
    mutation(
        "S7.1-repeated",
        "A round that is sent again after a pause takes in the reads that came since.",
        Edit(
            "ReadRounds.on_timer",
            "self._ask(self._round)",
            "self._round.reads += self._waiting\nself._waiting = []\nself._ask(self._round)",
        ),
        directed(
            ROUND_MODEL + "repeated_round_takes_no_later_read_in",
            why="a confirmation from before a write has to arrive after the round was sent again",
        ),
    ),
    mutation(
        "S7.1-lease",
        "A leader that was confirmed a moment ago answers while its successor takes over.",
        Edit(
            "ReadRounds.advance",
            "not has_quorum(config, self._round.confirmed)",
            "not has_quorum(config, self._round.confirmed) and self._state.now_ms - "
            "(self._state.freshness.newest_ms or -1000) > 150",
        ),
        directed(ROUND_MODEL + "no_read_is_stale_while_leadership_is_handed_over"),
    ),
    mutation(
        "S7.3-stall",
        "A node that stood still trusts what waited for it, and its own leadership.",
        Edit(
            "NodeRunner._begin",
            "self._stalled(now_ms)",
            "pass",
        ),
        directed(
            STALLS + "stopped_follower_does_not_take_buffered_positions_for_fresh",
            STALLS + "stopped_leader_does_not_take_its_leadership_for_granted",
            why="bounds of time never trust arrivals, and rows are judged with ten seconds "
            "to spare",
        ),
    ),
    mutation(
        "S7.3-stalled-leader",
        "A leader that was stopped reports its old position as the present one.",
        Edit(
            "Leader.knows_position",
            "self.is_ready and self._state.freshness.is_trusted",
            "self.is_ready",
        ),
        directed(STALLS + "stopped_leader_tells_nobody_a_position_before_it_is_confirmed"),
    ),
    mutation(
        "S7.3-wake",
        "A round trip from before the stop ends the distrust.",
        Edit(
            "Freshness.learn",
            "self._woke_ms is not None and known_ms >= self._woke_ms",
            "self._woke_ms is not None",
        ),
        directed(FRESHNESS + "round_from_before_the_stop_does_not_confirm_the_leader_after_it"),
    ),
    mutation(
        "S7.3-old-round",
        "A late reply to an older request is taken for the answer to the present one.",
        Edit(
            "ProofRequests.on_reply",
            "sender != state.leader or self._sent_ms is None or reply.round_id != self._round_id",
            "sender != state.leader or self._sent_ms is None",
        ),
        directed(FRESHNESS + "reply_to_an_older_request_proves_nothing"),
    ),
    mutation(
        "S7.3-lives",
        "A reply to the process before this one answers a request of this one.",
        Edit(
            "ProofRequests.__init__",
            "first_round_id",
            "0",
        ),
        directed(FRESHNESS + "rounds_before_and_after_a_restart_have_other_numbers"),
    ),
    mutation(
        "S7.3-prover",
        "A node that does not lead proves how far the channel is committed.",
        Edit(
            "ProofRequests.on_reply",
            "sender != state.leader or self._sent_ms is None or reply.round_id != self._round_id",
            "self._sent_ms is None or reply.round_id != self._round_id",
        ),
        directed(FRESHNESS + "reply_of_a_lower_term_or_of_another_node_proves_nothing"),
    ),
    mutation(
        "S7.3-term",
        "A leader of the past proves how far the channel is committed.",
        Edit(
            "Replica._on_received",
            "event.message.term != state.term or state.stopped is not None",
            "state.stopped is not None",
        ),
        directed(FRESHNESS + "reply_of_a_lower_term_or_of_another_node_proves_nothing"),
    ),
    mutation(
        "S7.3-repeated",
        "A request that is sent again under its number proves as of its last sending.",
        Edit(
            "ProofRequests._send",
            "state.send(state.leader, message)",
            "state.send(state.leader, message)\nself._sent_ms = state.now_ms",
        ),
        directed(
            ROUND_MODEL + "old_confirmation_serves_no_later_read[a proof that is asked for again]"
        ),
    ),
    mutation(
        "S7.1-confirmations-from-before-the-read",
        "Confirmations of earlier rounds count for a read that came later.",
        Edit(
            "ReadRounds._start_round",
            "is_proof_wanted=is_proof_wanted,",
            "is_proof_wanted=is_proof_wanted, confirmed=self.__dict__.setdefault('past', {}),",
        ),
        chaos("cas_register", "isolate-leader", "pause-leader"),
    ),
    mutation(
        "S7.1-lease-survives-a-hand-over",
        "A leader that was confirmed a moment ago reads by a lease while its successor leads.",
        Edit(
            "ReadRounds._start_round",
            "self._ask(self._round)",
            "if state.now_ms - (state.freshness.newest_ms or -1000) <= 150:\n"
            "    self._round.confirmed |= dict.fromkeys(state.configs.current.voters)\n"
            "self._ask(self._round)",
        ),
        directed(
            ROUND_MODEL + "no_read_is_stale_while_leadership_is_handed_over",
            why="the old leader would have to hear of its successor later than clients do",
        ),
    ),
    mutation(
        "S7.3-proof-dated-by-its-reply",
        "A proof counts from its reply on, not from its request: what came between is missed.",
        Edit(
            "ProofRequests.on_reply",
            "self._sent_ms, reply.read_seq,",
            "state.now_ms, reply.read_seq,",
        ),
        chaos("bounded_time", "slow-link", "pause-follower", "reorder"),
    ),
)
