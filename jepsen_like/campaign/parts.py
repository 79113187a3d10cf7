"""The parts of a campaign: what one unit of each does, and how many are the goal."""

from __future__ import annotations

import hashlib
import shutil
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Final

import jepsen_like
import raftstore
from jepsen_like.campaign.combinations import COMBINATIONS, name_of
from jepsen_like.campaign.ledger import Entry
from jepsen_like.checker.verdict import Validity
from jepsen_like.corruption import run_corruptions
from jepsen_like.plan import Plan
from jepsen_like.power_losses import run_power_losses
from jepsen_like.result import Result
from jepsen_like.session import run_plan
from jepsen_like.swarm.campaign import judge, keep, run_twice
from jepsen_like.swarm.draw import draw_scene
from jepsen_like.target.base import NotRunError
from jepsen_like.workload.channelsets import NAME as CHANNELSETS
from jepsen_like.workload.machine_names import RECIPES

RARE_KINDS: Final = ("wipe", "flip-mark", "flip-identity")
"""Each costs a node for good, so worlds with many faults have few of them: these have one."""
RARE_BESIDE: Final = ("kill-leader,kill-client", "pause-leader,clock-hour-back")
RARE_SECONDS: Final = 30.0
RARE_WORKLOADS: Final = (
    "register", "table_set", "bank", "bank_batches", "bounded_reads", "bounded_time", "sessions",
)  # fmt: skip
CORRUPTIONS_PER_UNIT: Final = 50
SEEDS_PER_TWICE: Final = 25
PULLS_PER_UNIT: Final = 5


@dataclass(frozen=True, slots=True)
class Settings:
    """The parameters of a unit beside its number."""

    directory: Path
    """Runs that failed are kept below it."""
    process_seconds: float
    """Under faults, of each run on processes."""
    jobs: int
    """Processes that a unit which is alone may use."""


@dataclass(frozen=True, slots=True)
class Part:
    """One kind of proof."""

    name: str
    text: str
    goal: int
    unit: str
    """What is counted, in the plural."""
    is_parallel: bool
    """Units may run side by side, one per core."""
    key: Callable[[int], str]
    """The name of the n-th unit, n from 0."""
    run: Callable[[int, Settings], Entry]
    """Do the n-th unit."""


def _number(index: int) -> str:
    return str(index + 1)


