"""The log read back while it is open: every damaged bit is found, and lost as at a start (S0.3)."""

from __future__ import annotations

import random
import shutil
from pathlib import Path

import pytest

from raftstore.config import KIB
from raftstore.core.folds import advance
from raftstore.errors import PersistError
from raftstore.ports.log import EMPTY_BASE
from raftstore.ports.scrub import LogDamage, LogPlace
from raftstore.storage.files import FileOps
from raftstore.storage.log.index import offset_of, position_of, segment_of
from raftstore.storage.log.records import HEADER_BYTES, SEGMENT_HEADER_BYTES
from raftstore.storage.log.segment_log import SegmentLog
from raftstore.storage.log.segments import segment_path
from raftstore.types import History, Seq, Term
from tests.storage_helpers import (
    ALICE,
    CHANNEL,
    OTHER,
    all_records,
    create_log,
    flip_bit,
    open_log,
    record,
)

RECORDS = 40


def scrub(log: SegmentLog, bytes_max: int = 512) -> tuple[list[LogDamage], int]:
    """One pass: what is damaged, and the bytes that were read."""
    place: LogPlace | None = None
    damages, size = list[LogDamage](), 0
    for _ in range(10_000):
        step = log.verifying.step(place, bytes_max)()
        size += step.bytes
        if step.damage is not None:
            damages.append(step.damage)
        place = step.place
        if place is None:
            return damages, size
    raise AssertionError("the pass does not end")


