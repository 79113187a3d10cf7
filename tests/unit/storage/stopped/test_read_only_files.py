"""Files of a stopped node: read as a start would mend them, and never changed."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from raftstore.storage.stopped.read_only_files import ReadOnlyFiles


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A file of ten bytes."""
    made = tmp_path / "some.log"
    made.write_bytes(b"0123456789")
    return made


def test_whatever_was_written_again_is_read_so(path: Path) -> None:
    """Wherever a read begins and ends, in front of the bytes, within them or behind them."""
    files = ReadOnlyFiles()
    descriptor = files.open(path, os.O_RDWR)
    assert files.pwrite(descriptor, b"abc", 3) == 3
    assert files.pwrite(descriptor, memoryview(b"Z"), 9) == 1
    expected = b"012abc678Z"
    for first in range(11):
        for last in range(first, 12):
            assert files.pread(descriptor, last - first, first) == expected[first:last]
    files.close(descriptor)
    assert files.read_file(path) == expected
    assert files.read_start(path, 5) == b"012ab"
    assert path.read_bytes() == b"0123456789"
    assert files.repairs == [path, path]
    other = path.with_name("other.log")
    other.write_bytes(b"0123456789")
    assert files.read_unsynced(other) == b"0123456789"


def test_cuts_and_new_headers_are_only_noted(path: Path) -> None:
    """A start would do them; here they are reported."""
    files = ReadOnlyFiles()
    descriptor = files.open(path, os.O_RDWR)
    files.truncate(descriptor, 3)
    assert files.repairs == [path]
    files.close(descriptor)
    other = path.with_name("other.log")
    files.replace_file(other, b"header")
    files.unlink(path)
    assert files.repairs == [path, other, path]
    assert path.read_bytes() == b"0123456789"
    assert not other.exists()
    assert files.is_read_only


@pytest.mark.parametrize(
    ("change", "name"),
    [
        (lambda files, path: files.write(files.open(path, os.O_WRONLY), b"x"), "some.log"),
        (lambda files, path: files.make_directory(path.with_name("new")), "new"),
        (lambda files, path: files.make_directory(path.parent, may_exist=True), ""),
        (lambda files, path: files.create_file(path.with_name("new"), b""), "new"),
        (lambda files, path: files.rename(path, path.with_name("new")), "some.log"),
        (lambda files, path: files.rename(path.with_name("gone"), path), "some.log"),
    ],
)
def test_every_other_change_is_refused(
    path: Path, change: Callable[[ReadOnlyFiles, Path], object], name: str
) -> None:
    """As a read-only disk would, with the file; and nothing has changed."""
    with pytest.raises(OSError, match="Read-only") as raised:
        change(ReadOnlyFiles(), path)
    assert raised.value.errno == errno.EROFS
    assert raised.value.filename == str(path.parent / name)
    assert os.listdir(path.parent) == ["some.log"]  # noqa: PTH208 - names
    assert path.read_bytes() == b"0123456789"


def test_missing_file_is_not_made(tmp_path: Path) -> None:
    """Given flags that make one elsewhere; a directory can be opened to be synced."""
    files = ReadOnlyFiles()
    with pytest.raises(FileNotFoundError):
        files.open(tmp_path / "gone", os.O_RDWR | os.O_CREAT)
    files.sync_directory(tmp_path)
    (tmp_path / "file").touch()
    with pytest.raises(NotADirectoryError):
        files.sync_directory(tmp_path / "file")


def test_closed_file_is_forgotten(path: Path) -> None:
    """The next file that has its number is another one."""
    files = ReadOnlyFiles()
    descriptor = files.open(path, os.O_RDONLY)
    files.close(descriptor)
    with pytest.raises(KeyError):
        files.truncate(descriptor, 0)
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(descriptor)
