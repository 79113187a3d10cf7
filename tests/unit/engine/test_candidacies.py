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


def runners(count: int) -> list[Any]:
    """Channels of which each wants to stand now."""
    return [
        SimpleNamespace(channel=channel_id(b"u" * 16, number), elector=Elector())
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
    """Lost messages of an election are repeated within its turn, whoever waits."""
    candidacies, both = Candidacies(), runners(TOGETHER_MAX + 1)
    assert standing(candidacies, both, 0) == both[:TOGETHER_MAX]
    assert candidacies.may_stand(both[0], TURN_MIN_MS - 1)
    assert not candidacies.may_stand(both[-1], TURN_MIN_MS - 1)


@pytest.mark.slow
def test_channels_without_a_quorum_do_not_keep_the_others_from_standing() -> None:
    """S1.8: whoever had its turn in vain goes to the end of the line."""
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
    assert candidacies.may_stand(SimpleNamespace(elector=Elector(), channel=b"x"), -1)  # type: ignore[arg-type]
