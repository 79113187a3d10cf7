"""Channels stand for election in turns: many at a time, never all of a thousand."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from raftstore.engine.channel.candidacies import (
    TOGETHER_MAX,
    TURN_MAX_MS,
    TURN_MIN_MS,
    WAIT_MS,
    Candidacies,
)
from raftstore.types import channel_id


class Elector:
    """Armed until it is elected."""

    due_ms: int | None = 0

    @property
    def is_standing(self) -> bool:
        """Whether it asks for votes."""
        return self.due_ms is not None

    def next_deadline_ms(self) -> int | None:
        """When it wants to stand."""
        return self.due_ms


def runners(count: int, table: bytes = b"u") -> list[Any]:
    """Channels of which each wants to stand now."""
    return [
        SimpleNamespace(channel=channel_id(table * 16, number), elector=Elector())
        for number in range(count)
    ]


def standing(candidacies: Candidacies, channels: list[Any], now_ms: int) -> list[Any]:
    """Those that may stand now, asked in this order."""
    return [runner for runner in channels if candidacies.may_stand(runner, now_ms)]


def test_channels_that_get_their_leaders_make_room_for_the_next() -> None:
    """S1.8: all of a lost node's channels are led again soon, a bounded number at a time."""
    candidacies, left = Candidacies(), runners(3 * TOGETHER_MAX)
    turns = 0
    for now_ms in range(0, 1_000, WAIT_MS):
        chosen = standing(candidacies, left, now_ms)
        assert len(chosen) <= TOGETHER_MAX
        for runner in chosen:
            runner.elector.due_ms = None
        left = [runner for runner in left if runner not in chosen]
        turns += bool(chosen)
        if not left:
            break
    assert turns == 3


def test_channel_whose_turn_has_come_repeats_its_requests_freely() -> None:
    """Lost messages of an election are repeated within its turn, although others wait."""
    candidacies, both = Candidacies(), runners(TOGETHER_MAX + 1)
    assert standing(candidacies, both, 0) == both[:TOGETHER_MAX]
    assert candidacies.may_stand(both[0], TURN_MIN_MS - 1)
    assert not candidacies.may_stand(both[-1], TURN_MIN_MS - 1)


@pytest.mark.slow
def test_channels_without_a_quorum_do_not_keep_the_others_from_candidacy() -> None:
    """S1.8: a channel whose turn ended without a leader goes to the end of the line."""
    candidacies, dead = Candidacies(), runners(5 * TOGETHER_MAX)
    [living] = runners(1)
    living.channel = channel_id(b"l" * 16, 0)
    line = [*dead, living]
    for now_ms in range(0, 6 * TURN_MAX_MS, WAIT_MS):
        chosen = standing(candidacies, line, now_ms)
        if living in chosen:
            return
        line = [runner for runner in line if runner not in chosen] + chosen
    raise AssertionError("the living channel never got a turn")


@pytest.mark.slow
def test_turns_take_longer_while_most_end_in_vain() -> None:
    """More is asked for than can be done: fewer elections end sooner than all of them."""
    candidacies, line = Candidacies(), runners(10 * TOGETHER_MAX)
    for now_ms in range(0, 10 * TURN_MAX_MS, WAIT_MS):
        chosen = standing(candidacies, line, now_ms)
        line = [runner for runner in line if runner not in chosen] + chosen
    assert candidacies._turn_ms == TURN_MAX_MS
    for runner in line:
        runner.elector.due_ms = None
    later = runners(2 * TOGETHER_MAX)
    standing(candidacies, later, 20 * TURN_MAX_MS)
    assert candidacies._turn_ms < TURN_MAX_MS


def test_channel_that_waits_is_asked_again_and_not_sooner() -> None:
    """The node does not spin over a thousand channels that have to wait."""
    candidacies, line = Candidacies(), runners(TOGETHER_MAX + 1)
    standing(candidacies, line, 100)
    waiting = line[-1]
    assert candidacies.not_before(waiting.channel, 0) == 100 + WAIT_MS
    assert candidacies.not_before(line[0].channel, 160) == 160
    assert candidacies.not_before(waiting.channel, None) is None
    assert candidacies.not_before(waiting.channel, 7) == 7
    candidacies.forget(line[0].channel)
    assert candidacies.may_stand(waiting, 101)


@pytest.mark.parametrize("due_ms", [None, 101])
def test_channel_that_has_nothing_due_is_no_candidate(due_ms: int | None) -> None:
    """It takes no place, and is not kept from its other work."""
    candidacies, line = Candidacies(), runners(TOGETHER_MAX + 1)
    [idle] = runners(1, b"i")
    idle.elector.due_ms = due_ms
    assert candidacies.may_stand(idle, 100)
    assert standing(candidacies, line, 100) == line[:-1]
    assert candidacies.may_stand(idle, 100)


def full() -> tuple[Candidacies, list[Any], Any]:
    """As many channels as may stand at a time since 0, and one more that has to wait."""
    candidacies, line = Candidacies(), runners(TOGETHER_MAX + 1)
    *chosen, waiting = line
    assert standing(candidacies, line, 0) == chosen
    return candidacies, chosen, waiting


