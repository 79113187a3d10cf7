"""The catalog is applied again after a loss of its rows, from before tables were dropped."""

from __future__ import annotations

from raftstore.state_machines.catalog import Catalog
from raftstore.types import channel_table
from tests.unit.engine.engine_world import calm_cluster, run


def test_table_whose_drop_is_known_is_not_opened_by_an_older_catalog() -> None:
    """S0.8: the log remembers the drop; the node goes on until the catalog has come there too."""
    cluster, channel = calm_cluster()
    node = next(node for node in cluster.nodes.values() if node is not cluster.leaders()[channel])
    assert node.runner is not None
    controller = node.runner.controller
    assert controller.catalog.table_of(channel) is not None
    node.runner.registry.drop(channel, node.clock.now_ms())
    controller.catalog = Catalog.empty()
    controller.on_catalog_applied(node.clock.now_ms())
    assert channel not in node.runner.channels
    run(cluster, 500)
    assert node.runner is not None


def test_catalog_without_its_rows_deletes_nothing() -> None:
    """S0.8: only the record of a drop removes a channel, never that no row names its table: rows
    are absent, too, while a catalog that was damaged is built again."""
    cluster, channel = calm_cluster()
    node = next(node for node in cluster.nodes.values() if node is not cluster.leaders()[channel])
    assert node.runner is not None
    controller = node.runner.controller
    before = controller.catalog
    controller.catalog = Catalog.empty()
    controller._follow(before, node.clock.now_ms())
    assert channel in node.runner.channels
    assert not node.log.is_dropped(channel)
    dropped = Catalog.from_rows((), before.version + 1)
    dropped.dropped[channel_table(channel)] = "t"
    controller.catalog = dropped
    controller._follow(before, node.clock.now_ms())
    assert channel not in node.runner.channels
    assert node.log.is_dropped(channel)
