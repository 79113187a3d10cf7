"""A store of files for the sink's tests: Spark's processes write it, the test reads it back.

``bootstrap.servers`` is a directory: ``catalog/`` holds one file a table, ``records/`` one file an
acknowledged record, ``batches/`` one file a table with all that its coordinator and its channels
know of atomic batches (renamed into place: the atomic point), ``refusals/`` the text of failures
still to happen, each taken once, ``too_old`` why batches cannot be read.
"""

from __future__ import annotations

import fcntl
import hashlib
import pickle
import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import msgspec

from raftstore.client.batches.batch_writes import BatchResult, BatchTicket, manifest_of
from raftstore.client.batches.stager import StagedParts, add_parts
from raftstore.client.requests.outcomes import error_of
from raftstore.client.scans.snapshot_opening import SnapshotToken
from raftstore.errors import (
    PageExpiredError,
    QuorumTimeoutError,
    StoreTooOldError,
    UnknownTableError,
)
from raftstore.protocol.admin import TableInfo
from raftstore.protocol.batches import BeginBatch, ChannelPart, CommitBatch, WriterView
from raftstore.protocol.payload import decode_rows
from raftstore.protocol.staged import UPSERT, ChunkHeader, encode_staged
from raftstore.record_machine import Row
from raftstore.rows.partitioner import partition_of
from raftstore.rows.schema import TableSchema
from raftstore.rows.schema_growth import grown_schema
from raftstore.rows.sealing import seal, unseal
from raftstore.spark.datasource import RaftStoreDataSource
from raftstore.spark.identity import BatchIdentity
from raftstore.spark.options import SinkOptions, SourceOptions
from raftstore.state_machines.batches.staging import rows_of
from raftstore.state_machines.batches.txn_records import Adopt, Close, Verdict
from raftstore.types import Seq, channel_id
from tests.batch_truth import BatchTruth


