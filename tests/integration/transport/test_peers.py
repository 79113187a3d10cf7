"""``PeerNetwork`` over real sockets: who is heard, who is refused, and what is lost (S0.1, S12)."""

from __future__ import annotations

import asyncio
import logging
import socket
import threading
from contextlib import suppress
from dataclasses import replace
from struct import pack
from typing import cast
from zlib import crc32

import pytest

from raftstore.config import FRAME_BYTES_MAX, LEVEL
from raftstore.errors import DecodeError
from raftstore.protocol.admin import Status
from raftstore.protocol.bootstrap import BirthQuery
from raftstore.protocol.codec import encode, encode_frame_of
from raftstore.protocol.election import LeaderAnnounce
from raftstore.protocol.framing import encode_frame
from raftstore.protocol.message import Message
from raftstore.protocol.node import Heartbeat, Hello, LeadershipRequest
from raftstore.protocol.publish import PayloadRelay
from raftstore.protocol.records import RecordMeta
from raftstore.protocol.replication import CaughtUp, StaleTerm, StoreRequest
from raftstore.transport.endpoints import format_endpoint
from raftstore.transport.handshake import Purpose
from raftstore.types import NO_GUID, TERM_MAX, NodeId, RecordKind, Seq, Term
from tests.integration.transport.networks import (
    CHANNEL,
    PUB_MSG,
    QUICK,
    Node,
    cluster,
    hello,
    id_of,
    note,
    play,
    raw_connection,
    relay,
)

NEWER = StoreRequest(
    CHANNEL,
    Term(1),
    Term(1),
    Seq(0),
    (RecordMeta(Term(1), Seq(1), 1, NO_GUID, 1, bytes(16), 1, cast(RecordKind, 99)),),
)
"""With a record of a kind that this version does not know."""


def test_messages_arrive_whole_in_order_and_with_their_sender() -> None:
    """Small and big messages of two peers, each under the id of its connection (S12)."""

    async def scene() -> None:
        async with cluster("n1", "n2", "n3") as (n1, n2, n3):
            sent: list[Message] = [note(1), relay(2**20), note(2), relay(5_000), note(3)]
            for message in sent:
                n1.network.send(n3.id, message)
                n2.network.send(n3.id, message)
            await n3.handler.until(
                lambda: len([1 for _, got, _ in n3.handler.messages if got == note(3)]) == 2
            )
            for sender in (n1, n2):
                bulk = [
                    message
                    for peer, message, _ in n3.handler.messages
                    if peer == sender.id and not isinstance(message, Heartbeat)
                ]
                assert bulk == sent
                assert not sender.handler.of_kind(CaughtUp)
            assert (n3.id, n3.endpoint) in n1.handler.connected
            counts = n1.network.traffic.to_peer(n3.id)
            assert counts["PayloadRelay"].frames == 2
            assert counts["PayloadRelay"].payload_bytes == 2**20 + 5_000
            totals = n1.network.traffic.totals()["CaughtUp"]
            assert totals == {
                "frames": 3,
                "bytes": 3 * len(encode_frame_of(note(1))),
                "payload_bytes": 0,
                "dropped": 0,
            }

    play(scene)


def test_control_messages_have_a_way_of_their_own() -> None:
    """Elections and node-level messages arrive under the sender's id, too."""

    async def scene() -> None:
        async with cluster("n1", "n2") as (n1, n2):
            # Control connections open by themselves: heartbeats show when.
            await n2.handler.until(lambda: bool(n2.handler.of_kind(Heartbeat)))
            announce = LeaderAnnounce(CHANNEL, Term(4))
            n1.network.send_control(n2.id, announce)
            n1.network.send_control(n2.id, LeadershipRequest())
            n1.network.send_control(id_of("n9"), announce)
            await n2.handler.until(lambda: bool(n2.handler.of_kind(LeadershipRequest)))
            assert n2.handler.of_kind(LeaderAnnounce) == [(n1.id, announce)]

    play(scene)


