"""A log that is asked to begin behind a base, now and after a start (S0.3, S6.5)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from raftstore.core.folds import advance
from raftstore.errors import PersistError, StorageError
from raftstore.ports.log import EMPTY_BASE, Base
from raftstore.protocol.records import Record
from raftstore.storage.log.records import (
    BODY_BYTES_MAX,
    HEADER_BYTES,
    Based,
    RecordPosition,
    decode_entries,
)
from raftstore.storage.log.segment_log import SegmentLog
from raftstore.testing.sim_files import ProcessEndedError
from raftstore.testing.sim_log import SimLog
from raftstore.types import History, NodeId, Seq, Term
from tests.storage_helpers import (
    ALICE,
    CHANNEL,
    OTHER,
    all_records,
    create_log,
    flip_bit,
    open_log,
    record,
)

RECORDS = [record(1, rows=3), record(4, rows=2, term=2), record(6, term=2), record(7, term=3)]


def base_of(records: list[Record]) -> Base:
    """The base behind these records from the first one on."""
    return advance(EMPTY_BASE, records)


def behind(log: SegmentLog) -> list[Seq]:
    """First seqs of the records that the log gives back from its base on."""
    start = Seq(log.base(CHANNEL).seq + 1)
    return [r.base_seq for r in log.read(CHANNEL, start, to_seq=Seq(99), bytes_max=1 << 20)]


@pytest.mark.parametrize("count", [1, 2, 3, 4])
def test_s6_5_records_behind_the_base_stay_and_the_others_go(count: int) -> None:
    """At once and after each start; the log goes on behind its end."""
    log = SimLog.new()
    log.append(CHANNEL, RECORDS)
    base = base_of(RECORDS[:count])
    log.set_vote(CHANNEL, Term(5), ALICE)
    log.rebase(CHANNEL, base)
    log.append(OTHER, [record(1)])
    log.flush()
    for _ in range(2):
        found = log.open_channel(CHANNEL)
        assert (found.base, found.last_seq, found.shortfall, found.hole) == (base, 7, None, None)
        assert (found.term, found.voted_for) == (5, ALICE)
        assert behind(log) == [r.base_seq for r in RECORDS[count:]]
        assert log.term_at(CHANNEL, base.seq) == base.term
        log.files.lose_power()
        log = log.again()
    log.append(CHANNEL, [record(8, term=5)])
    log.flush()
    assert behind(log.again())[-1] == 8


def test_a_base_moves_up_again_and_again(tmp_path: Path) -> None:
    """Each one counts from the one before, over starts; a channel without records keeps its own."""
    log = create_log(tmp_path)
    base = EMPTY_BASE
    for number in range(1, 40):
        log.append(CHANNEL, [record(number)])
        if number % 3 == 0:
            base = advance(base, [record(seq) for seq in range(base.seq + 1, number)])
            log.rebase(CHANNEL, base)
        if number % 7 == 0:
            log.flush()
            log.close()
            log = open_log(tmp_path)
    assert (log.base(CHANNEL), behind(log)) == (base, [39])
    log.rebase(CHANNEL, advance(base, [record(39)]))
    log.flush()
    log.close()
    log = open_log(tmp_path)
    found = log.open_channel(CHANNEL)
    assert (found.base.seq, found.last_seq, found.lineage, found.shortfall) == (39, 39, (), None)
    log.close()


@pytest.mark.parametrize("base_seq", [5, 9])
def test_base_that_the_log_does_not_hold_replaces_it(base_seq: int) -> None:
    """A divergent end, or one that is too short: nothing of it stays, at once and after a start."""
    log = SimLog.new()
    log.append(CHANNEL, [record(seq) for seq in range(1, 8)])
    log.flush()
    base = base_of([record(1, rows=base_seq, term=2)])
    log.rebase(CHANNEL, base)
    log.files.lose_power()
    assert log.again().open_channel(CHANNEL).last_seq == 7  # nothing was synced
    log = log.again()
    log.rebase(CHANNEL, base)
    log.flush()
    for _ in range(2):
        found = log.open_channel(CHANNEL)
        assert (found.base, found.last_seq, found.lineage) == (base, base_seq, ())
        assert (found.shortfall, found.hole, behind(log)) == (None, None, [])
        log.files.lose_power()
        log = log.again()
    log.append(CHANNEL, [record(base_seq + 1, term=2)])
    log.flush()
    assert behind(log.again()) == [base_seq + 1]


def test_base_that_replaces_the_log_is_in_the_mark_at_once() -> None:
    """S0.3: without lag, as a vote; one that only trims waits for the next group commit."""
    log = SimLog.new()
    log.append(CHANNEL, RECORDS)
    log.flush()
    log.rebase(CHANNEL, base_of(RECORDS[:2]))
    batch = log.take_pending()
    assert batch is not None
    assert (batch.is_urgent, batch.rows[CHANNEL].durable) == (False, History(Term(3), Seq(7)))
    log.committer.write_and_sync(batch)
    log.completed(batch)
    log.rebase(CHANNEL, base_of([record(1, rows=20, term=4)]))
    batch = log.take_pending()
    assert batch is not None
    assert (batch.is_urgent, batch.rows[CHANNEL].durable) == (True, History(Term(4), Seq(20)))


BASE = base_of(RECORDS[:2])
DIVERGENT = base_of([record(1, rows=3), record(4, rows=2, term=1)])


@pytest.mark.parametrize(
    ("base", "says"),
    [
        (EMPTY_BASE, r"its base is \(2, 5\) and never goes down"),
        (base_of(RECORDS[:1]), r"its base is \(2, 5\) and never goes down"),
        (DIVERGENT, r"another base is known there: \(2, 5\)"),
        (Base(Term(2), Seq(5), bytes(16), b""), r"another base is known there: \(2, 5\)"),
        (base_of([record(1, rows=6, term=1)]), r"its base is \(2, 5\), of another history"),
    ],
    ids=["empty", "lower", "another term", "another hash", "of an older term"],
)
def test_s6_5_base_that_goes_down_or_contradicts_the_log_stops_it(base: Base, says: str) -> None:
    """S0.4: nothing is written any more."""
    log = SimLog.new()
    log.append(CHANNEL, RECORDS)
    log.rebase(CHANNEL, BASE)
    log.flush()
    with pytest.raises(PersistError, match=says):
        log.rebase(CHANNEL, base)
    with pytest.raises(PersistError, match="not usable any more"):
        log.append(CHANNEL, [record(8, term=3)])


def test_base_in_the_middle_of_a_record_stops_the_log() -> None:
    """S2.1: the other log has other records."""
    log = SimLog.new()
    log.append(CHANNEL, RECORDS)
    with pytest.raises(PersistError, match="of another history"):
        log.rebase(CHANNEL, base_of([record(1, rows=2)]))


@pytest.mark.parametrize("rows", [6, 7, 8])
def test_base_of_an_older_term_replaces_a_tail_that_was_never_committed(rows: int) -> None:
    """S3.1: a leader of term 3 wrote it and nobody else did; later on, one of term 4 committed what
    others held of term 2. So the base's term is lower than the log's last one, and still right."""
    log = SimLog.new()
    log.append(CHANNEL, [record(1, rows=4, term=1), record(5, rows=3, term=3)])
    base = base_of([record(1, rows=4, term=1), record(5, rows=rows - 4, term=2)])
    log.rebase(CHANNEL, base)
    log.append(CHANNEL, [record(rows + 1, term=4)])
    log.flush()
    again = log.again()
    assert again.base(CHANNEL) == base
    assert behind(again) == [rows + 1]


def test_base_that_is_too_large_is_refused_and_nothing_changes() -> None:
    """The log goes on with the base that it has."""
    log = SimLog.new()
    log.append(CHANNEL, RECORDS)
    huge = Base(Term(2), Seq(5), BASE.chain_hash, bytes(BODY_BYTES_MAX))
    with pytest.raises(StorageError, match=r"takes 167.* bytes and cannot be stored"):
        log.rebase(CHANNEL, huge)
    assert behind(log) == [1, 4, 6, 7]
    log.rebase(CHANNEL, BASE)
    log.flush()
    assert log.again().base(CHANNEL) == BASE


def test_present_base_again_moves_only_the_place_where_it_is_stored(tmp_path: Path) -> None:
    """So that an idle channel needs nothing of older segments."""
    log = create_log(tmp_path, segment_bytes=600)
    log.append(CHANNEL, RECORDS)
    log.rebase(CHANNEL, base_of(RECORDS))
    for seq in range(1, 20):
        log.append(OTHER, [record(seq)])
    index = log.index_of(CHANNEL)
    assert index is not None
    first = index.live_from()
    log.rebase(CHANNEL, log.base(CHANNEL))
    last = index.live_from()
    assert first is not None
    assert last is not None
    assert last > first + 1
    log.flush()
    log.close()
    log = open_log(tmp_path)
    found = log.index_of(CHANNEL)
    assert found is not None
    assert (found.live_from(), found.base) == (last, base_of(RECORDS))
    log.close()


def test_lower_records_of_a_base_are_needed_until_it_moves(tmp_path: Path) -> None:
    """The oldest of the newest base entry and the first record behind it."""
    log = create_log(tmp_path, segment_bytes=600)
    for seq in range(1, 20):
        log.append(CHANNEL, [record(seq)])
    index = log.index_of(CHANNEL)
    assert index is not None
    assert index.live_from() == 1
    log.rebase(CHANNEL, base_of([record(seq) for seq in range(1, 15)]))
    between = index.live_from()
    log.rebase(CHANNEL, base_of([record(seq) for seq in range(1, 20)]))
    newest = index.live_from()
    assert between is not None
    assert newest is not None
    assert 1 < between < newest
    other = log.index_of(OTHER)
    assert other is None
    log.open_channel(OTHER)
    assert log._channels[OTHER].live_from() is None
    log.close()


def test_records_at_or_below_the_base_are_not_in_the_answer_to_a_reader() -> None:
    """R9: also those that are still in the files."""
    log = SimLog.new()
    log.append(CHANNEL, RECORDS)
    log.rebase(CHANNEL, BASE)
    assert log.read(CHANNEL, Seq(4), to_seq=Seq(9), bytes_max=99) == []
    assert [r.base_seq for r in log.records(CHANNEL)] == [6, 7]
    assert all_records(log) == []


# --- damage ---------------------------------------------------------------------------------------


def entries(directory: Path) -> list[tuple[int, object]]:
    """(offset, entry) of everything in the first segment."""
    data = (directory / "log" / "0000000000000001.log").read_bytes()
    return [(offset, entry) for offset, _, _, entry in decode_entries(data, None)]


def damaged(directory: Path, chosen: Callable[[object], bool], number: int = 0) -> SegmentLog:
    """The next start after a bit of an entry's body flipped, the n-th of those chosen."""
    offset = [offset for offset, entry in entries(directory) if chosen(entry)][number]
    flip_bit(directory / "log" / "0000000000000001.log", offset + HEADER_BYTES + 40)
    return open_log(directory, segment_bytes=1 << 20)


