"""Merging on purpose: when it is worth it, what it gives back, and what it must not break."""

from __future__ import annotations

import random
from itertools import pairwise
from pathlib import Path
from queue import SimpleQueue
from threading import Event
from types import SimpleNamespace
from typing import Any

import plyvel
import pytest

from raftstore.config import KIB, MIB, StorageSettings
from raftstore.errors import StorageError
from raftstore.ports.tables import MergeStep, Piece
from raftstore.state_machines.table import TableMachine
from raftstore.storage.tables import merges
from raftstore.storage.tables.keys import (
    STATE_START,
    channel_end,
    decode_count,
    encode_count,
    rows_prefix,
)
from raftstore.storage.tables.leveldb_tables import LevelDbTables
from raftstore.storage.tables.merges import (
    GROWTH_BYTES_MAX,
    QUIET_SLACK_BYTES,
    Merges,
    are_removed,
    bytes_in,
    has_grown,
    key_within,
)
from raftstore.types import Seq
from tests.piece_worlds import batch_record
from tests.storage_helpers import CHANNEL, OTHER, STORE_UUID, rows_record, table_path

SETTINGS = StorageSettings(write_buffer_bytes=1 * MIB, block_cache_bytes=1 * MIB)
TEXT = random.Random(1).randbytes(10_000)
ROWS = 20
QUIET: dict[str, bool] = {"is_quiet": True, "is_urgent": False}


class Tables:
    """Tables with their threads, whose calls the test runs."""

    def __init__(self, directory: Path, *, is_new: bool = True) -> None:
        self.directory = directory
        if is_new:
            LevelDbTables.create(directory, STORE_UUID, SETTINGS)
        self.tables = LevelDbTables.open(directory, STORE_UUID, SETTINGS)
        self.calls: SimpleQueue[Any] = SimpleQueue()
        self.failures: list[StorageError] = []
        self.steps: list[MergeStep] = []
        self.seq = self.tables.open_channel(CHANNEL, TableMachine())
        self.is_applied = False
        self.tables.start(
            post=self.calls.put,
            on_applied=self._applied,
            on_failed=self.failures.append,
            on_read=lambda done: done(0),
        )

    def _applied(self, *_: object) -> None:
        self.is_applied = True

    def apply(self, rows: dict[bytes, bytes | None]) -> None:
        """Apply a record of rows and wait for it."""
        self.seq = Seq(self.seq + len(rows))
        record = rows_record(self.seq - len(rows) + 1, rows)
        self.is_applied = False
        self.tables.apply(CHANNEL, [record])
        while not self.is_applied:
            self.calls.get(timeout=20)()

    def update(self, times: int = 1) -> None:
        """Write all rows again so often."""
        for _ in range(times):
            self.apply({b"%03d" % number: TEXT for number in range(ROWS)})

    def merge(self, *, is_quiet: bool = True, is_urgent: bool = False) -> MergeStep:
        """Take a step and wait for it."""
        self.tables.start_merge(
            CHANNEL, lambda step, _: self.steps.append(step), is_quiet=is_quiet, is_urgent=is_urgent
        )
        while not self.steps:
            self.calls.get(timeout=20)()
        return self.steps.pop()

    def size(self) -> int:
        """Bytes of the files of the channel."""
        return bytes_in(table_path(self.directory))


@pytest.fixture
def world(tmp_path: Path) -> Any:
    """Tables that are closed at the end."""
    made = Tables(tmp_path)
    yield made
    made.tables.close()
    assert not made.failures


# --- what it gives back ---------------------------------------------------------------------------


def test_updates_of_a_small_table_are_given_back(world: Tables) -> None:
    """NATS-180: twenty rows of ten kilobytes, written twenty times; a fifth of all that stays."""
    world.update(20)
    before = list(world.tables.scan(CHANNEL, b"", b"", 100).rows)
    assert world.size() > 3 * MIB
    step = world.merge()
    assert (step.is_merged, step.is_over, step.waits) == (True, True, False)
    assert step.bytes_before > 3 * MIB
    assert step.bytes_after <= world.size() < 250 * KIB
    assert list(world.tables.scan(CHANNEL, b"", b"", 100).rows) == before
    assert world.merge() == MergeStep(), "nothing is left to be merged"


def test_removed_rows_are_given_back_although_the_table_did_not_grow(world: Tables) -> None:
    """LevelDB keeps them until enough else is written."""
    world.update(1)
    world.apply({b"a%03d" % number: TEXT for number in range(100)})
    world.merge()
    full = world.size()
    assert full > 1_100 * KIB
    world.apply({b"a%03d" % number: None for number in range(100)})
    assert world.merge().is_merged
    assert world.size() < full // 4


