"""Term, vote and role of one channel: the vote machine behind guards, and its mirror.

pysyncobj must not lower a term, change a vote within one, miss an election it was ordered to start,
reveal a vote it did not store, refuse a majority, or lose a role by itself; and no term may show
two leaders. Each of these is an ElectionError and stops the node: every message waits until what it
reveals is durable (S0.5), so nothing the machine did wrong has left yet.

The mirror is what everybody else reads. The machine exists from its first use to its eviction;
rebuilt from (term, vote, leader) it answers as before, because a follower that voted for itself
refuses every request of its term exactly as a leader does.
"""

from __future__ import annotations

from typing import Protocol

from raftstore.election.voting import VoteMachine, VoteMachineMaker
from raftstore.errors import ElectionError
from raftstore.types import ChannelId, History, NodeId, Role, Term


class MachineHost(Protocol):
    """The part of ``ports.election.ElectionHost`` that concerns term, vote and role."""

    me: NodeId

    def history(self) -> History:
        """Accepted history (S1.2)."""

    def persist_vote(self, term: Term, voted_for: NodeId | None) -> None:
        """Write term and vote into the node's log."""

    def role_changed(self, term: Term, role: Role, leader: NodeId | None) -> None:
        """Called after every change."""


class VoteOutlet(Protocol):
    """Effects of the machine; implemented by the elector."""

    def on_vote_requested(self, term: Term, history: History) -> None:
        """This replica stands in ``term``."""

    def on_vote_granted(self, candidate: NodeId, term: Term) -> None:
        """This replica voted."""

    def on_new_term(self) -> None:
        """The term rose."""

    def on_role(self) -> None:
        """Role or leader was set, perhaps to what it was; the host is notified afterwards."""


