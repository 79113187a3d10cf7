"""The words between the election rules and the machine that keeps term, vote and role.

The machine is pysyncobj behind five verbs. It is volatile: everything it must not forget goes
through ``VoteOwner.persist``, and it may be thrown away and rebuilt from the owner's (term, vote)
whenever it is not a candidate.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from raftstore.types import History, NodeId, Role, Term


class VoteOwner(Protocol):
    """The elector that owns a vote machine, as the machine uses it."""

    @property
    def me(self) -> NodeId:
        """This replica's node."""

    @property
    def term(self) -> Term:
        """Newest term handed to ``persist``."""

    @property
    def voted_for(self) -> NodeId | None:
        """Vote in that term."""

    def own_history(self) -> History:
        """Accepted history (S1.2)."""

    def persist(self, term: Term, voted_for: NodeId | None) -> None:
        """Term or vote changed; called before anything that reveals it is sent (S0.5)."""

    def vote_requested(self, term: Term, history: History) -> None:
        """The machine stands in ``term``: ask the voters."""

    def vote_granted(self, candidate: NodeId, term: Term) -> None:
        """The machine voted for ``candidate`` in ``term``: send it the vote."""


class VoteMachine(Protocol):
    """Term, vote and role of one channel. Synchronous; answers come through the owner."""

    @property
    def term(self) -> Term:
        """The machine's own idea of the term, compared with the owner's after every verb."""

    @property
    def role(self) -> Role:
        """Role after the last verb."""

    @property
    def leader(self) -> NodeId | None:
        """Leader of the term, as far as known."""

    def request_vote(self, candidate: NodeId, term: Term, history: History) -> None:
        """A candidate asks: adopt a higher term, then vote or not."""

    def observe_term(self, term: Term) -> None:
        """Adopt a higher term without voting."""

    def learn_leader(self, leader: NodeId, term: Term) -> None:
        """Follow an elected leader, adopting its term if it is higher."""

    def start_election(self) -> None:
        """Stand in the next term: persist the vote for oneself, then ask."""

    def grant_majority(self) -> None:
        """The owner counted a quorum for the current term: become leader."""

    def close(self) -> None:
        """Free the machine."""


VoteMachineMaker = Callable[[VoteOwner], VoteMachine]
"""Build a machine from the owner's term and vote, as a follower without a known leader."""
