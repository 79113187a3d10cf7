"""LevelDbTables beyond the contract with records in pieces: threads, slices, closing."""

from __future__ import annotations

from pathlib import Path
from queue import SimpleQueue
from threading import Event
from typing import Any

import pytest

from raftstore.errors import CorruptRecordError, PersistError
from raftstore.ports.tables import Piece
from raftstore.protocol.payload import encode_rows
from raftstore.protocol.staged import ChunkHeader, encode_staged
from raftstore.rows.sealing import SEAL_BYTES
from raftstore.state_machines.table import TableMachine
from raftstore.storage.tables.keys import MARKER, applied_key, rows_prefix
from raftstore.storage.tables.leveldb_tables import LevelDbTables
from raftstore.types import RecordKind
from tests.piece_worlds import batch_record, chunk, pieces_of
from tests.storage_helpers import (
    CHANNEL,
    OTHER,
    SMALL,
    STORE_UUID,
    database_of,
    record,
    rows_record,
)
from tests.table_stores import Changes, count_writes, noting_batches

MIB = 1 << 20


@pytest.fixture
def tables(tmp_path: Path) -> Any:
    """Open, with one row; applied in the test's thread."""
    LevelDbTables.create(tmp_path, STORE_UUID, SMALL)
    made = LevelDbTables.open(tmp_path, STORE_UUID, SMALL)
    made.open_channel(CHANNEL, TableMachine())
    made.open_channel(OTHER, TableMachine())
    made.apply(CHANNEL, [rows_record(1, {b"a": b"old"})])
    made.apply_queued()
    yield made
    made.close()


def test_view_ends_when_the_loop_thread_learns_of_the_last_part(tables: Any) -> None:
    """Not when the apply thread has written it: a reader between the two would see both states."""
    told: list[Any] = []
    tables.report_to(
        post=told.append, on_applied=lambda *_told: told.append("applied"), on_failed=pytest.fail
    )
    tables.apply_piece(CHANNEL, Piece(batch_record(2), True, True, [chunk([(b"a", b"new")])]))
    tables.apply_queued()
    assert tables.applied_seq(CHANNEL) == 1
    assert tables.get(CHANNEL, b"a").value == b"old"
    assert tables.get_many(CHANNEL, [b"a"], 99).applied_seq == 1
    assert len(told) == 1
    told[0]()
    assert told[1:] == ["applied"]
    assert tables.applied_seq(CHANNEL) == 2
    assert tables.get(CHANNEL, b"a").value == b"new"


