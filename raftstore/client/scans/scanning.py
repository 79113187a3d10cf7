"""A scan over all partitions of a table in key order: pages per channel, merged as they arrive."""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field

from raftstore.protocol.reads import ScanAnswer
from raftstore.types import Seq

Item = tuple[bytes, bytes | None, Seq]
"""Key, sealed value (None if only keys were asked for), version."""

FetchPage = Callable[[int, bytes], Awaitable[ScanAnswer]]
"""(partition, start) -> the next page of that partition."""


@dataclass(slots=True)
class _Lane:
    """One partition's rows: a page at hand and the next one on its way."""

    partition: int
    fetch: FetchPage
    page: Sequence[Item] = ()
    at: int = 0
    following: asyncio.Future[ScanAnswer] | None = field(default=None)

    def begin(self, start: bytes) -> None:
        self.following = asyncio.ensure_future(self.fetch(self.partition, start))

    async def advance(self) -> Item | None:
        """Return the next row; None at the end."""
        self.at += 1
        while self.at >= len(self.page):
            if self.following is None:
                return None
            answer = await self.following
            self.page, self.at, self.following = answer.rows, 0, None
            if answer.more and answer.rows:
                # The lowest key above the last one seen: nothing is between a key and key + NUL.
                self.begin(answer.rows[-1][0] + b"\0")
        return self.page[self.at]

    def stop(self) -> None:
        if self.following is not None:
            self.following.cancel()


async def taken(rows: AsyncGenerator[Item, None], bytes_max: int | None) -> list[Item]:
    """Return the rows up to the one with which they reach a size, all of them without one."""
    found: list[Item] = []
    size = 0
    async with aclosing(rows):
        async for item in rows:
            found.append(item)
            size += len(item[0]) + len(item[1] or b"")
            if bytes_max is not None and size >= bytes_max:
                break
    return found


async def merged(
    partitions: int, start: bytes, limit: int | None, fetch: FetchPage
) -> AsyncGenerator[Item, None]:
    """Yield rows of all partitions in key order, at most ``limit``; pages are fetched ahead."""
    lanes = [_Lane(partition, fetch) for partition in range(partitions)]
    try:
        for lane in lanes:
            lane.begin(start)
        heads = [(await lane.advance(), lane.partition) for lane in lanes]
        heap = [(item[0], partition, item) for item, partition in heads if item is not None]
        heapq.heapify(heap)
        count = 0
        while heap and (limit is None or count < limit):
            _, partition, item = heap[0]
            yield item
            count += 1
            following = await lanes[partition].advance()
            if following is None:
                heapq.heappop(heap)
            else:
                heapq.heapreplace(heap, (following[0], partition, following))
    finally:
        for lane in lanes:
            lane.stop()
        stopped = [lane.following for lane in lanes if lane.following is not None]
        await asyncio.gather(*stopped, return_exceptions=True)
