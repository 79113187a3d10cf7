"""The log by itself: what passes which point, what is counted, cached, refused and closed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from raftstore.errors import CorruptRecordError, PersistError, UnknownChannelError
from raftstore.ports.log import MessageLog
from raftstore.protocol.records import Record
from raftstore.storage.files import FileOps
from raftstore.storage.log.group_commit import OPERATION_BYTES
from raftstore.storage.log.index import offset_of
from raftstore.storage.log.record_cache import CACHED_RECORD_BYTES
from raftstore.storage.log.segment_log import SegmentLog
from raftstore.storage.log.writer import LogWriter
from raftstore.storage.stopped.read_only_files import ReadOnlyFiles
from raftstore.types import RecordKind, Seq, Term
from tests.log_writing import WrittenLog, damage_body
from tests.noting_files import NotingFiles
from tests.storage_helpers import (
    ALICE,
    BOB,
    CHANNEL,
    OTHER,
    SMALL,
    STORE_UUID,
    FaultyFiles,
    all_records,
    create_log,
    open_log,
    record,
)

NAME = "0000000000000001.log"


def commit(log: SegmentLog) -> None:
    """Make everything buffered durable, without the mark's last rows."""
    batch = log.take_pending()
    assert batch is not None
    log.committer.write_and_sync(batch)
    log.completed(batch)


def test_each_step_of_a_group_commit_passes_its_point(tmp_path: Path) -> None:
    """Faults on purpose are aimed at these names; beside what is written and synced between."""
    SegmentLog.create(FileOps(), tmp_path, STORE_UUID)
    files = FaultyFiles()
    told: list[Any] = files.calls
    log = SegmentLog(files, tmp_path, STORE_UUID, SMALL, reach=told.append)

    def committed(change: Callable[[], object]) -> list[Any]:
        change()
        told.clear()
        commit(log)
        return list(told)

    wrote, synced = ("write", NAME), ("sync", NAME)
    marked = [("write", "mark")]
    assert committed(lambda: log.append(CHANNEL, [record(1)])) == [
        *("log.before-write", wrote, "log.before-sync", synced, "log.after-sync"),
    ]
    assert committed(lambda: log.append(CHANNEL, [record(2)])) == [
        *("log.before-write", wrote, "log.before-sync", *marked, synced),
        *(("sync", "mark"), "log.after-sync"),
    ]
    assert committed(lambda: log.set_vote(CHANNEL, Term(4), ALICE)) == [
        *("log.before-write", wrote, "vote.before-sync", synced, "mark.before-write", *marked),
        *(("sync", "mark"), "mark.after-sync", "vote.after-sync"),
    ]
    told.clear()
    log.truncate(CHANNEL, Seq(2))
    assert told == ["log.before-truncate"]
    log.append(CHANNEL, [record(2, payload=bytes(SMALL.segment_bytes))])
    commit(log)
    opened = committed(lambda: log.append(CHANNEL, [record(3)]))
    assert opened[:2] == ["log.before-write", "segment.before-start"]
    assert opened[2] == synced
    log.close()


class CountingSyncer:
    """Syncs the mark in the same thread, and says when."""

    def __init__(self, told: list[Any]) -> None:
        self._told = told

    def start(self, job: Callable[[], None]) -> None:
        """Begin the job; here it is done at once."""
        self._told.append("begun")
        job()

    def wait(self) -> None:
        """Nothing to wait for."""
        self._told.append("waited for")


def test_syncer_is_used_until_it_is_taken_away(tmp_path: Path) -> None:
    """S0.3: the mark is synced while the log is; without a syncer one after the other."""
    files = FaultyFiles()
    log = create_log(tmp_path, files, segment_bytes=1 << 20)
    syncer: Any = CountingSyncer(files.calls)
    log.committer.sync_mark_with(syncer)
    found = []
    for seq in (1, 2, 3):
        if seq == 3:
            log.committer.sync_mark_with(None)
        log.append(CHANNEL, [record(seq)])
        files.calls.clear()
        commit(log)
        found.append(list(files.calls))
    wrote, synced, marked = ("write", NAME), ("sync", NAME), ("sync", "mark")
    assert found == [
        [wrote, synced],
        [wrote, ("write", "mark"), "begun", marked, synced, "waited for"],
        [wrote, ("write", "mark"), synced, marked],
    ]
    log.close()