def test_slices_are_bounded_and_marked_until_the_last(
    tables: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No atomic batch holds much more than its bound, and only the last states the position."""
    written: list[Changes] = []
    monkeypatch.setattr(tables._applier, "_new_batch", noting_batches(written))
    rows = [(b"%05d" % n, bytes(1000)) for n in range(3000)]
    for piece in pieces_of(batch_record(2), [[chunk(rows[1500:])], [chunk(rows[:1500])]]):
        tables.apply_piece(CHANNEL, piece)
        tables.apply_queued()
    assert len(written) == 4
    for changes in written:
        assert sum(len(key) + len(value or b"") for key, value in changes.items()) < 1.1 * MIB
        found = [key for key in changes if key.startswith(rows_prefix(CHANNEL))]
        assert found == sorted(found)
    mark, position = CHANNEL + MARKER, applied_key(CHANNEL)
    assert [mark in changes for changes in written] == [True, False, False, True]
    assert written[3][mark] is None
    assert [position in changes for changes in written] == [False, False, False, True]


def test_store_closes_with_a_view_shown_and_versions_kept(tmp_path: Path, tables: Any) -> None:
    """LevelDB must not be closed under a snapshot."""
    for seq in (2, 3):
        piece = Piece(batch_record(seq), True, True, [chunk([(b"a", b"%d" % seq)])], version=seq)
        tables.apply_piece(CHANNEL, piece)
        tables.apply_queued()
    tables.apply_piece(CHANNEL, pieces_of(batch_record(4), [[chunk([(b"b", b"1")])], []])[0])
    held = tables.snapshot_at(CHANNEL, 2), tables.snapshot(CHANNEL)
    views = [view.snapshot for view in tables._views._kept[CHANNEL].values()]
    tables.close()
    assert len(views) == 2
    for view in views:
        with pytest.raises(RuntimeError, match="closed"):
            view.get(b"a")
    for snapshot in held:
        with pytest.raises(PersistError, match="they were closed"):
            snapshot.page(b"", b"", 9)
        snapshot.close()
    with pytest.raises(PersistError, match="they were closed"):
        tables.snapshot_at(CHANNEL, 2)
    again = LevelDbTables.open(tmp_path, STORE_UUID, SMALL)
    assert again.open_channel(CHANNEL, TableMachine()) == 3
    again.close()


def test_store_closes_after_the_hash_at_hand(tables: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Hashes that are queued are let go of, not taken: a stop does not wait for dozens of them."""
    at_work, go_on = Event(), Event()
    hashed: list[Any] = []
    shared: list[Any] = []
    take_hash, share = tables._reads.content_hash, tables._shared

    def take_slowly(source: Any, channel: Any) -> Any:
        hashed.append(channel)
        at_work.set()
        assert go_on.wait(20)
        return take_hash(source, channel)

    def note_shared(channel: Any) -> Any:
        shared.append(share(channel))
        return shared[-1]

    monkeypatch.setattr(tables._reads, "content_hash", take_slowly)
    monkeypatch.setattr(tables, "_shared", note_shared)
    calls: SimpleQueue[Any] = SimpleQueue()
    tables._post = calls.put
    for channel in (CHANNEL, OTHER, CHANNEL):
        tables.start_content_hash(channel, lambda *_told: None)
    assert at_work.wait(20)
    stop = tables._hashes._worker.stop

    def stop_hashing() -> None:
        go_on.set()
        stop()

    monkeypatch.setattr(tables._hashes._worker, "stop", stop_hashing)
    tables.close()
    assert hashed == [CHANNEL]
    assert calls.qsize() == 1
    assert [one._readers for one in shared] == [0, 0, 0]


def test_hash_taken_meanwhile_is_of_the_view(tables: Any) -> None:
    """Another thread reads it, also when the last piece is applied before it is done."""
    before = tables.content_hash(CHANNEL)
    calls: SimpleQueue[Any] = SimpleQueue()
    hashes: list[Any] = []
    tables._post = calls.put
    first, last = pieces_of(batch_record(2), [[chunk([(b"b", b"1")])], []])
    tables.apply_piece(CHANNEL, first)
    tables.start_content_hash(CHANNEL, lambda *told: hashes.append(told))
    tables.apply_piece(CHANNEL, last)
    tables.apply_queued()
    calls.get(timeout=20)()
    assert hashes == [before]
    assert tables.content_hash(CHANNEL)[2] == 2


def test_damaged_state_is_never_answered(tables: Any) -> None:
    """Values of the state carry a seal over their key, like rows."""
    state = ((b"\x02\x00", b"head"),)
    tables.apply_piece(CHANNEL, Piece(batch_record(2), True, True, state_writes=state))
    tables.apply_queued()
    database = database_of(tables)
    stored = database.get(CHANNEL + b"\x02\x00")
    database.put(CHANNEL + b"\x02\x01", stored)
    with pytest.raises(CorruptRecordError, match="checksum"):
        tables.state_get(CHANNEL, b"\x02\x01")


def test_staged_records_share_a_batch_though_each_looks_at_the_state(tables: Any) -> None:
    """Staged records are looked up in the batch that gathers them: many small
    chunks are one write.
    """
    written = count_writes(tables)
    rows = encode_rows([(b"k", None)])
    staged = [
        record(
            seq,
            kind=RecordKind.STAGED,
            payload=encode_staged(ChunkHeader("w", 1, 0, 0, seq // 2), rows),
        )
        for seq in range(2, 22)
    ]
    tables.apply(CHANNEL, staged)
    tables.apply_queued()
    assert written() == 1
    assert len(tables.state_scan(CHANNEL, b"\x02", b"\x03", 99)) == 10


@pytest.mark.slow
def test_readers_see_one_batch_whatever_the_apply_thread_does(tmp_path: Path) -> None:
    """Each batch writes its number into every row: no read, however it comes, finds two."""
    LevelDbTables.create(tmp_path, STORE_UUID, SMALL)
    tables = LevelDbTables.open(tmp_path, STORE_UUID, SMALL)
    tables.open_channel(CHANNEL, TableMachine())
    calls: SimpleQueue[Any] = SimpleQueue()
    told: list[Any] = []
    tables.start(
        post=calls.put,
        on_applied=lambda *what: told.append(what),
        on_failed=pytest.fail,
        on_read=pytest.fail,
    )
    keys = [b"%04d" % n for n in range(3000)]
    some = keys[::500]

    def read() -> set[bytes]:
        found = tables.get_many(CHANNEL, some, MIB)
        applied = found.applied_seq
        assert applied == tables.applied_seq(CHANNEL)
        single = tables.get_many(CHANNEL, some[1:2], MIB)
        assert single.applied_seq == applied
        row = tables.get(CHANNEL, some[-1])
        page = tables.scan(CHANNEL, b"", b"", 9999)
        assert page.applied_seq == applied
        sealed = [value for value in (*found.values, *single.values) if value is not None]
        rows = [one.value for one in (row, *page.rows) if one is not None]
        return {value[:1] for value in (*rows, *(one[SEAL_BYTES:] for one in sealed))}

    seen: list[set[bytes]] = []
    for n in range(1, 7):
        rows = [(key, bytes([n]) * 400) for key in keys]
        made = pieces_of(batch_record(n), [[chunk(rows[2000:])], [chunk(rows[:2000])], []])
        for piece in made:
            tables.apply_piece(CHANNEL, piece)
        done = len(told) + len(made)
        while len(told) < done:
            seen.append(read())
            while not calls.empty():
                calls.get()()
    assert all(len(values) <= 1 for values in seen)
    assert read() == {bytes([6])}
    tables.close()
