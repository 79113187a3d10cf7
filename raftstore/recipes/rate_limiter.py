"""So many permits in so much time, for each key.

::

    limits.command("customer-7", Take(limit=100, window_ms=60_000))
    # -> Decision(is_allowed=True, remaining=99, retry_after_ms=0)

Permits flow back evenly: one every ``window_ms / limit``; at most ``limit`` are there at a time
(the generic cell rate algorithm). Its state is one number for each key: the moment at which all
permits are back. Whole microseconds, so that every replica counts the same.
"""

from __future__ import annotations

from typing import Annotated

import msgspec

import raftstore
from raftstore.recipes.names import name_of

Positive = Annotated[int, msgspec.Meta(ge=1, le=1_000_000_000)]


class Take(msgspec.Struct, frozen=True):
    """Take permits, if there are enough. A command brings the limit that holds for it."""

    limit: Positive
    window_ms: Positive
    permits: Positive = 1


class Decision(msgspec.Struct, frozen=True):
    """The answer of the limiter. What is not allowed takes no permits."""

    is_allowed: bool
    remaining: int
    """Permits that are left now."""
    retry_after_ms: int
    """So long until there will be enough, if nobody takes any; 0 when it is allowed."""


class RateLimiter(raftstore.StateMachine):
    """Command: Take. Result: Decision. A query with a Take answers what it would decide."""

    commands = queries = raftstore.codec(Take)
    results = answers = raftstore.codec(Decision)

    def apply(self, command: Take, context: raftstore.CommandContext) -> Decision:
        """Decide, and keep when all permits will be back."""
        name = name_of(context)
        decision, full_us = self._decide(command, context.state.get(name), context.time_ms)
        if decision.is_allowed:
            context.state.put(name, b"%d" % full_us)
        return decision

    def query(self, request: Take, context: raftstore.QueryContext) -> Decision:
        """The decision at the time of the last command, which takes nothing."""
        found = context.state.get(name_of(context))
        return self._decide(request, found, context.time_ms)[0]

    @staticmethod
    def _decide(take: Take, found: bytes | None, time_ms: int) -> tuple[Decision, int]:
        """The decision, and the moment at which all permits are back if they are taken."""
        if take.permits > take.limit:
            message = f"{take.permits} permits at once; there are never more than {take.limit}"
            raise raftstore.RejectedError(message)
        now_us, window_us = time_ms * 1_000, take.window_ms * 1_000
        # Up: a permit never flows back too early.
        each_us = -(-window_us // take.limit)
        full_us = max(int(found or 0), now_us)
        after_us = full_us + take.permits * each_us
        late_us = after_us - (now_us + take.limit * each_us)
        if late_us > 0:
            left = (now_us + take.limit * each_us - full_us) // each_us
            return Decision(False, max(left, 0), -(-late_us // 1_000)), full_us
        return Decision(True, -late_us // each_us, 0), after_us
