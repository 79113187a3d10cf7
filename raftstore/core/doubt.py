"""A replica that may have lost records which it acknowledged, and cannot know which (S0.6).

It neither votes, stands, acknowledges nor serves before it knows a *target*: a history at or above
everything that it ever acknowledged and that any replica still holds. It asks all other voters for
the ends of their logs, in rounds under ids that no earlier life used, and believes

* the end of a leader's log, if that leader's term is no lower than its own; or
* the highest end of all voters, its own included, if all of them answered in one round, nobody
  leads, and all of them are in one term that is higher than the one in which it stopped. Nobody
  acknowledged anything to this replica in that term, so what a leader of a lower one has sent, and
  what is still under way, is refused behind these answers: a record that is in none of them is
  nowhere any more. Where the terms are too low it raises them itself (``AskLogEnd.is_fence``), once
  enough rounds have found no leader.

With a target it votes, for candidates that have come at least as far; when its own log has, the
doubt is over. It goes on asking until then, and a newer answer replaces the target: records
that the one before stood for may be lost as well. The model of this is
``tests/model/durability_levels.py``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from raftstore.core.effects import Effect, RaiseTerm, SendIfKnown
from raftstore.protocol.log_ends import AskLogEnd, LogEnd
from raftstore.types import (
    SEQ_MAX,
    TERM_MAX,
    ChannelConfig,
    ChannelId,
    History,
    NodeId,
    RequestId,
    Seq,
    Term,
    node_name,
)

ASK_MS: Final = 250
"""A round of questions ends after this, and the next one begins."""
LEADERLESS_ROUNDS: Final = 2
"""So many rounds in which all answered and nobody leads, before terms are raised: an election that
is under way shall not be disturbed."""
UNKNOWN_END: Final = History(Term(TERM_MAX), Seq(SEQ_MAX))
"""Above every history: how far a log has to come while there is no target."""


class Doubt:
    """The questions of one life of a replica, to the voters that its own log names."""

    def __init__(
        self,
        me: NodeId,
        channel: ChannelId,
        stopped_term: Term,
        *,
        first_request_id: int,
        emit: Callable[[Effect], None],
    ) -> None:
        """``stopped_term``: the durable one at the start; acknowledgements were of no higher."""
        self._me = me
        self._channel = channel
        self._stopped_term = stopped_term
        self._request_id = first_request_id
        self._emit = emit
        self.target: History | None = None
        self._answers: dict[NodeId, LogEnd] = {}
        """Of the present round."""
        self._silent: tuple[NodeId, ...] = ()
        """Voters that did not answer in the round before."""
        self._leaderless = 0
        self._is_fencing = False
        self.due_ms = 0
        """When the next round begins."""

    @property
    def waits_for(self) -> str:
        """For people: what has to happen until it takes part again."""
        if self.target is not None:
            return f"its log has to come to seq {self.target.seq} of term {self.target.term}"
        if self._silent:
            names = ", ".join(node_name(node) for node in self._silent)
            return f"a leader has to answer, or all replicas; no answer from {names}"
        return "a leader has to answer, or all replicas"

    def ask(self, config: ChannelConfig, term: Term, own: History, now_ms: int) -> None:
        """Begin a round."""
        others = self._others(config)
        self._silent = tuple(node for node in others if node not in self._answers)
        self._answers = {}
        self._request_id += 1
        self.due_ms = now_ms + ASK_MS
        question = AskLogEnd(
            channel=self._channel,
            term=term,
            request_id=RequestId(self._request_id),
            is_fence=self._is_fencing,
        )
        for node in others:
            self._emit(SendIfKnown(node, question))
        if not others:
            self.target = own  # nobody else ever held anything

    def on_answer(
        self, sender: NodeId, answer: LogEnd, config: ChannelConfig, term: Term, own: History
    ) -> None:
        """The end of a voter's log; ``term`` and ``own``: this replica's term and end."""
        others = self._others(config)
        # An answer to another life, or to a round before, may be of what was lost since.
        if answer.request_id != self._request_id or sender not in others:
            return
        self._answers[sender] = answer
        if answer.leads:
            if answer.term >= term:
                self._leaderless = 0
                self.target = answer.history
            return
        if len(self._answers) < len(others):
            return
        answers = self._answers.values()
        if any(each.leads for each in answers):
            return
        is_fenced = term > self._stopped_term and all(each.term == term for each in answers)
        if is_fenced:
            self.target = max(own, *(each.history for each in answers))
            return
        self._leaderless += 1
        if self._leaderless >= LEADERLESS_ROUNDS:
            self._is_fencing = True
            wanted = max(self._stopped_term + 1, term, *(each.term for each in answers))
            if wanted > term:
                self._emit(RaiseTerm(Term(wanted)))

    def _others(self, config: ChannelConfig) -> tuple[NodeId, ...]:
        return tuple(node for node in config.voters if node != self._me)
