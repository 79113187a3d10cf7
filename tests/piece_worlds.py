"""Stores to which records come in pieces, and which lose some of their slices in a crash."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import plyvel

from raftstore.errors import StorageError
from raftstore.ports.machine import ApplyResult
from raftstore.ports.tables import Piece
from raftstore.protocol.payload import encode_rows
from raftstore.protocol.records import Record
from raftstore.rows.sealing import seal
from raftstore.state_machines.table import TableMachine
from raftstore.storage.tables.leveldb_tables import LevelDbTables
from raftstore.testing.sim_tables import SimTables
from raftstore.types import ChannelId, RecordKind, Seq
from tests.storage_helpers import CHANNEL, OTHER, SMALL, STORE_UUID, record

SLICE_BYTES = 32
"""So few that every piece of the tests is several slices."""


class StagingMachine(TableMachine):
    """A table whose STAGED records count themselves in the state and answer with the number."""

    def first_needed(self, _state: Any) -> Seq | None:
        """Its chunks are no staged rows of anybody."""
        return None

    def apply_state(self, staged: Record, _read: Any, state: Any) -> ApplyResult:
        number = len(state.scan(b"\x02\x01", b"\x02\x02", 99))
        assert (state.get(b"\x02\x01%d" % number), state.get(b"\x03\x00")) == (None, b"%d" % number)
        writes = ((b"\x02\x01%d" % number, staged.payload), (b"\x03\x00", b"%d" % (number + 1)))
        return ApplyResult((), state_writes=writes, answer=b"%d" % number)


class LevelDbWorld:
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
            on_applied=lambda *told: self.completed.append(told),
            on_failed=lambda error: None,
        )
        open_channels(self.tables)

    def drain(self) -> None:
        self.tables.apply_queued()

    def crash_in(self, pieces: Sequence[Piece], kept: int) -> bool:
        """Restart after this many slices of the record; False: it has no more than that."""
        made, written = self.tables._applier._new_batch, 0

        class Batch:
            def __init__(self, channel: ChannelId) -> None:
                self._batch = made(channel)

            def __getattr__(self, name: str) -> Any:
                return getattr(self._batch, name)

            def write(self) -> None:
                nonlocal written
                if written == kept:
                    raise plyvel.IOError(b"the process dies here")
                written += 1
                self._batch.write()

        self.tables._applier._new_batch = Batch
        is_cut = False
        try:
            apply_pieces(self, pieces)
        except StorageError:
            is_cut = True
        self.restart()
        return is_cut

    def restart(self) -> None:
        self.tables.close()
        self._open()

    def open_snapshots(self) -> int:
        views = self.tables._views
        return len(self.tables._snapshots._open) + len(views.shown) + len(views._kept)

    def close(self) -> None:
        self.tables.close()


class SimWorld:
    """SimTables."""

    def __init__(self) -> None:
        self.tables: Any = SimTables()
        self.completed: list[Any] = []
        open_channels(self.tables)

    def drain(self) -> None:
        while self.tables.has_queued():
            self.completed.append(self.tables.apply_next())

    def crash_in(self, pieces: Sequence[Piece], kept: int) -> bool:
        """Restart after this many slices of the record; False: it has no more than that."""
        before = len(self.tables._undo)
        apply_pieces(self, pieces)
        slices = len(self.tables._undo) - before
        self.tables.stop(lost=max(0, slices - kept))
        open_channels(self.tables)
        return slices > kept

    def restart(self) -> None:
        self.tables.stop()
        open_channels(self.tables)

    def open_snapshots(self) -> int:
        tables = self.tables._tables.values()
        held = sum((table.view is not None) + len(table.kept) for table in tables)
        return int(self.tables.open_snapshots + held)

    def close(self) -> None:
        pass


def open_channels(tables: Any) -> None:
    """Both, with machines that know of micro-batches."""
    tables.open_channel(CHANNEL, StagingMachine())
    tables.open_channel(OTHER, StagingMachine())


def batch_record(seq: int, rows: int = 1) -> Record:
    """A record that is applied in pieces."""
    return record(seq, rows=rows, kind=RecordKind.BATCH_APPLY)


def chunk(rows: Iterable[tuple[bytes, bytes | None]], mode: int = 0) -> tuple[int, bytes]:
    """Staged rows."""
    sealed = [(key, None if value is None else seal(key, value)) for key, value in rows]
    return mode, encode_rows(sealed)


def pieces_of(
    record: Record,
    chunks: Sequence[Sequence[tuple[int, bytes]]],
    *,
    state_writes: Any = (),
    version: int = -1,
) -> list[Piece]:
    """One piece for each of the lists of chunks."""
    last = len(chunks) - 1
    return [
        Piece(
            record,
            first=number == 0,
            last=number == last,
            chunks=some,
            first_chunk=sum(map(len, chunks[:number])),
            state_writes=state_writes if number == last else (),
            version=version,
        )
        for number, some in enumerate(chunks)
    ]


def apply_pieces(world: Any, pieces: Sequence[Piece]) -> None:
    """One after the other; one that truncates is followed by more until no row is left."""
    tables = world.tables
    for piece in pieces:
        tables.apply_piece(CHANNEL, piece)
        world.drain()
        if piece.truncate_from is not None:
            while (start := tables.truncated(CHANNEL)) is not None:
                tables.apply_piece(CHANNEL, piece._replace(first=False, truncate_from=start))
                world.drain()


def write(world: Any, of_record: Record, channel: ChannelId = CHANNEL) -> None:
    """One ordinary record, applied."""
    world.tables.apply(channel, [of_record])
    world.drain()


def everything(world: Any, channel: ChannelId = CHANNEL) -> Any:
    """Rows with their seqs, and the state beside them."""
    page = world.tables.scan(channel, b"", b"", 9999)
    rows = {row.key: (row.value, row.seq) for row in page.rows}
    return rows, dict(world.tables.state_scan(channel, b"\x02", b"\x04", 9999))