@pytest.mark.parametrize("purpose", [Purpose.PEER, Purpose.CONTROL])
@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"node": "n2@" + "ab" * 16}, "wrong_store"),
        ({"cluster_id": b"another cluster!"}, "wrong_cluster"),
        ({"cluster_id": b""}, "wrong_cluster"),
        ({"node": id_of("n9")}, "unknown_node"),
        ({"node": id_of("n1")}, "wrong_node"),
        ({"protocol_version": 2}, "unsupported_version"),
    ],
)
def test_peer_that_is_not_the_one_we_know_is_refused(
    purpose: Purpose, changes: dict[str, object], code: str
) -> None:
    """S0.1, S12: another store, cluster, node or version gets a Goodbye with the reason."""

    async def scene() -> None:
        async with cluster("n1", "n2") as (n1, n2):
            greeting = hello("n2", purpose, **changes)
            async with raw_connection(n1.endpoint, greeting) as other:
                other.writer.write(encode_frame_of(note(7)))
                farewell = await other.goodbye()
            assert farewell.code == code
            is_stranger = code in ("unknown_node", "wrong_store")
            assert n1.handler.strangers == [(greeting.node, greeting.advertise)] * is_stranger
            n2.network.send(n1.id, note(1))
            await n1.handler.until(lambda: bool(n1.handler.of_kind(CaughtUp)))
            assert n1.handler.of_kind(CaughtUp) == [(n2.id, note(1))]

    play(scene)


@pytest.mark.parametrize(
    ("greeting", "code"),
    [
        (hello(purpose="gossip"), "unknown_purpose"),
        (hello(cluster_id=b"another cluster!"), "wrong_cluster"),
        (note(1), "unexpected_message"),
        (encode_frame(b"\xc1"), "malformed"),
        (pack(">IBI", 3, 1, 0) + b"abc", "malformed"),
        (pack(">IBI", 4_097, 1, 0), "malformed"),
        (pack(">IBI", 3, 9, 0), "unsupported_version"),
        (b"GET / HTTP/1.1\r\n\r\n", "malformed"),
    ],
)
def test_first_frame_that_is_no_good_hello_is_refused(greeting: Message | bytes, code: str) -> None:
    """Given a first frame that is no good Hello, the connection is closed with the reason: somebody
    may have dialled the port by mistake.
    """

    async def scene() -> None:
        async with cluster("n1") as (n1,):
            async with raw_connection(n1.endpoint, greeting) as other:
                assert (await other.goodbye()).code == code

    play(scene)


def test_peer_is_refused_before_the_birth_and_founders_are_heard() -> None:
    """A node without a cluster talks about its birth only (S0.7)."""

    async def scene() -> None:
        n1 = Node("n1")
        async with raw_connection(n1.endpoint, hello("n2", Purpose.PEER)) as other:
            assert (await other.goodbye()).code == "no_cluster"
        async with raw_connection(
            n1.endpoint, hello("n2", Purpose.BIRTH, cluster_id=b"")
        ) as founder:
            founder.writer.write(encode_frame_of(BirthQuery("n2")))
            assert isinstance(await founder.next(), Hello)
            assert await founder.next() == BirthQuery("n2")
        n1.network.send(id_of("n2"), note(1))
        n1.network.send_control(id_of("n2"), note(1))
        n1.network.set_peers({id_of("n2"): "127.0.0.1:1"})
        n1.network.set_heartbeats({})
        await n1.network.close()

    play(scene)


