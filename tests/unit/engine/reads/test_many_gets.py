"""Requests for keys of several channels at a node: each part by itself, answers together."""

from __future__ import annotations

from typing import Any, cast

from raftstore.engine.channel.runner import ChannelRunner
from raftstore.engine.reads.many_gets import ManyGets, PartId
from raftstore.engine.reads.read_rules import GET_BYTES_MAX
from raftstore.protocol.message import Failed, Message
from raftstore.protocol.payload import encode_rows
from raftstore.protocol.reads import (
    ChannelKeys,
    FoundKeys,
    Get,
    GetAnswer,
    GetMany,
    GetManyAnswer,
    ReadRequest,
    RefusedKeys,
    Served,
)
from raftstore.rows.sealing import seal
from raftstore.testing.sim_cluster import SimCluster
from raftstore.testing.sim_node import SimNode
from raftstore.types import ChannelId, NodeId, Seq, Term, channel_id
from tests.unit.engine.engine_world import ask, calm_cluster, publish, run

CLIENT, OTHER = 7, 8
A, B, C = (channel_id(b"u" * 16, partition) for partition in range(3))


def served(channel: ChannelId) -> Served:
    """The facts of an answer; these tests do not look at them."""
    return Served(NodeId("n1"), channel, Term(1), Seq(9), 0, 0, "any")


class Bench:
    """Parts are answered when the test says."""

    def __init__(self, keys_max: int = 100) -> None:
        self.asked: list[tuple[int, Get]] = []
        self.ids: list[PartId] = []
        self.sent: list[tuple[int, Message]] = []
        self.many = ManyGets(cast("Any", self), self, keys_max)

    def answer(self, client: int, message: Message) -> None:
        """Keep the answer for the test."""
        self.sent.append((client, message))

    def on_request(
        self,
        client: int,
        request: ReadRequest,
        runner: ChannelRunner | None,
        now_ms: int,
        part: PartId | None = None,
    ) -> None:
        """Keep a request that is passed on to the reader."""
        assert part is not None
        self.ids.append(part)
        assert (runner, now_ms) == (None, 5)
        assert isinstance(request, Get)
        self.asked.append((client, request))

    def request(self, *parts: ChannelKeys, client: int = CLIENT, request_id: int = 1) -> None:
        """A client asks."""
        request = GetMany(request_id, parts, "bounded", 3, 900, 800, 2)
        self.many.on_request(client, request, {}, 5)

    def find(self, number: int, *values: bytes | None) -> GetAnswer:
        """The reader finds the rows of its so manyth part."""
        part = self.asked[number][1]
        seqs = tuple(Seq(number) for _ in values)
        answer = GetAnswer(part.request_id, values, seqs, served(part.channel))
        self.many.collect(self.ids[number], answer)
        return answer


def test_each_part_is_a_get_with_the_consistency_of_the_request() -> None:
    """The reader judges it like any other: its limits, waits and refusals are a get's."""
    bench = Bench()
    bench.request(ChannelKeys(A, (b"x", b"y")), ChannelKeys(B, (b"z",)))
    first, second = (get for _, get in bench.asked)
    assert (first.channel, first.keys, second.channel, second.keys) == (
        A, (b"x", b"y"), B, (b"z",),
    )  # fmt: skip
    for get in (first, second):
        assert (get.level, get.max_lag, get.min_seq) == ("bounded", 3, 0)
        assert (get.timeout_ms, get.max_staleness_ms, get.max_batches_behind) == (900, 800, 2)
        assert get.request_id == 1
    assert len(set(bench.ids)) == 2
    assert [client for client, _ in bench.asked] == [CLIENT] * 2


