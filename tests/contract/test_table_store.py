"""The contract of ports.TableStore, run on LevelDB and on the simulated tables."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from raftstore.engine.channel.applied_state import AppliedState
from raftstore.errors import CorruptRecordError, PersistError
from raftstore.ports.tables import Piece
from raftstore.protocol.payload import encode_rows
from raftstore.protocol.records import Record
from raftstore.protocol.staged import ChunkHeader, encode_staged
from raftstore.rows.sealing import unseal
from raftstore.state_machines.batches.staging import refs_of
from raftstore.state_machines.batches.txn_records import AnyStep, Begin, Close, Drop, encode_step
from raftstore.state_machines.table import TableMachine
from raftstore.storage.reconcile import reconcile
from raftstore.storage.tables.keys import ROWS_TAG, rows_prefix
from raftstore.testing.sim_log import SimLog
from raftstore.testing.sim_tables import SimTables
from raftstore.types import ChannelId, RecordKind
from tests.piece_worlds import batch_record
from tests.storage_helpers import (
    CHANNEL,
    OTHER,
    conditional_record,
    database_of,
    record,
    rows_record,
)
from tests.table_stores import LevelDbBase, SimBase


class LevelDbWorld(LevelDbBase):
    """LevelDbTables, and what only a test does to them."""

    def corrupt(self, channel: ChannelId, key: bytes) -> None:
        database = database_of(self.tables, channel)
        stored = database.get(rows_prefix(channel) + key)
        database.put(rows_prefix(channel) + key, stored[:-1] + bytes([stored[-1] ^ 1]))

    def put_beside(self, channel: ChannelId, key: bytes) -> None:
        database_of(self.tables, channel).put(channel + key, b"state")

    def keys_of(self, channel: ChannelId) -> list[bytes]:
        if channel not in self.tables._databases:
            return []
        with database_of(self.tables, channel).iterator(
            prefix=channel, include_value=False
        ) as keys:
            return [key[len(channel) :] for key in keys]

    def reset(self, channel: ChannelId) -> None:
        self.tables.reset_channel(channel)


class SimWorld(SimBase):
    """SimTables, and what only a test does to them."""

    def __init__(self) -> None:
        super().__init__()
        self.records: dict[ChannelId, list[Record]] = {}

    def corrupt(self, channel: ChannelId, key: bytes) -> None:
        self.tables.corrupt(channel, key)

    def put_beside(self, channel: ChannelId, key: bytes) -> None:
        self.tables._tables[channel].state[key] = b"state"

    def keys_of(self, channel: ChannelId) -> list[bytes]:
        table = self.tables._tables.get(channel)
        if table is None:
            return []
        applied = [b"\x00"] if table.applied.seq else []
        return applied + [ROWS_TAG + key for key in sorted(table.rows)] + sorted(table.state)

    def reset(self, channel: ChannelId) -> None:
        """As a start does when the log lost what the channel had applied (S0.3)."""
        log = SimLog.new()
        for other in (CHANNEL, OTHER):
            log.open_channel(other)
            if other != channel:
                log.append(other, self.records.get(other, []))
        self.tables.crash(random.Random(1), keeps_all=True)
        reconcile(log, self.tables)


@pytest.fixture(params=["leveldb", "sim"])
def world(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    """Empty tables with both channels open."""
    made: Any = LevelDbWorld(tmp_path) if request.param == "leveldb" else SimWorld()
    made.tables.open_channel(CHANNEL, TableMachine())
    made.tables.open_channel(OTHER, TableMachine())
    yield made
    made.close()


def values(world: Any, *keys: bytes, channel: ChannelId = CHANNEL) -> list[bytes | None]:
    """The values of keys."""
    rows = [world.tables.get(channel, key) for key in keys]
    return [None if row is None else row.value for row in rows]


def test_applied_rows_are_read_with_the_seq_of_their_record(world: Any) -> None:
    """A row's seq is the last_seq of the record that wrote it."""
    world.tables.apply(CHANNEL, [rows_record(1, {b"a": b"1", b"b": b"2"})])
    assert world.tables.applied_seq(CHANNEL) == 0
    assert values(world, b"a") == [None]
    world.drain()
    assert world.tables.applied_seq(CHANNEL) == 2
    assert values(world, b"a", b"b", b"c") == [b"1", b"2", None]
    assert world.tables.get(CHANNEL, b"a").seq == 2


