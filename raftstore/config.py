"""Settings of every room: unit in the name, default, why, and what goes wrong if it is off.

Plain frozen dataclasses; reading files, flags and the environment happens in
``raftstore.node.settings``. Names map to TOML as ``[section] key`` and to the environment as
``RAFTSTORE_SECTION_KEY``; there durations are written ``"2s"`` and sizes ``"64MiB"``.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from raftstore.audit.settings import AuditSettings

PROTOCOL_VERSION: Final = 1
"""Of the wire format; exchanged in Hello, a mismatch is refused (S12)."""

FORMAT_VERSION: Final = 1
"""Of everything on disk; a newer one is refused (GAP-15)."""

LEVEL: Final = 11
"""What this version reads beyond the first: reported by all nodes, so that nothing is written
that an older one would stop at (``raftstore.policy.levels``, docs/protocol.md)."""

SLOW_RETIRE: Final = "retire"
SLOW_EXIT: Final = "exit"
SLOW_IGNORED: Final = "ignore"
SLOW_ACTIONS: Final = (SLOW_RETIRE, SLOW_EXIT, SLOW_IGNORED)
"""What a replica does that cannot catch up (``catchup.slow_action``)."""

EVENT_LOOPS: Final = ("auto", "asyncio", "uvloop")
"""Names of event loops; auto is uvloop where it is installed, else asyncio's own."""

KIB: Final = 1024
MIB: Final = 1024 * KIB

FRAME_BYTES_MAX: Final = 16 * MIB
VALUE_BYTES_MAX: Final = 1 * MIB
KEY_BYTES_MAX: Final = 4 * KIB
PAYLOAD_BYTES_MAX: Final = 8 * MIB
ROWS_PER_RECORD_MAX: Final = 65_536
PARTITIONS_MAX: Final = 4_096
REPLICAS_MAX: Final = 7
MANIFEST_BYTES_MAX: Final = 1 * MIB
"""Of one micro-batch: about 80,000 tasks."""
ATTEMPT_TTL_MS_MAX: Final = 7 * 24 * 3_600_000
"""The longest time that a client may ask for an attempt at a micro-batch to stay open."""
DROPPED_WRITERS_MAX: Final = 256
"""Writers of a dropped table that the catalog remembers, those that wrote last."""
GUID_WINDOW: Final = 1_024
"""Outcomes remembered per producer session; a publisher keeps fewer writes in flight than this."""
PRODUCER_SESSIONS_MAX: Final = 65_536
"""Sessions remembered per channel; the one that wrote longest ago is forgotten first (S4.5)."""
WAITING_COMMANDS_MAX: Final = 1_024
"""Table and leadership commands per node whose end one client waits for; beyond it a new one is
refused with OverloadedError before anything is done. All clients together: twice as many."""


