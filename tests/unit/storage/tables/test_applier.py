"""Applying by itself: which records share a batch, what a machine reads, and what is reported
when."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from queue import SimpleQueue
from threading import Event, get_ident
from typing import Any

import pytest

from raftstore import faults
from raftstore.errors import PersistError, StorageError
from raftstore.ports.tables import Piece
from raftstore.record_machine import ApplyResult, RecordMachine, Row
from raftstore.rows.sealing import seal, unseal
from raftstore.state_machines.table import TableMachine
from raftstore.storage.stalls import Area, StallWatch
from raftstore.storage.tables import applier as module
from raftstore.storage.tables.applied_channel import AppliedChannel
from raftstore.storage.tables.applier import Applier
from raftstore.storage.tables.keys import REMOVED_KEY, applied_key, decode_applied, rows_prefix
from raftstore.types import EMPTY_HISTORY, ChannelId, History, RecordKind, Seq, Term
from tests.piece_worlds import batch_record, chunk
from tests.storage_helpers import CHANNEL, OTHER, conditional_record, record, rows_record

WAIT_S = 20


class DatabaseError(Exception):
    """The error of this database."""


class Database:
    """One database for all channels, in memory; each batch is noted as it is written."""

    def __init__(self) -> None:
        self.pairs: dict[bytes, bytes] = {}
        self.batches: list[dict[bytes, bytes | None]] = []
        self.failing: Exception | None = None
        self.writing: Callable[[], None] = lambda: None
        self.opened: list[ChannelId] = []

    def new_batch(self, channel: ChannelId) -> Any:
        """A batch of a channel."""
        self.opened.append(channel)
        return Batch(self)

    def get(self, channel: ChannelId, key: bytes) -> Row | None:
        """One row as it is written."""
        stored = self.pairs.get(rows_prefix(channel) + key)
        if stored is None:
            return None
        return Row(key, unseal(key, stored[8:]), Seq(int.from_bytes(stored[:8], "big")))

    def keys(self, channel: ChannelId, start: bytes) -> Iterator[bytes]:
        """No piece here removes rows."""
        raise AssertionError(channel, start)

    def state_get(self, channel: ChannelId, key: bytes) -> bytes | None:
        """A value of the state."""
        sealed = self.pairs.get(channel + key)
        return None if sealed is None else unseal(key, sealed)

    def state_scan(
        self, channel: ChannelId, start: bytes, stop: bytes, limit: int
    ) -> list[tuple[bytes, bytes]]:
        """Some of it."""
        found = [
            (stored_key[len(channel) :], sealed)
            for stored_key, sealed in sorted(self.pairs.items())
            if channel + start <= stored_key < channel + stop
        ]
        return [(key, unseal(key, sealed)) for key, sealed in found[:limit]]

    def row(self, seq: int, key: bytes, value: bytes, channel: ChannelId = CHANNEL) -> Any:
        """A row as it is stored."""
        return rows_prefix(channel) + key, seq.to_bytes(8, "big") + seal(key, value)

    def position(self, channel: ChannelId = CHANNEL) -> History:
        """The applied position that is written."""
        stored = self.pairs.get(applied_key(channel))
        return EMPTY_HISTORY if stored is None else decode_applied(channel, stored)


class Batch:
    """Changes that are written at once."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._changes: dict[bytes, bytes | None] = {}

    def put(self, key: bytes, value: bytes) -> None:
        """A write."""
        self._changes[key] = value

    def delete(self, key: bytes) -> None:
        """A removal."""
        self._changes[key] = None

    def write(self) -> None:
        """All of it, or the failure that was asked for."""
        self._database.writing()
        if self._database.failing is not None:
            raise self._database.failing
        self._database.batches.append(self._changes)
        for key, value in self._changes.items():
            self._database.pairs.pop(key, None)
            if value is not None:
                self._database.pairs[key] = value