def test_closed_log_leaves_no_file_open(tmp_path: Path) -> None:
    """The log, the mark and what was read: a store is opened again in the same process."""
    files = NotingFiles()
    log = create_log(tmp_path, files, segment_bytes=300, log_cache_bytes=0)
    for seq in range(1, 6):
        log.append(CHANNEL, [record(seq)])
    log.flush()
    all_records(log)
    assert len(files.opened) > 3
    log.close()
    assert files.opened == {}
    with pytest.raises(PersistError, match="not usable any more: it was closed"):
        log.append(CHANNEL, [record(6)])


@pytest.mark.parametrize(("more", "segments"), [(-1, 1), (0, 2), (1, 2)])
def test_segment_is_full_when_it_has_its_bytes(tmp_path: Path, more: int, segments: int) -> None:
    """The operation that fills it is the last one in it."""
    log = create_log(tmp_path, segment_bytes=1 << 20)
    log.append(CHANNEL, [record(1)])
    log.flush()
    size = log.size_bytes()
    log.close()
    log = open_log(tmp_path, segment_bytes=size - more)
    log.append(CHANNEL, [record(2)])
    log.flush()
    paths = sorted((tmp_path / "log").iterdir())
    assert len(paths) == segments
    assert log.size_bytes() == sum(path.stat().st_size for path in paths)
    log.close()
    assert all_records(open_log(tmp_path)) == [record(1), record(2)]


def test_bytes_that_are_not_durable_are_counted(tmp_path: Path) -> None:
    """Each operation with what it costs beyond its bytes; a group commit gives them back."""
    log = create_log(tmp_path, segment_bytes=1 << 20, group_commit_bytes_max=1)
    before = log.size_bytes()
    log.append(CHANNEL, [record(1), record(2)])
    first = log.size_bytes() - before
    log.set_vote(CHANNEL, Term(3), BOB)
    total = log.size_bytes() - before
    assert log.unsynced_bytes() == total + 2 * OPERATION_BYTES
    assert (log.last_operation(), log.durable_operation()) == (2, 0)
    commit(log)
    assert log.unsynced_bytes() == total - first + OPERATION_BYTES
    assert log.durable_operation() == 1
    commit(log)
    assert (log.unsynced_bytes(), log.durable_operation()) == (0, 2)
    assert log.take_pending() is None
    log.close()


def test_cache_is_bounded_when_records_are_appended(tmp_path: Path) -> None:
    """The oldest durable ones go first, even while the new ones are not durable yet."""
    files = FaultyFiles()
    each = CACHED_RECORD_BYTES + len(b"payload")
    log = create_log(tmp_path, files, segment_bytes=1 << 20, log_cache_bytes=3 * each)
    log.append(CHANNEL, [record(seq) for seq in (1, 2, 3)])
    log.flush()

    def is_read_from_the_disk(seq: int) -> bool:
        files.calls.clear()
        assert log.read(CHANNEL, Seq(seq), to_seq=Seq(seq), bytes_max=1) == [record(seq)]
        return files.calls != []

    assert not any(is_read_from_the_disk(seq) for seq in (1, 2, 3))
    log.append(CHANNEL, [record(4)])
    log.append(CHANNEL, [record(5)])
    log._reader._block = b""
    assert [is_read_from_the_disk(seq) for seq in (5, 4, 3, 2)] == [False, False, False, True]
    log.close()


def test_reads_are_bounded_by_bytes_and_end(tmp_path: Path) -> None:
    """A first record always; the bound is exact, and no record reaches behind the end."""
    log = create_log(tmp_path, segment_bytes=1 << 20)
    held = [record(1, rows=2, payload=bytes(10)), record(3, payload=bytes(10)), record(4, rows=3)]
    log.append(CHANNEL, held)

    def read(first: int, last: int, bytes_max: int) -> list[Record]:
        return log.read(CHANNEL, Seq(first), to_seq=Seq(last), bytes_max=bytes_max)

    assert read(1, 9, 0) == held[:1]
    assert read(1, 9, 19) == held[:1]
    assert read(1, 9, 20) == held[:2]
    assert read(2, 9, 99) == held
    assert read(3, 5, 99) == held[1:2]
    assert read(4, 5, 99) == []
    assert read(6, 6, 99) == held[2:]
    assert read(7, 9, 99) == []
    log.close()


