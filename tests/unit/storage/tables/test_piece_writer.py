"""Slices of a piece, write by write: their bounds, their order, and what comes with which (S10)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from raftstore.ports.tables import Piece
from raftstore.record_machine import Row
from raftstore.rows.sealing import SEAL_BYTES, seal
from raftstore.state_machines.batches.machines import StagingMachine
from raftstore.state_machines.table import TableMachine
from raftstore.storage.tables import pieces as pieces_module
from raftstore.storage.tables.applied_channel import AppliedChannel
from raftstore.storage.tables.keys import (
    REMOVED_KEY,
    applied_key,
    encode_applied,
    encode_count,
    marker_key,
    rows_prefix,
)
from raftstore.storage.tables.pieces import PieceWriter
from raftstore.types import EMPTY_HISTORY, ChannelId, History, Seq, Term
from tests.piece_worlds import batch_record, chunk
from tests.storage_helpers import CHANNEL

ROW_BYTES = 20
"""Key and sealed value of each row here."""
POSITION = History(Term(1), Seq(5))
MARK = (marker_key(CHANNEL), encode_applied(CHANNEL, POSITION))
UNMARK = (marker_key(CHANNEL), None)
APPLIED = (applied_key(CHANNEL), encode_applied(CHANNEL, POSITION))
STAMP = (5).to_bytes(8, "big")

Change = tuple[bytes, bytes | None]


class Database:
    """Batches in the order in which they are written, and the failpoints passed."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, slice_bytes: int) -> None:
        self.written: list[list[Change]] = []
        self.reached: list[str] = []
        self.keys: list[bytes] = []
        monkeypatch.setattr(pieces_module, "SLICE_BYTES_MAX", slice_bytes)
        monkeypatch.setattr(pieces_module.faults, "reach", self.reached.append)
        self.state = AppliedChannel(CHANNEL, TableMachine(), EMPTY_HISTORY, EMPTY_HISTORY)
        self.writer = PieceWriter(
            new_batch=self._new_batch,
            write=lambda batch: batch.write(),
            get=self._get,
            state_get=lambda _channel, _key: None,
            keys=self._keys_from,
        )

    def _new_batch(self, channel: ChannelId) -> Any:
        assert channel == CHANNEL
        return Batch(self.written)

    def _get(self, _channel: ChannelId, _key: bytes) -> Row | None:
        return None

    def _keys_from(self, _channel: ChannelId, start: bytes) -> Iterator[bytes]:
        return (key for key in self.keys if key >= start)


class Batch:
    """Notes its changes in order."""

    def __init__(self, written: list[list[Change]]) -> None:
        self._written = written
        self._changes: list[Change] = []

    def put(self, key: bytes, value: bytes) -> None:
        """A write."""
        self._changes.append((key, value))

    def delete(self, key: bytes) -> None:
        """A removal."""
        self._changes.append((key, None))

    def write(self) -> None:
        """All of it at once."""
        self._written.append(self._changes)


def rows(*numbers: int) -> list[tuple[bytes, bytes]]:
    """Rows whose key and sealed value have ``ROW_BYTES`` together."""
    return [(b"%04d" % number, b"v" * (ROW_BYTES - 4 - SEAL_BYTES)) for number in numbers]


def stored(*numbers: int) -> list[Change]:
    """The same rows as they are in the database."""
    return [(rows_prefix(CHANNEL) + key, STAMP + seal(key, value)) for key, value in rows(*numbers)]


def piece(*numbers: int, first: bool = True, last: bool = True, **more: Any) -> Piece:
    """A piece of the record at seq 5 with these rows."""
    return Piece(batch_record(5), first, last, [chunk(rows(*numbers))], **more)


@pytest.mark.parametrize(
    ("slice_bytes", "slices"),
    [
        (5 * ROW_BYTES + 1, [[1, 2, 3, 4, 5]]),
        (5 * ROW_BYTES, [[1, 2, 3, 4, 5]]),
        (2 * ROW_BYTES + 1, [[1, 2, 3], [4, 5]]),
        (2 * ROW_BYTES, [[1, 2], [3, 4], [5]]),
        (2 * ROW_BYTES - 1, [[1, 2], [3, 4], [5]]),
        (ROW_BYTES + 1, [[1, 2], [3, 4], [5]]),
        (ROW_BYTES, [[1], [2], [3], [4], [5]]),
    ],
)
def test_slices_end_when_their_bytes_are_reached(
    monkeypatch: pytest.MonkeyPatch, slice_bytes: int, slices: list[list[int]]
) -> None:
    """S10: the mark comes with the first slice, the applied position with the last one."""
    database = Database(monkeypatch, slice_bytes)
    database.writer.write(database.state, piece(1, 2, 3, 4, 5))
    expected = [stored(*numbers) for numbers in slices]
    if len(slices) > 1:
        expected[0].append(MARK)
    expected[-1] += [UNMARK, APPLIED]
    assert database.written == expected
    between = ["batch.first-slice", *["batch.mid-slice"] * (len(slices) - 2)][: len(slices) - 1]
    assert database.reached == [*between, "batch.before-last-slice", "batch.after-apply"]
    assert database.state.applied == database.state.unflushed == POSITION


