"""Point reads and multi-gets beside etcd, JetStream and plain LevelDB, all in one run, in turn.

10,000 keys with values of 100 bytes, three nodes each, 64 requests in flight. P7: bounded gets of
any replica, against etcd's serializable and JetStream's direct gets. P8: linearizable gets. P9: 100
keys a request, against plyvel on a copy of a node's table store. P16: bounded gets while bulk
writes run at half the rate that they reach alone.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import random
import shutil
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, Final

import plyvel

from benchmarks.peers import NOT_INSTALLED, PeerMissingError
from benchmarks.peers.etcd import Etcd, EtcdClient
from benchmarks.peers.jetstream import JetStream, JetStreamClient
from benchmarks.readers import KEYS, TABLE, VALUE, Rates, Reading, key_of, measure
from raftstore import aio
from raftstore.local_cluster import LocalCluster

PARTITIONS: Final = 8
ROUNDS: Final = 3
BULK_TABLE: Final = "bulk"
BULK_ROWS: Final = 1_000
BULK_LANES: Final = 8
GOALS: Final = {
    "P7 bounded / etcd serializable": 10.0,
    "P7 bounded / JetStream direct": 1.3,
    "P8 linearizable / etcd linearizable": 5.0,
    "P9 multi-get / plyvel": 0.9,
}


def run(tiny: bool) -> dict[str, Any]:  # noqa: FBT001 - the shape of every benchmark
    """Everything once per round, in turn; medians of the rates, and of the ratios of each round."""
    seconds, rounds = (1.0, 1) if tiny else (3.0, ROUNDS)
    figures: dict[str, Any] = {}
    with ExitStack() as held:
        cluster = held.enter_context(LocalCluster(nodes=3, http=True))
        load_points(cluster)
        readings = [
            Reading("bounded", tuple(cluster.endpoints), seconds=seconds),
            Reading("linearizable", tuple(cluster.endpoints), seconds=seconds),
            Reading("many", tuple(cluster.endpoints), lanes=8, seconds=seconds),
            Reading("http bounded", tuple(cluster.http_by_node().values()), seconds=seconds),
            *_peers(held, seconds, figures),
        ]
        held.enter_context(_copied_store(cluster))
        rates = _in_turn(readings, rounds)
        raw = [_plyvel(cluster, seconds) for _ in range(rounds)]
        figures.update(_rate_figures(rates, raw))
        figures.update(_beside_ingest(cluster, 2.0 if tiny else 10.0))
    return figures


def load_points(cluster: LocalCluster) -> None:
    """Create the table of the rows that readers ask for, and fill it."""
    asyncio.run(_load(cluster))


async def _load(cluster: LocalCluster) -> None:
    client = await aio.connect(cluster.endpoints, timeout=60.0)
    await client.create_table(TABLE, key="k", partitions=PARTITIONS)
    rows = [{"k": key_of(number), "v": VALUE} for number in range(KEYS)]
    await client.table(TABLE).put_many(rows)
    await client.close()


def _peers(held: ExitStack, seconds: float, figures: dict[str, Any]) -> Iterator[Reading]:
    """Start the peers that are there, and fill them."""
    rows = [(key_of(number).encode(), VALUE.encode()) for number in range(KEYS)]
    made: list[tuple[str, Callable[[], Any], Callable[[Any], Any], tuple[str, ...]]] = [
        ("etcd", Etcd, EtcdClient, ("etcd serializable", "etcd linearizable")),
        ("JetStream", JetStream, JetStreamClient, ("JetStream direct",)),
    ]
    for name, start, connect, kinds in made:
        try:
            peer = held.enter_context(start())
        except PeerMissingError as error:
            figures[name] = f"{NOT_INSTALLED}: {error}"
            continue
        figures[name] = peer.version
        asyncio.run(_fill(connect(peer.ports), rows))
        for kind in kinds:
            yield Reading(kind, tuple(peer.ports), seconds=seconds)


async def _fill(client: Any, rows: list[tuple[bytes, bytes]]) -> None:
    await client.connect()
    await client.load(rows)
    await client.close()


def _in_turn(readings: list[Reading], rounds: int) -> dict[tuple[str, int], list[Rates]]:
    """(kind, client processes) -> the rates of each round."""
    found: dict[tuple[str, int], list[Rates]] = {}
    for _ in range(rounds):
        for processes in (1, 2):
            for reading in readings:
                rates = measure(reading, processes)
                found.setdefault((reading.kind, processes), []).append(rates)
    return found


def _rate_figures(rates: dict[tuple[str, int], list[Rates]], raw: list[float]) -> dict[str, Any]:
    figures: dict[str, Any] = {}
    for (kind, processes), rounds in rates.items():
        middle = sorted(rounds, key=lambda each: each.per_second)[len(rounds) // 2]
        figures[f"{kind}, {processes} client(s)"] = middle.shown()
    figures["plyvel gets of the same store"] = f"{statistics.median(raw):,.0f}/s"
    for processes in (1, 2):
        for name, ours, theirs in (
            ("P7 bounded / etcd serializable", "bounded", "etcd serializable"),
            ("P7 bounded / JetStream direct", "bounded", "JetStream direct"),
            ("P8 linearizable / etcd linearizable", "linearizable", "etcd linearizable"),
        ):
            peers = rates.get((theirs, processes))
            label = f"{name}, {processes} client(s), goal {GOALS[name]}"
            if peers is None:
                figures[label] = NOT_INSTALLED
                continue
            mine = rates[ours, processes]
            figures[label] = _ratio(
                [a.per_second / b.per_second for a, b in zip(mine, peers, strict=True)]
            )
        mine = rates["many", processes]
        figures[f"P9 multi-get / plyvel, {processes} client(s), goal 0.9"] = _ratio(
            [a.per_second / b for a, b in zip(mine, raw, strict=True)]
        )
    return figures


def _ratio(ratios: list[float]) -> str:
    return f"{statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})"


# --- P9: the same store, without us ---------------------------------------------------------------


@contextmanager
def _copied_store(cluster: LocalCluster) -> Iterator[None]:
    """A copy of one node's tables, taken while the node is stopped."""
    copy = cluster.directory / "copied-tables"
    cluster.stop("n3")
    shutil.copytree(cluster.directory / "n3" / "tables", copy)
    cluster.start("n3")
    cluster.wait_until_ready()
    yield
    shutil.rmtree(copy)


