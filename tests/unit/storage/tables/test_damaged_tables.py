"""LevelDbTables that are damaged, in use, full or of another store: reported, put aside or
rebuilt."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import plyvel
import pytest

from raftstore.errors import (
    CorruptRecordError,
    DiskFullError,
    NewerFormatError,
    PersistError,
    StorageError,
    StoreIdentityError,
)
from raftstore.state_machines.table import TableMachine
from raftstore.storage.tables import leveldb_database, tables_directory
from raftstore.storage.tables.keys import (
    applied_key,
    decode_applied,
    encode_applied,
)
from raftstore.storage.tables.leveldb_tables import LevelDbTables
from raftstore.types import History, RecordKind
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
from tests.table_stores import (
    IN_ROWS,
    both_channels,
    filled_store,
    give_both_a_row,
    open_tables,
    table_files,
)


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """A closed store with 200 rows, most of them in a table file."""
    return filled_store(tmp_path)


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
    """The log is the authority: nothing is repaired, all is applied again, and it is reported."""
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
    """Circumstances are reported; only damage leads to quarantine."""
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
