"""The one rule for how long an attempt at a node is waited for."""

from __future__ import annotations

from raftstore.client.cluster.topology import Leader
from raftstore.client.requests.attempt import LOOK_MS, Attempt, Patience, Verdict
from raftstore.client.settings import ClientSettings
from raftstore.types import Term, channel_id, node_id

CHANNEL = channel_id(b"u" * 16, 0)
A, B = node_id("a", b"a" * 16), node_id("b", b"b" * 16)
SETTINGS = ClientSettings(hedge_ms=50, suspect_ms=300)


class World:
    """The client's knowledge, set by the test."""

    def __init__(self) -> None:
        self.leader: Leader | None = None
        self.heard_ms = 0
        self.patience = Patience(SETTINGS, lambda _: self.leader, lambda _: self.heard_ms)

    def verdict(self, attempt: Attempt, now_ms: int, *, is_late: bool = False) -> Verdict:
        """Judge."""
        return self.patience.verdict(attempt, now_ms, is_late=is_late)


def at_replica(*, may_wait: bool = False) -> Attempt:
    """A read sent to a replica at second 1, with 5 s of time."""
    return Attempt(CHANNEL, A, 1.0, 6_000, may_wait=may_wait)


def at_leader() -> Attempt:
    """A read sent to the leader of term 3."""
    return Attempt(CHANNEL, A, 1.0, 6_000, Leader(A, Term(3)))


def test_silent_replica_is_left_after_a_moment() -> None:
    """It has said nothing to anybody for hedge_ms."""
    world = World()
    assert world.verdict(at_replica(), 1_049) is Verdict.WAIT
    assert world.verdict(at_replica(), 1_050) is Verdict.SILENT


def test_replica_that_answers_others_is_busy_and_not_left() -> None:
    """A busy cluster is not helped by asking twice."""
    world = World()
    world.heard_ms = 5_000
    assert world.verdict(at_replica(), 5_049) is Verdict.WAIT
    assert world.verdict(at_replica(), 5_050) is Verdict.SILENT


def test_late_look_says_nothing_of_silence() -> None:
    """A loop that is late has not read yet what was said meanwhile."""
    world = World()
    assert world.verdict(at_replica(), 1_400, is_late=True) is Verdict.WAIT
    assert not world.patience.is_late(1_000, 1_000 + LOOK_MS)
    assert world.patience.is_late(1_000, 1_001 + LOOK_MS)


def test_replica_that_waits_for_a_position_is_left_though_it_answers_others() -> None:
    """Others may have reached the position already."""
    world = World()
    world.heard_ms = 1_290
    assert world.verdict(at_replica(may_wait=True), 1_299) is Verdict.WAIT
    assert world.verdict(at_replica(may_wait=True), 1_300) is Verdict.SLOW
    assert world.verdict(at_replica(), 1_300) is Verdict.WAIT


def test_leader_is_left_for_one_of_a_later_term_only() -> None:
    """It has no substitute: when it is overdue the others are asked who leads."""
    world = World()
    assert world.verdict(at_leader(), 1_299) is Verdict.WAIT
    assert world.verdict(at_leader(), 1_300) is Verdict.OVERDUE
    world.leader = Leader(B, Term(3))
    assert world.verdict(at_leader(), 1_300) is Verdict.OVERDUE
    world.leader = Leader(B, Term(4))
    assert world.verdict(at_leader(), 1_001) is Verdict.SUCCEEDED


def test_no_attempt_outlives_its_deadline() -> None:
    """An attempt ends at its deadline whatever else is known, and the next look
    is planned for it.
    """
    world = World()
    world.heard_ms = 5_999
    for attempt in (at_replica(), at_replica(may_wait=True), at_leader()):
        assert world.verdict(attempt, 6_000, is_late=True) is Verdict.EXPIRED
        assert world.patience.next_look_ms(attempt, 5_990) == 6_000
        assert world.patience.next_look_ms(attempt, 2_000) == 2_000 + LOOK_MS
        assert world.patience.next_look_ms(attempt, 7_000) == 7_001
