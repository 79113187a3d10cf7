"""``ClientConnection``: what a client learns of its one connection, and when."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Self

import pytest

from raftstore.errors import ConnectionLostError, ConnectTimeoutError, OverloadedError
from raftstore.protocol.admin import DropTable, Status
from raftstore.protocol.codec import encode_frame_of
from raftstore.protocol.message import Done, Message
from raftstore.protocol.node import Goodbye, Hello
from raftstore.protocol.replication import CaughtUp
from raftstore.transport import client_connection
from raftstore.transport.client_connection import ClientConnection
from raftstore.transport.endpoints import format_endpoint
from raftstore.transport.handshake import client_hello
from raftstore.types import ChannelId, Seq, Term
from tests.integration.transport.networks import CLUSTER, RawConnection, cluster, hello, id_of, play

FULL = 1_000_000
"""Bound of a connection's queue in tests about it; the high-water mark is a quarter."""
BIG = DropTable(1, "x" * 200_000, 0)


class Told:
    """Answers and losses that a connection reported to its client."""

    def __init__(self) -> None:
        self.answers: asyncio.Queue[Message] = asyncio.Queue()
        self.losses: asyncio.Queue[ConnectionLostError] = asyncio.Queue()
        self._connections: list[ClientConnection] = []

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        for connection in self._connections:
            connection.close()
            await connection.wait_closed()

    async def connect(
        self, endpoint: str, timeout_ms: int = 5_000, greeting: Hello | None = None
    ) -> ClientConnection:
        """Dial with these ears."""
        connection = await ClientConnection.connect(
            endpoint,
            timeout_ms=timeout_ms,
            on_message=self.answers.put_nowait,
            on_lost=self.losses.put_nowait,
            hello=greeting,
        )
        self._connections.append(connection)
        return connection


