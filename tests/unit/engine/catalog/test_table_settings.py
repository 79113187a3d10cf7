"""Settings of a table are stated when it is made or altered, and every node goes by them at
once."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec import structs

from raftstore.policy.levels import TABLE_SETTINGS_LEVEL
from raftstore.protocol.admin import ClusterInfo, ClusterInfoAnswer, CreateTable
from raftstore.protocol.message import Done, Failed
from raftstore.protocol.table_settings import DEFAULT_SETTINGS, TableSettings
from raftstore.testing.sim_cluster import SimCluster
from raftstore.types import ChannelId
from tests.unit.engine.catalog.test_edit_table import answered, catalog_leader, edit
from tests.unit.engine.channel.test_levels import follower_of_all, reinstall
from tests.unit.engine.engine_world import calm_cluster, run

OWN = TableSettings(retention_bytes=2 << 20, retention_records=5_000, retention_age_ms=60_000)
WANTED = CreateTable(7, "kept", ("id",), 1, 3, "fsync", None, "", False, 5_000, OWN)


def settings_everywhere(cluster: SimCluster, channel: ChannelId) -> list[TableSettings]:
    """The settings that each replica of the channel goes by."""
    return [
        node.runner.channels[channel].table_settings
        for node in cluster.nodes.values()
        if node.runner is not None
    ]


def channel_of(cluster: SimCluster, name: str) -> ChannelId:
    """The only channel of a table."""
    node = catalog_leader(cluster)
    assert node.runner is not None
    return node.runner.controller.catalog.tables[name].channels[0]


def one(answers: list[Any]) -> Any:
    """The only answer."""
    (answer,) = answers
    return answer


def test_gap_10_retention_of_a_table_is_changed_on_every_replica_without_a_restart() -> None:
    """A setting that is not named stays; None gives the decision back to each node."""
    cluster, channel = calm_cluster()
    leader = catalog_leader(cluster)
    assert settings_everywhere(cluster, channel) == [DEFAULT_SETTINGS] * 3
    runners = [node.runner and node.runner.channels[channel] for node in cluster.nodes.values()]
    request = edit(cluster, channel, retention_bytes=2 << 20, retention_age_ms=9)
    assert isinstance(one(answered(cluster, leader, request)), Done)
    assert settings_everywhere(cluster, channel) == [TableSettings(2 << 20, None, 9)] * 3
    info = one(answered(cluster, leader, ClusterInfo(6)))
    assert isinstance(info, ClusterInfoAnswer)
    assert info.tables[0].settings == TableSettings(2 << 20, None, 9)
    request = edit(cluster, channel, retention_bytes=None, retention_records=5_000)
    assert isinstance(one(answered(cluster, leader, request)), Done)
    assert settings_everywhere(cluster, channel) == [TableSettings(None, 5_000, 9)] * 3
    now = [node.runner and node.runner.channels[channel] for node in cluster.nodes.values()]
    assert now == runners, "no channel was opened again"


def test_settings_of_a_new_table_outlive_restarts_of_all_nodes() -> None:
    """They are in the catalog; a table that was given none has none."""
    cluster, plain = calm_cluster()
    assert isinstance(one(answered(cluster, catalog_leader(cluster), WANTED)), Done)
    kept = channel_of(cluster, "kept")
    assert settings_everywhere(cluster, kept) == [OWN] * 3
    for node in cluster.nodes.values():
        node.kill("everything stops")
    for node in cluster.nodes.values():
        node.boot()
    run(cluster, 5_000)
    assert settings_everywhere(cluster, kept) == [OWN] * 3
    assert settings_everywhere(cluster, plain) == [DEFAULT_SETTINGS] * 3


def test_creating_a_table_again_asks_for_the_same_settings() -> None:
    """A request that names others means another table, and is refused."""
    cluster, _ = calm_cluster()
    leader = catalog_leader(cluster)
    again = structs.replace(WANTED, if_not_exists=True)
    assert isinstance(one(answered(cluster, leader, WANTED)), Done)
    assert isinstance(one(answered(cluster, leader, again)), Done)
    other = one(answered(cluster, leader, structs.replace(again, settings=TableSettings(1 << 22))))
    assert isinstance(other, Failed)
    assert "exists already with another definition" in other.message


@pytest.mark.parametrize("name", ["retention_bytes", "retention_records", "retention_age_ms"])
def test_impossible_setting_is_refused_with_its_value_before_anything_is_proposed(
    name: str,
) -> None:
    """By the leader of the catalog too, whatever program asked for it."""
    cluster, channel = calm_cluster()
    leader = catalog_leader(cluster)
    wrong: dict[str, Any] = {name: 1 << 61}
    for request in (
        structs.replace(WANTED, settings=TableSettings(**wrong)),
        edit(cluster, channel, **wrong),
    ):
        failed = one(answered(cluster, leader, request))
        assert isinstance(failed, Failed)
        assert f"{name}={1 << 61} is outside" in failed.message
    assert settings_everywhere(cluster, channel) == [DEFAULT_SETTINGS] * 3


def test_setting_is_refused_while_a_node_could_not_go_by_it() -> None:
    """The text names the node; tables without settings are made and edited meanwhile."""
    cluster, channel = calm_cluster()
    old = follower_of_all(cluster, channel)
    reinstall(cluster, old, TABLE_SETTINGS_LEVEL - 1)
    leader = catalog_leader(cluster)
    for request in (WANTED, edit(cluster, channel, retention_records=5_000)):
        failed = one(answered(cluster, leader, request))
        assert isinstance(failed, Failed)
        assert failed.code == "store_too_old"
        assert f"catalog commands of format 3 need level {TABLE_SETTINGS_LEVEL}" in failed.message
        assert f"{old.name} is at level {TABLE_SETTINGS_LEVEL - 1}" in failed.message
    plain = structs.replace(WANTED, settings=DEFAULT_SETTINGS)
    assert isinstance(one(answered(cluster, leader, plain)), Done)
    assert isinstance(one(answered(cluster, leader, edit(cluster, channel, max_lag=5))), Done)
    reinstall(cluster, old, TABLE_SETTINGS_LEVEL)
    leader = catalog_leader(cluster)
    request = edit(cluster, channel, retention_records=5_000)
    assert isinstance(one(answered(cluster, leader, request)), Done)
    assert settings_everywhere(cluster, channel) == [TableSettings(None, 5_000, None)] * 3
