"""Messages to bodies and back; the format is pinned by golden bytes (S12)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, cast

import msgpack
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from raftstore.config import PAYLOAD_BYTES_MAX, ROWS_PER_RECORD_MAX
from raftstore.errors import (
    DecodeError,
    LocalProtocolError,
    RemoteProtocolError,
    UnsupportedVersionError,
)
from raftstore.protocol.batches import ResolveWriter
from raftstore.protocol.codec import MESSAGE_TYPES, decode, encode, encode_frame_of, payload_bytes
from raftstore.protocol.framing import ReceiveBuffer, encode_frame
from raftstore.protocol.message import Done, Message
from raftstore.protocol.node import Heartbeat, Hello
from raftstore.protocol.publish import PayloadRelay, PubMsg
from raftstore.protocol.records import Record, RecordMeta
from raftstore.protocol.replication import CaughtUp, MsgSync, StoreRequest
from raftstore.types import (
    NO_GUID,
    SEQ_MAX,
    ChannelId,
    Guid,
    NodeId,
    RecordKind,
    Seq,
    Term,
    make_guid,
)
from tests.unit.protocol.messages_of_all_kinds import any_message, messages_of

CHANNEL = ChannelId(bytes(range(18)))
GUID = make_guid(b"producer", 7)
DIGEST = bytes(range(16))
PUB_MSG = PubMsg(
    channel=CHANNEL,
    term=Term(3),
    leader=NodeId("n1@00ff"),
    guid=GUID,
    digest=DIGEST,
    rows=2,
    kind=RecordKind.CONDITIONAL,
    payload=b"rows",
    attempt=1,
    relay_to=(NodeId("n3@ee"),),
)
RELAY = PayloadRelay(CHANNEL, Term(3), GUID, DIGEST, b"payload")


def meta(seq: int, rows: int, payload: bytes | None = None) -> RecordMeta:
    """Metadata of a record, as a leader sends it."""
    return RecordMeta(
        term=Term(3),
        base_seq=Seq(seq),
        rows=rows,
        guid=GUID if payload is None else NO_GUID,
        timestamp_ms=1_700_000_000_000,
        digest=DIGEST,
        length=300 if payload is None else len(payload),
        kind=RecordKind.ROWS if payload is None else RecordKind.CONFIG,
        payload=payload,
    )


STORE_REQUEST = StoreRequest(
    CHANNEL, Term(3), Term(2), Seq(40), (meta(41, 2), meta(43, 1, b"conf"))
)
HEARTBEAT = Heartbeat(DIGEST, 9, 1_700_000_000_000, b"dige", heard_receiver=True)

# A change of these is a change of the protocol: an older node could not read the newer one.
GOLDEN: list[tuple[Message, str]] = [
    (
        STORE_REQUEST,
        "960ac412000102030405060708090a0b0c0d0e0f10110302289299032902c41070726f64756365720000000000"
        "000007cf0000018bcfe56800c410000102030405060708090a0b0c0d0e0fcd012c01c099032b01c41000000000"
        "000000000000000000000000cf0000018bcfe56800c410000102030405060708090a0b0c0d0e0f0402c404636f"
        "6e66",
    ),
    (
        PUB_MSG,
        "9d01c412000102030405060708090a0b0c0d0e0f101103a76e314030306666c41070726f647563657200000000"
        "00000007c410000102030405060708090a0b0c0d0e0f0204c404726f77730191a56e3340656500c2",
    ),
    (
        HEARTBEAT,
        "9634c410000102030405060708090a0b0c0d0e0f09cf0000018bcfe56800c40464696765c3",
    ),
]


@pytest.mark.parametrize("kind", MESSAGE_TYPES, ids=lambda kind: kind.__name__)
@pytest.mark.hypothesis
def test_message_is_the_same_after_a_round_trip(kind: type[Message]) -> None:
    """Every kind of message survives the wire with every field."""

    @given(message=messages_of(kind))
    def round_trip(message: Message) -> None:
        body = encode(message)
        assert decode(body) == message
        assert decode(memoryview(body)) == message
        (framed,) = ReceiveBuffer().feed(encode_frame_of(message))
        assert bytes(framed) == body

    round_trip()


def test_tags_are_unique_over_all_messages() -> None:
    """A number means one message, also between requests and replication."""
    tags = [msgspec.inspect.type_info(kind).tag for kind in MESSAGE_TYPES]  # type: ignore[attr-defined]
    assert len(set(tags)) == len(tags) == len(MESSAGE_TYPES)


@pytest.mark.parametrize(
    ("message", "golden"), GOLDEN, ids=[type(message).__name__ for message, _ in GOLDEN]
)
def test_bytes_on_the_wire_stay_as_they_are(message: Message, golden: str) -> None:
    """The format changes only on purpose, with a new protocol version."""
    assert encode(message).hex() == golden
    assert decode(bytes.fromhex(golden)) == message


def test_newer_field_is_ignored_and_missing_one_takes_its_default() -> None:
    """Appending a field with a default needs no new protocol version, in either direction."""
    fields = msgpack.unpackb(encode(HEARTBEAT))
    assert decode(msgpack.packb([*fields, "of a newer version"])) == HEARTBEAT
    older = decode(msgpack.packb(fields[:-1]))
    assert older == msgspec.structs.replace(HEARTBEAT, heard_receiver=False)


def test_hello_of_an_older_node_tells_level_0() -> None:
    """A Hello without a level means level 0, and an older node skips the field of a newer one."""
    hello = Hello(1, "peer", b"c" * 16, "n1@00", b"boot", "h:1", level=1)
    fields = msgpack.unpackb(encode(hello))
    assert fields[-3:] == [1, "", ""]
    older = decode(msgpack.packb(fields[:-3]))
    assert older == msgspec.structs.replace(hello, level=0)


def test_hello_of_a_node_without_failure_domains_tells_none() -> None:
    """Nodes of level 5 say nothing of it; a name that no setting allows ends the connection."""
    hello = Hello(1, "peer", b"c" * 16, "n1@00", b"boot", "h:1", level=5, failure_domain="r1")
    fields = msgpack.unpackb(encode(hello))[:-1]
    older = decode(msgpack.packb(fields[:-1]))
    assert older == msgspec.structs.replace(hello, failure_domain="")
    with pytest.raises(DecodeError, match="not a message"):
        decode(msgpack.packb([*fields[:-1], "r" * 64]))


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"\xc0",
        msgpack.packb({}),
        msgpack.packb([]),
        msgpack.packb([9_999, 1]),
        msgpack.packb([16, CHANNEL, 3]),  # CaughtUp without its seq
        msgpack.packb([16, CHANNEL, "3", 4]),
        msgpack.packb([16, CHANNEL, 3, 4])[:-1],
        msgpack.packb([16, CHANNEL, 3, 4]) + b"\x00",
        msgpack.packb([63, b"", "a"]) + msgpack.packb(1),
        b"\x91" * 100_000,
    ],
    ids=[
        "empty",
        "nil",
        "map",
        "no_tag",
        "unknown_tag",
        "missing_field",
        "wrong_type",
        "cut",
        "longer",
        "two_values",
        "deep",
    ],
)
def test_body_that_is_no_message_is_refused(body: bytes) -> None:
    """Anything but exactly one message is a DecodeError that states the size (S12)."""
    with pytest.raises(DecodeError, match=rf"a body of {len(body)} bytes is not a message"):
        decode(body)


@pytest.mark.parametrize(
    ("message", "text"),
    [
        (CaughtUp(ChannelId(b"short"), Term(1), Seq(1)), "channel .* 5 bytes, expected 18"),
        (ResolveWriter(CHANNEL, Term(1), ChannelId(b"c"), ()), "target .* 1 bytes, expected 18"),
        (msgspec.structs.replace(PUB_MSG, channel=b""), "channel .* 0 bytes, expected 18"),
        (msgspec.structs.replace(PUB_MSG, guid=b"g"), "guid .* 1 bytes, expected 16"),
        (msgspec.structs.replace(PUB_MSG, digest=b"d"), "digest .* 1 bytes, expected 16"),
        (msgspec.structs.replace(PUB_MSG, rows=0), "rows .* is 0, expected 1 to 65536"),
        (msgspec.structs.replace(PUB_MSG, rows=-1), "rows .* is -1, expected 1 to 65536"),
        (
            msgspec.structs.replace(PUB_MSG, rows=ROWS_PER_RECORD_MAX + 1),
            "rows .* is 65537, expected 1 to 65536",
        ),
        (msgspec.structs.replace(RELAY, channel=b""), "channel .* 0 bytes, expected 18"),
        (msgspec.structs.replace(RELAY, guid=b"g"), "guid .* 1 bytes, expected 16"),
        (msgspec.structs.replace(RELAY, digest=b"d"), "digest .* 1 bytes, expected 16"),
        (
            msgspec.structs.replace(RELAY, payload=bytes(PAYLOAD_BYTES_MAX + 1)),
            "payload length .* is 8388609, expected 0 to 8388608",
        ),
    ],
)
def test_value_that_receivers_count_with_is_refused_outside_its_range(
    message: Message, text: str
) -> None:
    """The error names the field, what was found and what was expected."""
    with pytest.raises(DecodeError, match=text):
        decode(encode(message))


NEWER = cast(RecordKind, 99)


@pytest.mark.parametrize(
    "message",
    [
        msgspec.structs.replace(PUB_MSG, kind=NEWER),
        StoreRequest(
            CHANNEL, Term(3), Term(3), Seq(1), (RecordMeta(3, 2, 1, GUID, 5, DIGEST, 7, NEWER),)
        ),
        MsgSync(
            CHANNEL,
            Term(3),
            request_id=1,
            from_seq=Seq(2),
            prev_term=Term(3),
            records=(Record(Term(3), Seq(2), 1, GUID, 5, DIGEST, NEWER, b"payload"),),
            commit_seq=Seq(1),
            last_seq=Seq(2),
            first_seq=Seq(1),
            done=True,
        ),
    ],
    ids=lambda message: type(message).__name__,
)
def test_record_of_an_unknown_kind_is_told_apart_from_a_broken_message(message: Message) -> None:
    """GAP-15: its sender is not broken but newer, and the text says what to do."""
    with pytest.raises(UnsupportedVersionError, match="newer raftstore; run a newer version"):
        decode(encode(message))


@pytest.mark.parametrize("seq", [0, 2**53, SEQ_MAX])
def test_sequences_use_all_of_their_63_bits(seq: int) -> None:
    """A position is never cut off by the wire, and one that Spark's long cannot hold is none."""
    message = CaughtUp(CHANNEL, Term(1), Seq(seq))
    assert decode(encode(message)) == message
    with pytest.raises(DecodeError, match="seq of a CaughtUp is 9223372036854775808, expected 0"):
        decode(encode(CaughtUp(CHANNEL, Term(1), Seq(SEQ_MAX + 1))))


