"""Messages to bodies and back: tagged MessagePack arrays, checked while they are decoded.

One encoder and one decoder serve everything; both are stateless between calls. Unknown trailing
fields are ignored and missing trailing ones take their default, so a field may be appended without
a new protocol version; anything else contradicts the stored bytes of ``tests/data/wire_v1.json``
and needs one.

Besides types, the few values are checked on which receivers do arithmetic: identities have their
length, and a record's row count is one that a log can hold. They come from clients, which nobody
vouches for. A publisher's payload over its bound is left to the replica, which answers that one
write (``raftstore.core.sequencer.oversized``): here it would cost all others their connection.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, cast

import msgspec

from raftstore.batch_messages import BatchMessage
from raftstore.batch_requests import BatchReply, BatchRequest
from raftstore.config import PAYLOAD_BYTES_MAX, ROWS_PER_RECORD_MAX
from raftstore.errors import DecodeError, LocalProtocolError, UnsupportedVersionError
from raftstore.messages import (
    BirthMessage,
    ChannelMessage,
    ElectionMessage,
    HandshakeMessage,
    Message,
    MsgSync,
    NodeMessage,
    PayloadRelay,
    PublishMessage,
    PubMsg,
    ReplicationMessage,
    StoreRequest,
)
from raftstore.requests import ClientAnswer, ClientRequest
from raftstore.types import CHANNEL_ID_BYTES, DIGEST_BYTES, GUID_BYTES
from raftstore.wire.framing import Body, encode_frame

AnyMessage = (
    PublishMessage
    | ReplicationMessage
    | ElectionMessage
    | HandshakeMessage
    | NodeMessage
    | BirthMessage
    | ClientRequest
    | ClientAnswer
    | BatchMessage
    | BatchRequest
    | BatchReply
)
"""Everything that may lie in a frame."""

MESSAGE_TYPES: Final[tuple[type[Message], ...]] = tuple(cast(Any, AnyMessage).__args__)
"""The members of ``AnyMessage``, in a stable order."""

_UNKNOWN_KIND: Final = "Invalid enum value"
"""How msgspec's text begins when a number is none of an enumeration's."""

_encoder: Final = msgspec.msgpack.Encoder()
_decoder: Final[msgspec.msgpack.Decoder[Message]] = msgspec.msgpack.Decoder(cast(Any, AnyMessage))
_anything: Final = msgspec.msgpack.Decoder(list[Any])
_KINDS: Final = frozenset(cls.__struct_config__.tag for cls in MESSAGE_TYPES)


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
        raise DecodeError(
            f"a body of {len(body)} bytes is not a message of this protocol: {error}; "
            f"the sender is broken or speaks something else"
        ) from error
    check = _CHECKS.get(type(message))
    if check is not None:
        check(message)
    elif isinstance(message, ChannelMessage):
        _check_length(message, "channel", message.channel, CHANNEL_ID_BYTES)
        if isinstance(message, BatchMessage):
            _check_length(message, "target", message.target, CHANNEL_ID_BYTES)
    return message


def unknown_request(body: Body) -> tuple[int, int] | None:
    """Kind and request id of what may be a request of a newer version; None: it is none.

    Requests begin with their id (``raftstore.requests``); a kind that is known here and still could
    not be decoded is broken, not new.
    """
    try:
        fields = _anything.decode(body)
    except (ValueError, OverflowError, RecursionError):
        return None
    match fields:
        case [int(kind), int(request_id), *_] if kind not in _KINDS and 0 <= request_id < 2**63:
            return kind, request_id
    return None


def payload_bytes(message: Message) -> int:
    """Bytes of user rows inside a message, as opposed to metadata (NATS-050).

    Counted by the transport per connection: towards a healthy replica a leader sends none.
    """
    count = _PAYLOADS.get(type(message))
    return 0 if count is None else count(message)


def _check_length(message: Message, name: str, value: bytes, expected: int) -> None:
    if len(value) != expected:
        raise DecodeError(
            f"{name} of a {type(message).__name__} has {len(value)} bytes, expected {expected}; "
            f"the sender is broken"
        )


def _check_range(message: Message, name: str, value: int, least: int, most: int) -> None:
    if not least <= value <= most:
        raise DecodeError(
            f"{name} of a {type(message).__name__} is {value}, expected {least} to {most}; "
            f"the sender is broken"
        )


def _check_pub_msg(message: PubMsg) -> None:
    _check_length(message, "channel", message.channel, CHANNEL_ID_BYTES)
    _check_length(message, "guid", message.guid, GUID_BYTES)
    _check_length(message, "digest", message.digest, DIGEST_BYTES)
    _check_range(message, "rows", message.rows, 1, ROWS_PER_RECORD_MAX)


def _check_payload_relay(message: PayloadRelay) -> None:
    _check_length(message, "channel", message.channel, CHANNEL_ID_BYTES)
    _check_length(message, "guid", message.guid, GUID_BYTES)
    _check_length(message, "digest", message.digest, DIGEST_BYTES)
    _check_range(message, "payload length", len(message.payload), 0, PAYLOAD_BYTES_MAX)


_CHECKS: Final[dict[type[Message], Callable[[Any], None]]] = {
    PubMsg: _check_pub_msg,
    PayloadRelay: _check_payload_relay,
}


def _payload_of_pub_msg(message: PubMsg) -> int:
    return len(message.payload)


def _payload_of_relay(message: PayloadRelay) -> int:
    return len(message.payload)


def _payload_of_store_request(message: StoreRequest) -> int:
    return sum(len(record.payload) for record in message.records if record.payload is not None)


def _payload_of_sync(message: MsgSync) -> int:
    return sum(len(record.payload) for record in message.records)


_PAYLOADS: Final[dict[type[Message], Callable[[Any], int]]] = {
    PubMsg: _payload_of_pub_msg,
    PayloadRelay: _payload_of_relay,
    StoreRequest: _payload_of_store_request,
    MsgSync: _payload_of_sync,
}
