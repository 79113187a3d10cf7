"""LevelDbTables beyond the contract: damage, rebuilding, threads, error mapping."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from queue import SimpleQueue
from threading import Event
from typing import Any

import plyvel
import pytest

from raftstore.config import StorageSettings
from raftstore.errors import (
    CorruptRecordError,
    DiskFullError,
    NewerFormatError,
    PersistError,
    StorageError,
    StoreIdentityError,
)
from raftstore.ports.machine import ApplyResult
from raftstore.rows.sealing import check_seal, seal, unseal
from raftstore.state_machines.table import TableMachine
from raftstore.storage.tables import leveldb_database, leveldb_reads, tables_directory
from raftstore.storage.tables.keys import (
    applied_key,
    decode_applied,
    encode_applied,
    rows_prefix,
)
from raftstore.storage.tables.leveldb_database import share_of, translate
from raftstore.storage.tables.leveldb_tables import LevelDbTables
from raftstore.storage.tables.tables_directory import TablesDirectory
from raftstore.types import ChannelId, History, RecordKind
from tests.storage_helpers import (
    CHANNEL,
    OTHER,
    SMALL,
    STORE_UUID,
    database_of,
    flip_bit,
    record,
    rows_record,
    table_path,
)

IN_ROWS = 50_000
"""Byte of the table file of ``directory`` in a block that holds nothing but rows."""


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """A closed store with 200 rows, most of them in a table file."""
    LevelDbTables.create(tmp_path, STORE_UUID, SMALL)
    tables = open_tables(tmp_path)
    for n in range(1, 201):
        tables.apply(CHANNEL, [rows_record(n, {b"%05d" % n: bytes([n]) * 500})])
    tables.apply_queued()
    database_of(tables).compact_range(start=b"\0", stop=b"\xff")
    tables.apply(CHANNEL, [rows_record(201, {b"last": b"in the write-ahead log"})])
    tables.apply_queued()
    tables.close()
    return tmp_path


def open_tables(directory: Path) -> LevelDbTables:
    """Open with one channel attached."""
    tables = LevelDbTables.open(directory, STORE_UUID, SMALL)
    tables.open_channel(CHANNEL, TableMachine())
    return tables


def table_files(directory: Path, suffix: str) -> list[Path]:
    """LevelDB's own files of a kind."""
    return sorted(table_path(directory).glob(f"*{suffix}"))


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


def remove_current(directory: Path) -> None:
    """LevelDB with create_if_missing would delete all rows here without a word."""
    (table_path(directory) / "CURRENT").unlink()


@pytest.mark.parametrize(
    "damage",
    [
        remove_current,
        lambda directory: (table_path(directory) / "CURRENT").write_bytes(b""),
        lambda directory: shutil.rmtree(directory / "tables"),
        lambda directory: table_path(directory).joinpath("raftstore-rebuild").write_text("asked"),
        lambda directory: [path.unlink() for path in table_path(directory).glob("*.ldb")],
        lambda directory: [path.unlink() for path in table_files(directory, ".ldb")],
        lambda directory: flip_bit(next(table_path(directory).glob("MANIFEST-*")), 30),
        lambda directory: (directory / "tables" / "raftstore-store").unlink(),
        lambda directory: flip_bit(table_files(directory, ".log")[-1], 20),
    ],
    ids=[
        "no CURRENT",
        "empty CURRENT",
        "removed",
        "asked for",
        "emptied",
        "no table",
        "MANIFEST",
        "no owner",
        "log",
    ],
)
def test_damaged_tables_are_put_aside_and_start_empty(
    directory: Path, damage: Callable[[Path], Any]
) -> None:
    """The log is the authority: nothing is repaired, all is applied again, and it is told."""
    damage(directory)
    tables = open_tables(directory)
    assert tables.rebuilt_because is not None
    assert tables.applied_seq(CHANNEL) == 0
    assert tables.scan(CHANNEL, b"", b"", 10).rows == []
    tables.apply(CHANNEL, [rows_record(1, {b"a": b"1"})])
    tables.apply_queued()
    tables.close()
    again = open_tables(directory)
    assert again.rebuilt_because is None
    assert again.applied_seq(CHANNEL) == 1
    again.close()


