"""Rebalances in the catalog: one at a time, forward only, and tags of nodes (FIP-13, 23, 29)."""

from __future__ import annotations

from typing import Any

import pytest

from raftstore.protocol.rebalance import MoveState, NodeTag, WantedMove
from raftstore.state_machines.catalog_members import (
    drain_node_command,
    remove_node_command,
)
from raftstore.state_machines.catalog_rebalance import (
    MOVES_MAX,
    BeginRebalance,
    CancelMoves,
    EndRebalance,
    MoveEntry,
    RebalanceEntry,
    StepMove,
    moves_problem,
    overall_state,
    rebalance_command,
    switch_command,
    tag_node_command,
    throttle_command,
)
from raftstore.types import ChannelId, NodeId, Seq, node_id
from tests.unit.state_machines.test_catalog_replicas import (
    CHANNEL,
    FOUNDERS,
    N1,
    N2,
    N3,
    N4,
    SECOND,
    Store,
)

MOVED = (N2, N3, N4)


def move(channel: ChannelId = CHANNEL, *voters: NodeId) -> WantedMove:
    """From the founders to others."""
    return WantedMove(channel, voters or MOVED, (), FOUNDERS, ())


class Rows(Store):
    """With the rows of rebalances."""

    def begin(self, *moves: WantedMove, guid: bytes = b"g" * 16) -> int | None:
        """Begin a rebalance."""
        begin = BeginRebalance(guid, "test", moves or (move(), move(SECOND)))
        return self.command(rebalance_command(begin))

    def step(self, before: MoveState, state: MoveState, **more: Any) -> int | None:
        """Say how far the move of the channel is."""
        channel = more.pop("channel", CHANNEL)
        number = more.pop("number", self.last.number)
        return self.command(rebalance_command(StepMove(number, channel, before, state, **more)))

    def end(self) -> int | None:
        """End the rebalance."""
        return self.command(rebalance_command(EndRebalance(self.last.number)))

    @property
    def last(self) -> RebalanceEntry:
        """The rebalance."""
        found = self.catalog.rebalance.last
        assert found is not None
        return found

    def moved(self, channel: ChannelId = CHANNEL) -> MoveEntry:
        """A move."""
        return self.catalog.rebalance.moves[channel]


def test_rebalance_is_one_at_a_time_and_a_repeated_request_is_the_same() -> None:
    """The next one takes the rows of the last one away."""
    rows = Rows()
    assert rows.begin() is None
    number = rows.last.number
    assert rows.begin() is None
    assert rows.last.number == number == rows.seq - 1
    assert rows.begin(guid=b"h" * 16) == number
    for channel in (CHANNEL, SECOND):
        assert rows.step(MoveState.NOT_STARTED, MoveState.COMPLETED, channel=channel) is None
    assert rows.end() is None
    assert (rows.last.state, rows.last.is_open) == (MoveState.COMPLETED, False)
    assert rows.catalog.rebalance.open is None
    assert rows.begin(move(SECOND), guid=b"h" * 16) is None
    assert rows.catalog.rebalance.moves.keys() == {SECOND}
    assert rows.moved(SECOND).state is MoveState.NOT_STARTED


def test_state_of_a_move_goes_forward_only_from_the_state_that_was_seen() -> None:
    """FIP-29: a step of an earlier leader that comes late is none."""
    rows = Rows()
    rows.begin()
    first, second = MoveState.EXPANDING, MoveState.CATCHING_UP
    assert rows.step(MoveState.NOT_STARTED, first, change=7) is None
    assert rows.step(MoveState.NOT_STARTED, second) is not None
    assert rows.step(first, MoveState.NOT_STARTED) is not None
    assert rows.step(first, MoveState.NOT_STARTED, ends_as=MoveState.FAILED) is not None
    assert rows.step(first, first) is not None
    assert rows.step(first, second, number=Seq(1)) is not None
    assert rows.step(first, second) is None
    entry = rows.moved()
    assert (entry.state, entry.change, entry.ended_ms) == (second, 7, 0)
    assert rows.step(second, second, ends_as=MoveState.TIMEOUT, reason="stuck") is None
    assert rows.step(second, second, ends_as=MoveState.FAILED, reason="other") is not None
    assert rows.step(second, MoveState.TIMEOUT) is None
    entry = rows.moved()
    assert (entry.state, entry.reason, entry.ended_ms > 0) == (MoveState.TIMEOUT, "stuck", True)
    assert rows.step(MoveState.TIMEOUT, MoveState.COMPLETED) is not None


