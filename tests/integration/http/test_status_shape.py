"""/clusterStatus has the shape of the article (BLOG-24 to BLOG-28), from a node's viewpoint."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import jsonschema_rs
import msgspec

from raftstore.http.app import ROUTES
from raftstore.http.openapi import document
from raftstore.http.status_shape import KeptLayout, LagInfoBody, cluster_status
from raftstore.protocol.admin import (
    ChannelSync,
    ChannelView,
    ClusterViewAnswer,
    NodeView,
    ReplicaHint,
)
from raftstore.protocol.reads import Bounds
from raftstore.types import NodeId, Seq, Term, channel_id, node_id
from tests.integration.http.http_play import FakeGateway, Http

A, B, C = (node_id(name, name.encode() * 16) for name in ("A", "B", "C"))
WALL_MS = 1_600_000_000_000


def node(which: NodeId, state: str, heard: int | None, told: int | None) -> NodeView:
    """One node, 1 to 3 of host:8088."""
    return NodeView(which, f"{which[0]}:8088", f"{which[0]}:4480", state, heard, told, 0)


def hint(which: NodeId, applied: int, lag: int | None, role: str) -> ReplicaHint:
    """One replica."""
    return ReplicaHint(which, Seq(applied), lag, None, None, role, 100)


def view() -> ClusterViewAnswer:
    """The article's example: A leads and B, which leads nothing any more, is dead; C is behind."""
    table = b"t" * 16
    channels = tuple(
        ChannelView(
            channel=channel_id(table, number),
            table="t",
            partition=number,
            leader=leader,
            term=Term(3),
            end_seq=Seq(end),
            leader_info_age_ms=10,
            replicas=replicas,
            sync=ChannelSync((A, C), (C,), (C,), Seq(7)) if leader == A else None,
        )
        for number, leader, end, replicas in (
            (0, A, 123_000, (hint(A, 123_000, 0, "leader"), hint(C, 123_000, 0, "follower"))),
            (1, C, 107_000, (hint(C, 107_000, 0, "leader"), hint(A, 100_000, 7_000, "follower"))),
            (2, None, 5, (hint(B, 5, 0, "follower"), hint(A, 5, None, "follower"))),
        )
    )
    nodes = (node(A, "up", 0, 0), node(B, "down", 9_000, 9_500), node(C, "suspect", 200, 700))
    return ClusterViewAnswer(
        1, A, b"c" * 16, 4, 0, Bounds(10_000), nodes, channels, metadata_term=Term(9)
    )


def shown() -> dict[str, Any]:
    """As JSON."""
    status: dict[str, Any] = json.loads(
        msgspec.json.encode(cluster_status(view(), WALL_MS, KeptLayout()))
    )
    return status


def test_fip_06_record_is_part_of_each_channel() -> None:
    """With names and epochs as in the proposal; null while the leader has not reported it."""
    assert [channel["record"] for channel in shown()["channels"]] == [
        {
            "version": 2,
            "leader": "A",
            "leader_epoch": 3,
            "replicas": ["A", "C"],
            "isr": ["A", "C"],
            "hot_standby_replicas": ["C"],
            "iss": ["C"],
            "coordinator_epoch": 9,
            "bucket_epoch": 7,
        },
        None,
        None,
    ]


def test_blog_24_cluster_status_fits_its_json_schema() -> None:
    """The document describes what is answered, live nodes and dead ones."""

    async def run() -> None:
        gateway = FakeGateway(own=lambda _: view(), now=WALL_MS)
        got = await Http(gateway).ask("GET", "/clusterStatus")
        assert got.status == 200
        assert got.json == shown()
        whole = document(ROUTES)
        schema = {
            "$ref": "#/components/schemas/ClusterStatusBody",
            "components": whole["components"],
        }
        jsonschema_rs.validate(schema, got.json)

    asyncio.run(run())


def test_blog_24_names_and_nesting_are_those_of_the_article() -> None:
    """standByPartitions has a capital B, partitions are of a topic."""
    host = shown()["clusterStatus"]["A:8088"]
    assert host["hostAlive"] is True
    assert host["activeStandbyPerQuery"] == {
        "t": {
            "activeStores": ["t"],
            "activePartitions": [{"topic": "t", "partition": 0}],
            "standByStores": ["t"],
            "standByPartitions": [{"topic": "t", "partition": 1}, {"topic": "t", "partition": 2}],
        }
    }
    lags = host["hostStoreLags"]["stateStoreLags"]["t"]["lagByPartition"]
    assert list(lags) == ["0", "1", "2"]
    assert lags["2"]["offsetLag"] is None, "what is not known is not 0"


def test_blog_26_dead_host_is_empty() -> None:
    """BLOG-25: not alive, nothing active or standing by, no lags, and when it was heard last."""
    host = shown()["clusterStatus"]["B:8088"]
    assert host["hostAlive"] is False
    assert host["activeStandbyPerQuery"] == {}
    assert host["hostStoreLags"] == {"stateStoreLags": {}, "updateTimeMs": 0}
    assert host["lastStatusUpdateMs"] == WALL_MS - 9_000


def test_blog_27_lag_info_json_is_golden() -> None:
    """The article's two examples, to the byte."""
    level = LagInfoBody(123_000, 123_000, 0)
    behind = LagInfoBody(100_000, 107_000, 7_000)
    assert msgspec.json.encode(level) == (
        b'{"currentOffsetPosition":123000,"endOffsetPosition":123000,"offsetLag":0}'
    )
    assert msgspec.json.encode(behind) == (
        b'{"currentOffsetPosition":100000,"endOffsetPosition":107000,"offsetLag":7000}'
    )
    lags = shown()["clusterStatus"]["A:8088"]["hostStoreLags"]["stateStoreLags"]["t"]
    assert lags["lagByPartition"]["1"] == json.loads(msgspec.json.encode(behind))


def test_blog_28_sign_of_life_and_lag_report_have_times_of_their_own() -> None:
    """A node may be heard while its positions are old."""
    host = shown()["clusterStatus"]["C:8088"]
    assert host["lastStatusUpdateMs"] == WALL_MS - 200
    assert host["hostStoreLags"]["updateTimeMs"] == WALL_MS - 700
    assert (host["hostAlive"], host["state"]) == (True, "suspect")


def test_klip_02_union_over_nodes_is_the_placement() -> None:
    """Every live replica is active or standing by somewhere, exactly once."""
    found = [
        (host["node"], part["partition"])
        for host in shown()["clusterStatus"].values()
        for stores in host["activeStandbyPerQuery"].values()
        for part in stores["activePartitions"] + stores["standByPartitions"]
    ]
    assert sorted(found) == [("A", 0), ("A", 1), ("A", 2), ("C", 0), ("C", 1)]


def test_klip_33_viewpoint_roles_and_terms_are_told() -> None:
    """The view has everything that routing uses: a route can be computed from it (BLOG-29)."""
    status = shown()
    assert status["viewpoint"] == "A"
    assert [channel["leader"] for channel in status["channels"]] == ["A", "C", None]
    assert status["channels"][1]["term"] == 3
    assert status["channels"][1]["replicas"][1] == {
        "node": "A",
        "role": "follower",
        "position": 100_000,
        "lag": 7_000,
        "time_lag_ms": None,
        "batches_behind": None,
        "update_ms_ago": 100,
    }
    assert status["bounds"]["max_lag"] == 10_000