@dataclass(frozen=True, slots=True)
class ReplicationSettings:
    """The core's limits and times."""

    stamp_ahead_ms: int = 10_000
    """Leader: a record's timestamp is no more than this above what the clocks of a quorum have
    reached, as heartbeats report it, so no single clock ends leases early or holds up their end."""
    quorum_timeout_ms: int = 2_000
    """After this a pending publish is answered UNKNOWN; its record stays (S4.1)."""
    pubmsg_wait_ms: int = 100
    """How long a StoreRequest waits for its payload before the follower catches up (S5.4)."""
    payload_request_timeout_ms: int = 100
    """How long a replica that was asked for a missing payload, or write, may take to answer; then
    a follower asks another one, three in all, and then it catches up (S5.4)."""
    write_offer_ms: int = 250
    """How long a held write waits for its StoreRequest before it is offered to its leader, to which
    its publisher's message may not have come (S5.6)."""
    store_request_timeout_ms: int = 2_000
    """How long a held payload waits for its StoreRequest before it is dropped (S5.3)."""
    pending_messages_max: int = 65_536
    pending_bytes_max: int = 64 * MIB
    """Held payloads (a cache): beyond it the oldest is dropped and repaired by catch-up."""
    client_payload_bytes_max: int = 64 * MIB
    """Payloads of one client's writes that a node holds in all channels: copies that wait for
    their metadata, and writes without an outcome. All clients together: twice as many. Beyond it a
    copy is dropped and repaired by catch-up, and a write gets OverloadedError, NOT_APPLIED."""
    uncommitted_records_max: int = 16_384
    uncommitted_bytes_max: int = 64 * MIB
    """Leader: beyond it publishers get OverloadedError, NOT_APPLIED."""
    sync_batch_bytes_max: int = 1 * MIB
    """Payload bytes of one MsgSync."""
    sync_batch_records_max: int = 2_048
    """Records of one MsgSync."""
    sync_request_timeout_ms: int = 1_000
    """A MsgSyncRequest without answer is sent again after this."""
    live_queue_messages_max: int = 4_096
    live_queue_bytes_max: int = 64 * MIB
    """StoreRequests held while catching up; beyond it the newest are dropped (S6.3). None are held
    while the leader's end is more than four times as far away."""
    commit_notice_interval_ms: int = 25
    """Pause after which followers are sent a commit position that nothing else carried (S3.5)."""
    resend_interval_ms: int = 250
    """Leader: a follower whose match stands still below our end gets a CommitNotice this often."""
    read_index_retry_ms: int = 100
    """A ReadIndex round without quorum is repeated after this, a FreshRequest without reply too."""
    read_index_timeout_ms: int = 1_000
    """A linearizable read that cannot be confirmed is refused after this."""
    read_index_reads_max: int = 20_000
    """Reads per channel waiting for confirmation or, confirmed, for applying; beyond it
    OverloadedError. Twice read.waiting_reads_max, so that it is that share which refuses."""
    hand_over_timeout_ms: int = 1_000
    """S9: after this the old leader accepts writes again."""
    hand_over_lag_max: int = 1_000
    """FIP-20: a leader that hands over takes writes until a successor has no more rows than this to
    apply, and gives up after hand_over_timeout_ms if none gets there."""
    refused_keep_ms: int = 600_000
    """Leader: so long a late copy of a write that was refused is refused, too (S5.6)."""
    lag_patience_ms: int = 10_000
    """BLOG-31: so long the writes of a table with ``max_replica_lag`` wait for a late replica."""
    chain_hashes_max: int = 1_024
    """Record boundaries whose chain hash is kept for comparison (S13)."""


@dataclass(frozen=True, slots=True)
class CatchUpSettings:
    """How replicas that are behind come back to their leaders' ends."""

    parallel: int = 2
    """Channels of a node that fetch history at a time, the nearest to their end first; channels
    that lack no more than eight batches never wait."""
    inflight_requests: int = 2
    """Batches of one channel that are asked for and not here yet."""
    slow_action: str = SLOW_RETIRE
    """What a replica does that falls further behind in each of ``slow_windows`` windows. retire:
    its node and its leader say so, and writes wait for it no more (``max_replica_lag``); it stays a
    voter, what it stores counts for the quorum, and it goes on catching up. exit: its node hands
    its leaderships over and ends with exit code 75. ignore: its node says so."""
    slow_windows: int = 6
    slow_window_ms: int = 10_000
    """Its distance is compared at the ends of windows this long; one in which more than twice as
    much was written as in the minute before says nothing."""


@dataclass(frozen=True, slots=True)
class MembershipSettings:
    """How the leader of a channel changes its members, one replica at a time."""

    retry_ms: int = 100
    """Pause between two looks at a change that waits for something; voters and learners that said
    nothing meanwhile are asked to acknowledge."""
    heard_ms: int = 400
    """A voter that acknowledged within this is taken for live: voters are replaced only while most
    of the old ones and most of the new ones are."""
    promote_round_ms: int = 500
    """A new replica may vote once it came from one end of the log to the next within this."""
    promote_lag_max: int = 10_000
    """And once it has no more rows than this to apply."""
    hand_over_tries: int = 3
    """A leader that is to leave tries so often to hand its leadership over first; then it leaves
    all the same, and the others elect."""
    report_wait_ms: int = 5_000
    """A committed change is reported, and former replicas go with what they hold, when every live
    voter has it on its disk, or after this."""


