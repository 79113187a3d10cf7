"""The changes of a table as users ask for them; see ``change_feed``."""

# ruff: noqa: ASYNC109 - timeout is what our callers expect to name, here as in blocking.py

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterable, Sequence
from functools import partial
from typing import Final

from raftstore.client.changes.change_feed import (
    EARLIEST,
    LATEST,
    Change,
    ChangeFeed,
    ChangePosition,
    ChangeReader,
    Ends,
    Place,
    places_of,
)
from raftstore.client.position import Position
from raftstore.client.reads.read_spec import prefer_of
from raftstore.client.table_reads import TableReads
from raftstore.errors import ArgumentError
from raftstore.policy.routing import Prefer
from raftstore.protocol.admin import TableInfo
from raftstore.protocol.changes import ChangePiece
from raftstore.types import PreferName, Seq

Start = ChangePosition | Position | str

POLL_S: Final = 0.25
"""Pause of ``follow`` after it found nothing new."""


class TableChanges(TableReads):
    """The part of ``AsyncTable`` that reads changes."""

    async def changes(
        self,
        start: Start | None = None,
        stop: Start | None = None,
        *,
        follow: bool = False,
        prefer: Prefer | PreferName | None = None,
        timeout: float | None = None,
    ) -> AsyncGenerator[Change, None]:
        """Iterate over what changed in the table, in the order of each partition.

        ``start``: "earliest" (default), "latest", the position of a change, or that of a write or a
        snapshot: what changed since. ``stop``: such a position, too; without one everything that
        was acknowledged before this call. ``follow``: wait for what is to come, for ever. A
        position reads on exactly behind its change. ``prefer``: which replica is asked first (see
        ``get``). ``timeout`` is for each request.

        Raises DataLossError for changes that are not there (any more), PositionError for a position
        of another table.
        """
        if follow and stop is not None:
            raise ArgumentError("follow=True never ends: leave stop out, or follow")
        info, schema = await self._open_of(
            partial(_check_places, (start, stop)), self._context.deadline_ms(timeout)
        )
        feed = ChangeFeed(self._context, self._channel_reads, info, timeout, prefer_of(prefer))
        ends = await feed.ends()
        reader = ChangeReader(info, schema, feed.start_of(start, ends))
        while True:
            before = tuple(reader.places)
            to_seqs = ends.last if stop is None else _until(feed, stop, ends)
            for partition, to_seq in enumerate(to_seqs):
                pages = feed.pages(partition, reader.places[partition], to_seq)
                try:
                    async for page in pages:
                        for change in reader.read(partition, page):
                            yield change
                finally:
                    await pages.aclose()
            if not follow:
                return
            if before == tuple(reader.places):
                await asyncio.sleep(POLL_S)
            ends = await feed.ends()

    async def change_ends(self, *, timeout: float | None = None) -> Ends:
        """Return per partition the first and the last position of changes there is now.

        They are before the oldest that is kept, and behind all that were acknowledged before this
        call.
        """
        return await (await self._feed(timeout)).ends()

    async def change_limit(
        self,
        partition: int,
        after: int,
        to_seq: int,
        rows_max: int,
        *,
        timeout: float | None = None,
    ) -> int:
        """Return the position of one partition that is at most so many rows behind ``after``.

        It never lies inside a record or an atomic batch, so one of them may be more.
        """
        feed = await self._feed(timeout)
        return await feed.limited(Seq(after), Seq(to_seq), partition, rows_max)

    async def change_pieces(
        self,
        partition: int,
        after: int,
        to_seq: int,
        *,
        prefer: Prefer | PreferName | None = None,
        timeout: float | None = None,
    ) -> AsyncGenerator[Sequence[ChangePiece], None]:
        """Iterate over pages of one partition's changes as nodes send them (``pairs_of``)."""
        feed = await self._feed(timeout, prefer)
        pages = feed.pages(partition, Place(Seq(after)), Seq(to_seq))
        try:
            async for page in pages:
                if page.pieces:
                    yield page.pieces
        finally:
            await pages.aclose()

    async def _feed(
        self, timeout: float | None, prefer: Prefer | PreferName | None = None
    ) -> ChangeFeed:
        info, _ = await self._open(self._context.deadline_ms(timeout))
        return ChangeFeed(self._context, self._channel_reads, info, timeout, prefer_of(prefer))


def _check_places(given: Iterable[Start | None], info: TableInfo) -> None:
    """Raise PositionError unless all of them say where in this table."""
    for place in given:
        if place is not None and place not in (EARLIEST, LATEST):
            places_of(place, info)


def _until(feed: ChangeFeed, stop: Start, ends: Ends) -> Sequence[Seq]:
    """Where to stop: whole records, and no further than what there is now."""
    if stop == LATEST:
        return ends.last
    if stop == EARLIEST:
        return ends.first
    places = places_of(stop, feed.info)
    return [min(place.after, last) for place, last in zip(places, ends.last, strict=True)]
