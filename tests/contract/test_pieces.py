"""The contract of records that come in pieces, run on LevelDB and on the simulated tables."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from raftstore.errors import PersistError
from raftstore.ports.tables import Piece
from raftstore.protocol.staged import INSERT, MERGE, UPSERT
from raftstore.rows.sealing import unseal
from raftstore.state_machines.batches import staging
from raftstore.state_machines.state_keys import OUTCOMES
from raftstore.storage.tables import pieces as pieces_module
from raftstore.testing import sim_tables
from raftstore.types import RecordKind
from tests.piece_worlds import (
    CHANNEL,
    OTHER,
    SLICE_BYTES,
    LevelDbWorld,
    SimWorld,
    apply_pieces,
    batch_record,
    chunk,
    everything,
    pieces_of,
    write,
)
from tests.storage_helpers import record, rows_record

OLD = {b"%02d" % n: b"old %d" % n for n in range(0, 20, 2)}
KEYS = range(20)
STATE = ((b"\x02\x00", b"head"), (b"\x02\x01gone", None), (b"\x03\x02", b"outbox"))
BEFORE = {b"\x02\x00": b"head before", b"\x02\x01gone": b"chunk"}


def small_pieces(patch: pytest.MonkeyPatch) -> None:
    """Slices of a few rows, so that there is something between them."""
    patch.setattr(pieces_module, "SLICE_BYTES_MAX", SLICE_BYTES)
    patch.setattr(pieces_module, "TRUNCATED_ROWS_MAX", 7)
    patch.setattr(sim_tables, "SLICE_ROWS", 3)
    patch.setattr(sim_tables, "TRUNCATED_ROWS", 7)


@pytest.fixture(params=["leveldb", "sim"])
def new_world(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[[], Any]]:
    """Makes empty tables with both channels open."""
    small_pieces(monkeypatch)
    made: list[Any] = []

    def make() -> Any:
        if request.param == "leveldb":
            directory = tmp_path / str(len(made))
            directory.mkdir()
            made.append(LevelDbWorld(directory))
        else:
            made.append(SimWorld())
        return made[-1]

    yield make
    for world in made:
        world.close()


@pytest.fixture
def world(new_world: Callable[[], Any]) -> Any:
    """Empty tables with both channels open."""
    return new_world()


def columns(*values: str | None) -> bytes:
    """A row of a table with columns, as MERGE reads it."""
    return msgspec.msgpack.encode(values)


def prepared(world: Any, mode: int = UPSERT) -> Any:
    """Old rows under even keys, some state, and the record to come."""
    old = dict.fromkeys(OLD, columns("old", "old")) if mode == MERGE else OLD
    write(world, rows_record(1, dict(old)))
    world.tables.apply_piece(
        CHANNEL,
        Piece(batch_record(11), first=True, last=True, state_writes=tuple(BEFORE.items())),
    )
    world.drain()
    return batch_record(12, rows=5)


def batch(mode: int = UPSERT) -> list[list[tuple[int, bytes]]]:
    """Chunks of three pieces: old rows and new ones, some of them twice, some removed."""
    new = [(b"%02d" % n, columns("new", None) if mode == MERGE else b"new %d" % n) for n in KEYS]
    again = [(b"%02d" % n, columns(None, "again") if mode else b"again") for n in (3, 6, 9)]
    if mode:
        return [[chunk(new[:9], mode), chunk(again, mode)], [], [chunk(new[12:], mode)]]
    removed: list[tuple[bytes, bytes | None]] = [(b"04", None), (b"05", None)]
    return [[chunk(new[9:]), chunk(again)], [chunk(new[:9])], [chunk(removed), chunk(again[:1])]]


def test_reads_see_the_state_before_until_the_last_part(world: Any) -> None:
    """Every way to read, whatever is in the database already; then all of it at once."""
    coming = prepared(world)
    tables = world.tables
    before, hashed = everything(world), tables.content_hash(CHANNEL)
    pieces = pieces_of(coming, batch(), state_writes=STATE)
    for piece in pieces[:-1]:
        tables.apply_piece(CHANNEL, piece)
        world.drain()
        assert tables.applied_seq(CHANNEL) == 11
        assert everything(world) == before
        assert tables.content_hash(CHANNEL) == hashed
        assert tables.get(CHANNEL, b"02").value == b"old 2"
        assert tables.get(CHANNEL, b"03") is None
        snapshot = tables.snapshot(CHANNEL)
        assert snapshot.applied_seq == 11
        assert snapshot.count(b"", b"", 99).rows == len(OLD)
        snapshot.close()
        assert tables.state_get(CHANNEL, b"\x02\x00") == b"head before"
        assert world.completed[-1] == (CHANNEL, 11, (), ())
    tables.apply_piece(CHANNEL, pieces[-1])
    assert everything(world) == before
    world.drain()
    assert world.completed[-1] == (CHANNEL, 16, (), ())
    assert tables.applied_seq(CHANNEL) == 16
    rows, state = everything(world)
    expected = {b"%02d" % n: (b"new %d" % n, 16) for n in range(20) if n not in (4, 5)}
    assert rows == expected | dict.fromkeys((b"03", b"09"), (b"again", 16))
    assert state == {b"\x02\x00": b"head", b"\x03\x02": b"outbox"}
    assert tables.unserved_until(CHANNEL) == 0


@pytest.mark.parametrize("keys", [(b"02",), (b"03",), (b"02", b"03"), ()])
def test_get_many_never_reads_behind_the_view(world: Any, keys: tuple[bytes, ...]) -> None:
    """A single row that is there states its seq, and must not be one of the batch."""
    coming = prepared(world)
    expected = world.tables.get_many(CHANNEL, keys, 99)
    assert expected.applied_seq == 11
    for piece in pieces_of(coming, batch()):
        assert world.tables.get_many(CHANNEL, keys, 99) == expected
        world.tables.apply_piece(CHANNEL, piece)
        assert world.tables.get_many(CHANNEL, keys, 99) == expected
        world.drain()
    found = world.tables.get_many(CHANNEL, keys, 99)
    assert found.applied_seq == 16
    rows = [unseal(key, value) for key, value in zip(keys, found.values, strict=True)]
    assert rows == [b"again" if k == b"03" else b"new 2" for k in keys]


@pytest.mark.parametrize("mode", [UPSERT, INSERT, MERGE])
@pytest.mark.parametrize("truncates", [False, True])
@pytest.mark.slow
def test_crash_after_each_slice_replays_to_the_same_state(
    new_world: Any, mode: int, *, truncates: bool
) -> None:
    """A crash keeps some slices: the channel is as before, or unserved until all come again."""
    reached: list[Any] = []
    is_cut = True
    for kept in count():
        if not is_cut:
            break
        world = new_world()
        coming = prepared(world, mode)
        before = everything(world)
        pieces = pieces_of(coming, batch(mode), state_writes=STATE)
        if truncates:
            pieces[0] = pieces[0]._replace(first=False)
            pieces.insert(0, Piece(coming, first=True, last=False, truncate_from=b""))
        is_cut = world.crash_in(pieces, kept)
        if is_cut:
            assert world.tables.applied_seq(CHANNEL) == 11
            assert world.tables.unserved_until(CHANNEL) == (16 if kept else 0)
            assert kept or everything(world) == before
            apply_pieces(world, pieces)
        assert (world.tables.applied_seq(CHANNEL), world.tables.unserved_until(CHANNEL)) == (16, 0)
        reached.append((everything(world), world.tables.content_hash(CHANNEL)))
    assert len(reached) > 4
    assert all(one == reached[-1] for one in reached)
    (rows, state), _hash = reached[-1]
    expected = {UPSERT: b"new 2", INSERT: b"old 2", MERGE: columns("new", "old")}
    if truncates:
        expected |= {INSERT: b"new 2", MERGE: columns("new", None)}
    assert rows[b"02"][0] == expected[mode]
    # Of two rows of the batch the later one counts, whatever was there.
    later = {UPSERT: b"again", INSERT: columns(None, "again"), MERGE: columns("new", "again")}
    assert rows[b"03"][0] == later[mode]
    told = [state.pop(key) for key in sorted(state) if key.startswith(OUTCOMES)]
    assert len(told) == (0 if mode == UPSERT else 3)  # each chunk's, as its first run found it
    assert state == {b"\x02\x00": b"head", b"\x03\x02": b"outbox"}


LONG = columns("o" * 8, "o" * 8, "o" * 8, None, None)
FOURTH = columns(None, None, None, "a" * 8, None)
FIFTH = columns(None, None, None, None, "b" * 8)
LOOSE = b"\xde\x00\x01\xa1a\x01"
"""A map of one column that says how many it has in more bytes than it needs."""


@pytest.mark.parametrize(
    ("before", "chunks", "after"),
    [
        (LONG, [[FOURTH, FIFTH]], FIFTH),
        (LONG, [[FOURTH], [FIFTH]], FIFTH),
        (LONG, [[FOURTH], [], [FIFTH], [FOURTH]], columns(None, None, None, "a" * 8, "b" * 8)),
        (None, [[LOOSE], []], LOOSE),
    ],
    ids=["one piece", "two pieces", "more", "other bytes"],
)
def test_merge_that_a_crash_cut_in_two_ends_as_where_it_was_not(
    new_world: Any,
    monkeypatch: pytest.MonkeyPatch,
    before: bytes | None,
    chunks: list[list[bytes]],
    after: bytes,
) -> None:
    """S10: merging once more may be another merge, where a row became too large in between."""
    monkeypatch.setattr(staging, "MERGED_BYTES_MAX", len(LONG) + 10)
    keys = [b"%02d" % n for n in range(4)]
    updates = [[chunk([(key, each) for key in keys], MERGE) for each in some] for some in chunks]
    is_cut, kept = True, 0
    while is_cut:
        world = new_world()
        old = keys if before is not None else [b"other"]
        write(world, rows_record(1, dict.fromkeys(old, before or b"old")))
        world.drain()
        pieces = pieces_of(batch_record(2 if before is None else 5, rows=5), updates)
        is_cut = world.crash_in(pieces, kept)
        if is_cut:
            apply_pieces(world, pieces)
        rows, _ = everything(world)
        assert {rows[key][0] for key in keys} == {after}, kept
        kept += 1
    assert kept > 2


def test_channel_with_a_mark_serves_nothing_until_replayed(new_world: Any) -> None:
    """S0.3's refusal: what a crash left between two slices is reported by every start after it."""
    world = new_world()
    coming = prepared(world)
    assert world.crash_in(pieces_of(coming, batch()), 2)
    world.restart()
    tables = world.tables
    assert tables.unserved_until(CHANNEL) == 16
    assert tables.unserved_until(OTHER) == 0
    pieces = pieces_of(coming, batch(), version=1)
    for piece in pieces:
        assert tables.unserved_until(CHANNEL) == 16
        tables.apply_piece(CHANNEL, piece)
        assert tables.unserved_until(CHANNEL) == 16
        world.drain()
    assert tables.unserved_until(CHANNEL) == 0
    assert tables.versions(CHANNEL) == ()
    assert tables.snapshot_at(CHANNEL, 1) is None
    world.restart()
    assert world.tables.unserved_until(CHANNEL) == 0


