"""Totals that are added to: one for each key.

::

    client.create_channelset("counters", machine="raftstore.recipes.counter:Counter")
    counters = client.channelset("counters")
    counters.command("clicks", 3)  # -> 3: the total with this addition in it
    counters.query("clicks")  # -> 3

An addition is a command, so a retry counts once, whatever happens to the answer.
"""

from __future__ import annotations

from typing import Final

import raftstore
from raftstore.recipes.names import name_of

TOTAL_MAX: Final = 2**63 - 1
"""Of a total, and of what it is below zero: what other languages read, too."""


class Counter(raftstore.StateMachine):
    """Command: a whole number to add. Result and answer: the total."""

    commands = results = answers = raftstore.codec(int)

    def apply(self, command: int, context: raftstore.CommandContext) -> int:
        """Add to the total of the key and return it."""
        name = name_of(context)
        total = self._total(context.state, name) + command
        if abs(total) > TOTAL_MAX:
            raise raftstore.RejectedError(f"the total would be {total}, beyond {TOTAL_MAX}")
        context.state.put(name, b"%d" % total)
        return total

    def query(self, request: bytes, context: raftstore.QueryContext) -> int:
        """The total of the key; 0 where nothing was added."""
        del request
        return self._total(context.state, name_of(context))

    @staticmethod
    def _total(state: raftstore.StateView, name: bytes) -> int:
        return int(state.get(name) or 0)