def _plyvel(cluster: LocalCluster, seconds: float) -> float:
    """Gets a second of keys in random order, one after the other, of the channels' databases."""
    directory = cluster.directory / "copied-tables"
    databases = [
        plyvel.DB(str(path), create_if_missing=False)
        for path in sorted(directory.iterdir())
        if path.is_dir()
    ]
    wanted = [
        (database.get, key)
        for database in databases
        for key, value in database
        if VALUE.encode() in value
    ]
    random.Random(0).shuffle(wanted)
    assert len(wanted) == KEYS, f"{len(wanted)} rows of {KEYS} in {directory}"
    done, started = 0, time.perf_counter()
    while time.perf_counter() - started < seconds:
        for get, key in wanted[:1_000]:
            assert get(key) is not None
        wanted = wanted[1_000:] + wanted[:1_000]
        done += 1_000
    rate = done / (time.perf_counter() - started)
    for database in databases:
        database.close()
    return rate


# --- P16: reads beside bulk writes ----------------------------------------------------------------


def _beside_ingest(cluster: LocalCluster, seconds: float) -> dict[str, Any]:
    alone = _ingest(cluster, seconds, None)
    context = multiprocessing.get_context("spawn")
    out = context.Queue()
    writer = context.Process(
        target=_ingest_process, args=(cluster.endpoints, seconds + 6.0, alone / 2, out)
    )
    writer.start()
    time.sleep(3.0)
    reading = Reading("bounded", tuple(cluster.endpoints), lanes=8, seconds=seconds)
    rates = measure(reading)
    reached = out.get(timeout=seconds + 120.0)
    writer.join()
    beyond = sum(ms > 100.0 for ms in rates.times_ms)
    return {
        "P16 bulk writes alone": f"{alone:,.0f} rows/s",
        "P16 bulk writes beside the reads": f"{reached:,.0f} rows/s",
        "P16 bounded gets beside them, goal p99 20 ms": rates.shown(),
        "P16 gets of more than 100 ms, goal 0": f"{beyond} of {len(rates.times_ms):,}",
    }


def _ingest(cluster: LocalCluster, seconds: float, rate: float | None) -> float:
    return asyncio.run(write_rows(cluster.endpoints, seconds, rate))


def _ingest_process(endpoints: list[str], seconds: float, rate: float, out: Any) -> None:
    out.put(asyncio.run(write_rows(endpoints, seconds, rate)))


async def write_rows(endpoints: list[str], seconds: float, rate: float | None) -> float:
    """Rows a second that were acknowledged; not more than ``rate`` if there is one."""
    client = await aio.connect(endpoints, timeout=60.0)
    await client.create_table(BULK_TABLE, key="k", partitions=PARTITIONS, if_not_exists=True)
    table, rng = client.table(BULK_TABLE), random.Random(rate)
    started, done, number = time.perf_counter(), 0, 0

    async def lane() -> None:
        nonlocal done, number
        while time.perf_counter() - started < seconds:
            number += 1
            if rate is not None:
                due = started + number * BULK_ROWS / rate
                await asyncio.sleep(max(0.0, due - time.perf_counter()))
            rows = [{"k": rng.randbytes(16), "v": VALUE} for _ in range(BULK_ROWS)]
            await table.put_many(rows)
            done += BULK_ROWS

    await asyncio.gather(*(lane() for _ in range(BULK_LANES)))
    wall = time.perf_counter() - started
    await client.close()
    return done / wall
