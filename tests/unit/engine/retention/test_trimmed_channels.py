"""The channels whose logs the trimmer cuts, and how much of each goes."""

from __future__ import annotations

from typing import Any

import pytest

from raftstore.config import MIB
from raftstore.engine.deadlines import NEVER_MS
from raftstore.ports.log import DroppedRecords
from raftstore.protocol.table_settings import TableSettings
from raftstore.types import ChannelConfig
from tests.unit.engine.retention_bench import (
    CHANNEL,
    OTHER,
    RECORD_BYTES,
    B,
    Bench,
    C,
    begun,
    held_by,
    wanted,
)


def test_nothing_is_looked_at_unless_logs_are_trimmed_at_all() -> None:
    """The setting may be off."""
    bench = Bench(enabled=False)
    bench.retention.start(1_000)
    assert bench.retention.trimmer.deadlines.next_ms == NEVER_MS


def test_logs_are_looked_at_at_intervals() -> None:
    """From one interval after the start on; what is not due is left alone."""
    bench = Bench()
    bench.grow(20)
    bench.retention.start(1_000)
    assert bench.retention.trimmer.deadlines in bench.retention.deadlines
    for moment in (1_050, 1_100, 1_150):
        assert bench.retention.trimmer.deadlines.next_ms == moment
        bench.look()
    assert not bench.barriers
    trimmer = bench.retention.trimmer
    assert (trimmer.trims_total, trimmer.trimmed_seqs_total, trimmer.carried_total) == (0, 0, 0)


@pytest.mark.parametrize(
    ("settings", "cut"),
    [
        (TableSettings(retention_records=20), 11),
        (TableSettings(retention_records=22), None),
        (TableSettings(retention_records=10), 16),
        (TableSettings(retention_records=100, retention_bytes=200), 11),
        (TableSettings(retention_records=100), None),
    ],
)
def test_retention_of_a_table_counts_instead_of_the_nodes(
    settings: TableSettings, cut: int | None
) -> None:
    """GAP-10: by records and by bytes, for the channels of that table alone; an edit counts from
    the next look on."""
    bench = Bench(channel_records=15)
    bench.mine.table_settings = TableSettings(retention_records=100)
    bench.grow(21)
    bench.look()
    assert not bench.barriers
    bench.mine.table_settings = settings
    bench.look()
    assert begun(bench) == ([] if cut is None else [CHANNEL])
    work = bench.retention.trimmer._work
    assert (None if work is None else work.wanted) == cut
    bench.grow(16, bench.other)
    bench.look()
    assert (begun(bench)[-1:] == [OTHER]) is (cut is None), "another table goes by the node's"


@pytest.mark.parametrize(
    ("node_ms", "table_ms", "is_due"), [(300, None, True), (300, 0, False), (0, 300, True)]
)
def test_age_of_a_table_counts_instead_of_the_nodes(
    node_ms: int, table_ms: int | None, *, is_due: bool
) -> None:
    """0 keeps records whatever their age, also where the node lets old ones go."""
    bench = Bench(age_ms=node_ms)
    bench.mine.table_settings = TableSettings(retention_age_ms=table_ms)
    bench.grow(10)
    bench.look()
    assert begun(bench) == ([CHANNEL] if is_due else [])


@pytest.mark.parametrize(("records", "cut"), [(20, None), (21, 11), (60, 50)])
def test_channel_with_too_many_records_keeps_the_newer_half(records: int, cut: int | None) -> None:
    """Twenty are allowed behind the base, whatever was cut before: then ten stay."""
    for base in (0, 100):
        bench = Bench()
        bench.based(base)
        bench.grow(base + records)
        bench.look()
        if cut is None:
            assert not bench.barriers
        else:
            assert begun(bench) == [CHANNEL]
            work = bench.retention.trimmer._work
            assert work is not None
            assert work.wanted == base + cut


def test_channel_with_too_many_bytes_keeps_the_newer_half() -> None:
    """A thousand are allowed, of ten each."""
    for records, cut in ((100, None), (101, 51)):
        bench = Bench(channel_records=10_000)
        bench.grow(records)
        bench.look()
        work = bench.retention.trimmer._work
        assert (None if work is None else work.wanted) == cut


