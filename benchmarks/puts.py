"""Single-row writes beside etcd's, in one run, in turn (P5, P6).

Three nodes each, fsync at a quorum, keys of 16 random bytes and values of 100 bytes, all from one
client process and on one event loop. P5: 64 puts in flight, into 8 partitions and into one. P6: one
put at a time. etcd's client writes to the leader, as ours does. What the processors spent for a put
is stated beside the rate: it is the steadier figure where other work shares the machine.
"""

from __future__ import annotations

import asyncio
import os
import random
import statistics
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, ExitStack
from dataclasses import dataclass
from typing import Any, Final

from benchmarks.client_loop import run_client
from benchmarks.idle import cpu_seconds
from benchmarks.peers import NOT_INSTALLED, PeerMissingError
from benchmarks.peers.etcd import Etcd, EtcdClient
from benchmarks.processor_time import machine_seconds
from raftstore import aio
from raftstore.local_cluster import LocalCluster

IN_FLIGHT: Final = 64
ROUNDS: Final = 3
SECONDS: Final = 5.0
WARM_PUTS: Final = 200
KEY_BYTES: Final = 16
VALUE: Final = b"x" * 100
PEER: Final = "etcd"
PARTITIONS: Final = {"8 partitions": 8, "1 partition": 1}
GOAL_RATE: Final = 3.5
GOAL_P50: Final = 1.0

Put = Callable[[bytes], Awaitable[object]]
"""Writes a row of this key; returns when it is acknowledged."""


@dataclass(frozen=True, slots=True)
class Store:
    """Where puts go, and the processes of its servers."""

    name: str
    put: Put
    pids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Round:
    """The figures of one measurement."""

    per_second: float
    p50_ms: float
    p99_ms: float
    servers_us: float
    """Processor time of all servers a put."""
    client_us: float
    others: float
    """The share of the machine's processors that neither these servers nor the client used."""


def run(tiny: bool) -> dict[str, Any]:  # noqa: FBT001 - the shape of every benchmark
    """Everything once per round, in turn; the median round of each, ratios round by round."""
    seconds, rounds = (0.5, 1) if tiny else (SECONDS, ROUNDS)
    figures: dict[str, Any] = {}
    with ExitStack() as held:
        cluster = held.enter_context(LocalCluster(nodes=3))
        try:
            etcd = held.enter_context(Etcd())
            figures[PEER] = etcd.version
        except PeerMissingError as error:
            etcd = None
            figures[PEER] = f"{NOT_INSTALLED}: {error}"
        found = run_client(_measure(cluster, etcd, seconds, rounds))
    return figures | shown(found) | ratios(found)


async def _measure(
    cluster: LocalCluster, etcd: Etcd | None, seconds: float, rounds: int
) -> dict[tuple[int, str], list[Round]]:
    """(in flight, store) -> its rounds."""
    found: dict[tuple[int, str], list[Round]] = {}
    async with AsyncExitStack() as held:
        stores = await _stores(held, cluster, etcd)
        rng = random.Random(0)
        async for lanes, store, seen in measured(stores, seconds, rounds, rng):
            found.setdefault((lanes, store.name), []).append(seen)
    return found


async def measured(
    stores: list[Store], seconds: float, rounds: int, rng: random.Random
) -> AsyncIterator[tuple[int, Store, Round]]:
    """Rounds with many puts in flight and with one, of all stores in turn, which are warm then."""
    for store in stores:
        for _ in range(WARM_PUTS):
            await store.put(rng.randbytes(KEY_BYTES))
    for _ in range(rounds):
        for lanes in (IN_FLIGHT, 1):
            for store in stores:
                yield lanes, store, await one_round(store, lanes, seconds, rng)


async def _stores(held: AsyncExitStack, cluster: LocalCluster, etcd: Etcd | None) -> list[Store]:
    client = await aio.connect(cluster.endpoints, timeout=60.0)
    held.push_async_callback(client.close)
    pids = tuple(cluster.pid(name) for name in cluster.running())
    stores = []
    for number, (name, partitions) in enumerate(PARTITIONS.items()):
        await client.create_table(f"puts{number}", key="k", partitions=partitions)
        stores.append(Store(name, _ours(client.table(f"puts{number}")), pids))
    if etcd is not None:
        peer = EtcdClient(etcd.ports)
        held.push_async_callback(peer.close)
        await peer.connect()
        await peer.find_leader()
        stores.append(Store(PEER, lambda key: peer.put(key, VALUE), tuple(etcd.pids)))
    return stores