@pytest.mark.parametrize(
    ("purpose", "frame", "code", "text"),
    [
        (Purpose.PEER, encode_frame(b"\xc1"), "malformed", "1 bytes is not a message"),
        (Purpose.PEER, pack(">IBI", 3, 1, 1) + b"abc", "malformed", "its header says 0x00000001"),
        (
            Purpose.PEER,
            pack(">IBI", FRAME_BYTES_MAX + 1, 1, 0),
            "malformed",
            "16777217 bytes, the limit is 16777216",
        ),
        (Purpose.PEER, pack(">IBI", 0, 2, crc32(b"")), "unsupported_version", "version 2"),
        (Purpose.PEER, encode_frame_of(PUB_MSG), "unexpected_message", "PubMsg is not allowed"),
        (Purpose.CONTROL, encode_frame_of(note(1)), "unexpected_message", "CaughtUp is not"),
        (Purpose.CLIENT, encode_frame_of(note(1)), "unexpected_message", "CaughtUp is not"),
        (Purpose.PEER, encode_frame_of(hello("n3")), "unexpected_message", "Hello is not allowed"),
    ],
)
def test_connection_that_breaks_the_protocol_is_closed_and_no_other(
    purpose: Purpose, frame: bytes, code: str, text: str
) -> None:
    """S12: the Goodbye names the reason; what came before it counts, other peers go on."""

    async def scene() -> None:
        n1, n2 = Node("n1"), Node("n2")
        endpoints = {n1.id: n1.endpoint, n2.id: n2.endpoint}
        # n3 is known but silent: the raw connection speaks in its name.
        silent = socket.create_server(("127.0.0.1", 0))
        for node in (n1, n2):
            node.join({**endpoints, id_of("n3"): format_endpoint(*silent.getsockname())})
        await n2.handler.until(lambda: (n1.id, n1.endpoint) in n2.handler.connected)
        greeting = hello("" if purpose is Purpose.CLIENT else "n3", purpose)
        good: Message = Status(1) if purpose is Purpose.CLIENT else LeadershipRequest()
        async with raw_connection(n1.endpoint, greeting) as other:
            other.writer.write(encode_frame_of(good) + frame + encode_frame_of(good))
            farewell = await other.goodbye()
        assert farewell.code == code
        assert text in farewell.message
        await n1.handler.until(
            lambda: bool(n1.handler.clients or n1.handler.of_kind(LeadershipRequest))
        )
        heard = [*n1.handler.clients, *n1.handler.of_kind(LeadershipRequest)]
        assert [message for _, message in heard] == [good]
        n2.network.send(n1.id, note(9))
        await n1.handler.until(lambda: bool(n1.handler.of_kind(CaughtUp)))
        assert (n2.id, False) not in n1.handler.lost
        await n1.network.close()
        await n2.network.close()
        silent.close()

    play(scene)


def test_error_of_the_node_is_not_blamed_on_the_sender_of_the_message() -> None:
    """S0.4: damage that is found while a message is handled stops the node that has it."""

    def broken(peer: NodeId, message: Message, arrived_ms: int) -> None:
        del peer, arrived_ms
        if isinstance(message, CaughtUp):
            raise DecodeError("what is stored here is damaged")

    async def scene() -> None:
        told: asyncio.Future[object] = asyncio.get_running_loop().create_future()
        asyncio.get_running_loop().set_exception_handler(
            lambda _, context: told.done() or told.set_result(context.get("exception"))
        )
        async with cluster("n1", "n2") as (n1, n2):
            n2.network._handler.on_peer_message = broken  # type: ignore[method-assign]
            n1.network.send(n2.id, note(1))
            assert isinstance(await told, DecodeError)

    play(scene)


def test_level_of_a_peer_is_told_when_it_is_connected() -> None:
    """Its own by default; a Hello without one is that of an older version."""

    async def scene() -> None:
        n1, n2 = Node("n1"), Node("n2", level=0)
        for node in (n1, n2):
            node.join({each.id: each.endpoint for each in (n1, n2)})
        await n1.handler.until(lambda: n2.id in n1.handler.levels)
        await n2.handler.until(lambda: n1.id in n2.handler.levels)
        assert (n1.handler.levels, n2.handler.levels) == ({n2.id: 0}, {n1.id: LEVEL})
        await n1.network.close()
        await n2.network.close()

    play(scene)


