"""A leader named by configuration: single nodes, and tests that need a given leader. No votes.

The named replica takes a *new* term each time it starts to lead, as an elected one would, so a
(term, seq) is never used twice after a crash (S2.1). Everybody else follows it and refuses others.
Two replicas that were given different names are two leaders; nothing here can notice that, which is
why clusters use the pysyncobj elector.
"""

from __future__ import annotations

from raftstore.errors import ElectionError
from raftstore.ports.election import ElectionHost, Elector, ElectorFactory
from raftstore.protocol.election import ElectionMessage, LeaderAnnounce, StepDownNotice
from raftstore.protocol.replication import StaleTerm
from raftstore.types import ChannelId, NodeId, Role, Term


class FixedElector:
    """``ports.election.Elector`` whose election always ends the same way."""

    __slots__ = ("_channel", "_deadline_ms", "_host", "_leader", "_named", "_role", "_term")

    def __init__(
        self, host: ElectionHost, channel: ChannelId, term: Term, *, leader: NodeId
    ) -> None:
        """Start as a follower of nobody in the durable ``term``; ``suspect`` starts the leading."""
        self._host = host
        self._channel = channel
        self._named = leader
        self._term = max(term, host.history().term)
        self._role = Role.FOLLOWER
        self._leader: NodeId | None = None
        self._deadline_ms: int | None = None

    @property
    def term(self) -> Term:
        """Current term."""
        return self._term

    @property
    def voted_for(self) -> NodeId | None:
        """The named leader leads by its own vote; others never vote."""
        return self._named if self._role is Role.LEADER else None

    @property
    def role(self) -> Role:
        """LEADER on the named replica once it was polled; else FOLLOWER."""
        return self._role

    @property
    def leader(self) -> NodeId | None:
        """The named leader once it announced itself."""
        return self._leader

    def suspect(self, now_ms: int, delay_ms: int) -> None:
        """On the named replica: lead after ``delay_ms``. Elsewhere nothing can be done."""
        can_lead = self._host.me == self._named and self._role is not Role.LEADER
        if can_lead and self._deadline_ms is None:
            self._deadline_ms = now_ms + delay_ms

    def poll(self, now_ms: int) -> None:
        """Take a new term and lead it; a recovering replica (S0.3) waits."""
        if self._deadline_ms is None or now_ms < self._deadline_ms:
            return
        if not self._host.may_stand():
            self._deadline_ms = now_ms + self._host.backoff_ms()
            return
        assert self._host.me == self._named, f"{self._host.me} is to lead instead of {self._named}"
        self._deadline_ms = None
        self._move(Term(self._term + 1), Role.LEADER, self._named)
        for member in self._others():
            self._host.send_election(member, LeaderAnnounce(channel=self._channel, term=self._term))

    @property
    def is_standing(self) -> bool:
        """Do nothing: the leader is fixed."""
        return False

    def next_deadline_ms(self) -> int | None:
        """When the named replica starts to lead; else None."""
        return self._deadline_ms

    def on_message(self, sender: NodeId, message: ElectionMessage, now_ms: int) -> None:
        """Announcements, step-downs and stale terms; requests for votes are not answered."""
        match message:
            case LeaderAnnounce():
                if not self.on_leader(sender, message.term, now_ms):
                    self._host.send_election(
                        sender, StaleTerm(channel=self._channel, term=self._term)
                    )
            case StaleTerm():
                self.observe_term(message.term)
            case StepDownNotice() if message.term == self._term and sender == self._leader:
                self._move(self._term, Role.FOLLOWER, None)
            case _:
                pass

    def on_leader(self, leader: NodeId, term: Term, now_ms: int) -> bool:
        """Follow the named leader; any other is a mistake of the configuration."""
        del now_ms
        if leader != self._named or leader == self._host.me:
            raise ElectionError(
                f"{leader} leads term {term} but the fixed leader is {self._named}; give every "
                "node the same name"
            )
        if term < self._term:
            return False
        self._move(term, Role.FOLLOWER, leader)
        return True

    def observe_term(self, term: Term) -> None:
        """Adopt a higher term; the named replica takes the next one at the following poll."""
        if term > self._term:
            self._move(term, Role.FOLLOWER, None)
            self.suspect(0, 0)

    def step_down(self, reason: str) -> None:
        """Leader: stop leading until ``suspect`` is called again."""
        del reason
        if self._role is Role.LEADER:
            self._move(self._term, Role.FOLLOWER, None)
            notice = StepDownNotice(channel=self._channel, term=self._term)
            for member in self._others():
                self._host.send_election(member, notice)

    def transfer(self, to: NodeId) -> None:
        """Nothing: nobody else may lead, so the caller's hand-over times out (S9)."""

    def evict(self) -> bool:
        """Nothing is held."""
        return False

    def _move(self, term: Term, role: Role, leader: NodeId | None) -> None:
        assert term >= self._term, f"the term would fall from {self._term} to {term} (S1.4)"
        assert (role is Role.LEADER) == (leader == self._host.me), (
            f"{self._host.me} is {role} of term {term} led by {leader} (S1.5)"
        )
        assert role is not Role.LEADER or term > self._term, (
            f"term {term} is led twice: its seqs would be used twice (S2.1)"
        )
        before = (self._term, self._role, self._leader)
        if term > self._term:
            self._host.persist_vote(term, leader if role is Role.LEADER else None)
        self._term, self._role, self._leader = term, role, leader
        if (term, role, leader) != before:
            self._host.role_changed(term, role, leader)

    def _others(self) -> tuple[NodeId, ...]:
        return tuple(node for node in self._host.config().members if node != self._host.me)


def fixed_elector_factory(leader: NodeId) -> ElectorFactory:
    """Make electors that know ``leader`` beforehand."""

    def make(
        host: ElectionHost, channel: ChannelId, term: Term, voted_for: NodeId | None
    ) -> Elector:
        del voted_for  # votes mean nothing here
        return FixedElector(host, channel, term, leader=leader)

    return make
