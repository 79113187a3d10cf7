"""A node 2,000,000 rows behind comes back while 10,000 rows/s are written, twice.

First from the logs of the others (the default settings keep them for it), then by copied tables:
there the logs were trimmed and the node's tables are empty. It is back when each of its channels
follows in the mode ``steady``, less than half a second of writes behind. The same rows sent through
a socket into one plain LevelDB say what copying them takes without replication: beside the same
writers, as the node has to, and on a machine that does nothing else. Further: writers' rate, failed
calls, time of writes and gets before and meanwhile, and the memory of all nodes: their own, and
with the table files that LevelDB has mapped, which the kernel takes back when it likes.
"""

from __future__ import annotations

import asyncio
import contextlib
import multiprocessing
import os
import random
import socket
import statistics
import tempfile
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgpack
import plyvel

from benchmarks.client_loop import run_client
from raftstore import aio
from raftstore.aio import AsyncClient
from raftstore.client.results import ClusterStatus
from raftstore.errors import RaftstoreError
from raftstore.local_cluster import LocalCluster

NAMES: Final = ("n1", "n2", "n3")
AWAY: Final = "n3"
TABLE: Final = "far"
PARTITIONS: Final = 8
ROWS: Final = 2_000_000
TINY_ROWS: Final = 40_000
CHUNK_ROWS: Final = 1_000
KEY_BYTES: Final = 16
VALUE_BYTES: Final = 100
LOADERS: Final = 8
WRITERS: Final = 4
WRITTEN_PER_S: Final = 10_000
NEAR_ROWS: Final = WRITTEN_PER_S // 2
READ_EVERY_S: Final = 0.01
LOOK_S: Final = 0.25
CALM_S: Final = 5.0
PATIENCE_S: Final = 240.0
SYNC_BYTES: Final = 8 << 20
"""The plain copy syncs after so many bytes, as a node's log does in its group commits at most."""
PAGE_BYTES: Final = os.sysconf("SC_PAGE_SIZE")
COPIES: Final = 3
GOAL_COPY: Final = 1.5
GOAL_MIB: Final = 256
GOAL_FALL: Final = 0.2
TRIMMED: Final = {
    "RAFTSTORE_RETENTION_CHANNEL_BYTES": "1MiB",
    "RAFTSTORE_RETENTION_SLOW_REPLICA_BYTES": "1MiB",
}
WAYS: Final[Mapping[str, Mapping[str, str]]] = {"its log": {}, "copied tables": TRIMMED}
"""How the node gets what it missed -> settings of all nodes that lead to it."""


class Memory(NamedTuple):
    """MiB of a process that are in memory."""

    own: float
    resident: float
    """With mapped files: of table files that were read, the kernel has those pages anyway."""

    def most(self, other: Memory) -> Memory:
        """The greater of each."""
        return Memory(max(self.own, other.own), max(self.resident, other.resident))

    def own_above(self, other: Memory) -> int:
        """How much more of its own."""
        return round(self.own - other.own)

    def above(self, other: Memory) -> int:
        """How much more in all."""
        return round(self.resident - other.resident)


@dataclass(slots=True)
class Seen:
    """Calls of the clients in one span of time."""

    rows: int = 0
    failed: int = 0
    """Calls that ended with an error, whatever the client had repeated by itself."""
    writes_ms: list[float] = field(default_factory=list)
    """Of chunks of 1,000 rows."""
    gets_ms: list[float] = field(default_factory=list)


def run(tiny: bool, *, rows: int | None, rounds: int | None) -> dict[str, Any]:  # noqa: FBT001
    """Seconds, ratios and MiB for each way; one round."""
    del rounds
    rows = rows or (TINY_ROWS if tiny else ROWS)
    copied_s = plain_copy_s(rows)
    figures: dict[str, Any] = {
        "rows missed": rows,
        "plain copy of as many alone, s": round(copied_s, 2),
    }
    for way, settings in WAYS.items():
        environment = dict.fromkeys(NAMES, settings)
        with LocalCluster(environment=environment) as cluster:
            found = run_client(_Return(cluster, rows).measure())
            log = cluster.log_file(AWAY).read_text(encoding="utf-8", errors="replace")
        seconds, beside_s = found.pop("seconds"), found.pop("beside")
        start_s = _opened_at(log) - found.pop("began at")
        figures |= {
            f"{way}: steady after, s": round(seconds, 2),
            f"{way}: of that the start of the process, s": round(start_s, 2),
            f"{way}: plain copy beside the same writers, s": round(beside_s, 2),
            f"{way}: / that copy, goal {GOAL_COPY}": round(seconds / beside_s, 2),
            f"{way}: / that copy, without the start": round((seconds - start_s) / beside_s, 2),
            f"{way}: / plain copy alone": round(seconds / copied_s, 2),
            f"{way}: tables copied": log.count("replica_snapshot_finished"),
        }
        figures |= {f"{way}: {name}": value for name, value in found.items()}
    return figures


