"""Group commits: which operations share one, and what is written where (S0.3, S0.4)."""

from __future__ import annotations

from collections import deque
from pathlib import Path

import pytest

from raftstore.errors import PersistError
from raftstore.storage.log.group_commit import OPERATION_BYTES, Operation, next_batch
from raftstore.storage.log.mark import MarkRow
from raftstore.storage.log.mark_syncer import MarkSyncer
from raftstore.storage.log.segment_log import SegmentLog
from raftstore.types import ChannelId, History, Seq, Term
from tests.storage_helpers import ALICE, CHANNEL, OTHER, FaultyFiles, create_log, record


def operation(
    number: int,
    size: int = 10,
    *,
    channel: ChannelId = CHANNEL,
    is_urgent: bool = False,
    opens: tuple[int, bytes] | None = None,
) -> Operation:
    """An operation whose bytes show its number."""
    data = b"%d" % number * size
    return Operation(
        number=number,
        channel=channel,
        parts=(data[:3], data[3:]),
        size=size,
        end_position=1_000 + number,
        row=MarkRow(durable=History(Term(1), Seq(number))),
        is_urgent=is_urgent,
        forgets=False,
        opens=opens,
    )


@pytest.mark.parametrize(
    ("sizes", "bytes_max", "taken"),
    [
        ([10], 0, 1),
        ([10, 10], 10, 1),
        ([10, 10], 19, 1),
        ([10, 10], 20, 2),
        ([10, 10, 1], 20, 2),
        ([50, 1], 20, 1),
        ([0, 0, 0], 0, 3),
        ([5, 10, 5, 10], 100, 4),
    ],
)
def test_group_commit_takes_what_fits_and_at_least_one(
    sizes: list[int], bytes_max: int, taken: int
) -> None:
    """Its bytes in memory are counted with what each operation costs beyond them."""
    pending = deque(operation(number, size) for number, size in enumerate(sizes, 1))
    batch, held_bytes = next_batch(pending, bytes_max)
    assert (batch.operation, batch.end_position) == (taken, 1_000 + taken)
    assert [left.number for left in pending] == list(range(taken + 1, len(sizes) + 1))
    expected = b"".join(b"%d" % number * size for number, size in enumerate(sizes[:taken], 1))
    assert batch.steps == (expected,)
    assert held_bytes == sum(sizes[:taken]) + taken * OPERATION_BYTES
    assert not batch.is_urgent


def test_newest_row_of_each_channel_goes_to_the_mark() -> None:
    """One operation that is urgent makes the whole group so, wherever it is."""
    operations = [
        operation(1),
        operation(2, channel=OTHER, is_urgent=True),
        operation(3),
    ]
    batch, _ = next_batch(deque(operations), 1_000)
    assert batch.rows == {CHANNEL: operations[2].row, OTHER: operations[1].row}
    assert batch.is_urgent


@pytest.mark.parametrize(
    ("opening", "steps"),
    [
        ((1,), [(7, b"header"), b"112233"]),
        ((2,), [b"11", (7, b"header"), b"2233"]),
        ((1, 3), [(7, b"header"), b"1122", (7, b"header"), b"33"]),
    ],
)
def test_segment_is_started_where_its_first_operation_is(
    opening: tuple[int, ...], steps: list[object]
) -> None:
    """Bytes in front of it belong to the segment before."""
    pending = deque(
        operation(number, 2, opens=(7, b"header") if number in opening else None)
        for number in (1, 2, 3)
    )
    assert list(next_batch(pending, 1_000)[0].steps) == steps


def test_order_of_operations_is_checked() -> None:
    """Acknowledgements rest on it; and nobody may ask for a group commit of nothing."""
    with pytest.raises(AssertionError, match="operation 3 follows 1"):
        next_batch(deque([operation(1), operation(3)]), 10)
    with pytest.raises(AssertionError, match="a group commit of nothing"):
        next_batch(deque(), 10)


