"""Trims the logs of a node's channels, one channel at a time, a little in each turn.

A channel is due when its log is longer than the settings allow, or when it keeps the older half
of a node's log that is too long as a whole. Then, in this order, which is what makes it safe:

1. A *barrier*: what the table has applied survives a power cut (``TableStore.start_barrier``).
2. The new base, of the base before and the heads of the records between (S6.7), up to the lowest of
   the barrier, the open attempts of that state, and the floors. It is made on the node's thread, so
   many records in each turn: another thread would hold the interpreter for as long.
3. ``TrimTo``: the replica checks it and has the log begin there.
4. When no channel needs the oldest segments any more they go (``MessageLog.begin_floor``). A
   channel without records in the way has its base written anew, behind them.

Nothing here is remembered over a restart: what was not finished is begun again.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Final

from raftstore.config import MIB
from raftstore.core.events import TrimTo
from raftstore.core.folds import BaseMaker
from raftstore.engine.channel.runner import ChannelRunner
from raftstore.engine.retention.floors import (
    APPLIED,
    BASE_SIZE,
    DISK_SPACE,
    OPEN_ATTEMPTS,
    Floor,
    Floors,
    RetentionParts,
)
from raftstore.engine.retention.looks import CHANNELS_PER_LOOK, Looks
from raftstore.ports.log import BASE_BYTES_MAX, Base
from raftstore.ports.tables import Barrier
from raftstore.types import ChannelId, Seq, TimestampMs

RECORDS_PER_TURN: Final = 128
"""Heads that one turn takes in: some 3 ms."""
TURN_PAUSE_MS: Final = 5
"""Between two such turns."""
DROPPED_BYTES_MIN: Final = 1 * MIB
FREED_BYTES_MIN: Final = 8 * MIB
FREED_SHARE: Final = 2
"""So many bytes of records of dropped channels have the others trimmed, which share their segments,
if so many bytes of the log are nobody's then, and at least one for so many that others lose."""
BASES_IN_LOG_MIN: Final = 4
"""A log is allowed to be so many times as long as the bases of all channels."""
TRIMMED: Final = "log_trimmed"
FLOOR_MOVED: Final = "log_floor_moved"


@dataclass(slots=True)
class _Work:
    """The channel that is being trimmed."""

    runner: ChannelRunner
    before: Base
    wanted: Seq
    made_before_ms: TimestampMs | None
    """Records from then on stay, unless ``wanted`` is above them for their number."""
    maker: BaseMaker | None = None
    """None until the barrier is taken."""
    limit: Seq = Seq(0)


@dataclass(slots=True)
class _Measured:
    """Bytes of a channel's log behind a base, up to a seq."""

    base_seq: Seq
    to_seq: Seq
    size: int


