"""A lock with a lease and a fencing token, for each key.

::

    grant = locks.command("nightly", Acquire("host-a", lease_ms=10_000))
    ...  # work; pass grant.token along with every write to what the lock protects
    locks.command("nightly", Renew("host-a", grant.token, lease_ms=10_000))
    locks.command("nightly", Release("host-a", grant.token))

A lease ends by the time at which commands are ordered, which never goes back. A holder that was
stopped for longer than its lease does not notice at once that it has lost the lock: what the lock
protects must refuse a token below the highest that it has seen. Tokens of a lock only grow.
"""

from __future__ import annotations

from typing import Annotated

import msgspec

import raftstore
from raftstore.recipes.names import name_of

LeaseMs = Annotated[int, msgspec.Meta(ge=1, le=24 * 3_600_000)]
Holder = Annotated[str, msgspec.Meta(min_length=1, max_length=200)]


class Acquire(msgspec.Struct, frozen=True, tag=True):
    """Take the lock, if it is free or its lease is over. Its holder gets a new lease."""

    holder: Holder
    lease_ms: LeaseMs


class Renew(msgspec.Struct, frozen=True, tag=True):
    """A new lease, if the lock is still held under this token."""

    holder: Holder
    token: int
    lease_ms: LeaseMs


class Release(msgspec.Struct, frozen=True, tag=True):
    """Give the lock back, if it is still held under this token."""

    holder: Holder
    token: int


class Grant(msgspec.Struct, frozen=True):
    """The lock as it is held, or was held last."""

    holder: str
    """Empty: it was given back."""
    token: int
    """Grows with every change of holder."""
    until_ms: int
    """End of the lease, in milliseconds since 1970."""


FREE = Grant("", 0, 0)
_GRANT = raftstore.codec(Grant)


class Lock(raftstore.StateMachine):
    """Commands: Acquire, Renew, Release. Result and answer: the Grant."""

    commands = raftstore.codec(Acquire | Renew | Release)
    results = answers = _GRANT

    def apply(self, command: Acquire | Renew | Release, context: raftstore.CommandContext) -> Grant:
        """Change who holds the lock; RejectedError says who does."""
        name = name_of(context)
        held = self._held(context.state, name)
        is_over = not held.holder or held.until_ms <= context.time_ms
        if isinstance(command, Acquire):
            if not is_over and held.holder != command.holder:
                raise raftstore.RejectedError(_says(held))
            token = held.token + 1 if is_over else held.token
            after = Grant(command.holder, token, context.time_ms + command.lease_ms)
        else:
            # Also when the lease is over: as long as nobody has taken it, nobody has noticed.
            if (held.holder, held.token) != (command.holder, command.token):
                raise raftstore.RejectedError(
                    f"token {command.token} is not in force; {_says(held)}"
                )
            if isinstance(command, Renew):
                after = Grant(held.holder, held.token, context.time_ms + command.lease_ms)
            else:
                after = Grant("", held.token, context.time_ms)
        context.state.put(name, _GRANT.encode(after))
        return after

    def query(self, request: bytes, context: raftstore.QueryContext) -> Grant:
        """The lock as it is; its lease may be over."""
        del request
        return self._held(context.state, name_of(context))

    @staticmethod
    def _held(state: raftstore.StateView, name: bytes) -> Grant:
        found = state.get(name)
        held: Grant = FREE if found is None else _GRANT.decode(found)
        return held


def _says(held: Grant) -> str:
    if not held.holder:
        return "nobody holds the lock"
    return f"{held.holder} holds the lock under token {held.token} until {held.until_ms} ms"