@dataclass(frozen=True, slots=True)
class ElectionSettings:
    """Times of the election adapter (election.md section 5)."""

    sticky_ms: int = 400
    """A leader whose heartbeat came within this is alive: no votes, no candidacy against it."""
    resend_ms: int = 60
    """Unanswered pre-votes and votes are repeated after this, and then after twice as long each
    time, up to 16 times as long."""
    backoff_min_ms: int = 150
    backoff_max_ms: int = 450
    """Random delay after a failed round."""
    rank_step_ms: int = 10
    """Lag-aware candidacy: each live voter known to be ahead delays ours by this (RTT + fsync)."""
    jitter_ms: int = 10
    """Random part of the first candidacy delay."""
    quorum_contact_ms: int = 1_500
    """A leader without contact to a quorum for this long steps down."""


@dataclass(frozen=True, slots=True)
class HeartbeatSettings:
    """KLIP-12's five numbers, by arrival on the local monotonic clock."""

    send_interval_ms: int = 100
    """Pause between two heartbeats to each peer."""
    window_ms: int = 2_000
    """Heartbeats older than this count no more."""
    check_interval_ms: int = 50
    """How often a node looks who has become silent."""
    missed_threshold: int = 3
    """So many missed in a row make a peer down."""
    received_threshold: int = 2
    """So many received in a row make it up again."""
    stall_limit_ms: int = 3_000
    """A node whose main loop has not turned for this long stops its heartbeats."""
    discover_interval_ms: int = 1_000
    """How often peers are read from the catalog again (KLIP-20)."""
    enable: bool = True
    """False: silence holds nobody down for routing (BLOG-19); heartbeats go on (S1.8)."""


@dataclass(frozen=True, slots=True)
class LagSettings:
    """Lag reports, decoupled from heartbeats (KLIP-35)."""

    enable: bool = True
    """False: only nodes that host a channel get its positions, as comparing histories needs it
    (S13), and every node gets the leader's; routing elsewhere knows less."""
    report_interval_ms: int = 1_000
    """Period of reports; changes of leadership and idle ends travel faster (CommitNotice)."""


@dataclass(frozen=True, slots=True)
class QuerySettings:
    """Routing of reads, when neither the query nor the table says otherwise."""

    max_lag: int = 10_000
    """Rows; bound of level ``bounded``."""
    standby_reads: bool = True
    """Whether new tables let replicas that do not lead serve reads that name only a position; reads
    with a level or a bound say it themselves. ``table edit`` changes a table later (BLOG-18)."""
    routing_timeout_ms: int = 5_000
    """The whole time of one routed request (KLIP-04)."""
    concurrent_max: int = 256
    """Queries at once per node over HTTP; beyond it OverloadedError, at once."""
    prefer: str = "leader"
    """Order of replicas: leader, nearest or any_in_bound."""
    hedge_ms: int = 50
    """After this much silence of a replica the next one is asked, too."""