def test_removals_are_remembered_over_a_restart(tmp_path: Path) -> None:
    """The next start knows that there is something to give back."""
    world = Tables(tmp_path)
    world.apply({b"a%03d" % number: TEXT for number in range(100)})
    world.merge()
    world.apply({b"a%03d" % number: None for number in range(100)})
    world.tables.close()
    again = Tables(tmp_path, is_new=False)
    assert again.merge().bytes_after < 100 * KIB
    again.tables.close()
    third = Tables(tmp_path, is_new=False)
    assert third.merge() == MergeStep(), "what was given back counts no more"
    third.tables.close()


def test_replaced_rows_of_an_overwriting_batch_are_given_back(world: Tables) -> None:
    """Its pieces remove what was there."""
    world.apply({b"a%03d" % number: TEXT for number in range(100)})
    world.merge()
    record = batch_record(world.seq + 1)
    pieces = [Piece(record, first=True, last=False, truncate_from=b""), Piece(record, False, True)]
    for piece in pieces:
        world.is_applied = False
        world.tables.apply_piece(CHANNEL, piece)
        while not world.is_applied:
            world.calls.get(timeout=20)()
    assert world.size() > 900 * KIB
    assert world.merge().bytes_after < 100 * KIB


def test_table_of_new_rows_alone_is_not_merged_at_each_doubling(world: Tables) -> None:
    """It is worth it when it is quiet; while it is written to, only four times as much is."""
    world.apply({b"a%03d" % number: TEXT for number in range(100)})
    assert world.merge().is_merged
    world.apply({b"b%03d" % number: TEXT for number in range(150)})
    assert world.merge(is_quiet=False) == MergeStep()
    assert world.merge().is_merged


def test_channel_without_a_database_has_nothing_to_merge(world: Tables) -> None:
    """No database is made for it."""
    world.tables.open_channel(OTHER, TableMachine())
    world.tables.start_merge(OTHER, lambda step, _: world.steps.append(step), **QUIET)
    while not world.steps:
        world.calls.get(timeout=20)()
    assert world.steps == [MergeStep()]


# --- readers --------------------------------------------------------------------------------------


def test_merge_for_growth_waits_for_snapshots_unless_it_is_urgent(world: Tables) -> None:
    """All that they show stays, and all that was written since. It is given back once nothing shows
    it any more, although the table did not grow behind that merge."""
    world.update(10)
    world.merge()
    snapshot = world.tables.snapshot(CHANNEL)
    world.update(20)
    assert world.merge().waits
    step = world.merge(is_urgent=True)
    assert (step.is_merged, step.keeps) == (True, True)
    assert step.bytes_after > 2 * MIB
    for is_urgent in (False, True):
        assert world.merge(is_urgent=is_urgent).waits, "it would give nothing back"
    assert len(snapshot.page(b"", b"", 1_000).rows) == ROWS
    snapshot.close()
    assert world.merge(is_quiet=False) == MergeStep(), "as long as it is written to there is time"
    step = world.merge()
    assert (step.is_merged, step.keeps) == (True, False)
    assert step.bytes_after < 250 * KIB
    assert world.merge() == MergeStep()


def test_merge_for_removed_rows_waits_until_nothing_shows_them(world: Tables) -> None:
    """However long: it would give nothing back, and be due again at once."""
    world.apply({b"a%03d" % number: TEXT for number in range(100)})
    world.merge()
    snapshot = world.tables.snapshot(CHANNEL)
    world.apply({b"a%03d" % number: None for number in range(100)})
    for is_urgent in (False, True):
        step = world.merge(is_urgent=is_urgent)
        assert (step.waits, step.is_merged) == (True, False)
    assert len(snapshot.page(b"", b"", 1_000).rows) == 100
    snapshot.close()
    assert world.merge().bytes_after < 100 * KIB


def test_large_rows_that_a_few_small_ones_replaced_are_given_back(world: Tables) -> None:
    """Those that are there say nothing of how much those took that are not."""
    world.apply({b"a%03d" % number: TEXT for number in range(100)})
    world.merge()
    assert world.size() > 900 * KIB
    world.apply({b"a%03d" % number: None for number in range(100)} | {b"z": b"small"})
    step = world.merge()
    assert (step.is_merged, step.keeps) == (True, False)
    assert step.bytes_after < 100 * KIB


@pytest.mark.parametrize("rows", [60, 200])
def test_one_removed_row_of_many_is_worth_no_merge(world: Tables, rows: int) -> None:
    """Neither where all rows that there are were looked at, nor where some were."""
    world.apply({b"a%03d" % number: TEXT for number in range(rows)})
    world.merge()
    world.apply({b"a001": None})
    assert world.merge() == MergeStep()


