"""Byte counters per peer and kind of message; a test shows by them what a leader sends to whom."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from raftstore.protocol.codec import WITH_PAYLOADS, payload_bytes
from raftstore.protocol.message import Message
from raftstore.types import NodeId

_GONE: Final = NodeId("")
"""In the place of all peers that have left."""


@dataclass(slots=True)
class Count:
    """Frames of one kind to one peer."""

    frames: int = 0
    bytes: int = 0
    payload_bytes: int = 0
    dropped: int = 0


class Traffic:
    """Bytes given to a node's outgoing bulk connections."""

    def __init__(self) -> None:
        self._counts: dict[tuple[NodeId, str], Count] = {}

    def sent(self, to: NodeId, message: Message, frame_bytes: int, *, dropped: bool) -> None:
        """Count one message."""
        key = (to, type(message).__name__)
        count = self._counts.get(key)
        if count is None:
            count = self._counts[key] = Count()
        if dropped:
            count.dropped += 1
            return
        count.frames += 1
        count.bytes += frame_bytes
        if type(message) in WITH_PAYLOADS:
            count.payload_bytes += payload_bytes(message)

    def forget(self, node: NodeId) -> None:
        """The peer has left the cluster. Totals stay what was sent: they are counters."""
        for key in [key for key in self._counts if key[0] == node]:
            count, kept = self._counts.pop(key), self._counts.setdefault((_GONE, key[1]), Count())
            kept.frames += count.frames
            kept.bytes += count.bytes
            kept.payload_bytes += count.payload_bytes
            kept.dropped += count.dropped

    def to_peer(self, node: NodeId) -> dict[str, Count]:
        """Counts by kind for one peer."""
        return {kind: count for (peer, kind), count in self._counts.items() if peer == node}

    def totals(self) -> dict[str, dict[str, int]]:
        """Counts by kind over all peers, for status."""
        sums: dict[str, dict[str, int]] = {}
        for (_, kind), count in self._counts.items():
            row = sums.setdefault(kind, {"frames": 0, "bytes": 0, "payload_bytes": 0, "dropped": 0})
            row["frames"] += count.frames
            row["bytes"] += count.bytes
            row["payload_bytes"] += count.payload_bytes
            row["dropped"] += count.dropped
        return sums
