"""Losses that LevelDB takes for the ordinary end of a file, in front of rows it still has."""

from __future__ import annotations

import shutil
from pathlib import Path

import plyvel
import pytest

from raftstore.state_machines.table import TableMachine
from raftstore.storage.tables.leveldb_files import BLOCK_BYTES, HEADER_BYTES, why_incomplete
from raftstore.storage.tables.leveldb_tables import LevelDbTables
from tests.storage_helpers import CHANNEL, SMALL, STORE_UUID, database_of, rows_record, table_path

RECORDS = 100
VALUE = b"v" * 1_000


@pytest.fixture
def killed(tmp_path: Path) -> Path:
    """Tables with a hundred rows, all in the write-ahead log, as a killed process leaves them."""
    running = tmp_path / "running"
    running.mkdir()
    LevelDbTables.create(running, STORE_UUID, SMALL)
    tables = open_tables(running)
    for n in range(1, RECORDS + 1):
        tables.apply(CHANNEL, [rows_record(n, {b"%05d" % n: VALUE})])
        tables.apply_queued()
    shutil.copytree(running, tmp_path / "killed")
    tables.close()
    return tmp_path / "killed"


def open_tables(directory: Path) -> LevelDbTables:
    """Open with one channel attached."""
    tables = LevelDbTables.open(directory, STORE_UUID, SMALL)
    tables.open_channel(CHANNEL, TableMachine())
    return tables


def rebuilt_because(directory: Path) -> str:
    """Open; the reason for which the tables start empty, "" when they do not."""
    tables = open_tables(directory)
    assert (tables.applied_seq(CHANNEL) == 0) == (tables.rebuilt_because is not None)
    tables.close()
    return tables.rebuilt_because or ""


def silent_rows(directory: Path) -> int:
    """How many keys LevelDB finds by itself, with its paranoid checks, on a copy."""
    copy = directory.with_name("silent")
    shutil.copytree(table_path(directory), copy)
    with plyvel.DB(str(copy), paranoid_checks=True) as database:
        return sum(1 for _ in database.iterator(verify_checksums=True))


def wal_of(directory: Path) -> Path:
    """The only write-ahead log."""
    (wal,) = table_path(directory).glob("*.log")
    return wal


def entries_of_first_block(data: bytes) -> list[int]:
    """Where the entries start that lie whole in the first block."""
    starts, at = [], 0
    while at < BLOCK_BYTES:
        starts.append(at)
        at += HEADER_BYTES + int.from_bytes(data[at + 4 : at + 6], "little")
    return starts[:-1]


def test_intact_tables_are_not_suspected(killed: Path) -> None:
    """Neither after a kill nor after a clean stop nor when they are new."""
    assert why_incomplete(table_path(killed)) is None
    for _ in range(3):
        tables = open_tables(killed)
        assert tables.rebuilt_because is None
        assert tables.applied_seq(CHANNEL) == RECORDS
        tables.close()
        assert why_incomplete(table_path(killed)) is None


def test_end_of_the_write_ahead_log_may_be_lost(killed: Path) -> None:
    """The position is lost with the rows: they are applied again from the log."""
    wal = wal_of(killed)
    wal.write_bytes(wal.read_bytes()[: BLOCK_BYTES + 500])
    tables = open_tables(killed)
    assert tables.rebuilt_because is None
    assert 0 < tables.applied_seq(CHANNEL) < RECORDS
    tables.close()


def test_end_of_the_first_of_two_write_ahead_logs_is_missed(killed: Path) -> None:
    """The first may lack its end, and LevelDB replays both without a word."""
    wal = wal_of(killed)
    data = wal.read_bytes()
    starts = entries_of_first_block(data)
    wal.with_name(f"{int(wal.stem) + 2:06d}.log").write_bytes(data[starts[9] : starts[20]])
    wal.write_bytes(data[: starts[7]])
    assert silent_rows(killed) == 1 + (20 - 9) + 7  # one key is the applied position
    assert "lacks what came before" in rebuilt_because(killed)


def test_second_write_ahead_log_that_continues_the_first_is_believed(killed: Path) -> None:
    """A stop while a memory table becomes a file leaves two; nothing is built again for that."""
    wal = wal_of(killed)
    data = wal.read_bytes()
    starts = entries_of_first_block(data)
    second = wal.with_name(f"{int(wal.stem) + 2:06d}.log")
    second.write_bytes(data[starts[9] : starts[20]])
    wal.write_bytes(data[: starts[9]])
    assert why_incomplete(table_path(killed)) is None
    wal.write_bytes(b"")
    assert "another one follows" in str(why_incomplete(table_path(killed)))


def test_page_that_never_reached_the_disk_is_noticed(killed: Path) -> None:
    """A block that starts with zeros is skipped by LevelDB, whatever follows."""
    wal = wal_of(killed)
    data = bytearray(wal.read_bytes())
    data[BLOCK_BYTES : BLOCK_BYTES + 4096] = bytes(4096)
    wal.write_bytes(data)
    assert "lacks what came before" in str(why_incomplete(table_path(killed)))
    data[:4096] = bytes(4096)
    wal.write_bytes(data)
    assert "has a hole at its start" in rebuilt_because(killed)


@pytest.mark.slow
def test_manifest_that_lost_its_end_is_noticed(killed: Path) -> None:
    """Rows that became a file are forgotten with it; their write-ahead log is gone already."""
    tables = open_tables(killed)
    for n in (RECORDS + 1, RECORDS + 2):
        tables.apply(CHANNEL, [rows_record(n, {b"%05d" % n: VALUE})])
        tables.apply_queued()
        database_of(tables).compact_range(start=b"\xff", stop=b"\xff\xff")  # makes a file of it
    tables.close()
    (manifest,) = table_path(killed).glob("MANIFEST-*")
    data = manifest.read_bytes()
    reasons = []
    for size in range(len(data) - 1, 0, -17):
        trial = killed.with_name(f"trial-{size}")
        shutil.copytree(killed, trial)
        (table_path(trial) / manifest.name).write_bytes(data[:size])
        reasons.append(rebuilt_because(trial))
        assert reasons[-1], f"{size} of {len(data)} bytes of the MANIFEST were believed"
        shutil.rmtree(trial)
    assert any("that its MANIFEST names" in reason for reason in reasons), reasons


def test_removed_write_ahead_log_is_noticed(killed: Path) -> None:
    """LevelDB does not miss it."""
    wal_of(killed).unlink()
    assert silent_rows(killed) == 0
    assert "is missing" in rebuilt_because(killed)


def test_files_of_others_among_the_logs_are_passed_over(killed: Path) -> None:
    """An operator's notes are no reason to build tables again, nor to fail at the start."""
    (table_path(killed) / "notes.log").write_bytes(b"")
    assert why_incomplete(table_path(killed)) is None
