"""The contract of ports.TableSnapshot and of long reads, on LevelDB and on the simulated tables."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from queue import SimpleQueue
from threading import Event
from typing import Any

import pytest
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, rule

from raftstore.errors import CorruptRecordError, PersistError
from raftstore.ports.tables import Counted, ReadDone
from raftstore.rows.sealing import seal
from raftstore.state_machines.table import TableMachine
from raftstore.storage.stalls import Area, StallWatch
from raftstore.storage.tables.keys import rows_prefix
from raftstore.storage.tables.leveldb_tables import LevelDbTables
from raftstore.testing.sim_tables import SimTables
from tests.storage_helpers import CHANNEL, OTHER, SMALL, STORE_UUID, database_of, rows_record


class LevelDbWorld:
    """LevelDbTables with their threads."""

    def __init__(self, directory: Path) -> None:
        self._calls: SimpleQueue[Any] = SimpleQueue()
        self._done: list[ReadDone] = []
        self.failures: list[Exception] = []
        LevelDbTables.create(directory, STORE_UUID, SMALL)
        self.tables: Any = LevelDbTables.open(directory, STORE_UUID, SMALL)
        self.tables.start(
            post=self._calls.put,
            on_applied=lambda *_told: None,
            on_failed=self.failures.append,
            on_read=self._done.append,
        )

    def drain(self) -> None:
        while self.tables.queued_bytes():
            self._calls.get(timeout=20)()

    def next_read(self) -> ReadDone | None:
        """The result of the next read; None if the tables failed."""
        while not self._done and not self.failures:
            self._calls.get(timeout=20)()
        return self._done.pop(0) if self._done else None

    def corrupt(self, key: bytes) -> None:
        database = database_of(self.tables)
        stored = database.get(rows_prefix(CHANNEL) + key)
        database.put(rows_prefix(CHANNEL) + key, stored[:-1] + bytes([stored[-1] ^ 1]))

    def open_snapshots(self) -> int:
        return len(self.tables._snapshots._open)

    def close(self) -> None:
        self.tables.close()


class SimWorld:
    """SimTables, which read when they are asked to."""

    def __init__(self) -> None:
        self.tables: Any = SimTables()
        self.failures: list[Exception] = []

    def drain(self) -> None:
        while self.tables.has_queued():
            self.tables.apply_next()

    def next_read(self) -> ReadDone | None:
        try:
            return self.tables.read_next()
        except CorruptRecordError as error:
            self.failures.append(error)
            return None

    def corrupt(self, key: bytes) -> None:
        self.tables.corrupt(CHANNEL, key)

    def open_snapshots(self) -> int:
        return self.tables.open_snapshots

    def close(self) -> None:
        pass


@pytest.fixture(params=["leveldb", "sim"])
def world(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Any]:
    """Empty tables with both channels open."""
    made: Any = LevelDbWorld(tmp_path) if request.param == "leveldb" else SimWorld()
    made.tables.open_channel(CHANNEL, TableMachine())
    made.tables.open_channel(OTHER, TableMachine())
    yield made
    made.close()


def write(world: Any, seq: int, rows: dict[bytes, bytes | None], channel: Any = CHANNEL) -> None:
    """One record, applied."""
    world.tables.apply(channel, [rows_record(seq, rows)])
    world.drain()


def found(snapshot: Any, start: bytes = b"", stop: bytes = b"", limit: int = 99) -> Any:
    """Keys and values of a page."""
    return {row.key: row.value for row in snapshot.page(start, stop, limit).rows}


def test_snapshot_stays_as_it_is_whatever_is_applied(world: Any) -> None:
    """A page of it shows the state of when it was made, and states that one's position."""
    write(world, 1, {b"a": b"1", b"b": b"1", b"c": b"1"})
    snapshot = world.tables.snapshot(CHANNEL)
    write(world, 4, {b"a": b"2", b"b": None, b"d": b"2"})
    write(world, 1, {b"a": b"other"}, OTHER)
    assert found(snapshot) == {b"a": b"1", b"b": b"1", b"c": b"1"}
    assert snapshot.page(b"", b"", 99).applied_seq == snapshot.applied_seq == 3
    assert snapshot.count(b"", b"", 99) == Counted(3, None)
    later = world.tables.snapshot(CHANNEL)
    assert found(later) == {b"a": b"2", b"c": b"1", b"d": b"2"}
    assert later.applied_seq == 6
    snapshot.close()
    later.close()


def test_snapshot_outlives_the_rows_of_a_dropped_channel(world: Any) -> None:
    """A snapshot of a dropped channel may still be read to its end; the engine sees that no client
    is answered from it.
    """
    write(world, 1, {b"a": b"1"})
    snapshot = world.tables.snapshot(CHANNEL)
    world.tables.drop(CHANNEL)
    world.drain()
    assert found(snapshot) == {b"a": b"1"}
    snapshot.close()