def test_heads_of_records_come_with_the_payloads_that_the_core_needs(tmp_path: Path) -> None:
    """Of configurations and marks of batches alone; whether they are cached or not."""
    log = create_log(tmp_path, segment_bytes=1 << 20, log_cache_bytes=0)
    kinds = (RecordKind.ROWS, RecordKind.CONFIG, RecordKind.BATCH_MARK, RecordKind.TERM_START)
    held = [record(seq, kind=kind) for seq, kind in enumerate(kinds, 1)]
    log.append(CHANNEL, held)
    log.flush()
    found = list(log.records(CHANNEL))
    assert [(one.kind, one.base_seq) for one in found] == list(
        zip(kinds, (1, 2, 3, 4), strict=True)
    )
    assert [one.payload for one in found] == [b"", b"payload", b"payload", b""]
    log.close()


@pytest.mark.parametrize("read", [all_records, lambda log: list(log.records(CHANNEL))])
@pytest.mark.parametrize("wrong", ["channel", "seq"])
def test_record_in_the_place_of_another_one_is_damage(
    tmp_path: Path, read: Callable[[MessageLog], object], wrong: str
) -> None:
    """S0.4: a write that went astray leaves sound checksums; the place is named."""
    log = create_log(tmp_path, segment_bytes=1 << 20, log_cache_bytes=0)
    log.append(OTHER, [record(1)])
    log.append(CHANNEL, [record(1), record(2)])
    log.flush()
    mine, other = log.index_of(CHANNEL), log.index_of(OTHER)
    assert mine is not None
    assert other is not None
    mine.positions[0] = other.positions[0] if wrong == "channel" else mine.positions[1]
    place = f"the record at byte {offset_of(mine.positions[0])} of {tmp_path / 'log' / NAME}"
    with pytest.raises(CorruptRecordError, match=f"^{place} is damaged: another record is stored"):
        read(log)
    with pytest.raises(PersistError, match=f"not usable any more: {place} is damaged"):
        log.append(CHANNEL, [record(3)])
    log.close()


def test_dropped_channel_is_refused_for_ever(tmp_path: Path) -> None:
    """S0.8: also one of which nothing was ever written; and dropping it again."""
    log = create_log(tmp_path)
    log.append(CHANNEL, [record(1)])
    log.drop_channel(OTHER)
    log.drop_channel(CHANNEL)
    for _ in range(2):
        assert log.dropped_channels() == (CHANNEL, OTHER)
        assert (log.channels(), log.is_dropped(OTHER)) == ((), True)
        for use in (log.open_channel, log.drop_channel, log.give_up):
            with pytest.raises(UnknownChannelError, match="belongs to a dropped table"):
                use(CHANNEL)
        log.flush()
        log.close()
        log = open_log(tmp_path)


@pytest.mark.parametrize(
    ("term", "vote", "is_taken"),
    [(2, BOB, False), (3, ALICE, True), (3, BOB, False), (3, None, False), (4, BOB, True)],
)
def test_vote_never_changes_within_its_term(
    tmp_path: Path, term: int, vote: Any, *, is_taken: bool
) -> None:
    """S13: the text names both; nothing is accepted after it."""
    log = create_log(tmp_path)
    log.set_vote(CHANNEL, Term(3), ALICE)
    if is_taken:
        log.set_vote(CHANNEL, Term(term), vote)
        found = log.open_channel(CHANNEL)
        assert (found.term, found.voted_for) == (term, vote)
    else:
        expected = f"at term 3 with the vote {ALICE}; it must not go to term {term} with the vote"
        with pytest.raises(PersistError, match=f"{expected} {vote}"):
            log.set_vote(CHANNEL, Term(term), vote)
        with pytest.raises(PersistError, match="not usable any more"):
            log.open_channel(CHANNEL)


