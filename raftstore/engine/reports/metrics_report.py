"""A node's gauges, read from where they are when somebody asks, and the totals beside them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

from raftstore.core.statistics import ReplicaStatistics
from raftstore.engine.channel.runner import ChannelRunner
from raftstore.engine.meters import channel_labels
from raftstore.engine.reports.node_parts import NodeParts
from raftstore.metrics import Histogram, Labels, Sample
from raftstore.types import (
    FollowerMode,
    Role,
    channel_partition,
    node_name,
)
from raftstore.version import VERSION

CHANNEL_LABELS_MAX: Final = 256
"""With more channels here there are sums per table only: a label for each would flood a monitor."""


def metrics(node: NodeParts, now_ms: int) -> tuple[tuple[Sample, ...], tuple[Histogram, ...]]:
    """Everything, in the conventions of Prometheus (features N14 included)."""
    writers = node.batches.coordinator.meters
    node.meters.forget_tables(node.controller.catalog.tables)
    writers.forget_tables(node.controller.catalog.tables)
    samples = (
        *_node(node),
        *_healing(node),
        *_audit(node),
        *_moves(node, now_ms),
        *_peers(node, now_ms),
        *_channels(node, now_ms),
        *_memory(node),
        *_promises(node),
        *node.meters.samples(),
        *writers.samples(now_ms),
    )
    return samples, (*node.meters.histograms(), *node.failovers.histograms())


def _node(node: NodeParts) -> Iterator[Sample]:
    yield "raftstore_build_info", (("version", VERSION),), 1.0
    leader = node.controller.metadata.elector.leader
    yield "raftstore_metadata_has_leader", (), float(leader is not None)
    yield "raftstore_storage_bytes", (("kind", "log"),), float(node.log.size_bytes())
    yield "raftstore_storage_bytes", (("kind", "tables"),), float(node.tables.size_bytes())
    stall = node.guard.stall()
    stalled_s = 0.0 if stall is None else stall.for_ms / 1000
    yield "raftstore_storage_stalled_seconds", (), stalled_s
    space = node.guard.space
    if space.free_bytes is not None:
        yield "raftstore_disk_free_bytes", (), float(space.free_bytes)
    yield "raftstore_disk_low", (), float(space.is_low)
    yield "raftstore_no_space_refused_total", (), float(space.refused)
    yield "raftstore_unsynced_bytes", (), float(node.log.unsynced_bytes())
    yield "raftstore_stall_dropped_messages_total", (), float(node.outbox.dropped)
    yield "raftstore_reads_waiting", (), float(node.reader.waiting)
    yield "raftstore_channels", (), float(len(node.channels) - 1)
    yield "raftstore_failovers_total", (), float(node.failovers.count)
    yield "raftstore_writes_held_back_total", (), float(node.lag_guard.refused)
    yield "raftstore_step_downs_refused_total", (), float(node.step_downs.refused)
    trimmer = node.retention.trimmer
    yield "raftstore_log_trims_total", (), float(trimmer.trims_total)
    yield "raftstore_log_trimmed_rows_total", (), float(trimmer.trimmed_seqs_total)
    yield "raftstore_log_bases_carried_total", (), float(trimmer.carried_total)
    yield "raftstore_log_floor_segment", (), float(node.log.floor())
    merger = node.retention.merger
    yield "raftstore_table_merges_total", (), float(merger.merges_total)
    yield "raftstore_table_merged_bytes_total", (), float(merger.merged_bytes_total)
    outcomes = node.retention.outcome_trimmer.trimmed_total
    yield "raftstore_outcomes_trimmed_total", (), float(outcomes)
    given_up = node.retention.floors.given_up_total
    yield "raftstore_log_floors_given_up_total", (), float(given_up)
    yield from _snapshots(node)
    yield from _standbys(node)
    yield "raftstore_rows_expired_total", (), float(node.expirer.expired_total)
    yield from _machines(node)
    yield "raftstore_scan_pins", (), float(node.reader.scans.pins)
    yield "raftstore_scans_under_way", (), float(node.reader.scans.under_way)


def _machines(node: NodeParts) -> Iterator[Sample]:
    """State machines of users."""
    commands = [each.commands for each in node.channels.values() if each.commands is not None]
    stopped = sum(each.stop is not None for each in commands)
    yield "raftstore_machine_partitions", (), float(len(commands))
    yield "raftstore_machine_partitions_stopped", (), float(stopped)
    yield "raftstore_machine_partitions_slow", (), float(sum(each.is_slow for each in commands))


def _standbys(node: NodeParts) -> Iterator[Sample]:
    """Standbys of the channels that this node leads (FIP-17)."""
    standbys = node.leaders.standbys
    found = standbys.counts()
    yield "raftstore_hot_standbys", (), float(found["hot_standbys"])
    yield "raftstore_standbys_in_sync", (), float(found["in_sync"])
    yield "raftstore_standbys_entered_total", (), float(standbys.entered_total)
    yield "raftstore_standbys_left_total", (), float(standbys.left_total)


def _healing(node: NodeParts) -> Iterator[Sample]:
    healing = node.healing
    yield "raftstore_scrub_bytes_total", (), float(healing.scrubber.bytes_total)
    yield "raftstore_scrub_passes_total", (), float(healing.scrubber.passes_total)
    yield "raftstore_scrub_damages_total", (), float(healing.scrubber.damages_total)
    yield "raftstore_tables_healed_total", (), float(healing.table_repairs.healed_total)
    yield "raftstore_logs_healed_total", (), float(healing.log_repairs.healed_total)
    yield "raftstore_divergences_total", (), float(healing.divergences.found_total)
    yield "raftstore_replicas_healed_total", (), float(healing.divergences.healed_total)


def _audit(node: NodeParts) -> Iterator[Sample]:
    audit = node.audit
    yield "raftstore_audit_operations_total", (), float(audit.judge.observed)
    yield "raftstore_audit_dropped_total", (), float(audit.judge.dropped)
    found = (("source", "node"),), (("source", "client"),)
    yield "raftstore_audit_violations_total", found[0], float(audit.judge.violations)
    yield "raftstore_audit_violations_total", found[1], float(audit.reported)


def _moves(node: NodeParts, now_ms: int) -> Iterator[Sample]:
    """Moves of leaderships and of replicas, at the node that leads the metadata channel."""
    waiting = node.controller.table_replicas.waiting(now_ms)
    waited_ms = max((each.waited_ms for each in waiting), default=0)
    yield "raftstore_tables_waiting_for_replicas", (), float(len(waiting))
    yield "raftstore_tables_waiting_for_replicas_seconds", (), waited_ms / 1000
    rebalancer = node.controller.rebalancer
    yield "raftstore_leader_moves_total", (), float(node.leaders.balancer.moved_total)
    yield "raftstore_leader_moves_failed_total", (), float(node.leaders.balancer.failed_total)
    yield "raftstore_leader_moves_left", (), float(node.leaders.balancer.moves_left)
    yield "raftstore_replica_moves_total", (), float(rebalancer.moved_total)
    yield "raftstore_replica_moves_failed_total", (), float(rebalancer.failed_total)
    yield "raftstore_replica_moves_left", (), float(rebalancer.moves_left)


def _snapshots(node: NodeParts) -> Iterator[Sample]:
    sender, receiver = node.snapshots.sender, node.snapshots.receiver
    sent, received = (("direction", "sent"),), (("direction", "received"),)
    yield "raftstore_replica_snapshot_bytes_total", sent, float(sender.sent_bytes)
    yield "raftstore_replica_snapshot_bytes_total", received, float(receiver.taking.received_bytes)
    yield "raftstore_replica_snapshot_chunks_total", sent, float(sender.sent_chunks)
    yield (
        "raftstore_replica_snapshot_chunks_total",
        received,
        float(receiver.taking.received_chunks),
    )
    yield "raftstore_replica_snapshots", sent, float(len(sender.sessions))
    yield "raftstore_replica_snapshots", received, float(len(receiver.transfers))
    yield "raftstore_replica_snapshot_files_bytes", (), float(sender.files_bytes)


def _peers(node: NodeParts, now_ms: int) -> Iterator[Sample]:
    health = node.watch.health
    for peer in node.watch.peers:
        labels = (("peer", node_name(peer)),)
        yield "raftstore_node_up", labels, float(node.watch.is_routable(peer, now_ms))
        yield "raftstore_heartbeats_missed_total", labels, float(health.missed_total(peer))
        skew_ms = health.skew_ms(peer)
        if skew_ms is not None:
            yield "raftstore_clock_skew_seconds", labels, skew_ms / 1000


def _channels(node: NodeParts, now_ms: int) -> Iterator[Sample]:
    runners = [r for r in node.channels.values() if r.channel != node.controller.metadata_channel]
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


def _memory(node: NodeParts) -> Iterator[Sample]:
    """Memory held by all channels together, and how much those that catch up lack."""
    sums = dict.fromkeys(_HELD, 0.0)
    catching_up = rows_left = rows_per_s = bytes_per_s = slow = flapping = 0
    for runner in node.channels.values():
        held = runner.core.statistics()
        for name, value in _HELD.items():
            sums[name] += value(held)
        if runner.elector.role is not Role.LEADER and (
            runner.core.mode is FollowerMode.CATCHING_UP
        ):
            catching_up += 1
            rows_left += max(0, node.watch.known_commit(runner) - runner.core.last_seq)
            view = runner.core.catch_up()
            if view is not None:
                rows_per_s += view.rows_per_s
                bytes_per_s += view.bytes_per_s
                slow += view.cannot_complete
        flapping += runner.core.is_flapping
    sums[_REPEATED] += node.meters.repeated_before
    for name, total in sums.items():
        yield name, (), total
    yield "raftstore_catchup_sessions", (), float(catching_up)
    yield "raftstore_catchup_rows_left", (), float(rows_left)
    yield "raftstore_catchup_rows_per_second", (), float(rows_per_s)
    yield "raftstore_catchup_bytes_per_second", (), float(bytes_per_s)
    yield "raftstore_catchup_waiting", (), float(node.catch_ups.waiting)
    for mode, changes in node.catch_ups.mode_changes.items():
        yield "raftstore_mode_changes_total", (("mode", mode.value),), float(changes)
    yield "raftstore_replicas_slow", (), float(slow)
    yield "raftstore_replicas_flapping", (), float(flapping)


_REPEATED: Final = "raftstore_dedupe_hits_total"
_HELD: Final[dict[str, Callable[[ReplicaStatistics], int]]] = {
    "raftstore_pending_messages": lambda held: held.pending_payloads.messages,
    "raftstore_pending_bytes": lambda held: held.pending_payloads.bytes,
    "raftstore_live_queue_length": lambda held: held.live_queue.messages,
    "raftstore_uncommitted_records": lambda held: held.uncommitted_records,
    "raftstore_uncommitted_bytes": lambda held: held.uncommitted_bytes,
    "raftstore_waiting_publishers": lambda held: held.waiting_publishers,
    "raftstore_dedupe_sessions": lambda held: held.producer_sessions,
    "raftstore_dedupe_outcomes": lambda held: held.outcomes,
    "raftstore_payloads_repaired_total": lambda held: held.payloads_repaired,
    _REPEATED: lambda held: held.repeated_writes,
}
"""What is summed over all channels, and where each counts it."""


def _of_channel(node: NodeParts, runner: ChannelRunner, now_ms: int) -> Iterator[tuple[str, float]]:
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


def _promises(node: NodeParts) -> Iterator[Sample]:
    for table in node.controller.catalog.tables.values():
        if table.max_staleness_ms is not None:
            seconds = table.max_staleness_ms / 1000
            yield "raftstore_table_staleness_slo_seconds", (("table", table.name),), seconds


def _table(runner: ChannelRunner) -> str:
    return runner.name.rpartition("/")[0]
