"""The same names for programs without asyncio: Spark tasks, scripts, notebooks, the command line.

Every method does what its namesake in ``asyncio_client``, ``table`` and ``bulk`` does; see there.
All of them may be called from any thread of the process that connected.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Mapping, Sequence
from contextlib import suppress
from types import TracebackType
from typing import Any, NoReturn, Self, Unpack

from raftstore.client.arguments import Ttl
from raftstore.client.asyncio_client import AsyncClient
from raftstore.client.auditing.audit import Audit
from raftstore.client.blocking.background_loop import BackgroundLoop
from raftstore.client.blocking.batches import BatchClient, BatchTable
from raftstore.client.blocking.changes import ChangesTable
from raftstore.client.blocking.iteration import iterate
from raftstore.client.blocking.machines import MachineClient
from raftstore.client.blocking.moves import MovesClient
from raftstore.client.blocking.snapshots import SnapshotTable
from raftstore.client.comparing.comparison import Progress
from raftstore.client.comparing.results import ReplicaComparison
from raftstore.client.definitions import SettingsGiven, TableEdits
from raftstore.client.explanation import ReadExplanation
from raftstore.client.kip535 import (
    AsyncReadOnlyStore,
    NodeMetadata,
    OnChange,
    Partitioner,
    Serializer,
)
from raftstore.client.position import Position
from raftstore.client.reads.read_spec import CountOptions, ReadOptions
from raftstore.client.results import (
    BulkResult,
    ClusterEvents,
    ClusterStatus,
    CountResult,
    GetResult,
    KeyQueryMetadata,
    PageResult,
    TableDigest,
    WriteAck,
    WriteFate,
    WriteSummary,
)
from raftstore.client.settings import ClientSettings, checked_settings
from raftstore.client.table import AsyncTable
from raftstore.client.writes.bulk import AsyncBulkWriter
from raftstore.client.writes.chunks import Pair
from raftstore.errors import UnavailableError
from raftstore.policy.lag import LagInfo
from raftstore.protocol.admin import ClusterViewAnswer, TableInfo
from raftstore.types import DurabilityName


def connect(
    endpoints: str | Sequence[str],
    *,
    timeout: float | None = None,
    settings: ClientSettings | None = None,
    audit: Audit | None = None,
) -> Client:
    """Find a cluster by any of its nodes' addresses.

    ``endpoints`` is ``"host:port,host:port"`` or a list of such addresses.
    ``timeout`` in seconds (5) is for finding it and the default of every call after that. ``audit``
    judges answers. Raises UnavailableError with a reason per address, ConfigError for a bad one.
    """
    event_loop = checked_settings(settings).event_loop
    loop = BackgroundLoop("raftstore client", event_loop)
    try:
        client = loop.call(
            AsyncClient.connect(endpoints, timeout=timeout, settings=settings, audit=audit)
        )
    except BaseException:
        loop.stop()
        raise
    return Client(client, loop)


class Client(BatchClient, MachineClient, MovesClient):
    """A connected client; close it, or use it as a context manager. Made by ``connect``."""

    def __init__(self, client: AsyncClient, loop: BackgroundLoop) -> None:
        self._client = client
        self._loop = loop

    def __repr__(self) -> str:
        return repr(self._client).replace("AsyncClient", "Client", 1)

    def table(self, name: str) -> Table:
        """Return a handle of a table; whether it exists is found out when it is used."""
        return Table(self._client.table(name), self._loop)

    def create_table(  # noqa: PLR0913 - a definition has many parts, all by name
        self,
        name: str,
        *,
        key: str | Sequence[str],
        partitions: int = 8,
        replicas: int = 3,
        schema: Any = None,
        durability: DurabilityName = "fsync",
        max_lag: int | None = None,
        if_not_exists: bool = False,
        timeout: float | None = None,
        **settings: Unpack[SettingsGiven],
    ) -> TableInfo:
        """Create a table; every channel has a leader when this returns."""
        return self._loop.call(
            self._client.create_table(
                name,
                key=key,
                partitions=partitions,
                replicas=replicas,
                schema=schema,
                durability=durability,
                max_lag=max_lag,
                if_not_exists=if_not_exists,
                timeout=timeout,
                **settings,
            )
        )

    def alter_table(
        self, name: str, *, timeout: float | None = None, **changes: Unpack[TableEdits]
    ) -> TableInfo:
        """Change settings of a table, or what bounds reads that name none, or append columns."""
        return self._loop.call(self._client.alter_table(name, timeout=timeout, **changes))

    def edit_table(
        self, name: str, *, timeout: float | None = None, **changes: Unpack[TableEdits]
    ) -> TableInfo:
        """The same as ``alter_table``, under its earlier name."""
        return self._loop.call(self._client.edit_table(name, timeout=timeout, **changes))

    def drop_table(self, name: str, *, timeout: float | None = None) -> None:
        """Remove a table with all its rows; UnknownTableError if there is none."""
        self._loop.call(self._client.drop_table(name, timeout=timeout))

    def tables(self, *, timeout: float | None = None) -> tuple[TableInfo, ...]:
        """Return all tables in name order, with placement and leaders."""
        return self._loop.call(self._client.tables(timeout=timeout))

    def table_info(self, name: str, *, timeout: float | None = None) -> TableInfo:
        """Return a table's definition, placement and leaders."""
        return self._loop.call(self._client.table_info(name, timeout=timeout))

    def query_metadata_for_key(
        self,
        table: str,
        key: Any,
        *,
        serializer: Serializer | None = None,
        partitioner: Partitioner | None = None,
        timeout: float | None = None,
    ) -> KeyQueryMetadata:
        """Return leader, other replicas and partition of a key: hints for routing (KIP-535)."""
        return self._loop.call(
            self._client.query_metadata_for_key(
                table, key, serializer=serializer, partitioner=partitioner, timeout=timeout
            )
        )

    def standby_metadata_for_key(
        self, table: str, key: Any, *, timeout: float | None = None
    ) -> tuple[NodeMetadata, ...]:
        """Return the nodes that replicate a key's partition without leading it."""
        return self._loop.call(self._client.standby_metadata_for_key(table, key, timeout=timeout))

    def all_metadata(self, *, timeout: float | None = None) -> tuple[NodeMetadata, ...]:
        """Return every node with the channels it leads and those it follows."""
        return self._loop.call(self._client.all_metadata(timeout=timeout))

    def all_local_store_partition_lags(
        self, node: str | None = None, *, timeout: float | None = None
    ) -> dict[str, dict[int, LagInfo]]:
        """Return the lag of every replica that a node hosts: table -> partition -> lag."""
        return self._loop.call(self._client.all_local_store_partition_lags(node, timeout=timeout))

    def cluster_view(
        self, node: str | None = None, *, timeout: float | None = None
    ) -> ClusterViewAnswer:
        """Return a node's viewpoint: nodes, leaders, positions and lags of replicas (hints)."""
        return self._loop.call(self._client.cluster_view(node, timeout=timeout))

    def store(
        self,
        table: str,
        include_stale_stores: bool = False,  # noqa: FBT001, FBT002 - KIP-535's own shape
        *,
        node: str | None = None,
        timeout: float | None = None,
    ) -> ReadOnlyStore:
        """Return a read-only view of a table; every call checks again whether it may be read."""
        store = self._loop.call(
            self._client.store(table, include_stale_stores, node=node, timeout=timeout)
        )
        return ReadOnlyStore(store, self._loop)

    def on_change(self, callback: OnChange) -> None:
        """Call ``callback(channel, metadata)`` whenever another node leads a channel.

        It is called on the client's thread and must return at once; what it raises is logged.
        """
        self._client.on_change(callback)

    def count(self, table: str, **options: Unpack[CountOptions]) -> CountResult:
        """Count rows; takes what ``table.count`` takes."""
        return self._loop.call(self._client.count(table, **options))

    def fate(self, guid: str, *, timeout: float | None = None) -> WriteFate:
        """Return what became of a write, by the guid of its ack or of its error."""
        return self._loop.call(self._client.fate(guid, timeout=timeout))

    def events(
        self,
        types: Sequence[str] | str = (),
        since: Mapping[str, int] | None = None,
        *,
        limit: int = 1_000,
        timeout: float | None = None,
    ) -> ClusterEvents:
        """Return what the nodes noticed (``types``: failover, role, peer_health, ...; none: all).

        ``since`` is the ``next`` of an earlier answer.
        """
        return self._loop.call(self._client.events(types, since, limit=limit, timeout=timeout))

    def explain_get(self, table: str, key: Any, **options: Unpack[ReadOptions]) -> ReadExplanation:
        """Return which replicas a read would ask now, in which order, and why not the others."""
        return self._loop.call(self._client.explain_get(table, key, **options))

    def cluster_status(self, *, timeout: float | None = None) -> ClusterStatus:
        """Return the cluster as one node sees it, with every node's own state."""
        return self._loop.call(self._client.cluster_status(timeout=timeout))

    def content_hash(
        self,
        table: str,
        replica: str,
        *,
        partition: int | None = None,
        timeout: float | None = None,
    ) -> TableDigest:
        """Hash a table's rows at one node, of one partition or all that it hosts."""
        return self._loop.call(
            self._client.content_hash(table, replica, partition=partition, timeout=timeout)
        )

    def compare_replicas(
        self,
        channel: str,
        *,
        keys_max: int = 20,
        progress: Progress | None = None,
        timeout: float | None = None,
    ) -> ReplicaComparison:
        """Compare all replicas of a channel by their histories and entry by entry.

        ``progress`` is called on the client's own thread.
        """
        return self._loop.call(
            self._client.compare_replicas(
                channel, keys_max=keys_max, progress=progress, timeout=timeout
            )
        )

    def checkpoint(
        self, nodes: Sequence[str] = (), *, timeout: float | None = None
    ) -> Mapping[str, Mapping[str, int] | str]:
        """Have nodes (default: all) sync what they acknowledged before it was on their disks."""
        return self._loop.call(self._client.checkpoint(nodes, timeout=timeout))

    def close(self) -> None:
        """End all connections. Running calls end, too: writes without an answer as UNKNOWN.

        The client's thread ends as well. Repeating it is harmless.
        """
        if not self._loop.is_stopped:
            with suppress(UnavailableError):  # another thread was quicker
                self._loop.call(self._client.close())
            self._loop.stop()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            "a raftstore client cannot be sent to another process; "
            "send the addresses and call raftstore.connect there"
        )