@dataclass(frozen=True, slots=True)
class HttpSettings:
    """The HTTP interface of a node."""

    listen: str = "127.0.0.1:4480"
    """host:port; empty: no HTTP."""
    advertise: str = ""
    """host:port advertised to others; default: the listen address."""
    body_bytes_max: int = 8 * MIB
    """A longer body is refused with 413."""
    connections_max: int = 512
    """Open connections; for one more the one that was idle longest is closed. While all have
    requests under way new ones are refused with 503, but for a few that ask for /livez, /readyz,
    /healthz or /metrics."""
    timeout_max_ms: int = 60_000
    """The longest time a request may ask for."""
    live_stall_ms: int = 30_000
    """/livez fails when the node's main loop has not turned for this long."""
    tls_cert: str = ""
    tls_key: str = ""
    """PEM files; together they switch TLS on."""
    tls_handshake_ms: int = 5_000
    """A connection whose TLS handshake has not ended by then is closed. It counts as a connection
    from the moment at which it is accepted."""
    users_file: str = ""
    """name:role:scrypt lines; with it every request needs a user (GAP-11)."""
    allowed_hosts: str = ""
    """Names by comma by which this node is asked, besides addresses, names without a dot and those
    of listen and advertise; * for any. Looked at where there are no users (DNS rebinding)."""
    allowed_origins: str = ""
    """Web pages by comma, as in https://app.example.org, that may make browsers write here."""
    node_token_file: str = ""
    """The token with which nodes may post heartbeats and lag reports once users are set."""


@dataclass(frozen=True, slots=True)
class ReadSettings:
    """Bounds of reads."""

    leader_info_age_max_ms: int = 10_000
    """Older knowledge of the leader's position counts as infinite lag (S7.3: fail closed)."""
    stall_guard_ms: int = 250
    """A node that stood still for longer believes no leader, itself included, until a round trip
    that starts after it (S7.3): what waited in buffers meanwhile may be as old as that."""
    freshness_wait_ms: int = 250
    """A bounded read that is refused only until a round trip to the leader (of a bound in time
    whose proof is too old, or of a node that stood still) waits this long for it, then it is."""
    get_keys_max: int = 10_000
    """Keys of one request; the client splits larger ones."""
    scan_rows_max: int = 10_000
    scan_bytes_max: int = 4 * MIB
    """One page of a scan has at most this many rows and bytes."""
    waiting_reads_max: int = 10_000
    """Reads of one client waiting on a node for a position or a ReadIndex round; beyond it
    OverloadedError. All clients together: twice as many, and nobody more than is free."""
    waiting_reads_bytes_max: int = 64 * MIB
    """Bytes of the keys that these reads ask for, counted in the same way."""
    scan_pins_max: int = 256
    """States pinned by one client for the pages of scans; each keeps old files of LevelDB."""
    scan_pin_idle_ms: int = 30_000
    scan_pin_life_ms: int = 300_000
    """A pin is given up when no page was asked for that long, and at this age at the latest."""
    versions_max: int = 8
    versions_keep_ms: int = 10_000
    """States of before a micro-batch that each channel keeps for readers of the commit before: at
    most so many, and each for so long after it was replaced. They keep old files of LevelDB."""
    changes_rows_max: int = 10_000
    changes_bytes_max: int = 512 * KIB
    """One page of a table's changes has at most this many rows and bytes, but one record or staged
    chunk whatever its size. They come from the log on the node's thread, not decoded."""
    scans_queued_max: int = 64
    """Long scans and counts of one client waiting for their thread, counted in the same way."""
    content_hashes_max: int = 64
    """Content hashes of one client under way or queued, counted in the same way."""


@dataclass(frozen=True, slots=True)
class BatchSettings:
    """Atomic micro-batches, at the coordinator of a table and at the channels that it notifies."""

    pending_max: int = 64
    """Decided batches of one table that some channel has not applied yet; above it no new attempt
    is opened: OverloadedError."""
    staged_bytes_max: int = 4 * 1024 * MIB
    """Staged bytes waiting in one channel; above it more are refused with OverloadedError."""
    chunks_max: int = 16_384
    """Staged chunks waiting in one channel, each with an entry of its index. Planning a batch takes
    some 10 us for each of them, on the node's thread."""
    attempt_ttl_ms: int = 3_600_000
    """An attempt that nobody begins again for so long is closed, unless it asked for another time.
    Shorter than a batch takes, it costs that batch."""
    ask_ms: int = 60_000
    """Chunks staged longer ago than this have their channel ask what became of the attempt."""
    push_ms: int = 200
    """A decided batch is sent again to a channel that did not answer; doubled up to 5 s."""
    waiting_max: int = 10_000
    """Requests of one client waiting on a node for a batch to be opened or applied; beyond it
    OverloadedError. All clients together: twice as many, and nobody more than is free."""
    one_shots_max: int = 65_536
    """Jobs that run once whose batches the coordinator of a table remembers, the newest ones, some
    200 bytes each: a job that begins its batch again later writes it a second time."""