def test_later_records_win_and_deletes_delete(world: Any) -> None:
    """Records are applied in seq order, the last write of a key within one record wins (S10)."""
    world.tables.apply(CHANNEL, [rows_record(1, {b"a": b"1", b"b": b"1"})])
    world.tables.apply(
        CHANNEL, [rows_record(3, {b"a": b"2", b"b": None}), record(5, kind=RecordKind.TERM_START)]
    )
    world.drain()
    assert values(world, b"a", b"b") == [b"2", None]
    assert world.tables.applied_seq(CHANNEL) == 5


def test_each_apply_is_answered_once_and_in_order(world: Any) -> None:
    """The engine counts what is outstanding."""
    world.tables.apply(CHANNEL, [rows_record(1, {b"a": b"1"}), rows_record(2, {b"a": b"2"})])
    world.tables.apply(OTHER, [rows_record(1, {b"a": b"3"})])
    world.tables.apply(CHANNEL, [rows_record(3, {b"a": b"4"})])
    world.drain()
    assert world.completed == [(CHANNEL, 2, (), ()), (OTHER, 1, (), ()), (CHANNEL, 3, (), ())]


def test_condition_sees_the_records_before_it_even_in_one_call(world: Any) -> None:
    """S10: a condition is decided by the state of all records before it, on every replica alike."""
    world.tables.apply(
        CHANNEL,
        [
            rows_record(1, {b"k": b"first"}),
            conditional_record(2, b"k", b"second", expected=1),
            conditional_record(3, b"k", b"lost", expected=1),
            conditional_record(4, b"new", b"made", expected=0),
            conditional_record(5, b"new", b"lost", expected=0),
        ],
    )
    world.drain()
    assert values(world, b"k", b"new") == [b"second", b"made"]
    assert world.completed == [(CHANNEL, 5, ((3, 2), (5, 4)), ())]


def test_applied_position_survives_with_the_rows(world: Any) -> None:
    """S10: the applied seq travels in the same atomic batch as the state."""
    world.tables.apply(CHANNEL, [rows_record(1, {b"a": b"1"})])
    world.drain()
    world.restart()
    assert world.tables.open_channel(CHANNEL, TableMachine()) == 1
    assert world.tables.open_channel(OTHER, TableMachine()) == 0
    assert values(world, b"a") == [b"1"]
    world.tables.apply(CHANNEL, [rows_record(2, {b"a": b"2"})])
    world.drain()
    assert values(world, b"a") == [b"2"]


def test_record_is_refused_when_it_leaves_a_gap_or_comes_twice(world: Any) -> None:
    """S10: exactly once and in order, or not at all."""
    world.tables.apply(CHANNEL, [rows_record(1, {b"a": b"1"})])
    for seq in (1, 3):
        with pytest.raises(PersistError, match=rf"seq {seq} .* cannot be applied behind seq 1"):
            world.tables.apply(CHANNEL, [rows_record(seq, {b"a": b"2"})])


def test_scan_returns_a_page_in_key_order(world: Any) -> None:
    """Ranges are half open, b"" is open, and the page says whether there is more."""
    rows: dict[bytes, bytes | None] = {bytes([n]): b"v" for n in (0, 1, 2, 3, 254, 255)}
    world.tables.apply(CHANNEL, [rows_record(1, rows | {b"\xff\xff": b"v"})])
    world.tables.apply(OTHER, [rows_record(1, {b"\x01": b"other"})])
    world.drain()

    def keys(start: bytes, stop: bytes, limit: int) -> tuple[list[bytes], bool]:
        page = world.tables.scan(CHANNEL, start, stop, limit)
        return [row.key for row in page.rows], page.more

    everything = [*sorted(rows), b"\xff\xff"]
    assert keys(b"", b"", 100) == (everything, False)
    assert keys(b"", b"", 7) == (everything, False)
    assert keys(b"", b"", 6) == (everything[:6], True)
    assert keys(b"\x01", b"\x03", 10) == ([b"\x01", b"\x02"], False)
    assert keys(b"\x01", b"\x03", 1) == ([b"\x01"], True)
    assert keys(b"\xff", b"", 10) == ([b"\xff", b"\xff\xff"], False)


