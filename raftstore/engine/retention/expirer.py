"""Has rows expire that are due, in the channels that this node leads.

A replica never expires a row by its own clock (S10): the leader says in an EXPIRE record how late
it is, and names rows that have expired by then; every replica that applies it agrees. A record is
only made when a row is due, one at a time in each channel, so an idle channel costs nothing.

Where many rows are due, a record that names as many as it may is *full*. A node has one full record
under way, and pauses behind it for a few times what it took, so that requests have their turn. No
channel waits for longer than ``expiry.tick_ms``: a record moves the channel time, which hides all
that is due. Rows that have been due for ``expiry.late_ms_max`` go without waiting, or a table that
takes rows faster would grow for ever.

How late it is: the leader's clock, but never more than ``expiry.clock_ahead_ms`` above the time
that the clocks of a quorum of the voters have reached, as their heartbeats report. So one clock
that is wrong lets rows live longer, never shorter.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Final, NamedTuple

from raftstore.config import ExpirySettings
from raftstore.core.quorum import quorum_ms
from raftstore.engine.channel.channel_parts import RoleBefore
from raftstore.engine.channel.runner import ChannelRunner
from raftstore.engine.deadlines import Deadlines
from raftstore.engine.retention.floors import RetentionParts
from raftstore.ports.tables import Answers
from raftstore.protocol.lifetimes import EXPIRE_BYTES_MAX, encode_expire
from raftstore.protocol.publish import PubAck, PubReject
from raftstore.state_machines.expiry import due_rows
from raftstore.types import WALL_MS_MAX, ChannelId, RecordKind, Role, Seq

RETRY_MS: Final = 1_000
"""Pause after an EXPIRE record that was refused, or while the clocks of a quorum are unknown."""
PAUSE_TIMES: Final = 3
"""The pause behind a full record is so many times as long as it took."""
WAIT_MS_MAX: Final = 10_000
"""A row that is due later is looked at again after this: clocks may be set meanwhile."""


@dataclass(slots=True)
class _Led:
    """A channel with rows that may expire, while this node leads it."""

    runner: ChannelRunner
    look_ms: int
    """When it is looked at next."""
    is_open: bool = False
    """An EXPIRE record of it has no outcome yet."""
    named_seq: Seq = Seq(0)
    """The end of the last one: what it named is still there until it is applied."""
    is_full: bool = False
    """It named as much as a record may: probably more is due."""
    waits_since_ms: int | None = None
    """It has a full record to be written, and waits for its turn."""


class _Due(NamedTuple):
    """The content of one record."""

    time_ms: int
    keys: list[bytes]
    late_ms: int
    """So long the first row has been due."""


class Expirer:
    """Has the rows expire that are due in channels led by one node."""

    def __init__(self, parts: RetentionParts, settings: ExpirySettings) -> None:
        self._me = parts.me
        self._tables = parts.tables
        self._watch = parts.watch
        self._clock = parts.clock
        self._proposals = parts.proposals
        self._refusal_of = parts.refusal_of
        self._settings = settings
        self._channels = parts.channels
        self._led: dict[ChannelId, _Led] = {}
        self._full: _Led | None = None
        """Its full record is under way."""
        self._free_ms = 0
        """When the next full record may follow."""
        self._waiting: dict[ChannelId, None] = {}
        """Channels with a full record to be written, in the order in which they are next."""
        self.expired_total = 0
        """Rows named by EXPIRE records that this node has written as a leader."""
        self.deadlines: Deadlines[ChannelId] = Deadlines()

    # --- what happens to channels -----------------------------------------------------------------

    def leader_changed(self, runner: ChannelRunner, before: RoleBefore, now_ms: int) -> None:
        """A channel got another leader, or lost it."""
        del before
        self._forget(runner.channel)
        self._note(runner, now_ms)

    def on_applied(self, runner: ChannelRunner, answers: Answers, now_ms: int) -> None:
        """The applied seq moved: rows may have got an expiry, or another one."""
        del answers
        self._note(runner, now_ms)

    def channel_closed(self, runner: ChannelRunner) -> None:
        """The channel is not here any more, or is opened anew."""
        self._forget(runner.channel)

    def on_timer(self, now_ms: int) -> None:
        """Look at the channels in which rows are due."""
        for channel in self.deadlines.due(now_ms):
            led, runner = self._led.get(channel), self._channels.get(channel)
            if led is not None and led.runner is runner:
                self._look(led, now_ms)

    def _forget(self, channel: ChannelId) -> None:
        led = self._led.pop(channel, None)
        self._waiting.pop(channel, None)
        if led is not None and self._full is led:
            self._full = None
        self.deadlines.cancel(channel)

    def _note(self, runner: ChannelRunner, now_ms: int) -> None:
        channel = runner.channel
        if runner.elector.role is not Role.LEADER or not self._tables.channel_time(channel):
            return
        led = self._led.get(channel)
        if led is None:
            led = self._led[channel] = _Led(runner, WALL_MS_MAX)
        if not led.is_open:
            is_next = led.is_full and self._tables.applied_seq(channel) >= led.named_seq
            self._look_at(led, now_ms if is_next else now_ms + self._settings.tick_ms)

    def _look_at(self, led: _Led, at_ms: int) -> None:
        if at_ms < led.look_ms:
            led.look_ms = at_ms
            self.deadlines.push(led.runner.channel, at_ms)

    # --- one channel ------------------------------------------------------------------------------

    def _look(self, led: _Led, now_ms: int) -> None:
        """Expire what is due, or come back when something may be."""
        led.look_ms = WALL_MS_MAX
        channel = led.runner.channel
        if led.is_open or self._tables.applied_seq(channel) < led.named_seq:
            return  # its outcome, or its application, leads here again
        led.is_full = False
        scan = partial(self._tables.state_scan, channel)
        time_ms = self.time_ms(led.runner)
        rows = due_rows(scan, time_ms, keys_max=self._settings.keys_max, bytes_max=EXPIRE_BYTES_MAX)
        if rows:
            due = _Due(time_ms, [key for _, key in rows], time_ms - rows[0][0])
            if self._waits(led, due, now_ms):
                return
            self._expire(led, due, now_ms)
        elif first := due_rows(scan, WALL_MS_MAX, keys_max=1):
            pause_ms = min(first[0][0] - time_ms, WAIT_MS_MAX) if time_ms else RETRY_MS
            self._look_at(led, now_ms + pause_ms)
        led.waits_since_ms = None
        self._waiting.pop(channel, None)

    def time_ms(self, runner: ChannelRunner) -> int:
        """How late it is, as a leader may say it; 0: too few clocks are known."""
        wall_ms = self._clock.wall_ms()
        clocks = {node: self._watch.wall_ms(node) for node in runner.config().voters}
        clocks[self._me] = wall_ms
        # S10: one clock decides nothing. A quorum's have come so far.
        reached_ms = quorum_ms(runner.config(), clocks)
        return min(wall_ms, reached_ms + self._settings.clock_ahead_ms) if reached_ms else 0

    def _is_full(self, due: _Due) -> bool:
        size = sum(map(len, due.keys))
        return len(due.keys) >= self._settings.keys_max or size >= EXPIRE_BYTES_MAX

    def _waits(self, led: _Led, due: _Due, now_ms: int) -> bool:
        """Whether the channel has to wait for its turn, by which it is looked at again."""
        channel, since_ms = led.runner.channel, led.waits_since_ms
        since_ms = now_ms if since_ms is None else since_ms
        is_free = self._full is None and now_ms >= self._free_ms
        is_in_time = due.late_ms < self._settings.late_ms_max
        until_ms = since_ms + self._settings.tick_ms
        if is_free or not is_in_time or now_ms >= until_ms or not self._is_full(due):
            return False
        led.waits_since_ms = since_ms
        self._waiting[channel] = None
        is_resting = self._full is None and next(iter(self._waiting)) == channel
        self._look_at(led, min(until_ms, self._free_ms) if is_resting else until_ms)
        return True

    def _ended(self, led: _Led, took_ms: int, now_ms: int) -> None:
        """A full record has its outcome: the next one may follow behind a pause."""
        if self._full is not led:
            return
        self._full = None
        self._free_ms = now_ms + min(self._settings.tick_ms, PAUSE_TIMES * took_ms)
        first = next(iter(self._waiting), None)
        if first is not None:
            self._look_at(self._led[first], self._free_ms)

    def _expire(self, led: _Led, due: _Due, now_ms: int) -> None:
        led.is_open, is_full, proposed_ms = True, self._is_full(due), now_ms
        if is_full and due.late_ms < self._settings.late_ms_max:
            self._full = led

        def done(outcome: PubAck | PubReject, now_ms: int) -> None:
            led.is_open = False
            self._ended(led, now_ms - proposed_ms, now_ms)
            pause_ms = RETRY_MS
            if isinstance(outcome, PubAck):
                led.named_seq, led.is_full = outcome.last_seq, is_full
                self.expired_total += len(due.keys)
                pause_ms = 0 if is_full else self._settings.tick_ms
            if self._led.get(led.runner.channel) is led:
                self._look_at(led, now_ms + pause_ms)

        self._proposals.propose(
            led.runner,
            encode_expire(due.time_ms, due.keys),
            done,
            now_ms,
            kind=RecordKind.EXPIRE,
            rows=len(due.keys),
            refusal=self._refusal_of(RecordKind.EXPIRE),
        )
