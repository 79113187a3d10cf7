"""Attackers without an account against three nodes, all at once: what an honest client notices.

At each node another process holds, as anybody who reaches the ports can: reads of a position that
is never reached, with a timeout of weeks; silent sockets at the HTTPS port; frames of 16 MiB that
lack one byte; connections that say Hello and nothing more; and scans whose answers nobody reads.
What a node ends comes again five seconds later. Meanwhile a client that was there before writes
rows and reads them back at the default level, one at a time, and new clients come, read and go.
"""

from __future__ import annotations

import asyncio
import contextlib
import multiprocessing
import resource
import statistics
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final

from raftstore import aio
from raftstore.aio import AsyncClient
from raftstore.config import FRAME_BYTES_MAX, MIB
from raftstore.errors import RaftstoreError
from raftstore.local_cluster import LocalCluster
from raftstore.protocol.codec import encode_frame_of
from raftstore.protocol.framing import encode_frame
from raftstore.protocol.message import Message
from raftstore.protocol.reads import Get, Scan
from raftstore.transport.endpoints import parse_endpoint
from raftstore.transport.handshake import Purpose, client_hello
from raftstore.types import ChannelId, Seq

TLS: Final = Path(__file__).parents[1] / "tests" / "data" / "tls"
WAITING_CONNECTIONS: Final = 20
WAITING_READS: Final = 10_500
"""Of each of those connections: what once filled a node by itself."""
SILENT_TLS: Final = 800
HALF_FRAMES: Final = 150
IDLE: Final = 2_100
UNREAD: Final = 20
SCANS: Final = 30
"""Asked for on each connection that reads nothing."""
DIALLING: Final = 32
"""Connections of one attacker that are dialled at a time."""
AGAIN_S: Final = 5.0
ARRIVAL_S: Final = 3.0
"""Until the attackers have begun."""
LOOK_S: Final = 0.2
ROWS: Final = 2_000
NEVER: Final = Seq(2**60)
WEEKS_MS: Final = 2**31


# --- attackers ------------------------------------------------------------------------------------


def _hello(purpose: Purpose) -> bytes:
    return encode_frame_of(client_hello(b"", purpose))


async def _hold(
    dialling: asyncio.Semaphore,
    endpoint: str,
    first: bytes,
    then: Iterable[bytes] = (),
    *,
    reads: bool = True,
) -> None:
    """Connect, say this, and stay; come again when the connection was ended."""
    host, port = parse_endpoint(endpoint)
    while True:
        writer: asyncio.StreamWriter | None = None
        with contextlib.suppress(OSError):
            async with dialling:
                reader, writer = await asyncio.open_connection(host, port, limit=2**16)
                writer.write(first)
                await writer.drain()
            for piece in then:
                writer.write(piece)
                await writer.drain()
            if reads:
                while await reader.read(2**16):
                    pass
            else:
                await asyncio.Event().wait()  # it never looks at its socket again
        if writer is not None:
            writer.transport.abort()
        await asyncio.sleep(AGAIN_S)


def _many(build: Callable[[int], Message], count: int) -> bytes:
    return b"".join(encode_frame_of(build(number)) for number in range(count))


async def _attack(endpoint: str, https: str, channels: list[ChannelId]) -> None:
    waiting = _many(
        lambda n: Get(n, channels[n % len(channels)], (b"k",), "any", None, NEVER, WEEKS_MS),
        WAITING_READS,
    )
    scans = _many(
        lambda n: Scan(
            n, channels[n % len(channels)], b"", b"", 10_000, "any", None, Seq(0), WEEKS_MS
        ),
        SCANS,
    )
    half = encode_frame(bytes(FRAME_BYTES_MAX))[:-1]
    pieces = [half[at : at + MIB] for at in range(0, len(half), MIB)]
    query, write = _hello(Purpose.QUERY), _hello(Purpose.CLIENT)
    # A node gives those who say nothing three seconds: a crowd that dials at once is not heard.
    hold = partial(_hold, asyncio.Semaphore(DIALLING))
    await asyncio.gather(
        *(hold(endpoint, query, [waiting]) for _ in range(WAITING_CONNECTIONS)),
        *(hold(endpoint, query, [scans], reads=False) for _ in range(UNREAD)),
        *(hold(endpoint, write, pieces) for _ in range(HALF_FRAMES)),
        *(hold(https, b"") for _ in range(SILENT_TLS)),
        *(hold(endpoint, query) for _ in range(IDLE)),
    )


