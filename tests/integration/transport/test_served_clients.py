"""``PeerNetwork`` and its clients over real sockets: answers, limits, ends."""

from __future__ import annotations

import asyncio
import socket
from contextlib import AsyncExitStack
from dataclasses import replace
from struct import pack

import msgspec

from raftstore.config import FRAME_BYTES_MAX
from raftstore.protocol.admin import Status
from raftstore.protocol.batches import CloseBatch
from raftstore.protocol.codec import encode_frame_of
from raftstore.protocol.framing import encode_frame
from raftstore.protocol.message import Done, Failed
from raftstore.protocol.node import Goodbye, Hello
from raftstore.protocol.replication import CaughtUp
from raftstore.transport.handshake import Purpose
from raftstore.types import ChannelId
from tests.integration.transport.networks import (
    PUB_MSG,
    QUICK,
    cluster,
    hello,
    note,
    play,
    raw_connection,
)


def test_client_is_answered_and_forgotten_when_it_goes() -> None:
    """A handle per connection; answers for a client that left go nowhere."""

    async def scene() -> None:
        async with cluster("n1") as (n1,):
            async with raw_connection(n1.endpoint, hello(cluster_id=b"")) as client:
                client.writer.write(encode_frame_of(Status(7)) + encode_frame_of(PUB_MSG))
                await n1.handler.until(lambda: len(n1.handler.clients) == 2)
                assert n1.handler.clients == [(1, Status(7)), (1, PUB_MSG)]
                n1.network.reply(1, Done(7))
                assert isinstance(await client.next(), Hello)
                assert await client.next() == Done(7)
            await n1.handler.until(lambda: n1.handler.gone == [1])
            n1.network.reply(1, Done(8))

    play(scene)


def test_request_of_a_newer_version_is_refused_and_the_others_are_answered() -> None:
    """A client that knows more than the node gets that answer for that request; nothing else is
    lost."""

    async def scene() -> None:
        async with cluster("n1") as (n1,):
            for purpose in (Purpose.CLIENT, Purpose.QUERY):
                n1.handler.clients.clear()
                first = msgspec.structs.replace(hello(), purpose=purpose)
                async with raw_connection(n1.endpoint, first) as client:
                    assert isinstance(await client.next(), Hello)
                    newer = msgspec.msgpack.encode([199, 5, "whatever"])
                    client.writer.write(encode_frame(newer) + encode_frame_of(Status(6)))
                    refused = await client.next()
                    assert isinstance(refused, Failed)
                    assert (refused.request_id, refused.code) == (5, "unsupported_request")
                    assert "no request of kind 199" in refused.message
                    assert "install the same raftstore version" in refused.message
                    await n1.handler.until(lambda: len(n1.handler.clients) == 1)
                    n1.network.reply(n1.handler.clients[0][0], Done(6))
                    assert await client.next() == Done(6)

    play(scene)


def test_broken_request_of_a_known_kind_ends_the_connection() -> None:
    """Given a damaged request of a known kind, its sender is cut off: it is trusted no more."""

    async def scene() -> None:
        async with cluster("n1") as (n1,), raw_connection(n1.endpoint, hello()) as client:
            client.writer.write(encode_frame(msgspec.msgpack.encode([100, 5, "whatever"])))
            assert (await client.goodbye()).code == "malformed"

    play(scene)


def test_request_with_a_number_outside_its_range_is_refused_alone() -> None:
    """S12: the client learns which number it was, the node never sees it, and others go on."""

    async def scene() -> None:
        async with cluster("n1") as (n1,), raw_connection(n1.endpoint, hello()) as client:
            assert isinstance(await client.next(), Hello)
            wrong = CloseBatch(7, ChannelId(bytes(18)), "w", attempt=2**64 - 1, timeout_ms=1)
            client.writer.write(encode_frame_of(wrong) + encode_frame_of(Status(8)))
            refused = await client.next()
            assert isinstance(refused, Failed)
            assert (refused.request_id, refused.code) == (7, "schema")
            assert "attempt of a CloseBatch is 18446744073709551615" in refused.message
            await n1.handler.until(lambda: len(n1.handler.clients) == 1)
            assert n1.handler.clients[0][1] == Status(8)
            client.writer.write(encode_frame_of(Status(-1)))  # nobody could be answered
            assert (await client.goodbye()).code == "malformed"

    play(scene)


