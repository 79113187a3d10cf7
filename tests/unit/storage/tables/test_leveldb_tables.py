"""LevelDbTables beyond the contract: threads, error mapping, and states as of one batch."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import plyvel
import pytest

from raftstore.errors import (
    CorruptRecordError,
    PersistError,
    StorageError,
)
from raftstore.record_machine import ApplyResult, RecordMachine
from raftstore.rows.sealing import check_seal, seal, unseal
from raftstore.storage.tables import leveldb_database, leveldb_reads
from raftstore.storage.tables.keys import (
    applied_key,
    decode_applied,
    rows_prefix,
)
from raftstore.storage.tables.leveldb_database import translate
from raftstore.storage.tables.leveldb_tables import LevelDbTables
from tests.storage_helpers import (
    CHANNEL,
    SMALL,
    STORE_UUID,
    record,
    rows_record,
)
from tests.table_stores import Changes, noting_batches, open_tables


def test_every_plyvel_error_is_translated() -> None:
    """Only this room sees plyvel: each of its exceptions has one of ours."""
    names = [name for name in dir(plyvel) if isinstance(getattr(plyvel, name), type)]
    errors = [getattr(plyvel, name) for name in names]
    errors = [error for error in errors if issubclass(error, Exception)]
    assert len(errors) == 4
    for error in errors:
        assert issubclass(error, leveldb_database.DATABASE_ERRORS)
        ours = translate(error("text of the cause"))
        assert type(ours) in (PersistError, CorruptRecordError)
        assert "text of the cause" in str(ours)
    assert isinstance(translate(plyvel.CorruptionError("x")), CorruptRecordError)
    assert isinstance(translate(plyvel.IOError("No space left on device")), PersistError)


def test_rows_and_position_are_one_atomic_batch(tmp_path: Path) -> None:
    """S10: the position of a record is written with its rows, in the same batch, or not at all."""
    LevelDbTables.create(tmp_path, STORE_UUID, SMALL)
    tables = open_tables(tmp_path)
    written: list[Changes] = []
    tables._applier._new_batch = noting_batches(written)
    big = {b"%d" % n: bytes(1000) for n in range(600)}
    tables.apply(CHANNEL, [rows_record(1 + 600 * n, big) for n in range(5)])
    tables.apply_queued()
    assert len(written) > 1
    for changes in written:
        position = decode_applied(CHANNEL, changes[applied_key(CHANNEL)] or b"")
        seqs = {
            int.from_bytes((value or b"")[:8], "big")
            for key, value in changes.items()
            if key.startswith(rows_prefix(CHANNEL))
        }
        assert max(seqs) == position.seq
    tables.close()


class FailingMachine(RecordMachine):
    """A machine that cannot apply what was committed."""

    def apply(self, record: Any, view: Any) -> ApplyResult:
        raise ValueError("no such command")


def test_apply_thread_applies_reports_and_measures_its_queue(tmp_path: Path) -> None:
    """Completions come in order through the loop thread; the queue's size is known."""
    LevelDbTables.create(tmp_path, STORE_UUID, SMALL)
    tables = open_tables(tmp_path)
    calls: SimpleQueue[Any] = SimpleQueue()
    seen: list[Any] = []
    records = [rows_record(n, {b"k": b"%d" % n}) for n in range(1, 50)]
    tables.apply(CHANNEL, records[:20])
    assert tables.queued_bytes() == sum(len(one.payload) for one in records[:20])
    tables.start(
        post=calls.put,
        on_applied=lambda *told: seen.append(told),
        on_failed=pytest.fail,
        on_read=pytest.fail,
    )
    for one in records[20:]:
        tables.apply(CHANNEL, [one])
    while len(seen) < 30:
        calls.get(timeout=20)()
    assert seen == [(CHANNEL, seq, (), ()) for seq in range(20, 50)]
    assert tables.applied_seq(CHANNEL) == 49
    assert tables.queued_bytes() == 0
    hashes: list[Any] = []
    tables.start_content_hash(CHANNEL, lambda *told: hashes.append(told))
    calls.get(timeout=20)()
    assert hashes == [tables.content_hash(CHANNEL)]
    tables.close()


