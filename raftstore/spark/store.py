"""The client as the sink uses it: what is needed of it, and how it is opened.

A seam, so that the sink's tests can put a store of files behind Spark's own processes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, Protocol

from raftstore.requests import TableInfo
from raftstore.spark.options import SinkOptions

if TYPE_CHECKING:
    from raftstore.client.blocking import Client


class RecordWriter(Protocol):
    """Sends records of one table, several at a time."""

    def add(self, partition: int, payload: bytes, rows: int) -> None:
        """Send one record; waits while too many are unacknowledged; raises for an earlier one."""

    def flush(self) -> None:
        """Wait until every record is acknowledged; raise the first failure with its outcome."""


class Store(Protocol):
    """One connection to the cluster."""

    def table_info(self, name: str) -> TableInfo:
        """The table's catalog entry; raises UnknownTableError."""

    def create_table(self, options: SinkOptions, schema_json: str) -> None:
        """Create the table unless it exists; returns when every partition has a leader."""

    def writer(self, name: str, max_in_flight: int) -> RecordWriter:
        """Open a writer."""


Connect = Callable[[SinkOptions], AbstractContextManager[Store]]
"""Open a store; closing it closes its connections."""


class ClientStore:
    """The blocking client, with the sink's names."""

    def __init__(self, client: Client) -> None:
        self._client = client

    def table_info(self, name: str) -> TableInfo:
        """Return the table's catalog entry; raises UnknownTableError."""
        return self._client.table_info(name)

    def create_table(self, options: SinkOptions, schema_json: str) -> None:
        """Create the table unless it exists; returns when every partition has a leader."""
        given = {"partitions": options.partitions, "replicas": options.replicas}
        self._client.create_table(
            options.table,
            key=options.key,
            schema_json=schema_json,
            if_not_exists=True,
            **{name: number for name, number in given.items() if number is not None},
        )

    def writer(self, name: str, max_in_flight: int) -> RecordWriter:
        """Open a bulk writer."""
        return self._client.table(name).bulk_writer(max_in_flight=max_in_flight)


@contextmanager
def connect(options: SinkOptions) -> Iterator[Store]:
    """Connect the blocking client to any of the bootstrap servers."""
    import raftstore

    with raftstore.connect(
        options.bootstrap_servers, timeout=options.request_timeout_ms / 1000
    ) as client:
        yield ClientStore(client)