def test_record_of_one_slice_leaves_no_mark(world: Any) -> None:
    """One atomic batch is all or nothing, as for any other record."""
    coming = prepared(world)
    small = pieces_of(coming, [[chunk([(b"a", b"1")])]], state_writes=STATE)
    assert world.crash_in(small, 0)
    assert (world.tables.applied_seq(CHANNEL), world.tables.unserved_until(CHANNEL)) == (11, 0)
    assert not world.crash_in(small, 1)
    assert world.tables.get(CHANNEL, b"a").seq == 16


def test_truncate_in_slices(world: Any) -> None:
    """Everything of before goes, a bounded number of rows a piece; other records come between."""
    coming = prepared(world)
    tables = world.tables
    first = Piece(coming, first=True, last=False, truncate_from=b"")
    tables.apply_piece(CHANNEL, first)
    tables.apply(OTHER, [rows_record(1, {b"other": b"1"})])
    world.drain()
    assert tables.truncated(CHANNEL) == b"14"
    assert tables.get(OTHER, b"other").value == b"1"
    assert len(everything(world)[0]) == len(OLD)
    tables.apply_piece(CHANNEL, first._replace(first=False, truncate_from=b"14"))
    world.drain()
    assert tables.truncated(CHANNEL) is None
    assert len(everything(world)[0]) == len(OLD)
    tables.apply_piece(
        CHANNEL, Piece(coming, first=False, last=True, chunks=[chunk([(b"a", b"1")])])
    )
    world.drain()
    assert everything(world)[0] == {b"a": (b"1", 16)}
    assert everything(world, OTHER)[0] == {b"other": (b"1", 1)}


