"""Plans for leaders: as even as the replicas allow, bounded, and stable once they are done."""

from __future__ import annotations

import random
from collections import Counter
from itertools import product
from math import ceil

from hypothesis import given
from hypothesis import strategies as st

from raftstore.policy.leader_balance import LeaderMove, LedChannel, plan_moves
from raftstore.policy.placement import domain_of, place_table
from raftstore.types import ChannelId, NodeId, channel_id

NODES = [NodeId(f"n{number}@{number:02x}") for number in range(1, 8)]


def channel(number: int) -> ChannelId:
    return channel_id(b"t" * 16, number)


def led_by(leaders: list[NodeId], count: int = 3) -> list[LedChannel]:
    """Channels with replicas on all of so many nodes, placed in turn."""
    nodes = NODES[:count]
    return [
        LedChannel(channel(n), leader, tuple(nodes[n % count :] + nodes[: n % count]))
        for n, leader in enumerate(leaders)
    ]


@st.composite
def clusters(draw: st.DrawFn) -> tuple[list[LedChannel], list[NodeId]]:
    """Channels on any replicas, led by any of them, and the nodes that may take more."""
    count = draw(st.integers(2, 5))
    nodes = NODES[:count]
    channels: list[LedChannel] = []
    for number in range(draw(st.integers(0, 14))):
        replicas = draw(st.permutations(nodes))[: draw(st.integers(1, count))]
        leader = draw(st.sampled_from(replicas))
        may_move = draw(st.integers(0, 4)) > 0
        channels.append(LedChannel(channel(number), leader, tuple(replicas), may_move))
    return channels, draw(st.lists(st.sampled_from(nodes), unique=True, min_size=1))


def done(channels: list[LedChannel], moves: tuple[LeaderMove, ...]) -> list[LedChannel]:
    targets = {move.channel: move.target for move in moves}
    return [each._replace(leader=targets.get(each.channel, each.leader)) for each in channels]


def loads(channels: list[LedChannel]) -> Counter[NodeId]:
    return Counter(each.leader for each in channels)


def squares(channels: list[LedChannel]) -> int:
    return sum(led * led for led in loads(channels).values())


@given(clusters())
def test_a_plan_moves_only_what_may_move_to_replicas_that_may_lead(
    cluster: tuple[list[LedChannel], list[NodeId]],
) -> None:
    """Each channel once, from its leader; and nothing gets less even."""
    channels, nodes = cluster
    plan = plan_moves(channels, nodes)
    by_id = {each.channel: each for each in channels}
    assert len({move.channel for move in plan.moves}) == len(plan.moves)
    for move in plan.moves:
        led = by_id[move.channel]
        assert led.may_move
        assert move.source == led.leader != move.target
        assert move.target in nodes
        assert move.target in led.replicas
    assert Counter(plan.after) == loads(done(channels, plan.moves))
    assert squares(done(channels, plan.moves)) <= squares(channels)


def test_first_node_of_a_placement_that_leads_as_many_gets_no_more() -> None:
    """Evenness goes before the order of a placement."""
    one, other = NODES[:2]
    channels = [
        LedChannel(channel(0), one, (other, one)),
        LedChannel(channel(1), other, (other, one)),
    ]
    for domains in ({}, {one: "r1", other: "r1"}):
        assert plan_moves(channels, NODES[:2], domains=domains).moves == ()


@given(clusters())
def test_a_plan_that_is_done_has_nothing_left_to_move(
    cluster: tuple[list[LedChannel], list[NodeId]],
) -> None:
    """A second look finds nothing."""
    channels, nodes = cluster
    after = done(channels, plan_moves(channels, nodes).moves)
    assert plan_moves(after, nodes).moves == ()


@given(clusters(), st.randoms(), st.integers(1, 4))
def test_moves_done_a_few_at_a_time_in_any_order_come_to_an_end(
    cluster: tuple[list[LedChannel], list[NodeId]], rng: random.Random, at_once: int
) -> None:
    """Each look plans anew from what the last moves have made of it."""
    channels, nodes = cluster
    first = plan_moves(channels, nodes)
    moved = 0
    while (plan := plan_moves(channels, nodes)).moves:
        some = tuple(rng.sample(plan.moves, min(at_once, len(plan.moves))))
        channels = done(channels, some)
        moved += len(some)
        assert moved <= 2 * len(channels), "the moves undo each other"
    assert sorted(loads(channels).values()) == sorted(filter(None, first.after.values()))


