"""The figures of commands beside their peers, from rounds that are known, and what counts them."""

from __future__ import annotations

import asyncio
import threading
from dataclasses import replace
from typing import Any

import pytest

from benchmarks.commands import ETCD, SYNCOBJ, Tally, ratios
from benchmarks.counting import MemoryCounter
from benchmarks.peers import NOT_INSTALLED
from benchmarks.peers.syncobj import CALLBACKS, by_callbacks, by_threads
from benchmarks.puts import IN_FLIGHT, Round
from raftstore.testing.machines.local_machine import LocalMachine

OURS = Round(
    per_second=4_000.0, p50_ms=2.0, p99_ms=9.0, servers_us=300.0, client_us=60.0, others=0.5
)


def test_ratios_are_of_rates_round_by_round() -> None:
    """In the second round both were twice as fast: the ratio is the same."""
    theirs = replace(OURS, per_second=500.0)
    found = {
        (lanes, name): [seen, replace(seen, per_second=2 * seen.per_second)]
        for lanes in (IN_FLIGHT, 1)
        for name, seen in (
            ("commands, 8 partitions", OURS),
            ("commands, 1 partition", OURS),
            ("puts, 8 partitions", theirs),
            ("puts, 1 partition", OURS),
            (SYNCOBJ.format(CALLBACKS), theirs),
        )
    }
    told = ratios(found)
    assert told["commands, 8 partitions / puts, 8 partitions, 64 in flight, goal 1.0"] == (
        "8.00 (8.00 to 8.00)"
    )
    assert told["commands, 1 partition / puts, 1 partition, one at a time, goal 1.0"] == (
        "1.00 (1.00 to 1.00)"
    )
    assert told[f"commands, 8 partitions / {ETCD}, 64 in flight, goal 2.0"] == NOT_INSTALLED


def test_a_total_is_in_the_hands_of_one_caller_at_a_time() -> None:
    """So no transaction of etcd is in vain, and what was acknowledged is known."""
    tally, held = Tally(), set[str]()

    async def adding(name: str, total: int) -> int:
        assert name not in held
        held.add(name)
        await asyncio.sleep(0)
        held.remove(name)
        return total + 1

    async def calls() -> None:
        await asyncio.gather(*(tally.add(adding) for _ in range(100)))

    asyncio.run(calls())
    assert tally.sum == 100


def test_the_measured_machine_counts_and_comes_back_from_its_snapshot() -> None:
    """It is a machine like any other."""
    local = LocalMachine(MemoryCounter)
    assert [local.command("a", 1), local.command("a", 2), local.command("b", 5)] == [1, 3, 5]
    assert (local.query("a"), local.query("b")) == (3, 5)
    local.restart()
    assert (local.query("a"), local.query("b"), local.command("b", 1)) == (3, 5, 6)


class _Immediate:
    """Counts like pysyncobj, on the thread that calls."""

    def __init__(self) -> None:
        self.total = 0
        self._lock = threading.Lock()

    def add(
        self,
        name: str,
        amount: int,
        *,
        callback: Any = None,
        sync: bool = False,
        timeout: float = 0.0,
    ) -> None:
        del name, timeout
        with self._lock:
            self.total += amount
        if callback is not None:
            threading.Timer(0.001, callback, (self.total, 0)).start()
        assert sync or callback is not None


@pytest.mark.parametrize("way", [by_callbacks, by_threads])
def test_every_call_of_the_peer_is_timed_once(way: Any) -> None:
    """Calls that are under way at the end count, too."""
    counters = _Immediate()
    times = way(counters, 3, 0.02)
    assert len(times) == counters.total >= 3
