"""Payloads that one node misses come from another one, on real nodes (S5.4, S5.6, NATS-205)."""

from __future__ import annotations

import random
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from raftstore.core.effects import AskPayloads, GivePayloads, SendIfKnown, TakeWrite
from raftstore.core.events import PayloadSource
from raftstore.engine.channel.payload_repairs import PayloadRepairs
from raftstore.engine.relayed_writes import RelayedWrites
from raftstore.policy.payload_sources import ReportedLog
from raftstore.protocol.message import Message
from raftstore.protocol.payload import encode_rows
from raftstore.protocol.payload_repair import (
    FoundPayload,
    PayloadRequest,
    PayloadResponse,
    RelayedAck,
    RelayedWrite,
    WantedPayload,
    WriteOffer,
    WriteRequest,
)
from raftstore.protocol.publish import PubAck, PubMsg, PubReject
from raftstore.protocol.replication import MsgSyncRequest, StoreReject
from raftstore.rows.sealing import seal
from raftstore.testing.sim_node import SimNode
from raftstore.types import ChannelId, NodeId, Seq, Term
from tests.core_world import CHANNEL, N1, N2, N3, pub_msg, record
from tests.unit.engine.engine_world import calm_cluster, publish, run

REPAIR = (PayloadRequest, PayloadResponse, WriteOffer, WriteRequest, RelayedWrite, RelayedAck)


class World:
    """Three nodes with one channel, and a publisher that sends each write to all of them."""

    def __init__(self, level: int | None = None) -> None:
        self.cluster, self.channel = calm_cluster()
        self.leader = self.cluster.leaders()[self.channel]
        self.followers = [n for n in self.cluster.nodes.values() if n is not self.leader]
        self.answers: list[Message] = []
        self.seen: list[tuple[NodeId, NodeId, Message]] = []
        self.lost: set[tuple[NodeId, int]] = set()
        """(node, counter) of publishers' messages that do not arrive."""
        self.cut: set[tuple[NodeId, NodeId]] = set()
        """(sender, receiver): nothing of a repair arrives."""
        self.cluster.add_client("writer", 778, lambda _, message: self.answers.append(message))
        self._send = self.cluster.network.send
        self.cluster.network.send = self._carry  # type: ignore[method-assign]
        self.counter = 0
        if level is not None:
            for node in self.cluster.nodes.values():
                assert node.runner is not None
                node.runner.levels.by_node.update(dict.fromkeys(self.cluster.nodes, level))

    def _carry(self, sender: str, receiver: str, message: Message) -> None:
        self.seen.append((NodeId(sender), NodeId(receiver), message))
        if isinstance(message, REPAIR) and (sender, receiver) in self.cut:
            return
        self._send(sender, receiver, message)

    def write(self, *missing: SimNode) -> PubMsg:
        """One write, whose message these nodes do not get."""
        self.counter += 1
        payload = encode_rows([(b"k", seal(b"k", b"%d" % self.counter))])
        message = publish(self.cluster, self.leader, self.channel, self.counter, payload)
        message = msgspec.structs.replace(message, relay_to=())
        for node in self.cluster.nodes.values():
            if node not in missing:
                self.cluster.network.send("writer", node.node, message)
        return message

    def sent(self, *kinds: type[Message]) -> list[Message]:
        """Messages of these kinds that nodes sent for the channel."""
        return [
            message
            for _, _, message in self.seen
            if isinstance(message, kinds) and message.channel == self.channel  # type: ignore[attr-defined]
        ]

    def settle(self, ms: float = 1_000) -> None:
        """Let time pass; then all replicas hold and apply the same."""
        run(self.cluster, ms)
        assert self.cluster.replicas_are_equal()

    def core(self, node: SimNode) -> Any:
        """The replica of the channel."""
        assert node.runner is not None
        return node.runner.channels[self.channel].core


def test_follower_gets_a_lost_payload_from_the_leader_without_a_catch_up() -> None:
    """NATS-061, NATS-202: one question and one answer, and the writer waits for nothing."""
    world = World()
    world.write(world.followers[0])
    world.settle()
    assert len(world.sent(PayloadRequest)) == len(world.sent(PayloadResponse)) == 1
    assert world.sent(StoreReject, MsgSyncRequest) == []
    assert isinstance(world.answers[0], PubAck)
    assert world.core(world.followers[0]).statistics().payloads_repaired == 1


def test_follower_gets_a_lost_payload_from_another_follower() -> None:
    """NATS-205: when the leader does not answer, another one that reports the seq is asked."""
    world = World()
    missing, other = world.followers
    world.cut = {(missing.node, world.leader.node)}
    world.write(missing)
    world.settle()
    asked = [to for sender, to, m in world.seen if isinstance(m, PayloadRequest)]
    assert asked == [world.leader.node, other.node]
    assert world.sent(StoreReject, MsgSyncRequest) == []


