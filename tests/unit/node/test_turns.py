"""One turn of a node for messages that arrived together."""

from __future__ import annotations

import asyncio
from typing import Any, cast

from raftstore.node.turns import Turns


class World:
    """Counts what a turn does, in place of everything that a turn drives."""

    def __init__(self) -> None:
        self.kicks = 0
        self.ended: list[int] = []

    def kick(self) -> None:
        """The log writes what is pending."""
        self.kicks += 1

    def next_deadline_ms(self) -> int:
        """Never."""
        return 1 << 60

    def turns(self) -> Turns:
        """Turns of this world, which are not due to tell heartbeats anything."""
        turns = Turns(
            cast(Any, self),
            cast(Any, self),
            cast(Any, None),
            endpoints={},
            queued_bytes=lambda: 0,
            queued_bytes_max=1,
            on_turn=self.ended.append,
        )
        turns._content_due = 1 << 60
        return turns


def test_calls_between_hold_and_release_are_one_turn() -> None:
    """The log is kicked once, after the last of them; a batch without a call ends no turn."""

    async def run() -> None:
        world = World()
        turns = world.turns()
        turns.end()
        assert world.kicks == 1
        turns.hold(True)
        turns.end()
        turns.end()
        assert world.kicks == 1
        turns.hold(False)
        assert (world.kicks, len(world.ended)) == (2, 2)
        turns.hold(True)
        turns.hold(False)
        assert world.kicks == 2
        turns.end()
        assert world.kicks == 3
        turns.close()

    asyncio.run(run())
