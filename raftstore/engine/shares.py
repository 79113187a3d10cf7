"""Shares of clients in what a node holds: counted for each and for all, gone with the client.

A client is one connection. Of a thing that is bounded by ``limit`` one client holds at most so
many, and all clients together twice as many. When all of that is taken, a client with less
than the largest holder takes from it: the largest holder is notified that its newest thing was
given up. So with ``k`` greedy clients each has one part in ``k + 1``, and the next client, too;
more connections give nobody more. Where nothing can be taken back, as with writes that may be in
the log already, a client has at least its part of the total among as many clients as may be
connected.

``Waits`` adds a deadline to what is counted, so that everything held for a request ends with its
answer, at its deadline, or with its client.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

from raftstore.engine.deadlines import Deadlines

HeldT = TypeVar("HeldT", bound=Hashable)
WaitT = TypeVar("WaitT")

_REMEDY: Final = "wait for what is under way, or retry later"

TOTAL_PER_LIMIT: Final = 2
"""All clients together may hold so many times what one may."""
GIVEN_UP: Final = (
    "this client holds more on the node than any other, and others needed the place; wait for what "
    "is under way, or retry later"
)
"""The notice to the largest holder."""
CLIENTS_AT_ONCE: Final = 2_048
"""So many share the total equally where nothing can be taken back."""

GiveUp = Callable[[int, HeldT], None]
"""Refuses what the client holds, and gives it back."""


class Shares(Generic[HeldT]):
    """One kind of thing that clients make a node hold: who holds which, and how much it counts."""

    def __init__(self, what: str, setting: str, give_up: GiveUp[HeldT] | None = None) -> None:
        """``what`` they hold and the ``setting`` that bounds it are named in refusals; None for
        ``give_up``: what was let in cannot be taken back."""
        self._what = what
        self._setting = setting
        self._give_up = give_up
        self._held: dict[int, dict[HeldT, int]] = {}
        self._amounts: dict[int, int] = {}
        self.total = 0
        """Of all clients."""

    def refusal(self, client: int, limit: int, amount: int = 1) -> str | None:
        """Make room for so much more of the client's; why there is none, or None: there is.

        ``limit`` is of one client.
        """
        held = self._amounts.get(client, 0)
        total = TOTAL_PER_LIMIT * limit
        if held + amount <= limit and self.total + amount <= total:
            return None
        text = f"this client holds {held} {self._what} and wants {amount} more"
        if held + amount > limit:
            return f"{text}, the limit of one client is {limit} ({self._setting}); {_REMEDY}"
        while self.total + amount > total:
            if not self._take_back(held + amount):
                break
        if self.total + amount <= total or held + amount <= max(1, total // CLIENTS_AT_ONCE):
            return None
        others = self.total - held
        return (
            f"{text}, others hold {others}, and the limit of all clients together is {total}, "
            f"twice {self._setting}; {_REMEDY}"
        )

    def _take_back(self, amount: int) -> bool:
        """The largest holder gives something up, if it has more than this."""
        if self._give_up is None or not self._amounts:
            return False
        largest = max(self._amounts, key=self._amounts.__getitem__)
        if self._amounts[largest] <= amount:
            return False
        before = self.total
        self._give_up(largest, next(reversed(self._held[largest])))
        return self.total < before

    def take(self, client: int, item: HeldT, amount: int = 1) -> None:
        """The client holds the item from now on, or more of it than before."""
        held = self._held.setdefault(client, {})
        held[item] = held.get(item, 0) + amount
        self._amounts[client] = self._amounts.get(client, 0) + amount
        self.total += amount

    def give(self, client: int, item: HeldT, amount: int | None = None) -> None:
        """The client holds the item no longer, or so much less of it; nothing happens if it did
        not hold it."""
        held = self._held.get(client)
        if held is None or item not in held:
            return
        less = held[item] if amount is None else min(amount, held[item])
        held[item] -= less
        self.total -= less
        self._amounts[client] -= less
        if not held[item]:
            del held[item]
        if not held:
            del self._held[client], self._amounts[client]

    def of(self, client: int) -> tuple[HeldT, ...]:
        """Items that the client holds, oldest first."""
        return tuple(self._held.get(client, ()))

    def amount_of(self, client: int) -> int:
        """How much of the limit that is."""
        return self._amounts.get(client, 0)

    def holds(self, client: int, item: HeldT) -> bool:
        """Whether the client holds this very item."""
        return item in self._held.get(client, ())


@dataclass(slots=True)
class _Wait(Generic[WaitT]):
    client: int
    deadline_ms: int
    what: WaitT


class Waits(Generic[WaitT]):
    """Requests of clients that wait for something, by token, each with its deadline."""

    def __init__(self, shares: Shares[int]) -> None:
        """Tokens are unique among all who share ``shares``."""
        self.shares = shares
        self.waits: dict[int, _Wait[WaitT]] = {}
        """By token, the oldest first."""
        self.deadlines: Deadlines[int] = Deadlines()
        """Of what waits, by token."""

    def __len__(self) -> int:
        """Requests that wait."""
        return len(self.waits)

    def __iter__(self) -> Iterator[int]:
        """Their tokens, the oldest first."""
        return iter(tuple(self.waits))

    def add(self, client: int, token: int, what: WaitT, deadline_ms: int) -> None:
        """The request waits, until ``pop``, at most until its deadline."""
        self.shares.take(client, token)
        self.waits[token] = _Wait(client, deadline_ms, what)
        self.deadlines.push(token, deadline_ms)

    def get(self, token: int) -> WaitT | None:
        """The request, while it waits."""
        wait = self.waits.get(token)
        return None if wait is None else wait.what

    def of(self, token: int) -> WaitT:
        """The request, which waits."""
        return self.waits[token].what

    def pop(self, token: int) -> WaitT | None:
        """Remove what waits no longer."""
        wait = self.waits.pop(token, None)
        if wait is None:
            return None
        self.shares.give(wait.client, token)
        self.deadlines.cancel(token)
        return wait.what

    def due(self, now_ms: int) -> Iterator[int]:
        """The tokens whose deadline has come and that still wait, one by one."""
        return self.deadlines.due(now_ms)

    def pop_all_of(self, client: int) -> list[tuple[int, WaitT]]:
        """Take out what waits for this client."""
        found = [(token, self.pop(token)) for token in self.shares.of(client)]
        return [(token, what) for token, what in found if what is not None]
