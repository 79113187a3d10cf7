"""Stand-ins for the parts of a node that its retention works with: logs of records of ten bytes."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from raftstore.config import RetentionSettings
from raftstore.engine.reads.change_readers import ChangeReaders
from raftstore.engine.retention.floors import RetentionParts
from raftstore.engine.retention.retention import Retention
from raftstore.errors import Refusal, StoreTooOldError
from raftstore.policy.levels import SNAPSHOT_LEVEL
from raftstore.ports.log import EMPTY_BASE, Base, DroppedRecords
from raftstore.ports.tables import Barrier, MergeStep
from raftstore.protocol.records import Record
from raftstore.protocol.table_settings import DEFAULT_SETTINGS
from raftstore.types import FOUNDING_NUMBER, ChannelConfig, ChannelId, NodeId, Seq, channel_id
from tests.core_bench import record

CHANNEL, OTHER, THIRD = (channel_id(b"orders-table-id!", number) for number in (3, 4, 5))
A, B, C = NodeId("n1@00"), NodeId("n2@00"), NodeId("n3@00")
RECORD_BYTES = 10
SEGMENT_BYTES = 100
SETTINGS = RetentionSettings(
    enabled=True,
    channel_bytes=1_000,
    channel_records=20,
    log_bytes=1_000,
    log_bytes_max=50_000,
    slow_replica_bytes=400,
    reader_bytes=300,
    reader_idle_ms=5_000,
    merge_tables=False,
    interval_ms=50,
)


class Log:
    """Of all channels; each record is one seq."""

    def __init__(self, channels: dict[ChannelId, Any]) -> None:
        self._channels = channels
        self.size = 500
        self.oldest = 7
        self.floor_is = 7
        self.begun: list[int] = []
        self.left: list[int] = []
        self.dropped_is = DroppedRecords(0, 0)
        self.rebased: list[tuple[ChannelId, Base]] = []
        self.needs_from: dict[ChannelId, int] = {}
        self.ends: dict[ChannelId, dict[int, int]] = {}
        """For each channel, where it ends in a segment."""
        self.asked: list[str] = []
        """Questions for heads and extents."""

    def size_bytes(self) -> int:
        """Of everything."""
        return self.size

    def floor(self) -> int:
        """The oldest segment that is kept."""
        return self.floor_is

    def floor_max(self) -> int:
        """The oldest segment that is needed."""
        return self.oldest

    def dropped(self) -> DroppedRecords:
        """Records of dropped channels."""
        return self.dropped_is

    def leave_segment(self, segment: int) -> None:
        """The next operation begins another one."""
        self.left.append(segment)

    def begin_floor(self, segment: int) -> int:
        """Older ones go."""
        self.begun.append(segment)
        self.floor_is = segment
        self.size -= SEGMENT_BYTES
        return 1

    def live_from(self, channel: ChannelId) -> int | None:
        """The oldest segment that the channel needs."""
        return self.needs_from.get(channel)

    def rebase(self, channel: ChannelId, base: Base) -> int:
        """The base is written again."""
        self.rebased.append((channel, base))
        return 1

    def heads(self, channel: ChannelId, after: Seq, *, to_seq: Seq, limit: int) -> list[Record]:
        """Records behind a seq, made ten milliseconds after each other."""
        self.asked.append(f"heads behind {after} up to {to_seq}, {limit}")
        return [record(seq) for seq in range(after + 1, to_seq + 1)][:limit]

    def extent(self, channel: ChannelId) -> Extent:
        """Of one channel."""
        return Extent(self, self._channels[channel].core, self.ends.get(channel, {}))


class Extent:
    """How much of a channel there is."""

    def __init__(self, log: Log, core: Any, ends: dict[int, int]) -> None:
        self._log = log
        self._core = core
        self._ends = ends

    def bytes_between(self, after: Seq, to_seq: Seq) -> int:
        """Ten for each record."""
        self._log.asked.append(f"bytes between {after} and {to_seq}")
        assert after >= self._core.base.seq, "those are gone"
        return RECORD_BYTES * max(0, to_seq - after)

    def seq_keeping(self, *, bytes_max: int, records_max: int) -> Seq:
        """Where so much is behind."""
        kept = min(bytes_max // RECORD_BYTES, records_max)
        return Seq(max(self._core.base.seq, self._core.last_seq - kept))

    def end_in(self, segment: int) -> Seq:
        """Where the channel ends in segments up to this one."""
        ends = [seq for number, seq in self._ends.items() if number <= segment]
        return Seq(max(ends, default=self._core.base.seq))


class Bench:
    """A node with two channels of three replicas; nothing is due at first."""

    def __init__(self, **settings: Any) -> None:
        self.now_ms = 1_000
        self.wall_ms = 1_000_000
        self.is_space_low = False
        self.room: int | None = None
        """Bytes that may be written to free space; None: any number."""
        self.claimed: list[int] = []
        self.applied: dict[ChannelId, int] = {}
        self.barriers: list[tuple[ChannelId, Callable[[Barrier, int], None]]] = []
        self.asked: list[tuple[ChannelId, tuple[bool, ...], Callable[[MergeStep, int], None]]] = []
        """Merges: of which channel, whether quiet and urgent, and to whom the answer goes."""
        self.queued_bytes = self.table_bytes = 0
        self.events: list[tuple[str, dict[str, object]]] = []
        self.trims: list[tuple[str, int]] = []
        self.trim_works = True
        self.channels: dict[ChannelId, Any] = {}
        self.log = Log(self.channels)
        self.mine = self.add(CHANNEL, "orders/3")
        self.other = self.add(OTHER, "orders/4")
        values = {name: getattr(SETTINGS, name) for name in SETTINGS.__slots__}
        self.settings = RetentionSettings(**{**values, **settings})
        self.positions: dict[ChannelId, dict[NodeId, Any]] = {}
        self.heard(B, 999)
        self.heard(C, 999)
        self.readers = ChangeReaders(self.settings.reader_idle_ms)
        self.levels = dict.fromkeys((A, B, C), SNAPSHOT_LEVEL)
        me: Any = self
        self.parts = RetentionParts(
            me=A,
            channels=self.channels,
            log=me.log,
            tables=me.tables(),
            watch=me.watch(),
            readers=self.readers,
            clock=me.clock(),
            node_levels=lambda: self.levels,
            settings=self.settings,
            segment_bytes=SEGMENT_BYTES,
            tell=self._tell,
            proposals=me,
            # Outcomes are trimmed in a bench of their own.
            refusal_of=lambda kind: Refusal(StoreTooOldError, f"no node reads {kind}"),
            outbox=me,
            nodes_at_level=lambda level: (B, C),
            is_space_low=lambda: self.is_space_low,
            claim=self._claim,
        )
        self.retention = Retention(self.parts)

    def add(self, channel: ChannelId, name: str, last_seq: int = 0) -> Any:
        """A channel that is whole, with so many records, all applied."""
        progress: dict[NodeId, Any] = {}
        config = ChannelConfig(((A, B, C),))
        runner = SimpleNamespace(
            channel=channel,
            name=name,
            hole=None,
            table_damage=None,
            has_rows=True,
            table_settings=DEFAULT_SETTINGS,
            core=SimpleNamespace(
                base=EMPTY_BASE,
                last_seq=Seq(last_seq),
                is_recovering=False,
                stopped_reason=None,
                config=lambda: config,
                members=config,
                progress=lambda: progress,
            ),
            progress=progress,
        )
        runner.inform = lambda event, now_ms: self._trim(runner, event.base)
        self.channels[channel] = runner
        return runner

    def tables(self) -> SimpleNamespace:
        """Of ports.TableStore; everything is applied by default."""
        return SimpleNamespace(
            applied_seq=lambda channel: Seq(
                self.applied.get(channel, self.channels[channel].core.last_seq)
            ),
            start_barrier=lambda channel, done: self.barriers.append((channel, done)),
            start_merge=lambda channel, done, **how: self.asked.append(
                (channel, tuple(how.values()), done)
            ),
            queued_bytes=lambda: self.queued_bytes,
            table_bytes=lambda channel: self.table_bytes,
        )

    def watch(self) -> SimpleNamespace:
        """Of the engine: positions that nodes reported."""
        return SimpleNamespace(positions=self.positions)

    def clock(self) -> SimpleNamespace:
        """Of the engine."""
        return SimpleNamespace(wall_ms=lambda: self.wall_ms)

    def _tell(self, name: str, **fields: object) -> None:
        self.events.append((name, fields))

    def _claim(self, more_bytes: int) -> bool:
        self.claimed.append(more_bytes)
        return self.room is None or more_bytes <= self.room

    def _trim(self, runner: Any, base: Base) -> None:
        self.trims.append((runner.name, base.seq))
        if self.trim_works:
            runner.core.base = base

    # --- what happens ----------------------------------------------------------------------------

    def heard(self, node: NodeId, applied: int, *channels: ChannelId) -> None:
        """The node reported that it applied so much."""
        for channel in channels or (CHANNEL, OTHER, THIRD):
            told = SimpleNamespace(applied_seq=Seq(applied), replica=FOUNDING_NUMBER)
            self.positions.setdefault(channel, {})[node] = told

    def told(self) -> list[tuple[str, dict[str, object]]]:
        """Events since the last call."""
        told = self.events.copy()
        self.events.clear()
        return told

    def grow(self, last_seq: int, runner: Any = None) -> None:
        """The channel has so many records."""
        (runner or self.mine).core.last_seq = Seq(last_seq)

    def based(self, seq: int, runner: Any = None, folds: bytes = b"") -> None:
        """The channel's log begins behind there."""
        core = (runner or self.mine).core
        core.base = Base(core.base.term, Seq(seq), b"h" * 16, folds)

    def look(self) -> None:
        """The next moment at which something is due."""
        deadlines = self.retention.trimmer.deadlines
        if not len(deadlines):
            self.retention.start(self.now_ms)
        self.now_ms = deadlines.next_ms
        self.retention.on_timer(self.now_ms)
        assert len(deadlines) == 1, "one moment at a time"

    def barrier(self, base_max: int, applied: int | None = None) -> None:
        """The oldest barrier is taken."""
        _, done = self.barriers.pop(0)
        applied = base_max if applied is None else applied
        done(Barrier(Seq(applied), Seq(base_max)), self.now_ms)
        assert len(self.retention.trimmer.deadlines) == 1, "one moment at a time"

    def trim(self, base_max: int = 999) -> None:
        """A whole trimming: look, barrier, and turns until it is over."""
        self.look()
        if self.barriers:
            self.barrier(base_max)
        while self.retention.trimmer._work is not None:
            self.look()


def begun(bench: Bench) -> list[Any]:
    """Channels whose barrier was asked for and not taken."""
    return [channel for channel, _ in bench.barriers]


def held_by(bench: Bench) -> tuple[str, str, int] | None:
    """The floor that keeps the channel's log."""
    found = bench.retention.trimmer.held_by(CHANNEL)
    return None if found is None else (found.name, found.owner, found.seq)


def wanted(bench: Bench) -> int | None:
    """How far the channel is to be cut."""
    bench.look()
    work = bench.retention.trimmer._work
    return None if work is None else int(work.wanted)
