"""An ElectionHost that records what it is asked, and short forms of all election messages."""

from __future__ import annotations

from dataclasses import dataclass, field

from raftstore.config import ElectionSettings
from raftstore.election.pysyncobj_elector import PySyncObjElector
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
    FOUNDING_NUMBER,
    ChannelConfig,
    ChannelId,
    History,
    MemberRole,
    NodeId,
    ReplicaNumber,
    Role,
    Seq,
    Term,
)

CHANNEL = ChannelId(bytes(range(18)))
SETTINGS = ElectionSettings()
DEFAULT_END = History(Term(3), Seq(10))


def node(name: str) -> NodeId:
    """A node id with a store UUID made of the name."""
    return NodeId(f"{name}@{name.encode().hex():0>32}")


A, B, C, D, E, OUTSIDER = (node(name) for name in "abcdez")


def history(term: int, seq: int) -> History:
    """Short form."""
    return History(Term(term), Seq(seq))


def pre_vote(proposed: int, end: History, *, term: int | None = None) -> PreVote:
    own = proposed - 1 if term is None else term
    return PreVote(channel=CHANNEL, term=Term(own), proposed_term=Term(proposed), history=end)


def pre_granted(proposed: int, *, term: int = 0, replica: int = 0) -> PreVoteReply:
    return PreVoteReply(CHANNEL, Term(term), Term(proposed), True, ReplicaNumber(replica))


def pre_refused(proposed: int, *, term: int) -> PreVoteReply:
    return PreVoteReply(
        channel=CHANNEL, term=Term(term), proposed_term=Term(proposed), granted=False
    )


def vote_request(term: int, end: History, *, transfer: bool = False) -> RequestVote:
    return RequestVote(channel=CHANNEL, term=Term(term), history=end, transfer=transfer)


def granted(term: int, *, replica: int = 0) -> VoteReply:
    return VoteReply(CHANNEL, Term(term), Term(term), True, ReplicaNumber(replica))


def refused(vote_term: int, *, term: int) -> VoteReply:
    return VoteReply(channel=CHANNEL, term=Term(term), vote_term=Term(vote_term), granted=False)


def announce(term: int) -> LeaderAnnounce:
    return LeaderAnnounce(channel=CHANNEL, term=Term(term))


def stale(term: int) -> StaleTerm:
    return StaleTerm(channel=CHANNEL, term=Term(term))


def transfer_now(term: int) -> TransferNow:
    return TransferNow(channel=CHANNEL, term=Term(term))


def step_down_notice(term: int) -> StepDownNotice:
    return StepDownNotice(channel=CHANNEL, term=Term(term))


@dataclass
class RecordingHost:
    """An ElectionHost that writes down what it is asked, in order."""

    me: NodeId = A
    end: History = DEFAULT_END
    voter_sets: tuple[tuple[NodeId, ...], ...] = ((A, B, C),)
    learners: tuple[NodeId, ...] = ()
    number: ReplicaNumber = FOUNDING_NUMBER
    numbers: dict[NodeId, ReplicaNumber] = field(default_factory=dict)
    member_roles: dict[NodeId, MemberRole] = field(default_factory=dict)
    before: ChannelConfig | None = None
    """The configuration before the newest, which is not known to be committed then."""
    healthy: bool = True
    votes_only: bool = False
    """It recovers, though its log is whole."""
    backoff: int = 300
    heard: dict[NodeId, int] = field(default_factory=dict)
    fail_persist: Exception | None = None
    calls: list[tuple[object, ...]] = field(default_factory=list)

    def history(self) -> History:
        return self.end

    def config(self) -> ChannelConfig:
        return ChannelConfig(self.voter_sets, self.learners, self.numbers, roles=self.member_roles)

    def config_before(self) -> ChannelConfig:
        return self.before or self.config()

    def may_vote(self, candidate: History) -> bool:
        return self.healthy or self.votes_only

    def may_stand(self) -> bool:
        return self.healthy

    def persist_vote(self, term: Term, voted_for: NodeId | None) -> None:
        if self.fail_persist is not None:
            raise self.fail_persist
        self.calls.append(("persist", term, voted_for))

    def send_election(self, to: NodeId, message: ElectionMessage) -> None:
        self.calls.append(("send", to, message))

    def role_changed(self, term: Term, role: Role, leader: NodeId | None) -> None:
        self.calls.append(("role", term, role, leader))

    def leader_last_heard_ms(self, leader: NodeId) -> int | None:
        return self.heard.get(leader)

    def backoff_ms(self) -> int:
        return self.backoff

    # --- reading the record -----------------------------------------------------------------------

    def take(self) -> list[tuple[object, ...]]:
        """Persists and sends since the last call."""
        calls, self.calls = self.calls, []
        return [call for call in calls if call[0] != "role"]

    def sent(self) -> list[tuple[NodeId, ElectionMessage]]:
        """Messages since the last call."""
        return [(call[1], call[2]) for call in self.take() if call[0] == "send"]

    def roles(self) -> list[tuple[Term, Role, NodeId | None]]:
        """Role changes since the last call of take() or sent()."""
        return [call[1:] for call in self.calls if call[0] == "role"]


def elector(
    host: RecordingHost, term: int = 3, voted_for: NodeId | None = None
) -> PySyncObjElector:
    """An elector with this durable state."""
    return PySyncObjElector(host, CHANNEL, Term(term), voted_for, settings=SETTINGS)


def stand(elect: PySyncObjElector, host: RecordingHost, *, helpers: int = 1) -> int:
    """Make it a candidate of its next term at the returned time, then forget what it sent."""
    elect.suspect(0, 0)
    now = elect.next_deadline_ms() or 0
    elect.poll(now)
    for voter in host.config().voters[1 : 1 + helpers]:
        elect.on_message(voter, pre_granted(elect.term + 1), now)
    assert elect.role in (Role.CANDIDATE, Role.LEADER)
    host.take()
    return now


def lead(elect: PySyncObjElector, host: RecordingHost) -> None:
    """Make it the leader of its next term (three voters), then forget what it sent."""
    now = stand(elect, host)
    elect.on_message(host.config().voters[1], granted(elect.term), now)
    assert elect.role is Role.LEADER
    host.take()
