"""Stores to which records come in pieces, and which lose some of their slices in a crash."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from raftstore.errors import StorageError
from raftstore.ports.tables import Piece
from raftstore.protocol.payload import encode_rows
from raftstore.protocol.records import Record
from raftstore.record_machine import ApplyResult, RecordView
from raftstore.rows.sealing import seal
from raftstore.state_machines.batches.machines import StagingMachine as StagingPart
from raftstore.state_machines.table import TableMachine
from raftstore.types import ChannelId, RecordKind, Seq
from tests.storage_helpers import CHANNEL, OTHER, record
from tests.table_stores import LevelDbBase, SimBase, count_writes

SLICE_BYTES = 32
"""So few that every piece of the tests is several slices."""


class CountingStaging(StagingPart):
    """STAGED records count themselves in the state and answer with the number."""

    def first_needed(self, _state: Any) -> Seq | None:
        """Its chunks are no staged rows of anybody."""
        return None

    def apply(self, staged: Record, view: RecordView) -> ApplyResult:
        state = view.state
        number = len(state.scan(b"\x02\x01", b"\x02\x02", 99))
        assert (state.get(b"\x02\x01%d" % number), state.get(b"\x03\x00")) == (None, b"%d" % number)
        writes = ((b"\x02\x01%d" % number, staged.payload), (b"\x03\x00", b"%d" % (number + 1)))
        return ApplyResult((), state_writes=writes, answer=b"%d" % number)


class StagingMachine(TableMachine):
    """A table with these staged rows."""

    PARTS = (
        CountingStaging(),
        *(part for part in TableMachine.PARTS if not isinstance(part, StagingPart)),
    )


class LevelDbWorld(LevelDbBase):
    """LevelDbTables whose machines know of micro-batches."""

    def _open(self) -> None:
        super()._open()
        open_channels(self.tables)

    def crash_in(self, pieces: Sequence[Piece], kept: int) -> bool:
        """Restart after this many slices of the record; False: it has no more than that."""
        count_writes(self.tables, fails_at=kept)
        is_cut = False
        try:
            apply_pieces(self, pieces)
        except StorageError:
            is_cut = True
        self.restart()
        return is_cut

    def open_snapshots(self) -> int:
        views = self.tables._views
        return len(self.tables._snapshots._open) + len(views.shown) + len(views._kept)


class SimWorld(SimBase):
    """SimTables whose machines know of micro-batches."""

    def __init__(self) -> None:
        super().__init__()
        open_channels(self.tables)

    def crash_in(self, pieces: Sequence[Piece], kept: int) -> bool:
        """Restart after this many slices of the record; False: it has no more than that."""
        before = len(self.tables._undo)
        apply_pieces(self, pieces)
        slices = len(self.tables._undo) - before
        self.tables.stop(lost=max(0, slices - kept))
        open_channels(self.tables)
        return slices > kept

    def restart(self) -> None:
        super().restart()
        open_channels(self.tables)

    def open_snapshots(self) -> int:
        tables = self.tables._tables.values()
        held = sum((table.view is not None) + len(table.kept) for table in tables)
        return int(self.tables.open_snapshots + held)


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
