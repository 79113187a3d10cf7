"""How many channels of a node stand for election at a time.

A node that is lost, or seems to be, leaves a thousand channels without a leader at once. If all of
them asked for votes together, and repeated it while nobody has come to answer, answering would take
longer than asking again does: no election would end, and heartbeats would come so late that further
nodes seem lost. So channels stand in turns; those that wait are not armed anew, they only wait.
"""

from __future__ import annotations

from typing import Final

from raftstore.engine.channel.runner import ChannelRunner
from raftstore.types import ChannelId

TOGETHER_MAX: Final = 128
"""Channels that stand at a time; in a healthy network each takes a few milliseconds."""
TURN_MIN_MS: Final = 300
"""A channel that has not got its leader by then lets others go first: about one election round."""
TURN_MAX_MS: Final = 1_200
"""The same where most turns end in vain, because there is more to do than can be done."""
WAIT_MS: Final = 20
"""When a channel that has to wait looks again."""


class Candidacies:
    """Turns of the channels of one node."""

    def __init__(self) -> None:
        self._standing: dict[ChannelId, tuple[ChannelRunner, int]] = {}
        self.waiting: dict[ChannelId, int] = {}
        """Channels that wait for their turn, and when they look again; of others ``not_before``
        changes nothing."""
        self._turn_ms = TURN_MIN_MS
        self._tidied_ms: int | None = None

    def may_stand(self, runner: ChannelRunner, now_ms: int) -> bool:
        """Whether the elector's timer may run now; if not, ``not_before`` says when to ask again.

        An elector with nothing due is no candidate and may.
        """
        due_ms = runner.elector.next_deadline_ms()
        if due_ms is None or due_ms > now_ms:
            return True
        found = self._standing.get(runner.channel)
        if found is None or found[1] <= now_ms:
            if found is None and len(self._standing) >= TOGETHER_MAX:
                self._tidy(now_ms)
            if found is None and len(self._standing) >= TOGETHER_MAX:
                self.waiting[runner.channel] = now_ms + WAIT_MS
                return False
            if found is not None and self.waiting:  # others wait: to the end of the line
                del self._standing[runner.channel]
                self.waiting[runner.channel] = now_ms + WAIT_MS
                return False
            self._standing[runner.channel] = (runner, now_ms + self._turn_ms)
        self.waiting.pop(runner.channel, None)
        return True

    def not_before(self, channel: ChannelId, due_ms: int | None) -> int | None:
        """The channel's next deadline, or when its turn may come if that is later."""
        wait_ms = self.waiting.get(channel)
        if wait_ms is None or due_ms is None:
            self.waiting.pop(channel, None)
            return due_ms
        return max(wait_ms, due_ms)

    def forget(self, channel: ChannelId) -> None:
        """Its table was dropped."""
        self._standing.pop(channel, None)
        self.waiting.pop(channel, None)

    def _tidy(self, now_ms: int) -> None:
        """End the turns of channels that ask nobody any more, and of those that took too long."""
        if self._tidied_ms == now_ms:
            return
        self._tidied_ms = now_ms
        before = len(self._standing)
        self._standing = {
            channel: turn for channel, turn in self._standing.items() if turn[0].elector.is_standing
        }
        ended = before - len(self._standing)
        self._standing = {c: turn for c, turn in self._standing.items() if turn[1] > now_ms}
        in_vain = before - ended - len(self._standing)
        if in_vain > ended:
            self._turn_ms = min(2 * self._turn_ms, TURN_MAX_MS)
        elif ended:
            self._turn_ms = max(self._turn_ms // 2, TURN_MIN_MS)