def test_damaged_database_is_kept_for_inspection(directory: Path) -> None:
    """Quarantine, not deletion."""
    names = {path.name for path in table_files(directory, ".ldb")}
    remove_current(directory)
    open_tables(directory).close()
    aside = directory / "quarantine" / f"tables-{CHANNEL.hex()}-0000"
    assert names <= {path.name for path in aside.iterdir()}


def test_damaged_databases_are_kept_apart_after_an_operator_removed_one(directory: Path) -> None:
    """The next damage finds a free place, whatever was cleared away."""
    quarantine = directory / "quarantine"
    first, second, third = (f"tables-{CHANNEL.hex()}-{number:04d}" for number in range(3))
    for kept in (first, second, third):
        remove_current(directory)
        tables = open_tables(directory)
        tables.apply(CHANNEL, [rows_record(1, {b"a": b"1"})])
        tables.apply_queued()
        tables.close()
        assert (quarantine / kept).is_dir()
        if kept == second:
            shutil.rmtree(quarantine / first)
    assert sorted(run.name for run in quarantine.iterdir()) == [second, third]


def test_lost_write_ahead_log_is_replayed_by_its_position(directory: Path) -> None:
    """LevelDB loses its tail in silence; the applied position goes back with the rows (S10)."""
    for path in table_files(directory, ".log"):
        path.write_bytes(b"")
    tables = open_tables(directory)
    assert tables.rebuilt_because is None
    assert tables.applied_seq(CHANNEL) == 200
    tables.apply(CHANNEL, [rows_record(201, {b"last": b"again"})])
    tables.apply_queued()
    row = tables.get(CHANNEL, b"last")
    assert row is not None
    assert (row.value, row.seq) == (b"again", 201)
    tables.close()


def test_bit_rot_found_by_a_read_stops_the_tables_and_rebuilds_them(directory: Path) -> None:
    """S0.4: CorruptRecordError, then nothing works; the next start does not meet it again."""
    flip_bit(table_files(directory, ".ldb")[0], IN_ROWS)
    tables = open_tables(directory)
    assert tables.rebuilt_because is None
    with pytest.raises(CorruptRecordError, match="rebuilt from the log at the next start"):
        [tables.get(CHANNEL, b"%05d" % n) for n in range(1, 201)]
    for call in (
        lambda: tables.get(CHANNEL, b"last"),
        lambda: tables.scan(CHANNEL, b"", b"", 1),
        lambda: tables.content_hash(CHANNEL),
        lambda: tables.apply(CHANNEL, [rows_record(202, {b"a": b"1"})]),
        lambda: tables.drop(CHANNEL),
        tables.size_bytes,
    ):
        with pytest.raises(PersistError, match="not usable any more"):
            call()
    tables.close()
    again = open_tables(directory)
    assert again.rebuilt_because is not None
    assert "Corruption" in again.rebuilt_because
    again.close()


def test_record_of_a_newer_version_leaves_the_tables_as_they_are(directory: Path) -> None:
    """GAP-15: an older node stops on it, and once it is upgraded it goes on with its rows."""
    tables = open_tables(directory)
    tables.apply(CHANNEL, [record(202, kind=RecordKind.COMMAND, payload=b"what is to come")])
    with pytest.raises(NewerFormatError, match="run a newer version on this node"):
        tables.apply_queued()
    tables.close()
    again = open_tables(directory)
    assert again.rebuilt_because is None
    assert again.applied_seq(CHANNEL) == 201
    assert again.get(CHANNEL, b"00001") is not None
    again.close()


