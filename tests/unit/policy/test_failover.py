"""Durations and causes of failovers: one record each, complete or given up (KLIP-05, N8)."""

from __future__ import annotations

import pytest

from raftstore.policy.failover import (
    LOST,
    MISSED,
    PENDING_MS,
    UNKNOWN,
    WAIT_MS,
    FailoverRecord,
    FailoverTracker,
)
from raftstore.types import NodeId, Term, channel_id

CHANNEL = channel_id(b"t" * 16, 0)
OLD, ME = NodeId("a@01"), NodeId("b@02")


def suspected(heard_ms: int = 1_000, now_ms: int = 1_300) -> FailoverTracker:
    """The leader was heard at 1,000 and is believed gone at 1,300."""
    tracker = FailoverTracker(ME)
    tracker.on_suspect(CHANNEL, OLD, MISSED, heard_ms=heard_ms, now_ms=now_ms)
    return tracker


def test_blog_05_record_has_detection_vote_catch_up_first_read_and_first_write() -> None:
    """BLOG-05, KLIP-05: each phase of a failover has its duration, and the whole has a cause."""
    tracker = suspected()
    tracker.on_elected(CHANNEL, Term(7), 1_340)
    tracker.on_ready(CHANNEL, 1_352)
    assert tracker.on_read(CHANNEL, 1_360) is None
    record = tracker.on_write(CHANNEL, 1_400)
    assert record == FailoverRecord(CHANNEL, OLD, ME, Term(7), MISSED, 300, 40, 12, 360, 400)
    assert record.total_ms == 352
    assert CHANNEL not in tracker


def test_first_write_says_that_the_leader_was_ready() -> None:
    """A commit of the term is what ready means, whichever node notices it first."""
    tracker = suspected()
    tracker.on_elected(CHANNEL, Term(2), 1_340)
    assert tracker.on_write(CHANNEL, 1_350) is None
    record = tracker.on_read(CHANNEL, 1_360)
    assert record is not None
    assert (record.ready_ms, record.first_write_ms, record.first_read_ms) == (10, 350, 360)


def test_record_of_a_channel_that_nobody_asks_is_told_without_first_read_and_write() -> None:
    """An idle channel has a failover like any other; what did not happen has no duration."""
    tracker = suspected()
    tracker.on_elected(CHANNEL, Term(2), 1_340)
    tracker.on_ready(CHANNEL, 1_350)
    assert tracker.on_timer(1_350 + WAIT_MS - 1) == []
    [record] = tracker.on_timer(1_350 + WAIT_MS)
    assert (record.first_read_ms, record.first_write_ms, record.total_ms) == (None, None, 350)


def test_reads_before_the_election_are_not_the_new_leaders() -> None:
    """A standby serves all along; the record says when the successor did."""
    tracker = suspected()
    assert tracker.on_read(CHANNEL, 1_310) is None
    tracker.on_elected(CHANNEL, Term(2), 1_340)
    tracker.on_write(CHANNEL, 1_345)
    record = tracker.on_read(CHANNEL, 1_400)
    assert record is not None
    assert record.first_read_ms == 400


def test_second_suspicion_changes_nothing_unless_the_leader_was_heard_between() -> None:
    """The first sign counts; after a false alarm the next failover is timed by its own signs."""
    tracker = suspected()
    for heard_ms in (None, 1_000, 1_300):  # the last one at the moment of the first sign
        tracker.on_suspect(CHANNEL, OLD, LOST, heard_ms=heard_ms, now_ms=1_320)
    tracker.on_elected(CHANNEL, Term(2), 1_340)
    tracker.on_write(CHANNEL, 1_350)
    record = tracker.on_read(CHANNEL, 1_350)
    assert record is not None
    assert (record.cause, record.detect_ms) == (MISSED, 300)
    again = suspected()
    again.on_suspect(CHANNEL, OLD, LOST, heard_ms=5_000, now_ms=5_050)
    again.on_elected(CHANNEL, Term(2), 5_100)
    again.on_write(CHANNEL, 5_110)
    record = again.on_read(CHANNEL, 5_120)
    assert record is not None
    assert (record.cause, record.detect_ms, record.vote_ms) == (LOST, 50, 50)


@pytest.mark.parametrize("end", ["abandoned", "timer"])
def test_failover_that_ends_elsewhere_or_never_leaves_nothing(end: str) -> None:
    """Times of 4,096 channels must not stay when another node takes over."""
    tracker = suspected()
    if end == "abandoned":
        tracker.on_abandoned(CHANNEL)
    else:
        assert tracker.on_timer(1_300 + PENDING_MS) == []
    assert not len(tracker)
    assert tracker.on_write(CHANNEL, 99_000) is None


def test_first_election_of_a_channel_is_no_failover() -> None:
    """Given a channel without an earlier leader, its first election is no failover."""
    tracker = FailoverTracker(ME)
    tracker.on_suspect(CHANNEL, None, LOST, heard_ms=None, now_ms=5)
    tracker.on_elected(CHANNEL, Term(1), 10)
    assert not len(tracker)


def test_cause_that_is_told_after_the_vote_began_still_counts() -> None:
    """Another replica may notice first; then its vote comes before our own connection breaks."""
    tracker = FailoverTracker(ME)
    tracker.on_suspect(CHANNEL, OLD, UNKNOWN, heard_ms=None, now_ms=1_300)
    tracker.on_cause(NodeId("c@03"), LOST, 900)
    tracker.on_cause(OLD, LOST, 1_000)
    tracker.on_cause(OLD, MISSED, 1_100)
    tracker.on_elected(CHANNEL, Term(2), 1_340)
    tracker.on_write(CHANNEL, 1_350)
    record = tracker.on_read(CHANNEL, 1_350)
    assert record is not None
    assert (record.cause, record.detect_ms) == (LOST, 300)
