"""A model of one replica whose log is trimmed: table, barrier, base, power cuts, staged rows.

The log is one script of committed records. The table is where its applied position says; a power
cut takes it back to any position since the newest flush that happened. A barrier notes a position,
flushes, and reports it; where the disk is full the flush does not happen, which LevelDB says only
to the next write. The base moves to any seq that the rules allow, in the log at once and on the
disk later. After each power cut the replica has to be whole (I1 of decision 0023), and to be able
to apply the script to its end.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final, NamedTuple

ROW, STAGE, APPLY, DROP = "row", "stage", "apply", "drop"
SCRIPT: Final = (ROW, STAGE, ROW, APPLY, STAGE, DROP, ROW)
"""Record n is number n - 1; APPLY and DROP are of the newest staged record before them."""
FAULTS: Final = (
    "base before the barrier",
    "barrier without the write",
    "position of after the flush",
    "staged rows forgotten",
    "staged rows of now",
)
POWER_CUTS_MAX: Final = 2


class State(NamedTuple):
    """All there is of the replica."""

    applied: int = 0
    flushed: int = 0
    """The position that a power cut leaves at the least."""
    base: int = 0
    base_on_disk: int = 0
    barrier: tuple[int, int, bool] | None = None
    """Under way: its position, the highest base beside it, and whether the flush happened."""
    known: tuple[int, int] | None = None
    """The newest that was reported: position and highest base."""
    cuts: int = 0


def staged_at(applied: int) -> list[int]:
    """Staged records that the table refers to at a position."""
    live: list[int] = []
    for seq in range(1, applied + 1):
        kind = SCRIPT[seq - 1]
        if kind == STAGE:
            live.append(seq)
        elif kind in (APPLY, DROP):
            live.clear()
    return live


def base_max(applied: int) -> int:
    """The highest base beside the table at a position."""
    return min([applied, *(seq - 1 for seq in staged_at(applied))])


def broken(state: State) -> str | None:
    """Why the replica is not whole, or cannot apply the rest of the script."""
    if state.base > state.applied:
        return f"the table is at {state.applied}, the log begins behind {state.base}"
    for position in range(state.applied, len(SCRIPT)):
        if SCRIPT[position] == APPLY and any(s <= state.base for s in staged_at(position)):
            return f"record {position + 1} applies rows that the log lacks behind {state.base}"
    return None


@dataclass(frozen=True)
class Model:
    """The rules, but for one."""

    fault: str = ""

    def steps(self, state: State) -> Iterator[tuple[str, State]]:
        """Everything that may happen next."""
        applied, fault = state.applied, self.fault
        if applied < len(SCRIPT):
            yield "apply", state._replace(applied=applied + 1)
        if state.barrier is None:
            begun = (applied, base_max(applied))
            yield "flush", state._replace(flushed=applied, barrier=(*begun, True))
            yield "flush fails", state._replace(barrier=(*begun, False))
        else:
            yield from self._told(state, *state.barrier)
        if state.known is not None or fault == "base before the barrier":
            limit = self._limit(state)
            for base in range(state.base + 1, limit + 1):
                yield "trim", state._replace(base=base)
        if state.base > state.base_on_disk:
            yield "sync", state._replace(base_on_disk=state.base)
        yield from self._power_cuts(state)

    def _told(
        self, state: State, position: int, highest: int, happened: bool
    ) -> Iterator[tuple[str, State]]:
        if not happened and self.fault != "barrier without the write":
            # The write behind the flush fails, and the node stops: at the least it starts again.
            yield from self._power_cuts(state)
            return
        if self.fault == "position of after the flush":
            position, highest = state.applied, base_max(state.applied)
        yield "told", state._replace(barrier=None, known=(position, highest))

    def _limit(self, state: State) -> int:
        if self.fault == "base before the barrier":
            return base_max(state.applied)
        assert state.known is not None
        position, highest = state.known
        if self.fault == "staged rows forgotten":
            return position
        if self.fault == "staged rows of now":
            return min([position, *(seq - 1 for seq in staged_at(state.applied))])
        return min(position, highest)

    def _power_cuts(self, state: State) -> Iterator[tuple[str, State]]:
        if state.cuts == POWER_CUTS_MAX:
            return
        for applied in range(state.flushed, state.applied + 1):
            for base in sorted({state.base, state.base_on_disk}):
                yield "power", State(applied, applied, base, base, cuts=state.cuts + 1)


@dataclass
class Found:
    """The end of a search."""

    states: int = 0
    names: set[str] = field(default_factory=set)
    broken: str | None = None
    path: tuple[str, ...] = ()


def search(model: Model) -> Found:
    """All states, the nearest first; ends with the first that is broken after a power cut."""
    found = Found()
    paths: dict[State, tuple[str, ...]] = {State(): ()}
    waiting = deque(paths)
    while waiting:
        state = waiting.popleft()
        found.states += 1
        for name, after in model.steps(state):
            if after in paths:
                continue
            paths[after] = (*paths[state], name)
            found.names.add(name)
            waiting.append(after)
            if name == "power" and (reason := broken(after)) is not None:
                found.broken, found.path = reason, paths[after]
                return found
    return found