def test_catch_up_follows_when_nobody_answers() -> None:
    """NATS-062: a payload that cannot be repaired is fetched with the log."""
    world = World()
    missing, other = world.followers
    world.cut = {(missing.node, world.leader.node), (missing.node, other.node)}
    world.write(missing)
    world.settle(2_000)
    assert len(world.sent(PayloadRequest)) == 2
    assert [m.reason for m in world.sent(StoreReject)] == ["missing_pubmsg"]  # type: ignore[attr-defined]


def test_nodes_of_older_levels_are_asked_for_nothing() -> None:
    """Below level 5 the follower catches up as it always did, and as soon."""
    world = World(level=4)
    world.write(world.followers[0])
    world.settle()
    assert world.sent(*REPAIR) == []
    assert len(world.sent(StoreReject)) == 1


def test_leader_fetches_a_lost_write_and_its_publisher_hears_of_it() -> None:
    """NATS-064, NATS-065, NATS-067, NATS-198: no step-down, no error, one application."""
    world = World()
    term = world.core(world.leader).term
    message = world.write(world.leader)
    world.settle()
    assert len(world.sent(WriteOffer)) == 2, "both followers offer it"
    assert len(world.sent(WriteRequest)) == len(world.sent(RelayedWrite)) == 1
    [ack] = [answer for answer in world.answers if isinstance(answer, PubAck)]
    assert (ack.guid, ack.record_term) == (message.guid, term)
    assert world.core(world.leader).term == term
    assert world.core(world.leader).last_seq == ack.last_seq


def test_retry_of_a_write_that_was_fetched_is_not_applied_again() -> None:
    """S4.5, S5.6: the publisher's own attempt finds the outcome that there is."""
    world = World()
    message = world.write(world.leader)
    world.settle()
    end = world.core(world.leader).last_seq
    world.cluster.network.send(
        "writer", world.leader.node, msgspec.structs.replace(message, attempt=1)
    )
    world.settle()
    assert world.core(world.leader).last_seq == end
    assert len([a for a in world.answers if isinstance(a, PubAck)]) == 2


def test_refused_write_is_not_fetched() -> None:
    """S4.1, S5.6: NOT_APPLIED was reported, so a copy that followers hold must not be sequenced."""
    world = World()
    leader = world.core(world.leader)
    sequencer, end = leader._leader.sequencer, leader.last_seq
    sequencer.refusal = "a hand-over is under way"
    world.write()
    run(world.cluster, 50)
    assert [type(answer) for answer in world.answers] == [PubReject]
    sequencer.refusal = None
    world.settle(3_000)
    assert len(world.sent(WriteOffer)) == 2
    assert world.sent(WriteRequest, RelayedWrite) == []
    assert leader.last_seq == end


@pytest.mark.slow
@pytest.mark.parametrize("is_repaired", [False, True])
def test_lost_messages_of_publishers_cost_fewer_catch_ups(is_repaired: bool) -> None:
    """NATS-205: of 60 writes a third misses one replica each: with repairs none catches up."""
    world = World(level=None if is_repaired else 4)
    draw = random.Random(5)
    for _ in range(60):
        missing = world.followers[draw.randrange(2)] if draw.random() < 0.34 else None
        world.write(*([missing] if missing else []))
        run(world.cluster, 150)
    world.settle(2_000)
    catch_ups = len(world.sent(StoreReject))
    assert (catch_ups == 0) == is_repaired, f"{catch_ups} catch-ups"
    assert len([a for a in world.answers if isinstance(a, PubAck)]) == 60


# --- what is asked of whom, and given -------------------------------------------------------------


class Bench:
    """The part alone, with a log of one record at seq 5."""

    def __init__(self) -> None:
        self.able: tuple[NodeId, ...] = (N2, N3)
        self.down: set[NodeId] = set()
        self.logs: dict[NodeId, ReportedLog] = {}
        self.sent: list[tuple[NodeId, Message, int]] = []
        self.published: list[tuple[NodeId, PubMsg]] = []
        me: Any = self
        self.repairs = PayloadRepairs(
            me,
            me,
            nodes_at_level=lambda level: self.able if level == 5 else (),
            is_up=lambda node: node not in self.down,
            reported=lambda _: self.logs,
            publish=lambda node, write: self.published.append((node, write)),
        )
        self.runner: Any = SimpleNamespace(
            channel=CHANNEL,
            term_operation=17,
            core=SimpleNamespace(leader=N2),
            config=lambda: SimpleNamespace(members=(N1, N2, N3)),
        )

    def read(self, channel: ChannelId, seq: Seq, *, to_seq: Seq, bytes_max: int) -> list[Any]:
        """The log: the record that contains the seq."""
        assert (channel, bytes_max) == (CHANNEL, 0)
        assert to_seq > seq
        return [record(5, rows=3)] if 5 <= seq <= 7 else []

    def send(self, to: NodeId, message: Message, *, after_operation: int) -> None:
        """The outbox."""
        self.sent.append((to, message, after_operation))

    def source(self, *asked: NodeId) -> NodeId | None:
        """The node that is asked next for seq 5."""
        [answer] = self.repairs.execute(self.runner, AskPayloads(Seq(5), asked))
        assert isinstance(answer, PayloadSource)
        assert answer.seq == 5
        return answer.node


