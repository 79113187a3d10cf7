"""A user's workload: what clients of a simulated world ask, and what they were answered."""

from __future__ import annotations

import inspect
import random
from collections.abc import Callable, Generator, Iterable
from dataclasses import dataclass
from typing import Any, Final

from raftstore.errors import ArgumentError


@dataclass(frozen=True, slots=True)
class Command:
    """A command to be sent by a key."""

    key: str | bytes
    value: Any


@dataclass(frozen=True, slots=True)
class Query:
    """A question to be asked by a key."""

    key: str | bytes
    request: Any = b""


@dataclass(slots=True)
class Operation:
    """One command or query of a client, and its outcome; times are those of the world."""

    client: str
    number: int
    asked: Command | Query
    begun_ms: float
    ended_ms: float | None = None
    outcome: str = "open"
    """``ok``, ``rejected`` (by the machine), ``refused`` (it certainly did not happen) or
    ``unknown`` (it may have, or may still)."""
    result: Any = None
    """Of a command, or the answer to a query, where the outcome is ``ok``; else the reason."""
    seq: int = 0
    """Place of the command, or the position of the state that a query was answered from."""
    is_linearizable: bool = True
    """A query may show an older state where this is False."""
    channel: bytes = b""
    guid: bytes = b""
    encoded: bytes = b""
    """The result or answer as it came."""

    @property
    def is_command(self) -> bool:
        """Whether it may change the state."""
        return isinstance(self.asked, Command)

    def __str__(self) -> str:
        what = self.asked.value if isinstance(self.asked, Command) else self.asked.request
        kind = "command" if self.is_command else "query"
        at = f" at seq {self.seq}" if self.seq else ""
        asked = f"{kind} {self.number} of {self.client}, {self.asked.key!r} {what!r:.200}"
        return f"{asked}: {self.outcome}{at} {self.result!r:.200}"


Asked = Command | Query
Client = Generator[Asked, Operation, None]
Workload = Callable[..., Asked] | Callable[..., Client]
"""``workload(rng)`` gives one operation each time it is called; or a generator function
``workload(rng, name)`` is one client, which yields operations and gets each back with its outcome.
"""

COMMANDS_MAX: Final = 100_000


class Script:
    """The operations of one client, in their order."""

    def __init__(
        self, workload: Workload, seed: int, client: str, count: int, left_out: Iterable[int] = ()
    ) -> None:
        self._workload = workload
        self._seed = seed
        self._client = client
        self._count = count
        self._left_out = frozenset(left_out)
        self._generator: Client | None = None
        if inspect.isgeneratorfunction(workload):
            self._generator = workload(random.Random(f"{seed} {client}"), client)
        self.number = 0
        """Of the newest operation."""

    def next(self, last: Operation | None) -> Asked | None:
        """The operation that comes after ``last`` (None: the first one); None: none does."""
        while self.number < self._count:
            self.number += 1
            if self._generator is not None:
                return self._yielded(self._generator, last)
            if self.number not in self._left_out:
                # A generator of its own: leaving one operation out changes no other.
                rng = random.Random(f"{self._seed} {self._client} {self.number}")
                return _checked(self._workload(rng))
        return None

    def _yielded(self, generator: Client, last: Operation | None) -> Asked | None:
        try:
            return _checked(next(generator) if last is None else generator.send(last))
        except StopIteration:
            self.number = self._count
            return None


def _checked(asked: object) -> Asked:
    if isinstance(asked, Command | Query):
        return asked
    message = f"the workload gave {asked!r:.200}; give raftstore.testing.Command or Query"
    raise ArgumentError(message)
