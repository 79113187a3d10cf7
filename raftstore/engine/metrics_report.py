"""A node's gauges, read from where they are when somebody asks, and the totals beside them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, Protocol

from raftstore.config import NodeSettings
from raftstore.engine.catalog_keeper import CatalogKeeper
from raftstore.engine.channel_runner import ChannelRunner
from raftstore.engine.failover_watch import FailoverWatch
from raftstore.engine.meters import Labels, Meters, channel_labels
from raftstore.engine.peer_watch import PeerWatch
from raftstore.engine.reads import Reader
from raftstore.ports import MessageLog, TableStore
from raftstore.requests import Histogram, Sample
from raftstore.types import ChannelId, NodeId, Role, channel_partition, node_name
from raftstore.version import VERSION

CHANNEL_LABELS_MAX: Final = 256
"""With more channels here there are sums per table only: a label for each would flood a monitor."""


class MetricsHost(Protocol):
    """What is looked at of a node."""

    me: NodeId
    settings: NodeSettings
    log: MessageLog
    tables: TableStore
    channels: dict[ChannelId, ChannelRunner]
    metadata_channel: ChannelId
    keeper: CatalogKeeper
    watch: PeerWatch
    reader: Reader
    meters: Meters
    failovers: FailoverWatch


def metrics(node: MetricsHost, now_ms: int) -> tuple[tuple[Sample, ...], tuple[Histogram, ...]]:
    """Everything, in the conventions of Prometheus (features N14 included)."""
    node.meters.forget_tables(node.keeper.catalog.tables)
    samples = (
        *_node(node),
        *_peers(node, now_ms),
        *_channels(node, now_ms),
        *_promises(node),
        *node.meters.samples(),
    )
    return samples, node.meters.histograms()


def _node(node: MetricsHost) -> Iterator[Sample]:
    yield "raftstore_build_info", (("version", VERSION),), 1.0
    leader = node.keeper.metadata.elector.leader
    yield "raftstore_metadata_has_leader", (), float(leader is not None)
    yield "raftstore_storage_bytes", (("kind", "log"),), float(node.log.size_bytes())
    yield "raftstore_storage_bytes", (("kind", "tables"),), float(node.tables.size_bytes())
    yield "raftstore_reads_waiting", (), float(node.reader.waiting)
    yield "raftstore_channels", (), float(len(node.channels) - 1)
    yield "raftstore_failovers_total", (), float(node.failovers.count)


def _peers(node: MetricsHost, now_ms: int) -> Iterator[Sample]:
    health = node.watch.health
    for peer in node.watch.peers:
        labels = (("peer", node_name(peer)),)
        yield "raftstore_node_up", labels, float(node.watch.is_routable(peer, now_ms))
        yield "raftstore_heartbeats_missed_total", labels, float(health.missed_total(peer))
        skew_ms = health.skew_ms(peer)
        if skew_ms is not None:
            yield "raftstore_clock_skew_seconds", labels, skew_ms / 1000


def _channels(node: MetricsHost, now_ms: int) -> Iterator[Sample]:
    runners = [r for r in node.channels.values() if r.channel != node.metadata_channel]
    if len(runners) <= CHANNEL_LABELS_MAX:
        for runner in runners:
            partition = channel_partition(runner.channel)
            labels = channel_labels(_table(runner), partition)
            for name, value in _of_channel(node, runner, now_ms):
                yield name, labels, value
            yield "raftstore_channel_role", (*labels, ("role", runner.elector.role.value)), 1.0
            yield "raftstore_term", labels, float(runner.elector.term)
        return
    sums: dict[tuple[str, Labels], float] = {}
    for runner in runners:
        labels = (("table", _table(runner)),)
        for name, value in _of_channel(node, runner, now_ms):
            sums[name, labels] = sums.get((name, labels), 0.0) + value
        is_leader = float(runner.elector.role is Role.LEADER)
        led = ("raftstore_channels_led", labels)
        sums[led] = sums.get(led, 0.0) + is_leader
    for (name, labels), value in sums.items():
        yield name, labels, value


def _of_channel(
    node: MetricsHost, runner: ChannelRunner, now_ms: int
) -> Iterator[tuple[str, float]]:
    lag, age_ms = node.reader.lag(runner, now_ms)
    yield "raftstore_has_leader", float(runner.elector.leader is not None)
    yield "raftstore_end_seq", float(runner.core.last_seq)
    yield "raftstore_commit_seq", float(runner.core.commit_seq)
    yield "raftstore_applied_seq", float(node.tables.applied_seq(runner.channel))
    yield "raftstore_lag_unknown", float(lag is None)
    if lag is not None:
        yield "raftstore_lag_records", float(lag)
    if age_ms is not None:
        yield "raftstore_leader_info_age_seconds", age_ms / 1000


def _promises(node: MetricsHost) -> Iterator[Sample]:
    for table in node.keeper.catalog.tables.values():
        if table.max_staleness_ms is not None:
            seconds = table.max_staleness_ms / 1000
            yield "raftstore_table_staleness_slo_seconds", (("table", table.name),), seconds


def _table(runner: ChannelRunner) -> str:
    return runner.name.rpartition("/")[0]