def test_what_is_known_leaves_together_and_a_part_that_waits_holds_up_no_other() -> None:
    """Each part is answered once, under the id of the request."""
    bench = Bench()
    bench.request(*(ChannelKeys(channel, (b"k",)) for channel in (A, B, C)), request_id=33)
    third = bench.find(2, b"v")
    refused = Failed(bench.asked[0][1].request_id, "not_leader", "ask there", NodeId("n2"))
    bench.many.collect(bench.ids[0], refused)
    assert bench.sent == []
    bench.many.flush()
    bench.many.flush()
    found = FoundKeys(2, third.values, third.seqs, third.served)
    told = RefusedKeys(0, "not_leader", "ask there", NodeId("n2"))
    assert bench.sent == [(CLIENT, GetManyAnswer(33, (found,), (told,)))]
    second = bench.find(1, None)
    bench.many.collect(bench.ids[1], second)
    bench.many.flush()
    later = FoundKeys(1, second.values, second.seqs, second.served)
    assert bench.sent[1:] == [(CLIENT, GetManyAnswer(33, (later,), ()))]


def test_requests_of_several_clients_are_kept_apart() -> None:
    """The same id of two clients is two requests."""
    bench = Bench()
    bench.request(ChannelKeys(A, (b"k",)), client=CLIENT)
    bench.request(ChannelKeys(A, (b"k",)), client=OTHER)
    bench.find(1, b"theirs")
    bench.find(0, b"ours")
    bench.many.flush()
    values = {
        client: answer.found[0].values
        for client, answer in bench.sent
        if isinstance(answer, GetManyAnswer)
    }
    assert values == {CLIENT: (b"ours",), OTHER: (b"theirs",)}


def test_request_has_no_more_keys_than_a_get_may_have() -> None:
    """A part without keys counts as one: it is judged and answered, too."""
    bench = Bench(keys_max=3)
    bench.request(ChannelKeys(A, (b"x", b"y")), ChannelKeys(B, ()))
    assert len(bench.asked) == 2
    bench.request(ChannelKeys(A, (b"x", b"y")), ChannelKeys(B, ()), ChannelKeys(C, ()))
    assert len(bench.asked) == 2
    [(client, answer)] = bench.sent
    assert client == CLIENT
    assert isinstance(answer, Failed)
    assert answer.code == "payload_too_large"
    assert "4 keys in one request, the limit is 3; split it" in answer.message


def test_request_without_parts_is_refused() -> None:
    """There would be nothing to answer."""
    bench = Bench()
    bench.request()
    assert [getattr(answer, "code", None) for _, answer in bench.sent] == ["schema"]


