"""The index of a channel's records by itself: runs of terms, holes, and what fits into them."""

from __future__ import annotations

import pytest

from raftstore.protocol.node import Hole, Run
from raftstore.storage.log.index import RUNS_MAX, ChannelIndex
from raftstore.types import History, LineageEntry, Seq, Term


def index_of(*records: tuple[int, int, int], start: int = 0) -> ChannelIndex:
    """Records as (term, base seq, rows), each at a place of its own."""
    index = ChannelIndex(Seq(start))
    for term, base_seq, rows in records:
        index.add(Term(term), Seq(base_seq), rows, position=100 + base_seq, length=base_seq)
    return index


def holed() -> ChannelIndex:
    """Seqs 1 to 4, 8 to 9 and 12, with holes between them."""
    index = index_of((1, 1, 2), (2, 3, 2))
    index.kept = [index_of((2, 8, 1), (3, 9, 1), start=7), index_of((3, 12, 1), start=11)]
    return index


def fill(index: ChannelIndex, *records: tuple[int, int, int], hole: int = 0) -> None:
    """Records that take their places in a hole."""
    for term, base_seq, rows in records:
        index.fill(Term(term), Seq(base_seq), rows, position=500, length=50, hole=hole)


def runs(*found: tuple[int, int, int]) -> tuple[Run, ...]:
    """(term, first, last) of each."""
    return tuple(Run(Term(term), Seq(first), Seq(last)) for term, first, last in found)


def test_records_are_found_by_any_seq_in_them() -> None:
    """Given records of several rows and terms, each seq has its record and its term."""
    index = index_of((1, 1, 2), (1, 3, 1), (4, 4, 3))
    assert [index.locate(Seq(seq)) for seq in range(8)] == [3, 0, 0, 1, 2, 2, 2, 3]
    assert [index.term_at(Seq(seq)) for seq in range(8)] == [None, 1, 1, 1, 4, 4, 4, None]
    assert index.lineage == [LineageEntry(Term(1), Seq(3)), LineageEntry(Term(4), Seq(6))]
    assert index.end == (4, 6)
    assert ChannelIndex().end == (0, 0)


@pytest.mark.parametrize(
    ("from_seq", "lineage"),
    [
        (9, [(1, 3), (4, 6)]),
        (7, [(1, 3), (4, 6)]),
        (6, [(1, 3), (4, 5)]),
        (4, [(1, 3)]),
        (3, [(1, 2)]),
        (1, []),
    ],
)
def test_cut_forgets_records_and_shortens_runs(
    from_seq: int, lineage: list[tuple[int, int]]
) -> None:
    """S2.5: given a cut at any record, the index is as if nothing behind it had been."""
    index = index_of((1, 1, 2), (1, 3, 1), (4, 4, 2), (4, 6, 1))
    index.truncate(Seq(from_seq))
    assert index.lineage == lineage
    kept = [base for base in (1, 3, 4, 6) if base < from_seq]
    assert list(index.base_seqs) == kept
    assert list(index.positions) == [100 + base for base in kept]
    assert list(index.lengths) == kept


def test_first_hole_is_told_with_what_proves_its_place() -> None:
    """S0.3: its bounds, the term in front of it, and the runs that the log has held.

    A run behind a hole that goes on in the term before it has held the hole, too.
    """
    index = holed()
    told = runs((1, 1, 2), (2, 3, 4), (2, 5, 8), (3, 9, 9), (3, 10, 12))
    assert index.hole() == Hole(Seq(5), Seq(7), Term(2), told)
    assert index_of((1, 1, 2)).hole() is None


def test_runs_of_a_hole_are_bounded_by_the_newest() -> None:
    """Given more terms than are reported, the oldest are left out."""
    index = index_of(*((term, term, 1) for term in range(1, 2 * RUNS_MAX)))
    index.kept = [index_of((2 * RUNS_MAX, 2 * RUNS_MAX + 1, 1), start=2 * RUNS_MAX)]
    hole = index.hole()
    assert hole is not None
    assert len(hole.runs) == RUNS_MAX
    assert hole.runs[-1].term == 2 * RUNS_MAX


@pytest.mark.parametrize(
    ("base_seq", "end_seq", "hole"),
    [(5, 5, 0), (5, 7, 0), (5, 8, None), (6, 7, None), (4, 4, None), (10, 11, 1), (13, 13, None)],
)
def test_hole_is_found_by_its_start(base_seq: int, end_seq: int, hole: int | None) -> None:
    """Records that overlap what is held, or leave a gap, fit nowhere."""
    assert holed().hole_starting_at(Seq(base_seq), Seq(end_seq)) == hole


def test_parts_that_nothing_proves_are_told_of_nowhere() -> None:
    """S0.3: they may be of another history, so they prove nothing and have no hole before them."""
    index = holed()
    index.kept[1].is_suspect = True
    assert index.hole_starting_at(Seq(10), Seq(11)) is None
    assert index.hole_starting_at(Seq(5), Seq(7)) == 0
    assert index.term_known(Seq(12)) is None
    assert index.term_known(Seq(9)) == 3
    index.kept[0].is_suspect = True
    assert index.hole_starting_at(Seq(5), Seq(7)) is None
    assert index.hole() == Hole(Seq(5), Seq(7), Term(2), ())