def test_state_of_a_machine_beside_few_rows_is_no_removed_row(world: Tables) -> None:
    """Each removal of a row would have all of it merged."""
    world.apply({b"a%03d" % number: b"small" for number in range(10)})
    source = world.tables._databases[CHANNEL].source
    source.put(CHANNEL + STATE_START + b"large", random.Random(2).randbytes(3 * MIB))
    world.merge()
    assert world.size() > 3 * MIB
    world.apply({b"a001": None})
    assert world.merge() == MergeStep()


def test_rows_removed_before_the_oldest_snapshot_are_given_back_at_once(world: Tables) -> None:
    """While overwriting batches follow each other, states of before are kept all the time: a merge
    that waited for all of them would leave everything that was ever replaced on the disk."""
    world.apply({b"a%03d" % number: TEXT for number in range(100)})
    world.merge()
    world.apply({b"a%03d" % number: None for number in range(100)})
    world.apply({b"b%03d" % number: TEXT for number in range(50)})
    snapshot = world.tables.snapshot(CHANNEL)
    world.apply({b"b%03d" % number: None for number in range(50)})
    world.apply({b"c%03d" % number: TEXT for number in range(10)})
    step = world.merge()
    assert (step.is_merged, step.keeps) == (True, True)
    assert 600 * KIB > step.bytes_after > 500 * KIB, "the fifty rows that the snapshot shows"
    assert len(snapshot.page(b"", b"", 1_000).rows) == 50
    assert world.merge().waits, "of what it shows nothing was given back"
    snapshot.close()
    assert world.merge().bytes_after < 150 * KIB
    assert world.merge() == MergeStep()


def merge_beside_a_reader(world: Tables) -> None:
    """Remove 600 rows while somebody reads them: a merge keeps all."""
    world.apply({b"a%03d" % number: TEXT for number in range(600)})
    world.merge()
    snapshot = world.tables.snapshot(CHANNEL)
    world.apply({b"a%03d" % number: None for number in range(600)})
    world.apply({b"b%03d" % number: TEXT for number in range(400)})
    assert world.merge().waits
    step = world.merge(is_urgent=True)
    assert (step.is_merged, step.keeps) == (True, True)
    assert step.bytes_after > 9_000 * KIB
    snapshot.close()


def test_rows_that_a_reader_had_a_merge_keep_in_many_files_are_given_back(world: Tables) -> None:
    """LevelDB leaves files of its last level as they are that nothing above overlaps."""
    merge_beside_a_reader(world)
    step = world.merge()
    assert (step.is_merged, step.keeps) == (True, False)
    assert step.bytes_after < 4_300 * KIB
    assert len(world.tables.scan(CHANNEL, b"", b"", 1_000).rows) == 400
    assert world.merge() == MergeStep(), "nothing is kept any more"


def test_rows_that_a_reader_had_a_merge_keep_are_given_back_behind_a_restart(
    tmp_path: Path,
) -> None:
    """The reader is forgotten then; how many rows were removed is not."""
    world = Tables(tmp_path)
    merge_beside_a_reader(world)
    world.tables.close()
    again = Tables(tmp_path, is_new=False)
    assert again.merge().bytes_after < 4_300 * KIB
    assert again.merge() == MergeStep()
    again.tables.close()


def test_older_versions_that_a_reader_had_a_merge_keep_are_given_back_behind_a_restart(
    tmp_path: Path,
) -> None:
    """No row was removed, so only that merge can say that it kept something."""
    world = Tables(tmp_path)
    world.apply({b"a%03d" % number: TEXT for number in range(600)})
    world.merge()
    snapshot = world.tables.snapshot(CHANNEL)
    world.apply({b"a%03d" % number: TEXT[::-1] for number in range(600)})
    step = world.merge(is_urgent=True)
    assert (step.is_merged, step.keeps) == (True, True)
    assert step.bytes_after > 11_000 * KIB
    snapshot.close()
    world.tables.close()
    again = Tables(tmp_path, is_new=False)
    step = again.merge()
    assert (step.is_merged, step.keeps) == (True, False)
    assert step.bytes_after < 6_500 * KIB
    assert len(again.tables.scan(CHANNEL, b"", b"", 1_000).rows) == 600
    again.tables.close()
    last = Tables(tmp_path, is_new=False)
    assert last.merge() == MergeStep(), "nothing is kept any more"
    last.tables.close()


