"""Readers in processes of their own: as many gets as they can for a few seconds.

A reader process has a share of the requests in flight, so that neither Python's lock nor one core
of the client decides what a store can do.
"""

from __future__ import annotations

import asyncio
import contextlib
import multiprocessing
import queue
import random
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from benchmarks.client_loop import run_client
from benchmarks.peers import START_TIMEOUT_S
from benchmarks.peers.etcd import EtcdClient
from benchmarks.peers.jetstream import JetStreamClient
from raftstore import aio

KEYS: Final = 10_000
VALUE: Final = "x" * 100
TABLE: Final = "points"
IN_FLIGHT: Final = 64
MANY: Final = 100
BOUND: Final = 100_000
"""Rows: so much may a replica lack for these reads, and no replica of a run comes near it."""

Get = Callable[[random.Random, int], Awaitable[int]]
"""(dice, number of the call) -> how many keys were read."""


@dataclass(frozen=True, slots=True)
class Reading:
    """The kind of read, its nodes and its load."""

    kind: str
    addresses: tuple[Any, ...]
    lanes: int = IN_FLIGHT
    seconds: float = 3.0


@dataclass(slots=True)
class Rates:
    """The figures of all reader processes of one measurement."""

    per_second: float
    times_ms: list[float]

    def at(self, share: float) -> float:
        """The time, in ms, that this share of the calls stayed below."""
        ordered = sorted(self.times_ms)
        return ordered[min(len(ordered) - 1, int(len(ordered) * share))]

    def shown(self) -> str:
        """One line."""
        worst = max(self.times_ms)
        return (
            f"{self.per_second:,.0f}/s, p50 {self.at(0.5):.2f}, p99 {self.at(0.99):.2f}, "
            f"worst {worst:.1f} ms"
        )


def key_of(number: int) -> str:
    """The key of a row, the same in every store."""
    return f"k{number:08d}"


def measure(reading: Reading, processes: int = 1) -> Rates:
    """Let so many processes read at once; each has its share of what is in flight."""
    context = multiprocessing.get_context("spawn")
    barrier, out = context.Barrier(processes), context.Queue()
    lanes = max(1, reading.lanes // processes)
    share = Reading(reading.kind, reading.addresses, lanes, reading.seconds)
    started = [
        context.Process(target=_reader, args=(share, seed, barrier, out))
        for seed in range(processes)
    ]
    for process in started:
        process.start()
    found = [_taken(out, started) for _ in started]
    for process in started:
        process.join()
    return Rates(sum(rate for rate, _ in found), [ms for _, times in found for ms in times])


def _taken(out: Any, processes: Sequence[Any]) -> tuple[float, list[float]]:
    """The figures of the next process that is done; an error at once when one failed."""
    while True:
        with contextlib.suppress(queue.Empty):
            rate, times = out.get(timeout=0.5)
            return rate, times
        assert not any(process.exitcode for process in processes), "a reader process failed"


def _reader(reading: Reading, seed: int, barrier: Any, out: Any) -> None:
    out.put(run_client(_read(reading, seed, barrier)))


async def _read(reading: Reading, seed: int, barrier: Any) -> tuple[float, list[float]]:
    get, close = await _open(reading)
    rng = random.Random(seed)
    for number in range(200):
        await get(rng, number)
    barrier.wait()  # nothing else happens in this process
    times: list[float] = []
    end = time.perf_counter() + reading.seconds
    keys = 0

    async def lane(first: int) -> None:
        nonlocal keys
        number = first
        while (began := time.perf_counter()) < end:
            found = await get(rng, number)
            keys += found
            times.append((time.perf_counter() - began) * 1000)
            number += 1

    started = time.perf_counter()
    await asyncio.gather(*(lane(number) for number in range(reading.lanes)))
    wall = time.perf_counter() - started
    await close()
    return keys / wall, times


async def _open(reading: Reading) -> tuple[Get, Callable[[], Awaitable[None]]]:
    if reading.kind.startswith("etcd"):
        etcd = EtcdClient(reading.addresses)
        await etcd.connect()
        asked = etcd.get_linearizable if reading.kind == "etcd linearizable" else etcd.get
        return _single(asked), etcd.close
    if reading.kind == "JetStream direct":
        jetstream = JetStreamClient(reading.addresses)
        await jetstream.connect()
        return _single(jetstream.get), jetstream.close
    if reading.kind.startswith("http "):
        return await _over_http(reading)
    return await _ours(reading)


def _single(asked: Callable[[bytes, int], Awaitable[bytes]]) -> Get:
    async def get(rng: random.Random, number: int) -> int:
        value = await asked(key_of(rng.randrange(KEYS)).encode(), number)
        assert len(value) == len(VALUE)
        return 1

    return get


async def _ours(reading: Reading) -> tuple[Get, Callable[[], Awaitable[None]]]:
    client = await aio.connect(list(reading.addresses), timeout=30.0)
    table = client.table(TABLE)

    async def bounded(rng: random.Random, number: int) -> int:
        del number
        row = await table.get(key_of(rng.randrange(KEYS)), max_lag=BOUND, prefer="any_in_bound")
        assert row is not None
        return 1

    async def linearizable(rng: random.Random, number: int) -> int:
        del number
        row = await table.get(key_of(rng.randrange(KEYS)))
        assert row is not None
        return 1

    async def many(rng: random.Random, number: int) -> int:
        del number
        keys = [key_of(rng.randrange(KEYS)) for _ in range(MANY)]
        rows = await table.get_many(keys, max_lag=BOUND, prefer="any_in_bound")
        assert all(row is not None for row in rows)
        return MANY

    calls: dict[str, Get] = {"bounded": bounded, "linearizable": linearizable, "many": many}
    return calls[reading.kind], client.close


async def _over_http(reading: Reading) -> tuple[Get, Callable[[], Awaitable[None]]]:
    """A connection a lane, kept alive; the answer is cut by its Content-Length."""
    free = [
        await http_connected(reading.addresses[lane % len(reading.addresses)])
        for lane in range(reading.lanes)
    ]
    every = tuple(free)
    query = f"?max_lag={BOUND}" if reading.kind == "http bounded" else ""

    async def get(rng: random.Random, number: int) -> int:
        del number
        reader, writer = free.pop()
        path = f"/v1/tables/{TABLE}/keys/{key_of(rng.randrange(KEYS))}"
        head = await http_get(reader, writer, f"{path}{query}")
        assert head.startswith(b"HTTP/1.1 200"), head
        free.append((reader, writer))
        return 1

    async def close() -> None:
        for _, writer in every:
            writer.close()

    return get, close


async def http_connected(address: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """A connection to a node whose HTTP interface has found its cluster."""
    host, _, port = address.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    deadline = time.monotonic() + START_TIMEOUT_S
    while not (await http_get(reader, writer, "/v1/tables")).startswith(b"HTTP/1.1 200"):
        assert time.monotonic() < deadline, f"{address} serves nothing"
        await asyncio.sleep(0.1)
    return reader, writer


async def http_get(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, path: str) -> bytes:
    """The head of the answer; the body is read and dropped."""
    writer.write(f"GET {path} HTTP/1.1\r\nHost: bench\r\n\r\n".encode())
    head = await reader.readuntil(b"\r\n\r\n")
    lower = head.lower()
    at = lower.index(b"content-length:") + len(b"content-length:")
    await reader.readexactly(int(lower[at : lower.index(b"\r\n", at)]))
    return head
