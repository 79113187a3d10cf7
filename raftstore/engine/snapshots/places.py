"""Places of the channels of a node that take something at a time, and who waits for one.

Large tables come one after the other, each of them read back before the next one begins: those that
come at once are at the same steps at once (the barriers of their senders, the reading of all rows
here), and requests of all nodes around wait behind such bursts. Small ones come beside each other;
most of their time is waiting for answers. What does not move, or slowly, because of its sender or a
disk, keeps nobody waiting: others come from other nodes. The catalog waits for no table, since a
node does nothing that it does not know of.

A base is one message, and it is what a copied table needs next: a channel that had to wait for a
place among the tables would be overtaken by the trimming of its leader's log, and its copy would
have been in vain.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from itertools import islice
from typing import Final

from raftstore.config import SnapshotSettings
from raftstore.engine.channel.runner import ChannelRunner
from raftstore.engine.deadlines import Deadlines
from raftstore.engine.node_ports import METADATA_NAME
from raftstore.engine.snapshots.transfer import SMALL_BYTES, Stage, Transfer
from raftstore.types import ChannelId, NodeId

BASES_MAX: Final = 16
"""Channels that take a base at a time."""
WOKEN: Final = 4
"""Channels that look when a place is free: the first may have no use for it any more."""


class Places:
    """The places of one node."""

    def __init__(
        self,
        transfers: Mapping[ChannelId, Transfer],
        deadlines: Deadlines[ChannelId],
        settings: SnapshotSettings,
    ) -> None:
        self._transfers = transfers
        self._deadlines = deadlines
        self._settings = settings
        self._queue: dict[ChannelId, bool] = {}
        """Channels that found no place, the oldest first, and whether it is for a base; each looks
        again from time to time."""

    def is_full(self, runner: ChannelRunner, now_ms: int, *, for_base: bool) -> bool:
        """Whether one more channel has to wait."""
        taken = [each for each in self._transfers.values() if each.is_for_base == for_base]
        if for_base:
            return len(taken) >= BASES_MAX
        if runner.name == METADATA_NAME:
            return False
        since_ms = now_ms - self._settings.request_ms
        large = sum(each.is_large and each.moved_ms > since_ms for each in taken)
        return large >= self._settings.large_fetch_max or len(taken) >= self._settings.fetch_max

    def moved(self, transfer: Transfer, now_ms: int) -> None:
        """Take note that it came further: maybe another one may begin."""
        is_coming = transfer.stage is Stage.COPYING
        if not is_coming or transfer.bytes - transfer.moved_bytes >= SMALL_BYTES:
            transfer.moved_ms, transfer.moved_bytes = now_ms, transfer.bytes
        if not transfer.is_large:
            self.wake(now_ms, for_base=False)

    def wake(self, now_ms: int, *, for_base: bool) -> None:
        """Have the channels look that have waited longest for such a place."""
        waiting = (each for each, base in self._queue.items() if base == for_base)
        for channel in tuple(islice(waiting, WOKEN)):
            self._deadlines.push(channel, now_ms)

    def sending(self) -> Counter[NodeId]:
        """How many tables come from each node now."""
        return Counter(each.source for each in self._transfers.values() if not each.is_for_base)

    def wait(self, channel: ChannelId, *, for_base: bool) -> None:
        """The channel found no place."""
        self._queue[channel] = for_base

    def leave(self, channel: ChannelId) -> None:
        """Take a channel from the queue: it looks now, or needs no place any more."""
        self._queue.pop(channel, None)