class World:
    """An applier over a database, and what it reported."""

    def __init__(self) -> None:
        self.database = Database()
        self.told: list[Any] = []
        self.failures: list[tuple[Exception, ChannelId | None]] = []
        self.applier = Applier(
            new_batch=self.database.new_batch,
            live=self.database,
            errors=(DatabaseError,),
            failed=self._failed,
            piece_applied=lambda state, piece: self.told.append((state.channel, piece)),
        )
        self.applier.report_to(
            post=lambda call: call(),
            on_applied=lambda *told: self.told.append(told),
            on_failed=self.told.append,
        )
        self.state = self.channel(CHANNEL)

    def channel(self, channel: ChannelId, machine: Any = None) -> AppliedChannel:
        """A channel that has applied nothing."""
        return AppliedChannel(channel, machine or TableMachine(), EMPTY_HISTORY, EMPTY_HISTORY)

    def _failed(self, error: Exception, channel: ChannelId | None) -> StorageError:
        self.failures.append((error, channel))
        return PersistError(f"told: {error}")


@pytest.fixture
def world() -> World:
    """A fresh one."""
    return World()


def test_records_that_are_queued_together_are_one_batch_a_channel(world: World) -> None:
    """S10: rows and the position they lead to are written at once, and then reported in order."""
    other = world.channel(OTHER)
    world.applier.enqueue(world.state, [rows_record(1, {b"a": b"1"}), rows_record(2, {b"b": b"2"})])
    world.applier.enqueue(other, [rows_record(1, {b"c": b"3"}, term=2)])
    world.applier.enqueue(world.state, [rows_record(3, {b"a": None})])
    assert (world.told, world.database.batches) == ([], [])
    world.applier.run_queued()
    row = world.database.row
    first, second = world.database.batches
    written = {row(1, b"a", b"1")[0], row(2, b"b", b"2")[0], applied_key(CHANNEL)}
    assert set(first) == written | {REMOVED_KEY}, "the number of removed rows, too"
    assert first[row(1, b"a", b"1")[0]] is None
    assert first[row(2, b"b", b"2")[0]] == row(2, b"b", b"2")[1]
    key, value = row(1, b"c", b"3", OTHER)
    assert (set(second), second[key]) == ({key, applied_key(OTHER)}, value)
    assert world.database.position() == world.state.applied == (1, 3)
    assert world.database.position(OTHER) == other.applied == (2, 1)
    assert world.told == [(CHANNEL, 2, (), ()), (OTHER, 1, (), ()), (CHANNEL, 3, (), ())]
    assert world.database.opened == [CHANNEL, OTHER]


def test_nothing_queued_writes_and_tells_nothing(world: World) -> None:
    """A second run says nothing again either."""
    world.applier.run_queued()
    world.applier.enqueue(world.state, [rows_record(1, {b"a": b"1"})])
    world.applier.run_queued()
    world.applier.run_queued()
    assert (len(world.told), len(world.database.batches)) == (1, 1)


@pytest.mark.parametrize(("bytes_max", "batches"), [(1, 4), (200, 2), (201, 2), (1 << 20, 1)])
def test_batches_end_when_their_payload_is_reached(
    world: World, monkeypatch: pytest.MonkeyPatch, bytes_max: int, batches: int
) -> None:
    """A batch holds whole records; how many there are in one call makes no difference."""
    records = [rows_record(n, {b"%d" % n: b""}) for n in range(1, 5)]
    padded = [len(one.payload) for one in records]
    assert len(set(padded)) == 1
    bound = bytes_max if bytes_max in (1, 1 << 20) else 2 * padded[0] - (201 - bytes_max)
    monkeypatch.setattr(module, "BATCH_BYTES_MAX", bound)
    world.applier.enqueue(world.state, records)
    world.applier.run_queued()
    assert len(world.database.batches) == batches
    assert world.told == [(CHANNEL, 4, (), ())]


def test_queue_counts_payload_until_it_is_applied(world: World) -> None:
    """Publishers are slowed down by it; a failed record stays counted."""
    records = [rows_record(1, {b"a": b"1"}), rows_record(2, {b"b": b"22"})]
    world.applier.enqueue(world.state, records)
    size = sum(len(one.payload) for one in records)
    assert world.applier.queued_bytes() == size
    world.applier.run_queued()
    assert world.applier.queued_bytes() == 0
    piece = Piece(batch_record(3), True, True, [chunk([(b"k", b"v")]), chunk([(b"l", b"v")])])
    world.state.queue_piece(piece)
    world.applier.enqueue_piece(world.state, piece)
    assert world.applier.queued_bytes() == sum(len(payload) for _, payload in piece.chunks)
    world.applier.run_queued()
    assert world.applier.queued_bytes() == 0
    world.database.failing = DatabaseError("disk")
    world.applier.enqueue(world.state, [rows_record(4, {b"a": b"1"})])
    with pytest.raises(StorageError):
        world.applier.run_queued()
    assert world.applier.queued_bytes() > 0