@dataclass(frozen=True, slots=True)
class SnapshotSettings:
    """Replica snapshots: tables and bases that replicas give each other."""

    chunk_bytes_max: int = 1 * MIB
    """Bytes of keys and values in one message, and at least one row."""
    second_bytes_max: int = 192 * MIB
    """Bytes that a node sends in a second to all receivers together; the rest is for requests."""
    serve_max: int = 4
    """Snapshots that a node serves at a time; each keeps old files of LevelDB. Others wait."""
    fetch_max: int = 4
    """Channels of a node that take a table at a time; others wait."""
    large_fetch_max: int = 1
    """Of these, tables above 4 MiB: more of them end sooner, with slower requests meanwhile."""
    session_ms: int = 30_000
    """A snapshot of which nothing was asked for so long is given up, by either side."""
    request_ms: int = 2_000
    """What got no answer is asked for again after this."""
    retry_ms: int = 1_000
    """Pause before a snapshot that failed is begun anew."""
    pause_ms_max: int = 300_000
    """Longest pause of a replica that needs a table again before the last one brought it to its
    leader's end: first as long as that took, then twice as long each time."""


@dataclass(frozen=True, slots=True)
class StorageSettings:
    """The log and the table store."""

    segment_bytes: int = 64 * MIB
    """Size of a log file, after which the next is begun."""
    log_cache_bytes: int = 64 * MIB
    """Newest records kept in memory for followers and for applying."""
    group_commit_bytes_max: int = 8 * MIB
    """One fdatasync covers at most this much."""
    apply_queue_bytes_max: int = 64 * MIB
    """Committed records waiting for LevelDB; beyond it the leader slows publishers down."""
    write_buffer_bytes: int = 64 * MIB
    """Memory tables of all LevelDBs of the node together, before they are written as files; for
    moments twice as much. Each channel has a LevelDB, with an equal share of 64 KiB to 16 MiB."""
    block_cache_bytes: int = 64 * MIB
    """Caches of compressed blocks of all LevelDBs together, in equal shares."""
    channels_max: int = 16_384
    """Channels that a node may have: a table that would bring more is refused. Each takes four open
    files, so a node lowers this at its start to what its limit of open files leaves room for."""
    compress_tables: bool = False
    """LevelDB compresses blocks with Snappy: half the disk for text, and two thirds more processor
    time for each row written. What is there already stays readable either way."""
    log_size_warning_bytes: int = 4 * 1024 * MIB
    """Status warns above this."""
    files_reserved: int = 128
    """Open files that no connection may use: with only these left both ports accept nothing."""
    min_free_bytes: int = 256 * MIB
    """Free bytes of the disk below which the node takes no new writes of clients (no_space), and
    gives its leaderships to replicas that have space; a follower goes on down to a quarter of that.
    Trimming needs some room: two segments, and as much for files that are merged. 0: no limit."""
    free_check_ms: int = 1_000
    """Between two looks at the free bytes."""
    reserve_bytes: int = 64 * MIB
    """A file that only keeps space: a start on a full disk removes it, so that the node runs, trims
    its logs and takes commands that remove tables. It is made, and made again, while a quarter more
    than min_free_bytes stays free beside it. A start needs 32 MiB, and removes no smaller file than
    is missing. 0: none."""
    disk_full_retry_ms: int = 5_000
    """At start on a full disk: wait and look again, with a clear state."""
    stall_handover_ms: int = 2_000
    """An operation on the log, the mark or their directories that takes longer: the node refuses
    writes, stands in no election, and gives its leaderships away (S0.4)."""
    tables_stall_handover_ms: int = 10_000
    """The same for a write of the tables: LevelDB holds writes back by itself while it merges
    files, on a slow disk for seconds."""
    stall_limit_ms: int = 30_000
    """Any such operation that takes longer ends the node with exit code 70. Shorter than the disk's
    worst hour, it costs restarts; longer, a replica that does nothing stays for longer."""
    stall_stop_ms: int = 5_000
    """The same once the node was asked to stop."""
    rest_times_max: int = 3
    """While requests come and the main loop is late, tables are copied, and read to find damage,
    with rests in between: the later it is, the longer, but at most so many times the processor time
    before, so that a copy takes at most one more than so many times as long. 0: no rests."""
    unsynced_bytes_max: int = 128 * MIB
    """Log entries that are not on the disk yet, of all channels, those that a quorum of others
    holds included. Beyond it a leader refuses writes with OverloadedError, and a follower drops
    what its leaders send: it catches up later."""

    @property
    def reserve_room_bytes(self) -> int:
        """Free bytes from which on the reserve is made: what stays free beside it is a quarter more
        than ``min_free_bytes``, so no node is below its mark because of it."""
        return self.reserve_bytes + self.min_free_bytes + self.min_free_bytes // 4


