"""Reads of many keys, scans and their pages against nodes that refuse, lag, fall silent and die."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest
from msgspec import structs

from raftstore.aio import AsyncClient
from raftstore.client.settings import ANSWERS_AT_ONCE
from raftstore.errors import (
    ConfigError,
    PageExpiredError,
    PayloadTooLargeError,
)
from raftstore.protocol.message import Message
from raftstore.protocol.reads import Get
from tests.integration.client.fake_cluster import (
    Answer,
    FakeCluster,
    FakeNode,
    fail,
    read,
)
from tests.integration.client.play import only_channel, play


def test_get_many_answers_every_key_in_order() -> None:
    """Keys of all partitions, repeated and absent ones, in the caller's order."""

    async def test(cluster: FakeCluster, client: AsyncClient) -> None:
        table = client.table("t")
        await table.put_many([{"id": n} for n in range(2_500)])
        keys = [*range(2_499, -1, -1), 9_999, 5, 5]
        rows = await table.get_many(keys, max_lag=0)
        assert rows == [{"id": key} if key < 2_500 else None for key in keys]
        assert await table.get_many([]) == []
        assert max(len(r.keys) for n in cluster.nodes.values() for r in n.reads) <= 1_000

    play(test, partitions=2)


def test_get_many_results_tells_of_every_key_what_get_result_tells() -> None:
    """Version, partition and who served it, at the price of one read per partition."""

    async def test(cluster: FakeCluster, client: AsyncClient) -> None:
        table = client.table("t")
        await table.put_many([{"id": n} for n in range(20)])
        reads = sum(len(node.reads) for node in cluster.nodes.values())
        results = await table.get_many_results(range(21), max_lag=0)
        assert sum(len(node.reads) for node in cluster.nodes.values()) - reads == 2
        for key, result in enumerate(results):
            alone = await table.get_result(key, max_lag=0)
            assert (result.value, result.position) == (alone.value, alone.position)
            assert result.applied_position == alone.applied_position

    play(test, partitions=2)


def test_scan_takes_bounds_prefixes_and_limits() -> None:
    """Ranges are of keys or of their first columns; prefixes of columns or of text."""

    async def test(cluster: FakeCluster, client: AsyncClient) -> None:
        cluster.add_table("c", 3, key=("country", "city"))
        table = client.table("c")
        cities = [("de", "berlin"), ("de", "bonn"), ("fr", "nice"), ("fr", "paris"), ("it", "roma")]
        await table.put_many([{"country": a, "city": b, "n": 1} for a, b in cities])

        async def found(**options: object) -> list[tuple[str, str]]:
            rows = table.scan(keys_only=True, **options)  # type: ignore[arg-type]
            return [(row["country"], row["city"]) async for row in rows]

        assert await found() == cities
        assert await found(prefix=("fr",)) == cities[2:4]
        assert await found(prefix="f") == cities[2:4]
        assert await found(start=("de", "bonn"), stop=("it",)) == cities[1:4]
        assert await found(start={"country": "fr", "city": "paris"}) == cities[3:]
        assert await found(start="fr", limit=2, level="any") == cities[2:4]
        assert await found(limit=0) == []
        with pytest.raises(ConfigError, match="exclude each other"):
            table.scan(prefix=("fr",), start=("de",))
        with pytest.raises(ConfigError, match="limit=-1"):
            table.scan(limit=-1)

    play(test)


def test_scan_reads_one_state_although_leaders_change_and_rows_do() -> None:
    """Its pages are of the state that the first one pinned, at the node that has it."""

    async def test(cluster: FakeCluster, client: AsyncClient) -> None:
        table = client.table("t")
        await table.put_many([{"id": n} for n in range(3_000)])
        rows = []
        async for row in table.scan():
            if len(rows) == 10:
                cluster.elect(only_channel(cluster), "n3")
                await table.put_many([{"id": n, "late": True} for n in range(4_000)])
            rows.append(row)
        assert rows == [{"id": n} for n in range(3_000)]
        assert not cluster.nodes["n3"].reads
        await cluster.until(lambda: not cluster.nodes["n1"].pins)

    play(test)


def test_scan_with_a_limit_reads_one_state_although_its_pages_are_cut() -> None:
    """A page ends at a number of bytes, too: then others follow even if one would do."""

    async def test(cluster: FakeCluster, client: AsyncClient) -> None:
        table = client.table("t")
        await table.put_many([{"id": n} for n in range(20)])
        for node in cluster.nodes.values():
            node.page_rows_max = 3
        rows = []
        async for row in table.scan(limit=10):
            if len(rows) == 1:
                cluster.elect(only_channel(cluster), "n3")
                await table.put_many([{"id": n, "late": True} for n in range(20)])
            rows.append(row)
        assert rows == [{"id": n} for n in range(10)]
        await cluster.until(lambda: not any(node.pins for node in cluster.nodes.values()))

    play(test)


