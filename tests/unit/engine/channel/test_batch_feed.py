"""Decided micro-batches reach the table in pieces, behind everything before them (S10, I1)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import pytest

from raftstore.engine.channel import batch_feed
from raftstore.engine.channel.apply_feed import STEPS_AHEAD, ApplyFeed
from raftstore.errors import CorruptRecordError, NewerFormatError
from raftstore.ports.tables import Piece
from raftstore.protocol.batches import APPEND, TRUNCATE
from raftstore.protocol.payload import encode_rows
from raftstore.protocol.records import Record
from raftstore.protocol.staged import BatchApply, ChunkHeader, encode_apply, encode_staged
from raftstore.rows.sealing import seal
from raftstore.state_machines.batches.staging import ChunkRef, part_of, seqs_of
from raftstore.state_machines.table import TableMachine
from raftstore.testing.sim_log import SimLog
from raftstore.testing.sim_tables import SimTables
from raftstore.types import ChannelId, RecordKind, Seq
from tests.storage_helpers import CHANNEL, OTHER, record, rows_record

WRITER = "orders"


class Scene:
    """A log, tables and one feed per channel; records are made at the end of a channel's log."""

    def __init__(self) -> None:
        self.log = SimLog.new()
        self.tables = SimTables()
        self.ends = {CHANNEL: 0, OTHER: 0}
        self.staged: dict[ChannelId, list[ChunkRef]] = {CHANNEL: [], OTHER: []}
        self.handed: list[tuple[ChannelId, Any]] = []
        self.broken: list[str] = []
        self.open()

    def open(self) -> None:
        """As at a start of the node."""
        self.feeds = {}
        for channel in (CHANNEL, OTHER):
            machine = TableMachine()
            applied = self.tables.open_channel(channel, machine)
            self.feeds[channel] = ApplyFeed(
                self.log, self, channel, applied, self.broken.append, machine.pieces
            )

    def __getattr__(self, name: str) -> Any:
        return getattr(self.tables, name)

    def apply(self, channel: ChannelId, records: Sequence[Record]) -> None:
        """Keep the seqs of the records that the feed applies, and apply them."""
        self.handed.append((channel, [one.last_seq for one in records]))
        self.tables.apply(channel, records)

    def apply_piece(self, channel: ChannelId, piece: Piece) -> None:
        """The same for a piece."""
        self.handed.append((channel, piece))
        self.tables.apply_piece(channel, piece)

    def append(self, made: Record, channel: ChannelId = CHANNEL) -> Record:
        """Put a record where it belongs."""
        self.log.append(channel, [made])
        self.ends[channel] = made.last_seq
        return made

    def put(self, rows: dict[bytes, bytes | None], channel: ChannelId = CHANNEL) -> None:
        """An ordinary record."""
        self.append(rows_record(self.ends[channel] + 1, rows), channel)

    def stage(self, rows: dict[bytes, bytes], channel: ChannelId = CHANNEL, task: int = 0) -> None:
        """A chunk of attempt 1."""
        number = len(self.staged[channel])
        header = ChunkHeader(WRITER, 1, task, task, number)
        payload = encode_staged(header, encode_rows((k, seal(k, v)) for k, v in rows.items()))
        kind, size = RecordKind.STAGED, len(rows)
        made = record(self.ends[channel] + 1, rows=size, payload=payload, kind=kind)
        self.append(made, channel)
        ref = ChunkRef(
            made.base_seq, made.last_seq, size, len(payload), 0, made.digest, *header[:5]
        )
        self.staged[channel].append(ref)

    def decide(
        self, n: int = 1, prev: int = 0, mode: int = APPEND, channel: ChannelId = CHANNEL, **of: Any
    ) -> Record:
        """The BATCH_APPLY record of everything staged."""
        part = part_of(0, self.staged[channel])
        winners = tuple(sorted({(ref.partition_id,) * 2 for ref in self.staged[channel]}))
        batch = BatchApply(n, prev, WRITER, n, 1, mode, winners, part, (n,), 77)
        payload = encode_apply(msgspec.structs.replace(batch, **of))
        rows = seqs_of(part.rows)
        kind = RecordKind.BATCH_APPLY
        made = record(self.ends[channel] + 1, rows=rows, payload=payload, kind=kind)
        return self.append(made, channel)

    def commit(self, *channels: ChannelId) -> None:
        """Everything in the log may be applied."""
        for channel in channels or (CHANNEL,):
            self.feeds[channel].advance(Seq(self.ends[channel]))

    def step(self) -> ChannelId:
        """Apply what was handed over first."""
        channel = self.tables.apply_next()[0]
        self.feeds[channel].on_applied()
        return channel

    def drain(self) -> None:
        """Apply everything."""
        while self.tables.has_queued():
            self.step()

    def rows(self) -> dict[bytes, bytes]:
        """Rows that readers see now."""
        return {row.key: row.value for row in self.tables.scan(CHANNEL, b"", b"", 999).rows}