def test_bytes_of_a_channel_are_added_up_as_they_come() -> None:
    """Bytes that were measured are not measured again, until the base or the end moves back."""
    bench = Bench()
    kept = bench.retention.trimmer.kept_bytes
    bench.grow(5)
    assert kept(bench.mine) == 50
    bench.grow(9)
    assert kept(bench.mine) == kept(bench.mine) == 90
    assert bench.log.asked == [
        "bytes between 0 and 5",
        "bytes between 5 and 9",
        "bytes between 9 and 9",
    ]
    bench.based(4)
    assert kept(bench.mine) == 50
    bench.grow(7)  # a tail was cut
    assert kept(bench.mine) == 30
    bench.grow(8)
    assert kept(bench.mine) == 40
    bench.log.asked.clear()
    bench.retention.channel_closed(bench.mine)
    assert kept(bench.mine) == 40
    assert bench.log.asked == ["bytes between 4 and 8"]


def recovering(runner: Any) -> None:
    """It lacks something."""
    runner.core.is_recovering = True


def stopped(runner: Any) -> None:
    """It contradicts the others."""
    runner.core.stopped_reason = "a test says so"


def with_hole(runner: Any) -> None:
    """Its log lacks records."""
    runner.hole = object()


def alone(runner: Any) -> None:
    """It is the only replica."""
    config = ChannelConfig(((B,),))
    runner.core.config = lambda: config


@pytest.mark.parametrize("change", [recovering, stopped, with_hole, alone])
def test_channel_that_must_not_be_trimmed_is_passed_over(change: Any) -> None:
    """S0.3, S13: its log is evidence, or all that there is. The next one is trimmed."""
    bench = Bench()
    for runner in (bench.mine, bench.other):
        bench.grow(40, runner)
    change(bench.mine)
    bench.look()
    assert begun(bench) == [OTHER]


def test_log_of_two_replicas_is_trimmed() -> None:
    """One can be mended by the other."""
    bench = Bench()
    config = ChannelConfig(((B, C),))
    bench.mine.core.config = lambda: config
    bench.grow(40)
    bench.look()
    assert begun(bench) == [CHANNEL]


@pytest.mark.parametrize("change", [recovering, stopped, with_hole])
def test_asking_for_logs_of_single_replicas_asks_for_no_evidence(change: Any) -> None:
    """The setting is for channels with one replica."""
    bench = Bench(single_replica=True)
    bench.grow(40)
    change(bench.mine)
    bench.look()
    assert not bench.barriers
    bench = Bench(single_replica=True)
    alone(bench.mine)
    bench.grow(40)
    bench.look()
    assert begun(bench) == [CHANNEL]


def test_channel_is_never_wanted_above_what_it_has_applied() -> None:
    """S6.5: by its records, and by what its log has in old segments."""
    bench = Bench()
    bench.grow(40)
    bench.applied[CHANNEL] = 17
    bench.look()
    work = bench.retention.trimmer._work
    assert work is not None
    assert work.wanted == 17
    bench = too_long()
    bench.applied[CHANNEL] = 4
    bench.look()
    work = bench.retention.trimmer._work
    assert work is not None
    assert work.wanted == 4


def test_old_records_go_whatever_their_number() -> None:
    """Record n is of n tens of milliseconds; those of the very bound stay."""
    bench = Bench(age_ms=300)
    bench.grow(15)
    bench.wall_ms = 300 + 10
    bench.look()
    assert not bench.barriers
    assert "heads behind 0 up to 15, 1" in bench.log.asked
    bench.wall_ms = 300 + 11
    bench.trim()
    assert bench.trims == [("orders/3", 1)]
    bench.wall_ms = 300 + 70
    bench.trim()
    assert bench.trims[1:] == [("orders/3", 6)]
    bench.wall_ms = 999_999
    bench.applied[CHANNEL] = 12
    bench.trim()
    assert bench.trims[2:] == [("orders/3", 12)]


def test_channel_without_records_has_no_old_ones() -> None:
    """One whose log is cut as far as it has applied has none, too."""
    bench = Bench(age_ms=300)
    bench.wall_ms = 999_999
    bench.look()
    bench.look()
    assert not bench.barriers


def test_records_that_are_too_many_go_whatever_their_age() -> None:
    """The bound in records is no bound in time."""
    bench = Bench(age_ms=300)
    bench.wall_ms = 310
    bench.grow(40)
    bench.trim()
    assert bench.trims == [("orders/3", 30)]


# --- the log as a whole ---------------------------------------------------------------------------


