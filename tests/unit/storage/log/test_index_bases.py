"""The index of a log that begins behind a base: what a base and what its entry leaves (S6.5)."""

from __future__ import annotations

import pytest

from raftstore.ports.log import EMPTY_BASE, Base
from raftstore.storage.log.index import ChannelIndex, position_of
from raftstore.types import History, Seq, Term
from tests.log_writing import parts_of

Span = tuple[int, int, int]
"""(first seq, last seq, term) of records of one row."""


def part(
    *spans: Span, start: int | None = None, before: tuple[int, int] | None = None
) -> ChannelIndex:
    """Records behind each other; ``start`` is the seq in front of them."""
    begin = spans[0][0] - 1 if start is None else start
    known = None if before is None else at(*before)
    made = ChannelIndex(Seq(begin), known)
    for first, last, term in spans:
        for seq in range(first, last + 1):
            made.add(Term(term), Seq(seq), 1, position=position_of(seq, 40), length=seq)
    return made


def log_of(first: ChannelIndex, *kept: ChannelIndex) -> ChannelIndex:
    """A log with holes between these parts."""
    first.kept = list(kept)
    return first


def at(term: int, seq: int) -> History:
    """A record."""
    return History(Term(term), Seq(seq))


def base_at(seq: int, term: int = 1) -> Base:
    """A base that ends there."""
    return Base(Term(term), Seq(seq), b"h" * 16, b"folds")


def whole() -> ChannelIndex:
    """Nine records of one row; the last five of a second term."""
    return part((1, 4, 1), (5, 9, 2))


def two_parts() -> ChannelIndex:
    """Records between seq 4 and 6 are lost."""
    return log_of(part((1, 3, 1)), part((7, 9, 1)))


def test_base_within_the_last_record_is_of_another_log() -> None:
    """S2.4: a record of one log ends there, and none of this one; that stops the log (S13)."""
    made = part((1, 1, 1))
    made.add(Term(1), Seq(2), 3, position=position_of(2, 40), length=2)
    assert [seq for seq in range(7) if made.ends_record(Seq(seq))] == [0, 1, 4]
    assert not made.holds(base_at(3))
    assert made.contradicts(base_at(3))
    assert made.holds(base_at(4))


@pytest.mark.parametrize(
    ("seq", "term", "seqs", "lineage"),
    [
        (1, 1, [2, 3, 4, 5, 6, 7, 8, 9], [(1, 4), (2, 9)]),
        (3, 1, [4, 5, 6, 7, 8, 9], [(1, 4), (2, 9)]),
        (4, 1, [5, 6, 7, 8, 9], [(2, 9)]),
        (8, 2, [9], [(2, 9)]),
        (9, 2, [], []),
        (12, 3, [], []),
    ],
)
def test_records_behind_the_base_stay_with_their_places(
    seq: int, term: int, seqs: list[int], lineage: list[tuple[int, int]]
) -> None:
    """Terms, places and lengths are of the same records as before."""
    made = whole()
    base = base_at(seq, term)
    made.begin_behind(base)
    assert list(made.base_seqs) == list(made.lengths) == seqs
    assert list(made.positions) == [position_of(each, 40) for each in seqs]
    assert (made.lineage, made.base, made.before) == (lineage, base, (term, seq))
    assert (made.start_seq, made.last_seq) == (seq, max(9, seq))
    assert made.end == ((2, 9) if seqs else (term, seq))
    made.add(Term(4), Seq(made.last_seq + 1), 1, position=1, length=1)
    assert made.end == (4, max(9, seq) + 1)


@pytest.mark.parametrize(
    ("seq", "parts"),
    [
        (2, [(2, [3], False), (6, [7, 8, 9], False)]),
        (3, [(3, [], False), (6, [7, 8, 9], False)]),
        (6, [(6, [7, 8, 9], False)]),
        (7, [(7, [8, 9], False)]),
        (8, [(8, [9], False)]),
        (9, [(9, [], False)]),
        (11, [(11, [], False)]),
    ],
)
def test_base_at_or_behind_a_hole_closes_it(
    seq: int, parts: list[tuple[int, list[int], bool]]
) -> None:
    """Records lost there were committed, and are not needed any more."""
    made = two_parts()
    made.begin_behind(base_at(seq))
    assert parts_of(made) == parts
    assert made.end == (1, max(seq, 9) if len(parts) == 1 else 3)


