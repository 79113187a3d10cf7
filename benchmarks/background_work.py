"""The work of nodes beside requests: tables copied and merged, rows expired, stored bytes read.

Five figures of three real nodes. Gets and puts, paced, while a node whose tables were removed takes
them from the others, beside a calm span of the same cluster. The same while bulk updates have
tables merged, with ``retention.merge_tables`` and without, in turns; and how many rows a second the
updates are with either. The same while many rows expire at one moment. Processor time of idle nodes
that read all they store (``[scrub]``), beside that of idle nodes that do not.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import shutil
import statistics
import time
import urllib.request
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

from benchmarks.client_loop import run_client
from raftstore import aio
from raftstore.aio import AsyncTable
from raftstore.errors import RaftstoreError
from raftstore.local_cluster import LocalCluster

NAMES: Final = ("n1", "n2", "n3")
AWAY: Final = "n3"
PARTITIONS: Final = 8
EVERY_S: Final = 0.01
"""Pause between two paced gets, and two paced puts."""
GOAL: Final = 2.0
"""The p99 meanwhile is at most so many times that without."""
SETTLE_S: Final = 5.0
LOOK_S: Final = 0.05
ASK_S: Final = 0.5
"""Between two looks at the metrics of all nodes, which cost them some ms."""
PATIENCE_S: Final = 240.0
COPY_ROWS: Final = 250_000
COPY_ROW_BYTES: Final = 1_000
COPY_ROUNDS: Final = 3
CALM_S: Final = 15.0
UPDATED_ROWS: Final = 1_000
UPDATED_ROW_BYTES: Final = 10_000
UPDATE_S: Final = 30.0
ROWS_PER_CALL: Final = 50
LANES: Final = 8
TURNS: Final = (True, False, False, True)
"""With merging and without: each once early and once late."""
EXPIRED_ROWS: Final = 100_000
EXPIRED_S: Final = 30.0
"""So long after the first of them was written all of them are over."""
EXPIRED: Final = "raftstore_rows_expired_total"
READ_ROW_BYTES: Final = 100
"""The smaller the rows, the more of them are verified in a second."""
IDLE_S: Final = 60.0
TINY_PART: Final = 20
"""So many times less of all of it."""
TRIMMED: Final = {
    "RAFTSTORE_RETENTION_CHANNEL_BYTES": "1MiB",
    "RAFTSTORE_RETENTION_SLOW_REPLICA_BYTES": "1MiB",
}
"""A node without tables then gets them from another one, not from a log."""
PASSES: Final = {"RAFTSTORE_SCRUB_INTERVAL_MS": "100ms"}
"""One after the other, so that reading goes on all the time."""
RESTS: Final = "raftstore_copy_rests_seconds_total"
SCRUBBED: Final = "raftstore_scrub_bytes_total"
Call = Callable[[int], Awaitable[object]]
Span = tuple[float, float]
"""When a call began, and seconds that it took."""


def run(tiny: bool) -> dict[str, Any]:  # noqa: FBT001
    """Percentiles, factors, rates and shares."""
    part = TINY_PART if tiny else 1
    return _copied(part) | _merged(part) | _expired(part) | _scrubbed(part)


# --- tables that are copied -----------------------------------------------------------------------


def _copied(part: int) -> dict[str, Any]:
    environment = dict.fromkeys(NAMES, TRIMMED)
    with (
        TemporaryDirectory(prefix="raftstore-background-") as directory,
        LocalCluster(directory=directory, environment=environment, http=True) as cluster,
    ):
        return run_client(_copies(cluster, Path(directory) / AWAY / "tables", part))


async def _copies(cluster: LocalCluster, tables: Path, part: int) -> dict[str, Any]:
    rows = COPY_ROWS // part
    calm, meanwhile = _Paced(), _Paced()
    loops = {"without": _MainLoops(cluster), "meanwhile": _MainLoops(cluster)}
    copied_s = 0.0
    async with aio.connect(cluster.endpoints, timeout=60.0) as client:
        await client.create_table("points", key="id", partitions=PARTITIONS)
        table = client.table("points")
        await _fill(table, rows, COPY_ROW_BYTES)
        for _ in range(1 if part > 1 else COPY_ROUNDS):
            await asyncio.sleep(SETTLE_S)
            _forget_garbage()
            async with calm.running(table, rows):
                with loops["without"].watched():
                    await asyncio.sleep(CALM_S / min(part, 5))
            cluster.kill(AWAY)
            await _fill(table, rows // 10, COPY_ROW_BYTES)
            shutil.rmtree(tables)
            # As before the calm span: what is compared is the copy, not the end of a bulk write.
            await asyncio.sleep(SETTLE_S)
            _forget_garbage()
            async with meanwhile.running(table, rows):
                began, ended = await _copying(cluster, loops["meanwhile"])
            meanwhile.keep(began, ended)
            copied_s += ended - began
    rounds = 1 if part > 1 else COPY_ROUNDS
    megabytes = rounds * rows * COPY_ROW_BYTES / 1e6
    return {
        "copied tables, MB": round(megabytes),
        "copied, MB/s": round(megabytes / copied_s, 1),
        "rests of copies, s of all nodes": _metric(cluster, RESTS),
        **{
            f"main loops of the two others {when}: ran, waited for a processor, of the time": (
                each.shares()
            )
            for when, each in loops.items()
        },
        **_beside("tables copied", calm, meanwhile),
    }


async def _copying(cluster: LocalCluster, loops: _MainLoops) -> Span:
    """Start the node without tables; when its first copy began, and when its last one ended."""
    copies = _CopiesLogged(cluster.log_file(AWAY))
    cluster.start(AWAY)
    began = await _once(lambda: copies.look().started > 0)
    with loops.watched():
        ended = await _once(lambda: copies.look().finished >= PARTITIONS)
    return began, ended


async def _once(is_so: Callable[[], bool]) -> float:
    """The moment from which it is so."""
    deadline = time.monotonic() + PATIENCE_S
    while not await asyncio.to_thread(is_so):
        assert time.monotonic() < deadline, f"{AWAY} did not get its tables"
        await asyncio.sleep(LOOK_S)
    return time.perf_counter()


class _CopiesLogged:
    """How many copies the node's log says began, and how many ended, from now on.

    Only what is new in it is read: all of it, twenty times a second, would be work of the client's.
    """

    def __init__(self, log: Path) -> None:
        self._log = log
        self._at = log.stat().st_size
        self.started = self.finished = 0

    def look(self) -> _CopiesLogged:
        """Read whole lines that came since."""
        with self._log.open("rb") as file:
            file.seek(self._at)
            lines = file.read()
        lines = lines[: lines.rfind(b"\n") + 1]
        self._at += len(lines)
        self.started += lines.count(b"replica_snapshot_started")
        self.finished += lines.count(b"replica_snapshot_finished")
        return self


def _forget_garbage() -> None:
    """Nothing that exists now is looked at by a full garbage collection any more: that of a client
    which holds what a benchmark does takes 20 ms, and would count as a slow answer of nodes."""
    gc.collect()
    gc.freeze()


class _MainLoops:
    """How long the main loops of the nodes that stay ran, and waited for a processor."""

    def __init__(self, cluster: LocalCluster) -> None:
        self._cluster = cluster
        self._ran_s = self._waited_s = self._watched_s = 0.0

    @contextlib.contextmanager
    def watched(self) -> Iterator[None]:
        """Count what happens meanwhile."""
        ran_s, waited_s = self._now()
        began = time.perf_counter()
        yield
        self._watched_s += time.perf_counter() - began
        ran_after_s, waited_after_s = self._now()
        self._ran_s += ran_after_s - ran_s
        self._waited_s += waited_after_s - waited_s

    def _now(self) -> tuple[float, float]:
        ran_ns = waited_ns = 0
        for name in NAMES:
            if name != AWAY:
                pid = self._cluster.pid(name)
                text = Path(f"/proc/{pid}/task/{pid}/schedstat").read_text()
                ran, waited, _ = map(int, text.split())
                ran_ns, waited_ns = ran_ns + ran, waited_ns + waited
        return ran_ns / 1e9, waited_ns / 1e9

    def shares(self) -> tuple[float, float]:
        """Shares of the time, on average over the nodes."""
        all_s = self._watched_s * (len(NAMES) - 1)
        return round(self._ran_s / all_s, 3), round(self._waited_s / all_s, 3)


# --- tables that are merged -----------------------------------------------------------------------


def _merged(part: int) -> dict[str, Any]:
    paced = {True: _Paced(), False: _Paced()}
    rates: dict[bool, list[float]] = {True: [], False: []}
    merges = 0
    for is_merging in TURNS:
        setting = {"RAFTSTORE_RETENTION_MERGE_TABLES": str(is_merging).lower()}
        with LocalCluster(environment=dict.fromkeys(NAMES, setting), http=True) as cluster:
            rate = run_client(_updates(cluster, paced[is_merging], UPDATE_S / part))
            rates[is_merging].append(rate)
            merges += _metric(cluster, "raftstore_table_merges_total")
    with_it, without = (statistics.mean(rates[each]) for each in (True, False))
    return {
        "tables merged, all nodes": merges,
        "bulk updates, rows/s without merging, with": (round(without), round(with_it)),
        "bulk updates are slower by": round(1 - with_it / without, 3),
        **_beside("tables merged", paced[False], paced[True]),
    }


async def _updates(cluster: LocalCluster, paced: _Paced, seconds: float) -> float:
    """Rows a second of bulk updates; then gets and puts beside the merges that are left."""
    async with aio.connect(cluster.endpoints, timeout=60.0) as client:
        await client.create_table("points", key="id", partitions=PARTITIONS)
        table = client.table("points")
        await _fill(table, UPDATED_ROWS, UPDATED_ROW_BYTES)
        updated, began = 0, time.monotonic()

        async def update() -> None:
            nonlocal updated
            while time.monotonic() < began + seconds:
                await table.put_many(_rows(updated, ROWS_PER_CALL, UPDATED_ROW_BYTES))
                updated += ROWS_PER_CALL

        await asyncio.gather(*[update() for _ in range(LANES)])
        rate = updated / (time.monotonic() - began)
        async with paced.running(table, UPDATED_ROWS, UPDATED_ROW_BYTES):
            await asyncio.sleep(seconds)
        return rate


# --- rows that expire -----------------------------------------------------------------------------


def _expired(part: int) -> dict[str, Any]:
    with LocalCluster(http=True) as cluster:
        return run_client(_expiries(cluster, part))


async def _expiries(cluster: LocalCluster, part: int) -> dict[str, Any]:
    """Rows stay that are read and written; beside them many more are over at the same moment."""
    rows, lives_s = EXPIRED_ROWS // part, EXPIRED_S / min(part, 4)
    calm, meanwhile = _Paced(), _Paced()
    async with aio.connect(cluster.endpoints, timeout=60.0) as client:
        await client.create_table("points", key="id", partitions=PARTITIONS)
        table = client.table("points")
        await _fill(table, UPDATED_ROWS, READ_ROW_BYTES)
        end = time.monotonic() + lives_s
        text = "x" * READ_ROW_BYTES
        for first in range(UPDATED_ROWS, UPDATED_ROWS + rows, 1_000):
            many = [{"id": first + number, "text": text} for number in range(1_000)]
            await table.put_many(many, ttl=end - time.monotonic())
        calm_s = min(CALM_S, end - time.monotonic() - 1.0)
        assert calm_s > 1.0, f"writing {rows} rows took nearly as long as they live"
        async with calm.running(table, UPDATED_ROWS, READ_ROW_BYTES):
            await asyncio.sleep(calm_s)
        await asyncio.sleep(end - time.monotonic())
        async with meanwhile.running(table, UPDATED_ROWS, READ_ROW_BYTES):
            began = time.perf_counter()
            while await asyncio.to_thread(_metric, cluster, EXPIRED) < rows:
                assert time.perf_counter() - began < PATIENCE_S, "rows outlive their lifetime"
                await asyncio.sleep(ASK_S)
            ended = time.perf_counter()
        meanwhile.keep(began, ended)
    return {
        "expired at once, rows": rows,
        "expired, rows/s": round(rows / (ended - began)),
        **_beside("rows expire", calm, meanwhile),
    }


# --- reading all that is stored -------------------------------------------------------------------


def _scrubbed(part: int) -> dict[str, Any]:
    seconds = IDLE_S / min(part, 10)
    rows = COPY_ROWS // part
    share: dict[bool, float] = {}
    read = 0
    for is_on in (True, False):
        setting = {"RAFTSTORE_SCRUB_ENABLED": str(is_on).lower(), **PASSES}
        with LocalCluster(environment=dict.fromkeys(NAMES, setting), http=True) as cluster:
            run_client(_load(cluster, rows))
            # Tables are merged once they are quiet: that is another one's work.
            time.sleep(4 * SETTLE_S if part == 1 else SETTLE_S)
            before, bytes_before = _processor_s(cluster), _metric(cluster, SCRUBBED)
            time.sleep(seconds)
            share[is_on] = (_processor_s(cluster) - before) / seconds / len(NAMES)
            read += _metric(cluster, SCRUBBED) - bytes_before
    return {
        "read of all that is stored, MB/s of a node": round(read / 1e6 / seconds / len(NAMES), 2),
        "an idle node without that, of a processor": round(share[False], 4),
        "an idle node with it, of a processor": round(share[True], 4),
        "reading takes, of a processor": round(share[True] - share[False], 4),
    }


async def _load(cluster: LocalCluster, rows: int) -> None:
    async with aio.connect(cluster.endpoints, timeout=60.0) as client:
        await client.create_table("points", key="id", partitions=PARTITIONS)
        await _fill(client.table("points"), rows, READ_ROW_BYTES)


def _processor_s(cluster: LocalCluster) -> float:
    """Seconds of processor time that all nodes have used."""
    ticks = 0
    for name in NAMES:
        fields = Path(f"/proc/{cluster.pid(name)}/stat").read_text().rpartition(")")[2].split()
        ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")


def _metric(cluster: LocalCluster, name: str) -> int:
    """The sum of a counter over all nodes."""
    total = 0.0
    for url in cluster.http_by_node().values():
        with urllib.request.urlopen(f"http://{url}/metrics", timeout=10) as answer:
            for line in answer.read().decode().splitlines():
                if line.startswith((f"{name} ", f"{name}{{")):
                    total += float(line.rpartition(" ")[2])
    return round(total)


# --- what is written and read ---------------------------------------------------------------------


def _rows(first: int, count: int, size: int) -> list[dict[str, Any]]:
    text = os.urandom(size // 2).hex()
    return [{"id": (first + at) % UPDATED_ROWS, "text": text} for at in range(count)]


async def _fill(table: AsyncTable, rows: int, size: int) -> None:
    """Rows with the ids from 0 on; what they hold is no two times the same."""
    chunks = iter(range(0, rows, ROWS_PER_CALL))

    async def lane() -> None:
        for first in chunks:
            text = os.urandom(size // 2).hex()
            last = min(rows, first + ROWS_PER_CALL)
            await table.put_many([{"id": number, "text": text} for number in range(first, last)])

    await asyncio.gather(*[lane() for _ in range(LANES)])


class _Paced:
    """Gets and puts that begin every ten milliseconds, whatever the others take."""

    def __init__(self) -> None:
        self.calls: dict[str, list[Span]] = {"gets": [], "puts": []}
        self.failed = 0
        self._kept: dict[str, int] = dict.fromkeys(self.calls, 0)

    @contextlib.asynccontextmanager
    async def running(
        self, table: AsyncTable, rows: int, size: int = COPY_ROW_BYTES
    ) -> AsyncIterator[None]:
        """Gets and puts of these rows while it lasts."""
        text = "x" * size

        async def put(number: int) -> object:
            return await table.put({"id": number * 7919 % rows, "text": text})

        async def get(number: int) -> object:
            return await table.get(number * 7919 % rows)

        self._kept = {kind: len(calls) for kind, calls in self.calls.items()}
        loops = [
            asyncio.create_task(self._pace(call, self.calls[kind]))
            for kind, call in (("gets", get), ("puts", put))
        ]
        try:
            yield
        finally:
            for loop in loops:
                loop.cancel()
            await asyncio.gather(*loops, return_exceptions=True)

    def keep(self, began: float, ended: float) -> None:
        """Keep of the calls of the last time only those that were under way in this span."""
        for kind, calls in self.calls.items():
            kept = self._kept[kind]
            calls[kept:] = [
                (at, took) for at, took in calls[kept:] if at <= ended and at + took >= began
            ]

    async def _pace(self, call: Call, calls: list[Span]) -> None:
        begun = time.monotonic()
        async with asyncio.TaskGroup() as group:
            number = 0
            while True:
                number += 1
                group.create_task(self._timed(call, number, calls))
                await asyncio.sleep(max(0.0, begun + number * EVERY_S - time.monotonic()))

    async def _timed(self, call: Call, number: int, calls: list[Span]) -> None:
        began = time.perf_counter()
        try:
            await call(number)
        except RaftstoreError:
            self.failed += 1
            return
        calls.append((began, time.perf_counter() - began))

    def percentiles(self, kind: str) -> tuple[float, float]:
        """p50 and p99 in milliseconds."""
        ordered = sorted(took for _, took in self.calls[kind])
        middle, at_99 = ordered[len(ordered) // 2], ordered[int(len(ordered) * 0.99)]
        return round(1e3 * middle, 2), round(1e3 * at_99, 2)


def _beside(what: str, calm: _Paced, meanwhile: _Paced) -> dict[str, Any]:
    """How gets and puts compare with those of the calm time."""
    found: dict[str, Any] = {}
    factors = []
    for kind in calm.calls:
        before, now = calm.percentiles(kind), meanwhile.percentiles(kind)
        factors.append(now[1] / before[1])
        counts = (len(calm.calls[kind]), len(meanwhile.calls[kind]))
        found[f"{what}: {kind}, without and meanwhile"] = counts
        found[f"{what}: {kind} without, p50 / p99 ms"] = before
        found[f"{what}: {kind} meanwhile, p50 / p99 ms"] = now
        found[f"{what}: p99 of {kind}, times (goal {GOAL})"] = round(factors[-1], 2)
    found[f"{what}: failed calls, without and meanwhile"] = (calm.failed, meanwhile.failed)
    found[f"{what}: goal kept"] = max(factors) <= GOAL
    return found
