"""Puts table and log of one channel aside, so that the replica is as one that is new.

In this order, so that a crash in between never leaves the wrong table beside a new log:

1. The channel takes part in nothing any more; everything that was written is durable, and all that
   was queued applied.
2. An empty table is made the channel's, durably; the former one stays in ``quarantine/``.
3. The log forgets all records of the channel, but not that it had acknowledged them: the replica is
   *recovering* until it holds as much again, from a leader (S0.3).
4. The channel is opened anew.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Final

from raftstore.engine.channel.runner import ChannelRunner
from raftstore.engine.deadlines import Deadlines
from raftstore.ports.log import EMPTY_BASE, MessageLog
from raftstore.ports.table_copy import TableCopy
from raftstore.ports.tables import ReadDone, TableStore
from raftstore.types import EMPTY_HISTORY, ChannelId

QUIET_MS: Final = 20
"""Between two looks whether the next step may be done."""


@dataclass(slots=True)
class _Replaced:
    """A channel on its way."""

    runner: ChannelRunner
    operation: int
    """Of the log: what has to be durable before the next step."""
    copy: TableCopy | None = None
    """The empty table, which is the channel's at the next start already."""
    is_emptying: bool = False
    is_emptied: bool = False
    is_forgotten: bool = False


class Replacing:
    """Channels of one node whose table and log are being replaced."""

    def __init__(
        self,
        channels: Mapping[ChannelId, ChannelRunner],
        log: MessageLog,
        tables: TableStore,
        reopen: Callable[[ChannelRunner], None],
    ) -> None:
        """``reopen``: open a channel anew from what log and table hold of it."""
        self._channels = channels
        self._log = log
        self._tables = tables
        self._reopen = reopen
        self._under_way: dict[ChannelId, _Replaced] = {}
        self.deadlines: Deadlines[ChannelId] = Deadlines()

    def begin(self, runner: ChannelRunner, now_ms: int) -> None:
        """Put everything of this channel aside."""
        runner.pause()
        self._under_way[runner.channel] = _Replaced(runner, self._log.last_operation())
        self.deadlines.push(runner.channel, now_ms)

    def closed(self, runner: ChannelRunner) -> None:
        """Forget a channel that was closed, or is opened anew."""
        if self._under_way.pop(runner.channel, None) is not None:
            self.deadlines.cancel(runner.channel)

    def on_timer(self, now_ms: int) -> None:
        """Go on with what is under way."""
        for channel in self.deadlines.due(now_ms):
            self.deadlines.push(channel, now_ms + QUIET_MS)
            self._go_on(self._under_way[channel])

    def _go_on(self, at: _Replaced) -> None:
        runner, channel = at.runner, at.runner.channel
        if self._log.durable_operation() < at.operation or at.is_emptying:
            return
        if at.is_forgotten:
            # In one turn: a channel whose table is not open is asked for it by others.
            assert at.copy is not None, "the empty table comes first"
            self._tables.install(channel, at.copy, keeps_former=True)
            self._reopen(runner)
        elif at.is_emptied:
            self._log.verifying.doubt(channel)
            self._log.rebase(channel, EMPTY_BASE)
            # So that a start knows that it was forgotten, and not that it was never committed:
            # versions up to level 5 do not take that from the empty base alone.
            at.operation = self._log.give_up(channel)
            at.is_forgotten = True
        elif runner.feed.is_idle and self._tables.is_idle(channel):
            at.is_emptying = True
            copy = self._tables.begin_copy(channel, EMPTY_HISTORY)
            self._tables.start_copy_step(channel, partial(self._empty, at, copy))

    def _empty(self, at: _Replaced, copy: TableCopy) -> ReadDone:
        # A failure here stops the node: which of the two tables it has is not known (S0.4).
        copy.write([])
        copy.finish()
        copy.complete()
        return partial(self._emptied, at, copy)

    def _emptied(self, at: _Replaced, copy: TableCopy, now_ms: int) -> None:
        del now_ms
        if self._under_way.get(at.runner.channel) is at:
            at.copy = copy
            at.is_emptying, at.is_emptied = False, True
