"""Commands of a state machine beside single puts, pysyncobj's own counter and etcd's transactions.

All of them count: a command adds 1 to one of 1,024 totals. Three nodes each, one client process on
one event loop, everybody in turn in one run, with 64 in flight and one at a time. Ours syncs to the
disk of a quorum, and so does etcd (compare with the last value, write the next); pysyncobj syncs
nothing, and its calls are begun in the leader's own process, so its client is among its servers. No
total is written by two callers at once, so no transaction of etcd is in vain. In the end every
total is what was acknowledged, or nothing is printed.
"""

from __future__ import annotations

import asyncio
import random
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, ExitStack
from dataclasses import dataclass
from typing import Any, Final

from benchmarks.client_loop import run_client
from benchmarks.counting import MemoryCounter
from benchmarks.peers import NOT_INSTALLED, PeerMissingError
from benchmarks.peers.etcd import Etcd, EtcdClient
from benchmarks.peers.syncobj import CALLBACKS, COUNTERS, SYNC, SyncObjCounters
from benchmarks.puts import (
    IN_FLIGHT,
    PARTITIONS,
    VALUE,
    Round,
    Store,
    Watch,
    in_flight,
    one_round,
    shown,
    spread,
)
from raftstore import aio
from raftstore.client.machines.channel_set import AsyncChannelSet
from raftstore.local_cluster import LocalCluster
from raftstore.recipes.counter import Counter

ROUNDS: Final = 3
SECONDS: Final = 5.0
WARM: Final = 200
ETCD: Final = "etcd, transactions"
SYNCOBJ: Final = "pysyncobj, {}"
JOURNAL: Final = "callbacks, journal"
"""pysyncobj's calls with a file for its log, which is how it outlives the end of its processes."""
ON_DISK: Final = "commands, state on the disk, 8 partitions"
GOAL_PUTS: Final = 1.0
GOAL_SYNCOBJ: Final = 10.0
GOAL_ETCD: Final = 2.0

Found = dict[tuple[int, str], list[Round]]
"""(in flight, name) -> its rounds."""


@dataclass(frozen=True, slots=True)
class Measured:
    """Somebody who counts."""

    name: str
    measure: Callable[[int, float], Awaitable[Round]]
    """Count with so many calls in flight for so long."""
    check: Callable[[], Awaitable[None]] | None = None
    """Compares the totals with what was acknowledged."""


class Tally:
    """Names of totals, each in the hands of one caller at a time, and what they should be."""

    def __init__(self) -> None:
        self._free = deque(f"counter{number}" for number in range(COUNTERS))
        self.totals = dict.fromkeys(self._free, 0)

    async def add(self, adding: Callable[[str, int], Awaitable[int]]) -> None:
        """Add 1 to the next total; ``adding`` gets its name and what it was."""
        name = self._free.popleft()
        self.totals[name] = total = await adding(name, self.totals[name])
        self._free.append(name)
        assert total > 0, f"{name} is {total}"

    @property
    def sum(self) -> int:
        """All totals together."""
        return sum(self.totals.values())


def run(tiny: bool) -> dict[str, Any]:  # noqa: FBT001 - the shape of every benchmark
    """Everything once per round, in turn; the median round of each, ratios round by round."""
    seconds, rounds = (0.5, 1) if tiny else (SECONDS, ROUNDS)
    figures: dict[str, Any] = {}
    with ExitStack() as held:
        cluster = held.enter_context(LocalCluster(nodes=3))
        etcd = _started(held, figures, ETCD, Etcd)
        if etcd is not None:
            figures[ETCD] = etcd.version
        members = [
            _started(held, figures, "pysyncobj", lambda kept=kept: SyncObjCounters(journal=kept))
            for kept in (False, True)
        ]
        found = run_client(_measure(cluster, etcd, members, seconds, rounds))
    return figures | shown(found, "counting") | ratios(found)


def _started(
    held: ExitStack, figures: dict[str, Any], name: str, start: Callable[[], Any]
) -> Any | None:
    try:
        return held.enter_context(start())
    except PeerMissingError as error:
        figures[name] = f"{NOT_INSTALLED}: {error}"
        return None


async def _measure(
    cluster: LocalCluster,
    etcd: Etcd | None,
    members: Sequence[SyncObjCounters | None],
    seconds: float,
    rounds: int,
) -> Found:
    found: Found = {}
    async with AsyncExitStack() as held:
        everybody = await _ours(held, cluster)
        if etcd is not None:
            everybody.append(await _etcd(held, etcd))
        for ways, counters in zip(((CALLBACKS, SYNC), (CALLBACKS,)), members, strict=True):
            if counters is not None:
                everybody += _syncobj(counters, ways, is_kept=len(ways) == 1)
        for _ in range(rounds):
            for lanes in (IN_FLIGHT, 1):
                for each in everybody:
                    seen = await each.measure(lanes, seconds)
                    found.setdefault((lanes, each.name), []).append(seen)
        for each in everybody:
            if each.check is not None:
                await each.check()
    return found