def test_base_behind_two_holes_keeps_the_third() -> None:
    """One part is joined, and the next one stays behind its hole."""
    made = log_of(part((1, 1, 1)), part((3, 4, 1)), part((6, 7, 1)), part((9, 9, 1)))
    made.begin_behind(base_at(6))
    assert parts_of(made) == [(6, [7], False), (8, [9], False)]


def test_part_that_nothing_proves_is_not_joined() -> None:
    """It may be of another history than the base."""
    made = two_parts()
    made.kept[0].is_suspect = True
    made.begin_behind(base_at(6))
    assert parts_of(made) == [(6, [], False), (6, [7, 8, 9], True)]


@pytest.mark.parametrize(
    ("made", "seq", "term", "contradicts"),
    [
        (whole(), 3, 1, False),
        (whole(), 3, 2, True),
        (whole(), 4, 1, False),
        (whole(), 4, 2, True),
        (whole(), 8, 2, False),
        (whole(), 8, 3, True),
        (whole(), 9, 3, False),
        (whole(), 12, 1, False),
        (two_parts(), 5, 1, False),
        (two_parts(), 5, 2, True),
        (two_parts(), 6, 2, True),
        (two_parts(), 8, 2, True),
        (two_parts(), 8, 1, False),
        (two_parts(), 9, 2, False),
        (log_of(part(start=0), part((7, 9, 3))), 6, 4, True),
        (log_of(part(start=0), part((7, 9, 3))), 6, 3, False),
    ],
)
def test_base_contradicts_records_that_cannot_follow_it(
    made: ChannelIndex, seq: int, term: int, contradicts: bool
) -> None:
    """S1.5: terms never fall, and the record at its seq is of its term, in whatever part."""
    assert made.contradicts(base_at(seq, term)) is contradicts


def test_base_never_ends_within_a_record_and_never_goes_down() -> None:
    """Records are whole; a base below the one that is known is of an older time."""
    made = ChannelIndex()
    made.add(Term(1), Seq(1), 3, position=0, length=1)
    made.add(Term(1), Seq(4), 2, position=1, length=1)
    made.add(Term(1), Seq(6), 1, position=2, length=1)
    assert [seq for seq in range(8) if made.ends_record(Seq(seq))] == [0, 3, 5, 6]
    assert [seq for seq in range(8) if made.contradicts(base_at(seq))] == [1, 2, 4]
    assert [seq for seq in range(8) if made.holds(base_at(seq))] == [3, 5, 6]
    made.begin_behind(base_at(3))
    assert [seq for seq in range(7) if made.contradicts(base_at(seq))] == [0, 1, 2, 4]
    assert (made.holds(base_at(3)), made.holds(base_at(3, 2))) == (True, False)


@pytest.mark.parametrize(
    ("made", "base", "end", "parts"),
    [
        (whole(), (3, 1), (2, 9), [(3, [4, 5, 6, 7, 8, 9], False)]),
        (whole(), (3, 1), (2, 6), [(3, [4, 5, 6], False)]),
        (whole(), (3, 1), (1, 3), [(3, [], False)]),
        (whole(), (3, 1), (2, 12), [(3, [4, 5, 6, 7, 8, 9], False), (12, [], False)]),
        (whole(), (3, 1), (3, 9), [(3, [4, 5, 6, 7, 8, 9], False), (9, [], True)]),
        (whole(), (3, 1), (1, 12), [(3, [4, 5, 6, 7, 8, 9], False), (12, [], True)]),
        (whole(), (3, 2), (2, 9), [(3, [], False), (9, [], False)]),
        (whole(), (12, 3), (3, 12), [(12, [], False)]),
        (two_parts(), (2, 1), (1, 9), [(2, [3], False), (6, [7, 8, 9], False)]),
        (two_parts(), (7, 1), (1, 9), [(7, [8, 9], False)]),
        (two_parts(), (2, 1), (1, 7), [(2, [3], False), (6, [7], False)]),
        (two_parts(), (2, 1), (1, 6), [(2, [3], False), (6, [], False)]),
        (two_parts(), (2, 1), (1, 5), [(2, [3], False), (5, [], False)]),
        (two_parts(), (2, 1), (1, 3), [(2, [3], False)]),
        (log_of(part((1, 3, 1)), part(start=6)), (2, 1), (4, 6), [(2, [3], False), (6, [], False)]),
        (part(start=0), (3, 1), (1, 3), [(3, [], False)]),
        (part(start=0), (3, 1), (1, 5), [(3, [], False), (5, [], False)]),
    ],
)
def test_entry_of_a_base_tells_what_the_log_was(
    made: ChannelIndex,
    base: tuple[int, int],
    end: tuple[int, int],
    parts: list[tuple[int, list[int], bool]],
) -> None:
    """S2.4: a log that ended with this record held all in front of it; what is not there is lost,
    and what is behind it was cut."""
    told = base_at(*base)
    made.settle(told, at(*end))
    assert parts_of(made) == parts
    assert (made.base, made.start_seq) == (told, told.seq)
    assert made.last_part.end == end
    if len(parts) > 1 and not parts[-1][1]:
        assert made.kept[-1].before == end


