"""Where replicas go whose nodes leave: one of each channel at a time, to who has the fewest."""

from __future__ import annotations

from raftstore.policy.evacuation import (
    Evacuation,
    HostedChannel,
    plan_evacuations,
)
from raftstore.policy.open_moves import MOVES_OPEN_MIN
from raftstore.types import ChannelId, NodeId

N1, N2, N3, N4, N5 = (NodeId(f"n{number}") for number in range(1, 6))


def channel(number: int) -> ChannelId:
    """One of a table."""
    return ChannelId(bytes([number]) * 18)


def test_replica_goes_to_the_node_that_takes_the_place() -> None:
    """M29: the new store under the old name; the order of the placement stays."""
    hosted = [HostedChannel(channel(1), (N1, N3, N2))]
    [order] = plan_evacuations(hosted, {N3: N5}, (N1, N2, N4, N5))
    assert order == Evacuation(channel(1), (N1, N5, N2), (), N3)


def test_replicas_are_spread_over_the_nodes_with_the_fewest() -> None:
    """Replicas that are planned count, too."""
    hosted = [HostedChannel(channel(number), (N1, N2, N3)) for number in range(4)]
    orders = plan_evacuations(hosted, {N3: None}, (N1, N2, N4, N5))
    assert [order.voters[2] for order in orders] == [N4, N5, N4, N5]


def test_replica_that_is_on_its_way_to_a_node_counts() -> None:
    """Its leader has not reported it yet, and the next one goes elsewhere."""
    hosted = [HostedChannel(channel(number), (N1, N2, N3)) for number in range(3)]
    hosted[0] = hosted[0]._replace(has_order=True, takes=(N4,))
    orders = plan_evacuations(hosted, {N3: None}, (N1, N2, N4, N5))
    assert [order.voters[2] for order in orders] == [N5, N4]
    hosted[0] = hosted[0]._replace(voters=(N1, N2, N3, N4))
    orders = plan_evacuations(hosted, {N3: None}, (N1, N2, N4, N5))
    assert [order.voters[2] for order in orders] == [N5, N4], "once, once it is reported"


def test_named_node_that_is_away_or_has_a_replica_is_not_waited_for() -> None:
    """Another one makes the channel whole."""
    hosted = [HostedChannel(channel(1), (N1, N2, N3))]
    [order] = plan_evacuations(hosted, {N3: N5}, (N1, N2, N4))
    assert order.voters == (N1, N2, N4)
    [order] = plan_evacuations([HostedChannel(channel(1), (N1, N5, N3))], {N3: N5}, (N1, N4, N5))
    assert order.voters == (N1, N5, N4)


def test_few_channels_move_at_a_time_and_each_once() -> None:
    """Each copies a table; an order that is open is not given again."""
    hosted = [HostedChannel(channel(number), (N1, N2, N3)) for number in range(9)]
    orders = plan_evacuations(hosted, {N3: N4}, (N1, N2, N4))
    assert [order.channel for order in orders] == [channel(n) for n in range(MOVES_OPEN_MIN)]
    moving = [each._replace(has_order=number < 3) for number, each in enumerate(hosted)]
    orders = plan_evacuations(moving, {N3: N4}, (N1, N2, N4))
    assert [order.channel for order in orders] == [channel(3)]
    full = [each._replace(has_order=number < 5) for number, each in enumerate(hosted)]
    assert plan_evacuations(full, {N3: N4}, (N1, N2, N4)) == []


def test_channel_with_a_replica_on_every_node_waits() -> None:
    """The number of replicas is the table's: none goes without another in its place."""
    hosted = [HostedChannel(channel(1), (N1, N2, N3))]
    assert plan_evacuations(hosted, {N3: None}, (N1, N2)) == []
    assert plan_evacuations(hosted, {}, (N1, N2, N4)) == []


def test_learner_that_leaves_needs_nobody_in_its_place() -> None:
    """It never voted; a voter that leaves goes first."""
    hosted = [HostedChannel(channel(1), (N1, N2), (N3,))]
    [order] = plan_evacuations(hosted, {N3: None}, (N1, N2, N4))
    assert (order.voters, order.learners) == ((N1, N2), ())
    [order] = plan_evacuations(hosted, {N3: None, N2: None}, (N1, N4))
    assert (order.voters, order.learners) == ((N1, N4), (N3,))


def test_replica_goes_to_a_failure_domain_that_has_none_of_the_others() -> None:
    """Before the number of replicas; who takes a place by name takes it wherever it is."""
    domains = {N1: "a", N2: "b", N3: "c", N4: "a", N5: "c"}
    hosted = [
        HostedChannel(channel(1), (N1, N2, N3)),
        HostedChannel(channel(2), (N5, N2), has_order=True),
    ]
    [order] = plan_evacuations(hosted, {N3: None}, (N1, N2, N4, N5), domains)
    assert order.voters == (N1, N2, N5)
    [order] = plan_evacuations(hosted, {N3: N4}, (N1, N2, N4, N5), domains)
    assert order.voters == (N1, N2, N4)


def test_domain_of_a_node_that_leaves_is_free() -> None:
    """Its replica goes, too."""
    domains = {N1: "a", N2: "b", N3: "c", N4: "b", N5: "a"}
    hosted = [HostedChannel(channel(1), (N1, N2, N3))]
    [order] = plan_evacuations(hosted, {N3: None, N1: None}, (N2, N4, N5), domains)
    assert order.voters == (N5, N2, N3)