def too_long(**settings: Any) -> Bench:
    """A log of sixteen segments instead of ten, whose oldest one a channel keeps for its records
    up to seq 8; it has others in the next ones."""
    bench = Bench(**settings)
    bench.log.size = 1_600
    bench.grow(15)
    bench.log.needs_from = {CHANNEL: 7, OTHER: 8}
    bench.log.ends = {CHANNEL: {7: 8, 17: 10, 18: 11, 19: 12}}
    return bench


def test_channel_that_keeps_the_older_half_of_a_long_log_is_cut_behind_it() -> None:
    """1600 bytes are to be 500: the channel is cut where it ends in segment 18, the eleventh behind
    the oldest."""
    assert wanted(too_long()) == 11


def test_log_is_too_long_above_its_bound() -> None:
    """At the bound it is as long as it may be."""
    assert wanted(too_long(log_bytes=1_600)) is None
    assert wanted(too_long(log_bytes=1_599)) == 8


def with_dropped(size_bytes: int = 9 * MIB, kept: int = 0, dropped: int = 2 * MIB) -> Bench:
    """A dropped channel left records up to segment 9; another one keeps segment 7."""
    bench = Bench(log_bytes=1 << 30, channel_bytes=1 << 30, channel_records=1 << 30)
    bench.log.size = size_bytes
    bench.grow(15 + kept // RECORD_BYTES)
    bench.log.needs_from = {CHANNEL: 7, OTHER: 8}
    bench.log.ends = {CHANNEL: {7: 8, 9: 10, 10: 12}}
    bench.log.dropped_is = DroppedRecords(dropped, 9)
    return bench


def test_segments_of_dropped_channels_are_given_back_although_the_log_is_short() -> None:
    """The channel that keeps the oldest is cut behind those segments, which take no more records;
    then bases that alone are in the way are written anew."""
    bench = with_dropped()
    assert wanted(bench) == 10
    assert bench.log.left == [9, 9]
    bench.barrier(15)
    bench.look()
    assert bench.trims == [("orders/3", 10)]
    bench.look()
    assert bench.log.rebased == [(CHANNEL, bench.mine.core.base)]
    bench.log.rebased.clear()
    bench.log.oldest = 10
    bench.look()
    assert bench.log.begun == [10]
    bench.log.dropped_is = DroppedRecords(0, 0)
    bench.look()
    assert not bench.log.rebased


@pytest.mark.parametrize(
    ("size_bytes", "kept", "dropped", "is_worth_it"),
    [
        (9 * MIB, 0, 1 * MIB, True),
        (9 * MIB, 0, 1 * MIB - 1, False),
        (7 * MIB, 0, 2 * MIB, False),
        (30 * MIB, 19 * MIB, 2 * MIB, True),
        (30 * MIB, 21 * MIB, 2 * MIB, False),
    ],
)
def test_dropped_records_are_not_worth_much_history_of_others(
    size_bytes: int, kept: int, dropped: int, is_worth_it: bool
) -> None:
    """At least eight megabytes are given back, and one for each two that others lose."""
    bench = with_dropped(size_bytes, kept, dropped)
    assert (wanted(bench) is not None) == is_worth_it


def test_dropped_records_in_segments_that_wait_to_be_removed_cost_nobody_anything() -> None:
    """The floor rises by a few segments at a time."""
    bench = with_dropped()
    bench.log.oldest = 10
    bench.log.needs_from = {CHANNEL: 10, OTHER: 10}
    assert wanted(bench) is None


def test_barrier_is_taken_once_for_what_it_made_durable() -> None:
    """S6.4: below the newest one no other is needed, until the channel is opened anew."""
    bench = Bench()
    bench.grow(40)
    bench.look()
    bench.barrier(40)
    bench.look()
    assert bench.trims == [("orders/3", 30)]
    bench.grow(51)
    bench.look()
    assert begun(bench) == [CHANNEL], "41 is wanted, 40 is durable"
    bench = Bench()
    bench.grow(40)
    bench.look()
    bench.barrier(60)
    bench.look()
    bench.grow(51)
    bench.look()
    assert not bench.barriers
    while bench.retention.trimmer._work is not None:
        bench.look()
    assert bench.trims == [("orders/3", 30), ("orders/3", 41)]
    bench.retention.channel_closed(bench.mine)
    bench.grow(62)
    bench.look()
    assert begun(bench) == [CHANNEL]


def test_gap_13_log_is_cut_as_far_as_it_can_be_while_the_disk_is_nearly_full() -> None:
    """It is no longer than it may be, and a replica that is behind needs its records."""
    bench = too_long(log_bytes=1_600)
    bench.heard(B, 3)
    assert wanted(bench) is None
    bench.is_space_low = True
    bench.look()
    assert wanted(bench) == 12


def test_gap_13_base_is_written_only_while_there_is_room_for_it() -> None:
    """B8: what fails for lack of space would end the node; there may be room at the next look."""
    bench = Bench()
    bench.grow(40)
    bench.room = 0
    bench.trim()
    assert (bench.trims, held_by(bench)) == ([], ("disk_space", "", 0))
    assert bench.claimed[-1] > 0
    bench.room = bench.claimed[-1]
    bench.trim()
    assert [name for name, _ in bench.trims] == ["orders/3"]
    assert held_by(bench) is None


def test_gap_13_base_is_written_anew_only_while_there_is_room_for_it() -> None:
    """B8: the segments stay until there is."""
    bench = too_long()
    bench.based(bench.mine.core.last_seq, folds=b"folds")
    bench.log.ends = {CHANNEL: {7: int(bench.mine.core.last_seq)}}
    bench.room = 4
    bench.look()
    assert not bench.log.rebased
    assert bench.claimed == [5]
    bench.room = 5
    bench.look()
    assert bench.log.rebased == [(CHANNEL, bench.mine.core.base)]


def test_channel_that_keeps_a_younger_segment_is_left_alone() -> None:
    """Its records would free nothing while another keeps the oldest."""
    bench = too_long()
    bench.log.needs_from = {CHANNEL: 8, OTHER: 7}
    assert wanted(bench) is None


def test_channel_that_has_nothing_to_give_in_old_segments_is_trimmed_as_usual() -> None:
    """By its own bounds."""
    bench = too_long()
    bench.based(11)
    assert wanted(bench) is None
    bench.grow(11 + 21)
    assert wanted(bench) == 22


def test_log_is_allowed_to_be_four_times_as_long_as_the_bases_in_it() -> None:
    """Writing them anew would cost more than it frees."""
    bench = too_long()
    bench.based(0, folds=b"f" * 200)
    bench.based(0, bench.other, folds=b"f" * 200)
    assert wanted(bench) is None
    bench.log.size = 1_601
    bench.log.ends[CHANNEL] = {7: 8, 15: 9, 16: 10}
    assert wanted(bench) == 9, "to half of 1600"


def test_segments_that_no_channel_needs_go() -> None:
    """Before anything else is looked for; and only if there is one."""
    bench = Bench()
    bench.look()
    assert bench.log.begun == []
    assert not bench.told()
    bench.log.oldest = 9
    bench.look()
    assert bench.log.begun == [9]
    assert bench.told() == [("log_floor_moved", {"was": 7, "segment": 9, "log_bytes": 400})]
    bench.look()
    assert bench.log.begun == [9]


def carrying() -> Bench:
    """A long log whose oldest segment an idle channel keeps for its base alone."""
    bench = too_long()
    bench.based(8)
    bench.log.ends = {CHANNEL: {7: 8}}
    return bench


def test_base_that_alone_keeps_the_oldest_segment_is_written_anew() -> None:
    """At the log's end; in each look that finds it so."""
    bench = carrying()
    bench.look()
    assert bench.log.rebased == [(CHANNEL, bench.mine.core.base)]
    assert bench.retention.trimmer.carried_total == 1
    bench.look()
    assert bench.retention.trimmer.carried_total == 2


@pytest.mark.parametrize("why", ["short", "no base", "hole", "younger", "records", "no segment"])
def test_base_is_not_written_anew_for_nothing(why: str) -> None:
    """The log is short enough, there is none, or something else keeps the segment."""
    bench = carrying()
    if why == "short":
        bench.log.size = 1_000
    elif why == "no base":
        bench.based(0)
        bench.log.ends = {CHANNEL: {}}
    elif why == "hole":
        with_hole(bench.mine)
    elif why == "younger":
        bench.log.needs_from[CHANNEL] = 8
    elif why == "records":
        bench.log.ends[CHANNEL][7] = 9
    else:
        bench.log.needs_from.clear()
    bench.look()
    assert not bench.log.rebased
    assert bench.retention.trimmer.carried_total == 0
