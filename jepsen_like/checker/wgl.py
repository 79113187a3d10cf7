"""Wing-Gong-Lowe search: place operations one after the other, never one configuration twice.

The events that are not placed are a doubly linked list in order of time: what can come next are
the invocations before its first return. Placing and taking back cost the same for any length.
"""

from __future__ import annotations

from jepsen_like.checker.problem import IMPOSSIBLE, TURN, VALID, Configs, Found, Problem, Search

Frame = tuple[int, list[int], int, int, int, int]
"""An operation placed by choice (a never-returned one as its complement), the observations placed
before it, and the configuration it was placed in: base, mask, used, state."""


def search(problem: Problem) -> Search:
    """Never-returned operations have no return: the search ends when all others are placed."""
    walk = _Walk(problem)
    frames: list[Frame] = []
    base, mask, used, state = 0, 0, 0, problem.initial
    steps = 0
    while True:
        steps += 1
        if not steps % TURN:
            yield None
        base, mask, free = walk.observe(base, mask, state)
        if walk.is_empty():
            yield VALID
            return
        chosen = None
        used = walk.relevant(used)
        if walk.seen.add(base, mask, used, state):
            chosen = walk.choice(None, base, mask, used, state)
        while chosen is None:
            for operation in reversed(free):
                walk.unlift(operation)
            if not frames:
                yield walk.failure()
                return
            last, free, base, mask, used, state = frames.pop()
            if last >= 0:
                walk.unlift(last)
            chosen = walk.choice(last, base, mask, used, state)
        last, after = chosen
        frames.append((last, free, base, mask, used, state))
        state = after
        if last < 0:
            used |= 1 << ~last
        else:
            walk.lift(last)
            base, mask = placed(base, mask, last)


def placed(base: int, mask: int, operation: int) -> tuple[int, int]:
    """Base and mask with one more operation."""
    mask |= 1 << (operation - base)
    if mask & 1:
        ones = (~mask & (mask + 1)).bit_length() - 1
        return base + ones, mask >> ones
    return base, mask


class _Walk:
    """The list of what is not placed; its nodes are positions in the order of events."""

    def __init__(self, problem: Problem) -> None:
        self._problem = problem
        self._events = problem.events()
        self._end: int = len(self._events)
        self._next: list[int] = [*range(1, self._end + 1), 0]
        self._previous: list[int] = [self._end, *range(self._end)]
        self._call_node = [0] * len(problem.done)
        self._return_node = [0] * len(problem.done)
        for node, event in enumerate(self._events):
            if event >= 0:
                self._call_node[event] = node
            else:
                self._return_node[~event] = node
        self.seen = Configs()
        self.limit = 0
        """The operation that returns first, of those not placed."""
        self._furthest = -1
        self._states: dict[int, None] = {}
        self._blockers: dict[int, None] = {}

    def is_empty(self) -> bool:
        """Everything that returned is placed."""
        return self._next[self._end] == self._end

    def relevant(self, used: int) -> int:
        """Operations that never returned and can still make a difference."""
        return used & self._problem.alive(self.limit) if used else 0

    def lift(self, operation: int) -> None:
        """Take an operation out of the list."""
        after, before = self._next, self._previous
        for node in (self._call_node[operation], self._return_node[operation]):
            after[before[node]] = after[node]
            before[after[node]] = before[node]

    def unlift(self, operation: int) -> None:
        """Put back the operation that was taken out last."""
        after, before = self._next, self._previous
        for node in (self._return_node[operation], self._call_node[operation]):
            after[before[node]] = before[after[node]] = node

    def observe(self, base: int, mask: int, state: int) -> tuple[int, int, list[int]]:
        """Place what is true now and changes nothing: it is never better placed later."""
        problem, events, after = self._problem, self._events, self._next
        pure, kinds, memo, width = problem.pure, problem.kinds, problem.memo, problem.width
        free: list[int] = []
        node = after[self._end]
        while node != self._end:
            operation = events[node]
            if operation < 0:
                self.limit = ~operation
                if node > self._furthest:
                    self._furthest = node
                    self._states = {}
                if node == self._furthest:
                    self._states[state] = None
                break
            if pure[operation]:
                then = memo.get(state * width + kinds[operation])
                if then is None:
                    then = problem.step(state, kinds[operation])
                if then == state:
                    behind = self._previous[node]
                    self.lift(operation)
                    free.append(operation)
                    base, mask = placed(base, mask, operation)
                    node = behind
            node = after[node]
        return base, mask, free

    def choice(
        self, last: int | None, base: int, mask: int, used: int, state: int
    ) -> tuple[int, int] | None:
        """The next operation to place, after ``last`` was tried, and the state after it."""
        problem, events, after = self._problem, self._events, self._next
        pure, kinds, memo, width = problem.pure, problem.kinds, problem.memo, problem.width
        ahead = problem.lookahead
        node = after[self._end if last is None or last < 0 else self._call_node[last]]
        only_lost = last is not None and last < 0
        while (operation := events[node]) >= 0:
            node = after[node]
            if only_lost or pure[operation]:
                continue
            then = memo.get(state * width + kinds[operation])
            if then is None:
                then = problem.step(state, kinds[operation])
            if then == IMPOSSIBLE:
                continue
            if ahead is None or not ahead.is_hopeless(
                *placed(base, mask, operation), used, state, then
            ):
                return operation, then
            self._blockers[ahead.blocker] = None
        if not problem.lost:
            return None
        first = ~last + 1 if last is not None and last < 0 else 0
        blocked = self._is_blocked()
        for at, then in problem.lost_choices(first, used, state, ~operation, is_blocked=blocked):
            more = used | 1 << at
            if ahead is None or not ahead.is_hopeless(base, mask, more, state, then):
                return ~at, then
        return None

    def _is_blocked(self) -> bool:
        """A conflict could be next if the state were another; what could be next is placed."""
        node = self._next[self._end]
        while (operation := self._events[node]) >= 0:
            if self._problem.conflict[operation]:
                return True
            node = self._next[node]
        return False

    def failure(self) -> Found:
        """The operation nothing got past, and the states it could have found."""
        culprit = ~self._events[self._furthest]
        suspects = (at for at in self._blockers if self._return_node[at] > self._furthest)
        return self._problem.failure(culprit, self._states, suspects)
