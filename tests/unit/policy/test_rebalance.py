"""Plans that make the replicas of nodes even: goals in their order, few moves, an end."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from raftstore.policy.placement import place_table
from raftstore.policy.rebalance import (
    BYTES_PERCENT,
    PARTNERS_MAX,
    ClusterNodes,
    PlacedChannel,
    RebalancePlan,
    _ReplicaBoard,
    plan_rebalance,
)
from raftstore.types import ChannelId, NodeId

A, B, C, D, E, F = (NodeId(f"n{number}@{number:032x}") for number in range(1, 7))


def channel(number: int) -> ChannelId:
    """A channel's id."""
    return ChannelId(number.to_bytes(20, "big"))


def placed(*voters: tuple[NodeId, ...], sizes: tuple[int, ...] = ()) -> list[PlacedChannel]:
    """Channels with these voters, the first one preferred."""
    return [
        PlacedChannel(channel(number), each, table_bytes=sizes[number] if sizes else 0)
        for number, each in enumerate(voters)
    ]


def done(channels: list[PlacedChannel], plan: RebalancePlan) -> list[PlacedChannel]:
    """The channels once all moves are done."""
    moved = {move.after.channel: move.after for move in plan.moves}
    return [moved.get(each.channel, each) for each in channels]


def counts(channels: list[PlacedChannel]) -> Counter[NodeId]:
    """Replicas of each node."""
    return Counter(node for each in channels for node in (*each.voters, *each.learners))


def test_even_nodes_have_an_empty_plan() -> None:
    """A difference of one is none."""
    channels = placed((A, B, C), (B, C, A), (A, B, C), (D, B, C))
    plan = plan_rebalance(channels[:3], ClusterNodes((A, B, C)))
    assert (plan.moves, plan.before, plan.crowded_after) == ((), plan.after, 0)
    assert plan_rebalance([], ClusterNodes(())).moves == ()


def test_new_node_gets_its_share_with_no_more_moves_than_that_takes() -> None:
    """Twelve replicas on three nodes, and a fourth one: three of them move, one of each channel."""
    channels = placed(*((A, B, C),) * 4)
    plan = plan_rebalance(channels, ClusterNodes((A, B, C, D)))
    assert set(counts(done(channels, plan)).values()) == {3}
    assert len(plan.moves) == 3
    assert {target for move in plan.moves for _, target in move.hops} == {D}
    assert plan.after[D].replicas == 3


