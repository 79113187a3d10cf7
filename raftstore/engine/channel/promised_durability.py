"""Acknowledgements before the sync, and their promise in the mark, for one channel (S0.6).

The mark says it before the first of them, synced like a vote; until then records count once they
are durable. A checkpoint takes it back, with everything synced, until the next record of rows.
"""

from __future__ import annotations

from collections.abc import Callable

from raftstore.engine.channel.durable_tracker import DurableTracker
from raftstore.ports.log import MessageLog
from raftstore.types import ChannelId, Durability


class PromisedDurability:
    """The promise of one channel; at ``fsync`` there is nothing to promise."""

    def __init__(self, log: MessageLog, channel: ChannelId, tracker: DurableTracker) -> None:
        self._log = log
        self._channel = channel
        self._tracker = tracker
        self._operation: int | None = None
        """Which makes the promise durable; None: there is none on its way."""
        self._checkpoints: list[tuple[int, Callable[[bool], None]]] = []
        """Operations that end checkpoints, in order, and who waits for each; the waiting are
        bounded by who asks (``raftstore.engine.checkpoints``)."""

    @property
    def is_awaited(self) -> bool:
        """A promise, or the end of one, is on its way to the mark."""
        return self._operation is not None or bool(self._checkpoints)

    def want(self) -> None:
        """Rows are written: have the mark say at which durability they will count."""
        tracker = self._tracker
        if tracker.in_force is tracker.durability or self._operation is not None:
            return
        self._operation = self._log.promise(self._channel, tracker.durability)

    def on_durable(self, operation: int) -> bool:
        """The log is durable up to ``operation``; True if more counts as stored by that."""
        while self._checkpoints and self._checkpoints[0][0] <= operation:
            self._checkpoints.pop(0)[1](True)
        if self._operation is None or operation < self._operation:
            return False
        self._operation, self._tracker.in_force = None, self._tracker.durability
        return self._tracker.store()

    def take_back(self, done: Callable[[bool], None]) -> None:
        """A checkpoint: call ``done`` with True when everything is durable and the mark says so,
        with False if the channel is closed before."""
        self._operation, self._tracker.in_force = None, Durability.FSYNC
        self._checkpoints.append((self._log.promise(self._channel, Durability.FSYNC), done))

    def close(self) -> None:
        """The channel is not here any more, or is opened anew."""
        checkpoints, self._checkpoints = self._checkpoints, []
        for _, done in checkpoints:
            done(False)