def is_base(entry: object) -> bool:
    """Whether it states a base."""
    return isinstance(entry, Based)


@pytest.mark.parametrize("number", [0, 1], ids=["the first", "the second"])
@pytest.mark.parametrize("follows", [False, True])
def test_s0_3_damaged_base_that_replaced_a_log_brings_nothing_of_it_back(
    tmp_path: Path, number: int, follows: bool
) -> None:
    """It is written twice: else the next record would seem to continue what was replaced, for one
    damaged entry may be a truncation."""
    log = create_log(tmp_path, segment_bytes=1 << 20)
    log.append(CHANNEL, [record(seq) for seq in range(1, 9)])
    base = base_of([record(1, rows=5, term=2)])
    log.rebase(CHANNEL, base)
    if follows:
        log.append(CHANNEL, [record(6, term=2)])
    log.flush()
    log.close()
    log = damaged(tmp_path, is_base, number)
    found = log.open_channel(CHANNEL)
    assert (found.base, found.shortfall, found.hole) == (base, None, None)
    assert behind(log) == [6] * follows
    log.close()


def test_s0_3_base_that_is_damaged_leaves_the_one_before(tmp_path: Path) -> None:
    """All records are still there; the log begins where it did."""
    log = create_log(tmp_path, segment_bytes=1 << 20)
    log.append(CHANNEL, RECORDS)
    log.rebase(CHANNEL, base_of(RECORDS[:1]))
    log.rebase(CHANNEL, BASE)
    log.flush()
    log.close()
    log = damaged(tmp_path, is_base, 1)
    found = log.open_channel(CHANNEL)
    assert (found.base.seq, found.shortfall, found.hole) == (3, None, None)
    assert behind(log) == [4, 6, 7]
    log.close()


