"""Replicas come and go until every partition of a table has the number that it is to have."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from raftstore.policy.evacuation import HostedChannel
from raftstore.policy.open_moves import MOVES_OF_TAKER_MAX, MOVES_OPEN_MIN, moves_at_once
from raftstore.policy.placement import crowded
from raftstore.policy.replica_counts import CountChange, CountedNodes, plan_counts
from raftstore.types import ChannelId, NodeId

N1, N2, N3, N4, N5 = NODES = tuple(NodeId(f"n{number}") for number in range(1, 6))


def channel(number: int) -> ChannelId:
    """One of a table."""
    return ChannelId(bytes([number]) * 18)


def planned(
    *channels: HostedChannel,
    to: int,
    takers: tuple[NodeId, ...] = NODES,
    leaving: tuple[NodeId, ...] = (),
    down: tuple[NodeId, ...] = (),
    domains: dict[NodeId, str] | None = None,
    leader: NodeId | None = N1,
) -> list[CountChange]:
    """The orders for channels that are all to have so many replicas."""
    able = [node for node in takers if node not in down]
    nodes = CountedNodes(able, leaving, lambda node: node not in down, domains or {})
    wanted = {each.channel: to for each in channels}
    return plan_counts(channels, wanted, nodes, lambda _: leader)


def test_one_replica_comes_at_a_time_to_the_node_with_the_fewest() -> None:
    """Each of them copies the table."""
    busy = HostedChannel(channel(9), (N4,))
    first = HostedChannel(channel(1), (N1, N2, N3))
    nodes = CountedNodes(NODES, (), lambda _: True)
    [order] = plan_counts([busy, first], {channel(1): 5}, nodes, lambda _: N1)
    assert order == CountChange(channel(1), (N1, N2, N3, N5), ())
    [order] = planned(first._replace(voters=(N1, N2, N3, N5)), to=5)
    assert order.voters == (N1, N2, N3, N5, N4)
    assert planned(first._replace(voters=NODES), to=5) == []


def test_learners_stay_and_their_nodes_are_not_free() -> None:
    """An operator has ordered them."""
    one = HostedChannel(channel(1), (N1, N2), (N3,))
    [order] = planned(one, to=3)
    assert order == CountChange(channel(1), (N1, N2, N4), (N3,))
    assert planned(one, to=3, takers=(N1, N2, N3)) == []
    elsewhere = HostedChannel(channel(9), (N4,), has_order=True)
    assert planned(one, elsewhere, to=3, takers=(N1, N2, N3)) == []  # N4 takes nothing


def test_replica_comes_to_a_failure_domain_that_has_none() -> None:
    """Before the number of replicas that nodes have."""
    domains = {N1: "a", N2: "b", N3: "a", N4: "b", N5: "c"}
    loaded = [HostedChannel(channel(n), (N5,), has_order=True) for n in (8, 9)]
    one = HostedChannel(channel(1), (N1, N2))
    nodes = CountedNodes(NODES, (), lambda _: True, domains)
    [order] = plan_counts([*loaded, one], {channel(1): 3}, nodes, lambda _: N1)
    assert order.voters == (N1, N2, N5)


def test_worst_placed_replica_goes_and_the_leader_stays() -> None:
    """Doubles of a failure domain first, then the node with the most replicas."""
    loaded = HostedChannel(channel(9), (N2,), has_order=True)
    one = HostedChannel(channel(1), (N1, N2, N3))
    nodes = CountedNodes(NODES, (), lambda _: True)
    [order] = plan_counts([loaded, one], {channel(1): 2}, nodes, lambda _: N1)
    assert order.voters == (N1, N3)
    domains = {N1: "a", N2: "b", N3: "a"}
    nodes = nodes._replace(domains=domains)
    [order] = plan_counts([loaded, one], {channel(1): 2}, nodes, lambda _: N1)
    assert order.voters == (N1, N2)
    [order] = plan_counts([loaded, one], {channel(1): 2}, nodes, lambda _: N3)
    assert order.voters == (N2, N3)
    [order] = planned(HostedChannel(channel(1), (N1, N2)), to=1, leader=N2)
    assert order.voters == (N2,)


def test_replica_on_a_node_that_leaves_or_is_down_goes_first() -> None:
    """It would go anyway, or is worth the least."""
    one = HostedChannel(channel(1), NODES)
    [order] = planned(one, to=3, down=(N2,))
    assert order.voters == (N1, N3, N4, N5)
    [order] = planned(one, to=3, leaving=(N1,), down=(N2,))
    assert order.voters == (N2, N3, N4, N5)


def test_replica_never_goes_where_the_rest_would_have_no_live_majority() -> None:
    """The channel waits for its nodes."""
    one = HostedChannel(channel(1), (N1, N2, N3))
    assert planned(one, to=2, down=(N2, N3)) == []
    [order] = planned(one, to=2, down=(N2,))
    assert order.voters == (N1, N3)
    [order] = planned(one, to=2, leaving=(N3,))
    assert order.voters == (N1, N2)
    # Without N3, which leaves, one of the two that are left would be down.
    [order] = planned(one, to=2, leaving=(N3,), down=(N2,))
    assert order.voters == (N1, N3)


def test_few_channels_change_at_a_time() -> None:
    """Orders of others count, and no channel gets a second one."""
    many = [HostedChannel(channel(number), (N1, N2, N3)) for number in range(9)]
    orders = planned(*many, to=4)
    assert [order.channel for order in orders] == [channel(n) for n in range(MOVES_OPEN_MIN)]
    assert Counter(order.voters[3] for order in orders) == {N4: 2, N5: 2}
    under_way = [each._replace(has_order=number < 3) for number, each in enumerate(many)]
    assert [order.channel for order in planned(*under_way, to=4)] == [channel(3)]


@given(
    st.lists(st.permutations(NODES), min_size=1, max_size=6),
    st.lists(st.integers(1, 5), min_size=1, max_size=4),
    st.lists(st.sampled_from(["", "a", "b"]), min_size=5, max_size=5),
    st.sampled_from(NODES),
)
def test_any_series_of_numbers_ends_in_the_last_one(
    drawn: list[list[NodeId]], numbers: list[int], named: list[str], leader: NodeId
) -> None:
    """Each order changes one replica; the leader stays where another may go; in the end there are
    no more orders, and what came last was spread over the failure domains."""
    domains = {node: name for node, name in zip(NODES, named, strict=True) if name}
    hosted = {
        channel(n): HostedChannel(channel(n), tuple(order[:3])) for n, order in enumerate(drawn)
    }
    for to in numbers:
        for _ in range(4 * len(drawn) + 1):
            orders = planned(*hosted.values(), to=to, domains=domains, leader=leader)
            for order in orders:
                before = set(hosted[order.channel].voters)
                assert len(before ^ set(order.voters)) == 1
                assert leader not in before - set(order.voters) or len(before) == 1
                if set(order.voters) > before and crowded(tuple(before), NODES, domains) is None:
                    assert crowded(order.voters, NODES, domains) is None
                hosted[order.channel] = HostedChannel(order.channel, order.voters)
        assert orders == []
        assert {len(each.voters) for each in hosted.values()} == {to}


def test_witness_goes_first_and_the_last_table_never() -> None:
    """A witness has no rows: what it counts is not worth a table."""
    one = HostedChannel(channel(1), (N1, N2, N3), witnesses=(N1,))
    [order] = planned(one, to=2, leader=N2)
    assert order == CountChange(channel(1), (N2, N3), ())
    one = HostedChannel(channel(1), (N1, N2, N3), witnesses=(N1, N3))
    [order] = planned(one, to=2, leader=N2)
    assert (order.voters, order.witnesses) == ((N1, N2), (N1,))
    one = HostedChannel(channel(1), (N1, N2), witnesses=(N1,))
    assert planned(one, to=1, leaving=(N2,), leader=N2)[0].voters == (N2,)
    [order] = planned(one, to=3, leader=N2)
    assert (order.voters, order.witnesses) == ((N1, N2, N3), (N1,))


def test_channel_that_cannot_be_changed_holds_up_no_other() -> None:
    """No node is free for it, or the one that is gets enough already."""
    full = HostedChannel(channel(1), (N1, N2))
    other = HostedChannel(channel(2), (N1, N3))
    [order] = planned(full, other, to=3, takers=(N1, N2))
    assert (order.channel, order.voters) == (channel(2), (N1, N3, N2))
    nodes = [NodeId(f"m{number}") for number in range(10)]
    many = [HostedChannel(channel(number), tuple(nodes[:9])) for number in range(8)]
    able = CountedNodes(nodes, (), lambda _: True)
    orders = plan_counts(many, {each.channel: 10 for each in many}, able, lambda _: nodes[0])
    assert len(orders) == MOVES_OF_TAKER_MAX < moves_at_once(len(nodes))
