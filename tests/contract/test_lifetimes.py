"""Rows with a lifetime (TTL), in LevelDB's tables and in the simulated ones: who sees them, until
when, and what is left of them
(docs/decisions/0027)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from raftstore.protocol.payload import encode_rows
from raftstore.protocol.staged import INSERT, MERGE, UPSERT
from raftstore.rows.sealing import seal
from raftstore.state_machines.expiry import due_rows
from raftstore.storage.tables import pieces as pieces_module
from raftstore.storage.tables.keys import ROWS_TAG, split_row
from raftstore.testing import sim_tables
from raftstore.types import RecordKind
from tests.change_world import ChangeWorld, columns, fold, rows_of, with_ttl
from tests.piece_worlds import LevelDbWorld, SimWorld
from tests.storage_helpers import CHANNEL, record

T0 = 1_700_000_000_000
"""Records are stamped with this and their first seq."""
LATER = 10**9
"""The clock stands so much later when rows expire."""


@pytest.fixture(params=["leveldb", "sim"])
def world(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[ChangeWorld]:
    """An empty channel, whose batches are written in slices of a row or two."""
    monkeypatch.setattr(pieces_module, "SLICE_BYTES_MAX", 16)
    monkeypatch.setattr(sim_tables, "SLICE_ROWS", 1)
    store: Any = LevelDbWorld(tmp_path) if request.param == "leveldb" else SimWorld()
    yield ChangeWorld(store, later_ms=LATER)
    store.close()


def stored(world: ChangeWorld) -> dict[bytes, tuple[int, bytes]]:
    """All rows there are, expired or not: expiry and sealed value."""
    snapshot = world.store.tables.snapshot(CHANNEL)
    found = {}
    for key, value in snapshot.copy_page(None, 1 << 30).pairs:
        if key.startswith(ROWS_TAG):
            _, expires_ms, sealed = split_row(value)
            found[key[len(ROWS_TAG) :]] = (expires_ms, sealed)
    snapshot.close()
    return found


def index(world: ChangeWorld) -> list[tuple[int, bytes]]:
    """The index of expiries: (expiry, key), the earliest first."""
    tables = world.store.tables
    return due_rows(lambda *a: tables.state_scan(CHANNEL, *a), 2**62, keys_max=9_999)


def seen(world: ChangeWorld) -> list[bytes]:
    """Keys that every way of reading agrees on."""
    tables = world.store.tables
    page = tables.scan(CHANNEL, b"", b"", 9_999)
    keys = [row.key for row in page.rows]
    named = sorted({*stored(world), *keys, b"none"})
    found = tables.get_many(CHANNEL, named, 1 << 30)
    assert [key for key, value in zip(named, found.values, strict=True) if value] == keys
    assert [key for key in named if tables.get(CHANNEL, key) is not None] == keys
    for key in named:
        [value] = tables.get_many(CHANNEL, (key,), 1 << 30).values
        assert (value is not None) == (key in keys)
    snapshot = tables.snapshot(CHANNEL)
    assert [key for key, *_ in snapshot.sealed_page(b"", b"", 9_999, 1 << 30).rows] == keys
    assert snapshot.count(b"", b"", 9_999).rows == len(keys)
    there = stored(world)
    expiring = [(key, there[key][0]) for key in keys if there[key][0]]
    assert snapshot.expiries(b"", b"", 9_999) == (expiring, b"")
    assert snapshot.has_lifetimes() or not expiring
    part = snapshot.expiries(b"", b"", 1)
    told = part.expiries
    while part.resume:
        part = snapshot.expiries(part.resume, b"", 1)
        told += part.expiries
    assert told == expiring
    # A page, or a count, that ends early is as long as it should be, and goes on from there.
    half = snapshot.page(b"", b"", 2).rows
    assert [row.key for row in half] == keys[:2]
    some, more = snapshot.sealed_page(b"", b"", 2, 1 << 30)
    assert ([key for key, *_ in some], more) == (keys[:2], len(keys) > 2)
    counted = snapshot.count(b"", b"", 2)
    if counted.resume is not None:
        rest = snapshot.count(counted.resume, b"", 9_999)
        assert (counted.rows, counted.rows + rest.rows) == (2, len(keys))
    snapshot.close()
    return keys


def test_row_is_expired_from_the_channel_time_of_its_expiry_on(world: ChangeWorld) -> None:
    """S10: by what the log says, in every way of reading, before the row is removed and after."""
    world.put({b"a": b"1", b"b": b"2"}, ttl_ms=1_000)  # seq 1: expires at T0 + 1,001
    world.put({b"c": b"3"}, ttl_ms=50)
    world.put({b"d": b"4"})
    assert seen(world) == [b"a", b"b", b"c", b"d"]

    world.expire(T0 + 1_000, b"c")
    assert seen(world) == [b"a", b"b", b"d"]
    world.expire(T0 + 1_001, b"a")
    assert seen(world) == [b"d"]
    assert sorted(stored(world)) == [b"b", b"d"]  # hidden, and not named yet

    world.expire(T0 + 1_001, b"b")
    assert (seen(world), sorted(stored(world)), index(world)) == ([b"d"], [b"d"], [])


def test_state_that_a_reader_keeps_shows_what_had_not_expired_then(world: ChangeWorld) -> None:
    """A snapshot is of one position, and so is what has expired in it."""
    world.put({b"a": b"1"}, ttl_ms=10)
    before = world.store.tables.snapshot(CHANNEL)
    world.expire(T0 + 100, b"none")
    hidden = world.store.tables.snapshot(CHANNEL)
    world.expire(T0 + 100, b"a")

    assert [row.key for row in before.page(b"", b"", 9).rows] == [b"a"]
    assert before.count(b"", b"", 9).rows == 1
    assert hidden.page(b"", b"", 9).rows == []
    assert (hidden.count(b"", b"", 9).rows, hidden.sealed_page(b"", b"", 9, 99).rows) == (0, [])
    before.close()
    hidden.close()


def test_state_that_is_kept_for_readers_of_a_batch_has_its_own_time(world: ChangeWorld) -> None:
    """Opened late, it still shows what had not expired when the batch replaced it."""
    world.put({b"a": b"1"}, ttl_ms=10)
    world.batch((UPSERT, {b"b": b"2"}))
    world.expire(T0 + 100, b"a")
    assert seen(world) == [b"b"]
    [label] = world.store.tables.versions(CHANNEL)
    kept = world.store.tables.snapshot_at(CHANNEL, label)
    assert [row.key for row in kept.page(b"", b"", 9).rows] == [b"a"]
    assert kept.count(b"", b"", 9).rows == 1
    kept.close()


def test_channel_time_never_goes_back_nor_ahead_of_the_log(world: ChangeWorld) -> None:
    """S10: whatever the clock of the next leader shows, and however far one is ahead."""
    world.put({b"a": b"1"}, ttl_ms=1_000)
    world.expire(T0 + 2_000, b"none")
    world.expire(T0 + 10, b"none")
    assert seen(world) == []

    world.put({b"b": b"2"}, ttl_ms=3 * LATER)
    world.expire(T0 + 9 * LATER, b"b")
    assert seen(world) == [b"b"]  # the record's own time is not that late


def test_row_that_is_written_again_has_another_lifetime_or_none(world: ChangeWorld) -> None:
    """The newest write of a row counts alone; what was named before that stays."""
    world.put({b"a": b"1", b"b": b"1", b"c": b"1", b"d": b"1"}, ttl_ms=10)
    world.put({b"a": b"2"}, ttl_ms=5_000)
    world.put({b"b": b"2"})
    world.put({b"c": None}, ttl_ms=9)
    assert index(world) == [(T0 + 11, b"d"), (T0 + 5 + 5_000, b"a")]

    named = world.expire(T0 + 100, b"a", b"b", b"c", b"d")
    assert seen(world) == [b"a", b"b"]
    assert stored(world)[b"b"][0] == 0
    [piece] = world.pages(after=named.base_seq - 1)
    assert (piece.expired, rows_of(piece)) == (True, [(b"d", None)])


def test_key_that_comes_twice_in_a_record_is_indexed_once(world: ChangeWorld) -> None:
    """The index has one entry for each row with an expiry, and no other."""

    rows = [(b"a", seal(b"a", b"1")), (b"a", None)]
    rows += [(b"b", seal(b"b", value)) for value in (b"1", b"2")]
    made = record(world.end + 1, rows=4, payload=encode_rows(rows), kind=RecordKind.ROWS)
    world.append(with_ttl(made, 10))
    assert index(world) == [(T0 + 11, b"b")]


def test_condition_takes_an_expired_row_for_none(world: ChangeWorld) -> None:
    """S10: decided by the channel time before the record, on every replica."""
    first = world.put({b"a": b"1", b"b": b"1"}, ttl_ms=10)
    world.put_if(b"a", b"2", 0)
    world.expire(T0 + 500, b"none")  # hidden, not removed
    world.put_if(b"b", b"2", first.last_seq)
    world.put_if(b"a", b"3", 0, ttl_ms=700)

    assert {key: row[0] for key, row in world.rows().items()} == {b"a": b"3"}
    told = [rows_of(piece) for piece in world.pages(after=first.last_seq) if not piece.expired]
    assert told == [[(b"a", b"3")]]
    assert index(world) == [(T0 + 11, b"b"), (T0 + 706, b"a")]


@pytest.mark.parametrize("mode", [INSERT, MERGE])
def test_batch_takes_an_expired_row_for_none(world: ChangeWorld, mode: int) -> None:
    """Its rows are inserted where others have expired, and not merged into them."""
    world.put({b"a": columns("old", "old")}, ttl_ms=10)
    world.put({b"b": columns("old", "old")})
    world.expire(T0 + 500, b"none")
    made = world.batch(
        (mode, {b"a": columns("new", None), b"b": columns("new", None)}), ttl_ms=2_000
    )
    found = {key: row[0] for key, row in world.rows().items()}
    merged = columns("new", "old")
    old_row = {INSERT: columns("old", "old"), MERGE: merged}[mode]
    assert found == {b"a": columns("new", None), b"b": old_row}
    expires_ms = made.timestamp_ms + 2_000
    both = [(expires_ms, b"a"), (expires_ms, b"b")]
    assert index(world) == (both if mode == MERGE else both[:1])
    assert fold(world.pages()) == world.rows()


def test_changes_tell_an_expiry_once_and_in_its_place(world: ChangeWorld) -> None:
    """An expiry is no delete of anybody; what was written with a lifetime says when it ends."""
    put = world.put({b"a": b"1", b"b": b"2"}, ttl_ms=10)
    gone = world.put({b"b": None})
    held = world.put_if(b"c", b"3", 0, ttl_ms=20)
    batch = world.batch((UPSERT, {b"d": b"4"}), ttl_ms=30)
    world.expire(T0 + 5, b"a")  # not due yet
    over = world.expire(T0 + 10_000, b"a", b"b", b"c", b"d")
    world.expire(T0 + 10_000, b"a", b"b")  # again, by a leader that did not know
    last = world.put({b"a": b"5"})

    for pieces in (world.pages(), world.pages(rows_max=1, bytes_max=1)):
        told = [(p.seq, p.expired, p.expires_ms, rows_of(p)) for p in pieces if rows_of(p)]
        assert told == [
            (put.last_seq, False, T0 + 11, [(b"a", b"1"), (b"b", b"2")]),
            (gone.last_seq, False, 0, [(b"b", None)]),
            (held.last_seq, False, held.timestamp_ms + 20, [(b"c", b"3")]),
            (batch.last_seq, False, batch.timestamp_ms + 30, [(b"d", b"4")]),
            (over.last_seq, True, T0 + 10_000, [(b"a", None), (b"c", None), (b"d", None)]),
            (last.last_seq, False, 0, [(b"a", b"5")]),
        ]
    assert fold(world.pages()) == world.rows()
    assert world.ends(rows_max=10**6).rows == 2 + 1 + 1 + 1 + 1 + 4 + 2 + 1


def test_expiry_survives_a_restart_and_a_copy(world: ChangeWorld) -> None:
    """Rows, index and channel time are one state: in the store, in its copies and in its hash."""
    world.put({b"a": b"1"}, ttl_ms=10)
    world.put({b"b": b"2", b"c": b"3"}, ttl_ms=5_000)
    world.expire(T0 + 100, b"none")
    before = (seen(world), stored(world), index(world), world.store.tables.content_hash(CHANNEL))
    world.restart()
    assert world.store.tables.channel_time(CHANNEL) == T0 + 100
    hashed = world.store.tables.content_hash(CHANNEL)
    assert (seen(world), stored(world), index(world), hashed) == before

    snapshot = world.store.tables.snapshot(CHANNEL)
    other = SimWorld()
    copy = other.tables.begin_copy(CHANNEL, world.store.tables.applied_history(CHANNEL))
    copy.write(snapshot.copy_page(None, 1 << 30).pairs)
    copy.complete()
    other.tables.install(CHANNEL, copy)
    snapshot.close()
    copied = ChangeWorld(other, log=world.log, end=world.end, later_ms=LATER)
    hashed = other.tables.content_hash(CHANNEL)
    assert (seen(copied), stored(copied), index(copied), hashed) == before
    for each in (world, copied):
        each.end = copied.end  # one log
        each.apply()
    copied.expire(T0 + 9_000, b"a", b"b", b"c")
    assert stored(copied) == {}


def test_rows_without_a_lifetime_are_stored_as_ever(world: ChangeWorld) -> None:
    """A channel that never had a lifetime has neither an index nor a channel time, and its rows
    have the bytes that every version reads."""
    made = world.put({b"a": b"1"})
    snapshot = world.store.tables.snapshot(CHANNEL)
    pairs = dict(snapshot.copy_page(None, 1 << 30).pairs)
    snapshot.close()

    assert pairs.pop(b"\x00")
    assert pairs == {b"\x01a": made.last_seq.to_bytes(8, "big") + seal(b"a", b"1")}
    assert world.store.tables.channel_time(CHANNEL) == 0


def test_replaced_table_leaves_no_index_behind(world: ChangeWorld) -> None:
    """Rows that a batch removes go with their expiry, those it writes get theirs."""
    world.put({b"a": b"1", b"b": b"2"}, ttl_ms=10)
    made = world.batch((UPSERT, {b"b": b"3", b"c": b"4"}), truncate=True, ttl_ms=20)
    expires_ms = made.timestamp_ms + 20
    assert index(world) == [(expires_ms, b"b"), (expires_ms, b"c")]
    world.batch((UPSERT, {b"c": b"5"}), truncate=True)
    assert (index(world), stored(world)[b"c"][0]) == ([], 0)


# --- any history, with crashes: the index is exact, stores and replicas agree ---------------------

KEYS = st.sampled_from([b"k%d" % n for n in range(6)])
VALUES = st.none() | st.tuples(st.none() | st.integers(0, 9), st.integers(0, 9)).map(
    lambda pair: columns(*pair)
)
TTLS = st.sampled_from([0, 0, 1, 3, 10, 40])
SOME_ROWS = st.dictionaries(KEYS, VALUES, min_size=1, max_size=4)
PRESENT = st.dictionaries(KEYS, VALUES.filter(bool), min_size=1, max_size=4)
CHUNKS = st.tuples(st.sampled_from([UPSERT, MERGE]), SOME_ROWS) | st.tuples(
    st.just(INSERT), PRESENT
)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("put"), SOME_ROWS, TTLS),
        st.tuples(st.just("if"), KEYS, VALUES, st.booleans(), TTLS),
        st.tuples(st.just("batch"), st.lists(CHUNKS, max_size=3), st.booleans(), TTLS),
        st.tuples(st.just("expire"), st.integers(-5, 60), st.sets(KEYS, min_size=1, max_size=4)),
        st.tuples(st.just("crash"), st.integers(0, 12)),
    ),
    max_size=14,
)


def take(world: ChangeWorld, step: Any) -> None:
    """One step of a history."""
    kind, *what = step
    if kind == "put":
        world.put(*what)
    elif kind == "if":
        key, value, fits, ttl_ms = what
        present = world.rows().get(key, (b"", 0))[1]
        world.put_if(key, value, present if fits else present + 1, ttl_ms)
    elif kind == "batch":
        chunks, truncate, ttl_ms = what
        if chunks or truncate:
            world.batch(*chunks, truncate=truncate, ttl_ms=ttl_ms)
    elif kind == "expire":
        world.expire(T0 + world.end + what[0], *sorted(what[1]))
    else:
        store: Any = world.store
        store.tables.stop(lost=min(what[0], len(store.tables._undo)))
        world.open()


@pytest.mark.slow
@settings(max_examples=40)
@given(steps=STEPS)
def test_index_of_expiries_is_exact_whatever_happens(steps: Any) -> None:
    """Each row with an expiry has one entry, each entry its row; nobody sees an expired row; the
    fold of all changes is the table; and a replica that never stopped has the same contents.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sim_tables, "SLICE_ROWS", 1)
        world, calm = ChangeWorld(SimWorld(), later_ms=60), ChangeWorld(SimWorld())
        times = [0]
        for step in steps:
            take(world, step)
            tables = world.store.tables
            rows = stored(world)
            assert index(world) == sorted((at, key) for key, (at, _) in rows.items() if at)
            if step[0] != "crash":
                times.append(tables.channel_time(CHANNEL))
            assert times == sorted(times)
            hidden = {key for key, (at, _) in rows.items() if 0 < at <= times[-1]}
            assert seen(world) == sorted(rows.keys() - hidden)
        folded = fold(world.pages())
        visible = world.rows()
        assert {key: row for key, row in folded.items() if key in visible} == visible
        assert folded.keys() == stored(world).keys()
        calm.log, calm.end = world.log, world.end
        calm.open()
        hashed = calm.store.tables.content_hash(CHANNEL)
        assert hashed == world.store.tables.content_hash(CHANNEL)
        assert (stored(calm), calm.pages()) == (stored(world), world.pages())