def test_answers_too_large_for_one_message_leave_in_several() -> None:
    """Each has no more rows than the answer to a get may have."""
    bench = Bench()
    bench.request(*(ChannelKeys(channel, (b"k",)) for channel in (A, B, C, A, B, C)))
    half = b"v" * (GET_BYTES_MAX // 2)
    for number in range(5):
        bench.find(number, half)
    bench.find(5, half + half + b"v")
    bench.many.flush()
    parts = [
        [found.part for found in answer.found]
        for _, answer in bench.sent
        if isinstance(answer, GetManyAnswer)
    ]
    assert parts == [[0, 1], [2, 3], [4], [5]]


def test_nothing_is_held_for_a_client_that_is_gone() -> None:
    """Neither what waits nor what would have left; others have their answers."""
    bench = Bench()
    for client in (CLIENT, OTHER):
        bench.request(ChannelKeys(A, (b"k",)), ChannelKeys(B, (b"k",)), client=client)
    bench.find(0, b"v")
    bench.find(2, b"v")
    bench.many.on_client_gone(CLIENT)
    assert len(bench.many._parts) == 1
    bench.find(1, b"v")
    assert bench.many.has_answers
    bench.many.flush()
    assert [client for client, _ in bench.sent] == [OTHER]
    assert not bench.many.has_answers
    bench.find(3, b"v")
    bench.many.flush()
    assert [client for client, _ in bench.sent] == [OTHER, OTHER]
    assert bench.many._parts == {}


# --- at a node ------------------------------------------------------------------------------------


def two_channels() -> tuple[SimCluster, SimNode, list[ChannelId]]:
    """A node that leads at least one channel of several, which have a row each."""
    cluster, channel = calm_cluster()
    leader = cluster.leaders()[channel]
    payload = encode_rows([(b"k", seal(b"k", b"v"))])
    ask(cluster, leader, publish(cluster, leader, channel, 1, payload))
    run(cluster, 1_000)
    metadata = next(each for each in leader.runner.channels if each != channel)
    return cluster, leader, [channel, metadata, A]


def told(answers: list[Message]) -> tuple[dict[int, FoundKeys], dict[int, str]]:
    """By part: what was found, and why others were refused."""
    found, refused = dict[int, FoundKeys](), dict[int, str]()
    for answer in answers:
        assert isinstance(answer, GetManyAnswer)
        found |= {each.part: each for each in answer.found}
        refused |= {each.part: each.code for each in answer.refused}
    return found, refused


def many(channels: list[ChannelId], level: str) -> GetMany:
    """One key of each."""
    parts = tuple(ChannelKeys(channel, (b"k", b"none")) for channel in channels)
    return GetMany(1, parts, level, None, 5_000)


def test_every_level_answers_parts_as_it_answers_gets() -> None:
    """The row, its seq, and of which state it is; a channel that is not here is refused."""
    for level in ("linearizable", "leader", "bounded", "any"):
        cluster, node, channels = two_channels()
        alone = ask(cluster, node, Get(1, channels[0], (b"k", b"none"), level, None, Seq(0), 5_000))
        run(cluster, 500)
        together = ask(cluster, node, many([channels[0], A], level))
        run(cluster, 500)
        found, refused = told(together)
        [answer] = alone
        assert isinstance(answer, GetAnswer)
        assert (found[0].values, found[0].seqs) == (answer.values, answer.seqs)
        assert found[0].values == (seal(b"k", b"v"), None)
        assert found[0].served.channel == channels[0]
        assert found[0].served.applied_seq == answer.served.applied_seq
        assert found[0].served.level == level
        assert refused == {1: "unknown_channel"}


def test_get_and_request_for_many_channels_with_one_id_are_answered_each_in_its_form() -> None:
    """The id is the client's; where an answer goes on is not shown by its range."""
    cluster, node, channels = two_channels()
    for level in ("linearizable", "any"):
        get = Get(1, channels[0], (b"k", b"none"), level, None, Seq(0), 5_000)
        answers = ask(cluster, node, get, many([channels[0]], level))
        run(cluster, 500)
        assert sorted(type(answer).__name__ for answer in answers) == ["GetAnswer", "GetManyAnswer"]


def test_parts_that_wait_count_like_the_gets_that_they_are() -> None:
    """They take places among the waiting reads of their client, and give them back."""
    cluster, node, channels = two_channels()
    assert node.runner is not None
    reader, now_ms = node.runner.reader, node.clock.now_ms()
    led = [
        channel
        for channel, runner in node.runner.channels.items()
        if cluster.leaders().get(channel) is node
    ]
    assert channels[0] in led
    node.runner.on_client_message(CLIENT, many(led, "linearizable"), now_ms)
    assert reader.waiting == len(led)
    assert reader.holds_for(CLIENT)
    node.runner.on_client_gone(CLIENT, now_ms)
    assert reader.waiting == 0
    assert not reader.holds_for(CLIENT)
    assert reader.many._parts == {}


def test_part_is_refused_at_its_deadline_like_a_get() -> None:
    """A leader that is cut off confirms nothing; the request says so for each part."""
    cluster, node, channels = two_channels()
    answers = ask(cluster, node, many([channels[0]], "linearizable"))
    for other in cluster.nodes.values():
        if other is not node:
            other.crash("test")
    run(cluster, 8_000)
    assert told(answers)[0] == {}
    assert set(told(answers)[1]) == {0}