def test_entry_of_a_base_proves_what_was_suspect() -> None:
    """The log ended with this record, so all in front of it is the log."""
    made = two_parts()
    made.kept[0].is_suspect = True
    made.settle(base_at(2), at(1, 9))
    assert parts_of(made) == [(2, [3], False), (6, [7, 8, 9], False)]


def test_log_that_begins_anew_forgets_everything() -> None:
    """Parts behind holes too, and that records were filled in."""
    made = two_parts()
    made.has_fills = True
    made.begin_anew(base_at(5, 4))
    assert (parts_of(made), made.lineage, made.has_fills) == ([(5, [], False)], [], False)
    assert (made.base, made.end, made.last_seq) == (base_at(5, 4), (4, 5), 5)
    made.add(Term(4), Seq(6), 1, position=7, length=8)
    assert (list(made.positions), list(made.lengths)) == ([7], [8])


@pytest.mark.parametrize(
    ("base_segment", "positions", "has_fills", "oldest"),
    [
        (0, [], False, None),
        (3, [], False, 3),
        (3, [], True, 3),
        (0, [5, 6], False, 5),
        (3, [5, 6], False, 3),
        (7, [5, 6], False, 5),
        (7, [6, 5, 8], True, 5),
        (7, [9, 8], True, 7),
    ],
)
def test_oldest_segment_is_of_the_base_or_of_a_record(
    base_segment: int, positions: list[int], *, has_fills: bool, oldest: int | None
) -> None:
    """Records that were filled in are in newer segments than those behind them."""
    made = ChannelIndex()
    for seq, segment in enumerate(positions, 1):
        made.add(Term(1), Seq(seq), 1, position=position_of(segment, 40), length=1)
    made.base_segment, made.has_fills = base_segment, has_fills
    assert made.live_from() == oldest


@pytest.mark.parametrize(
    ("term", "seq", "may"),
    [
        (1, 0, True),
        (2, 4, True),
        (1, 4, True),
        (3, 4, False),
        (2, 5, True),
        (1, 5, False),
        (3, 5, False),
        (2, 6, True),
        (3, 6, False),
        (2, 8, True),
        (1, 8, False),
        (2, 9, True),
        (3, 9, False),
        (2, 10, True),
        (2, 11, True),
        (3, 11, False),
        (2, 12, False),
    ],
)
def test_promise_is_kept_by_the_base_by_a_part_or_by_a_hole(
    term: int, seq: int, *, may: bool
) -> None:
    """S0.3: below the base all was committed; in a hole the term in front of it proves it."""
    made = ChannelIndex.behind(base_at(5, 2))
    made.add(Term(2), Seq(6), 2, position=0, length=1)
    made.kept = [part((9, 9, 2)), part(start=11)]
    assert made.may_hold(at(term, seq)) is may


def test_front_is_forgotten_from_the_start_of_a_part_on() -> None:
    """At or below it there is nothing to forget, and what is known in front of it stays."""
    made = part((7, 9, 2), before=(1, 6))
    for seq in (5, 6):
        made.forget_front(Seq(seq))
        assert (made.start_seq, made.before, len(made)) == (6, (1, 6), 3)
    made.forget_front(Seq(7))
    assert (made.start_seq, made.before, list(made.base_seqs)) == (7, None, [8, 9])


def test_index_behind_no_base_knows_of_nothing_in_front() -> None:
    """The beginning of all is no record."""
    made = ChannelIndex.behind(EMPTY_BASE)
    assert (made.before, made.end, made.term_at(Seq(0))) == (None, (0, 0), None)
    made = ChannelIndex.behind(base_at(5, 2))
    assert (made.end, made.term_at(Seq(5)), made.term_before(Seq(6))) == ((2, 5), 2, 2)