def test_scan_and_hash_verify_what_they_read(directory: Path) -> None:
    """A damaged block is an error, never a row that is missing."""
    flip_bit(table_files(directory, ".ldb")[0], IN_ROWS)
    tables = open_tables(directory)
    with pytest.raises(CorruptRecordError):
        tables.content_hash(CHANNEL)
    tables.close()


def test_tables_of_another_store_are_refused_untouched(directory: Path) -> None:
    """S0.1: a copied database does not become this node's state."""

    def contents() -> dict[Path, bytes]:
        files = (path for path in (directory / "tables").rglob("*") if path.is_file())
        return {path: path.read_bytes() for path in files}

    before = contents()
    with pytest.raises(StoreIdentityError, match="holds the tables of store 0001"):
        LevelDbTables.open(directory, bytes(16), SMALL)
    assert before == contents()
    open_tables(directory).close()


@pytest.mark.parametrize("offset", [0, 15, 31])
def test_flipped_bit_is_not_taken_for_another_store(directory: Path, offset: int) -> None:
    """A damaged name heals like a missing one: the tables are built again from the log."""
    owner = directory / "tables" / "raftstore-store"
    flip_bit(owner, offset, 0x01)
    tables = open_tables(directory)
    assert tables.rebuilt_because is not None
    assert tables.applied_seq(CHANNEL) == 0
    tables.close()
    assert owner.read_bytes() == STORE_UUID.hex().encode()


@pytest.mark.parametrize("damage", [b"", b"0000000"])
def test_checksum_of_the_owner_is_made_anew(directory: Path, damage: bytes) -> None:
    """Tables of the first version have none, and a damaged one says nothing of the rows."""
    checksum = directory / "tables" / "raftstore-store.crc"
    before = checksum.read_bytes()
    checksum.write_bytes(damage)
    tables = open_tables(directory)
    assert tables.rebuilt_because is None
    tables.close()
    assert checksum.read_bytes() == before


def test_rows_are_readable_by_their_user_only(tmp_path: Path) -> None:
    """As the log: LevelDB's own directory would be open to everybody."""
    LevelDbTables.create(tmp_path, STORE_UUID, SMALL)
    assert (tmp_path / "tables").stat().st_mode & 0o777 == 0o700


def test_database_in_use_is_not_taken_for_damage(directory: Path) -> None:
    """Circumstances are told; only damage leads to quarantine."""
    first = open_tables(directory)
    with pytest.raises(StorageError, match=r"cannot be opened.*check the disk"):
        open_tables(directory)
    first.close()
    assert not (directory / "quarantine").exists()