def test_turn_goes_on_where_nobody_waits() -> None:
    """S1.8: an election that takes long is put off for the sake of others alone."""
    candidacies, (first, *_), waiting = full()
    candidacies.forget(waiting.channel)
    assert candidacies.may_stand(first, TURN_MIN_MS)
    assert candidacies.not_before(first.channel, TURN_MIN_MS) == TURN_MIN_MS
    assert not candidacies.may_stand(waiting, TURN_MIN_MS - 1)
    assert candidacies.may_stand(first, 2 * TURN_MIN_MS - 1), "the second turn is as long"


def test_turn_that_is_over_ends_for_the_sake_of_others_and_comes_again() -> None:
    """S1.8: the channel asks again soon, and finds its place taken until another turn ends."""
    candidacies, (first, *others) = Candidacies(), runners(TOGETHER_MAX + 1)
    assert standing(candidacies, [first], 0) == [first]
    *chosen, waiting = others
    assert standing(candidacies, others, 10) == chosen
    assert candidacies.may_stand(first, TURN_MIN_MS - 1)
    assert not candidacies.may_stand(first, TURN_MIN_MS)
    assert candidacies.not_before(first.channel, 0) == TURN_MIN_MS + WAIT_MS
    assert candidacies.may_stand(waiting, TURN_MIN_MS)
    assert not candidacies.may_stand(first, TURN_MIN_MS + 9), "its place is taken"
    assert candidacies.may_stand(first, TURN_MIN_MS + 10)


def test_channel_that_stands_waits_no_longer() -> None:
    """Its next deadline is its own again, and nobody has to make room for it."""
    candidacies, (first, second, *_), waiting = full()
    candidacies.forget(first.channel)
    assert candidacies.may_stand(waiting, 1)
    assert candidacies.not_before(waiting.channel, 5) == 5
    assert candidacies.may_stand(second, TURN_MIN_MS), "nobody waits for its place"


def test_channel_of_a_dropped_table_neither_stands_nor_waits() -> None:
    """It will never ask again, so what was kept of it would stay for ever."""
    candidacies, (first, second, *_), waiting = full()
    candidacies.forget(waiting.channel)
    assert candidacies.not_before(waiting.channel, 7) == 7
    assert candidacies.may_stand(second, TURN_MIN_MS), "nobody waits for its place"
    candidacies.forget(first.channel)
    assert candidacies.may_stand(waiting, TURN_MIN_MS - 1)


class Turns:
    """Lines of channels that stand one after the other, each until its turn ends."""

    def __init__(self) -> None:
        self.candidacies = Candidacies()
        self.now_ms = 0
        self._lines = 0
        self.standing = self._next_line()

    def _next_line(self) -> list[Any]:
        self._lines += 1
        line = runners(2 * TOGETHER_MAX, bytes([self._lines]))
        return standing(self.candidacies, line, self.now_ms)

    def next_ms(self, elected: int, in_vain: int) -> int:
        """Length of a turn after so many of the last line had a leader when theirs was over."""
        for runner in self.standing[elected + in_vain :]:
            self.candidacies.forget(runner.channel)
        for runner in self.standing[:elected]:
            runner.elector.due_ms = None
        self.now_ms += TURN_MAX_MS
        self.standing = self._next_line()
        last = self.standing[-1]
        for ms in range(TURN_MIN_MS // 2, 3 * TURN_MAX_MS, TURN_MIN_MS // 2):
            if not self.candidacies.may_stand(last, self.now_ms + ms):
                self.standing.remove(last)
                return ms
        raise AssertionError("its turn never ends")


def test_turns_double_while_most_end_in_vain_and_shrink_when_most_do_not() -> None:
    """Fewer elections that end are better than all of them begun again; never beyond the bounds."""
    turns, most, some = Turns(), 70, 50
    told = [turns.next_ms(elected=some, in_vain=most) for _ in range(3)]
    assert told == [2 * TURN_MIN_MS, TURN_MAX_MS, TURN_MAX_MS]
    assert turns.next_ms(elected=most, in_vain=some) == TURN_MAX_MS // 2
    assert turns.next_ms(elected=some, in_vain=some) == TURN_MIN_MS, "as many as in vain"
    assert turns.next_ms(elected=TOGETHER_MAX, in_vain=0) == TURN_MIN_MS


def test_channels_that_wait_at_one_moment_look_at_the_line_once() -> None:
    """A thousand at once: each look costs as much as there are channels standing."""
    looks: list[int] = []

    class Watched(Elector):
        @property
        def is_standing(self) -> bool:
            looks.append(1)
            return True

    candidacies, line = Candidacies(), runners(5 * TOGETHER_MAX)
    for runner in line:
        runner.elector = Watched()
    standing(candidacies, line, 0)
    assert len(looks) == TOGETHER_MAX
    standing(candidacies, line, 1)
    assert len(looks) == 2 * TOGETHER_MAX
