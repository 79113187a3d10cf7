"""A view is enough to find the route, and to say whether there is one (BLOG-29, N9)."""

from __future__ import annotations

import msgspec
import pytest

from raftstore.policy.views import knows_replicas, nodes_by_id, readiness, route_of
from raftstore.protocol.admin import ChannelView, ClusterViewAnswer, NodeView, ReplicaHint
from raftstore.protocol.reads import Bounds
from raftstore.types import Level, NodeId, Seq, Term, channel_id

C, D, E = NodeId("c@03"), NodeId("d@04"), NodeId("e@05")


def node(name: NodeId, state: str = "up") -> NodeView:
    """A node as another sees it."""
    return NodeView(name, f"{name}:1", "", state, 40, 900, 0)


def hint(
    name: NodeId, lag: int | None, *, time_ms: int | None = None, batches: int | None = None
) -> ReplicaHint:
    """A replica's hint."""
    return ReplicaHint(name, Seq(10), lag, time_ms, batches, "follower", 5)


def channel(leader: NodeId | None = C, **changes: object) -> ChannelView:
    """A channel led by C; D is five rows behind, of E nothing is known."""
    replicas = (hint(C, 0, time_ms=0, batches=0), hint(D, 5, time_ms=300, batches=1), hint(E, None))
    view = ChannelView(
        channel_id(b"t" * 16, 0), "orders", 0, leader, Term(3), Seq(15), 20, replicas
    )
    assert not changes
    return view


def view(*nodes: NodeView, leader: NodeId | None = C) -> ClusterViewAnswer:
    """The viewpoint of D."""
    channels = (channel(leader),)
    return ClusterViewAnswer(1, D, b"c" * 16, 9, 0, Bounds(3), nodes, channels)


UP = (node(C), node(D), node(E))
C_DOWN = (node(C, "down"), node(D), node(E))


@pytest.mark.parametrize(
    ("nodes", "level", "bounds", "asked"),
    [
        (UP, Level.BOUNDED, Bounds(5), (C, D)),
        (UP, Level.BOUNDED, Bounds(4), (C,)),
        (C_DOWN, Level.BOUNDED, Bounds(5), (D,)),
        (C_DOWN, Level.BOUNDED, Bounds(4), ()),
        (C_DOWN, Level.BOUNDED, Bounds(None, 300), (D,)),
        (C_DOWN, Level.BOUNDED, Bounds(9, 299), ()),
        (C_DOWN, Level.BOUNDED, Bounds(None, None, 0), ()),
        (UP, Level.ANY, Bounds(), (C, D, E)),
        (UP, Level.LINEARIZABLE, Bounds(), (C,)),
        (C_DOWN, Level.LEADER, Bounds(), ()),
        ((node(D, "suspect"), node(E)), Level.ANY, Bounds(), (E, D)),
    ],
)
def test_blog_29_route_follows_from_the_view_alone(
    nodes: tuple[NodeView, ...], level: Level, bounds: Bounds, asked: tuple[NodeId, ...]
) -> None:
    """BLOG-29: leader first, then by lag, within every bound; a node nobody lists is down."""
    known = nodes_by_id(view(*nodes))
    assert route_of(channel(), known, level, bounds).nodes == asked


@pytest.mark.parametrize(
    ("role", "reason"),
    [
        ("in doubt", "d: in doubt since its last stop, it may lack acknowledged records"),
        ("recovering", "d: recovering, acknowledged records are missing"),
        ("not serving", "d: it serves nothing now; `raftstore status` says why"),
    ],
)
def test_n9_replica_that_serves_nothing_makes_no_partition_ready(role: str, reason: str) -> None:
    """S0.3, S0.6: whatever the level, however few rows it believes to lack; others still count."""
    own = msgspec.structs.replace(hint(D, 0, time_ms=0, batches=0), role=role)
    here = msgspec.structs.replace(channel(), replicas=(hint(C, 0, time_ms=0, batches=0), own))
    for level in (Level.ANY, Level.BOUNDED):
        alone = msgspec.structs.replace(view(*C_DOWN), channels=(here,))
        [found] = readiness(alone, level, Bounds())
        assert not found.is_ready
        assert reason in found.reason
        [found] = readiness(msgspec.structs.replace(alone, nodes=UP), level, Bounds())
        assert found.nodes == (C,)


