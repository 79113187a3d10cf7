"""Iterate over an asynchronous generator that runs in another thread's loop."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Generator
from typing import TypeVar

from raftstore.client.blocking.background_loop import BackgroundLoop
from raftstore.client.settings import SCAN_PAGE_ROWS

Item = TypeVar("Item")


def iterate(
    items: AsyncGenerator[Item, None], loop: BackgroundLoop, at_once: int = SCAN_PAGE_ROWS
) -> Generator[Item, None, None]:
    """Yield the items, up to ``at_once`` of them for each step of the loop."""
    turn = asyncio.Lock()

    async def take() -> list[Item]:
        taken: list[Item] = []
        async with turn:
            async for item in items:
                taken.append(item)
                if len(taken) == at_once:
                    break
        return taken

    async def close() -> None:
        # A step that Ctrl-C interrupted was cancelled, and ends in its own time: a generator that
        # is running refuses to be closed, and its refusal would hide the interrupt.
        async with turn:
            await items.aclose()

    try:
        while page := loop.call(take()):
            yield from page
    finally:
        if not loop.is_stopped:
            loop.call(close())
