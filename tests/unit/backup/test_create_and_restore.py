"""Backups and restores as a whole, against tables in memory (GAP-12)."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import msgspec
import pytest

from raftstore.backup import aio, create, restore, target
from raftstore.backup.create import create_backup
from raftstore.backup.manifest import Manifest, TableDefinition
from raftstore.backup.progress import Progress, nobody
from raftstore.backup.repository import Repository
from raftstore.backup.restore import Restored, RestoredTable, restore_backup
from raftstore.backup.verify import verify_backup
from raftstore.client.blocking.client import Client
from raftstore.errors import (
    ArgumentError,
    BackupError,
    SchemaError,
    StoreTooOldError,
    TableExistsError,
    UnavailableError,
    UnknownTableError,
)
from raftstore.protocol.table_settings import TableSettings
from tests.unit.backup.kept_tables import KeptTable, KeptTables, now_ms

HOUR_MS = 3_600_000


def backup_of(store: KeptTables, place: Path, *tables: str, **given: Any) -> Manifest:
    """Make one."""
    return create_backup(cast(Client, store), str(place), tables=tables, **given)


def restored(store: KeptTables, place: Path, **given: Any) -> tuple[RestoredTable, ...]:
    """Restore the newest one."""
    return restore_backup(cast(Client, store), str(place), **given).tables


def two_tables() -> KeptTables:
    """One with all that a table can have, and a plain one."""
    store = KeptTables()
    settings = TableSettings(4 * 2**20, 2_000, 60_000, 2 * HOUR_MS)
    orders = store.add(
        "orders", replicas=2, durability="buffered", max_lag=7, max_staleness_ms=1_500,
        max_batches_behind=3, standby_reads=False, max_replica_lag=99, settings=settings,
    )  # fmt: skip
    for number in range(9):
        orders.put(number, "text")
    orders.put(20, "expires", expires_ms=now_ms() + HOUR_MS)
    orders.put(22, "is over", expires_ms=now_ms() - 1)
    orders.note_writer("stream", 4, "checkpoint")
    orders.note_writer("job", 1, "once", one_shot=True)
    orders.note_writer("opened", -1, "")
    store.add("plain").put(1)
    return store


def definition_of(table: KeptTable) -> TableDefinition:
    """Without what only a table under way has."""
    return TableDefinition.of(table.info)


def test_restored_tables_are_those_that_were_saved(tmp_path: Path) -> None:
    """Bytes of rows, definition, lifetimes and the next batch of each writer; rows whose time is
    over are counted, and left out.
    """
    store, seen = two_tables(), list[Progress]()
    manifest = backup_of(store, tmp_path, progress=seen.append)
    assert (manifest.cluster_id, manifest.base, manifest.rows) == ("cluster", None, 12)
    assert abs(manifest.created_ms - now_ms()) < 60_000
    assert manifest.new_bytes == manifest.bytes > 0
    assert seen[-1] == Progress("plain", 12, None)
    assert all(each.is_closed for table in store.kept.values() for each in table.snapshots)
    seen.clear()
    other = KeptTables()
    orders, plain = restored(other, tmp_path, progress=seen.append)
    assert orders == RestoredTable("orders", "orders", rows=11, expired=1, writers=1)
    assert plain == RestoredTable("plain", "plain", rows=1, expired=0, writers=0)
    assert seen[-1] == Progress("plain", 12, 12)
    for name, table in store.kept.items():
        found = other.kept[name]
        assert definition_of(found) == definition_of(table)
        for key, (sealed, expires_ms) in found.rows.items():
            assert sealed == table.rows[key][0]
            assert 0 <= expires_ms - table.rows[key][1] <= (60_000 if expires_ms else 0)
        assert len(found.rows) == len(table.rows) - (name == "orders")
    view = other.kept["orders"].known["stream"]
    assert (view.last_batch, view.lineage) == (4, "checkpoint")
    assert set(other.kept["orders"].known) == {"stream", restore.RESTORE_WRITER}


def test_backup_is_checked_without_a_cluster(tmp_path: Path) -> None:
    """All that is wrong is said, file by file; what is right is counted."""
    manifest = backup_of(two_tables(), tmp_path)
    seen: list[Progress] = []
    found = verify_backup(str(tmp_path), progress=seen.append)
    assert found.problems == ()
    assert (found.backup, found.tables, found.rows) == (manifest.id, 2, 12)
    assert (found.files, found.bytes) == (len(seen), manifest.bytes)
    assert seen[-1] == Progress("plain", 12, 12)
    told = list[Progress]()
    assert asyncio.run(aio.verify_backup(str(tmp_path), manifest.id, progress=told.append)) == found
    assert told == seen
    with pytest.raises(BackupError):
        asyncio.run(aio.verify_backup(str(tmp_path), "none"))


def test_wrong_files_are_found_by_their_rows(tmp_path: Path) -> None:
    """Each has the hash that the manifest says: rows in another order, of another partition, of
    another number, or of other columns.
    """
    store = KeptTables()
    for number in range(9):
        store.add("t").put(number) if not number else store.kept["t"].put(number)
    manifest = backup_of(store, tmp_path)
    [table] = manifest.tables
    first, second = table.partitions
    [one], [other] = first.files, second.files
    plain = msgspec.structs.replace
    wrong = {
        "is not above the one before": plain(first, files=(one, one)),
        "is of another partition": plain(first, files=(other,)),
        f"has {one.rows} rows, the manifest says": plain(
            first, files=(plain(one, rows=one.rows + 1),)
        ),
    }
    place = Repository(str(tmp_path))
    for text, partition in wrong.items():
        bad = plain(table, partitions=(partition, second))
        place.add(plain(manifest, id="29991231T000000000Z-000000", tables=(bad,)))
        problems = verify_backup(str(tmp_path)).problems
        assert len(problems) == 1, problems
        assert problems[0].startswith("table t, partition 0: ")
        assert text in problems[0]
        place.remove_manifest("29991231T000000000Z-000000")
    typed = plain(table.definition, schema_json='{"type":"struct","fields":[]}')
    typed = plain(table, definition=plain(typed, schema_json="no schema"))
    place.add(plain(manifest, id="29991231T000000000Z-000000", tables=(typed,)))
    assert all(
        "the table's schema cannot be read" in p for p in verify_backup(str(tmp_path)).problems
    )


def test_next_backup_reads_only_the_partitions_that_changed(tmp_path: Path) -> None:
    """Files that are there are taken; with a file gone, or by order, all is read again."""
    store = KeptTables()
    table = store.add("t")
    keys = [table.put(number) for number in range(9)]
    first = backup_of(store, tmp_path)
    assert sorted(table.partitions_read) == [0, 1]
    table.partitions_read.clear()
    table.put(0, "changed")
    seen: list[Progress] = []
    second = backup_of(store, tmp_path, progress=seen.append)
    changed = table.partitions_read.copy()
    assert len(changed) == 1
    assert (second.base, second.rows, seen[-1].rows) == (first.id, len(keys), len(keys))
    assert 0 < second.new_bytes < second.bytes
    kept = 1 - changed[0]
    assert second.tables[0].partitions[kept] == first.tables[0].partitions[kept]
    third = backup_of(store, tmp_path)
    assert (third.base, third.new_bytes, table.partitions_read) == (second.id, 0, changed)
    (tmp_path / third.tables[0].partitions[kept].files[0].path).unlink()
    backup_of(store, tmp_path)
    assert table.partitions_read == [*changed, kept]
    full = backup_of(store, tmp_path, full=True)
    assert (full.base, full.new_bytes) == (None, full.bytes)
    table.info = msgspec.structs.replace(table.info, uuid=b"2" * 16)
    table.partitions_read.clear()
    backup_of(store, tmp_path)
    assert sorted(table.partitions_read) == [0, 1], "another table of the name"


def test_damaged_manifest_is_passed_over_for_an_older_one(tmp_path: Path) -> None:
    """A backup of which nothing is known has no files to take."""
    store = two_tables()
    first, second = backup_of(store, tmp_path), backup_of(store, tmp_path)
    [path] = [each for each in tmp_path.rglob("*") if second.id in str(each) and each.is_file()]
    path.write_bytes(b"{")
    assert backup_of(store, tmp_path).base == first.id


def test_what_cannot_be_saved_is_refused_before_anything_is_read(tmp_path: Path) -> None:
    """With its name; a backup of everything leaves out what is being restored."""
    store = two_tables()
    store.sets = ["machine"]
    restoring = TableSettings(restoring="0a" * 16)
    store.add("half", settings=restoring)
    with pytest.raises(SchemaError, match="'machine' is a channel set and no table"):
        backup_of(store, tmp_path, "plain", "machine")
    with pytest.raises(UnavailableError, match="'half' is being restored"):
        backup_of(store, tmp_path, "plain", "half")
    with pytest.raises(ArgumentError, match="give a list of names"):
        create_backup(cast(Client, store), str(tmp_path), tables="plain")
    assert store.kept["plain"].snapshots == []
    store.sets = []
    assert [table.name for table in backup_of(store, tmp_path).tables] == ["orders", "plain"]
    assert [table.name for table in backup_of(store, tmp_path, "plain", "plain").tables] == [
        "plain"
    ]


def test_state_whose_writers_are_of_another_one_is_opened_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A batch between two questions; where batches never rest, the backup says so."""
    monkeypatch.setattr(create, "PAUSE_MS_MAX", 1)
    monkeypatch.setattr(create, "CAPTURES_MAX", 3)
    store = KeptTables()
    table = store.add("t")
    table.put(1)
    opened, left = table.snapshot, [1]

    def busy(*, idle: float) -> Any:
        found = opened(idle=idle)
        if left[0]:
            left[0] -= 1
            table.vector[0] = table.next_commit
            table.note_writer("stream", table.next_commit, "checkpoint")
            found.vector = (77, 77)
        return found

    monkeypatch.setattr(table, "snapshot", busy)
    manifest = backup_of(store, tmp_path)
    assert [writer.batch_id for writer in manifest.tables[0].writers] == [1]
    assert len(table.snapshots) == 2
    left[0] = 99
    with pytest.raises(UnavailableError, match="in 3 attempts no state was found"):
        backup_of(store, tmp_path)
    assert all(each.is_closed for each in table.snapshots)


