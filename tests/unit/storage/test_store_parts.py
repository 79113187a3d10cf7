"""Parts of a store that are opened and closed together: nothing stays open where one refuses."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from raftstore.errors import StorageError
from raftstore.state_machines.table import TableMachine
from raftstore.storage import store as stores
from raftstore.storage.store import Store, open_store
from raftstore.storage.tables.leveldb_tables import LevelDbTables
from tests.noting_files import NotingFiles
from tests.storage_helpers import CHANNEL, SMALL, rows_record


def open_it(directory: Path, files: NotingFiles) -> Store:
    """Open with small demands."""
    return open_store(directory, "n1", SMALL, ops=files, free_bytes_min=0)


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """A store of one row, stopped cleanly."""
    files = NotingFiles()
    store = open_it(tmp_path / "data", files)
    store.log.append(CHANNEL, [rows_record(1, {b"a": b"1"})])
    store.log.flush()
    store.tables.open_channel(CHANNEL, TableMachine())
    store.tables.apply(CHANNEL, [rows_record(1, {b"a": b"1"})])
    store.tables.apply_queued()
    store.close(is_clean=True)
    assert files.opened == {}
    return tmp_path / "data"


def refusing(error: BaseException) -> Callable[..., Any]:
    """A part that cannot be opened."""

    def refuse(*_: Any, **__: Any) -> Any:
        raise error

    return refuse


@pytest.mark.parametrize("error", [StorageError("a bad disk"), KeyboardInterrupt()])
@pytest.mark.parametrize("part", ["log", "tables", "reconcile"])
def test_store_that_cannot_be_opened_leaves_nothing_open(
    directory: Path, monkeypatch: pytest.MonkeyPatch, part: str, error: BaseException
) -> None:
    """Neither files nor locks, so the next try finds them free; and it was no clean stop."""
    closed: list[str] = []
    close = LevelDbTables.close
    monkeypatch.setattr(LevelDbTables, "close", lambda self: closed.append("tables") or close(self))
    files = NotingFiles()
    with monkeypatch.context() as broken:
        if part == "log":
            broken.setattr(stores, "SegmentLog", refusing(error))
        elif part == "tables":
            broken.setattr(LevelDbTables, "open", refusing(error))
        else:
            broken.setattr(stores, "reconcile", refusing(error))
        with pytest.raises(type(error)):
            open_it(directory, files)
    assert files.opened == {}
    assert closed == (["tables"] if part == "reconcile" else [])
    store = open_it(directory, files)
    assert not store.identity.was_stopped_cleanly
    assert store.tables.open_channel(CHANNEL, TableMachine()) == 1
    store.close(is_clean=True)
    assert files.opened == {}


@pytest.mark.parametrize("is_clean", [True, False])
def test_stop_is_clean_where_its_caller_says_so(directory: Path, *, is_clean: bool) -> None:
    """The log was flushed before."""
    open_it(directory, NotingFiles()).close(is_clean=is_clean)
    store = open_it(directory, NotingFiles())
    assert store.identity.was_stopped_cleanly is is_clean
    store.close(is_clean=True)


def test_parts_of_older_versions_are_closed_to_others(directory: Path) -> None:
    """Each that is there, and the others are not missed."""
    for name in ("log", "tables"):
        (directory / name).chmod(0o755)
    open_it(directory, NotingFiles()).close(is_clean=True)
    modes = {path.name: path.stat().st_mode & 0o777 for path in directory.iterdir()}
    assert (modes["log"], modes["tables"]) == (0o700, 0o700)
    (directory / "quarantine").mkdir(mode=0o755)
    (directory / "quarantine").chmod(0o755)
    stores._close_to_others(directory)
    assert (directory / "quarantine").stat().st_mode & 0o777 == 0o700
    stores._close_to_others(directory / "gone")
    (directory / "log").rename(directory / "elsewhere")
    (directory / "tables").chmod(0o755)
    stores._close_to_others(directory)
    assert (directory / "tables").stat().st_mode & 0o777 == 0o700
    (directory / "elsewhere").rename(directory / "log")


def test_directory_and_files_that_are_written_are_watched(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S0.1: the directory and those of its parts; the lock, the segment and the mark."""
    seen: list[Any] = []

    def watch(directories: Any, places: Any, on_gone: Any, look: Any) -> Any:
        seen.extend((directories, [place.path.name for place in places()], on_gone, look))
        return "watch"

    store = open_it(directory, NotingFiles())
    monkeypatch.setattr(stores, "PresenceWatch", watch)
    assert str(store.watch_presence(pytest.fail)) == "watch"
    names = ["lock", "0000000000000001.log", "mark"]
    directories = (directory, directory / "log", directory / "tables")
    assert seen == [directories, names, pytest.fail, store.space.look_and_restore]
    store.close(is_clean=True)