@dataclass(frozen=True, slots=True)
class RetentionSettings:
    """How much of the log is kept: for replicas and readers of changes that are behind."""

    enabled: bool = True
    """Whether logs are trimmed at all. A replica that was away for longer than the log reaches
    back, or whose tables are damaged, then gets a replica snapshot. Switched off, it grows."""
    single_replica: bool = False
    """Whether tables with one replica are trimmed, too: there the log is the only thing that
    damaged tables are built from."""
    channel_bytes: int = 32 * MIB
    """Log of one channel; when there is more, the older half goes. A replica that was away for no
    more than half of that catches up from the log, and a start reads no more than that."""
    channel_records: int = 200_000
    """The same in records: a start follows each of them, some 15 us a record."""
    age_ms: int = 0
    """Records older than this go, however few there are; 0: none for their age."""
    log_bytes: int = 256 * MIB
    """The whole log of a node, which a start reads. Above it every channel is trimmed that keeps
    the older half: of segments, which all channels share, only the oldest can go."""
    log_bytes_max: int = 1024 * MIB
    """The same; above it nothing is kept for slow replicas and readers any more."""
    slow_replica_bytes: int = 512 * MIB
    """Log of a channel that is kept for a replica that is behind, dead or unheard of; beyond it, or
    beyond 64 MiB and twice what its table takes, the replica needs a replica snapshot."""
    reader_bytes: int = 256 * MIB
    """Log of a channel that is kept for a reader of its changes that is behind; beyond it the
    reader learns that what it wants is gone."""
    reader_idle_ms: int = 60_000
    """A reader of changes counts for so long after its last question."""
    merge_tables: bool = True
    """Whether the files of a table are merged when they take several times as much as its rows, or
    when many rows were removed. LevelDB does it by itself, but late: a table of 10 MB that is
    updated all the time takes 250 MB otherwise, and removed rows keep their bytes. It takes at most
    a fifth of one thread's time."""
    interval_ms: int = 1_000
    """Pause between two looks at the logs and tables."""


@dataclass(frozen=True, slots=True)
class ScrubSettings:
    """Reading all that is stored in the background, to find damage before it is needed."""

    enabled: bool = True
    """Whether it is done at all."""
    second_bytes_max: int = 1 * MIB
    """Bytes of log and tables that are read and verified in a second: the rest of the disk, and of
    the processor, is for writes and reads. 1 MiB/s reads 80 GiB in a day."""
    interval_ms: int = 3_600_000
    """Pause after everything was read."""
    verify_second_bytes_max: int = 64 * MIB
    """Bytes of log and tables that are read in a second because somebody asked for it
    (`raftstore channel verify --deep`), of all who ask together."""