class FileStore:
    """Implements ``raftstore.spark.store.Store`` on a directory."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        for name in ("catalog", "records", "refusals", "batches", "snapshots", "reads"):
            (directory / name).mkdir(parents=True, exist_ok=True)

    def table_info(self, name: str) -> TableInfo:
        path = self.directory / "catalog" / name
        if not path.exists():
            raise UnknownTableError(f"there is no table {name!r}")
        return msgspec.msgpack.decode(path.read_bytes(), type=TableInfo)

    def definition(self, name: str) -> TableInfo:
        return self.table_info(name)

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

    def some_row(self, name: str) -> dict | None:
        return next(iter(self.rows(name)), None)

    def add_columns(self, name: str, schema_json: str) -> TableInfo:
        info = self.table_info(name)
        grown = grown_schema(info.key_columns, info.schema_json, schema_json)
        info = msgspec.structs.replace(info, schema_json=grown)
        (self.directory / "catalog" / name).write_bytes(msgspec.msgpack.encode(info))
        return info

    def writer_of(self, name: str, writer: str) -> WriterView | None:
        with self.batches(name) as truth:
            return next(iter(truth.views(writer)), None)

    def adopt(self, name: str, writer: str, lineage: str) -> None:
        with self.batches(name) as truth:
            _checked(truth.step(Adopt(writer, lineage)))

    @contextmanager
    def writer(self, name: str, max_in_flight: int) -> Iterator[FileWriter]:
        yield FileWriter(self, name)

    def check_batches(self, name: str) -> None:
        reason = self.directory / "too_old"
        if reason.exists():
            raise StoreTooOldError(reason.read_text())

    def begin(self, name: str, identity: BatchIdentity, options: SinkOptions) -> BatchTicket:
        info = self.table_info(name)
        request = BeginBatch(
            request_id=1,
            channel=channel_id(info.uuid, 0),
            writer=identity.writer,
            batch_id=identity.batch_id,
            uuid=identity.uuid,
            lineage=identity.lineage,
            one_shot=identity.one_shot,
            ttl_ms=options.staging_ttl_ms,
            timeout_ms=options.commit_timeout_ms,
        )
        with self.batches(name) as truth:
            told = _checked(truth.begin(request))
        fields = (told.name, told.attempt, told.n, told.vector, told.rows, info.uuid)
        return BatchTicket(identity.writer, identity.batch_id, *fields)

    @contextmanager
    def stager(
        self, name: str, ticket: BatchTicket, partition_id: int, task_attempt_id: int, _window: int
    ) -> Iterator[FileStager]:
        yield FileStager(self, name, ticket, partition_id, task_attempt_id)

    def commit(
        self,
        name: str,
        ticket: BatchTicket,
        staged: Sequence[StagedParts],
        mode: str,
        options: SinkOptions,
    ) -> BatchResult:
        info = self.table_info(name)
        self.fail_if_wanted()
        request = CommitBatch(
            request_id=1,
            channel=channel_id(info.uuid, 0),
            writer=ticket.writer,
            batch_id=ticket.batch_id,
            attempt=ticket.attempt,
            manifest=manifest_of(staged, mode, info.partitions),
            digest=b"digest",
            timeout_ms=options.commit_timeout_ms,
        )
        with self.batches(name) as truth:
            told = _checked(truth.commit(request))
        return BatchResult(told.n, told.vector, told.rows, already=False, table_uuid=info.uuid)

    def abort(self, name: str, ticket: BatchTicket) -> None:
        with self.batches(name) as truth:
            truth.step(Close(ticket.writer, ticket.attempt))

    @contextmanager
    def batches(self, name: str) -> Iterator[TimedTruth]:
        """The batches of a table; changes that the body makes are kept."""
        path = self.directory / "batches" / name
        with (self.directory / "lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            truth = TimedTruth(self.table_info(name).partitions)
            if path.exists():
                truth = pickle.loads(path.read_bytes())
            yield truth
            for decision in truth.decisions:
                truth.times.setdefault(decision.n, time.time_ns())
            draft = path.with_name(f".{uuid.uuid4().hex}")
            draft.write_bytes(pickle.dumps(truth))
            draft.rename(path)

    def open_snapshot(self, name: str, options: SourceOptions) -> SnapshotToken:
        info = self.table_info(name)
        number = len(list((self.directory / "snapshots").iterdir())) + 1
        state = {key: seal(key, value) for key, value in self._state(name)}
        (self.directory / "snapshots" / str(number)).write_bytes(pickle.dumps(state))
        of_all = (number,) * info.partitions
        places = (("n1",) * info.partitions, of_all, of_all, of_all)
        return SnapshotToken(info.uuid, number, of_all, *places)

    def pages(
        self, name: str, token: SnapshotToken, partition: int, start: bytes, stop: bytes
    ) -> Iterator[list]:
        state = self._snapshot(token)
        keys = [key for key in state if start <= key and (not stop or key < stop)]
        yield from self.rows_of(name, token, partition, keys)

    def rows_of(
        self, name: str, token: SnapshotToken, partition: int, keys: Sequence[bytes]
    ) -> Iterator[list]:
        info = self.table_info(name)
        state = self._snapshot(token)
        items = [
            (key, state[key], 1)
            for key in keys
            if key in state and partition_of(key, info.partitions) == partition
        ]
        (self.directory / "reads" / uuid.uuid4().hex).write_text(f"{partition} {len(items)}")
        for at in range(0, len(items), 2):
            yield items[at : at + 2]
            self.fail_if_wanted()

    def cuts(
        self, name: str, token: SnapshotToken, start: bytes, stop: bytes, parts: int
    ) -> list[list[bytes]]:
        info = self.table_info(name)
        keys = [key for key in self._snapshot(token) if start < key and (not stop or key < stop)]
        of_each: list[list[bytes]] = [[] for _ in range(info.partitions)]
        for key in sorted(keys):
            of_each[partition_of(key, info.partitions)].append(key)
        return [found[:: max(1, -(-len(found) // parts))][1:] for found in of_each]

    def _snapshot(self, token: SnapshotToken) -> dict[bytes, bytes]:
        path = self.directory / "snapshots" / str(token.n)
        if not path.exists():
            raise PageExpiredError("the state is gone")
        return pickle.loads(path.read_bytes())

    def take_reads(self) -> list[tuple[int, int]]:
        """(partition, rows) of each read since this was asked last."""
        paths = list((self.directory / "reads").iterdir())
        reads = [tuple(map(int, path.read_text().split())) for path in paths]
        for path in paths:
            path.unlink()
        return sorted(reads)

    def fail_if_wanted(self) -> None:
        """Take the next failure that shall happen."""
        for refusal in sorted((self.directory / "refusals").iterdir()):
            text = refusal.read_text()
            refusal.unlink(missing_ok=True)
            raise QuorumTimeoutError(text)

    def mark_batch(self, name: str, writer: str, batch_id: int, partitions: frozenset[int]) -> None:
        """Marks are tested where the client is the real one."""

    def refuse_next(self, text: str) -> None:
        (self.directory / "refusals" / uuid.uuid4().hex).write_text(text)

    def records(self, name: str) -> list[tuple[int, bytes, int]]:
        """(partition, payload, rows) of what is visible, in the order in which it became so."""
        return [record[:3] for _, _, records in self._changes(name) for record in records]

    def rows(self, name: str) -> list[dict]:
        """The table's rows in key order, decoded as a client does."""
        info = self.table_info(name)
        schema = TableSchema(info.key_columns, info.schema_json)
        return [schema.key_value_to_row(key, value) for key, value in self._state(name)]

    def _state(self, name: str) -> list[tuple[bytes, bytes]]:
        info = self.table_info(name)
        state: dict[bytes, Row] = {}
        for number, (_, is_overwrite, records) in enumerate(self._changes(name), start=1):
            if is_overwrite:
                state.clear()
            for partition, payload, count, mode in records:
                flat = decode_rows(payload)
                assert len(flat) == 2 * count
                assert {partition_of(key, info.partitions) for key in flat[::2]} == {partition}
                for key, sealed in rows_of(mode, flat, state.get, number):
                    if sealed is None:
                        state.pop(key, None)
                    else:
                        state[key] = Row(key, unseal(key, sealed), Seq(number))
        return sorted((key, row.value) for key, row in state.items())

    def _changes(self, name: str) -> list[tuple[int, bool, list[tuple[int, bytes, int, int]]]]:
        """(time, is it a replacement, records), in the order of time."""
        changes = []
        for path in (self.directory / "records").glob(f"{name}-*"):
            record = msgspec.msgpack.decode(path.read_bytes(), type=tuple[int, bytes, int])
            changes.append((int(path.name.split("-")[-2]), False, [(*record, UPSERT)]))
        if (self.directory / "catalog" / name).exists():
            with self.batches(name) as truth:
                for made in truth.decisions:
                    chunks = [
                        (each.partition, each.payload, each.rows, each.header.mode)
                        for each in made.chunks
                    ]
                    changes.append((truth.times[made.n], made.is_overwrite, chunks))
        return sorted(changes, key=lambda change: change[0])


