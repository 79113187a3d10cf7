"""/metrics in the text format of Prometheus, and /v1/events: what a monitor collects."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Annotated, Any, Final

import msgspec
from msgspec import Meta
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from raftstore.client.admin import check_event_types
from raftstore.errors import UnavailableError
from raftstore.http.queries import Count63, Timed
from raftstore.http.routes import Answer, Call, Route
from raftstore.metrics import Histogram, Sample
from raftstore.protocol.admin import Events, EventsAnswer, Metrics, MetricsAnswer
from raftstore.types import EVENT_TYPES, node_name

TEXT: Final = "text/plain; version=0.0.4; charset=utf-8"
TOTAL: Final = "_total"
EVENTS_MAX: Final = 4_096

HELP: Final = {
    "raftstore_build_info": "Version of the node; the value is always 1.",
    "raftstore_metadata_has_leader": "Whether the catalog's channel has a leader known here.",
    "raftstore_storage_bytes": "Bytes on disk.",
    "raftstore_storage_stalled_seconds": "How long the disk has not finished an operation; 0: "
    "none takes too long.",
    "raftstore_disk_free_bytes": "Free bytes of the disk by the newest look.",
    "raftstore_disk_low": "1 while they are fewer than storage.min_free_bytes: no new writes.",
    "raftstore_no_space_refused": "Writes refused for that.",
    "raftstore_unsynced_bytes": "Bytes of log entries that are not on the disk yet.",
    "raftstore_stall_dropped_messages": "Messages dropped because they waited for a disk that "
    "hangs.",
    "raftstore_reads_waiting": "Reads that wait for a position, a confirmation or a proof.",
    "raftstore_channels": "Channels hosted here.",
    "raftstore_channels_led": "Channels of the table that are led here.",
    "raftstore_failovers": "Failovers that ended with a leader here.",
    "raftstore_failover_duration_seconds": "Times of those failovers by phase: detect (from the "
    "old leader's last sign to the suspicion), vote (from there to the election), first_read and "
    "first_write (from the last sign to the first one served).",
    "raftstore_node_up": "Whether queries would be sent to the peer.",
    "raftstore_heartbeats_missed": "Heartbeats that were due and did not come.",
    "raftstore_clock_skew_seconds": "The peer's wall clock minus this node's, transit included.",
    "raftstore_channel_role": "Role of the replica here; the value is always 1.",
    "raftstore_term": "Term of the channel.",
    "raftstore_has_leader": "Whether the channel has a leader known here.",
    "raftstore_end_seq": "Last sequence in the log.",
    "raftstore_commit_seq": "Highest sequence known to be committed.",
    "raftstore_applied_seq": "Highest sequence that reads see.",
    "raftstore_lag_unknown": "1 when the lag is not known, which counts as infinite.",
    "raftstore_lag_records": "Rows that the replica here is behind.",
    "raftstore_leader_info_age_seconds": "Age of the last report of the channel's leader.",
    "raftstore_elections": "Candidacies of replicas here.",
    "raftstore_leaderships_won": "Elections won by replicas here.",
    "raftstore_reads": "Reads answered, by level and result.",
    "raftstore_read_duration_seconds": "Time from a read's arrival to its answer.",
    "raftstore_writes": "Writes answered, by outcome.",
    "raftstore_write_duration_seconds": "Time from a write's arrival to its answer.",
    "raftstore_reads_served_staleness_seconds": "Proven staleness of what was served.",
    "raftstore_reads_served_lag_records": "Rows that what was served was behind.",
    "raftstore_writes_held_back": "Writes asked to wait for a late replica (max_replica_lag).",
    "raftstore_step_downs_refused": "Requests to move a leadership that came too often.",
    "raftstore_client_connections": "Connections of clients.",
    "raftstore_partial_frame_bytes": "Bytes of frames of clients that are not complete yet.",
    "raftstore_unread_answer_bytes": "Bytes of answers that clients with more than 16 KiB of them "
    "have not taken.",
    "raftstore_clients_ended": "Connections of clients that were ended or not let in, by reason: "
    "slow_frame (a frame did not become complete, or all such held too much), slow_client (answers "
    "were not read), idle, or too_many_clients.",
    "raftstore_replica_snapshot_bytes": "Bytes of tables that were sent to other replicas and "
    "received of them (replica snapshots).",
    "raftstore_replica_snapshot_chunks": "The same in chunks.",
    "raftstore_replica_snapshot_files_bytes": "Bytes of table files that are kept for the replicas "
    "that copy them, whether the tables still have them or not.",
    "raftstore_replica_snapshots": "Replica snapshots that are served and taken now.",
    "raftstore_audit_operations": "Answers to reads of watched keys that the node judged.",
    "raftstore_audit_dropped": "Of these, answers whose row was not judged: audit.keys_max is "
    "reached.",
    "raftstore_audit_violations": "Answers that cannot be right, found by the node itself or by "
    "clients that audit theirs (source).",
    "raftstore_scrub_bytes": "Bytes of log and tables that were read and verified.",
    "raftstore_scrub_passes": "How often all of them were read.",
    "raftstore_scrub_damages": "Damaged places of the log, and tables, that this found.",
    "raftstore_tables_healed": "Damaged tables that another replica's has replaced.",
    "raftstore_logs_healed": "Channels whose damaged records were asked back from other nodes.",
    "raftstore_outcomes_trimmed": "Kept outcomes of old writes that leaders here have had removed.",
    "raftstore_leader_moves": "Leaderships that this node, leading the metadata channel, has had "
    "moved so that leaders are even.",
    "raftstore_leader_moves_failed": "Such moves that were refused, or came to nothing.",
    "raftstore_leader_moves_left": "Such moves that are planned and not begun.",
    "raftstore_replica_moves": "Moves of replicas (`raftstore rebalance`) that were completed "
    "while this node led the metadata channel.",
    "raftstore_replica_moves_failed": "Such moves that ended as FAILED or TIMEOUT.",
    "raftstore_replica_moves_left": "Such moves of the open rebalance that have not ended, at the "
    "node that leads the metadata channel.",
    "raftstore_tables_waiting_for_replicas": "Tables that are to have another number of replicas "
    "(`raftstore table alter --replicas`) and do not have it yet, at the node that leads the "
    "metadata channel.",
    "raftstore_tables_waiting_for_replicas_seconds": "How long the one of them has waited that "
    "waits longest, as seen by that node.",
    "raftstore_hot_standbys": "Replicas of channels that this node leads, itself left out, that "
    "keep the table up to date.",
    "raftstore_standbys_in_sync": "Those of them that could lead at once, by what they have "
    "applied.",
    "raftstore_standbys_entered": "Times that a standby came in sync with a leader here.",
    "raftstore_standbys_left": "Times that one was in sync no more: silent, behind, catching up.",
    "raftstore_rows_expired": "Rows whose lifetime was over, by the records of leaders here.",
    "raftstore_divergences": "Replicas whose history was another than a quorum's, as found here.",
    "raftstore_replicas_healed": "Replicas here that were quarantined, and are whole again.",
    "raftstore_log_trims": "Times that the log of a channel was trimmed.",
    "raftstore_log_trimmed_rows": "Seqs that left the logs of channels by that.",
    "raftstore_log_bases_carried": "Bases written anew, of channels that kept old segments.",
    "raftstore_log_floor_segment": "The oldest segment of the log that is kept.",
    "raftstore_log_floors_given_up": "Slow replicas and readers of changes for which the log is "
    "kept no longer, since it was too much.",
    "raftstore_table_merges": "Times that the files of a channel's table were merged on purpose.",
    "raftstore_table_merged_bytes": "Bytes that these merges gave back.",
    "raftstore_machine_partitions": "Partitions of channel sets here.",
    "raftstore_machine_partitions_stopped": "Those whose state machine stands at a command that it "
    "cannot apply; `raftstore machine info` says at which and why. Alert on any.",
    "raftstore_machine_partitions_slow": "Those whose state machine has been at one command or "
    "query for 2 s or more, for which all that the node applies waits. Alert on any that stays.",
    "raftstore_commands_answered": "Commands of state machines that this node answered as their "
    "leader: applied, rejected by the machine, or skipped by an operator. A retry counts again.",
    "raftstore_scan_pins": "States of the tables kept for the pages of scans.",
    "raftstore_scans_under_way": "Long reads on other threads.",
    "raftstore_pending_messages": "Payloads held until the leader names them.",
    "raftstore_pending_bytes": "Bytes of those payloads.",
    "raftstore_live_queue_length": "Requests of leaders held until catching up is done.",
    "raftstore_uncommitted_records": "Records in the logs that are not known to be committed.",
    "raftstore_uncommitted_bytes": "Bytes of those records.",
    "raftstore_waiting_publishers": "Writes that await their quorum.",
    "raftstore_dedupe_sessions": "Producer sessions whose repeated writes are recognised.",
    "raftstore_dedupe_outcomes": "Records by which repeated writes are recognised.",
    "raftstore_dedupe_hits": "Writes recognised as repeated, since the start.",
    "raftstore_payloads_repaired": "Payloads that were missing here and that other replicas gave, "
    "since the start.",
    "raftstore_catchup_sessions": "Replicas here that are catching up.",
    "raftstore_catchup_rows_left": "Rows that their logs lack, as far as is known.",
    "raftstore_catchup_rows_per_second": "Rows a second by which they came forward just now.",
    "raftstore_catchup_bytes_per_second": "Bytes of history a second that they were sent.",
    "raftstore_catchup_waiting": "Those of them that wait for channels nearer to their end.",
    "raftstore_mode_changes": "Times a replica here became steady, or began to catch up.",
    "raftstore_replicas_slow": "Replicas here that fall further behind all the time.",
    "raftstore_replicas_flapping": "Replicas here that left steady state again and again.",
    "raftstore_fsync_duration_seconds": "One group commit of the log: write and sync, mark too.",
    "raftstore_heartbeat_lateness_seconds": "How late heartbeats were sent (control loop).",
    "raftstore_main_loop_lateness_seconds": "How late timers of the main loop ran.",
    "raftstore_apply_queue_bytes": "Committed payload that waits to be applied.",
    "raftstore_open_files": "Open files of the node's process.",
    "raftstore_open_files_max": "Files that it may have open.",
    "raftstore_accept_paused": "Times a port accepted nothing, to keep files for the store.",
    "raftstore_copy_rests_seconds": "Seconds in which copies of tables gave way to requests.",
    "raftstore_log_lines_dropped": "Log lines that were dropped because stderr was not read.",
    "raftstore_leveldb_files": "Files of the tables, by LevelDB's level.",
    "raftstore_leveldb_memory_bytes": "Memory of LevelDB's buffers and caches.",
    "raftstore_batches_committed": "Micro-batches decided here, for the newest 64 writers.",
    "raftstore_batch_rows": "Rows of those micro-batches.",
    "raftstore_batch_bytes": "Staged bytes of those micro-batches.",
    "raftstore_batch_last_commit_age_seconds": "Time since the writer's last micro-batch here.",
    "raftstore_table_staleness_slo_seconds": "Staleness that the table promises.",
    "raftstore_table_staleness_slo_reads": "Reads of tables that promise a staleness.",
    "raftstore_table_staleness_slo_breaches": "Those that were staler, or of unknown staleness.",
}


class _NodeSamples(Collector):
    """The node's samples, as prometheus_client takes them."""

    def __init__(self, answer: MetricsAnswer) -> None:
        self._answer = answer

    def collect(self) -> Iterable[Metric]:
        """Return families: all samples of one name."""
        yield from _families(self._answer.samples)
        yield from _histograms(self._answer.histograms)


