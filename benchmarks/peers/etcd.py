"""etcd, three nodes, as its package configures it: fsync of the log at a quorum.

Only the limits of a transaction and of the database can be raised, for bulk writes.

The client is aetcd (gRPC); one connection per node.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Iterable, Sequence
from typing import Any, Final

from benchmarks.peers import NODES, START_TIMEOUT_S
from benchmarks.peers.processes import PeerProcesses, free_ports

BULK_LIMITS: Final = ("--max-txn-ops", "1000", "--quota-backend-bytes", str(8 * 1024**3))
"""Transactions of 1,000 puts instead of 128; a database of 8 GiB instead of 2."""


class Etcd(PeerProcesses):
    """Three running servers; ``ports`` are where clients connect."""

    def __init__(self, limits: Sequence[str] = ()) -> None:
        super().__init__("etcd", "aetcd")
        self.version = self.said("--version")
        ports = free_ports(2 * NODES)
        self.ports, peer_ports = ports[:NODES], ports[NODES:]
        cluster = ",".join(f"e{n}=http://127.0.0.1:{port}" for n, port in enumerate(peer_ports))
        for node, (client, peer) in enumerate(zip(self.ports, peer_ports, strict=True)):
            client_url, peer_url = f"http://127.0.0.1:{client}", f"http://127.0.0.1:{peer}"
            self.spawn(
                f"e{node}", "--name", f"e{node}", "--data-dir", str(self.directory / f"e{node}"),
                "--listen-client-urls", client_url, "--advertise-client-urls", client_url,
                "--listen-peer-urls", peer_url, "--initial-advertise-peer-urls", peer_url,
                "--initial-cluster", cluster, "--initial-cluster-state", "new",
                *limits,
            )  # fmt: skip


class EtcdClient:
    """A connection to each node."""

    def __init__(self, ports: Sequence[int]) -> None:
        import aetcd

        self._clients: list[Any] = [aetcd.Client(port=port) for port in ports]
        self._leader: Any = self._clients[0]

    async def connect(self) -> None:
        """Wait until every node answers."""
        deadline = time.monotonic() + START_TIMEOUT_S
        for client in self._clients:
            await client.connect()
            while True:
                try:
                    async with asyncio.timeout(2.0):
                        await client.get(b"ready")
                    break
                except Exception:  # noqa: BLE001 - whatever a cluster says that is not ready yet
                    assert time.monotonic() < deadline, "etcd is not ready"
                    await asyncio.sleep(0.1)

    async def close(self) -> None:
        """Close the connections."""
        for client in self._clients:
            with contextlib.suppress(Exception):
                await client.close()

    async def load(self, rows: Iterable[tuple[bytes, bytes]]) -> None:
        """Store the rows, 64 at a time."""
        waiting = iter(rows)

        async def lane() -> None:
            for key, value in waiting:
                await self._clients[0].put(key, value)

        await asyncio.gather(*(lane() for _ in range(64)))

    async def find_leader(self) -> str:
        """Let writes go to the node that leads, whose name is returned: no node passes them on."""
        deadline = time.monotonic() + START_TIMEOUT_S
        while (leader := (await self._clients[0].status()).leader) is None:
            assert time.monotonic() < deadline, "etcd has no leader"
            await asyncio.sleep(0.1)
        self._leader = self._clients[int(leader.name.removeprefix("e"))]
        return str(leader.name)

    async def put(self, key: bytes, value: bytes) -> None:
        """Write one row."""
        await self._leader.put(key, value)

    async def add(self, key: bytes, amount: int, total: int) -> int:
        """Add to the number of a key in a transaction: write, if it is still ``total`` (its version
        0: it is absent); returns the new number. Says that it was not by an AssertionError."""
        transactions = self._leader.transactions
        kept = transactions.value(key) == b"%d" % total
        succeeded, _ = await self._leader.transaction(
            compare=[kept if total else transactions.version(key) == 0],
            success=[transactions.put(key, b"%d" % (total + amount))],
            failure=[transactions.get(key)],
        )
        assert succeeded, f"{key!r} is not {total}"
        return total + amount

    async def put_many(self, rows: Iterable[tuple[bytes, bytes]]) -> None:
        """Write the rows in one transaction."""
        puts = [self._leader.transactions.put(key, value) for key, value in rows]
        succeeded, _ = await self._leader.transaction(compare=[], success=puts, failure=[])
        assert succeeded

    async def has(self, key: bytes) -> bool:
        """Whether the first node has it, by a serializable read; it need not be ready."""
        with contextlib.suppress(Exception):
            await self._clients[0].connect()
            async with asyncio.timeout(2.0):
                return await self._clients[0].get(key, serializable=True) is not None
        return False

    async def get(self, key: bytes, turn: int) -> bytes:
        """A serializable read: any node answers from what it has, nodes in turn."""
        found = await self._clients[turn % NODES].get(key, serializable=True)
        return bytes(found.value)

    async def get_linearizable(self, key: bytes, turn: int) -> bytes:
        """A linearizable read, nodes in turn."""
        found = await self._clients[turn % NODES].get(key)
        return bytes(found.value)