def test_s0_3_records_lost_behind_a_base_are_a_hole(tmp_path: Path) -> None:
    """The base says where the log ended; those in front of it are not missed."""
    for lost, hole in ((1, None), (2, (6, 6)), (3, (7, 7))):
        directory = tmp_path / str(lost)
        directory.mkdir()
        log = create_log(directory, segment_bytes=1 << 20)
        log.append(CHANNEL, RECORDS)
        log.rebase(CHANNEL, BASE)
        log.flush()
        log.close()
        log = damaged(directory, lambda entry: isinstance(entry, RecordPosition), lost)
        found = log.open_channel(CHANNEL)
        assert found.base == BASE
        assert (found.hole and (found.hole.from_seq, found.hole.to_seq)) == hole
        assert found.shortfall == (None if hole is None else History(Term(3), Seq(7)))
        log.close()


@pytest.mark.parametrize("term", [1, 3])
def test_s0_3_promise_of_a_log_that_was_replaced_is_kept_by_the_base(term: int) -> None:
    """The process ends when the log is synced and the mark still promises what is gone; a tail of
    a later term was never committed."""
    log = SimLog.new()
    log.append(CHANNEL, [record(seq, term=term) for seq in range(1, 8)])
    log.flush()

    def end(failpoint: str) -> None:
        if failpoint == "mark.before-write":
            raise ProcessEndedError(failpoint)

    log.committer._reach = end
    log.rebase(CHANNEL, base_of([record(1, rows=9, term=2)]))
    with pytest.raises(ProcessEndedError):
        log.flush()
    log.files.lose_power()
    log = log.again()
    assert log.notes == ()
    found = log.open_channel(CHANNEL)
    assert (found.base.seq, found.last_seq, found.shortfall) == (9, 9, None)
    # The mark states the base by now, and no record of the log does.
    assert log.again().notes == ()