def filled(directory: Path, *, records: int = RECORDS) -> SegmentLog:
    """A log of several segments and two channels, all of it durable."""
    log = create_log(directory, log_cache_bytes=0)
    log.set_vote(CHANNEL, Term(1), ALICE)
    for n in range(records):
        log.append(CHANNEL if n % 2 else OTHER, [record(n // 2 + 1, payload=bytes([n]) * 60)])
        log.flush()
    return log


def test_intact_log_is_read_to_the_end_of_what_is_durable(tmp_path: Path) -> None:
    """With steps of any size, and with an entry that is longer than a step."""
    log = filled(tmp_path)
    log.append(CHANNEL, [record(RECORDS // 2 + 1, payload=bytes(3 * KIB))])
    log.flush()
    durable = log.size_bytes()
    log.append(CHANNEL, [record(RECORDS // 2 + 2, payload=b"not durable")])
    for bytes_max in (1, 100, 1 * KIB, 1024 * KIB):
        assert scrub(log, bytes_max) == ([], durable)
    log.close()


def test_every_flipped_bit_is_found_while_the_log_is_open(tmp_path: Path) -> None:
    """In headers, fields, payloads and segment headers, of closed segments and of the last one."""
    log = filled(tmp_path)
    rng = random.Random(5)
    paths = sorted(log.directory.iterdir())
    assert len(paths) > 3
    for _ in range(60):
        path = rng.choice(paths)
        offset, bit = rng.randrange(path.stat().st_size), 1 << rng.randrange(8)
        flip_bit(path, offset, bit)
        damages, _ = scrub(log)
        assert damages, (path, offset)
        assert damages[0].segment == int(path.stem)
        assert damages[0].offset <= offset
        is_last = path == paths[-1]
        assert is_last or offset < damages[0].end, (damages[0], offset)
        flip_bit(path, offset, bit)
    assert scrub(log)[0] == []
    log.close()


@pytest.mark.parametrize("at", [0, 1, RECORDS // 2 - 2, RECORDS // 2 - 1])
def test_lost_record_is_the_hole_that_a_start_would_find(tmp_path: Path, at: int) -> None:
    """The same seqs, terms and proofs; and what other nodes give back ends it."""
    log = filled(tmp_path)
    lost = all_records(log)[at]
    index = log.index_of(CHANNEL)
    assert index is not None
    position = index.positions[at]
    path = segment_path(log.directory, segment_of(position))
    flip_bit(path, offset_of(position) + index.lengths[at] - 1)
    (damage,), _ = scrub(log)
    assert log.verifying.channels_hit(damage) == (CHANNEL,)
    log.verifying.lose(CHANNEL, damage)
    hole = log.open_channel(CHANNEL).hole
    assert hole is not None
    assert (hole.from_seq, hole.to_seq) == (lost.base_seq, lost.last_seq)
    assert log.open_channel(CHANNEL).shortfall is not None
    assert log.open_channel(OTHER).hole is None
    shutil.copytree(tmp_path, tmp_path.with_name(f"{tmp_path.name}-copy"))
    started = open_log(tmp_path.with_name(f"{tmp_path.name}-copy"), log_cache_bytes=0)
    assert started.open_channel(CHANNEL).hole == hole
    started.close()
    log.fill(CHANNEL, [lost])
    log.flush()
    assert log.open_channel(CHANNEL).hole is None
    assert log.open_channel(CHANNEL).shortfall is None
    assert [each.base_seq for each in all_records(log)] == list(range(1, RECORDS // 2 + 1))
    log.close()
    again = open_log(tmp_path)
    assert again.open_channel(CHANNEL).hole is None
    assert all_records(again)[at] == lost
    again.close()


def test_lost_neighbours_are_one_hole_and_others_are_another(tmp_path: Path) -> None:
    """Records of one damage that follow each other are asked for together."""
    log = filled(tmp_path)
    index = log.index_of(CHANNEL)
    assert index is not None
    records = all_records(log)
    places = list(index.positions)
    for first, last in ((3, 5), (9, 9)):
        index.lose_records_in(places[first], places[last] + 1)
    hole = log.open_channel(CHANNEL).hole
    assert hole is not None
    assert (hole.from_seq, hole.to_seq) == (4, 6)
    log.fill(CHANNEL, records[3:6])
    hole = log.open_channel(CHANNEL).hole
    assert hole is not None
    assert (hole.from_seq, hole.to_seq) == (10, 10)
    log.fill(CHANNEL, records[9:10])
    log.flush()
    assert log.open_channel(CHANNEL).hole is None
    assert all_records(log) == records
    log.close()


def test_file_that_is_gone_or_short_is_damage_and_raises_nothing(tmp_path: Path) -> None:
    """S0.4: the node learns of it before it needs what was there."""
    log = filled(tmp_path)
    first, second, *_ = sorted(log.directory.iterdir())
    size = first.stat().st_size
    first.unlink()
    with second.open("r+b") as file:
        file.truncate(second.stat().st_size - 5)
    damages, _ = scrub(log)
    assert (damages[0].segment, damages[0].offset) == (1, 0)
    assert damages[0].end == size
    assert {each.segment for each in damages} == {1, 2}
    assert CHANNEL in log.verifying.channels_hit(damages[0])
    log.close()


def test_damage_without_an_end_in_the_written_segment_loses_nothing_yet(tmp_path: Path) -> None:
    """Later entries prove how far it goes; everything behind would be lost otherwise."""
    log = filled(tmp_path)
    path = max(log.directory.iterdir())
    with path.open("r+b") as file:
        file.seek(SEGMENT_HEADER_BYTES)
        file.write(bytes(HEADER_BYTES + 200))
    damages, _ = scrub(log)
    (damage,) = damages
    assert (damage.segment, damage.offset, damage.end) == (
        int(path.stem),
        SEGMENT_HEADER_BYTES,
        SEGMENT_HEADER_BYTES,
    )
    assert log.verifying.channels_hit(damage) == ()
    log.close()


def test_segments_that_were_removed_are_passed_over(tmp_path: Path) -> None:
    """A pass goes on with the oldest one that is left."""
    log = filled(tmp_path)
    place = LogPlace(0, 7, 1)
    step = log.verifying.step(place, 100)()
    assert step.place is not None
    assert step.place.segment == 1
    assert step.damage is None
    log.close()


def test_segment_that_is_removed_under_a_step_is_below_the_floor_then(tmp_path: Path) -> None:
    """It seems to be damaged, as it is gone: by the floor it is known that nobody needs it."""
    log = filled(tmp_path)
    step = log.verifying.step(None, 100)
    for channel in (CHANNEL, OTHER):
        records = [each for each in log.records(channel) if each.last_seq <= RECORDS // 4]
        log.rebase(channel, advance(log.base(channel), records))
    log.flush()
    log.begin_floor(log.floor_max())
    damages = [step().damage]
    log.flush()
    damages.append(step().damage)
    assert damages[0] is None
    assert damages[1] is not None
    assert damages[1].segment < log.floor()
    log.close()


def test_closed_segments_are_read_from_the_disk(tmp_path: Path) -> None:
    """Not as memory still shows them; the one that is written stays in memory."""
    forgotten: list[int] = []

    class Noting(FileOps):
        def forget_cached(self, descriptor: int) -> None:
            forgotten.append(descriptor)
            super().forget_cached(descriptor)

    filled(tmp_path).close()
    log = open_log(tmp_path, Noting())
    forgotten.clear()
    segments = len(list(log.directory.iterdir()))
    scrub(log)
    assert len(forgotten) == segments - 1
    log.close()


def test_forgotten_log_remembers_what_it_promised(tmp_path: Path) -> None:
    """S0.3, S13: a history that a quorum does not have goes, and the replica is recovering from its
    end until it holds as much again; only then may all of a log go."""
    log = filled(tmp_path)
    end = log.open_channel(CHANNEL).last_seq
    with pytest.raises(PersistError, match="never goes down"):
        log.rebase(CHANNEL, EMPTY_BASE)
    log.close()
    log = open_log(tmp_path)
    log.verifying.doubt(CHANNEL)
    log.rebase(CHANNEL, EMPTY_BASE)
    log.give_up(CHANNEL)
    log.flush()
    found = log.open_channel(CHANNEL)
    assert (found.last_seq, found.hole, found.voted_for) == (0, None, ALICE)
    assert found.shortfall == History(Term(1), end)
    assert log.open_channel(OTHER).shortfall is None
    log.close()
    again = open_log(tmp_path)
    assert again.open_channel(CHANNEL).shortfall == History(Term(1), end)
    hole = again.open_channel(CHANNEL).hole
    assert hole is not None
    assert (hole.from_seq, hole.to_seq) == (1, end)
    again.close()


def test_record_in_the_middle_is_found_for_a_bisection(tmp_path: Path) -> None:
    """Between two seqs, until no record ends between them."""
    log = create_log(tmp_path)
    log.append(CHANNEL, [record(1, rows=3), record(4), record(5, rows=2), record(7, rows=4)])
    extent = log.extent(CHANNEL)
    assert extent.end_between(Seq(0), Seq(10)) == 4
    assert extent.end_between(Seq(0), Seq(4)) == 3
    assert extent.end_between(Seq(4), Seq(10)) == 6
    assert extent.end_between(Seq(0), Seq(3)) is None
    assert extent.end_between(Seq(6), Seq(10)) is None
    log.close()


def test_bases_are_told_by_their_segment(tmp_path: Path) -> None:
    """A base entry that may be damaged is written anew, since memory has it."""
    log = filled(tmp_path)
    index = log.index_of(CHANNEL)
    assert index is not None
    index.base_segment = 2
    assert log.verifying.bases_hit(LogDamage(2, 5, 9, "")) == (CHANNEL,)
    assert log.verifying.bases_hit(LogDamage(3, 5, 9, "")) == ()
    assert position_of(2, 5) < position_of(3, 0)
    log.close()
