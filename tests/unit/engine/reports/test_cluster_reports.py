"""Reports of the cluster to clients by themselves: what each field is taken from, and for how long
a view is kept."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from raftstore.config import QuerySettings
from raftstore.engine.reports.cluster_info import ClusterInfoReport
from raftstore.engine.reports.view_report import VIEW_KEPT_MS, ViewReport
from raftstore.policy.health import HealthState
from raftstore.protocol.admin import (
    ChannelInfo,
    ChannelView,
    ClusterInfo,
    ClusterView,
    ClusterViewAnswer,
    NodeInfo,
    NodeView,
    ReplicaHint,
    TableInfo,
)
from raftstore.protocol.reads import Bounds
from raftstore.protocol.table_settings import TableSettings
from raftstore.state_machines.catalog import NodeEntry
from raftstore.types import ChannelConfig, ChannelId, NodeId, Seq, Term, channel_id, node_name

ME, ONE, TWO = (NodeId(f"n{number}@00") for number in (1, 2, 3))
UUID, CLUSTER = b"t" * 16, b"c" * 16
FIRST, SECOND = (channel_id(UUID, number) for number in range(2))
METADATA = channel_id(b"m" * 16, 0)


def table(**fields: Any) -> Any:
    """A table of two partitions, as the catalog has it."""
    entry: dict[str, Any] = {
        "name": "t", "uuid": UUID, "key_columns": ("k",), "partitions": 2, "replicas": 2,
        "durability": "fsync", "max_lag": None, "schema_json": "{}", "max_staleness_ms": None,
        "max_batches_behind": None, "standby_reads": True, "max_replica_lag": None,
        "settings": TableSettings(retention_records=5_000),
        "placement": [[ME, ONE], [ONE, TWO]], "channels": (FIRST, SECOND), "is_resizing": False,
        "machine": "", "machine_version": 0,
    }  # fmt: skip
    return SimpleNamespace(**entry | fields)


def view(channel: ChannelId, *replicas: NodeId) -> ChannelView:
    """A channel of which each replica lacks some rows: 0, 1, 2 and so on."""
    hints = tuple(
        ReplicaHint(node, Seq(1), lag, None, None, "follower", 0)
        for lag, node in enumerate(replicas)
    )
    return ChannelView(channel, "t", 0, ME, Term(1), Seq(9), 0, hints)


class Bench:
    """The parts of a node that its reports look at."""

    def __init__(self, **of_table: Any) -> None:
        self.lag: tuple[int | None, int | None] = (0, 40)
        self.routable = {ME, ONE}
        self.heartbeat = SimpleNamespace(enable=True)
        self.asked: list[int] = []
        self.now_ms = range(1_001)
        self.known: dict[ChannelId, ChannelView] = {}
        self.metadata = SimpleNamespace(
            channel=METADATA,
            core=SimpleNamespace(config=lambda: ChannelConfig(((ME, TWO),))),
            elector=SimpleNamespace(term=Term(5)),
        )
        entry = table(**of_table)
        catalog = SimpleNamespace(
            version=12,
            tables={"t": entry},
            seqs={"t": Seq(33)},
            draining={TWO},
            rebalance=SimpleNamespace(tags={}),
            nodes={node_name(ME): NodeEntry(ME, "a:1"), node_name(TWO): NodeEntry(TWO, "c:1")},
            placement_of=lambda table: table.placement,
            roles_of=lambda _: {},
            changes={},
            domains=lambda: {ONE: "rack-1"},
            voters_of={FIRST: (ME, ONE), SECOND: (ONE,)}.__getitem__,
        )
        self.controller = SimpleNamespace(
            catalog=catalog,
            metadata=self.metadata,
            endpoints=lambda: {ME: "a:1", ONE: "b:1", TWO: "c:1"},
            levels=lambda: {ME: 7, ONE: 6, TWO: 5},
            leader_of=lambda channel: (ONE, Term(4)) if channel == FIRST else (None, Term(0)),
        )
        self.health = SimpleNamespace(
            last_heard_ms=lambda node: {ONE: 900, TWO: None}[node],
            state=lambda node: self.states[node],
            skew_ms=lambda node: {ONE: 3, TWO: None}[node],
        )
        self.states: dict[NodeId, HealthState | None] = {ONE: HealthState.UP, TWO: None}
        self.watch = SimpleNamespace(
            is_routable=lambda node, now_ms: node in self.routable,
            health=self.health,
            reports=SimpleNamespace(
                http_of={ONE: "b:2"}, updated_ms_ago=lambda node, now_ms: now_ms - 950
            ),
        )
        identity = SimpleNamespace(me=ME, pid=77, cluster_id=CLUSTER)
        self.parts: Any = SimpleNamespace(
            me=ME,
            identity=identity,
            controller=self.controller,
            watch=self.watch,
            reader=SimpleNamespace(lag=self._lag),
            settings=SimpleNamespace(query=QuerySettings(max_lag=7), heartbeat=self.heartbeat),
        )

    def _lag(self, runner: Any, now_ms: int) -> tuple[int | None, int | None]:
        assert runner is self.metadata
        assert now_ms in self.now_ms
        return self.lag

    def channels(self, now_ms: int) -> dict[ChannelId, ChannelView]:
        """The view of a moment ago."""
        self.asked.append(now_ms)
        return self.known


class Kept:
    """Stands for the kept channels: what the report asks them, and what they answer."""

    def __init__(self, count: int) -> None:
        self.calls: list[tuple[Any, ...]] = []
        self.told = [view(channel_id(UUID, number), ME) for number in range(count)]

    def views(self, now_ms: int) -> list[ChannelView]:
        """Every channel now."""
        self.calls.append(("views", now_ms))
        return self.told

    def follow(self, channels: Any) -> None:
        """Another catalog."""
        self.calls.append(("follow", *channels))


def kept_report(bench: Bench, count: int = 2) -> tuple[ViewReport, Kept]:
    """A report of so many channels, and what it keeps."""
    report, kept = ViewReport(bench.parts), Kept(count)
    parts: Any = report
    parts.kept = kept
    return report, kept


def answered(bench: Bench) -> ClusterViewAnswer:
    """The nodes and bounds of a view."""
    return kept_report(bench)[0].answer(ClusterView(5, with_channels=False), 1_000)


# --- the cluster ----------------------------------------------------------------------------------


def test_cluster_info_tells_each_node_with_its_addresses_and_level() -> None:
    """S1.9: the process id is known of the node itself alone."""
    bench = Bench()
    views: Any = bench
    answer = ClusterInfoReport(bench.parts, views).answer(ClusterInfo(5), 1_000)
    assert answer.nodes == (
        NodeInfo(ME, "a:1", True, 77, "", 7),
        NodeInfo(ONE, "b:1", True, 0, "b:2", 6, "unregistered", "rack-1"),
        NodeInfo(TWO, "c:1", False, 0, "", 5, "draining"),
    )
    assert (answer.request_id, answer.cluster_id, answer.version) == (5, CLUSTER, 12)
    assert answer.answered_by == ME
    assert bench.asked == []


@pytest.mark.parametrize(
    ("lag", "age_ms"), [((0, 40), 40), ((1, 40), None), ((None, 40), None), ((0, None), None)]
)
def test_copy_of_the_catalog_has_an_age_while_nothing_of_it_is_missing(
    lag: tuple[int | None, int | None], age_ms: int | None
) -> None:
    """S1.9: without an age there is no promise."""
    bench = Bench()
    bench.lag = lag
    views: Any = bench
    assert ClusterInfoReport(bench.parts, views).answer(ClusterInfo(5), 1_000).age_ms == age_ms
    newest = answered(bench)
    assert newest.age_ms == age_ms


def test_cluster_info_tells_each_table_as_the_catalog_has_it() -> None:
    """All that a client needs to write to it and to read from it."""
    bench = Bench(max_lag=8, max_staleness_ms=90, max_batches_behind=2, max_replica_lag=55)
    views: Any = bench
    answer = ClusterInfoReport(bench.parts, views).answer(ClusterInfo(5), 1_000)
    channels = (
        ChannelInfo(FIRST, (ME, ONE), ONE, Term(4)),
        ChannelInfo(SECOND, (ONE, TWO), None, Term(0)),
    )
    assert answer.tables == (
        TableInfo(
            "t", UUID, ("k",), 2, 2, "fsync", 8, "{}", channels,
            max_staleness_ms=90, max_batches_behind=2, standby_reads=True, seq=Seq(33),
            max_replica_lag=55,
            settings=TableSettings(retention_records=5_000),
        ),
    )  # fmt: skip
    assert answer.metadata_channel == ChannelInfo(METADATA, (ME, TWO), None, Term(0))
    resizing: Any = Bench(is_resizing=True)
    answer = ClusterInfoReport(resizing.parts, resizing).answer(ClusterInfo(5), 1_000)
    assert answer.tables[0].voters == (2, 1)


def test_lags_are_told_on_request_and_where_the_view_is_of_the_same_replicas() -> None:
    """KLIP-33: a view of a moment ago may be of a table that was made anew since."""
    bench = Bench()
    bench.known = {FIRST: view(FIRST, ME, ONE), SECOND: view(SECOND, TWO, ONE)}
    views: Any = bench
    answer = ClusterInfoReport(bench.parts, views).answer(ClusterInfo(5, 0, True), 1_000)
    assert bench.asked == [1_000]
    assert answer.tables[0].channels == (
        ChannelInfo(FIRST, (ME, ONE), ONE, Term(4), Seq(9), (0, 1)),
        ChannelInfo(SECOND, (ONE, TWO), None, Term(0)),
    )


# --- the view -------------------------------------------------------------------------------------


def nodes_of(bench: Bench) -> dict[NodeId, NodeView]:
    """Every node as the view shows it."""
    answer = answered(bench)
    return {node.node: node for node in answer.nodes}


def test_view_tells_the_node_itself_as_up_and_others_as_they_were_heard() -> None:
    """KLIP-33: ages at the moment when the view was built."""
    assert nodes_of(Bench()) == {
        ME: NodeView(ME, "a:1", "", "up", 0, 0, 0),
        ONE: NodeView(ONE, "b:1", "b:2", "up", 100, 50, 3, "rack-1"),
        TWO: NodeView(TWO, "c:1", "", "down", None, 50, None, "", True),
    }


@pytest.mark.parametrize("state", [*HealthState, None])
@pytest.mark.parametrize("is_routable", [True, False])
def test_view_says_of_a_node_what_queries_may_expect(
    state: HealthState | None, is_routable: bool
) -> None:
    """KLIP-19: down where none are sent; one that is reported alive is up, although not heard.

    KLIP-49: one whose connection broke is no more than suspect until its heartbeats are missed.
    """
    bench = Bench()
    bench.states[ONE] = state
    bench.routable = {ONE} if is_routable else set()
    told = nodes_of(bench)[ONE].state
    if state is HealthState.SUSPECT:
        assert told == "suspect"
    elif not is_routable:
        assert told == "down"
    elif state is HealthState.DOWN or state is None:
        assert told == "up"
    else:
        assert told == state.value


def test_broken_connection_is_the_end_where_heartbeats_are_not_awaited() -> None:
    """BLOG-19: with them off nothing else would ever say that the node is gone."""
    bench = Bench()
    bench.heartbeat.enable = False
    bench.states[ONE] = HealthState.SUSPECT
    bench.routable = set()
    assert nodes_of(bench)[ONE].state == "down"


def test_node_that_was_heard_in_this_very_call_was_heard_now() -> None:
    """Never in the future."""
    bench = Bench()
    bench.health.last_heard_ms = lambda node: 1_001
    assert nodes_of(bench)[ONE].last_heard_ms_ago == 0


@pytest.mark.parametrize("bound", ["max_lag", "max_staleness_ms", "max_batches_behind"])
def test_view_tells_the_bounds_of_the_node_and_of_tables_that_have_some(bound: str) -> None:
    """KLIP-39: routing needs them to pick a replica."""
    bench = Bench(**{bound: 6})
    answer = answered(bench)
    assert answer.bounds == Bounds(7)
    [(name, told)] = answer.table_bounds.items()
    assert (name, getattr(told, bound)) == ("t", 6)
    without = answered(Bench())
    assert without.table_bounds == {}
    assert (answer.viewpoint, answer.cluster_id, answer.version) == (ME, CLUSTER, 12)


def test_kept_channels_follow_the_catalog() -> None:
    """The catalog is gone through once for each of its versions."""
    bench = Bench()
    report, kept = kept_report(bench)
    for now_ms in (0, VIEW_KEPT_MS):
        report.channels(now_ms)
    first, second = (FIRST, "t", 0, (ME, ONE), {}, 0), (SECOND, "t", 1, (ONE, TWO), {}, 0)
    followed = ("follow", first, second)
    assert kept.calls == [followed, ("views", 0), ("views", VIEW_KEPT_MS)]
    kept.calls.clear()
    bench.controller.catalog = SimpleNamespace(
        version=13, tables={}, seqs={}, draining=set(), domains=dict
    )
    report.channels(2 * VIEW_KEPT_MS)
    assert kept.calls == [("follow",), ("views", 2 * VIEW_KEPT_MS)]


@pytest.mark.parametrize(
    ("count", "kept_ms"), [(2, VIEW_KEPT_MS), (403, VIEW_KEPT_MS), (404, 101), (1_000, 250)]
)
def test_view_is_kept_for_longer_the_more_channels_it_has(count: int, kept_ms: int) -> None:
    """However many ask; an answer says how old it is, and ages that it states grow with it."""
    report, kept = kept_report(Bench(), count)

    def answer(now_ms: int, *, with_channels: bool = True) -> ClusterViewAnswer:
        return report.answer(ClusterView(now_ms, with_channels=with_channels), now_ms)

    first, last = answer(500), answer(500 + kept_ms - 1)
    assert (first.built_ms_ago, first.age_ms, first.request_id) == (0, 40, 500)
    assert (last.built_ms_ago, last.age_ms) == (kept_ms - 1, 40 + kept_ms - 1)
    assert last.channels == tuple(kept.told)
    assert answer(501, with_channels=False).channels == ()
    assert list(report.channels(502)) == [each.channel for each in kept.told]
    assert [call for call in kept.calls if call[0] == "views"] == [("views", 500)]
    assert answer(500 + kept_ms).built_ms_ago == 0
    assert answer(499).built_ms_ago == 0, "a clock that went back tells no age"


def test_view_without_an_age_gets_none_by_being_kept() -> None:
    """S1.9: no age, no promise."""
    bench = Bench()
    bench.lag = (3, 40)
    report, _ = kept_report(bench)
    for now_ms in (500, 510):
        assert report.answer(ClusterView(1), now_ms).age_ms is None
