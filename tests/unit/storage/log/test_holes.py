"""A damaged entry takes nothing with it but itself, and other replicas give it back (S0.3)."""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raftstore.protocol.records import Record
from raftstore.storage.log.index import offset_of
from raftstore.storage.log.records import (
    HEADER_BYTES,
    RecordPosition,
    SegmentHeader,
    Truncation,
    decode_entries,
    first_chain,
)
from raftstore.storage.log.segment_log import SegmentLog
from raftstore.types import ChannelId, History
from tests.storage_helpers import (
    ALICE,
    BOB,
    CHANNEL,
    OTHER,
    STORE_UUID,
    all_records,
    create_log,
    flip_bit,
    open_log,
    record,
)

THIRD: Final = ChannelId(b"orders-table-id!\x00\x07")
CHANNELS: Final = (CHANNEL, OTHER, THIRD)
SEGMENT_BYTES: Final = 2_000
BYTES_MAX: Final = 100
"""Of one refill: little, so that larger holes take several."""
Contents = dict[ChannelId, list[Record]]


def write_history(log: SegmentLog) -> None:
    """Three channels with votes, terms, and divergent ends that were cut."""
    rng = random.Random(5)
    terms = dict.fromkeys(CHANNELS, 1)
    for _ in range(90):
        channel = rng.choice(CHANNELS)
        end = log.open_channel(channel).last_seq
        step = rng.random()
        if step < 0.2:
            terms[channel] += 1
            log.set_vote(channel, terms[channel], rng.choice((None, ALICE, BOB)))
        if 0.1 < step < 0.2 and end > 6:
            log.truncate(channel, all_records(log, channel)[-rng.randint(1, 2)].base_seq)
        write(log, channel, terms[channel], rng)
        if rng.random() < 0.3:
            log.flush()
    log.flush()


def write(log: SegmentLog, channel: ChannelId, term: int, rng: random.Random) -> None:
    """Append the next record of a channel."""
    seq = log.open_channel(channel).last_seq + 1
    payload = rng.randbytes(rng.choice((0, 3, 60, 300)))
    log.append(channel, [record(seq, term=term, rows=rng.randint(1, 3), payload=payload)])


def opened(directory: Path) -> SegmentLog:
    """The log as a start finds it."""
    return open_log(directory, segment_bytes=SEGMENT_BYTES)


def contents(log: SegmentLog) -> Contents:
    """All records of all channels."""
    return {channel: all_records(log, channel) for channel in CHANNELS}


