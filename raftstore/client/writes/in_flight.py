"""Back-pressure: bytes that were sent and not answered yet, bounded, first come first served."""

from __future__ import annotations

import asyncio
from collections import deque


class ByteBudget:
    """Bounds bytes in flight. One write larger than the bound passes when it is alone."""

    def __init__(self, bytes_max: int) -> None:
        self.bytes_max = bytes_max
        self._used = 0
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()

    @property
    def used(self) -> int:
        """Bytes in flight."""
        return self._used

    def try_acquire(self, size: int) -> bool:
        """Take room if there is some and nobody waits for it."""
        if self._waiting or not self._fits(size):
            return False
        self._used += size
        return True

    async def acquire(self, size: int) -> None:
        """Wait for room, then take it. Cancelling gives up the place in the queue."""
        if self.try_acquire(size):
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        entry = (size, turn)
        self._waiting.append(entry)
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self.release(size)  # the room was given to us in the same moment
            else:
                if entry in self._waiting:
                    self._waiting.remove(entry)
                self._admit()
            raise

    def release(self, size: int) -> None:
        """Give room back."""
        self._used -= size
        assert self._used >= 0
        self._admit()

    def _fits(self, size: int) -> bool:
        return self._used == 0 or self._used + size <= self.bytes_max

    def _admit(self) -> None:
        while self._waiting and self._fits(self._waiting[0][0]):
            size, turn = self._waiting.popleft()
            if not turn.done():
                self._used += size
                turn.set_result(None)