@given(st.lists(st.sampled_from(NODES[:4]), max_size=7), st.data())
def test_no_other_choice_of_leaders_is_more_even(
    leaders: list[NodeId], data: st.DataObject
) -> None:
    """Against all choices there are, where replicas are on some of the nodes only."""
    channels = []
    for number, leader in enumerate(leaders):
        others = data.draw(st.lists(st.sampled_from(NODES[:4]), unique=True, max_size=2))
        replicas = tuple(dict.fromkeys((leader, *others)))
        channels.append(LedChannel(channel(number), leader, replicas))
    plan = plan_moves(channels, NODES[:4])
    best = min(
        sum(led * led for led in Counter(choice).values())
        for choice in product(*(each.replicas for each in channels))
    )
    assert squares(done(channels, plan.moves)) == best


@given(st.integers(1, 7), st.integers(0, 40), st.randoms())
def test_where_all_nodes_have_all_replicas_each_leads_its_share(
    count: int, partitions: int, rng: random.Random
) -> None:
    """The mean rounded up, at most; far from that counts as uneven."""
    nodes = NODES[:count]
    channels = led_by([rng.choice(nodes) for _ in range(partitions)], count)
    plan = plan_moves(channels, nodes)
    assert max(plan.after.values()) <= ceil(partitions / count)
    if max(plan.before.values()) > ceil(partitions / count) + 1:
        assert plan.is_uneven


def test_leaders_go_back_to_the_first_node_of_their_placement() -> None:
    """24 partitions, all led by one node: each goes where place_table wanted it."""
    nodes = NODES[:3]
    placement = place_table(partitions=24, replicas=3, nodes=nodes)
    channels = [LedChannel(channel(n), nodes[1], group) for n, group in enumerate(placement)]
    plan = plan_moves(channels, nodes)
    assert plan.is_uneven
    after = done(channels, plan.moves)
    assert all(each.leader == each.replicas[0] for each in after)
    assert plan.before == {nodes[0]: 0, nodes[1]: 24, nodes[2]: 0}
    assert plan.after == dict.fromkeys(nodes, 8)


def test_one_more_or_fewer_than_even_is_not_worth_a_move() -> None:
    """Two more or fewer are; a plan is made all the same, for an operator who asks."""
    one, two, three = NODES[:3]
    small = plan_moves(led_by([one] * 9 + [two] * 8 + [three] * 7), NODES[:3])
    assert small.moves  # who asks for it gets it
    assert not small.is_uneven
    assert plan_moves(led_by([one] * 9 + [two] * 9 + [three] * 6), NODES[:3]).is_uneven
    assert plan_moves(led_by([one] * 10 + [two] * 7 + [three] * 7), NODES[:3]).is_uneven


def test_a_node_without_the_replicas_is_reached_through_a_third_one() -> None:
    """The first node shares channels with the second one only, which shares some with the third."""
    one, two, three = NODES[:3]
    channels = [LedChannel(channel(n), one, (one, two)) for n in range(5)]
    channels += [LedChannel(channel(n), two, (two, three)) for n in range(5, 9)]
    channels += [LedChannel(channel(n), three, (three, two)) for n in range(9, 12)]
    plan = plan_moves(channels, NODES[:3])
    assert set(plan.after.values()) == {4}


def test_a_node_that_has_no_replica_does_not_keep_the_others_busy() -> None:
    """A node that has joined and hosts nothing yet is led past."""
    one, two, _, four = NODES[:4]
    channels = [LedChannel(channel(n), (one, two)[n % 2], (one, two)) for n in range(10)]
    plan = plan_moves(channels, (one, two, four))
    assert plan.moves == ()
    assert not plan.is_uneven


def test_the_most_unequal_nodes_come_first() -> None:
    """The first move is worth most."""
    one, two, three = NODES[:3]
    plan = plan_moves(led_by([two] * 9 + [one] * 12 + [three] * 0), NODES[:3])
    assert [(move.source, move.target) for move in plan.moves] == [(one, three)] * 5 + [
        (two, three)
    ] * 2