def _ours(table: Any) -> Put:
    return lambda key: table.put({"k": key, "v": VALUE})


async def one_round(store: Store, lanes: int, seconds: float, rng: random.Random) -> Round:
    """Measure so many puts in flight for so long."""
    times: list[float] = []
    watched = Watch(store.pids)
    end = time.perf_counter() + seconds

    async def lane() -> None:
        while (began := time.perf_counter()) < end:
            await store.put(rng.randbytes(KEY_BYTES))
            times.append(time.perf_counter() - began)

    await asyncio.gather(*(lane() for _ in range(lanes)))
    return watched.round(times)


class Watch:
    """The time and the processor time of a round, from here until ``round``."""

    def __init__(self, pids: Sequence[int]) -> None:
        self._pids = pids
        self._before = self._used()

    def _used(self) -> tuple[float, float, float, float]:
        servers = sum(map(cpu_seconds, self._pids))
        return time.perf_counter(), servers, machine_seconds(), time.process_time()

    def round(self, times: list[float]) -> Round:
        """The figures of operations that took so long."""
        wall, servers, machine, client = (
            now - before for before, now in zip(self._before, self._used(), strict=True)
        )
        times.sort()
        return Round(
            per_second=len(times) / wall,
            p50_ms=1e3 * statistics.median(times),
            p99_ms=1e3 * times[int(len(times) * 0.99)],
            servers_us=1e6 * servers / len(times),
            client_us=1e6 * client / len(times),
            others=max(0.0, machine - servers - client) / (wall * (os.cpu_count() or 1)),
        )


# --- what is printed ------------------------------------------------------------------------------


def spread(values: Sequence[float], digits: int = 2) -> str:
    """The median, lowest and highest in brackets if there are several."""
    middle, low, high = statistics.median(values), min(values), max(values)
    between = f" ({low:,.{digits}f} to {high:,.{digits}f})" if len(values) > 1 else ""
    return f"{middle:,.{digits}f}{between}"


def in_flight(lanes: int) -> str:
    """How many operations are under way at a time."""
    return "one at a time" if lanes == 1 else f"{lanes} in flight"


def shown(found: dict[tuple[int, str], list[Round]], what: str = "puts") -> dict[str, Any]:
    """A table: medians of the rounds, with the range of the rates."""
    return {
        what: [
            {
                what: f"{store}, {in_flight(lanes)}",
                "a second": f"{statistics.median(seen.per_second for seen in rounds):,.0f}",
                "lowest": f"{min(seen.per_second for seen in rounds):,.0f}",
                "highest": f"{max(seen.per_second for seen in rounds):,.0f}",
                "p50 ms": round(statistics.median(seen.p50_ms for seen in rounds), 2),
                "p99 ms": round(statistics.median(seen.p99_ms for seen in rounds), 2),
                "servers us": round(statistics.median(seen.servers_us for seen in rounds)),
                "client us": round(statistics.median(seen.client_us for seen in rounds)),
                "others": f"{statistics.median(seen.others for seen in rounds):.0%}",
            }
            for (lanes, store), rounds in found.items()
        ]
    }


def ratios(found: dict[tuple[int, str], list[Round]]) -> dict[str, str]:
    """Ours to etcd's, round by round: rates of P5, medians of latency of P6, processor time."""
    reported: dict[str, str] = {}
    for name in PARTITIONS:
        fast = f"P5 rate / etcd, {name}, goal {GOAL_RATE}"
        quick = f"P6 p50 / etcd, {name}, goal {GOAL_P50}"
        used = f"processor time of a put / etcd, {name}"
        if (1, PEER) not in found:
            reported |= dict.fromkeys((fast, quick), NOT_INSTALLED)
            continue
        many = list(zip(found[IN_FLIGHT, name], found[IN_FLIGHT, PEER], strict=True))
        single = list(zip(found[1, name], found[1, PEER], strict=True))
        reported[fast] = spread([ours.per_second / theirs.per_second for ours, theirs in many])
        reported[quick] = spread([ours.p50_ms / theirs.p50_ms for ours, theirs in single])
        for lanes, pairs in ((IN_FLIGHT, many), (1, single)):
            reported[f"{used}, {in_flight(lanes)}"] = spread(
                [
                    (ours.servers_us + ours.client_us) / (theirs.servers_us + theirs.client_us)
                    for ours, theirs in pairs
                ]
            )
    return reported
