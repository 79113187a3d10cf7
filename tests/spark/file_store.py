"""A store of files for the sink's tests: Spark's processes write it, the test reads it back.

``bootstrap.servers`` is a directory: ``catalog/`` holds one file a table, ``records/`` one file an
acknowledged record, ``refusals/`` the text of failures still to happen, each taken once.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from raftstore.errors import QuorumTimeoutError, UnknownTableError
from raftstore.requests import TableInfo
from raftstore.rows.partitioner import partition_of
from raftstore.rows.payload import decode_rows
from raftstore.rows.schema import TableSchema
from raftstore.rows.sealing import unseal
from raftstore.spark.datasource import RaftStoreDataSource
from raftstore.spark.options import SinkOptions


class FileStore:
    """Implements ``raftstore.spark.store.Store`` on a directory."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        for name in ("catalog", "records", "refusals"):
            (directory / name).mkdir(parents=True, exist_ok=True)

    def table_info(self, name: str) -> TableInfo:
        path = self.directory / "catalog" / name
        if not path.exists():
            raise UnknownTableError(f"there is no table {name!r}")
        return msgspec.msgpack.decode(path.read_bytes(), type=TableInfo)

    def create_table(self, options: SinkOptions, schema_json: str) -> TableInfo:
        self.add_table(options.table, options.key, options.partitions, schema_json)
        return self.table_info(options.table)

    def add_table(self, name: str, key: tuple[str, ...], partitions: int, schema_json: str) -> None:
        info = TableInfo(
            name=name,
            uuid=uuid.uuid4().bytes,
            key_columns=key,
            partitions=partitions,
            replicas=3,
            durability="fsync",
            max_lag=None,
            schema_json=schema_json,
            channels=(),
        )
        (self.directory / "catalog" / name).write_bytes(msgspec.msgpack.encode(info))

    @contextmanager
    def writer(self, name: str, max_in_flight: int) -> Iterator[FileWriter]:
        yield FileWriter(self, name)

    def mark_batch(self, name: str, writer: str, batch_id: int, partitions: frozenset[int]) -> None:
        """Marks are tested where the client is the real one."""

    def refuse_next(self, text: str) -> None:
        (self.directory / "refusals" / uuid.uuid4().hex).write_text(text)

    def records(self, name: str) -> list[tuple[int, bytes, int]]:
        """(partition, payload, rows) in the order of their acknowledgement."""
        paths = sorted((self.directory / "records").glob(f"{name}-*"))
        return [msgspec.msgpack.decode(p.read_bytes(), type=tuple[int, bytes, int]) for p in paths]

    def rows(self, name: str) -> list[dict]:
        """The table's rows in key order, decoded as a client does."""
        info = self.table_info(name)
        schema = TableSchema(info.key_columns, info.schema_json)
        state: dict[bytes, bytes | None] = {}
        for partition, payload, count in self.records(name):
            flat = decode_rows(payload)
            assert len(flat) == 2 * count
            for key, sealed in zip(flat[::2], flat[1::2], strict=True):
                assert partition_of(key, info.partitions) == partition
                state[key] = None if sealed is None else unseal(key, sealed)
        kept = sorted((key, value) for key, value in state.items() if value is not None)
        return [schema.key_value_to_row(key, value) for key, value in kept]


class FileWriter:
    def __init__(self, store: FileStore, name: str) -> None:
        self._store = store
        self._name = name

    def add(self, partition: int, payload: bytes, rows: int) -> None:
        records = self._store.directory / "records"
        draft = records / f".{uuid.uuid4().hex}"
        draft.write_bytes(msgspec.msgpack.encode((partition, payload, rows)))
        draft.rename(records / f"{self._name}-{time.time_ns():020}-{uuid.uuid4().hex}")

    def flush(self) -> None:
        for refusal in sorted((self._store.directory / "refusals").iterdir()):
            text = refusal.read_text()
            refusal.unlink(missing_ok=True)
            raise QuorumTimeoutError(text)


@contextmanager
def connect_files(options: SinkOptions) -> Iterator[FileStore]:
    yield FileStore(Path(options.bootstrap_servers))


class FileDataSource(RaftStoreDataSource):
    """The format with files behind it; registered over the real one."""

    connect = staticmethod(connect_files)