def test_answers_of_a_turn_are_one_write_at_its_end() -> None:
    """Between hold and flush nothing is written, however often the loop turns."""

    async def scene() -> None:
        async with cluster("n1") as (n1,), raw_connection(n1.endpoint, hello()) as client:
            assert isinstance(await client.next(), Hello)
            client.writer.write(encode_frame_of(Status(1)))
            await n1.handler.until(lambda: len(n1.handler.clients) == 1)
            [connection] = n1.network._clients._handles
            n1.network.hold_frames()
            for number in (1, 2):
                n1.network.reply(1, Failed(number, "schema", "no"))
            for _ in range(10):
                await asyncio.sleep(0)
            assert connection.queued_bytes > 0
            n1.network.flush_frames()
            assert connection.queued_bytes == 0
            n1.network.reply(1, Failed(3, "schema", "no"))  # outside a turn: soon
            for number in (1, 2, 3):
                assert await client.next() == Failed(number, "schema", "no")

    play(scene)


def test_answer_that_fits_no_frame_becomes_a_refusal() -> None:
    """However large a state or a catalog has become: the client learns why, the node goes on."""

    async def scene() -> None:
        async with cluster("n1") as (n1,), raw_connection(n1.endpoint, hello()) as client:
            assert isinstance(await client.next(), Hello)
            client.writer.write(encode_frame_of(Status(7)) + encode_frame_of(Status(8)))
            await n1.handler.until(lambda: len(n1.handler.clients) == 2)
            n1.network.reply(1, Done(7, {"answer": "x" * FRAME_BYTES_MAX}))
            n1.network.reply(1, Done(8))
            refused = await client.next()
            assert isinstance(refused, Failed)
            assert (refused.request_id, refused.code) == (7, "payload_too_large")
            assert await client.next() == Done(8)

    play(scene)


def test_client_that_does_not_read_is_closed() -> None:
    """Answers wait within a bound; beyond it the client is refused, not the node's memory used
    up."""

    async def scene() -> None:
        settings = replace(QUICK, client_queue_bytes_max=100_000)
        async with cluster("n1", transport=settings) as (n1,):
            async with raw_connection(n1.endpoint, hello()) as client:
                client.writer.write(encode_frame_of(Status(1)))
                await n1.handler.until(lambda: bool(n1.handler.clients))
                for number in range(3):
                    n1.network.reply(1, Done(number, {"answer": "x" * 60_000}))
                farewell = await client.goodbye()
                assert farewell.code == "slow_client"
                assert "100000 bytes" in farewell.message
            await n1.handler.until(lambda: n1.handler.gone == [1])

    play(scene)


def test_client_that_reset_its_connection_does_not_disturb_the_end() -> None:
    """Saying Goodbye to somebody who just vanished is no failure of the node."""

    async def scene() -> None:
        async with cluster("n1") as (n1,):
            async with raw_connection(n1.endpoint, hello()) as client:
                client.writer.write(encode_frame_of(Status(1)))
                await n1.handler.until(lambda: bool(n1.handler.clients))
                abandoned = client.writer.get_extra_info("socket")
                # Linger 0: the close is a reset, which the node meets only when it writes.
                abandoned.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, pack("ii", 1, 0))
                client.writer.transport.abort()
                await asyncio.sleep(0)
            await n1.network.close()
            assert n1.handler.gone == [1]

    play(scene)


