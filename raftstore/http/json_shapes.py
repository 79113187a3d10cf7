"""Answers: what they contain and how they are called."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from raftstore.client.machines.results import QueryResult
from raftstore.client.position import Position
from raftstore.client.results import GetResult, ServedPart, WriteAck
from raftstore.protocol.admin import TableInfo
from raftstore.types import node_name

UNKNOWN = "unknown"


class ServedBy(msgspec.Struct, frozen=True):
    """By whom one partition was read, and how fresh that was."""

    partition: int
    served_by: str
    applied_seq: int
    """What the replica had applied."""
    lag: int | None
    """Rows behind what it knew to be committed; null: unknown."""
    age_ms: int | None
    """Age of that knowledge; null: it has never known a leader."""
    staleness_ms: int | None
    """Everything committed longer ago than this was there; null: not known."""
    batches_behind: int | None
    term: int


class RowAnswer(msgspec.Struct, frozen=True):
    """One row, or that there is none with this key."""

    found: bool
    row: dict[str, Any] | None
    version: str | None
    """Of the row, as in ETag: for If-Match and If-None-Match."""
    partition: int
    served_by: str
    position: str
    lag: int | None
    age_ms: int | None
    staleness_ms: int | None
    batches_behind: int | None
    level: str
    term: int


class RowsAnswer(msgspec.Struct, frozen=True):
    """Rows in the order of the keys asked for (null where there is none), or in key order."""

    rows: list[dict[str, Any] | None]
    position: str
    """The states that were read: give it to at_least for reads that never go back."""
    served: list[ServedBy]
    """One entry per partition that was read; more where its rows came in several answers."""
    next: str | None = None
    """Of a range: give it as token for the next page, of the same states; null: no more rows."""


class CountAnswer(msgspec.Struct, frozen=True):
    """How many rows a range has; each partition was counted in one state."""

    rows: int
    position: str
    served: list[ServedBy]


class Fate(msgspec.Struct, frozen=True):
    """The outcome of a write."""

    fate: str
    """committed; not_applied (and never will be); unknown, for the reason given."""
    seq: int | None
    position: str | None
    condition: str
    """Of a conditional write that is committed: held or conflict; unknown, or none without one."""
    reason: str
    partition: int
    node: str
    """Who answered."""


class Verdict(msgspec.Struct, frozen=True):
    """One replica and what would become of the read there."""

    node: str
    order: int | None
    """1 is asked first; null: not asked."""
    is_leader: bool
    lag: int | None
    """Rows it believes to be behind; null: not known."""
    behind: int | None
    """Rows it is behind what all nodes together know."""
    leader_info_age_ms: int | None
    reason: str
    staleness_ms: int | None = None
    """Everything committed longer ago than this is there; null: not known."""
    batches_behind: int | None = None


class Explanation(msgspec.Struct, frozen=True):
    """Where a read of one key goes now."""

    table: str
    partition: int
    level: str
    max_lag: int | None
    replicas: list[Verdict]
    smallest_max_lag: int | None
    """The smallest max_lag that some replica would serve now; null: none would."""
    leader: str | None
    """The node that leads the partition by its own report."""
    preferred_leader: str
    """The first replica of its placement, which leads a new table."""
    leader_note: str
    """Why another one leads, or none; empty where the preferred one does."""
    max_staleness_ms: int | None = None
    max_batches_behind: int | None = None
    smallest_max_staleness_ms: int | None = None
    """Likewise, of time."""
    smallest_max_batches_behind: int | None = None
    """Likewise, of micro-batches."""


class Written(msgspec.Struct, frozen=True):
    """An acknowledged write: durable on a quorum."""

    position: str
    partition: int
    seq: int
    term: int
    durability: str
    replicas_acked: int
    guid: str
    """Names the write for GET /v1/writes/{guid}."""


class ChannelBody(msgspec.Struct, frozen=True):
    """One partition of a table."""

    partition: int
    replicas: list[str]
    leader: str | None
    term: int


class TableBody(msgspec.Struct, frozen=True):
    """A table with its placement, as far as known."""

    name: str
    uuid: str
    key: list[str]
    partitions: int
    replicas: int
    durability: str
    max_lag: int | None
    max_staleness_ms: int | None
    max_batches_behind: int | None
    max_replica_lag: int | None
    standby_reads: bool
    schema: Any
    channels: list[ChannelBody]
    retention_bytes: int | None = None
    retention_records: int | None = None
    retention_age_ms: int | None = None
    ttl_ms: int | None = None
    restoring: bool = False
    replicas_now: list[int] | None = None
    """Of each partition, while some do not have their number of replicas yet."""


class TablesBody(msgspec.Struct, frozen=True):
    """All tables in name order."""

    tables: list[TableBody]


class Live(msgspec.Struct, frozen=True):
    """Whether the process should be left running."""

    alive: bool
    main_loop_ms_ago: int | None
    """Since the main loop turned; null before the node has a cluster."""


class Ok(msgspec.Struct, frozen=True):
    """Done."""

    ok: bool = True


def row_answer(result: GetResult, row: dict[str, Any] | None) -> RowAnswer:
    """Return a read's result in the shape of answers."""
    return RowAnswer(
        found=row is not None,
        row=row,
        version=None if result.position is None else str(result.position),
        partition=result.partition,
        served_by=result.node,
        position=str(result.applied_position),
        lag=result.lag,
        age_ms=result.leader_info_age_ms,
        staleness_ms=result.staleness_ms,
        batches_behind=result.batches_behind,
        level=result.level.value,
        term=result.term,
    )


