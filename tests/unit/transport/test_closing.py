"""A connection that is closed while the other side has reset it, which nobody has noticed yet."""

from __future__ import annotations

import asyncio
from typing import Any
from unittest.mock import Mock

from raftstore.config import PROTOCOL_VERSION
from raftstore.protocol.node import Hello
from raftstore.transport.connection import FlushQueue, FramedProtocol
from raftstore.transport.handshake import Purpose
from raftstore.types import node_id


class ResetTransport:
    """Of a socket that is reset behind the first write: the next one finds it out and closes the
    transport, and those behind it raise, as uvloop's do."""

    def __init__(self) -> None:
        self.writes: list[bytes] = []
        self._is_closing = False

    def write(self, data: bytes) -> None:
        if self._is_closing:
            raise RuntimeError("the handler is closed")
        self.writes.append(data)
        self._is_closing = len(self.writes) > 1

    def is_closing(self) -> bool:
        return self._is_closing

    def get_write_buffer_size(self) -> int:
        return 0

    def get_extra_info(self, name: str) -> Any:
        del name
        return Mock()

    def set_write_buffer_limits(self, *, high: int) -> None:
        del high


def test_close_says_nothing_more_when_what_was_queued_met_a_reset() -> None:
    """The thread that closes all connections goes on with the others."""

    async def scene() -> list[bytes]:
        hello = Hello(PROTOCOL_VERSION, Purpose.PEER, b"c" * 16, node_id("n1", b"1" * 16), b"boot")
        flushes = FlushQueue(asyncio.get_running_loop())
        connection = FramedProtocol(
            owner=Mock(), hello=hello, accepts=frozenset(), flushes=flushes,
            queue_bytes_max=1_000, silence_ms=1_000, remote=hello,
        )  # fmt: skip
        transport: Any = ResetTransport()
        connection.connection_made(transport)
        assert connection.send(b"queued")
        connection.close("closing", "the node is stopping")
        writes: list[bytes] = transport.writes
        return writes

    assert asyncio.run(scene())[1:] == [b"queued"]