def test_rows_written_while_a_table_was_merged_are_merged_when_it_is_quiet(
    world: Tables, monkeypatch: pytest.MonkeyPatch
) -> None:
    """NATS-180: they lie in LevelDB's own log behind that merge, whose size counts them; by that
    size alone the table would never have grown."""
    world.update(30)
    measured = merges.bytes_in

    def written_meanwhile(path: Path) -> int:
        if len(sizes) == 1:  # behind the merge, before its size is taken
            source = world.tables._databases[CHANNEL].source
            for _ in range(3):
                source.put(CHANNEL + STATE_START + b"busy", random.Random(3).randbytes(300_000))
        sizes.append(measured(path))
        return sizes[-1]

    sizes = list[int]()
    monkeypatch.setattr(merges, "bytes_in", written_meanwhile)
    assert world.merge(is_quiet=False).is_merged
    monkeypatch.undo()
    full = world.size()
    step = world.merge()
    assert (step.is_merged, step.keeps) == (True, False)
    assert step.bytes_after < full - 500_000
    assert world.merge() == MergeStep(), "once"


def test_table_of_which_a_merge_kept_something_is_not_merged_all_the_time(world: Tables) -> None:
    """A next life has to know of it; in this one the table is due when it has grown again."""
    world.update(10)
    world.merge()
    snapshot = world.tables.snapshot(CHANNEL)
    world.update(20)
    assert world.merge(is_urgent=True).keeps
    assert world.merge(is_urgent=True, is_quiet=False) == MergeStep()
    snapshot.close()


@pytest.mark.parametrize(
    ("size", "is_quiet", "is_kept", "due"),
    [
        (QUIET_SLACK_BYTES + 1, True, True, True),
        (QUIET_SLACK_BYTES, True, True, False),
        (GROWTH_BYTES_MAX, True, True, True),
        (GROWTH_BYTES_MAX + 1, True, True, False),
        (MIB, False, True, False),
        (MIB, True, False, False),
    ],
)
def test_quiet_table_may_have_something_that_readers_had_its_last_merge_keep(
    size: int, is_quiet: bool, is_kept: bool, due: bool
) -> None:
    """A large table is not written anew for it: it may be little."""
    for kept, busy in ((is_kept, False), (False, is_kept)):
        state = SimpleNamespace(is_kept_for_readers=kept, was_merged_busy=busy)
        job: Any = SimpleNamespace(is_quiet=is_quiet, state=state)
        assert Merges._may_have_kept(job, size) is due


