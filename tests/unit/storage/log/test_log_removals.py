"""Replicas that were removed from a node: their log, over crashes and damage (S0.1, S0.3, S1.3)."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from raftstore.core.folds import advance
from raftstore.errors import PersistError, UnknownChannelError
from raftstore.ports.log import EMPTY_BASE
from raftstore.storage.files import FileOps
from raftstore.storage.log.index import offset_of, segment_of
from raftstore.storage.log.mark import MarkFile, MarkRow, Removal
from raftstore.storage.log.records import Removed, decode_entries
from raftstore.storage.log.segment_log import SegmentLog
from raftstore.testing.sim_files import ProcessEndedError
from raftstore.testing.sim_log import SimLog
from raftstore.types import EMPTY_HISTORY, History, Seq, Term
from tests.storage_helpers import (
    ALICE,
    CHANNEL,
    OTHER,
    SMALL,
    STORE_UUID,
    all_records,
    create_log,
    flip_bit,
    open_log,
    record,
)

RECORDS = [record(1), record(2, rows=3), record(5)]


def with_a_removed_replica(directory: Path, **settings: int) -> SegmentLog:
    """A log in which the founding replica of a channel was removed."""
    log = create_log(directory, **settings)
    log.set_vote(CHANNEL, Term(4), ALICE)
    log.append(CHANNEL, RECORDS)
    log.append(OTHER, RECORDS)
    log.flush()
    log.remove_replica(CHANNEL, 0)
    return log


def cut_at(log: SegmentLog, position: int) -> None:
    """The log's file ends there, as if what follows was never written."""
    path = log.directory / f"{segment_of(position):016d}.log"
    path.write_bytes(path.read_bytes()[: offset_of(position)])


def test_s0_1_removed_replica_is_never_opened_again(tmp_path: Path) -> None:
    """One of a higher number may be: it begins with nothing but the term and the vote (S1.3)."""
    log = with_a_removed_replica(tmp_path)
    log.flush()
    for _ in range(2):
        assert log.channels() == (OTHER,)
        assert log.removed(CHANNEL) == 0
        assert log.removed(OTHER) is None
        assert log.is_gone(CHANNEL)
        with pytest.raises(UnknownChannelError, match=r"replica 0 of channel .* was removed"):
            log.open_channel(CHANNEL, 0)
        found = log.open_channel(CHANNEL, 7)
        assert (found.term, found.voted_for) == (4, ALICE)
        assert (found.lineage, found.last_seq, found.shortfall) == ((), 0, None)
        assert all_records(log, CHANNEL) == []
        assert all_records(log, OTHER) == RECORDS
        log.close()
        log = open_log(tmp_path)
        assert log.notes == ()
    log.close()


def test_later_replica_keeps_what_it_holds_over_a_start(tmp_path: Path) -> None:
    """Its records begin anew, of a higher term; nothing of the removed one is compared with it."""
    log = with_a_removed_replica(tmp_path)
    later = [record(1, term=5), record(2, term=5)]
    log.append(CHANNEL, later)
    log.flush()
    log.close()
    log = open_log(tmp_path)
    assert log.notes == ()
    assert all_records(log, CHANNEL) == later
    assert log.channels() == tuple(sorted((CHANNEL, OTHER)))
    assert (log.removed(CHANNEL), log.is_gone(CHANNEL)) == (0, False)
    log.remove_replica(CHANNEL, 7)
    log.flush()
    log.close()
    log = open_log(tmp_path)
    assert (log.removed(CHANNEL), log.is_gone(CHANNEL)) == (7, True)
    log.close()


def test_replica_is_removed_once(tmp_path: Path) -> None:
    """S0.4: after an impossible request nothing goes on."""
    log = with_a_removed_replica(tmp_path)
    with pytest.raises(PersistError, match=r"replica 0 of channel .* was removed before"):
        log.remove_replica(CHANNEL, 0)
    log.close()


def test_records_of_a_removed_replica_may_leave_the_disk(tmp_path: Path) -> None:
    """They are counted like those of a dropped channel, before and after a start."""
    log = with_a_removed_replica(tmp_path)
    log.flush()
    before = log.dropped()
    assert before.size_bytes > 0
    log.close()
    log = open_log(tmp_path)
    assert log.dropped() == before
    log.close()


def test_s0_3_replica_stays_removed_when_the_log_lost_the_entry(tmp_path: Path) -> None:
    """The mark knows it without lag: what the removed one held does not come back, and the log says
    it again before anything else."""
    log = with_a_removed_replica(tmp_path)
    log.flush()
    end = log.extent(OTHER).positions[-1] + log.extent(OTHER).lengths[-1]
    log.close()
    cut_at(log, end)
    for told in (1, 0):
        log = open_log(tmp_path)
        notes = [note for note in log.notes if "had its replica 0 removed" in note]
        assert len(notes) == told
        assert (log.removed(CHANNEL), log.is_gone(CHANNEL)) == (0, True)
        found = log.open_channel(CHANNEL, 1)
        assert (found.term, found.voted_for, found.shortfall) == (4, ALICE, None)
        assert all_records(log, OTHER) == RECORDS
        log.flush()
        log.close()


