"""The oracle of a simulated node's log finds a log that forgot, invented or hides something."""

from __future__ import annotations

from contextlib import suppress

import pytest

from raftstore.errors import StoreIdentityError
from raftstore.testing.invariants import InvariantError
from raftstore.testing.sim_damage import flip_payload, lose_the_end
from raftstore.testing.sim_files import ProcessEndedError
from raftstore.testing.sim_log import SETTINGS, SimLog
from raftstore.types import Seq, Term
from tests.storage_helpers import ALICE, BOB, CHANNEL, OTHER, all_records, record


def a_log() -> SimLog:
    """Five durable records, a vote, and another channel."""
    log = SimLog.new(seed=1)
    log.set_vote(CHANNEL, Term(2), ALICE)
    log.append(CHANNEL, [record(seq, term=2) for seq in range(1, 6)])
    log.append(OTHER, [record(1)])
    log.flush()
    return log


def test_every_crash_of_an_honest_log_passes() -> None:
    """Torn in the middle of a group commit, again and again."""
    log = a_log()
    for number in range(40):
        seq = log.open_channel(CHANNEL).last_seq + 1
        log.append(CHANNEL, [record(seq, term=2), record(seq + 1, term=2)])
        if number % 3 == 0:
            log.truncate(CHANNEL, Seq(seq))
        log.set_vote(OTHER, Term(number + 1), BOB)
        log.files.end_after(log.files.rng.randrange(9))
        with suppress(ProcessEndedError):
            log.flush()
        log.files.lose_power()
        log = log.again()


def forgets(log: SimLog) -> None:
    """As if the last entries had never been synced."""
    path = next(path for path in log.files.paths() if path.parent == log.directory)
    log.files.cut(path, log.files.size_bytes(path) - 400)


def loses_a_vote(log: SimLog) -> None:
    """The log of a store that never voted."""
    other = SimLog.new()
    other.append(CHANNEL, [record(seq, term=2) for seq in range(1, 6)])
    other.append(OTHER, [record(1)])
    other.flush()
    other.truth = log.truth
    log.files = other.files


@pytest.mark.parametrize(("harm", "says"), [(forgets, "never held"), (loses_a_vote, "never held")])
def test_what_was_told_durable_and_is_gone_is_found(harm: object, says: str) -> None:
    """S0.3, S1.3: the log recovers by its own rules, and is judged by what it was asked to keep."""
    log = a_log()
    harm(log)  # type: ignore[operator]
    with pytest.raises(InvariantError, match=says):
        log.again()


def test_damage_has_to_make_the_channel_recovering() -> None:
    """S0.3: until what was promised is held again, over any number of starts."""
    log = a_log()
    assert lose_the_end(log, log.files)
    log.truth.is_damaged = True
    log = log.again()
    lost = log.open_channel(CHANNEL)
    assert lost.shortfall is not None
    log = log.again()
    log.truth._channels[CHANNEL].promise = (Term(2), Seq(99))  # type: ignore[assignment]
    with pytest.raises(InvariantError, match="promised"):
        log.again()


def test_hole_that_is_filled_is_followed_again() -> None:
    """The records are back, and from the next start on they have to be there."""
    log = a_log()
    flip_payload(log, log.files, CHANNEL, 2)
    log.truth.is_damaged = True
    log = log.again()
    assert log.open_channel(CHANNEL).hole is not None
    log.fill(CHANNEL, [record(3, term=2)])
    log.flush()
    log = log.again()
    assert [one.base_seq for one in all_records(log)] == [1, 2, 3, 4, 5]
    log = log.again()
    forgets(log)
    with pytest.raises(InvariantError):
        log.again()


def test_files_of_another_node_are_refused() -> None:
    """S0.1: the production rules hold on simulated files, too."""
    log = a_log()
    with pytest.raises(StoreIdentityError):
        SimLog(log.files, log.truth, bytes([1]) * 16, SETTINGS)