def test_pages_of_a_snapshot_are_those_of_a_scan(world: Any) -> None:
    """Ranges, limits and bytes are understood alike."""
    write(world, 1, {bytes([n]): bytes(9) for n in range(1, 8)})
    snapshot = world.tables.snapshot(CHANNEL)
    for what in [
        (b"", b"", 99, 10**6),
        (b"\x02", b"\x05", 2, 10**6),
        (b"\x03", b"", 99, 25),
        (b"", b"", 1, 1),
    ]:
        page = world.tables.scan(CHANNEL, *what)
        assert snapshot.page(*what) == page
        rows = [(row.key, seal(row.key, row.value), row.seq) for row in page.rows]
        assert snapshot.sealed_page(*what) == (rows, page.more)
    snapshot.close()


def test_page_reads_no_further_than_it_shows(world: Any) -> None:
    """It costs what it returns, and damage far behind it does not end it."""
    write(world, 1, {b"a": b"1", b"b": b"2", b"c": b"3"})
    world.corrupt(b"c")
    snapshot = world.tables.snapshot(CHANNEL)
    for found in (snapshot.page(b"", b"", 1), snapshot.page(b"", b"", 9, 1)):
        assert ([row.key for row in found.rows], found.more) == ([b"a"], True)
    snapshot.close()


def test_count_goes_on_where_it_ended(world: Any) -> None:
    """Slices add up to the rows of the range, whether or not they end with it."""
    write(world, 1, {bytes([n]): b"v" for n in range(10)})
    write(world, 1, {b"\x05": b"other"}, OTHER)
    snapshot = world.tables.snapshot(CHANNEL)
    for start, stop, rows in [(b"", b"", 10), (b"\x02", b"\x07", 5), (b"\x07", b"\x02", 0)]:
        for limit in (1, 3, 5, 10, 11):
            counted, at = 0, start
            while at is not None:
                piece = snapshot.count(at, stop, limit)
                assert piece.rows <= limit
                counted, at = counted + piece.rows, piece.resume
            assert counted == rows
    snapshot.close()


def test_reads_are_done_in_order_and_their_ends_are_told(world: Any) -> None:
    """The node goes on meanwhile, and learns of each on its own thread."""
    write(world, 1, {b"a": b"1"})
    snapshot = world.tables.snapshot(CHANNEL)
    told: list[Any] = []

    def read(number: int) -> ReadDone:
        page = snapshot.page(b"", b"", 99)
        return lambda now_ms: told.append((number, len(page.rows), now_ms))

    for number in range(3):
        world.tables.start_read(lambda number=number: read(number))
    assert told == []
    for now_ms in (10, 20, 30):
        world.next_read()(now_ms)
    assert told == [(0, 1, 10), (1, 1, 20), (2, 1, 30)]
    snapshot.close()


def test_closed_snapshot_is_forgotten(world: Any) -> None:
    """It keeps files of the store no longer; closing it twice is no mistake."""
    snapshots = [world.tables.snapshot(CHANNEL) for _ in range(3)]
    assert world.open_snapshots() == 3
    snapshots[1].close()
    snapshots[1].close()
    assert world.open_snapshots() == 2
    world.tables.scan(CHANNEL, b"", b"", 9)
    assert world.open_snapshots() == 2
    snapshots[0].close()
    snapshots[2].close()
    assert world.open_snapshots() == 0


@pytest.mark.parametrize("how", ["page", "sealed_page"])
def test_damage_found_by_a_long_read_stops_the_node(world: Any, how: str) -> None:
    """S0.4: it is reported as the failure of the tables, and no rows are."""
    write(world, 1, {b"a": b"1", b"b": b"2"})
    world.corrupt(b"b")
    snapshot = world.tables.snapshot(CHANNEL)

    def read() -> ReadDone:
        getattr(snapshot, how)(b"", b"", 99, 10**6)
        return pytest.fail

    world.tables.start_read(read)
    assert world.next_read() is None
    [failure] = world.failures
    assert isinstance(failure, CorruptRecordError)


def test_store_closes_with_open_snapshots_and_reads_under_way(tmp_path: Path) -> None:
    """LevelDB must not be closed under a snapshot; what was not begun is not read any more."""
    world = LevelDbWorld(tmp_path)
    world.tables.open_channel(CHANNEL, TableMachine())
    write(world, 1, {bytes([n]): b"v" for n in range(200)})
    snapshots = [world.tables.snapshot(CHANNEL) for _ in range(5)]
    read = 0

    def slow(snapshot: Any) -> ReadDone:
        nonlocal read
        read += 1
        for _ in range(50):
            snapshot.page(b"", b"", 300)
        return lambda _now_ms: None

    for snapshot in snapshots * 20:
        world.tables.start_read(lambda snapshot=snapshot: slow(snapshot))
    world.close()
    assert read < 100
    assert world.open_snapshots() == 0
    assert world.failures == []
    with pytest.raises(PersistError, match="they were closed"):
        world.tables.start_read(lambda: pytest.fail)
    for snapshot in snapshots:
        snapshot.close()