def _families(samples: Iterable[Sample]) -> Iterator[Metric]:
    families: dict[str, CounterMetricFamily | GaugeMetricFamily] = {}
    for name, labels, value in samples:
        family = families.get(name)
        if family is None:
            base, names = name.removesuffix(TOTAL), [label for label, _ in labels]
            kind = CounterMetricFamily if name.endswith(TOTAL) else GaugeMetricFamily
            family = families[name] = kind(base, HELP.get(base, ""), labels=names)
        family.add_metric([text for _, text in labels], value)
    yield from families.values()


def _histograms(histograms: Iterable[Histogram]) -> Iterator[Metric]:
    families: dict[str, HistogramMetricFamily] = {}
    for name, labels, buckets, total, _ in histograms:
        family = families.get(name)
        if family is None:
            names = [label for label, _ in labels]
            family = families[name] = HistogramMetricFamily(name, HELP.get(name, ""), labels=names)
        shown = [("+Inf" if le == float("inf") else f"{le:g}", float(n)) for le, n in buckets]
        family.add_metric([text for _, text in labels], shown, total)
    yield from families.values()


def rendered(answer: MetricsAnswer) -> bytes:
    """Return the text that a monitor collects."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_NodeSamples(answer))
    return generate_latest(registry)


async def metrics(call: Call) -> Answer:
    """Show the node's counters, gauges and histograms."""
    answer = await call.gateway.ask_own_node(Metrics)
    if not isinstance(answer, MetricsAnswer):
        raise UnavailableError(f"the node answered with {type(answer).__name__}")
    return Answer(rendered(answer), media=TEXT)


