"""The trimmer by itself: what floors keep, and the steps by which one channel's log is cut."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from raftstore.core.folds import advance
from raftstore.engine.retention.floors import Floor
from raftstore.engine.retention.looks import CHANNELS_PER_LOOK
from raftstore.engine.retention.trimmer import RECORDS_PER_TURN, TURN_PAUSE_MS
from raftstore.policy.levels import SNAPSHOT_LEVEL
from raftstore.ports.log import BASE_BYTES_MAX, EMPTY_BASE
from raftstore.types import Seq, channel_id
from tests.core_bench import record
from tests.unit.engine.retention_bench import (
    CHANNEL,
    OTHER,
    THIRD,
    B,
    Bench,
    C,
    begun,
    held_by,
    wanted,
)

# --- floors ---------------------------------------------------------------------------------------


def test_floor_below_the_cut_holds_it_and_is_told() -> None:
    """The rest goes; without it nothing holds."""
    bench = Bench()
    bench.grow(40)
    bench.heard(B, 12)
    assert wanted(bench) == 12
    assert held_by(bench) == ("slow_replica", "n2", 12)
    bench = Bench()
    bench.grow(40)
    assert wanted(bench) == 30
    assert held_by(bench) is None


def test_floor_that_held_a_channel_is_told_until_it_is_due_again() -> None:
    """Eighteen records are left: that is no reason to look at floors again."""
    bench = Bench()
    bench.grow(30)
    bench.heard(B, 12)
    bench.trim()
    assert bench.trims == [("orders/3", 12)]
    bench.look()
    assert held_by(bench) == ("slow_replica", "n2", 12)
    bench = Bench(channel_records=10_000, channel_bytes=10_000_000)
    bench.heard(B, 12)
    bench.grow(30)
    bench.look()
    assert held_by(bench) is None


def test_floor_within_a_record_leaves_nothing_to_cut() -> None:
    """A reader may stand in the middle of one: no record ends up to there."""
    bench = Bench()
    bench.grow(40)
    bench.look()
    bench.barrier(40)
    bench.log.heads = lambda *_, **__: []  # type: ignore[method-assign]
    bench.look()
    assert not bench.trims
    assert not bench.told()


def test_floor_at_the_base_leaves_nothing_to_cut() -> None:
    """The next channel is looked at; when the floor is gone, it is reported no more."""
    bench = Bench()
    for runner in (bench.mine, bench.other):
        bench.grow(40, runner)
    bench.heard(B, 0, CHANNEL)
    bench.look()
    assert begun(bench) == [OTHER]
    assert held_by(bench) == ("slow_replica", "n2", 0)
    bench.retention.channel_closed(bench.other)
    bench.heard(B, 40, CHANNEL)
    bench.look()
    assert begun(bench) == [OTHER, CHANNEL]
    assert held_by(bench) is None


@pytest.mark.parametrize(
    ("base_max", "applied", "name"), [(12, 12, "applied"), (12, 13, "open_attempts")]
)
def test_base_stays_at_or_below_the_barrier(base_max: int, applied: int, name: str) -> None:
    """S6.5: records applied behind it, and staged rows, are in the log alone."""
    bench = Bench()
    bench.grow(40)
    bench.look()
    bench.barrier(base_max, applied)
    assert held_by(bench) == (name, "", 12)
    floor = bench.retention.floors_of(bench.mine, bench.now_ms)[0]
    assert (floor.name, floor.seq, floor.bytes_max) == (name, 12, None)
    bench.look()
    assert bench.trims == [("orders/3", 12)]


def test_barrier_at_the_cut_holds_nothing() -> None:
    """All that was wanted goes."""
    bench = Bench()
    bench.grow(40)
    bench.look()
    bench.barrier(30)
    assert held_by(bench) is None
    bench.look()
    assert bench.trims == [("orders/3", 30)]


def test_barrier_at_the_base_leaves_nothing_to_cut() -> None:
    """The next look begins with another channel."""
    bench = Bench()
    bench.based(10)
    bench.grow(50)
    bench.grow(50, bench.other)
    bench.look()
    due_ms = bench.retention.trimmer.deadlines.next_ms
    bench.barrier(10)
    assert bench.retention.trimmer.deadlines.next_ms == due_ms
    assert not bench.trims
    bench.look()
    assert begun(bench) == [OTHER]


def test_floors_are_listed_the_lowest_first_with_that_of_the_table() -> None:
    """A floor that others have is listed once, by them."""
    bench = Bench()
    bench.grow(40)
    bench.heard(B, 20)
    bench.look()
    listed = bench.retention.floors_of(bench.mine, bench.now_ms)
    assert [(one.name, one.seq) for one in listed] == [("slow_replica", 20), ("slow_replica", 999)]
    assert len(bench.retention.floors_of(bench.other, bench.now_ms)) == 2
    bench.barrier(12)
    listed = bench.retention.floors_of(bench.mine, bench.now_ms)
    assert [(one.name, one.seq) for one in listed] == [
        ("applied", 12),
        ("slow_replica", 20),
        ("slow_replica", 999),
    ]


def test_base_that_is_too_large_for_a_log_and_a_message_is_not_made() -> None:
    """S6.5: nothing is cut for it, and the floor is reported with its size."""
    bench = Bench()
    bench.grow(40)
    bench.look()
    trimmer, work = bench.retention.trimmer, bench.retention.trimmer._work
    assert work is not None
    base = advance(EMPTY_BASE, [record(seq) for seq in range(1, 31)])
    large = msgspec.structs.replace(base, folds=bytes(BASE_BYTES_MAX + 1))
    trimmer._cut(work, large, bench.now_ms)
    assert not bench.trims
    assert held_by(bench) == ("base_size", f"{BASE_BYTES_MAX + 1} bytes", 0)
    large = msgspec.structs.replace(base, folds=bytes(BASE_BYTES_MAX))
    trimmer._cut(work, large, bench.now_ms)
    assert bench.trims == [("orders/3", 30)]


@pytest.mark.parametrize("level", [0, SNAPSHOT_LEVEL - 1])
def test_s6_6_nothing_is_cut_while_a_node_knows_no_base(level: int) -> None:
    """Neither records nor segments: it would wait for ever, and could not read its own back."""
    bench = Bench()
    bench.grow(40)
    bench.log.oldest = 9
    bench.levels[C] = level
    bench.look()
    assert not bench.barriers
    assert not bench.log.begun
    listed = bench.retention.floors_of(bench.mine, bench.now_ms)
    assert listed[0] == Floor("older_version", "n3", Seq(0), None)
    bench.levels[C] = SNAPSHOT_LEVEL
    bench.look()
    assert bench.barriers
    assert bench.log.begun == [9]


def test_reader_that_comes_meanwhile_keeps_what_it_needs() -> None:
    """The floors are asked again before the cut: nothing goes this time."""
    bench = Bench()
    bench.grow(40)
    bench.look()
    bench.barrier(40)
    bench.readers.asked(CHANNEL, 72, Seq(29), bench.now_ms)
    bench.look()
    assert not bench.trims
    assert held_by(bench) == ("reader_of_changes", "client 72", 29)
    assert bench.retention.trimmer.trims_total == 0
    bench.trim()
    assert bench.trims == [("orders/3", 29)]


def test_reader_that_needs_only_what_stays_changes_nothing() -> None:
    """It comes at the cut."""
    bench = Bench()
    bench.grow(40)
    bench.look()
    bench.barrier(40)
    bench.readers.asked(CHANNEL, 72, Seq(30), bench.now_ms)
    bench.look()
    assert bench.trims == [("orders/3", 30)]


# --- one channel ----------------------------------------------------------------------------------


def test_barrier_comes_before_the_base_and_the_base_before_the_cut() -> None:
    """S6.4, S6.7: the base is made of the one before and the records behind that."""
    bench = Bench()
    bench.grow(40)
    bench.look()
    assert begun(bench) == [CHANNEL]
    bench.look()
    bench.look()
    assert begun(bench) == [CHANNEL], "one at a time, for as long as it takes"
    assert not bench.trims
    bench.log.asked.clear()
    bench.barrier(40)
    assert not bench.log.asked
    assert bench.retention.trimmer.deadlines.next_ms == bench.now_ms
    bench.look()
    assert bench.log.asked[0] == f"heads behind 0 up to 30, {RECORDS_PER_TURN}"
    expected = advance(EMPTY_BASE, [record(seq) for seq in range(1, 31)])
    assert bench.mine.core.base == expected
    assert bench.told() == [("log_trimmed", {"channel": "orders/3", "base_seq": 30, "bytes": 300})]
    trimmer = bench.retention.trimmer
    assert (trimmer.trims_total, trimmer.trimmed_seqs_total) == (1, 30)
    assert bench.retention.trimmer.deadlines.next_ms == bench.now_ms + TURN_PAUSE_MS
    bench.grow(70)
    bench.trim()
    assert bench.trims[1:] == [("orders/3", 60)]
    assert (trimmer.trims_total, trimmer.trimmed_seqs_total) == (2, 60)
    assert bench.mine.core.base == advance(expected, [record(seq) for seq in range(31, 61)])


def test_long_log_is_taken_in_a_little_in_each_turn() -> None:
    """With a pause between two turns, in which the node does other things."""
    bench = Bench()
    bench.now_ms = 10
    more = 2 * RECORDS_PER_TURN
    bench.heard(B, 9_999)
    bench.heard(C, 9_999)
    bench.grow(more + 10)
    bench.look()
    bench.barrier(9_999)
    for _ in range(2):
        bench.look()
        assert not bench.trims
        assert bench.retention.trimmer.deadlines.next_ms == bench.now_ms + TURN_PAUSE_MS
    bench.look()
    assert bench.trims == [("orders/3", more)]


def test_channel_that_refuses_to_be_trimmed_does_not_count() -> None:
    """The replica checks the base, and may keep its log."""
    bench = Bench()
    bench.trim_works = False
    bench.grow(40)
    bench.trim()
    assert bench.trims == [("orders/3", 30)]
    assert not bench.told()
    assert bench.retention.trimmer.trims_total == 0
    assert bench.retention.trimmer.trimmed_seqs_total == 0


def closed(bench: Bench) -> None:
    """It is closed, and opened anew."""
    bench.retention.channel_closed(bench.mine)
    bench.add(CHANNEL, "orders/3")


def replaced(bench: Bench) -> None:
    """It is opened anew, which was not reported."""
    bench.add(CHANNEL, "orders/3")


def dropped(bench: Bench) -> None:
    """Its table is gone."""
    del bench.channels[CHANNEL]


def rebased(bench: Bench) -> None:
    """It took another replica's base."""
    bench.based(5)


