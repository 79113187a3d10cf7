"""Files of a table that are kept for another replica: one state of it, whole, for a session."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import pytest

from raftstore.errors import PersistError
from raftstore.storage.tables.leveldb_files import version_in
from raftstore.storage.tables.leveldb_tables import LevelDbTables
from raftstore.storage.tables.table_files import LINK_TRIES, files_kept_at, link_files
from raftstore.storage.tables.tables_directory import TablesDirectory
from raftstore.types import History, Seq, Term
from tests.storage_helpers import (
    CHANNEL,
    OTHER,
    SMALL,
    STORE_UUID,
    database_of,
    table_path,
)
from tests.unit.storage.tables.files_copied import (
    OFFERED,
    ROWS,
    applied,
    asked_for_files,
    begun,
    files_of,
    reopened,
    tables_of,
    take_all,
)


@pytest.fixture
def tables(tmp_path: Path) -> Any:
    """Tables at seq 100 of 100 rows."""
    made = tables_of(tmp_path / "sender", ROWS)
    yield made
    made.close()


@pytest.fixture
def receiver(tmp_path: Path) -> Any:
    """Tables of another node."""
    made = tables_of(tmp_path / "receiver", {b"old": b"row"})
    yield made
    made.close()


def links_in(tables: LevelDbTables) -> list[str]:
    """Names of what keeps files."""
    return [path.name for path in (tables._directory / "tables").glob("*.copying")]


def kept_rows(receiver: LevelDbTables, files: Any) -> History:
    """The position of a table that is made of these files; all its rows are checked."""
    copy = begun(receiver)
    take_all(copy, files)
    found = copy.found()[2]
    copy.abandon()
    return found


def test_files_have_all_that_was_applied_before(
    tables: LevelDbTables, receiver: LevelDbTables
) -> None:
    """S6.4: the memory table is written out in front of them; what comes behind is not in them."""
    assert not list(table_path(tables._directory).glob("*.ldb"))
    files, barrier = asked_for_files(tables)
    assert files is not None
    assert (files.applied, barrier.applied_seq) == (OFFERED, 100)
    applied(tables, {b"later": b"row"})
    assert kept_rows(receiver, files) == OFFERED


def test_files_are_kept_whatever_becomes_of_the_table(
    tables: LevelDbTables, receiver: LevelDbTables
) -> None:
    """LevelDB merges them, and the rows are removed."""
    files = files_of(tables)
    applied(tables, dict.fromkeys(ROWS, None))
    database_of(tables).compact_range(start=b"\x00", stop=b"\xff")
    assert not (table_path(tables._directory) / files.files[0].name).exists()
    assert kept_rows(receiver, files) == OFFERED
    files.close()
    assert not links_in(tables)
    files.close()


def test_version_that_goes_while_it_is_linked_is_not_believed(
    tables: LevelDbTables, receiver: LevelDbTables, monkeypatch: pytest.MonkeyPatch
) -> None:
    """LevelDB merges files between its MANIFEST and the links: another version is tried."""
    files_of(tables).close()
    applied(tables, {b"050": b"newer"})
    link, merged = Path.hardlink_to, list[Path]()

    def merge_first(self: Path, target: Path) -> None:
        if len(merged) < 2:
            merged.append(target)
            database_of(tables).compact_range(start=b"\x00", stop=b"\xff")
            applied(tables, {b"051": b"newer still %d" % len(merged)})
        link(self, target)

    monkeypatch.setattr(Path, "hardlink_to", merge_first)
    files = files_of(tables)
    assert len(merged) == 2
    manifest = files.path / files.files[-1].name
    assert [name for name, _ in files.files[:-1]] == [
        f"{number:06d}.ldb" for number in sorted(version_in(manifest.read_bytes()).files)
    ]
    assert sorted(path.name for path in files.path.iterdir()) == sorted(
        name for name, _ in files.files
    )
    assert kept_rows(receiver, files).seq >= 101


def test_table_whose_files_change_all_the_time_is_given_in_pairs(
    tables: LevelDbTables, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After so many tries; nothing stays."""
    tries = list[Path]()

    def gone(self: Path, target: Path) -> None:
        tries.append(target)
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))

    monkeypatch.setattr(Path, "hardlink_to", gone)
    files, barrier = asked_for_files(tables)
    assert files is None
    assert barrier.applied_seq == 100
    assert len(tries) == LINK_TRIES
    assert not links_in(tables)


