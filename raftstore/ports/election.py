"""Elections of one channel: what an elector is given and what it answers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from raftstore.protocol.election import ElectionMessage
from raftstore.types import ChannelConfig, ChannelId, History, NodeId, ReplicaNumber, Role, Term


class ElectionHost(Protocol):
    """The replica and node of an elector, as the elector uses them. Implemented by the engine."""

    me: NodeId
    number: ReplicaNumber
    """Which life of this node's replica it is: its own vote counts by it, too (M4)."""

    def history(self) -> History:
        """ACCEPTED history: everything that may still be acknowledged (S1.2)."""

    def config(self) -> ChannelConfig:
        """The newest configuration in the log, else the creation configuration."""

    def config_before(self) -> ChannelConfig:
        """The one before the newest, while the newest is not known to be committed; else the newest
        (M3, M18)."""

    def may_vote(self, candidate: History) -> bool:
        """False while acknowledged records are missing (S0.3), or may be and the candidate's
        history may not have them (S0.6): neither vote nor pre-vote."""

    def may_stand(self) -> bool:
        """False while recovering, for whatever reason (S0.3), or known to be removed (M13): no
        candidacy."""

    def persist_vote(self, term: Term, voted_for: NodeId | None) -> None:
        """Write term and vote into the node's log. Raises StorageError: the node stops."""

    def send_election(self, to: NodeId, message: ElectionMessage) -> None:
        """Send once everything persisted before this call is durable (S0.5)."""

    def role_changed(self, term: Term, role: Role, leader: NodeId | None) -> None:
        """Called after every change of role, leader or term; the engine queues a RoleChanged."""

    def leader_last_heard_ms(self, leader: NodeId) -> int | None:
        """When the node of this leader was last known alive *and* claiming this channel and term
        (node heartbeat with a matching digest, or any of its channel messages); None = never, or
        its connection is known to be dead."""

    def backoff_ms(self) -> int:
        """Random delay after a failed round (default range 150-450 ms)."""


class Elector(Protocol):
    """One channel's elector on one node: owns term, vote and role, and nothing else (S1)."""

    @property
    def term(self) -> Term:
        """Current term (already handed to persist_vote)."""

    @property
    def voted_for(self) -> NodeId | None:
        """Vote in the current term."""

    @property
    def role(self) -> Role:
        """Role now."""

    @property
    def leader(self) -> NodeId | None:
        """Leader of the current term, as far as known."""

    @property
    def is_standing(self) -> bool:
        """Whether it asks for votes, or whether others would vote, and awaits answers."""

    def suspect(self, now_ms: int, delay_ms: int) -> None:
        """The leader is suspected dead or unknown: stand after ``delay_ms`` unless a message of one
        arrives."""

    def on_message(self, sender: NodeId, message: ElectionMessage, now_ms: int) -> None:
        """Process an election message."""

    def on_leader(self, leader: NodeId, term: Term, now_ms: int) -> bool:
        """A message of an elected leader arrived. False: stale, answer the sender (StaleTerm)."""

    def observe_term(self, term: Term) -> None:
        """Adopt a higher term without voting."""

    def poll(self, now_ms: int) -> None:
        """Timers; call at or after next_deadline_ms."""

    def next_deadline_ms(self) -> int | None:
        """When poll must be called; None while nothing is armed (steady state)."""

    def step_down(self, reason: str) -> None:
        """Leader: keep the term, drop the role, notify the replicas (StepDownNotice)."""

    def transfer(self, to: NodeId) -> None:
        """Leader: send TransferNow (the engine has checked S9's conditions)."""

    def evict(self) -> bool:
        """Free the pysyncobj instance; True if there was one to free. Never changes behaviour."""


ElectorFactory = Callable[[ElectionHost, ChannelId, Term, NodeId | None], Elector]

"""Build an elector from the durable (term, vote) of a channel."""
