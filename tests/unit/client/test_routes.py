"""Decisions of routing that are kept are the ones that would be made anew."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from raftstore.client.cluster.route_book import HINT_AGE_MS_MAX, PENALTY_MS, RouteBook
from raftstore.client.reads import routes
from raftstore.client.reads.routes import Bounded, Routes
from raftstore.policy.health import HealthState
from raftstore.policy.routing import Prefer
from raftstore.protocol.admin import ChannelInfo, ClusterInfoAnswer, TableInfo
from raftstore.protocol.reads import Served
from raftstore.types import ChannelId, NodeId, Seq, Term, channel_id, node_id

UUID = b"t" * 16
CHANNEL = channel_id(UUID, 0)
NODES = tuple(node_id(name, name.encode() * 16) for name in "abc")

PICKED = st.sampled_from(NODES)
LAGS = st.none() | st.integers(0, 3)
NEWS = st.one_of(
    st.tuples(st.just("learn"), PICKED, LAGS, LAGS),
    st.tuples(st.just("cluster"), LAGS, LAGS, LAGS),
    st.tuples(st.just("dropped")),
    st.tuples(st.just("failed"), PICKED),
    st.tuples(st.just("lost"), PICKED),
    st.tuples(st.just("took"), PICKED, st.floats(0.1, 9.0)),
    st.tuples(st.just("reach"), PICKED, st.sampled_from(HealthState)),
)
BOUNDS = st.tuples(
    st.builds(
        Bounded,
        st.sampled_from(Prefer),
        st.none() | st.integers(0, 2),
        st.none() | st.integers(0, 2),
        st.none() | PICKED,
    ),
    st.integers(0, 20),
    st.none() | PICKED,
)
PAUSES = st.sampled_from((0, 1, 7, PENALTY_MS - 1, HINT_AGE_MS_MAX, HINT_AGE_MS_MAX + 1))


def cluster(lags: tuple[int | None, ...], channel: ChannelId = CHANNEL) -> ClusterInfoAnswer:
    """A node's view of a table with one partition."""
    info = ChannelInfo(channel, NODES, NODES[0], Term(1), Seq(100), lags)
    table = TableInfo("t", UUID, ("id",), 1, 3, "fsync", None, "", (info,))
    return ClusterInfoAnswer(1, b"c" * 16, 1, 0, NODES[0], (), (table,), info)


def tell(
    book: RouteBook, reach: dict[NodeId, HealthState], news: tuple[object, ...], now_ms: int
) -> None:
    """Let a piece of news reach the book."""
    match news:
        case "learn", str() as node, lag, batches:
            served = Served(
                NodeId(node),
                CHANNEL,
                Term(1),
                Seq(9),
                lag,  # type: ignore[arg-type]
                5,
                "any",
                batches_behind=batches,  # type: ignore[arg-type]
            )
            book.learn(served, now_ms)
        case "cluster", *lags:
            book.learn_cluster(cluster(tuple(lags)), now_ms)  # type: ignore[arg-type]
        case ("dropped",):
            book.learn_cluster(cluster((), channel_id(b"o" * 16, 0)), now_ms)
        case "failed", str() as node:
            book.failed(CHANNEL, NodeId(node), now_ms)
        case "lost", str() as node:
            book.lost(NodeId(node), now_ms)
        case "took", str() as node, float() as took_ms:
            book.took(NodeId(node), took_ms)
        case "reach", str() as node, HealthState() as state:
            reach[NodeId(node)] = state


@given(st.lists(st.tuples(PAUSES, st.lists(NEWS, max_size=2), BOUNDS), min_size=1, max_size=12))
def test_kept_decision_is_the_one_made_anew(
    story: list[tuple[int, list[tuple[object, ...]], tuple[Bounded, int, NodeId | None]]],
) -> None:
    """Given any news and any time between, the kept order equals the one computed anew: routing is
    a pure function of the book.
    """
    reach = dict.fromkeys(NODES, HealthState.UP)
    book = RouteBook(reach.__getitem__)
    kept, now_ms = Routes(book), 0
    for pause_ms, news, (bounded, turn, leader) in story:
        now_ms += pause_ms
        for piece in news:
            tell(book, reach, piece, now_ms)
        asked = (CHANNEL, NODES, leader, bounded, turn, now_ms)
        assert kept.order(*asked) == Routes(book).order(*asked)
        assert kept.order(*asked) == Routes(book).order(*asked)


def test_decision_is_made_once_while_nothing_changes() -> None:
    """A repeated answer is no news: the same tuple is used again."""
    reach = dict.fromkeys(NODES, HealthState.UP)
    book = RouteBook(reach.__getitem__)
    kept, bounded = Routes(book), Bounded(Prefer.LEADER, 5, None, None)
    tell(book, reach, ("learn", NODES[1], 0, None), 0)
    first = kept.order(CHANNEL, NODES, NODES[0], bounded, 0, 0)
    tell(book, reach, ("learn", NODES[1], 0, None), 10)
    assert kept.order(CHANNEL, NODES, NODES[0], bounded, 6, 10) is first
    tell(book, reach, ("learn", NODES[1], 9, None), 20)
    assert kept.order(CHANNEL, NODES, NODES[0], bounded, 0, 20) is not first


def test_kept_decision_ends_with_what_it_came_from() -> None:
    """A lag that was reported too long ago counts no more, although nobody said anything since."""
    book = RouteBook(dict.fromkeys(NODES, HealthState.UP).__getitem__)
    kept, bounded = Routes(book), Bounded(Prefer.LEADER, 5, None, None)
    tell(book, {}, ("learn", NODES[1], 9, None), 0)
    behind = (NODES[0], NODES[2], NODES[1])
    assert kept.order(CHANNEL, NODES, NODES[0], bounded, 0, 0) == behind
    assert kept.order(CHANNEL, NODES, NODES[0], bounded, 0, HINT_AGE_MS_MAX) == behind
    assert kept.order(CHANNEL, NODES, NODES[0], bounded, 0, HINT_AGE_MS_MAX + 1) == NODES


def test_what_is_kept_is_bounded() -> None:
    """Bounds that differ with every read, and tables that come and go, fill no memory."""
    kept = Routes(RouteBook(dict.fromkeys(NODES, HealthState.UP).__getitem__))
    for bound in range(3 * routes.KEPT_MAX):
        bounded = Bounded(Prefer.LEADER, bound, None, None)
        assert kept.order(CHANNEL, NODES, None, bounded, 0, 0) == NODES
    for partition in range(10):
        channel = channel_id(UUID, partition)
        assert kept.order(channel, NODES, None, bounded, 0, 0) == NODES
    held = kept._kept
    assert max(len(each.orders) for each in held.values()) <= routes.KEPT_MAX
