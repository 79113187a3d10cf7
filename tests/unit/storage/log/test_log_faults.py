"""S0.4: an error of the disk ends the log at once, is never retried, and loses nothing durable."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from raftstore.errors import DiskFullError, PersistError, StorageError
from raftstore.storage.log.segment_log import SegmentLog
from tests.storage_helpers import (
    ALICE,
    CHANNEL,
    STORE_UUID,
    FaultyFiles,
    all_records,
    create_log,
    open_log,
    record,
)

FIRST = "0000000000000001.log"
SECOND = "0000000000000002.log"


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO, errno.EFBIG, errno.EDQUOT])
@pytest.mark.parametrize(
    ("method", "name"),
    [
        ("write", FIRST),
        ("sync", FIRST),
        ("write", "mark"),
        ("sync", "mark"),
        ("open", SECOND),
        ("write", SECOND),
        ("sync", SECOND),
        ("sync", "log/"),
    ],
)
def test_error_poisons_the_log(tmp_path: Path, method: str, name: str, code: int) -> None:
    """Given an error of any file operation, the next call raises without touching a file, and a
    restart finds at least what had completed.
    """
    ops = FaultyFiles()
    log = create_log(tmp_path, ops, segment_bytes=400)
    log.append(CHANNEL, [record(1, payload=bytes(150))])
    log.flush()
    log.append(CHANNEL, [record(2, payload=bytes(150))])
    log.append(CHANNEL, [record(3, payload=bytes(150))])
    log.set_vote(CHANNEL, 5, ALICE)
    completed = log.durable_operation()
    ops.fail(method, name, code)
    with pytest.raises(PersistError, match="the node stops"):
        log.flush()
    ops.calls.clear()
    for _ in range(2):
        with pytest.raises(PersistError, match="not usable any more"):
            log.flush()
        with pytest.raises(PersistError, match="not usable any more"):
            log.append(CHANNEL, [record(4)])
        with pytest.raises(PersistError, match="not usable any more"):
            log.committer.write_mark()
    assert ops.calls == []
    assert log.durable_operation() == completed
    log.close()
    log = open_log(tmp_path, segment_bytes=400)
    assert len(all_records(log)) in (1, 2, 3)
    assert log.open_channel(CHANNEL).shortfall is None


def test_short_writes_are_continued(tmp_path: Path) -> None:
    """A short write is no error; the rest follows."""
    ops = FaultyFiles()
    log = create_log(tmp_path, ops)
    ops.write_at_most = 7
    log.append(CHANNEL, [record(1, payload=bytes(range(100)))])
    log.set_vote(CHANNEL, 2, ALICE)
    log.flush()
    log.close()
    assert all_records(open_log(tmp_path)) == [record(1, payload=bytes(range(100)))]


def test_half_written_batch_is_a_prefix_after_the_restart(tmp_path: Path) -> None:
    """A disk that fills up in the middle of a write leaves a torn end, and only that."""
    ops = FaultyFiles()
    log = create_log(tmp_path, ops, segment_bytes=1 << 20)
    log.append(CHANNEL, [record(seq, payload=bytes(100)) for seq in range(1, 9)])
    written = 0

    def write_half(descriptor: int, data: bytes | memoryview) -> int:
        nonlocal written
        if written > 600:
            raise OSError(errno.ENOSPC, "No space left on device")
        written += 100
        return FaultyFiles.write(ops, descriptor, data[:100])

    ops.write = write_half  # type: ignore[method-assign]
    with pytest.raises(PersistError, match="No space left on device"):
        log.flush()
    log.close()
    log = open_log(tmp_path)
    held = all_records(log)
    assert held == [record(seq, payload=bytes(100)) for seq in range(1, len(held) + 1)]
    assert 0 < len(held) < 8


def test_read_error_poisons_the_log(tmp_path: Path) -> None:
    """A log that cannot be read is not served from memory as if nothing had happened."""
    ops = FaultyFiles()
    log = create_log(tmp_path, ops, segment_bytes=1 << 20, log_cache_bytes=0)
    log.append(CHANNEL, [record(1), record(2)])
    log.flush()
    ops.fail("read", FIRST)
    with pytest.raises(PersistError, match=r"reading .* failed"):
        all_records(log)
    with pytest.raises(PersistError, match="not usable any more"):
        log.append(CHANNEL, [record(3)])


def test_full_disk_at_start_can_be_waited_out(tmp_path: Path) -> None:
    """GAP-13: at start nothing is at stake, so a full disk has an error of its own."""
    create_log(tmp_path).close()
    ops = FaultyFiles()
    ops.fail("sync", "mark", errno.ENOSPC)
    with pytest.raises(DiskFullError, match=r"no space left on the disk of .*mark"):
        open_log(tmp_path, ops)
    open_log(tmp_path, ops).close()


def test_other_errors_at_start_name_file_and_reason(tmp_path: Path) -> None:
    """An unreadable disk is reported as it is."""
    create_log(tmp_path).close()
    ops = FaultyFiles()
    ops.fail("open", FIRST, errno.EACCES)
    with pytest.raises(StorageError, match=r"reading the log failed.*Permission denied"):
        open_log(tmp_path, ops)


def test_unsynced_pages_of_a_dead_process_are_not_believed(tmp_path: Path) -> None:
    """Each start syncs mark and last segments, and reads them from the disk, before it trusts
    what a process left that may have died of a failed sync."""
    create_log(tmp_path).close()
    ops = FaultyFiles()
    forgotten: list[str] = []
    real = ops.forget_cached

    def forget(descriptor: int) -> None:
        forgotten.append(ops._names[descriptor])
        assert ops.calls[-1] == ("sync", ops._names[descriptor])
        real(descriptor)

    ops.forget_cached = forget  # type: ignore[method-assign]
    open_log(tmp_path, ops).close()
    assert forgotten == ["mark", FIRST]


def test_start_makes_names_durable_before_it_believes_them(tmp_path: Path) -> None:
    """S0.3: a killed process may have left a segment whose name no power cut would leave."""
    log = create_log(tmp_path)
    log.append(CHANNEL, [record(1)])
    log.flush()
    log.close()
    ops = FaultyFiles()
    open_log(tmp_path, ops).close()
    assert ops.calls.index(("sync", "log/")) < ops.calls.index(("read", FIRST))


def test_name_of_a_new_file_is_durable_when_it_is_created(tmp_path: Path) -> None:
    """S0.2: marker, log and mark of a new store do not vanish one by one in a power cut."""
    ops = FaultyFiles()
    SegmentLog.create(ops, tmp_path, STORE_UUID)
    for name, directory in ((FIRST, "log/"), ("mark", tmp_path.name + "/")):
        written = ops.calls.index(("sync", name))
        assert ("sync", directory) in ops.calls[written:]
