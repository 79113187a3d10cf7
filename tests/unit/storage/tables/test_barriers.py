"""Barriers: what they say survives a power cut, and what they do where LevelDB says nothing."""

from __future__ import annotations

import random
import shutil
import subprocess
import sys
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import pytest

from raftstore.errors import StorageError
from raftstore.ports.tables import Barrier
from raftstore.protocol.payload import encode_rows
from raftstore.protocol.staged import ChunkHeader, encode_staged
from raftstore.state_machines.table import TableMachine
from raftstore.storage.tables.leveldb_tables import LevelDbTables
from raftstore.testing.sim_tables import SimTables
from raftstore.types import RecordKind, Seq
from tests.piece_worlds import LevelDbWorld, SimWorld, apply_pieces, batch_record, chunk, pieces_of
from tests.storage_helpers import (
    CHANNEL,
    OTHER,
    SMALL,
    STORE_UUID,
    record,
    rows_record,
    table_path,
)

FULL_DISK = """
import resource, sys
from pathlib import Path
from queue import SimpleQueue
from raftstore.config import MIB, StorageSettings
from raftstore.state_machines.table import TableMachine
from raftstore.storage.tables.leveldb_tables import LevelDbTables
from tests.storage_helpers import CHANNEL, STORE_UUID, database_of, rows_record, table_path

directory, what = Path(sys.argv[1]), sys.argv[2]
settings = StorageSettings(write_buffer_bytes=64 * MIB)
LevelDbTables.create(directory, STORE_UUID, settings)
tables = LevelDbTables.open(directory, STORE_UUID, settings)
tables.open_channel(CHANNEL, TableMachine())
for n in range(1, 9):
    tables.apply(CHANNEL, [rows_record(n, {b"%d" % n: bytes([n]) * 500_000})])
tables.apply_queued()
# The write-ahead log has them; no file may get longer than this from now on.
resource.setrlimit(resource.RLIMIT_FSIZE, (1 * MIB, resource.RLIM_INFINITY))
told = []
if what == "compact_range":
    returned = database_of(tables).compact_range(start=b"\\xff" * 20, stop=b"\\xff" * 21)
    print("returned", returned, "files", len(list(table_path(directory).glob("*.ldb"))))
else:
    calls = SimpleQueue()
    tables.start(
        post=calls.put,
        on_applied=told.append,
        on_failed=lambda error: told.append(str(error)),
        on_read=lambda done: done(0),
    )
    tables.start_barrier(CHANNEL, lambda barrier, _: told.append(barrier))
    calls.get(timeout=20)()
    print(told)
    try:
        tables.applied_seq(CHANNEL), tables.get(CHANNEL, b"1")
    except Exception as error:
        print(type(error).__name__, error)
tables.close()
"""