def test_conditions_see_what_the_records_before_them_wrote(world: World) -> None:
    """Records of one call count; conflicts are reported with the seqs of the record and of the
    row."""
    records = [
        rows_record(1, {b"a": b"1"}),
        conditional_record(2, b"a", b"2", 1),
        conditional_record(3, b"a", b"3", 1),
        conditional_record(4, b"new", b"4", 0),
        conditional_record(5, b"none", b"5", 9),
    ]
    world.applier.enqueue(world.state, records)
    world.applier.run_queued()
    assert world.told == [(CHANNEL, 5, ((3, 2), (5, 0)), ())]
    assert world.database.get(CHANNEL, b"a") == Row(b"a", b"2", Seq(2))
    assert world.database.get(CHANNEL, b"new") == Row(b"new", b"4", Seq(4))
    assert world.database.get(CHANNEL, b"none") is None


@pytest.mark.parametrize("kind", [RecordKind.TERM_START, RecordKind.CONFIG])
def test_records_without_rows_move_the_position_alone(world: World, kind: RecordKind) -> None:
    """Their payload is no machine's."""
    world.applier.enqueue(world.state, [record(1, term=4, kind=kind)])
    world.applier.run_queued()
    assert [set(batch) for batch in world.database.batches] == [{applied_key(CHANNEL)}]
    assert world.state.applied == (4, 1)
    assert world.told == [(CHANNEL, 1, (), ())]


class Counting(RecordMachine):
    """Each record of state counts one up, by a value of the state or by all of it."""

    def __init__(self, *, scans: bool = False) -> None:
        self.scans = scans
        self.found: list[Any] = []

    def apply(self, record: Any, view: Any) -> ApplyResult:
        """Remember what was found."""
        if self.scans:
            self.found.append(view.state.scan(b"\x02", b"\x03", 2))
        else:
            self.found.append(view.state.get(b"\x02count"))
        number = b"%d" % record.base_seq
        name = b"\x02%d" % record.base_seq if self.scans else b"\x02count"
        return ApplyResult((), state_writes=((name, number),), answer=b"answer " + number)


def counted(world: World, machine: Counting, count: int) -> AppliedChannel:
    """Apply so many records of state in one call."""
    state = world.channel(CHANNEL, machine)
    records = [record(n, kind=RecordKind.STAGED) for n in range(1, count + 1)]
    world.applier.enqueue(state, records)
    world.applier.run_queued()
    return state


def test_values_of_the_state_are_those_the_record_before_left(world: World) -> None:
    """Gathered values are looked at where they are, so that small records stay one batch."""
    machine = Counting()
    state = counted(world, machine, 3)
    assert machine.found == [None, b"1", b"2"]
    assert len(world.database.batches) == 1
    assert world.told == [(CHANNEL, 3, (), ((1, b"answer 1"), (2, b"answer 2"), (3, b"answer 3")))]
    world.applier.enqueue(state, [record(4, kind=RecordKind.TXN)])
    world.applier.run_queued()
    assert machine.found[3:] == [b"3"]
    assert world.applier.state_get(OTHER, b"\x02count") is None


def test_ranges_of_the_state_are_read_from_the_database(world: World) -> None:
    """Gathered changes are written before: a batch of its own for each."""
    machine = Counting(scans=True)
    counted(world, machine, 4)
    two = [(b"\x021", b"1"), (b"\x022", b"2")]
    assert machine.found == [[], two[:1], two, two]
    assert len(world.database.batches) == 4
    world.applier.enqueue(world.channel(OTHER), [rows_record(1, {b"a": b"1"})])
    assert world.applier.state_scan(CHANNEL, b"\x02", b"\x022", 9) == two[:1]


class Late(RecordMachine):
    """A machine that reads while its writes are taken."""

    def __init__(self, reads: Callable[[Any], object]) -> None:
        self._reads = reads

    def apply(self, record: Any, view: Any) -> ApplyResult:
        """Its writes are made while they are asked for."""

        def writes() -> Iterator[tuple[bytes, bytes | None]]:
            self._reads(view)
            yield b"k", None

        return ApplyResult(writes())


