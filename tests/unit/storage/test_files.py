"""Calls of the operating system, one by one: their order, their loops, and who watches them."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from raftstore.errors import DiskFullError, PersistError, StorageError
from raftstore.storage import files
from raftstore.storage.files import FileOps, persisting, starting
from raftstore.storage.presence import place_of
from raftstore.storage.stalls import Area
from raftstore.storage.watched_files import WatchedFileOps
from tests.noting_files import NotingFiles


class Short(NotingFiles):
    """Writes three bytes at most, as a full disk or a signal may have it."""

    def write(self, descriptor: int, data: bytes | memoryview) -> int:
        return super().write(descriptor, data[:3])

    def pwrite(self, descriptor: int, data: bytes | memoryview, offset: int) -> int:
        return super().pwrite(descriptor, data[:3], offset)


def opened(ops: FileOps, path: Path) -> int:
    """The file, made if it is not there."""
    return ops.open(path, os.O_RDWR | os.O_CREAT)


def test_short_writes_go_on_where_they_ended(tmp_path: Path) -> None:
    """At the descriptor's position, and at an offset."""
    ops = Short()
    descriptor = opened(ops, tmp_path / "file")
    ops.write_all(descriptor, b"0123456789")
    ops.pwrite_all(descriptor, b"abcdefgh", 5)
    ops.pwrite_all(descriptor, b"", 2)
    ops.write_all(descriptor, b"")
    ops.close(descriptor)
    assert (tmp_path / "file").read_bytes() == b"01234abcdefgh"
    assert [change for change in ops.changes if change.startswith("write")] == [
        f"write file at {offset}" for offset in (5, 8, 11)
    ]


