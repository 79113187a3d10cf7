"""A client's router: its knowledge of the replicas and their order (KLIP-37, KLIP-48, KIP-535)."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from raftstore.client.cluster.route_book import HINT_AGE_MS_MAX, PENALTY_MS, RouteBook
from raftstore.policy.health import HealthState
from raftstore.policy.routing import Prefer, nodes_to_query
from raftstore.protocol.admin import ChannelInfo, ClusterInfoAnswer, TableInfo
from raftstore.protocol.reads import Served
from raftstore.types import ChannelId, NodeId, Seq, Term, channel_id, node_id

UUID = b"t" * 16
CHANNEL = channel_id(UUID, 0)
A, B, C = (node_id(name, name.encode() * 16) for name in "abc")


class Book:
    """A route book of three nodes, and how each of them can be reached."""

    def __init__(self) -> None:
        self.reach = dict.fromkeys((A, B, C), HealthState.UP)
        self.book = RouteBook(self.reach.__getitem__)

    def order(self, now_ms: int, max_lag: int | None = 10, **options: object) -> list[NodeId]:
        """The replicas asked, A leading."""
        views = self.book.views(CHANNEL, (A, B, C), A, now_ms)
        return list(nodes_to_query(views, max_lag=max_lag, **options).nodes)  # type: ignore[arg-type]


def served(node: NodeId, lag: int | None, **more: object) -> Served:
    """An answer's word about its replica."""
    return Served(node, CHANNEL, Term(1), Seq(100), lag, 5, "bounded", **more)  # type: ignore[arg-type]


def cluster(lags: tuple[int | None, ...], channel: ChannelId = CHANNEL) -> ClusterInfoAnswer:
    """A node's view of a table with one partition."""
    info = ChannelInfo(channel, (A, B, C), A, Term(1), Seq(100), lags)
    table = TableInfo("t", UUID, ("id",), 1, 3, "fsync", None, "", (info,))
    return ClusterInfoAnswer(1, b"c" * 16, 1, 0, A, (), (table,), info)


def test_replica_of_which_nothing_is_known_is_asked() -> None:
    """It judges itself; what a client has not heard yet must fail no read (S7.4)."""
    assert Book().order(0, max_lag=0) == [A, B, C]


def test_klip_48_answers_update_the_route_book() -> None:
    """KLIP-48: the lag stated with an answer orders and filters the next reads, until it is old."""
    known = Book()
    known.book.learn(served(B, 30), 0)
    known.book.learn(served(C, 4), 0)
    assert known.order(HINT_AGE_MS_MAX, max_lag=30) == [A, C, B]
    assert known.order(HINT_AGE_MS_MAX) == [A, C]
    assert known.order(HINT_AGE_MS_MAX + 1) == [A, B, C]


def test_pinned_answer_says_nothing_of_the_replica() -> None:
    """The state of a page is old on purpose; the replica has gone on."""
    known = Book()
    known.book.learn(served(B, 99, pinned=True), 0)
    assert known.order(0) == [A, B, C]


def test_micro_batches_are_known_like_rows() -> None:
    """A replica too many batches behind is not asked first."""
    known = Book()
    known.book.learn(served(B, 0, batches_behind=3), 0)
    assert known.order(0, max_batches_behind=2) == [A, C]


def test_lags_told_by_a_node_order_the_first_read() -> None:
    """ClusterInfo's lags are hints like an answer's; unknown ones change nothing."""
    known = Book()
    known.book.learn_cluster(cluster((0, 9, None)), 0)
    assert known.order(0) == [A, C, B]
    known.book.learn(served(B, 0), 1)
    known.book.learn_cluster(cluster((0, 9)), 2)  # a node that reports no lags
    assert known.order(2) == [A, B, C]


def test_channels_of_a_dropped_table_are_forgotten() -> None:
    """A client that runs for long keeps nothing of dropped channels."""
    known = Book()
    known.book.failed(CHANNEL, A, 0)
    known.book.learn_cluster(cluster((), channel_id(b"o" * 16, 0)), 0)
    assert known.order(0) == [A, B, C]