@pytest.mark.parametrize("change", [closed, replaced, dropped, rebased])
@pytest.mark.parametrize("when", ["barrier", "turn"])
def test_work_on_what_is_another_now_is_dropped(change: Any, when: str) -> None:
    """Its barrier and its records are of another life of the channel; the next one is begun."""
    bench = Bench()
    bench.grow(40)
    bench.look()
    if when == "barrier":
        change(bench)
        bench.barrier(12)
    else:
        bench.barrier(40)
        change(bench)
        bench.log.asked.clear()
        bench.look()
        assert not bench.log.asked or change is closed
    assert not bench.trims
    assert held_by(bench) is None
    bench.grow(40, bench.other)
    for channel in (CHANNEL, THIRD):
        bench.channels.pop(channel, None)
    bench.look()
    assert begun(bench) == [OTHER]


def test_closing_another_channel_does_not_disturb_the_work() -> None:
    """The floor that is known of the channel stays, too."""
    bench = Bench()
    bench.grow(40)
    bench.heard(B, 12)
    bench.look()
    bench.retention.channel_closed(bench.other)
    assert held_by(bench) == ("slow_replica", "n2", 12)
    bench.barrier(40)
    bench.look()
    assert bench.trims == [("orders/3", 12)]
    bench.retention.channel_closed(bench.mine)
    assert held_by(bench) is None
    bench.retention.channel_closed(bench.mine)