def test_a_query_that_does_not_end_holds_up_no_read_and_no_end_of_the_node(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is code of somebody else: nobody takes it for a disk that hangs (S0.4)."""
    monkeypatch.setattr("raftstore.storage.tables.snapshots.QUERY_WAIT_S", 0.01)
    world = LevelDbWorld(tmp_path)
    world.tables.open_channel(CHANNEL, TableMachine())
    write(world, 1, {b"a": b"1"})
    begun, may_end = Event(), Event()
    late: list[Any] = []
    stalls = StallWatch()
    world.tables._snapshots.note_reads(stalls, tmp_path)

    def endless() -> ReadDone:
        begun.set()
        may_end.wait(10)
        late.append(snapshot.page(b"", b"", 9))
        return pytest.fail

    snapshot = world.tables.snapshot(CHANNEL)
    world.tables.start_query(endless)
    assert begun.wait(10)
    assert [stalls.oldest(area) for area in Area] == [None] * len(Area)
    seen: list[int] = []
    world.tables.start_read(lambda: seen.append)
    world.next_read()(7)
    assert seen == [7]
    world.close()
    assert world.open_snapshots() == 0
    may_end.set()
    with pytest.raises(PersistError, match="were closed"):
        snapshot.page(b"", b"", 9)
    asking = world.tables._snapshots._asking
    assert asking is not None
    asking.stop(10)
    assert (late, world.failures) == ([], [])


KEYS = st.sampled_from([b"a", b"ab", b"b", b"\x00", b"\xff"])


class SnapshotMachine(RuleBasedStateMachine):
    """Writes and pinned states in any order: each state pages and counts as it was when made."""

    snapshots: Bundle[Any] = Bundle("snapshots")
    create: Callable[[], Any]
    """Makes the store; given by the machine of each kind of store."""

    def __init__(self) -> None:
        super().__init__()
        self.world: Any = self.create()
        self.world.tables.open_channel(CHANNEL, TableMachine())
        self.rows: dict[bytes, bytes] = {}
        self.seq = 0

    @rule(rows=st.dictionaries(KEYS, st.none() | st.binary(max_size=3), min_size=1))
    def write(self, rows: dict[bytes, bytes | None]) -> None:
        """One record, applied."""
        write(self.world, self.seq + 1, rows)
        self.seq += len(rows)
        for key, value in rows.items():
            if value is None:
                self.rows.pop(key, None)
            else:
                self.rows[key] = value

    @rule(target=snapshots)
    def pin(self) -> Any:
        """Keep the present state."""
        return self.world.tables.snapshot(CHANNEL), dict(self.rows), self.seq

    @rule(pinned=snapshots, limit=st.integers(1, 3), start=KEYS | st.just(b""))
    def page_through(self, pinned: Any, limit: int, start: bytes) -> None:
        """All pages together are the state that was pinned."""
        snapshot, rows, seq = pinned
        seen: dict[bytes, bytes] = {}
        at, more, counted = start, True, 0
        while more:
            page = snapshot.page(at, b"", limit)
            assert page.applied_seq == seq
            seen.update((row.key, row.value) for row in page.rows)
            more = page.more
            at = page.rows[-1].key + b"\0" if page.rows else at
        assert seen == {key: value for key, value in rows.items() if key >= start}
        resume: bytes | None = start
        while resume is not None:
            found, resume = snapshot.count(resume, b"", limit)
            counted += found
        assert counted == len(seen)

    @rule(pinned=consumes(snapshots))
    def close_snapshot(self, pinned: Any) -> None:
        """Close the snapshot."""
        pinned[0].close()

    def teardown(self) -> None:
        self.world.close()


class SimSnapshots(SnapshotMachine):
    """Of the simulated tables."""

    def create(self) -> Any:
        return SimWorld()


class LevelDbSnapshots(SnapshotMachine):
    """Of LevelDB, which is closed under whatever is open at the end."""

    def create(self) -> Any:
        self._holder = tempfile.TemporaryDirectory()
        return LevelDbWorld(Path(self._holder.name))

    def teardown(self) -> None:
        super().teardown()
        self._holder.cleanup()


TestSimSnapshots = pytest.mark.slow(SimSnapshots.TestCase)
TestLevelDbSnapshots = pytest.mark.slow(LevelDbSnapshots.TestCase)
TestLevelDbSnapshots.settings = settings(
    max_examples=settings().max_examples // 2,
    stateful_step_count=25,
    phases=[Phase.explicit, Phase.reuse, Phase.generate],
)