def test_files_of_any_length_are_read_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In reads of a bounded size, synced first or as the system shows them."""
    monkeypatch.setattr(files, "READ_BYTES", 4)
    path = tmp_path / "file"
    for size in (0, 3, 4, 5, 8, 11):
        data = os.urandom(size)
        path.write_bytes(data)
        ops = NotingFiles()
        assert ops.read_file(path) == data
        assert ops.changes == ["sync file"]
        assert ops.read_unsynced(path) == data
        assert ops.read_start(path, 4) == data[:4]
        assert ops.changes == ["sync file"]
        assert ops.opened == {}


def test_synced_file_is_read_from_the_disk(tmp_path: Path) -> None:
    """S0.4: pages that a failed sync left in memory are dropped between the sync and the read."""
    calls: list[str] = []

    class Calls(FileOps):
        def datasync(self, descriptor: int) -> None:
            super().datasync(descriptor)
            calls.append("sync")

        def forget_cached(self, descriptor: int) -> None:
            super().forget_cached(descriptor)
            calls.append("forget")

        def pread(self, descriptor: int, size: int, offset: int) -> bytes:
            calls.append("read")
            return super().pread(descriptor, size, offset)

    (tmp_path / "file").write_bytes(b"data")
    Calls().read_file(tmp_path / "file")
    assert calls == ["sync", "forget", "read", "read"]


def test_created_file_is_durable_with_its_name(tmp_path: Path) -> None:
    """S0.3: content, then name; one that is there is refused and stays."""
    ops = Short()
    ops.create_file(tmp_path / "file", b"content")
    synced = ["create file", "sync file", f"sync {tmp_path.name}/"]
    assert ops.changes == synced
    assert ops.opened == {}
    with pytest.raises(FileExistsError):
        ops.create_file(tmp_path / "file", b"other")
    assert (tmp_path / "file").read_bytes() == b"content"
    assert ops.changes[3:] == []


def test_replaced_file_is_the_old_one_or_the_new_one(tmp_path: Path) -> None:
    """Written aside, synced, renamed, and the name synced; whatever an interrupted one left."""
    (tmp_path / "file").write_bytes(b"old")
    (tmp_path / "file.new").write_bytes(b"left by a kill, and longer")
    ops = Short()
    ops.replace_file(tmp_path / "file", b"content")
    assert ops.changes == [
        "create file.new",
        "sync file.new",
        "rename file.new file",
        f"sync {tmp_path.name}/",
    ]
    assert ops.opened == {}
    assert (tmp_path / "file").read_bytes() == b"content"
    assert not (tmp_path / "file.new").exists()


@pytest.mark.parametrize("method", ["create_file", "replace_file"])
def test_file_that_cannot_be_synced_is_not_taken(tmp_path: Path, method: str) -> None:
    """The error passes through; nothing stays open and no name is changed."""

    class Failing(NotingFiles):
        def datasync(self, descriptor: int) -> None:
            raise OSError(errno.EIO, f"Input/output error of {self.opened[descriptor]}")

    ops = Failing()
    with pytest.raises(OSError, match="Input/output"):
        getattr(ops, method)(tmp_path / "file", b"content")
    assert ops.opened == {}
    assert [change for change in ops.changes if not change.startswith("create")] == []


def test_names_of_a_directory_are_synced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """S0.3: what is synced is the directory itself, and nothing stays open."""
    synced: list[str] = []

    def fsync(descriptor: int) -> None:
        synced.append(os.readlink(f"/proc/self/fd/{descriptor}"))  # noqa: PTH115 - no path

    monkeypatch.setattr(os, "fsync", fsync)
    ops = NotingFiles()
    ops.sync_directory(tmp_path)
    assert (synced, ops.opened) == ([str(tmp_path.resolve())], {})


def test_only_the_user_of_the_node_reads_what_is_made(tmp_path: Path) -> None:
    """Given a umask that would allow more."""
    before = os.umask(0)
    try:
        ops = FileOps()
        ops.create_file(tmp_path / "file", b"rows")
        ops.make_directory(tmp_path / "directory")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "file").stat().st_mode) == 0o600
    assert stat.S_IMODE((tmp_path / "directory").stat().st_mode) == 0o700
    with pytest.raises(FileExistsError):
        FileOps().make_directory(tmp_path / "directory")
    FileOps().make_directory(tmp_path / "directory", may_exist=True)


def test_plain_calls_answer_what_the_system_says(tmp_path: Path) -> None:
    """Names, sizes, kinds, and what a descriptor has open, which a started process does not get."""
    ops = FileOps()
    assert not ops.is_read_only
    path = tmp_path / "file"
    descriptor = opened(ops, path)
    assert not os.get_inheritable(descriptor)
    assert ops.write(descriptor, b"0123456789") == 10
    assert ops.pwrite(descriptor, b"ab", 4) == 2
    assert ops.pread(descriptor, 4, 3) == b"3ab6"
    ops.truncate(descriptor, 6)
    assert ops.size_bytes(path) == 6
    assert ops.place(path, descriptor) == place_of(path, descriptor)
    ops.close(descriptor)
    assert (ops.exists(path), ops.is_directory(path), ops.is_directory(tmp_path)) == (
        *(True, False, True),
    )
    facts = os.statvfs(tmp_path)
    assert abs(ops.free_bytes(tmp_path) - facts.f_bavail * facts.f_frsize) < 1 << 30
    ops.rename(path, tmp_path / "other")
    assert ops.names(tmp_path) == ["other"]
    ops.unlink(tmp_path / "other")
    assert not ops.exists(tmp_path / "other")


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT, errno.EIO])
def test_errors_are_told_with_what_was_done_and_where(tmp_path: Path, code: int) -> None:
    """At the start a full disk can be waited out; a running node stops on anything (S0.4)."""
    reason = os.strerror(code)
    cause = OSError(code, reason)
    with pytest.raises(StorageError) as at_start, starting(tmp_path, "reading the log"):
        raise cause
    full = f"no space left on the disk of {tmp_path} while reading the log; free some space"
    other = f"reading the log failed on {tmp_path}: {reason}; check the disk and its permissions"
    assert str(at_start.value).startswith(other if code == errno.EIO else full)
    assert isinstance(at_start.value, DiskFullError) == (code != errno.EIO)
    assert at_start.value.__cause__ is cause
    with pytest.raises(PersistError) as running, persisting(tmp_path, "writing the log"):
        raise cause
    expected = f"writing the log failed on {tmp_path}: {reason}; the node stops"
    assert str(running.value).startswith(expected)
    assert running.value.__cause__ is cause
    for told in (starting, persisting):
        with pytest.raises((StorageError, PersistError), match=": no text; "):
            with told(tmp_path, "reading the log"):
                raise OSError("no text")


# --- watched --------------------------------------------------------------------------------------


class Recorded:
    """Stands for the file operations and for the watch, and notes both in one list."""

    def __init__(self) -> None:
        self.told: list[Any] = []

    def doing(self, area: Area, call: str, path: Path) -> Recorded:
        """The watch is notified."""
        assert area is Area.LOG
        self.told.append((call, path))
        return self

    def __enter__(self) -> None:
        self.told.append("begun")

    def __exit__(self, *_: object) -> None:
        self.told.append("done")

    def __getattr__(self, name: str) -> Callable[..., Any]:
        def call(*arguments: Any, **named: Any) -> Any:
            self.told.append((name, *arguments, *named.items()))
            return 7 if name == "open" else f"answer of {name}"

        return call


PATH, OTHER = Path("/some/file"), Path("/some/other")


@pytest.mark.parametrize(
    ("call", "noted", "done"),
    [
        (lambda ops: ops.write(7, b"x"), ("write", PATH), ("write", 7, b"x")),
        (lambda ops: ops.pwrite(7, b"x", 3), ("pwrite", PATH), ("pwrite", 7, b"x", 3)),
        (lambda ops: ops.pread(7, 5, 3), ("pread", PATH), ("pread", 7, 5, 3)),
        (lambda ops: ops.datasync(7), ("fdatasync", PATH), ("datasync", 7)),
        (lambda ops: ops.truncate(7, 3), ("ftruncate", PATH), ("truncate", 7, 3)),
        (lambda ops: ops.forget_cached(7), ("fadvise", PATH), ("forget_cached", 7)),
        (lambda ops: ops.close(7), ("close", PATH), ("close", 7)),
        (lambda ops: ops.write(8, b"x"), ("write", Path("?")), ("write", 8, b"x")),
        (lambda ops: ops.rename(PATH, OTHER), ("rename", OTHER), ("rename", PATH, OTHER)),
        (lambda ops: ops.unlink(OTHER), ("unlink", OTHER), ("unlink", OTHER)),
        (
            lambda ops: ops.make_directory(OTHER),
            ("mkdir", OTHER),
            ("make_directory", OTHER, ("may_exist", False)),
        ),
        (
            lambda ops: ops.make_directory(OTHER, may_exist=True),
            ("mkdir", OTHER),
            ("make_directory", OTHER, ("may_exist", True)),
        ),
        (lambda ops: ops.names(OTHER), ("readdir", OTHER), ("names", OTHER)),
        (lambda ops: ops.exists(OTHER), ("stat", OTHER), ("exists", OTHER)),
        (lambda ops: ops.is_directory(OTHER), ("stat", OTHER), ("is_directory", OTHER)),
        (lambda ops: ops.size_bytes(OTHER), ("stat", OTHER), ("size_bytes", OTHER)),
        (lambda ops: ops.place(OTHER, 7), ("fstat", OTHER), ("place", OTHER, 7)),
        (lambda ops: ops.free_bytes(OTHER), ("statvfs", OTHER), ("free_bytes", OTHER)),
        (
            lambda ops: ops.sync_directory(OTHER),
            ("fsync of the directory", OTHER),
            ("sync_directory", OTHER),
        ),
    ],
)
def test_each_call_is_noted_while_it_is_under_way(
    call: Callable[[WatchedFileOps], object], noted: tuple[Any, ...], done: tuple[Any, ...]
) -> None:
    """S0.4: with the file it waits for; its arguments and its answer are passed on as they are."""
    recorded: Any = Recorded()
    ops = WatchedFileOps(recorded, recorded)
    assert ops.open(PATH, 3) == 7
    assert recorded.told == [("open", PATH), "begun", ("open", PATH, 3), "done"]
    recorded.told.clear()
    answer = call(ops)
    assert recorded.told == [noted, "begun", done, "done"]
    assert answer in (None, f"answer of {done[0]}")
    answers = {"write", "pwrite", "pread", "names", "exists", "is_directory", "size_bytes"}
    assert (answer is not None) == (done[0] in answers | {"place", "free_bytes"})


def test_closed_descriptor_belongs_to_no_file() -> None:
    """The next file that has its number is reported by its own name."""
    recorded: Any = Recorded()
    ops = WatchedFileOps(recorded, recorded)
    ops.open(PATH, 0)
    ops.close(7)
    recorded.told.clear()
    ops.datasync(7)
    assert recorded.told[0] == ("fdatasync", Path("?"))