@given(clusters(), st.sampled_from(NODES[:5]))
def test_a_node_that_leaves_gives_all_that_others_may_lead(
    cluster: tuple[list[LedChannel], list[NodeId]], leaving: NodeId
) -> None:
    """It gets nothing, whatever is even then; and once it is done nothing is left to move."""
    channels, nodes = cluster
    plan = plan_moves(channels, nodes, (leaving,))
    assert leaving not in {move.target for move in plan.moves}
    assert plan.is_leaving == any(move.source == leaving for move in plan.moves)
    after = done(channels, plan.moves)
    others = set(nodes) - {leaving}
    for each in after:
        assert each.leader != leaving or not each.may_move or not others & set(each.replicas)
    assert plan_moves(after, nodes, (leaving,)).moves == ()


def test_a_single_leader_of_a_node_that_leaves_is_worth_a_move() -> None:
    """However even the cluster is."""
    one, two, three = NODES[:3]
    plan = plan_moves(led_by([one, two, three]), NODES[:3], (three,))
    assert plan.is_uneven
    assert [move.source for move in plan.moves] == [three]


# --- failure domains ------------------------------------------------------------------------------

NAMES = st.lists(st.sampled_from(["", "a", "b"]), min_size=7, max_size=7)


def off_shares(channels: list[LedChannel], domains: dict[NodeId, str], nodes: list[NodeId]) -> int:
    """How far domains are from leading what their nodes are of all nodes, squared and scaled."""
    led = Counter(domain_of(each.leader, domains) for each in channels)
    size = Counter(domain_of(node, domains) for node in nodes)
    return sum((led[name] * len(nodes) - len(channels) * size[name]) ** 2 for name in {*led, *size})


@given(clusters(), NAMES)
def test_domains_never_cost_evenness_and_a_plan_with_them_comes_to_an_end(
    cluster: tuple[list[LedChannel], list[NodeId]], drawn: list[str]
) -> None:
    """Nodes come first; a second look finds nothing, and no move alone would be better."""
    channels, nodes = cluster
    domains = {node: name for node, name in zip(NODES, drawn, strict=True) if name}
    without = done(channels, plan_moves(channels, nodes).moves)
    after = done(channels, plan_moves(channels, nodes, (), domains).moves)
    assert squares(after) == squares(without)
    assert plan_moves(after, nodes, (), domains).moves == ()
    every = sorted({*nodes, *(each.leader for each in channels)})
    best = off_shares(after, domains, every)
    for each in after:
        for node in each.replicas if each.may_move else ():
            if node in nodes:
                moved = [m._replace(leader=node) if m is each else m for m in after]
                if squares(moved) <= squares(after):
                    assert off_shares(moved, domains, every) >= best


def test_leaders_that_cannot_be_even_are_spread_over_failure_domains() -> None:
    """Two channels on four nodes of two racks: one is led in each."""
    racks = dict(zip(NODES[:4], "aabb", strict=True))
    channels = [
        LedChannel(channel(0), NODES[0], tuple(NODES[:4])),
        LedChannel(channel(1), NODES[1], (NODES[1], NODES[0], NODES[3], NODES[2])),
    ]
    plan = plan_moves(channels, NODES[:4], (), racks)
    assert {racks[each.leader] for each in done(channels, plan.moves)} == {"a", "b"}
    assert not plan.is_uneven  # that alone is not worth a moment without a leader
    assert plan_moves(channels, NODES[:4]).moves == ()


def test_a_failure_domain_is_reached_through_a_node_whose_own_number_stays() -> None:
    """Rack b leads one of four with four of six nodes, and shares no channel with rack a."""
    one, two, three = NODES[:3]
    racks = dict(zip(NODES[:6], "acbbbb", strict=True))
    channels = [LedChannel(channel(n), one, (one, two)) for n in range(2)]
    channels += [LedChannel(channel(2), two, (two, three)), LedChannel(channel(3), three, (three,))]
    plan = plan_moves(channels, NODES[:6], (), racks)
    assert {(move.source, move.target) for move in plan.moves} == {(one, two), (two, three)}
    assert (plan.after[one], plan.after[two], plan.after[three]) == (1, 1, 2)


def test_first_node_of_a_placement_leads_only_where_domains_stay_as_near_to_their_shares() -> None:
    """The node is preferred last."""
    racks = dict(zip(NODES[:4], "aabb", strict=True))
    channels = [
        LedChannel(channel(0), NODES[0], tuple(NODES[:4])),
        LedChannel(channel(1), NODES[2], (NODES[1], NODES[2])),
    ]
    assert plan_moves(channels, NODES[:4], (), racks).moves == ()
    [move] = plan_moves(channels, NODES[:4]).moves
    assert move == LeaderMove(channel(1), NODES[2], NODES[1])
