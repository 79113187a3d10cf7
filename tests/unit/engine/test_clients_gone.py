"""Things a node holds for one client are bounded, counted as its share, and end with its
connection.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from raftstore.config import ReadSettings
from raftstore.engine.node_runner import NodeRunner
from raftstore.errors import StorageError
from raftstore.protocol.admin import ContentHash, CreateTable
from raftstore.protocol.batches import BeginBatch
from raftstore.protocol.message import Failed, Message
from raftstore.protocol.payload import encode_rows
from raftstore.protocol.publish import PubMsg, PubReject, WriteFate
from raftstore.protocol.reads import Get, GetAnswer, Scan, ScanAnswer
from raftstore.protocol.snapshots import OpenSnapshot
from raftstore.rows.sealing import seal
from raftstore.testing.sim_cluster import SimCluster
from raftstore.testing.sim_node import SimNode
from raftstore.types import ChannelId, NodeId, Seq, make_guid
from tests.unit.engine.engine_world import ask, calm_cluster, publish, run

GREEDY = 5
NEVER = Seq(2**60)
LONG_MS = 2**40


@pytest.fixture
def world() -> tuple[SimCluster, SimNode, ChannelId]:
    """A calm cluster and the node that leads its only table."""
    cluster, channel = calm_cluster()
    return cluster, cluster.leaders()[channel], channel


def send(node: SimNode, client: int, *messages: Message) -> NodeRunner:
    """As if the client had sent them; its answers are heard by nobody."""
    runner = node.runner
    assert runner is not None
    for message in messages:
        runner.on_client_message(client, message, node.clock.now_ms())
    return runner


def never(number: int, channel: ChannelId, level: str = "any") -> Get:
    """A read of a position that no channel reaches, by a client that has all the time there is."""
    return Get(number, channel, (b"k",), level, None, NEVER, LONG_MS)


def cut(cluster: SimCluster, node: SimNode) -> None:
    """Nothing reaches the others."""
    for other in cluster.nodes.values():
        if other is not node:
            other.crash("test")


def test_reads_that_wait_for_ever_take_no_place_of_others(
    world: tuple[SimCluster, SimNode, ChannelId],
) -> None:
    """672 KB of such reads once switched the default reads off until a restart."""
    cluster, node, channel = world
    assert node.runner is not None
    node.runner.reader._settings = ReadSettings(waiting_reads_max=50)
    refused: list[Message] = []
    cluster.add_client("greedy", GREEDY, lambda _, message: refused.append(message))
    send(node, GREEDY, *(never(number, channel) for number in range(60)))
    run(cluster, 100)
    assert [m.code for m in refused if isinstance(m, Failed)] == ["overloaded"] * 10
    for client in range(6, 30):  # more connections do not help it
        send(node, client, *(never(number, channel) for number in range(60)))
    default = Get(1, channel, (b"k",), "linearizable", None, Seq(0), 1_000)
    answers = ask(cluster, node, default)
    run(cluster, 500)
    assert [type(answer) for answer in answers] == [GetAnswer]


def test_waiting_reads_cost_nothing_while_others_write(
    world: tuple[SimCluster, SimNode, ChannelId], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A read of a far position is not looked at each time that a nearer one is reached."""
    cluster, node, channel = world
    runner = send(node, GREEDY, *(never(number, channel) for number in range(200)))
    states = (OpenSnapshot(n, channel, 0, False, 2**60, LONG_MS) for n in range(200, 400))
    send(node, GREEDY, *states)
    looked: list[str] = []
    monkeypatch.setattr(runner.reader, "_try_answer", lambda _: looked.append("read"))
    monkeypatch.setattr(
        runner.batches.states, "_try_answer", lambda *_: looked.append("state") or True
    )
    payload = encode_rows([(b"k", seal(b"k", b"v"))])
    write = publish(cluster, node, channel, 1, payload)
    before = runner.channels[channel].core.commit_seq
    ask(cluster, node, write)
    run(cluster, 500)
    assert node.tables.applied_seq(channel) > before
    assert looked == []


