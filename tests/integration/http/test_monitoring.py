"""/readyz, /healthz, /metrics and /v1/events over a node that answers as the test wants."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest
from prometheus_client.parser import text_string_to_metric_families

from raftstore.http.metrics import HELP, rendered
from raftstore.protocol.admin import (
    ChannelView,
    ClusterView,
    ClusterViewAnswer,
    Events,
    EventsAnswer,
    Metrics,
    MetricsAnswer,
    NodeView,
    ReplicaHint,
)
from raftstore.protocol.message import Request
from raftstore.protocol.reads import Bounds, Get
from raftstore.protocol.requests import ClientAnswer
from raftstore.types import NodeId, Seq, Term, channel_id
from tests.integration.http.http_play import FakeGateway, Http
from tests.unit.engine.engine_world import ask, calm_cluster, run

N1, N2 = NodeId("n1@01"), NodeId("n2@02")


def view(*, leader_up: bool = True, age_ms: int | None = 5) -> ClusterViewAnswer:
    """orders/0 led by n1, n2 seven rows and 400 ms behind."""
    nodes = (
        NodeView(N1, "h:1", "", "up" if leader_up else "down", 3_000, 5, 0),
        NodeView(N2, "h:2", "", "up", 0, 5, 0),
    )
    replicas = (
        ReplicaHint(N1, Seq(107), 0, 0, None, "leader", 5),
        ReplicaHint(N2, Seq(100), 7, 400, None, "follower", 5),
    )
    channel = channel_id(b"t" * 16, 0)
    channels = (ChannelView(channel, "orders", 0, N1, Term(3), Seq(107), 5, replicas),)
    return ClusterViewAnswer(1, N2, b"c" * 16, 9, age_ms, Bounds(10_000), nodes, channels)


def asked(
    own: Callable[[Request], ClientAnswer], *scenes: Callable[[Http], Awaitable[None]]
) -> None:
    """Play scenes over a gateway of this node."""

    async def scene() -> None:
        for each in scenes:
            await each(Http(FakeGateway(own=own)))

    asyncio.run(scene())


def shows(found: ClusterViewAnswer) -> Callable[[Request], ClientAnswer]:
    """A node with this viewpoint."""

    def answer(request: Request) -> ClientAnswer:
        assert isinstance(request, ClusterView)
        return found

    return answer


@pytest.mark.parametrize(
    ("target", "leader_up", "status"),
    [
        ("/readyz", True, 200),
        ("/readyz?table=orders&level=linearizable", True, 200),
        ("/readyz?table=orders&level=linearizable", False, 503),
        ("/readyz?table=orders&level=bounded&max_lag=100", False, 200),
        ("/readyz?table=orders&level=bounded&max_lag=6", False, 503),
        ("/readyz?table=orders&max_staleness=400ms", False, 200),
        ("/readyz?table=orders&max_staleness=399ms", False, 503),
        ("/readyz?max_batches_behind=5", True, 503),
        ("/readyz?max_lag=6&exclude=orders/0", False, 200),
        ("/readyz?max_lag=6&exclude=others,orders", False, 200),
        ("/readyz?level=any", False, 200),
        ("/healthz", False, 200),
    ],
)
def test_n9_readyz_by_table_level_bound(target: str, leader_up: bool, status: int) -> None:
    """N9: ready means that the reads of this application find a replica within their bound."""

    async def scene(http: Http) -> None:
        reply = await http.ask("GET", target)
        assert reply.status == status
        assert reply.json["ready"] is (status == 200)
        assert bool(reply.json["checks"]) is (status != 200)

    asked(shows(view(leader_up=leader_up)), scene)


def test_readyz_says_why_and_lists_all_when_asked() -> None:
    """The answer says which replica is missing and how far it is behind; with verbose it lists all
    checks.
    """

    async def scene(http: Http) -> None:
        reply = await http.ask("GET", "/readyz?table=orders&max_lag=6")
        [check] = reply.json["checks"]
        assert check["name"] == "orders/0"
        assert check["reason"] == "n1: not alive since 3000 ms; n2: lag 7 > 6"
        reply = await http.ask("GET", "/readyz?table=orders&verbose=true")
        [check] = reply.json["checks"]
        assert (check["name"], check["nodes"]) == ("orders/0", ["n2"])
        reply = await http.ask("GET", "/readyz?verbose")
        assert [c["name"] for c in reply.json["checks"]] == ["orders/0", "catalog"]

    asked(shows(view(leader_up=False)), scene)


def test_readyz_of_a_table_that_a_complete_catalog_does_not_have_is_404() -> None:
    """S1.9: only a copy that is known to be complete may say that a table does not exist."""

    async def complete(http: Http) -> None:
        reply = await http.ask("GET", "/readyz?table=nothing")
        assert (reply.status, reply.error) == (404, "unknown_table")

    async def unsure(http: Http) -> None:
        reply = await http.ask("GET", "/readyz?table=nothing")
        assert reply.status == 503
        assert [check["name"] for check in reply.json["checks"]] == ["catalog"]

    asked(shows(view()), complete)
    asked(shows(view(age_ms=None)), unsure)


def test_readyz_of_a_table_that_the_catalog_has_does_not_ask_for_all_of_it() -> None:
    """Two of three nodes died: the last one still serves, and load balancers see that it does."""

    async def scene(http: Http) -> None:
        known = await http.ask("GET", "/readyz?table=orders&level=any")
        assert (known.status, known.json["checks"]) == (200, [])
        behind = await http.ask("GET", "/readyz?table=orders&max_lag=6")
        assert [check["name"] for check in behind.json["checks"]] == ["orders/0"]
        every = await http.ask("GET", "/readyz?level=any")
        assert [check["name"] for check in every.json["checks"]] == ["catalog"]

    asked(shows(view(leader_up=False, age_ms=None)), scene)


@pytest.mark.parametrize(
    "target", ["/readyz?level=best", "/readyz?max_lag=-1", "/readyz?max_staleness=3", "/readyz?a=1"]
)
def test_readyz_with_a_bound_that_makes_no_sense_is_refused(target: str) -> None:
    """A typo in a probe must not look like a node that is ready."""

    async def scene(http: Http) -> None:
        assert (await http.ask("GET", target)).status == 400

    asked(shows(view()), scene)


def test_metrics_are_in_the_text_format_and_each_has_its_help() -> None:
    """4.2: a monitor parses them; base units, totals, buckets up to infinity."""

    def own(request: Request) -> ClientAnswer:
        assert isinstance(request, Metrics)
        samples = (
            ("raftstore_reads_total", (("level", "any"), ("result", "ok")), 3.0),
            ("raftstore_reads_total", (("level", "any"), ("result", "lag_exceeded")), 1.0),
            ("raftstore_lag_records", (("table", 'or"ders'), ("partition", "0")), 7.0),
        )
        labels = (("level", "any"),)
        buckets = ((0.001, 2), (0.01, 3), (float("inf"), 3))
        histograms = (("raftstore_read_duration_seconds", labels, buckets, 0.02, 3),)
        return MetricsAnswer(request.request_id, samples, histograms)

    async def scene(http: Http) -> None:
        reply = await http.ask("GET", "/metrics")
        assert reply.status == 200
        assert reply.headers["content-type"].startswith("text/plain; version=0.0.4")
        families = {f.name: f for f in text_string_to_metric_families(reply.content.decode())}
        assert {name: family.type for name, family in families.items()} == {
            "raftstore_reads": "counter",
            "raftstore_lag_records": "gauge",
            "raftstore_read_duration_seconds": "histogram",
        }
        assert all(family.documentation for family in families.values())
        values = [sample.value for sample in families["raftstore_reads"].samples]
        assert values == [3.0, 1.0]
        [lag] = families["raftstore_lag_records"].samples
        assert lag.labels == {"table": 'or"ders', "partition": "0"}
        told = {
            (s.name, s.labels.get("le")): s.value
            for s in families["raftstore_read_duration_seconds"].samples
        }
        assert told["raftstore_read_duration_seconds_bucket", "0.001"] == 2
        assert told["raftstore_read_duration_seconds_bucket", "+Inf"] == 3
        assert told["raftstore_read_duration_seconds_count", None] == 3

    asked(own, scene)
    assert not any(name.endswith("_total") for name in HELP)


def test_every_metric_of_a_node_has_its_help() -> None:
    """A name without a meaning is a number nobody can read."""
    cluster, channel = calm_cluster()
    node = cluster.leaders()[channel]
    ask(cluster, node, Get(9, channel, (b"k",), "linearizable", None, Seq(0), 1_000))
    run(cluster, 1_000)
    assert node.runner is not None
    samples, histograms = node.runner.reports.metrics()
    told = {name for name, *_ in samples} | {name for name, *_ in histograms}
    assert {name.removesuffix("_total") for name in told} <= set(HELP)


def test_n8_events_go_on_from_the_number_that_was_told() -> None:
    """N8: failovers by type, page by page."""

    def own(request: Request) -> ClientAnswer:
        assert isinstance(request, Events)
        assert (request.since, request.types, request.limit) == (4, ("failover", "role"), 2)
        event = {"number": 6, "type": "failover", "at_wall_ms": 1, "detect_ms": 300}
        return EventsAnswer(request.request_id, N1, 6, (event,))

    async def scene(http: Http) -> None:
        reply = await http.ask("GET", "/v1/events?since=4&type=failover,role&limit=2")
        assert reply.json == {
            "node": "n1",
            "next": 6,
            "events": [{"number": 6, "type": "failover", "at_wall_ms": 1, "detect_ms": 300}],
        }
        assert (await http.ask("GET", "/v1/events?limit=0")).status == 400

    asked(own, scene)


def test_series_of_one_name_are_one_family_in_the_text() -> None:
    """Of counters and histograms alike: a monitor refuses a family that comes twice."""
    labels = [(("channel", f"t/{number}"),) for number in range(2)]
    samples = tuple(("raftstore_reads_total", each, float(at)) for at, each in enumerate(labels))
    buckets = ((0.1, 1), (float("inf"), 2))
    histograms = tuple(("raftstore_read_seconds", each, buckets, 0.5, 2) for each in labels)
    text = rendered(MetricsAnswer(1, samples, histograms)).decode()
    assert text.count("# TYPE raftstore_reads_total counter") == 1
    assert text.count("# TYPE raftstore_read_seconds histogram") == 1
    for number in range(2):
        assert f'raftstore_reads_total{{channel="t/{number}"}} {number}.0' in text
        assert f'raftstore_read_seconds_bucket{{channel="t/{number}",le="+Inf"}} 2.0' in text
        assert f'raftstore_read_seconds_sum{{channel="t/{number}"}} 0.5' in text