class GuardedMachine:
    """A lazily created, evictable ``VoteMachine`` with its mirror. Implements ``VoteOwner``."""

    __slots__ = (
        "_asked_term",
        "_channel",
        "_host",
        "_machine",
        "_make_machine",
        "_outlet",
        "_persist_failed",
        "_reported",
        "leader",
        "resigned",
        "role",
        "term",
        "term_leader",
        "voted_for",
    )

    def __init__(
        self,
        host: MachineHost,
        channel: ChannelId,
        term: Term,
        voted_for: NodeId | None,
        *,
        outlet: VoteOutlet,
        make_machine: VoteMachineMaker,
    ) -> None:
        last_record_term = host.history().term
        if last_record_term > term:  # a record of a term proves the term, not a vote in it
            term, voted_for = last_record_term, None
        self._host = host
        self._channel = channel
        self._outlet = outlet
        self._make_machine = make_machine
        self._machine: VoteMachine | None = None
        self._persist_failed = False
        self._asked_term: Term | None = None
        self._reported: tuple[Term, Role, NodeId | None] = (term, Role.FOLLOWER, None)
        self.term = term
        self.voted_for = voted_for
        self.role = Role.FOLLOWER
        self.leader: NodeId | None = None
        self.term_leader: NodeId | None = None
        """Who is known to have won the current term, even after giving it up."""
        self.resigned = False
        """Whether that leader gave the current term up."""

    # --- verbs ------------------------------------------------------------------------------------

    def request_vote(self, candidate: NodeId, term: Term, history: History) -> bool:
        """Adopt a higher term, then vote or not; True if this replica's vote is now the
        candidate's (``on_vote_granted`` has been called)."""
        before = self.term
        self._ready().request_vote(candidate, term, history)
        self._expect(self.term == max(before, term), f"did not adopt term {term}")
        self._mirror(before)
        return self.term == term and self.voted_for == candidate

    def observe_term(self, term: Term) -> None:
        """S1.4: adopt a higher term, by a vote request that nobody could win; else do nothing."""
        if term <= self.term:
            return
        before = self.term
        self._ready().observe_term(term)
        self._expect((self.term, self.voted_for) == (term, None), f"did not just adopt term {term}")
        self._mirror(before)

    def learn_leader(self, leader: NodeId, term: Term) -> None:
        """Follow the leader of ``term`` (not below ours); cheap when it is known already."""
        assert term >= self.term, f"leader of term {term} in term {self.term} (S1.4)"
        if term == self.term:
            self.check_only_leader(leader)
            if self.leader == leader and self.role is Role.FOLLOWER:
                return
        before = self.term
        self._ready().learn_leader(leader, term)
        self._expect(self.term == term, f"did not adopt term {term} of leader {leader}")
        self.term_leader = leader
        self._mirror(before)
        self._expect(self.leader == leader, f"did not follow leader {leader} of term {term}")

    def stand(self) -> None:
        """Become a candidate of the next term: vote for oneself, then ask."""
        assert self.role is not Role.LEADER, f"the leader of term {self.term} stands"
        machine, before = self._ready(), self.term
        machine.start_election()
        self._expect(self.term == before + 1, f"did not start an election in term {before + 1}")
        self._expect(
            self._asked_term == self.term, f"asked no voter for a vote in term {self.term}"
        )
        self._expect(machine.role is Role.CANDIDATE, "is no candidate in its own election")
        self._mirror(before)

    def win(self) -> None:
        """A quorum of distinct voters granted the current term."""
        assert self.role is Role.CANDIDATE, f"the role {self.role} wins term {self.term} (S1.3)"
        assert self.voted_for == self.me, f"{self.voted_for} got the vote of term {self.term}"
        assert self._asked_term == self.term, f"no vote of term {self.term} was asked for (S1.3)"
        assert not self.resigned, f"term {self.term} was given up and is won again (S13)"
        if self.term_leader is not None:
            raise self._two_leaders(self.me)
        self._ready().grant_majority()
        self.term_leader = self.me
        role = self._mirror(self.term)
        self._expect(role is Role.LEADER, f"refused a majority in term {self.term}")

    def resign(self, leader: NodeId) -> None:
        """The leader of the current term (perhaps this replica) gave it up.

        The machine is dropped instead of notified: rebuilt, it is a follower without a leader that
        can neither lead nor change its vote in this term, as after a restart.
        """
        assert leader != self.me or self.role is Role.LEADER, (
            f"the role {self.role} gives term {self.term} up (S1.5)"
        )
        assert not self.resigned, f"term {self.term} is given up twice"
        if leader != self.me:
            self.check_only_leader(leader)
        self.term_leader = leader
        self.resigned = True
        self._drop()
        self._set_role(Role.FOLLOWER, None)

    def evict(self) -> bool:
        """Free the machine unless an election runs; True if there was one."""
        if self._machine is None or self.role is Role.CANDIDATE:
            return False
        self._drop()
        return True

    def check_only_leader(self, leader: NodeId) -> None:
        """O1, S13: nobody but ``leader``, another node, led the current term."""
        if self.term_leader not in (None, leader) or leader == self.me:
            raise self._two_leaders(leader)

    # --- VoteOwner: what the machine asks ---------------------------------------------------------

    @property
    def me(self) -> NodeId:
        """This replica's node."""
        return self._host.me

    def own_history(self) -> History:
        """Accepted history (S1.2): whatever may still be acknowledged, durable or not."""
        history = self._host.history()
        if history.term > self.term:  # S1.5
            raise ElectionError(
                f"channel {self._channel.hex()} holds a record of term {history.term} but is in "
                f"term {self.term}; the node must stop"
            )
        return history

    def persist(self, term: Term, voted_for: NodeId | None) -> None:
        """Hand a change of term or vote to the host, refusing what Raft never does.

        If the host fails, the machine is ahead of the disk: it is never used again.
        """
        if term < self.term:
            raise ElectionError(
                f"pysyncobj lowered the term from {self.term} to {term}; the node must stop"
            )
        if term == self.term and self.voted_for not in (None, voted_for):  # S1.3: one vote
            raise ElectionError(
                f"pysyncobj changed the vote of term {term} from {self.voted_for} to {voted_for}; "
                "the node must stop"
            )
        self._persist_failed = True
        self._host.persist_vote(term, voted_for)
        self._persist_failed = False
        risen = term > self.term
        self.term, self.voted_for = term, voted_for
        if risen:
            self.term_leader = None
            self.resigned = False
            self._outlet.on_new_term()

    def vote_requested(self, term: Term, history: History) -> None:
        """The machine stands."""
        self._expect((self.term, self.voted_for) == (term, self.me), "asked before it voted")
        self._asked_term = term
        self._outlet.on_vote_requested(term, history)

    def vote_granted(self, candidate: NodeId, term: Term) -> None:
        """The machine voted."""
        self._expect(
            (self.term, self.voted_for) == (term, candidate), "granted a vote it had not stored"
        )
        self._outlet.on_vote_granted(candidate, term)

    # --- the machine and its mirror ---------------------------------------------------------------

    def _ready(self) -> VoteMachine:
        """The machine, rebuilt from (term, vote, leader) if it was evicted."""
        if self._persist_failed:
            raise ElectionError(
                f"a vote of channel {self._channel.hex()} could not be stored; the node must stop"
            )
        if self._machine is None:
            self._machine = self._make_machine(self)
            if self.leader is not None and self.leader != self.me:
                self._machine.learn_leader(self.leader, self.term)
        return self._machine

    def _drop(self) -> None:
        if self._machine is not None:
            self._machine.close()
            self._machine = None

    def _mirror(self, before: Term) -> Role:
        """Copy role and leader after a verb; ``before`` is the term it began in."""
        machine = self._machine
        assert machine is not None, "no machine took the verb"
        assert self.term >= before, f"the term fell from {before} to {self.term} (S1.4)"
        self._expect(machine.term == self.term, f"is in term {machine.term}, {self.term} is stored")
        if self.role is Role.LEADER and self.term == before:
            self._expect(machine.role is Role.LEADER, f"lost term {before} without a higher one")
        self._set_role(machine.role, machine.leader)
        return machine.role

    def _set_role(self, role: Role, leader: NodeId | None) -> None:
        assert (role is Role.LEADER) == (leader == self.me), (
            f"{self.me} is {role} of term {self.term} led by {leader} (S1.5)"
        )
        assert role is not Role.LEADER or self.voted_for == self.me, (
            f"{self.me} leads term {self.term} with its vote for {self.voted_for} (S1.3)"
        )
        assert leader is None or leader == self.term_leader, (
            f"{leader} is followed in term {self.term}, which {self.term_leader} won (S13)"
        )
        assert leader is None or not self.resigned, (
            f"{leader} is followed in term {self.term}, which was given up (S1.8)"
        )
        self.role, self.leader = role, leader
        self._outlet.on_role()
        now = (self.term, role, leader)
        if now != self._reported:
            self._reported = now
            self._host.role_changed(*now)

    def _expect(self, condition: bool, problem: str) -> None:  # noqa: FBT001 - an assertion
        if not condition:
            raise ElectionError(
                f"pysyncobj {problem} (channel {self._channel.hex()}); the node must stop"
            )

    def _two_leaders(self, other: NodeId) -> ElectionError:
        return ElectionError(
            f"two leaders in term {self.term} of channel {self._channel.hex()}: "
            f"{self.term_leader} and {other}; the node must stop"
        )