HOLDING: dict[str, Callable[[ChannelId], Message]] = {
    "read": lambda channel: never(1, channel),
    "linearizable read": lambda channel: never(1, channel, "linearizable"),
    "state of a commit": lambda channel: OpenSnapshot(1, channel, 0, False, 2**60, LONG_MS),
    "pin": lambda channel: Scan(1, channel, b"", b"", 0, "any", None, Seq(0), 9, keep=True),
}


@pytest.mark.parametrize("what", HOLDING)
def test_what_a_client_waited_for_ends_with_it(
    world: tuple[SimCluster, SimNode, ChannelId], what: str
) -> None:
    """When a client is gone, everything it waited for ends at once, not at a deadline."""
    cluster, node, channel = world
    runner = send(node, GREEDY, HOLDING[what](channel))
    run(cluster, 300)
    pins = runner.reader.scans._pins_held
    assert runner.inbox.holds_for(GREEDY) or pins.amount_of(GREEDY)
    runner.on_client_gone(GREEDY, node.clock.now_ms())
    assert not runner.inbox.holds_for(GREEDY)
    assert pins.amount_of(GREEDY) == 0
    assert runner.reader.waiting == 0
    assert not runner.meters._reads


def test_reads_without_a_quorum_end_with_their_client_in_the_core_too(
    world: tuple[SimCluster, SimNode, ChannelId],
) -> None:
    """S7.1: the rounds of the core have places, which those who are gone must not keep."""
    cluster, node, channel = world
    cut(cluster, node)
    question = WriteFate(2, channel, make_guid(b"producer", 9), LONG_MS)
    runner = send(node, GREEDY, never(1, channel, "linearizable"), question)
    other = Get(3, channel, (b"k",), "linearizable", None, Seq(0), 500)
    send(node, 6, other)
    leader = runner.channels[channel].core._leader
    assert leader is not None
    assert len(leader.reads) == 3
    runner.on_client_gone(GREEDY, node.clock.now_ms())
    assert len(leader.reads) == 1
    assert len(runner.reader.write_outcomes) == 0
    run(cluster, 600)  # the other's own deadline
    assert len(leader.reads) == 0


def test_commands_and_batches_end_with_their_client(
    world: tuple[SimCluster, SimNode, ChannelId],
) -> None:
    """When a client is gone, its commands and batches are forgotten. Those already proposed may
    still happen (S4.1).
    """
    cluster, _, channel = world
    node = cluster.leaders()[cluster.nodes[cluster.node_ids[0]].runner.metadata_channel]
    cut(cluster, node)
    create = CreateTable(1, "new", ("k",), 1, 3, "fsync", None, "", False, timeout_ms=60_000)
    runner = send(node, GREEDY, create)
    assert runner.inbox.holds_for(GREEDY)
    runner.on_client_gone(GREEDY, node.clock.now_ms())
    assert not runner.inbox.holds_for(GREEDY)

    cluster, channel = calm_cluster(2)
    node = cluster.leaders()[channel]
    cut(cluster, node)
    begin = BeginBatch(1, channel, "w", 1, b"u" * 16, "l", False, 0, LONG_MS)
    runner = send(node, GREEDY, begin)
    assert runner.inbox.holds_for(GREEDY)
    runner.on_client_gone(GREEDY, node.clock.now_ms())
    assert not runner.inbox.holds_for(GREEDY)


