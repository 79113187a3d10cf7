"""Just-in-time linearization: keep every configuration, place operations only when one returns."""

from __future__ import annotations

from collections.abc import Iterator

from jepsen_like.checker.models import REFUSED, Entry, Model, State
from jepsen_like.checker.wgl import lost_choices

Minimal = dict[tuple[int, State], list[int]]
"""(mask of placed open operations, state) -> the least sets of used never-returned ones."""


def search(model: Model, entries: list[Entry]) -> Iterator[Entry | bool | None]:
    """Yield None after each step, at last True, or the operation that has no place."""
    done = [entry for entry in entries if entry.returned is not None]
    lost = [entry for entry in entries if entry.returned is None]
    # At one instant invocations come before returns: closed intervals that touch overlap.
    events = [(entry.call, 0, index) for index, entry in enumerate(done)]
    events += [(entry.returned or 0, 1, index) for index, entry in enumerate(done)]
    slots: dict[int, int] = {}
    configs: Minimal = {(0, model.initial): [0]}
    for now, is_return, index in sorted(events):
        if not is_return:
            slots[index] = next(slot for slot in range(len(slots) + 1) if slot not in _taken(slots))
            continue
        bit = 1 << slots[index]
        kept: Minimal = {}
        seen: Minimal = {}
        stack = [(mask, state, used) for (mask, state), sets in configs.items() for used in sets]
        while stack:
            mask, state, used = stack.pop()
            if not _add(seen, mask, state, used):
                continue
            yield None
            if mask & bit:
                _add(kept, mask & ~bit, state, used)
                continue
            stack.extend(_steps(model, done, slots, (mask, state, used)))
            for other, after in lost_choices(model, lost, used, state, now):
                stack.append((mask, after, used | 1 << other))
        del slots[index]
        if not kept:
            yield done[index]
            return
        configs = kept
    yield True


def _steps(
    model: Model, done: list[Entry], slots: dict[int, int], config: tuple[int, State, int]
) -> Iterator[tuple[int, State, int]]:
    """The configurations after one more open operation is placed."""
    mask, state, used = config
    for index, slot in slots.items():
        if mask >> slot & 1:
            continue
        after = model.step(state, done[index])
        if after is not REFUSED:
            yield mask | 1 << slot, after, used


def _taken(slots: dict[int, int]) -> frozenset[int]:
    return frozenset(slots.values())


def _add(configs: Minimal, mask: int, state: State, used: int) -> bool:
    """Whether no configuration there does as much with fewer; drops those it dominates."""
    sets = configs.setdefault((mask, state), [])
    if any(old & used == old for old in sets):
        return False
    sets[:] = [old for old in sets if old & used != used]
    sets.append(used)
    return True