def test_table_that_was_created_anew_while_it_was_read_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rows would be of one, the definition of the other."""
    store = two_tables()
    info = msgspec.structs.replace(store.table_info("plain"), uuid=b"2" * 16)
    monkeypatch.setattr(store, "table_info", lambda name: info)
    with pytest.raises(UnknownTableError, match="was dropped and created again"):
        backup_of(store, tmp_path, "plain")


def test_nothing_is_created_where_one_of_the_tables_cannot_be(tmp_path: Path) -> None:
    """Names that are taken, twice, or no table's; files that are not there."""
    manifest = backup_of(two_tables(), tmp_path)
    store = KeptTables()
    store.add("plain")
    with pytest.raises(TableExistsError, match="'plain' exists, and a backup is never"):
        restored(store, tmp_path)
    names = {"orders": "a", "plain": "a"}
    with pytest.raises(ArgumentError, match="two of them would be called 'a'"):
        restored(store, tmp_path, tables=names)
    with pytest.raises(ArgumentError, match="give a list of names"):
        restored(store, tmp_path, tables="orders")
    with pytest.raises(BackupError, match="has no table 'none'"):
        restored(store, tmp_path, tables=["none"])
    store.add("b", settings=TableSettings(restoring="0a" * 16))
    with pytest.raises(TableExistsError, match="'b' is being restored from another backup"):
        restored(store, tmp_path, tables={"orders": "a", "plain": "b"})
    path = manifest.tables[0].files[0].path
    (tmp_path / path).unlink()
    with pytest.raises(BackupError, match=f"{path} of table 'orders' is missing"):
        restored(store, tmp_path, tables={"plain": "a", "orders": "c"})
    assert set(store.kept) == {"plain", "b"}
    assert [table.name for table in restored(store, tmp_path, tables={"plain": "a"})] == ["a"]