def test_s0_3_channel_with_a_hole_keeps_its_records_but_for_a_base_beyond_them(
    tmp_path: Path,
) -> None:
    """Records behind the hole may be acknowledged; a base that replaces it all leaves the promise.

    So the replica is recovering until its log has come that far (S0.3).
    """
    log = create_log(tmp_path, segment_bytes=1 << 20)
    log.append(CHANNEL, RECORDS)
    log.flush()
    log.close()
    log = damaged(tmp_path, lambda entry: isinstance(entry, RecordPosition), 2)
    hole = log.open_channel(CHANNEL).hole
    assert hole is not None
    assert (log.live_from(CHANNEL), log.floor_max()) == (1, 1)
    with pytest.raises(PersistError, match="records behind seq 5 are missing"):
        log.rebase(CHANNEL, BASE)
    log.close()
    log = open_log(tmp_path, segment_bytes=1 << 20)
    log.rebase(CHANNEL, base_of([record(1, rows=6, term=2)]))
    log.flush()
    for _ in range(2):
        found = log.open_channel(CHANNEL)
        assert (found.base.seq, found.last_seq) == (6, 6)
        assert found.shortfall == History(Term(3), Seq(7))
        log.close()
        log = open_log(tmp_path, segment_bytes=1 << 20)
    log.append(CHANNEL, [record(7, term=3)])
    log.flush()
    log.close()
    log = open_log(tmp_path, segment_bytes=1 << 20)
    assert log.open_channel(CHANNEL).shortfall is None
    log.close()


