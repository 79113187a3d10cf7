"""Peers that have left, or that are believed no more: nothing of theirs stays (M27, S0.1)."""

from __future__ import annotations

import asyncio
import logging
import socket

import pytest

from raftstore.protocol.framing import encode_frame
from raftstore.protocol.message import Message
from raftstore.protocol.node import Goodbye, Hello
from raftstore.protocol.replication import CaughtUp
from raftstore.transport.handshake import Purpose
from tests.integration.transport.networks import (
    Node,
    RawConnection,
    cluster,
    hello,
    id_of,
    note,
    play,
    raw_connection,
)


@pytest.mark.parametrize("purpose", [Purpose.PEER, Purpose.CONTROL])
@pytest.mark.parametrize(("retired", "code"), [(("n2",), "retired"), ((), "unknown_node")])
def test_connections_of_a_peer_end_when_it_is_named_no_more(
    purpose: Purpose, retired: tuple[str, ...], code: str
) -> None:
    """The reason is retirement only for one that was retired: it stops for ever."""

    async def scene() -> None:
        silent = socket.create_server(("127.0.0.1", 0))
        n1 = Node("n1")
        n1.join({id_of("n2"): "{}:{}".format(*silent.getsockname())})
        async with raw_connection(n1.endpoint, hello("n2", purpose)) as other:
            assert isinstance(await other.next(), Hello)
            n1.network.set_peers({n1.id: n1.endpoint}, [id_of(name) for name in retired])
            assert await farewell(other) == code
        async with raw_connection(n1.endpoint, hello("n2", purpose)) as other:
            assert await farewell(other) == code
        assert n1.handler.strangers == [(id_of("n2"), "")] * (code == "unknown_node")
        await n1.network.close()
        silent.close()

    play(scene)


def test_peer_that_is_named_no_more_is_dialled_and_counted_no_more() -> None:
    """S0.1: what it made this node hold ends with it, and it may come back."""

    async def scene() -> None:
        async with cluster("n1", "n2", "n3") as (n1, n2, n3):
            endpoints = {node.id: node.endpoint for node in (n1, n2, n3)}
            n1.network.send(n2.id, note(1))
            await n2.handler.until(lambda: bool(n2.handler.of_kind(CaughtUp)))
            n1.network.set_peers({n1.id: n1.endpoint, n3.id: n3.endpoint})
            await n2.handler.until(lambda: (n1.id, False) in n2.handler.lost)
            n1.network.send(n2.id, note(2))
            assert n1.network.traffic.to_peer(n2.id) == {}
            assert n1.network.traffic.totals()["CaughtUp"]["frames"] == 1
            await n1.handler.until(lambda: bool(n1.handler.strangers))
            assert set(n1.handler.strangers) == {(n2.id, n2.endpoint)}
            n1.network.send(n3.id, note(3))
            await n3.handler.until(lambda: bool(n3.handler.of_kind(CaughtUp)))
            n1.network.set_peers(endpoints)
            await n1.handler.until(lambda: n1.handler.connected.count((n2.id, n2.endpoint)) > 1)
            n1.network.send(n2.id, note(4))
            await n2.handler.until(lambda: len(n2.handler.of_kind(CaughtUp)) == 2)

    play(scene)


@pytest.mark.parametrize("purpose", [Purpose.PEER, Purpose.CONTROL])
def test_connection_that_was_being_taken_over_when_its_peer_ended_ends_too(
    purpose: Purpose,
) -> None:
    """Its Hello was judged before; it would have stayed for as long as the peer liked."""

    async def scene() -> None:
        silent = socket.create_server(("127.0.0.1", 0))
        n1 = Node("n1")
        n1.join({id_of("n2"): "{}:{}".format(*silent.getsockname())})
        with socket.create_server(("127.0.0.1", 0)) as meeting:
            theirs = socket.create_connection(meeting.getsockname())
            ours, _ = meeting.accept()
        for end in (ours, theirs):
            end.setblocking(False)
        n1.network._adopt(ours, hello("n2", purpose))
        n1.network.set_peers({n1.id: n1.endpoint})
        other = RawConnection(*await asyncio.open_connection(sock=theirs))
        assert await farewell(other) == "unknown_node"
        other.writer.transport.abort()
        await n1.network.close()
        silent.close()

    play(scene)


@pytest.mark.parametrize("purpose", [Purpose.PEER, Purpose.CONTROL])
def test_what_was_noted_of_a_peer_ends_with_it(
    purpose: Purpose, caplog: pytest.LogCaptureFixture
) -> None:
    """Notes are for peers: others, one after the other, would fill the memory with them."""
    caplog.set_level(logging.WARNING, "raftstore.transport")

    async def scene() -> None:
        silent = socket.create_server(("127.0.0.1", 0))
        endpoint = "{}:{}".format(*silent.getsockname())
        n1 = Node("n1")
        n1.join({id_of("n2"): endpoint})
        for is_new in (False, False, True):
            if is_new:
                n1.network.set_peers({n1.id: n1.endpoint})
                n1.network.set_peers({id_of("n2"): endpoint})
            async with raw_connection(n1.endpoint, hello("n2", purpose)) as other:
                other.writer.write(encode_frame(b"\xc1"))
                assert (await other.goodbye()).code == "malformed"
            seen = len(n1.handler.lost)
            await n1.handler.until(lambda seen=seen: len(n1.handler.lost) >= seen)
        await n1.network.close()
        silent.close()

    play(scene)
    assert [record.message for record in caplog.records].count("malformed message") == 2


async def farewell(other: RawConnection) -> str:
    """Why the connection ended, whatever came on it before."""
    message: Message | None = None
    while (following := await other.next()) is not None:
        message = following
    assert isinstance(message, Goodbye), message
    return message.code