def test_row_at_the_border_of_two_ranges_stays(
    world: Tables, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No row can have the keys that have LevelDB write all files of a range anew."""
    world.apply({b"a%03d" % number: TEXT for number in range(100)})
    world.merge()
    world.apply({b"a%03d" % number: None for number in range(60)})
    borders = [rows_prefix(CHANNEL) + b"a080", channel_end(CHANNEL)]
    monkeypatch.setattr(merges, "key_within", lambda *_: borders.pop(0))
    assert not world.merge().is_over
    assert world.merge().is_over
    rows = world.tables.scan(CHANNEL, b"", b"", 100).rows
    assert [row.key for row in rows] == [b"a%03d" % number for number in range(60, 100)]


def test_table_that_is_dropped_meanwhile_is_closed_behind_its_merge(tmp_path: Path) -> None:
    """LevelDB must not be closed under it; nobody needs what it leads to."""
    world = Tables(tmp_path)
    world.update(1)
    world.merge()
    world.update(20)
    begins, is_retired = Event(), Event()
    assert world.tables._merges._worker is not None
    world.tables._merges._worker.submit(begins.wait)
    world.tables.start_merge(CHANNEL, lambda step, _: world.steps.append(step), **QUIET)
    world.tables.drop(CHANNEL)
    world.tables._applier.enqueue_job(is_retired.set)
    assert is_retired.wait(timeout=20)
    assert world.tables._removing is None
    begins.set()
    while not world.steps:
        world.calls.get(timeout=20)()
    assert world.steps[0].is_merged
    world.tables.close()
    assert not world.failures


def test_merges_that_wait_when_the_tables_are_closed_are_not_taken(tmp_path: Path) -> None:
    """Their databases are closed in peace."""
    world = Tables(tmp_path)
    world.update(20)
    merging = world.tables._merges
    world.merge()
    assert merging._worker is not None
    merging._worker.submit(merging._is_closing.wait)
    for _ in range(3):
        world.tables.start_merge(CHANNEL, lambda step, _: world.steps.append(step), **QUIET)
    world.tables.close()
    while not world.calls.empty():
        world.calls.get()()
    assert not world.steps
    assert not world.failures


# --- large tables ---------------------------------------------------------------------------------


def test_large_table_is_merged_a_range_of_keys_at_a_time(
    world: Tables, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each step is bounded, and only the last one says how much the table takes."""
    monkeypatch.setattr(merges, "RANGE_BYTES_MAX", 300 * KIB)
    for _ in range(3):
        for start in range(0, 100, 50):
            world.apply({b"%05d" % number: TEXT for number in range(start, start + 50)})
    steps = [world.merge()]
    while not steps[-1].is_over:
        steps.append(world.merge())
    assert len(steps) > 3
    assert all(step.is_merged for step in steps)
    assert steps[-1].bytes_before == steps[0].bytes_before > 2_900 * KIB
    assert steps[-1].bytes_after < 1_200 * KIB
    assert len(world.tables.scan(CHANNEL, b"", b"", 1_000).rows) == 100
    assert world.merge() == MergeStep()


def test_ranges_follow_each_other_and_are_about_as_large_as_they_may_be() -> None:
    """Keys of one size, close together, as integers in order are."""
    keys = [b"%018d" % 7 + b"\x01" + number.to_bytes(8, "big") for number in range(10_000)]

    def size_of(start: bytes, stop: bytes) -> int:
        return 100 * sum(1 for key in keys if start <= key < stop)

    at, stop = b"%018d" % 7, b"%018d" % 7 + b"\xff"
    cuts = [at]
    while at != stop:
        at = key_within(size_of, at, stop, 250_000)
        cuts.append(at)
    assert cuts == sorted(set(cuts))
    sizes = [size_of(*pair) for pair in pairwise(cuts)]
    assert sum(sizes) == 1_000_000
    assert all(size <= 250_000 for size in sizes)
    assert all(size >= 125_000 for size in sizes[:-1])


def test_range_whose_keys_cannot_be_told_apart_is_taken_whole() -> None:
    """Each step goes on, whatever the keys."""
    same = b"c" * 18 + b"\x01" + b"x" * 100

    def size_of(start: bytes, stop: bytes) -> int:
        return 1_000_000 if start <= same < stop else 0

    cut = key_within(size_of, b"c" * 18, b"c" * 18 + b"\xff", 1_000)
    assert b"c" * 18 < cut <= b"c" * 18 + b"\xff"
    assert cut > same


# --- when it is worth it --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("size", "merged", "removed", "due"),
    [
        (3_100, 1_000, 0, True),
        (3_000, 1_000, 0, False),
        (1_001, 0, 0, True),
        (1_000, 0, 0, False),
        (257 * MIB, 1_000, 0, False),
        (257 * MIB, 1_000, 86 * MIB, True),
        (257 * MIB, 1_000, 85 * MIB, False),
        (2_900, 1_000, 1_001, True),
        (2_900, 1_000, 1_000, False),
    ],
)
def test_growth_by_a_factor_or_a_third_that_was_removed_is_worth_a_merge(
    size: int, merged: int, removed: int, due: bool
) -> None:
    """Beside a slack of a thousand bytes; growth alone only of a table that is not large."""
    is_grown = has_grown(size, merged, slack_bytes=1_000, factor=2)
    assert (is_grown or are_removed(size, removed, slack_bytes=1_000)) is due


def test_damaged_number_counts_as_none() -> None:
    """It decides only what is worth doing."""
    stored = encode_count(77)
    assert decode_count(stored) == 77
    assert decode_count(None) == 0
    assert decode_count(stored[:-1]) == 0
    assert decode_count(stored[:5] + bytes([stored[5] ^ 1]) + stored[6:]) == 0


# --- errors ---------------------------------------------------------------------------------------


class Failing:
    """A database whose merge fails in silence, as LevelDB's does: only writes show it."""

    def __init__(self, database: Any) -> None:
        self._database = database

    def __getattr__(self, name: str) -> Any:
        return getattr(self._database, name)

    def write_batch(self) -> Any:
        raise plyvel.IOError("No space left on device")


def test_s0_4_merge_that_failed_stops_the_node(tmp_path: Path) -> None:
    """``compact_range`` says nothing: the write behind it does."""
    world = Tables(tmp_path)
    world.update(20)
    database = world.tables._databases[CHANNEL]
    whole, database.source = database.source, Failing(database.source)
    world.tables.start_merge(CHANNEL, lambda step, _: world.steps.append(step), **QUIET)
    while not world.failures:
        world.calls.get(timeout=20)()
    assert "No space left" in str(world.failures[0])
    assert not world.steps
    with pytest.raises(StorageError, match="not usable any more"):
        world.tables.get(CHANNEL, b"001")
    database.source = whole
    world.tables.close()
