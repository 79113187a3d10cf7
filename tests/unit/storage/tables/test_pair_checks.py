"""Checks of many pairs of a table at once: as strict as one by one, wherever the damage is."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from raftstore.errors import CorruptRecordError
from raftstore.rows.sealing import seal
from raftstore.storage.tables.keys import (
    MARKER,
    POSITION,
    ROWS_TAG,
    STATE_START,
    encode_applied,
    row_head,
)
from raftstore.storage.tables.pair_checks import ROWS_AT_ONCE, check_pairs
from raftstore.types import History, Seq, Term
from tests.storage_helpers import CHANNEL, OTHER

APPLIED = encode_applied(CHANNEL, History(Term(1), Seq(7)))


def row(number: int, expires_ms: int = 0) -> tuple[bytes, bytes]:
    """A row as it is stored, with its key's tag."""
    key = b"%06d" % number
    return ROWS_TAG + key, row_head(Seq(number + 1), expires_ms) + seal(key, b"value %d" % number)


def table(rows: int, expires_ms: Callable[[int], int] = lambda _: 0) -> dict[bytes, bytes]:
    """A position, rows, and two values beside them, one of them the mark of a record in pieces."""
    state = STATE_START + b"\x01key"
    return dict(
        [
            (POSITION, APPLIED),
            *(row(number, expires_ms(number)) for number in range(rows)),
            (state, seal(state, b"a value")),
            (MARKER, APPLIED),
        ]
    )


def check(pairs: dict[bytes, bytes]) -> None:
    """In key order, as they are read."""
    keys = sorted(pairs)
    check_pairs(CHANNEL, keys, [pairs[key] for key in keys])


@pytest.mark.parametrize("rows", [0, 1, ROWS_AT_ONCE, 2 * ROWS_AT_ONCE + 3])
@pytest.mark.parametrize(
    "expires_ms",
    [lambda _: 0, lambda _: 99, lambda number: 99 * (number % 2)],
    ids=["no expiry", "all expire", "some expire"],
)
def test_table_as_it_was_written_is_well(rows: int, expires_ms: Callable[[int], int]) -> None:
    """Rows with and without an expiry, state, mark and position."""
    check(table(rows, expires_ms))


def test_nothing_is_well() -> None:
    """A table of which nothing is applied."""
    check_pairs(CHANNEL, [], [])


@pytest.mark.parametrize("expires_ms", [0, 99])
@pytest.mark.parametrize("number", [0, 1, ROWS_AT_ONCE - 1, ROWS_AT_ONCE, ROWS_AT_ONCE + 7])
@pytest.mark.parametrize("at", [-1, -9, 12, 8])
def test_damaged_row_is_named(number: int, at: int, expires_ms: int) -> None:
    """S0.3: a bit of value or seal, in any group of rows, the first, the last, and among rows with
    an expiry."""
    pairs = table(ROWS_AT_ONCE + 8, lambda each: expires_ms if each == 3 else 0)
    key, stored = row(number)
    at %= len(stored)
    pairs[key] = stored[:at] + bytes([stored[at] ^ 1]) + stored[at + 1 :]
    with pytest.raises(CorruptRecordError, match=key[1:].hex()):
        check(pairs)


@pytest.mark.parametrize("stored", [b"", b"\0", b"\0" * 11, b"\0" * 12, b"\xff" * 19])
def test_row_that_is_too_short_is_damaged(stored: bytes) -> None:
    """For a seal, or for a value that fits it."""
    key, _ = row(4)
    with pytest.raises(CorruptRecordError, match=key[1:].hex()):
        check({**table(9), key: stored})


def test_row_under_another_rows_key_is_damaged() -> None:
    """The seal is over key and value."""
    key, _ = row(4)
    with pytest.raises(CorruptRecordError, match=key[1:].hex()):
        check({**table(9), key: row(5)[1]})


def test_damaged_position_and_state_are_found() -> None:
    """Pairs in front of the rows and behind them."""
    for key, stored in table(3).items():
        if not key.startswith(ROWS_TAG):
            with pytest.raises(CorruptRecordError):
                check({**table(3), key: stored[:-1] + bytes([stored[-1] ^ 1])})
    with pytest.raises(CorruptRecordError):
        check({**table(3), POSITION: encode_applied(OTHER, History(Term(1), Seq(7)))})
