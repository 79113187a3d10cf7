"""Has the files of a node's tables merged, one table at a time, with pauses in between.

Which table is worth a merge is decided where its files are (``TableStore.start_merge``). Here it is
decided which one is asked, and when: tables that were written to since they were asked last, and
once more when they are quiet. After a merge there is a pause of several times its length, and none
begins while the tables are behind, so that writing is not slowed down by it.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Final

from raftstore.config import MIB
from raftstore.engine.channel.runner import ChannelRunner
from raftstore.engine.retention.floors import RetentionParts
from raftstore.engine.retention.looks import CHANNELS_PER_LOOK, Looks
from raftstore.ports.tables import MergeStep
from raftstore.types import ChannelId, Seq

QUIET_MS: Final = 5_000
"""A table to which nothing was applied for so long is quiet."""
READERS_WAIT_MS: Final = 30_000
"""A merge waits for so long at most for readers of snapshots, which keep what it should remove."""
PAUSE_FACTOR: Final = 4
"""A pause is so many times as long as the step before it: merges take a fifth of the time."""
RICH_PAUSE_FACTOR: Final = 2
"""The same behind one that gave back more than it left, as while overwrites follow each other: the
more is written, the more there is to be given back."""
PAUSE_MS_MIN: Final = 10
MERGE_STEP_BYTES: Final = 64 * MIB
"""Free bytes that one step may need at most (``storage.tables.merges``)."""
QUEUED_BYTES_MAX: Final = 8 * MIB
"""Nothing is merged while more than this waits to be applied, ..."""
BEHIND_MS_MAX: Final = 10_000
"""... but for so long at most."""
EVENT_BYTES_MIN: Final = 64 * MIB
"""Only a merge that gave back so much is reported as an event."""
MERGED: Final = "table_merged"


@dataclass(slots=True)
class _Seen:
    """A table as it was when it was looked at last."""

    applied_seq: Seq
    since_ms: int
    """Nothing was applied since then."""
    again_ms: int
    """It is not asked before that."""
    is_asked: bool = False
    """It was asked since something was applied last."""
    is_asked_quiet: bool = False
    """It was asked since it is quiet."""
    waits_since_ms: int | None = None
    """It is worth a merge, and waits for readers since then."""


class Merger:
    """Merges the tables of one node."""

    def __init__(self, parts: RetentionParts) -> None:
        self._channels = parts.channels
        self._tables = parts.tables
        self._settings = parts.settings
        self._tell = parts.tell
        self._claim = parts.claim
        self._seen: dict[ChannelId, _Seen] = {}
        self._next_channel = 0
        self._merging: ChannelRunner | None = None
        """It is between two steps of a merge."""
        self._behind_since_ms: int | None = None
        """More than ``QUEUED_BYTES_MAX`` waits to be applied at each look since then."""
        self._asked_ms: int | None = None
        """When the step that is under way was asked for."""
        self.merges_total = 0
        self.merged_bytes_total = 0
        """Bytes that merges gave back."""
        interval_ms, is_wanted = parts.settings.interval_ms, parts.settings.merge_tables
        self._looks = Looks(parts.channels, interval_ms, is_wanted=is_wanted)
        self.deadlines = self._looks.deadlines

    def start(self, now_ms: int) -> None:
        """Look from time to time, if tables are merged at all."""
        self._looks.start(now_ms)

    def on_timer(self, now_ms: int) -> None:
        """Go on with the table that is being merged, or look for one that may be worth it."""
        while self._looks.is_due(now_ms):
            if self._asked_ms is None and not self._waits_for_tables(now_ms):
                runner = self._merging or self._candidate(now_ms)
                # S0.4: new files are written before old ones go, and there must be room for them.
                if runner is not None and self._claim(MERGE_STEP_BYTES):
                    self._ask(runner, self._seen[runner.channel], now_ms)

    def _waits_for_tables(self, now_ms: int) -> bool:
        if self._tables.queued_bytes() <= QUEUED_BYTES_MAX:
            self._behind_since_ms = None
            return False
        if self._behind_since_ms is None:
            self._behind_since_ms = now_ms
        return now_ms - self._behind_since_ms < BEHIND_MS_MAX

    def channel_closed(self, runner: ChannelRunner) -> None:
        """Forget a channel that was closed, or is opened anew."""
        self._seen.pop(runner.channel, None)
        if self._merging is runner:
            self._merging = None

    def _candidate(self, now_ms: int) -> ChannelRunner | None:
        """The next channel that was written to since it was asked, or that is quiet since."""
        runners = list(self._channels.values())
        start = self._next_channel if self._next_channel < len(runners) else 0
        for number in range(start, min(start + CHANNELS_PER_LOOK, len(runners))):
            self._next_channel = number + 1
            if self._is_worth_a_question(runners[number].channel, now_ms):
                return runners[number]
        return None

    def _is_worth_a_question(self, channel: ChannelId, now_ms: int) -> bool:
        applied_seq = self._tables.applied_seq(channel)
        seen = self._seen.get(channel)
        if seen is None:
            # Whether it is quiet is not known yet.
            self._seen[channel] = _Seen(applied_seq, now_ms, now_ms, is_asked=True)
            return False
        if seen.applied_seq != applied_seq:
            seen.applied_seq, seen.since_ms = applied_seq, now_ms
            seen.is_asked = seen.is_asked_quiet = False
        if now_ms < seen.again_ms:
            return False
        if not seen.is_asked or seen.waits_since_ms is not None:
            return True
        return not seen.is_asked_quiet and now_ms - seen.since_ms >= QUIET_MS

    def _ask(self, runner: ChannelRunner, seen: _Seen, now_ms: int) -> None:
        self._asked_ms = now_ms
        seen.again_ms = now_ms + self._settings.interval_ms
        is_quiet = now_ms - seen.since_ms >= QUIET_MS
        seen.is_asked, seen.is_asked_quiet = True, is_quiet
        waits_ms = 0 if seen.waits_since_ms is None else now_ms - seen.waits_since_ms
        self._tables.start_merge(
            runner.channel,
            partial(self._on_step, runner),
            is_quiet=is_quiet,
            is_urgent=waits_ms >= READERS_WAIT_MS,
        )

    def _on_step(self, runner: ChannelRunner, step: MergeStep, now_ms: int) -> None:
        took_ms = now_ms - self._asked_ms if self._asked_ms is not None and step.is_merged else 0
        self._asked_ms = None
        is_rich = step.bytes_after * 2 < step.bytes_before
        factor = RICH_PAUSE_FACTOR if is_rich else PAUSE_FACTOR
        self._looks.next_at(now_ms + max(PAUSE_MS_MIN, factor * took_ms))
        self._merging = None
        seen = self._seen.get(runner.channel)
        if seen is None or self._channels.get(runner.channel) is not runner:
            return  # it was closed meanwhile
        if step.waits:
            seen.waits_since_ms = now_ms if seen.waits_since_ms is None else seen.waits_since_ms
            return
        if step.is_merged and not step.is_over:
            self._merging = runner
            return
        seen.waits_since_ms = None
        if step.is_merged:
            seen.is_asked_quiet = seen.is_asked_quiet and not step.keeps
            was, left = step.bytes_before, step.bytes_after
            self.merges_total += 1
            self.merged_bytes_total += max(0, was - left)
            if was - left >= EVENT_BYTES_MIN:
                self._tell(MERGED, channel=runner.name, was=was, bytes=left)
