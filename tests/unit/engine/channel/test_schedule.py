"""Which channels are stepped when: the log is durable, a deadline has come, a turn touched them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from raftstore.engine.channel.active_channels import ActiveChannels
from raftstore.engine.channel.candidacies import TOGETHER_MAX, TURN_MIN_MS
from raftstore.engine.channel.schedule import CHANNELS_PER_TURN, ChannelSchedule
from raftstore.engine.deadlines import NEVER_MS
from raftstore.types import ChannelId, channel_id


class Channel:
    """One that notes what it is called with."""

    def __init__(self, number: int) -> None:
        self.channel = channel_id(b"t" * 16, number)
        self.due_ms: int | None = None
        self.awaits_durability = False
        self.told: list[tuple[Any, ...]] = []
        self.election_due_ms: int | None = None
        self.elector = SimpleNamespace(
            next_deadline_ms=lambda: self.election_due_ms, is_standing=True
        )

    def next_deadline_ms(self) -> int | None:
        """When it wants to be called."""
        return self.due_ms

    def on_log_durable(self, operation: int, now_ms: int) -> None:
        """The log went on."""
        self.told.append(("durable", operation, now_ms))

    def on_timer(self, now_ms: int, *, may_stand: bool) -> None:
        """Its deadline has come."""
        self.told.append(("timer", now_ms, may_stand))


class Bench:
    """A node with so many channels."""

    def __init__(self, count: int = 3) -> None:
        self.all = [Channel(number) for number in range(count)]
        self.channels: dict[ChannelId, Any] = {each.channel: each for each in self.all}
        self.active = ActiveChannels()
        self.schedule = ChannelSchedule(self.channels, self.active)

    def turn(self, *touched: Channel) -> list[ChannelId]:
        """Touch some, and end the turn; what had moved in it."""
        for each in touched:
            self.active.touch(each.channel)
        moved = list(self.schedule.take_touched())
        self.schedule.settle()
        return moved

    def close(self, channel: Channel) -> None:
        """The channel is gone."""
        del self.channels[channel.channel]
        self.schedule.on_closed(channel)  # type: ignore[arg-type]


def test_deadline_of_a_channel_is_asked_for_when_a_turn_touched_it() -> None:
    """The deadlines of all others stay; without any the channel is not called."""
    bench = Bench()
    first, second, _ = bench.all
    first.due_ms, second.due_ms = 50, 70
    assert not bench.schedule.has_moved
    assert bench.turn(first, second) == [first.channel, second.channel]
    assert not bench.schedule.has_moved
    assert bench.schedule.deadlines.next_ms == 50
    first.due_ms = 90
    assert bench.turn() == []
    assert bench.schedule.deadlines.next_ms == 50
    bench.turn(first)
    assert bench.schedule.deadlines.next_ms == 70
    second.due_ms = None
    bench.turn(second)
    assert bench.schedule.deadlines.next_ms == 90


def test_channels_of_all_calls_of_a_turn_are_settled_at_its_end() -> None:
    """Once each, however many calls touched them; what was taken is not handed out again."""
    bench = Bench()
    first, second, third = bench.all
    for each in bench.all:
        each.due_ms = 10
    bench.active.touch(first.channel)
    assert list(bench.schedule.take_touched()) == [first.channel]
    assert bench.schedule.has_moved
    for each in (second, third, second):
        bench.active.touch(each.channel)
    assert list(bench.schedule.take_touched()) == [second.channel, third.channel]
    assert list(bench.schedule.take_touched()) == []
    bench.schedule.settle()
    assert len(bench.schedule.deadlines) == 3
    assert not bench.schedule.has_moved


def test_timers_run_at_their_deadline_and_mark_their_channel() -> None:
    """Its next deadline is another one afterwards."""
    bench = Bench()
    first, second, _ = bench.all
    first.due_ms, second.due_ms = 50, 51
    bench.turn(first, second)
    bench.schedule.on_timer(49)
    assert first.told == []
    bench.schedule.on_timer(50)
    assert (first.told, second.told) == ([("timer", 50, True)], [])
    first.due_ms = 150
    assert bench.turn() == [first.channel]
    assert bench.schedule.deadlines.next_ms == 51


def test_so_many_timers_run_in_one_turn_and_the_others_in_the_next() -> None:
    """Messages get their turns in between."""
    bench = Bench(CHANNELS_PER_TURN + 1)
    for each in bench.all:
        each.due_ms = 5
    bench.turn(*bench.all)
    bench.schedule.on_timer(5)
    assert sum(len(each.told) for each in bench.all) == CHANNELS_PER_TURN
    bench.schedule.on_timer(5)
    assert sum(len(each.told) for each in bench.all) == CHANNELS_PER_TURN + 1


def test_channels_that_have_to_wait_for_their_turn_as_candidates_are_told_so() -> None:
    """S1.8: their other work goes on; the place of one that is closed is free at once."""
    bench = Bench(TOGETHER_MAX + 1)
    for each in bench.all:
        each.due_ms = each.election_due_ms = 5
    bench.turn(*bench.all)
    for _ in range(3):
        bench.schedule.on_timer(5)
    told = [each.told for each in bench.all]
    assert told == [*[[("timer", 5, True)]] * TOGETHER_MAX, [("timer", 5, False)]]
    waiting = bench.all[-1]
    bench.turn()
    bench.close(bench.all[0])
    assert len(bench.schedule.deadlines) == TOGETHER_MAX
    for each in bench.all[:-1]:
        each.due_ms = TURN_MIN_MS
    bench.turn(*bench.all)
    assert 5 < bench.schedule.deadlines.next_ms < TURN_MIN_MS
    bench.schedule.on_timer(bench.schedule.deadlines.next_ms)
    assert waiting.told[-1][2]


def test_channels_that_await_the_log_are_told_until_all_of_theirs_is_durable() -> None:
    """S0.5: those that await nothing are not looked at."""
    bench = Bench()
    first, second, third = bench.all
    first.awaits_durability = True
    for each in (first, second):
        bench.active.await_log(each.channel)
    bench.schedule.on_log_durable(7, 100)
    assert (first.told, second.told, third.told) == ([("durable", 7, 100)],) * 2 + ([],)
    assert bench.turn() == [first.channel, second.channel]
    first.awaits_durability = False
    bench.schedule.on_log_durable(8, 110)
    bench.schedule.on_log_durable(9, 120)
    assert first.told == [("durable", 7, 100), ("durable", 8, 110)]
    assert second.told == [("durable", 7, 100)]


def test_nothing_is_left_of_a_channel_that_was_closed() -> None:
    """No deadline and no mark; what still names it is passed over."""
    bench = Bench()
    first, second, third = bench.all
    for each in bench.all:
        each.due_ms = 5
    bench.turn(*bench.all)
    bench.active.await_log(first.channel)
    bench.close(first)
    assert first.channel not in bench.schedule.deadlines
    assert bench.active.take_awaiting() == {}
    for each in (second, third):
        bench.active.await_log(each.channel)
    del bench.channels[second.channel]  # by what happens to another one in this very call
    bench.schedule.on_log_durable(1, 5)
    bench.schedule.on_timer(5)
    assert second.told == []
    assert third.told == [("durable", 1, 5), ("timer", 5, True)]
    assert bench.turn(first) == [third.channel, first.channel]
    assert bench.schedule.deadlines.next_ms == 5, "of the one that is open"
    bench.close(third)
    assert bench.schedule.deadlines.next_ms == NEVER_MS
