"""The log of a running node, read back entry by entry: what a start would find damaged (S0.3).

Reads only what is durable and therefore stays as it is, also of the segment that is being written.
A step checks what ties entries together: the length, the checksum and the chain of each; nothing is
decoded. Where that fails, the end of the damage is looked for as at a start
(``raftstore.storage.log.resync``).

``LogScrub`` belongs to the loop thread; the steps that it returns run on any other one.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final, NamedTuple

from raftstore.crc import crc32
from raftstore.ports.scrub import LogDamage, LogPlace, LogStep
from raftstore.storage.files import FileOps
from raftstore.storage.log.index import ChannelIndex, offset_of, position_of, segment_of
from raftstore.storage.log.records import (
    BODY_BYTES_MAX,
    BODY_BYTES_MIN,
    HEADER,
    HEADER_BYTES,
    next_chain,
)
from raftstore.storage.log.recovery import SegmentFacts
from raftstore.storage.log.resync import damage_at
from raftstore.storage.log.segments import segment_path
from raftstore.types import EMPTY_HISTORY, ChannelId

ENTRY_BYTES_MAX: Final = HEADER_BYTES + BODY_BYTES_MAX


class _Range(NamedTuple):
    """Bytes of a file that one step reads; nobody writes these any more."""

    place: LogPlace
    stop: int
    """Where the durable part of the segment ends."""
    following: LogPlace | None
    """Where the next segment begins; None: there is none yet."""
    bytes_max: int


class LogScrub:
    """ports.LogVerifying over segment files."""

    def __init__(
        self,
        ops: FileOps,
        directory: Path,
        segments: Mapping[int, SegmentFacts],
        channels: Mapping[ChannelId, ChannelIndex],
        durable_position: Callable[[], int],
    ) -> None:
        """``segments`` and ``channels`` are looked at whenever a step is prepared."""
        self._ops = ops
        self._directory = directory
        self._segments = segments
        self._channels = channels
        self._durable_position = durable_position

    def step(self, place: LogPlace | None, bytes_max: int) -> Callable[[], LogStep]:
        """Prepare a step; one entry is read whatever ``bytes_max`` says."""
        durable = self._durable_position()
        if place is None or place.segment < min(self._segments):
            place = self._start_of(min(self._segments))
        while place is not None and place.offset >= self._stop(place.segment, durable):
            place = self._start_after(place.segment, durable)
        if place is None:
            return lambda: LogStep(None, 0)
        stop = self._stop(place.segment, durable)
        following = self._start_after(place.segment, durable)
        wanted = _Range(place, stop, following, bytes_max)
        return lambda: self._verify(wanted)

    def _stop(self, segment: int, durable: int) -> int:
        if segment == segment_of(durable):
            return offset_of(durable)
        return self._segments[segment].size_bytes

    def _start_of(self, segment: int) -> LogPlace:
        return LogPlace(segment, 0, self._segments[segment].previous_chain)

    def _start_after(self, segment: int, durable: int) -> LogPlace | None:
        later = [each for each in self._segments if segment < each <= segment_of(durable)]
        return self._start_of(min(later)) if later else None

    # --- what is hit ------------------------------------------------------------------------------

    def channels_hit(self, damage: LogDamage) -> tuple[ChannelId, ...]:
        """Channels whose records are in there, in a stable order."""
        low, high = _positions(damage)
        return tuple(
            channel
            for channel in sorted(self._channels)
            if self._channels[channel].has_records_in(low, high)
        )

    def bases_hit(self, damage: LogDamage) -> tuple[ChannelId, ...]:
        """Channels whose newest base entry is in that segment."""
        return tuple(
            channel
            for channel in sorted(self._channels)
            if self._channels[channel].base_segment == damage.segment
        )

    def doubt(self, channel: ChannelId) -> None:
        """All of it may be forgotten, but not what was promised (S0.3)."""
        index = self._channels[channel]
        index.is_doubted = True
        index.shortfall = max(index.last_part.end, index.shortfall or EMPTY_HISTORY)

    def lose(self, channel: ChannelId, damage: LogDamage) -> None:
        """The channel has a hole there from now on."""
        self._channels[channel].lose_records_in(*_positions(damage))

    # --- another thread ---------------------------------------------------------------------------

    def _verify(self, wanted: _Range) -> LogStep:
        place, stop = wanted.place, wanted.stop
        size = min(wanted.bytes_max, stop - place.offset)
        try:
            data = self._read(wanted, place.offset, size)
            end, chain, fault = _verified(data, place.chain, is_all=place.offset + size == stop)
            if end == 0 and not fault:
                # One entry is longer than a step.
                size = min(ENTRY_BYTES_MAX, stop - place.offset)
                data = self._read(wanted, place.offset, size)
                end, chain, fault = _verified(data, place.chain, is_all=True)
                fault = "" if end else fault
            if not fault and len(data) < size:
                fault = "the file is shorter than what was written"
        except OSError as error:
            text = f"it cannot be read: {error.strerror or error}"
            return self._damaged(wanted, place.offset, None, text)
        if fault:
            return self._damaged(wanted, place.offset + end, chain, fault)
        at = place.offset + end
        goes_on = LogPlace(place.segment, at, chain) if at < stop else wanted.following
        return LogStep(goes_on, end)

    def _damaged(self, wanted: _Range, offset: int, chain: int | None, reason: str) -> LogStep:
        """Find where the damage ends. Of a closed segment everything behind it counts as damaged
        when nothing proves that; of the one that is written, what follows proves it in the end."""
        segment, stop, after = wanted.place.segment, wanted.stop, wanted.following
        try:
            data = self._read(wanted, 0, stop)
            following_chain = None if after is None else after.chain
            found = damage_at(data, offset, chain, following_chain)
        except OSError:
            found = None
        end = stop if after is not None else offset
        if found is not None:
            end = found.end
            if end < stop:
                after = LogPlace(segment, end, found.chain)
        damage = LogDamage(segment, offset, end, reason)
        return LogStep(after, max(0, end - wanted.place.offset), damage)

    def _read(self, wanted: _Range, offset: int, size: int) -> bytes:
        path = segment_path(self._directory, wanted.place.segment)
        descriptor = self._ops.open(path, os.O_RDONLY)
        try:
            if offset == 0 and wanted.following is not None:
                # Nobody writes it any more: what the disk has counts, not what memory still shows.
                self._ops.forget_cached(descriptor)
            parts = []
            while size:
                part = self._ops.pread(descriptor, size, offset)
                if not part:
                    break
                parts.append(part)
                offset += len(part)
                size -= len(part)
            return b"".join(parts)
        finally:
            self._ops.close(descriptor)


def _positions(damage: LogDamage) -> tuple[int, int]:
    return (
        position_of(damage.segment, damage.offset),
        position_of(damage.segment, damage.end),
    )


def _verified(data: bytes, chain: int | None, *, is_all: bool) -> tuple[int, int | None, str]:
    """Where the last intact entry ends, the chain there, and what is wrong with the next one.

    ``is_all``: nothing follows the data, so an entry that is cut off is damaged.
    """
    view, at, end = memoryview(data), 0, len(data)
    while at < end:
        if end - at < HEADER_BYTES:
            return at, chain, "a header is cut off" if is_all else ""
        length, crc, link = HEADER.unpack_from(view, at)
        if not BODY_BYTES_MIN <= length <= BODY_BYTES_MAX:
            return at, chain, f"an entry claims {length} bytes"
        if chain is not None and next_chain(chain, length, crc) != link:
            return at, chain, "an entry does not continue the one before it"
        body = at + HEADER_BYTES
        if body + length > end:
            return at, chain, "an entry is cut off" if is_all else ""
        if crc32(view[body : body + length]) != crc:
            return at, chain, "the checksum of an entry does not match"
        at, chain = body + length, link
    return at, chain, ""
