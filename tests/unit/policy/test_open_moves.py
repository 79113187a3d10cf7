"""How many channels change their replicas at a time, in clusters of every size."""

from __future__ import annotations

import pytest

from raftstore.policy.open_moves import (
    MOVES_OF_TAKER_MAX,
    MOVES_OPEN_MAX,
    MOVES_OPEN_MIN,
    OpenMoves,
    bytes_in_turn,
    moves_at_once,
)
from raftstore.types import NodeId

NODES = tuple(NodeId(f"n{number}") for number in range(20))


@pytest.mark.parametrize(
    ("nodes", "moves"),
    [(0, MOVES_OPEN_MIN), (9, MOVES_OPEN_MIN), (10, 5), (30, 15), (1_000, MOVES_OPEN_MAX)],
)
def test_larger_clusters_change_more_channels_at_a_time(nodes: int, moves: int) -> None:
    """One for two nodes, and never more than the catalog carries."""
    assert moves_at_once(nodes) == moves


def test_orders_of_everybody_count() -> None:
    """Those that were open before, and those that are given."""
    moves = OpenMoves(10, [(NODES[0],), ()])
    for node in NODES[1:4]:
        assert moves.may_take((node,))
        moves.add((node,))
    assert moves.is_full
    assert not moves.may_take((NODES[5],))
    assert not moves.may_take(())


def test_node_takes_few_replicas_at_a_time() -> None:
    """The cluster's other nodes take theirs meanwhile."""
    moves = OpenMoves(len(NODES), [(NODES[0], NODES[1])] * (MOVES_OF_TAKER_MAX - 1))
    assert moves.may_take((NODES[0],))
    moves.add((NODES[0],))
    assert not moves.may_take((NODES[0],))
    assert not moves.may_take((NODES[2], NODES[0]))
    assert moves.may_take((NODES[1], NODES[2]))


def test_time_of_a_plan_is_that_of_what_is_copied_in_turn() -> None:
    """All of it by as many as go at a time, the largest copy, or what one node takes alone."""
    even = [((node,), 100) for node in NODES]
    assert bytes_in_turn(even, len(NODES)) == 2_000 / 10
    assert bytes_in_turn([*even, ((NODES[0],), 900)], len(NODES)) == 900
    to_one = [((NODES[0],), 100)] * 20
    assert bytes_in_turn(to_one, len(NODES)) == 2_000 / MOVES_OF_TAKER_MAX
    assert bytes_in_turn([((NODES[0], NODES[1]), 100)] * 20, 4) == 2_000 / 4
    assert bytes_in_turn([], 3) == 0