class TimedTruth(BatchTruth):
    """With the time of each decision."""

    def __init__(self, partitions: int) -> None:
        super().__init__(partitions)
        self.times: dict[int, int] = {}


class FileStager:
    """Keeps the chunks of a task until they are flushed, then stages all of them."""

    def __init__(
        self,
        store: FileStore,
        name: str,
        ticket: BatchTicket,
        partition_id: int,
        task_attempt_id: int,
    ) -> None:
        self._store = store
        self._name = name
        self._header = ChunkHeader(ticket.writer, ticket.attempt, partition_id, task_attempt_id, 0)
        self._chunks: list[tuple[int, bytes, int]] = []

    def add(self, partition: int, payload: bytes, rows: int, mode: int) -> None:
        header = self._header._replace(number=len(self._chunks), mode=mode)
        self._chunks.append((partition, encode_staged(header, payload), rows))

    def flush(self) -> StagedParts:
        with self._store.batches(self._name) as truth:
            for chunk in self._chunks:
                truth.stage(*chunk)
        self._store.fail_if_wanted()
        parts: dict[int, ChannelPart] = {}
        for partition, payload, rows in self._chunks:
            digest = hashlib.blake2b(payload, digest_size=16).digest()
            check = int.from_bytes(digest[:8], "big")
            part = ChannelPart(partition, 1, rows, len(payload), check)
            known = parts.get(partition)
            parts[partition] = part if known is None else add_parts(known, part)
        task = (self._header.partition_id, self._header.task_attempt_id)
        return StagedParts(*task, tuple(parts[partition] for partition in sorted(parts)))


def _checked(verdict: Verdict) -> Verdict:
    if verdict.code:
        raise error_of(verdict.code, verdict.message)
    return verdict


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
        self._store.fail_if_wanted()


@contextmanager
def connect_files(options: SinkOptions) -> Iterator[FileStore]:
    yield FileStore(Path(options.bootstrap_servers))


class FileDataSource(RaftStoreDataSource):
    """The format with files behind it; registered over the real one."""

    connect = staticmethod(connect_files)
