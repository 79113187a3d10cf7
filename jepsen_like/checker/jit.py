"""Just-in-time linearization: keep every configuration, place operations only when one returns."""

from __future__ import annotations

from jepsen_like.checker.problem import IMPOSSIBLE, TURN, VALID, Configs, Problem, Search
from jepsen_like.checker.wgl import placed

Config = tuple[int, int, int, int]
"""base, mask, used, state."""


def search(problem: Problem) -> Search:
    """The configurations after each return are all that the rest of the history can depend on."""
    configs: list[Config] = [(0, 0, 0, problem.initial)]
    under_way: dict[int, None] = {}
    steps = 0
    for event in problem.events():
        if event >= 0:
            under_way[event] = None
            continue
        returning = ~event
        kept, seen = Configs(), Configs()
        stack = configs
        states: dict[int, None] = {}
        while stack:
            base, mask, used, state = stack.pop()
            if used:
                used &= problem.alive(returning)
            ahead = returning - base
            if ahead >= 0 and not mask >> ahead & 1:
                steps += 1
                if not steps % TURN:
                    yield None
                base, mask = _observed(problem, under_way, base, mask, state)
                states[state] = None
                if not seen.add(base, mask, used, state):
                    continue
                ahead = returning - base
                if ahead >= 0 and not mask >> ahead & 1:
                    stack += _steps(problem, under_way, (base, mask, used, state), returning)
                    continue
            kept.add(base, mask, used, state)
        del under_way[returning]
        configs = kept.all()
        if not configs:
            yield problem.failure(returning, states, ())
            return
    yield VALID


def _observed(
    problem: Problem, under_way: dict[int, None], base: int, mask: int, state: int
) -> tuple[int, int]:
    """Place what is true now and changes nothing: it is never better placed later."""
    pure, kinds, memo, width = problem.pure, problem.kinds, problem.memo, problem.width
    for operation in under_way:
        if not pure[operation] or operation < base or mask >> (operation - base) & 1:
            continue
        after = memo.get(state * width + kinds[operation])
        if after is None:
            after = problem.step(state, kinds[operation])
        if after == state:
            base, mask = placed(base, mask, operation)
    return base, mask


def _steps(
    problem: Problem, under_way: dict[int, None], config: Config, returning: int
) -> list[Config]:
    """The configurations after one more operation that changes something is placed."""
    base, mask, used, state = config
    pure, kinds, memo, width = problem.pure, problem.kinds, problem.memo, problem.width
    found = []
    blocked = False
    for operation in under_way:
        if operation < base or mask >> (operation - base) & 1:
            continue
        if pure[operation]:
            blocked = blocked or problem.conflict[operation]
            continue
        after = memo.get(state * width + kinds[operation])
        if after is None:
            after = problem.step(state, kinds[operation])
        if after != IMPOSSIBLE:
            found.append((*placed(base, mask, operation), used, after))
    for at, after in problem.lost_choices(0, used, state, returning, is_blocked=blocked):
        found.append((base, mask, used | 1 << at, after))
    ahead = problem.lookahead
    if ahead is None:
        return found
    return [config for config in found if not ahead.is_hopeless(*config[:3], state, config[3])]
