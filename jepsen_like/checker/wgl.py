"""Wing-Gong-Lowe search: place operations one after the other, never one configuration twice."""

from __future__ import annotations

from collections.abc import Iterator

from jepsen_like.checker.models import REFUSED, Entry, Model, State

Config = tuple[int, int, int, State]
"""Placed prefix of returned ones, window mask after it, mask of never-returned ones, state."""


def search(model: Model, entries: list[Entry]) -> Iterator[bool | None]:
    """Yield None after each step, at last whether an order exists.

    Never-returned operations have no return: the search ends when all returned ones are placed.
    """
    done = [entry for entry in entries if entry.returned is not None]
    lost = [entry for entry in entries if entry.returned is None]
    stack: list[Config] = [(0, 0, 0, model.initial)]
    seen: dict[tuple[int, int, State], list[int]] = {}
    while stack:
        base, mask, used, state = stack.pop()
        if base == len(done):
            yield True
            return
        masks = seen.setdefault((base, mask, state), [])
        # A configuration that used fewer never-returned operations can do all this one can.
        if any(old & used == old for old in masks):
            continue
        masks.append(used)
        yield None
        config = (base, mask, used, state)
        steps = list(_steps(model, done, config))
        # A read that fits changes nothing and is never better placed later: no need to branch.
        free = [step for step, is_read in steps if is_read]
        if free:
            stack.append(free[0])
            continue
        stack.extend(_lost_steps(model, lost, config, _limit(done, base, mask)))
        stack.extend(step for step, _ in reversed(steps))
    yield False


def _limit(done: list[Entry], base: int, mask: int) -> int:
    """The earliest return of an operation that is not placed."""
    limit: int | None = None
    for index in range(base, len(done)):
        entry = done[index]
        if limit is not None and entry.call > limit:
            break
        if not mask >> (index - base) & 1 and entry.returned is not None:
            limit = entry.returned if limit is None else min(limit, entry.returned)
    return limit or 0


def _steps(model: Model, done: list[Entry], config: Config) -> Iterator[tuple[Config, bool]]:
    """What can be placed next, and whether it only reads."""
    base, mask, used, state = config
    limit = _limit(done, base, mask)
    for index in range(base, len(done)):
        entry = done[index]
        if entry.call > limit:
            break
        bit = 1 << (index - base)
        if mask & bit:
            continue
        after = model.step(state, entry)
        if after is REFUSED:
            continue
        window, start = mask | bit, base
        while window & 1:
            window, start = window >> 1, start + 1
        yield (start, window, used, after), entry.action in model.reads


def _lost_steps(model: Model, lost: list[Entry], config: Config, limit: int) -> Iterator[Config]:
    base, mask, used, state = config
    for index, after in lost_choices(model, lost, used, state, limit):
        yield base, mask, used | 1 << index, after


def lost_choices(
    model: Model, lost: list[Entry], used: int, state: State, limit: int
) -> Iterator[tuple[int, State]]:
    """Never-returned operations worth placing: the first unused one of its kind, with effect."""
    tried = set()
    for index, entry in enumerate(lost):
        if entry.call > limit:
            break
        if used >> index & 1 or entry.kind in tried:
            continue
        tried.add(entry.kind)
        after = model.step(state, entry)
        if after is not REFUSED and after != state:
            yield index, after
