"""Links: what passes, what does not, and what is counted."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from jepsen_like.target.processes.proxy import Links, Weather
from raftstore.protocol.admin import StatusAnswer
from raftstore.protocol.codec import decode, encode_frame_of
from raftstore.protocol.framing import HEADER_BYTES, body_length
from raftstore.protocol.message import Message
from raftstore.protocol.node import Hello
from raftstore.transport.endpoints import parse_endpoint
from raftstore.transport.handshake import Purpose

Conversation = Callable[[asyncio.StreamWriter, "asyncio.Queue[Message]", Links], Awaitable[None]]


def _hello(node: str) -> bytes:
    purpose = Purpose.PEER if node else Purpose.CLIENT
    return encode_frame_of(Hello(1, purpose, b"c" * 16, node, b"b" * 16))


def _frame(number: int) -> bytes:
    return encode_frame_of(StatusAnswer(number, {}))


def _converse(conversation: Conversation, node: str = "n1@00") -> None:
    """A dialler, the links and a node n2 that keeps what reaches it."""

    async def run() -> None:
        arrived: asyncio.Queue[Message] = asyncio.Queue()
        ended: list[asyncio.StreamWriter] = []

        async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            try:
                while True:
                    header = await reader.readexactly(HEADER_BYTES)
                    arrived.put_nowait(decode(await reader.readexactly(body_length(header))))
            except (EOFError, OSError):
                writer.close()
                ended.append(writer)

        server = await asyncio.start_server(accept, "127.0.0.1", 0)
        target = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
        links = await asyncio.to_thread(Links, {"n2": target})
        try:
            _, writer = await asyncio.open_connection(*parse_endpoint(links.endpoints["n2"]))
            try:
                writer.write(_hello(node))
                async with asyncio.timeout(10):
                    assert isinstance(await arrived.get(), Hello)
                    await conversation(writer, arrived, links)
            finally:
                writer.close()
                await writer.wait_closed()
        finally:
            await asyncio.to_thread(links.close)
            server.close()
            await asyncio.gather(*(each.wait_closed() for each in ended), return_exceptions=True)

    asyncio.run(run())


async def _numbers(arrived: asyncio.Queue[Message], count: int) -> list[int]:
    found = [await arrived.get() for _ in range(count)]
    return [message.request_id for message in found if isinstance(message, StatusAnswer)]


def test_a_blocked_link_loses_frames_of_nodes_until_it_is_unblocked() -> None:
    """Given a blocked link, frames sent meanwhile are lost, and those after it arrive whole."""

    async def conversation(
        writer: asyncio.StreamWriter, arrived: asyncio.Queue[Message], links: Links
    ) -> None:
        links.block([("n1", "n2")])
        writer.write(_frame(1))
        while links.counts.blocked == 0:
            await asyncio.to_thread(lambda: None)
        links.unblock()
        writer.write(_frame(2))
        assert await _numbers(arrived, 1) == [2]

    _converse(conversation)


def test_a_blocked_client_link_loses_nothing_but_time() -> None:
    """TCP has taken a client's request, so it is delivered when the link is open again."""

    async def conversation(
        writer: asyncio.StreamWriter, arrived: asyncio.Queue[Message], links: Links
    ) -> None:
        links.block([("clients", "n2")])
        writer.write(_frame(1))
        while links.counts.blocked == 0:
            await asyncio.to_thread(lambda: None)
        assert arrived.empty()
        links.unblock()
        assert await _numbers(arrived, 1) == [1]

    _converse(conversation, node="")


def test_the_other_direction_passes_when_one_is_blocked() -> None:
    """A one-way partition is one-way."""

    async def conversation(
        writer: asyncio.StreamWriter, arrived: asyncio.Queue[Message], links: Links
    ) -> None:
        links.block([("n2", "n1")])
        writer.write(_frame(1))
        assert await _numbers(arrived, 1) == [1]

    _converse(conversation)


@pytest.mark.parametrize(
    ("weather", "expected"),
    [
        (Weather(duplicate=1.0), [1, 1, 2, 2]),
        (Weather(reorder=1.0), [2, 1]),
        (Weather(delay_ms=(5.0, 5.0)), [1, 2]),
        (Weather(bytes_per_second=10_000), [1, 2]),
    ],
)
def test_weather_does_to_frames_what_it_says(weather: Weather, expected: list[int]) -> None:
    """Twice, swapped, late or slow; never garbled."""

    async def conversation(
        writer: asyncio.StreamWriter, arrived: asyncio.Queue[Message], links: Links
    ) -> None:
        links.weather = weather
        writer.write(_frame(1) + _frame(2))
        assert await _numbers(arrived, len(expected)) == expected

    _converse(conversation)


def test_a_node_that_is_down_is_refused() -> None:
    """As its own machine would: at once."""

    async def conversation(
        writer: asyncio.StreamWriter, arrived: asyncio.Queue[Message], links: Links
    ) -> None:
        del writer, arrived
        await asyncio.to_thread(links.listen, "n2", is_on=False)
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection(*parse_endpoint(links.endpoints["n2"]))
        await asyncio.to_thread(links.listen, "n2", is_on=True)
        _, again = await asyncio.open_connection(*parse_endpoint(links.endpoints["n2"]))
        again.close()
        await again.wait_closed()

    _converse(conversation)