@cache
def code_digest() -> str:
    """Twelve hex digits of everything that runs: figures of other code are distinguished by it."""
    digest = hashlib.sha256()
    for package in (raftstore, jepsen_like):
        root = Path(package.__path__[0])
        for path in sorted(root.rglob("*.py")):
            digest.update(str(path.relative_to(root)).encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()[:12]


# --- simulated worlds -----------------------------------------------------------------------------


def _world(index: int, settings: Settings) -> Entry:
    scene = draw_scene(index + 1)
    world = judge(scene)
    figures: dict[str, Any] = {
        "operations": world.operations,
        "elections": world.elections,
        "virtual hours": world.virtual_seconds / 3_600,
        "processor hours": world.cpu_seconds / 3_600,
        "faults": world.fired,
        "faults not run": world.not_run,
        "seeds by workload": {world.workload: 1},
    }
    if world.too_quiet:
        figures["seeds that proved too little"] = 1
    failure = world.violation or ""
    if failure:
        keep(scene, settings.directory / "worlds" / str(scene.seed))
    return Entry(
        "worlds", _number(index), not failure, figures, failure, scene.replay, code_digest()
    )


def _twice(index: int, settings: Settings) -> Entry:
    """Seeds two times, in processes that hash texts differently: the same to the last event."""
    first_seed = index * SEEDS_PER_TWICE + 1
    scenes = [draw_scene(seed) for seed in range(first_seed, first_seed + SEEDS_PER_TWICE)]
    pairs = list(run_twice(scenes, jobs=settings.jobs))
    unequal = [str(one.seed) for one, other in pairs if one.digest != other.digest]
    failure = f"the traces of seeds {', '.join(unequal)} differ" if unequal else ""
    replay = f"raftstore chaos simulate --seeds {first_seed}..{scenes[-1].seed} --twice"
    figures = {"double runs": len(pairs)}
    return Entry("twice", _number(index), not failure, figures, failure, replay, code_digest())


def _rare_names(index: int) -> tuple[str, str]:
    at, kind = divmod(index, len(RARE_KINDS))
    beside = RARE_BESIDE[at % len(RARE_BESIDE)]
    return RARE_WORKLOADS[at % len(RARE_WORKLOADS)], f"{RARE_KINDS[kind]},{beside}"


def _rare(index: int, settings: Settings) -> Entry:
    """A world that loses a node for good, and has other faults besides."""
    workload, nemeses = _rare_names(index)
    plan = Plan(
        workload=workload,
        nemeses=tuple(nemeses.split(",")),
        target="simulated",
        seconds=RARE_SECONDS,
        seed=index + 1,
        clients=6,
        directory=settings.directory / "rare" / _number(index),
    )
    return _planned("rare", _number(index), plan, is_drawn=True)


# --- real processes -------------------------------------------------------------------------------


def _combination(index: int) -> tuple[tuple[str, str], int]:
    turn, at = divmod(index, len(COMBINATIONS))
    return COMBINATIONS[at], turn + 1


def _combination_key(index: int) -> str:
    combination, seed = _combination(index)
    return f"{name_of(combination)} #{seed}"


def _processes(index: int, settings: Settings) -> Entry:
    (workload, nemeses), seed = _combination(index)
    kept = f"{workload}-{seed}-{nemeses.replace(',', '+')}"
    plan = Plan(
        workload=workload,
        nemeses=tuple(nemeses.split(",")),
        target="processes",
        seconds=settings.process_seconds,
        seed=seed,
        clients=6,
        directory=settings.directory / "processes" / kept,
        machines=(RECIPES,) if workload == CHANNELSETS else (),
    )
    return _planned("processes", _combination_key(index), plan)


def _pulls(index: int, settings: Settings) -> Entry:
    directory = settings.directory / "power" / _number(index)
    shutil.rmtree(directory, ignore_errors=True)
    found = run_power_losses(PULLS_PER_UNIT, index + 1, directory)
    failure = "; ".join(found.violations) or found.too_little
    if not failure:
        shutil.rmtree(directory, ignore_errors=True)
    return Entry(
        part="power",
        key=_number(index),
        passed=not failure,
        figures={
            "pulls": found.pulls,
            "acknowledged writes": found.acknowledged,
            "writes in doubt": found.in_doubt,
            "lost": found.lost,
            "made up": found.made_up,
            "how": {found.mechanism: found.pulls},
        },
        failure=failure,
        replay=f"raftstore chaos power --seed {index + 1} --count {PULLS_PER_UNIT}",
        code=code_digest(),
    )


def _planned(part: str, key: str, plan: Plan, *, is_drawn: bool = False) -> Entry:
    """Run a plan; what it found is kept in its directory, a run without findings is not.

    ``is_drawn``: the seed draws the weather, too, which may leave little that could be judged.
    """
    shutil.rmtree(plan.directory, ignore_errors=True)  # of a campaign that was cut in this unit
    failure = ""
    figures: dict[str, Any] = {}
    try:
        result = run_plan(plan, _ignore)
    except NotRunError:
        raise
    except Exception as error:  # noqa: BLE001 - whatever ended it goes into the ledger
        failure = f"{type(error).__name__}: {error}"
    else:
        result.save(plan.directory)
        figures = _figures(result)
        if is_drawn and any(v.validity is Validity.UNDECIDED for v in result.verdicts):
            figures["worlds that proved too little"] = 1
        failure = "; ".join(
            f"{verdict.checker}: {verdict.summary}"
            for verdict in result.verdicts
            if verdict.validity is Validity.INVALID
            or (verdict.validity is Validity.UNDECIDED and not is_drawn)
        )
    if not failure:
        shutil.rmtree(plan.directory, ignore_errors=True)
    return Entry(part, key, not failure, figures, failure, plan.replay, code_digest())


def _figures(result: Result) -> dict[str, Any]:
    faults: Counter[str] = Counter()
    not_run: Counter[str] = Counter()
    for fault in result.injected:
        (faults if fault.get("fired", True) else not_run)[fault["kind"]] += 1
    return {
        "seconds": round(result.seconds),
        "operations": len(result.history),
        "faults": dict(faults),
        "faults not run": dict(not_run),
        "busy machine s": round(sum(f["ended"] - f["started"] for f in result.of_machine) / 1e9, 1),
    }


# --- damaged stores -------------------------------------------------------------------------------


def _corruptions(index: int, settings: Settings) -> Entry:
    directory = settings.directory / "corruption" / _number(index)
    directory.mkdir(parents=True, exist_ok=True)
    found = run_corruptions(CORRUPTIONS_PER_UNIT, index + 1, directory)
    shutil.rmtree(directory, ignore_errors=True)
    return Entry(
        part="corruption",
        key=_number(index),
        passed=not found.violations,
        figures={
            "corruptions": found.trials,
            "outcomes": dict(found.outcomes),
            "struck": dict(found.struck),
        },
        failure="; ".join(found.violations),
        replay=f"raftstore chaos corrupt --seed {index + 1} --count {CORRUPTIONS_PER_UNIT}",
        code=code_digest(),
    )


PARTS: Final = (
    Part("worlds", "simulated worlds, judged by invariants and checkers", 20_000, "seeds",
         is_parallel=True, key=_number, run=_world),
    Part("rare", "simulated worlds that lose a node for good", 330, "worlds",
         is_parallel=True, key=_number, run=_rare),
    Part("twice", f"{SEEDS_PER_TWICE} seeds run again under another hash seed: equal traces", 20,
         "batches", is_parallel=False, key=_number, run=_twice),
    Part("corruption", f"stores damaged at random, {CORRUPTIONS_PER_UNIT} times each", 20, "stores",
         is_parallel=True, key=_number, run=_corruptions),
    Part("power", f"clusters whose nodes all lose power under load, {PULLS_PER_UNIT} times each", 4,
         "clusters", is_parallel=False, key=_number, run=_pulls),
    Part("processes", "workload x faults on real processes", len(COMBINATIONS), "runs",
         is_parallel=False, key=_combination_key, run=_processes),
)  # fmt: skip
"""In the order of the page."""


def part_named(name: str) -> Part:
    """KeyError if there is none; top level, so that other processes find their part by name."""
    return {part.name: part for part in PARTS}[name]


def run_unit(name: str, index: int, settings: Settings) -> Entry:
    """Do the unit; may run in a process of its own. Whatever ends it is reported, never raised."""
    part = part_named(name)
    try:
        return part.run(index, settings)
    except NotRunError as error:
        return Entry(name, part.key(index), passed=False, not_run=str(error))
    except Exception as error:  # noqa: BLE001 - hours of a campaign do not end with one unit
        failure = f"{type(error).__name__}: {error}"
        return Entry(name, part.key(index), passed=False, failure=failure, code=code_digest())


def _ignore(_line: str) -> None:
    """Units are quiet; the campaign reports them as they end."""