class Table(BatchTable, ChangesTable, SnapshotTable):
    """A table by name; see ``AsyncTable``."""

    def __init__(self, table: AsyncTable, loop: BackgroundLoop) -> None:
        self.name = table.name
        self._table = table
        self._loop = loop

    def __repr__(self) -> str:
        return repr(self._table).replace("AsyncTable", "Table", 1)

    def put(
        self,
        row: Mapping[str, Any],
        *,
        if_absent: bool = False,
        if_position: Position | str | None = None,
        ttl: Ttl = None,
        timeout: float | None = None,
    ) -> WriteAck:
        """Insert or replace a row; returns when a quorum has it durably.

        ``if_absent`` and ``if_position`` make it conditional, ``ttl`` gives it a lifetime: see
        ``AsyncTable.put``.
        """
        return self._loop.call(
            self._table.put(
                row, if_absent=if_absent, if_position=if_position, ttl=ttl, timeout=timeout
            )
        )

    def delete(
        self,
        key: Any,
        *,
        if_position: Position | str | None = None,
        timeout: float | None = None,
    ) -> WriteAck:
        """Remove a row; removing one that is not there is no error."""
        return self._loop.call(self._table.delete(key, if_position=if_position, timeout=timeout))

    def put_many(
        self,
        rows: Iterable[Mapping[str, Any]],
        *,
        max_in_flight: int = 8,
        ttl: Ttl = None,
        timeout: float | None = None,
    ) -> WriteSummary:
        """Insert or replace many rows; of rows with the same key the last one wins.

        PartialWriteError states what became of which row.
        """
        return self._loop.call(
            self._table.put_many(list(rows), max_in_flight=max_in_flight, ttl=ttl, timeout=timeout)
        )

    def delete_many(
        self, keys: Iterable[Any], *, max_in_flight: int = 8, timeout: float | None = None
    ) -> WriteSummary:
        """Remove many rows, in records like ``put_many``."""
        return self._loop.call(
            self._table.delete_many(list(keys), max_in_flight=max_in_flight, timeout=timeout)
        )

    def publish_rows(
        self,
        partition: int,
        pairs: Sequence[Pair],
        *,
        ttl: Ttl = None,
        timeout: float | None = None,
    ) -> WriteAck:
        """Write encoded rows of one partition as one record (``rows.keys``, ``rows.sealing``)."""
        return self._loop.call(self._table.publish_rows(partition, pairs, ttl=ttl, timeout=timeout))

    def mark_batch(
        self,
        writer: str,
        batch_id: int,
        *,
        partitions: Iterable[int] | None = None,
        timeout: float | None = None,
    ) -> Position:
        """Announce that a micro-batch written row by row is complete; reads count them
        (BLOG-32)."""
        return self._loop.call(
            self._table.mark_batch(writer, batch_id, partitions=partitions, timeout=timeout)
        )

    def bulk_writer(
        self, *, max_in_flight: int = 8, ttl: Ttl = None, timeout: float | None = None
    ) -> BulkWriter:
        """Return a writer of encoded records; ``timeout`` is for each, retries included."""
        writer = self._loop.call(
            self._table.bulk_writer(max_in_flight=max_in_flight, ttl=ttl, timeout=timeout)
        )
        return BulkWriter(writer, self._loop)

    def definition(self, *, timeout: float | None = None) -> TableInfo:
        """Return the table's definition as it is known here; asks only when it is not."""
        return self._loop.call(self._table.definition(timeout=timeout))

    def get(self, key: Any, **options: Unpack[ReadOptions]) -> dict[str, Any] | None:
        """Return the row with this key or None; linearizable by default."""
        return self._loop.call(self._table.get(key, **options))

    def get_result(self, key: Any, **options: Unpack[ReadOptions]) -> GetResult:
        """Return the row with its version, and by whom it was served and how fresh that was."""
        return self._loop.call(self._table.get_result(key, **options))

    def get_many(
        self, keys: Iterable[Any], **options: Unpack[ReadOptions]
    ) -> list[dict[str, Any] | None]:
        """Return one row or None per key, in order."""
        return self._loop.call(self._table.get_many(list(keys), **options))

    def get_many_results(
        self, keys: Iterable[Any], **options: Unpack[ReadOptions]
    ) -> list[GetResult]:
        """Return ``get_many``'s rows with their versions, and by whom each was served."""
        return self._loop.call(self._table.get_many_results(list(keys), **options))

    def scan(
        self,
        *,
        start: Any = None,
        stop: Any = None,
        prefix: Any = None,
        limit: int | None = None,
        keys_only: bool = False,
        snapshot: bool = True,
        **options: Unpack[ReadOptions],
    ) -> Generator[dict[str, Any], None, None]:
        """Iterate over rows in key order: start <= key < stop, all partitions merged."""
        rows = self._table.scan(
            start=start,
            stop=stop,
            prefix=prefix,
            limit=limit,
            keys_only=keys_only,
            snapshot=snapshot,
            **options,
        )
        return iterate(rows, self._loop)

    def page(
        self,
        *,
        start: Any = None,
        stop: Any = None,
        prefix: Any = None,
        limit: int = 100,
        token: str | None = None,
        keys_only: bool = False,
        **options: Unpack[ReadOptions],
    ) -> PageResult:
        """Return ``limit`` rows of a scan in key order, and a token for the page that follows."""
        return self._loop.call(
            self._table.page(
                start=start,
                stop=stop,
                prefix=prefix,
                limit=limit,
                token=token,
                keys_only=keys_only,
                **options,
            )
        )

    def count(
        self,
        *,
        start: Any = None,
        stop: Any = None,
        prefix: Any = None,
        **options: Unpack[ReadOptions],
    ) -> CountResult:
        """Count the rows of a range, of the whole table without one; see ``scan`` for ranges."""
        return self._loop.call(self._table.count(start=start, stop=stop, prefix=prefix, **options))