class EventsParams(Timed, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which events."""

    since: Annotated[Count63, Meta(description="Only events after this number.")] = 0
    type: (
        Annotated[
            str,
            Meta(description=f"Only events of these types, by comma: {', '.join(EVENT_TYPES)}."),
        ]
        | None
    ) = None
    limit: Annotated[
        int, Meta(ge=1, le=EVENTS_MAX, description="At most so many, the oldest first.")
    ] = 1_000


class EventsBody(msgspec.Struct, frozen=True):
    """Events of one node, oldest first."""

    node: str
    next: int
    """Give it as ``since`` the next time."""
    events: list[dict[str, Any]]


async def events(call: Call) -> Answer:
    """Show what happened on this node: failovers, roles, peers."""
    params: EventsParams = call.params
    types = () if params.type is None else tuple(t.strip() for t in params.type.split(","))
    check_event_types(types)
    answer = await call.gateway.ask_own_node(
        lambda request_id: Events(request_id, params.since, types, params.limit)
    )
    if not isinstance(answer, EventsAnswer):
        raise UnavailableError(f"the node answered with {type(answer).__name__}")
    return Answer(EventsBody(node_name(answer.node), answer.next, list(answer.events)))


ROUTES: Final[tuple[Route, ...]] = (
    Route(
        "GET",
        "/metrics",
        "Counters, gauges and histograms in the text format of Prometheus.",
        metrics,
        Timed,
        str,
        media=TEXT,
    ),
    Route(
        "GET",
        "/v1/events",
        "The newest events of this node, failovers among them.",
        events,
        EventsParams,
        EventsBody,
    ),
)
