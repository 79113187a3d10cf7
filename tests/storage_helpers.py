"""Shared parts of the tests of log, mark and tables: records, a file system that fails, small
stores.
"""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

from raftstore.config import KIB, MIB, StorageSettings
from raftstore.protocol.payload import encode_conditional, encode_rows
from raftstore.protocol.records import Record
from raftstore.rows.sealing import seal
from raftstore.storage.files import FileOps
from raftstore.storage.log.segment_log import SegmentLog
from raftstore.storage.tables.leveldb_tables import LevelDbTables
from raftstore.types import (
    ChannelId,
    Guid,
    NodeId,
    RecordKind,
    Seq,
    Term,
    channel_id,
    make_guid,
)

STORE_UUID = bytes(range(16))
CHANNEL = channel_id(b"orders-table-id!", 0)
OTHER = channel_id(b"orders-table-id!", 1)
ALICE = NodeId("alice@00")
BOB = NodeId("bob@01")

SMALL = StorageSettings(
    segment_bytes=1 * KIB,
    log_cache_bytes=1 * KIB,
    group_commit_bytes_max=64 * KIB,
    write_buffer_bytes=1 * MIB,
    block_cache_bytes=1 * MIB,
    reserve_bytes=0,
)


def record(
    seq: int,
    *,
    term: int = 1,
    rows: int = 1,
    payload: bytes = b"payload",
    kind: RecordKind = RecordKind.ROWS,
) -> Record:
    """A record whose payload no machine needs to understand."""
    return Record(
        term=Term(term),
        base_seq=Seq(seq),
        rows=rows,
        guid=Guid(make_guid(b"session!", seq)),
        timestamp_ms=1_700_000_000_000 + seq,
        digest=bytes([seq % 256]) * 16,
        kind=kind,
        payload=payload,
    )


def rows_record(seq: int, rows: dict[bytes, bytes | None], *, term: int = 1) -> Record:
    """A record that upserts (or, with None, deletes) rows."""
    sealed = [(key, None if value is None else seal(key, value)) for key, value in rows.items()]
    return record(seq, term=term, rows=len(rows), payload=encode_rows(sealed))


def conditional_record(seq: int, key: bytes, value: bytes, expected: int) -> Record:
    """A record that upserts a row if its seq is ``expected``."""
    payload = encode_conditional(key, seal(key, value), Seq(expected))
    return record(seq, payload=payload, kind=RecordKind.CONDITIONAL)


def create_log(directory: Path, ops: FileOps | None = None, **changed: Any) -> SegmentLog:
    """A new log in an empty directory."""
    SegmentLog.create(FileOps(), directory, STORE_UUID)
    return open_log(directory, ops, **changed)


def open_log(directory: Path, ops: FileOps | None = None, **changed: Any) -> SegmentLog:
    """Open an existing log; ``changed`` are settings unlike SMALL."""
    facts = {name: getattr(SMALL, name) for name in SMALL.__slots__} | changed
    return SegmentLog(ops or FileOps(), directory, STORE_UUID, StorageSettings(**facts))


def all_records(log: Any, channel: ChannelId = CHANNEL) -> list[Record]:
    """Everything the log holds of a channel."""
    return log.read(channel, Seq(1), to_seq=Seq(2**62), bytes_max=1 << 40)


def flip_bit(path: Path, offset: int, bit: int = 0x10) -> None:
    """Damage one bit."""
    data = bytearray(path.read_bytes())
    data[offset] ^= bit
    path.write_bytes(data)


class FaultyFiles(FileOps):
    """Real files that note every call and fail the chosen one.

    ``calls`` holds (method, file name). ``fail(method, name, code)`` makes the next such call
    raise; ``write_at_most`` lets writes be short.
    """

    def __init__(self) -> None:
        self.calls: list[tuple[str, str]] = []
        self.free: int | None = None
        self.write_at_most: int | None = None
        self._names: dict[int, str] = {}
        self._fault: tuple[str, str, int] | None = None

    def fail(self, method: str, name: str, code: int = errno.EIO) -> None:
        self._fault = (method, name, code)

    def _note(self, method: str, name: str) -> None:
        self.calls.append((method, name))
        if self._fault is not None and self._fault[:2] == (method, name):
            code = self._fault[2]
            self._fault = None
            raise OSError(code, os.strerror(code))

    def open(self, path: Path, flags: int) -> int:
        self._note("open", path.name)
        descriptor = super().open(path, flags)
        self._names[descriptor] = path.name
        return descriptor

    def write(self, descriptor: int, data: bytes | memoryview) -> int:
        self._note("write", self._names[descriptor])
        return super().write(descriptor, data[: self.write_at_most])

    def pwrite(self, descriptor: int, data: bytes | memoryview, offset: int) -> int:
        self._note("write", self._names[descriptor])
        return super().pwrite(descriptor, data[: self.write_at_most], offset)

    def pread(self, descriptor: int, size: int, offset: int) -> bytes:
        self._note("read", self._names[descriptor])
        return super().pread(descriptor, size, offset)

    def datasync(self, descriptor: int) -> None:
        self._note("sync", self._names[descriptor])
        super().datasync(descriptor)

    def rename(self, source: Path, target: Path) -> None:
        self._note("rename", target.name)
        super().rename(source, target)

    def sync_directory(self, directory: Path) -> None:
        self._note("sync", directory.name + "/")
        super().sync_directory(directory)

    def free_bytes(self, directory: Path) -> int:
        return super().free_bytes(directory) if self.free is None else self.free


def database_of(tables: LevelDbTables, channel: ChannelId = CHANNEL) -> Any:
    """The LevelDB of a channel, behind the back of the tables."""
    return tables._databases[channel].source


def table_path(directory: Path, channel: ChannelId = CHANNEL) -> Path:
    """Where the LevelDB of a channel is, in the data directory of a store."""
    return directory / "tables" / channel.hex()
