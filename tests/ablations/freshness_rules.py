"""Ablations of what a node may believe of its leaders after it stood still: S7.1 and S7.3."""

from __future__ import annotations

from tests.ablations.ablation import CORE, ENGINE, Ablation, directed

ROUNDS = "raftstore/core/proof_requests.py"
STALLS = "tests/unit/engine/test_stalls.py::test_"
ROUND_MODEL = "tests/model/test_read_rounds.py::test_"
FRESHNESS = "tests/unit/core/test_freshness.py::test_"

FRESHNESS_RULES: tuple[Ablation, ...] = (
    directed(
        "S7.3-stall",
        "a node that was stopped takes what waited for it for fresh",
        ENGINE + "node_runner.py",
        "            self._stalled(now_ms)\n",
        "            pass\n",
        STALLS + "stopped_follower_does_not_take_buffered_positions_for_fresh",
        STALLS + "stopped_leader_does_not_take_its_leadership_for_granted",
    ),
    directed(
        "S7.3-stalled-leader",
        "a leader that was stopped tells its old position as the present one",
        CORE + "leader.py",
        "return self.is_ready and self._state.freshness.is_trusted",
        "return self.is_ready",
        STALLS + "stopped_leader_tells_nobody_a_position_before_it_is_confirmed",
    ),
    directed(
        "S7.3-wake",
        "a round trip from before the stop ends the distrust",
        "raftstore/core/commit_proofs.py",
        "if self._woke_ms is not None and known_ms >= self._woke_ms:",
        "if self._woke_ms is not None:",
        FRESHNESS + "round_from_before_the_stop_does_not_confirm_the_leader_after_it",
    ),
    directed(
        "S7.3-old-round",
        "a late reply to an older request is taken for the answer to the present one",
        ROUNDS,
        "self._sent_ms is None or reply.round_id != self._round_id:",
        "self._sent_ms is None:",
        FRESHNESS + "reply_to_an_older_request_proves_nothing",
    ),
    directed(
        "S7.3-lives",
        "a reply to the process before this one answers a request of this one",
        ROUNDS,
        "self._round_id = first_round_id",
        "self._round_id = 0",
        FRESHNESS + "rounds_of_two_lives_of_a_node_have_other_numbers",
    ),
    directed(
        "S7.3-prover",
        "a node that does not lead proves how far the channel is committed",
        ROUNDS,
        "if sender != state.leader or self._sent_ms is None",
        "if self._sent_ms is None",
        FRESHNESS + "reply_of_a_lower_term_or_of_another_node_proves_nothing",
    ),
    directed(
        "S7.3-term",
        "a leader of the past proves how far the channel is committed",
        CORE + "replica.py",
        "if event.message.term != state.term or state.stopped is not None:",
        "if state.stopped is not None:",
        FRESHNESS + "reply_of_a_lower_term_or_of_another_node_proves_nothing",
    ),
    directed(
        "S7.1-fresh",
        "a round that started before a replica asked is its proof",
        CORE + "reads.py",
        "        self._askers[sender] = round_id\n",
        "        (self._round.askers if self._round else self._askers)[sender] = round_id\n",
        FRESHNESS + "leader_answers_after_a_round_that_started_after_the_request",
    ),
    directed(
        "S7.1-join",
        "a read joins the round that is under way when it comes",
        CORE + "reads.py",
        "        self._waiting.append(_Read(token, deadline))\n",
        "        (self._round.reads if self._round else self._waiting).append("
        "_Read(token, deadline))\n",
        ROUND_MODEL + "round_proves_nothing_of_what_came_after_it_began[reads during a round]",
    ),
    directed(
        "S7.1-repeated",
        "a round that is sent again after a stop takes in the reads that came since",
        CORE + "reads.py",
        "                self._ask(self._round)\n        self.advance()",
        "                self._round.reads += self._waiting\n"
        "                self._waiting = []\n"
        "                self._ask(self._round)\n        self.advance()",
        ROUND_MODEL + "repeated_round_takes_no_later_read_in",
    ),
    directed(
        "S7.1-other-round",
        "a late confirmation of an earlier round counts for the present one",
        CORE + "reads.py",
        "if self._round is not None and reply.round_id == self._round.round_id:",
        "if self._round is not None:",
        ROUND_MODEL
        + "old_confirmation_serves_no_later_read[a second read at a leader of the past]",
    ),
    directed(
        "S7.1-lease",
        "a leader that was confirmed a moment ago answers while its successor takes over",
        CORE + "reads.py",
        "if not has_quorum(config, self._round.confirmed):",
        "if not has_quorum(config, self._round.confirmed) and self._state.now_ms"
        " - (self._state.freshness.newest_ms or -1000) > 150:",
        ROUND_MODEL + "no_read_is_stale_while_leadership_is_handed_over",
    ),
    directed(
        "S7.3-repeated",
        "a request that is sent again under its number proves as of its last sending",
        ROUNDS,
        "        state.send(state.leader, message)\n",
        "        state.send(state.leader, message)\n        self._sent_ms = state.now_ms\n",
        ROUND_MODEL + "old_confirmation_serves_no_later_read[a proof that is asked for again]",
    ),
)