def test_leader_is_asked_first_then_who_reports_most() -> None:
    """NATS-205: by what they report; who reports that it misses the seq is not asked."""
    bench = Bench()
    assert [bench.source(), bench.source(N2), bench.source(N2, N3)] == [N2, N3, None]
    bench.runner.core.leader = NodeId("n9")
    bench.logs = {N2: ReportedLog(Seq(1), Seq(4)), N3: ReportedLog(Seq(1), Seq(9))}
    assert [bench.source(), bench.source(N3)] == [N3, N2]
    bench.logs[N3] = ReportedLog(Seq(1), Seq(9), ((Seq(5), Seq(6)),))
    assert [bench.source(), bench.source(N2)] == [N2, None]
    bench.logs[N3] = ReportedLog(Seq(6), Seq(9))
    assert bench.source(N2) is None, "its log begins above"


def test_only_members_that_are_up_and_know_the_question_are_asked() -> None:
    """A node below level 5, a dead one and a stranger give nothing."""
    bench = Bench()
    bench.down = {N2}
    assert bench.source() == N3
    bench.able = (N2,)
    assert bench.source() is None
    bench.able, bench.down = (NodeId("n8"),), set()
    assert bench.source() is None


def give(*stored: WantedPayload, held: tuple[FoundPayload, ...] = (), most: int = 1_000) -> Any:
    """The order of the core."""
    return GivePayloads(N3, Term(1), 9, held, stored, most)


def test_payload_in_the_log_is_given_if_it_is_the_one_that_was_meant() -> None:
    """S5.2: guid, digest and place are those of the question."""
    stored, bench = record(5, rows=3), Bench()
    right = WantedPayload(Seq(5), stored.guid, stored.digest, len(stored.payload))
    wrong = [
        msgspec.structs.replace(right, guid=record(6).guid),
        msgspec.structs.replace(right, digest=record(6).digest),
        msgspec.structs.replace(right, seq=Seq(6)),
        msgspec.structs.replace(right, seq=Seq(8)),
    ]
    assert bench.repairs.execute(bench.runner, give(*wrong, right)) == ()
    [(to, message, after)] = bench.sent
    found = FoundPayload(stored.guid, stored.digest, stored.payload)
    assert message == PayloadResponse(CHANNEL, Term(1), 9, (found,))
    assert (to, after) == (N3, 17), "S0.5: the term is durable first"


def test_payloads_of_the_log_are_bounded_in_bytes() -> None:
    """One at least, then what fits."""
    stored, bench = record(5, rows=3), Bench()
    right = WantedPayload(Seq(5), stored.guid, stored.digest, len(stored.payload))
    for most, count in ((0, 1), (2, 1), (4, 2), (5, 2), (6, 3)):
        bench.repairs.execute(bench.runner, give(right, right, right, most=most))
        message = bench.sent[-1][1]
        assert isinstance(message, PayloadResponse)
        assert len(message.payloads) == count
    held = FoundPayload(stored.guid, stored.digest, b"held")
    bench.repairs.execute(bench.runner, give(right, held=(held,), most=1))
    message = bench.sent[-1][1]
    assert isinstance(message, PayloadResponse)
    assert message.payloads == (held,)


def test_nothing_is_said_to_a_node_that_does_not_know_it() -> None:
    """A node may have come back as an older version since it spoke."""
    bench = Bench()
    offer = WriteOffer(CHANNEL, Term(1), ())
    bench.repairs.execute(bench.runner, SendIfKnown(N2, offer))
    bench.able = ()
    bench.repairs.execute(bench.runner, SendIfKnown(N2, offer))
    bench.repairs.execute(bench.runner, give())
    assert bench.sent == [(N2, offer, 17)]


def test_relayed_write_is_published_for_its_node() -> None:
    """S5.6: it is judged as one of a client."""
    bench, message = Bench(), pub_msg(5)
    assert bench.repairs.execute(bench.runner, TakeWrite(N3, message)) == ()
    assert bench.published == [(N3, message)]


def test_each_node_has_a_handle_of_its_own_and_hears_of_commits_only() -> None:
    """S4.4: a refusal answers this copy alone; the publisher learns that of its own attempt."""
    bench = Bench()
    me: Any = bench
    relayed = RelayedWrites(me, lambda _: bench.able)
    handles = [relayed.handle_of(node) for node in (N2, N3, N2)]
    assert handles[0] == handles[2] != handles[1]
    assert max(handles) < 0
    ack = PubAck(CHANNEL, Term(1), pub_msg(5).guid, Seq(3), Seq(3), Term(1), "fsync", 2)
    relayed.reply(handles[1], ack)
    relayed.reply(handles[0], PubReject(CHANNEL, Term(1), ack.guid, "overloaded", "later"))
    bench.able = ()
    relayed.reply(handles[0], ack)
    assert bench.sent == [(N3, RelayedAck(CHANNEL, Term(1), ack), 0)]
