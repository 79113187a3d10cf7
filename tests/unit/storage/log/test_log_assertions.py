"""Invariants of the log in files, asserted where they are kept: each is broken by hand here."""

from __future__ import annotations

from pathlib import Path

import pytest

from raftstore.storage.files import FileOps
from raftstore.storage.log.index import ChannelIndex
from raftstore.storage.log.mark_syncer import MarkSyncer
from raftstore.storage.log.recovery import Cut, LogRecovery
from raftstore.storage.log.segments import LOG_DIRECTORY
from raftstore.types import LineageEntry, Seq, Term
from tests.storage_helpers import CHANNEL, STORE_UUID, create_log, record


def test_group_commits_are_written_in_order_and_once(tmp_path: Path) -> None:
    """S0.5: one that is durable has all before it on the disk."""
    log = create_log(tmp_path)
    log.append(CHANNEL, [record(1)])
    batch = log.take_pending()
    assert batch is not None
    log.committer.write_and_sync(batch)
    with pytest.raises(AssertionError, match="operation 1 is written behind 1"):
        log.committer.write_and_sync(batch)
    log.close()


def test_unsynced_bytes_are_counted_exactly(tmp_path: Path) -> None:
    """Writers are held up by them: what is durable must not count."""
    log = create_log(tmp_path)
    log.append(CHANNEL, [record(1)])
    log._unsynced_bytes += 1
    with pytest.raises(AssertionError, match="1 bytes of no operation are not synced"):
        log.flush()
    log.close()


def test_cached_bytes_are_counted_exactly(tmp_path: Path) -> None:
    """A wrong count would let the cache hold less and less."""
    log = create_log(tmp_path, log_cache_bytes=0)
    log.append(CHANNEL, [record(1)])
    log._cache._bytes += 1
    with pytest.raises(AssertionError, match="1 bytes of no record"):
        log.flush()
    log.close()


def test_operations_end_one_behind_the_other(tmp_path: Path) -> None:
    """S0.5: a position is durable together with all before it."""
    log = create_log(tmp_path)
    log.append(CHANNEL, [record(1)])
    log._offset = 10
    with pytest.raises(AssertionError, match="an operation would end at"):
        log._buffer(CHANNEL, log._channels[CHANNEL].next_mark_row(), (b"",), 0, opens=None)
    log.close()


def test_segments_have_no_gap(tmp_path: Path) -> None:
    """S0.3: a number that is missing looks like a file that was lost."""
    log = create_log(tmp_path)
    for number in (1, 3):
        with pytest.raises(AssertionError, match=f"segment {number} behind 1: a gap"):
            log.committer._segments.start(number, b"header")
    log.close()


def test_only_the_last_segment_is_cut(tmp_path: Path) -> None:
    """S0.3: all that follows a damaged place is kept."""
    create_log(tmp_path).close()
    recovery = LogRecovery(FileOps(), tmp_path / LOG_DIRECTORY, STORE_UUID, {})
    recovery._number_of_last = 2
    with pytest.raises(AssertionError, match="segment 1 would be cut before 2"):
        recovery._cut(Cut(1, 0, "test"), is_torn=True)


def test_terms_and_places_are_of_the_same_records() -> None:
    """S2.1: a read would find a record of another term."""
    index = ChannelIndex()
    for seq in (1, 2, 3):
        index.add(Term(1), Seq(seq), 1, position=seq, length=1)
    index.lineage = [LineageEntry(Term(1), Seq(1))]
    with pytest.raises(AssertionError, match="terms end at seq 1, records at 2"):
        index.truncate(Seq(3))
    index.lineage = [LineageEntry(Term(1), Seq(2))]
    index.lengths.append(1)
    following = ChannelIndex(Seq(2))
    following.add(Term(1), Seq(3), 1, position=3, length=1)
    following.positions.append(4)
    with pytest.raises(AssertionError, match="3 records have 4 places"):
        index.join(following)


def test_the_mark_is_synced_once_at_a_time() -> None:
    """S0.3: the result of one sync must not be taken for that of another."""
    syncer = MarkSyncer()
    with pytest.raises(AssertionError, match="no sync of the mark was begun"):
        syncer.wait()
    syncer.start(lambda: None)
    with pytest.raises(AssertionError, match="the mark is synced twice"):
        syncer.start(lambda: None)
    syncer.wait()
    syncer.close()
