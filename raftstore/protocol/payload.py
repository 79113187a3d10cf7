"""Payloads of the records of a table: rows, one conditional row, and the end of a micro-batch.

All are msgpack lists, so that a node can hand rows to its store without looking into a value:
ROWS ``[key, sealed or nil, key, sealed or nil, ...]``,
CONDITIONAL ``[key, sealed or nil, expected]``, BATCH_MARK ``[writer, batch id]``. A value is sealed
(``raftstore.rows.sealing``); nil deletes the key.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import chain
from typing import Final, cast

import msgspec

from raftstore.config import KEY_BYTES_MAX, ROWS_PER_RECORD_MAX, VALUE_BYTES_MAX
from raftstore.errors import DecodeError
from raftstore.protocol.lifetimes import WITHOUT_TTL, decode_with_ttl
from raftstore.rows.sealing import SEAL_BYTES, check_seals
from raftstore.rows.values import array_header
from raftstore.types import (
    RecordKind,
    Seq,
    Signed64,
)

Cell = bytes | None
"""A key, a sealed value, or nil."""

_ENCODER: Final = msgspec.msgpack.Encoder()
_ROWS: Final = msgspec.msgpack.Decoder(list[Cell])
_CONDITIONAL: Final = msgspec.msgpack.Decoder(tuple[bytes, Cell, Signed64])
_MARK: Final = msgspec.msgpack.Decoder(tuple[str, Signed64])
WRITER_BYTES_MAX: Final = 256
"""Name of the writer of micro-batches, as UTF-8."""


def encode_rows(rows: Iterable[tuple[bytes, Cell]]) -> bytes:
    """Encode (key, sealed value or None for a delete) pairs, in their order."""
    return _ENCODER.encode(list(chain.from_iterable(rows)))


def join_rows(count: int, packed: Iterable[bytes | memoryview]) -> bytes:
    """Do the same for ``count`` rows that are packed already: keys and cells, one after another."""
    return b"".join([array_header(2 * count), *packed])


def decode_rows(payload: bytes | memoryview) -> list[Cell]:
    """Return the flat list [key, sealed or None, ...]; raise DecodeError on anything malformed."""
    try:
        flat = _ROWS.decode(payload)
    except msgspec.MsgspecError as error:
        raise DecodeError(f"a payload of {len(payload)} bytes holds no rows: {error}") from error
    if not flat or len(flat) % 2 or not all(flat[::2]):
        raise DecodeError(
            f"a payload of {len(payload)} bytes holds {len(flat)} cells; "
            "rows are pairs of a key and a value"
        )
    return flat


def encode_conditional(key: bytes, sealed: Cell, expected: Seq) -> bytes:
    """Encode a write that applies only if the key's row has seq ``expected`` (0: no row)."""
    return _ENCODER.encode((key, sealed, expected))


def decode_conditional(payload: bytes | memoryview) -> tuple[bytes, Cell, Seq]:
    """Return (key, sealed or None, expected); raise DecodeError on anything malformed."""
    try:
        key, sealed, expected = _CONDITIONAL.decode(payload)
    except msgspec.MsgspecError as error:
        raise DecodeError(
            f"a payload of {len(payload)} bytes is no conditional write: {error}"
        ) from error
    if not key or expected < 0:
        raise DecodeError(
            f"a conditional write has the key {key.hex()!r} and expects seq {expected}; "
            "the key must not be empty and the seq not negative"
        )
    return key, sealed, Seq(expected)


def encode_mark(writer: str, batch_id: int) -> bytes:
    """Encode the end of the writer's micro-batch ``batch_id`` (BLOG-32)."""
    return _ENCODER.encode((writer, batch_id))


def decode_mark(payload: bytes) -> tuple[str, int]:
    """Return (writer, batch id); raise DecodeError on anything malformed."""
    try:
        writer, batch_id = _MARK.decode(payload)
    except ValueError as error:  # of msgspec, or of a text that is no UTF-8
        raise DecodeError(
            f"a payload of {len(payload)} bytes is no end of a micro-batch: {error}"
        ) from error
    if not writer or len(writer.encode()) > WRITER_BYTES_MAX or batch_id < 0:
        raise DecodeError(
            f"a micro-batch is of writer {writer[:40]!r} with id {batch_id}; the name must have 1 "
            f"to {WRITER_BYTES_MAX} bytes and the id must not be negative"
        )
    return writer, batch_id


def check_payload(kind: RecordKind, payload: bytes, rows: int) -> None:
    """Raise DecodeError or CorruptRecordError unless a publisher may have this applied to a table.

    A leader asks before it sequences a payload: once committed, a payload that no replica can apply
    would stop them all, and so would a row whose seal is wrong when somebody reads it.
    """
    if kind in (RecordKind.MACHINE_COMMAND, RecordKind.MACHINE_COMMANDS):
        raise DecodeError(
            "a table takes no commands; create a channel set with a state machine for them "
            "(create_channelset)"
        )
    if kind in WITHOUT_TTL:
        payload = bytes(decode_with_ttl(payload)[1])
        kind = WITHOUT_TTL[kind]
    if kind is RecordKind.CONDITIONAL:
        key, sealed, _ = decode_conditional(payload)
        flat: list[Cell] = [key, sealed]
    elif kind is RecordKind.ROWS:
        flat = decode_rows(payload)
    elif kind is RecordKind.BATCH_MARK:
        decode_mark(payload)
        if rows != 1:
            raise DecodeError(f"the end of a micro-batch occupies 1 seq, not {rows}")
        return
    else:
        raise DecodeError(
            "a table takes rows, conditional writes and ends of micro-batches, not records of "
            f"kind {kind:d}"
        )
    if len(flat) != 2 * rows or rows > ROWS_PER_RECORD_MAX:
        raise DecodeError(
            f"a payload announced with {rows} rows holds {len(flat) // 2}; "
            f"the numbers must agree and not exceed {ROWS_PER_RECORD_MAX}"
        )
    if (longest := max(map(len, cast(list[bytes], flat[::2])))) > KEY_BYTES_MAX:
        raise DecodeError(f"a key of {longest} bytes is over the limit of {KEY_BYTES_MAX}")
    sizes = [len(cell) for cell in flat[1::2] if cell is not None]
    if sizes and (min(sizes) < SEAL_BYTES or max(sizes) > VALUE_BYTES_MAX + SEAL_BYTES):
        raise DecodeError(
            f"sealed values have {min(sizes)} to {max(sizes)} bytes; "
            f"{SEAL_BYTES} to {VALUE_BYTES_MAX + SEAL_BYTES} are allowed"
        )
    check_seals(cast(list[bytes], flat[::2]), flat[1::2])
