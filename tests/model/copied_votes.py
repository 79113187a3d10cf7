"""A model of three replicas that elect, while one is damaged and another one's table is copied.

A replica is a log (behind a base, up to an end), a promise of what it acknowledged, and a table.
All logs are prefixes of one history. The leader trims its log, so a replica that is behind takes
its table first and its base afterwards; in between its table is ahead of its log. At most one
replica is damaged: a hole in its log, its log's end or its table is lost.

What must hold:

* who is elected has all records that are committed;
* from every state that is reached all replicas become whole and equal again, although nothing but
  elections, catching up and copies happens from there on.

``FAULTS`` are rules taken out, one at a time.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import NamedTuple

END = 2
REPLICAS = range(3)
QUORUM = 2

FAULTS = {
    "copied tables do not vote": "a replica whose copied table is ahead of its log does not vote",
    "all vote": "a replica that lacks what it acknowledged votes",
}


class One(NamedTuple):
    """A replica."""

    base: int = 0
    end: int = 0
    promised: int = 0
    applied: int = 0
    has_hole: bool = False
    """It takes messages of no candidate and no leader, before it is filled or given up."""

    @property
    def keeps_promises(self) -> bool:
        """Its log, or what is in front of it, has all that was acknowledged here."""
        return not self.has_hole and self.end >= self.promised

    @property
    def has_rows(self) -> bool:
        """Its log goes on where its table ends, or is behind it."""
        return self.applied >= self.base

    @property
    def is_whole(self) -> bool:
        """It takes part in everything."""
        return self.keeps_promises and self.base <= self.applied <= self.end


class State(NamedTuple):
    """Of all of them."""

    ones: tuple[One, ...] = tuple(One() for _ in REPLICAS)
    leader: int = -1
    committed: int = 0
    is_damaged: bool = False

    def change(self, number: int, **to: int) -> State:
        """One replica is another; what a quorum acknowledged is committed."""
        ones = list(self.ones)
        one = ones[number]._replace(**to)
        if one.is_whole:
            one = one._replace(promised=one.end)
        ones[number] = one
        promised = sorted(each.promised for each in ones)[-QUORUM]
        if self.leader >= 0:
            promised = min(promised, ones[self.leader].promised)
        return self._replace(ones=tuple(ones), committed=max(self.committed, promised))

    @property
    def is_healed(self) -> bool:
        """A leader, and everybody has the same."""
        first = self.ones[0]
        same = all(each.is_whole and each.end == first.end for each in self.ones)
        return self.leader >= 0 and same


class Model:
    """All moves there are, with at most one rule taken out."""

    def __init__(self, fault: str = "") -> None:
        assert not fault or fault in FAULTS
        self._fault = fault

    def votes(self, one: One) -> bool:
        """S0.3: whether it answers candidates."""
        if self._fault == "all vote":
            return not one.has_hole
        if self._fault == "copied tables do not vote":
            return one.is_whole
        return one.keeps_promises and one.has_rows

    def healing(self, state: State) -> Iterator[State]:
        """Moves that happen by themselves."""
        if state.leader < 0:
            yield from self._elect(state)
        for number, one in enumerate(state.ones):
            if one.is_whole and one.applied < min(one.end, state.committed):
                yield state.change(number, applied=one.applied + 1)
            if one.has_hole:
                yield from self._hole(state, number)
            elif state.leader not in (-1, number):
                yield from self._follow(state, number)

    def _elect(self, state: State) -> Iterator[State]:
        for number, one in enumerate(state.ones):
            others = [each for other, each in enumerate(state.ones) if other != number]
            votes = sum(self.votes(each) and each.end <= one.end for each in others)
            if one.is_whole and votes + 1 >= QUORUM:
                yield state._replace(leader=number)

    def _hole(self, state: State, number: int) -> Iterator[State]:
        one = state.ones[number]
        others = [each for other, each in enumerate(state.ones) if other != number]
        if any(each.base <= one.base and each.end >= one.end for each in others):
            yield state.change(number, has_hole=False)
        led = state.ones[state.leader]
        # A leader that has committed in its term has everything that was acknowledged.
        is_ready = any(each is not led and each.is_whole and each.end == led.end for each in others)
        if state.leader >= 0 and is_ready:
            yield state.change(number, has_hole=False, end=one.base)

    def _follow(self, state: State, number: int) -> Iterator[State]:
        one, led = state.ones[number], state.ones[state.leader]
        if one.end > led.end:
            yield state.change(number, end=led.end, promised=min(one.promised, led.end))
        elif led.base <= one.end < led.end and one.has_rows:
            yield state.change(number, end=one.end + 1)
        elif one.end == led.end and one.promised > one.end:
            yield state.change(number, promised=one.end)  # what a later term does not have
        is_behind = one.end < led.base
        if (is_behind and one.applied < led.applied) or not one.has_rows:
            yield state.change(number, applied=led.applied)
        if is_behind and one.has_rows and one.applied >= led.base:
            yield state.change(number, base=led.base, end=led.base)

    def moves(self, state: State) -> Iterator[State]:
        """Those, and what clients, retention and faults do."""
        yield from self.healing(state)
        if state.leader >= 0:
            yield state._replace(leader=-1)
            led = state.ones[state.leader]
            if led.end < END:
                yield state.change(state.leader, end=led.end + 1)
        for number, one in enumerate(state.ones):
            if one.is_whole and one.base < one.applied:
                yield state.change(number, base=one.applied)
            if not state.is_damaged:
                yield from self._damage(state, number)

    def _damage(self, state: State, number: int) -> Iterator[State]:
        one, leader = state.ones[number], state.leader
        hurt = state._replace(is_damaged=True, leader=-1 if leader == number else leader)
        if one.end > one.base:
            yield hurt.change(number, has_hole=True)
            yield hurt.change(number, end=one.base)
        if one.applied:
            yield hurt.change(number, applied=0)


class Found(NamedTuple):
    """The outcome of a search."""

    states: int
    violation: str


def search(fault: str = "") -> Found:
    """Through all states, to the first that must not be; then back from those that are healed."""
    model = Model(fault)
    seen = {State()}
    waiting = deque(seen)
    before: dict[State, list[State]] = {}
    while waiting:
        state = waiting.popleft()
        if state.leader >= 0 and state.ones[state.leader].end < state.committed:
            return Found(len(seen), "a leader lacks committed records")
        for after in model.healing(state):
            before.setdefault(after, []).append(state)
        for after in model.moves(state):
            if after not in seen:
                seen.add(after)
                waiting.append(after)
    healed = {state for state in seen if state.is_healed}
    waiting = deque(healed)
    while waiting:
        for state in before.get(waiting.popleft(), ()):
            if state not in healed:
                healed.add(state)
                waiting.append(state)
    stuck = len(seen) - len(healed)
    return Found(len(seen), f"{stuck} states never heal" if stuck else "")
