"""Questions about the log of a node that its index in memory answers."""

from __future__ import annotations

from collections import Counter
from typing import Final

from raftstore.ports.log import Base, DroppedRecords
from raftstore.storage.log.base_rules import why_hole_stays
from raftstore.storage.log.index import ChannelIndex
from raftstore.types import ChannelId, History, Seq, Term

_NOTHING: Final = ChannelIndex()


class LogFacts:
    """Answers of one log that need no file."""

    _channels: dict[ChannelId, ChannelIndex]
    _dropped: dict[ChannelId, None]
    _dropped_bytes: Counter[int]
    _floor: int
    _segment: int
    _offset: int
    _closed_bytes: int
    _unsynced_bytes = 0
    _operation = 0
    _durable_operation = 0

    def last_operation(self) -> int:
        """Number of the newest buffered operation (0: none yet)."""
        return self._operation

    def durable_operation(self) -> int:
        """Number of the newest durable operation."""
        return self._durable_operation

    def channels(self) -> tuple[ChannelId, ...]:
        """Channels the log or its mark knows, without dropped ones and those whose replica was
        removed for good so far, in a stable order."""
        return tuple(
            channel for channel, index in sorted(self._channels.items()) if not index.is_gone
        )

    def removed(self, channel: ChannelId) -> int | None:
        """The highest number of a replica of the channel that was removed here; None: none was."""
        index = self._channels.get(channel)
        return None if index is None or index.removed is None else index.removed.number

    def holds(self, channel: ChannelId) -> bool:
        """Whether anything is known of a replica of the channel that is not removed."""
        index = self._channels.get(channel)
        return index is not None and not index.is_gone

    def is_gone(self, channel: ChannelId) -> bool:
        """Whether a replica was removed and no later one has begun to hold anything."""
        index = self._channels.get(channel)
        return index is not None and index.is_gone

    def is_dropped(self, channel: ChannelId) -> bool:
        """Whether the channel's id is refused for ever (S0.8)."""
        return channel in self._dropped

    def dropped_channels(self) -> tuple[ChannelId, ...]:
        """Every refused id, in a stable order."""
        return tuple(sorted(self._dropped))

    def term_at(self, channel: ChannelId, seq: Seq) -> Term | None:
        """Term of the record that contains ``seq``; None when the log does not hold it."""
        index = self._channels.get(channel)
        return None if index is None else index.term_known(seq)

    def index_of(self, channel: ChannelId) -> ChannelIndex | None:
        """Where the channel's records are, for tools that look at a stopped node's log."""
        return self._channels.get(channel)

    def may_hold(self, channel: ChannelId, promised: History) -> bool:
        """Whether that record is held, or was lost with a hole that will be filled (S0.3)."""
        index = self._channels.get(channel)
        return index is not None and index.may_hold(promised)

    def why_hole_stays(self, channel: ChannelId, base: Base) -> str | None:
        """Why this base cannot stand for what the log lacks; None: it can (S0.3)."""
        return why_hole_stays(self._channels.get(channel, _NOTHING), base)

    def holds_all(self, channel: ChannelId) -> bool:
        """Whether the table of a channel can be built again from its log alone.

        The log has to begin with the channel's first record. If files below a floor were removed, a
        channel without records may have had some there.
        """
        index = self._channels.get(channel, _NOTHING)
        return index.base.seq == 0 and (self._floor == 1 or len(index) > 0)

    def unsynced_bytes(self) -> int:
        """Bytes of memory in entries that are not durable yet."""
        return self._unsynced_bytes

    def size_bytes(self) -> int:
        """Bytes of all segments, buffered ones included."""
        return self._closed_bytes + self._offset

    def floor_max(self) -> int:
        """The highest floor that ``begin_floor`` takes now."""
        return min((self._segment, *filter(None, map(self.live_from, self._channels))))

    def floor(self) -> int:
        """Number of the first segment of the log that is kept."""
        return self._floor

    def live_from(self, channel: ChannelId) -> int | None:
        """The oldest segment that the channel needs; None: it needs none."""
        index = self._channels.get(channel)
        if index is None:
            return None
        # Which records are missing is known from the damaged entries alone.
        return self._floor if index.kept else index.live_from()

    def dropped(self) -> DroppedRecords:
        """Records of dropped channels in the segments that there are."""
        sizes = self._dropped_bytes
        return DroppedRecords(sizes.total(), max(sizes, default=0))
