"""The merger by itself: which table is asked whether it is worth a merge, and when."""

from __future__ import annotations

from typing import Any

import pytest

from raftstore.engine.deadlines import NEVER_MS
from raftstore.engine.retention.merger import (
    BEHIND_MS_MAX,
    EVENT_BYTES_MIN,
    MERGE_STEP_BYTES,
    PAUSE_FACTOR,
    PAUSE_MS_MIN,
    QUEUED_BYTES_MAX,
    QUIET_MS,
    READERS_WAIT_MS,
    RICH_PAUSE_FACTOR,
)
from raftstore.ports.tables import MergeStep
from raftstore.storage.tables import merges
from tests.unit.engine.retention_bench import CHANNEL, OTHER, Bench

INTERVAL_MS = 50
DONE = MergeStep(is_merged=True, bytes_before=5_000, bytes_after=3_000)
RICH = MergeStep(is_merged=True, bytes_before=3_000, bytes_after=1_000)
NOTHING = MergeStep()


class Merging(Bench):
    """A node whose logs are never trimmed."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(enabled=False, **{"merge_tables": True, **settings})
        self.retention.start(self.now_ms)
        self.merger = self.retention.merger

    def at(self, now_ms: int) -> list[tuple[bytes, bool, bool]]:
        """Questions up to a moment; each answer has to be given."""
        while self.merger.deadlines.next_ms <= now_ms:
            self.now_ms = self.merger.deadlines.next_ms
            self.retention.on_timer(self.now_ms)
            assert len(self.merger.deadlines) == 1, "one moment at a time"
            if self.asked:
                break
        else:
            self.now_ms = now_ms
        return [(channel, *how) for channel, how, _ in self.asked]

    def answer(self, step: MergeStep, after_ms: int = 0) -> None:
        """The store's word on what was asked last."""
        _, _, done = self.asked.pop()
        self.now_ms += after_ms
        done(step, self.now_ms)

    def wait_until_asked(self) -> tuple[bytes, bool, bool]:
        """The next question."""
        [asked] = self.at(self.now_ms + 60_000)
        return asked

    def settled(self) -> Merging:
        """Both tables are known to be quiet."""
        for _ in range(2):
            assert self.wait_until_asked()[1:] == (True, False)
            self.answer(NOTHING)
        assert self.at(self.now_ms + 60_000) == []
        return self


def test_gap_13_nothing_is_merged_without_room_for_the_new_files() -> None:
    """B8: the old ones go behind them; it is asked again, and does not forget the table."""
    bench = Merging().settled()
    bench.grow(1)
    bench.room = MERGE_STEP_BYTES - 1
    assert bench.at(bench.now_ms + 60_000) == []
    assert set(bench.claimed) == {MERGE_STEP_BYTES}
    bench.room = MERGE_STEP_BYTES
    assert bench.wait_until_asked()[0] == CHANNEL


def test_one_step_of_a_merge_needs_no_more_room_than_is_asked_for() -> None:
    """Ranges of so many bytes are merged at a time."""
    assert merges.RANGE_BYTES_MAX <= MERGE_STEP_BYTES


def test_nothing_is_asked_unless_tables_are_merged_at_all() -> None:
    """The setting, whatever is done with logs."""
    bench = Merging(merge_tables=False)
    assert bench.merger.deadlines.next_ms == NEVER_MS
    assert Merging().merger.deadlines.next_ms == bench.now_ms + INTERVAL_MS


def test_tables_of_before_the_start_are_asked_once_when_they_are_known_to_be_quiet() -> None:
    """One after the other; not before, since somebody may be writing."""
    bench = Merging()
    begun_ms = bench.now_ms
    assert bench.wait_until_asked() == (CHANNEL, True, False)
    assert bench.now_ms - begun_ms >= QUIET_MS
    bench.answer(NOTHING)
    assert bench.wait_until_asked() == (OTHER, True, False)
    bench.answer(NOTHING)
    assert bench.at(bench.now_ms + 60_000) == []