@pytest.fixture
def scene(monkeypatch: pytest.MonkeyPatch) -> Scene:
    """Pieces of one chunk each."""
    monkeypatch.setattr(batch_feed, "PART_BYTES_MAX", 1)
    return Scene()


def test_rows_of_a_batch_become_visible_at_once_and_before_what_follows(scene: Scene) -> None:
    """Staged rows are nowhere until then; the record behind the batch sees and overwrites them."""
    scene.put({b"a": b"old", b"z": b"old"})
    for n in range(3):
        scene.stage({b"a": b"%d" % n, b"%d" % n: b"new"})
    decided = scene.decide()
    scene.put({b"z": b"after"})
    scene.commit()
    seen = []
    while scene.tables.has_queued():
        scene.step()
        seen.append((scene.tables.applied_seq(CHANNEL), scene.rows()))
    before, batch = {b"a": b"old", b"z": b"old"}, {b"%d" % n: b"new" for n in range(3)}
    assert [rows for _, rows in seen[:-2]] == [before] * (len(seen) - 2)
    assert seen[-2:] == [
        (decided.last_seq, before | batch | {b"a": b"2"}),
        (decided.last_seq + 1, before | batch | {b"a": b"2", b"z": b"after"}),
    ]
    row = scene.tables.get(CHANNEL, b"0")
    assert row is not None
    assert row.seq == decided.last_seq
    assert scene.tables.state_scan(CHANNEL, b"\x02\x01", b"\x02\x02", 9) == []


def test_barrier_waits_for_the_staged_records_before_it(scene: Scene) -> None:
    """S10: the plan is made of the state that everything before the batch leads to."""
    scene.stage({b"a": b"1"})
    scene.decide()
    scene.commit()
    assert scene.handed == [(CHANNEL, [1])]
    scene.commit()
    assert len(scene.handed) == 1
    scene.step()
    assert isinstance(scene.handed[1][1], Piece)