def test_n9_partition_without_a_route_says_why_for_each_replica() -> None:
    """N9: the operator reads which node is missing, not just that something is."""
    [found] = readiness(view(*C_DOWN), Level.BOUNDED, Bounds(4))
    assert not found.is_ready
    assert found.reason == "c: not alive since 40 ms; d: lag 5 > 4; e: no lag information"
    [found] = readiness(view(*UP, leader=None), Level.LINEARIZABLE, Bounds())
    assert not found.is_ready
    assert "no leader is known" in found.reason


def test_n9_bounds_that_nobody_names_are_the_nodes_own() -> None:
    """As with a query that names none: 3 rows here, so D alone is not ready."""
    assert [each.is_ready for each in readiness(view(*UP), Level.BOUNDED, Bounds())] == [True]
    assert [each.is_ready for each in readiness(view(*C_DOWN), Level.BOUNDED, Bounds())] == [False]
    assert [each.is_ready for each in readiness(view(*C_DOWN), Level.BOUNDED, Bounds(5))] == [True]


def test_readiness_of_one_table_does_not_look_at_others() -> None:
    """A load balancer asks for what its application reads."""
    assert list(readiness(view(*UP), Level.ANY, Bounds(), table="others")) == []


def test_n9_bounds_of_the_table_come_before_the_nodes() -> None:
    """As with a query that names none; another table's bounds count for that table alone."""
    base = view(*C_DOWN)  # D is five rows behind; the node's own bound is three
    looser = msgspec.structs.replace(base, table_bounds={"orders": Bounds(5)})
    other = msgspec.structs.replace(base, table_bounds={"others": Bounds(5)})
    tighter = msgspec.structs.replace(view(*UP), table_bounds={"orders": Bounds(None, None, 0)})
    assert [each.is_ready for each in readiness(looser, Level.BOUNDED, Bounds())] == [True]
    assert [each.is_ready for each in readiness(other, Level.BOUNDED, Bounds())] == [False]
    assert [each.nodes for each in readiness(tighter, Level.BOUNDED, Bounds())] == [(C,)]
    assert [each.is_ready for each in readiness(looser, Level.BOUNDED, Bounds(4))] == [False]


@pytest.mark.parametrize(
    ("nodes", "leader", "asked"),
    [
        (UP, C, (C,)),
        ((node(C), node(D), node(E, "down")), C, (C,)),
        ((node(C), node(D, "down"), node(E, "down")), C, ()),
        (C_DOWN, C, ()),
        (UP, None, ()),
    ],
)
def test_n9_time_bounds_hold_where_a_read_would_have_them_proven(
    nodes: tuple[NodeView, ...], leader: NodeId | None, asked: tuple[NodeId, ...]
) -> None:
    """S7.3: reports of idle channels are old; a read gets a new proof where a quorum is alive."""
    old = (hint(C, 0, time_ms=2_500), hint(D, 5, time_ms=2_500), hint(E, None))
    seen = msgspec.structs.replace(channel(leader), replicas=old)
    known = nodes_by_id(view(*nodes))
    assert route_of(seen, known, Level.BOUNDED, Bounds(None, 100)).nodes == asked
    assert C in route_of(seen, nodes_by_id(view(*UP)), Level.BOUNDED, Bounds(None, 2_500)).nodes


def test_view_knows_the_replicas_once_it_has_a_leader_and_a_lag_of_each_node_that_is_up() -> None:
    """A node that was started a moment ago knows nothing of others yet; of those that are down
    nobody does."""
    without_e = (node(C), node(D), node(E, "down"))
    assert knows_replicas(view(*without_e))
    assert not knows_replicas(view(*UP))  # E has no lag
    assert not knows_replicas(view(*without_e, leader=None))
    assert not knows_replicas(view(node(C), node(D), node(E, "unknown")))
    e_leads = view(*UP, leader=E)
    assert knows_replicas(e_leads)  # nobody reports how far a leader is behind itself
    both = msgspec.structs.replace(e_leads, channels=(*view(*UP).channels, *e_leads.channels))
    assert not knows_replicas(both)
