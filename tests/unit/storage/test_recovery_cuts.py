"""How a damaged log is cut: what is put aside stays, and a kill meanwhile loses nothing more."""

from __future__ import annotations

import errno
import itertools
import os
import shutil
from contextlib import suppress
from pathlib import Path

import pytest

from raftstore.errors import StorageError
from raftstore.storage.files import FileOps
from raftstore.types import History
from tests.storage_helpers import CHANNEL, all_records, create_log, flip_bit, open_log, record


@pytest.fixture
def rolled(tmp_path: Path) -> Path:
    """A closed log of several segments with 25 records of one channel."""
    log = create_log(tmp_path, segment_bytes=500)
    for seq in range(1, 26):
        log.append(CHANNEL, [record(seq)])
    log.flush()
    log.close()
    assert len(list((tmp_path / "log").iterdir())) > 3
    return tmp_path


def test_quarantine_goes_on_after_an_operator_removed_a_run(rolled: Path) -> None:
    """Damage after a cleared one does not take the place of a run that is still kept."""
    path = rolled / "log" / "0000000000000002.log"
    quarantine = rolled / "quarantine"
    for kept in ("log-0000", "log-0001", "log-0002"):
        flip_bit(path, path.stat().st_size - 1)
        open_log(rolled, segment_bytes=500).close()
        assert (quarantine / kept).is_dir()
        if kept == "log-0001":
            shutil.rmtree(quarantine / "log-0000")
    assert sorted(run.name for run in quarantine.iterdir()) == ["log-0001", "log-0002"]


class Killed(FileOps):
    """Real files of a process that is killed before one of its changes."""

    def __init__(self, changes: int) -> None:
        self._changes_left = changes
        self.was_killed = False

    def _count(self) -> None:
        self._changes_left -= 1
        if self._changes_left < 0:
            self.was_killed = True
            raise OSError(errno.EIO, "killed")

    def open(self, path: Path, flags: int) -> int:
        if flags & os.O_CREAT:
            self._count()
        return super().open(path, flags)

    def write(self, descriptor: int, data: bytes | memoryview) -> int:
        self._count()
        return super().write(descriptor, data)

    def datasync(self, descriptor: int) -> None:
        self._count()
        super().datasync(descriptor)

    def truncate(self, descriptor: int, size: int) -> None:
        self._count()
        super().truncate(descriptor, size)

    def rename(self, source: Path, target: Path) -> None:
        self._count()
        super().rename(source, target)

    def unlink(self, path: Path) -> None:
        self._count()
        super().unlink(path)

    def sync_directory(self, directory: Path) -> None:
        self._count()
        super().sync_directory(directory)


@pytest.mark.slow
@pytest.mark.parametrize("lost", [1, 2], ids=["first", "second"])
@pytest.mark.parametrize("is_gone", [False, True], ids=["damaged", "missing"])
def test_kill_while_the_log_is_cut_leaves_a_log_to_start_on(
    rolled: Path, tmp_path_factory: pytest.TempPathFactory, lost: int, is_gone: bool
) -> None:
    """S0.3: a second fault does not turn a node that can recover into one that lost its log."""
    path = rolled / "log" / f"{lost:016d}.log"
    if is_gone:
        path.unlink()
    else:
        flip_bit(path, 0)
    for changes in itertools.count():
        copy = tmp_path_factory.mktemp("copy") / "data"
        shutil.copytree(rolled, copy)
        ops = Killed(changes)
        with suppress(StorageError):
            open_log(copy, ops, segment_bytes=500).close()
        log = open_log(copy, segment_bytes=500)
        assert log.open_channel(CHANNEL).shortfall == History(1, 25)
        held = all_records(log)
        assert held == [record(seq) for seq in range(1, len(held) + 1)]
        log.close()
        if not ops.was_killed:
            break
    assert changes > 5