def test_table_that_is_written_to_is_asked_and_once_more_when_it_is_quiet() -> None:
    """Between two questions is an interval at least."""
    bench = Merging().settled()
    bench.grow(1)
    assert bench.wait_until_asked() == (CHANNEL, False, False)
    asked_ms = bench.now_ms
    bench.answer(NOTHING)
    bench.grow(2)
    assert bench.wait_until_asked() == (CHANNEL, False, False)
    assert bench.now_ms - asked_ms >= INTERVAL_MS
    asked_ms = bench.now_ms
    bench.answer(NOTHING)
    assert bench.wait_until_asked() == (CHANNEL, True, False)
    assert bench.now_ms - asked_ms >= QUIET_MS - INTERVAL_MS
    bench.answer(NOTHING)
    assert bench.at(bench.now_ms + 60_000) == []


def test_tables_take_turns() -> None:
    """None is asked twice while another waits."""
    bench = Merging().settled()
    asked = []
    for number in range(6):
        bench.grow(number + 1)
        bench.grow(number + 1, bench.other)
        asked.append(bench.wait_until_asked()[0])
        bench.answer(DONE)
    assert asked in ([CHANNEL, OTHER] * 3, [OTHER, CHANNEL] * 3)


@pytest.mark.parametrize(("step", "factor"), [(DONE, PAUSE_FACTOR), (RICH, RICH_PAUSE_FACTOR)])
def test_pause_is_several_times_as_long_as_the_merge(step: MergeStep, factor: int) -> None:
    """So merges take a fifth of the time at most, however many wait; a third while they give back
    more than they leave."""
    bench = Merging().settled()
    for runner in (bench.mine, bench.other):
        bench.grow(1, runner)
    bench.wait_until_asked()
    bench.answer(step, after_ms=500)
    over_ms = bench.now_ms
    bench.wait_until_asked()
    assert bench.now_ms == over_ms + factor * 500
    bench.answer(NOTHING, after_ms=500)
    assert bench.merger.deadlines.next_ms == bench.now_ms + PAUSE_MS_MIN, "nothing was merged"
    assert (bench.merger.merges_total, bench.merger.merged_bytes_total) == (1, 2_000)


def test_merge_in_several_steps_goes_on_with_its_table() -> None:
    """With a pause behind each; it counts once."""
    bench = Merging().settled()
    for runner in (bench.mine, bench.other):
        bench.grow(1, runner)
    first, *_ = bench.wait_until_asked()
    bench.answer(DONE._replace(is_over=False), after_ms=100)
    assert bench.merger.merges_total == 0
    over_ms = bench.now_ms
    assert bench.wait_until_asked()[0] == first
    assert bench.now_ms == over_ms + PAUSE_FACTOR * 100
    bench.answer(DONE, after_ms=100)
    assert bench.wait_until_asked()[0] != first
    assert bench.merger.merges_total == 1


def test_merge_waits_for_readers_for_a_while() -> None:
    """Others have their turn meanwhile; then it is urgent."""
    bench = Merging().settled()
    bench.grow(1)
    assert bench.wait_until_asked() == (CHANNEL, False, False)
    waits_ms = bench.now_ms
    bench.answer(MergeStep(waits=True))
    bench.grow(1, bench.other)
    assert bench.wait_until_asked()[0] == OTHER
    bench.answer(NOTHING)
    while (asked := bench.wait_until_asked())[2] is False:
        assert bench.now_ms < waits_ms + READERS_WAIT_MS
        bench.answer(MergeStep(waits=True) if asked[0] == CHANNEL else NOTHING)
    assert asked[0] == CHANNEL
    assert bench.now_ms >= waits_ms + READERS_WAIT_MS
    bench.answer(DONE)
    bench.grow(2)
    assert bench.wait_until_asked() == (CHANNEL, False, False)