@pytest.mark.parametrize("at", range(1, 9))
def test_restore_that_was_stopped_goes_on_and_writes_no_batch_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at: int
) -> None:
    """At any commit; until all tables are whole none of their rows can be read."""
    monkeypatch.setattr(restore, "BATCH_ROWS", 4)
    backup_of(two_tables(), tmp_path)
    store, commits = KeptTables(), 0
    commit = KeptTable.commit_batch

    def stops(self: KeptTable, *given: Any) -> None:
        nonlocal commits
        commits += 1
        if commits == at:
            raise UnavailableError("stopped")
        commit(self, *given)

    monkeypatch.setattr(KeptTable, "commit_batch", stops)
    try:
        restored(store, tmp_path)
    except UnavailableError:
        assert any(info.settings.restoring for info in store.tables())
        restored(store, tmp_path)
    batches = [each[:2] for each in store.kept["orders"].committed]
    assert len(set(batches)) == len(batches)
    assert len(store.kept["orders"].rows) == 10
    assert len(store.kept["plain"].rows) == 1
    assert not any(info.settings.restoring for info in store.tables())
    with pytest.raises(TableExistsError):
        restored(store, tmp_path)


def test_table_that_is_whole_from_this_restore_is_passed_over_while_others_are_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The call was stopped at its very end. A whole table of anything else is in the way."""
    backup_of(two_tables(), tmp_path)
    store, altered = KeptTables(), []
    alter = store.alter_table

    def stops(name: str, **given: Any) -> None:
        if "restoring" in given:
            altered.append(name)
            if altered == ["orders", "plain"]:
                raise UnavailableError("stopped")
        alter(name, **given)

    monkeypatch.setattr(store, "alter_table", stops)
    with pytest.raises(UnavailableError):
        restored(store, tmp_path)
    orders = store.kept.pop("orders")
    store.add("orders")
    with pytest.raises(TableExistsError):
        restored(store, tmp_path)
    store.kept["orders"] = orders
    assert [table.name for table in restored(store, tmp_path)] == ["plain"]


def test_table_that_is_dropped_while_it_is_restored_ends_the_restore(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is written to what has its name now."""
    backup_of(two_tables(), tmp_path, "plain")
    store = KeptTables()
    create_table = store.create_table

    def other(name: str, **given: Any) -> None:
        create_table(name, **{**given, "restoring": "0b" * 16})

    monkeypatch.setattr(store, "create_table", other)
    monkeypatch.setattr(store, "alter_table", lambda name, **given: pytest.fail(name))
    with pytest.raises(TableExistsError, match="'plain' is being restored from another backup"):
        restored(store, tmp_path)
    monkeypatch.setattr(store, "create_table", lambda name, **given: store.add(name))
    store.kept.clear()
    with pytest.raises(TableExistsError):
        restored(store, tmp_path)
    assert store.kept["plain"].committed == []