def test_full_disk_while_opening_is_waited_out(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """LevelDB must write to open; without space that is no damage."""

    def refuse(*_: Any, **__: Any) -> None:
        raise plyvel.IOError(b"IO error: 000010.ldb: No space left on device")

    with monkeypatch.context() as full:
        full.setattr(leveldb_database, "_open_plyvel", refuse)
        with pytest.raises(DiskFullError, match="no space left on the disk"):
            open_tables(directory)
    assert not (directory / "quarantine").exists()
    open_tables(directory).close()


def test_stored_channels_are_found_without_reading_their_rows(directory: Path) -> None:
    """One seek a channel."""
    tables = open_tables(directory)
    tables.open_channel(OTHER, TableMachine())
    tables.apply(OTHER, [rows_record(1, {b"\xff" * 30: b"1"})])
    tables.apply_queued()
    assert tables.stored_channels() == (CHANNEL, OTHER)
    assert tables.stored_position(OTHER) == History(1, 1)
    assert tables.size_bytes() > 0
    tables.close()


def test_damaged_position_is_not_believed(directory: Path) -> None:
    """S10: a wrong applied position would skip or repeat records."""
    stored = encode_applied(CHANNEL, History(3, 77))
    assert decode_applied(CHANNEL, stored) == History(3, 77)
    with pytest.raises(CorruptRecordError, match="applied position"):
        decode_applied(OTHER, stored)
    tables = open_tables(directory)
    database_of(tables).put(applied_key(CHANNEL), b"\0" + stored[1:-1] + b"\0")
    with pytest.raises(CorruptRecordError, match="applied position"):
        tables.open_channel(CHANNEL, TableMachine())
    tables.close()


def test_rows_and_position_are_one_atomic_batch(tmp_path: Path) -> None:
    """S10: the position of a record is written with its rows, in the same batch, or not at all."""
    LevelDbTables.create(tmp_path, STORE_UUID, SMALL)
    tables = open_tables(tmp_path)
    written: list[dict[bytes, bytes | None]] = []

    class Batch:
        def __init__(self, _channel: ChannelId) -> None:
            self.changes: dict[bytes, bytes | None] = {}

        def put(self, key: bytes, value: bytes) -> None:
            self.changes[key] = value

        def delete(self, key: bytes) -> None:
            self.changes[key] = None

        def write(self) -> None:
            written.append(self.changes)

    tables._applier._new_batch = Batch
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


class FailingMachine:
    """A machine that cannot apply what was committed."""

    def apply(self, record: Any, read: Any) -> ApplyResult:
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


def test_hash_thread_reports_damage(directory: Path) -> None:
    """A verification that finds damage stops the node like any other read."""
    flip_bit(table_files(directory, ".ldb")[0], IN_ROWS)
    tables = open_tables(directory)
    calls: SimpleQueue[Any] = SimpleQueue()
    failures: list[StorageError] = []
    tables.start(
        post=calls.put,
        on_applied=pytest.fail,
        on_failed=failures.append,
        on_read=pytest.fail,
    )
    tables.start_content_hash(CHANNEL, pytest.fail)
    calls.get(timeout=20)()
    assert isinstance(failures[0], CorruptRecordError)
    tables.close()


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


def both_channels(directory: Path) -> LevelDbTables:
    """Open with two channels attached."""
    tables = open_tables(directory)
    tables.open_channel(OTHER, TableMachine())
    return tables


def give_both_a_row(directory: Path) -> LevelDbTables:
    """Open the tables with a row of the second channel, too."""
    tables = both_channels(directory)
    tables.apply(OTHER, [rows_record(1, {b"other": b"row"})])
    tables.apply_queued()
    return tables


def test_damage_of_one_channel_leaves_the_others_as_they_are(directory: Path) -> None:
    """One file of one channel: only that channel is put aside and built again from the log."""
    give_both_a_row(directory).close()
    remove_current(directory)
    tables = both_channels(directory)
    assert tables.rebuilt_because == (
        f"channel {CHANNEL.hex()}: {table_path(directory)} has no CURRENT"
    )
    assert tables.applied_seq(CHANNEL) == 0
    assert tables.applied_seq(OTHER) == 1
    row = tables.get(OTHER, b"other")
    assert row is not None
    assert row.value == b"row"
    tables.close()


def test_damage_found_by_a_read_has_only_its_channel_built_again(directory: Path) -> None:
    """S0.4: the node stops all the same; the next start asks for no more than that channel."""
    give_both_a_row(directory).close()
    flip_bit(table_files(directory, ".ldb")[0], IN_ROWS)
    tables = both_channels(directory)
    with pytest.raises(CorruptRecordError):
        tables.content_hash(CHANNEL)
    tables.close()
    tables = both_channels(directory)
    assert (tables.applied_seq(CHANNEL), tables.applied_seq(OTHER)) == (0, 1)
    tables.close()


def test_stop_while_a_database_is_created_is_no_damage(tmp_path: Path) -> None:
    """Nothing was in it: neither quarantine nor a word."""
    LevelDbTables.create(tmp_path, STORE_UUID, SMALL)
    table_path(tmp_path).mkdir()
    (table_path(tmp_path) / "MANIFEST-000001").write_bytes(b"begun")
    tables = open_tables(tmp_path)
    assert tables.rebuilt_because is None
    tables.apply(CHANNEL, [rows_record(1, {b"a": b"1"})])
    tables.apply_queued()
    assert tables.get(CHANNEL, b"a") is not None
    tables.close()


def test_channel_without_records_takes_no_files(tmp_path: Path) -> None:
    """Its database is made with the first record that is applied; until then reads find nothing."""
    LevelDbTables.create(tmp_path, STORE_UUID, SMALL)
    tables = open_tables(tmp_path)
    assert tables.get(CHANNEL, b"a") is None
    assert tables.get_many(CHANNEL, (b"a", b"b"), 99).values == [None, None]
    assert tables.scan(CHANNEL, b"", b"", 9).rows == []
    assert tables.state_scan(CHANNEL, b"\x02", b"\x03", 9) == []
    assert tables.content_hash(CHANNEL)[1:] == (0, 0)
    assert tables.snapshot(CHANNEL).count(b"", b"", 9) == (0, None)
    assert (tables.size_bytes(), tables.memory_bytes(), tables.stored_channels()) == (0, 0, ())
    assert not table_path(tmp_path).exists()
    tables.close()


def test_dropped_table_gives_its_bytes_back_at_once(directory: Path) -> None:
    """Its directory goes; the deletion leaves nothing for LevelDB to merge."""
    tables = give_both_a_row(directory)
    tables.drop(CHANNEL)
    tables.apply_queued()
    assert not table_path(directory).exists()
    assert tables.stored_channels() == (OTHER,)
    assert tables.get(OTHER, b"other") is not None
    tables.close()


@pytest.mark.parametrize("is_closed_by_its_reader", [True, False])
def test_dropped_table_is_kept_until_its_last_reader_has_closed_it(
    directory: Path, *, is_closed_by_its_reader: bool
) -> None:
    """LevelDB must not be closed under a snapshot; a stop leaves the rest to the next start."""
    tables = open_tables(directory)
    snapshots = [tables.snapshot(CHANNEL), tables.snapshot(CHANNEL)]
    tables.drop(CHANNEL)
    tables.apply_queued()
    snapshots[0].close()
    assert len(snapshots[1].page(b"", b"", 999).rows) == 201
    assert table_path(directory).exists()
    if is_closed_by_its_reader:
        snapshots[1].close()
        assert not table_path(directory).exists()
    tables.close()
    again = open_tables(directory)
    again.reset_channel(CHANNEL)  # what a start does with a channel that its log calls dropped
    assert not table_path(directory).exists()
    again.close()


def test_records_queued_before_a_drop_are_applied_before_it(tmp_path: Path) -> None:
    """The thread that applies goes on with a channel that the node's thread knows no more."""
    LevelDbTables.create(tmp_path, STORE_UUID, SMALL)
    tables = open_tables(tmp_path)
    done: SimpleQueue[Any] = SimpleQueue()
    tables.start(
        post=done.put, on_applied=lambda *_told: None, on_failed=pytest.fail, on_read=pytest.fail
    )
    for round_ in range(20):
        channel = ChannelId(round_.to_bytes(len(CHANNEL), "big"))
        tables.open_channel(channel, TableMachine())
        for n in range(1, 20):
            tables.apply(channel, [rows_record(n, {b"k": b"%d" % n})])
        tables.drop(channel)
    while tables.queued_bytes():
        done.get(timeout=20)()
    tables.close()


def test_what_a_removal_left_is_removed_at_the_next_start(directory: Path) -> None:
    """It was renamed first: half of a database is never opened as a whole one."""
    left = table_path(directory).with_name(OTHER.hex() + ".removing")
    shutil.copytree(table_path(directory), left)
    tables = open_tables(directory)
    assert not left.exists()
    assert tables.stored_channels() == (CHANNEL,)
    tables.close()


def test_databases_share_what_the_settings_allow_for_all_of_them() -> None:
    """Memory is bounded however many channels there are; a few get no more than is of use."""
    settings = StorageSettings(write_buffer_bytes=64 << 20, block_cache_bytes=64 << 20)
    assert share_of(settings, 1) == (16 << 20, 64 << 20, 1_010)
    assert share_of(settings, 8) == (8 << 20, 8 << 20, 135)
    assert share_of(settings, 4_096) == (64 << 10, 16 << 10, 74)


def test_one_error_while_tables_are_opened_closes_the_others(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next try, when there is space again, must find none of them locked."""
    give_both_a_row(directory).close()
    opened = tables_directory.open_checked

    def refuse_one(path: Path, *arguments: Any) -> Any:
        if path == table_path(directory, OTHER):
            raise plyvel.IOError(b"IO error: 000010.ldb: No space left on device")
        return opened(path, *arguments)

    with monkeypatch.context() as full:
        full.setattr(tables_directory, "open_checked", refuse_one)
        with pytest.raises(DiskFullError, match="no space left on the disk"):
            open_tables(directory)
    tables = both_channels(directory)
    assert (tables.applied_seq(CHANNEL), tables.applied_seq(OTHER)) == (201, 1)
    tables.close()


def test_database_of_a_new_channel_is_made_ahead_of_its_first_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The thread that applies does not wait while LevelDB syncs the files of other channels."""
    LevelDbTables.create(tmp_path, STORE_UUID, SMALL)
    tables = open_tables(tmp_path)
    tables.apply(CHANNEL, [rows_record(1, {b"a": b"1"})])
    tables.apply_queued()
    done: SimpleQueue[Any] = SimpleQueue()
    seen: list[Any] = []
    tables.start(
        post=done.put,
        on_applied=lambda *told: seen.append(told[:2]),
        on_failed=pytest.fail,
        on_read=pytest.fail,
    )
    is_begun, may_make = Event(), Event()
    make = tables_directory.create

    def slowly(*arguments: Any) -> Any:
        is_begun.set()
        assert may_make.wait(20)
        return make(*arguments)

    monkeypatch.setattr(tables_directory, "create", slowly)
    tables.open_channel(OTHER, TableMachine())
    assert is_begun.wait(20)
    assert tables.get(OTHER, b"a") is None
    tables.apply(CHANNEL, [rows_record(2, {b"a": b"2"})])
    done.get(timeout=20)()
    assert seen == [(CHANNEL, 2)]
    may_make.set()
    tables.apply(OTHER, [rows_record(1, {b"a": b"1"})])
    done.get(timeout=20)()
    assert seen[1:] == [(OTHER, 1)]
    tables.close()


def test_channel_that_is_dropped_while_its_database_is_made_leaves_no_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its removal waits for LevelDB; a stop waits, too, and the next start finds nothing open."""
    LevelDbTables.create(tmp_path, STORE_UUID, SMALL)
    tables = open_tables(tmp_path)
    tables.start(
        post=lambda call: call(),
        on_applied=lambda *_told: None,
        on_failed=pytest.fail,
        on_read=pytest.fail,
    )
    may_make, gone = Event(), Event()
    make, remove = tables_directory.create, TablesDirectory.remove_channel

    def slowly(*arguments: Any) -> Any:
        assert may_make.wait(20)
        return make(*arguments)

    def removed(home: TablesDirectory, channel: ChannelId) -> None:
        remove(home, channel)
        gone.set()

    monkeypatch.setattr(tables_directory, "create", slowly)
    monkeypatch.setattr(TablesDirectory, "remove_channel", removed)
    tables.open_channel(OTHER, TableMachine())
    tables.drop(OTHER)
    may_make.set()
    assert gone.wait(20)
    assert not table_path(tmp_path, OTHER).exists()
    tables.close()
