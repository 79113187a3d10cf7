"""A history of one object in small integers, as both searches walk it.

States and kinds of operations get numbers, so that a step is one look into a dict. What cannot
matter is left out: values that nobody observes are one value, and never-returned operations that
no observation needs are none.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Final, NamedTuple

from jepsen_like.checker.lookahead import Farewell, Growth, Lookahead
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
    suspects: tuple[int, ...] = ()
    """What could no longer come when a search that looks ahead gave up; the culprit may be one."""


Search = Iterator[Found | None]
"""Yields None every `TURN` steps, at last how it ended."""
VALID: Final = Found(-1)


class Lost(NamedTuple):
    """A never-returned operation, and when something could follow that needs its value.

    It can also matter when a conflict cannot be placed otherwise, whatever its value.
    """

    since: int
    """Not while something has to return before this."""
    until: int
    """Not when all is placed that has to return before this."""
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
        """The parts that are left: base, mask, used, state."""
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
        shapes: list[Shape] = []
        lost_shapes: list[Shape] = []
        if model.shape is not None:
            shapes = [model.shape(entry) for entry in self.done]
            lost_shapes = [model.shape(entry) for entry in lost]
            spans, self._seen = _needed(self.done, shapes, lost, lost_shapes)
        self.pure = [entry.conflict or entry.action in model.reads for entry in self.done]
        self.calls = [entry.call for entry in self.done]
        self.returns = [entry.returned or 0 for entry in self.done]
        self.kinds = self._kinds_of(self.done, shapes)
        self.conflict = [entry.conflict for entry in self.done]
        ends = (entry.returned or 0 for entry in self.done if entry.conflict)
        self._last_conflict = max(ends, default=-_NEVER)
        self.lost = [
            Lost(since, until, kind, entry)
            for entry, kind, (since, until) in zip(
                lost, self._kinds_of(lost, lost_shapes), spans, strict=True
            )
            if since <= until or entry.call <= self._last_conflict
        ]
        same: dict[int, int] = {}
        self._twins: list[int] = []
        """For each lost one, the earlier ones of its kind."""
        for at, one in enumerate(self.lost):
            self._twins.append(same.get(one.kind, 0))
            same[one.kind] = same.get(one.kind, 0) | 1 << at
        self._alive: dict[int, int] = {}
        self._windows: dict[int, list[int]] = {}
        self.width = len(self._samples)
        self.initial = self._number(model.initial)
        self.lookahead = self._lookahead(shapes)

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
        moment = self.returns[limit]
        if self._last_conflict >= moment:
            return -1
        bits = self._alive.get(limit)
        if bits is None:
            bits = sum(1 << at for at, one in enumerate(self.lost) if one.until >= moment)
            self._alive[limit] = bits
        return bits

    def lost_choices(
        self, first: int, used: int, state: int, limit: int, *, is_blocked: bool
    ) -> Iterator[tuple[int, int]]:
        """Never-returned operations worth placing, from one on, and the state after each.

        ``limit`` is the first to return of those not placed; ``is_blocked``: a conflict could be
        next if only the state were another. Of several of one kind the first will do.
        """
        for at in self._window(~limit if is_blocked else limit):
            if at < first or used >> at & 1 or self._twins[at] & ~used:
                continue
            kind = self.lost[at].kind
            after = self.memo.get(state * self.width + kind)
            if after is None:
                after = self.step(state, kind)
            if after not in (IMPOSSIBLE, state):
                yield at, after

    def _window(self, limit: int) -> list[int]:
        """Operations that can matter when an operation has to return; its complement: all so
        far."""
        window = self._windows.get(limit)
        if window is None:
            if limit >= 0:
                moment = self.returns[limit]
                window = [a for a, one in enumerate(self.lost) if one.since <= moment <= one.until]
            else:
                moment = self.returns[~limit]
                window = [a for a, one in enumerate(self.lost) if one.entry.call <= moment]
            self._windows[limit] = window
        return window

    def failure(self, culprit: int, states: Iterable[int], suspects: Iterable[int]) -> Found:
        """The culprit, and what the states before it look like."""
        shown = tuple(self._states[state] for state in states)
        return Found(
            culprit, tuple(state for state in shown if state is not _JUNK), tuple(suspects)
        )

    def _lookahead(self, shapes: list[Shape]) -> Lookahead | None:
        model, lost = self._model, [one.entry for one in self.lost]
        if model.leads_to is not None:
            reads = [at for at, pure in enumerate(self.pure) if pure]
            reads.sort(key=self.returns.__getitem__)
            return Growth(model.leads_to, model.overwrites, self.done, lost, reads, self._states)
        if model.shape is not None:
            needs = [None if one.need is ANY else self._number(one.need) for one in shapes]
            gives = [None if one.give is KEEP else self._number(one.give) for one in shapes]
            return Farewell(needs, gives, [self._number(model.shape(entry).give) for entry in lost])
        return None

    def _kinds_of(self, entries: list[Entry], shapes: list[Shape]) -> list[int]:
        """A number per entry; those alike to every step have the same."""
        found = []
        kinds, samples, seen = self._kinds, self._samples, self._seen
        for at, entry in enumerate(entries):
            key: Any
            if seen is None:
                key = (entry.action, entry.value, entry.result, entry.conflict)
            else:
                key = shapes[at]
                if key.give is not KEEP and key.give not in seen:
                    key = (key.need, key.forbid, _JUNK)
            kind = kinds.get(key)
            if kind is None:
                kind = kinds[key] = len(samples)
                samples.append(entry)
            found.append(kind)
        return found

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
    that needs it: by a read or a compare of its value, or by a conflict that was not possible
    before it. Any other successor either does without it or can be moved before it.
    """
    spans: dict[Any, tuple[int, int]] = {}
    seen = set()
    for entry, shape in zip(done, done_shapes, strict=True):
        span = (entry.call, entry.returned or 0)
        if shape.need is not ANY:
            seen.add(shape.need)
            spans[shape.need] = _joined(spans.get(shape.need, _EMPTY), span)
        if shape.forbid is not ANY:
            seen.add(shape.forbid)
    found = [_EMPTY] * len(lost)
    changed = bool(lost)
    while changed:
        changed = False
        for at, (entry, shape) in enumerate(zip(lost, lost_shapes, strict=True)):
            since, until = spans.get(shape.give, _EMPTY)
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