def test_content_hashes_of_a_client_that_is_gone_are_not_computed(
    world: tuple[SimCluster, SimNode, ChannelId],
) -> None:
    """Each reads a whole channel: a thousand that nobody reads would keep the others for hours."""
    cluster, node, channel = world
    started: list[Callable[..., None]] = []
    node.tables.start_content_hash = lambda _, done: started.append(done)  # type: ignore[method-assign]
    runner = send(node, GREEDY, *(ContentHash(number, channel) for number in range(20)))
    answers = ask(cluster, node, ContentHash(1, channel))
    run(cluster, 100)
    assert len(started) == 1
    runner.on_client_gone(GREEDY, node.clock.now_ms())
    started[0](b"", 0, Seq(0))
    assert len(started) == 2  # the other's
    started[1](b"digest", 3, Seq(1))
    run(cluster, 100)
    assert len(answers) == 1


@pytest.mark.slow
def test_a_clients_patience_has_an_end(world: tuple[SimCluster, SimNode, ChannelId]) -> None:
    """``transport.request_timeout_max_ms``: then it is refused, and may ask again."""
    cluster, node, channel = world
    answers = ask(cluster, node, never(1, channel))
    hashes: list[Message] = []
    node.tables.start_content_hash = lambda *_: None  # type: ignore[method-assign]
    cluster.add_client("hasher", 778, lambda _, message: hashes.append(message))
    cluster.network.send("hasher", node.node, ContentHash(2, channel))
    run(cluster, 299_000)
    assert answers == hashes == []
    run(cluster, 2_000)
    assert [a.code for a in answers if isinstance(a, Failed)] == ["not_up_to_bound"]
    assert [a.code for a in hashes if isinstance(a, Failed)] == ["query_error"]


def test_pins_of_a_client_that_is_gone_are_read_on_and_make_room(
    world: tuple[SimCluster, SimNode, ChannelId],
) -> None:
    """Pages of one scan are asked for by many connections; but who comes needs a place."""
    cluster, node, channel = world
    assert node.runner is not None
    scans = node.runner.reader.scans
    scans._settings = ReadSettings(scan_pins_max=2)
    pinning = HOLDING["pin"](channel)
    answers = ask(cluster, node, pinning)
    run(cluster, 100)
    [pinned] = answers
    assert isinstance(pinned, ScanAnswer)
    assert pinned.pin
    node.runner.on_client_gone(777, node.clock.now_ms())
    page = Scan(2, channel, b"", b"", 10, "any", None, Seq(0), 1_000, pin=pinned.pin)
    cluster.network.send("operator", node.node, page)
    run(cluster, 100)
    assert isinstance(answers[-1], ScanAnswer)
    for client in range(10, 20):  # each opens some and goes away
        send(node, client, pinning, pinning)
        node.runner.on_client_gone(client, node.clock.now_ms())
    assert scans.pins == 4
    cluster.network.send("operator", node.node, page)
    run(cluster, 100)
    assert isinstance(answers[-1], Failed)
    assert answers[-1].code == "page_expired"


# --- payloads -------------------------------------------------------------------------------------


def copy_of(cluster: SimCluster, leader: SimNode, channel: ChannelId, counter: int) -> PubMsg:
    """A write of 100 kB."""
    payload = encode_rows([(b"k", seal(b"k", b"v" * 100_000))])
    return publish(cluster, leader, channel, counter, payload)


def bound_payloads(node: SimNode, bytes_max: int) -> None:
    """Another bound of what one client may have held."""
    assert node.runner is not None
    node.runner.writes._bytes_max = bytes_max


def test_copies_of_one_client_are_bounded_over_all_channels_and_leave_room(
    world: tuple[SimCluster, SimNode, ChannelId],
) -> None:
    """A follower holds what it was sent until the leader names it: 64 MiB in each channel."""
    cluster, leader, channel = world
    follower = next(node for node in cluster.nodes.values() if node is not leader)
    bound_payloads(follower, 1_000_000)
    junk = [copy_of(cluster, leader, channel, number) for number in range(1, 30)]
    runner = send(follower, GREEDY, *junk)
    held = runner.channels[channel].core.statistics().pending_payloads
    assert held.messages == 9
    assert held.dropped == 20
    honest = copy_of(cluster, leader, channel, 99)
    send(follower, 6, honest)
    assert runner.channels[channel].core.statistics().pending_payloads.messages == 10
    runner.on_client_gone(GREEDY, follower.clock.now_ms())
    run(cluster, 2_500)  # replication.store_request_timeout_ms
    assert runner.writes.held_bytes == 0