def test_content_hash_covers_batch_state(world: Any) -> None:
    """Replicas are compared by it; of a channel without batches it is what it always was."""
    tables = world.tables
    empty = tables.content_hash(CHANNEL)
    seen = {empty[0]}
    for seq, writes in enumerate(
        [((b"\x02\x00", b"1"),), ((b"\x02\x00", b"2"),), ((b"\x03\x00", b"2"),)], start=1
    ):
        tables.apply_piece(CHANNEL, Piece(batch_record(seq), True, True, state_writes=writes))
        tables.apply_piece(OTHER, Piece(batch_record(seq), True, True, state_writes=writes))
        world.drain()
        assert tables.content_hash(CHANNEL) == tables.content_hash(OTHER)
        seen.add(tables.content_hash(CHANNEL)[0])
    assert len(seen) == 4
    gone = ((b"\x02\x00", None), (b"\x03\x00", None))
    tables.apply_piece(CHANNEL, Piece(batch_record(4), True, True, state_writes=gone))
    world.drain()
    assert tables.content_hash(CHANNEL) == (empty[0], 0, 4)


def test_versions_are_kept_under_their_labels(world: Any) -> None:
    """A reader of commit n finds it while n + 1 is applied and after; what is let go is refused."""
    tables = world.tables
    for n in range(1, 5):
        record_n = batch_record(2 * n - 1, rows=2)
        rows = [(b"%d" % k, b"%d" % n) for k in range(9)]
        pieces = pieces_of(record_n, [[chunk(rows[:5])], [chunk(rows[5:])]], version=n - 1)
        tables.apply_piece(CHANNEL, pieces[0])
        world.drain()
        shown = tables.snapshot_at(CHANNEL, n - 1)
        assert shown.applied_seq == 2 * n - 2
        assert shown.count(b"", b"", 99).rows == (9 if n > 1 else 0)
        shown.close()
        assert tables.versions(CHANNEL) == tuple(range(n - 1))
        tables.apply_piece(CHANNEL, pieces[1])
        world.drain()
    assert tables.versions(CHANNEL) == (0, 1, 2, 3)
    for n in (1, 2, 3):
        kept = tables.snapshot_at(CHANNEL, n)
        assert {row.value for row in kept.page(b"", b"", 99).rows} == {b"%d" % n}
        kept.close()
    assert tables.snapshot_at(CHANNEL, 4) is None
    assert tables.snapshot_at(OTHER, 1) is None
    held = tables.snapshot_at(CHANNEL, 2)
    for label in (0, 2, 7):
        tables.release_version(CHANNEL, label)
    assert tables.versions(CHANNEL) == (1, 3)
    assert tables.snapshot_at(CHANNEL, 2) is None
    assert held.page(b"", b"", 1).rows[0].value == b"2"
    held.close()
    world.restart()
    assert world.tables.versions(CHANNEL) == ()


