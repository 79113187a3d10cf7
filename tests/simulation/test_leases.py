"""Leases of machines while one clock is wrong: a single clock does not say how late it is (S10)."""

from __future__ import annotations

import pytest

from raftstore.client.writes.kinds import Write
from raftstore.machine import codec
from raftstore.protocol.machines import CommandAck, encode_command
from raftstore.recipes.lock import Acquire, Grant, Lock
from raftstore.types import RecordKind
from tests.simulation.test_channelsets import World, calm

pytestmark = pytest.mark.slow

DAY_MS = 86_400_000.0
LEASE_MS = 5_000
AHEAD_MS = 10_000
"""``replication.stamp_ahead_ms``."""


def acquire(world: World, holder: str) -> Grant | str:
    """Try to take the lock; what became of it."""
    payload = encode_command(b"k", codec(Acquire).encode(Acquire(holder, LEASE_MS)))
    answer = world.send(Write(world.channel, RecordKind.MACHINE_COMMAND, payload, 1))
    assert isinstance(answer, CommandAck), answer
    if answer.is_rejected:
        return answer.reason
    granted: Grant = codec(Grant).decode(answer.result)
    return granted


def set_clock_of_leader(world: World, offset_ms: float) -> None:
    """The clock of the node that leads shows another day."""
    leader = world.cluster.believed_leader(world.channel)
    assert leader is not None
    world.cluster.nodes[leader[0]].wall_offset_ms = offset_ms


@pytest.mark.parametrize("offset_ms", [DAY_MS, -DAY_MS])
def test_lease_ends_in_its_time_while_the_clock_of_the_leader_is_a_day_wrong(
    offset_ms: float,
) -> None:
    """Neither is the lease over at once, nor does time stand still for a day."""
    world = World(Lock, calm())
    acquire(world, "warm")
    world.run(LEASE_MS + 1_000)
    set_clock_of_leader(world, offset_ms)
    world.run(500.0)
    first = acquire(world, "a")
    assert isinstance(first, Grant)
    world.run(LEASE_MS / 2)
    assert isinstance(acquire(world, "b"), str)
    world.run(LEASE_MS / 2 + 1_000)
    assert isinstance(acquire(world, "b"), Grant)


def test_time_goes_on_soon_after_a_clock_that_was_a_day_ahead_is_right_again() -> None:
    """A stamp of the wrong clock is above the others by no more than ``stamp_ahead_ms``."""
    world = World(Lock, calm())
    set_clock_of_leader(world, DAY_MS)
    world.run(500.0)
    assert isinstance(acquire(world, "a"), Grant)
    set_clock_of_leader(world, 0.0)
    world.run(AHEAD_MS + LEASE_MS + 1_000)
    assert isinstance(acquire(world, "b"), Grant)
