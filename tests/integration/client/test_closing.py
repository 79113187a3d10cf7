"""A client that is closed while its requests are under way: each of them ends, and says how.

In flight here means seen by a node that never answers. A request that went on after the client's
end, or a task that nobody awaits, would hang a program at its exit; ``play`` sees tasks that stay.
"""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from raftstore.aio import AsyncClient, AsyncTable
from raftstore.errors import RequestError
from raftstore.types import Outcome
from tests.integration.client.fake_cluster import FakeCluster, silence
from tests.integration.client.play import PATIENT, play

READS: dict[str, dict[str, Any]] = {
    "linearizable": {},
    "leader": {"level": "leader"},
    "max_lag": {"max_lag": 0},
    "max_staleness": {"max_staleness": 1.0},
    "max_batches_behind": {"max_batches_behind": 0},
    "any": {"level": "any"},
    "named replica": {"level": "any", "replica": "n2"},
}
Call = Callable[[AsyncTable, dict[str, Any]], Awaitable[Any]]


async def _scanned(table: AsyncTable, options: dict[str, Any]) -> list[Any]:
    return [row async for row in table.scan(**options)]


CALLS: dict[str, Call] = {
    "get": lambda table, options: table.get(1, **options),
    "get_many": lambda table, options: table.get_many(range(40), **options),
    "scan": _scanned,
    "page": lambda table, options: table.page(limit=10, **options),
    "count": lambda table, options: table.count(**options),
}
WRITES: dict[str, Callable[[AsyncTable], Awaitable[Any]]] = {
    "put": lambda table: table.put({"id": 1}),
    "if_absent": lambda table: table.put({"id": 1}, if_absent=True),
    "delete": lambda table: table.delete(1),
    "put_many": lambda table: table.put_many([{"id": n} for n in range(40)]),
    "delete_many": lambda table: table.delete_many(range(40)),
    "mark_batch": lambda table: table.mark_batch("w", 1),
}
CLOSING_S_MAX = 2.0
"""Far below the timeout of the requests, which is five seconds."""


def _gathered_strays(loop: asyncio.AbstractEventLoop) -> list[str]:
    """Have asyncio's complaints about tasks and futures collected from now on."""
    strays: list[str] = []
    loop.set_exception_handler(lambda _, told: strays.append(str(told["message"])))
    return strays


async def _close_under(client: AsyncClient, tasks: list[asyncio.Task[Any]]) -> list[Any]:
    """Close the client; what every request under way ends with."""
    async with asyncio.timeout(CLOSING_S_MAX):
        await client.close()
        return list(await asyncio.gather(*tasks, return_exceptions=True))


def _held(cluster: FakeCluster) -> None:
    """From now on no node answers anything."""
    for node in cluster.nodes.values():
        node.publish_scripts.extend([silence] * 200)
        node.read_scripts.extend([silence] * 200)
        node.request_scripts.extend([silence] * 200)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("level", READS)
def test_close_ends_reads_of_every_kind_and_level(level: str) -> None:
    """Nothing hangs, nothing is made up: each read gets an error that says the client is closed."""

    async def test(cluster: FakeCluster, client: AsyncClient) -> None:
        strays = _gathered_strays(asyncio.get_running_loop())
        table = client.table("t")
        await table.put({"id": 1})
        _held(cluster)
        tasks = [asyncio.ensure_future(call(table, READS[level])) for call in CALLS.values()]
        await cluster.until(
            lambda: sum(len(node.reads) for node in cluster.nodes.values()) >= len(CALLS)
        )
        for name, end in zip(CALLS, await _close_under(client, tasks), strict=True):
            assert isinstance(end, RequestError), (name, end)
            assert "closed" in str(end), (name, end)
        gc.collect()
        assert strays == []

    play(test, PATIENT, partitions=2)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("kind", WRITES)
def test_close_ends_writes_of_every_kind_as_unknown(kind: str) -> None:
    """A write that a node has seen may have happened: it ends at once, and is called UNKNOWN."""

    async def test(cluster: FakeCluster, client: AsyncClient) -> None:
        strays = _gathered_strays(asyncio.get_running_loop())
        table = client.table("t")
        await table.put({"id": 2})
        seen = sum(len(node.published) for node in cluster.nodes.values())
        _held(cluster)
        write = asyncio.ensure_future(WRITES[kind](table))
        await cluster.until(
            lambda: sum(len(node.published) for node in cluster.nodes.values()) > seen
        )
        [end] = await _close_under(client, [write])
        assert isinstance(end, RequestError), end
        assert end.outcome is Outcome.UNKNOWN, end
        gc.collect()
        assert strays == []

    play(test, PATIENT)


@pytest.mark.filterwarnings("error")
def test_close_during_a_failover_ends_what_waits_for_a_leader() -> None:
    """Requests between two attempts are in flight, too: no node has them, the client must."""

    async def test(cluster: FakeCluster, client: AsyncClient) -> None:
        strays = _gathered_strays(asyncio.get_running_loop())
        table = client.table("t")
        await table.put({"id": 1})
        [info] = cluster.tables["t"].channels
        cluster.elect(cluster.channels[info.channel], None)
        calls = [table.put({"id": 2}), table.get(1), table.count(), table.get(1, level="leader")]
        tasks = [asyncio.ensure_future(call) for call in calls]
        await cluster.until(lambda: len(cluster.nodes["n1"].reads) >= 3)
        for end in await _close_under(client, tasks):
            assert isinstance(end, RequestError), end
        gc.collect()
        assert strays == []

    play(test, PATIENT)
