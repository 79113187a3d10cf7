"""Which values a setting may have, alone and together with others.

Ranges are wide: they refuse what cannot work, not what is unwise. Every refusal names the key, the
value, and what is allowed, so that the remedy is in the message.
"""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from raftstore.config import (
    EVENT_LOOPS,
    FRAME_BYTES_MAX,
    KIB,
    MIB,
    PAYLOAD_BYTES_MAX,
    SLOW_ACTIONS,
    CatchUpSettings,
    ElectionSettings,
    HeartbeatSettings,
    MachineSettings,
    NodeSettings,
    QuerySettings,
    ReplicationSettings,
    StorageSettings,
    TransportSettings,
)
from raftstore.errors import ConfigError
from raftstore.node.units import format_duration, format_size
from raftstore.policy.routing import Prefer
from raftstore.protocol.tickets import parse_token
from raftstore.transport.endpoints import is_loopback, parse_endpoint

DAY_MS: Final = 24 * 3_600_000
LOG_LEVELS: Final = ("debug", "info", "warning", "error")
INITIAL_MEMBERS_MAX: Final = 9
"""More founding members only make every commit of the metadata channel slower."""

_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,62}\Z")


@dataclass(frozen=True, slots=True)
class Range:
    """Smallest and largest allowed value of a number, both included, in the unit of its name."""

    low: int
    high: int


DURATIONS: Final = Range(1, DAY_MS)
SIZES: Final = Range(1 * KIB, 1024 * 1024 * MIB)
COUNTS: Final = Range(1, 2**31 - 1)

