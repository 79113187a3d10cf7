"""Messages to bodies and back: tagged MessagePack arrays, checked while they are decoded.

One encoder and one decoder serve everything; both are stateless between calls. Unknown trailing
fields are ignored and missing trailing ones take their default, so a field may be appended without
a new protocol version; anything else contradicts the stored bytes of ``tests/data/wire_v1.json``
and needs one.

Types have ranges (``raftstore.types``): a number that is negative or huge, or an identity of
another length, is refused here, for all senders, so that no receiver has to ask before it counts
with one (S12). A publisher's payload over its bound is left to the replica, which answers that one
write (``raftstore.core.sequencer.oversized``): here it would cost all others their connection.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from operator import or_
from typing import Any, Final, cast

import msgspec

from raftstore.config import PAYLOAD_BYTES_MAX
from raftstore.errors import DecodeError, LocalProtocolError, UnsupportedVersionError
from raftstore.protocol.batches import BatchMessage
from raftstore.protocol.bootstrap import BirthMessage
from raftstore.protocol.election import ElectionMessage
from raftstore.protocol.framing import Body, encode_frame
from raftstore.protocol.healing import HealingMessage
from raftstore.protocol.leader_moves import LeaderMoveMessage
from raftstore.protocol.machines import CommandAck, MachineMessage
from raftstore.protocol.message import Message, Request
from raftstore.protocol.node import HandshakeMessage, NodeMessage
from raftstore.protocol.out_of_range import fields_of, out_of_range
from raftstore.protocol.payload_repair import GapReport, PayloadResponse, RelayedWrite
from raftstore.protocol.publish import PayloadRelay, PublishMessage, PubMsg
from raftstore.protocol.rebalance import CopyReport
from raftstore.protocol.replica_snapshots import (
    ReplicaSnapshotMessage,
    SnapshotChunk,
    TableFilePart,
)
from raftstore.protocol.replication import (
    MsgSync,
    ReplicationBundle,
    ReplicationMessage,
    StoreRequest,
)
from raftstore.protocol.requests import BatchReply, BatchRequest, ClientAnswer, ClientRequest
from raftstore.protocol.shared_commands import CommandsAck
from raftstore.protocol.tags import LEVEL_OF_TAG, RETIRED, Tag
from raftstore.protocol.trimming import TrimmingMessage
from raftstore.types import INT63_MAX

AnyMessage = (
    PublishMessage
    | CommandAck
    | CommandsAck
    | MachineMessage
    | ReplicationMessage
    | ReplicationBundle
    | ElectionMessage
    | HandshakeMessage
    | NodeMessage
    | GapReport
    | LeaderMoveMessage
    | CopyReport
    | ReplicaSnapshotMessage
    | HealingMessage
    | TrimmingMessage
    | BirthMessage
    | ClientRequest
    | ClientAnswer
    | BatchMessage
    | BatchRequest
    | BatchReply
)
"""Everything that may lie in a frame."""

_BY_NAME: Final = {cls.__name__: cls for cls in cast(Any, AnyMessage).__args__}
KINDS: Final[dict[int, type[Message]]] = {
    tag.value: _BY_NAME[tag.name] for tag in Tag if tag not in RETIRED
}
"""Number on the wire -> message, in the order of the register (``raftstore.protocol.tags``)."""
MESSAGE_TYPES: Final = tuple(KINDS.values())
"""Every kind of message, in the same order."""
LEVEL_OF_MESSAGE: Final[dict[type[Message], int]] = {
    KINDS[tag]: level for tag, level in LEVEL_OF_TAG.items()
}
"""Those that came with a level; the others are read by nodes of every level."""

_UNKNOWN_KIND: Final = "Invalid enum value"
"""How msgspec's text begins when a number is none of an enumeration's."""

_encoder: Final = msgspec.msgpack.Encoder()
_decoder: msgspec.msgpack.Decoder[Message] = msgspec.msgpack.Decoder(
    reduce(or_, cast(Any, MESSAGE_TYPES))
)


def forget_newer(level: int) -> None:
    """Read from now on what a version of this level reads, in the whole process.

    For faults on purpose (``raftstore.faults``): a newer message is then what it is to that
    version, of an unknown kind.
    """
    global _decoder  # noqa: PLW0603 - one process is one node
    for kind, needed in LEVEL_OF_MESSAGE.items():
        if needed > level:
            KINDS.pop(cast("int", kind.__struct_config__.tag), None)
    _decoder = msgspec.msgpack.Decoder(reduce(or_, cast(Any, tuple(KINDS.values()))))


def encode(message: Message) -> bytes:
    """Return the body of a message; LocalProtocolError when it holds what has no encoding."""
    try:
        return _encoder.encode(message)
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise LocalProtocolError(
            f"a {type(message).__name__} cannot be encoded: {error}; check the values given to it"
        ) from error


def encode_frame_of(message: Message) -> bytes:
    """Return the whole frame of a message: encode once, send to many."""
    return encode_frame(encode(message))


def decode(body: Body) -> Message:
    """Return the message in a body; DecodeError for anything that is not exactly one.

    UnsupportedVersionError: it is one, but holds a record of a kind that only newer versions know.
    """
    try:
        message = _decoder.decode(body)
    except (ValueError, OverflowError, RecursionError) as error:
        # Kinds of records are the only enumeration on the wire.
        if isinstance(error, msgspec.ValidationError) and str(error).startswith(_UNKNOWN_KIND):
            raise UnsupportedVersionError(
                f"a record has a kind that is not known here ({error}): its sender is a newer "
                "raftstore; run a newer version on the node that cannot read it"
            ) from error
        raise _refusal(body, error) from error
    if type(message) is PayloadRelay and len(message.payload) > PAYLOAD_BYTES_MAX:
        raise DecodeError(
            f"payload length of a PayloadRelay is {len(message.payload)}, expected 0 to "
            f"{PAYLOAD_BYTES_MAX}; the sender is broken"
        )
    return message


def _refusal(body: Body, error: Exception) -> DecodeError:
    """Why a body is no message, with the value at fault where it is one."""
    fields = fields_of(body)
    kind = KINDS.get(fields[0]) if fields and type(fields[0]) is int else None
    fault = None if fields is None or kind is None else out_of_range(kind, fields[1:])
    if fields is not None and kind is not None and fault is not None:
        request_id = fields[1] if issubclass(kind, Request) else None
        is_known = type(request_id) is int and 0 <= request_id <= INT63_MAX
        return DecodeError(
            f"{fault}; the sender is broken",
            is_out_of_range=True,
            request_id=request_id if is_known else None,
        )
    return DecodeError(
        f"a body of {len(body)} bytes is not a message of this protocol: {error}; "
        f"the sender is broken or speaks something else"
    )


def unknown_request(body: Body) -> tuple[int, int] | None:
    """Kind and request id of what may be a request of a newer version; None: it is none.

    Requests begin with their id (``raftstore.protocol.message``); a kind that is known here and
    still could not be decoded is broken, not new.
    """
    match fields_of(body):
        case [int(kind), int(request_id), *_] if kind not in KINDS and 0 <= request_id <= INT63_MAX:
            return kind, request_id
    return None


def payload_bytes(message: Message) -> int:
    """Bytes of user rows inside a message, as opposed to metadata (NATS-050).

    Counted by the transport per connection: towards a healthy replica a leader sends none.
    """
    count = _PAYLOADS.get(type(message))
    return 0 if count is None else count(message)


def _payload_of_pub_msg(message: PubMsg) -> int:
    return len(message.payload)


def _payload_of_relay(message: PayloadRelay) -> int:
    return len(message.payload)


def _payload_of_store_request(message: StoreRequest) -> int:
    return sum(len(record.payload) for record in message.records if record.payload is not None)


def _payload_of_bundle(message: ReplicationBundle) -> int:
    return sum(map(_payload_of_store_request, message.store_requests))


def _payload_of_sync(message: MsgSync) -> int:
    return sum(len(record.payload) for record in message.records)


def _payload_of_chunk(message: SnapshotChunk) -> int:
    return sum(len(key) + len(value) for key, value in message.pairs)


def _payload_of_file_part(message: TableFilePart) -> int:
    return len(message.content)


def _payload_of_response(message: PayloadResponse) -> int:
    return sum(len(found.payload) for found in message.payloads)


def _payload_of_relayed(message: RelayedWrite) -> int:
    return len(message.write.payload)


_PAYLOADS: Final[dict[type[Message], Callable[[Any], int]]] = {
    PubMsg: _payload_of_pub_msg,
    PayloadRelay: _payload_of_relay,
    StoreRequest: _payload_of_store_request,
    MsgSync: _payload_of_sync,
    ReplicationBundle: _payload_of_bundle,
    SnapshotChunk: _payload_of_chunk,
    TableFilePart: _payload_of_file_part,
    PayloadResponse: _payload_of_response,
    RelayedWrite: _payload_of_relayed,
}
WITH_PAYLOADS: Final = frozenset(_PAYLOADS)
"""Kinds that may hold user rows."""
