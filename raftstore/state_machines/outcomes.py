"""Outcomes of writes that depend on present rows, kept for readers of the changes.

The log says what was asked for; whether a condition held, which rows to insert were left out and
what a merge led to is known only from the rows of that moment. It is written down when the record
is applied, in one atomic batch with its effect or before it, so it is a function of the log like
the rows (S10). It takes no part in the hash over a channel's contents: stores that were filled by
an older version have none of it for what they applied then.

A micro-batch that a crash cut in two is applied again, and then meets its own rows. What its first
run found out about a chunk is complete before any row of that chunk is written, and it stays. What
a merge led to is even taken from there (``merged_before``): why, ``batches.staging`` says.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Final, cast

import msgspec

from raftstore.config import MIB
from raftstore.protocol.payload import Cell, decode_rows, encode_rows
from raftstore.protocol.staged import INSERT, MERGE
from raftstore.record_machine import StateReader
from raftstore.state_machines.state_keys import outcome_key, packed, read_state, unpacked

PIECE_BYTES_MAX: Final = 1 * MIB
"""Of the rows that a merge led to, but for a last row."""

Rows = Sequence[tuple[bytes, Cell]]


class Outcome(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """``data``: of a conditional write whether it held (one byte 0 or 1), of a chunk to insert a
    bit for each row that was, of a chunk to merge the rows it led to, in several pieces if ``more``
    follow."""

    data: bytes
    more: bool = False


HELD: Final = Outcome(b"\x01")
NOT_HELD: Final = Outcome(b"\x00")


def condition_outcome(seq: int, *, held: bool) -> tuple[bytes, bytes]:
    """The stored outcome of the conditional record that ends at ``seq``."""
    return outcome_key(seq), packed(HELD if held else NOT_HELD)


def chunk_outcomes(
    seq: int, chunk: int, mode: int, cells: Sequence[Cell], written: Rows
) -> list[tuple[bytes, bytes]]:
    """The stored outcome of chunk number ``chunk`` of the batch whose record ends at ``seq``.

    ``cells`` were staged, ``written`` is what they led to (``batches.staging.rows_of``). Chunks
    whose rows are written as they are need nothing.
    """
    assert 2 * len(written) <= len(cells), (
        f"{len(cells) // 2} staged rows led to {len(written)} (S10)"
    )
    if mode == INSERT:
        inserted = frozenset(key for key, _ in written)
        return [(outcome_key(seq, chunk), packed(Outcome(_bits(cells[::2], inserted))))]
    if mode != MERGE:
        return []
    pieces = list(_pieces(written))
    last = len(pieces) - 1
    return [
        (outcome_key(seq, chunk, number), packed(Outcome(encode_rows(piece), number < last)))
        for number, piece in enumerate(pieces)
    ]


def bits_outcome(seq: int, keys: Sequence[Cell], counted: frozenset[bytes]) -> tuple[bytes, bytes]:
    """The stored outcome of an EXPIRE record: which of the keys it names were removed."""
    return outcome_key(seq), packed(Outcome(_bits(keys, counted)))


def is_complete(seq: int, chunk: int, get: Callable[[bytes], bytes | None]) -> bool:
    """Whether all of a chunk's outcome is written down already, by a run before a crash."""
    piece = 0
    while (stored := get(outcome_key(seq, chunk, piece))) is not None:
        if not unpacked(stored, Outcome).more:
            return True
        piece += 1
    return False


def merged_before(
    seq: int, chunk: int, get: Callable[[bytes], bytes | None]
) -> list[tuple[bytes, Cell]] | None:
    """The rows that a chunk to merge led to in a run before a crash; None: not all are written
    down, so no row of the chunk is in the table."""
    cells: list[Cell] = []
    piece = 0
    while (stored := get(outcome_key(seq, chunk, piece))) is not None:
        outcome = unpacked(stored, Outcome)
        cells += decode_rows(outcome.data)
        if not outcome.more:
            return list(zip(cast(Sequence[bytes], cells[::2]), cells[1::2], strict=True))
        piece += 1
    return None


def outcome_at(state: StateReader, seq: int, chunk: int = 0, piece: int = 0) -> Outcome | None:
    """One piece of what was written down; None: it was applied by a version that did not."""
    return read_state(state, outcome_key(seq, chunk, piece), Outcome)


def is_set(bits: bytes, number: int) -> bool:
    """Whether row ``number`` of a chunk was inserted."""
    return bool(bits[number >> 3] >> (number & 7) & 1)


def _bits(keys: Sequence[Cell], inserted: frozenset[bytes]) -> bytes:
    bits = bytearray((len(keys) + 7) // 8)
    for number, key in enumerate(keys):
        if key in inserted:
            bits[number >> 3] |= 1 << (number & 7)
    return bytes(bits)


def _pieces(rows: Rows) -> Iterable[Rows]:
    piece: list[tuple[bytes, Cell]] = []
    size = 0
    for key, sealed in rows:
        piece.append((key, sealed))
        size += len(key) + len(sealed or b"")
        if size >= PIECE_BYTES_MAX:
            yield piece
            piece, size = [], 0
    if piece:
        yield piece
