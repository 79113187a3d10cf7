"""Catch-up of a node that missed 1,000,000 rows, beside etcd's and JetStream's (P13).

One of three nodes is killed, rows with keys of 16 random bytes and values of 100 bytes are written
in chunks of 1,000, fsync at a quorum, and the node is started again. It has caught up when the last
row that was written before its start is read *from itself*, so the time includes the start of its
process. Three times: nobody writes, writers at half of the rate that they reach with all three
nodes, and writers without a pause. How much writers fall is stated against that rate, and against
their rate just before the start: two nodes have the machine's cores to themselves then.

The stores take turns, each round with new servers; only one store's servers run at a time.
"""

from __future__ import annotations

import asyncio
import os
import random
import statistics
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Final

from benchmarks.catch_up_stores import EtcdStore, JetStreamStore, Raftstore, Row
from benchmarks.idle import cpu_seconds
from benchmarks.peers import NOT_INSTALLED, PeerMissingError
from benchmarks.processor_time import machine_seconds
from benchmarks.puts import spread

ROWS: Final = 1_000_000
ROUNDS: Final = 3
CHUNK_ROWS: Final = 1_000
KEY_BYTES: Final = 16
VALUE_BYTES: Final = 100
MARK_ROWS: Final = 256
"""So many rows are written last before the start: some for each partition, last in each log."""
CALM: Final = "nobody writes"
HALF: Final = "writers at half"
FULL: Final = "writers without a pause"
ASKED: Final[dict[str, float | None]] = {CALM: 0.0, HALF: 0.5, FULL: None}
"""Kind of a catch-up -> what writers ask for, of the rate that they reach; None: no pause."""
GOAL_S: Final = 2.5
GOAL_FASTER: Final = 1.5
GOAL_FALL: Final = 0.2

Store = Raftstore | EtcdStore | JetStreamStore
STORES: Final[dict[str, Callable[[], Store]]] = {
    "raftstore": Raftstore,
    "etcd": EtcdStore,
    "jetstream": JetStreamStore,
}
PEERS: Final = ("etcd", "jetstream")


@dataclass(frozen=True, slots=True)
class CaughtUp:
    """One catch-up."""

    missed: int
    """Rows."""
    seconds: float
    rate_with_all: float
    """Acknowledged rows/s of writers without a pause and with all three nodes."""
    rate_before: float
    """Acknowledged rows/s in the seconds before the node was started; 0 when nobody wrote."""
    rate_meanwhile: float
    starter_us: float
    """Processor time of the node that caught up, for each row that it missed."""
    others_us: float
    """Processor time of the two other nodes meanwhile, for each row that was missed."""
    other_work: float
    """The share of the machine's processors that neither the nodes nor the client used."""
    is_there: bool = True
    """Otherwise ``seconds`` is when nobody waited any longer."""


class Writers:
    """Lanes that write chunks of random rows, ``rate`` rows/s together (None: without a pause)."""

    def __init__(self, store: Store, rng: random.Random, rate: float | None) -> None:
        self.done = 0
        self._store, self._rng, self._rate = store, rng, rate
        self._chunks = 0
        self._is_over = False

    def chunk(self, rows: int = CHUNK_ROWS) -> list[Row]:
        """Rows of new keys."""
        draw = self._rng.randbytes
        return [(draw(KEY_BYTES), draw(VALUE_BYTES)) for _ in range(rows)]

    async def load(self, rows: int) -> None:
        """Write so many."""
        async with asyncio.TaskGroup() as lanes:
            for _ in range(self._store.lanes):
                lanes.create_task(self._lane(rows))

    @asynccontextmanager
    async def going_on(self) -> AsyncIterator[None]:
        """Write until the block is left."""
        async with asyncio.TaskGroup() as lanes:
            for _ in range(self._store.lanes):
                lanes.create_task(self._lane(None))
            try:
                yield
            finally:
                self._is_over = True

    async def _lane(self, rows: int | None) -> None:
        started = time.perf_counter()
        while not self._is_over and (rows is None or self._chunks * CHUNK_ROWS < rows):
            self._chunks += 1
            if self._rate is not None:
                due = started + self._chunks * CHUNK_ROWS / self._rate
                await asyncio.sleep(max(0.0, due - time.perf_counter()))
            await self._store.write(self.chunk())
            self.done += CHUNK_ROWS


def run(
    tiny: bool,  # noqa: FBT001 - the shape of every benchmark
    rows: int | None = None,
    rounds: int | None = None,
) -> dict[str, Any]:
    """Medians of the rounds; ratios round by round."""
    rows = rows or (20_000 if tiny else ROWS)
    rounds = rounds or (1 if tiny else ROUNDS)
    seconds = 0.5 if tiny else 4.0
    figures: dict[str, Any] = {}
    found: dict[tuple[str, str], list[CaughtUp]] = {}
    for number in range(rounds):
        for name, made in STORES.items():
            try:
                store = made()
            except PeerMissingError as error:
                figures[name] = f"{NOT_INSTALLED}: {error}"
                continue
            with store:
                measured = asyncio.run(_round(store, random.Random(number), rows, seconds))
            for kind, seen in measured.items():
                found.setdefault((name, kind), []).append(seen)
            os.sync()  # what one store left to write is not the other's to wait for
    return figures | shown(found) | ratios(found)


