"""Calls of functions per operation on the main loops of three nodes, and at the client.

Python's time is the number of its calls, and a count does not depend on what else the machine does
(how much of it is shared by operations in flight does, a little). What a cluster calls while nobody
asks anything is measured alone and subtracted.
"""

from __future__ import annotations

import asyncio
import cProfile
import json
import os
import random
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from benchmarks.counted import counted
from raftstore import Audit, aio
from raftstore.local_cluster import LocalCluster

PARTITIONS: Final = 8
IN_FLIGHT: Final = 64
KEYS: Final = 1_000
KEY_BYTES: Final = 16
VALUE: Final = b"x" * 100
IDLE_S: Final = 2.0
TELL_TIMEOUT_S: Final = 30.0
BOUND: Final = 100_000
"""Rows: so much may a replica lack for bounded reads; none comes near it."""
TURN: Final = "raftstore/node/turns.py:end"
STEP: Final = "raftstore/core/replica.py:step"
READ: Final = "raftstore/transport/connection.py:data_received"

Operation = Callable[[Any, random.Random], Awaitable[object]]


@dataclass(frozen=True, slots=True)
class Work:
    """One kind of operation."""

    name: str
    lanes: int
    operation: Operation
    count: int
    nodes_max: int
    """Calls on the nodes that a test allows, with slack: how much is shared depends on the load."""


@dataclass(frozen=True, slots=True)
class Counted:
    """Calls per operation."""

    nodes: float
    client: float
    reads: float
    turns: float
    steps: float


def _put(table: Any, rng: random.Random) -> Awaitable[object]:
    return table.put({"k": rng.randbytes(KEY_BYTES), "v": VALUE})


def _bounded(table: Any, rng: random.Random) -> Awaitable[object]:
    key = f"k{rng.randrange(KEYS)}".encode()
    return table.get(key, max_lag=BOUND, prefer="any_in_bound")


def _linearizable(table: Any, rng: random.Random) -> Awaitable[object]:
    return table.get(f"k{rng.randrange(KEYS)}".encode())


WORKS: Final = (
    Work("put, one at a time", 1, _put, 300, 2_800),
    Work("put, 64 in flight", IN_FLIGHT, _put, 5_000, 620),
    Work("bounded get, 64 in flight", IN_FLIGHT, _bounded, 10_000, 55),
    Work("linearizable get, one at a time", 1, _linearizable, 500, 1_000),
    Work("linearizable get, 64 in flight", IN_FLIGHT, _linearizable, 10_000, 230),
)
TINY: Final = 5
"""A tiny run does this part of the operations."""


def run(tiny: bool) -> dict[str, Any]:  # noqa: FBT001 - the shape of every benchmark
    """The table of ``measure``."""
    return {
        "calls per operation": [
            {
                "operation": name,
                "nodes": f"{seen.nodes:,.0f}",
                "client": f"{seen.client:,.0f}",
                "reads of sockets": f"{seen.reads:.2f}",
                "turns": f"{seen.turns:.2f}",
                "steps": f"{seen.steps:.2f}",
            }
            for name, (seen, _) in measure(tiny=tiny).items()
        ]
    }


def measure(
    *,
    tiny: bool,
    works: Iterable[Work] = WORKS,
    variables: Mapping[str, str] | None = None,
    audit: Audit | None = None,
) -> dict[str, tuple[Counted, Counter[str]]]:
    """By operation: what it costs, and the nodes' calls by function (all operations together).

    ``variables``: of the environment of every node.
    """
    with tempfile.TemporaryDirectory(prefix="raftstore-calls-") as held:
        names = ("n1", "n2", "n3")
        cluster = LocalCluster(
            nodes=3, environment=dict.fromkeys(names, variables) if variables else None
        )
        files = {}
        for name, endpoint in zip(names, cluster.endpoints, strict=True):
            files[name] = Path(held) / f"{name}.json"
            counter = (sys.executable, "-m", "benchmarks.counted", str(files[name]))
            cluster.place(name, listen=endpoint, command=counter)
        with cluster:
            nodes = _Nodes({cluster.pid(name): file for name, file in files.items()})
            return asyncio.run(_measured(cluster.endpoints, nodes, tiny, works, audit))


class _Nodes:
    """The counting processes of a cluster."""

    def __init__(self, files: dict[int, Path]) -> None:
        self._files = files
        self._number = 0

    def calls(self) -> Counter[str]:
        """All calls so far, of all nodes."""
        self._number += 1
        for pid in self._files:
            os.kill(pid, signal.SIGUSR2)
        total: Counter[str] = Counter()
        deadline = time.monotonic() + TELL_TIMEOUT_S
        for file in self._files.values():
            while not file.exists() or json.loads(file.read_text())["number"] < self._number:
                assert time.monotonic() < deadline, f"{file} was not written"
                time.sleep(0.01)
            total.update(json.loads(file.read_text())["calls"])
        return total


async def _measured(
    endpoints: list[str],
    nodes: _Nodes,
    tiny: bool,  # noqa: FBT001
    works: Iterable[Work],
    audit: Audit | None,
) -> dict[str, tuple[Counted, Counter[str]]]:
    client = await aio.connect(endpoints, timeout=60.0, audit=audit)
    await client.create_table("counted", key="k", partitions=PARTITIONS)
    table = client.table("counted")
    await table.put_many([{"k": f"k{number}".encode(), "v": VALUE} for number in range(KEYS)])
    rng = random.Random(0)
    await asyncio.sleep(0.5)
    began = time.monotonic()
    before = nodes.calls()
    await asyncio.sleep(IDLE_S / 2 if tiny else IDLE_S)
    idle = nodes.calls() - before
    idle_s = time.monotonic() - began
    found = {}
    for work in works:
        count = work.count // TINY if tiny else work.count
        await _done(table, work, rng, max(work.lanes, count // 5))  # warm: connections, leaders
        began, before = time.monotonic(), nodes.calls()
        profile = cProfile.Profile()
        profile.enable()
        await _done(table, work, rng, count)
        profile.disable()
        calls = nodes.calls()
        calls.subtract(before)
        share = (time.monotonic() - began) / idle_s
        calls.subtract(Counter({name: round(share * number) for name, number in idle.items()}))
        found[work.name] = (
            Counted(
                nodes=calls.total() / count,
                client=sum(counted(profile).values()) / count,
                reads=calls[READ] / count,
                turns=calls[TURN] / count,
                steps=calls[STEP] / count,
            ),
            calls,
        )
    await client.close()
    return found


async def _done(table: Any, work: Work, rng: random.Random, count: int) -> None:
    left = count

    async def lane() -> None:
        nonlocal left
        while left > 0:
            left -= 1
            await work.operation(table, rng)

    await asyncio.gather(*(lane() for _ in range(work.lanes)))