@pytest.fixture(scope="module")
def intact(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A closed store with that history, in several segments; nobody changes it."""
    directory = tmp_path_factory.mktemp("intact")
    log = create_log(directory, segment_bytes=SEGMENT_BYTES)
    write_history(log)
    log.close()
    assert len(segments(directory)) > 5
    return directory


def segments(directory: Path) -> list[Path]:
    """The files of a log, oldest first."""
    return sorted((directory / "log").iterdir())


def entries(path: Path) -> list[tuple[int, int, object]]:
    """(offset, length, entry) of everything in an intact segment."""
    return [
        (offset, length, entry)
        for offset, length, _, entry in decode_entries(path.read_bytes(), None)
    ]


def damaged_copy(intact: Path, tmp_path: Path) -> tuple[Path, RecordPosition]:
    """A copy of the log in which a record in the middle is damaged, and where it was."""
    copy = tmp_path / "copy"
    shutil.copytree(intact, copy)
    path = segments(copy)[2]
    offset, length, lost = next(
        found for found in entries(path) if isinstance(found[2], RecordPosition)
    )
    assert isinstance(lost, RecordPosition)
    flip_bit(path, offset + length - 1)
    return copy, lost


def refill(log: SegmentLog, *others: SegmentLog) -> None:
    """Fill what can be filled, as the nodes would, without any leader."""
    for channel in CHANNELS:
        while (hole := log.open_channel(channel).hole) is not None:
            found = [other.refill(channel, hole, bytes_max=BYTES_MAX) for other in others]
            best = max(found, key=len)
            if not best:
                break
            log.fill(channel, best)
    log.flush()


def check_healed(directory: Path, other: Path) -> None:
    """Everything comes back from an intact copy, at once and after another start."""
    whole, log = opened(other), opened(directory)
    wanted = contents(whole)
    holes = [channel for channel in CHANNELS if log.open_channel(channel).hole is not None]
    for channel in CHANNELS:
        found = log.open_channel(channel)
        held = all_records(log, channel)
        assert (found.shortfall is None) == (channel not in holes)
        assert held == wanted[channel][: len(held)]
        assert channel in holes or held == wanted[channel]
        before = whole.open_channel(channel)
        assert (found.term, found.voted_for) == (before.term, before.voted_for)
    refill(log, whole)
    for again in (False, True):
        assert contents(log) == wanted
        for channel in CHANNELS:
            assert log.open_channel(channel).shortfall is None
            write(log, channel, 99, random.Random(again))
            wanted[channel] = all_records(log, channel)
        log.flush()
        log.close()
        log = opened(directory)
    assert contents(log) == wanted
    log.close()
    whole.close()


@pytest.mark.slow
@given(segment=st.integers(0, 99), place=st.integers(0, 1 << 20), bit=st.integers(0, 7))
def test_any_flipped_bit_costs_one_record_at_most(
    intact: Path, segment: int, place: int, bit: int
) -> None:
    """Every other record of every channel is kept, and that one comes back from a copy."""
    with TemporaryDirectory() as place_of_copy:
        copy = Path(place_of_copy) / "copy"
        shutil.copytree(intact, copy)
        paths = segments(copy)
        path = paths[segment % len(paths)]
        flip_bit(path, place % path.stat().st_size, 1 << bit)
        log = opened(copy)
        before = opened(intact)
        holes = [hole for channel in CHANNELS if (hole := log.open_channel(channel).hole)]
        assert len(holes) <= 1
        for hole in holes:
            lost = [
                one
                for channel in CHANNELS
                for one in all_records(before, channel)
                if (one.base_seq, one.last_seq) == (hole.from_seq, hole.to_seq)
            ]
            assert lost, "the hole is more than one record"
        before.close()
        log.close()
        check_healed(copy, intact)


@pytest.mark.slow
@given(
    first=st.integers(0, 10_000),
    second=st.integers(0, 10_000),
    at=st.tuples(st.integers(0, 10_000), st.integers(0, 10_000)),
)
def test_two_damaged_logs_heal_each_other(
    intact: Path, first: int, second: int, at: tuple[int, int]
) -> None:
    """No leader, no third replica: each record has one intact copy left, and that is enough."""
    with TemporaryDirectory() as place_of_copies:
        copies = [Path(place_of_copies) / name for name in ("a", "b")]
        records = [
            (path.name, offset, length)
            for path in segments(intact)
            for offset, length, entry in entries(path)
            if isinstance(entry, RecordPosition)
        ]
        chosen = [records[number % len(records)] for number in (first, second)]
        for copy, (name, offset, length), byte in zip(copies, chosen, at, strict=True):
            shutil.copytree(intact, copy)
            flip_bit(copy / "log" / name, offset + byte % length)
        whole, a, b = opened(intact), opened(copies[0]), opened(copies[1])
        if chosen[0] != chosen[1]:
            for _ in range(2):
                refill(a, b)
                refill(b, a)
            assert contents(a) == contents(b) == contents(whole)
        else:
            refill(a, b)  # nobody has it: it stays missing, and is not taken for something else
        for log in (a, b):
            for channel in CHANNELS:
                held = all_records(log, channel)
                assert held == all_records(whole, channel)[: len(held)]
            log.close()
        whole.close()


def zero_page(path: Path) -> None:
    """A block in the middle that a disk gives back empty."""
    data = bytearray(path.read_bytes())
    middle = len(data) // 3
    data[middle : middle + 700] = bytes(700)
    path.write_bytes(data)


@pytest.mark.parametrize(
    "damage",
    [
        zero_page,
        Path.unlink,
        lambda path: path.write_bytes(b""),
        lambda path: path.write_bytes(path.read_bytes()[:-300]),
        lambda path: path.write_bytes(path.read_bytes()[:500] + path.read_bytes()[650:]),
    ],
    ids=["zeros", "missing", "empty", "cut", "bytes lost"],
)
@pytest.mark.parametrize("number", [0, 2, 4])
def test_larger_damage_of_an_old_segment_keeps_what_is_behind_it(
    intact: Path, tmp_path: Path, damage: Callable[[Path], object], number: int
) -> None:
    """Given larger damage of an old segment, the rest of the log is kept and each channel's lost
    records can be refilled; a part without proof is not guessed at.
    """
    copy = tmp_path / "copy"
    shutil.copytree(intact, copy)
    damage(segments(copy)[number])
    whole, log = opened(intact), opened(copy)
    refill(log, whole)
    for channel in CHANNELS:
        held, wanted = all_records(log, channel), all_records(whole, channel)
        found = log.open_channel(channel)
        assert held == wanted or found.shortfall is not None
        if found.shortfall is not None:
            assert found.shortfall >= History(wanted[-1].term, wanted[-1].last_seq)
            assert found.hole is not None
            assert whole.refill(channel, found.hole, bytes_max=BYTES_MAX) == []
    assert sum(log.open_channel(channel).hole is None for channel in CHANNELS) >= 1
    log.close()
    whole.close()


def test_promise_is_not_forgotten_when_the_record_in_front_of_a_truncation_is_damaged(
    tmp_path: Path,
) -> None:
    """S0.3: what is left of the part behind the hole shows no term, but the mark does."""
    log = create_log(tmp_path, segment_bytes=1 << 20)
    log.append(CHANNEL, [record(seq) for seq in range(1, 6)])
    log.truncate(CHANNEL, 4)
    log.flush()
    log.close()
    path = segments(tmp_path)[0]
    offset, _, entry = entries(path)[3]
    assert entry == RecordPosition(CHANNEL, 1, 3, 1)
    flip_bit(path, offset + HEADER_BYTES + 25)
    for _ in range(2):
        log = opened(tmp_path)
        assert log.open_channel(CHANNEL).shortfall == History(1, 3)
        if log.open_channel(CHANNEL).hole is not None:
            log.give_up(CHANNEL)
            log.flush()
        log.close()


def test_log_within_a_payload_is_not_taken_for_the_log(tmp_path: Path) -> None:
    """Users may store anything, also segments: only what continues the chain is believed."""
    (tmp_path / "nested").mkdir()
    nested = create_log(tmp_path / "nested")
    nested.append(CHANNEL, [record(1, payload=b"forged"), record(2, payload=b"forged")])
    nested.flush()
    nested.close()
    forged = (tmp_path / "nested" / "log" / "0000000000000001.log").read_bytes()
    (tmp_path / "data").mkdir()
    log = create_log(tmp_path / "data", segment_bytes=1 << 20)
    log.append(CHANNEL, [record(1, payload=forged), record(2), record(3)])
    log.append(OTHER, [record(1)])
    log.flush()
    wanted = all_records(log)
    log.close()
    path = tmp_path / "data" / "log" / "0000000000000001.log"
    offset = entries(path)[1][0]
    flip_bit(path, offset + 3)  # its length
    log = open_log(tmp_path / "data")
    assert all_records(log) == wanted
    flip_bit(path, offset + HEADER_BYTES + 200)
    log.close()
    log = open_log(tmp_path / "data")
    assert log.open_channel(CHANNEL).last_seq == 0
    hole = log.open_channel(CHANNEL).hole
    assert hole is not None
    assert (hole.from_seq, hole.to_seq) == (1, 1)
    log.close()


def test_what_is_given_up_stays_promised(intact: Path, tmp_path: Path) -> None:
    """S0.3: forgotten is not truncated: the replica recovers from a leader, over restarts too."""
    copy, lost = damaged_copy(intact, tmp_path)
    log = opened(copy)
    channel = lost.channel
    before = log.open_channel(channel)
    assert before.hole is not None
    end = before.shortfall
    log.give_up(channel)
    assert log.open_channel(channel).hole is None
    for _ in range(2):
        found = log.open_channel(channel)
        assert found.shortfall == end
        assert found.last_seq == lost.base_seq - 1
        log.flush()
        log.close()
        log = opened(copy)
    log.append(channel, [record(lost.base_seq, term=98), record(lost.base_seq + 1, term=98)])
    log.flush()
    log.close()
    log = opened(copy)
    found = log.open_channel(channel)
    assert found.last_seq == lost.base_seq + 1
    assert found.hole is None
    log.close()


def commit(log: SegmentLog) -> None:
    """One group commit, which leaves the mark behind."""
    batch = log.take_pending()
    assert batch is not None
    log.committer.write_and_sync(batch)
    log.completed(batch)


def test_what_is_given_up_stays_promised_although_the_mark_lagged(tmp_path: Path) -> None:
    """S0.3: records of the newest group commit before a crash are in no mark yet; once they are
    given up, no log names them either."""
    (tmp_path / "first").mkdir()
    log = create_log(tmp_path / "first", segment_bytes=1 << 20)
    for seq in range(1, 6):
        log.append(CHANNEL, [record(seq)])
        commit(log)
    crashed = tmp_path / "crashed"
    shutil.copytree(tmp_path / "first", crashed)
    log.close()
    path = segments(crashed)[0]
    offset, length, _ = entries(path)[2]
    flip_bit(path, offset + length - 1)
    log = opened(crashed)
    assert log.open_channel(CHANNEL).hole is not None
    log.give_up(CHANNEL)
    commit(log)
    again = tmp_path / "again"
    shutil.copytree(crashed, again)
    log.close()
    log = opened(again)
    assert log.open_channel(CHANNEL).shortfall == History(1, 5)
    log.close()


def test_nothing_is_given_to_a_log_that_was_never_equal(intact: Path, tmp_path: Path) -> None:
    """S2.4: without a record that both have held nothing proves what belongs into a hole."""
    copy, lost = damaged_copy(intact, tmp_path)
    log = opened(copy)
    hole = log.open_channel(lost.channel).hole
    assert hole is not None
    log.close()
    (tmp_path / "other").mkdir()
    other = create_log(tmp_path / "other")
    for seq in range(1, hole.to_seq + 5):
        other.append(lost.channel, [record(seq, term=100)])
    assert other.refill(lost.channel, hole, bytes_max=1 << 20) == []
    whole = opened(intact)
    assert whole.refill(lost.channel, hole, bytes_max=1 << 20) != []
    assert whole.refill(lost.channel, hole._replace(runs=()), bytes_max=1 << 20) == []
    stale = hole._replace(prev_term=hole.prev_term + 50)
    assert whole.refill(lost.channel, stale, bytes_max=1 << 20) == []
    whole.close()
    other.close()


def test_records_that_were_replaced_within_the_damage_are_not_believed(tmp_path: Path) -> None:
    """S2.4: the seqs fit, but the truncation and what came behind it are in the damaged bytes."""
    log = create_log(tmp_path, segment_bytes=1_200)
    log.append(CHANNEL, [record(1), record(2), record(3)])
    log.truncate(CHANNEL, 2)
    log.append(CHANNEL, [record(2, term=2), record(3, term=2)])
    log.append(CHANNEL, [record(4, term=3)])
    while len(segments(tmp_path)) < 2:
        log.append(OTHER, [record(log.open_channel(OTHER).last_seq + 1)])
        log.flush()
    wanted = all_records(log)
    log.close()
    path = segments(tmp_path)[0]
    found = entries(path)
    (cut,) = [at for at, _, entry in found if isinstance(entry, Truncation)]
    (after,) = [at for at, _, entry in found if isinstance(entry, RecordPosition) and entry[1] == 3]
    data = path.read_bytes()
    path.write_bytes(data[:cut] + bytes(after - cut) + data[after:])
    log = open_log(tmp_path, segment_bytes=1_200)
    held = log.open_channel(CHANNEL)
    assert held.shortfall == History(3, 4)
    assert held.last_seq == 3  # what is proven to be stale by a leader only
    assert all_records(log) != wanted
    log.close()


def test_segment_header_is_written_again(intact: Path, tmp_path: Path) -> None:
    """Given a damaged segment header, it is written again from what is known without it, and
    nothing is lost.
    """
    copy = tmp_path / "copy"
    shutil.copytree(intact, copy)
    path = segments(copy)[1]
    before = path.read_bytes()
    assert isinstance(entries(path)[0][2], SegmentHeader)
    path.write_bytes(bytes(40) + before[40:])
    opened(copy).close()
    assert path.read_bytes() == before
    assert first_chain(STORE_UUID) != 0


def test_what_was_filled_is_kept_when_the_log_is_damaged_again_before_it(tmp_path: Path) -> None:
    """S0.3: a second damaged record takes nothing with it but itself, either."""
    log = create_log(tmp_path)
    records = [record(seq) for seq in range(1, 9)]
    log.append(CHANNEL, records)
    log.flush()
    for lost in (5, 7, 2):
        index = log.index_of(CHANNEL)
        assert index is not None
        place = index.positions[lost - 1] + index.lengths[lost - 1] - 1
        log.close()
        flip_bit(segments(tmp_path)[0], offset_of(place))
        log = open_log(tmp_path)
        hole = log.open_channel(CHANNEL).hole
        assert hole is not None
        assert (hole.from_seq, hole.to_seq) == (lost, lost)
        log.fill(CHANNEL, [records[lost - 1]])
        log.flush()
        assert all_records(log) == records
        assert log.open_channel(CHANNEL).hole is None
        assert log.open_channel(CHANNEL).shortfall is None


def test_what_was_filled_is_kept_when_what_was_filled_before_it_is_damaged(
    tmp_path: Path,
) -> None:
    """S0.3: of a hole of several records the first is lost again; the others have their places."""
    log = create_log(tmp_path)
    records = [record(seq) for seq in range(1, 9)]
    log.append(CHANNEL, records)
    log.flush()
    index = log.index_of(CHANNEL)
    assert index is not None
    first = offset_of(index.positions[2])
    log.close()
    os.truncate(segments(tmp_path)[0], first)
    log = open_log(tmp_path)
    hole = log.open_channel(CHANNEL).hole
    assert hole is not None
    assert (hole.from_seq, hole.to_seq) == (3, 8)
    log.fill(CHANNEL, records[2:])
    log.flush()
    index = log.index_of(CHANNEL)
    assert index is not None
    place = index.positions[2] + index.lengths[2] - 1
    log.close()
    flip_bit(segments(tmp_path)[0], offset_of(place))
    log = open_log(tmp_path)
    hole = log.open_channel(CHANNEL).hole
    assert hole is not None
    assert (hole.from_seq, hole.to_seq) == (3, 3)
    log.fill(CHANNEL, records[2:3])
    log.flush()
    assert all_records(log) == records
    log.close()


def test_channel_that_was_found_whole_behind_damage_stays_whole(tmp_path: Path) -> None:
    """S0.3: two entries are lost of which nothing says what they were. A channel that lost nothing
    is whole, and its next record continues it at every later start."""
    log = create_log(tmp_path)
    log.append(CHANNEL, [record(1, term=1)])
    log.append(OTHER, [record(seq, term=1) for seq in range(1, 5)])
    log.flush()
    log.set_vote(CHANNEL, 5, ALICE)
    log.flush()
    index = log.index_of(OTHER)
    assert index is not None
    places = [index.positions[at] + HEADER_BYTES + 3 for at in (1, 2)]
    log.close()
    for place in places:
        flip_bit(segments(tmp_path)[0], offset_of(place))
    for term in (5, 6, 7):
        log = open_log(tmp_path)
        found = log.open_channel(CHANNEL)
        assert (found.hole, found.shortfall, found.voted_for) == (None, None, ALICE)
        log.append(CHANNEL, [record(found.last_seq + 1, term=term)])
        log.flush()
        log.close()