def test_apply_thread_reports_a_failure_and_poisons_the_tables(tmp_path: Path) -> None:
    """S0.4: a committed record that cannot be applied stops the node, it is not skipped."""
    LevelDbTables.create(tmp_path, STORE_UUID, SMALL)
    tables = LevelDbTables.open(tmp_path, STORE_UUID, SMALL)
    tables.open_channel(CHANNEL, FailingMachine())
    calls: SimpleQueue[Any] = SimpleQueue()
    failures: list[StorageError] = []
    tables.start(
        post=calls.put,
        on_applied=pytest.fail,
        on_failed=failures.append,
        on_read=pytest.fail,
    )
    tables.apply(CHANNEL, [record(1)])
    calls.get(timeout=20)()
    assert "no such command" in str(failures[0])
    with pytest.raises(PersistError, match="not usable any more"):
        tables.get(CHANNEL, b"a")
    tables.close()
    again = open_tables(tmp_path)
    assert again.applied_seq(CHANNEL) == 0
    again.close()


@pytest.mark.parametrize("read", ["get_many", "scan"])
def test_record_applied_while_rows_are_read_is_seen_as_a_whole_or_not_at_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, read: str
) -> None:
    """Another thread applies meanwhile: rows and their position are of one snapshot."""
    LevelDbTables.create(tmp_path, STORE_UUID, SMALL)
    tables = open_tables(tmp_path)
    keys = (b"a", b"b", b"c")
    tables.apply(CHANNEL, [rows_record(1, dict.fromkeys(keys, b"old"))])
    tables.apply_queued()
    tables.apply(CHANNEL, [rows_record(4, dict.fromkeys(keys, b"new"))])

    def applying(check: Callable[[bytes, bytes], Any]) -> Callable[[bytes, bytes], Any]:
        def applied_meanwhile(key: bytes, sealed: bytes) -> Any:
            tables.apply_queued()
            return check(key, sealed)

        return applied_meanwhile

    monkeypatch.setattr(leveldb_reads, "unseal", applying(unseal))
    monkeypatch.setattr(leveldb_reads, "check_seal", applying(check_seal))
    if read == "scan":
        page = tables.scan(CHANNEL, b"", b"", 9)
        rows, applied = [(row.value, row.seq) for row in page.rows], page.applied_seq
    else:
        found = tables.get_many(CHANNEL, keys, 99)
        applied = found.applied_seq
        sealed = [value for value in found.values if value is not None]
        values = [unseal(key, value) for key, value in zip(keys, sealed, strict=True)]
        rows = list(zip(values, found.seqs, strict=True))
    assert rows == [(b"old", 3)] * 3
    assert (applied, tables.applied_seq(CHANNEL)) == (3, 6)
    tables.close()


@pytest.mark.parametrize("is_delete", [False, True])
@pytest.mark.parametrize("when", ["before", "after"])
def test_position_of_a_single_row_is_that_of_the_state_it_was_read_from(
    tmp_path: Path, when: str, *, is_delete: bool
) -> None:
    """A reader that goes on from this position must see the same row there, or none again."""
    LevelDbTables.create(tmp_path, STORE_UUID, SMALL)
    tables = open_tables(tmp_path)
    tables.apply(CHANNEL, [rows_record(1, {b"a": b"old"})])
    tables.apply_queued()
    assert tables.get_many(CHANNEL, (b"a", b"b"), 99).applied_seq == 1
    tables.apply(CHANNEL, [rows_record(2, {b"a": None if is_delete else b"new"})])
    get = tables.get

    def applied_meanwhile(*arguments: Any) -> Any:
        if when == "before":
            tables.apply_queued()
        row = get(*arguments)
        tables.apply_queued()
        return row

    tables.get = applied_meanwhile  # type: ignore[method-assign]
    found = tables.get_many(CHANNEL, (b"a",), 99)
    expected = b"old" if when == "after" else None if is_delete else b"new"
    assert found.values == [None if expected is None else seal(b"a", expected)]
    assert found.applied_seq == (1 if when == "after" else 2)
    tables.close()
