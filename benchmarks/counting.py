"""The machine whose commands are measured: totals in memory, one for each key."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import msgspec

import raftstore

TOTALS_PER_CHUNK = 10_000


class MemoryCounter(raftstore.MemoryMachine):
    """Command: a whole number to add. Result and answer: the total."""

    commands = results = answers = raftstore.codec(int)

    def __init__(self) -> None:
        self._totals: dict[bytes, int] = {}

    def apply(self, command: int, context: raftstore.CommandContext) -> int:
        """Add to the total of the key and return it."""
        total = self._totals.get(context.key, 0) + command
        self._totals[context.key] = total
        return total

    def query(self, request: bytes, context: raftstore.QueryContext) -> int:
        """The total of the key, without one the sum of all."""
        del request
        return self._totals.get(context.key, 0) if context.key else sum(self._totals.values())

    def snapshot(self) -> Iterator[bytes]:
        """The totals in the order of their keys."""
        totals = sorted(self._totals.items())
        for first in range(0, len(totals), TOTALS_PER_CHUNK):
            yield msgspec.msgpack.encode(totals[first : first + TOTALS_PER_CHUNK])

    def restore(self, chunks: Iterable[bytes]) -> None:
        """Take the totals."""
        for chunk in chunks:
            self._totals.update(msgspec.msgpack.decode(chunk, type=list[tuple[bytes, int]]))
