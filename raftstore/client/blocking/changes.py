"""Changes of a table for programs without asyncio; see ``table_changes``."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import Final

from raftstore.client.blocking.background_loop import BackgroundLoop
from raftstore.client.blocking.iteration import iterate
from raftstore.client.changes.change_feed import Change, Ends
from raftstore.client.table import AsyncTable
from raftstore.client.table_changes import Start
from raftstore.policy.routing import Prefer
from raftstore.protocol.changes import ChangePiece
from raftstore.types import PreferName

CHANGES_AT_ONCE: Final = 1_000
"""Handed over for each step of the loop."""


class ChangesTable:
    """The part of ``Table`` that reads changes."""

    _table: AsyncTable
    _loop: BackgroundLoop

    def changes(
        self,
        start: Start | None = None,
        stop: Start | None = None,
        *,
        follow: bool = False,
        prefer: Prefer | PreferName | None = None,
        timeout: float | None = None,
    ) -> Generator[Change, None, None]:
        """Iterate over what changed in the table, in the order of each partition."""
        found = self._table.changes(start, stop, follow=follow, prefer=prefer, timeout=timeout)
        # A follower wants each change when it comes.
        return iterate(found, self._loop, 1 if follow else CHANGES_AT_ONCE)

    def change_ends(self, *, timeout: float | None = None) -> Ends:
        """Return per partition the first and the last position of changes there is now."""
        return self._loop.call(self._table.change_ends(timeout=timeout))

    def change_limit(
        self,
        partition: int,
        after: int,
        to_seq: int,
        rows_max: int,
        *,
        timeout: float | None = None,
    ) -> int:
        """Return the position of one partition that is at most so many rows behind ``after``."""
        return self._loop.call(
            self._table.change_limit(partition, after, to_seq, rows_max, timeout=timeout)
        )

    def change_pieces(
        self,
        partition: int,
        after: int,
        to_seq: int,
        *,
        prefer: Prefer | PreferName | None = None,
        timeout: float | None = None,
    ) -> Generator[Sequence[ChangePiece], None, None]:
        """Iterate over pages of one partition's changes as nodes send them (``pairs_of``)."""
        pages = self._table.change_pieces(partition, after, to_seq, prefer=prefer, timeout=timeout)
        return iterate(pages, self._loop, 1)
