"""How a damaged log is cut: what is put aside stays, and a kill meanwhile loses nothing more."""

from __future__ import annotations

import errno
import itertools
import os
import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from raftstore.errors import StorageError
from raftstore.storage.files import FileOps
from raftstore.storage.log.index import offset_of
from raftstore.types import History
from tests.storage_helpers import (
    CHANNEL,
    OTHER,
    FaultyFiles,
    all_records,
    create_log,
    flip_bit,
    open_log,
    record,
)


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


def test_cut_is_durable_before_the_start_goes_on(rolled: Path) -> None:
    """S0.3: a power cut must not bring the torn end back behind records that were written later."""
    path = max((rolled / "log").iterdir())
    intact = path.read_bytes()
    path.write_bytes(intact + b"torn")
    cuts: list[tuple[str, int]] = []

    class CutFiles(FaultyFiles):
        def truncate(self, descriptor: int, size: int) -> None:
            super().truncate(descriptor, size)
            cuts.append((self._names[descriptor], size))
            self.calls.clear()

    ops = CutFiles()
    log = open_log(rolled, ops)
    assert cuts == [(path.name, len(intact))]
    assert ops.calls[0] == ("sync", path.name)
    assert path.read_bytes() == intact
    log.close()


def test_quarantine_goes_on_after_an_operator_removed_a_run(rolled: Path) -> None:
    """Damage after a cleared one does not take the place of a run that is still kept."""
    quarantine = rolled / "quarantine"
    for seq, kept in enumerate(("log-0000", "log-0001", "log-0002"), start=1):
        log = open_log(rolled, segment_bytes=1 << 20)
        log.append(OTHER, [record(seq)])
        log.flush()
        log.close()
        path = max((rolled / "log").iterdir())
        size = path.stat().st_size
        path.write_bytes(path.read_bytes() + bytes(3))
        log = open_log(rolled, segment_bytes=1 << 20)
        assert path.stat().st_size == size  # torn, and nobody was notified of it
        log.append(CHANNEL, [record(25 + seq)])
        log.flush()
        log.close()
        flip_bit(path, path.stat().st_size - 1)
        log = open_log(rolled, segment_bytes=1 << 20)
        log.fill(CHANNEL, [record(25 + seq)])
        log.flush()
        log.close()
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

    def pwrite(self, descriptor: int, data: bytes | memoryview, offset: int) -> int:
        self._count()
        return super().pwrite(descriptor, data, offset)

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


def flip_header(path: Path) -> None:
    """The first entry of a segment, which is written again."""
    flip_bit(path, 0)


def empty(path: Path) -> None:
    """A file that lost everything."""
    path.write_bytes(b"")


def flip_end(path: Path) -> None:
    """The last record, behind which nothing is intact if the file is the last one."""
    flip_bit(path, path.stat().st_size - 1)


@pytest.mark.slow
@pytest.mark.parametrize("damage", [flip_header, empty, flip_end, Path.unlink])
@pytest.mark.parametrize("number", [0, 1, -1], ids=["first", "second", "last"])
def test_kill_while_the_log_is_mended_leaves_a_log_to_start_on(
    rolled: Path,
    tmp_path_factory: pytest.TempPathFactory,
    damage: Callable[[Path], object],
    number: int,
) -> None:
    """S0.3: a second fault does not turn a node that can recover into one that lost its log."""
    damage(sorted((rolled / "log").iterdir())[number])
    for changes in itertools.count():
        copy = tmp_path_factory.mktemp("copy") / "data"
        shutil.copytree(rolled, copy)
        ops = Killed(changes)
        with suppress(StorageError):
            open_log(copy, ops, segment_bytes=500).close()
        log = open_log(copy, segment_bytes=500)
        found = log.open_channel(CHANNEL)
        held = all_records(log)
        assert held == [record(seq) for seq in range(1, len(held) + 1)]
        assert found.shortfall == (None if len(held) == 25 else History(1, 25))
        if found.hole is not None:
            lost = range(found.hole.from_seq, found.hole.to_seq + 1)
            log.fill(CHANNEL, [record(seq) for seq in lost])
            log.flush()
            assert all_records(log) == [record(seq) for seq in range(1, 26)]
        log.close()
        if not ops.was_killed:
            break
    assert changes > 0


@pytest.mark.parametrize("damage", [empty, flip_end])
def test_kill_while_the_only_segment_is_mended_leaves_a_log(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, damage: Callable[[Path], object]
) -> None:
    """S0.2: a log that is not there for a moment would be refused for good after a kill."""
    log = create_log(tmp_path)
    log.append(CHANNEL, [record(1)])
    log.flush()
    log.close()
    damage(tmp_path / "log" / "0000000000000001.log")
    for changes in itertools.count():
        copy = tmp_path_factory.mktemp("copy") / "data"
        shutil.copytree(tmp_path, copy)
        ops = Killed(changes)
        with suppress(StorageError):
            open_log(copy, ops).close()
        log = open_log(copy)
        assert log.open_channel(CHANNEL).shortfall == History(1, 1)
        log.close()
        if not ops.was_killed:
            break
    assert changes > 3


def test_mark_covers_at_the_start_what_got_a_channel_beyond_its_loss(tmp_path: Path) -> None:
    """S0.3: it lagged behind the records that ended the recovery, and they count as acknowledged
    from the start on without another write."""
    path = tmp_path / "log" / "0000000000000001.log"
    log = create_log(tmp_path)
    log.append(CHANNEL, [record(1, term=5), record(2, term=5)])
    log.flush()
    index = log.index_of(CHANNEL)
    assert index is not None
    place = offset_of(index.positions[1])
    log.close()
    os.truncate(path, place)
    log = open_log(tmp_path)
    assert log.open_channel(CHANNEL).shortfall == History(5, 2)
    log.append(CHANNEL, [record(2, term=6), record(3, term=7)])
    batch = log.take_pending()
    assert batch is not None
    log.committer.write_and_sync(batch)
    log.close()
    log = open_log(tmp_path)
    assert log.open_channel(CHANNEL).shortfall is None
    log.close()
    os.truncate(path, path.stat().st_size - 10)
    log = open_log(tmp_path)
    assert log.open_channel(CHANNEL).shortfall == History(7, 3)
