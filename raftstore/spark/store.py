"""The client as the sink uses it: what is needed of it, and how it is opened.

A seam, so that the sink's tests can put a store of files behind Spark's own processes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Protocol

import raftstore
from raftstore.requests import TableInfo
from raftstore.spark.options import SinkOptions


class RecordWriter(Protocol):
    """Sends records of one table, several at a time, those of one partition in order."""

    def add(self, partition: int, payload: bytes, rows: int) -> None:
        """Send one record; waits while too many are unacknowledged; raises for an earlier one."""

    def flush(self) -> object:
        """Wait until every record is acknowledged; raise the first failure with its outcome."""


class Store(Protocol):
    """One connection to the cluster."""

    def table_info(self, name: str) -> TableInfo:
        """Return the table's catalog entry; raises UnknownTableError."""

    def create_table(self, options: SinkOptions, schema_json: str) -> TableInfo:
        """Create the table unless it exists; returns when every partition has a leader."""

    def writer(self, name: str, max_in_flight: int) -> AbstractContextManager[RecordWriter]:
        """Open a writer; leaving it in good order flushes."""

    def mark_batch(
        self, name: str, writer: str, batch_id: int, partitions: frozenset[int]
    ) -> object:
        """Tell the partitions that a micro-batch is complete; returns when all acknowledged it."""


Connect = Callable[[SinkOptions], AbstractContextManager[Store]]
"""Open a store; closing it closes its connections."""


class ClientStore:
    """The blocking client, with the sink's names."""

    def __init__(self, client: raftstore.Client) -> None:
        self._client = client

    def table_info(self, name: str) -> TableInfo:
        """Return the table's catalog entry; raises UnknownTableError."""
        return self._client.table_info(name)

    def create_table(self, options: SinkOptions, schema_json: str) -> TableInfo:
        """Create the table unless it exists; returns when every partition has a leader."""
        return self._client.create_table(
            options.table,
            key=options.key,
            partitions=options.partitions,
            replicas=options.replicas,
            schema=schema_json,
            if_not_exists=True,
        )

    def writer(self, name: str, max_in_flight: int) -> AbstractContextManager[RecordWriter]:
        """Open a bulk writer."""
        return self._client.table(name).bulk_writer(max_in_flight=max_in_flight)

    def mark_batch(
        self, name: str, writer: str, batch_id: int, partitions: frozenset[int]
    ) -> object:
        """Mark the end of a micro-batch."""
        return self._client.table(name).mark_batch(writer, batch_id, partitions=partitions)


@contextmanager
def connect(options: SinkOptions) -> Iterator[Store]:
    """Connect the blocking client to any of the bootstrap servers.

    The request timeout is the client's: for finding the cluster, and for each record until it is
    acknowledged, retries and fail-overs included.
    """
    timeout = options.request_timeout_ms / 1000
    with raftstore.connect(options.bootstrap_servers, timeout=timeout) as client:
        yield ClientStore(client)