class ReadOnlyStore:
    """See ``AsyncReadOnlyStore``: made by ``client.store(...)``."""

    def __init__(self, store: AsyncReadOnlyStore, loop: BackgroundLoop) -> None:
        self.name = store.name
        self._store = store
        self._loop = loop

    def get(self, key: Any, *, timeout: float | None = None) -> dict[str, Any] | None:
        """Return the row with this key or None."""
        return self._loop.call(self._store.get(key, timeout=timeout))

    def range(
        self, start: Any = None, stop: Any = None, *, timeout: float | None = None
    ) -> Generator[dict[str, Any], None, None]:
        """Iterate over the rows with start <= key < stop, in key order."""
        return iterate(self._store.range(start, stop, timeout=timeout), self._loop)

    def prefix(
        self, prefix: Any, *, timeout: float | None = None
    ) -> Generator[dict[str, Any], None, None]:
        """Iterate over the rows whose key begins so, in key order."""
        return iterate(self._store.prefix(prefix, timeout=timeout), self._loop)

    def approx_count(self, *, timeout: float | None = None) -> int:
        """Return how many rows there are; every partition is counted at its own moment."""
        return self._loop.call(self._store.approx_count(timeout=timeout))


class BulkWriter:
    """See ``AsyncBulkWriter``: ``add`` blocks while ``max_in_flight`` records are on their way."""

    def __init__(self, writer: AsyncBulkWriter, loop: BackgroundLoop) -> None:
        self._writer = writer
        self._loop = loop

    def add(self, partition: int, payload: bytes, rows: int) -> None:
        """Queue a record (``protocol.payload.encode_rows``); waits while the window is full.

        Raises the error of an earlier one.
        """
        self._loop.call(self._writer.add(partition, payload, rows))

    def flush(self) -> BulkResult:
        """Wait for every record added; return what was acknowledged since the last flush."""
        return self._loop.call(self._writer.flush())

    def close(self) -> None:
        """Stop without waiting: the outcome of records in flight is UNKNOWN."""
        if not self._loop.is_stopped:
            self._loop.call(self._writer.close())

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            if kind is None:
                self.flush()
        finally:
            self.close()
