"""How long a failover took and why it came (KLIP-05, BLOG-05, N8): one record for each.

Every replica that loses its leader begins to take times; the one that is elected completes the
record, the others drop theirs. A record is complete when the successor has served a read and
committed a write, or when nobody asked for either within ``WAIT_MS`` after it was ready.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from raftstore.types import ChannelId, NodeId, Term

WAIT_MS: Final = 5_000
"""So long a leader that is ready is watched for its first read and write."""
PENDING_MS: Final = 60_000
"""Times taken so long ago without a leader here are given up."""

REFUSED: Final = "connection refused"
LOST: Final = "connection lost"
MISSED: Final = "heartbeats missed"
STEP_DOWN: Final = "step-down"
HAND_OVER: Final = "hand-over"
UNCLAIMED: Final = "unclaimed"
UNKNOWN: Final = "unknown"
"""Causes. Unclaimed: the node lives, but says that it leads the channel no more."""


@dataclass(frozen=True, slots=True)
class FailoverRecord:
    """One failover as the new leader saw it; durations in ms, None: it did not come to it.

    ``detect_ms`` is from the last sign of the old leader to the suspicion, ``vote_ms`` from there
    to the election, ``ready_ms`` from there to the first commit of the term. The first read and
    write count from the last sign of the old leader, as their callers do.
    """

    channel: ChannelId
    old_leader: NodeId
    new_leader: NodeId
    term: Term
    cause: str
    detect_ms: int
    vote_ms: int
    ready_ms: int | None
    first_read_ms: int | None
    first_write_ms: int | None

    @property
    def total_ms(self) -> int | None:
        """From the last sign of the old leader until the new one could serve."""
        if self.ready_ms is None:
            return None
        return self.detect_ms + self.vote_ms + self.ready_ms


@dataclass(slots=True)
class _Times:
    old_leader: NodeId
    cause: str
    heard_ms: int
    suspected_ms: int
    term: Term = Term(0)
    elected_ms: int | None = None
    ready_ms: int | None = None
    read_ms: int | None = None
    written_ms: int | None = None


class FailoverTracker:
    """Times of the failovers that are under way, on one node."""

    def __init__(self, me: NodeId) -> None:
        self._me = me
        self._open: dict[ChannelId, _Times] = {}
        self.under_way: Mapping[ChannelId, object] = self._open
        """By channel; for looking only."""

    def __contains__(self, channel: ChannelId) -> bool:
        return channel in self._open

    def __len__(self) -> int:
        return len(self._open)

    @property
    def channels(self) -> tuple[ChannelId, ...]:
        """Channels whose failover is under way."""
        return tuple(self._open)

    def on_suspect(
        self,
        channel: ChannelId,
        old_leader: NodeId | None,
        cause: str,
        *,
        heard_ms: int | None,
        now_ms: int,
    ) -> None:
        """The leader is believed gone; a second reason for that changes nothing.

        Unless something came from it meanwhile: then the first one was a false alarm.
        """
        if old_leader is None:
            return  # a new channel's first election is no failover
        times = self._open.get(channel)
        if times is not None and (
            times.elected_ms is not None or heard_ms is None or heard_ms <= times.suspected_ms
        ):
            return
        heard_ms = now_ms if heard_ms is None else min(heard_ms, now_ms)
        self._open[channel] = _Times(old_leader, cause, heard_ms, now_ms)

    def on_cause(self, old_leader: NodeId, cause: str, heard_ms: int | None) -> None:
        """Why the node is gone, known after others had begun to elect without it."""
        for times in self._open.values():
            if times.old_leader == old_leader and times.cause == UNKNOWN:
                times.cause = cause
                if heard_ms is not None:
                    times.heard_ms = min(heard_ms, times.suspected_ms)

    def on_elected(self, channel: ChannelId, term: Term, now_ms: int) -> None:
        """This node leads the channel now."""
        times = self._open.get(channel)
        if times is not None:
            times.term, times.elected_ms = term, now_ms

    def on_ready(self, channel: ChannelId, now_ms: int) -> None:
        """The new leader has committed a record of its term."""
        times = self._open.get(channel)
        if times is not None and times.elected_ms is not None and times.ready_ms is None:
            times.ready_ms = now_ms

    def on_read(self, channel: ChannelId, now_ms: int) -> FailoverRecord | None:
        """The new leader served a read."""
        times = self._open.get(channel)
        if times is None or times.elected_ms is None or times.read_ms is not None:
            return None
        times.read_ms = now_ms
        return self._complete(channel, times)

    def on_write(self, channel: ChannelId, now_ms: int) -> FailoverRecord | None:
        """The new leader committed a write of a client."""
        times = self._open.get(channel)
        if times is None or times.elected_ms is None or times.written_ms is not None:
            return None
        times.written_ms = now_ms
        self.on_ready(channel, now_ms)
        return self._complete(channel, times)

    def on_succeeded(
        self, channel: ChannelId, leader: NodeId | None, term: Term, now_ms: int
    ) -> FailoverRecord | None:
        """Another replica leads: the failover as it looked from here; None if none was under way.

        Nobody here knows when the successor was ready, or what it served first.
        """
        times = self._open.pop(channel, None)
        if times is None or leader is None or leader in (self._me, times.old_leader):
            return None
        detect_ms, vote_ms = times.suspected_ms - times.heard_ms, now_ms - times.suspected_ms
        return FailoverRecord(
            channel, times.old_leader, leader, term, times.cause, detect_ms, vote_ms,
            None, None, None,
        )  # fmt: skip

    def on_abandoned(self, channel: ChannelId) -> None:
        """Another replica leads, this one leads no more, or the table was dropped."""
        self._open.pop(channel, None)

    def on_timer(self, now_ms: int) -> list[FailoverRecord]:
        """Records of leaders that nobody asked for anything; what came to nothing is dropped."""
        done: list[FailoverRecord] = []
        for channel, times in tuple(self._open.items()):
            if times.ready_ms is not None:
                if now_ms - times.ready_ms >= WAIT_MS:
                    done.append(self._take(channel, times))
            elif now_ms - times.suspected_ms >= PENDING_MS:
                del self._open[channel]
        return done

    def _complete(self, channel: ChannelId, times: _Times) -> FailoverRecord | None:
        if times.read_ms is None or times.written_ms is None:
            return None
        return self._take(channel, times)

    def _take(self, channel: ChannelId, times: _Times) -> FailoverRecord:
        del self._open[channel]
        assert times.elected_ms is not None
        return FailoverRecord(
            channel=channel,
            old_leader=times.old_leader,
            new_leader=self._me,
            term=times.term,
            cause=times.cause,
            detect_ms=times.suspected_ms - times.heard_ms,
            vote_ms=times.elected_ms - times.suspected_ms,
            ready_ms=_between(times.elected_ms, times.ready_ms),
            first_read_ms=_between(times.heard_ms, times.read_ms),
            first_write_ms=_between(times.heard_ms, times.written_ms),
        )


def _between(begin_ms: int, end_ms: int | None) -> int | None:
    return None if end_ms is None else max(0, end_ms - begin_ms)
