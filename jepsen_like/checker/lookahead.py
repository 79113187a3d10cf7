"""Configurations that can be given up early: something that has to come can no longer come.

A search that looks ahead visits far fewer configurations, but it may stop before the operation
that is in the way.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from jepsen_like.checker.models import Entry


class Lookahead(Protocol):
    """Asked after each operation that changes the state."""

    blocker: int
    """The operation that could no longer come, when the last answer was yes."""

    def is_hopeless(self, base: int, mask: int, used: int, before: int, after: int) -> bool:
        """Whether what is not placed has no order, once the state was ``after``.

        Base, mask and used are those after the step; the states are numbers.
        """
        ...


class Farewell:
    """Registers: a value that cannot come back is left only when nothing needs it any more."""

    def __init__(
        self,
        needs: Sequence[int | None],
        gives: Sequence[int | None],
        lost_gives: Sequence[int | None],
    ) -> None:
        """Numbers of the states that operations need and give; None: none in particular."""
        self.blocker = 0
        self._needs = _places(needs)
        self._gives = _places(gives)
        self._lost: dict[int, int] = {}
        for at, state in enumerate(lost_gives):
            if state is not None:
                self._lost[state] = self._lost.get(state, 0) | 1 << at

    def is_hopeless(self, base: int, mask: int, used: int, before: int, after: int) -> bool:
        """Some operation needs the state before, and nothing brings it back."""
        needs = self._needs.get(before)
        if needs is None or before == after:
            return False
        gives = self._gives.get(before)
        if gives is not None and _first_open(gives, base, mask) is not None:
            return False
        if self._lost.get(before, 0) & ~used:
            return False
        if _first_open(needs, base, mask) is None:
            return False
        # The last is what a stale read looks like; those before may still have their turn.
        self.blocker = needs[-1]
        return True


class Growth:
    """Objects that grow: the next read's result must begin with what is there already.

    Unless something that overwrites the state, and fits that result, can come before the read.
    """

    def __init__(
        self,
        leads_to: Callable[[Any, Any], bool],
        overwrites: frozenset[str],
        done: Sequence[Entry],
        lost: Sequence[Entry],
        reads: Sequence[int],
        states: Sequence[Any],
    ) -> None:
        """``reads`` are places in ``done`` in order of return; ``states`` may still grow."""
        self.blocker = 0
        self._leads_to = leads_to
        self._states = states
        self._reads = reads
        self._results = [done[at].result for at in reads]
        self._memo: dict[int, bool] = {}
        least = {at: place for place, at in reversed(list(enumerate(reads)))}
        self._first = [len(reads)] * (len(done) + 1)
        """For each base, the first read that may not be placed."""
        for at in range(len(done) - 1, -1, -1):
            self._first[at] = min(self._first[at + 1], least.get(at, len(reads)))
        changes = [at for at, entry in enumerate(done) if entry.action in overwrites]
        unsure = [at for at, entry in enumerate(lost) if entry.action in overwrites]
        self._overwriters: list[tuple[list[int], int]] = []
        for at, result in zip(reads, self._results, strict=True):
            limit = done[at].returned or 0
            fits = [
                one
                for one in changes
                if done[one].call <= limit and leads_to(done[one].value, result)
            ]
            bits = 0
            for one in unsure:
                if lost[one].call <= limit and leads_to(lost[one].value, result):
                    bits |= 1 << one
            self._overwriters.append((fits, bits))

    def is_hopeless(self, base: int, mask: int, used: int, before: int, after: int) -> bool:
        """The next read can no longer come true."""
        del before
        reads, count = self._reads, len(self._reads)
        at = self._first[base]
        while at < count:
            ahead = reads[at] - base
            if ahead >= 0 and not mask >> ahead & 1:
                break
            at += 1
        else:
            return False
        key = after * count + at
        leads = self._memo.get(key)
        if leads is None:
            leads = self._leads_to(self._states[after], self._results[at])
            self._memo[key] = leads
        if leads:
            return False
        overwriters, lost = self._overwriters[at]
        if lost & ~used or _first_open(overwriters, base, mask) is not None:
            return False
        self.blocker = reads[at]
        return True


def _places(states: Sequence[int | None]) -> dict[int, list[int]]:
    places: dict[int, list[int]] = {}
    for at, state in enumerate(states):
        if state is not None:
            places.setdefault(state, []).append(at)
    return places


def _first_open(places: list[int], base: int, mask: int) -> int | None:
    """The first of them that is not placed."""
    for at in range(bisect_left(places, base), len(places)):
        if not mask >> (places[at] - base) & 1:
            return places[at]
    return None