def test_scan_whose_state_was_given_up_before_its_first_page_came_is_refused() -> None:
    """A first page that says that others follow and names no pin is not the whole table."""

    async def test(cluster: FakeCluster, client: AsyncClient) -> None:
        def unpinned(node: FakeNode, message: Message, reply: Callable[[Message], None]) -> None:
            def forget(answer: Message) -> None:
                reply(structs.replace(answer, pin=0))

            read(node, message, forget)

        table = client.table("t")
        await table.put_many([{"id": n} for n in range(3_000)])
        for node in cluster.nodes.values():
            node.read_scripts.append(unpinned)
        with pytest.raises(PageExpiredError, match="start the scan again"):
            [row async for row in table.scan()]

    play(test)


def test_scan_that_is_given_up_leaves_no_state_pinned() -> None:
    """Old files of a node's store are kept for as long as a state is pinned."""

    async def test(cluster: FakeCluster, client: AsyncClient) -> None:
        table = client.table("t")
        await table.put_many([{"id": n} for n in range(3_000)])
        rows = table.scan()
        assert await anext(rows) == {"id": 0}
        assert cluster.nodes["n1"].pins
        await rows.aclose()
        await cluster.until(lambda: not cluster.nodes["n1"].pins)
        assert [row["id"] async for row in table.scan(limit=3)] == [0, 1, 2]
        assert cluster.nodes["n1"].pinned == 1  # one page is one state anyhow

    play(test)


def test_scan_whose_state_is_gone_fails_instead_of_going_on_with_another() -> None:
    """A node that has forgotten the state, or is gone itself, ends the scan (never a mixture)."""

    async def test(cluster: FakeCluster, client: AsyncClient) -> None:
        table = client.table("t")
        await table.put_many([{"id": n} for n in range(3_000)])
        for end in (cluster.nodes["n1"].pins.clear, cluster.nodes["n1"].kill):
            rows = table.scan(timeout=0.3)
            await anext(rows)
            ended = end()
            if ended is not None:
                await ended
            with pytest.raises(PageExpiredError, match=r"start the scan again|is gone"):
                [row async for row in rows]

    play(test)


def test_scan_without_a_snapshot_survives_a_change_of_leader_between_pages() -> None:
    """Every page finds its leader anew, and is of that moment."""

    async def test(cluster: FakeCluster, client: AsyncClient) -> None:
        table = client.table("t")
        await table.put_many([{"id": n} for n in range(3_000)])
        rows = []
        async for row in table.scan(snapshot=False):
            if len(rows) == 10:
                cluster.elect(only_channel(cluster), "n3")
            rows.append(row["id"])
        assert rows == list(range(3_000))
        assert cluster.nodes["n3"].reads

    play(test)


def too_large_above(keys_max: int) -> Answer:
    """A node whose answers have room for so many rows only."""

    def script(node: FakeNode, message: Message, reply: Callable[[Message], None]) -> None:
        assert isinstance(message, Get)
        few = len(message.keys) <= keys_max
        (read if few else fail("payload_too_large"))(node, message, reply)

    return script


def test_get_many_of_rows_too_large_for_one_answer_asks_in_parts() -> None:
    """How large the rows are is known to the node alone; the caller must not have to guess."""

    async def test(cluster: FakeCluster, client: AsyncClient) -> None:
        table = client.table("t")
        await table.put_many([{"id": n} for n in range(10)])
        for node in cluster.nodes.values():
            node.read_scripts.extend([too_large_above(2)] * 20)
        assert await table.get_many(range(10)) == [{"id": n} for n in range(10)]

    play(test, partitions=1)


def test_get_of_one_row_too_large_for_an_answer_is_refused() -> None:
    """Halving ends somewhere: the refusal is final and says what it is."""

    async def test(cluster: FakeCluster, client: AsyncClient) -> None:
        for node in cluster.nodes.values():
            node.read_scripts.extend([too_large_above(0)] * 5)
        with pytest.raises(PayloadTooLargeError):
            await client.table("t").get_many([1])

    play(test, partitions=1)


def test_scan_of_many_partitions_waits_for_few_answers_at_a_time() -> None:
    """A node gives up a client for which too many bytes wait, so nobody asks for all at once."""

    async def test(cluster: FakeCluster, client: AsyncClient) -> None:
        table = client.table("t")
        await table.put_many([{"id": n} for n in range(100)])
        waiting: dict[object, None] = {}
        most = 0

        def late(node: FakeNode, message: Message, reply: Callable[[Message], None]) -> None:
            nonlocal most
            token = object()
            waiting[token] = None
            most = max(most, len(waiting))

            def answer() -> None:
                del waiting[token]
                read(node, message, reply)

            asyncio.get_running_loop().call_later(0.005, answer)

        for node in cluster.nodes.values():
            node.read_scripts.extend([late] * 1_000)
        rows = [row["id"] async for row in table.scan(timeout=30)]
        assert rows == list(range(100))
        assert most <= ANSWERS_AT_ONCE

    play(test, partitions=32)
