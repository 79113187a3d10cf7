"""Bounds on what client connections hold of a node: places, half frames,
answers that are not read.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AsyncExitStack, suppress
from dataclasses import replace

import msgspec
import pytest

from raftstore.config import FRAME_BYTES_MAX, MIB
from raftstore.protocol.admin import Status, StatusAnswer
from raftstore.protocol.codec import encode_frame_of
from raftstore.protocol.framing import encode_frame
from raftstore.protocol.message import Done, Failed, Message
from raftstore.protocol.node import Hello
from raftstore.transport.clients import REST_S, SWEEP_S
from raftstore.transport.handshake import Purpose
from tests.integration.transport.networks import (
    PUB_MSG,
    QUICK,
    Node,
    RawConnection,
    cluster,
    hello,
    play,
    raw_connection,
)

HALF = encode_frame(bytes(FRAME_BYTES_MAX))[:-1]
"""A frame of the largest size that lacks its last byte."""


async def greet(stack: AsyncExitStack, node: Node, purpose: str = Purpose.CLIENT) -> RawConnection:
    """A client whose Hello was accepted."""
    first = msgspec.structs.replace(hello(), purpose=purpose)
    client = await stack.enter_async_context(raw_connection(node.endpoint, first))
    assert isinstance(await client.next(), Hello)
    return client


def samples(node: Node) -> dict[str | tuple[str, str], float]:
    """Samples of the node about its clients, by name, and by reason where there is one."""
    told = node.network.client_samples()
    return {name if not labels else (name, labels[0][1]): value for name, labels, value in told}


async def until(is_so: Callable[[], bool]) -> None:
    """Wait until the node has read so far; nobody is notified of half a frame."""
    while not is_so():  # noqa: ASYNC110
        await asyncio.sleep(0)


@pytest.mark.slow
def test_half_frames_of_all_connections_have_one_bound_and_their_memory_is_given_back() -> None:
    """150 connections with 16 MiB less one byte each held 2.4 GB, for as long as they liked."""

    async def scene() -> None:
        settings = replace(QUICK, partial_frames_bytes_max=40 * MIB)
        async with cluster("n1", transport=settings) as (n1,), AsyncExitStack() as stack:
            clients = n1.network._clients
            honest = await greet(stack, n1)
            slow = [await greet(stack, n1) for _ in range(5)]
            connections = tuple(clients._by_handle.values())
            for each in slow:
                each.writer.write(HALF)
                await each.writer.drain()
            await n1.handler.until(lambda: len(n1.handler.gone) >= 3)
            assert clients.partial_bytes <= 40 * MIB
            farewell = await slow[0].goodbye()  # it has held the most for the longest
            assert farewell.code == "slow_frame"
            assert "transport.partial_frames_bytes_max" in farewell.message
            assert connections[1].partial_bytes == 0
            shown = samples(n1)
            assert shown["raftstore_partial_frame_bytes"] == clients.partial_bytes > 0
            assert shown["raftstore_clients_ended_total", "slow_frame"] == len(n1.handler.gone)
            assert shown["raftstore_client_connections"] == 6 - len(n1.handler.gone)
            honest.writer.write(encode_frame_of(Status(1)))
            await n1.handler.until(lambda: n1.handler.clients == [(1, Status(1))])
            for each in slow:
                each.writer.transport.abort()
            await n1.handler.until(lambda: len(n1.handler.gone) == 5)
            assert clients.partial_bytes == 0

    play(scene)


@pytest.mark.slow
def test_large_frame_of_an_honest_client_goes_through_among_slow_ones() -> None:
    """Bytes times seconds: who has held little for long ends before who holds much for a moment."""

    async def scene() -> None:
        settings = replace(QUICK, partial_frames_bytes_max=17 * MIB)
        async with cluster("n1", transport=settings) as (n1,), AsyncExitStack() as stack:
            slow = [await greet(stack, n1) for _ in range(4)]
            for each in slow:
                each.writer.write(HALF[: 3 * MIB])
                await each.writer.drain()
            await until(lambda: n1.network._clients.partial_bytes == 12 * MIB)
            for slow_one, (held, since_s) in tuple(n1.network._clients._partial._held.items()):
                n1.network._clients._partial._held[slow_one] = (held, since_s - 10.0)
            honest = await greet(stack, n1)
            large = msgspec.structs.replace(PUB_MSG, payload=bytes(8 * MIB))
            honest.writer.write(encode_frame_of(large))
            await honest.writer.drain()
            await n1.handler.until(lambda: bool(n1.handler.clients))
            assert n1.handler.clients == [(5, large)]
            assert 5 not in n1.handler.gone

    play(scene)


@pytest.mark.slow
def test_frame_that_does_not_become_complete_ends_its_connection() -> None:
    """A byte now and then is no progress; a client that the node does not read is not to blame."""

    async def scene() -> None:
        settings = replace(QUICK, frame_timeout_ms=200)
        async with cluster("n1", transport=settings) as (n1,), AsyncExitStack() as stack:
            n1.network.pause_clients(paused=False)
            dripping = await greet(stack, n1, Purpose.QUERY)
            paused = await greet(stack, n1)
            frame = encode_frame_of(PUB_MSG)
            paused.writer.write(frame[:7])
            dripping.writer.write(frame[:7])
            clients = n1.network._clients
            await until(lambda: clients.partial_bytes == 14)
            n1.network.pause_clients(paused=True)
            paused.writer.write(frame[7:])

            [(_, began_s), _] = clients._partial
            dripping.writer.write(frame[7:9])
            await until(lambda: clients.partial_bytes == 16)
            assert next(iter(clients._partial))[1] == began_s  # a byte now and then is no progress
            farewell = await dripping.goodbye()
            assert farewell.code == "slow_frame"
            assert "200 ms after it began (transport.frame_timeout_ms)" in farewell.message
            n1.network.pause_clients(paused=False)
            await n1.handler.until(lambda: n1.handler.clients == [(2, PUB_MSG)])

    play(scene)


def test_founder_sends_small_frames_only() -> None:
    """Anybody may claim to found a cluster; what is said of it names members and addresses."""

    async def scene() -> None:
        async with cluster("n1") as (n1,), AsyncExitStack() as stack:
            founder = await greet(stack, n1, Purpose.BIRTH)
            founder.writer.write(HALF[:100])
            farewell = await founder.goodbye()
            assert farewell.code == "malformed"
            assert "the limit is 65536" in farewell.message

    play(scene)


def test_answers_that_nobody_reads_have_one_bound_for_all() -> None:
    """Each connection may have megabytes waiting; thousands of them may not."""

    async def scene() -> None:
        settings = replace(QUICK, unread_answers_bytes_max=FRAME_BYTES_MAX)
        async with cluster("n1", transport=settings) as (n1,), AsyncExitStack() as stack:
            clients = n1.network._clients
            silent = [await greet(stack, n1, Purpose.QUERY) for _ in range(3)]
            for number, each in enumerate(silent, start=1):
                each.writer.write(encode_frame_of(Status(number)))
            await n1.handler.until(lambda: len(n1.handler.clients) == 3)
            large = StatusAnswer(1, {"text": "x" * (2 * MIB)})
            for handle in (1, 2, 3) * 6:
                n1.network.reply(handle, large)
                await asyncio.sleep(0)
            assert 0 < clients.unread_bytes <= FRAME_BYTES_MAX
            assert samples(n1)["raftstore_unread_answer_bytes"] == clients.unread_bytes
            await n1.handler.until(lambda: bool(n1.handler.gone))
            ended = samples(n1)["raftstore_clients_ended_total", "slow_client"]
            assert ended == len(n1.handler.gone)

            async def read_all(handle: int) -> None:
                n1.network.reply(handle, Done(9))
                with suppress(ConnectionError):
                    while await silent[handle - 1].next() not in (Done(9), None):
                        pass

            # How many had to go depends on what the system took off the node.
            left = {1, 2, 3} - set(n1.handler.gone)
            await asyncio.gather(*map(read_all, left))
            await until(lambda: clients.unread_bytes == 0)

    play(scene)


def test_longest_idle_client_makes_room_and_who_waits_does_not() -> None:
    """2,048 connections that were only held open kept everybody else out."""

    async def scene() -> None:
        settings = replace(QUICK, client_connections_max=3)
        async with cluster("n1", transport=settings) as (n1,), AsyncExitStack() as stack:
            waiting, idle, busy = [await greet(stack, n1) for _ in range(3)]
            n1.handler.waiting.add(1)
            busy.writer.write(encode_frame_of(Status(1)))
            await n1.handler.until(lambda: bool(n1.handler.clients))
            await greet(stack, n1)
            farewell = await idle.goodbye()
            assert farewell.code == "idle"
            assert samples(n1)["raftstore_clients_ended_total", "idle"] == 1
            assert "others needed its place" in farewell.message
            await n1.handler.until(lambda: n1.handler.gone == [2])
            await greet(stack, n1)
            await n1.handler.until(lambda: n1.handler.gone == [2, 3])  # it was heard before the 4th
            waiting.writer.write(encode_frame_of(Status(2)))
            await n1.handler.until(lambda: n1.handler.clients[-1] == (1, Status(2)))

    play(scene)


def test_operator_gets_in_when_all_places_are_taken() -> None:
    """Given all places taken, an operator still gets in to mend the node; its place is given back
    when it is idle.
    """

    async def scene() -> None:
        settings = replace(QUICK, client_connections_max=1, operator_connections_max=1)
        async with cluster("n1", transport=settings) as (n1,), AsyncExitStack() as stack:
            await greet(stack, n1)
            n1.handler.waiting.add(1)
            refused = await greet(stack, n1)
            assert (await refused.goodbye()).code == "too_many_clients"
            assert samples(n1)["raftstore_clients_ended_total", "too_many_clients"] >= 1
            first = await greet(stack, n1, Purpose.OPERATOR)
            second = await greet(stack, n1, Purpose.OPERATOR)
            assert (await first.goodbye()).code == "idle"
            second.writer.write(encode_frame_of(Status(5)))
            await n1.handler.until(lambda: bool(n1.handler.clients))
            assert n1.handler.clients == [(3, Status(5))]

    play(scene)


@pytest.mark.slow
def test_connection_that_asks_nothing_is_closed_after_a_while() -> None:
    """A connection that waits for an answer stays open."""

    async def scene() -> None:
        settings = replace(QUICK, client_idle_ms=int(500 * SWEEP_S))
        async with cluster("n1", transport=settings) as (n1,), AsyncExitStack() as stack:
            idle, waiting = await greet(stack, n1), await greet(stack, n1)
            n1.handler.waiting.add(2)
            farewell = await idle.goodbye()
            assert farewell.code == "idle"
            assert "asked nothing for 500 ms (transport.client_idle_ms)" in farewell.message
            waiting.writer.write(encode_frame_of(Status(2)))
            await n1.handler.until(lambda: n1.handler.clients == [(2, Status(2))])

    play(scene)


def test_client_that_sends_thousands_of_requests_at_once_leaves_others_their_turn() -> None:
    """Each turn takes a few of its messages; without that one socket is read until it is empty."""

    async def scene() -> None:
        async with cluster("n1") as (n1,), AsyncExitStack() as stack:
            greedy, honest = await greet(stack, n1), await greet(stack, n1)
            greedy.writer.write(b"".join(encode_frame_of(Status(n)) for n in range(5_000)))
            await n1.handler.until(lambda: bool(n1.handler.clients))
            honest.writer.write(encode_frame_of(Status(9)))
            await n1.handler.until(lambda: (2, Status(9)) in n1.handler.clients)
            assert len(n1.handler.clients) < 5_000
            await n1.handler.until(lambda: len(n1.handler.clients) == 5_001)
            taken = [message for client, message in n1.handler.clients if client == 1]
            assert taken == [Status(n) for n in range(5_000)]

    play(scene)


@pytest.mark.slow
def test_client_that_is_told_to_ask_less_is_not_heard_for_a_moment() -> None:
    """To refuse costs about as much as to answer."""

    async def scene() -> None:
        async with cluster("n1") as (n1,), AsyncExitStack() as stack:
            taken = n1.network._clients._on_message

            def refuse(client: int, message: Message) -> None:
                taken(client, message)
                n1.network.reply(client, Failed(1, "overloaded", "too much"))

            n1.network._clients._on_message = refuse
            greedy = await greet(stack, n1)
            began_s = asyncio.get_running_loop().time()
            greedy.writer.write(encode_frame_of(Status(1)) + encode_frame_of(Status(2)))
            await n1.handler.until(lambda: len(n1.handler.clients) == 2)
            assert asyncio.get_running_loop().time() - began_s >= REST_S

    play(scene)