def test_clients_over_the_limit_are_sent_away() -> None:
    """The Goodbye names number and limit; a place that becomes free is given again."""

    async def scene() -> None:
        settings = replace(QUICK, client_connections_max=2)
        async with cluster("n1", transport=settings) as (n1,):
            async with AsyncExitStack() as stack:
                for number in (1, 2):
                    client = await stack.enter_async_context(raw_connection(n1.endpoint, hello()))
                    client.writer.write(encode_frame_of(Status(number)))
                    await n1.handler.until(lambda number=number: len(n1.handler.clients) == number)
                n1.handler.waiting |= {1, 2}
                async with raw_connection(n1.endpoint, hello()) as third:
                    farewell = await third.goodbye()
                assert farewell.code == "too_many_clients"
                assert "2 clients are connected, the limit is 2" in farewell.message
            await n1.handler.until(lambda: len(n1.handler.gone) == 2)
            async with raw_connection(n1.endpoint, hello()) as fourth:
                fourth.writer.write(encode_frame_of(Status(4)))
                await n1.handler.until(lambda: n1.handler.clients[-1] == (3, Status(4)))

    play(scene)


def test_paused_clients_are_heard_after_the_pause_and_peers_meanwhile() -> None:
    """Back-pressure stops the taking of clients' bytes, loses none, and touches no peer."""

    async def scene() -> None:
        async with cluster("n1", "n2") as (n1, n2):
            async with raw_connection(n1.endpoint, hello()) as client:
                assert isinstance(await client.next(), Hello)
                n1.network.pause_clients(paused=True)
                client.writer.write(encode_frame_of(Status(1)))
                n2.network.send(n1.id, note(1))
                await n1.handler.until(lambda: bool(n1.handler.of_kind(CaughtUp)))
                assert n1.handler.clients == []
                n1.network.pause_clients(paused=False)
                await n1.handler.until(lambda: n1.handler.clients == [(1, Status(1))])

    play(scene)


def test_client_that_connects_during_the_pause_waits_for_its_end() -> None:
    """uvloop begins to read behind ``connection_made``, whatever that said."""

    async def scene() -> None:
        async with cluster("n1", "n2") as (n1, n2):
            n1.network.pause_clients(paused=True)
            async with raw_connection(n1.endpoint, hello()) as client:
                assert isinstance(await client.next(), Hello)
                client.writer.write(encode_frame_of(Status(1)))
                n2.network.send(n1.id, note(1))
                await n1.handler.until(lambda: bool(n1.handler.of_kind(CaughtUp)))
                assert n1.handler.clients == []
                n1.network.pause_clients(paused=False)
                await n1.handler.until(lambda: n1.handler.clients == [(1, Status(1))])

    play(scene)


def test_queries_are_taken_while_the_writes_of_clients_are_paused() -> None:
    """A disk that is behind with writes holds up no query, also of those who come meanwhile."""

    async def scene() -> None:
        async with cluster("n1") as (n1,):
            async with AsyncExitStack() as stack:
                queries = [
                    await stack.enter_async_context(raw_connection(n1.endpoint, query_hello()))
                ]
                assert isinstance(await queries[0].next(), Hello)
                n1.network.pause_clients(paused=True)
                queries.append(
                    await stack.enter_async_context(raw_connection(n1.endpoint, query_hello()))
                )
                for number, client in enumerate(queries, 1):
                    client.writer.write(encode_frame_of(Status(number)))
                    heard = (number, Status(number))
                    await n1.handler.until(lambda heard=heard: heard in n1.handler.clients)

    play(scene)


def test_write_on_a_connection_for_queries_ends_it() -> None:
    """It would get around the back-pressure, and rows would hold up the questions behind them."""

    async def scene() -> None:
        async with cluster("n1") as (n1,):
            async with raw_connection(n1.endpoint, query_hello()) as client:
                client.writer.write(encode_frame_of(PUB_MSG))
                farewell = await client.goodbye()
            assert farewell.code == "unexpected_message"
            assert "PubMsg" in farewell.message
            assert n1.handler.clients == []

    play(scene)


def query_hello() -> Hello:
    """Of a client that asks and does not write."""
    return hello("", Purpose.QUERY)


def test_client_that_says_goodbye_is_gone() -> None:
    """The polite end of a connection frees its handle."""

    async def scene() -> None:
        async with cluster("n1") as (n1,):
            async with raw_connection(n1.endpoint, hello()) as client:
                client.writer.write(encode_frame_of(Goodbye("closing", "done")))
                assert isinstance(await client.next(), Hello)
                assert await client.next() is None
                await n1.handler.until(lambda: n1.handler.gone == [1])

    play(scene)