def test_s0_3_later_replica_is_recovering_when_the_log_lost_the_entry(tmp_path: Path) -> None:
    """Nothing shows which records are of which replica, so none counts; what it acknowledged is
    remembered."""
    log = with_a_removed_replica(tmp_path)
    log.flush()
    log.append(CHANNEL, [record(1, term=5), record(2, term=5)])
    log.flush()
    path = log.directory / f"{1:016d}.log"
    log.close()
    places = [
        offset
        for offset, _, _, entry in decode_entries(path.read_bytes(), None)
        if isinstance(entry, Removed)
    ]
    flip_bit(path, places[0] + 20)
    for _ in range(2):
        log = open_log(tmp_path)
        assert log.removed(CHANNEL) == 0
        assert log.open_channel(CHANNEL, 1).shortfall == History(Term(5), Seq(2))
        assert all_records(log, CHANNEL) == []
        log.flush()
        log.close()


def test_s0_3_promise_of_a_removed_replica_is_none_of_the_later_ones(tmp_path: Path) -> None:
    """The process ended between log and mark: the mark still has the old promise."""
    log = with_a_removed_replica(tmp_path)
    mark = tmp_path / "mark"
    before = mark.read_bytes()
    log.flush()
    log.close()
    mark.write_bytes(before)
    log = open_log(tmp_path)
    assert log.removed(CHANNEL) == 0
    assert log.open_channel(CHANNEL, 1).shortfall is None
    log.close()
    again = open_log(tmp_path)
    assert (again.removed(CHANNEL), again.notes) == (0, ())
    again.close()


def test_removal_outlives_the_segment_that_says_so(tmp_path: Path) -> None:
    """S6.5: the mark remembers where that was, and takes the records behind for the later one's."""
    log = with_a_removed_replica(tmp_path, segment_bytes=300)
    later = [record(seq, term=5) for seq in range(1, 41)]
    for one in later:
        log.append(CHANNEL, [one])
    log.rebase(CHANNEL, advance(EMPTY_BASE, later[:30]))
    log.rebase(OTHER, advance(EMPTY_BASE, RECORDS))
    log.flush()
    while log.floor() < log.floor_max():
        log.begin_floor(log.floor_max())
        log.flush()
    assert log.floor() > 5
    log.close()
    log = open_log(tmp_path)
    assert log.notes == ()
    assert log.removed(CHANNEL) == 0
    assert [one.base_seq for one in log.records(CHANNEL)] == list(range(31, 41))
    with pytest.raises(UnknownChannelError):
        log.open_channel(CHANNEL, 0)
    log.close()


def test_mark_with_a_removed_replica_is_refused_by_programs_that_know_none(tmp_path: Path) -> None:
    """GAP-15: they would open it again. A store without one stays in the format it has."""
    log = create_log(tmp_path)
    log.append(CHANNEL, RECORDS)
    log.flush()
    mark = MarkFile.open(FileOps(), tmp_path / "mark", STORE_UUID)
    assert mark.version == 1
    mark.close()
    log.remove_replica(CHANNEL, 3)
    batch = log.take_pending()
    assert batch is not None
    # S0.3: without lag, as a vote is.
    log.committer.write_and_sync(batch)
    mark = MarkFile.open(FileOps(), tmp_path / "mark", STORE_UUID)
    assert mark.version == 4
    assert mark.rows[CHANNEL] == MarkRow(durable=EMPTY_HISTORY, removed=Removal(3, 1))
    mark.close()
    log.close()


@pytest.mark.parametrize("later", [False, True])
@pytest.mark.parametrize("step", range(24))
def test_s0_3_power_loss_around_a_removal_leaves_a_prefix(step: int, *, later: bool) -> None:
    """At each file operation: the removal is whole or has not been, and what was durable stays. The
    oracle of the simulator judges each start (``SimLog.again``)."""
    log = SimLog.new(seed=step, settings=replace(SMALL, segment_bytes=500))
    log.set_vote(CHANNEL, Term(4), ALICE)
    log.append(CHANNEL, RECORDS)
    log.append(OTHER, RECORDS)
    log.flush()
    files = log.files
    files.end_after(step)
    with suppress(ProcessEndedError):
        log.remove_replica(CHANNEL, 0)
        if later:
            log.flush()
            log.append(CHANNEL, [record(1, term=5)])
        log.flush()
    files.lose_power()
    log = log.again()
    assert log.removed(CHANNEL) in (None, 0)
    held = len(all_records(log, CHANNEL))
    assert held in ((len(RECORDS),) if log.removed(CHANNEL) is None else (0, 1))
    assert log.open_channel(CHANNEL).shortfall is None
    assert all_records(log, OTHER) == RECORDS
    log.again()
