"""Leaders of channels, asked of each node itself: a client would go on to others."""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from typing import Final

from raftstore.errors import RaftstoreError
from raftstore.protocol.admin import ClusterInfo, ClusterInfoAnswer
from raftstore.protocol.message import Message
from raftstore.transport.client_connection import ClientConnection
from raftstore.types import node_name

ASK_TIMEOUT_S: Final = 2.0
CLOSING_S: Final = 0.01
"""Connections close in the next turns of the loop, which ends with the call."""


async def ask_leaders(endpoints: Collection[str]) -> dict[str, str]:
    """``table/partition`` -> the leader of the highest term any of these nodes reports."""
    found: dict[str, tuple[int, str]] = {}
    answers = await asyncio.gather(*(_ask(endpoint) for endpoint in endpoints))
    await asyncio.sleep(CLOSING_S)
    for name, term, leader in (each for answer in answers for each in answer):
        found[name] = max(found.get(name, (0, "")), (term, leader))
    return {name: leader for name, (_, leader) in sorted(found.items())}


async def _ask(endpoint: str) -> list[tuple[str, int, str]]:
    answer: asyncio.Future[ClusterInfoAnswer] = asyncio.get_running_loop().create_future()

    def on_message(message: Message) -> None:
        if isinstance(message, ClusterInfoAnswer) and not answer.done():
            answer.set_result(message)

    try:
        async with asyncio.timeout(ASK_TIMEOUT_S):
            connection = await ClientConnection.connect(
                endpoint,
                timeout_ms=int(ASK_TIMEOUT_S * 1000),
                on_message=on_message,
                on_lost=lambda _error: None,
            )
            try:
                connection.send(ClusterInfo(1))
                tables = (await answer).tables
            finally:
                connection.close()
    except (RaftstoreError, OSError, TimeoutError):
        return []
    return [
        (f"{table.name}/{number}", channel.term, node_name(channel.leader))
        for table in tables
        for number, channel in enumerate(table.channels)
        if channel.leader is not None
    ]