@pytest.mark.parametrize("code", [errno.EPERM, errno.EXDEV, errno.EMLINK, errno.ENOSPC])
def test_file_system_without_links_gives_tables_in_pairs(
    tables: LevelDbTables, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    """Pairs need none, nor room for one."""

    def refuse(self: Path, target: Path) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(Path, "hardlink_to", refuse)
    assert asked_for_files(tables)[0] is None
    assert not links_in(tables)


def test_disk_that_fails_stops_the_node(
    tables: LevelDbTables, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S0.4: with links, and with what is read of them."""
    files = files_of(tables)

    def fail(*_of: object) -> Any:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    with monkeypatch.context() as patched:
        patched.setattr(os, "pread", fail)
        with pytest.raises(PersistError, match="reading a file of a table"):
            files.read(0, 0, 10)
    (files.path / files.files[0].name).unlink()
    (files.path / files.files[0].name).write_bytes(b"")
    with pytest.raises(PersistError, match="ends at 0, not at"):
        files.read(0, 0, 10)
    monkeypatch.setattr(Path, "hardlink_to", fail)
    path = table_path(tables._directory)
    with pytest.raises(PersistError, match="keeping the files of a table"):
        link_files(path, files_kept_at(path, 77), OFFERED)


def test_file_that_is_not_as_long_as_it_was_is_not_given(tables: LevelDbTables) -> None:
    """It may be damaged: the table is read row by row, which meets it."""
    files_of(tables).close()
    path = table_path(tables._directory)
    [file] = path.glob("*.ldb")
    with file.open("ab") as opened:
        opened.write(b"more")
    assert link_files(path, files_kept_at(path, 77), OFFERED) is None
    assert not links_in(tables)


def test_manifest_of_an_unknown_form_is_not_read(tables: LevelDbTables) -> None:
    """No file is named that way, and the table is given in pairs."""
    path = table_path(tables._directory)
    for content in (b"", b"\x00\x00\x00\x00\x01\x00\x01\x63"):
        (path / "MANIFEST-000099").write_bytes(content)
        current = (path / "CURRENT").read_bytes()
        (path / "CURRENT").write_bytes(b"MANIFEST-000099\n")
        assert link_files(path, files_kept_at(path, 77), OFFERED) is None
        (path / "CURRENT").write_bytes(current)
    assert not links_in(tables)


def test_table_without_rows_is_given_in_pairs(tables: LevelDbTables) -> None:
    """There is no database to keep anything of."""
    tables.open_channel(OTHER, tables._channels[CHANNEL].machine)
    assert asked_for_files(tables, OTHER)[0] is None


def test_links_end_with_the_node_and_at_its_next_start(tmp_path: Path) -> None:
    """A replica made this node keep them; they go with it, also when it was killed."""
    tables = tables_of(tmp_path / "other", ROWS)
    files_of(tables)
    assert len(links_in(tables)) == 1
    tables.close()
    assert not links_in(tables)
    left = files_kept_at(table_path(tables._directory), 5)
    left.mkdir()
    (left / "000005.ldb").write_bytes(b"of a life that was killed")
    home = TablesDirectory(tmp_path / "other", STORE_UUID, SMALL)
    for database in home.open().values():
        database.close()
    assert not left.exists()
    again = reopened(tmp_path / "other")
    assert again.applied_history(CHANNEL) == History(Term(1), Seq(100))
    again.close()


def test_what_readers_are_not_shown_is_given_to_nobody(tables: LevelDbTables) -> None:
    """While a record is written in pieces the files hold some of them."""
    tables._views.shown[CHANNEL] = tables._shared(CHANNEL)
    files, _ = asked_for_files(tables)
    assert files is None
    tables._views.shown.pop(CHANNEL).release()
