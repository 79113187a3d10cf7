"""Guids of this client: one producer session per channel, bounded writes in flight (S4.5).

A channel remembers the outcomes of the last ``GUID_WINDOW`` counters of a session. So the span
from the oldest unfinished write to the newest must stay below that, or a retry of the oldest could
not be distinguished from an expired one. A session per channel keeps a channel without leader from
holding up the others.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Final

from raftstore.config import GUID_WINDOW
from raftstore.types import Guid, Seq, guid_counter, make_guid

GUID_LIFE_MS: Final = 480_000
"""A write is given up this long after its first attempt, whatever its deadline: nodes recognise a
retry until many later writes are committed (S4.5), and refuse late copies of what they refused for
longer than this (``refused_keep_ms``, S5.6)."""
SESSION_BYTES: Final = 8
"""Of a guid; the rest is its counter."""
SESSION_IDLE_MS: Final = 300_000
"""After this pause a new session begins: nodes forget the sessions that wrote longest ago, and may
then answer a retry only with "expired"."""


class ProducerSession:
    """Counters of one channel. ``new_session`` returns 8 random bytes."""

    def __init__(self, new_session: Callable[[], bytes], *, window: int = GUID_WINDOW) -> None:
        self._new_session = new_session
        self._window = window
        self._session = new_session()
        self._counter = 0
        self._open: dict[int, None] = {}
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._used_ms = 0
        self._is_renewal_due = False
        self.after_seq = Seq(0)
        """The newest seq known to be committed, 0 when none is: what is sent first from here on
        comes behind it, which proves the age of its retries (S4.5)."""

    def on_acked(self, last_seq: Seq) -> None:
        """Some write of this client is committed there."""
        self.after_seq = max(self.after_seq, last_seq)

    def try_reserve(self, now_ms: int, inner: int = 0) -> Guid | None:
        """Return a new guid if fewer than the window's counters are in flight. ``inner`` counters
        behind it are taken, too, for what shares the record (``protocol.shared_commands``)."""
        return None if self._waiting or self._is_full() else self._take(now_ms, inner)

    async def reserve(self, now_ms: int, inner: int = 0) -> Guid:
        """Return a new guid, once fewer than the window's counters are in flight."""
        while self._is_full() or self._waiting:
            turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting.append(turn)
            try:
                await turn
            except asyncio.CancelledError:
                if turn.done() and not turn.cancelled():
                    self._wake()
                raise
            finally:
                if turn in self._waiting:
                    self._waiting.remove(turn)
            if not self._is_full():
                break
        guid = self._take(now_ms, inner)
        self._wake()
        return guid

    def release(self, guid: Guid, *, expired: bool = False) -> None:
        """The write has its outcome. ``expired``: the nodes forgot the session; begin another."""
        if guid[:8] == self._session:
            self._open.pop(guid_counter(guid), None)  # one that is repeated is open no longer
            self._is_renewal_due = self._is_renewal_due or expired
        self._wake()

    def _take(self, now_ms: int, inner: int) -> Guid:
        is_idle = not self._open and now_ms - self._used_ms > SESSION_IDLE_MS
        if self._counter and (is_idle or self._is_renewal_due):
            self._session, self._counter, self._open = self._new_session(), 0, {}
            self._is_renewal_due = False
            self.after_seq = Seq(0)  # others may have written much since
        self._used_ms = now_ms
        self._counter += 1
        self._open[self._counter] = None
        guid = make_guid(self._session, self._counter)
        self._counter += inner
        return guid

    def _is_full(self) -> bool:
        # S4.5: the span counts, not the number: finished writes in between free nothing.
        oldest = next(iter(self._open), self._counter + 1)
        return self._counter + 1 - oldest >= self._window - 1

    def _wake(self) -> None:
        while self._waiting and not self._is_full():
            turn = self._waiting.popleft()
            if not turn.done():
                turn.set_result(None)
                return