@dataclass(frozen=True, slots=True)
class ExpirySettings:
    """Rows with a lifetime (TTL)."""

    tick_ms: int = 100
    """Pause between two records by which rows of a channel expire: an idle channel's rows are gone
    so much later than their expiry, at the most and apart from the clocks. Behind one that names as
    many rows as it may it is shorter, and a channel waits no longer than this for its turn."""
    clock_ahead_ms: int = 1_000
    """A leader expires nothing that a quorum's clocks, as heartbeats report them, are not due to
    expire for longer than this: a single clock that is ahead has no row expire early."""
    keys_max: int = 200
    """Rows that one such record names and removes; others that are due are hidden meanwhile. It
    takes the main loop 1 us a row, and the apply thread 6 us, in one go: so long a read may wait
    while many rows expire at once."""
    late_ms_max: int = 5_000
    """Where many rows are due, a node has one record with keys_max rows under way, and pauses three
    times as long as it took, so that requests have their turn; what is due is hidden meanwhile.
    Rows that have been due for this long do not wait, so that a table that takes rows faster does
    not grow for ever. 0: none ever waits."""


@dataclass(frozen=True, slots=True)
class RebalanceSettings:
    """Work that is spread evenly over the nodes. Those of the node that leads the metadata channel
    count, so all nodes should have the same."""

    leaders: bool = True
    """Whether leaderships are handed over until every node leads its share. Where it is off,
    `raftstore rebalance leaders` does it when asked. `raftstore rebalance leaders --off` and `--on`
    win over this on every node, until `--as-set` ends that."""
    moves_max: int = 4
    """Leaderships that are handed over at a time, of all channels of the cluster."""
    calm_ms: int = 20_000
    """A node that came up, a channel that got another leader, and a new leader of the metadata
    channel: before so much time has passed nothing is given to the first, the second is not moved,
    and the third plans nothing."""
    respect_ms: int = 600_000
    """So long a leadership stays that was taken from a node that was up, and that node is given no
    other one. Where an operator asked for it (`raftstore channel step-down`) that holds whichever
    node leads the metadata channel, and ends early with a restart of the node that gave it away;
    where nobody is known to have asked, it ends when a node comes or goes."""
    stuck_ms: int = 600_000
    """A move of a replica (`raftstore rebalance start`) of which nothing has changed for so long,
    no state, no byte of the copy and no record, is given up as TIMEOUT."""


@dataclass(frozen=True, slots=True)
class ReplicaSettings:
    """Replicas whose nodes are gone. The setting of the node that leads the metadata channel
    counts, so all nodes should have the same."""

    replace_after_ms: int = 0
    """A node that is down for so long is taken for lost: its replicas are made anew on the other
    nodes, until it comes back. 0: never by itself; `raftstore check cluster` says what to do. Each
    is a copy of a table, so it should be longer than a restart, an upgrade or a repair takes."""


@dataclass(frozen=True, slots=True)
class IssSettings:
    """Which replicas count as standbys in sync (ISS), by what they have applied (FIP-17)."""

    max_lag: int = 1_000
    """Rows that a standby in sync may have to apply before it is none any more. To become one it
    has to apply all that its leader's log held at some moment, so none goes in and out by turns."""