@asynccontextmanager
async def puppet(*greeting: Message) -> AsyncIterator[tuple[str, asyncio.Queue[RawConnection]]]:
    """A node that says this to everybody, and then only what the test says through it."""
    visitors: asyncio.Queue[RawConnection] = asyncio.Queue()
    writers: list[asyncio.StreamWriter] = []

    async def visited(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writers.append(writer)
        visitor = RawConnection(reader, writer)
        await visitor.next()
        for message in greeting:
            writer.write(encode_frame_of(message))
        visitors.put_nowait(visitor)

    server = await asyncio.start_server(visited, "127.0.0.1", 0)
    try:
        yield format_endpoint(*server.sockets[0].getsockname()), visitors
    finally:
        server.close()
        for writer in writers:
            writer.transport.abort()
            with suppress(ConnectionError):
                await writer.wait_closed()


async def fill(connection: ClientConnection, sent: list[Message]) -> None:
    """Send until it is too much, letting the kernel take what it can."""
    while True:
        connection.send(BIG)
        sent.append(BIG)
        await asyncio.sleep(0)


def test_connection_knows_its_node_and_carries_answers_in_order() -> None:
    """Peer and cluster come from the node's Hello; closing is no loss."""

    async def scene() -> None:
        async with Told() as told, cluster("n1") as (n1,):
            connection = await told.connect(n1.endpoint)
            assert (connection.peer, connection.cluster_id) == (n1.id, CLUSTER)
            assert connection.is_open
            assert connection.can_send
            connection.send(Status(1))
            connection.send_frame(encode_frame_of(Status(2)))
            await connection.drain()
            await n1.handler.until(lambda: len(n1.handler.clients) == 2)
            assert n1.handler.clients == [(1, Status(1)), (1, Status(2))]
            n1.network.reply(1, Done(2))
            n1.network.reply(1, Done(1))
            assert [await told.answers.get(), await told.answers.get()] == [Done(2), Done(1)]
            connection.close()
            await connection.wait_closed()
            assert not connection.is_open
            assert not connection.can_send
            assert told.losses.empty()
            with pytest.raises(ConnectionLostError, match=r"ended \(closing\): the client is done"):
                connection.send(Status(3))
            with pytest.raises(ConnectionLostError):
                await connection.drain()

    play(scene)


def test_what_was_sent_before_close_arrives() -> None:
    """Close comes after everything queued, also in the same turn."""

    async def scene() -> None:
        async with Told() as told, cluster("n1") as (n1,):
            connection = await told.connect(n1.endpoint)
            for number in range(5):
                connection.send(DropTable(number, "x" * 100_000, 0))
            connection.close()
            await n1.handler.until(lambda: n1.handler.gone == [1])
            assert len(n1.handler.clients) == 5

    play(scene)


def test_nobody_listening_is_told_at_once() -> None:
    """The error names the endpoint and what to look at."""

    async def scene() -> None:
        told = Told()
        with pytest.raises(ConnectionLostError, match=r"to 127\.0\.0\.1:1: .*; check that a raft"):
            await told.connect("127.0.0.1:1")
        assert told.losses.empty()

    play(scene)


def test_node_that_says_nothing_is_given_up_in_time() -> None:
    """The time covers the handshake, not only the dialling."""

    async def scene() -> None:
        async with Told() as told, puppet() as (endpoint, visitors):
            with pytest.raises(ConnectTimeoutError, match=rf"{endpoint} .* within 20 ms"):
                await told.connect(endpoint, timeout_ms=20)
            assert await (await visitors.get()).next() is None
        assert told.losses.empty()

    play(scene)


@pytest.mark.parametrize(
    ("greeting", "text"),
    [
        (Goodbye("too_many_clients", "come later"), r"\(too_many_clients\): come later"),
        (hello("n1", protocol_version=2), r"\(unsupported_version\): .* version 2"),
        (Done(1), r"\(unexpected_message\): a Done is not allowed before the handshake"),
    ],
)
def test_node_that_refuses_or_is_refused_gives_its_reason(greeting: Message, text: str) -> None:
    """Given a refusal by either side, the client reads the reason in the words of that side."""

    async def scene() -> None:
        async with Told() as told, puppet(greeting) as (endpoint, _):
            with pytest.raises(ConnectionLostError, match=text):
                await told.connect(endpoint)
        assert told.losses.empty()

    play(scene)


def test_client_of_another_cluster_is_refused() -> None:
    """A client that knows its cluster does not write into another one at the same address."""

    async def scene() -> None:
        async with Told() as told, cluster("n1") as (n1,):
            with pytest.raises(ConnectionLostError, match=r"\(wrong_cluster\)"):
                await told.connect(n1.endpoint, greeting=client_hello(b"another cluster!"))

    play(scene)


def test_loss_is_told_once_with_the_reason() -> None:
    """A loss is reported once with its reason; requests without an answer are in doubt from then
    on.
    """

    async def scene() -> None:
        async with Told() as told, cluster("n1") as (n1,):
            connection = await told.connect(n1.endpoint)
            await n1.network.close()
            loss = await told.losses.get()
            assert "ended (closing): the node is stopping" in str(loss)
            connection.close()
            await connection.wait_closed()
            assert told.losses.empty()

    play(scene)


def test_answer_that_no_client_expects_ends_the_connection() -> None:
    """The node is informed why, and so is the client."""

    async def scene() -> None:
        async with Told() as told, puppet(hello("n1")) as (endpoint, visitors):
            await told.connect(endpoint)
            node = await visitors.get()
            node.writer.write(encode_frame_of(CaughtUp(ChannelId(bytes(18)), Term(1), Seq(1))))
            assert (await node.goodbye()).code == "unexpected_message"
            node.writer.close()
            assert "a CaughtUp is not allowed" in str(await told.losses.get())

    play(scene)


def test_sender_is_told_to_wait_in_the_turn_it_sends_too_much(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """``can_send`` counts what waits for the end of the turn, too; drain waits for its writing."""
    monkeypatch.setattr(client_connection, "QUEUE_BYTES_MAX", FULL)

    async def scene() -> None:
        async with Told() as told, puppet(hello("n1")) as (endpoint, visitors):
            connection = await told.connect(endpoint)
            connection.send(BIG)
            assert connection.can_send
            connection.send(BIG)
            assert not connection.can_send
            draining = asyncio.ensure_future(connection.drain())
            node = await visitors.get()
            assert [await node.next(), await node.next()] == [BIG, BIG]
            await draining
            assert connection.can_send

    play(scene)


def test_sender_waits_for_a_node_that_does_not_read_and_others_may_send_meanwhile(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Over its bound nothing is queued or sent; who drains wakes up when the node reads again."""
    monkeypatch.setattr(client_connection, "QUEUE_BYTES_MAX", FULL)

    async def scene() -> None:
        async with Told() as told, puppet(hello("n1")) as (endpoint, visitors):
            connection = await told.connect(endpoint)
            node = await visitors.get()
            sent: list[Message] = []
            with pytest.raises(OverloadedError, match=f"wait to be sent to {endpoint}, the limit"):
                await fill(connection, sent)
            waiting = [asyncio.ensure_future(connection.drain()) for _ in range(2)]
            await asyncio.sleep(0)
            assert not connection.can_send
            assert len(sent) >= FULL // 200_100
            for message in sent:
                assert await node.next() == message
            for each in waiting:
                await each
            connection.send(Status(1))
            assert await node.next() == Status(1)

    play(scene)


def test_drain_ends_when_the_connection_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    """Given a lost connection, a drain of it ends with the loss."""
    monkeypatch.setattr(client_connection, "QUEUE_BYTES_MAX", FULL)

    async def scene() -> None:
        async with Told() as told, puppet(hello("n1")) as (endpoint, visitors):
            connection = await told.connect(endpoint)
            node = await visitors.get()
            with pytest.raises(OverloadedError):
                await fill(connection, [])
            draining = asyncio.ensure_future(connection.drain())
            await asyncio.sleep(0)
            node.writer.transport.abort()
            with pytest.raises(ConnectionLostError):
                await draining
            assert isinstance(await told.losses.get(), ConnectionLostError)

    play(scene)


def test_peer_identity_is_the_store_not_the_address() -> None:
    """Two nodes at one address, one after the other, are distinguished by the client (S0.1)."""

    async def scene() -> None:
        for name in ("n1", "n2"):
            async with Told() as told, puppet(hello(name)) as (endpoint, _):
                assert (await told.connect(endpoint)).peer == id_of(name)

    play(scene)


def test_first_frame_of_a_node_is_small() -> None:
    """S12: who dialled a wrong address need not read megabytes before it knows whose it is."""

    async def scene() -> None:
        large = hello("n1", advertise="x" * 5_000)
        async with puppet(large) as (endpoint, _), Told() as told:
            with pytest.raises(ConnectionLostError, match="the limit is 4096"):
                await told.connect(endpoint)

    play(scene)