def served_by(part: GetResult | ServedPart, partition: int) -> ServedBy:
    """Return by whom a partition was read."""
    return ServedBy(
        partition=partition,
        served_by=part.node,
        applied_seq=part.applied_seq,
        lag=part.lag,
        age_ms=part.leader_info_age_ms,
        staleness_ms=part.staleness_ms,
        batches_behind=part.batches_behind,
        term=part.term,
    )


def provenance_headers(
    parts: Sequence[GetResult | ServedPart | QueryResult], position: Position
) -> dict[str, str]:
    """Return the headers of a read: its worst lag and age, and a position for at_least."""
    return {
        "X-Raftstore-Served-By": ",".join(sorted({part.node for part in parts})),
        "X-Raftstore-Position": str(position),
        "X-Raftstore-Lag": _worst([part.lag for part in parts]),
        "X-Raftstore-Age-Ms": _worst([part.leader_info_age_ms for part in parts]),
        "X-Raftstore-Staleness-Ms": _worst([part.staleness_ms for part in parts]),
    }


def _worst(values: Sequence[int | None]) -> str:
    known = [value for value in values if value is not None]
    return str(max(known)) if known and len(known) == len(values) else UNKNOWN


def written(ack: WriteAck) -> Written:
    """Return an acknowledgement in the shape of answers."""
    return Written(
        position=str(ack.position),
        partition=ack.partition,
        seq=ack.seq,
        term=ack.term,
        durability=ack.durability,
        replicas_acked=ack.replicas_acked,
        guid=ack.guid,
    )


def channel_bodies(info: TableInfo) -> list[ChannelBody]:
    """Return the partitions in the shape of answers."""
    return [
        ChannelBody(
            partition=number,
            replicas=[node_name(node) for node in channel.replicas],
            leader=None if channel.leader is None else node_name(channel.leader),
            term=channel.term,
        )
        for number, channel in enumerate(info.channels)
    ]


def table_body(info: TableInfo) -> TableBody:
    """Return a table in the shape of answers."""
    return TableBody(
        name=info.name,
        uuid=info.uuid.hex(),
        key=list(info.key_columns),
        partitions=info.partitions,
        replicas=info.replicas,
        durability=info.durability,
        max_lag=info.max_lag,
        max_staleness_ms=info.max_staleness_ms,
        max_batches_behind=info.max_batches_behind,
        max_replica_lag=info.max_replica_lag,
        standby_reads=info.standby_reads,
        schema=msgspec.json.decode(info.schema_json) if info.schema_json else None,
        channels=channel_bodies(info),
        retention_bytes=info.settings.retention_bytes,
        retention_records=info.settings.retention_records,
        retention_age_ms=info.settings.retention_age_ms,
        ttl_ms=info.settings.ttl_ms,
        restoring=info.settings.restoring is not None,
        replicas_now=list(info.voters) or None,
    )