def test_dropped_channel_lets_its_views_go(world: Any) -> None:
    """The view may be shown and pieces may be queued; its records are not applied any more."""
    coming = prepared(world)
    pieces = pieces_of(coming, batch(), version=0)
    apply_pieces(world, pieces)
    more = pieces_of(batch_record(17), batch(), version=1)
    world.tables.apply_piece(CHANNEL, more[0])
    world.tables.apply_piece(CHANNEL, more[1])
    assert world.open_snapshots() == 2
    world.tables.drop(CHANNEL)
    assert world.open_snapshots() == 0
    world.drain()
    world.restart()
    assert everything(world)[0] == {}
    assert world.tables.applied_seq(CHANNEL) == 0


def test_pieces_are_refused_out_of_their_order(world: Any) -> None:
    """S10: and the first one only when all before it is applied, or the view would lack some."""
    coming = prepared(world)
    first, middle, last = pieces_of(coming, batch())
    tables = world.tables

    def is_refused(channel: Any, piece: Piece) -> None:
        with pytest.raises(PersistError, match=r"piece of a record at seq .* cannot be applied"):
            tables.apply_piece(channel, piece)

    is_refused(CHANNEL, middle)
    is_refused(CHANNEL, first._replace(record=batch_record(13)))
    tables.apply(OTHER, [rows_record(1, {b"a": b"1"})])
    is_refused(OTHER, first._replace(record=batch_record(2)))
    tables.apply_piece(CHANNEL, first)
    is_refused(CHANNEL, first)
    is_refused(CHANNEL, middle._replace(record=batch_record(17)))
    with pytest.raises(PersistError, match=r"a record at seq 17 .* cannot be applied"):
        tables.apply(CHANNEL, [rows_record(17, {b"a": b"1"})])
    tables.apply_piece(CHANNEL, last)
    is_refused(CHANNEL, last)
    tables.apply(CHANNEL, [rows_record(17, {b"a": b"1"})])
    world.drain()
    assert tables.applied_seq(CHANNEL) == 17


