"""Many simulated days of a table's life: writes, deletes, lifetimes, micro-batches under faults.

Days are compressed: all times of the nodes are what they are, and writers write without rest, so
that a day has as many seconds of virtual time as it says. After each day faults and writers pause
until all replicas are equal; the log of every node is measured all along and has to stay within
what the settings allow.

    python -m jepsen_like.long_life --days 24 --seconds-per-day 8 --keys 100000 --seed 1
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Final

from raftstore.config import KIB, MIB, NodeSettings, RetentionSettings, SnapshotSettings
from raftstore.engine.retention.trimmer import BASES_IN_LOG_MIN
from raftstore.testing.invariants import InvariantError
from raftstore.testing.nemesis import Nemesis
from raftstore.testing.options import SimOptions
from raftstore.testing.sim_batches import SimJob
from raftstore.testing.sim_cluster import STORAGE, SimCluster
from raftstore.testing.sim_reads import SimReader
from raftstore.testing.sim_writes import SimWriter
from raftstore.testing.simulation import CONVERGE_MS_MAX, Simulation

EXIT_DIFFERENCE: Final = 7
LOOK_MS: Final = 250.0
"""How often the disks are measured."""
SEGMENT_BYTES: Final = 64 * KIB
RETENTION: Final = RetentionSettings(
    channel_bytes=256 * KIB,
    channel_records=2_000,
    log_bytes=1 * MIB,
    log_bytes_max=2 * MIB,
    slow_replica_bytes=512 * KIB,
    interval_ms=200,
)
BEYOND_BYTES_MAX: Final = 2 * RETENTION.slow_replica_bytes + 4 * SEGMENT_BYTES
"""A log may be so much longer than it is wanted: for replicas that are behind, and by what is
written until it was cut."""


@dataclass(slots=True)
class Day:
    """One day that ended with equal replicas."""

    number: int
    rows: int
    """Live rows of the table."""
    records: int
    """Committed in all channels of the table so far."""
    log_bytes_max: int
    """Of any node, at any time of the day."""
    bases_bytes_max: int
    """Of all that stands for removed records, which a log is four times as long as at least."""
    hashes: tuple[str, ...]
    """Of the contents of each channel, the same on every replica."""


@dataclass(slots=True)
class LifeFigures:
    """All days, and what happened meanwhile."""

    days: list[Day] = field(default_factory=list)
    faults: int = 0
    elections: int = 0
    copies: int = 0
    """Tables that replicas took from others."""
    trims: int = 0
    acknowledged: int = 0
    batches: int = 0
    virtual_s: float = 0.0
    violation: str | None = None


def options_of(seed: int, keys: int) -> SimOptions:
    """A world of so many keys with all that writes, and few faults at a time."""
    return SimOptions(
        seed=seed,
        keys=keys,
        writers=4,
        readers=2,
        rows_per_write_max=40,
        conditional_percent=0,
        fault_interval_ms=1_000,
        sync_max_ms=1.0,
        ttl_percent=2.0,
        jobs=1,
    )


class LongLife:
    """One table, day after day."""

    def __init__(self, options: SimOptions, day_ms: float) -> None:
        storage = replace(STORAGE, segment_bytes=SEGMENT_BYTES)
        settings = NodeSettings(
            name="",
            data_dir="",
            storage=storage,
            retention=RETENTION,
            snapshot=SnapshotSettings(request_ms=400, retry_ms=200),
        )
        self._options = options
        self._day_ms = day_ms
        self._world = Simulation(options, settings)
        self._log_bytes_max = self._bases_bytes_max = 0
        self.figures = LifeFigures()
        self._count_events()

    @property
    def _cluster(self) -> SimCluster:
        return self._world.cluster

    @property
    def _clients(self) -> list[SimWriter | SimReader | SimJob]:
        return [*self._world.writers, *self._world.readers, *self._world.jobs]

    def _count_events(self) -> None:
        figures, trace = self.figures, self._cluster.trace

        def counting(name: str, **fields: object) -> None:
            figures.copies += name == "replica_snapshot_finished"
            figures.trims += name == "log_trimmed"
            trace(name, **fields)

        self._cluster.trace = counting  # type: ignore[method-assign]

    def run(self, days: int, on_day: Callable[[Day], None]) -> LifeFigures:
        """Live so many days; a broken promise is in the figures and ends them."""
        try:
            self._world.begin()
            self._cluster.scheduler.after(LOOK_MS, self._look)
            for number in range(1, days + 1):
                day = self._day(number)
                self.figures.days.append(day)
                on_day(day)
        except InvariantError as error:
            self.figures.violation = str(error)
        self.figures.elections = self._cluster.oracle.elections_won
        self.figures.acknowledged = self._world.outcomes.ok
        self.figures.batches = len(self._world.batches.reported)
        self.figures.virtual_s = self._cluster.scheduler.now_ms / 1_000
        return self.figures

    def _look(self) -> None:
        for node in self._cluster.nodes.values():
            if node.runner is None:
                continue
            size = node.log.size_bytes()
            bases = sum(len(each.core.base.folds) for each in node.runner.channels.values())
            wanted = max(RETENTION.log_bytes, BASES_IN_LOG_MIN * bases)
            self._log_bytes_max = max(self._log_bytes_max, size)
            self._bases_bytes_max = max(self._bases_bytes_max, bases)
            if size > wanted + BEYOND_BYTES_MAX:
                message = f"{node.name}: a log of {size} bytes, wanted are {wanted}"
                raise InvariantError(message)
        self._cluster.scheduler.after(LOOK_MS, self._look)

    def _day(self, number: int) -> Day:
        cluster, scheduler = self._cluster, self._cluster.scheduler
        self._log_bytes_max = self._bases_bytes_max = 0
        nemesis = Nemesis(cluster, self._options)
        for client in self._clients:
            client.is_stopped = False
            client.start()
        nemesis.start()
        scheduler.run_until(scheduler.now_ms + self._day_ms)
        nemesis.heal()
        for client in self._clients:
            client.is_stopped = True
        self.figures.faults += nemesis.struck
        scheduler.run_until(scheduler.now_ms + CONVERGE_MS_MAX, self._is_converged)
        if not self._is_converged():
            message = f"replicas are not equal after day {number}: {cluster.positions()}"
            raise InvariantError(message)
        cluster.check_final()
        self._world.batches.check_final()
        return self._evening(number)

    def _is_converged(self) -> bool:
        return (
            all(client.is_idle for client in self._clients) and self._cluster.replicas_are_equal()
        )

    def _evening(self, number: int) -> Day:
        cluster = self._cluster
        node = next(iter(cluster.nodes.values()))
        contents = [node.tables.content_hash(channel) for channel in cluster.table_channels]
        records = sum(len(cluster.oracle.truth(each).records) for each in cluster.table_channels)
        rows = sum(count for _, count, _ in contents)
        hashes = tuple(digest.hex()[:12] for digest, _, _ in contents)
        most = self._log_bytes_max, self._bases_bytes_max
        return Day(number, rows, records, *most, hashes)


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def main(arguments: list[str] | None = None) -> int:
    """Live, and say how each day ended."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--days", type=int, default=24)
    parser.add_argument("--seconds-per-day", type=float, default=8.0, help="of virtual time")
    parser.add_argument("--keys", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=1)
    chosen = parser.parse_args(arguments)
    began = time.monotonic()

    def report(day: Day) -> None:
        _say(
            f"day {day.number}: {day.rows:,} rows after {day.records:,} records, all replicas "
            f"equal ({', '.join(day.hashes)}), logs at most {day.log_bytes_max:,} bytes, "
            f"bases {day.bases_bytes_max:,}"
        )

    life = LongLife(options_of(chosen.seed, chosen.keys), chosen.seconds_per_day * 1_000)
    figures = life.run(chosen.days, report)
    _say(
        f"{len(figures.days)} days, {figures.virtual_s:,.0f} s of virtual time in "
        f"{time.monotonic() - began:,.0f} s: {figures.acknowledged:,} writes and "
        f"{figures.batches:,} micro-batches acknowledged, {figures.faults:,} faults, "
        f"{figures.elections:,} elections, {figures.trims:,} logs trimmed, {figures.copies:,} "
        f"tables copied; {figures.violation or 'no promise broken'}"
    )
    return EXIT_DIFFERENCE if figures.violation else 0


if __name__ == "__main__":
    sys.exit(main())