def test_scan_ends_before_the_row_that_goes_beyond_its_bytes(world: Any) -> None:
    """A page costs what it returns, whatever the size of the rows; a first row always fits."""
    world.tables.apply(CHANNEL, [rows_record(1, {bytes([n]): bytes(9) for n in range(1, 5)})])
    world.drain()

    def page(bytes_max: int, start: bytes = b"", limit: int = 100) -> tuple[int, bool, int]:
        found = world.tables.scan(CHANNEL, start, b"", limit, bytes_max)
        return len(found.rows), found.more, found.applied_seq

    assert page(1) == page(10) == page(19) == (1, True, 4)
    assert page(20) == page(29) == (2, True, 4)
    assert page(39) == (3, True, 4)
    assert page(40) == (4, False, 4)
    assert page(40, limit=2) == (2, True, 4)
    assert page(1, start=b"\x04") == (1, False, 4)
    assert page(1, start=b"\x05") == (0, False, 4)


def test_several_rows_come_with_the_applied_seq_they_are_of(world: Any) -> None:
    """In the order of the keys, None for what is absent, as far as the bytes reach."""
    assert world.tables.get_many(CHANNEL, (b"a",), 99) == ([None], [0], 0, 0)
    world.tables.apply(CHANNEL, [rows_record(1, {b"a": b"123", b"b": b"45"})])
    world.tables.apply(OTHER, [rows_record(1, {b"a": b"other"})])
    world.drain()
    world.tables.apply(CHANNEL, [rows_record(3, {b"a": b"queued"})])

    def found(*keys: bytes, bytes_max: int = 99) -> tuple[list[bytes | None], int]:
        found = world.tables.get_many(CHANNEL, keys, bytes_max)
        pairs = list(zip(keys, found.values, strict=False))
        there = [(key, unseal(key, value)) for key, value in pairs if value is not None]
        assert found.size == sum(len(key) + len(value) for key, value in there)
        assert found.seqs == [0 if value is None else found.applied_seq for _, value in pairs]
        rows = dict(there)
        return [rows.get(key) for key, _ in pairs], found.applied_seq

    assert found(b"b", b"c", b"a", b"b") == ([b"45", None, b"123", b"45"], 2)
    assert found(b"a", b"b", bytes_max=7) == ([b"123", b"45"], 2)
    assert found(b"a", b"b", b"a", bytes_max=6) == ([b"123", b"45"], 2)
    assert found(b"a", b"b", bytes_max=3) == ([b"123"], 2)
    world.drain()
    assert found(b"a") == ([b"queued"], 3)


def test_content_hash_depends_on_rows_and_not_on_how_they_came(world: Any) -> None:
    """Replicas are compared by it: keys, values, seqs, and the position it was taken at."""
    empty = world.tables.content_hash(CHANNEL)
    assert empty[1:] == (0, 0)
    world.tables.apply(CHANNEL, [rows_record(1, {b"a": b"1", b"b": b"2"})])
    world.tables.apply(OTHER, [rows_record(1, {b"b": b"2", b"a": b"1"})])
    world.drain()
    first = world.tables.content_hash(CHANNEL)
    assert first == world.tables.content_hash(OTHER)
    assert first[1:] == (2, 2)
    world.tables.apply(CHANNEL, [rows_record(3, {b"a": b"1"})])
    world.drain()
    assert world.tables.content_hash(CHANNEL)[0] != first[0]


def test_content_hash_is_the_same_in_every_store() -> None:
    """A hash is a promise between versions and implementations: this one is fixed."""
    tables = SimTables()
    tables.open_channel(CHANNEL, TableMachine())
    tables.apply(CHANNEL, [rows_record(1, {b"a": b"1", b"b": b"2"})])
    tables.apply_next()
    digest, rows, seq = tables.content_hash(CHANNEL)
    assert (digest.hex(), rows, seq) == ("fc4b2be0d2ac8bf8ce628d45be85b95f", 2, 2)


def test_damaged_value_is_never_answered(world: Any) -> None:
    """Each row carries a seal over key and value that is checked at every read."""
    world.tables.apply(CHANNEL, [rows_record(1, {b"a": b"1"})])
    world.drain()
    world.corrupt(CHANNEL, b"a")
    with pytest.raises(CorruptRecordError, match="checksum"):
        world.tables.get(CHANNEL, b"a")


