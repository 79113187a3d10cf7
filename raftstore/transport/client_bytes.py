"""Memory held by connections of clients: half frames, and answers that are not read.

Each connection has bounds of its own; thousands of them together would still be more than a machine
has. So the bytes of all are counted. Beyond the bound that connection ends which has held the most
for the longest, in bytes times seconds: an honest client completes even a large frame soon, and
reads its answers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Generic, TypeVar

HolderT = TypeVar("HolderT")

LEAST_AGE_S = 0.001
"""What has come just now counts as this old: of two such the larger one ends."""


class HeldBytes(Generic[HolderT]):
    """The bytes of one kind, of all connections of clients."""

    def __init__(
        self,
        bytes_max: int,
        *,
        bytes_of: Callable[[HolderT], int],
        now_s: Callable[[], float],
        end: Callable[[HolderT], None],
    ) -> None:
        """``bytes_of`` returns what a connection holds now; ``end`` ends one, which holds nothing
        then."""
        self._bytes_max = bytes_max
        self._bytes_of = bytes_of
        self._now_s = now_s
        self._end = end
        self._held: dict[HolderT, tuple[int, float]] = {}
        """What each held when it was looked at last, and since when it holds any."""
        self.total = 0
        """Of all, as far as looked at: never less than it is, but for what comes meanwhile."""

    def __iter__(self) -> Iterator[tuple[HolderT, float]]:
        """Each connection that holds any, and since when."""
        return iter([(holder, since_s) for holder, (_, since_s) in self._held.items()])

    def __contains__(self, holder: HolderT) -> bool:
        """Whether it held any when it was looked at last."""
        return holder in self._held

    def look(self, holder: HolderT, *, is_new: bool = False) -> None:
        """A connection holds more or less than before; ``is_new``: nothing of before is left."""
        self._note(holder, is_new=is_new)
        if self.total <= self._bytes_max:
            return
        for other in tuple(self._held):  # what was sent or read meanwhile counts no longer
            self._note(other)
        while self.total > self._bytes_max:
            worst = max(self._held, key=self._cost)
            self.forget(worst)
            self._end(worst)

    def forget(self, holder: HolderT) -> None:
        """Forget a connection that is gone."""
        held, _ = self._held.pop(holder, (0, 0.0))
        self.total -= held

    def _note(self, holder: HolderT, *, is_new: bool = False) -> None:
        before, since_s = self._held.get(holder, (0, self._now_s()))
        held = self._bytes_of(holder)
        self.total += held - before
        if held:
            self._held[holder] = held, self._now_s() if is_new else since_s
        else:
            self._held.pop(holder, None)

    def _cost(self, holder: HolderT) -> float:
        held, since_s = self._held[holder]
        return held * max(LEAST_AGE_S, self._now_s() - since_s)
