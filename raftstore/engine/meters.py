"""Counters of a node: plain numbers of the main loop, no locks, read on request.

Names and units follow the conventions of Prometheus: totals only grow, times are in seconds. Labels
are few: never a key, and a channel only while there are few of them.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from raftstore.engine.channel.channel_parts import RoleBefore
from raftstore.engine.channel.runner import ChannelRunner
from raftstore.metrics import DURATIONS_MS, FixedHistogram, Histogram, Labels, Sample
from raftstore.protocol.machines import CommandAck, MachineAnswer, ReplicaRead
from raftstore.protocol.message import Failed, Message
from raftstore.protocol.publish import PubAck, PubMsg, PubReject
from raftstore.protocol.reads import (
    CountAnswer,
    GetAnswer,
    GetMany,
    GetManyAnswer,
    ScanAnswer,
    Served,
)
from raftstore.types import Guid, Level, Role

ROWS: Final = (0, 1, 10, 100, 1_000, 10_000, 100_000, 1_000_000)
UNDER_WAY_MAX: Final = 65_536
"""Requests whose time is taken; of more than that only the number is counted."""
LEVELS: Final = frozenset(level.value for level in Level)
OTHER_LEVEL: Final = "other"
"""Label of a level that does not exist: requests do not choose the names of labels."""


class Meters:
    """Everything that is counted as it happens; the rest is looked up when it is asked for."""

    def __init__(self) -> None:
        self._totals: dict[tuple[str, Labels], int] = {}
        self._reads: dict[int, dict[int, tuple[str, int, int]]] = {}
        """By client and request: level, when it came, and its parts without an answer."""
        self._reads_timed = 0
        self._writes: dict[Guid, int] = {}
        self._read_times: dict[str, FixedHistogram] = {}
        self._write_times = FixedHistogram(DURATIONS_MS)
        self._staleness = FixedHistogram(DURATIONS_MS)
        self._lags = FixedHistogram(ROWS)
        self.requests_begun = 0
        """Reads, and writes to channels that are led here, that began."""
        self.repeated_before = 0
        """Writes recognised as repeated by channels that are gone: a total never goes down."""

    def channel_closed(self, runner: ChannelRunner) -> None:
        """A channel is not here any more."""
        self.repeated_before += runner.core.statistics().repeated_writes

    def count(self, name: str, *labels: tuple[str, str], by: int = 1) -> None:
        """Add to a total."""
        key = (name, labels)
        self._totals[key] = self._totals.get(key, 0) + by

    def leader_changed(self, runner: ChannelRunner, before: RoleBefore, now_ms: int) -> None:
        """A role, term or leader changed: maybe an election began or ended here."""
        del before, now_ms
        role = runner.elector.role
        if role is Role.CANDIDATE:
            self.count("raftstore_elections_total")
        elif role is Role.LEADER:
            self.count("raftstore_leaderships_won_total")

    # --- reads and writes -------------------------------------------------------------------------

    def read_began(self, client: int, request: ReplicaRead | GetMany, now_ms: int) -> None:
        """A client asks; each part of a request for many channels counts as a read."""
        self.requests_begun += 1
        if self._reads_timed < UNDER_WAY_MAX:
            level = request.level if request.level in LEVELS else OTHER_LEVEL
            reads = self._reads.setdefault(client, {})
            self._reads_timed += request.request_id not in reads
            parts = len(request.parts) if isinstance(request, GetMany) else 1
            reads[request.request_id] = (level, now_ms, parts)

    def client_gone(self, client: int) -> None:
        """Its reads get no answer."""
        self._reads_timed -= len(self._reads.pop(client, ()))

    def answered(self, client: int, message: Message, now_ms: int) -> tuple[Served, ...]:
        """An answer leaves; what was served, for each read that it answers."""
        if isinstance(message, (GetAnswer, ScanAnswer, CountAnswer, MachineAnswer)):
            self._read_ended(client, message.request_id, "ok", now_ms)
            self._observe(message.served)
            return (message.served,)
        if isinstance(message, GetManyAnswer):
            if message.found:
                self._read_ended(client, message.request_id, "ok", now_ms, len(message.found))
            for refused in message.refused:
                self._read_ended(client, message.request_id, refused.code, now_ms)
            reported = tuple([found.served for found in message.found])
            for served in reported:
                self._observe(served)
            return reported
        if isinstance(message, Failed):
            self._read_ended(client, message.request_id, message.code, now_ms, None)
        return ()

    def _read_ended(
        self, client: int, request_id: int, result: str, now_ms: int, parts: int | None = 1
    ) -> None:
        """Count parts of a request as answered; None: all that are left."""
        reads = self._reads.get(client)
        known = None if reads is None else reads.get(request_id)
        if known is None or reads is None:
            return
        level, began_ms, left = known
        ended = left if parts is None else min(parts, left)
        if ended < left:
            reads[request_id] = (level, began_ms, left - ended)
        else:
            del reads[request_id]
            self._reads_timed -= 1
            if not reads:
                del self._reads[client]
        self.count("raftstore_reads_total", ("level", level), ("result", result), by=ended)
        times = self._read_times.get(level)
        if times is None:
            times = self._read_times[level] = FixedHistogram(DURATIONS_MS)
        for _ in range(ended):
            times.observe(now_ms - began_ms)

    def _observe(self, served: Served) -> None:
        if served.staleness_ms is not None:
            self._staleness.observe(served.staleness_ms)
        if served.lag is not None:
            self._lags.observe(served.lag)

    def write_began(self, message: PubMsg, now_ms: int) -> None:
        """A write that this node is to sequence."""
        self.requests_begun += 1
        if len(self._writes) < UNDER_WAY_MAX:
            self._writes.setdefault(message.guid, now_ms)

    def write_ended(self, message: PubAck | PubReject, now_ms: int) -> None:
        """Its outcome."""
        if isinstance(message, PubReject):
            outcome = message.code
        else:
            outcome = "conflict" if message.conflict else "committed"
        self.count("raftstore_writes_total", ("outcome", outcome))
        if isinstance(message, CommandAck):
            ended = "applied"
            if message.is_rejected:
                ended = "skipped" if message.is_skipped else "rejected"
            self.count("raftstore_commands_answered_total", ("outcome", ended))
        began_ms = self._writes.pop(message.guid, None)
        if began_ms is not None:
            self._write_times.observe(now_ms - began_ms)

    def served_within(self, table: str, served: Served, bound_ms: int | None) -> None:
        """N14: whether a read was as fresh as its table promises; what is unknown is not."""
        if bound_ms is None:
            return
        self.count("raftstore_table_staleness_slo_reads_total", ("table", table))
        if served.staleness_ms is None or served.staleness_ms > bound_ms:
            self.count("raftstore_table_staleness_slo_breaches_total", ("table", table))

    def forget_tables(self, tables: Iterable[str]) -> None:
        """Only these tables exist: labels of dropped ones must not stay for ever."""
        exist = set(tables)
        for key in list(self._totals):
            if any(name == "table" and value not in exist for name, value in key[1]):
                del self._totals[key]

    # --- what is asked for ------------------------------------------------------------------------

    def samples(self) -> list[Sample]:
        """Every total."""
        return [(name, labels, float(value)) for (name, labels), value in self._totals.items()]

    def histograms(self) -> tuple[Histogram, ...]:
        """Every histogram, in base units."""
        reads = (
            times.shown("raftstore_read_duration_seconds", (("level", level),), scale=0.001)
            for level, times in self._read_times.items()
        )
        return (
            *reads,
            self._write_times.shown("raftstore_write_duration_seconds", (), scale=0.001),
            self._staleness.shown("raftstore_reads_served_staleness_seconds", (), scale=0.001),
            self._lags.shown("raftstore_reads_served_lag_records", ()),
        )


def channel_labels(table: str, partition: int) -> Labels:
    """Labels of what is measured for one channel."""
    return (("table", table), ("partition", str(partition)))