SPECIAL_RANGES: Final = {
    # S3.5: an idle follower learns the commit position within 50 ms.
    "replication.commit_notice_interval_ms": Range(1, 49),
    "replication.pubmsg_wait_ms": Range(0, DAY_MS),
    # One batch travels in one frame together with its metadata.
    "replication.sync_batch_bytes_max": Range(1 * KIB, PAYLOAD_BYTES_MAX),
    "election.rank_step_ms": Range(0, 10_000),
    "election.jitter_ms": Range(0, 10_000),
    "query.max_lag": Range(0, 2**63 - 1),
    "query.routing_timeout_ms": Range(10, 60_000),
    "query.hedge_ms": Range(1, 10_000),
    "query.concurrent_max": Range(1, 65_536),
    "lag.report_interval_ms": Range(100, 60_000),
    "heartbeat.discover_interval_ms": Range(100, 60_000),
    # A main loop that has nothing to do is known to have turned up to 100 ms ago.
    "heartbeat.stall_limit_ms": Range(200, DAY_MS),
    "read.scan_pins_max": Range(1, 4_096),
    "read.versions_max": Range(1, 64),
    "read.changes_rows_max": Range(1, 1_000_000),
    "read.versions_keep_ms": Range(0, 600_000),
    "read.scan_pin_idle_ms": Range(1_000, 600_000),
    "read.scan_pin_life_ms": Range(1_000, 3_600_000),
    "read.scans_queued_max": Range(1, 4_096),
    "batch.pending_max": Range(1, 4_096),
    "batch.staged_bytes_max": Range(1 * MIB, SIZES.high),
    "batch.chunks_max": Range(1, 1_048_576),
    "batch.attempt_ttl_ms": Range(1_000, 7 * DAY_MS),
    "batch.ask_ms": Range(100, 3_600_000),
    "batch.push_ms": Range(10, 10_000),
    "batch.waiting_max": Range(1, 1_000_000),
    "batch.one_shots_max": Range(16, 16_777_216),
    "snapshot.chunk_bytes_max": Range(1 * KIB, PAYLOAD_BYTES_MAX),
    "snapshot.serve_max": Range(1, 64),
    "snapshot.fetch_max": Range(1, 64),
    "snapshot.large_fetch_max": Range(1, 64),
    "snapshot.session_ms": Range(1_000, 600_000),
    "snapshot.request_ms": Range(10, 600_000),
    "snapshot.retry_ms": Range(10, 600_000),
    "snapshot.pause_ms_max": Range(10, 86_400_000),
    "expiry.late_ms_max": Range(0, DAY_MS),
    "expiry.keys_max": Range(1, 10_000),
    "rebalance.moves_max": Range(1, 64),
    "rebalance.calm_ms": Range(1_000, 3_600_000),
    "rebalance.respect_ms": Range(0, 7 * DAY_MS),
    "rebalance.stuck_ms": Range(10_000, 7 * DAY_MS),
    "replica.replace_after_ms": Range(0, 30 * DAY_MS),
    "iss.max_lag": Range(0, 1_000_000_000),
    "retention.age_ms": Range(0, 366 * DAY_MS),
    "retention.channel_bytes": Range(1 * MIB, SIZES.high),
    "retention.channel_records": Range(1_000, COUNTS.high),
    "retention.interval_ms": Range(10, 3_600_000),
    "audit.keys_per_million": Range(0, 1_000_000),
    "audit.keys_max": Range(1, 1_000_000),
    "scrub.second_bytes_max": Range(1 * KIB, SIZES.high),
    "scrub.interval_ms": Range(10, 366 * DAY_MS),
    "scrub.verify_second_bytes_max": Range(1 * KIB, SIZES.high),
    "storage.min_free_bytes": Range(0, SIZES.high),
    "storage.rest_times_max": Range(0, 100),
    "storage.reserve_bytes": Range(0, SIZES.high),
    "storage.free_check_ms": Range(100, 3_600_000),
    "storage.files_reserved": Range(16, 65_536),
    "storage.channels_max": Range(16, 1_048_576),
    "http.tls_handshake_ms": Range(100, 60_000),
    "http.timeout_max_ms": Range(10, 600_000),
    "http.live_stall_ms": Range(1_000, 600_000),
    # Below it every long turn is a stall; above it what is old counts as fresh for too long.
    "read.stall_guard_ms": Range(50, 10_000),
    "read.freshness_wait_ms": Range(1, 10_000),
    "read.scan_bytes_max": Range(1 * KIB, PAYLOAD_BYTES_MAX),
    "read.changes_bytes_max": Range(1 * KIB, PAYLOAD_BYTES_MAX),
    # A queue that cannot hold the largest frame could never send it.
    "transport.peer_queue_bytes_max": Range(FRAME_BYTES_MAX, SIZES.high),
    "transport.client_queue_bytes_max": Range(FRAME_BYTES_MAX, SIZES.high),
    # NATS-152: in shorter ones bursts of writers look like a slow replica.
    "catchup.slow_window_ms": Range(10_000, 3_600_000),
    "catchup.inflight_requests": Range(1, 16),
    "membership.retry_ms": Range(10, 60_000),
    "membership.hand_over_tries": Range(0, 100),
    "membership.promote_lag_max": Range(0, 10**9),
    "replication.live_queue_bytes_max": Range(PAYLOAD_BYTES_MAX, SIZES.high),
    "replication.pending_bytes_max": Range(PAYLOAD_BYTES_MAX, SIZES.high),
    "replication.client_payload_bytes_max": Range(2 * PAYLOAD_BYTES_MAX, SIZES.high),
    "transport.request_timeout_max_ms": Range(1_000, DAY_MS),
    "transport.frame_timeout_ms": Range(100, 600_000),
    "transport.client_idle_ms": Range(1_000, DAY_MS),
    "transport.partial_frames_bytes_max": Range(FRAME_BYTES_MAX, SIZES.high),
    "transport.unread_answers_bytes_max": Range(FRAME_BYTES_MAX, SIZES.high),
    "replication.uncommitted_bytes_max": Range(PAYLOAD_BYTES_MAX, SIZES.high),
    "storage.apply_queue_bytes_max": Range(PAYLOAD_BYTES_MAX, SIZES.high),
    "storage.segment_bytes": Range(FRAME_BYTES_MAX, 4 * 1024 * MIB),
    # Shorter, and a busy processor looks like a disk that hangs.
    "storage.stall_handover_ms": Range(100, DURATIONS.high),
    "storage.tables_stall_handover_ms": Range(100, DURATIONS.high),
    "storage.stall_stop_ms": Range(100, DURATIONS.high),
    "storage.unsynced_bytes_max": Range(2 * PAYLOAD_BYTES_MAX, SIZES.high),
}


