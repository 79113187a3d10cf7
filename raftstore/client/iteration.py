"""Rows that come by a loop in another thread, for programs without asyncio."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Generator
from typing import Any

from raftstore.client.background_loop import BackgroundLoop
from raftstore.client.settings import SCAN_PAGE_ROWS


def iterate(
    rows: AsyncGenerator[dict[str, Any], None], loop: BackgroundLoop
) -> Generator[dict[str, Any], None, None]:
    """Yield rows, many of them for each step of the loop."""
    try:
        while page := loop.call(_take(rows, SCAN_PAGE_ROWS)):
            yield from page
    finally:
        if not loop.is_stopped:
            loop.call(_close(rows))


async def _take(rows: AsyncGenerator[dict[str, Any], None], count: int) -> list[dict[str, Any]]:
    taken: list[dict[str, Any]] = []
    while len(taken) < count:
        try:
            taken.append(await anext(rows))
        except StopAsyncIteration:
            break
    return taken


async def _close(rows: AsyncGenerator[dict[str, Any], None]) -> None:
    await rows.aclose()
