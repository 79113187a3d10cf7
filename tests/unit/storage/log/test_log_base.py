"""The log of a channel that begins behind a base: what it finds, and what it does not."""

from __future__ import annotations

import pytest

from raftstore.core.folds import advance
from raftstore.errors import PersistError
from raftstore.ports.log import EMPTY_BASE, Base
from raftstore.protocol.node import Hole
from raftstore.storage.log.index import ChannelIndex
from raftstore.testing.sim_log import SimLog
from raftstore.types import History, Seq, Term
from tests.storage_helpers import CHANNEL, OTHER, record

BASE = advance(EMPTY_BASE, [record(1, rows=3), record(4, rows=2, term=2)])


def index(*spans: tuple[int, int, int], base: Base = BASE) -> ChannelIndex:
    """An index behind a base with records (base seq, rows, term)."""
    made = ChannelIndex.behind(base)
    for number, (base_seq, rows, term) in enumerate(spans):
        made.add(Term(term), Seq(base_seq), rows, position=number, length=10)
    return made


def log_behind(base: Base = BASE) -> SimLog:
    """A log whose channel begins behind the base, with two records of three rows."""
    log = SimLog.new()
    log._channels[CHANNEL] = ChannelIndex.behind(base)
    log.append(CHANNEL, [record(6, rows=3, term=2), record(9, term=3)])
    return log


def test_log_of_nothing_but_a_base_ends_with_it() -> None:
    """S6.5: (lastTerm, lastSeq) is kept, and what follows goes on from there."""
    log = SimLog.new()
    log._channels[CHANNEL] = ChannelIndex.behind(BASE)
    found = log.open_channel(CHANNEL)
    assert (found.base, found.last_seq, found.lineage) == (BASE, 5, ())
    assert (found.shortfall, found.hole) == (None, None)
    assert log.base(CHANNEL) == BASE
    assert log.base(OTHER) == EMPTY_BASE
    assert index().end == History(Term(2), Seq(5))
    assert list(log.records(CHANNEL)) == []
    with pytest.raises(PersistError, match="cannot follow seq 5"):
        log.append(CHANNEL, [record(1)])


@pytest.mark.parametrize("seq", [0, 1, 4, 5])
def test_nothing_is_found_at_or_below_the_base(seq: int) -> None:
    """R9: an index from the wrong end would give the newest record for one that is gone."""
    held = index((6, 3, 2), (9, 1, 3))
    assert held.locate(Seq(seq)) == len(held)
    assert log_behind().read(CHANNEL, Seq(seq), to_seq=Seq(9), bytes_max=1_000) == []


def test_records_behind_the_base_are_found() -> None:
    """From the first one on, and not beyond the end."""
    held = index((6, 3, 2), (9, 1, 3))
    assert [held.locate(Seq(seq)) for seq in range(6, 11)] == [0, 0, 0, 1, 2]
    found = log_behind().read(CHANNEL, Seq(6), to_seq=Seq(9), bytes_max=1_000)
    assert [stored.base_seq for stored in found] == [6, 9]


def test_terms_are_known_from_the_base_on() -> None:
    """S6.5: prevTerm at the boundary comes from the base; below it nothing is known here."""
    held = index((6, 3, 2), (9, 1, 3))
    assert [held.term_at(Seq(seq)) for seq in range(11)] == [
        *(None, None, None, None, None),
        *(2, 2, 2, 2, 3, None),
    ]
    assert [held.term_before(Seq(seq)) for seq in (6, 7, 10)] == [2, 2, 3]
    assert index(base=EMPTY_BASE).term_at(Seq(0)) is None


def test_truncation_goes_down_to_the_base() -> None:
    """S2.5: everything behind it may be a tail that conflicts."""
    held = index((6, 3, 2), (9, 1, 3))
    held.truncate(Seq(6))
    assert (held.end, len(held)) == (History(Term(2), Seq(5)), 0)
    held.add(Term(4), Seq(6), 1, position=0, length=1)
    assert held.end == History(Term(4), Seq(6))


@pytest.mark.parametrize("from_seq", [1, 5])
def test_s6_5_truncation_at_or_below_the_base_stops_the_log(from_seq: int) -> None:
    """S0.4: nothing is written about what must not be."""
    log = log_behind()
    with pytest.raises(PersistError, match=f"from seq {from_seq} on: its log begins behind seq 5"):
        log.truncate(CHANNEL, Seq(from_seq))


@pytest.mark.parametrize(
    ("promised", "held"),
    [((1, 2), True), ((2, 5), True), ((1, 5), False), ((3, 4), False), ((2, 7), True)],
)
def test_promises_at_or_below_the_base_are_kept(promised: tuple[int, int], held: bool) -> None:
    """S0.3: what the base stands for was committed, whatever of it was acknowledged here."""
    made = index((6, 3, 2), (9, 1, 3))
    assert made.may_hold(History(Term(promised[0]), Seq(promised[1]))) is held


def test_another_nodes_hole_below_the_base_is_not_filled_from_here() -> None:
    """S2.4: there is nothing to give; behind the base there is."""
    log = log_behind()
    runs = tuple(log._channels[CHANNEL].runs())
    assert runs[0] == (2, 5, 5)
    for from_seq, given in ((4, []), (6, [6])):
        hole = Hole(Seq(from_seq), Seq(8), Term(2), runs)
        found = log.refill(CHANNEL, hole, bytes_max=1_000)
        assert [stored.base_seq for stored in found] == given