def test_quiet_table_is_asked_again_while_readers_kept_what_should_have_gone() -> None:
    """Nothing is written to it that would have it asked: what is left would stay for ever."""
    bench = Merging().settled()
    bench.grow(1)
    bench.wait_until_asked()
    bench.answer(NOTHING)
    assert bench.wait_until_asked() == (CHANNEL, True, False)
    bench.answer(DONE._replace(keeps=True))
    assert bench.wait_until_asked() == (CHANNEL, True, False)
    bench.answer(MergeStep(waits=True))
    assert bench.wait_until_asked() == (CHANNEL, True, False)
    bench.answer(DONE)
    assert bench.at(bench.now_ms + 60_000) == []


def test_nothing_is_merged_while_the_tables_are_behind() -> None:
    """Writing comes first; the next look may find them in time."""
    bench = Merging().settled()
    bench.grow(1)
    bench.queued_bytes = QUEUED_BYTES_MAX + 1
    assert bench.at(bench.now_ms + BEHIND_MS_MAX - INTERVAL_MS) == []
    bench.queued_bytes = QUEUED_BYTES_MAX
    assert bench.wait_until_asked()[0] == CHANNEL


def test_tables_that_stay_behind_are_merged_all_the_same() -> None:
    """Nothing would come back otherwise while overwriting batches follow each other; looks that
    find the tables in time begin to count anew."""
    bench = Merging().settled()
    bench.queued_bytes = QUEUED_BYTES_MAX + 1
    assert bench.at(bench.now_ms + BEHIND_MS_MAX - INTERVAL_MS) == []
    bench.queued_bytes = 0
    assert bench.at(bench.now_ms + INTERVAL_MS) == []
    bench.queued_bytes = QUEUED_BYTES_MAX + 1
    bench.grow(1)
    behind_ms = bench.now_ms
    assert bench.wait_until_asked()[0] == CHANNEL
    assert BEHIND_MS_MAX <= bench.now_ms - behind_ms <= BEHIND_MS_MAX + 2 * INTERVAL_MS


def test_channel_that_is_closed_meanwhile_is_forgotten() -> None:
    """Its answer may come all the same; the others go on."""
    bench = Merging().settled()
    bench.grow(1)
    bench.wait_until_asked()
    del bench.channels[CHANNEL]
    bench.retention.channel_closed(bench.mine)
    bench.answer(DONE._replace(is_over=False))
    bench.grow(1, bench.other)
    assert bench.wait_until_asked()[0] == OTHER
    assert bench.merger.merges_total == 0


def test_channel_that_is_closed_between_two_steps_is_not_asked_again() -> None:
    """It may be opened anew, as another one."""
    bench = Merging().settled()
    bench.grow(1)
    bench.wait_until_asked()
    bench.answer(DONE._replace(is_over=False))
    del bench.channels[CHANNEL]
    bench.retention.channel_closed(bench.mine)
    assert bench.at(bench.now_ms + 60_000) == []


@pytest.mark.parametrize("freed", [EVENT_BYTES_MIN - 1, EVENT_BYTES_MIN])
def test_merge_that_gave_much_back_is_told(freed: int) -> None:
    """With what the table took."""
    bench = Merging().settled()
    bench.grow(1)
    bench.wait_until_asked()
    bench.answer(MergeStep(is_merged=True, bytes_before=freed + 5, bytes_after=5))
    told = [("table_merged", {"channel": "orders/3", "was": freed + 5, "bytes": 5})]
    assert bench.told() == (told if freed == EVENT_BYTES_MIN else [])


def test_table_that_grew_by_its_merge_gave_nothing_back() -> None:
    """Rows were written meanwhile: the sum never falls."""
    bench = Merging().settled()
    bench.grow(1)
    bench.wait_until_asked()
    bench.answer(MergeStep(is_merged=True, bytes_before=5, bytes_after=9))
    assert (bench.merger.merges_total, bench.merger.merged_bytes_total) == (1, 0)
