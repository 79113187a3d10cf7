"""The client as the sink uses it: what is needed of it, and how it is opened.

A seam, so that the sink's tests can put a store of files behind Spark's own processes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Protocol

import raftstore
from raftstore.client.batches.batch_writes import BatchResult, BatchTicket
from raftstore.client.batches.stager import StagedParts
from raftstore.client.changes.change_feed import Ends
from raftstore.client.definitions import SettingsGiven
from raftstore.client.scans.scanning import Item
from raftstore.client.scans.snapshot_opening import SnapshotOptions, SnapshotToken
from raftstore.errors import ConfigError
from raftstore.policy.routing import Prefer
from raftstore.protocol.admin import TableInfo
from raftstore.protocol.batches import WriterView
from raftstore.protocol.changes import ChangePiece
from raftstore.spark.connections import shared
from raftstore.spark.identity import BatchIdentity
from raftstore.spark.options import SinkOptions, SourceOptions
from raftstore.types import BatchModeName, Level


class RecordWriter(Protocol):
    """Sends records of one table, several at a time, those of one partition in order."""

    def add(self, partition: int, payload: bytes, rows: int) -> None:
        """Send one record; waits while too many are unacknowledged; raises for an earlier one."""

    def flush(self) -> object:
        """Wait until every record is acknowledged; raise the first failure with its outcome."""


class ChunkStager(Protocol):
    """Stages the rows of one task."""

    def add(self, partition: int, payload: bytes, rows: int, mode: int) -> None:
        """Stage one chunk; waits while too many are unacknowledged; raises for an earlier one."""

    def flush(self) -> StagedParts:
        """Wait until a quorum has every chunk."""


class Store(Protocol):
    """One connection to the cluster."""

    def table_info(self, name: str) -> TableInfo:
        """Return the table's catalog entry as it is now; raises UnknownTableError."""

    def definition(self, name: str) -> TableInfo:
        """Return it as it is known here, never an older one than any call before went by."""

    def create_table(self, options: SinkOptions, schema_json: str) -> TableInfo:
        """Create the table unless it exists; returns when every partition has a leader."""

    def some_row(self, name: str) -> Mapping[str, Any] | None:
        """Return one row of the table; None: it has none."""

    def add_columns(self, name: str, schema_json: str) -> TableInfo:
        """Append the columns that the table lacks; SchemaError for one that has another type."""

    def writer_of(self, name: str, writer: str) -> WriterView | None:
        """The table's record of a writer of batches."""

    def adopt(self, name: str, writer: str, lineage: str) -> None:
        """Let a writer begin at any batch of a lineage again."""

    def writer(self, name: str, max_in_flight: int) -> AbstractContextManager[RecordWriter]:
        """Open a writer; leaving it in good order flushes."""

    def mark_batch(
        self, name: str, writer: str, batch_id: int, partitions: frozenset[int]
    ) -> object:
        """Announce to the partitions that a micro-batch is complete; returns when all acknowledged
        it."""

    def check_batches(self, name: str) -> None:
        """Raise StoreTooOldError while some node of the cluster could not read atomic batches."""

    def begin(self, name: str, identity: BatchIdentity, options: SinkOptions) -> BatchTicket:
        """Open an attempt at a batch, the same for all who give the same uuid."""

    def stager(
        self,
        name: str,
        ticket: BatchTicket,
        partition_id: int,
        task_attempt_id: int,
        max_in_flight: int,
    ) -> AbstractContextManager[ChunkStager]:
        """Open a stager for one attempt of one task."""

    def commit(
        self,
        name: str,
        ticket: BatchTicket,
        staged: Sequence[StagedParts],
        mode: BatchModeName,
        options: SinkOptions,
    ) -> BatchResult:
        """Decide the batch; returns when every partition has applied it."""

    def abort(self, name: str, ticket: BatchTicket) -> None:
        """Give an attempt up."""

    def open_snapshot(self, name: str, options: SourceOptions) -> SnapshotToken:
        """Have one state of all partitions kept for readers in other processes."""

    def pages(
        self, name: str, token: SnapshotToken, partition: int, start: bytes, stop: bytes
    ) -> Iterator[Sequence[Item]]:
        """Read the keys of [start, stop) of one partition of that state, a page at a time; b"" is
        open."""

    def rows_of(
        self, name: str, token: SnapshotToken, partition: int, keys: Sequence[bytes]
    ) -> Iterator[Sequence[Item]]:
        """Read the rows that some keys of one partition have in that state, many at a time."""

    def cuts(
        self, name: str, token: SnapshotToken, start: bytes, stop: bytes, parts: int
    ) -> list[list[bytes]]:
        """Return for each partition at which keys to cut [start, stop) into about equal parts."""

    def change_ends(self, name: str) -> Ends:
        """Return per partition the first and the last position of changes there is now."""

    def change_limit(
        self, name: str, partition: int, after: int, to_seq: int, rows_max: int
    ) -> int:
        """Return the position at most so many rows behind one, in whole records, one at least."""

    def change_pieces(
        self, options: SourceOptions, partition: int, after: int, to_seq: int
    ) -> Iterator[Sequence[ChangePiece]]:
        """Read what changed in one partition, a page at a time."""