@dataclass(frozen=True, slots=True)
class TransportSettings:
    """Connections."""

    connect_timeout_ms: int = 1_000
    """A connection that is not established within this is given up."""
    reconnect_min_ms: int = 50
    reconnect_max_ms: int = 1_000
    """Pause before a peer is dialled again: doubled from the first to the second, and by
    chance between half of that and all of it."""
    peer_queue_bytes_max: int = 64 * MIB
    """Per peer; beyond it replication messages are dropped (the follower catches up)."""
    client_queue_bytes_max: int = 32 * MIB
    """Answers waiting for a slow client; beyond it its connection is closed."""
    unread_answers_bytes_max: int = 64 * MIB
    """Answers waiting for all slow clients together; beyond it the one is closed that has had the
    most waiting for the longest."""
    partial_frames_bytes_max: int = 64 * MIB
    """Bytes of incomplete frames of all clients together; beyond it the connection is closed that
    has held the most for the longest."""
    frame_timeout_ms: int = 30_000
    """A frame of a client that is not complete this long after it began ends its connection."""
    client_connections_max: int = 2_048
    """For one more the client that was idle longest is asked to come again. While all have requests
    under way a new one is asked to share connections. A client that both reads and writes has two:
    one for its writes and one for everything else."""
    operator_connections_max: int = 32
    """Beyond client_connections_max, for the command line and the HTTP interfaces of the nodes."""
    client_idle_ms: int = 600_000
    """A connection of a client that asks nothing and waits for nothing this long is closed; the
    client library connects again when it needs to."""
    request_timeout_max_ms: int = 300_000
    """The longest time that a node lets a request of a client wait, whatever the client asks for:
    then it is refused, and may be asked again."""


@dataclass(frozen=True, slots=True)
class MachineSettings:
    """Where a node finds the code of its users' state machines."""

    path: str = ""
    """Directories with modules of state machines, separated by commas, beside what is installed in
    the Python of the node. The code must be the same on every node, and is read at the start."""

    @property
    def directories(self) -> tuple[str, ...]:
        """The directories of ``path``."""
        return tuple(filter(None, (part.strip() for part in self.path.split(","))))


@dataclass(frozen=True, slots=True)
class NodeSettings:
    """Everything one node is started with."""

    name: str
    """The node's label, as in --initial-cluster: n1."""
    data_dir: str
    """The node's own directory: log, tables, identity."""
    listen: str = "127.0.0.1:4481"
    """host:port of the one socket for peers and clients."""
    advertise: str = ""
    """host:port others use; default: the listen address."""
    initial_cluster: tuple[tuple[str, str], ...] = ()
    """Founding members, n1=host:port,n2=…: found the cluster at the first start (S0.7); later
    they say where these members are now."""
    failure_domain: str = ""
    """What fails together with this node, such as a rack or a zone: replicas of a partition are
    placed in different ones. Empty: nothing but the node itself."""
    join: str = ""
    """A token of `raftstore cluster token`: join that cluster at the first start; ignored later."""
    insecure: bool = False
    """Needed to bind beyond loopback until TLS exists."""
    log_level: str = "info"
    """debug, info, warning or error."""
    event_loop: str = "auto"
    """Of the main loop and of heartbeats: auto, asyncio or uvloop; auto is uvloop where it is
    installed."""
    replication: ReplicationSettings = field(default_factory=ReplicationSettings)
    catchup: CatchUpSettings = field(default_factory=CatchUpSettings)
    membership: MembershipSettings = field(default_factory=MembershipSettings)
    election: ElectionSettings = field(default_factory=ElectionSettings)
    heartbeat: HeartbeatSettings = field(default_factory=HeartbeatSettings)
    lag: LagSettings = field(default_factory=LagSettings)
    query: QuerySettings = field(default_factory=QuerySettings)
    read: ReadSettings = field(default_factory=ReadSettings)
    batch: BatchSettings = field(default_factory=BatchSettings)
    snapshot: SnapshotSettings = field(default_factory=SnapshotSettings)
    storage: StorageSettings = field(default_factory=StorageSettings)
    retention: RetentionSettings = field(default_factory=RetentionSettings)
    scrub: ScrubSettings = field(default_factory=ScrubSettings)
    expiry: ExpirySettings = field(default_factory=ExpirySettings)
    rebalance: RebalanceSettings = field(default_factory=RebalanceSettings)
    replica: ReplicaSettings = field(default_factory=ReplicaSettings)
    iss: IssSettings = field(default_factory=IssSettings)
    transport: TransportSettings = field(default_factory=TransportSettings)
    http: HttpSettings = field(default_factory=HttpSettings)
    machines: MachineSettings = field(default_factory=MachineSettings)
    audit: AuditSettings = field(default_factory=AuditSettings)
