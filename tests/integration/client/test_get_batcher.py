"""Gets that share a request: what is joined, and what becomes of each when that fails."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace

import pytest
from msgspec import structs

from raftstore import aio
from raftstore.aio import AsyncClient
from raftstore.client.reads.get_batcher import KEYS_MAX, Fallback, SharedAnswer
from raftstore.client.reads.read_spec import spec_of
from raftstore.errors import CorruptRecordError, DecodeError, NoReplicaAvailableError, QueryError
from raftstore.policy.levels import GET_MANY_LEVEL
from raftstore.protocol.message import Message
from raftstore.protocol.reads import Get, GetAnswer
from raftstore.types import channel_id
from tests.integration.client.fake_cluster import FakeCluster, FakeNode, fail, lose, silence
from tests.integration.client.fake_requests import read
from tests.integration.client.play import PATIENT, only_channel, play


async def _fill(cluster: FakeCluster, client: AsyncClient, rows: int = 9) -> list[dict[str, int]]:
    """Rows, and a connection to each node: what has none yet is asked by each get alone."""
    expected = [{"id": number, "v": number * 2} for number in range(rows)]
    await client.table("t").put_many(expected)
    for name, node in cluster.nodes.items():
        await client.table("t").get(0, level="any", replica=name)
        node.reads.clear()
    return expected


def _gets(cluster: FakeCluster) -> list[Get]:
    return [read for node in cluster.nodes.values() for read in node.reads if isinstance(read, Get)]


@pytest.mark.parametrize("options", [{}, {"max_lag": 5}, {"level": "any"}])
def test_gets_of_one_turn_share_a_request(options: dict[str, object]) -> None:
    """Each has the answer to its own key, with what is said of the state it was read from."""

    async def test(cluster: FakeCluster, client: AsyncClient) -> None:
        expected = await _fill(cluster, client)
        table = client.table("t")
        found = await asyncio.gather(*(table.get_result(n, **options) for n in (*range(9), 99)))
        assert [result.value for result in found] == [*expected, None]
        assert {result.node for result in found} == {"n1"}
        assert {result.applied_seq for result in found} == {9}
        assert [len(get.keys) for get in _gets(cluster)] == [10]

    play(test, PATIENT)


def test_gets_with_other_specifications_do_not_share_a_request() -> None:
    """A bound is sent with the keys that it was given for, and with no others."""

    async def test(cluster: FakeCluster, client: AsyncClient) -> None:
        await _fill(cluster, client)
        table = client.table("t")
        await asyncio.gather(
            table.get(0),
            table.get(1, max_lag=1),
            table.get(2, max_lag=1),
            table.get(3, max_lag=2),
            table.get(4, max_lag=2, timeout=4.0),
            table.get(5, max_staleness=2),
            table.get(6, max_lag=1, replica="n1"),
        )
        sent = sorted((len(get.keys), get.level, get.max_lag or -1) for get in _gets(cluster))
        assert sent == [
            (1, "bounded", -1),
            (1, "bounded", 1),
            (1, "bounded", 2),
            (1, "bounded", 2),
            (1, "linearizable", -1),
            (2, "bounded", 1),
        ]

    play(test, PATIENT)


@pytest.mark.parametrize("options", [{}, {"max_lag": 5}])
@pytest.mark.parametrize("script", [fail("unavailable", "not now"), lose])
def test_each_get_goes_its_own_way_when_the_shared_one_fails(
    script: object, options: dict[str, object]
) -> None:
    """One refusal, or a broken connection, costs each of them a moment and nothing else."""

    async def test(cluster: FakeCluster, client: AsyncClient) -> None:
        expected = await _fill(cluster, client)
        cluster.nodes["n1"].read_scripts.append(script)  # type: ignore[arg-type]
        table = client.table("t")
        assert await asyncio.gather(*(table.get(n, **options) for n in range(9))) == expected

    play(test)


def test_rows_that_are_too_large_together_are_asked_for_alone() -> None:
    """An answer has a largest size; that others asked at the same moment is no reason to fail."""

    async def test(cluster: FakeCluster, client: AsyncClient) -> None:
        expected = await _fill(cluster, client)
        cluster.nodes["n1"].read_scripts.append(fail("payload_too_large", "too large"))
        table = client.table("t")
        assert await asyncio.gather(*(table.get(n) for n in range(9))) == expected
        assert [len(get.keys) for get in _gets(cluster)] == [9] + [1] * 9

    play(test, PATIENT)


def test_damaged_row_fails_only_who_asked_for_it() -> None:
    """The seal is checked for each key by itself."""

    async def test(cluster: FakeCluster, client: AsyncClient) -> None:
        await _fill(cluster, client, 2)
        rows = only_channel(cluster).rows
        key = sorted(rows)[1]
        rows[key] = (b"\0" * 4 + rows[key][0][4:], rows[key][1])
        table = client.table("t")
        good, damaged = await asyncio.gather(table.get(0), table.get(1), return_exceptions=True)
        assert good == {"id": 0, "v": 0}
        assert isinstance(damaged, CorruptRecordError)

    play(test)


def test_silent_replica_is_left_by_all_who_asked_it() -> None:
    """After a moment the next replica is asked, for each of them."""

    async def test(cluster: FakeCluster, client: AsyncClient) -> None:
        expected = await _fill(cluster, client)
        cluster.nodes["n1"].is_silent = True
        table = client.table("t")
        found = await asyncio.gather(*(table.get_result(n, max_lag=5) for n in range(9)))
        assert [result.value for result in found] == expected
        assert "n1" not in {result.node for result in found}

    play(test)


def test_caller_that_gives_up_leaves_the_others_alone() -> None:
    """Cancelling one of the gets that share a request ends that one alone."""

    async def test(cluster: FakeCluster, client: AsyncClient) -> None:
        await _fill(cluster, client)
        table = client.table("t")
        gets = [asyncio.ensure_future(table.get(n, max_lag=5)) for n in range(3)]
        await asyncio.sleep(0)
        gets[1].cancel()
        assert await gets[0] == {"id": 0, "v": 0}
        assert await gets[2] == {"id": 2, "v": 4}
        with pytest.raises(asyncio.CancelledError):
            await gets[1]

    play(test)


def test_request_that_cannot_be_encoded_fails_only_who_asked_for_it() -> None:
    """Given a get that cannot be encoded, it alone fails: other gets of the same turn, before and
    behind it, have their answers.
    """

    async def test(cluster: FakeCluster, client: AsyncClient) -> None:
        expected = await _fill(cluster, client)
        table = client.table("t")
        spec = spec_of({"level": "any"})
        impossible = replace(spec, max_lag=2**70)  # as if it had not been checked
        await table.get(0, level="any")
        channel, key = only_channel(cluster).channel, min(only_channel(cluster).rows)
        batcher = client._channel_reads.batcher
        begun = [
            batcher.get(channel, (key,), each, 60_000)
            for each in (replace(spec, max_lag=1), impossible, replace(spec, max_lag=2))
        ]
        first, missed, last = await asyncio.gather(*begun)
        assert isinstance(first, SharedAnswer)
        assert missed == Fallback(None, "")
        assert isinstance(last, SharedAnswer)
        full = [batcher.get(channel, (key,), impossible, 60_000) for _ in range(KEYS_MAX + 1)]
        assert set(await asyncio.gather(*full)) == {Fallback(None, "")}
        assert await table.get(0, level="any") == expected[0]

    play(test)


def test_deadline_of_a_shared_request_is_that_of_its_callers() -> None:
    """No get hangs past its time, and each error names the nodes and their reasons."""

    async def test(cluster: FakeCluster, client: AsyncClient) -> None:
        await _fill(cluster, client)
        for node in cluster.nodes.values():
            node.read_scripts.extend([silence] * 50)
        table, loop = client.table("t"), asyncio.get_running_loop()
        began = loop.time()
        bounded, linearizable = await asyncio.gather(
            table.get(1, max_lag=5, timeout=0.2), table.get(2, timeout=0.2), return_exceptions=True
        )
        assert loop.time() - began < 1.0
        assert isinstance(bounded, NoReplicaAvailableError)
        assert "n1" in bounded.hosts
        assert isinstance(linearizable, QueryError)
        assert "n1: it did not answer before the deadline" in str(linearizable)

    play(test)


def test_newer_leader_is_asked_when_the_old_one_is_silent() -> None:
    """A linearizable get leaves a leader that another one has followed."""

    async def test(cluster: FakeCluster, client: AsyncClient) -> None:
        expected = await _fill(cluster, client)
        cluster.nodes["n1"].is_silent = True
        cluster.elect(only_channel(cluster), "n2")
        table = client.table("t")
        assert await asyncio.gather(*(table.get(n) for n in range(9))) == expected

    play(test)


def test_get_many_asks_each_partition_at_the_same_time() -> None:
    """One round trip: no partition waits for another, whatever their number."""

    async def test(cluster: FakeCluster, client: AsyncClient) -> None:
        expected = await _fill(cluster, client, 100)
        node = cluster.nodes["n1"]
        table = client.table("t")
        assert await table.get_many(range(100), max_lag=9) == expected
        assert len(node.reads) == 6
        assert sum(len(get.keys) for get in _gets(cluster)) == 100
        assert await table.get_many([3, 3, 200], columns=["v"]) == [{"v": 6}, {"v": 6}, None]

    play(test, partitions=6)


def _of_another_channel(node: FakeNode, message: Message, reply: Callable[[Message], None]) -> None:
    """Answer as if another channel had been asked for."""

    def swapped(answer: Message) -> None:
        assert isinstance(answer, GetAnswer)
        served = structs.replace(answer.served, channel=channel_id(b"o" * 16, 0))
        reply(structs.replace(answer, served=served))

    read(node, message, swapped)


def test_answer_about_another_channel_is_not_believed() -> None:
    """S12: what is answered is what was asked for, or another node is asked."""

    async def test(cluster: FakeCluster, client: AsyncClient) -> None:
        expected = await _fill(cluster, client)
        cluster.nodes["n1"].read_scripts.append(_of_another_channel)
        table = client.table("t")
        assert await asyncio.gather(*(table.get(n) for n in range(9))) == expected
        assert [len(get.keys) for get in _gets(cluster)] == [9] + [1] * 9
        cluster.nodes["n1"].read_scripts.append(_of_another_channel)
        with pytest.raises(DecodeError, match="another version"):
            await table.get(1, level="any", replica="n1")

    play(test, PATIENT)


@pytest.mark.parametrize("options", [{}, {"max_lag": 9}, {"level": "any"}])
def test_gets_of_one_turn_are_one_request_for_each_node(options: dict[str, object]) -> None:
    """Gets of one turn are one request per node, for any number of channels: the node judges and
    answers each channel by itself.
    """

    async def test(cluster: FakeCluster, client: AsyncClient) -> None:
        expected = await _fill(cluster, client, 60)
        table = client.table("t")
        found = await asyncio.gather(*(table.get_result(n, **options) for n in range(60)))
        assert [result.value for result in found] == expected
        assert {result.partition for result in found} == set(range(6))
        sent = [(len(node.many), len(node.reads)) for node in cluster.nodes.values()]
        assert sent == [(1, 6), (0, 0), (0, 0)]
        [request] = cluster.nodes["n1"].many
        assert len({part.channel for part in request.parts}) == 6
        assert sum(len(part.keys) for part in request.parts) == 60
        assert (request.level, request.max_lag) == (
            options.get("level", "bounded" if options else "linearizable"),
            options.get("max_lag"),
        )

    play(test, PATIENT, partitions=6)


def test_node_of_an_older_version_is_sent_a_get_for_each_channel() -> None:
    """It would end the connection over a request that it does not know."""

    async def test(cluster: FakeCluster, client: AsyncClient) -> None:
        for node in cluster.nodes.values():
            node.read_level = GET_MANY_LEVEL - 1
        async with await aio.connect(cluster.endpoints, settings=PATIENT) as other:
            expected = await _fill(cluster, other, 60)
            table = other.table("t")
            assert await asyncio.gather(*(table.get(n, max_lag=9) for n in range(60))) == expected
            assert await table.get_many(range(60), max_lag=9) == expected
        assert [node.many for node in cluster.nodes.values()] == [[], [], []]
        assert len(_gets(cluster)) == 12

    play(test, PATIENT, partitions=6)


@pytest.mark.parametrize("options", [{}, {"max_lag": 9}])
def test_channel_that_is_refused_costs_the_others_of_the_request_nothing(
    options: dict[str, object],
) -> None:
    """Only its callers ask again."""

    async def test(cluster: FakeCluster, client: AsyncClient) -> None:
        expected = await _fill(cluster, client, 60)
        cluster.nodes["n1"].read_scripts.append(fail("unavailable", "not now"))
        table = client.table("t")
        assert await asyncio.gather(*(table.get(n, **options) for n in range(60))) == expected
        [request] = cluster.nodes["n1"].many
        again = [get for get in _gets(cluster) if len(get.keys) == 1]
        assert {get.channel for get in again} == {request.parts[0].channel}
        assert len(again) == len(request.parts[0].keys)

    play(test, PATIENT, partitions=6)


def test_channel_whose_answer_is_late_holds_up_no_other() -> None:
    """Each group of callers is answered with its own part."""

    async def test(cluster: FakeCluster, client: AsyncClient) -> None:
        expected = await _fill(cluster, client, 60)
        held: list[Callable[[], None]] = []

        def later(node: FakeNode, message: Message, reply: Callable[[Message], None]) -> None:
            held.append(lambda: read(node, message, reply))

        cluster.nodes["n1"].read_scripts.append(later)
        table = client.table("t")
        gets = [asyncio.ensure_future(table.get(n)) for n in range(60)]
        await asyncio.wait(gets, return_when=asyncio.FIRST_COMPLETED)
        [request] = cluster.nodes["n1"].many
        late = len(request.parts[0].keys)
        while len(waiting := [get for get in gets if not get.done()]) > late:
            await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        held.pop()()
        assert await asyncio.gather(*gets) == expected
        assert len(cluster.nodes["n1"].many) == 1
        assert len(cluster.nodes["n1"].reads) == 6

    play(test, PATIENT, partitions=6)


@pytest.mark.parametrize("damage", ["another channel", "a value less"])
def test_answer_of_another_shape_to_a_part_is_not_believed(damage: str) -> None:
    """S12: its callers ask again, and the others have their answers."""

    async def test(cluster: FakeCluster, client: AsyncClient) -> None:
        expected = await _fill(cluster, client, 60)
        node = cluster.nodes["n1"]

        def damaged(node: FakeNode, message: Message, reply: Callable[[Message], None]) -> None:
            def reply_damaged(answer: Message) -> None:
                assert isinstance(answer, GetAnswer)
                if damage == "another channel":
                    served = structs.replace(answer.served, channel=channel_id(b"o" * 16, 0))
                    reply(structs.replace(answer, served=served))
                else:
                    reply(structs.replace(answer, values=answer.values[1:]))

            read(node, message, reply_damaged)

        node.read_scripts.append(damaged)
        table = client.table("t")
        assert await asyncio.gather(*(table.get(n) for n in range(60))) == expected
        [request] = node.many
        again = [get for get in _gets(cluster) if len(get.keys) == 1]
        assert {get.channel for get in again} == {request.parts[0].channel}

    play(test, PATIENT, partitions=6)