def _attacker(endpoint: str, https: str, channels: list[ChannelId]) -> None:
    """The whole of another process."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and soft < hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    asyncio.run(_attack(endpoint, https, channels))


# --- an honest client -----------------------------------------------------------------------------


@dataclass(slots=True)
class _Seen:
    """Times and answers of honest clients in one phase."""

    puts_ms: list[float] = field(default_factory=list)
    answers: Counter[str] = field(default_factory=Counter)
    """``put``, ``read`` and ``new client`` with ok or the code of the error."""

    async def timed(self, what: str, call: Awaitable[object]) -> float:
        """Wait for a call and note how it ended."""
        began = time.perf_counter()
        try:
            await call
        except RaftstoreError as error:
            self.answers[f"{what}: {getattr(error, 'code', type(error).__name__)}"] += 1
        else:
            self.answers[f"{what}: ok"] += 1
        return 1000 * (time.perf_counter() - began)

    def share(self, what: str) -> str:
        """How many of these calls were answered."""
        total = sum(n for name, n in self.answers.items() if name.startswith(f"{what}:"))
        return f"{self.answers[f'{what}: ok']:,} of {total:,}"


def _clients(pid: int) -> int:
    """Sockets of a process."""
    found = 0
    for file in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(OSError):
            found += str(file.readlink()).startswith("socket:")
    return found


def _rss_mib(pid: int) -> float:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) / 1024
    return 0.0


async def _use(client: AsyncClient, seen: _Seen, until_s: float) -> None:
    table, number = client.table("honest"), 0
    while time.monotonic() < until_s:
        number += 1
        took = await seen.timed("put", table.put({"id": number % ROWS, "text": "x" * 100}))
        seen.puts_ms.append(took)
        await seen.timed("read", table.get(number % ROWS))
        await asyncio.sleep(0.005)


async def _come_and_go(endpoints: list[str], seen: _Seen, until_s: float) -> None:
    async def visit() -> None:
        async with await aio.connect(endpoints, timeout=10.0) as client:
            await client.table("honest").get(1)

    while time.monotonic() < until_s:
        await seen.timed("new client", visit())
        await asyncio.sleep(1.0)


async def _look(cluster: LocalCluster, peaks: dict[str, float], until_s: float) -> None:
    while time.monotonic() < until_s:
        for name in cluster.running():
            peaks[name] = max(peaks.get(name, 0.0), _rss_mib(cluster.pid(name)))
        await asyncio.sleep(LOOK_S)


async def _phase(
    cluster: LocalCluster, client: AsyncClient, seconds: float
) -> tuple[_Seen, dict[str, float]]:
    seen, peaks, until_s = _Seen(), dict[str, float](), time.monotonic() + seconds
    await asyncio.gather(
        _use(client, seen, until_s),
        _come_and_go(cluster.endpoints, seen, until_s),
        _look(cluster, peaks, until_s),
    )
    return seen, peaks


async def _measure(cluster: LocalCluster, seconds: float) -> dict[str, Any]:
    client = await aio.connect(cluster.endpoints, timeout=30.0)
    await client.create_table("honest", key="id", partitions=8)
    rows = [{"id": number, "text": "x" * 2_000} for number in range(20 * ROWS)]
    await client.table("honest").put_many(rows)
    # The connections of all parts of a client, and caches, are there before anything is measured.
    await _phase(cluster, client, 1.0)
    idle, calm = await _phase(cluster, client, seconds / 4)
    info = next(table for table in await client.tables() if table.name == "honest")
    channels = [channel.channel for channel in info.channels]
    https = cluster.http_by_node()
    context = multiprocessing.get_context("spawn")
    attackers = [
        context.Process(target=_attacker, args=(endpoint, https[name], channels), daemon=True)
        for name, endpoint in cluster.endpoints_by_node().items()
    ]
    for attacker in attackers:
        attacker.start()
    try:
        await asyncio.sleep(ARRIVAL_S)
        seen, peaks = await _phase(cluster, client, seconds)
        lines = [_clients(cluster.pid(name)) for name in cluster.running()]
    finally:
        for attacker in attackers:
            attacker.kill()
            attacker.join()
    after, left = await _phase(cluster, client, seconds / 4)
    await client.close()
    puts = [statistics.median(each.puts_ms) for each in (idle, seen, after)]
    return {
        "memory of the nodes idle": _mib(calm.values()),
        "above idle at worst, goal <= 512 MiB": _mib(peaks[name] - calm[name] for name in calm),
        "above idle at worst after the attack": _mib(left[name] - calm[name] for name in calm),
        "put p50 idle": f"{puts[0]:.2f} ms",
        "put p50 attacked, goal <= 3 x": f"{puts[1]:.2f} ms, {puts[1] / puts[0]:.1f} x",
        "put p50 after the attack": f"{puts[2]:.2f} ms",
        "puts acknowledged meanwhile": seen.share("put"),
        "default reads answered, goal all": seen.share("read"),
        "new clients that got in and read": seen.share("new client"),
        "what else clients were answered": str(
            {name: n for name, n in seen.answers.items() if not name.endswith(": ok")} or "nothing"
        ),
        "sockets of the nodes under attack": " ".join(map(str, lines)),
        "nodes that ended": str(cluster.ended() or "none"),
    }


def _mib(values: Iterable[float]) -> str:
    return " ".join(f"{value:.0f}" for value in values) + " MiB"


def run(minutes: float) -> dict[str, Any]:
    """Memory and answers of three nodes, idle and attacked for so long."""
    tls = {
        "RAFTSTORE_HTTP_TLS_CERT": str(TLS / "cert.pem"),
        "RAFTSTORE_HTTP_TLS_KEY": str(TLS / "key.pem"),
    }
    names = [f"n{number}" for number in range(1, 4)]
    with LocalCluster(3, http=True, environment=dict.fromkeys(names, tls)) as cluster:
        return asyncio.run(_measure(cluster, 60.0 * minutes))
