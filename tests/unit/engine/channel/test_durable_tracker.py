"""Which end of a channel is durable, by itself: nothing that was cut is ever reported (S2.5)."""

from __future__ import annotations

import pytest

from raftstore.engine.channel.durable_tracker import DurableTracker
from raftstore.types import Seq, Term


def test_each_operation_makes_its_own_end_durable() -> None:
    """S0.5: up to the operation that has completed, and no further."""
    tracker = DurableTracker(durable_seq=Seq(3), durable_term=Term(2))
    tracker.appended(10, Seq(5))
    tracker.voted(11, Term(4))
    tracker.appended(12, Seq(7))
    told = []
    for operation in (9, 10, 10, 11, 12, 13):
        moved = tracker.completed(operation)
        told.append((moved, tracker.durable_seq, tracker.durable_term))
    assert told == [
        (False, 3, 2), (True, 5, 2), (False, 5, 2), (True, 5, 4), (True, 7, 4), (False, 7, 4),
    ]  # fmt: skip
    assert not tracker.pending
    assert not tracker.term_pending


def test_one_operation_may_complete_several() -> None:
    """A sync covers all that came before it."""
    tracker = DurableTracker()
    tracker.appended(1, Seq(1))
    tracker.appended(2, Seq(2))
    tracker.voted(3, Term(1))
    assert tracker.completed(3)
    assert (tracker.durable_seq, tracker.durable_term) == (2, 1)


def test_end_that_is_cut_is_durable_no_longer_and_cannot_become_so() -> None:
    """S2.5: whatever operation completes later; what is appended behind the cut counts anew."""
    tracker = DurableTracker(durable_seq=Seq(5))
    tracker.appended(10, Seq(7))
    tracker.truncated(11, Seq(4))
    assert tracker.durable_seq == 3
    tracker.appended(12, Seq(6))
    assert not tracker.completed(10)
    assert tracker.durable_seq == 3
    assert not tracker.completed(11)
    assert tracker.completed(12)
    assert tracker.durable_seq == 6


def test_cut_behind_the_durable_end_leaves_it_and_counts_as_an_end_of_its_own() -> None:
    """S2.5: records before the cut that were under way become durable with their own operation,
    and the cut itself is waited for."""
    tracker = DurableTracker(durable_seq=Seq(2))
    tracker.appended(10, Seq(9))
    tracker.truncated(11, Seq(6))
    assert tracker.durable_seq == 2
    assert [operation for operation, _ in tracker.pending] == [10, 11]
    assert tracker.completed(10)
    assert tracker.durable_seq == 5
    assert not tracker.completed(11)
    assert not tracker.pending


def test_operations_and_ends_only_grow() -> None:
    """S1.3: anything else is a mistake of the channel, and stops it."""
    tracker = DurableTracker(durable_seq=Seq(5), durable_term=Term(3))
    for operation, seq in ((10, 5), (10, 4)):
        with pytest.raises(AssertionError):
            tracker.appended(operation, Seq(seq))
    tracker.appended(10, Seq(6))
    with pytest.raises(AssertionError):
        tracker.appended(10, Seq(7))
    with pytest.raises(AssertionError):
        tracker.voted(11, Term(2))
    tracker.voted(11, Term(3))


def test_what_is_appended_is_not_durable_yet() -> None:
    """S0.5: neither by an operation that was given out before, nor below what is durable."""
    tracker = DurableTracker(durable_seq=Seq(3))
    with pytest.raises(AssertionError, match="seq 3 is new, durable 3"):
        tracker.appended(10, Seq(3))
    tracker.appended(10, Seq(4))
    with pytest.raises(AssertionError, match="operation 10 behind 10"):
        tracker.appended(10, Seq(5))
