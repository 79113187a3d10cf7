"""Reads everything that is stored, slowly, and verifies it: damage is found before it is needed.

A *pass* goes over the log, from its oldest segment to what is durable, and then over the table of
each channel. One step at a time runs on a thread of copies; between two there is a pause, so that
in a second no more than ``scrub.second_bytes_max`` bytes are read. A step changes nothing. What it
finds is handed to the parts that repair it (``table_repairs``, ``log_repairs``).

A pass that a stop of the node interrupted is begun anew.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Final

from raftstore.config import KIB, ScrubSettings
from raftstore.engine.channel.runner import ChannelRunner
from raftstore.engine.deadlines import Deadlines
from raftstore.engine.node_ports import Tell
from raftstore.ports.log import MessageLog
from raftstore.ports.scrub import LogDamage, LogPlace, LogStep, TableStep
from raftstore.ports.tables import ReadDone, TableSnapshot, TableStore
from raftstore.types import ChannelId

STEP_BYTES: Final = 128 * KIB
"""Read in one step: some ms of a thread."""
FIRST_PAUSE_MS_MAX: Final = 60_000
"""From the start of a node to its first pass at most."""
KNOWN_DAMAGES_MAX: Final = 1_024
"""Places of the log that were reported as damaged and are not reported again by the next pass."""

OnLogDamage = Callable[[LogDamage, int], None]
"""Called with each damage of the log when it is found, and the time in ms."""
OnTableDamage = Callable[[ChannelRunner, str, int], None]
"""Called with each damaged table likewise."""


@dataclass(slots=True)
class _Pass:
    """Where a pass is."""

    number: int
    started_ms: int
    log_at: LogPlace | None = None
    is_log_done: bool = False
    channels: tuple[ChannelId, ...] = ()
    """Tables that are still to be read."""
    after: bytes | None = None
    """The last key of the first of them that was read."""
    bytes: int = 0
    damages: int = 0


@dataclass(frozen=True, slots=True)
class PassFigures:
    """A pass that ended."""

    ended_ms: int
    took_ms: int
    bytes: int
    damages: int


class Scrubber:
    """The scrubber of one node."""

    def __init__(
        self,
        channels: Mapping[ChannelId, ChannelRunner],
        log: MessageLog,
        tables: TableStore,
        settings: ScrubSettings,
        tell: Tell,
        *,
        on_log_damage: OnLogDamage,
        on_table_damage: OnTableDamage,
    ) -> None:
        self._channels = channels
        self._log = log
        self._tables = tables
        self._settings = settings
        self._tell = tell
        self._on_log_damage = on_log_damage
        self._on_table_damage = on_table_damage
        self._known: dict[tuple[int, int], None] = {}
        self._pass: _Pass | None = None
        self._passes = 0
        self.last: PassFigures | None = None
        """The pass that ended last."""
        self.passes_total = 0
        self.bytes_total = 0
        self.damages_total = 0
        self.deadlines: Deadlines[int] = Deadlines()

    def start(self, now_ms: int) -> None:
        """Read from time to time, if that is wanted at all."""
        if self._settings.enabled:
            self.deadlines.push(0, now_ms + min(self._settings.interval_ms, FIRST_PAUSE_MS_MAX))

    def on_timer(self, now_ms: int) -> None:
        """Begin a pass, or its next step."""
        for _ in self.deadlines.due(now_ms):
            if self._pass is None:
                self._passes += 1
                self._pass = _Pass(self._passes, now_ms)
            self._step(self._pass, now_ms)

    def look(self, runner: ChannelRunner, now_ms: int) -> None:
        """Somebody could not read the table of this channel: read it now, whatever the settings."""
        channel = runner.channel
        if self._pass is None:
            self._passes += 1
            self._pass = _Pass(self._passes, now_ms, is_log_done=True, channels=(channel,))
            self.deadlines.push(0, now_ms)
        elif channel not in self._pass.channels[:1]:
            # What a step reads at this moment is the first one's.
            others = tuple(each for each in self._pass.channels[1:] if each != channel)
            self._pass.channels = (*self._pass.channels[:1], channel, *others)

    @property
    def under_way(self) -> tuple[str, int] | None:
        """The part that is read now, and the bytes of this pass so far; None: there is a pause."""
        at = self._pass
        if at is None:
            return None
        runner = self._channels.get(at.channels[0]) if at.channels else None
        what = "log" if not at.is_log_done else "tables" if runner is None else runner.name
        return what, at.bytes

    # --- steps ------------------------------------------------------------------------------------

    def _step(self, at: _Pass, now_ms: int) -> None:
        """Start the next step; its end says when the one after it is due."""
        if not at.is_log_done:
            read = self._log.verifying.step(at.log_at, STEP_BYTES)

            def read_log() -> ReadDone:
                return partial(self._read_log, at, read())

            self._tables.start_copy_step(None, read_log)
            return
        while at.channels and at.channels[0] not in self._channels:
            at.channels, at.after = at.channels[1:], None
        if not at.channels:
            self._end(at, now_ms)
            return
        runner, after = self._channels[at.channels[0]], at.after
        snapshot = self._tables.snapshot(runner.channel)

        def read_table() -> ReadDone:
            return partial(
                self._read_table, at, runner, snapshot, snapshot.verify(after, STEP_BYTES)
            )

        self._tables.start_copy_step(runner.channel, read_table)

    def _read_log(self, at: _Pass, step: LogStep, now_ms: int) -> None:
        at.log_at = step.place
        if step.place is None:
            at.is_log_done = True
            at.channels = tuple(self._channels)
        damage = step.damage
        if damage is not None and damage.segment < self._log.floor():
            damage = None  # its segment was removed while the step waited for the thread
        if damage is not None and (damage.segment, damage.offset) not in self._known:
            self._note(damage)
            self._found(at)
            self._on_log_damage(damage, now_ms)
        self._goes_on(at, step.bytes, now_ms)

    def _note(self, damage: LogDamage) -> None:
        """Remember a damaged place until its segment is removed; what was in it is elsewhere
        then."""
        if len(self._known) >= KNOWN_DAMAGES_MAX:
            del self._known[next(iter(self._known))]
        self._known[damage.segment, damage.offset] = None

    def _read_table(
        self,
        at: _Pass,
        runner: ChannelRunner,
        snapshot: TableSnapshot,
        step: TableStep,
        now_ms: int,
    ) -> None:
        snapshot.close()
        is_here = self._channels.get(runner.channel) is runner
        at.after = step.after
        if step.damage or step.after is None or not is_here:
            at.channels, at.after = at.channels[1:], None
        if step.damage and is_here:
            self._found(at)
            self._on_table_damage(runner, step.damage, now_ms)
        self._goes_on(at, step.bytes, now_ms)

    def _found(self, at: _Pass) -> None:
        at.damages += 1
        self.damages_total += 1

    def _goes_on(self, at: _Pass, size: int, now_ms: int) -> None:
        at.bytes += size
        self.bytes_total += size
        pause_ms = size * 1_000 // self._settings.second_bytes_max
        self.deadlines.push(0, now_ms + max(1, pause_ms))

    def _end(self, at: _Pass, now_ms: int) -> None:
        self._pass = None
        self.passes_total += 1
        took_ms = now_ms - at.started_ms
        self.last = PassFigures(now_ms, took_ms, at.bytes, at.damages)
        self._tell("scrub_finished", bytes=at.bytes, damages=at.damages, took_ms=took_ms)
        if self._settings.enabled:
            self.deadlines.push(0, now_ms + self._settings.interval_ms)