def test_late_barrier_does_not_disturb_the_work_of_another_channel() -> None:
    """The channel was closed, and the next one begun."""
    bench = Bench()
    bench.grow(40)
    bench.look()
    bench.retention.channel_closed(bench.mine)
    bench.grow(0)
    bench.grow(40, bench.other)
    bench.look()
    assert begun(bench) == [CHANNEL, OTHER]
    bench.barrier(12)
    assert held_by(bench) is None
    bench.barrier(40)
    bench.look()
    assert bench.trims == [("orders/4", 30)]


def test_channels_take_turns() -> None:
    """The next look begins behind the channel that was trimmed last."""
    bench = Bench()
    third = bench.add(THIRD, "orders/5")
    for runner in (bench.mine, bench.other, third):
        bench.grow(40, runner)
    for last_seq in (40, 80):
        for _ in range(3):
            bench.trim()
        for runner in (bench.mine, bench.other, third):
            bench.grow(last_seq + 40, runner)
    assert [name for name, _ in bench.trims] == ["orders/3", "orders/4", "orders/5"] * 2


def test_first_channel_is_looked_at_first_when_nothing_was_due() -> None:
    """All of them were looked at; then the turns begin."""
    bench = Bench()
    third = bench.add(THIRD, "orders/5")
    bench.look()
    bench.look()
    for runner in (bench.mine, bench.other, third):
        bench.grow(40, runner)
    bench.trim()
    bench.grow(80)
    bench.trim()
    assert bench.trims == [("orders/3", 30), ("orders/4", 30)]


def test_node_with_many_channels_looks_at_some_of_them_at_a_time() -> None:
    """The next look goes on where the last one ended, and begins anew at the end."""
    bench = Bench()
    count = CHANNELS_PER_LOOK + 3
    for number in range(count - 2):
        channel = channel_id(b"many-channels-id", number)
        bench.add(channel, f"many/{number}")
        for node in (B, C):
            bench.heard(node, 999, channel)
    runners = list(bench.channels.values())
    bench.grow(40, runners[CHANNELS_PER_LOOK + 1])
    bench.look()
    assert not bench.barriers
    bench.grow(40, runners[5])
    bench.look()
    assert begun(bench) == [runners[CHANNELS_PER_LOOK + 1].channel]
    bench.barrier(0)
    bench.grow(0, runners[5])
    bench.grow(40, runners[1])
    bench.grow(0, runners[CHANNELS_PER_LOOK + 1])
    bench.look()
    assert begun(bench) == [runners[1].channel], "it goes round"
    bench.barrier(0)
    bench.grow(0, runners[1])
    bench.grow(40, runners[CHANNELS_PER_LOOK - 1])
    bench.look()
    assert begun(bench) == [runners[CHANNELS_PER_LOOK - 1].channel]
    bench.barrier(0)
    for runner in runners[3:]:
        del bench.channels[runner.channel]
    bench.grow(40, runners[2])
    bench.look()
    assert begun(bench) == [runners[2].channel], "there are fewer now"
