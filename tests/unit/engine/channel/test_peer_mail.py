"""The messages of one turn to one peer are put together without a change of their content (S0.5,
S1.4, S2.4).
"""

from __future__ import annotations

from raftstore.engine.channel.peer_mail import HELD_MESSAGES_MAX, REQUEST_RECORDS_MAX, PeerMail
from raftstore.protocol.codec import decode, encode
from raftstore.protocol.message import Message
from raftstore.protocol.publish import PayloadRelay
from raftstore.protocol.records import RecordMeta
from raftstore.protocol.replication import (
    CommitNotice,
    ReadIndexReply,
    ReadIndexRequest,
    ReplicationBundle,
    StaleTerm,
    StoreAck,
    StoreRequest,
)
from raftstore.types import ChannelId, Guid, NodeId, RecordKind, Seq, Term, channel_id
from tests.unit.engine.engine_world import calm_cluster, spy

A, B = (channel_id(b"mail".ljust(16, b"."), number) for number in (1, 2))
N2, N3 = NodeId("n2"), NodeId("n3")


def meta(base_seq: int, *, term: int = 3, rows: int = 1) -> RecordMeta:
    """A record's metadata."""
    return RecordMeta(
        term=Term(term),
        base_seq=Seq(base_seq),
        rows=rows,
        guid=Guid(bytes(16)),
        timestamp_ms=1,
        digest=bytes(16),
        length=1,
        kind=RecordKind.ROWS,
        payload=None,
    )


def stored(
    channel: ChannelId, *metas: RecordMeta, prev: int = 3, term: int = 3, commit: int = 0
) -> StoreRequest:
    """A StoreRequest of these records."""
    return StoreRequest(channel, Term(term), Term(prev), Seq(commit), metas)


class Peers:
    """Where mail goes."""

    def __init__(self, *, takes_bundles: bool = True) -> None:
        self.sent: list[tuple[NodeId, Message]] = []
        self.mail = PeerMail(lambda to, message: self.sent.append((to, message)), self.takes)
        self._takes_bundles = takes_bundles

    def takes(self, node: NodeId) -> bool:
        """Whether the version there knows bundles."""
        return self._takes_bundles and node == N2

    def turn(self, *messages: Message, to: NodeId = N2) -> list[Message]:
        """Send the messages in one turn; return what leaves at its end."""
        self.mail.hold()
        for message in messages:
            self.mail.send(to, message)
        assert self.sent == []
        self.mail.flush()
        found, self.sent = [message for _, message in self.sent], []
        return found


def test_outside_of_a_turn_everything_leaves_at_once() -> None:
    """Tests and tools that drive a node call by call see each message."""
    peers = Peers()
    first = stored(A, meta(1))
    peers.mail.send(N2, first)
    assert peers.sent == [(N2, first)]


def test_records_of_one_channel_and_turn_are_one_store_request() -> None:
    """The newest commit position goes with them, and the term before the first."""
    first = stored(A, meta(1, rows=4), prev=2, commit=0)
    second = stored(A, meta(5), meta(6), commit=1)
    assert Peers().turn(first, second) == [
        StoreRequest(A, Term(3), Term(2), Seq(1), first.records + second.records)
    ]


def test_store_requests_that_do_not_follow_each_other_stay_apart() -> None:
    """S2.4: a gap, another term of the record before, or of the leader, is no continuation."""
    first = stored(A, meta(1))
    for other in (
        stored(A, meta(3)),
        stored(A, meta(2), prev=2),
        stored(A, meta(2, term=4), term=4),
        stored(B, meta(2)),
    ):
        assert Peers(takes_bundles=False).turn(first, other) == [first, other]


def test_store_request_that_was_put_together_is_bounded() -> None:
    """A follower takes it in one step."""
    requests = [stored(A, *(meta(10 * at + n) for n in range(10))) for at in range(30)]
    told = Peers(takes_bundles=False).turn(*requests)
    sizes = [len(message.records) for message in told if isinstance(message, StoreRequest)]
    assert sum(sizes) == 300
    assert max(sizes) <= REQUEST_RECORDS_MAX
    assert len(sizes) == 2


