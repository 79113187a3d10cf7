"""How far logs are trimmed, asked between nodes; and records that remove outcomes of old writes.

Neither message has a term: a base only grows. A node is only sent one when it reported the level
that they came with.

TRIM_OUTCOMES ``[to seq, key, key, ...]``, a msgpack list: readers get no outcomes of records
up to this seq any more, and these outcomes of them are removed from the state beside the rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec

from raftstore.errors import DecodeError
from raftstore.protocol.message import Message
from raftstore.protocol.tags import tag_of
from raftstore.types import SEQ_MAX, ChannelId, Seq

OUTCOMES_MAX: Final = 1_000
"""Outcomes that one TRIM_OUTCOMES record names."""

_ENCODER: Final = msgspec.msgpack.Encoder()
_TRIM: Final = msgspec.msgpack.Decoder(list[int | bytes])


class AskTrimmed(Message, frozen=True, array_like=True, gc=False, tag=tag_of):
    """Node -> node: up to which seq is your log of this channel trimmed?"""

    channel: ChannelId


class TrimmedAnswer(Message, frozen=True, array_like=True, gc=False, tag=tag_of):
    """The answer: readers of changes are served behind this seq, and refused in front of it."""

    channel: ChannelId
    base_seq: Seq


TrimmingMessage = AskTrimmed | TrimmedAnswer


def encode_trim(to_seq: Seq, keys: Sequence[bytes]) -> bytes:
    """Encode the end of the outcomes of records up to ``to_seq``, and which of them are removed."""
    return _ENCODER.encode([to_seq, *keys])


def decode_trim(payload: bytes | memoryview) -> tuple[Seq, list[bytes]]:
    """Return the seq and the keys; raise DecodeError when the payload is anything else."""
    try:
        to_seq, *keys = _TRIM.decode(payload)
    except ValueError as error:  # of msgspec, or nothing to unpack
        text = f"a payload of {len(payload)} bytes trims no outcomes: {error}"
        raise DecodeError(text) from error
    named = [key for key in keys if isinstance(key, bytes)]
    if not isinstance(to_seq, int) or not 0 <= to_seq <= SEQ_MAX or named != keys:
        text = f"a payload of {len(payload)} bytes trims no outcomes: it is no seq and keys"
        raise DecodeError(text)
    if len(named) > OUTCOMES_MAX:
        text = f"{len(named)} outcomes to be trimmed at once are more than {OUTCOMES_MAX}"
        raise DecodeError(text)
    return Seq(to_seq), named