def test_rebalance_ends_only_when_every_move_has() -> None:
    """A move under way is never forgotten; after the end no step is taken."""
    rows = Rows()
    rows.begin()
    assert rows.step(MoveState.NOT_STARTED, MoveState.FAILED, reason="why") is None
    assert rows.end() is not None
    assert rows.step(MoveState.NOT_STARTED, MoveState.COMPLETED, channel=SECOND) is None
    assert rows.end() is None
    assert rows.last.state is MoveState.FAILED
    assert rows.end() is not None
    assert rows.command(rebalance_command(CancelMoves(rows.last.number))) is not None


def test_second_cancel_is_a_conflict() -> None:
    """The first one is in the catalog."""
    rows = Rows()
    rows.begin()
    cancel = rebalance_command(CancelMoves(rows.last.number))
    assert rows.command(cancel) is None
    assert rows.last.is_cancelled
    assert rows.command(cancel) is not None
    assert rows.command(rebalance_command(CancelMoves(Seq(1)))) is not None


def test_m27_rebalance_never_goes_to_a_node_that_drains() -> None:
    """It was planned by a copy of the catalog that did not know it."""
    rows = Rows()
    assert rows.command(drain_node_command(N4, drains=True)) is None
    assert rows.begin() is not None
    assert rows.catalog.rebalance.last is None


def test_tag_is_set_taken_away_and_goes_with_its_node() -> None:
    """An unknown node has none; no replica of a table is placed on a tagged one."""
    rows = Rows()
    tag = NodeTag.TEMPORARY_OFFLINE
    assert rows.command(tag_node_command(N4, tag)) is None
    assert rows.catalog.rebalance.tags == {N4: tag}
    assert N4 not in rows.catalog.placeable()
    assert rows.command(tag_node_command(node_id("n9", b"9" * 16), tag)) is not None
    assert rows.command(drain_node_command(N4, drains=True)) is None
    assert rows.command(remove_node_command(N4, rows.catalog.draining[N4])) is None
    assert rows.catalog.rebalance.tags == {}
    assert rows.command(tag_node_command(N1, tag)) is None
    assert rows.command(tag_node_command(N1, None)) is None
    assert rows.command(tag_node_command(N1, None)) is None
    assert rows.catalog.rebalance.tags == {}


def test_throttle_is_set_and_taken_back() -> None:
    """0: the settings of the nodes count."""
    rows = Rows()
    for bytes_per_s in (1_000_000, 2_000_000, 0, 0):
        assert rows.command(throttle_command(bytes_per_s)) is None
        assert rows.catalog.rebalance.throttle == bytes_per_s


def test_switch_for_even_leaders_has_three_states() -> None:
    """None: the settings of the nodes count."""
    rows = Rows()
    assert rows.catalog.rebalance.leaders is None
    for is_on in (False, True, True, None, None):
        assert rows.command(switch_command(is_on)) is None
        assert rows.catalog.rebalance.leaders is is_on


@pytest.mark.parametrize(
    ("moves", "text"),
    [
        ((), "without moves does nothing"),
        ((move(), move()), "has two moves"),
        ((move(CHANNEL, N1, N1, N2),), "name each node once"),
        ((move(CHANNEL, *FOUNDERS),), "changes no replica"),
        (tuple(move() for _ in range(MOVES_MAX + 1)), f"more than {MOVES_MAX}"),
    ],
)
def test_moves_that_can_never_be_done_are_named(moves: tuple[WantedMove, ...], text: str) -> None:
    """By the node that takes the request, and by the catalog again."""
    assert text in (moves_problem(moves) or "")
    rows = Rows()
    begin = BeginRebalance(b"g" * 16, "test", moves)
    assert rows.command(rebalance_command(begin)) is not None


def test_state_of_the_whole_is_that_of_its_moves() -> None:
    """Of those under way the one that is furthest behind; the worst end."""
    states = MoveState
    for moves, cancelled, whole in (
        ((states.NOT_STARTED, states.COMPLETED), False, states.NOT_STARTED),
        ((states.SWITCHING, states.CATCHING_UP, states.FAILED), False, states.CATCHING_UP),
        ((states.NOT_STARTED, states.SHRINKING), False, states.SHRINKING),
        ((states.COMPLETED, states.COMPLETED), True, states.COMPLETED),
        ((states.COMPLETED, states.CANCELED), True, states.CANCELED),
        ((states.COMPLETED, states.CANCELED), False, states.COMPLETED),
        ((states.TIMEOUT, states.COMPLETED), False, states.TIMEOUT),
        ((states.TIMEOUT, states.FAILED), False, states.FAILED),
    ):
        assert overall_state(moves, is_cancelled=cancelled) is whole