# --- who counts -----------------------------------------------------------------------------------


async def _ours(held: AsyncExitStack, cluster: LocalCluster) -> list[Measured]:
    client = await aio.connect(cluster.endpoints, timeout=60.0)
    held.push_async_callback(client.close)
    pids = tuple(cluster.pid(name) for name in cluster.running())
    everybody = []
    for number, (name, partitions) in enumerate(PARTITIONS.items()):
        await client.create_table(f"rows{number}", key="k", partitions=partitions)
        table = client.table(f"rows{number}")
        everybody.append(
            await _measured(
                f"puts, {name}", lambda key, to=table: to.put({"k": key, "v": VALUE}), pids
            )
        )
        await client.create_channelset(f"totals{number}", MemoryCounter, partitions=partitions)
        counters = client.channelset(f"totals{number}")
        everybody.append(await _commands(f"commands, {name}", counters, pids))
    await client.create_channelset("stored", Counter, partitions=8)
    everybody.append(await _commands(ON_DISK, client.channelset("stored"), pids))
    return everybody


async def _commands(name: str, counters: AsyncChannelSet, pids: tuple[int, ...]) -> Measured:
    tally = Tally()

    async def command(key: str, _total: int) -> int:
        added: int = await counters.command(key, 1)
        return added

    async def check() -> None:
        totals = {key: await counters.query(key) for key in tally.totals}
        assert totals == tally.totals, f"{name}: totals are not what was acknowledged"

    return await _measured(name, lambda _: tally.add(command), pids, check)


async def _etcd(held: AsyncExitStack, etcd: Etcd) -> Measured:
    peer = EtcdClient(etcd.ports)
    held.push_async_callback(peer.close)
    await peer.connect()
    await peer.find_leader()
    tally = Tally()

    async def check() -> None:
        for key, total in tally.totals.items():
            found = await peer.get_linearizable(key.encode(), 0) if total else b"0"
            assert int(found) == total, f"etcd: {key} is {found!r}, not {total}"

    add: Callable[[str, int], Awaitable[int]]
    add = lambda key, total: peer.add(key.encode(), 1, total)  # noqa: E731
    return await _measured(ETCD, lambda _: tally.add(add), tuple(etcd.pids), check)


async def _measured(
    name: str,
    count: Callable[[bytes], Awaitable[object]],
    pids: tuple[int, ...],
    check: Callable[[], Awaitable[None]] | None = None,
) -> Measured:
    """Counts on this loop; its connections are there already."""
    rng, store = random.Random(name), Store(name, count, pids)
    for _ in range(WARM):
        await count(rng.randbytes(16))
    return Measured(name, lambda lanes, seconds: one_round(store, lanes, seconds, rng), check)


def _syncobj(counters: SyncObjCounters, ways: Sequence[str], *, is_kept: bool) -> list[Measured]:
    """The member that leads counts; nothing but waiting is done here."""
    acknowledged = 0

    async def measure(way: str, lanes: int, seconds: float) -> Round:
        nonlocal acknowledged
        watched = Watch(counters.pids)
        times = await asyncio.to_thread(counters.calls, way, lanes, seconds)
        acknowledged += len(times)
        return watched.round(times)

    async def check() -> None:
        total = await asyncio.to_thread(counters.total)
        assert total == acknowledged, f"pysyncobj: {total}, not {acknowledged}"

    return [
        Measured(
            SYNCOBJ.format(JOURNAL if is_kept else way),
            lambda lanes, seconds, way=way: measure(way, lanes, seconds),
            check,
        )
        for way in ways
    ]


# --- what is printed ------------------------------------------------------------------------------


def ratios(found: Found) -> dict[str, str]:
    """Rates of commands to those of the others, round by round."""
    reported: dict[str, str] = {}
    for name in PARTITIONS:
        others = {
            f"puts, {name}": GOAL_PUTS,
            ETCD: GOAL_ETCD,
            SYNCOBJ.format(CALLBACKS): GOAL_SYNCOBJ,
            SYNCOBJ.format(SYNC): GOAL_SYNCOBJ,
            SYNCOBJ.format(JOURNAL): GOAL_SYNCOBJ,
        }
        for lanes in (IN_FLIGHT, 1):
            for other, goal in others.items():
                label = f"commands, {name} / {other}, {in_flight(lanes)}, goal {goal}"
                reported[label] = _ratio(found, lanes, f"commands, {name}", other)
    return reported


def _ratio(found: Found, lanes: int, name: str, other: str) -> str:
    if (lanes, other) not in found:
        return NOT_INSTALLED
    pairs = zip(found[lanes, name], found[lanes, other], strict=True)
    return spread([ours.per_second / theirs.per_second for ours, theirs in pairs])