def with_a_hole(count: int) -> SimLog:
    """A log of rows 1 to 8, of terms 1, 2 and 2 from 5 on, that lost the record ``count``."""
    log = SimLog.new()
    log.append(CHANNEL, SAME)
    log.flush()
    index = log._channels[CHANNEL]
    index.lose_records_in(index.positions[count], index.positions[count] + 1)
    return log


SAME = [record(1), record(2, rows=2), record(4), record(5, term=2), record(6, rows=2, term=2)]


@pytest.mark.parametrize("count", [2, 3, 4, 5])
def test_s0_3_records_stay_behind_a_base_that_stands_for_a_hole(count: int) -> None:
    """Records behind it were held together with what it stands for (S2.4): the replica has all
    that it promised, now and after each start."""
    log = with_a_hole(1)
    assert log.open_channel(CHANNEL).hole is not None
    base = base_of(SAME[:count])
    assert log.why_hole_stays(CHANNEL, base) is None
    log.rebase(CHANNEL, base)
    log.flush()
    for _ in range(2):
        found = log.open_channel(CHANNEL)
        assert (found.base, found.last_seq, found.shortfall, found.hole) == (base, 7, None, None)
        assert behind(log) == [r.base_seq for r in SAME[count:]]
        log.files.lose_power()
        log = log.again()


@pytest.mark.parametrize(
    ("lost", "base", "reason"),
    [
        (1, base_of(SAME[:1]), "the log here lacks records up to 3"),
        (1, base_of([record(1), record(2), record(3), record(4, rows=2)]), "nothing proves"),
        (2, base_of([record(1, rows=6, term=1)]), "nothing proves"),
        (2, base_of([record(1, rows=9, term=1)]), "nothing proves"),
        (2, base_of([record(1, rows=5, term=3)]), None),
        (2, base_of([record(1, rows=9, term=2)]), None),
    ],
)
def test_s0_3_base_stands_for_a_hole_if_it_covers_all_that_was_promised(
    lost: int, base: Base, reason: str | None
) -> None:
    """Records behind it are kept, or some that were acknowledged would go (S6.4)."""
    log = with_a_hole(lost)
    found = log.why_hole_stays(CHANNEL, base)
    assert (reason is None and found is None) or (reason or "-") in (found or "")
    if reason is None:
        log.rebase(CHANNEL, base)
        assert log.open_channel(CHANNEL).shortfall is None
        assert log.open_channel(CHANNEL).last_seq == base.seq
    assert SimLog.new().why_hole_stays(CHANNEL, base) == "nothing is missing in the log here"


@pytest.mark.parametrize(("voted_in", "vote"), [(2, None), (5, ALICE)])
def test_s1_5_term_is_never_below_that_of_the_base(voted_in: int, vote: NodeId | None) -> None:
    """No leader could have said it before; it never voted in it, nor in a later one."""
    log = with_a_hole(1)
    log.set_vote(CHANNEL, Term(voted_in), ALICE)
    log.rebase(CHANNEL, base_of([record(1, rows=9, term=4)]))
    log.flush()
    for _ in range(2):
        found = log.open_channel(CHANNEL)
        assert (found.term, found.voted_for) == (max(voted_in, 4), vote)
        log.files.lose_power()
        log = log.again()
