"""NATS JetStream, three nodes: a stream shaped as its key-value store is (one message a subject).

The client is nats-py. A direct get is answered by any replica from what it has.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
import urllib.request
from collections.abc import Iterable, Sequence
from typing import Any, Final

from benchmarks.peers import NODES, START_TIMEOUT_S
from benchmarks.peers.processes import PeerProcesses, free_ports

BUCKET: Final = "points"
STREAM: Final = f"KV_{BUCKET}"
PENDING_MAX: Final = 20_000
"""Messages of one client that were sent and not acknowledged yet; its own default is 4,000."""


class JetStream(PeerProcesses):
    """Three running servers; clients connect to ``ports``, ``watched`` answer about one server."""

    def __init__(self) -> None:
        super().__init__("nats-server", "nats")
        self.version = self.said("--version")
        ports = free_ports(3 * NODES)
        self.ports, route_ports = ports[:NODES], ports[NODES : 2 * NODES]
        self.watched = ports[2 * NODES :]
        routes = ", ".join(f"nats://127.0.0.1:{port}" for port in route_ports)
        for node, (client, route) in enumerate(zip(self.ports, route_ports, strict=True)):
            file = self.directory / f"j{node}.conf"
            file.write_text(
                f"server_name: j{node}\nlisten: 127.0.0.1:{client}\n"
                f"http: 127.0.0.1:{self.watched[node]}\n"
                f'jetstream {{ store_dir: "{self.directory}/j{node}" }}\n'
                f"cluster {{ name: bench, listen: 127.0.0.1:{route}, routes: [{routes}] }}\n"
            )
            self.spawn(f"j{node}", "-c", str(file))

    def last_seq(self, node: int) -> int:
        """Last position of the stream in the store of this server; 0 while it has or says none.

        Its own monitoring is asked: clients' requests may be answered by any of the replicas.
        """
        url = f"http://127.0.0.1:{self.watched[node]}/jsz?accounts=true&streams=true"
        try:
            with urllib.request.urlopen(url, timeout=2.0) as answer:
                accounts = json.load(answer).get("account_details", [])
        except (OSError, ValueError):
            return 0
        streams = [found for account in accounts for found in account.get("stream_detail", [])]
        return max((found["state"]["last_seq"] for found in streams), default=0)


class JetStreamClient:
    """A connection to each node, and one bucket."""

    def __init__(self, ports: Sequence[int]) -> None:
        self._ports = tuple(ports)
        self._clients: list[Any] = []
        self._stream: Any = None

    async def connect(self) -> None:
        """Wait until every node answers and the bucket is there."""
        import nats

        deadline = time.monotonic() + START_TIMEOUT_S
        for port in self._ports:
            while True:
                try:
                    server = f"nats://127.0.0.1:{port}"
                    self._clients.append(await nats.connect(server, connect_timeout=2))
                    break
                except Exception:  # noqa: BLE001 - whatever a server says that is not ready yet
                    assert time.monotonic() < deadline, "NATS is not ready"
                    await asyncio.sleep(0.1)
        self._stream = self._clients[0].jetstream(publish_async_max_pending=PENDING_MAX)
        while True:
            try:
                await self._stream.add_stream(
                    name=STREAM, subjects=[f"$KV.{BUCKET}.>"], num_replicas=NODES,
                    max_msgs_per_subject=1, allow_direct=True,
                )  # fmt: skip
                break
            except Exception:  # noqa: BLE001 - no leader of the metadata yet
                assert time.monotonic() < deadline, "JetStream has no leader"
                await asyncio.sleep(0.2)

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
                await self._stream.publish(f"$KV.{BUCKET}.{key.decode()}", value)

        await asyncio.gather(*(lane() for _ in range(64)))

    async def put_many(self, rows: Iterable[tuple[bytes, bytes]]) -> int:
        """Publish the rows, all under way at once; returns the position of the last of them.

        The stream's leader acknowledges what a majority has; neither waits for its disk.
        """
        sent = [
            await self._stream.publish_async(f"$KV.{BUCKET}.{key.hex()}", value)
            for key, value in rows
        ]
        return max(stored.seq for stored in await asyncio.gather(*sent))

    async def leader(self) -> str:
        """Name of the server that leads the stream."""
        deadline = time.monotonic() + START_TIMEOUT_S
        while not (leader := (await self._stream.stream_info(STREAM)).cluster.leader):
            assert time.monotonic() < deadline, "the stream has no leader"
            await asyncio.sleep(0.1)
        return str(leader)

    async def get(self, key: bytes, turn: int) -> bytes:
        """A direct get, nodes in turn; without what the library makes of the answer."""
        subject = f"$JS.API.DIRECT.GET.{STREAM}.$KV.{BUCKET}.{key.decode()}"
        answer = await self._clients[turn % NODES].request(subject, b"", timeout=5)
        assert not (answer.headers or {}).get("Status"), answer.headers
        return bytes(answer.data)
