"""Properties of a table are changed while it is used, once and everywhere (KLIP-41, S0.8)."""

from __future__ import annotations

import json
from typing import Any

import pytest

from raftstore.protocol.admin import ClusterInfo, ClusterInfoAnswer, CreateTable, EditTable
from raftstore.protocol.message import Done, Failed, Message
from raftstore.protocol.reads import Bounds
from raftstore.rows.schema import TableSchema
from raftstore.testing.sim_cluster import SimCluster
from raftstore.testing.sim_node import SimNode
from raftstore.types import ChannelId
from tests.unit.engine.engine_world import ask, calm_cluster, run


def catalog_leader(cluster: SimCluster) -> SimNode:
    """The leader of the metadata channel: it takes commands on tables."""
    node = next(iter(cluster.nodes.values()))
    assert node.runner is not None
    return cluster.leaders()[node.runner.metadata_channel]


def edit(cluster: SimCluster, channel: ChannelId, **changes: Any) -> EditTable:
    """A request to the only table."""
    node = catalog_leader(cluster)
    assert node.runner is not None
    table = node.runner.controller.catalog.table_of(channel)
    assert table is not None
    return EditTable(5, table.name, table.uuid, changes, 2_000)


def answered(cluster: SimCluster, node: SimNode, *requests: Message) -> list[Message]:
    """All answers after a while."""
    answers = ask(cluster, node, *requests)
    run(cluster, 3_000)
    return answers


def bounds_everywhere(cluster: SimCluster, channel: ChannelId) -> list[Bounds]:
    """The bounds that each replica of the channel applies."""
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
    """A deployment that sets the same properties each time does not grow the catalog."""
    cluster, channel = calm_cluster()
    leader = catalog_leader(cluster)
    assert leader.runner is not None
    before = leader.runner.controller.metadata.core.last_seq
    [done] = answered(cluster, leader, edit(cluster, channel, max_lag=None, standby_reads=None))
    assert isinstance(done, Done)
    assert leader.runner.controller.metadata.core.last_seq == before


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
        ({"add_columns": 1}, "add_columns=1 is no schema"),
        ({"add_columns": "[]"}, "table 't': the table takes any columns beside its key"),
    ],
)
def test_edit_that_makes_no_sense_is_refused_and_changes_nothing(
    changes: dict[str, Any], text: str
) -> None:
    """The catalog never learns of a bound that no read could go by."""
    cluster, channel = calm_cluster()
    leader = catalog_leader(cluster)
    [failed] = answered(cluster, leader, edit(cluster, channel, **changes))
    assert isinstance(failed, Failed)
    assert failed.code == "schema"
    assert text in failed.message
    assert bounds_everywhere(cluster, channel) == [Bounds()] * 3


def columns(**types: str) -> str:
    """Spark's JSON of a schema."""
    fields = [{"name": name, "type": kind, "nullable": True} for name, kind in types.items()]
    return json.dumps({"type": "struct", "fields": fields})


def with_schema(cluster: SimCluster) -> ChannelId:
    """Make a table that declares its columns; return its channel."""
    request = CreateTable(
        request_id=7,
        name="wide",
        key_columns=("k",),
        partitions=1,
        replicas=3,
        durability="fsync",
        max_lag=None,
        schema_json=columns(k="long", a="string"),
        if_not_exists=True,
        timeout_ms=2_000,
    )
    leader = catalog_leader(cluster)
    [done] = answered(cluster, leader, request)
    assert isinstance(done, Done)
    assert leader.runner is not None
    return leader.runner.controller.catalog.tables["wide"].channels[0]


def columns_everywhere(cluster: SimCluster) -> list[tuple[str, ...]]:
    """The table's columns as each node knows them."""
    tables = [
        node.runner.controller.catalog.tables["wide"]
        for node in cluster.nodes.values()
        if node.runner is not None
    ]
    return [TableSchema(table.key_columns, table.schema_json).columns for table in tables]


def test_columns_of_two_who_append_at_once_are_both_there() -> None:
    """Each is appended to what is there when its turn comes; one that both name comes once."""
    cluster, _ = calm_cluster()
    channel = with_schema(cluster)
    added = [columns(k="long", a="string", b="date"), columns(c="long", b="date")]
    requests = [edit(cluster, channel, add_columns=each) for each in added]
    answers = answered(cluster, catalog_leader(cluster), *requests)
    assert [type(answer) for answer in answers] == [Done, Done]
    assert columns_everywhere(cluster) == [("k", "a", "b", "c")] * 3
    assert with_schema(cluster) == channel  # created if it does not exist: it is that one still


def test_of_two_types_for_one_column_the_second_is_refused() -> None:
    """The second is refused even if both names were free when they were asked for."""
    cluster, _ = calm_cluster()
    channel = with_schema(cluster)
    requests = [edit(cluster, channel, add_columns=columns(b=kind)) for kind in ("long", "string")]
    answers = answered(cluster, catalog_leader(cluster), *requests)
    [failed] = [answer for answer in answers if isinstance(answer, Failed)]
    assert (failed.code, type(failed)) == ("schema", Failed)
    assert "table 'wide': column 'b' is" in failed.message
    assert columns_everywhere(cluster) == [("k", "a", "b")] * 3


def test_columns_that_make_the_catalog_too_large_are_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """All tables travel in one answer to discovery, also after an edit."""
    cluster, _ = calm_cluster()
    channel = with_schema(cluster)
    monkeypatch.setattr("raftstore.engine.catalog.table_commands.CATALOG_BYTES_MAX", 2_000)
    many = columns(**{f"column{number}": "long" for number in range(50)})
    request = edit(cluster, channel, add_columns=many)
    [failed] = answered(cluster, catalog_leader(cluster), request)
    assert isinstance(failed, Failed)
    assert failed.code == "payload_too_large"
    assert columns_everywhere(cluster) == [("k", "a")] * 3


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
    leader.runner.controller.commands._standby_reads = False
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
