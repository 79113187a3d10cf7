"""The figures of catch-up beside etcd, from rounds that are known, and its writers."""

import asyncio
import random
import time
from dataclasses import replace

import pytest

from benchmarks.catch_up import (
    CALM,
    CHUNK_ROWS,
    FULL,
    HALF,
    CaughtUp,
    Writers,
    ratios,
    shown,
)
from benchmarks.peers import NOT_INSTALLED

OURS = CaughtUp(
    missed=1_000_000,
    seconds=2.5,
    rate_with_all=100_000.0,
    rate_before=60_000.0,
    rate_meanwhile=45_000.0,
    starter_us=2.0,
    others_us=1.0,
    other_work=0.25,
)
THEIRS = replace(OURS, missed=500_000, seconds=5.0)
FOUND = {
    (name, kind): [seen]
    for name, seen in (("raftstore", OURS), ("etcd", THEIRS))
    for kind in (CALM, HALF, FULL)
}


class Slow:
    """Takes chunks and lets others run meanwhile."""

    lanes = 4

    def __init__(self) -> None:
        self.keys: list[bytes] = []
        self.five = asyncio.Event()

    async def write(self, rows):
        """Keep the keys."""
        self.keys += [key for key, _ in rows]
        if len(self.keys) == 5 * CHUNK_ROWS:
            self.five.set()
        await asyncio.sleep(0)


def test_speed_is_rows_a_second_because_the_faster_store_misses_more_of_them():
    """400,000 against 100,000 rows/s."""
    told = ratios(FOUND)

    assert told[f"P13 rows/s of etcd's, {HALF}, goal 1.5 at half"] == "4.00"
    assert told[f"P13 seconds, {CALM}, goal 2.5 alone"] == "2.50"


def test_writers_fall_against_what_was_asked_and_against_their_rate_with_one_node_down():
    """Half of 100,000 was asked and 45,000 reached; without a pause all of it was."""
    told = ratios(FOUND)

    assert told[f"raftstore, {HALF}: fall against what was asked, goal 0.2"] == "0.10"
    assert told[f"raftstore, {HALF}: fall against one node down"] == "0.25"
    assert told[f"etcd, {FULL}: fall against what was asked"] == "0.55"
    assert not any(CALM in name and "fall" in name for name in told)


def test_peer_that_is_missing_is_told():
    """Our own figures stay."""
    alone = {key: rounds for key, rounds in FOUND.items() if key[0] == "raftstore"}

    assert ratios(alone)[f"P13 rows/s of etcd's, {CALM}, goal 1.5 at half"] == NOT_INSTALLED
    [table] = shown(alone).values()
    assert [line["a node catches up"] for line in table] == [
        f"raftstore, {kind}" for kind in (CALM, HALF, FULL)
    ]


def test_node_that_never_caught_up_has_a_lower_bound_instead_of_a_time():
    """It is not printed as if it had been there then."""
    told = shown({("etcd", FULL): [replace(THEIRS, seconds=30.0, is_there=False)]})

    assert next(iter(told.values()))[0]["s"] == "over 30.00"


def test_load_writes_as_many_rows_as_it_was_told_each_with_a_key_of_its_own():
    """Four lanes share them."""
    store = Slow()
    writers = Writers(store, random.Random(0), None)

    asyncio.run(writers.load(10 * CHUNK_ROWS))

    assert writers.done == len(set(store.keys)) == 10 * CHUNK_ROWS


def test_writers_with_a_rate_are_never_faster():
    """The fifth chunk of 100 a second is due after 50 ms, however fast the store is."""

    async def scene() -> float:
        store = Slow()
        started = time.perf_counter()
        async with Writers(store, random.Random(0), 100.0 * CHUNK_ROWS).going_on():
            await store.five.wait()
        return time.perf_counter() - started

    assert asyncio.run(scene()) >= 0.05


def test_writers_that_fail_end_the_measurement():
    """A rate of writers that are gone would be printed otherwise."""

    class Broken(Slow):
        async def write(self, rows):
            raise OSError("gone")

    async def scene() -> None:
        async with Writers(Broken(), random.Random(0), None).going_on():
            await asyncio.Event().wait()

    with pytest.raises(ExceptionGroup, match="unhandled"):
        asyncio.run(scene())