@pytest.mark.parametrize(("nodes", "partitions", "uneven"), [(12, 100, 0), (9, 60, 0), (7, 70, 2)])
def test_no_more_replicas_are_copied_than_the_nodes_below_their_share_lack(
    nodes: int, partitions: int, uneven: int
) -> None:
    """Each copy costs: a node that gave more than its surplus would be given as many again.
    ``uneven``: so many of the nodes joined when two thirds of the table were placed."""
    names = [NodeId(f"m{number:02}") for number in range(nodes)]
    early = names[: nodes - uneven]
    channels = placed(
        *place_table(partitions=partitions * 2 // 3, replicas=3, nodes=early),
        *place_table(partitions=partitions - partitions * 2 // 3, replicas=3, nodes=names),
    )
    plan = plan_rebalance(channels, ClusterNodes((*names, NodeId("new"))))
    held, share = counts(channels), partitions * 3 // (nodes + 1)
    after = counts(done(channels, plan))
    assert set(after.values()) <= {share, share + 1}
    assert all(after[node] <= held[node] for node in held if held[node] > share)
    copies = [hop for move in plan.moves for hop in move.hops]
    assert len(copies) == sum(max(0, after[node] - held[node]) for node in after)


def test_node_that_leaves_gives_everything_away_learners_too() -> None:
    """FIP-23 permanent_offline: the node may be dead; nothing goes there."""
    channels = placed((A, B, C), (A, B, D))
    channels.append(PlacedChannel(channel(9), (B, C), (A,)))
    plan = plan_rebalance(channels, ClusterNodes((B, C, D), leaving=(A,)))
    after = done(channels, plan)
    assert counts(after)[A] == 0
    assert plan.after[A].replicas == 0
    assert after[2].learners == (D,)
    assert plan.staying == ()


def test_replica_that_has_nowhere_to_go_stays_and_is_named() -> None:
    """Three replicas on three nodes: one cannot leave."""
    channels = placed((A, B, C))
    plan = plan_rebalance(channels, ClusterNodes((B, C), leaving=(A,)))
    assert (plan.moves, plan.staying) == ((), ((channel(0), A),))


def test_node_that_is_away_for_a_while_gets_nothing_and_loses_nothing() -> None:
    """FIP-23 temporary_offline: it is neither among the takers nor leaving."""
    channels = placed((A, B, C), (A, B, C), (A, B, C))
    plan = plan_rebalance(channels, ClusterNodes((B, C, D)))
    after = done(channels, plan)
    assert counts(after)[A] == 3
    assert counts(after)[D] == 2


def test_failure_domains_come_before_even_counts() -> None:
    """Two racks and a lone node in the third: it holds a replica of every channel."""
    domains = {A: "r1", B: "r1", C: "r2", D: "r2", E: "r3"}
    channels = placed((A, B, C), (A, C, D), (B, C, D))
    plan = plan_rebalance(channels, ClusterNodes((A, B, C, D, E), domain_of=domains))
    after = done(channels, plan)
    assert (plan.crowded_before, plan.crowded_after) == (3, 0)
    assert all(len({domains[node] for node in each.voters}) == 3 for each in after)
    assert counts(after)[E] == 3
    assert all(len(move.hops) == 1 for move in plan.moves)


def test_counts_stay_uneven_where_evening_them_would_crowd_a_domain() -> None:
    """The only node of its rack keeps a replica of every channel."""
    domains = {A: "r1", B: "r1", C: "r2"}
    channels = placed(*((A, C),) * 4)
    plan = plan_rebalance(channels, ClusterNodes((A, B, C), domain_of=domains))
    assert counts(done(channels, plan)) == {A: 2, B: 2, C: 4}
    assert plan.crowded_after == 0


def test_bytes_are_levelled_and_the_counts_stay() -> None:
    """Two large tables on the same three nodes change places with small ones."""
    sizes = (1_000, 1_000, 10, 10)
    channels = placed((A, B, C), (A, B, C), (D, E, F), (D, E, F), sizes=sizes)
    nodes = ClusterNodes((A, B, C, D, E, F))
    assert plan_rebalance(channels, nodes).moves == ()  # not worth a copy
    plan = plan_rebalance(channels, nodes, bytes_min=0)
    assert {share.replicas for share in plan.after.values()} == {2}
    assert {share.table_bytes for share in plan.after.values()} == {1_010}
    assert sum(move.bytes_to_copy for move in plan.moves) == 3 * 1_010


def test_small_differences_in_bytes_move_nothing() -> None:
    """Copies cost, and tables grow."""
    channels = placed((A,), (B,), sizes=(100, 100 - BYTES_PERCENT + 1))
    assert plan_rebalance(channels, ClusterNodes((A, B)), bytes_min=0).moves == ()


def test_moved_channels_prefer_the_node_that_is_preferred_by_the_fewest() -> None:
    """Goal of leaders: it costs no copy, and changes nothing of channels that stay."""
    channels = placed((A, B, C), (A, B, C), (A, C, B), (A, C, B))
    plan = plan_rebalance(channels, ClusterNodes((A, B, C, D)))
    firsts = Counter(each.voters[0] for each in done(channels, plan))
    assert max(firsts.values()) <= 2
    stays = {each.channel for each in channels} - {move.after.channel for move in plan.moves}
    assert all(each in done(channels, plan) for each in channels if each.channel in stays)


def test_channel_with_an_open_order_is_left_alone() -> None:
    """Its replicas are being changed."""
    channels = [each._replace(may_move=False) for each in placed((A, B, C), (A, B, C))]
    nodes = ClusterNodes((B, C, D), leaving=(A,))
    assert plan_rebalance(channels, nodes).moves == ()


@pytest.mark.slow
@pytest.mark.parametrize("racks", [1, 2, 3])
def test_many_channels_are_planned_in_a_moment(racks: int) -> None:
    """A thousand channels of three replicas on nine of ten nodes."""
    nodes = [NodeId(f"m{number}@{number:032x}") for number in range(10)]
    domains = {node: f"r{number % racks}" for number, node in enumerate(nodes) if racks > 1}
    groups = [tuple(nodes[(number + each) % 9] for each in range(3)) for number in range(1_000)]
    plan = plan_rebalance(placed(*groups), ClusterNodes(nodes, domain_of=domains))
    held = [share.replicas for share in plan.after.values()]
    assert max(held) - min(held) <= 1 or racks > 1
    assert plan.crowded_after <= plan.crowded_before


@st.composite
def clusters(draw: st.DrawFn) -> tuple[list[PlacedChannel], ClusterNodes]:
    """Channels anywhere, nodes that take, leave or do neither, and their domains."""
    size = draw(st.integers(1, 7))
    nodes = [NodeId(f"n{number}@{number:032x}") for number in range(size)]
    channels = []
    for number in range(draw(st.integers(0, 14))):
        voters = draw(st.permutations(nodes))[: draw(st.integers(1, min(4, size)))]
        spare = [node for node in nodes if node not in voters]
        learners = draw(st.permutations(spare))[: draw(st.integers(0, min(1, len(spare))))]
        channels.append(
            PlacedChannel(
                channel(number), tuple(voters), tuple(learners),
                draw(st.integers(0, 500)), draw(st.integers(0, 5)) > 0,
            )
        )  # fmt: skip
    takers = [node for node in nodes if draw(st.integers(0, 4))]
    leaving = [node for node in nodes if node not in takers and draw(st.booleans())]
    domains = {node: draw(st.sampled_from(["", "r1", "r2", "r3"])) for node in nodes}
    return channels, ClusterNodes(takers, leaving, domains)


def goals(channels: list[PlacedChannel], nodes: ClusterNodes) -> tuple[int, ...]:
    """Numbers that a plan makes less, the most important first."""
    held = counts(channels)
    stay = sum(held[node] for node in nodes.leaving)
    members = [(*each.voters, *each.learners) for each in channels]
    crowded = sum(len(each) - len({nodes.domain(node) for node in each}) for each in members)
    uneven = sum(held[node] ** 2 for node in nodes.takers)
    return stay, crowded, uneven


@pytest.mark.slow
@settings(max_examples=100, deadline=None)
@given(clusters())
def test_plan_never_makes_a_goal_worse_for_a_later_one_and_a_second_one_is_empty(
    cluster: tuple[list[PlacedChannel], ClusterNodes],
) -> None:
    """Also: nobody votes twice, nothing goes to a node that takes nothing, numbers stay."""
    channels, nodes = cluster
    plan = plan_rebalance(channels, nodes, bytes_min=0)
    after = done(channels, plan)
    for move in plan.moves:
        old, new = move.before, move.after
        assert old.may_move
        assert (len(new.voters), len(new.learners)) == (len(old.voters), len(old.learners))
        assert len({*new.voters, *new.learners}) == len(new.voters) + len(new.learners)
        for source, target in move.hops:
            assert target in nodes.takers
            assert source in nodes.takers or source in nodes.leaving
    before_goals, after_goals = goals(channels, nodes), goals(after, nodes)
    if before_goals[0] == after_goals[0]:
        assert after_goals <= before_goals
    else:
        assert after_goals[0] < before_goals[0]
    assert plan_rebalance(after, nodes, bytes_min=0).moves == ()
    assert plan_rebalance(list(reversed(channels)), nodes, bytes_min=0) == plan


def looked_at(monkeypatch: pytest.MonkeyPatch, nodes: int) -> int:
    """How often a plan asks whether a replica may go somewhere: ten on each node, in three failure
    domains of which one has half of the nodes, so that many are uneven for ever."""
    calls = 0
    real = _ReplicaBoard._may_go_to

    def counting(self: _ReplicaBoard, channel: ChannelId, source: NodeId, domain: str) -> bool:
        nonlocal calls
        calls += 1
        return real(self, channel, source, domain)

    monkeypatch.setattr(_ReplicaBoard, "_may_go_to", counting)
    names = [NodeId(f"n{number}") for number in range(nodes)]
    domains = {
        node: "abc"[(number >= nodes // 2) + (number >= nodes * 3 // 4)]
        for number, node in enumerate(names)
    }
    channels = placed(
        *place_table(partitions=nodes * 10 // 3, replicas=3, nodes=names, domains=domains)
    )
    plan = plan_rebalance(channels, ClusterNodes(names, domain_of=domains))
    assert plan.moves == ()
    monkeypatch.undo()
    return calls


def test_work_of_a_plan_grows_with_the_replicas_and_not_with_their_square(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With a thousand nodes and ten thousand channels a square is minutes."""
    small, large = looked_at(monkeypatch, 20), looked_at(monkeypatch, 80)
    assert 0 < large <= 6 * small


def test_a_table_larger_than_a_share_is_tried_with_few_nodes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its three nodes stay above all others, whatever they give away."""
    tried = 0
    real = _ReplicaBoard._best_exchange

    def counting(
        self: _ReplicaBoard, most: NodeId, least: NodeId, surplus: int
    ) -> tuple[int, ChannelId, ChannelId | None] | None:
        nonlocal tried
        tried += 1
        return real(self, most, least, surplus)

    monkeypatch.setattr(_ReplicaBoard, "_best_exchange", counting)
    names = [NodeId(f"n{number:03}") for number in range(120)]
    groups = place_table(partitions=120, replicas=3, nodes=names)
    channels = placed(*groups, sizes=(10**15, *(10**9,) * 119))
    plan = plan_rebalance(channels, ClusterNodes(names))
    assert plan.moves == ()
    assert 0 < tried <= 3 * PARTNERS_MAX
