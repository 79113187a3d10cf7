"""``Server``: the one port, and those who come to it without saying who they are."""

from __future__ import annotations

import asyncio
import errno
import socket
from contextlib import AsyncExitStack
from typing import Any

import pytest

from raftstore.protocol.node import Hello
from raftstore.transport import server
from raftstore.transport.accepting import Acceptor, FileReserve
from tests.integration.transport.networks import Node, cluster, hello, play, raw_connection


def test_silent_connections_make_room_for_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """Files are bounded: beyond the limit the connection that is silent for longest is closed."""
    monkeypatch.setattr(server, "GREETINGS_MAX", 3)

    async def scene() -> None:
        async with cluster("n1") as (n1,), AsyncExitStack() as stack:
            silent = [
                await stack.enter_async_context(raw_connection(n1.endpoint, b"")) for _ in range(6)
            ]
            for dismissed in silent[:3]:
                assert await dismissed.next() is None
            client = await stack.enter_async_context(raw_connection(n1.endpoint, hello()))
            assert isinstance(await client.next(), Hello)

    play(scene)


def test_silent_connection_is_closed_with_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    """Given a connection without a Hello in time, it is closed with the reason."""
    monkeypatch.setattr(server, "HELLO_TIMEOUT_MS", 20)

    async def scene() -> None:
        node = Node("n1")
        async with raw_connection(node.endpoint, b"\x00") as other:
            farewell = await other.goodbye()
            assert farewell.code == "hello_timeout"
            assert "no Hello within 20 ms" in farewell.message
        await node.network.close()

    play(scene)


def test_connection_that_would_take_a_reserved_file_is_closed_and_a_later_one_served() -> None:
    """The node's store needs files, too; the port goes on when some are free again."""

    async def scene() -> None:
        files = FileReserve(0, 0)
        node = Node("n1", files=files)
        async with raw_connection(node.endpoint, hello()) as refused:
            assert await refused.next() is None
        assert files.refused["binary"] >= 1
        files.first_reserved = 1_000_000
        async with raw_connection(node.endpoint, b"\x00" * 64) as other:
            assert (await other.goodbye()).code == "unsupported_version"
        await node.network.close()

    play(scene)


def test_port_that_finds_no_file_at_all_waits_and_goes_on() -> None:
    """EMFILE of accept: it is reported once, and others are accepted when files are free again."""

    async def scene() -> None:
        listener, accepted = Refusing(), asyncio.get_running_loop().create_future()
        files = FileReserve(1_000_000, 0)
        acceptor = Acceptor(listener, files, "binary", accepted.set_result)
        with socket.create_connection(listener.getsockname()):
            made = await accepted
            assert files.refused["binary"] == 2
            made.close()
        acceptor.close()

    play(scene)


class Refusing(socket.socket):
    """A listener that finds no file twice."""

    def __init__(self) -> None:
        super().__init__()
        self.bind(("127.0.0.1", 0))
        self.listen()
        self.setblocking(False)
        self._refusals = 2

    def accept(self) -> Any:
        """As the system does it."""
        if self._refusals:
            self._refusals -= 1
            raise OSError(errno.EMFILE, "Too many open files")
        return super().accept()
