"""No order of messages, stops, repetitions and leaders makes a read round prove too much."""

from __future__ import annotations

import pytest

from tests.model.read_rounds import Budget, search

SHORT = {
    "reads during a round": Budget(reads=2, writes=1),
    "a leader that was followed by another": Budget(reads=1, writes=1, elections=1),
}
LONG = {
    "a proof that is asked for again": Budget(asks=1, writes=1, repeats=1),
    "a second read at a leader of the past": Budget(reads=2, writes=1, elections=1),
    "a proof over a change of leader": Budget(asks=1, writes=1, elections=1),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", SHORT)
def test_round_proves_nothing_of_what_came_after_it_began(name: str) -> None:
    """S7.1, S7.3: a confirmation serves what was asked before its round, however late it comes."""
    hold(SHORT[name])


@pytest.mark.slow
@pytest.mark.parametrize("name", LONG)
def test_old_confirmation_serves_no_later_read(name: str) -> None:
    """S7.1, S7.3: a round sent again after a stop, or a leader since, changes nothing."""
    hold(LONG[name])


@pytest.mark.slow
def test_repeated_round_takes_no_later_read_in() -> None:
    """S7.1: a round that is sent again after a stop serves those it was begun for."""
    hold(Budget(reads=2, writes=1, repeats=1))


@pytest.mark.slow
def test_no_read_is_stale_while_leadership_is_handed_over() -> None:
    """S7.1, S9: being confirmed a moment ago is no lease, the successor may lead already."""
    hold(Budget(reads=2, writes=1, elections=1, hand_overs=1))


def hold(budget: Budget) -> None:
    """Search, and see that there was something to see."""
    found = search(budget)
    assert found.violation is None, (found.violation, found.path)
    assert found.answered if budget.reads else found.proven
    assert found.changes, "no leader was ever asked to hand over"
