"""Collects a node's facts for the status snapshot; the shape is ``raftstore.policy.status``."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, cast

import msgspec

from raftstore.engine.audit import EVENT
from raftstore.engine.channel.runner import ChannelRunner
from raftstore.engine.peers.gap_reports import gaps_of
from raftstore.engine.reads.read_rules import in_doubt
from raftstore.engine.reports.node_parts import NodeParts
from raftstore.policy.lag import rows_behind
from raftstore.policy.status import (
    CatchUpStatus,
    ChannelFacts,
    FloorStatus,
    GapStatus,
    NodeFacts,
    ReplicaFacts,
    StatusFacts,
    build_status,
)
from raftstore.types import NodeId, Seq, channel_partition, node_name

FAILOVERS_SHOWN = 10
"""The newest ones; `raftstore events --type failover` has more."""


def node_status(node: NodeParts, now_ms: int, reserve_bytes: int | None = None) -> dict[str, Any]:
    """The node's JSON-shaped state, plus its process id and draining flag. ``reserve_bytes``: of
    the disk's reserve; None: not known."""
    facts = StatusFacts(
        viewpoint=node.me,
        cluster_id=node.identity.cluster_id,
        catalog_version=node.controller.catalog.version,
        log_bytes=node.log.size_bytes(),
        table_bytes=node.tables.size_bytes(),
        log_size_warning_bytes=node.settings.storage.log_size_warning_bytes,
        nodes=[_node_facts(node, peer, endpoint, now_ms) for peer, endpoint in _endpoints(node)],
        channels=[
            _channel_facts(node, runner, now_ms)
            for runner in node.channels.values()
            if runner.channel != node.controller.metadata_channel
        ],
        warnings=[*_warnings(node, now_ms), *_no_reserve(node, reserve_bytes)],
    )
    status: dict[str, Any] = dict(build_status(facts))
    status["pid"] = node.identity.pid
    status["http"] = node.identity.http
    status["levels"] = {node_name(peer): level for peer, level in node.controller.levels().items()}
    status["draining"] = node.drain.is_draining
    status["scans"] = {"pins": node.reader.scans.pins, "under_way": node.reader.scans.under_way}
    status["scrub"] = _scrub(node, now_ms)
    status["metadata"] = _metadata(node, now_ms)
    status["leaders"] = node.leaders.balancer.status(now_ms)
    status["standbys"] = node.leaders.standbys.status()
    stall = node.guard.stall()
    status["storage_stall"] = None if stall is None else stall._asdict()
    space = node.guard.space
    status["disk"] = {
        "free_bytes": space.free_bytes,
        "min_free_bytes": node.settings.storage.min_free_bytes,
        "is_low": space.is_low,
        "takes_records": not space.is_exhausted,
        "reserve_bytes": reserve_bytes,
    }
    status["audit"] = node.audit.status(tuple(node.ring.newest(EVENT, 1)))
    status["failovers"] = list(node.ring.newest("failover", FAILOVERS_SHOWN))
    return status


def _endpoints(node: NodeParts) -> list[tuple[NodeId, str]]:
    return list(node.controller.endpoints().items())


def _node_facts(node: NodeParts, peer: NodeId, endpoint: str, now_ms: int) -> NodeFacts:
    entry = node.controller.catalog.nodes.get(node_name(peer))
    domain = "" if entry is None or entry.node != peer else entry.failure_domain
    if peer == node.me:
        return NodeFacts(peer, endpoint, True, "up", 0, 0, domain)
    health = node.watch.health
    state, heard = health.state(peer), health.last_heard_ms(peer)
    return NodeFacts(
        peer,
        endpoint,
        up=node.watch.is_up(peer),
        state="unknown" if state is None else state.value,
        last_heard_ms=None if heard is None else max(0, now_ms - heard),
        clock_skew_ms=health.skew_ms(peer),
        failure_domain=domain,
    )


def _mode_of(runner: ChannelRunner) -> tuple[str, str]:
    """How the replica takes records, and why it does not go on if it does not."""
    if runner.stopped_reason is not None:
        return "stopped", runner.stopped_reason
    if runner.commands is not None and (stop := runner.commands.refusal()) is not None:
        return "stopped", stop.text
    if runner.core.doubt:
        return "recovering", in_doubt(runner)
    if runner.core.is_recovering:
        return "recovering", "acknowledged records are missing here (S0.3)"
    return runner.core.mode.value, ""


