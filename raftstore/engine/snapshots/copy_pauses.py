"""Pauses between the copies of a replica that does not get to its leader's end by them.

A copy takes longer than the logs of the others keep what is written meanwhile, or the replica
stores less than is written: then it needs another copy behind each one, without end, and each costs
the node that sends it as much as the one before. So a replica that needs a copy again before it
was steady pauses first, as long as the longest copy took, and twice as long each further time.
After three it says that it cannot complete, and then does what a replica does that falls behind
with history (NATS-150, ``catchup.slow_action``).
"""

from __future__ import annotations

from typing import Final, NamedTuple

from raftstore.core.effects import CannotCatchUp
from raftstore.engine.channel.runner import ChannelRunner
from raftstore.engine.snapshots.parts import SnapshotParts
from raftstore.protocol.replication import CannotComplete
from raftstore.types import ChannelId

CHANNELS_MAX: Final = 1_024
"""Channels whose copies are remembered, those that were copied last: it bounds what dropped ones
leave behind."""
IN_VAIN: Final = 3
"""After so many copies without being steady a replica says that it cannot complete."""
DOUBLINGS_MAX: Final = 20
"""Of a pause; the settings bound it before."""


class _Copied(NamedTuple):
    """Copies that a channel took since it was steady."""

    copies: int
    took_ms: int
    """The longest one."""
    ended_ms: int
    behind: tuple[int, ...]
    """How many rows it lacked after each of them, as far as that is known."""


class CopyPauses:
    """The pauses of one node."""

    def __init__(self, retry_ms: int, pause_ms_max: int) -> None:
        self._retry_ms = retry_ms
        self._pause_ms_max = pause_ms_max
        self._copied: dict[ChannelId, _Copied] = {}

    def copied(self, channel: ChannelId, took_ms: int, now_ms: int) -> None:
        """A copy is in its place."""
        before = self._copied.get(channel)
        copies = 1 if before is None else before.copies + 1
        behind = () if before is None else before.behind
        took_ms = took_ms if before is None else max(took_ms, before.took_ms)
        self._copied.pop(channel, None)
        self._copied[channel] = _Copied(copies, took_ms, now_ms, behind)
        if len(self._copied) > CHANNELS_MAX:
            del self._copied[next(iter(self._copied))]

    def steady(self, channel: ChannelId) -> None:
        """The replica is at its leader's end: its copies were not in vain."""
        self._copied.pop(channel, None)

    def lacks(self, channel: ChannelId, rows: int) -> tuple[int, ...]:
        """Note how many rows a replica lacks that waits for its next copy; return what it lacked
        after each of the last ones once they are IN_VAIN."""
        copied = self._copied[channel]
        if len(copied.behind) >= min(copied.copies, IN_VAIN):
            return ()
        behind = (*copied.behind, rows)
        self._copied[channel] = copied._replace(behind=behind)
        return behind if len(behind) == IN_VAIN else ()

    def left_ms(self, channel: ChannelId, now_ms: int) -> int:
        """How long the next copy has to wait."""
        copied = self._copied.get(channel)
        if copied is None:
            return 0
        pause_ms = max(self._retry_ms, copied.took_ms) << min(copied.copies - 1, DOUBLINGS_MAX)
        return max(0, copied.ended_ms + min(pause_ms, self._pause_ms_max) - now_ms)

    def described(self, channel: ChannelId, now_ms: int) -> str:
        """The pause of a channel, for people; empty: there is none."""
        left_ms = self.left_ms(channel, now_ms)
        if not left_ms:
            return ""
        copies = self._copied[channel].copies
        return (
            f"no replica snapshot for {-(-left_ms // 1_000)} s: {copies} did not bring it to its "
            "leader's end"
        )


def say_in_vain(parts: SnapshotParts, pauses: CopyPauses, runner: ChannelRunner) -> None:
    """S6.6, NATS-150: say so, once, where one copy after the other comes too late."""
    view, leader = runner.core.catch_up(), runner.elector.leader
    behind = () if view is None else pauses.lacks(runner.channel, view.rows_left)
    catch_ups = parts.catch_ups
    if not behind or view is None or catch_ups is None or leader is None:
        return
    channel, seq, term = runner.channel, view.verified_seq, runner.elector.term
    if catch_ups.cannot_complete(channel, runner.name, CannotCatchUp(behind, seq)):
        parts.send(leader, CannotComplete(channel=channel, term=term, seq=seq, deltas=behind))