def test_pieces_before_the_last_tell_no_position(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the very first slice brings the mark, whatever piece a slice is of."""
    database = Database(monkeypatch, ROW_BYTES)
    database.writer.write(database.state, piece(1, 2, last=False))
    assert database.written == [[*stored(1), MARK], stored(2)]
    assert database.state.applied == database.state.unflushed == EMPTY_HISTORY
    database.writer.write(database.state, piece(3, 4, first=False, last=False))
    assert database.written[2:] == [stored(3), stored(4)]
    state_writes = ((b"\x02key", b"value"), (b"\x02gone", None))
    database.writer.write(
        database.state, piece(5, 6, first=False, last=True, state_writes=state_writes)
    )
    kept = [(CHANNEL + b"\x02key", seal(b"\x02key", b"value")), (CHANNEL + b"\x02gone", None)]
    assert database.written[4:] == [stored(5), [*stored(6), *kept, UNMARK, APPLIED]]
    assert database.reached == [
        "batch.first-slice",
        *["batch.mid-slice"] * 4,
        "batch.before-last-slice",
        "batch.after-apply",
    ]
    assert database.state.applied == POSITION


def test_piece_without_rows_brings_its_mark(monkeypatch: pytest.MonkeyPatch) -> None:
    """A first piece may hold nothing for this channel."""
    database = Database(monkeypatch, ROW_BYTES)
    database.writer.write(database.state, Piece(batch_record(5), True, False, []))
    database.writer.write(database.state, Piece(batch_record(5), False, True, []))
    assert database.written == [[MARK], [UNMARK, APPLIED]]


def test_rows_are_written_in_key_order_and_the_last_of_a_key_counts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """LevelDB likes it best; a removal is one of them."""
    database = Database(monkeypatch, 1 << 20)
    changes = [(b"b", b"1"), (b"a", b"2"), (b"b", None), (b"c", b"3"), (b"c", b"4")]
    database.writer.write(database.state, Piece(batch_record(5), True, True, [chunk(changes)]))
    prefix = rows_prefix(CHANNEL)
    assert database.written == [
        [
            (prefix + b"a", STAMP + seal(b"a", b"2")),
            (prefix + b"b", None),
            (prefix + b"c", STAMP + seal(b"c", b"4")),
            UNMARK,
            APPLIED,
            (REMOVED_KEY, encode_count(1)),
        ]
    ]


@pytest.mark.parametrize(
    "numbers", [(3, 2, 1), (2, 1), (2, 3, 1), (1, 3, 2), (2, 2), (1, 2, 2), (1, 1, 2), (7,)]
)
def test_rows_in_any_order_are_written_in_key_order(
    monkeypatch: pytest.MonkeyPatch, numbers: tuple[int, ...]
) -> None:
    """Rows from the last key to the first are, and of the same key twice there is one."""
    database = Database(monkeypatch, 1 << 20)
    database.writer.write(database.state, piece(*numbers))
    assert database.written == [[*stored(*sorted(set(numbers))), UNMARK, APPLIED]]


def test_removals_are_bounded_and_tell_where_they_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    """Others' records are applied between the pieces; keys count as the bytes of a slice."""
    monkeypatch.setattr(pieces_module, "TRUNCATED_ROWS_MAX", 4)
    database = Database(monkeypatch, 8)
    database.keys = [b"%04d" % number for number in range(1, 8)]
    prefix = rows_prefix(CHANNEL)
    piece = Piece(batch_record(5), True, False, [], truncate_from=b"0002")
    database.writer.write(database.state, piece)
    removed = [(prefix + b"%04d" % number, None) for number in (2, 3, 4, 5)]
    told = [(REMOVED_KEY, encode_count(number)) for number in (2, 4)]
    assert database.written == [[*removed[:2], told[0], MARK], [*removed[2:], told[1]]]
    assert database.state.truncated == b"0006"
    piece = Piece(batch_record(5), False, True, [], truncate_from=b"0006")
    database.writer.write(database.state, piece)
    assert database.state.truncated is None
    assert database.written[2] == [
        (prefix + b"0006", None),
        (prefix + b"0007", None),
        UNMARK,
        APPLIED,
        (REMOVED_KEY, encode_count(6)),
    ]


class Deciding(StagingMachine):
    """A machine that remembers an outcome of each chunk in the state."""

    def outcomes_of(self, *_: Any) -> Any:
        """Two outcomes of ten bytes, and one that is gone."""
        return [(b"\x021", b"o" * 10), (b"\x022", b"o" * 10), (b"\x023", None)]


@pytest.mark.parametrize(
    ("slice_bytes", "sizes"), [(10, [2, 1, 2]), (11, [3, 2]), (20, [3, 2]), (21, [5])]
)
def test_outcomes_are_written_before_any_row(
    monkeypatch: pytest.MonkeyPatch, slice_bytes: int, sizes: list[int]
) -> None:
    """The state says what became of the chunks when the first row is there; it counts as bytes."""
    database = Database(monkeypatch, slice_bytes)
    database.state.pieces = Deciding()
    database.writer.write(database.state, piece(1, last=False))
    found = [change for batch in database.written for change in batch]
    expected: list[Change] = [
        (CHANNEL + b"\x021", seal(b"\x021", b"o" * 10)),
        (CHANNEL + b"\x022", seal(b"\x022", b"o" * 10)),
        (CHANNEL + b"\x023", None),
        *stored(1),
    ]
    assert [change for change in found if change != MARK] == expected
    assert database.written[0][-1] == MARK
    assert found.count(MARK) == 1
    assert [len(batch) for batch in database.written] == sizes