Connect = Callable[[SinkOptions | SourceOptions], AbstractContextManager[Store]]
"""Open a store; closing it closes its connections."""


class ClientStore:
    """The blocking client, with the sink's names."""

    def __init__(self, client: raftstore.Client, ttl_ms: int | None = None) -> None:
        """``ttl_ms``: how long rows live that are written; None: as their table says."""
        self._client = client
        self._ttl = None if ttl_ms is None else ttl_ms / 1000

    def table_info(self, name: str) -> TableInfo:
        """Ask the catalog."""
        return self._client.table_info(name)

    def definition(self, name: str) -> TableInfo:
        """Ask only when it is not known: older news never replaces newer in the client."""
        return self._client.table(name).definition()

    def create_table(self, options: SinkOptions, schema_json: str) -> TableInfo:
        """Create the table unless it exists; returns when every partition has a leader."""
        age_ms = options.retention_age_ms
        settings: SettingsGiven = {
            "retention_bytes": options.retention_bytes,
            "retention_records": options.retention_records,
            "retention_age": None if age_ms is None else age_ms / 1000,
            "ttl": self._ttl,
        }
        return self._client.create_table(
            options.table,
            key=options.key,
            partitions=options.partitions,
            replicas=options.replicas,
            durability=options.durability,
            schema=schema_json,
            if_not_exists=True,
            **settings,
        )

    def some_row(self, name: str) -> Mapping[str, Any] | None:
        """Read the first one that comes."""
        return next(iter(self._client.table(name).scan(limit=1)), None)

    def add_columns(self, name: str, schema_json: str) -> TableInfo:
        """Append columns to the table's schema."""
        return self._client.edit_table(name, add_columns=schema_json)

    def writer_of(self, name: str, writer: str) -> WriterView | None:
        """Ask the coordinator."""
        return next(iter(self._client.table(name).writers(writer).writers), None)

    def adopt(self, name: str, writer: str, lineage: str) -> None:
        """Adopt the writer."""
        self._client.adopt_writer(name, writer, lineage=lineage)

    def writer(self, name: str, max_in_flight: int) -> AbstractContextManager[RecordWriter]:
        """Open a bulk writer."""
        table = self._client.table(name)
        return table.bulk_writer(max_in_flight=max_in_flight, ttl=self._ttl)

    def mark_batch(
        self, name: str, writer: str, batch_id: int, partitions: frozenset[int]
    ) -> object:
        """Mark the end of a micro-batch."""
        return self._client.table(name).mark_batch(writer, batch_id, partitions=partitions)

    def check_batches(self, name: str) -> None:
        """Ask which levels the nodes are at."""
        self._client.table(name).check_batches()

    def begin(self, name: str, identity: BatchIdentity, options: SinkOptions) -> BatchTicket:
        """BEGIN; one that finds the batch written waits until it is applied everywhere."""
        assert identity.batch_id is not None
        return self._client.table(name).begin_batch(
            identity.writer,
            identity.batch_id,
            uuid=identity.uuid,
            lineage=identity.lineage,
            one_shot=identity.one_shot,
            ttl=options.staging_ttl_ms / 1000,
            timeout=options.commit_timeout_ms / 1000,
        )

    def stager(
        self,
        name: str,
        ticket: BatchTicket,
        partition_id: int,
        task_attempt_id: int,
        max_in_flight: int,
    ) -> AbstractContextManager[ChunkStager]:
        """Open a stager; the client's timeout is for each chunk."""
        return self._client.table(name).stager(
            ticket, partition_id, task_attempt_id, max_in_flight=max_in_flight, ttl=self._ttl
        )

    def commit(
        self,
        name: str,
        ticket: BatchTicket,
        staged: Sequence[StagedParts],
        mode: BatchModeName,
        options: SinkOptions,
    ) -> BatchResult:
        """COMMIT."""
        timeout = options.commit_timeout_ms / 1000
        return self._client.table(name).commit_batch(ticket, staged, mode=mode, timeout=timeout)

    def abort(self, name: str, ticket: BatchTicket) -> None:
        """CLOSE."""
        self._client.table(name).abort_batch(ticket)

    def open_snapshot(self, name: str, options: SourceOptions) -> SnapshotToken:
        """Open it and leave it open."""
        lag_ms = options.max_lag_ms
        read: SnapshotOptions = {
            "level": Level(options.level),
            "max_lag": options.max_lag_seq,
            "max_staleness": None if lag_ms is None else lag_ms / 1000,
            "prefer": Prefer(options.prefer_replica),
        }
        table, idle = self._client.table(name), options.pin_life_ms / 1000
        snapshot = table.snapshot(at_batch=options.at_batch, idle=idle, **read)
        life_ms = snapshot.token.life_ms
        # The default is what suits most jobs, and a node that keeps less is no error then.
        if "pinLife" in options.given and 0 < life_ms < options.pin_life_ms:
            snapshot.close()
            raise ConfigError(
                f"[RAFTSTORE_OPTION_INVALID] pinLife is {options.pin_life!r}, and the nodes keep "
                f"no state longer than {life_ms} ms (their setting read.scan_pin_life_ms): give "
                f"at most {life_ms // 1000}s, or raise that setting"
            )
        return snapshot.token

    def pages(
        self, name: str, token: SnapshotToken, partition: int, start: bytes, stop: bytes
    ) -> Iterator[Sequence[Item]]:
        """Read where it is kept."""
        snapshot = self._client.table(name).read_snapshot(token)
        return snapshot.pages(partition, start=start, stop=stop)

    def rows_of(
        self, name: str, token: SnapshotToken, partition: int, keys: Sequence[bytes]
    ) -> Iterator[Sequence[Item]]:
        """Read where it is kept."""
        return self._client.table(name).read_snapshot(token).rows_of(partition, keys)

    def cuts(
        self, name: str, token: SnapshotToken, start: bytes, stop: bytes, parts: int
    ) -> list[list[bytes]]:
        """Look at a few keys where they are kept."""
        snapshot = self._client.table(name).read_snapshot(token)
        return snapshot.cuts(parts, start=start, stop=stop)

    def change_ends(self, name: str) -> Ends:
        """Ask every partition."""
        return self._client.table(name).change_ends()

    def change_limit(
        self, name: str, partition: int, after: int, to_seq: int, rows_max: int
    ) -> int:
        """Count at any replica."""
        return self._client.table(name).change_limit(partition, after, to_seq, rows_max)

    def change_pieces(
        self, options: SourceOptions, partition: int, after: int, to_seq: int
    ) -> Iterator[Sequence[ChangePiece]]:
        """Read at any replica."""
        return self._client.table(options.table).change_pieces(
            partition, after, to_seq, prefer=Prefer(options.prefer_replica)
        )


@contextmanager
def connect(options: SinkOptions | SourceOptions) -> Iterator[Store]:
    """Use this process's client of the cluster, which any of the bootstrap servers names.

    The request timeout is the client's: for finding the cluster, and for each record until it is
    acknowledged, retries and fail-overs included.
    """
    with shared(options.bootstrap_servers, options.request_timeout_ms) as client:
        ttl_ms = options.ttl_ms if isinstance(options, SinkOptions) else None
        yield ClientStore(client, ttl_ms)
