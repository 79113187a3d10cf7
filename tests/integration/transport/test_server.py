"""``Server``: the one port, and those who come to it without saying who they are."""

from __future__ import annotations

from contextlib import AsyncExitStack

import pytest

from raftstore.messages import Hello
from raftstore.transport import server
from tests.integration.transport.networks import Node, cluster, hello, play, stranger


def test_silent_strangers_make_room_and_keep_nobody_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """Files are bounded: beyond the limit whoever has been silent longest is dismissed."""
    monkeypatch.setattr(server, "GREETINGS_MAX", 3)

    async def scene() -> None:
        async with cluster("n1") as (n1,), AsyncExitStack() as stack:
            silent = [await stack.enter_async_context(stranger(n1.endpoint, b"")) for _ in range(6)]
            for dismissed in silent[:3]:
                assert await dismissed.next() is None
            client = await stack.enter_async_context(stranger(n1.endpoint, hello()))
            assert isinstance(await client.next(), Hello)

    play(scene)


def test_silent_stranger_is_told_why_it_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who does not speak in time hears what is spoken here."""
    monkeypatch.setattr(server, "HELLO_TIMEOUT_MS", 20)

    async def scene() -> None:
        node = Node("n1")
        async with stranger(node.endpoint, b"\x00") as other:
            farewell = await other.goodbye()
            assert farewell.code == "hello_timeout"
            assert "no Hello within 20 ms" in farewell.message
        await node.network.close()

    play(scene)
