"""The real log beyond the contract: segments, cache, group commits and the writer thread."""

from __future__ import annotations

from pathlib import Path
from queue import SimpleQueue
from threading import Event
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raftstore.config import PAYLOAD_BYTES_MAX
from raftstore.errors import PersistError, StorageError
from raftstore.storage.log.index import ChannelIndex
from raftstore.storage.log.writer import LogWriter
from raftstore.types import History, LineageEntry
from tests.storage_helpers import (
    ALICE,
    CHANNEL,
    OTHER,
    FaultyFiles,
    all_records,
    create_log,
    open_log,
    record,
)


def test_segments_roll_and_keep_one_history(tmp_path: Path) -> None:
    """Reading goes over the edges of files, before and after a restart."""
    log = create_log(tmp_path, segment_bytes=400, log_cache_bytes=0)
    records = [record(seq, payload=bytes([seq]) * seq) for seq in range(1, 40)]
    for one in records:
        log.append(CHANNEL, [one])
    log.flush()
    assert len(list((tmp_path / "log").iterdir())) > 8
    assert all_records(log) == records
    size = log.size_bytes()
    assert size == sum(path.stat().st_size for path in (tmp_path / "log").iterdir())
    log.close()
    log = open_log(tmp_path, segment_bytes=400)
    assert log.size_bytes() == size
    assert all_records(log) == records


def test_new_segment_is_durable_before_it_is_used(tmp_path: Path) -> None:
    """The old file is synced, the new one and its name too, before the first record enters it."""
    ops = FaultyFiles()
    log = create_log(tmp_path, ops, segment_bytes=200)
    log.append(CHANNEL, [record(1, payload=bytes(200))])
    log.append(CHANNEL, [record(2)])
    ops.calls.clear()
    log.flush()
    first, second = "0000000000000001.log", "0000000000000002.log"
    assert [call for call in ops.calls if call != ("open", "log")][:8] == [
        ("write", first),
        ("sync", first),
        ("open", second),
        ("write", second),
        ("sync", second),
        ("sync", "log/"),
        ("write", second),
        ("sync", second),
    ]


def test_group_commit_is_bounded_but_takes_one_operation(tmp_path: Path) -> None:
    """One sync covers many operations, up to group_commit_bytes_max."""
    log = create_log(tmp_path, group_commit_bytes_max=1000)
    for seq in range(1, 6):
        log.append(CHANNEL, [record(seq, payload=bytes(300))])
    log.append(CHANNEL, [record(6, payload=bytes(5000))])
    taken = []
    while (batch := log.take_pending()) is not None:
        taken.append(batch.operation)
        log.committer.write_and_sync(batch)
        assert log.completed(batch) == batch.operation
    assert taken == [2, 4, 5, 6]


def test_cache_keeps_what_is_not_on_the_disk_yet(tmp_path: Path) -> None:
    """However small the cache, buffered records are read from it."""
    ops = FaultyFiles()
    log = create_log(tmp_path, ops, log_cache_bytes=0)
    records = [record(seq) for seq in range(1, 20)]
    log.append(CHANNEL, records)
    ops.calls.clear()
    assert all_records(log) == records
    assert ops.calls == []
    log.flush()
    assert all_records(log) == records
    assert [method for method, _ in ops.calls if method == "read"]


def test_cache_serves_the_newest_records(tmp_path: Path) -> None:
    """Followers that are a little behind cost no disk reads."""
    ops = FaultyFiles()
    log = create_log(tmp_path, ops, log_cache_bytes=3000)
    for seq in range(1, 31):
        log.append(CHANNEL, [record(seq)])
    log.flush()
    ops.calls.clear()
    assert len(log.read(CHANNEL, 25, to_seq=30, bytes_max=1000)) == 6
    assert ops.calls == []
    assert len(log.read(CHANNEL, 1, to_seq=30, bytes_max=1000)) == 30


def test_oversized_record_is_refused(tmp_path: Path) -> None:
    """A record too large to be read back is not written: PersistError names the limits."""
    log = create_log(tmp_path)
    log.append(CHANNEL, [record(1, payload=bytes(PAYLOAD_BYTES_MAX))])
    with pytest.raises(PersistError, match="cannot be stored; the limits are"):
        log.append(CHANNEL, [record(2, payload=bytes(2 * PAYLOAD_BYTES_MAX))])


def test_required_history_makes_the_channel_recovering_durably(tmp_path: Path) -> None:
    """S0.3: other evidence of a loss counts like the mark, and is remembered in it."""
    log = create_log(tmp_path)
    log.append(CHANNEL, [record(1)])
    log.flush()
    log.require(CHANNEL, History(1, 4))
    log.close()
    log = open_log(tmp_path)
    assert log.open_channel(CHANNEL).shortfall == History(1, 4)


@given(st.lists(st.tuples(st.booleans(), st.integers(1, 4), st.integers(0, 20)), max_size=30))
def test_index_answers_like_a_list(steps: list[tuple[bool, int, int]]) -> None:
    """Lineage, terms and places follow appends and truncations."""
    index = ChannelIndex()
    model: list[tuple[int, int, int]] = []
    for is_append, rows, amount in steps:
        end = model[-1][1] + model[-1][2] - 1 if model else 0
        if is_append:
            term = (model[-1][0] if model else 1) + amount % 2
            model.append((term, end + 1, rows))
            index.add(term, end + 1, rows, position=end, length=1)
        else:
            model = [one for one in model if one[1] < max(1, end - amount)]
            index.truncate(max(1, end - amount))
        rows_of_terms = [(term, base + n) for term, base, count in model for n in range(count)]
        assert index.last_seq == len(rows_of_terms)
        for term, seq in rows_of_terms:
            assert index.term_at(seq) == term
            assert model[index.locate(seq)][1] <= seq
        assert index.locate(len(rows_of_terms) + 1) == len(index) == len(model)
        lineage: dict[int, int] = dict(rows_of_terms)
        assert index.lineage == [LineageEntry(*run) for run in lineage.items()]


