"""Numbers that are given out once, in blocks, for each key.

::

    block = ids.command("orders", 1_000)  # -> Block(first=1, count=1000)
    for number in range(block.first, block.first + block.count):
        ...

A program takes a block, uses its numbers from memory, and takes the next one. Numbers of a block
that is lost with its program are used by nobody. They grow from block to block.
"""

from __future__ import annotations

from typing import Annotated, Final

import msgspec

import raftstore
from raftstore.recipes.names import name_of

LAST: Final = 2**63 - 1
"""The highest number that is given out: what other languages read, too."""
Count = Annotated[int, msgspec.Meta(ge=1, le=1_000_000_000)]


class Block(msgspec.Struct, frozen=True):
    """Numbers from ``first`` on, so many."""

    first: int
    count: int


class IdBlocks(raftstore.StateMachine):
    """Command: how many numbers. Result: the Block. Answer: the number that comes next."""

    commands = raftstore.codec(Count)
    results = raftstore.codec(Block)
    answers = raftstore.codec(int)

    def apply(self, command: int, context: raftstore.CommandContext) -> Block:
        """Give out the next numbers."""
        name = name_of(context)
        first = self._next(context.state, name)
        if first + command - 1 > LAST:
            raise raftstore.RejectedError(f"{command} numbers from {first} on end above {LAST}")
        context.state.put(name, b"%d" % (first + command))
        return Block(first, command)

    def query(self, request: bytes, context: raftstore.QueryContext) -> int:
        """The first number of the next block."""
        del request
        return self._next(context.state, name_of(context))

    @staticmethod
    def _next(state: raftstore.StateView, name: bytes) -> int:
        return int(state.get(name) or 1)