def test_newest_ack_of_a_channel_and_term_is_left() -> None:
    """S3.4: a match point only moves forward; acks of another term say another thing (S1.4)."""
    low, high = StoreAck(A, Term(3), Seq(4)), StoreAck(A, Term(3), Seq(6))
    other, later = StoreAck(B, Term(3), Seq(1)), StoreAck(A, Term(4), Seq(2))
    peers = Peers(takes_bundles=False)
    assert peers.turn(low, other, high, later) == [high, other, later]
    assert peers.turn(high, low) == [high]


def test_all_channels_share_one_message_of_a_turn() -> None:
    """Each keeps its term in it; what has no room in it follows."""
    relay = PayloadRelay(A, Term(3), Guid(bytes(16)), bytes(16), b"x")
    request, notice = stored(A, meta(1)), CommitNotice(B, Term(5), Seq(1), Seq(1), Term(5), b"")
    ack, asked = StoreAck(B, Term(5), Seq(9)), ReadIndexRequest(A, Term(3), 7)
    answer = ReadIndexReply(B, Term(5), 8)
    peers = Peers()
    [bundle, last] = peers.turn(asked, relay, request, answer, notice, ack)
    assert last is relay
    assert isinstance(bundle, ReplicationBundle)
    assert list(bundle.messages()) == [request, notice, ack, asked, answer]
    assert decode(encode(bundle)) == bundle
    assert peers.turn(ack) == [ack]
    assert peers.turn(ack, relay) == [ack, relay]


def test_peer_of_an_older_version_gets_no_bundle() -> None:
    """It would end the connection for a kind of message that it does not know."""
    ack, asked = StoreAck(B, Term(5), Seq(9)), ReadIndexRequest(A, Term(3), 7)
    assert Peers().turn(ack, asked, to=N3) == [ack, asked]


def test_turn_that_is_over_holds_nothing_back() -> None:
    """However it ended: the next message leaves at once."""
    for is_dropped in (True, False):
        peers = Peers()
        peers.turn(stored(A, meta(1)))
        if is_dropped:
            peers.mail.hold()
            peers.mail.drop()
        first = stored(A, meta(2))
        peers.mail.send(N2, first)
        assert peers.sent == [(N2, first)]


def test_mail_of_a_turn_is_bounded_and_may_be_dropped() -> None:
    """S0.4: what a node still held when it halted never leaves."""
    peers = Peers()
    peers.mail.hold()
    for number in range(HELD_MESSAGES_MAX):
        peers.mail.send(N2, ReadIndexRequest(A, Term(3), number))
    assert len(peers.sent) == 1
    peers.mail.send(N2, ReadIndexRequest(A, Term(3), 1))
    peers.mail.drop()
    peers.mail.flush()
    assert len(peers.sent) == 1


def test_level_that_a_peer_told_decides_whether_it_gets_bundles() -> None:
    """A node below level 3, or that reported none, does not know them."""
    cluster, _ = calm_cluster()
    node, other, *_ = cluster.nodes.values()
    assert node.runner is not None
    assert node.runner.levels.takes_bundles(other.node)
    node.runner.on_peer_connected(other.node, other.name, 2, node.clock.now_ms())
    assert not node.runner.levels.takes_bundles(other.node)
    assert not node.runner.levels.takes_bundles(NodeId("unknown"))


def test_bundle_is_fenced_message_by_message() -> None:
    """S1.4: a stale term in it gets that answer, its neighbour of the present term is answered."""
    cluster, channel = calm_cluster()
    leader = cluster.leaders()[channel]
    follower = next(node for node in cluster.nodes.values() if node is not leader)
    assert follower.runner is not None
    runner = follower.runner.channels[channel]
    term = runner.core.term
    sent = spy(cluster, follower)
    bundle = ReplicationBundle(
        (), (), (), tuple(ReadIndexRequest(channel, Term(at), at) for at in (term - 1, term)), ()
    )
    now = follower.clock.now_ms()
    follower.runner.on_peer_message(leader.node, bundle, now, now)
    told = [message for _, message in sent]
    assert told == [StaleTerm(channel, term), ReadIndexReply(channel, term, term)]