class Loop:
    """The loop thread of a test: runs what other threads post."""

    def __init__(self) -> None:
        self._calls: SimpleQueue[Any] = SimpleQueue()

    def post(self, call: Any) -> None:
        self._calls.put(call)

    def run_one(self) -> None:
        self._calls.get(timeout=20)()


def test_writer_commits_in_groups_and_goes_on_by_itself(tmp_path: Path) -> None:
    """Given records buffered during a sync, the writer commits them as one group without another
    call.
    """
    loop = Loop()
    durable: list[int] = []
    log = create_log(tmp_path)
    writer = LogWriter(log, post=loop.post, on_durable=durable.append, on_failed=pytest.fail)
    log.append(CHANNEL, [record(1)])
    writer.kick()
    log.append(CHANNEL, [record(2)])
    log.set_vote(OTHER, 1, ALICE)
    writer.kick()
    loop.run_one()
    loop.run_one()
    assert durable == [1, 3]
    writer.kick()
    writer.stop()
    log.flush()
    log.close()
    assert all_records(open_log(tmp_path)) == [record(1), record(2)]


def test_stopped_writer_leaves_no_hole(tmp_path: Path) -> None:
    """Given records buffered when the writer stops, flush writes them in order, although the
    completion of the last group commit arrives late and would have started the next.
    """
    loop = Loop()
    durable: list[int] = []
    log = create_log(tmp_path)
    writer = LogWriter(log, post=loop.post, on_durable=durable.append, on_failed=pytest.fail)
    log.append(CHANNEL, [record(1)])
    writer.kick()
    log.append(CHANNEL, [record(2)])
    writer.stop()
    assert durable == [1]
    loop.run_one()
    writer.kick()
    log.append(CHANNEL, [record(3)])
    log.flush()
    assert log.durable_operation() == 3
    log.close()
    log = open_log(tmp_path)
    assert log.notes == ()
    assert all_records(log) == [record(1), record(2), record(3)]


def test_writer_lets_the_mark_catch_up_when_idle(tmp_path: Path) -> None:
    """S0.3: after an idle pause the mark lags nothing, without anybody asking."""
    loop = Loop()
    is_marked = Event()

    class Watching(FaultyFiles):
        def datasync(self, descriptor: int) -> None:
            super().datasync(descriptor)
            if self._names[descriptor] == "mark":
                is_marked.set()

    log = create_log(tmp_path, Watching())
    is_marked.clear()
    writer = LogWriter(log, post=loop.post, on_durable=lambda _: None, on_failed=pytest.fail)
    log.append(CHANNEL, [record(1)])
    writer.kick()
    loop.run_one()
    assert is_marked.wait(20)
    writer.stop()
    assert not log.committer.is_mark_behind()
    log.close()


@pytest.mark.parametrize("name", ["0000000000000001.log", "mark"])
def test_writer_reports_an_error_nobody_expected(tmp_path: Path, name: str) -> None:
    """S0.4: a thread that ended in silence would leave a node that seems to live and commits
    nothing; and what the failed write did is unknown, whatever the error was."""
    loop = Loop()
    failures: list[StorageError] = []
    broken: list[str] = []

    class Broken(FaultyFiles):
        def datasync(self, descriptor: int) -> None:
            if self._names[descriptor] in broken:
                raise RuntimeError("a bug")
            super().datasync(descriptor)

    log = create_log(tmp_path, Broken())
    writer = LogWriter(log, post=loop.post, on_durable=lambda _: None, on_failed=failures.append)
    log.append(OTHER, [record(1)])
    writer.kick()
    loop.run_one()
    broken.append(name)
    log.append(CHANNEL, [record(1)])
    writer.kick()
    while not failures:
        loop.run_one()
    writer.stop()
    assert isinstance(failures[0], PersistError)
    assert "a bug" in str(failures[0])
    with pytest.raises(PersistError, match="not usable any more"):
        log.flush()


@pytest.mark.parametrize("name", ["0000000000000001.log", "mark"])
def test_writer_reports_a_failure_once_and_ends(tmp_path: Path, name: str) -> None:
    """S0.4: one report, then silence; nothing counts as durable."""
    loop = Loop()
    ops = FaultyFiles()
    failures: list[StorageError] = []
    durable: list[int] = []
    log = create_log(tmp_path, ops)
    writer = LogWriter(log, post=loop.post, on_durable=durable.append, on_failed=failures.append)
    if name == "mark":
        log.append(OTHER, [record(1)])
        writer.kick()
        loop.run_one()
    ops.fail("sync", name)
    log.append(CHANNEL, [record(1)])
    writer.kick()
    loop.run_one()
    while not failures:
        loop.run_one()
    writer.stop()
    assert isinstance(failures[0], PersistError)
    with pytest.raises(PersistError, match="not usable any more"):
        log.append(CHANNEL, [record(2)])


def test_closed_log_takes_nothing_and_a_failed_one_keeps_its_reason(tmp_path: Path) -> None:
    """S0.4: what is appended to it would be lost in silence."""
    log = create_log(tmp_path)
    log.open_channel(CHANNEL)
    log.close()
    with pytest.raises(PersistError, match="it was closed"):
        log.append(CHANNEL, [record(1)])
    other = tmp_path / "other"
    other.mkdir()
    log = create_log(other)
    log.open_channel(CHANNEL)
    log.committer.failure = "the disk is gone"
    log.close()
    with pytest.raises(PersistError, match="the disk is gone"):
        log.append(CHANNEL, [record(1)])