def test_record_that_only_a_newer_version_knows_is_told_once_by_both_sides(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """GAP-15: the connection ends again and again; each log has one line, with peer and remedy."""
    caplog.set_level(logging.INFO, "raftstore.transport")

    async def scene() -> None:
        async with cluster("n1", "n2") as (n1, n2):
            for losses in range(1, 5):
                await n2.handler.until(lambda losses=losses: len(n2.handler.connected) >= losses)
                n2.network.send(n1.id, NEWER)
                await n2.handler.until(
                    lambda losses=losses: n2.handler.lost.count((n1.id, False)) >= losses
                )

    play(scene)
    lines = [record for record in caplog.records if record.message == "versions differ"]
    told = [line.__dict__["raftstore_fields"] for line in lines]
    assert sorted((each["peer"], each["remedy"]) for each in told) == [
        ("n1", "run a newer version on n1"),
        ("n2", "run a newer version on this node"),
    ]
    assert all("Invalid enum value 99" in each["reason"] for each in told)


def test_peer_that_sends_a_number_outside_its_range_is_cut_off_and_told_of_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """S12: the node that decodes it never uses it; its log names peer, field and value."""
    caplog.set_level(logging.INFO, "raftstore.transport")

    async def scene() -> None:
        async with cluster("n1", "n2") as (n1, n2):
            for losses in range(1, 4):
                await n2.handler.until(lambda losses=losses: len(n2.handler.connected) >= losses)
                n2.network.send(n1.id, StaleTerm(note(1).channel, Term(TERM_MAX + 1)))
                await n2.handler.until(
                    lambda losses=losses: n2.handler.lost.count((n1.id, False)) >= losses
                )
            assert n1.handler.of_kind(StaleTerm) == []

    play(scene)
    told = [
        record.__dict__["raftstore_fields"]
        for record in caplog.records
        if record.message == "malformed message"
    ]
    assert sorted(each["peer"] for each in told) == ["n1", "n2"]
    assert all("term of a StaleTerm is 281474976710656" in each["reason"] for each in told)


def test_newer_connection_of_a_peer_replaces_the_older() -> None:
    """A peer that dials anew after a network failure is not heard twice, nor lost."""

    async def scene() -> None:
        n1 = Node("n1")
        silent = socket.create_server(("127.0.0.1", 0))
        n1.join({id_of("n3"): format_endpoint(*silent.getsockname())})
        greeting = hello("n3", Purpose.PEER)
        async with raw_connection(n1.endpoint, greeting) as old:
            assert isinstance(await old.next(), Hello)
            async with raw_connection(n1.endpoint, greeting) as new:
                assert (await old.goodbye()).code == "replaced"
                new.writer.write(encode_frame_of(note(1)))
                await n1.handler.until(lambda: bool(n1.handler.of_kind(CaughtUp)))
                assert n1.handler.lost == []
        await n1.handler.until(lambda: bool(n1.handler.lost))
        await n1.network.close()
        silent.close()

    play(scene)


def test_loss_is_told_when_a_peer_closes_and_refusal_when_nobody_listens() -> None:
    """The fastest signs of a dead peer: its connections break, then its port refuses."""

    async def scene() -> None:
        async with cluster("n1", "n2") as (n1, n2):
            await n2.network.close()
            await n1.handler.until(lambda: (n2.id, True) in n1.handler.lost)
            assert (n2.id, False) in n1.handler.lost

    play(scene)


def test_peer_that_is_not_who_was_dialled_is_not_connected() -> None:
    """S0.1: an address that leads to another store gets none of our messages."""

    async def scene() -> None:
        n1, n2 = Node("n1"), Node("n2")
        n2.join({n1.id: n1.endpoint})
        known = NodeId("n2@" + "ab" * 16)
        n1.join({known: n2.endpoint})
        # n1 refuses what n2 dials: after that n1 has surely dialled as well.
        async with raw_connection(n1.endpoint, hello("n2", Purpose.PEER)) as other:
            assert (await other.goodbye()).code == "wrong_store"
        n1.network.send(known, note(1))
        assert n1.network.traffic.to_peer(known)["CaughtUp"].dropped == 1
        assert n1.handler.connected == n2.handler.connected == []
        await n1.network.close()
        await n2.network.close()

    play(scene)


def test_message_to_an_absent_peer_is_dropped_and_counted() -> None:
    """Fire and forget: the sender neither waits nor keeps anything (S12)."""

    async def scene() -> None:
        async with cluster("n1", "n2") as (n1, n2):
            await n2.network.close()
            await n1.handler.until(lambda: (n2.id, True) in n1.handler.lost)
            n1.network.send(n2.id, relay(100))
            n1.network.send(id_of("n9"), note(1))
            count = n1.network.traffic.to_peer(n2.id)["PayloadRelay"]
            assert (count.dropped, count.frames, count.payload_bytes) == (1, 0, 0)
            assert n1.network.traffic.to_peer(id_of("n9")) == {}

    play(scene)


def test_message_over_a_full_queue_is_dropped_and_the_connection_stays() -> None:
    """The bound of a peer's queue holds; catch-up repairs what is missing."""

    async def scene() -> None:
        settings = replace(QUICK, peer_queue_bytes_max=10_000)
        async with cluster("n1", "n2", transport=settings) as (n1, n2):
            n1.network.send(n2.id, relay(8_000))
            n1.network.send(n2.id, relay(8_001))
            n1.network.send(n2.id, note(1))
            await n2.handler.until(lambda: bool(n2.handler.of_kind(CaughtUp)))
            assert n2.handler.of_kind(PayloadRelay) == [(n1.id, relay(8_000))]
            assert n1.network.traffic.to_peer(n2.id)["PayloadRelay"].dropped == 1

    play(scene)


def test_close_leaves_no_task_and_no_thread() -> None:
    """A stopped node holds nothing: clients heard Goodbye, its port is free again."""

    async def scene() -> None:
        tasks, threads = asyncio.all_tasks(), set(threading.enumerate())
        n1, n2 = Node("n1"), Node("n2")
        for node in (n1, n2):
            node.join({n1.id: n1.endpoint, n2.id: n2.endpoint, id_of("n3"): "127.0.0.1:1"})
        await n1.handler.until(lambda: (n2.id, n2.endpoint) in n1.handler.connected)
        async with raw_connection(n1.endpoint, hello()) as client:
            assert isinstance(await client.next(), Hello)
            closing = asyncio.gather(n1.network.close(), n2.network.close())
            assert (await client.goodbye()).code == "closing"
        await closing
        assert asyncio.all_tasks() == tasks
        control = [each for each in threading.enumerate() if "raftstore" in each.name]
        assert not set(control) - threads
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection(*n1.endpoint.split(":"))

    play(scene)


def test_close_leaves_nothing_when_somebody_is_just_connecting() -> None:
    """A connection that is adopted while the node closes is closed with the others."""

    async def scene() -> None:
        for turns in range(12):
            n1 = Node("n1")
            async with raw_connection(n1.endpoint, hello()) as client:
                await client.writer.drain()
                for _ in range(turns):
                    await asyncio.sleep(0)
                await n1.network.close()
                with suppress(ConnectionResetError):  # it was not accepted any more
                    while await client.next() is not None:
                        pass

    play(scene)


def test_frames_are_encoded_once_for_all_replicas() -> None:
    """The same message object to several peers is the same bytes, and a newer one is not stale."""

    async def scene() -> None:
        async with cluster("n1", "n2", "n3") as (n1, n2, n3):
            for seq in (1, 2):
                message = note(seq)
                for peer in (n2, n3):
                    n1.network.send(peer.id, message)
            for peer in (n2, n3):
                await peer.handler.until(lambda peer=peer: len(peer.handler.of_kind(CaughtUp)) == 2)
                assert peer.handler.of_kind(CaughtUp) == [(n1.id, note(1)), (n1.id, note(2))]

    assert encode(note(1)) != encode(note(2))
    play(scene)
