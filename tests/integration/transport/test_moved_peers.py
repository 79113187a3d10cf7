"""Peers that moved are found where they are now: an address is no identity (S0.7)."""

from __future__ import annotations

import asyncio
import socket
from dataclasses import replace

import pytest

from raftstore.protocol.codec import decode
from raftstore.protocol.framing import ReceiveBuffer
from raftstore.protocol.node import Goodbye, Heartbeat, Hello
from raftstore.protocol.replication import CaughtUp
from raftstore.transport.endpoints import format_endpoint
from raftstore.transport.handshake import Purpose
from tests.integration.transport.networks import (
    QUICK,
    Node,
    cluster,
    hello,
    id_of,
    note,
    play,
    raw_connection,
)


def test_peer_is_found_again_at_its_new_address() -> None:
    """S0.7: an address is no identity; a node that moved is dialled where it is now."""

    async def scene() -> None:
        async with cluster("n1", "n2") as (n1, n2):
            await n2.network.close()
            await n1.handler.until(lambda: (n2.id, True) in n1.handler.lost)
            moved = Node("n2")
            # Its own dialling finds nobody: the list must show where it is.
            moved.join({n1.id: "127.0.0.1:1"})
            n1.network.set_peers({n1.id: n1.endpoint, n2.id: moved.endpoint})
            await n1.handler.until(lambda: (n2.id, moved.endpoint) in n1.handler.connected)
            n1.network.send(n2.id, note(5))
            await moved.handler.until(lambda: bool(moved.handler.of_kind(CaughtUp)))
            await moved.network.close()

    play(scene)


def test_peer_that_moved_is_dialled_where_it_says_it_is_now() -> None:
    """S0.7: an address may change; the peer itself, known by its store, says where it went."""

    async def scene() -> None:
        async with cluster("n1", "n2") as (n1, n2):
            await n2.network.close()
            await n1.handler.until(lambda: bool(n1.handler.lost))
            moved = Node("n2")
            try:
                moved.join({n1.id: n1.endpoint})
                await n1.handler.until(lambda: (n2.id, moved.endpoint) in n1.handler.connected)
                n1.network.send(n2.id, note(7))
                await moved.handler.until(lambda: bool(moved.handler.of_kind(CaughtUp)))
                await moved.handler.until(lambda: bool(moved.handler.of_kind(Heartbeat)))
            finally:
                await moved.network.close()

    play(scene)


def test_peer_that_moved_is_dialled_there_although_another_one_moves_too() -> None:
    """S0.7: news of one peer's address does not send anybody back to where another one was."""

    async def scene() -> None:
        quick = replace(QUICK, connect_timeout_ms=100)
        n1, n3 = Node("n1", transport=quick), Node("n3")
        with socket.create_server(("127.0.0.1", 0)) as swallows:
            old = format_endpoint(*swallows.getsockname())
            try:
                n1.join({id_of("n2"): "127.0.0.1:1", n3.id: old})
                n3.join({n1.id: n1.endpoint})
                await n3.handler.until(lambda: (n1.id, n1.endpoint) in n3.handler.connected)
                n1.network.set_peers({id_of("n2"): "127.0.0.1:2", n3.id: old})
                await n1.handler.until(lambda: (n3.id, n3.endpoint) in n1.handler.connected)
                await n3.handler.until(lambda: bool(n3.handler.of_kind(Heartbeat)))
            finally:
                await n1.network.close()
                await n3.network.close()

    play(scene)


@pytest.mark.parametrize("purpose", [Purpose.PEER, Purpose.CONTROL])
def test_node_that_is_dialled_for_another_one_keeps_what_that_peer_has_with_it(
    purpose: Purpose,
) -> None:
    """An address may be another node's by now: each dial of the one took the other from the
    dialler, again and again."""

    async def scene() -> None:
        async with cluster("n1", "n2") as (n1, n2):
            greeting = hello("n1", purpose, dialled=id_of("n3"))
            async with raw_connection(n2.endpoint, greeting) as misled:
                refusal = await misled.next()
                assert isinstance(refusal, Goodbye)
                assert (refusal.code, str(n2.id) in refusal.message) == ("wrong_node", True)
            n1.network.send(n2.id, note(5))
            await n2.handler.until(lambda: bool(n2.handler.of_kind(CaughtUp)))
            n2.handler.messages.clear()
            await n2.handler.until(lambda: bool(n2.handler.of_kind(Heartbeat)))
            assert not n2.handler.lost

    play(scene)


def test_dialler_says_whom_it_means() -> None:
    """On both connections; the node at that address can judge whether it is meant."""

    async def scene() -> None:
        greetings: dict[str, str] = {}
        is_done = asyncio.Event()

        async def note_greeting(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            buffer, bodies = ReceiveBuffer(), list[bytes]()
            while not bodies:
                bodies += map(bytes, buffer.feed(await reader.read(65_536)))
            greeting = decode(bodies[0])
            assert isinstance(greeting, Hello)
            greetings[greeting.purpose] = greeting.dialled
            if len(greetings) == 2:
                is_done.set()
            writer.close()

        n1 = Node("n1")
        async with await asyncio.start_server(note_greeting, "127.0.0.1", 0) as server:
            n1.join({id_of("n2"): format_endpoint(*server.sockets[0].getsockname())})
            await is_done.wait()
            await n1.network.close()
        assert greetings == dict.fromkeys((Purpose.PEER, Purpose.CONTROL), id_of("n2"))

    play(scene)