@dataclass
class Unpackable:
    """A type that MessagePack does not know."""

    event: complex = 1j


@pytest.mark.parametrize("value", [2**65, Unpackable(), "\ud800"], ids=["int", "type", "surrogate"])
def test_message_without_an_encoding_is_our_own_error(value: Any) -> None:
    """A bug on this side is raised here, with the kind of message, and nothing is sent."""
    with pytest.raises(LocalProtocolError, match="a Done cannot be encoded"):
        encode(Done(1, {"value": value}))


def test_payload_bytes_counts_rows_of_users_and_no_metadata() -> None:
    """Payload bytes count the rows of users alone: a leader must not send those to healthy replicas
    (NATS-050).
    """
    record = Record(Term(1), Seq(1), 1, Guid(GUID), 0, DIGEST, RecordKind.ROWS, b"12345")
    sync = MsgSync(
        CHANNEL, Term(1), 1, Seq(1), Term(0), (record, record), Seq(2), Seq(2), Seq(1), done=True
    )
    counts = [payload_bytes(message) for message in (PUB_MSG, RELAY, STORE_REQUEST, sync)]
    assert counts == [4, 7, 4, 10]
    assert payload_bytes(HEARTBEAT) == 0


@given(body=st.binary(max_size=300))
def test_random_body_raises_only_remote_protocol_errors(body: bytes) -> None:
    """Given any bytes, decoding ends in a message or in a RemoteProtocolError."""
    try:
        decode(body)
    except RemoteProtocolError:
        return


@pytest.mark.slow
@given(data=st.data(), message=any_message)
def test_mutated_message_raises_only_remote_protocol_errors(
    data: st.DataObject, message: Message
) -> None:
    """Valid messages with bytes changed, removed or added: in the body and in the frame."""
    body = bytearray(encode(message))
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(body)))
        body[at : at + data.draw(st.integers(0, 2))] = data.draw(st.binary(max_size=2))
    frame = bytearray(encode_frame(bytes(body)))
    if data.draw(st.booleans()):
        frame[data.draw(st.integers(0, len(frame) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    for damaged in (ReceiveBuffer(), ReceiveBuffer(64)):
        try:
            for found in damaged.feed(bytes(frame)):
                decode(found)
        except RemoteProtocolError:
            continue


def test_klip_23_a_heartbeat_frame_has_at_most_128_bytes() -> None:
    """KLIP-23: one per pair of nodes and interval, whatever the number of channels."""
    beat = Heartbeat(bytes(16), 2**40, 2**45, bytes(16), heard_receiver=True)
    assert len(encode_frame_of(beat)) <= 128