def range_of(key: str) -> Range:
    """The allowed range of a number, by its key ("section.name") and the unit in its name."""
    special = SPECIAL_RANGES.get(key)
    if special is not None:
        return special
    if is_duration(key):
        return DURATIONS
    return SIZES if is_size(key) else COUNTS


def is_duration(key: str) -> bool:
    """Whether the number behind the key counts milliseconds."""
    return key.endswith("_ms")


def is_size(key: str) -> bool:
    """Whether the number behind the key counts bytes."""
    return key.endswith(("_bytes", "_bytes_max"))


def format_number(key: str, value: int) -> str:
    """Write a number in the unit that its key implies."""
    if is_duration(key):
        return format_duration(value)
    return format_size(value) if is_size(key) else str(value)


def check_number(key: str, value: int, *, origin: str) -> None:
    """Refuse a number outside its range."""
    allowed = range_of(key)
    if not allowed.low <= value <= allowed.high:
        raise ConfigError(
            f"{key} is {format_number(key, value)} ({origin}); allowed is "
            f"{format_number(key, allowed.low)} to {format_number(key, allowed.high)}"
        )


def check_settings(settings: NodeSettings) -> None:
    """Refuse settings that contradict each other, or a node that nobody could use."""
    _check_identity(settings)
    _check_addresses(settings)
    _check_initial_cluster(settings)
    _check_heartbeat(settings.heartbeat)
    _check_stall_guard(settings)
    _check_stalls(settings.storage)
    _check_retention(settings)
    _check_lag(settings)
    _check_query(settings.query)
    _check_replication(settings.replication)
    _check_catch_up(settings.catchup)
    _check_election(settings.election)
    _check_transport(settings.transport)
    _check_machines(settings.machines)


def check_node_name(name: str) -> None:
    """Refuse a name that could not be a label in ids, logs and file names."""
    if not _NAME.match(name):
        raise ConfigError(
            f"node.name is {name!r}; allowed are 1 to 63 letters, digits, '.', '_' and '-', "
            "starting with a letter or digit"
        )


def split_endpoint(key: str, endpoint: str, *, port_min: int = 1) -> tuple[str, int]:
    """Host and port as the transport will read them."""
    remedy = f"write host:port with a port of {port_min} to 65535"
    try:
        host, port = parse_endpoint(endpoint)
    except ConfigError as error:
        raise ConfigError(f"{key} is {endpoint!r}: {error}; {remedy}") from error
    if port < port_min:
        raise ConfigError(f"{key} is {endpoint!r}; {remedy}")
    return host, port


def _check_identity(settings: NodeSettings) -> None:
    check_node_name(settings.name)
    if not settings.data_dir:
        raise ConfigError("node.data_dir is empty; name the directory that holds the node's store")
    if settings.failure_domain and not _NAME.match(settings.failure_domain):
        raise ConfigError(
            f"node.failure_domain is {settings.failure_domain!r}; allowed are 1 to 63 letters, "
            "digits, '.', '_' and '-', starting with a letter or digit, or none"
        )
    if settings.log_level not in LOG_LEVELS:
        raise ConfigError(
            f"node.log_level is {settings.log_level!r}; allowed are {', '.join(LOG_LEVELS)}"
        )
    if settings.event_loop not in EVENT_LOOPS:
        raise ConfigError(
            f"node.event_loop is {settings.event_loop!r}; allowed are {', '.join(EVENT_LOOPS)}"
        )


def _check_addresses(settings: NodeSettings) -> None:
    host, port = split_endpoint("node.listen", settings.listen, port_min=0)
    if not settings.insecure and not is_loopback(host):
        raise ConfigError(
            f"node.listen is {settings.listen!r}, which others can reach, but connections are "
            "neither encrypted nor authenticated; listen on 127.0.0.1, or allow it with --insecure"
        )
    if settings.advertise:
        host, port = split_endpoint("node.advertise", settings.advertise)
    _check_http(settings)
    if _is_wildcard(host):
        raise ConfigError(
            f"node.advertise would be {host}:{port}, which no peer can connect to; "
            "set --advertise to the host:port that other nodes and clients use"
        )