def _channel_facts(node: NodeParts, runner: ChannelRunner, now_ms: int) -> ChannelFacts:
    lag, age = node.reader.lag(runner, now_ms)
    mode, reason = _mode_of(runner)
    healing = node.healing.describe(runner.channel)
    under_way = node.snapshots.receiver.progress(runner.channel, now_ms)
    reason = "; ".join(filter(None, (reason, healing, under_way)))
    standbys = node.leaders.standbys
    record = standbys.record(runner)
    return ChannelFacts(
        channel=runner.channel,
        table=runner.name.rpartition("/")[0],
        partition=channel_partition(runner.channel),
        role=runner.elector.role,
        term=runner.elector.term,
        leader=runner.elector.leader,
        mode=mode,
        slow_machine="" if runner.commands is None else runner.commands.slowness(now_ms),
        applied_seq=node.tables.applied_seq(runner.channel),
        commit_seq=runner.core.commit_seq,
        last_seq=runner.core.last_seq,
        lag=lag,
        leader_info_age_ms=age,
        replicas=[
            replace(_replica_facts(node, runner, replica, lag), member=_member(runner, replica))
            for replica in runner.core.config().members
        ],
        member=_member(runner, node.me),
        reason=reason,
        catch_up=_catch_up(node, runner),
        flapping=runner.core.is_flapping,
        base_seq=runner.core.base.seq,
        log_bytes=node.retention.trimmer.kept_bytes(runner),
        floors=[
            FloorStatus(
                name=floor.name,
                owner=floor.owner,
                seq=floor.seq,
                bytes_max=floor.bytes_max,
                is_given_up=floor.is_given_up,
            )
            for floor in node.retention.floors_of(runner, now_ms)
        ],
        gaps=[
            GapStatus(from_seq=gap.from_seq, to_seq=gap.to_seq, age_ms=gap.age_ms)
            for gap in node.watch.reports.gaps.seen(runner)
        ],
        end_seq=gaps_of(runner).end_seq,
        record=None if record is None else msgspec.to_builtins(record.shown()),
        late_standbys={
            standby: standbys.why_not_in_sync(runner, standby)
            for standby in (() if record is None else record.hot_standby_replicas)
            if record is not None and standby not in record.iss
        },
    )


def _catch_up(node: NodeParts, runner: ChannelRunner) -> CatchUpStatus | None:
    view = runner.core.catch_up()
    if view is None:
        return None
    reported: dict[str, Any] = {**view._asdict(), "waits": node.catch_ups.waits(runner.channel)}
    return cast("CatchUpStatus", reported)


def _member(runner: ChannelRunner, replica: NodeId) -> str:
    """The part of a replica in its channel; empty: it has none any more."""
    role = runner.core.config().role_of(replica)
    return "" if role is None else role.value


def _replica_facts(
    node: NodeParts, runner: ChannelRunner, replica: NodeId, own_lag: int | None
) -> ReplicaFacts:
    """Freshest first: the leader gets acknowledgements, every node gets lag reports."""
    if replica == node.me:
        return ReplicaFacts(replica, node.tables.applied_seq(runner.channel), own_lag)
    applied: Seq | None = None
    progress = runner.core.progress().get(replica)
    is_slow = progress is not None and progress.cannot_complete
    if progress is not None and progress.heard_ms is not None:
        applied = progress.applied_seq
    position = node.watch.positions.get(runner.channel, {}).get(replica)
    if position is not None:
        applied = Seq(max(applied or 0, position.applied_seq))
    if applied is None:
        return ReplicaFacts(replica, None, None, is_slow)
    lag = rows_behind(node.watch.known_commit(runner), applied)
    return ReplicaFacts(replica, applied, lag, is_slow)


def _metadata(node: NodeParts, now_ms: int) -> dict[str, Any]:
    runner = node.controller.metadata
    _, age = node.reader.lag(runner, now_ms)
    return {
        "role": runner.elector.role.value,
        "term": runner.elector.term,
        "leader": runner.elector.leader,
        "age_ms": age,
    }


def _scrub(node: NodeParts, now_ms: int) -> dict[str, Any]:
    """How far the background reading is, and what its last pass found."""
    scrubber = node.healing.scrubber
    under_way, last = scrubber.under_way, scrubber.last
    return {
        "reading": None if under_way is None else under_way[0],
        "pass_bytes": 0 if under_way is None else under_way[1],
        "passes": scrubber.passes_total,
        "damages": scrubber.damages_total,
        "last_pass_ms_ago": None if last is None else max(0, now_ms - last.ended_ms),
        "last_pass_took_ms": None if last is None else last.took_ms,
        "last_pass_bytes": None if last is None else last.bytes,
        "last_pass_damages": None if last is None else last.damages,
    }


def _no_reserve(node: NodeParts, reserve_bytes: int | None) -> list[str]:
    storage, free = node.settings.storage, node.guard.space.free_bytes
    wanted, needed = storage.reserve_bytes, storage.reserve_room_bytes
    if reserve_bytes is None or reserve_bytes == wanted or free is None:
        return []
    if free >= needed:
        return []  # it is about to be made
    return [
        f"{node_name(node.me)} has no reserve of {wanted} bytes, so it waits if it is started on a "
        f"full disk; it makes one once {needed} bytes are free"
    ]


def _warnings(node: NodeParts, now_ms: int) -> list[str]:
    waiting = node.controller.table_replicas.waiting(now_ms)
    warnings = [each.warning for each in waiting if each.warning]
    if (stall := node.guard.stall()) is not None:
        warnings.append(f"{stall.describe(node_name(node.me))}; it leads no channel until then")
    if (space := node.guard.space).is_low:
        doing = "takes no records" if space.is_exhausted else "takes no new writes"
        warnings.append(f"{space.reason}; it {doing} until there is more")
    if node.controller.metadata.elector.leader is None:
        text = "the metadata channel has no leader known here; tables cannot be created now"
        warnings.append(text)
    return warnings
