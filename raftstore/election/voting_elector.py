"""The rules of an election over a network that loses, repeats, delays and reorders messages.

One instance per channel and node. ``GuardedMachine`` keeps term, vote and role; this class decides
what it is asked, when, and what answers mean. Times are integer milliseconds that the caller passes
in; randomness is the host's.

A round: the deadline passes -> *pre-vote*, which changes nothing anywhere -> a quorum would vote ->
the machine stands in the next term -> a quorum of distinct voters granted -> leader, announced.
Unanswered requests are repeated every ``resend_ms``; a round without success is followed by another
after the host's backoff, and a refusal never causes anything at once.

Timers. ``_deadline_ms`` is the next candidacy, None in steady state. Two rules keep a channel from
staying leaderless (S1.8): a follower that knows no leader after a change is always armed, and an
armed one disarms only when a message of its leader came *after* it was armed.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, assert_never

from raftstore.config import ElectionSettings
from raftstore.core.quorum import counted, has_quorum
from raftstore.election.guarded_machine import GuardedMachine
from raftstore.election.voting import VoteMachineMaker
from raftstore.ports.election import ElectionHost
from raftstore.protocol.election import (
    ElectionMessage,
    LeaderAnnounce,
    PreVote,
    PreVoteReply,
    RequestVote,
    StepDownNotice,
    TransferNow,
    VoteReply,
)
from raftstore.protocol.replication import StaleTerm
from raftstore.types import (
    EMPTY_HISTORY,
    TERM_MAX,
    ChannelId,
    History,
    MemberRole,
    NodeId,
    ReplicaId,
    Role,
    Term,
)

LEARNER_BACKOFFS: Final = 2
"""The longest backoffs that a learner stands later than a voter would (M18)."""
RESEND_GROWTH_MAX: Final = 16
"""So many times ``resend_ms`` is the longest pause between two repetitions of one candidacy."""


class VotingElector:
    """``ports.election.Elector`` over a vote machine."""

    __slots__ = (
        "_arm_wanted",
        "_armed_ms",
        "_channel",
        "_deadline_ms",
        "_heard_ms",
        "_host",
        "_pre_votes",
        "_request",
        "_resend_ms",
        "_resend_pause_ms",
        "_settings",
        "_state",
        "_transferring",
        "_votes",
    )

    def __init__(
        self,
        host: ElectionHost,
        channel: ChannelId,
        term: Term,
        voted_for: NodeId | None,
        *,
        settings: ElectionSettings,
        make_machine: VoteMachineMaker,
    ) -> None:
        """Start as a follower with the durable term and vote; ``host.history()`` must answer."""
        self._host = host
        self._channel = channel
        self._settings = settings
        self._heard_ms: int | None = None
        """When a message of the present leader arrived here (meaningless without one)."""
        self._votes: set[ReplicaId] = set()
        """Replicas that granted the current candidacy; the order never matters."""
        self._pre_votes: set[ReplicaId] | None = None
        """Replicas that would grant ``term + 1``; None outside a pre-vote round."""
        self._request: RequestVote | None = None
        """What this candidate asks, for repetition."""
        self._transferring = False
        self._deadline_ms: int | None = None
        self._armed_ms = 0
        self._arm_wanted = False
        """Arm at the next call that brings a time."""
        self._resend_ms: int | None = None
        self._resend_pause_ms = settings.resend_ms
        """Until the next repetition; doubled by each, for a voter that answers late answers later
        still when it is asked more often."""
        self._state = GuardedMachine(
            host, channel, term, voted_for, outlet=self, make_machine=make_machine
        )

    # --- ports.Elector ----------------------------------------------------------------------------

    @property
    def term(self) -> Term:
        """Current term, handed to ``persist_vote`` before it shows here."""
        return self._state.term

    @property
    def voted_for(self) -> NodeId | None:
        """Vote in the current term."""
        return self._state.voted_for

    @property
    def role(self) -> Role:
        """Role now; a claim that S3 and S7 qualify."""
        return self._state.role

    @property
    def leader(self) -> NodeId | None:
        """Leader of the current term, as far as known and not resigned."""
        return self._state.leader

    @property
    def is_standing(self) -> bool:
        """In a pre-vote round or a candidacy."""
        return self._pre_votes is not None or self._request is not None

    def suspect(self, now_ms: int, delay_ms: int) -> None:
        """Arm a candidacy unless one is armed: repeating a suspicion never defeats a backoff."""
        if self.role is not Role.LEADER and self._deadline_ms is None:
            self._arm(now_ms, delay_ms)

    def poll(self, now_ms: int) -> None:
        """Repeat what is unanswered; stand when the deadline has passed."""
        self._settle(now_ms)
        if self._resend_ms is not None and now_ms >= self._resend_ms:
            self._repeat_requests(now_ms)
        if self._deadline_ms is not None and now_ms >= self._deadline_ms:
            self._on_deadline(now_ms)

    def next_deadline_ms(self) -> int | None:
        """Earliest of candidacy and repetition; 0 (at once) while an arming awaits a time."""
        if self._arm_wanted:
            return 0
        if self._deadline_ms is None or self._resend_ms is None:
            return self._resend_ms if self._deadline_ms is None else self._deadline_ms
        return min(self._deadline_ms, self._resend_ms)

    def on_message(self, sender: NodeId, message: ElectionMessage, now_ms: int) -> None:
        """Process one election message; nothing of it reaches the machine unchecked."""
        match message:
            case PreVote():
                self._on_pre_vote(sender, message, now_ms)
            case PreVoteReply():
                self._on_pre_vote_reply(sender, message, now_ms)
            case RequestVote():
                self._on_request_vote(sender, message, now_ms)
            case VoteReply():
                self._on_vote_reply(sender, message)
            case LeaderAnnounce():
                if not self.on_leader(sender, message.term, now_ms) and message.term < self.term:
                    self._send(sender, StaleTerm(channel=self._channel, term=self.term))
            case StaleTerm():
                self._state.observe_term(message.term)
            case TransferNow():
                self._on_transfer_now(sender, message, now_ms)
            case StepDownNotice():
                self._on_step_down_notice(sender, message, now_ms)
            case _:
                assert_never(message)
        self._settle(now_ms)

    def on_leader(self, leader: NodeId, term: Term, now_ms: int) -> bool:
        """Follow the leader of ``term``; False if the term is past (S1.4) or was given up by it.

        A message of it disarms a candidacy only while the host too believes that it lives: messages
        still queued when its connection died must not keep it in office.
        """
        state = self._state
        if term < state.term:  # S1.4
            return False
        if term == state.term and state.resigned:
            state.check_only_leader(leader)
            return False
        state.learn_leader(leader, term)
        self._heard_ms = now_ms
        self._resend_pause_ms = self._settings.resend_ms
        if (self._deadline_ms is not None or self._arm_wanted) and self._leader_alive(now_ms):
            self._disarm()
        self._settle(now_ms)
        return True

    def observe_term(self, term: Term) -> None:
        """Adopt a higher term without voting (S1.4); an equal or lower one changes nothing."""
        self._state.observe_term(term)

    def step_down(self, reason: str) -> None:
        """Give up leading and keep the term; the members are asked to elect at once."""
        del reason  # the caller's log has it; the members need only the fact
        if self.role is not Role.LEADER:
            return
        self._state.resign(self._host.me)
        assert self._deadline_ms is not None or self._arm_wanted, (
            f"nobody is to stand after the leader of term {self.term} gave up (S1.8)"
        )
        notice = StepDownNotice(channel=self._channel, term=self.term)
        for member in self._others(self._host.config().members):
            self._send(member, notice)

    def transfer(self, to: NodeId) -> None:
        """S9: ask ``to`` to take over; this replica leads on until it sees a higher term."""
        if self.role is Role.LEADER and to != self._host.me:
            self._send(to, TransferNow(channel=self._channel, term=self.term))

    def evict(self) -> bool:
        """Free the pysyncobj instance outside an election; it is rebuilt when needed."""
        return self._state.evict()

    # --- VoteOutlet: what the machine causes ------------------------------------------------------

    def on_vote_requested(self, term: Term, history: History) -> None:
        """Ask the voters of the newest configuration."""
        assert term == self.term, f"votes are asked for {term} in term {self.term} (S1.3)"
        assert self._host.may_stand(), f"a replica that must not stand asks in term {term} (S0.3)"
        self._votes = {self._own_id}
        self._request = RequestVote(
            channel=self._channel, term=term, history=history, transfer=self._transferring
        )
        self._ask(self._request, self._votes)

    def on_vote_granted(self, candidate: NodeId, term: Term) -> None:
        """Send the vote to the candidate; the host holds it back until the vote is durable
        (S0.5)."""
        assert self.voted_for == candidate, f"{self.voted_for} got the vote of term {term} (S1.3)"
        self._reply_vote(candidate, term, granted=True)

    def on_new_term(self) -> None:
        """A pre-vote round asked for a term that has come without it."""
        self._pre_votes = None

    def on_role(self) -> None:
        """End the candidacy that is over; never leave a follower without a leader unarmed."""
        if self.role is not Role.CANDIDATE:
            self._request = None
            self._votes = set()
            if self._pre_votes is None:
                self._resend_ms = None
        if self.role is Role.LEADER:
            self._disarm()
        elif self.leader is None and self._deadline_ms is None:
            self._arm_wanted = True  # S1.8: nobody may wait for a leader that nobody names

    # --- candidacy --------------------------------------------------------------------------------

    def _on_deadline(self, now_ms: int) -> None:
        heard_ms = self._last_heard_ms()
        if heard_ms is not None and self._leader_alive(now_ms):
            self._end_pre_vote()
            if heard_ms > self._armed_ms:
                self._disarm()
            else:  # silent since the suspicion, but not yet for long enough to act on it
                self._deadline_ms = heard_ms + self._settings.sticky_ms
            return
        self._arm(now_ms, self._host.backoff_ms())
        if self._may_stand():
            self._start_pre_vote(now_ms)

    def _may_stand(self) -> bool:
        """S0.3, and M18: a voter; one that its newest configuration removed, until that is known
        to be committed, because it may hold the longest history (Raft 4.2.2); and, after all of
        these, a learner and a witness.

        Nobody stands for a term that no message has room for (S12)."""
        return (
            self._host.may_stand()
            and self.term < TERM_MAX
            and (self._is_voter() or self._stands_last())
        )

    def _is_voter(self) -> bool:
        host, own = self._host, self._own_id
        return host.config().may_lead(own) or host.config_before().may_lead(own)

    def _stands_last(self) -> bool:
        """M18: a learner with records may hold the longest history, got from a leader that died,
        while a voter counts it as a voter and cannot win without it. W4: so may a witness, which
        leads until a voter with rows has it, too. W5: a reader is counted by nobody."""
        role = self._host.config().role_of(self._own_id.node)
        is_member = self._host.config().has_member(self._own_id) and role is not MemberRole.READER
        return is_member and not self._is_voter() and self._state.own_history() > EMPTY_HISTORY

    @property
    def _own_id(self) -> ReplicaId:
        return ReplicaId(self._host.me, self._host.number)

    def _has_quorum(self, granted: Iterable[ReplicaId]) -> bool:
        """S1.3, M4: a majority of distinct voters, each by the number that names it."""
        config = self._host.config()
        return has_quorum(config, counted(config, granted))

    def _start_pre_vote(self, now_ms: int) -> None:
        assert self.role is not Role.LEADER, f"the leader of term {self.term} asks for votes"
        assert self._deadline_ms is not None, (
            f"a round of term {self.term} that nothing ends (S1.8)"
        )
        self._pre_votes = {self._own_id}
        if self._has_quorum(self._pre_votes):
            self._elect(now_ms)
            return
        self._resend_ms = now_ms + self._resend_pause_ms
        self._ask_pre_votes()

    def _elect(self, now_ms: int, *, transfer: bool = False) -> None:
        """Stand in the next term; the host's backoff bounds how long this candidacy lasts."""
        self._pre_votes = None
        self._arm(now_ms, self._host.backoff_ms())
        self._resend_ms = now_ms + self._resend_pause_ms
        self._transferring = transfer
        self._state.stand()
        self._count_votes()

    def _count_votes(self) -> None:
        """S1.3: the machine gets its one reply when distinct voters are a quorum.

        S13: unless the replica stopped serving while it stood; then nobody wins this term.
        """
        if self.role is not Role.CANDIDATE or not self._host.may_stand():
            return
        assert self._own_id in self._votes, f"a candidate of {self.term} without its vote (S1.3)"
        if self._has_quorum(self._votes):
            self._state.win()
            for member in self._others(self._host.config().members):
                self._announce(member)

    def _repeat_requests(self, now_ms: int) -> None:
        """Lost messages are repeated; voters who refused may have changed their mind."""
        longest_ms = RESEND_GROWTH_MAX * self._settings.resend_ms
        self._resend_pause_ms = min(2 * self._resend_pause_ms, longest_ms)
        self._resend_ms = now_ms + self._resend_pause_ms
        if self._request is not None:
            assert self._request.term == self.term, (
                f"votes are asked for {self._request.term} again in term {self.term} (S1.3)"
            )
            self._ask(self._request, self._votes)
        if self._pre_votes is not None:
            self._ask_pre_votes()

    def _ask_pre_votes(self) -> None:
        assert self._pre_votes is not None, "no pre-vote round is under way"
        assert self._own_id in self._pre_votes, f"a round of {self.term} without its own vote"
        proposal = PreVote(
            channel=self._channel,
            term=self.term,
            proposed_term=Term(self.term + 1),
            history=self._state.own_history(),
        )
        self._ask(proposal, self._pre_votes)

    def _ask(self, message: PreVote | RequestVote, granted: set[ReplicaId]) -> None:
        having = counted(self._host.config(), granted)
        for voter in self._others(self._host.config().voters):
            if voter not in having:
                self._send(voter, message)

    # --- messages ---------------------------------------------------------------------------------

    def _on_pre_vote(self, sender: NodeId, message: PreVote, now_ms: int) -> None:
        """Answer without changing anything: a pre-vote adopts no term (S1.4)."""
        newer = message.proposed_term > self.term
        if newer and not self._host.may_vote(message.history):  # S0.3: recovering
            return
        alive = self._leader_alive(now_ms)
        granted = (
            newer
            and message.history >= self._state.own_history()  # S1.1
            and self.role is not Role.LEADER
            and not alive  # stickiness
        )
        reply = PreVoteReply(
            channel=self._channel,
            term=self.term,
            proposed_term=message.proposed_term,
            granted=granted,
            replica=self._host.number,
        )
        self._send(sender, reply)
        if self.role is Role.LEADER and message.term <= self.term:
            self._announce(sender)  # it does not know its leader: a restart, a lost announcement
        elif self.role is not Role.LEADER and not alive:
            self.suspect(now_ms, self._host.backoff_ms())  # in case the asker dies

    def _on_pre_vote_reply(self, sender: NodeId, message: PreVoteReply, now_ms: int) -> None:
        if not message.granted:
            self._state.observe_term(message.term)
            return
        # A round is bound to its term: a new term has ended it, so this names a live one or none.
        if self._pre_votes is None or message.proposed_term != self.term + 1:
            return
        if self._leader_alive(now_ms) or not self._may_stand():
            self._end_pre_vote()
            return
        self._pre_votes.add(ReplicaId(sender, message.replica))
        if self._has_quorum(self._pre_votes):
            self._elect(now_ms)

    def _on_request_vote(self, sender: NodeId, message: RequestVote, now_ms: int) -> None:
        if message.term < self.term:
            self._refuse(sender, message)
            return
        if not self._host.may_vote(message.history):  # S0.3: recovering
            return
        if message.term == self.term:
            if self.voted_for == sender:  # its reply was lost; the machine would stay silent
                self._reply_vote(sender, message.term, granted=True)
                return
            if self._state.term_leader is not None:  # nobody else can win this term
                self._refuse(sender, message)
                return
        elif not message.transfer and self._leader_alive(now_ms):
            return  # S1.4: a vote dropped by stickiness adopts nothing
        if self._state.request_vote(sender, message.term, message.history):
            self._arm(now_ms, self._host.backoff_ms())  # the candidate gets its time
        else:
            self._refuse(sender, message)

    def _on_vote_reply(self, sender: NodeId, message: VoteReply) -> None:
        if not message.granted:
            self._state.observe_term(message.term)
        elif self.role is Role.CANDIDATE and message.vote_term == self.term:
            self._votes.add(ReplicaId(sender, message.replica))  # S1.3: strangers do not count
            self._count_votes()

    def _on_transfer_now(self, sender: NodeId, message: TransferNow, now_ms: int) -> None:
        """S9: only the leader of the current term may call an election without a pre-vote."""
        if message.term > self.term:
            self._state.observe_term(message.term)
        elif message.term == self.term and self.leader == sender and self._is_voter():
            if self._may_stand():
                self._elect(now_ms, transfer=True)

    def _on_step_down_notice(self, sender: NodeId, message: StepDownNotice, now_ms: int) -> None:
        """Forget the leader and stand at once, one rank step apart from the other voters."""
        self._state.observe_term(message.term)
        if message.term < self.term or self._state.resigned:
            return
        self._end_pre_vote()
        self._state.resign(sender)
        self._arm(now_ms, self._rank_delay_ms(sender))

    # --- what is known of the leader --------------------------------------------------------------

    def _last_heard_ms(self) -> int | None:
        """When the leader was last heard; None if there is none or its connection is dead,
        whatever arrived from it before (our own memory must not outlive the node's knowledge)."""
        leader = self.leader
        if leader is None or leader == self._host.me:
            return None
        node_heard_ms = self._host.leader_last_heard_ms(leader)
        if node_heard_ms is None or self._heard_ms is None:
            return node_heard_ms
        return max(node_heard_ms, self._heard_ms)

    def _leader_alive(self, now_ms: int) -> bool:
        heard_ms = self._last_heard_ms()
        return heard_ms is not None and now_ms - heard_ms < self._settings.sticky_ms

    # --- small parts ------------------------------------------------------------------------------

    def _arm(self, now_ms: int, delay_ms: int) -> None:
        assert self.role is not Role.LEADER, f"the leader of term {self.term} is to stand (S1.8)"
        assert delay_ms >= 0, f"a candidacy {-delay_ms} ms ago"
        if self._stands_last():  # M18: every voter has its turn before
            delay_ms += LEARNER_BACKOFFS * self._settings.backoff_max_ms
        self._deadline_ms = now_ms + delay_ms
        self._armed_ms = now_ms
        self._arm_wanted = False

    def _disarm(self) -> None:
        self._resend_pause_ms = self._settings.resend_ms
        self._deadline_ms = None
        self._arm_wanted = False
        self._end_pre_vote()

    def _settle(self, now_ms: int) -> None:
        if self._arm_wanted:
            self._arm(now_ms, self._host.backoff_ms())

    def _end_pre_vote(self) -> None:
        self._pre_votes = None
        if self._request is None:
            self._resend_ms = None

    def _rank_delay_ms(self, without: NodeId) -> int:
        """Deterministic distance between the candidacies after a step-down, by voter order. A
        voter that stands too early for its history is refused, and the next one stands."""
        voters = [voter for voter in self._host.config().voters if voter != without]
        rank = voters.index(self._host.me) if self._host.me in voters else len(voters)
        return rank * self._settings.rank_step_ms

    def _others(self, nodes: tuple[NodeId, ...]) -> tuple[NodeId, ...]:
        return tuple(node for node in nodes if node != self._host.me)

    def _announce(self, to: NodeId) -> None:
        assert self.role is Role.LEADER, f"the role {self.role} announces that it leads (S1.5)"
        self._send(to, LeaderAnnounce(channel=self._channel, term=self.term))

    def _refuse(self, candidate: NodeId, message: RequestVote) -> None:
        self._reply_vote(candidate, message.term, granted=False)
        if self.role is Role.LEADER:
            self._announce(candidate)

    def _reply_vote(self, candidate: NodeId, vote_term: Term, *, granted: bool) -> None:
        """Refusals too carry our term: a candidate of a past one learns it at once (S1.4)."""
        assert not granted or (self.term, self.voted_for) == (vote_term, candidate), (
            f"{candidate} would be sent a vote in {vote_term}, which in {self.term} is "
            f"{self.voted_for} (S1.3)"
        )
        reply = VoteReply(
            channel=self._channel,
            term=self.term,
            vote_term=vote_term,
            granted=granted,
            replica=self._host.number,
        )
        self._send(candidate, reply)

    def _send(self, to: NodeId, message: ElectionMessage) -> None:
        self._host.send_election(to, message)
