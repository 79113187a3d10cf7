"""The time that a leader may write into records: its clock, held to those of a quorum (S10)."""

from __future__ import annotations

import pytest

from raftstore.engine.channel.quorum_clock import QuorumClock
from raftstore.types import ChannelConfig, NodeId

ME, F1, F2, STRANGER = NodeId("n1@1"), NodeId("n2@2"), NodeId("n3@3"), NodeId("n4@4")
NOW = 1_700_000_000_000
DAY = 86_400_000
AHEAD = 10_000
THREE = ChannelConfig(((ME, F1, F2),))


@pytest.mark.parametrize(
    ("mine", "others", "stamp"),
    [
        (NOW, {F1: NOW - 90, F2: NOW - 80}, NOW),
        (NOW, {F1: NOW + DAY, F2: NOW - 80}, NOW),
        (NOW, {F1: NOW - DAY, F2: NOW - 80}, NOW),
        (NOW + DAY, {F1: NOW - 90, F2: NOW - 80}, NOW - 80 + AHEAD),
        (NOW + DAY, {F1: NOW - 90, F2: 0}, NOW - 90 + AHEAD),
        (NOW - DAY, {F1: NOW - 90, F2: NOW - 80}, NOW - 90),
        (NOW + AHEAD, {F1: NOW, F2: NOW}, NOW + AHEAD),
        # Too few clocks are known: a write does not wait for them.
        (NOW + DAY, {F1: 0, F2: 0}, NOW + DAY),
        (NOW + DAY, {F1: 0, F2: 0, STRANGER: NOW}, NOW + DAY),
    ],
)
def test_single_clock_does_not_say_how_late_it_is(
    mine: int, others: dict[NodeId, int], stamp: int
) -> None:
    """The leader's own is believed within a bound above what a majority has reached."""
    clock = QuorumClock(ME, lambda: mine, lambda node: others.get(node, 0), AHEAD)
    assert clock.stamp_ms(THREE) == stamp


def test_replica_that_is_alone_goes_by_its_own_clock() -> None:
    """One voter is a majority of one."""
    clock = QuorumClock(ME, lambda: NOW + DAY, lambda node: 0, AHEAD)
    assert clock.stamp_ms(ChannelConfig(((ME,),))) == NOW + DAY


def test_leader_that_is_no_voter_has_no_say_in_what_a_quorum_reached() -> None:
    """A leader may be on its way out (M3): the voters' clocks count."""
    clock = QuorumClock(ME, lambda: NOW + DAY, lambda node: NOW, AHEAD)
    assert clock.stamp_ms(ChannelConfig(((F1, F2),))) == NOW + AHEAD