@pytest.mark.parametrize(
    ("read", "what"), [("get_many", ((b"a", b"b"), 99)), ("scan", (b"", b"", 9))]
)
def test_damaged_value_is_never_answered_among_others(world: Any, read: str, what: Any) -> None:
    """Reads of several rows check each seal, too."""
    world.tables.apply(CHANNEL, [rows_record(1, {b"a": b"1", b"b": b"2"})])
    world.drain()
    world.corrupt(CHANNEL, b"b")
    with pytest.raises(CorruptRecordError, match="checksum"):
        getattr(world.tables, read)(CHANNEL, *what)


def test_dropped_channel_leaves_no_rows(world: Any) -> None:
    """The rows of a dropped table go, its neighbours stay."""
    world.tables.apply(CHANNEL, [rows_record(1, {b"a": b"1"})])
    world.tables.apply(OTHER, [rows_record(1, {b"a": b"1"})])
    world.drain()
    world.tables.drop(CHANNEL)
    world.drain()
    world.restart()
    assert world.tables.open_channel(CHANNEL, TableMachine()) == 0
    assert values(world, b"a") == [None]
    world.tables.open_channel(OTHER, TableMachine())
    assert values(world, b"a", channel=OTHER) == [b"1"]


@pytest.mark.parametrize("way", ["drop", "reset"])
def test_channel_that_goes_leaves_no_key_of_any_sort(world: Any, way: str) -> None:
    """S0.8, S0.3: what a machine keeps beside the rows goes with them, the neighbours' stays."""
    beside = [b"\x02", b"\x02\x01a", b"\x03\xff", b"\xfe"]
    for channel in (CHANNEL, OTHER):
        world.tables.apply(channel, [rows_record(1, {b"a": b"1", b"\xff\xff": b"2"})])
        world.drain()
        for key in beside:
            world.put_beside(channel, key)
    world.records = {OTHER: [rows_record(1, {b"a": b"1", b"\xff\xff": b"2"})]}
    kept = [b"\x00", b"\x01a", b"\x01\xff\xff", *beside]
    assert world.keys_of(CHANNEL) == world.keys_of(OTHER) == kept
    getattr(world.tables if way == "drop" else world, way)(CHANNEL)
    world.drain()
    world.restart()
    assert world.keys_of(CHANNEL) == []
    assert world.keys_of(OTHER) == kept


KEYS = st.sampled_from([b"a", b"b", b"\x00", b"\xff"])
WRITES = st.one_of(
    st.dictionaries(KEYS, st.none() | st.binary(max_size=3), min_size=1),
    st.tuples(KEYS, st.binary(max_size=3), st.integers(0, 6)),
)


