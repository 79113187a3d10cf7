"""Logs of stopped nodes side by side: their gaps, and which one can give what to which (S2.4)."""

from __future__ import annotations

import pytest

from raftstore.storage.log.index import ChannelIndex
from raftstore.storage.stopped.logs import Gap, Given, gaps_of, heal
from raftstore.types import History, Seq, Term

Record = tuple[int, int, int]
"""(term, base seq, rows)"""


def part(*records: Record, start: int = 0, before: tuple[int, int] | None = None) -> ChannelIndex:
    """Records that follow each other behind ``start``."""
    known = None if before is None else History(Term(before[0]), Seq(before[1]))
    made = ChannelIndex(Seq(start), known)
    for term, base_seq, rows in records:
        made.add(Term(term), Seq(base_seq), rows, position=base_seq, length=1)
    return made


def log_of(first: ChannelIndex, *kept: ChannelIndex) -> ChannelIndex:
    """A log with holes between these parts."""
    first.kept = list(kept)
    if kept:
        first.shortfall = kept[-1].end
    return first


def whole(last: int = 9, term: int = 1) -> ChannelIndex:
    """A log of single rows."""
    return part(*((term, seq, 1) for seq in range(1, last + 1)))


def suspect(made: ChannelIndex) -> ChannelIndex:
    """A part of which nothing proves that it belongs to the log."""
    made.is_suspect = True
    return made


@pytest.mark.parametrize(
    ("index", "gaps"),
    [
        (whole(), []),
        (log_of(part((1, 1, 3)), part((2, 6, 1), start=5)), [(4, 5, 1, 2)]),
        (log_of(part(), part((2, 6, 1), start=5)), [(1, 5, 0, 2)]),
        (log_of(part((1, 1, 3)), part(start=5, before=(3, 5))), [(4, 5, 1, 3)]),
        (
            log_of(part((1, 1, 3)), part((4, 6, 1), start=5, before=(3, 5))),
            [(4, 5, 1, 3)],
        ),
        (log_of(part((1, 1, 3)), part(start=5)), [(4, 5, 1, None)]),
        (log_of(part((2, 1, 3)), suspect(part((1, 3, 1), start=2))), [(4, 2, 2, None)]),
        (
            log_of(part((1, 1, 3)), part(start=5), part((3, 8, 1), start=7)),
            [(4, 5, 1, None), (6, 7, None, 3)],
        ),
        (
            log_of(part((1, 1, 3)), part((2, 6, 1), start=5), part((3, 8, 1), start=7)),
            [(4, 5, 1, 2), (7, 7, 2, 3)],
        ),
        (
            log_of(part((1, 1, 3)), part(start=5, before=(2, 5)), part((3, 8, 1), start=7)),
            [(4, 5, 1, 2), (6, 7, 2, 3)],
        ),
    ],
)
def test_gaps_are_told_with_the_terms_beside_them(
    index: ChannelIndex, gaps: list[tuple[int, int, int | None, int | None]]
) -> None:
    """None where the term is not known: of a record behind a part that nothing proves, say."""
    assert gaps_of(index) == [Gap(*gap) for gap in gaps]  # type: ignore[arg-type]


def holed(first: int, last: int) -> ChannelIndex:
    """``whole`` without what is between two seqs."""
    return log_of(
        part(*((1, seq, 1) for seq in range(1, first))),
        part(*((1, seq, 1) for seq in range(last + 1, 10)), start=last),
    )


def test_log_is_healed_by_the_one_that_has_most() -> None:
    """All that can give are named; the longest answer is taken."""
    indexes = {"a": holed(3, 6), "b": whole(4), "c": whole(9), "d": whole(2)}
    assert heal(indexes, ["a"]) == [Given("a", Seq(3), Seq(6), ("b", "c"))]
    assert list(indexes["a"].base_seqs) == list(range(1, 10))
    assert indexes["a"].kept == []
    assert indexes["a"].shortfall is None