@pytest.mark.parametrize(
    "reads",
    [lambda view: view.row(b"k"), lambda view: view.state.scan(b"\x02", b"\x03", 1)],
)
def test_machine_must_read_before_it_returns_its_writes(
    world: World, reads: Callable[[Any], object]
) -> None:
    """A read writes what was gathered: half of a record would be in it."""
    state = world.channel(CHANNEL, Late(reads))
    world.applier.enqueue(state, [record(1, kind=RecordKind.STAGED)])
    with pytest.raises(StorageError, match="must read before"):
        world.applier.run_queued()
    assert world.database.batches == []


def test_pieces_are_told_with_the_seq_that_is_applied(world: World) -> None:
    """Records queued before a piece are written before it; until the last nothing is applied."""
    world.applier.enqueue(world.state, [rows_record(1, {b"a": b"1"})])
    world.applier.run_queued()
    world.told.clear()
    whole = batch_record(2, rows=3)
    pieces = [
        Piece(whole, True, False, [chunk([(b"b", b"2")])]),
        Piece(whole, False, True, [chunk([(b"c", b"3")])]),
    ]
    for piece in pieces:
        world.state.queue_piece(piece)
        world.applier.enqueue_piece(world.state, piece)
    other = world.channel(OTHER)
    world.applier.enqueue(other, [rows_record(1, {b"a": b"1"})])
    world.applier.run_queued()
    of_channel = [told for told in world.told if told[0] == CHANNEL]
    assert of_channel == [
        (CHANNEL, pieces[0]),
        (CHANNEL, 1, (), ()),
        (CHANNEL, pieces[1]),
        (CHANNEL, 4, (), ()),
    ]
    assert world.state.applied == (1, 4)
    assert (OTHER, 1, (), ()) in world.told


def test_other_work_sees_everything_queued_before_it(world: World) -> None:
    """Rows are written and reported first, and what comes behind it is not there yet."""
    seen: list[Any] = []
    world.applier.enqueue(world.state, [rows_record(1, {b"a": b"1"})])
    world.applier.enqueue_job(lambda: seen.append((world.database.position(), list(world.told))))
    world.applier.enqueue(world.state, [rows_record(2, {b"a": b"2"})])
    world.applier.run_queued()
    assert seen == [((1, 1), [(CHANNEL, 1, (), ())])]
    assert world.state.applied == (1, 2)


def test_failure_names_the_channel_that_was_written(world: World) -> None:
    """S0.4: damage is remembered for this channel, and nothing of it is reported as applied."""
    other = world.channel(OTHER)
    world.applier.enqueue(other, [rows_record(1, {b"a": b"1"})])
    world.applier.enqueue(world.state, [rows_record(1, {b"a": b"1"})])
    error = DatabaseError("bad block")
    world.database.failing = error
    with pytest.raises(PersistError, match="told: bad block") as raised:
        world.applier.run_queued()
    assert raised.value.__cause__ is error
    assert world.failures == [(error, OTHER)]
    assert (world.told, other.applied) == ([], EMPTY_HISTORY)


def test_failing_machine_names_its_channel_and_other_work_names_none(world: World) -> None:
    """Any error stops the node; one that no database raised is reported with what was done."""

    class Failing(RecordMachine):
        def apply(self, record: Any, view: Any) -> ApplyResult:
            raise AttributeError(record, view)

    state = world.channel(OTHER, Failing())
    world.applier.enqueue(world.state, [rows_record(1, {b"a": b"1"})])
    world.applier.enqueue(state, [rows_record(1, {b"a": b"1"})])
    with pytest.raises(StorageError, match="applying a committed record failed: AttributeError"):
        world.applier.run_queued()
    assert world.failures[0][1] == OTHER

    def fail() -> None:
        raise DatabaseError("gone")

    again = World()
    again.applier.enqueue(again.state, [rows_record(1, {b"a": b"1"})])
    again.applier.enqueue_job(fail)
    with pytest.raises(StorageError):
        again.applier.run_queued()
    assert [channel for _, channel in again.failures] == [None]
    assert again.told == [(CHANNEL, 1, (), ())]


