"""The changes of a channel, read from LevelDB's state and from the simulated tables'."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from raftstore.config import ReadSettings
from raftstore.errors import Refusal, StorageError, UnavailableError
from raftstore.protocol.staged import INSERT, MERGE, UPSERT
from raftstore.record_machine import ApplyResult
from raftstore.state_machines import outcomes
from raftstore.state_machines.table import TableMachine
from raftstore.storage.tables import pieces as pieces_module
from raftstore.testing import sim_tables
from raftstore.types import ChannelId, RecordKind
from tests.change_world import ChangeWorld, columns, fold, rows_of
from tests.piece_worlds import LevelDbWorld, SimWorld
from tests.storage_helpers import CHANNEL, record

KEYS = st.sampled_from([b"k%d" % n for n in range(6)])
VALUES = st.one_of(
    st.none(), st.tuples(st.one_of(st.none(), st.integers(0, 9)), st.integers(0, 9))
).map(lambda pair: None if pair is None else columns(*pair))
SOME_ROWS = st.dictionaries(KEYS, VALUES, min_size=1, max_size=4)
PRESENT = VALUES.filter(lambda value: value is not None)
CHUNKS = st.one_of(
    st.tuples(st.sampled_from([UPSERT, MERGE]), SOME_ROWS),
    st.tuples(st.just(INSERT), st.dictionaries(KEYS, PRESENT, min_size=1, max_size=4)),
)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("put"), SOME_ROWS),
        st.tuples(st.just("if"), KEYS, VALUES, st.booleans()),
        st.tuples(st.just("batch"), st.lists(CHUNKS, max_size=3), st.booleans()),
        st.tuples(st.just("crash"), st.integers(0, 12)),
    ),
    max_size=12,
)


@pytest.fixture(params=["leveldb", "sim"])
def new_world(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[..., ChangeWorld]]:
    """Makes empty channels, whose batches are written in slices of a row or two."""
    monkeypatch.setattr(pieces_module, "SLICE_BYTES_MAX", 16)
    monkeypatch.setattr(sim_tables, "SLICE_ROWS", 1)
    monkeypatch.setattr(outcomes, "PIECE_BYTES_MAX", 5)
    made: list[Any] = []

    def make(**more: Any) -> ChangeWorld:
        if request.param == "leveldb":
            directory = tmp_path / str(len(made))
            directory.mkdir()
            made.append(LevelDbWorld(directory))
        else:
            made.append(SimWorld())
        return ChangeWorld(made[-1], **more)

    yield make
    for store in made:
        store.close()


def test_each_kind_of_record_shows_what_it_really_changed(
    new_world: Callable[..., ChangeWorld],
) -> None:
    """Conditions that did not hold are left out, rows that were there are not inserted, merged rows
    are whole, and staged rows are of the batch that they came in with."""
    world = new_world()
    old = {b"a": columns(1, 1), b"b": None, b"e": columns(0, 0)}
    first = world.put(old)
    world.put_if(b"a", columns(2, 2), 0)
    held = world.put_if(b"a", columns(3, None), first.last_seq)
    merged = world.batch(
        (MERGE, {b"a": columns(None, 4), b"c": columns(5, None)}),
        (INSERT, {b"e": columns(6, 6), b"d": columns(7, 7)}),
    )
    replaced = world.batch((UPSERT, {b"z": columns(8, 8)}), truncate=True)
    emptied = world.batch(truncate=True)

    pieces = world.pages()

    told = [(p.seq, p.truncate, p.writer, p.batch_id, rows_of(p)) for p in pieces]
    none = ("", -1)
    batch = (merged.last_seq, False, "orders", 101)
    assert told == [
        (first.last_seq, False, *none, list(old.items())),
        (held.last_seq, False, *none, [(b"a", columns(3, None))]),
        (*batch, [(b"a", columns(3, 4))]),
        (*batch, [(b"c", columns(5, None))]),
        (*batch, [(b"d", columns(7, 7))]),
        (replaced.last_seq, True, "orders", 102, [(b"z", columns(8, 8))]),
        (emptied.last_seq, True, "orders", 103, []),
    ]
    assert [p.timestamp_ms for p in pieces[2:]] == [5_001] * 3 + [5_002, 5_003]
    assert fold(pieces) == world.rows() == {}


@pytest.mark.slow
@settings(max_examples=25)
@given(steps=STEPS, rows_max=st.integers(1, 5))
def test_fold_of_all_changes_is_the_table(steps: Any, rows_max: int) -> None:
    """Given any writes, cut into pieces and pages of any size, the fold of all changes is the
    table; a replica that applied them without a stop gives the same.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sim_tables, "SLICE_ROWS", 1)
        patch.setattr(outcomes, "PIECE_BYTES_MAX", 5)
        world, calm = ChangeWorld(SimWorld()), ChangeWorld(SimWorld())
        for step in steps:
            write(world, step)
        pieces = world.pages()
        assert fold(pieces) == world.rows()
        assert world.pages(rows_max=rows_max) == pieces
        assert world.pages(bytes_max=1) == pieces
        for number in range(len(steps) + 1):
            position = max(1, world.end * number // (len(steps) + 1))
            boundary = world.ends(to_seq=min(position, world.end), rows_max=10**9).reached
            head = world.pages(to_seq=boundary) if boundary else []
            assert head + world.pages(after=boundary) == pieces
        # Another replica, which has the same log and never stopped.
        calm.log, calm.end = world.log, world.end
        calm.open()
        assert (calm.pages(), calm.rows()) == (pieces, world.rows())


def write(world: ChangeWorld, step: Any) -> None:
    """One step of a history."""
    kind, *what = step
    if kind == "put":
        world.put(*what)
    elif kind == "if":
        key, value, fits = what
        present = world.rows().get(key, (b"", 0))[1]
        world.put_if(key, value, present if fits else present + 1)
    elif kind == "batch":
        chunks, truncate = what
        if chunks or truncate:
            world.batch(*chunks, truncate=truncate)
    else:
        store: Any = world.store
        store.tables.stop(lost=min(what[0], len(store.tables._undo)))
        world.open()


MERGED = (
    (MERGE, {b"a": columns(None, 2), b"b": columns(3, None), b"e": None}),
    (MERGE, {b"a": columns(4, None), b"e": columns(1, 1)}),
    (UPSERT, {b"c": None, b"d": columns(5, 5)}),
    (INSERT, {b"b": columns(6, 6), b"f": columns(7, 7)}),
)
"""Merged twice into one row, inserted once, deleted and inserted."""
INSERTED = (
    (INSERT, {b"a": columns(6, 6), b"f": columns(7, 7)}),
    (UPSERT, {b"a": columns(8, 8), b"b": columns(9, 9)}),
    (UPSERT, {b"a": None}),
)
"""A row that was there is not inserted, but written by what follows: its own the second time."""


@pytest.mark.parametrize(
    ("batch", "cuts_min"), [(MERGED, 6), (INSERTED, 1)], ids=["merged", "inserted"]
)
def test_batch_that_a_crash_cut_anywhere_shows_the_same_changes(
    new_world: Callable[..., ChangeWorld], batch: tuple[Any, ...], cuts_min: int
) -> None:
    """Given a crash at any point of a batch, the changes are those without a crash."""
    seen = []
    for kept in range(40):
        world = new_world()
        world.put({key: columns(0, 0) for key in (b"a", b"b", b"c", b"e")})
        world.batch(*batch, applies=False)
        cut = cut_after(world, kept)
        seen.append((world.pages(), world.rows()))
        assert fold(seen[-1][0]) == seen[-1][1]
        if not cut:
            break
    assert len(seen) > cuts_min
    assert all(one == seen[0] for one in seen)


def cut_after(world: ChangeWorld, kept: int) -> bool:
    """Apply what waits, and stop the process after so many atomic batches; then start again."""
    store: Any = world.store
    if isinstance(store, SimWorld):
        before = len(store.tables._undo)
        world.apply()
        lost = max(0, len(store.tables._undo) - before - kept)
        store.tables.stop(lost=lost)
        world.open()
        return lost > 0
    written = 0
    made = store.tables._applier._new_batch

    def new_batch(channel: ChannelId) -> Any:
        batch = made(channel)
        write = batch.write

        class Batch:
            put, delete = batch.put, batch.delete

            def write(self) -> None:
                nonlocal written
                if written == kept:
                    raise OSError("the process dies here")
                written += 1
                write()

        return Batch()

    store.tables._applier._new_batch = new_batch
    is_cut = False
    try:
        world.apply()
    except StorageError:
        is_cut = True
    world.restart()
    return is_cut


def test_positions_lead_through_a_large_batch_and_whole_records_are_counted(
    new_world: Callable[..., ChangeWorld],
) -> None:
    """A batch counts as one step, and a reader gets it in many pages."""
    world = new_world(settings=ReadSettings(changes_rows_max=3))
    before = world.put({b"a": columns(1, 1)})
    chunks = [(UPSERT, {b"%d%d" % (c, n): columns(c, n) for n in range(2)}) for c in range(4)]
    batch = world.batch(*chunks)
    last = world.put({b"b": columns(2, 2)})

    page = world.page(after=before.last_seq, to_seq=batch.last_seq)

    while not page.pieces:  # the staged records
        page = world.page(after=page.after, to_seq=batch.last_seq)
    assert (len(page.pieces), page.applied) == (1, last.last_seq)
    assert page.sub > 0
    assert page.after < batch.last_seq
    others = world.pages(after=page.after, sub=page.sub, to_seq=batch.last_seq)
    assert [*page.pieces, *others] == world.pages(after=before.last_seq, to_seq=batch.last_seq)
    assert len(others) == 3

    def reach(**more: int) -> tuple[int, int]:
        ends = world.ends(**more)
        while ends.more:
            ends = world.ends(**(more | {"after": ends.reached}))
        return ends.reached, ends.rows

    ends = world.ends()
    assert (ends.first, ends.applied, ends.reached) == (0, last.last_seq, 0)
    assert reach(rows_max=1)[0] == batch.base_seq - 1
    assert reach(after=batch.base_seq - 1, rows_max=1) == (batch.last_seq, 8)
    assert reach(after=batch.base_seq - 1, rows_max=9) == (last.last_seq, 9)
    assert reach(after=last.last_seq, rows_max=5) == (last.last_seq, 0)


def test_positions_that_are_not_there_are_refused_with_the_remedy(
    new_world: Callable[..., ChangeWorld],
) -> None:
    """From the future, behind what is kept, written down by nobody, or not to be served at all."""
    world = new_world()
    world.put({b"a": columns(1, 1)})
    failed = world.refused(after=world.end + 1)
    assert (failed.code, "ask another replica" in failed.message) == ("not_up_to_bound", True)
    assert world.refused(to_seq=world.end + 1).code == "not_up_to_bound"
    held = world.put_if(b"b", b"b", 0)
    forgets = world.store.tables.state_get
    world.store.tables.state_get = lambda *_asked: None
    failed = world.refused()
    assert failed.code == "data_loss"
    assert f"seq {held.last_seq} of t/0" in failed.message
    assert "rebuild its tables" in failed.message
    world.store.tables.state_get = forgets
    read = world.log.read
    world.log.read = lambda channel, first, **more: read(channel, max(first, 2), **more)
    failed = world.refused()
    assert (failed.code, "begin at seq 2" in failed.message) == ("data_loss", True)
    assert world.ends().first == 1
    world.refusal = Refusal(UnavailableError, "recovering")
    assert world.refused(after=1).code == "unavailable"


def test_records_that_came_too_early_or_again_show_nothing(
    new_world: Callable[..., ChangeWorld],
) -> None:
    """A batch is reported by the record that applied it."""
    world = new_world()
    batch = world.batch((UPSERT, {b"a": columns(1, 1)}))
    world.append(record(world.end + 1, payload=batch.payload, kind=RecordKind.BATCH_APPLY))
    assert [piece.seq for piece in world.pages()] == [batch.last_seq]
    assert world.ends(after=batch.last_seq, rows_max=9).rows == 0


def test_contents_hash_the_same_for_all_writers_of_outcomes(
    new_world: Callable[..., ChangeWorld],
) -> None:
    """A store that an older version filled has none, and its rows are no others."""

    class Older(TableMachine):
        def apply(self, one: Any, view: Any) -> ApplyResult:
            return ApplyResult(list(super().apply(one, view).writes))

    world, older = new_world(), new_world()
    held = world.put_if(b"a", b"a", 0)
    older.store.tables.open_channel(CHANNEL, Older())
    older.store.tables.apply(CHANNEL, [held])
    older.store.drain()
    assert older.rows() == world.rows()
    assert older.store.tables.content_hash(CHANNEL) == world.store.tables.content_hash(CHANNEL)
