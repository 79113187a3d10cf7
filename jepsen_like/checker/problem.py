"""A history of one object in small integers, as both searches walk it.

States and kinds of operations get numbers, so that a step is one look into a dict. What cannot
matter is left out: values that nobody observes are one value, and never-returned operations that
no observation needs are none.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final, NamedTuple

from jepsen_like.checker.models import ANY, KEEP, REFUSED, Entry, Model, Shape

TURN: Final = 256
"""Steps of a search between two looks at the budget."""
IMPOSSIBLE: Final = -1
"""The number of no state: what a refused step gives."""
_JUNK: Final = ("a value nobody observed",)
_NEVER: Final = 1 << 200
_EMPTY: Final = (_NEVER, -_NEVER)


class Found(NamedTuple):
    """How a search ended."""

    culprit: int
    """The first returned operation that has no place in any order; -1: there is an order."""
    states: tuple[Any, ...] = ()
    """States the object could be in before it; those that nobody observes are left out."""


Search = Iterator[Found | None]
"""Yields None every `TURN` steps, at last how it ended."""
VALID: Final = Found(-1)


class Lost(NamedTuple):
    """A never-returned operation, and when placing it can matter."""

    since: int
    """Not while something has to return before: nothing that needs it could follow."""
    until: int
    """Not when all that has to return before is placed: so is everything that needs it."""
    kind: int
    entry: Entry


class Configs:
    """Configurations that were met: of those alike, the ones that used least.

    One that used fewer never-returned operations can do all that another can.
    """

    def __init__(self) -> None:
        self._sets: dict[tuple[int, int, int], list[int]] = {}

    def add(self, base: int, mask: int, used: int, state: int) -> bool:
        """Whether nothing met before can do as much."""
        key = (base, mask, state)
        sets = self._sets.get(key)
        if sets is None:
            self._sets[key] = [used]
            return True
        for old in sets:
            if old & used == old:
                return False
        if len(sets) == 1 and sets[0] & used != used:
            sets.append(used)
            return True
        self._sets[key] = [old for old in sets if old & used != used] + [used]
        return True

    def all(self) -> list[tuple[int, int, int, int]]:
        """Those left: base, mask, used, state."""
        return [
            (base, mask, used, state)
            for (base, mask, state), sets in self._sets.items()
            for used in sets
        ]


class Problem:
    """One object's history; returned operations are numbered in order of invocation.

    A search says what is placed with three integers: all returned operations below ``base``, those
    whose bit is set in ``mask`` (bit 0 is ``base``), and the never-returned ones in ``used``.
    """

    def __init__(self, model: Model, entries: Iterable[Entry]) -> None:
        self.done: list[Entry] = []
        lost: list[Entry] = []
        for entry in entries:
            if entry.returned is not None:
                self.done.append(entry)
            elif not model.is_pure(entry):
                lost.append(entry)
        self._model = model
        self._states: list[Any] = []
        self._numbers: dict[Any, int] = {}
        self._samples: list[Entry] = []
        self._kinds: dict[Any, int] = {}
        self._seen: frozenset[Any] | None = None
        self.memo: dict[int, int] = {}
        """state * width + kind -> what `step` gave."""
        spans = [(entry.call, _NEVER) for entry in lost]
        if model.shape is not None:
            shapes = [model.shape(entry) for entry in self.done]
            spans, self._seen = _needed(self.done, shapes, lost, [model.shape(e) for e in lost])
        self.pure = [entry.conflict or entry.action in model.reads for entry in self.done]
        self.calls = [entry.call for entry in self.done]
        self.returns = [entry.returned or 0 for entry in self.done]
        self.kinds = [self._kind(entry) for entry in self.done]
        self.lost = [
            Lost(since, until, self._kind(entry), entry)
            for entry, (since, until) in zip(lost, spans, strict=True)
            if since <= until
        ]
        self.lost.sort(key=lambda one: one[:3])
        same: dict[int, int] = {}
        self._twins: list[int] = []
        """For each lost one, the earlier ones of its kind."""
        for at, one in enumerate(self.lost):
            self._twins.append(same.get(one.kind, 0))
            same[one.kind] = same.get(one.kind, 0) | 1 << at
        self._alive: dict[int, int] = {}
        self.width = len(self._samples)
        self.initial = self._number(model.initial)
        self._goals: list[int] = []
        if model.leads_to is not None:
            self._find_goals(model.leads_to)
        self.has_goals = bool(self._goals)

    def step(self, state: int, kind: int) -> int:
        """The number of the state after it, or IMPOSSIBLE; remembered in ``memo``."""
        result = self._model.step(self._states[state], self._samples[kind])
        after = IMPOSSIBLE if result is REFUSED else self._number(result)
        self.memo[state * self.width + kind] = after
        return after

    def events(self) -> list[int]:
        """Invocations (the number) and returns (its complement) in order of time.

        At one instant invocations come first: closed intervals that touch overlap.
        """
        count = len(self.calls)
        times = [time << 1 for time in self.calls] + [time << 1 | 1 for time in self.returns]
        order = sorted(range(2 * count), key=times.__getitem__)
        return [at if at < count else count - 1 - at for at in order]

    def alive(self, limit: int) -> int:
        """The never-returned operations that can still matter when ``limit`` has to return."""
        if not self.lost:
            return 0
        bits = self._alive.get(limit)
        if bits is None:
            moment = self.returns[limit]
            bits = sum(1 << at for at, one in enumerate(self.lost) if one.until >= moment)
            self._alive[limit] = bits
        return bits

    def lost_choices(
        self, first: int, used: int, state: int, limit: int
    ) -> Iterator[tuple[int, int]]:
        """Never-returned operations worth placing, from one on, and the state after each.

        ``limit`` is when the first of those not placed returns. Of one kind the first will do.
        """
        for at in range(first, len(self.lost)):
            since, until, kind, _ = self.lost[at]
            if since > limit:
                return
            if used >> at & 1 or until < limit or self._twins[at] & ~used:
                continue
            after = self.memo.get(state * self.width + kind)
            if after is None:
                after = self.step(state, kind)
            if after not in (IMPOSSIBLE, state):
                yield at, after

    def failure(self, culprit: int, states: Iterable[int]) -> Found:
        """The culprit, and what the states before it look like."""
        shown = [self._states[state] for state in states]
        return Found(culprit, tuple(state for state in shown if state is not _JUNK))

    def is_hopeless(self, base: int, mask: int, used: int, state: int) -> bool:
        """The next read can no longer come true.

        Only for objects that grow: the read's result must begin with the state, unless something
        that overwrites the state and fits that result can still be placed before the read.
        """
        goals, count = self._goals, len(self._goals)
        at = self._goal_from[base]
        while at < count:
            ahead = goals[at] - base
            if ahead >= 0 and not mask >> ahead & 1:
                break
            at += 1
        else:
            return False
        key = state * count + at
        leads = self._leads.get(key)
        if leads is None:
            assert self._model.leads_to is not None
            leads = self._model.leads_to(self._states[state], self.done[goals[at]].result)
            self._leads[key] = leads
        if leads:
            return False
        done, lost = self._overwriters[at]
        if lost & ~used:
            return False
        return all(other < base or mask >> (other - base) & 1 for other in done)

    def _find_goals(self, leads: Callable[[Any, Any], bool]) -> None:
        """Reads in order of their return, and what can overwrite the state for each of them."""
        model, done = self._model, self.done
        reads = [at for at, pure in enumerate(self.pure) if pure]
        self._goals = sorted(reads, key=self.returns.__getitem__)
        self._leads: dict[int, bool] = {}
        least = {at: place for place, at in reversed(list(enumerate(self._goals)))}
        self._goal_from = [len(reads)] * (len(done) + 1)
        for at in range(len(done) - 1, -1, -1):
            self._goal_from[at] = min(self._goal_from[at + 1], least.get(at, len(reads)))
        overwrites = [at for at, entry in enumerate(done) if entry.action in model.overwrites]
        lost = [at for at, one in enumerate(self.lost) if one.entry.action in model.overwrites]
        self._overwriters: list[tuple[list[int], int]] = []
        for goal in self._goals:
            result, limit = done[goal].result, self.returns[goal]
            fits = [
                at for at in overwrites if self.calls[at] <= limit and leads(done[at].value, result)
            ]
            bits = sum(
                1 << at
                for at in lost
                if self.lost[at].since <= limit and leads(self.lost[at].entry.value, result)
            )
            self._overwriters.append((fits, bits))

    def _kind(self, entry: Entry) -> int:
        key: Any
        if self._model.shape is None or self._seen is None:
            key = (entry.action, entry.value, entry.result, entry.conflict)
        else:
            key = self._model.shape(entry)
            if key.give is not KEEP and key.give not in self._seen:
                key = key._replace(give=_JUNK)
        kind = self._kinds.get(key)
        if kind is None:
            kind = self._kinds[key] = len(self._samples)
            self._samples.append(entry)
        return kind

    def _number(self, value: Any) -> int:
        if self._seen is not None and value not in self._seen:
            value = _JUNK
        number = self._numbers.get(value)
        if number is None:
            number = self._numbers[value] = len(self._states)
            self._states.append(value)
        return number


def _needed(
    done: list[Entry], done_shapes: list[Shape], lost: list[Entry], lost_shapes: list[Shape]
) -> tuple[list[tuple[int, int]], frozenset[Any]]:
    """When each never-returned operation can matter, and all values that anything observes.

    In an order with as few never-returned operations as can be, each is directly followed by one
    that needs its value: by a read, a compare that holds, or a conflict it makes true. Any other
    successor either does without it or can be moved before it.
    """
    spans: dict[Any, tuple[int, int]] = {}
    conflicts = _EMPTY
    seen = set()
    for entry, shape in zip(done, done_shapes, strict=True):
        span = (entry.call, entry.returned or 0)
        if shape.need is not ANY:
            seen.add(shape.need)
            spans[shape.need] = _joined(spans.get(shape.need, _EMPTY), span)
        if shape.forbid is not ANY:
            seen.add(shape.forbid)
            conflicts = _joined(conflicts, span)
    found = [_EMPTY] * len(lost)
    changed = bool(lost)
    while changed:
        changed = False
        for at, (entry, shape) in enumerate(zip(lost, lost_shapes, strict=True)):
            since, until = _joined(spans.get(shape.give, _EMPTY), conflicts)
            span = (max(since, entry.call), until)
            if span == found[at] or span[0] > span[1]:
                continue
            found[at] = span
            changed = True
            if shape.need is not ANY:
                seen.add(shape.need)
                spans[shape.need] = _joined(spans.get(shape.need, _EMPTY), span)
    return found, frozenset(seen)


def _joined(one: tuple[int, int], other: tuple[int, int]) -> tuple[int, int]:
    return min(one[0], other[0]), max(one[1], other[1])
