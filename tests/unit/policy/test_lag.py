"""The lag table: highest known commit minus applied, and unknown when in doubt (S7.3)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raftstore.policy.lag import LagInfo, LagTable, known_lag
from raftstore.protocol.node import ChannelPosition
from raftstore.types import NodeId, Seq, Term, channel_id

CHANNEL = channel_id(b"t" * 16, 0)
LEADER, NEAR, FAR = NodeId("a@01"), NodeId("b@02"), NodeId("c@03")
AGE_MAX_MS = 10_000


def position(applied: int, commit: int, *, leader: bool = False, term: int = 1) -> ChannelPosition:
    """A replica's report of itself."""
    return ChannelPosition(CHANNEL, Term(term), leader, Seq(applied), Seq(commit), Seq(commit), b"")


def reported() -> LagTable:
    """A leader at 15, one replica at 10, one at 0, all reported at 1,000."""
    table = LagTable(leader_info_age_max_ms=AGE_MAX_MS)
    table.on_positions(LEADER, [position(15, 15, leader=True)], 1_000)
    table.on_positions(NEAR, [position(10, 12)], 1_000)
    table.on_positions(FAR, [position(0, 0)], 1_000)
    return table


def test_lag_is_the_highest_reported_commit_minus_applied() -> None:
    """KLIP-36 with the numbers of the ksqlDB article (BLOG-15)."""
    table = reported()
    assert [table.lag(node, CHANNEL, 1_000) for node in (LEADER, NEAR, FAR)] == [0, 5, 15]
    assert table.end_seq(CHANNEL) == 15
    assert table.lag_info(NEAR, CHANNEL) == LagInfo(Seq(10), Seq(15), 5)


def test_lag_is_never_negative() -> None:
    """A replica that is ahead of every report is not ahead of the channel."""
    table = reported()
    table.on_positions(NEAR, [position(20, 12)], 1_000)
    assert table.lag(NEAR, CHANNEL, 1_000) == 0


def test_lag_is_unknown_for_a_replica_that_never_reported() -> None:
    """S7.3: no information is infinite lag, not none."""
    table = reported()
    assert table.lag(NodeId("d@04"), CHANNEL, 1_000) is None
    assert table.lag_info(NodeId("d@04"), CHANNEL) is None
    other = channel_id(b"t" * 16, 1)
    assert table.lag(NEAR, other, 1_000) is None
    assert table.end_seq(other) == 0
    assert table.leader(other) == (None, 0)
    assert table.leader_info_age_ms(other, 1_000) is None


def test_lag_is_unknown_when_no_leader_was_ever_heard() -> None:
    """S7.3: replicas that know only each other cannot know how far the channel went."""
    table = LagTable(leader_info_age_max_ms=AGE_MAX_MS)
    table.on_positions(NEAR, [position(10, 10)], 0)
    assert table.lag(NEAR, CHANNEL, 0) is None


@pytest.mark.parametrize(("age_ms", "lag"), [(AGE_MAX_MS, 5), (AGE_MAX_MS + 1, None)])
def test_lag_is_unknown_when_word_of_the_leader_is_too_old(age_ms: int, lag: int | None) -> None:
    """S7.3: old leader information is infinite lag, however small the difference."""
    assert reported().lag(NEAR, CHANNEL, 1_000 + age_ms) == lag


def test_lag_is_unknown_when_only_a_leader_of_the_past_goes_on_talking() -> None:
    """S7.3: a deposed leader's word does not keep the information fresh."""
    table = reported()
    table.on_positions(NEAR, [position(15, 15, leader=True, term=2)], 2_000)
    table.on_positions(LEADER, [position(99, 99, leader=True, term=1)], 13_000)
    assert table.leader(CHANNEL) == (NEAR, 2)
    assert table.lag(NEAR, CHANNEL, 13_000) is None


def test_positions_of_a_restarted_node_are_what_it_says_now() -> None:
    """A node may come back with less than it had; its newest report counts."""
    table = reported()
    table.on_positions(NEAR, [position(3, 3)], 2_000)
    assert table.lag(NEAR, CHANNEL, 2_000) == 12


@given(
    st.lists(
        st.tuples(st.sampled_from([LEADER, NEAR, FAR]), st.integers(0, 50), st.integers(0, 50)),
        min_size=1,
    )
)
def test_end_never_goes_back_and_lag_is_its_distance(reports: list[tuple]) -> None:
    """Given reports in any order, the end is their maximum and a lag is never below 0."""
    table = LagTable(leader_info_age_max_ms=AGE_MAX_MS)
    applied: dict[NodeId, int] = {}
    end = 0
    for node, at, commit in reports:
        table.on_positions(node, [position(at, commit, leader=node == LEADER)], 0)
        applied[node] = at
        end = max(end, commit)
        assert table.end_seq(CHANNEL) == end
    for node, at in applied.items():
        expected = max(0, end - at) if LEADER in applied else None
        assert table.lag(node, CHANNEL, 0) == expected


@pytest.mark.parametrize(
    ("applied", "age_ms", "lag"),
    [(7, 0, 3), (7, AGE_MAX_MS, 3), (7, AGE_MAX_MS + 1, None), (7, None, None), (12, 0, 0)],
)
def test_lag_is_one_rule_for_all_callers(applied: int, age_ms: int | None, lag: int) -> None:
    """S7.3: reads, status and clients count alike; unknown and too old are None, never a number."""
    assert known_lag(Seq(10), Seq(applied), age_ms, AGE_MAX_MS) == lag