@settings(max_examples=25)
@given(batches=st.lists(st.lists(WRITES, min_size=1, max_size=4), max_size=5))
@pytest.mark.slow
def test_stores_agree_on_rows_conflicts_and_hash(
    batches: list[list[Any]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Given any records, LevelDB and the simulated tables end with the same rows and answers."""
    worlds: list[Any] = [LevelDbWorld(tmp_path_factory.mktemp("db")), SimWorld()]
    for world in worlds:
        world.tables.open_channel(CHANNEL, TableMachine())
        seq = 1
        for batch in batches:
            records = []
            for write in batch:
                if isinstance(write, dict):
                    records.append(rows_record(seq, write))
                else:
                    records.append(conditional_record(seq, *write))
                seq = records[-1].last_seq + 1
            world.tables.apply(CHANNEL, records)
        world.drain()
    real, simulated = worlds
    assert real.completed == simulated.completed
    assert real.tables.content_hash(CHANNEL) == simulated.tables.content_hash(CHANNEL)
    assert real.tables.scan(CHANNEL, b"", b"", 99) == simulated.tables.scan(CHANNEL, b"", b"", 99)
    real.close()


def test_record_behind_a_batch_sees_what_the_batch_removed(world: Any) -> None:
    """S10: a chunk of the same name is known no more, whatever was gathered before the batch."""
    name = ChunkHeader("w", 1, 0, 0, 0)
    payload = encode_staged(name, encode_rows([(b"k", None)]))
    for seq in (1, 3):
        staged = record(seq, kind=RecordKind.STAGED, payload=payload)
        world.tables.apply(CHANNEL, [staged])
        world.drain()
        [ref] = refs_of("w", 1, AppliedState(world.tables, CHANNEL))
        assert ref.base_seq == seq
        removal = ((ref.key, None),)
        piece = Piece(batch_record(seq + 1), first=True, last=True, state_writes=removal)
        world.tables.apply_piece(CHANNEL, piece)
        world.drain()


def drawn_records(draw: random.Random, count: int) -> list[Record]:
    """Rows, conditions, chunks and steps of micro-batches that look at what was before them."""
    records: list[Record] = []
    attempt = 0
    for seq in range(1, count + 1):
        match draw.randrange(6):
            case 0 | 1:
                rows = {bytes([draw.randrange(4)]): draw.choice([None, b"%d" % seq])}
                made = rows_record(seq, rows)
            case 2:
                expected = draw.choice([0, seq - 1, seq - 2])
                made = conditional_record(seq, bytes([draw.randrange(4)]), b"c", max(0, expected))
            case 3:
                name = ChunkHeader("w", draw.randint(1, 3), 0, 0, draw.randrange(2))
                payload = encode_staged(name, encode_rows([(b"k", None)]))
                made = record(seq, kind=RecordKind.STAGED, payload=payload)
            case 4:
                attempt += 1
                step: AnyStep = Begin("w", attempt, seq.to_bytes(16, "big"), "", False, 9_000, 2)
                made = record(seq, kind=RecordKind.TXN, payload=encode_step(step))
            case _:
                step = draw.choice([Drop("w", draw.randint(1, 3)), Close("w", attempt)])
                made = record(seq, kind=RecordKind.TXN, payload=encode_step(step))
        records.append(made)
    return records


@pytest.mark.parametrize("seed", range(8))
def test_state_does_not_depend_on_how_records_are_grouped(world: Any, seed: int) -> None:
    """S10: one call or many, with pauses between them or without: the same on every replica."""
    draw = random.Random(seed)
    records = drawn_records(draw, 60)
    for one in records:
        world.tables.apply(CHANNEL, [one])
        world.drain()
    rest = list(records)
    while rest:
        size = draw.choice([1, 3, 20])
        world.tables.apply(OTHER, rest[:size])
        del rest[:size]
        if draw.random() < 0.3:
            world.drain()
    world.drain()

    def told(channel: ChannelId) -> tuple[list[Any], list[Any]]:
        mine = [each for each in world.completed if each[0] == channel]
        return [c for each in mine for c in each[2]], [a for each in mine for a in each[3]]

    def beside(channel: ChannelId) -> list[tuple[bytes, bytes]]:
        found: list[tuple[bytes, bytes]] = world.tables.state_scan(channel, b"\x02", b"\xff", 9_999)
        return found

    assert told(CHANNEL) == told(OTHER)
    assert beside(CHANNEL) == beside(OTHER)
    assert world.tables.content_hash(CHANNEL) == world.tables.content_hash(OTHER)
    conflicts, answers = told(CHANNEL)
    assert min(len(conflicts), len(answers), len(beside(CHANNEL))) > 0


def test_simulated_crash_takes_back_whole_records_only() -> None:
    """S10: after a crash the rows are those of some applied position, and that one is reported."""
    for seed in range(30):
        tables, log = SimTables(), SimLog.new()
        tables.open_channel(CHANNEL, TableMachine())
        records = [rows_record(2 * n + 1, {b"a": b"%d" % n, b"%d" % n: b"x"}) for n in range(8)]
        log.append(CHANNEL, records)
        log.flush()
        tables.apply(CHANNEL, records)
        tables.apply_next()
        tables.crash(random.Random(seed))
        assert not reconcile(log, tables)
        applied = tables.open_channel(CHANNEL, TableMachine())
        whole = applied // 2
        expected = {b"%d" % n for n in range(whole)} | ({b"a"} if whole else set())
        assert {row.key for row in tables.scan(CHANNEL, b"", b"", 99).rows} == expected
        if whole:
            row = tables.get(CHANNEL, b"a")
            assert row is not None
            assert row.value == b"%d" % (whole - 1)