def _check_http(settings: NodeSettings) -> None:
    http = settings.http
    if bool(http.tls_cert) != bool(http.tls_key):
        raise ConfigError("http.tls_cert and http.tls_key belong together; set both or none")
    if not http.listen:
        return
    host, _ = split_endpoint("http.listen", http.listen, port_min=0)
    is_protected = bool(http.tls_cert and http.users_file)
    if not (settings.insecure or is_protected or is_loopback(host)):
        raise ConfigError(
            f"http.listen is {http.listen!r}, which others can reach without protection; listen on "
            "127.0.0.1, set http.tls_cert, http.tls_key and http.users_file, or allow it with "
            "--insecure"
        )
    if http.advertise:
        split_endpoint("http.advertise", http.advertise)


def _check_machines(machines: MachineSettings) -> None:
    for directory in machines.directories:
        if not Path(directory).is_dir():
            raise ConfigError(
                f"machines.path names {directory!r}, which is no directory; make it, or take it "
                "out of the list"
            )


def _check_initial_cluster(settings: NodeSettings) -> None:
    members = settings.initial_cluster
    if settings.join:
        parse_token(settings.join)
        if members:
            raise ConfigError(
                "node.join and node.initial_cluster exclude each other: a node founds a cluster "
                "with others, or joins one that exists; leave one of them out"
            )
    if not members:
        return
    key = "node.initial_cluster"
    if len(members) > INITIAL_MEMBERS_MAX:
        raise ConfigError(
            f"{key} has {len(members)} members; allowed are 1 to {INITIAL_MEMBERS_MAX}"
        )
    seen: dict[str, str] = {}
    for name, endpoint in members:
        check_node_name(name)
        split_endpoint(key, endpoint)
        for label in (name, endpoint):
            if label in seen:
                raise ConfigError(f"{key} names {label!r} twice; every member has its own")
            seen[label] = name
    if settings.name not in dict(members):
        raise ConfigError(
            f"{key} lists {', '.join(name for name, _ in members)} but not this node, "
            f"{settings.name!r}; every founding member gets the same list, itself included"
        )


def _check_heartbeat(heartbeat: HeartbeatSettings) -> None:
    interval = heartbeat.send_interval_ms
    for name in ("missed_threshold", "received_threshold"):
        threshold: int = getattr(heartbeat, name)
        needed = threshold * interval
        if heartbeat.window_ms < needed:
            raise ConfigError(
                f"heartbeat.window_ms is {format_duration(heartbeat.window_ms)}, which is shorter "
                f"than heartbeat.{name} ({threshold}) x heartbeat.send_interval_ms "
                f"({format_duration(interval)}); allowed is {format_duration(needed)} or more"
            )
    found_ms = heartbeat.missed_threshold * interval
    if heartbeat.check_interval_ms > found_ms:
        # A longer interval would find a silent peer as late as it ends, or never.
        raise ConfigError(
            f"heartbeat.check_interval_ms is {format_duration(heartbeat.check_interval_ms)}; "
            f"allowed is at most heartbeat.missed_threshold ({heartbeat.missed_threshold}) x "
            f"heartbeat.send_interval_ms ({format_duration(interval)}), "
            f"{format_duration(found_ms)}"
        )
    turns_ms = 2 * heartbeat.check_interval_ms
    if heartbeat.stall_limit_ms < turns_ms:
        # An idle main loop turns once per check: shorter, and a node that is well looks dead.
        raise ConfigError(
            f"heartbeat.stall_limit_ms is {format_duration(heartbeat.stall_limit_ms)}; allowed is "
            f"{format_duration(turns_ms)} or more, 2 x heartbeat.check_interval_ms"
        )


def _check_lag(settings: NodeSettings) -> None:
    interval_ms, age_max_ms = settings.lag.report_interval_ms, settings.read.leader_info_age_max_ms
    if interval_ms >= age_max_ms:
        # S7.3: replicas of an idle channel know of their leader by reports alone.
        raise ConfigError(
            f"lag.report_interval_ms is {format_duration(interval_ms)}; allowed is less than "
            f"read.leader_info_age_max_ms ({format_duration(age_max_ms)}), or replicas of an idle "
            "table know no lag most of the time"
        )


def _check_query(query: QuerySettings) -> None:
    if query.prefer not in tuple(Prefer):
        raise ConfigError(f"query.prefer is {query.prefer!r}; allowed are {', '.join(Prefer)}")


