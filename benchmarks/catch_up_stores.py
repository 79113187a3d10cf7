"""The stores of the catch-up benchmark: write, kill a node, start it, ask it for rows."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, Self

from benchmarks.peers import NODES, START_TIMEOUT_S
from benchmarks.peers.etcd import BULK_LIMITS, Etcd, EtcdClient
from benchmarks.peers.jetstream import JetStream, JetStreamClient
from raftstore import aio
from raftstore.aio import AsyncClient
from raftstore.errors import RaftstoreError
from raftstore.local_cluster import LocalCluster

Row = tuple[bytes, bytes]

PARTITIONS: Final = 8
TABLE: Final = "caught"
POLL_S: Final = 0.01
CAUGHT_UP_MAX_S: Final = 30.0
"""Longer is not waited; the time of such a node is stated as a lower bound."""
ASK_S: Final = 2.0
"""For one question to the node that has just started."""


class Raftstore:
    """Three nodes, a table of 8 partitions; the node that is killed is n3, whatever it leads."""

    name: Final = "raftstore"
    lanes: Final = 8

    def __init__(self) -> None:
        self._cluster = LocalCluster(nodes=NODES)
        self._victim = f"n{NODES}"

    def __enter__(self) -> Self:
        self._cluster.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self._cluster.close()

    async def open(self) -> None:
        """Create the table."""
        self._client = await aio.connect(self._cluster.endpoints, timeout=60.0)
        await self._client.create_table(TABLE, key="k", partitions=PARTITIONS)
        self._table = self._client.table(TABLE)

    async def close(self) -> None:
        """Close the client."""
        await self._client.close()

    async def write(self, rows: Sequence[Row]) -> None:
        """Write a chunk; returns when all of it is on disk at a quorum."""
        await self._table.put_many([{"k": key, "v": value} for key, value in rows])

    def pids(self) -> list[int]:
        """Return the processes that run, the victim's last."""
        running = self._cluster.running()
        return [self._cluster.pid(name) for name in sorted(running, key=self._victim.__eq__)]

    def kill(self) -> None:
        """End the victim."""
        self._cluster.kill(self._victim)

    def start(self) -> None:
        """Start it again."""
        self._cluster.start(self._victim)

    async def until_stored(self, keys: Sequence[bytes]) -> bool:
        """Wait until the victim answers all these rows itself; False when it takes too long."""
        endpoint = self._cluster.endpoints_by_node()[self._victim]
        await _until_listening(int(endpoint.rpartition(":")[2]))
        client = await aio.connect([endpoint], timeout=START_TIMEOUT_S)

        async def stored() -> bool:
            return await self._has(client, keys)

        is_there = await _until(stored)
        await client.close()
        return is_there

    async def _has(self, client: AsyncClient, keys: Sequence[bytes]) -> bool:
        try:
            rows = await client.table(TABLE).get_many(
                keys, level="any", replica=self._victim, timeout=ASK_S
            )
        except RaftstoreError:
            return False  # it has no replica that answers yet
        return None not in rows


class EtcdStore:
    """Three servers that take transactions of 1,000 puts; a follower is killed."""

    name: Final = "etcd"
    lanes: Final = 8

    def __init__(self) -> None:
        """PeerMissingError when it is not installed."""
        self._etcd = Etcd(BULK_LIMITS)

    def __enter__(self) -> Self:
        self._etcd.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self._etcd.__exit__(None, None, None)

    async def open(self) -> None:
        """Find the leader, and choose the victim."""
        self._client = EtcdClient(self._etcd.ports)
        await self._client.connect()
        leader = await self._client.find_leader()
        self._victim = next(f"e{n}" for n in range(NODES) if f"e{n}" != leader)

    async def close(self) -> None:
        """Close the client."""
        await self._client.close()

    async def write(self, rows: Sequence[Row]) -> None:
        """Write a chunk in one transaction."""
        await self._client.put_many(rows)

    def pids(self) -> list[int]:
        """Return the processes that run, the victim's last."""
        return [*self._etcd.pids]  # what is started again comes last

    def kill(self) -> None:
        """End the victim."""
        self._etcd.kill(self._victim)

    def start(self) -> None:
        """Start it again."""
        self._etcd.start(self._victim)

    async def until_stored(self, keys: Sequence[bytes]) -> bool:
        """Wait until the victim answers the last of these rows itself: it has one log."""
        port = self._etcd.ports[int(self._victim.removeprefix("e"))]
        await _until_listening(port)
        client = EtcdClient([port])  # not connected: that waits for a linearizable read

        async def stored() -> bool:
            return await client.has(keys[-1])

        is_there = await _until(stored)
        await client.close()
        return is_there


class JetStreamStore:
    """Three servers and a stream of one message a key; a follower of the stream is killed.

    It has no transactions, and acknowledges before anything is synced to a disk.
    """

    name: Final = "jetstream"
    lanes: Final = 8

    def __init__(self) -> None:
        """PeerMissingError when it is not installed."""
        self._servers = JetStream()
        self._last = 0

    def __enter__(self) -> Self:
        self._servers.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self._servers.__exit__(None, None, None)

    async def open(self) -> None:
        """Create the stream, and choose the victim; write through the leader's server."""
        every = JetStreamClient(self._servers.ports)
        await every.connect()
        leader = int((await every.leader()).removeprefix("j"))
        await every.close()
        self._victim = (leader + 1) % NODES
        self._client = JetStreamClient([self._servers.ports[leader]])
        await self._client.connect()

    async def close(self) -> None:
        """Close the client."""
        await self._client.close()

    async def write(self, rows: Sequence[Row]) -> None:
        """Publish a chunk; returns when all of it is acknowledged."""
        self._last = await self._client.put_many(rows)

    def pids(self) -> list[int]:
        """Return the processes that run, the victim's last."""
        return [*self._servers.pids]  # what is started again comes last

    def kill(self) -> None:
        """End the victim."""
        self._servers.kill(f"j{self._victim}")

    def start(self) -> None:
        """Start it again."""
        self._servers.start(f"j{self._victim}")

    async def until_stored(self, keys: Sequence[bytes]) -> bool:  # noqa: ARG002 - by position
        """Wait until the victim's store has reached the position of the last row written so far."""
        last = self._last

        async def stored() -> bool:
            return await asyncio.to_thread(self._servers.last_seq, self._victim) >= last

        return await _until(stored)


async def _until_listening(port: int) -> None:
    """Wait before a client connects, so that none pauses after a connection that was refused."""
    deadline = time.monotonic() + START_TIMEOUT_S
    while True:
        try:
            _, writer = await asyncio.open_connection("127.0.0.1", port)
        except OSError:
            assert time.monotonic() < deadline, f"nothing listens at port {port}"
            await asyncio.sleep(POLL_S)
            continue
        writer.close()
        return


async def _until(stored: Callable[[], Awaitable[bool]]) -> bool:
    deadline = time.monotonic() + CAUGHT_UP_MAX_S
    while not await stored():
        if time.monotonic() > deadline:
            return False
        await asyncio.sleep(POLL_S)
    return True
