"""Runs of terms: what is held where, and where two logs still agree."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raftstore.core.history import LINEAGE_ENTRIES_MAX, Lineage
from raftstore.types import LineageEntry, Seq, Term
from tests.core_bench import record


def lineage(*runs: tuple[int, int]) -> Lineage:
    """A lineage of (term, end_seq) runs."""
    return Lineage(LineageEntry(Term(term), Seq(end)) for term, end in runs)


def of_terms(terms: list[int]) -> Lineage:
    """A lineage of a log given by the term at each seq from 1."""
    built = Lineage()
    for seq, term in enumerate(terms, start=1):
        built.append(record(seq, term=term))
    return built


def test_lineage_of_an_empty_log_holds_only_its_start() -> None:
    """Every log holds (0, 0) and nothing beyond its end."""
    empty = Lineage()
    assert empty.last == (0, 0)
    assert empty.holds(Term(0), 0)
    assert not empty.holds(Term(1), 0)
    assert not empty.holds(Term(1), 1)
    assert not empty.holds(Term(1), -1)


def test_lineage_knows_the_term_at_every_seq() -> None:
    """Runs answer which term stands where."""
    log = lineage((1, 3), (4, 5), (6, 9))
    assert [log.term_at(seq) for seq in range(10)] == [0, 1, 1, 1, 4, 4, 6, 6, 6, 6]
    assert log.holds(Term(4), 5)
    assert not log.holds(Term(4), 6)
    assert not log.holds(Term(6), 10)


def test_lineage_refuses_to_go_back_when_appending() -> None:
    """A log never shrinks by appending, and terms never decrease along it."""
    log = lineage((2, 3))
    with pytest.raises(AssertionError):
        log.append(record(3, term=2))
    with pytest.raises(AssertionError):
        log.append(record(4, term=1))


def test_lineage_forgets_whole_runs_when_truncated() -> None:
    """Truncation removes everything from a seq on, whole runs included."""
    log = lineage((1, 3), (4, 5), (6, 9))
    log.truncate(Seq(5))
    assert log.last == (4, 4)
    log.truncate(Seq(1))
    assert log.last == (0, 0)


def test_newest_offers_runs_newest_first_and_bounded() -> None:
    """S2.6: the lineage of a request is bounded and can be continued with older terms."""
    log = of_terms(list(range(1, 201)))
    first = log.newest()
    assert len(first) == LINEAGE_ENTRIES_MAX
    assert first[0] == (200, 200)
    older = log.newest(below=first[-1].term)
    assert older[0].term == first[-1].term - 1
    assert log.newest(below=Term(1)) == ()


def test_match_point_is_the_end_of_the_largest_common_term() -> None:
    """S2.6: in a shared term, the shorter of both logs ends the agreement."""
    leader = lineage((1, 3), (4, 8), (6, 9))
    assert leader.match_point(lineage((1, 3), (4, 5)).newest()) == 5
    assert leader.match_point(lineage((1, 3), (4, 8), (5, 12)).newest()) == 8
    assert leader.match_point(lineage((6, 20)).newest()) == 9


def test_match_point_guesses_below_when_no_term_is_shared() -> None:
    """S2.6 (KIP-279): a term the leader does not know is answered with the next lower one."""
    leader = lineage((1, 3), (4, 8))
    assert leader.match_point([LineageEntry(Term(3), Seq(7)), LineageEntry(Term(2), Seq(5))]) == 3
    assert lineage((4, 8)).match_point([LineageEntry(Term(3), Seq(7))]) == 0
    assert leader.match_point([]) == 0


@st.composite
def two_logs(draw: st.DrawFn) -> tuple[list[int], list[int]]:
    """Two logs that obey log matching: a common prefix, then terms of their own."""
    common = sorted(draw(st.lists(st.integers(1, 5), max_size=6)))
    low = common[-1] if common else 1
    mine = sorted(draw(st.lists(st.sampled_from([low + 2, low + 4, low + 6]), max_size=5)))
    theirs = sorted(draw(st.lists(st.sampled_from([low + 1, low + 3, low + 5]), max_size=5)))
    return common + mine, common + theirs


@given(two_logs())
def test_probing_always_ends_at_the_common_prefix(logs: tuple[list[int], list[int]]) -> None:
    """Repeating the probe with older terms finds a point both logs hold, and no conflict below."""
    ours, theirs = of_terms(logs[0]), of_terms(logs[1])
    below: Term | None = None
    for _ in range(20):
        offered = ours.newest(below=below)[:2]  # small pages: the repetition is exercised
        point = theirs.match_point(offered) if offered else Seq(0)
        if ours.holds(theirs.term_at(point), point):
            break
        below = offered[-1].term
    else:
        pytest.fail("probing did not end")
    assert logs[0][:point] == logs[1][:point]


@given(st.lists(st.integers(0, 1), min_size=1, max_size=40), st.integers(1, 41))
def test_truncated_lineage_equals_that_of_the_shorter_log(steps: list[int], cut: int) -> None:
    """Truncation leaves exactly what a log of the kept records would show."""
    terms = [1 + sum(steps[: i + 1]) for i in range(len(steps))]
    log = of_terms(terms)
    log.truncate(Seq(cut))
    assert log.newest() == of_terms(terms[: cut - 1]).newest()