class _Return:
    """One node's way back."""

    def __init__(self, cluster: LocalCluster, rows: int) -> None:
        self._cluster = cluster
        self._rows = rows
        self._rng = random.Random(1)
        self._seen = Seen()
        self._memory: dict[str, Memory] = {}
        self._known = [self._rng.randbytes(KEY_BYTES) for _ in range(CHUNK_ROWS)]

    async def measure(self) -> dict[str, Any]:
        async with aio.connect(self._cluster.endpoints, timeout=60.0) as client:
            await client.create_table(TABLE, key="k", partitions=PARTITIONS)
            self._table = client.table(TABLE)
            await self._table.put_many(self._chunk(self._known))
            await self._until(client, self._is_back)
            idle = self._memory_of(AWAY)
            self._cluster.kill(AWAY)
            await self._load()
            idle_others = {name: self._memory_of(name) for name in NAMES if name != AWAY}
            async with self._clients():
                await asyncio.sleep(CALM_S / 5)
                calm, calm_s = await self._span(asyncio.sleep(CALM_S))
                self._seen = Seen()  # no figure is about the time of that copy
                beside_s = await plain_copy_beside(self._rows)
                self._memory.clear()
                began_at = time.time()
                back = self._until(client, self._is_back)
                self._cluster.start(AWAY)
                meanwhile, seconds = await self._span(back)
        before, now = calm.rows / calm_s, meanwhile.rows / seconds
        return {
            "seconds": seconds,
            "beside": beside_s,
            "began at": began_at,
            "writers' rows/s before, meanwhile": (round(before), round(now)),
            f"writers' fall, goal {GOAL_FALL}": round(1 - now / before, 3),
            "failed calls before, meanwhile": (calm.failed, meanwhile.failed),
            "writes of 1,000 rows, p99 ms before, meanwhile": (
                _p99(calm.writes_ms),
                _p99(meanwhile.writes_ms),
            ),
            "gets, p99 ms before, meanwhile": (_p99(calm.gets_ms), _p99(meanwhile.gets_ms)),
            f"MiB of {AWAY} above idle, goal {GOAL_MIB}": self._memory[AWAY].own_above(idle),
            f"MiB of {AWAY} above idle, mapped files too": self._memory[AWAY].above(idle),
            f"MiB of the others above what they had, goal {GOAL_MIB}": [
                self._memory[name].own_above(had) for name, had in idle_others.items()
            ],
            "MiB of the others above what they had, mapped files too": [
                self._memory[name].above(had) for name, had in idle_others.items()
            ],
        }

    # --- what is written and read -----------------------------------------------------------------

    def _chunk(self, keys: Sequence[bytes] | None = None) -> list[dict[str, bytes]]:
        draw = self._rng.randbytes
        keys = keys or [draw(KEY_BYTES) for _ in range(CHUNK_ROWS)]
        return [{"k": key, "v": draw(VALUE_BYTES)} for key in keys]

    async def _load(self) -> None:
        chunks = iter(range(self._rows // CHUNK_ROWS))

        async def lane() -> None:
            for _ in chunks:
                await self._table.put_many(self._chunk())

        await asyncio.gather(*[lane() for _ in range(LOADERS)])

    @contextlib.asynccontextmanager
    async def _clients(self) -> Any:
        tasks = [asyncio.create_task(self._write()) for _ in range(WRITERS)]
        tasks += [asyncio.create_task(self._read()), asyncio.create_task(self._watch())]
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _write(self) -> None:
        pause = CHUNK_ROWS * WRITERS / WRITTEN_PER_S
        due = time.perf_counter()
        while True:
            due += pause
            await asyncio.sleep(max(0.0, due - time.perf_counter()))
            began = time.perf_counter()
            try:
                await self._table.put_many(self._chunk())
            except RaftstoreError:
                self._seen.failed += 1
                continue
            self._seen.rows += CHUNK_ROWS
            self._seen.writes_ms.append(1e3 * (time.perf_counter() - began))

    async def _read(self) -> None:
        while True:
            await asyncio.sleep(READ_EVERY_S)
            began = time.perf_counter()
            try:
                found = await self._table.get(self._rng.choice(self._known))
            except RaftstoreError:
                self._seen.failed += 1
                continue
            assert found is not None, "a row that was written before is gone"
            self._seen.gets_ms.append(1e3 * (time.perf_counter() - began))

    async def _watch(self) -> None:
        while True:
            for name in self._cluster.running():
                now = self._memory_of(name)
                self._memory[name] = now.most(self._memory.get(name, now))
            await asyncio.sleep(LOOK_S)

    # --- what became of it ------------------------------------------------------------------------

    async def _span(self, end: Any) -> tuple[Seen, float]:
        self._seen = seen = Seen()
        began = time.perf_counter()
        await end
        return seen, time.perf_counter() - began

    async def _until(self, client: AsyncClient, is_so: Any) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while True:
            with contextlib.suppress(RaftstoreError):
                if is_so(await client.cluster_status()):
                    return
            assert time.monotonic() < deadline, f"{AWAY} did not come back"
            await asyncio.sleep(LOOK_S)

    def _is_back(self, status: ClusterStatus) -> bool:
        """Whether each channel of the node follows, as near as its leader's own report says."""
        ends: dict[str, int] = {}
        for name in NAMES:
            for channel in _channels(status, name):
                ends[channel["channel"]] = max(channel["last_seq"], ends.get(channel["channel"], 0))
        own = _channels(status, AWAY)
        behind = sum(ends[each["channel"]] - each["applied_seq"] for each in own)
        return (
            len(own) >= PARTITIONS
            and all(each["mode"] == "steady" for each in own)
            and behind < NEAR_ROWS
        )

    def _memory_of(self, name: str) -> Memory:
        statm = Path(f"/proc/{self._cluster.pid(name)}/statm")
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            _, resident, of_files, *_ = map(int, statm.read_text().split())
            mib = PAGE_BYTES / (1 << 20)
            return Memory((resident - of_files) * mib, resident * mib)
        return Memory(0.0, 0.0)


def _opened_at(log: str) -> float:
    """When the node was there for the last time, in seconds since 1970, by its own log."""
    line = [line for line in log.splitlines() if ' event="started" ' in line][-1]
    return datetime.fromisoformat(line.split(maxsplit=1)[0]).timestamp()


def _channels(status: ClusterStatus, name: str) -> list[dict[str, Any]]:
    node = status.node(name)
    if node is None or node.status is None:
        return []
    return [dict(each) for each in dict(node.status)["channels"]]


def _p99(times: list[float]) -> float:
    return round(statistics.quantiles(times, n=100)[98], 1) if len(times) > 1 else 0.0


# --- the same bytes without replication -----------------------------------------------------------


def plain_copy_s(rows: int, value_bytes: int = VALUE_BYTES, *, in_order: bool = False) -> float:
    """Seconds to send the rows to another process that writes and syncs them to one LevelDB.

    ``in_order``: of their keys; LevelDB has less to do then. Otherwise keys come as those of the
    measured table were written, at random.
    """
    here, there = socket.socketpair()
    with tempfile.TemporaryDirectory(prefix="raftstore-copy-") as directory, here:
        receiver = multiprocessing.get_context("spawn").Process(
            target=_receive, args=(there, directory)
        )
        receiver.start()
        there.close()
        draw = random.Random(1).randbytes
        chunks = [
            [(draw(KEY_BYTES), draw(value_bytes)) for _ in range(CHUNK_ROWS)] for _ in range(16)
        ]
        assert here.recv(1) == b"r", "the receiver did not start"
        began = time.perf_counter()
        for number in range(rows // CHUNK_ROWS):
            # the same values again, but other keys: drawing them is not what is measured
            of_chunk = number.to_bytes(8, "big")
            if in_order:
                rows_now = [(of_chunk + key[8:], value) for key, value in chunks[number % 16]]
            else:
                rows_now = [(key[8:] + of_chunk, value) for key, value in chunks[number % 16]]
            here.sendall(msgpack.packb(rows_now))
        here.shutdown(socket.SHUT_WR)
        assert here.recv(1) == b"d", "the receiver failed"
        seconds = time.perf_counter() - began
        receiver.join()
    return seconds


async def plain_copy_beside(
    rows: int, value_bytes: int = VALUE_BYTES, *, in_order: bool = False
) -> float:
    """The same in processes of their own, while clients here go on; the median of COPIES."""
    loop = asyncio.get_running_loop()
    spawning = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, mp_context=spawning) as process:
        copy = partial(plain_copy_s, rows, value_bytes, in_order=in_order)
        taken = [await loop.run_in_executor(process, copy) for _ in range(COPIES)]
    return statistics.median(taken)


def _receive(there: socket.socket, directory: str) -> None:
    database = plyvel.DB(f"{directory}/copy", create_if_missing=True)
    unpacker, unsynced = msgpack.Unpacker(), 0
    there.sendall(b"r")
    while data := there.recv(1 << 20):
        unpacker.feed(data)
        for rows in unpacker:
            unsynced += sum(len(key) + len(value) for key, value in rows)
            with database.write_batch(sync=unsynced >= SYNC_BYTES) as batch:
                for key, value in rows:
                    batch.put(key, value)
            unsynced %= SYNC_BYTES
    with database.write_batch(sync=True) as batch:
        batch.put(b"end", b"")
    database.close()
    there.sendall(b"d")
