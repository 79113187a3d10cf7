"""States that readers are shown meanwhile, and what lets go of them: LevelDB must outlive each."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from threading import Event
from typing import Any

import pytest

from raftstore.errors import PersistError
from raftstore.ports.tables import Piece
from raftstore.state_machines.catalog_machine import CatalogMachine
from raftstore.state_machines.table import TableMachine
from raftstore.storage.stalls import Area
from raftstore.storage.tables.applied_channel import AppliedChannel
from raftstore.storage.tables.snapshots import SnapshotReads
from raftstore.storage.tables.views import Shared, Views
from raftstore.types import EMPTY_HISTORY, History, Seq, Term
from tests.storage_helpers import CHANNEL, OTHER, record


class Source:
    """A snapshot of the database that knows whether it is closed."""

    def __init__(self) -> None:
        self.closed = 0

    def close(self) -> None:
        """Count it: LevelDB would crash at the second time."""
        self.closed += 1


def shared(seq: int = 1) -> Shared:
    """A state as of a seq, with one reader."""
    return Shared(Source(), History(Term(1), Seq(seq)))


def closed(state: Shared) -> int:
    """How often its snapshot was closed."""
    count: int = state.snapshot.closed
    return count


def test_snapshot_is_closed_with_its_last_reader() -> None:
    """Once, whichever reader is the last; then that is reported."""
    told: list[str] = []
    state = Shared(Source(), EMPTY_HISTORY, lambda: told.append("closed"))
    assert state.share() is state
    state.share()
    state.release()
    state.release()
    assert (closed(state), told) == (0, [])
    state.release()
    assert (closed(state), told) == (1, ["closed"])
    with pytest.raises(AssertionError, match="a closed snapshot was shared"):
        state.share()


def test_view_is_shown_until_it_ends_and_kept_under_its_label() -> None:
    """Readers of that commit find it both while it is shown and after."""
    views, view = Views(), shared(7)
    assert views.applied_seq(CHANNEL) is None
    views.show(CHANNEL, view, 3)
    assert views.applied_seq(CHANNEL) == 7
    assert views.applied_seq(OTHER) is None
    assert views.at(CHANNEL, 3) is view
    assert views.at(CHANNEL, 4) is views.at(OTHER, 3) is None
    assert views.labels(CHANNEL) == ()
    views.end(CHANNEL)
    assert views.applied_seq(CHANNEL) is None
    assert views.at(CHANNEL, 3) is view
    assert views.labels(CHANNEL) == (3,)
    assert closed(view) == 0
    views.release(CHANNEL, 3)
    assert (closed(view), views.at(CHANNEL, 3), views.labels(CHANNEL)) == (1, None, ())
    views.release(CHANNEL, 3)
    assert closed(view) == 1


@pytest.mark.parametrize(("label", "is_kept"), [(-1, False), (0, True)])
def test_view_without_a_label_is_let_go_of_when_it_ends(label: int, *, is_kept: bool) -> None:
    """Labels begin with 0; an end of what nobody is shown does nothing."""
    views, view = Views(), shared()
    views.show(CHANNEL, view, label)
    views.end(CHANNEL)
    views.end(CHANNEL)
    assert closed(view) == (0 if is_kept else 1)
    assert views.labels(CHANNEL) == ((label,) if is_kept else ())
    views.close()
    assert closed(view) == 1


def test_label_is_of_the_newest_state() -> None:
    """The one that had it before is let go of, and the order is that of ending."""
    views, states = Views(), [shared(seq) for seq in (1, 2, 3)]
    for state, label in zip(states, (5, 4, 5), strict=True):
        views.show(CHANNEL, state, label)
        views.end(CHANNEL)
    assert views.labels(CHANNEL) == (4, 5)
    assert [closed(state) for state in states] == [1, 0, 0]
    assert views.at(CHANNEL, 5) is states[2]


def test_closed_channel_leaves_no_view() -> None:
    """Given one view that is shown and one that is kept, both go, and neither label is found."""
    views = Views()
    kept, shown, other = shared(1), shared(2), shared(3)
    views.show(CHANNEL, kept, 1)
    views.end(CHANNEL)
    views.show(CHANNEL, shown, 2)
    views.show(OTHER, other, 2)
    views.forget(CHANNEL)
    assert [closed(state) for state in (kept, shown, other)] == [1, 1, 0]
    assert views.at(CHANNEL, 2) is views.at(CHANNEL, 1) is None
    assert views.applied_seq(CHANNEL) is None
    views.end(CHANNEL)  # the thread that applies reports the last slice all the same
    views.forget(CHANNEL)
    views.close()
    views.close()
    assert [closed(state) for state in (kept, shown, other)] == [1, 1, 1]


# --- snapshots ------------------------------------------------------------------------------------


def reads() -> SnapshotReads:
    """Without a database: nothing is read here."""
    fake: Any = None
    return SnapshotReads(fake, pytest.fail)


def test_snapshot_that_is_closed_twice_is_released_once() -> None:
    """Its state may have other readers; one that is left open is closed before the database."""
    snapshots, state = reads(), shared(4)
    first, second = snapshots.snapshot(CHANNEL, state), snapshots.snapshot(CHANNEL, state.share())
    assert first.applied_seq == 4
    first.close()
    first.close()
    assert closed(state) == 0
    snapshots.close()
    assert closed(state) == 1
    second.close()
    snapshots.close()
    assert closed(state) == 1


class Stalls:
    """Notes what is asked to be done, and what is done meanwhile."""

    def __init__(self, told: list[Any]) -> None:
        self._told = told

    def doing(self, *what: Any) -> Stalls:
        """Begin."""
        self._told.append(what)
        return self

    def __enter__(self) -> None:
        self._told.append("begun")

    def __exit__(self, *_: object) -> None:
        self._told.append("done")


def test_reads_are_done_in_order_and_watched(tmp_path: Path) -> None:
    """One after the other, on one thread; the database they wait for is named (S0.4)."""
    told: list[Any] = []
    stalls: Any = Stalls(told)
    snapshots = reads()
    snapshots.note_reads(stalls, tmp_path)

    def read(number: int) -> Callable[[], Any]:
        return lambda: told.append(f"read {number}") or number

    is_over = Event()
    for number in (1, 2):
        snapshots.start(read(number), lambda found: told.append(("told", found)))
    snapshots.start(read(3), lambda _: is_over.set())
    assert is_over.wait(20)
    snapshots.close()
    watched = (Area.READS, "a read of LevelDB", tmp_path)
    assert told[:10] == [
        *(watched, "begun", "read 1", "done", ("told", 1)),
        *(watched, "begun", "read 2", "done", ("told", 2)),
    ]


def test_no_read_begins_after_the_end(tmp_path: Path) -> None:
    """Closing waits for the read at hand, and those behind it are left out."""
    told: list[str] = []
    snapshots = reads()

    def read() -> Any:
        told.append("read")
        snapshots._is_closing.set()

    for _ in range(3):
        snapshots.start(read, lambda _: told.append("told"))
    snapshots.close()
    worker = snapshots._worker
    assert worker is not None
    assert not any(thread.is_alive() for thread in worker._threads)
    assert told in (["read", "told"], [])


# --- what is queued -------------------------------------------------------------------------------


def channel(applied: int = 4) -> AppliedChannel:
    """Applied up to a seq, with nothing queued."""
    at = History(Term(1), Seq(applied))
    return AppliedChannel(CHANNEL, TableMachine(), at, EMPTY_HISTORY)


def test_records_are_queued_without_a_gap() -> None:
    """S10: behind what is queued, not behind what is applied."""
    state = channel()
    state.queue([record(5, rows=3), record(8)])
    assert state.queued_seq == 8
    state.queue([])
    for seq in (8, 10):
        expected = (
            f"a record at seq {seq} of channel {CHANNEL.hex()} cannot be applied behind seq 8"
        )
        with pytest.raises(PersistError, match=expected):
            state.queue([record(seq)])
    state.queue([record(9)])
    assert (state.queued_seq, state.applied.seq) == (9, 4)


def piece(seq: int, *, first: bool, last: bool, rows: int = 1) -> Piece:
    """A piece of a record, without rows."""
    return Piece(record(seq, rows=rows), first, last, [])


def test_pieces_of_a_record_follow_each_other_alone() -> None:
    """The first one when everything before is applied; nothing else comes before the last one."""
    state = channel()
    state.queue_piece(piece(5, first=True, last=False, rows=2))
    assert (state.queued_seq, state.in_pieces) == (6, True)
    refused: list[Callable[[], None]] = [
        lambda: state.queue([record(7)]),
        lambda: state.queue_piece(piece(5, first=True, last=False, rows=2)),
        lambda: state.queue_piece(piece(7, first=True, last=True)),
        lambda: state.queue_piece(piece(7, first=False, last=True)),
    ]
    for queue in refused:
        with pytest.raises(PersistError, match="cannot be applied behind seq 6"):
            queue()
    state.queue_piece(piece(5, first=False, last=False, rows=2))
    state.queue_piece(piece(5, first=False, last=True, rows=2))
    assert (state.queued_seq, state.in_pieces) == (6, False)
    with pytest.raises(PersistError, match="a piece of a record at seq 5"):
        state.queue_piece(piece(5, first=False, last=True, rows=2))
    with pytest.raises(PersistError, match="a piece of a record at seq 7"):
        state.queue_piece(piece(7, first=True, last=True))
    state.applied = History(Term(1), Seq(6))
    state.queue_piece(piece(7, first=True, last=True))
    state.queue([record(8)])
    assert (state.queued_seq, state.in_pieces) == (8, False)


def test_machine_that_takes_part_in_batches_is_known() -> None:
    """The catalog's takes none; a record that a crash left in pieces is remembered by its seq."""
    machine = CatalogMachine()
    state = AppliedChannel(OTHER, machine, EMPTY_HISTORY, History(Term(2), Seq(9)))
    assert (state.machine, state.pieces, state.marked_seq) == (machine, None, 9)
    table = channel()
    assert table.pieces is table.machine.pieces is not None
    assert (table.queued_seq, table.unflushed, table.truncated) == (4, (1, 4), None)
