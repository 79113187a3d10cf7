"""Properties of a table are changed while it is used, once and everywhere (KLIP-41, S0.8)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from raftstore.messages import Message
from raftstore.requests import (
    Bounds,
    ClusterInfo,
    ClusterInfoAnswer,
    CreateTable,
    Done,
    EditTable,
    Failed,
)
from raftstore.testing.sim_cluster import SimCluster
from raftstore.testing.sim_node import SimNode
from raftstore.types import ChannelId
from tests.unit.engine.engine_world import ask, calm_cluster, run


def catalog_leader(cluster: SimCluster) -> SimNode:
    """Who takes commands on tables."""
    node = next(iter(cluster.nodes.values()))
    assert node.runner is not None
    return cluster.leaders()[node.runner.metadata_channel]


def edit(cluster: SimCluster, channel: ChannelId, **changes: Any) -> EditTable:
    """A request to the only table."""
    node = catalog_leader(cluster)
    assert node.runner is not None
    table = node.runner.keeper.catalog.table_of(channel)
    assert table is not None
    return EditTable(5, table.name, table.uuid, changes, 2_000)


def answered(cluster: SimCluster, node: SimNode, *requests: Message) -> list[Message]:
    """All answers after a while."""
    answers = ask(cluster, node, *requests)
    run(cluster, 3_000)
    return answers


def bounds_everywhere(cluster: SimCluster, channel: ChannelId) -> list[Bounds]:
    """What each replica of the channel goes by."""
    return [
        node.runner.channels[channel].bounds
        for node in cluster.nodes.values()
        if node.runner is not None
    ]


def test_klip_41_bound_of_a_table_is_changed_on_every_replica_without_opening_it_again() -> None:
    """A table that is used all the time gets its new bounds as the catalog is applied."""
    cluster, channel = calm_cluster()
    leader = catalog_leader(cluster)
    request = edit(cluster, channel, max_lag=5, max_staleness_ms=700, max_batches_behind=2)
    [done] = answered(cluster, leader, request)
    assert isinstance(done, Done)
    assert bounds_everywhere(cluster, channel) == [Bounds(5, 700, 2)] * 3
    [info] = answered(cluster, leader, ClusterInfo(6))
    assert isinstance(info, ClusterInfoAnswer)
    [table] = info.tables
    assert (table.max_lag, table.max_staleness_ms, table.max_batches_behind) == (5, 700, 2)
    assert table.seq == done.detail["version"]
    [done] = answered(cluster, leader, edit(cluster, channel, max_lag=None, standby_reads=False))
    assert isinstance(done, Done)
    assert bounds_everywhere(cluster, channel) == [Bounds(None, 700, 2)] * 3


def test_edits_of_two_who_came_at_once_both_hold() -> None:
    """S0.8: the one that loses the compare-and-set is made again on top of the other."""
    cluster, channel = calm_cluster()
    requests = [edit(cluster, channel, max_lag=5), edit(cluster, channel, max_staleness_ms=9)]
    answers = answered(cluster, catalog_leader(cluster), *requests)
    assert [type(answer) for answer in answers] == [Done, Done]
    assert bounds_everywhere(cluster, channel) == [Bounds(5, 9, None)] * 3


def test_edit_that_changes_nothing_writes_nothing() -> None:
    """A deployment that states its wishes each time does not grow the catalog."""
    cluster, channel = calm_cluster()
    leader = catalog_leader(cluster)
    assert leader.runner is not None
    before = leader.runner.keeper.metadata.core.last_seq
    [done] = answered(cluster, leader, edit(cluster, channel, max_lag=None, standby_reads=None))
    assert isinstance(done, Done)
    assert leader.runner.keeper.metadata.core.last_seq == before


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({}, "no property to change was named"),
        ({"colour": 1}, "no property 'colour'"),
        ({"max_lag": -1}, "max_lag=-1 is no number of rows"),
        ({"max_lag": 2**63}, "is no number of rows"),
        ({"max_staleness_ms": True}, "max_staleness_ms=True is no number of milliseconds"),
        ({"max_batches_behind": "2"}, "max_batches_behind='2' is no number of micro-batches"),
        ({"standby_reads": 1}, "standby_reads=1 is neither true nor false"),
    ],
)
def test_edit_that_makes_no_sense_is_refused_and_changes_nothing(
    changes: dict[str, Any], text: str
) -> None:
    """The catalog never hears of a bound that no read could go by."""
    cluster, channel = calm_cluster()
    leader = catalog_leader(cluster)
    [failed] = answered(cluster, leader, edit(cluster, channel, **changes))
    assert isinstance(failed, Failed)
    assert failed.code == "schema"
    assert text in failed.message
    assert bounds_everywhere(cluster, channel) == [Bounds()] * 3


def test_edit_of_another_table_of_the_name_or_elsewhere_is_refused() -> None:
    """S0.8: the UUID says which table is meant; S1.9: only the leader of the catalog changes it."""
    cluster, channel = calm_cluster()
    leader = catalog_leader(cluster)
    meant = edit(cluster, channel, max_lag=1)
    other = EditTable(5, meant.name, b"x" * 16, {"max_lag": 1}, 1_000)
    [failed] = answered(cluster, leader, other)
    assert isinstance(failed, Failed)
    assert failed.code == "unknown_table"
    follower = next(node for node in cluster.nodes.values() if node is not leader)
    [failed] = answered(cluster, follower, meant)
    assert isinstance(failed, Failed)
    assert (failed.code, failed.leader_hint) == ("not_leader", leader.node)


def test_blog_18_new_table_takes_the_default_of_the_node_that_makes_it() -> None:
    """Whether standbys serve is a setting first, and a property of each table from then on."""
    cluster, _ = calm_cluster()
    leader = catalog_leader(cluster)
    assert leader.runner is not None
    standbys_off = replace(leader.runner.settings.query, standby_reads=False)
    leader.runner.settings = replace(leader.runner.settings, query=standbys_off)
    request = CreateTable(
        request_id=7,
        name="quiet",
        key_columns=("k",),
        partitions=1,
        replicas=3,
        durability="fsync",
        max_lag=None,
        schema_json="",
        if_not_exists=False,
        timeout_ms=2_000,
    )
    [done] = answered(cluster, leader, request)
    assert isinstance(done, Done)
    [info] = answered(cluster, leader, ClusterInfo(8))
    assert isinstance(info, ClusterInfoAnswer)
    assert {table.name: table.standby_reads for table in info.tables} == {"quiet": False, "t": True}