def test_filled_holes_leave_one_log() -> None:
    """Given records for all holes, in any order of the holes, runs of one term become one."""
    index = holed()
    fill(index, (3, 10, 2), hole=1)
    assert len(index.kept) == 1
    fill(index, (2, 5, 1), (2, 6, 2))
    assert index.kept == []
    assert list(index.base_seqs) == [1, 3, 5, 6, 8, 9, 10, 12]
    assert list(index.positions) == [101, 103, 500, 500, 108, 109, 500, 112]
    assert list(index.lengths) == [1, 3, 50, 50, 8, 9, 50, 12]
    assert index.lineage == [(1, 2), (2, 8), (3, 12)]
    assert index.end == (3, 12)
    assert index.is_whole


def test_part_that_begins_in_another_term_keeps_its_run() -> None:
    """Given a hole that ends with its term, both runs stay."""
    index = index_of((1, 1, 2))
    index.kept = [index_of((3, 4, 1), start=3)]
    fill(index, (2, 3, 1))
    assert index.lineage == [(1, 2), (2, 3), (3, 4)]


def test_record_that_reaches_behind_its_hole_is_refused() -> None:
    """S2.1: it would stand where another one is."""
    with pytest.raises(AssertionError, match="filled to seq 8, missing was up to 7"):
        fill(holed(), (2, 5, 4))


@pytest.mark.parametrize(
    ("promise", "shortfall"),
    [(None, None), (History(Term(3), Seq(12)), None), (History(Term(4), Seq(12)), (4, 12))],
)
def test_promise_is_kept_or_remembered_when_nothing_is_missing(
    promise: History | None, shortfall: tuple[int, int] | None
) -> None:
    """S0.3: the mark promised a record, and what fills the holes may be of another history."""
    index = holed()
    index.promise = promise
    fill(index, (3, 10, 2), hole=1)
    fill(index, (2, 5, 3))
    assert index.shortfall == shortfall


@pytest.mark.parametrize(
    ("hole", "served"),
    [
        (Hole(Seq(2), Seq(3), Term(1), runs((1, 1, 1), (2, 4, 5))), 3),
        (Hole(Seq(2), Seq(9), Term(1), runs((1, 1, 1), (2, 4, 5))), 5),
        (Hole(Seq(2), Seq(9), Term(1), runs((1, 1, 1), (2, 4, 9))), 6),
        (Hole(Seq(2), Seq(9), Term(1), runs((1, 1, 1), (3, 4, 9))), 1),
        (Hole(Seq(2), Seq(9), Term(1), ()), 0),
        (Hole(Seq(2), Seq(9), Term(2), runs((1, 1, 1), (2, 4, 5))), None),
        (Hole(Seq(7), Seq(9), Term(2), runs((2, 4, 9))), None),
    ],
)
def test_hole_of_another_log_is_served_as_far_as_both_were_equal(
    hole: Hole, served: int | None
) -> None:
    """S2.4: up to the last record that both have held; None: nothing proves that they ever were."""
    index = index_of((1, 1, 2), (2, 3, 4))
    found = index.part_serving(hole)
    assert found == (None if served is None else (index, served))


def test_mark_promises_the_end_or_what_could_not_be_kept_yet() -> None:
    """S0.3: until the log got beyond it; then the promise is forgotten."""
    index = index_of((2, 1, 3))
    index.shortfall = History(Term(2), Seq(5))
    assert (index.is_whole, index.next_mark_row().durable) == (False, (2, 5))
    index.add(Term(2), Seq(4), 2, position=1, length=1)
    assert (index.is_whole, index.next_mark_row().durable) == (True, (2, 5))
    index.truncate(Seq(4))
    assert index.next_mark_row().durable == (2, 3), "the promise is forgotten"


def test_record_fits_into_the_middle_of_a_hole_or_nowhere() -> None:
    """S0.3: it was filled in behind one that is lost again; no other place is proven for it."""
    for base_seq, rows, fits in [(6, 1, True), (6, 2, True), (5, 1, False), (6, 3, False)]:
        index = holed()
        place = {"position": 500, "length": 50}
        assert index.fill_within(Term(2), Seq(base_seq), rows, **place) is fits
        assert len(index.kept) == (2 + (base_seq + rows < 8) if fits else 2)
        index = holed()
        index.kept[0].is_suspect = True
        assert not index.fill_within(Term(2), Seq(base_seq), rows, **place)
        assert len(index.kept) == 2


@pytest.mark.parametrize(
    ("term", "seq", "may_hold"),
    [(2, 3, True), (2, 4, True), (1, 4, False), (2, 6, True), (3, 6, False), (3, 12, True)],
)
def test_promise_that_may_be_in_a_hole_is_no_loss(term: int, seq: int, *, may_hold: bool) -> None:
    """S0.3: where the record in front of the hole is of its term; beyond the end it is missed."""
    assert holed().may_hold(History(Term(term), Seq(seq))) is may_hold
    assert not holed().may_hold(History(Term(3), Seq(13)))