def commit(log: SegmentLog) -> None:
    """Make everything buffered durable, without the pause that closes the mark's gap."""
    batch = log.take_pending()
    assert batch is not None
    log.committer.write_and_sync(batch)
    log.completed(batch)


@pytest.fixture
def syncer() -> MarkSyncer:
    """The thread that syncs the mark beside the log."""
    return MarkSyncer()


def test_mark_is_synced_by_another_thread_before_a_group_commit_completes(
    tmp_path: Path, syncer: MarkSyncer
) -> None:
    """S0.3: in parallel, and both are durable when it completes."""
    ops = FaultyFiles()
    log = create_log(tmp_path, ops, segment_bytes=1 << 20)
    log.committer.sync_mark_with(syncer)
    for seq in (1, 2, 3):
        ops.calls.clear()
        log.append(CHANNEL, [record(seq)])
        commit(log)
        synced = [name for method, name in ops.calls if method == "sync"]
        assert sorted(synced) == ["0000000000000001.log", "mark"][: 1 if seq == 1 else 2]
        if seq > 1:
            assert ops.calls.index(("write", "mark")) < ops.calls.index(("sync", "mark"))
    log.close()
    syncer.close()
    assert not syncer._thread.is_alive()


def test_error_of_the_other_thread_ends_the_log(tmp_path: Path, syncer: MarkSyncer) -> None:
    """S0.4: it is raised where the group commit waits, and nothing is accepted after it."""
    ops = FaultyFiles()
    log = create_log(tmp_path, ops, segment_bytes=1 << 20)
    log.committer.sync_mark_with(syncer)
    log.append(CHANNEL, [record(1)])
    commit(log)
    ops.fail("sync", "mark")
    log.append(CHANNEL, [record(2)])
    with pytest.raises(PersistError, match=r"writing the log failed on .*log: Input/output error"):
        commit(log)
    ops.calls.clear()
    for again in (log.committer.write_mark, lambda: commit_again(log)):
        with pytest.raises(PersistError, match=r"not usable any more: .*Input/output error"):
            again()
    assert ops.calls == []
    log.committer.close()
    assert syncer._thread.daemon, "a sync that hangs must not keep the process"
    syncer.start(lambda: None)
    syncer.wait()  # the thread itself goes on, and each job has a result of its own
    syncer.close()


def commit_again(log: SegmentLog) -> None:
    """The caller does not know of the failure."""
    batch, _ = next_batch(deque([operation(1)]), 10)
    log.committer.write_and_sync(batch)


@pytest.mark.parametrize("method", ["write", "sync"])
def test_error_of_the_mark_in_a_pause_ends_the_log(tmp_path: Path, method: str) -> None:
    """S0.4: the mark's file is named, and what it did not cover stays uncovered."""
    ops = FaultyFiles()
    log = create_log(tmp_path, ops, segment_bytes=1 << 20)
    log.append(CHANNEL, [record(1)])
    commit(log)
    ops.fail(method, "mark")
    with pytest.raises(PersistError, match="writing the mark failed"):
        log.committer.write_mark()
    assert log.committer.is_mark_behind()
    assert "writing the mark failed" in str(log.committer.failure)
    with pytest.raises(PersistError, match="not usable any more"):
        log.committer.write_mark()
    log.committer.close()


def test_pause_without_anything_new_writes_nothing(tmp_path: Path) -> None:
    """An idle node leaves its disk alone."""
    ops = FaultyFiles()
    log = create_log(tmp_path, ops, segment_bytes=1 << 20)
    log.set_vote(CHANNEL, 3, ALICE)
    commit(log)
    ops.calls.clear()
    assert not log.committer.is_mark_behind()
    log.committer.write_mark()
    assert ops.calls == []
    assert [place.path.name for place in log.committer.places()] == [
        "0000000000000001.log",
        "mark",
    ]
    log.close()