def test_writes_without_an_outcome_are_bounded_by_client(
    world: tuple[SimCluster, SimNode, ChannelId],
) -> None:
    """Beyond its share a client is informed that the write is not applied; others go on."""
    cluster, leader, channel = world
    bound_payloads(leader, 1_000_000)
    cut(cluster, leader)
    rejected: list[Message] = []
    cluster.add_client("greedy", GREEDY, lambda _, message: rejected.append(message))
    writes = [copy_of(cluster, leader, channel, number) for number in range(1, 13)]
    runner = send(leader, GREEDY, *writes)
    run(cluster, 100)
    codes = [m.code for m in rejected if isinstance(m, PubReject)]
    assert codes == ["overloaded"] * 3
    send(leader, GREEDY, writes[0])  # one that is under way is no new one
    run(cluster, 100)
    assert len(rejected) == 3
    send(leader, 6, copy_of(cluster, leader, channel, 99))
    assert runner.channels[channel].core.statistics().uncommitted_records >= 10
    runner.on_client_gone(6, leader.clock.now_ms())
    run(cluster, 5_000)  # the quorum timeout answers the others
    assert runner.writes.held_bytes == 0


def test_writes_that_are_answered_are_counted_no_longer(
    world: tuple[SimCluster, SimNode, ChannelId],
) -> None:
    """At the leader and, named by it, at the followers."""
    cluster, leader, channel = world
    write = copy_of(cluster, leader, channel, 1)
    cluster.add_client("writer", 6, lambda *_: None)
    for node in cluster.nodes.values():
        send(node, 6, write)
    run(cluster, 1_000)
    for node in cluster.nodes.values():
        assert node.runner is not None
        assert node.runner.writes.held_bytes == 0
    assert NodeId(leader.node) == write.leader


def test_request_that_nobody_can_count_with_ends_its_client_and_not_the_node(
    world: tuple[SimCluster, SimNode, ChannelId], monkeypatch: pytest.MonkeyPatch
) -> None:
    """S0.4, S12: nothing was done yet, so the node is as it was; all it held for the client ends.

    Whatever else is raised, or a channel that has moved, is about this node, which stops.
    """
    _, leader, channel = world
    runner = send(leader, GREEDY, never(1, channel))
    assert runner.inbox.holds_for(GREEDY)
    ended: list[tuple[int, str]] = []
    answers: list[tuple[int, Message]] = []
    monkeypatch.setattr(runner.inbox, "_end_client", lambda *told: ended.append(told))
    monkeypatch.setattr(runner.answers, "answer", lambda *told: answers.append(told))
    raised: list[Exception] = [OverflowError("int too big to convert")]
    moved: list[ChannelId] = []

    def fails(*_: object) -> None:
        for each in moved:
            runner._active.touch(each)
        raise raised[0]

    monkeypatch.setattr(runner.reader.write_outcomes, "on_request", fails)
    question = WriteFate(2, channel, make_guid(b"producer", 1), 1_000)
    send(leader, GREEDY, question)
    assert [client for client, _ in ended] == [GREEDY]
    [(client, answer)] = answers
    assert isinstance(answer, Failed)
    assert (client, answer.request_id, answer.code) == (GREEDY, 2, "schema")
    assert not runner.inbox.holds_for(GREEDY)
    moved.append(channel)
    with pytest.raises(OverflowError):
        send(leader, GREEDY, question)
    moved.clear()
    for error in (AssertionError(), StorageError("EIO"), KeyError(1), ValueError("wrong")):
        raised[0] = error
        with pytest.raises(type(error)):
            send(leader, GREEDY, question)
    assert len(ended) == 1
