"""Leaders that stay for a while: just elected, or moved on purpose (``settled``)."""

from __future__ import annotations

from raftstore.config import RebalanceSettings
from raftstore.engine.leaders.settled import SettledLeaders
from raftstore.types import NodeId, channel_id

ONE, TWO, THREE = NodeId("n1@01"), NodeId("n2@02"), NodeId("n3@03")
CHANNEL, OTHER = channel_id(b"t" * 16, 0), channel_id(b"t" * 16, 1)
SETTINGS = RebalanceSettings(calm_ms=1_000, respect_ms=5_000)
UP = (ONE, TWO, THREE)


class Bench:
    """A channel that has been led by the first node for long."""

    def __init__(self) -> None:
        self.settled = SettledLeaders(SETTINGS)
        self.look(ONE, 0)

    def look(
        self,
        leader: NodeId | None,
        now_ms: int,
        *,
        up: tuple[NodeId, ...] = UP,
        is_planned: bool = False,
        replicas: tuple[NodeId, ...] = UP,
    ) -> None:
        """See this leader."""
        self.settled.look(CHANNEL, leader, now_ms, up=up, is_planned=is_planned, replicas=replicas)

    def may_move(self, now_ms: int) -> bool:
        """Whether the channel may be moved now."""
        return self.settled.may_move(CHANNEL, now_ms)


def test_leader_that_is_new_stays_for_a_moment() -> None:
    """So does one of a channel that was never seen."""
    bench = Bench()
    assert [bench.may_move(now_ms) for now_ms in (0, 999, 1_000)] == [False, False, True]
    assert not bench.settled.may_move(OTHER, 10_000)
    bench.look(TWO, 2_000, is_planned=True)
    assert [bench.may_move(now_ms) for now_ms in (2_999, 3_000)] == [False, True]


def test_channel_without_a_leader_is_not_moved() -> None:
    """It counts from the moment at which it has one again, the same one or another."""
    bench = Bench()
    bench.look(None, 4_000)
    bench.look(ONE, 4_500)
    assert [bench.may_move(now_ms) for now_ms in (4_999, 5_000)] == [False, True]


def test_leadership_that_a_live_node_gave_away_stays_for_longer() -> None:
    """As by an operator's step-down; and the node gets no other leadership meanwhile."""
    bench = Bench()
    bench.look(TWO, 2_000)
    assert [bench.may_move(now_ms) for now_ms in (3_000, 6_999, 7_000)] == [False, False, True]
    assert bench.settled.relieved(6_999) == {ONE}
    assert bench.settled.relieved(7_000) == set()


def test_leadership_that_goes_with_its_replica_was_asked_for_by_nobody() -> None:
    """As where a rebalance takes the leader's replica away, of which the catalog gets to know a
    moment later: else a node that joined would not get its share for ``respect_ms``."""
    bench = Bench()
    bench.look(TWO, 2_000)
    assert bench.settled.relieved(2_000) == {ONE}
    bench.look(TWO, 2_100, replicas=(TWO, THREE))
    assert bench.settled.relieved(2_100) == set()
    assert [bench.may_move(now_ms) for now_ms in (2_999, 3_000)] == [False, True]


def test_second_step_down_within_a_moment_is_respected_too() -> None:
    """An operator who tries another node is still one."""
    bench = Bench()
    bench.look(TWO, 2_000)
    bench.look(THREE, 2_100)
    assert [bench.may_move(now_ms) for now_ms in (7_099, 7_100)] == [False, True]
    assert bench.settled.relieved(2_200) == {TWO}


def test_leadership_of_a_node_that_died_may_go_back_to_it() -> None:
    """Its death says nothing of where its channels belong."""
    bench = Bench()
    bench.look(TWO, 2_000, up=(TWO, THREE))
    assert bench.may_move(3_000)
    assert bench.settled.relieved(2_100) == set()


def test_leaders_of_a_new_channel_that_follow_each_other_were_moved_by_no_one() -> None:
    """Elections of the first moment."""
    bench = Bench()
    bench.look(TWO, 900)
    assert bench.may_move(1_900)


def test_leadership_that_the_planner_moved_may_be_moved_again() -> None:
    """Likewise the node that gave it is given others."""
    bench = Bench()
    bench.look(TWO, 2_000, is_planned=True)
    assert bench.may_move(3_000)
    assert bench.settled.relieved(2_100) == set()


def test_nodes_that_come_or_go_end_what_is_respected() -> None:
    """Leaders are to be even soon after a restart, whatever was moved before."""
    bench = Bench()
    bench.look(TWO, 2_000)
    bench.settled.nodes_changed()
    assert bench.may_move(3_000)
    assert bench.settled.relieved(3_000) == set()


def test_channels_of_dropped_tables_are_forgotten() -> None:
    """Others are kept."""
    bench = Bench()
    bench.settled.look(OTHER, ONE, 0, up=UP, is_planned=False, replicas=UP)
    bench.settled.forget_unless({OTHER: None})
    assert not bench.may_move(2_000)
    assert bench.settled.may_move(OTHER, 2_000)
    bench.settled.clear()
    assert not bench.settled.may_move(OTHER, 2_000)
