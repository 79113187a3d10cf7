"""``Dialer``: one connection to one peer, again and again."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field, replace

import pytest

from raftstore.config import TransportSettings
from raftstore.protocol.codec import encode_frame_of
from raftstore.protocol.message import Message
from raftstore.protocol.node import Goodbye
from raftstore.transport import dialer
from raftstore.transport.dialer import Dialer
from raftstore.transport.endpoints import format_endpoint
from raftstore.transport.handshake import Identity, Purpose
from raftstore.types import NodeId
from tests.integration.transport.networks import (
    BOOT,
    CLUSTER,
    QUICK,
    RawConnection,
    hello,
    id_of,
    play,
)


@dataclass
class Dialled:
    """Events at both ends of a dialled connection."""

    dialer: Dialer
    at_s: list[float] = field(default_factory=list)
    lost: list[bool] = field(default_factory=list)


@asynccontextmanager
async def dialling(
    answer: Message,
    times: int,
    then: Callable[[RawConnection], Awaitable[object]],
    settings: TransportSettings = QUICK,
) -> AsyncIterator[tuple[Dialled, asyncio.Event]]:
    """Dial a peer that answers so, and ends the connection at once this many times."""
    loop = asyncio.get_running_loop()
    enough = asyncio.Event()
    writers: list[asyncio.StreamWriter] = []

    async def visited(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writers.append(writer)
        dialled.at_s.append(loop.time())
        visitor = RawConnection(reader, writer)
        await visitor.next()
        writer.write(encode_frame_of(answer))
        if len(dialled.at_s) <= times:
            writer.close()
        else:
            enough.set()
            await then(visitor)

    def lost(peer: NodeId, refused: bool) -> None:
        assert peer == id_of("n2")
        dialled.lost.append(refused)

    server = await asyncio.start_server(visited, "127.0.0.1", 0)
    dialled = Dialled(
        Dialer(
            id_of("n2"),
            format_endpoint(*server.sockets[0].getsockname()),
            purpose=Purpose.PEER,
            identity=Identity(id_of("n1"), CLUSTER, BOOT, ""),
            settings=settings,
            on_connected=lambda _peer, _hello: None,
            on_lost=lost,
        )
    )
    try:
        yield dialled, enough
    finally:
        await dialled.dialer.close()
        server.close()
        for writer in writers:
            writer.transport.abort()
            with suppress(ConnectionError):
                await writer.wait_closed()


def test_peer_that_drops_every_connection_is_dialled_with_back_off() -> None:
    """A second chance at once, then pauses: two processes with one identity cost no processor."""

    async def scene() -> None:
        answer = hello("n2", Purpose.PEER)
        async with dialling(answer, 8, lambda peer: peer.next()) as (dialled, enough):
            await enough.wait()
            assert dialled.lost == [False] * 8
            # Pauses of 5, 10, 20 and 20 ms, or half as long, lie between the pairs; the rest
            # follows at once.
            assert dialled.at_s[8] - dialled.at_s[0] >= 0.0275

    play(scene)


def test_pauses_between_dials_are_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    """All peers of a node that was started again would come to it at once, again and again."""
    drawn: list[tuple[float, float]] = []

    def uniform(low: float, high: float) -> float:
        drawn.append((low, high))
        return low

    async def scene() -> None:
        monkeypatch.setattr(dialer.random, "uniform", uniform)
        answer = hello("n2", Purpose.PEER)
        async with dialling(answer, 8, lambda peer: peer.next()) as (_, enough):
            await enough.wait()
        assert drawn == [(2.5, 5), (5, 10), (10, 20), (10, 20)]

    play(scene)


def test_refusal_is_logged_once_for_a_series(caplog: pytest.LogCaptureFixture) -> None:
    """An address that leads to somebody else makes one line, not one for every attempt."""
    caplog.set_level(logging.INFO, "raftstore.transport")

    async def scene() -> None:
        answer = Goodbye("unknown_node", "register it first")
        async with dialling(answer, 4, lambda peer: peer.next()) as (dialled, enough):
            await enough.wait()
            assert dialled.lost == []

    play(scene)
    (line,) = [record for record in caplog.records if record.message == "peer refused"]
    assert line.levelno == logging.WARNING
    assert "register it first" in str(vars(line))


def test_dialer_outlives_an_address_that_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """A peer may advertise anything; once the address is right again the peer is dialled."""

    async def scene() -> None:
        told = asyncio.Event()
        monkeypatch.setattr(dialer.logger, "warning", lambda *_, **__: told.set())
        answer = hello("n2", Purpose.PEER)
        async with dialling(answer, 0, lambda peer: peer.next()) as (dialled, enough):
            right, dialled.dialer.endpoint = dialled.dialer.endpoint, "no address"
            await told.wait()
            dialled.dialer.endpoint = right
            dialled.dialer.hurry()
            await enough.wait()

    play(scene)


def test_error_in_a_dialler_reaches_its_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    """S0.4: a dialler that ended in silence would never reach its peer again."""

    def broken(endpoint: str) -> tuple[str, int]:
        raise RuntimeError(f"a bug with {endpoint}")

    async def scene() -> None:
        told: asyncio.Future[object] = asyncio.get_running_loop().create_future()
        asyncio.get_running_loop().set_exception_handler(
            lambda _, context: told.done() or told.set_result(context.get("exception"))
        )
        monkeypatch.setattr(dialer, "parse_endpoint", broken)
        async with dialling(hello("n2", Purpose.PEER), 0, lambda peer: peer.next()):
            assert "a bug" in str(await told)

    play(scene)


def test_peer_that_says_where_it_is_while_it_is_dialled_elsewhere_is_dialled_there_next() -> None:
    """S0.7: the old address may swallow everything; its end is not followed by a pause."""

    async def scene() -> None:
        dialled_there, ends = asyncio.Event(), asyncio.Event()

        async def swallow(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            dialled_there.set()
            await ends.wait()
            writer.close()

        patient = replace(QUICK, reconnect_min_ms=600_000, reconnect_max_ms=600_000)
        answer = hello("n2", Purpose.PEER)
        old = await asyncio.start_server(swallow, "127.0.0.1", 0)
        async with dialling(answer, 0, lambda peer: peer.next(), patient) as (dialled, enough):
            new = dialled.dialer.endpoint
            dialled.dialer.endpoint = format_endpoint(*old.sockets[0].getsockname())
            await dialled_there.wait()
            dialled.dialer.hurry(new)
            ends.set()
            await enough.wait()
        old.close()

    play(scene)


@pytest.mark.parametrize("turns", range(6))
def test_dialer_that_is_told_to_hurry_still_ends_when_it_is_closed(turns: int) -> None:
    """A node that stops just when a peer dials it ends, whatever turn of the loop that hits."""

    async def scene() -> None:
        refused = asyncio.Event()
        with socket.socket() as nobody:
            nobody.bind(("127.0.0.1", 0))  # taken, and nobody listens there
            dialled = Dialer(
                id_of("n2"),
                format_endpoint(*nobody.getsockname()),
                purpose=Purpose.PEER,
                identity=Identity(id_of("n1"), CLUSTER, BOOT, ""),
                settings=QUICK,
                on_connected=lambda _peer, _hello: None,
                on_lost=lambda _peer, _refused: refused.set(),
            )
            await refused.wait()
            dialled.hurry()
            for _ in range(turns):
                await asyncio.sleep(0)
            await dialled.close()

    play(scene)