def test_log_of_small_batches_is_read_once(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not anew behind each: a replica that comes back would read the same megabytes every time."""
    for n in range(1, 21):
        scene.staged[CHANNEL].clear()
        scene.put({b"a": b"%d" % n})
        scene.decide(n, n - 1)
    reads: list[Seq] = []
    read = scene.log.read

    def counted(channel: ChannelId, from_seq: Seq, **bounds: Any) -> list[Record]:
        reads.append(from_seq)
        return read(channel, from_seq, **bounds)

    monkeypatch.setattr(scene.log, "read", counted)
    scene.commit()
    scene.drain()
    assert scene.tables.applied_seq(CHANNEL) == 40
    assert reads == [1]


def test_pieces_are_bounded_and_two_at_a_time(scene: Scene) -> None:
    """A batch larger than the memory passes through; each piece has a chunk at least."""
    for n in range(5):
        scene.stage({b"%d" % n: bytes(100)})
    scene.decide()
    scene.commit()
    scene.step()
    pieces = [piece for _, piece in scene.handed[1:]]
    assert [len(piece.chunks) for piece in pieces] == [1] * STEPS_AHEAD
    scene.step()
    assert len(scene.handed) == 1 + STEPS_AHEAD + 1
    scene.drain()
    pieces = [piece for _, piece in scene.handed[1:]]
    assert [(piece.first, piece.last) for piece in pieces] == [
        (True, False),
        (False, False),
        (False, False),
        (False, False),
        (False, True),
    ]
    assert [bool(piece.state_writes) for piece in pieces] == [piece.last for piece in pieces]


def test_chunks_share_a_piece_up_to_its_bytes(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As many as fit, in the order of the plan: by task, and within a task as they were staged."""
    scene.stage({b"a": b"1"}, task=1)
    for n in range(3):
        scene.stage({b"a": b"%d" % n}, task=0)
    size = scene.staged[CHANNEL][0].size
    monkeypatch.setattr(batch_feed, "PART_BYTES_MAX", 2 * size + 1)
    scene.decide()
    scene.commit()
    scene.drain()
    assert [len(piece.chunks) for _, piece in scene.handed[1:]] == [2, 2]
    assert scene.rows() == {b"a": b"1"}


def test_other_channels_apply_between_parts(scene: Scene) -> None:
    """A large batch of one table holds nobody else up for longer than its next pieces."""
    for n in range(6):
        scene.stage({b"%d" % n: b"new"})
        scene.put({b"%d" % n: b"other"}, OTHER)
    scene.decide()
    scene.commit()
    scene.step()
    for n in range(6):
        scene.feeds[OTHER].advance(Seq(n + 1))
        scene.step()
    order = [channel for channel, _ in scene.handed[1:]]
    assert order[:7] == [CHANNEL, CHANNEL, OTHER, CHANNEL, OTHER, CHANNEL, OTHER]
    assert scene.rows() == {}
    assert scene.tables.applied_seq(OTHER) > 0
    scene.drain()
    assert len(scene.rows()) == 6


@pytest.mark.parametrize("mode", [APPEND, TRUNCATE])
def test_batch_without_rows_is_applied(scene: Scene, mode: int) -> None:
    """An overwrite touches every channel, whether or not it brings rows."""
    scene.put({b"a": b"old"})
    scene.decide(mode=mode)
    scene.commit()
    scene.drain()
    assert scene.rows() == ({b"a": b"old"} if mode == APPEND else {})
    assert scene.tables.applied_seq(CHANNEL) == scene.ends[CHANNEL]


def test_truncation_comes_before_the_rows_and_one_piece_at_a_time(scene: Scene) -> None:
    """Where a piece ends is known when it is applied; only then the next one is made."""
    scene.put({b"%03d" % n: b"old" for n in range(100)})
    scene.stage({b"050": b"new", b"x": b"new"})
    scene.decide(mode=TRUNCATE)
    scene.commit()
    scene.drain()
    pieces = [piece for _, piece in scene.handed if isinstance(piece, Piece)]
    starts = [piece.truncate_from for piece in pieces]
    assert starts == [b"", b"032", b"064", b"096", None]
    assert scene.rows() == {b"050": b"new", b"x": b"new"}


def test_record_of_a_batch_that_is_known_or_too_early_changes_nothing(scene: Scene) -> None:
    """Rule 4: doubled records and those without their predecessor move the position, no more."""
    scene.stage({b"a": b"1"})
    scene.decide(n=2, prev=1)
    scene.decide(n=1)
    doubled = scene.decide(n=1, part=part_of(0, ()), winners=())
    scene.commit()
    scene.drain()
    assert scene.rows() == {b"a": b"1"}
    assert scene.tables.applied_seq(CHANNEL) == doubled.last_seq
    assert scene.tables.versions(CHANNEL) == (0,)
    labels = [piece.version for _, piece in scene.handed if isinstance(piece, Piece)]
    assert labels == [-1, 0, -1], "only a state that is replaced has a label"
    assert scene.broken == []


def test_listed_chunk_missing_stops_the_channel_everywhere(scene: Scene) -> None:
    """I1, S13: nothing of the batch and nothing behind it is applied, at every start anew."""
    scene.stage({b"a": b"1"})
    listed = part_of(0, scene.staged[CHANNEL])
    scene.decide(part=msgspec.structs.replace(listed, chunks=2))
    scene.put({b"b": b"behind"})
    scene.commit()
    scene.drain()
    assert len(scene.broken) == 1
    assert "lists 2 chunks" in scene.broken[0]
    assert (scene.tables.applied_seq(CHANNEL), scene.rows()) == (1, {})
    scene.commit()
    assert len(scene.broken) == 1
    scene.tables.stop()
    scene.open()
    scene.commit()
    scene.drain()
    assert len(scene.broken) == 2
    assert scene.tables.applied_seq(CHANNEL) == 1


def test_stop_between_two_pieces_is_made_good_at_the_next_start(scene: Scene) -> None:
    """The same plan again, from the log: the staged rows are still listed."""
    for n in range(4):
        scene.stage({b"%d" % n: b"new", b"a": b"%d" % n})
    decided = scene.decide()
    scene.commit()
    for _ in range(3):
        scene.step()
    scene.tables.stop()
    scene.open()
    assert scene.tables.unserved_until(CHANNEL) == decided.last_seq
    scene.commit()
    scene.drain()
    assert scene.tables.unserved_until(CHANNEL) == 0
    assert scene.rows() == {b"%d" % n: b"new" for n in range(4)} | {b"a": b"3"}


def test_log_that_holds_other_rows_than_were_staged_stops_the_node(scene: Scene) -> None:
    """Rows that nobody listed never become visible."""
    scene.stage({b"a": b"1"})
    scene.decide()
    read = scene.log.read

    def other(*arguments: Any, **bounds: Any) -> list[Record]:
        found = read(*arguments, **bounds)
        if bounds["bytes_max"] > 1:
            return found
        return [msgspec.structs.replace(found[0], digest=bytes(16))]

    scene.commit()
    scene.log.read = other  # type: ignore[method-assign]
    with pytest.raises(CorruptRecordError, match="are not in the log as record 2 lists them"):
        scene.step()


def test_batch_of_a_newer_format_stops_the_node(scene: Scene) -> None:
    """GAP-15: with its tables intact."""
    scene.append(record(1, payload=b"\xff", kind=RecordKind.BATCH_APPLY))
    with pytest.raises(NewerFormatError, match="run a newer version"):
        scene.commit()