def test_writes_and_openings_are_watched(world: World) -> None:
    """S0.4: a disk that hangs is reported with what was being done where."""
    watch, path = StallWatch(), Path("tables")
    world.applier.note_writes(watch, path)
    seen: list[Any] = []
    world.database.writing = lambda: seen.append(watch.oldest(Area.TABLES))
    opening = world.database.new_batch

    def new_batch(channel: ChannelId) -> Any:
        seen.append(watch.oldest(Area.TABLES))
        return opening(channel)

    world.applier._new_batch = new_batch
    world.applier.enqueue(world.state, [rows_record(1, {b"a": b"1"})])
    world.applier.run_queued()
    assert [(stall.doing, stall.path) for stall in seen] == [
        ("opening a table", "tables"),
        ("a write of LevelDB", "tables"),
    ]
    assert watch.under_way == {}


def test_failpoints_are_passed_around_each_write(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A test kills a node before a write, or behind it."""
    reached: list[str] = []
    monkeypatch.setattr(faults, "reach", reached.append)
    monkeypatch.setattr(faults, "hang", reached.append)
    world.applier.enqueue(world.state, [rows_record(1, {b"a": b"1"})])
    world.applier.run_queued()
    assert reached == ["table.before-apply", "apply", "table.after-apply"]


def started(world: World) -> SimpleQueue[Any]:
    """The thread runs, and its calls are in the queue."""
    calls: SimpleQueue[Any] = SimpleQueue()
    world.applier.report_to(
        post=calls.put,
        on_applied=lambda *told: world.told.append(told),
        on_failed=world.told.append,
    )
    world.applier.start()
    return calls


def test_thread_applies_what_comes_and_ends_when_it_is_told(world: World) -> None:
    """Records queued behind the end are not applied: they are replayed some day."""
    threads: list[int] = []
    world.database.writing = lambda: threads.append(get_ident())
    calls = started(world)
    for seq in (1, 2):
        world.applier.enqueue(world.state, [rows_record(seq, {b"a": b"1"})])
        calls.get(timeout=WAIT_S)()
    assert world.told == [(CHANNEL, 1, (), ()), (CHANNEL, 2, (), ())]
    assert get_ident() not in threads
    world.applier.stop()
    thread = world.applier._thread
    assert thread is not None
    assert (thread.is_alive(), thread.name, thread.daemon) == (False, "raftstore-apply", True)
    world.applier.enqueue(world.state, [rows_record(3, {b"a": b"1"})])
    world.applier.run_queued()
    assert world.state.applied == (1, 2)


def test_thread_ends_after_the_batch_at_hand(world: World) -> None:
    """A stop waits for one write, and for no other."""
    begun, goes_on = Event(), Event()

    def write() -> None:
        begun.set()
        assert goes_on.wait(WAIT_S)

    world.database.writing = write
    started(world)
    world.applier.enqueue(world.state, [rows_record(1, {b"a": b"1"})])
    assert begun.wait(WAIT_S)
    world.applier.enqueue(world.state, [rows_record(2, {b"a": b"1"})])
    world.applier._is_stopping = True
    goes_on.set()
    world.applier.stop()
    assert len(world.database.batches) == 1


def test_thread_reports_one_failure_and_applies_nothing_more(world: World) -> None:
    """S0.4: nothing is retried, whatever is queued afterwards."""
    calls = started(world)
    world.database.failing = DatabaseError("bad block")
    world.applier.enqueue(world.state, [rows_record(1, {b"a": b"1"})])
    calls.get(timeout=WAIT_S)()
    thread = world.applier._thread
    assert thread is not None
    thread.join(WAIT_S)
    assert not thread.is_alive()
    assert [str(told) for told in world.told] == ["told: bad block"]
    world.database.failing = None
    world.applier.enqueue(world.state, [rows_record(2, {b"a": b"1"})])
    assert (calls.empty(), world.database.batches) == (True, [])
    world.applier.stop()


def test_positions_tell_the_term_of_the_last_record(world: World) -> None:
    """S10: a start compares it with the log."""
    records = [rows_record(1, {b"a": b"1"}), rows_record(2, {b"b": b"1"}, term=7)]
    world.applier.enqueue(world.state, records)
    world.applier.run_queued()
    assert world.database.position() == History(Term(7), Seq(2))
