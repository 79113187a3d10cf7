"""Tables whose files are kept, and copies of them, step by step."""

from __future__ import annotations

from itertools import count
from pathlib import Path
from queue import SimpleQueue
from typing import Any

from raftstore.ports.table_files import TableFiles
from raftstore.ports.tables import Barrier
from raftstore.state_machines.table import TableMachine
from raftstore.storage.tables.files_copy import LevelDbFilesCopy
from raftstore.storage.tables.leveldb_tables import LevelDbTables
from raftstore.storage.tables.table_files import LinkedFiles
from raftstore.types import ChannelId, History, Seq, Term
from tests.storage_helpers import CHANNEL, SMALL, STORE_UUID, rows_record

ROWS = {b"%03d" % n: bytes([n]) * 200 for n in range(100)}
OFFERED = History(Term(1), Seq(100))
PART_BYTES = 4_000


def reopened(directory: Path) -> LevelDbTables:
    """Tables with one channel attached."""
    tables = LevelDbTables.open(directory, STORE_UUID, SMALL)
    tables.open_channel(CHANNEL, TableMachine())
    return tables


def tables_of(directory: Path, rows: dict[bytes, bytes]) -> LevelDbTables:
    """Tables whose channel has these rows, one record each, from seq 1 on."""
    directory.mkdir()
    LevelDbTables.create(directory, STORE_UUID, SMALL)
    tables = reopened(directory)
    applied(tables, rows)
    return tables


def applied(tables: LevelDbTables, rows: dict[bytes, bytes | None] | dict[bytes, bytes]) -> None:
    """One more record for each of the rows."""
    seqs = count(tables.applied_seq(CHANNEL) + 1)
    for key, value in rows.items():
        tables.apply(CHANNEL, [rows_record(next(seqs), {key: value})])
    tables.apply_queued()


def asked_for_files(
    tables: LevelDbTables, channel: ChannelId = CHANNEL
) -> tuple[LinkedFiles | None, Barrier]:
    """The outcome of ``start_files``."""
    calls: SimpleQueue[Any] = SimpleQueue()
    told: list[tuple[TableFiles | None, Barrier]] = []
    tables._post = calls.put
    tables._on_read = lambda done: done(0)
    tables.start_files(channel, lambda files, barrier, _now_ms: told.append((files, barrier)))
    calls.get(timeout=20)()
    [(files, barrier)] = told
    assert files is None or isinstance(files, LinkedFiles)
    return files, barrier


def files_of(tables: LevelDbTables) -> LinkedFiles:
    """The same where they can be had."""
    files, _ = asked_for_files(tables)
    assert files is not None
    return files


def begun(tables: LevelDbTables) -> LevelDbFilesCopy:
    """A copy in files without any."""
    copy = tables.begin_copy(CHANNEL, OFFERED, in_files=True)
    assert isinstance(copy, LevelDbFilesCopy)
    copy.begin(OFFERED)
    return copy


def take_file(copy: LevelDbFilesCopy, files: TableFiles, number: int, behind: int = 0) -> None:
    """One of the files, part by part, behind so many bytes."""
    name, size = files.files[number]
    for at in range(behind, size, PART_BYTES):
        content = files.read(number, at, PART_BYTES)
        copy.write_part(name, at, content, is_last=at + len(content) == size)


def take_all(copy: LevelDbFilesCopy, files: TableFiles) -> None:
    """All of them, to the copy's end, and what came out is read."""
    for number in range(len(files.files)):
        take_file(copy, files, number)
    finish(copy)


def finish(copy: LevelDbFilesCopy) -> None:
    """All files are there: read what came out."""
    copy.finish()
    while not copy.verify(5_000):
        pass


def switched(tables: LevelDbTables, copy: LevelDbFilesCopy) -> None:
    """The copy is the channel's table."""
    copy.complete()
    tables.install(CHANNEL, copy)
    tables.open_channel(CHANNEL, TableMachine())