def test_replica_that_failed_comes_last_for_a_while() -> None:
    """A refusal sends a replica to the end until the penalty is over or it answers."""
    known = Book()
    known.book.failed(CHANNEL, A, 0)
    assert known.order(PENALTY_MS - 1) == [B, C, A]
    known.book.learn(served(A, 0), 1)
    assert known.order(1) == [A, B, C]
    known.book.failed(CHANNEL, A, 2)
    assert known.order(2 + PENALTY_MS) == [A, B, C]


def test_node_whose_connection_broke_comes_last_in_all_channels() -> None:
    """KLIP-49: suspect at once, although the link may be up again."""
    known = Book()
    known.book.lost(A, 0)
    assert known.order(1) == [B, C, A]
    assert known.order(PENALTY_MS) == [A, B, C]


def test_unreachable_node_is_not_asked_by_routing() -> None:
    """KLIP-38: no request pays for a node that is known to be away (KLIP-04)."""
    known = Book()
    known.reach[A] = HealthState.DOWN
    known.book.lost(A, 0)
    assert known.order(0) == [B, C]


def test_nearest_is_the_one_that_answers_quickest() -> None:
    """The mean of round trips follows what is measured."""
    known = Book()
    for _ in range(30):
        known.book.took(A, 8.0)
        known.book.took(B, 2.0)
        known.book.took(C, 1.0)
    assert known.order(0, prefer=Prefer.NEAREST) == [C, B, A]
    for _ in range(30):
        known.book.took(C, 9.0)
    assert known.order(0, prefer=Prefer.NEAREST) == [B, A, C]


def test_reads_of_a_channel_are_numbered() -> None:
    """Turns are counted per channel."""
    book = Book().book
    assert [book.next_turn(CHANNEL) for _ in range(3)] == [0, 1, 2]
    assert book.next_turn(channel_id(UUID, 1)) == 0


@given(st.lists(st.tuples(st.sampled_from([A, B, C]), st.integers(0, 3), st.integers(0, 3_000))))
def test_every_reachable_replica_stays_in_the_list(history: list[tuple[NodeId, int, int]]) -> None:
    """Given any history of failures and lags and no bound, each reachable replica is in the list
    exactly once.
    """
    known = Book()
    for node, what, now_ms in history:
        if what == 0:
            known.book.failed(CHANNEL, node, now_ms)
        elif what == 1:
            known.book.lost(node, now_ms)
        else:
            known.book.learn(served(node, 10**9 if what == 2 else None), now_ms)
        assert sorted(known.order(now_ms, max_lag=None)) == [A, B, C]


def test_replica_that_does_not_know_how_far_behind_it_is_comes_last() -> None:
    """S7.3: unknown is infinite, of rows and of micro-batches; not 0, which would be the best."""
    known = Book()
    known.book.learn(served(B, None), 0)
    known.book.learn(served(C, 5), 0)
    [a, b, c] = known.book.views(CHANNEL, (A, B, C), A, 0)
    assert (a.lag, a.batches_behind) == (0, 0), "nobody said anything of it: it is asked"
    assert (b.lag, b.batches_behind) == (None, None)
    assert (c.lag, c.batches_behind) == (5, 5), "a batch ends with a row of its own"
    assert known.order(0) == [A, C]
    assert known.order(0, max_lag=None, max_batches_behind=4) == [A]
    assert known.order(HINT_AGE_MS_MAX + 1) == [A, B, C], "it may have learned"


def test_batches_that_a_node_did_not_tell_are_at_most_the_rows() -> None:
    """Given a newer report without a number of batches, at most the rows are assumed, not the older
    number.
    """
    known = Book()
    known.book.learn(served(B, 0, batches_behind=0), 0)
    known.book.learn_cluster(cluster((0, 9, 1)), 2)
    views = known.book.views(CHANNEL, (A, B, C), A, 2)
    assert [view.batches_behind for view in views] == [0, 9, 1]
