"""``simulate_machine``: a user's machine on simulated replicas under faults, seed after seed."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from raftstore.errors import ArgumentError
from raftstore.machine import StateMachine
from raftstore.testing.campaign import no_collections
from raftstore.testing.invariants import InvariantError
from raftstore.testing.machines.judging import WrongAnswerError
from raftstore.testing.machines.workload import Operation, Workload
from raftstore.testing.machines.world import Check, MachineSimulation, Plan
from raftstore.testing.options import SimOptions, draw_surroundings, override, parse_seeds
from raftstore.testing.simulation import Verdict

FAULT_PHASE_MS: Final = 4_000
"""Clients work under faults for so long at least."""
FAULTS: Final = 6
SHOWN_OPERATIONS: Final = 30
"""Of a failing world, in a message."""
UNEQUAL: Final = "replicas are not equal"
SEEDS_VARIABLE: Final = "RAFTSTORE_SEEDS"
"""Replaces the seeds of all calls; the option ``--raftstore-seeds`` of pytest sets it."""


class MachineSimulationError(AssertionError):
    """A world in which the machine, or what its users may rely on, went wrong."""

    def __init__(self, message: str, *, seed: int, history: Sequence[Operation]) -> None:
        super().__init__(message)
        self.seed = seed
        self.history = list(history)
        """All operations of the clients, in the order in which they began."""


@dataclass(slots=True)
class MachineRuns:
    """Sums over all worlds, none of which found anything."""

    seeds: list[int] = field(default_factory=list)
    commands: int = 0
    """Those that were answered, rejections included."""
    unknown: int = 0
    """Commands whose outcome no client knew; the judgement knows it from the log."""
    queries: int = 0
    by_level: dict[str, int] = field(default_factory=dict)
    """The same by the level at which they were asked; those that were rejected, too."""
    crashes: int = 0
    elections: int = 0
    faults: dict[str, int] = field(default_factory=dict)

    def add(self, verdict: Verdict, levels: Mapping[str, int]) -> None:
        """Count one world."""
        for level, count in levels.items():
            self.by_level[level] = self.by_level.get(level, 0) + count
        self.seeds.append(verdict.seed)
        self.commands += verdict.outcomes.ok
        self.unknown += verdict.outcomes.unknown
        self.queries += verdict.outcomes.reads_ok
        self.crashes += verdict.crashes
        self.elections += verdict.elections
        for kind, count in verdict.faults.items():
            self.faults[kind] = self.faults.get(kind, 0) + count


def simulate_machine(
    machine: type[StateMachine],
    workload: Workload,
    *,
    seeds: str | int | Iterable[int] = 10,
    model: type[StateMachine] | None = None,
    check: Check | None = None,
    clients: int = 3,
    operations: int = 40,
    shrink: bool = True,
    **options: Any,
) -> MachineRuns:
    """Run the machine on replicas under crashes, cut networks, bad disks, one world for each seed.

    ``workload(rng)`` gives a ``Command`` or a ``Query`` each time it is called; a generator
    function ``workload(rng, name)`` is a client that gets each operation back with its outcome.
    ``clients`` at a time do ``operations`` each. ``seeds``: ``"1..200"``, the first so many, or
    some. Every result and answer is held against a sequential run of ``model``, by default of the
    machine itself: exactly once, in an order that fits that of the answers in time, the same state
    on all replicas. ``check`` is given the history of a world and raises AssertionError.
    Other options are those of ``raftstore simulate``, such as ``nodes=5`` or
    ``member_changes=True``. Raises MachineSimulationError, which names the seed that failed;
    ``shrink``: with as few operations as a few more runs of that seed can do with.
    """
    for name, number in (("clients", clients), ("operations", operations)):
        if number < 1:
            raise ArgumentError(f"{name}={number} would check nothing; give 1 or more")
    plan = Plan(machine, workload, model or machine, check, clients, operations)
    runs = MachineRuns()
    for seed in _seeds(seeds):
        drawn = _options(seed, options)
        simulation, verdict = _run(drawn, plan)
        if verdict.violation is not None:
            raise _failure(drawn, plan, simulation, verdict, shrink=shrink)
        runs.add(verdict, simulation.levels)
    return runs


def _run(options: SimOptions, plan: Plan) -> tuple[MachineSimulation, Verdict]:
    with no_collections():
        simulation = MachineSimulation(options, plan)
        verdict = simulation.run()
        if verdict.violation is not None:
            for kind in (InvariantError, WrongAnswerError):
                verdict.violation = verdict.violation.removeprefix(f"{kind.__name__}: ")
            if UNEQUAL in verdict.violation:
                # Which answer was wrong says more than that replicas differ.
                verdict.violation = simulation.first_wrong() or verdict.violation
        return simulation, verdict


def _seeds(given: str | int | Iterable[int]) -> list[int]:
    override_text = os.environ.get(SEEDS_VARIABLE)
    if override_text:
        given = override_text
    if isinstance(given, str):
        seeds = parse_seeds(given)
    elif isinstance(given, int):
        seeds = list(range(1, given + 1))
    else:
        seeds = list(given)
    if not seeds:
        raise ArgumentError(f"seeds={given!r} is no seed, which would check nothing; give some")
    return seeds


def _options(seed: int, changes: dict[str, Any]) -> SimOptions:
    """The network, disks and faults of a seed, as for our own table, with fewer of them."""
    drawn = draw_surroundings(seed)
    shortened = replace(
        drawn,
        partitions=min(drawn.partitions, 2),
        writers=0,
        readers=0,
        jobs=0,
        operations=0,
        ttl_percent=0.0,
        # Older versions know no machines of users.
        rolling_upgrades=False,
        fault_phase_ms=FAULT_PHASE_MS,
        fault_interval_ms=min(drawn.fault_interval_ms, 500),
        faults=FAULTS,
    )
    return override(shortened, {name: str(value) for name, value in changes.items()})


def _failure(
    options: SimOptions,
    plan: Plan,
    simulation: MachineSimulation,
    verdict: Verdict,
    *,
    shrink: bool,
) -> MachineSimulationError:
    found, kept = verdict.violation, simulation
    total = len(simulation.history)
    if shrink:
        shrunk = _shrunk(options, plan, simulation, str(found))
        if shrunk is not None and len(shrunk[0].history) < total:
            kept, verdict = shrunk
    history = kept.history
    lines = [f"{plan.machine.__name__}, seed {options.seed}: {found}"]
    if verdict.violation != found:
        lines.append(f"with {len(history)} of {total} operations: {verdict.violation}")
    lines.append(_replay(options.seed))
    lines.append(f"the last of {len(history)} operations:")
    lines += [f"  {each.begun_ms:9.1f} ms  {each}" for each in history[-SHOWN_OPERATIONS:]]
    return MachineSimulationError("\n".join(lines), seed=options.seed, history=history)


def _replay(seed: int) -> str:
    """How to run the failing world again."""
    test = os.environ.get("PYTEST_CURRENT_TEST", "").rpartition(" ")[0]
    if test:
        return f"replay: pytest '{test}' --raftstore-seeds {seed}..{seed}"
    return f"replay: simulate_machine(..., seeds=[{seed}]), or {SEEDS_VARIABLE}={seed}..{seed}"


# --- shrinking ------------------------------------------------------------------------------------

KINDS: Final = (
    UNEQUAL,
    "check of the history",
    "sequential run rejects",
    "sequential run gives",
    "sequential run answers",
    "differs from that of a sequential run",
    "is in the log",
    "machine stopped",
    "after the end of",
)
"""Parts of messages by which two worlds are seen to fail in the same way."""
SHRINK_RUNS_MAX: Final = 24
"""Runs of a failing seed, each of which is a world of its own."""
Left = tuple[tuple[int, int], ...]
"""(client, number) of operations."""


def _shrunk(
    options: SimOptions, plan: Plan, simulation: MachineSimulation, violation: str
) -> tuple[MachineSimulation, Verdict] | None:
    """The same seed with fewer operations that fails in the same way; None: there is none.

    Operations are left out in halves, quarters and so on (Zeller's ddmin). What comes behind an
    operation that is left out happens at other times, so each attempt is a run of its own.
    """
    kind = _kind(violation)
    best: tuple[MachineSimulation, Verdict] | None = None
    runs = 0

    def fails(kept: Left) -> bool:
        nonlocal best, runs
        runs += 1
        out = tuple(each for each in items if each not in kept)
        tried = _run(options, replace(plan, left_out=out))
        found = tried[1].violation
        if found is None or _kind(found) != kind:
            return False
        best = tried
        return True

    items = _items(simulation)
    kept, parts = items, 2
    while len(kept) >= 2 and runs < SHRINK_RUNS_MAX:
        smaller = _without_a_part(kept, parts, fails, lambda: runs >= SHRINK_RUNS_MAX)
        if smaller is not None:
            kept, parts = smaller, max(2, parts - 1)
        elif parts >= len(kept):
            break
        else:
            parts = min(len(kept), 2 * parts)
    return best


def _items(simulation: MachineSimulation) -> Left:
    return tuple(
        (index, number)
        for index, user in enumerate(simulation.users)
        for number in range(1, user.scripted + 1)
    )


def _without_a_part(
    kept: Left, parts: int, fails: Callable[[Left], bool], is_over: Callable[[], bool]
) -> Left | None:
    size = -(-len(kept) // parts)
    for start in range(0, len(kept), size):
        rest = kept[:start] + kept[start + size :]
        if is_over():
            return None
        if rest and fails(rest):
            return rest
    return None


def _kind(violation: str) -> str:
    """The promise that is broken, without the values."""
    for word in KINDS:
        if word in violation:
            return word
    return violation.partition(":")[0]
