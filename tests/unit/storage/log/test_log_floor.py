"""Segments below the floor go, and nothing that is needed goes with them (S0.3, S6.5)."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import pytest

from raftstore.config import KIB, StorageSettings
from raftstore.core.folds import advance
from raftstore.errors import PersistError, PromisesLostError, StoreIdentityError
from raftstore.ports.log import EMPTY_BASE, Base
from raftstore.storage.log.index import offset_of, segment_of
from raftstore.storage.log.mark import FLOOR_FORMAT
from raftstore.storage.log.segment_log import FLOOR_SEGMENTS_MAX, SegmentLog
from raftstore.testing.sim_files import ProcessEndedError
from raftstore.testing.sim_log import SimLog
from raftstore.types import ChannelId, Seq, Term
from tests.storage_helpers import (
    ALICE,
    CHANNEL,
    OTHER,
    FaultyFiles,
    create_log,
    flip_bit,
    open_log,
    record,
)

SETTINGS = StorageSettings(segment_bytes=1 * KIB, log_cache_bytes=4 * KIB)


def trim(log: SegmentLog, channel: ChannelId, to_seq: int) -> Base:
    """Move the base of a channel behind ``to_seq``."""
    base = log.base(channel)
    records = log.records(channel)
    moved = advance(base, (one for one in records if one.last_seq <= to_seq))
    log.rebase(channel, moved)
    return moved


def append(log: SegmentLog, channel: ChannelId, count: int, *, term: int = 1) -> None:
    """Records of one row behind the end, each an operation that may begin a segment."""
    for _ in range(count):
        log.append(channel, [record(log.open_channel(channel).last_seq + 1, term=term)])


def behind(log: SegmentLog, channel: ChannelId = CHANNEL) -> list[int]:
    """First seqs of the records that the log gives back from its base on."""
    start = Seq(log.base(channel).seq + 1)
    return [one.base_seq for one in log.read(channel, start, to_seq=Seq(999), bytes_max=1 << 30)]


def reopened_without(number: int, log: SegmentLog, channel: ChannelId = CHANNEL) -> SegmentLog:
    """The log after a restart before which one record of a channel went bad."""
    index = log.index_of(channel)
    assert index is not None
    place, directory = index.positions[number], log.directory.parent
    log.flush()
    log.close()
    flip_bit(directory / "log" / f"{segment_of(place):016d}.log", offset_of(place) + 20)
    return open_log(directory)


def kept_behind_a_floor(log: SegmentLog) -> list[tuple[int, int]]:
    """(first seq, term) of the records behind the highest floor: a restart finds the same."""
    raise_floor(log)
    wanted = [(one.base_seq, one.term) for one in log.records(CHANNEL)]
    log.close()
    log = open_log(log.directory.parent)
    assert log.open_channel(CHANNEL).hole is None
    assert [(one.base_seq, one.term) for one in log.records(CHANNEL)] == wanted
    log.close()
    return wanted


def segments(directory: Path) -> list[int]:
    """Numbers of the files."""
    return sorted(int(path.stem) for path in (directory / "log").iterdir())


def written(log: SegmentLog) -> None:
    """Two channels over many segments, one of them idle; votes in the first segment."""
    log.set_vote(CHANNEL, Term(1), ALICE)
    log.set_vote(OTHER, Term(1), None)
    append(log, OTHER, 3)
    append(log, CHANNEL, 60)
    log.flush()


def test_s6_5_floor_is_held_by_the_channel_that_needs_the_oldest_segment(tmp_path: Path) -> None:
    """Its base entry, or the first record behind the base; an idle channel is carried."""
    log = create_log(tmp_path)
    written(log)
    assert (log.floor(), log.floor_max(), log.live_from(OTHER)) == (1, 1, 1)
    trim(log, CHANNEL, 50)
    assert (log.floor_max(), log.live_from(OTHER)) == (1, 1)
    assert log.live_from(ChannelId(bytes(18))) is None
    trim(log, OTHER, 3)
    first_needed = log.live_from(CHANNEL)
    assert log.floor_max() == first_needed
    assert first_needed is not None
    assert first_needed > 5
    log.flush()
    before = log.size_bytes()
    while log.floor() < first_needed:
        log.begin_floor(first_needed)
    assert log.size_bytes() == before
    log.flush()
    assert segments(tmp_path) == list(range(first_needed, segments(tmp_path)[-1] + 1))
    on_disk = sum(path.stat().st_size for path in (tmp_path / "log").iterdir())
    assert log.size_bytes() == on_disk < before
    append(log, OTHER, 1)
    log.flush()
    log.close()
    log = open_log(tmp_path)
    assert log.notes == ()
    assert log.floor() == first_needed
    assert log.size_bytes() == sum(path.stat().st_size for path in (tmp_path / "log").iterdir())
    assert behind(log) == list(range(51, 61))
    assert (behind(log, OTHER), log.base(OTHER).seq) == ([4], 3)
    found = log.open_channel(CHANNEL)
    assert (found.term, found.voted_for, found.last_seq, found.shortfall) == (1, ALICE, 60, None)
    log.close()


def test_floor_that_rises_again_before_it_is_durable_removes_each_segment_once(
    tmp_path: Path,
) -> None:
    """A segment that waits to be removed is there no more for the next operation."""
    log = create_log(tmp_path, segment_bytes=300)
    append(log, CHANNEL, 60)
    trim(log, CHANNEL, 60)
    log.flush()
    log.begin_floor(log.floor_max())
    log.begin_floor(log.floor_max())
    assert log.floor() == 1 + 2 * FLOOR_SEGMENTS_MAX
    log.flush()
    assert segments(tmp_path)[0] == log.floor()
    log.close()


def test_one_operation_removes_a_bounded_number_of_segments(tmp_path: Path) -> None:
    """Others wait for their group commit meanwhile."""
    log = create_log(tmp_path, segment_bytes=300)
    append(log, CHANNEL, 60)
    trim(log, CHANNEL, 60)
    log.begin_floor(log.floor_max())
    assert log.floor() == 1 + FLOOR_SEGMENTS_MAX
    log.flush()
    assert segments(tmp_path)[0] == 1 + FLOOR_SEGMENTS_MAX
    log.close()


def test_mark_is_not_behind_a_floor(tmp_path: Path) -> None:
    """S0.3: rows that lagged are written with it, and no pause has to write them again."""
    log = create_log(tmp_path)
    append(log, CHANNEL, 60)
    trim(log, CHANNEL, 60)
    for is_behind in (True, False):
        batch = log.take_pending()
        assert batch is not None
        log.committer.write_and_sync(batch)
        log.completed(batch)
        assert log.committer.is_mark_behind() is is_behind
        if is_behind:
            log.begin_floor(log.floor_max())
    log.close()


@pytest.mark.parametrize("segment", [1, 2, 99])
def test_s6_5_floor_above_what_is_needed_stops_the_log(tmp_path: Path, segment: int) -> None:
    """S0.4: nothing is removed; neither may it go down."""
    log = create_log(tmp_path)
    written(log)
    with pytest.raises(PersistError, match=f"from segment 1 to {segment}: segments from 1 on"):
        log.begin_floor(segment)
    assert segments(tmp_path)[0] == 1
    log.close()


class NotingFiles(FaultyFiles):
    """Notes removed files, too."""

    def unlink(self, path: Path) -> None:
        self._note("unlink", path.name)
        super().unlink(path)


def test_s6_5_order_is_bases_then_mark_then_files(tmp_path: Path) -> None:
    """R12: a start must never miss a file that its mark needs, nor a base that stands for one."""
    ops = NotingFiles()
    log = create_log(tmp_path, ops)
    written(log)
    trim(log, CHANNEL, 60)
    trim(log, OTHER, 3)
    log.begin_floor(4)
    last = f"{log._segment:016d}.log"
    ops.calls.clear()
    log.flush()
    removed = [name for what, name in ops.calls if what == "unlink"]
    assert removed == [f"{number:016d}.log" for number in (1, 2, 3)]
    calls = ops.calls
    entries = len(calls) - 1 - calls[::-1].index(("write", last))
    order = [
        entries,
        calls.index(("sync", last), entries),
        calls.index(("sync", "mark.new")),
        calls.index(("rename", "mark")),
        calls.index(("unlink", removed[0])),
        len(calls) - 1 - calls[::-1].index(("sync", "log/")),
    ]
    assert order == sorted(order)
    log.close()


def everything(log: SimLog) -> tuple[object, ...]:
    """All that a start reports of both channels."""
    return tuple((log.open_channel(name), behind(log, name)) for name in (CHANNEL, OTHER))


@pytest.mark.parametrize("is_power_cut", [False, True], ids=["kill", "power cut"])
@pytest.mark.parametrize("seed", range(3))
def test_s6_5_crash_at_every_operation_of_a_new_floor_loses_nothing(
    seed: int, is_power_cut: bool
) -> None:
    """Base entries, mark, removed files and their directory, each torn or lost; the floor goes on
    from wherever it got to."""
    number = 0
    while True:
        log = SimLog.new(seed=1000 * seed + number, settings=SETTINGS)
        written(log)
        trim(log, CHANNEL, 20)
        trim(log, OTHER, 3)
        append(log, CHANNEL, 2)
        log.flush()
        wanted = everything(log)
        trim(log, CHANNEL, 50)
        log.begin_floor(log.floor_max())
        after = everything(log)
        log.files.end_after(number)
        is_over = False
        with suppress(ProcessEndedError):
            log.flush()
            is_over = True
        if is_power_cut:
            log.files.lose_power()
        else:
            log.files.end_process()
        log = log.again()
        assert log.notes == () or "only: " in log.notes[0], log.notes
        assert everything(log) in (wanted, after)
        if is_over:
            break
        append(log, CHANNEL, 1)
        trim(log, CHANNEL, 55)
        while log.floor() < log.floor_max():
            log.begin_floor(log.floor_max())
        log.flush()
        log = log.again()
        assert behind(log) == list(range(56, 64))
        number += 1
    assert number > 12


def test_files_below_the_floor_that_came_back_are_removed_by_the_next_start(tmp_path: Path) -> None:
    """Their removal was not synced; what is in them counts no more."""
    log = create_log(tmp_path)
    written(log)
    copies = {path: path.read_bytes() for path in (tmp_path / "log").iterdir()}
    trim(log, CHANNEL, 60)
    trim(log, OTHER, 3)
    log.begin_floor(4)
    log.flush()
    log.close()
    for path, data in copies.items():
        if int(path.stem) in (1, 3):
            path.write_bytes(data)
    ops = NotingFiles()
    log = open_log(tmp_path, ops)
    removals = [call for call in ops.calls if call[0] == "unlink"]
    assert [int(name.partition(".")[0]) for _, name in removals] == [1, 3]
    behind_them = ops.calls[ops.calls.index(removals[-1]) + 1 :]
    assert behind_them[0] == ("sync", "log/"), "or they may come back behind a power cut"
    assert (log.notes, segments(tmp_path)[0]) == ((), 4)
    assert (behind(log), log.base(CHANNEL).seq) == ([], 60)
    log.close()


@pytest.mark.parametrize("what", ["foreign", "missing"])
def test_s0_1_nothing_is_removed_from_a_log_that_is_refused(tmp_path: Path, what: str) -> None:
    """A file of another store in the place of a removed one, or no log at the floor."""
    (tmp_path / "own").mkdir()
    log = create_log(tmp_path / "own")
    written(log)
    trim(log, CHANNEL, 60)
    trim(log, OTHER, 3)
    log.begin_floor(4)
    log.flush()
    log.close()
    (tmp_path / "other").mkdir()
    SegmentLog.create(FaultyFiles(), tmp_path / "other", bytes(16))
    first = tmp_path / "own" / "log" / "0000000000000001.log"
    first.write_bytes((tmp_path / "other" / "log" / first.name).read_bytes())
    if what == "foreign":
        with pytest.raises(StoreIdentityError, match="belongs to store 00000000"):
            open_log(tmp_path / "own")
    else:
        for path in (tmp_path / "own" / "log").iterdir():
            if path != first:
                path.unlink()
        with pytest.raises(PromisesLostError, match="missing from segment 4 on"):
            open_log(tmp_path / "own")
    assert first.exists()


def test_missing_segment_above_the_floor_is_damage(tmp_path: Path) -> None:
    """S0.3: each channel whose records were there is recovering, the other is not."""
    log = create_log(tmp_path)
    written(log)
    trim(log, CHANNEL, 30)
    trim(log, OTHER, 3)
    log.begin_floor(log.floor_max())
    log.flush()
    log.close()
    needed = segments(tmp_path)[0]
    (tmp_path / "log" / f"{needed:016d}.log").unlink()
    log = open_log(tmp_path)
    assert f"{needed:016d}.log is missing" in log.notes[0]
    found = log.open_channel(CHANNEL)
    assert found.hole is not None
    assert (found.hole.from_seq, found.base.seq, found.last_seq) == (31, 30, 30)
    assert log.open_channel(OTHER).shortfall is None
    assert log.floor_max() == log.floor() == needed + 1
    log.close()


def test_s0_3_channel_that_lost_its_base_entry_is_recovering(tmp_path: Path) -> None:
    """Its records are there, and nothing says that none is missing in front of them."""
    log = create_log(tmp_path)
    written(log)
    trim(log, OTHER, 3)
    trim(log, CHANNEL, 50)
    index = log.index_of(CHANNEL)
    assert index is not None
    entry = log._offset - 100
    number = log._segment
    append(log, OTHER, 1)
    while log.floor() < log.floor_max():
        log.begin_floor(log.floor_max())
    log.flush()
    log.close()
    flip_bit(tmp_path / "log" / f"{number:016d}.log", entry)
    log = open_log(tmp_path)
    found = log.open_channel(CHANNEL)
    assert found.base == EMPTY_BASE
    assert found.hole is not None
    assert found.hole.from_seq == 1
    assert found.shortfall is not None
    assert log.open_channel(OTHER).shortfall is None
    log.close()


def test_store_that_was_never_trimmed_stays_in_format_1(tmp_path: Path) -> None:
    """Older programs open it; a floor they do not know makes them refuse it."""
    log = create_log(tmp_path)
    written(log)
    version = slice(20, 22)
    assert (tmp_path / "mark").read_bytes()[version] == b"\0\1"
    trim(log, CHANNEL, 60)
    trim(log, OTHER, 3)
    log.flush()
    assert (tmp_path / "mark").read_bytes()[version] == b"\0\1"
    log.begin_floor(2)
    log.flush()
    assert (tmp_path / "mark").read_bytes()[version] == bytes([0, FLOOR_FORMAT])
    for _ in range(3):
        append(log, CHANNEL, 1)
        log.flush()
        log.close()
        log = open_log(tmp_path)
    assert log.floor() == 2
    log.close()


def test_s6_5_record_that_was_filled_leaves_the_oldest_one_needed(tmp_path: Path) -> None:
    """The first record behind the base is in a newer segment than the second."""
    log = create_log(tmp_path)
    append(log, CHANNEL, 30)
    index = log.index_of(CHANNEL)
    assert index is not None
    second = segment_of(index.positions[6])
    log = reopened_without(5, log)
    assert log.open_channel(CHANNEL).hole is not None
    append(log, OTHER, 20)
    log.fill(CHANNEL, [record(6)])
    trim(log, OTHER, 20)
    trim(log, CHANNEL, 5)
    assert log.live_from(CHANNEL) == second
    if second > log.floor():
        log.begin_floor(second)
    log.flush()
    log.close()
    log = open_log(tmp_path)
    assert behind(log) == list(range(6, 31))
    assert log.open_channel(CHANNEL).hole is None
    log.close()


@pytest.mark.parametrize("lost", [(5,), (5, 6), (5, 8)])
def test_s0_3_record_behind_one_that_was_filled_is_kept_behind_a_floor(
    tmp_path: Path, lost: tuple[int, ...]
) -> None:
    """Removed segments held the records between the two; a later base stands for them."""
    log = create_log(tmp_path)
    append(log, CHANNEL, 30)
    for number in lost:
        log = reopened_without(number, log)
        log.fill(CHANNEL, [record(number + 1)])
    append(log, CHANNEL, 5)
    trim(log, CHANNEL, 30)
    assert log.open_channel(CHANNEL).hole is None
    assert kept_behind_a_floor(log) == [(seq, 1) for seq in range(31, 36)]


def test_s0_3_what_was_found_whole_stays_whole_behind_a_floor(tmp_path: Path) -> None:
    """The entry that says so is the one that gives up what is behind a hole; the next record states
    that there was none, when the log in front of it is in removed segments."""
    log = create_log(tmp_path)
    append(log, CHANNEL, 30)
    append(log, OTHER, 2)
    log = reopened_without(1, log, OTHER)
    log.give_up(CHANNEL)
    log.give_up(OTHER)
    append(log, CHANNEL, 20, term=2)
    trim(log, CHANNEL, 19)
    trim(log, OTHER, 1)
    assert len(kept_behind_a_floor(log)) == 31


def test_s0_3_what_was_given_up_stays_so_behind_a_floor(tmp_path: Path) -> None:
    """Its records are in segments that another channel needs, and nothing in front of them is."""
    log = create_log(tmp_path)
    for _ in range(30):
        append(log, CHANNEL, 1)
        append(log, OTHER, 1)
    log = reopened_without(20, log)
    log.give_up(CHANNEL)
    append(log, CHANNEL, 15, term=2)
    trim(log, CHANNEL, 22)
    trim(log, OTHER, 26)
    assert kept_behind_a_floor(log) == [(seq, 2) for seq in range(23, 36)]
    log = open_log(tmp_path)
    assert log.notes == ()
    log.close()


def raise_floor(log: SegmentLog) -> None:
    """As far as it goes; that is somewhere."""
    while log.floor() < log.floor_max():
        log.begin_floor(log.floor_max())
    log.flush()
    assert log.floor() > 1


def test_s6_5_base_entry_of_an_idle_channel_is_needed(tmp_path: Path) -> None:
    """Until it is written anew: nothing else says that its records are not missing."""
    log = create_log(tmp_path)
    append(log, OTHER, 3)
    trim(log, OTHER, 3)
    append(log, CHANNEL, 30)
    trim(log, CHANNEL, 30)
    assert log.floor_max() == 1
    log.rebase(OTHER, log.base(OTHER))
    raise_floor(log)
    log.close()
    log = open_log(tmp_path)
    found = log.open_channel(OTHER)
    assert (found.last_seq, found.base.seq, found.shortfall) == (3, 3, None)
    log.close()


def test_s0_3_channel_with_a_hole_holds_the_floor_back(tmp_path: Path) -> None:
    """Which records it misses is stated by the damaged entry alone; filled, it holds nothing
    back."""
    log = create_log(tmp_path)
    append(log, CHANNEL, 30)
    trim(log, CHANNEL, 20)
    log = reopened_without(5, log)
    assert log.open_channel(CHANNEL).hole is not None
    assert log.floor_max() == 1
    log.fill(CHANNEL, [record(26)])
    assert log.open_channel(CHANNEL).hole is None
    assert log.floor_max() > 1
    log.close()


def test_dropped_records_are_counted_until_their_segments_are_gone(tmp_path: Path) -> None:
    """By the log that dropped the channel, and by the next start."""
    log = create_log(tmp_path)
    written(log)
    assert log.dropped() == (0, 0)
    size = log.extent(CHANNEL).bytes_between(Seq(0), Seq(60))
    log.drop_channel(CHANNEL)
    log.flush()
    newest = segments(tmp_path)[-1]
    assert log.dropped() == (size, newest)
    log.close()
    log = open_log(tmp_path)
    assert log.dropped() == (size, newest)
    log.leave_segment(newest)
    trim(log, OTHER, 3)
    assert log.floor_max() == newest + 1
    while log.floor() < log.floor_max():
        log.begin_floor(log.floor_max())
    log.flush()
    assert log.dropped() == (0, 0)
    assert segments(tmp_path) == [newest + 1]
    log.close()
    log = open_log(tmp_path)
    assert log.dropped() == (0, 0)
    assert log.base(OTHER).seq == 3
    log.close()


def test_segment_is_left_once_and_only_if_it_is_the_newest_and_not_empty(tmp_path: Path) -> None:
    """The next operation begins another one; nothing else changes."""
    log = create_log(tmp_path)
    log.leave_segment(1)
    append(log, CHANNEL, 1)
    log.leave_segment(2)
    append(log, CHANNEL, 1)
    log.flush()
    assert segments(tmp_path) == [1], "nothing was in it, or it is not there yet"
    log.leave_segment(1)
    append(log, CHANNEL, 2)
    log.leave_segment(1)
    append(log, CHANNEL, 1)
    log.flush()
    assert segments(tmp_path) == [1, 2]
    log.close()
    log = open_log(tmp_path)
    assert behind(log) == [1, 2, 3, 4, 5]
    log.close()
