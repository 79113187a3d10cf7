"""The database of one channel: made once, and closed when nobody reads it any more."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from threading import Thread
from typing import Any

import pytest

from raftstore.storage.tables.channel_database import NOTHING, ChannelDatabase
from raftstore.types import History, Seq, Term

POSITION = History(Term(3), Seq(14))


class Snapshot:
    """A snapshot that notes that it was closed."""

    def __init__(self) -> None:
        self.is_closed = False

    def close(self) -> None:
        self.is_closed = True


class Source:
    """A database that notes what is done with it."""

    def __init__(self) -> None:
        self.snapshots: list[Snapshot] = []
        self.closed = 0

    def write_batch(self) -> object:
        return ("batch of", self)

    def snapshot(self) -> Snapshot:
        self.snapshots.append(Snapshot())
        return self.snapshots[-1]

    def close(self) -> None:
        self.closed += 1


class Bench:
    """A channel's database whose making, using and ending is noted."""

    def __init__(self, source: Any = NOTHING) -> None:
        self.made: list[Source] = []
        self.unused: list[ChannelDatabase] = []
        self.queued: list[Callable[[], None]] = []
        self.futures: list[Future[None]] = []
        self.database = ChannelDatabase(source, self._make, self.unused.append)

    def _make(self) -> Source:
        self.made.append(Source())
        return self.made[-1]

    def run(self, job: Callable[[], None]) -> Future[None]:
        """Of another thread, which gets to it later."""
        self.queued.append(job)
        self.futures.append(Future())
        return self.futures[-1]

    def run_queued(self) -> None:
        """That thread gets to it."""
        self.queued.pop()()
        self.futures[-1].set_result(None)


def test_database_is_made_with_its_first_batch_alone() -> None:
    """A channel of which nothing is applied has no files."""
    bench = Bench()
    assert not bench.database.exists
    assert bench.database.write_batch() == ("batch of", bench.database.source)
    assert bench.database.exists
    bench.database.write_batch()
    assert bench.made == [bench.database.source]


def test_database_is_prepared_once_and_used_by_the_first_batch() -> None:
    """However often it is announced, before it is there and after."""
    bench = Bench()
    for _ in range(2):
        bench.database.prepare(bench.run)
    assert len(bench.queued) == 1
    assert not bench.database.exists
    bench.run_queued()
    assert bench.database.write_batch() == ("batch of", bench.made[0])
    bench.database.prepare(bench.run)
    assert bench.queued == []
    assert len(bench.made) == 1


def test_database_that_is_there_is_not_prepared() -> None:
    """As it is found at a start."""
    source = Source()
    bench = Bench(source)
    bench.database.prepare(bench.run)
    assert bench.queued == []
    assert bench.database.write_batch() == ("batch of", source)


def test_failed_preparation_is_the_error_of_the_first_batch() -> None:
    """S0.4: it is not tried again behind the error's back."""
    bench = Bench()
    bench.database.prepare(bench.run)
    bench.futures[0].set_exception(OSError("no space left"))
    with pytest.raises(OSError, match="no space left"):
        bench.database.write_batch()
    assert bench.made == []


def test_close_waits_for_a_database_in_the_making() -> None:
    """Otherwise its files would stay open, and nobody would know of them."""
    bench = Bench()
    bench.database.prepare(bench.run)
    closing = Thread(target=bench.database.close, daemon=True)
    closing.start()
    closing.join(0.05)
    assert closing.is_alive()
    bench.run_queued()
    closing.join(20)
    assert bench.made[0].closed == 1
    assert not bench.database.exists
    bench.database.close()
    assert bench.made[0].closed == 1
    never_made = Bench()
    never_made.database.close()
    assert never_made.made == []


def test_reader_of_nothing_reads_nothing_for_ever() -> None:
    """The database may be made meanwhile."""
    bench = Bench()
    shared = bench.database.share(lambda _snapshot: POSITION)
    bench.database.write_batch()
    assert bench.made[0].snapshots == []
    snapshot = shared.snapshot
    assert snapshot.get(b"key") is None
    with snapshot.iterator(start=b"a") as pairs:
        assert list(pairs) == []
    with snapshot.snapshot() as inner:
        assert inner.get(b"key") is None
    shared.release()
    bench.database.retire()
    assert bench.unused == [bench.database]


def test_dropped_database_is_unused_when_the_last_snapshot_is_closed() -> None:
    """LevelDB must never be closed under a reader."""
    source = Source()
    bench = Bench(source)
    first, second = (bench.database.share(lambda _snapshot: POSITION) for _ in range(2))
    assert first.applied == POSITION
    first.share()
    bench.database.retire()
    second.release()
    first.release()
    assert [snapshot.is_closed for snapshot in source.snapshots] == [False, True]
    assert bench.unused == []
    first.release()
    assert source.snapshots[0].is_closed
    assert bench.unused == [bench.database]
    assert source.closed == 0, "the one that is told closes it"


def test_readers_of_a_channel_that_stays_never_make_it_unused() -> None:
    """Only a dropped one is; and that one is not read any more."""
    bench = Bench(Source())
    bench.database.share(lambda _snapshot: POSITION).release()
    assert bench.unused == []
    bench.database.retire()
    assert bench.unused == [bench.database]
    with pytest.raises(AssertionError, match="a dropped channel is not read any more"):
        bench.database.share(lambda _snapshot: POSITION)


def test_snapshot_whose_position_cannot_be_read_is_closed() -> None:
    """It would keep a dropped database open for ever."""
    source = Source()
    bench = Bench(source)

    def damaged(_snapshot: object) -> History:
        raise ValueError("damaged position")

    for database_bench in (bench, Bench()):
        with pytest.raises(ValueError, match="damaged position"):
            database_bench.database.share(damaged)
        database_bench.database.retire()
        assert database_bench.unused == [database_bench.database]
    assert [snapshot.is_closed for snapshot in source.snapshots] == [True]