class Trimmer:
    """Trims the logs of one node's channels."""

    def __init__(self, parts: RetentionParts, floors: Floors) -> None:
        self._channels = parts.channels
        self._log = parts.log
        self._tables = parts.tables
        self._floors = floors
        self._clock = parts.clock
        self._settings = parts.settings
        self._segment_bytes = parts.segment_bytes
        self._tell = parts.tell
        self._is_space_low = parts.is_space_low
        self._claim = parts.claim
        self._work: _Work | None = None
        self._measured: dict[ChannelId, _Measured] = {}
        self._held_by: dict[ChannelId, Floor] = {}
        self._barriers: dict[ChannelId, Barrier] = {}
        """The newest one of each channel: below it none is needed."""
        self._next_channel = 0
        self.trims_total = 0
        self.trimmed_seqs_total = 0
        self.carried_total = 0
        interval_ms, is_wanted = parts.settings.interval_ms, parts.settings.enabled
        self._looks = Looks(parts.channels, interval_ms, is_wanted=is_wanted)
        self.deadlines = self._looks.deadlines

    def start(self, now_ms: int) -> None:
        """Look from time to time, if logs are trimmed at all."""
        self._looks.start(now_ms)

    def on_timer(self, now_ms: int) -> None:
        """Go on with what is under way, or look for what is due."""
        while self._looks.is_due(now_ms):
            work = self._work
            if work is None and not self._floors.older():
                self._move_floor()
            if work is None:
                self._look(now_ms)
            elif work.maker is not None:
                self._take_in(work, work.maker, now_ms)

    def channel_closed(self, runner: ChannelRunner) -> None:
        """Forget a channel that was closed, or is opened anew."""
        self._measured.pop(runner.channel, None)
        self._held_by.pop(runner.channel, None)
        self._barriers.pop(runner.channel, None)
        if self._work is not None and self._work.runner is runner:
            self._work = None

    def held_by(self, channel: ChannelId) -> Floor | None:
        """The floor that kept a channel's log from being cut further when it was due last."""
        return self._held_by.get(channel)

    def kept_bytes(self, runner: ChannelRunner) -> int:
        """Bytes of the entries of a channel's records."""
        base_seq, last_seq = runner.core.base.seq, runner.core.last_seq
        known = self._measured.get(runner.channel)
        if known is None or known.base_seq != base_seq or known.to_seq > last_seq:
            known = self._measured[runner.channel] = _Measured(base_seq, base_seq, 0)
        known.size += self._log.extent(runner.channel).bytes_between(known.to_seq, last_seq)
        known.to_seq = last_seq
        return known.size

    # --- what is due ------------------------------------------------------------------------------

    def _look(self, now_ms: int) -> None:
        """Begin with the first channel that is due, from where the last look ended."""
        start, runners = self._looks.channels(self._next_channel)
        oldest = self._log.floor_max()
        goal = self._goal(oldest)
        self._next_channel = start + CHANNELS_PER_LOOK
        for number, runner in enumerate(runners, 1):
            if not self._may_trim(runner):
                continue
            wanted, cutoff_ms = self._wanted(runner, oldest, goal)
            base = runner.core.base
            if wanted <= base.seq:
                continue
            limit, held_by = self._floors.lowest(runner, wanted, now_ms)
            self._note(runner.channel, held_by)
            if limit > base.seq:
                self._next_channel = (start + number) % len(self._channels)
                self._work = work = _Work(runner, base, limit, cutoff_ms)
                known = self._barriers.get(runner.channel)
                if known is not None and known.base_max >= limit:
                    self._on_barrier(work, known, now_ms)
                else:
                    self._tables.start_barrier(runner.channel, partial(self._on_barrier, work))
                return

    def _may_trim(self, runner: ChannelRunner) -> bool:
        core = runner.core
        if core.is_recovering or core.stopped_reason is not None or runner.hole is not None:
            return False
        # The table that comes in its place may need records that this one does not.
        if runner.table_damage is not None:
            return False
        return self._settings.single_replica or len(core.config().members) > 1

    def _wanted(
        self, runner: ChannelRunner, oldest: int, goal: int | None
    ) -> tuple[Seq, TimestampMs | None]:
        """How far the log should be cut, and from which time on for its age alone."""
        channel, core = runner.channel, runner.core
        bytes_max, records_max, age_ms = self._kept_most(runner)
        base_seq = core.base.seq
        applied = self._tables.applied_seq(channel)
        # One that keeps a younger segment is not trimmed for one that cannot be: it would not help.
        if goal is not None and self._log.live_from(channel) == oldest:
            cut = self._log.extent(channel).end_in(goal)
            if cut > base_seq:
                return Seq(min(cut, applied)), None
        is_long = core.last_seq - base_seq > records_max
        if is_long or self.kept_bytes(runner) > bytes_max:
            cut = self._log.extent(channel).seq_keeping(
                bytes_max=bytes_max // 2, records_max=records_max // 2
            )
            if cut > base_seq:
                return Seq(min(cut, applied)), None
        if age_ms:
            cutoff_ms = TimestampMs(self._clock.wall_ms() - age_ms)
            first = self._log.heads(channel, base_seq, to_seq=applied, limit=1)
            if first and first[0].timestamp_ms < cutoff_ms:
                return applied, cutoff_ms
        return base_seq, None

    def _kept_most(self, runner: ChannelRunner) -> tuple[int, int, int]:
        """Bytes, records and age in ms of a channel's log: of its table, else of this node."""
        own, node = runner.table_settings, self._settings
        return (
            node.channel_bytes if own.retention_bytes is None else own.retention_bytes,
            node.channel_records if own.retention_records is None else own.retention_records,
            node.age_ms if own.retention_age_ms is None else own.retention_age_ms,
        )

    def _note(self, channel: ChannelId, held_by: Floor | None) -> None:
        """Keep the floor that stands between a channel's log and where it should be cut."""
        if held_by is None:
            self._held_by.pop(channel, None)
        else:
            self._held_by[channel] = held_by

    # --- one channel ------------------------------------------------------------------------------

    def _is_over(self, work: _Work) -> bool:
        """The channel is another, or another's base was taken meanwhile."""
        runner = work.runner
        is_here = self._channels.get(runner.channel) is runner
        return self._work is not work or not is_here or runner.core.base is not work.before

    def _on_barrier(self, work: _Work, barrier: Barrier, now_ms: int) -> None:
        if self._is_over(work):
            self._give_up(work)
            return
        channel = work.runner.channel
        self._barriers[channel] = barrier
        if barrier.base_max < work.wanted:
            # S6.5: neither what a power cut takes back nor staged rows are in the table.
            name = APPLIED if barrier.base_max == barrier.applied_seq else OPEN_ATTEMPTS
            self._note(channel, Floor(name, "", barrier.base_max, None))
        work.limit = Seq(min(work.wanted, barrier.base_max))
        if work.limit <= work.before.seq:
            self._give_up(work)
            return
        work.maker = BaseMaker(work.before)
        self._looks.next_at(now_ms)

    def _take_in(self, work: _Work, maker: BaseMaker, now_ms: int) -> None:
        """Some more records; with the last of them the log is cut."""
        if self._is_over(work):
            self._give_up(work)
            return
        channel = work.runner.channel
        heads = self._log.heads(channel, maker.seq, to_seq=work.limit, limit=RECORDS_PER_TURN)
        is_done = len(heads) < RECORDS_PER_TURN
        for record in heads:
            if work.made_before_ms is not None and record.timestamp_ms >= work.made_before_ms:
                is_done = True
                break
            maker.add(record)
        self._looks.next_at(now_ms + TURN_PAUSE_MS)
        if is_done:
            self._give_up(work)
            self._cut(work, maker.base(), now_ms)

    def _give_up(self, work: _Work) -> None:
        if self._work is work:
            self._work = None

    def _cut(self, work: _Work, base: Base, now_ms: int) -> None:
        runner, before = work.runner, work.before
        # Somebody may have come meanwhile who needs more of it.
        limit, held_by = self._floors.lowest(runner, base.seq, now_ms)
        if base.seq <= before.seq or limit < base.seq:
            self._note(runner.channel, held_by)
            return
        if len(base.folds) > BASE_BYTES_MAX:
            self._note(
                runner.channel, Floor(BASE_SIZE, f"{len(base.folds)} bytes", before.seq, None)
            )
            return
        if not self._claim(len(base.folds)):
            # S0.4: a write that fails for lack of space would end the node.
            self._note(runner.channel, Floor(DISK_SPACE, "", before.seq, None))
            return
        size = self._log.extent(runner.channel).bytes_between(before.seq, base.seq)
        runner.inform(TrimTo(base), now_ms)
        if runner.core.base is not base:
            return
        self.trims_total += 1
        self.trimmed_seqs_total += base.seq - before.seq
        self._tell(TRIMMED, channel=runner.name, base_seq=base.seq, bytes=size)

    # --- segments ---------------------------------------------------------------------------------

    def _goal(self, oldest: int) -> int | None:
        """The newest segment that should go, if ``oldest`` is the first that is needed."""
        log, goal = self._log, None
        dropped = log.dropped()
        if dropped.segment >= oldest and dropped.size_bytes >= DROPPED_BYTES_MIN:
            kept = sum(map(self.kept_bytes, self._channels.values())) + self._bases_bytes()
            if log.size_bytes() - kept >= max(FREED_BYTES_MIN, kept // FREED_SHARE):
                goal = dropped.segment
                log.leave_segment(goal)
        if self._is_too_long():
            goal = max(goal or 0, oldest, self._to_be_freed())
        return goal

    def _is_too_long(self) -> bool:
        return self._log.size_bytes() > self._bytes_wanted()

    def _bytes_wanted(self) -> int:
        """Bytes that the log may have: so many more than its bases that to write these anew for
        each old segment costs less than it frees."""
        # GAP-13: on a disk that is nearly full as little as there can be, which is one segment.
        least = self._segment_bytes if self._is_space_low() else self._settings.log_bytes
        return max(least, BASES_IN_LOG_MIN * self._bases_bytes())

    def _bases_bytes(self) -> int:
        return sum(len(runner.core.base.folds) for runner in self._channels.values())

    def _to_be_freed(self) -> int:
        """The newest segment that has to go for the log to be half of what it may be."""
        too_much = self._log.size_bytes() - self._bytes_wanted() // 2
        return self._log.floor() + too_much // self._segment_bytes

    def _move_floor(self) -> None:
        """Let the oldest segments go, and write bases anew that alone keep the next one."""
        log, before = self._log, self._log.floor()
        oldest = log.floor_max()
        if oldest > before:
            log.begin_floor(oldest)
            self._tell(FLOOR_MOVED, was=before, segment=log.floor(), log_bytes=log.size_bytes())
        if self._goal(oldest) is not None:
            for runner in tuple(self._channels.values()):
                self._carry(runner, oldest)

    def _carry(self, runner: ChannelRunner, oldest: int) -> None:
        """The base again, at the log's end, if all that the channel has in the way is that."""
        base_seq, log = runner.core.base.seq, self._log
        if base_seq == 0 or runner.hole is not None or log.live_from(runner.channel) != oldest:
            return
        is_all = log.extent(runner.channel).end_in(oldest) <= base_seq
        if is_all and self._claim(len(runner.core.base.folds)):
            log.rebase(runner.channel, runner.core.base)
            self.carried_total += 1