def test_channels_that_were_found_whole_are_noted_at_the_start(tmp_path: Path) -> None:
    """S0.3: before their next record; a log that is only looked at says nothing."""
    written = WrittenLog(tmp_path / "data")
    SegmentLog.create(FileOps(), tmp_path, STORE_UUID)
    (tmp_path / "mark").rename(written.data_directory / "mark")
    written.segment()
    written.record(1)
    written.record(1, channel=OTHER)
    lost = [written.vote(1, ALICE), written.vote(2, ALICE)]
    written.vote(3, ALICE)
    written.segment()
    for place in lost:
        damage_body(place)
    looked_at = open_log(written.data_directory, ReadOnlyFiles())
    assert (looked_at.last_operation(), looked_at.channels()) == (0, (CHANNEL, OTHER))
    looked_at.close()
    log = open_log(written.data_directory)
    assert log.last_operation() == 2
    log.append(OTHER, [record(2, term=9)])
    log.flush()
    log.close()
    log = open_log(written.data_directory)
    assert all_records(log, OTHER) == [record(1), record(2, term=9)]
    assert log.open_channel(OTHER).shortfall is None
    log.close()


@pytest.mark.parametrize("change", ["append", "truncate"])
def test_leader_that_writes_has_the_hole_given_up(tmp_path: Path, change: str) -> None:
    """S0.3: the log is cut there; what was kept behind the hole does not come back."""
    written = WrittenLog(tmp_path / "data")
    SegmentLog.create(FileOps(), tmp_path, STORE_UUID)
    (tmp_path / "mark").rename(written.data_directory / "mark")
    written.segment()
    written.record(1)
    lost = written.record(2)
    written.record(3)
    written.segment()
    damage_body(lost, lost.length - 13)
    log = open_log(written.data_directory)
    assert log.open_channel(CHANNEL).hole is not None
    if change == "truncate":
        log.truncate(CHANNEL, Seq(2))
        assert log.open_channel(CHANNEL).hole is None
    log.append(CHANNEL, [record(2, term=5)])
    for _ in range(2):
        found = log.open_channel(CHANNEL)
        assert (found.hole, found.shortfall, found.last_seq) == (None, None, 2)
        log.flush()
        log.close()
        log = open_log(written.data_directory)
    assert all_records(log) == [record(1), record(2, term=5)]
    log.close()


@pytest.mark.parametrize(("seqs", "is_taken"), [((2,), True), ((2, 3), True), ((2, 3, 4), False)])
def test_records_that_reach_behind_their_hole_are_refused(
    tmp_path: Path, seqs: tuple[int, ...], *, is_taken: bool
) -> None:
    """S2.1: another record is held there; and a channel without a hole takes none."""
    written = WrittenLog(tmp_path / "data")
    SegmentLog.create(FileOps(), tmp_path, STORE_UUID)
    (tmp_path / "mark").rename(written.data_directory / "mark")
    written.segment()
    written.record(1)
    lost = written.record(2, rows=2)
    written.record(4)
    written.segment()
    damage_body(lost, lost.length - 13)
    log = open_log(written.data_directory)
    if is_taken:
        log.fill(CHANNEL, [record(seq) for seq in seqs])
        assert log.open_channel(CHANNEL).last_seq == (4 if len(seqs) == 2 else 2)
    else:
        with pytest.raises(PersistError, match="has no hole for these records: Hole"):
            log.fill(CHANNEL, [record(seq) for seq in seqs])
        with pytest.raises(PersistError, match="not usable any more"):
            log.fill(CHANNEL, [])
    log.close()


@pytest.mark.parametrize("records", [[], [record(2)]])
def test_whole_channel_is_filled_with_nothing(tmp_path: Path, records: list[Record]) -> None:
    """The proof that it needs them is missing."""
    log = create_log(tmp_path)
    log.append(CHANNEL, [record(1)])
    with pytest.raises(PersistError, match="has no hole for these records: None"):
        log.fill(CHANNEL, records)
    log.close()


def test_stopped_writer_leaves_no_thread(tmp_path: Path) -> None:
    """Neither its own nor the one that syncs the mark; none of them keeps a process that hangs."""
    log = create_log(tmp_path)
    writer = LogWriter(log, post=print, on_durable=pytest.fail, on_failed=pytest.fail)
    threads = [writer._thread, writer._syncer._thread]
    assert all(thread.is_alive() and thread.daemon for thread in threads)
    writer.stop()
    for thread in threads:
        thread.join(20)
    assert not any(thread.is_alive() for thread in threads)
    log.close()