async def _round(
    store: Store, rng: random.Random, rows: int, seconds: float
) -> dict[str, CaughtUp]:
    """Each kind once."""
    await store.open()
    writers = Writers(store, rng, None)
    async with writers.going_on():
        await asyncio.sleep(seconds / 2)
        full = await _rate(writers, seconds)
    measured = {
        kind: await _missed(
            store, rng, rows, seconds, full, None if share is None else share * full
        )
        for kind, share in ASKED.items()
    }
    await store.close()
    return measured


async def _rate(writers: Writers, seconds: float) -> float:
    """Acknowledged rows/s in so many seconds."""
    before, started = writers.done, time.perf_counter()
    await asyncio.sleep(seconds)
    return (writers.done - before) / (time.perf_counter() - started)


async def _missed(
    store: Store,
    rng: random.Random,
    rows: int,
    seconds: float,
    full: float,
    rate: float | None,
) -> CaughtUp:
    """Kill the node, write the rows that it misses, start it, and see how long it takes."""
    store.kill()
    loader = Writers(store, rng, None)
    await loader.load(rows)
    os.sync()
    writers = Writers(store, rng, rate)
    if rate == 0.0:
        return await _started(store, writers, rows, full, 0.0)
    async with writers.going_on():
        await asyncio.sleep(seconds / 2)
        before = await _rate(writers, seconds)
        return await _started(store, writers, rows + writers.done, full, before)


async def _started(
    store: Store, writers: Writers, missed: int, full: float, before: float
) -> CaughtUp:
    mark = writers.chunk(MARK_ROWS)
    await store.write(mark)
    others = store.pids()
    done, machine, client = writers.done, machine_seconds(), time.process_time()
    used = sum(map(cpu_seconds, others))
    started = time.perf_counter()
    store.start()
    is_there = await store.until_stored([key for key, _ in mark])
    wall = time.perf_counter() - started
    used = sum(map(cpu_seconds, others)) - used
    own = cpu_seconds(store.pids()[-1])
    machine, client = machine_seconds() - machine, time.process_time() - client
    missed += MARK_ROWS
    return CaughtUp(
        missed=missed,
        seconds=wall,
        rate_with_all=full,
        rate_before=before,
        rate_meanwhile=(writers.done - done) / wall,
        starter_us=1e6 * own / missed,
        others_us=1e6 * used / missed,
        other_work=max(0.0, machine - used - own - client) / (wall * (os.cpu_count() or 1)),
        is_there=is_there,
    )


# --- what is printed
# ---------------------------------------------------------------------------------


def shown(found: dict[tuple[str, str], list[CaughtUp]]) -> dict[str, Any]:
    """A table: medians of the rounds, with the range of the times."""
    table = []
    for (store, kind), rounds in found.items():
        middle = {
            name: statistics.median(getattr(seen, name) for seen in rounds)
            for name in CaughtUp.__dataclass_fields__
        }
        table.append(
            {
                "a node catches up": f"{store}, {kind}",
                "missed": f"{middle['missed']:,.0f}",
                "s": ("" if middle["is_there"] == 1 else "over ") + f"{middle['seconds']:.2f}",
                "fastest": round(min(seen.seconds for seen in rounds), 2),
                "slowest": round(max(seen.seconds for seen in rounds), 2),
                "w: all": f"{middle['rate_with_all']:,.0f}",
                "w: down": f"{middle['rate_before']:,.0f}",
                "w: now": f"{middle['rate_meanwhile']:,.0f}",
                "own us": round(middle["starter_us"], 1),
                "peers us": round(middle["others_us"], 1),
                "others": f"{middle['other_work']:.0%}",
            }
        )
    return {"catch-up; w: writers' rows/s with all nodes, with one down, meanwhile": table}


def ratios(found: dict[tuple[str, str], list[CaughtUp]]) -> dict[str, str]:
    """How much faster than its peers, and how much writers fall; round by round."""
    reported: dict[str, str] = {}
    for kind in ASKED:
        ours = found["raftstore", kind]
        reported[f"P13 seconds, {kind}, goal {GOAL_S} alone"] = spread([a.seconds for a in ours])
        for peer in PEERS:
            theirs = found.get((peer, kind))
            reported[f"P13 rows/s of {peer}'s, {kind}, goal {GOAL_FASTER} at half"] = (
                NOT_INSTALLED
                if theirs is None
                else spread(
                    [
                        (a.missed / a.seconds) / (b.missed / b.seconds)
                        for a, b in zip(ours, theirs, strict=True)
                    ]
                )
            )
    for (store, kind), rounds in found.items():
        if kind != CALM:
            asked = ASKED[kind] or 1.0
            falls = [
                (
                    1 - seen.rate_meanwhile / (asked * seen.rate_with_all),
                    1 - seen.rate_meanwhile / seen.rate_before,
                )
                for seen in rounds
            ]
            goal = f", goal {GOAL_FALL}" if kind == HALF else ""
            reported[f"{store}, {kind}: fall against what was asked{goal}"] = spread(
                [fall for fall, _ in falls]
            )
            reported[f"{store}, {kind}: fall against one node down"] = spread(
                [fall for _, fall in falls]
            )
    return reported