def test_machine_sees_the_state_of_the_records_before_even_in_one_call(world: Any) -> None:
    """S10: and each of its answers is reported with the seq of its record."""
    staged = [record(seq, kind=RecordKind.STAGED, payload=b"%d" % seq) for seq in range(2, 6)]
    world.tables.apply_piece(
        CHANNEL, Piece(batch_record(1), True, True, state_writes=((b"\x03\x00", b"0"),))
    )
    world.drain()
    world.tables.apply(CHANNEL, staged[:3])
    world.drain()
    assert world.completed[-1] == (CHANNEL, 4, (), ((2, b"0"), (3, b"1"), (4, b"2")))
    world.restart()
    world.tables.apply(CHANNEL, staged[3:])
    world.drain()
    assert world.completed[-1] == (CHANNEL, 5, (), ((5, b"3"),))
    assert world.tables.state_scan(CHANNEL, b"\x02\x01", b"\x02\x02", 3) == [
        (b"\x02\x01%d" % n, b"%d" % (n + 2)) for n in range(3)
    ]
    assert world.tables.state_get(CHANNEL, b"\x03\x00") == b"4"
    assert world.tables.state_get(OTHER, b"\x03\x00") is None
    assert everything(world)[0] == {}


VALUES = st.sampled_from([columns(None, "x"), columns("y", None), columns("z", "z")])
MODES = st.integers(0, 1)  # an upsert, or the other mode of the batch
ROWS = st.lists(
    st.tuples(st.sampled_from([b"a", b"b", b"c", b"d"]), st.none() | VALUES), max_size=6
)
BATCHES = st.tuples(
    st.lists(st.lists(st.tuples(ROWS.filter(bool), MODES), max_size=3), min_size=1, max_size=3),
    st.sampled_from([INSERT, MERGE]),  # a plan puts rows to insert behind those to merge
    st.booleans(),
    st.none() | st.integers(0, 6),
)


@settings(max_examples=30)
@given(steps=st.lists(BATCHES | ROWS.filter(bool).map(dict), max_size=5))
@pytest.mark.slow
def test_stores_agree_whatever_is_cut_and_applied_again(
    steps: list[Any], tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Rows and batches in any order, some of them cut by a crash: both stores end the same."""
    with pytest.MonkeyPatch.context() as patch:
        small_pieces(patch)
        worlds: list[Any] = [LevelDbWorld(tmp_path_factory.mktemp("db")), SimWorld()]
        calm: Any = SimWorld()
        for world in (*worlds, calm):
            seq = 1
            for step in steps:
                if isinstance(step, dict):
                    write(world, rows_record(seq, step))
                    seq += len(step)
                    continue
                chunks, mode, truncates, kept = step
                pieces = pieces_of(
                    batch_record(seq),
                    [[chunk(rows, mode * other) for rows, other in piece] for piece in chunks],
                    state_writes=((b"\x02\x00", b"%d" % seq),),
                )
                if truncates:
                    pieces[0] = pieces[0]._replace(first=False)
                    pieces.insert(0, Piece(batch_record(seq), True, False, truncate_from=b""))
                if kept is None or world is calm or world.crash_in(pieces, kept):
                    apply_pieces(world, pieces)
                seq += 1
        first, *others = [(everything(w), w.tables.content_hash(CHANNEL)) for w in (*worlds, calm)]
        assert others == [first, first]
        worlds[0].close()
