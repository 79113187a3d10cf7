"""When a replica may leave its channel for a moment to be made whole."""

from __future__ import annotations

from typing import Final

from raftstore.engine.channel.runner import ChannelRunner
from raftstore.types import Role

RETRY_MS: Final = 500
"""Before it is looked again whether a repair can begin."""
HAND_OVER_RETRY_MS: Final = 3_000
"""Before a leader that is to be repaired tries again to hand its leadership over; it takes writes
meanwhile."""
HAND_OVER_PATIENCE_MS: Final = 10_000
"""So long a leader that is to be repaired waits for somebody to take over."""
ALONE: Final = "no other replica has a copy; restore the table from a backup, or drop it"


def others_up(runner: ChannelRunner) -> int:
    """Other members that are up from this node's viewpoint."""
    members = runner.core.config().members
    return sum(runner.parts.is_up(node) for node in members if node != runner.me)


def is_alone(runner: ChannelRunner) -> bool:
    """Whether there is no other replica at all."""
    return len(runner.core.config().members) <= 1


def leads(runner: ChannelRunner) -> bool:
    """Whether the replica leads now."""
    return runner.elector.role is Role.LEADER