def _check_stall_guard(settings: NodeSettings) -> None:
    # S7.3: a node knows that it stood still by the timer that came late: it needs one often.
    interval_ms, guard_ms = settings.heartbeat.check_interval_ms, settings.read.stall_guard_ms
    if interval_ms > guard_ms:
        raise ConfigError(
            f"heartbeat.check_interval_ms is {format_duration(interval_ms)}; allowed is at most "
            f"read.stall_guard_ms ({format_duration(guard_ms)}), or a node that was paused "
            "notices it too late"
        )


def _check_stalls(storage: StorageSettings) -> None:
    # S0.4: a node that ends while it still leads costs its clients a failover by silence.
    for name in ("stall_handover_ms", "tables_stall_handover_ms"):
        patience_ms: int = getattr(storage, name)
        if storage.stall_limit_ms <= patience_ms:
            raise ConfigError(
                f"storage.stall_limit_ms is {format_duration(storage.stall_limit_ms)}; allowed is "
                f"more than storage.{name} ({format_duration(patience_ms)}), after which "
                "leaderships are given away"
            )


def _check_retention(settings: NodeSettings) -> None:
    retention, segment_bytes = settings.retention, settings.storage.segment_bytes
    # Only whole segments go, and never the one that is being written.
    if retention.log_bytes < 4 * segment_bytes:
        raise ConfigError(
            f"retention.log_bytes is {format_size(retention.log_bytes)}; allowed is "
            f"{format_size(4 * segment_bytes)} or more, 4 x storage.segment_bytes "
            f"({format_size(segment_bytes)})"
        )
    if retention.log_bytes_max < retention.log_bytes:
        raise ConfigError(
            f"retention.log_bytes_max is {format_size(retention.log_bytes_max)}; allowed is "
            f"retention.log_bytes ({format_size(retention.log_bytes)}) or more"
        )


def _check_replication(replication: ReplicationSettings) -> None:
    # NATS-141: what arrives live while one batch is applied and the next one travels must fit.
    needed = 2 * replication.sync_batch_bytes_max
    if replication.live_queue_bytes_max < needed:
        raise ConfigError(
            f"replication.live_queue_bytes_max is {format_size(replication.live_queue_bytes_max)}; "
            f"allowed is {format_size(needed)} or more, 2 x replication.sync_batch_bytes_max"
        )
    needed = 2 * replication.sync_batch_records_max
    if replication.live_queue_messages_max < needed:
        raise ConfigError(
            f"replication.live_queue_messages_max is {replication.live_queue_messages_max}; "
            f"allowed is {needed} or more, 2 x replication.sync_batch_records_max "
            f"({replication.sync_batch_records_max}): raise the one or lower the other"
        )


def _check_catch_up(catchup: CatchUpSettings) -> None:
    if catchup.slow_action not in SLOW_ACTIONS:
        raise ConfigError(
            f"catchup.slow_action is {catchup.slow_action!r}; allowed are {', '.join(SLOW_ACTIONS)}"
        )


def _check_election(election: ElectionSettings) -> None:
    if election.backoff_min_ms > election.backoff_max_ms:
        raise ConfigError(
            f"election.backoff_min_ms is {format_duration(election.backoff_min_ms)}; allowed is at "
            f"most election.backoff_max_ms ({format_duration(election.backoff_max_ms)})"
        )
    if election.quorum_contact_ms < election.sticky_ms:
        # A leader must not give up while its followers still stick to it, or nobody may lead.
        raise ConfigError(
            f"election.quorum_contact_ms is {format_duration(election.quorum_contact_ms)}; allowed "
            f"is election.sticky_ms ({format_duration(election.sticky_ms)}) or more"
        )


def _check_transport(transport: TransportSettings) -> None:
    if transport.reconnect_min_ms > transport.reconnect_max_ms:
        raise ConfigError(
            f"transport.reconnect_min_ms is {format_duration(transport.reconnect_min_ms)}; allowed "
            f"is at most transport.reconnect_max_ms ({format_duration(transport.reconnect_max_ms)})"
        )


def _is_wildcard(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_unspecified
    except ValueError:
        return False
