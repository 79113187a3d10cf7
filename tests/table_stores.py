"""Stores of tables for tests: filled, closed, and opened again."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import plyvel

from raftstore.state_machines.table import TableMachine
from raftstore.storage.tables.leveldb_tables import LevelDbTables
from raftstore.testing.sim_tables import SimTables
from raftstore.types import ChannelId
from tests.storage_helpers import (
    CHANNEL,
    OTHER,
    SMALL,
    STORE_UUID,
    database_of,
    rows_record,
    table_path,
)

IN_ROWS = 50_000
"""Byte of the table file of ``filled_store`` in a block that holds nothing but rows."""


def filled_store(directory: Path) -> Path:
    """Make a closed store with 200 rows, most of them in a table file."""
    LevelDbTables.create(directory, STORE_UUID, SMALL)
    tables = open_tables(directory)
    for n in range(1, 201):
        tables.apply(CHANNEL, [rows_record(n, {b"%05d" % n: bytes([n]) * 500})])
    tables.apply_queued()
    database_of(tables).compact_range(start=b"\0", stop=b"\xff")
    tables.apply(CHANNEL, [rows_record(201, {b"last": b"in the write-ahead log"})])
    tables.apply_queued()
    tables.close()
    return directory


def open_tables(directory: Path) -> LevelDbTables:
    """Open with one channel attached."""
    tables = LevelDbTables.open(directory, STORE_UUID, SMALL)
    tables.open_channel(CHANNEL, TableMachine())
    return tables


def table_files(directory: Path, suffix: str) -> list[Path]:
    """LevelDB's own files of a kind."""
    return sorted(table_path(directory).glob(f"*{suffix}"))


def both_channels(directory: Path) -> LevelDbTables:
    """Open with two channels attached."""
    tables = open_tables(directory)
    tables.open_channel(OTHER, TableMachine())
    return tables


def give_both_a_row(directory: Path) -> LevelDbTables:
    """Open the tables with a row of the second channel, too."""
    tables = both_channels(directory)
    tables.apply(OTHER, [rows_record(1, {b"other": b"row"})])
    tables.apply_queued()
    return tables


Changes = dict[bytes, bytes | None]
"""Of one atomic batch; None: the key is removed."""


def noting_batches(written: list[Changes]) -> Callable[[ChannelId], Any]:
    """Make batches that reach no database: each is noted when it is written."""

    class Batch:
        def __init__(self, _channel: ChannelId) -> None:
            self.changes: Changes = {}

        def put(self, key: bytes, value: bytes) -> None:
            self.changes[key] = value

        def delete(self, key: bytes) -> None:
            self.changes[key] = None

        def write(self) -> None:
            written.append(self.changes)

    return Batch


def count_writes(tables: LevelDbTables, fails_at: int | None = None) -> Callable[[], int]:
    """Count the atomic batches that are written from now on; returns what reads the count.

    ``fails_at``: the process dies instead of the write behind so many of them.
    """
    made, written = tables._applier._new_batch, 0

    class Batch:
        def __init__(self, channel: ChannelId) -> None:
            self._batch = made(channel)

        def __getattr__(self, name: str) -> Any:
            return getattr(self._batch, name)

        def write(self) -> None:
            nonlocal written
            if written == fails_at:
                raise plyvel.IOError(b"the process dies here")
            written += 1
            self._batch.write()

    tables._applier._new_batch = Batch  # type: ignore[assignment]
    return lambda: written


class LevelDbBase:
    """LevelDbTables, applied in the test's thread."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self.completed: list[Any] = []
        LevelDbTables.create(directory, STORE_UUID, SMALL)
        self._open()

    def _open(self) -> None:
        self.tables: Any = LevelDbTables.open(self._directory, STORE_UUID, SMALL)
        self.tables.report_to(
            post=lambda call: call(),
            on_applied=lambda *applied: self.completed.append(applied),
            on_failed=lambda error: None,
        )

    def drain(self) -> None:
        """Apply all that is queued."""
        self.tables.apply_queued()

    def restart(self) -> None:
        """Close the store and open it again."""
        self.tables.close()
        self._open()

    def close(self) -> None:
        """The end of the test."""
        self.tables.close()


class SimBase:
    """SimTables, applied step by step."""

    def __init__(self) -> None:
        self.tables: Any = SimTables()
        self.completed: list[Any] = []

    def drain(self) -> None:
        """Apply all that is queued."""
        while self.tables.has_queued():
            self.completed.append(self.tables.apply_next())

    def restart(self) -> None:
        """Without a loss: what a clean stop leaves."""
        self.tables.stop()

    def close(self) -> None:
        """There is nothing to close."""