def test_nodes_that_have_just_been_started_are_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They have not reported their level yet; those that stay old are an error."""
    monkeypatch.setattr(target, "LEVEL_PAUSE_S", 0)
    monkeypatch.setattr(target, "LEVEL_LOOKS", 3)
    backup_of(two_tables(), tmp_path, "plain")
    store, left = KeptTables(), [2]

    def too_old() -> None:
        left[0] -= 1
        if left[0] >= 0:
            raise StoreTooOldError("level 5")

    store.before_create = too_old
    assert [table.rows for table in restored(store, tmp_path, tables={"plain": "a"})] == [1]
    left[0] = 3
    with pytest.raises(StoreTooOldError):
        restored(store, tmp_path, tables={"plain": "b"})
    assert left == [0]


def test_asyncio_creates_and_restores_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the same arguments, and a client that is closed behind it."""
    store, opened = two_tables(), list[Any]()

    @contextmanager
    def connect(*given: Any, **options: Any) -> Iterator[KeptTables]:
        opened.append((*given, *options.values()))
        yield store
        opened.append("closed")

    monkeypatch.setattr(aio, "connect", connect)
    url, told = str(tmp_path), list[Progress]()

    async def run() -> tuple[Manifest, Restored]:
        for full in (True, False):
            made = await aio.create_backup(
                "n1:1", url, tables=["plain"], full=full, progress=told.append, timeout=5
            )
        tables = {"plain": "a"}
        return made, await aio.restore_backup(
            "n1:1", url, made.id, tables=tables, replicas=1, progress=told.append, timeout=6
        )

    made, found = asyncio.run(run())
    assert (made.base is None, made.new_bytes, found.backup) == (False, 0, made.id)
    assert [table.name for table in found.tables] == ["a"]
    assert store.table_info("a").replicas == 1
    assert {report.what for report in told} == {"plain", "a"}
    assert opened == [("n1:1", 5), "closed", ("n1:1", 5), "closed", ("n1:1", 6), "closed"]


def test_call_that_is_cancelled_ends_the_work_in_its_thread() -> None:
    """Behind the next report, and before the caller goes on."""
    reports: list[Progress] = []

    async def run() -> None:
        loop, begun = asyncio.get_running_loop(), asyncio.Event()
        goes_on = asyncio.run_coroutine_threadsafe

        def work(watched: Any) -> None:
            watched(Progress("t", 1, None))
            loop.call_soon_threadsafe(begun.set)
            goes_on(stopped.wait(), loop).result()
            watched(Progress("t", 2, None))
            reports.append(Progress("never", 3, None))

        stopped = asyncio.Event()
        task = asyncio.ensure_future(aio._in_thread(work, reports.append))
        await begun.wait()
        task.cancel()
        loop.call_later(0.01, stopped.set)
        with pytest.raises(asyncio.CancelledError):
            await task
        assert asyncio.all_tasks() == {asyncio.current_task()}

    asyncio.run(run())
    assert reports == [Progress("t", 1, None)]
    assert asyncio.run(aio._in_thread(lambda watched: 7, nobody)) == 7
