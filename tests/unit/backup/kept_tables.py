"""Tables in memory behind the calls of the blocking client that backups make."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any, Self

import msgspec

from raftstore.client.batches.batch_writes import BatchTicket, TableWriters
from raftstore.errors import BatchRegressionError
from raftstore.protocol.admin import TableInfo
from raftstore.protocol.batches import WriterView
from raftstore.protocol.payload import decode_rows
from raftstore.protocol.table_settings import TableSettings
from raftstore.rows.partitioner import partition_of
from raftstore.rows.schema import TableSchema
from raftstore.rows.sealing import seal
from raftstore.types import Seq, Term


def now_ms() -> int:
    """By the clock that a restore reads."""
    return time.time_ns() // 1_000_000


class KeptSnapshot:
    """One state of a table."""

    def __init__(self, table: KeptTable) -> None:
        self._rows = dict(table.rows)
        self._partitions = table.info.partitions
        self._read = table.partitions_read
        self.vector = tuple(table.vector)
        self.n = table.next_commit - 1
        self.position = "position"
        terms = (Term(3),) * self._partitions
        self.token = SimpleNamespace(
            table_uuid=table.info.uuid, terms=terms, seqs=tuple(map(Seq, table.seqs))
        )
        self.is_closed = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """The nodes keep it no longer."""
        self.is_closed = True

    def has_expiries(self) -> bool:
        """Whether any row has one."""
        return any(expires_ms for _, expires_ms in self._rows.values())

    def pages(self, number: int) -> Any:
        """The rows of a partition, two at a time."""
        self._read.append(number)
        keys = sorted(key for key in self._rows if partition_of(key, self._partitions) == number)
        for at in range(0, len(keys), 2):
            yield [(key, self._rows[key][0], Seq(1)) for key in keys[at : at + 2]]

    def expiries(self, number: int, start: bytes, stop: bytes) -> dict[bytes, int]:
        """Of the rows of a range that have one."""
        assert start < stop
        found = {key: at for key, (_, at) in self._rows.items() if start <= key < stop and at}
        return {
            key: at for key, at in found.items() if partition_of(key, self._partitions) == number
        }


class KeptTable:
    """One table and the writers of its batches."""

    def __init__(self, info: TableInfo) -> None:
        self.info = info
        self.rows: dict[bytes, tuple[bytes, int]] = {}
        self.seqs = [1] * info.partitions
        self.vector = [0] * info.partitions
        self.next_commit = 1
        self.known: dict[str, WriterView] = {}
        self.committed: list[tuple[str, int, int]] = []
        """Writer, batch and rows of each commit."""
        self.partitions_read: list[int] = []
        self.snapshots: list[KeptSnapshot] = []

    def put(self, number: int, text: str = "", expires_ms: int = 0) -> bytes:
        """A row of this id; its key."""
        schema = TableSchema(self.info.key_columns, self.info.schema_json)
        key, value = schema.row_to_key_value({"id": number, "text": text})
        self._write(key, seal(key, value), expires_ms)
        return key

    def _write(self, key: bytes, sealed: Any, expires_ms: int) -> None:
        self.rows[key] = sealed, expires_ms
        self.seqs[partition_of(key, self.info.partitions)] += 1

    # --- the client's calls -----------------------------------------------------------------------

    def writers(self, writer: str = "") -> TableWriters:
        """All of them, or one."""
        views = tuple(view for name, view in self.known.items() if writer in {"", name})
        last = self.next_commit - 1
        return TableWriters(views, self.next_commit, 0, tuple(self.vector), last)

    def snapshot(self, *, idle: float) -> KeptSnapshot:
        """The table as it is."""
        assert idle > 0
        self.snapshots.append(KeptSnapshot(self))
        return self.snapshots[-1]

    def begin_batch(self, writer: str, batch_id: int, *, uuid: bytes, lineage: str) -> BatchTicket:
        """An attempt."""
        assert len(uuid) == 16
        view = self.known.get(writer)
        last = -1 if view is None else view.last_batch
        if batch_id < last:
            raise BatchRegressionError(f"{batch_id} is behind {last}")
        self._lineage = lineage
        return BatchTicket(writer, batch_id, "already" if batch_id == last else "opened", 1)

    @contextmanager
    def stager(self, ticket: BatchTicket, task: int, attempt: int, *, ttl: float) -> Any:
        """Gathers what is staged."""
        assert (ticket.verdict, task, attempt, ttl) == ("opened", 0, 0, 0)
        staged: list[tuple[bytes, Any, int]] = []

        def add(partition: int, payload: bytes, rows: int, *, ttl: float) -> None:
            flat = decode_rows(payload)
            assert rows == len(flat) // 2
            expires_ms = int(now_ms() + ttl * 1_000) if ttl else 0
            for key, sealed in zip(flat[::2], flat[1::2], strict=True):
                assert key is not None
                assert partition_of(key, self.info.partitions) == partition
                staged.append((key, sealed, expires_ms))

        yield SimpleNamespace(add=add, flush=lambda: staged)

    def commit_batch(
        self, ticket: BatchTicket, parts: Sequence[list[tuple[bytes, Any, int]]]
    ) -> None:
        """All of it becomes rows."""
        rows = [row for part in parts for row in part]
        self.committed.append((ticket.writer, ticket.batch_id, len(rows)))
        for key, sealed, expires_ms in rows:
            self._write(key, sealed, expires_ms)
            self.vector[partition_of(key, self.info.partitions)] = self.next_commit
        self.note_writer(ticket.writer, ticket.batch_id, self._lineage)

    def note_writer(self, writer: str, batch: int, lineage: str, *, one_shot: bool = False) -> None:
        """A batch of it was decided."""
        self.known[writer] = WriterView(
            writer, batch, 1, self.next_commit, -1, -1, lineage, one_shot=one_shot, at_ms=1
        )
        self.next_commit += 1


class KeptTables:
    """A cluster."""

    def __init__(self) -> None:
        self.kept: dict[str, KeptTable] = {}
        self.sets: list[str] = []
        self.before_create: Callable[[], None] = lambda: None
        self.uuids = 0

    def add(self, name: str, **fields: Any) -> KeptTable:
        """A table of two partitions."""
        self.uuids += 1
        given = {
            "key_columns": ("id",), "partitions": 2, "replicas": 3, "durability": "fsync",
            "max_lag": None, "schema_json": "", "channels": (),
        }  # fmt: skip
        info = TableInfo(name, bytes([self.uuids] * 16), **(given | fields))
        self.kept[name] = KeptTable(info)
        return self.kept[name]

    # --- the client's calls -----------------------------------------------------------------------

    def tables(self) -> list[TableInfo]:
        """All of them."""
        return [table.info for table in self.kept.values()]

    def channelsets(self) -> list[Any]:
        """Which are no tables."""
        return [SimpleNamespace(name=name) for name in self.sets]

    def table_info(self, name: str) -> TableInfo:
        """One of them."""
        return self.kept[name].info

    def table(self, name: str) -> KeptTable:
        """One of them."""
        return self.kept[name]

    def cluster_status(self) -> Any:
        """The name of the cluster."""
        return SimpleNamespace(cluster_id="cluster")

    def create_table(self, name: str, *, if_not_exists: bool, **given: Any) -> None:
        """Create it unless it is there; settings in seconds."""
        self.before_create()
        assert if_not_exists
        if name in self.kept:
            return
        settings = TableSettings(
            given["retention_bytes"], given["retention_records"],
            _ms(given["retention_age"]), _ms(given["ttl"]), given["restoring"],
        )  # fmt: skip
        self.add(
            name, key_columns=given["key"], partitions=given["partitions"], settings=settings,
            replicas=given["replicas"], schema_json=given["schema"] or "",
            durability=given["durability"], max_lag=given["max_lag"],
        )  # fmt: skip

    def alter_table(self, name: str, *, timeout: float, **given: Any) -> None:
        """Change what is named."""
        assert timeout > 0
        info = self.kept[name].info
        if "restoring" in given:
            settings = msgspec.structs.replace(info.settings, restoring=given["restoring"])
            self.kept[name].info = msgspec.structs.replace(info, settings=settings)
            return
        staleness_ms = _ms(given.pop("max_staleness"))
        self.kept[name].info = msgspec.structs.replace(info, max_staleness_ms=staleness_ms, **given)


def _ms(seconds: float | None) -> int | None:
    return None if seconds is None else round(seconds * 1_000)
