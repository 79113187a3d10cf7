"""One LevelDB for each channel: when it is made, shared out, and removed."""

from __future__ import annotations

import shutil
from pathlib import Path
from queue import SimpleQueue
from threading import Event
from typing import Any

import pytest

from raftstore.config import StorageSettings
from raftstore.state_machines.table import TableMachine
from raftstore.storage.tables import tables_directory
from raftstore.storage.tables.channel_database import NOTHING
from raftstore.storage.tables.leveldb_database import share_of
from raftstore.storage.tables.leveldb_tables import LevelDbTables
from raftstore.storage.tables.tables_directory import TablesDirectory
from raftstore.types import ChannelId, History, Seq, Term
from tests.storage_helpers import (
    CHANNEL,
    OTHER,
    SMALL,
    STORE_UUID,
    rows_record,
    table_path,
)
from tests.table_stores import (
    filled_store,
    give_both_a_row,
    open_tables,
)


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """A closed store with 200 rows, most of them in a table file."""
    return filled_store(tmp_path)


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


@pytest.mark.parametrize("is_replaced", [False, True])
def test_node_goes_on_beside_the_end_of_a_table(
    directory: Path, monkeypatch: pytest.MonkeyPatch, *, is_replaced: bool
) -> None:
    """plyvel keeps all threads of a node waiting in ``close`` for as long as LevelDB writes, so
    that is waited for before, of a dropped table as of one that a copy replaces."""
    ended: list[str] = []

    class Noting:
        """A database that notes how it ends."""

        def __init__(self, database: Any) -> None:
            self._database = database

        def compact_range(self, **_of: bytes) -> None:
            """Other threads go on beside this."""
            ended.append("waits")

        def close(self) -> None:
            """All threads wait for this."""
            ended.append("closes")
            self._database.close()

    tables = give_both_a_row(directory)
    database = tables._databases[CHANNEL]
    database.source = Noting(database.source)
    if is_replaced:
        copy = tables.begin_copy(CHANNEL, History(Term(1), Seq(1)))
        monkeypatch.setattr(type(copy), "taken", lambda _copy: NOTHING)
        tables.install(CHANNEL, copy)
    else:
        tables.drop(CHANNEL)
    tables.apply_queued()
    assert ended == ["waits", "closes"]
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