def on_full_disk(directory: Path, what: str) -> str:
    """Output of a process whose disk is full while a memory table has 4 MB."""
    done = subprocess.run(
        [sys.executable, "-c", FULL_DISK, str(directory), what],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    return done.stdout


def staged(seq: int, number: int) -> Any:
    """A record of staged rows."""
    header = ChunkHeader("w", 1, 0, 0, number)
    payload = encode_staged(header, encode_rows([(b"k", None)]))
    return record(seq, kind=RecordKind.STAGED, payload=payload)


class Started:
    """Tables with their threads, whose calls the test runs."""

    def __init__(self, directory: Path) -> None:
        LevelDbTables.create(directory, STORE_UUID, SMALL)
        self.tables = LevelDbTables.open(directory, STORE_UUID, SMALL)
        self.calls: SimpleQueue[Any] = SimpleQueue()
        self.failures: list[StorageError] = []
        self.barriers: list[Barrier] = []
        self.applied = 0
        self.tables.open_channel(CHANNEL, TableMachine())
        self.tables.start(
            post=self.calls.put,
            on_applied=self._applied,
            on_failed=self.failures.append,
            on_read=lambda done: done(0),
        )

    def _applied(self, *_: object) -> None:
        self.applied += 1

    def apply(self, *records: Any) -> None:
        """Apply records and wait for them."""
        self.applied = 0
        self.tables.apply(CHANNEL, records)
        while not self.applied:
            self.calls.get(timeout=20)()

    def barrier(self) -> Barrier:
        """Take one and wait for it."""
        self.tables.start_barrier(CHANNEL, lambda barrier, _: self.barriers.append(barrier))
        self.calls.get(timeout=20)()
        return self.barriers.pop()


def after_power_cut(directory: Path, copy: Path) -> LevelDbTables:
    """The tables that the next start finds, when no write-ahead log was synced by anybody."""
    shutil.copytree(directory, copy)
    for path in table_path(copy).glob("*.log"):
        path.write_bytes(b"")
    tables = LevelDbTables.open(copy, STORE_UUID, SMALL)
    tables.open_channel(CHANNEL, TableMachine())
    return tables


@pytest.mark.slow
def test_r5_2a_compact_range_hides_that_its_flush_failed(tmp_path: Path) -> None:
    """The reason for the write behind it: nothing raised, and nothing was written."""
    assert on_full_disk(tmp_path, "compact_range") == "returned None files 0\n"


@pytest.mark.slow
def test_r5_2a_barrier_on_a_full_disk_stops_the_node_and_tells_no_position(tmp_path: Path) -> None:
    """S0.4, S6.4: with a position from here the log would be cut above what a power cut leaves."""
    told, poisoned = on_full_disk(tmp_path, "barrier").splitlines()
    assert "LevelDB failed: " in told
    assert "File too large" in told
    assert "Barrier" not in told
    assert poisoned.startswith("PersistError the tables are not usable any more")


def test_what_a_barrier_tells_survives_a_power_cut(tmp_path: Path) -> None:
    """S6.4; what was applied behind it does not, so the test cuts what it should."""
    (tmp_path / "store").mkdir()
    world = Started(tmp_path / "store")
    for seq in range(1, 6):
        world.apply(rows_record(seq, {b"%d" % seq: b"x"}))
    assert after_power_cut(tmp_path / "store", tmp_path / "before").applied_seq(CHANNEL) == 0
    assert world.barrier() == Barrier(Seq(5), Seq(5))
    world.apply(rows_record(6, {b"6": b"x"}))
    kept = after_power_cut(tmp_path / "store", tmp_path / "after")
    assert kept.applied_seq(CHANNEL) == 5
    assert [kept.get(CHANNEL, b"%d" % seq) is None for seq in range(1, 7)] == [False] * 5 + [True]
    kept.close()
    world.tables.close()


def test_barrier_of_a_channel_without_a_database_is_at_the_beginning(tmp_path: Path) -> None:
    """Nothing is applied, and no directory is made for it."""
    world = Started(tmp_path)
    world.tables.open_channel(OTHER, TableMachine())
    world.tables.start_barrier(OTHER, lambda barrier, _: world.barriers.append(barrier))
    world.calls.get(timeout=20)()
    assert world.barriers == [Barrier(Seq(0), Seq(0))]
    world.tables.close()


def test_table_that_is_dropped_meanwhile_is_closed_behind_its_barrier(tmp_path: Path) -> None:
    """LevelDB must not be closed under a flush."""
    world = Started(tmp_path)
    world.apply(rows_record(1, {b"k": b"x"}))
    world.tables.start_barrier(CHANNEL, lambda barrier, _: world.barriers.append(barrier))
    world.tables.drop(CHANNEL)
    world.calls.get(timeout=20)()
    assert world.barriers == [Barrier(Seq(1), Seq(1))]
    world.tables.close()
    assert not world.failures


def test_barriers_that_wait_when_the_tables_are_closed_are_not_taken(tmp_path: Path) -> None:
    """Their databases are closed in peace."""
    world = Started(tmp_path)
    world.apply(rows_record(1, {b"k": b"x"}))
    world.barrier()
    barriers = world.tables._barriers
    assert barriers._worker is not None
    barriers._worker.submit(barriers._is_closing.wait)
    for _ in range(3):
        world.tables.start_barrier(CHANNEL, lambda barrier, _: world.barriers.append(barrier))
    world.tables.close()
    while not world.calls.empty():
        world.calls.get()()
    assert not world.barriers
    assert not world.failures


def test_i1_base_stays_below_the_oldest_staged_record(tmp_path: Path) -> None:
    """S6.5: staged rows are in the log alone until their batch is applied."""
    world = Started(tmp_path)
    simulated = SimTables()
    simulated.open_channel(CHANNEL, TableMachine())
    for one in (rows_record(1, {b"k": b"x"}), staged(2, 1), staged(3, 2), staged(4, 0)):
        world.apply(one)
        simulated.apply(CHANNEL, [one])
        simulated.apply_next()
    assert world.barrier() == Barrier(Seq(4), Seq(1))
    told: list[Barrier] = []
    simulated.start_barrier(CHANNEL, lambda barrier, _: told.append(barrier))
    simulated.read_next()(0)
    assert told == [Barrier(Seq(4), Seq(1))]
    world.tables.close()


def test_simulated_crash_takes_back_nothing_from_before_a_barrier() -> None:
    """It may take back anything behind the barrier, even what was applied while it was taken."""
    kept = set()
    for seed in range(30):
        tables = SimTables()
        told: list[Barrier] = []
        for channel in (CHANNEL, OTHER):
            tables.open_channel(channel, TableMachine())
        for seq in range(1, 11):
            for channel in (CHANNEL, OTHER):
                tables.apply(channel, [rows_record(seq, {b"%d" % seq: b"x"})])
                tables.apply_next()
            if seq == 4:
                tables.start_barrier(CHANNEL, lambda barrier, _, told=told: told.append(barrier))
        tables.read_next()(0)
        assert told == [Barrier(Seq(4), Seq(4))]
        tables.crash(random.Random(seed))
        kept.add((tables.stored_position(CHANNEL).seq, tables.stored_position(OTHER).seq < 4))
        assert tables.stored_position(CHANNEL).seq >= 4
    assert {seq for seq, _ in kept} > {4, 10}, "behind the barrier anything may be lost"
    assert (4, True) in kept, "the other channel's are no part of it"


@pytest.mark.parametrize("kind", ["leveldb", "simulated"])
def test_barrier_within_a_batch_is_of_the_state_before_it(kind: str, tmp_path: Path) -> None:
    """S10: half a batch has no position; the chunks that it lists are still needed."""
    world: Any = LevelDbWorld(tmp_path) if kind == "leveldb" else SimWorld()
    tables = world.tables
    tables.apply(CHANNEL, [rows_record(1, {b"old": b"x"})])
    world.drain()
    pieces = pieces_of(batch_record(2), [[chunk([(b"%d" % n, b"y")])] for n in range(3)])
    apply_pieces(world, pieces[:1])
    told: list[Barrier] = []
    if kind == "simulated":
        tables.start_barrier(CHANNEL, lambda barrier, _: told.append(barrier))
        tables.read_next()(0)
    else:
        done: SimpleQueue[Any] = SimpleQueue()
        tables._post, tables._on_read = done.put, lambda one: one(0)
        tables.start_barrier(CHANNEL, lambda barrier, _: told.append(barrier))
        done.get(timeout=20)()
    assert told == [Barrier(Seq(1), Seq(1))]
    world.close()
