"""Payloads of atomic micro-batches in the log of a table's channel.

STAGED ``[u16 length of the header][header][rows as in ROWS]``: the header is the msgpack list
``[writer, attempt, partition id, task attempt id, number, mode]``, and behind these the lifetime of
its rows in ms if they have one. With the channel it names one
chunk; the rows in it are looked at when the batch is applied, not before.

BATCH_APPLY ``[format u8][msgpack list of BatchApply]``: what the coordinator decided for this
channel.
"""

from __future__ import annotations

import re
from struct import Struct
from typing import Final, NamedTuple

import msgspec

from raftstore.errors import DecodeError, NewerFormatError
from raftstore.protocol.batches import ApplyBatch, ChannelPart
from raftstore.protocol.lifetimes import check_ttl
from raftstore.protocol.payload import WRITER_BYTES_MAX, Cell, check_payload, decode_rows
from raftstore.types import (
    Attempt,
    BatchId,
    ChannelId,
    CommitNumber,
    Count63,
    RecordKind,
    Small31,
    TaskAttempt,
    TaskId,
    Term,
    WallMs,
)

UPSERT: Final = 0
"""Rows replace or delete what is there."""
INSERT: Final = 1
"""Rows whose key is there already are left out."""
MERGE: Final = 2
"""Columns that are null keep the value that is there."""
MODES: Final = (UPSERT, INSERT, MERGE)

BATCH_FORMAT: Final = 1
"""Of BATCH_APPLY payloads; a newer one stops the node."""
ATTEMPT_MAX: Final = 2**63 - 1
NUMBER_MAX: Final = 2**32 - 1
HEADER_BYTES_MAX: Final = 512
"""A writer's name of ``WRITER_BYTES_MAX`` and five numbers need less."""

_LENGTH: Final = Struct(">H")
_ENCODER: Final = msgspec.msgpack.Encoder()


class ChunkHeader(NamedTuple):
    """Which chunk a STAGED record is: of which attempt, which task attempt, and its number there;
    how its rows are written when they become visible."""

    writer: str
    attempt: Attempt
    partition_id: TaskId
    task_attempt_id: TaskAttempt
    number: TaskId
    mode: Small31 = UPSERT
    ttl_ms: Count63 = 0
    """How long its rows live once they are visible; 0: for ever. Written only if it is not 0, so
    that nodes below level 5 read all others."""


_AT: Final = re.compile(r"at `\$\[([0-6])\]`")
"""Where msgspec found what it cannot read."""
_HEADER: Final = msgspec.msgpack.Decoder(ChunkHeader)


class BatchApply(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A decided batch as one channel has to apply it: the payload of BATCH_APPLY.

    ``ApplyBatch`` carries the same fields behind its own, flat, as version 1 has them on the wire;
    ``apply_message`` and ``apply_of`` alone turn one into the other.
    """

    n: CommitNumber
    prev: CommitNumber
    writer: str
    batch_id: BatchId
    attempt: Attempt
    mode: Small31
    winners: tuple[tuple[TaskId, TaskAttempt], ...]
    part: ChannelPart
    vector: tuple[CommitNumber, ...]
    decided_ms: WallMs


_APPLY: Final = msgspec.msgpack.Decoder(BatchApply)
_ADDRESS_FIELDS: Final = ApplyBatch.__struct_fields__.index(BatchApply.__struct_fields__[0])
"""Fields of ``ApplyBatch`` that name sender and receiver; those of ``BatchApply`` follow."""
assert ApplyBatch.__struct_fields__[_ADDRESS_FIELDS:] == BatchApply.__struct_fields__


def encode_staged(header: ChunkHeader, rows: bytes) -> bytes:
    """Put the header before rows that ``encode_rows`` made."""
    head = _ENCODER.encode(header if header.ttl_ms else header[:-1])
    assert len(head) <= HEADER_BYTES_MAX
    return _LENGTH.pack(len(head)) + head + rows


def decode_header(payload: bytes | memoryview) -> tuple[ChunkHeader, memoryview]:
    """Return the header and the rows behind it; raise DecodeError on anything malformed."""
    view = memoryview(payload)
    if len(view) < _LENGTH.size:
        raise DecodeError(f"a staged payload of {len(view)} bytes has no header")
    end = _LENGTH.size + _LENGTH.unpack_from(view)[0]
    if end - _LENGTH.size > HEADER_BYTES_MAX or end > len(view):
        raise DecodeError(
            f"a staged payload of {len(view)} bytes announces a header of {end - _LENGTH.size}; "
            f"allowed are {HEADER_BYTES_MAX}"
        )
    try:
        header = _HEADER.decode(view[_LENGTH.size : end])
    except ValueError as error:  # of msgspec, or of a text that is no UTF-8
        at = _AT.search(str(error))
        name = f", the {ChunkHeader._fields[int(at[1])]}" if at else ""
        text = f"the header of a staged payload cannot be read: {error}{name}"
        raise DecodeError(text) from error
    _check_header(header)
    return header, view[end:]


def decode_staged(payload: bytes | memoryview) -> tuple[ChunkHeader, list[Cell]]:
    """Return the header and the flat list [key, sealed or None, ...]."""
    header, rows = decode_header(payload)
    return header, decode_rows(rows)


def check_staged(payload: bytes, rows: int) -> ChunkHeader:
    """Raise DecodeError or CorruptRecordError unless a publisher may stage this (S12)."""
    header, view = decode_header(payload)
    check_payload(RecordKind.ROWS, bytes(view), rows)
    return header


def encode_apply(batch: BatchApply) -> bytes:
    """Return the payload of a BATCH_APPLY record."""
    return bytes((BATCH_FORMAT,)) + _ENCODER.encode(batch)


def decode_apply(payload: bytes) -> BatchApply:
    """Return the content; raise NewerFormatError or DecodeError if it cannot be read."""
    if payload and payload[0] > BATCH_FORMAT:
        raise NewerFormatError(
            f"a decided micro-batch is of format {payload[0]}, this version reads {BATCH_FORMAT}; "
            "run a newer version on this node"
        )
    try:
        return _APPLY.decode(memoryview(payload)[1:])
    except ValueError as error:  # of msgspec, or of a text that is no UTF-8
        raise DecodeError(
            f"a payload of {len(payload)} bytes decides no micro-batch: {error}"
        ) from error


def apply_message(
    channel: ChannelId, term: Term, target: ChannelId, batch: BatchApply
) -> ApplyBatch:
    """Message of coordinator ``channel`` in its ``term`` that has ``target`` apply the batch."""
    return ApplyBatch(channel, term, target, *msgspec.structs.astuple(batch))


def apply_of(message: ApplyBatch) -> BatchApply:
    """The record that the leader of the message's target writes."""
    return BatchApply(*msgspec.structs.astuple(message)[_ADDRESS_FIELDS:])


def writer_fault(writer: str) -> str | None:
    """Why this cannot be the name of a writer; None if it can."""
    if writer and len(writer.encode()) <= WRITER_BYTES_MAX:
        return None
    return f"the writer {writer[:40]!r} must have 1 to {WRITER_BYTES_MAX} bytes"


def _check_header(header: ChunkHeader) -> None:
    fault = writer_fault(header.writer)
    if fault is not None:
        raise DecodeError(fault)
    if header.attempt < 1 or header.mode not in MODES:
        raise DecodeError(
            f"a chunk is of attempt {header.attempt} and mode {header.mode}; attempts begin at 1 "
            f"and modes are {', '.join(map(str, MODES))}"
        )
    if header.ttl_ms:
        check_ttl(header.ttl_ms)