def test_log_takes_what_there_is_and_keeps_the_rest_of_its_hole() -> None:
    """Nothing above the last record of another log is proven by it."""
    indexes = {"a": holed(3, 6), "b": whole(4)}
    assert heal(indexes, ["a"]) == [Given("a", Seq(3), Seq(4), ("b",))]
    assert gaps_of(indexes["a"]) == [Gap(Seq(5), Seq(6), Term(1), Term(1))]
    assert heal(indexes, ["a"]) == []


def test_damaged_logs_heal_each_other_and_the_first_holder_is_told() -> None:
    """Reported is where the records were, not where the steps before brought them; a log that
    cannot be healed first is when others have got theirs back."""
    indexes = {"a": holed(3, 3), "b": holed(5, 6), "c": holed(3, 3)}
    assert heal(indexes, ["a", "b", "c"]) == [
        Given("a", Seq(3), Seq(3), ("b",)),
        Given("b", Seq(5), Seq(6), ("a", "c")),
        Given("c", Seq(3), Seq(3), ("b",)),
    ]
    assert all(index.kept == [] for index in indexes.values())


def test_log_is_healed_in_steps_over_all_its_holes() -> None:
    """Each log gives one of them; a log without a hole in front of another one does not end it."""
    indexes = {
        "whole": whole(2),
        "a": log_of(
            part((1, 1, 1), (1, 2, 1)),
            part((1, 4, 1), start=3),
            part((1, 7, 2), start=6),
        ),
        "b": holed(4, 6),
        "c": holed(2, 3),
    }
    given = heal(indexes, ["whole", "a"])
    assert given == [
        Given("a", Seq(3), Seq(3), ("b",)),
        Given("a", Seq(5), Seq(6), ("c",)),
    ]
    assert indexes["a"].last_seq == 8


def test_hole_that_nobody_can_fill_does_not_keep_others_from_theirs() -> None:
    """It stays, and nothing is invented."""
    indexes = {"a": holed(3, 3), "b": holed(3, 4)}
    assert heal(indexes, ["a", "b"]) == []
    indexes = {"a": holed(2, 2), "b": holed(4, 4), "c": holed(2, 2)}
    assert [one.to for one in heal(indexes, ["c", "a", "b"])] == ["c", "a", "b"]
    indexes = {"a": holed(2, 6), "b": holed(4, 4), "c": holed(2, 4)}
    assert heal(indexes, ["b", "c"]) == [Given("c", Seq(2), Seq(3), ("b",))]
    assert gaps_of(indexes["b"]) == [Gap(Seq(4), Seq(4), Term(1), Term(1))]


@pytest.mark.parametrize(
    "other",
    [
        whole(term=2),
        part((1, 1, 4), (1, 5, 5)),
        log_of(part((1, 1, 1)), part((1, 4, 6), start=3)),
        ChannelIndex(),
    ],
    ids=["another term", "record begins before", "same hole", "empty"],
)
def test_record_that_does_not_begin_where_the_hole_does_is_not_given(other: ChannelIndex) -> None:
    """S2.4: without proof that both logs were equal there nothing is taken."""
    assert heal({"a": holed(3, 6), "b": other}, ["a"]) == []


def test_record_that_reaches_behind_the_hole_is_not_given() -> None:
    """Those in front of it are."""
    other = part((1, 1, 2), (1, 3, 2), (1, 5, 4), (1, 9, 1))
    assert heal({"a": holed(3, 6), "b": other}, ["a"]) == [Given("a", Seq(3), Seq(4), ("b",))]


def test_records_of_several_terms_and_rows_are_given() -> None:
    """As they stand in the log that gives them."""
    mine = log_of(part((1, 1, 2)), part((3, 9, 1), start=8))
    indexes = {"a": mine, "b": part((1, 1, 2), (1, 3, 2), (2, 5, 3), (3, 8, 1), (3, 9, 1))}
    assert heal(indexes, ["a"]) == [Given("a", Seq(3), Seq(8), ("b",))]
    assert list(mine.base_seqs) == [1, 3, 5, 8, 9]
    assert mine.lineage == [(1, 4), (2, 7), (3, 9)]
