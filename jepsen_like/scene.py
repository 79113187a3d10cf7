"""Everything that decides a simulated run: a plan or a seed draws it, nothing else enters."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Final

from jepsen_like.plan import Plan
from jepsen_like.schedule import FaultEvent, draw_schedule
from raftstore.config import NodeSettings
from raftstore.testing.options import SimOptions, draw_surroundings

THINK_MS: Final = (1.0, 40.0)
BURST_MS: Final = (1.0, 20.0)
"""Pause between two calls of a burst."""


@dataclass(frozen=True, slots=True)
class Scene:
    """One world, its clients and its faults. Times are virtual."""

    seed: int
    workload: str
    kinds: tuple[str, ...]
    """The faults that may strike."""
    options: SimOptions
    schedule: tuple[FaultEvent, ...]
    seconds: float
    """Length of the phase under faults, at least."""
    clients: int
    replay: str
    """The command that runs the same again."""
    think_ms: tuple[float, float] = THINK_MS
    """Pause of a client between two bursts of calls, drawn evenly."""
    burst_percent: int = 0
    """Share of calls that follow the one before without such a pause."""
    settings: NodeSettings | None = None
    """Of every node; None: the defaults."""
    seconds_max: float = 0.0
    """The phase is prolonged up to this until the next three are reached."""
    operations_min: int = 0
    answered_min: int = 0
    faults_min: int = 0

    @property
    def ends_at_the_latest(self) -> float:
        """Seconds after which the phase under faults ends whatever happened."""
        return max(self.seconds, self.seconds_max)


def scene_of(plan: Plan) -> Scene:
    """The world of a plan's seed, under the plan's faults."""
    return Scene(
        seed=plan.seed,
        workload=plan.workload,
        kinds=plan.nemeses,
        options=draw_surroundings(plan.seed),
        schedule=draw_schedule(
            random.Random(f"jepsen {plan.seed}"),
            plan.nemeses,
            until_ms=plan.seconds * 1_000,
            pause_ms=plan.fault_pause_s * 1_000,
        ),
        seconds=plan.seconds,
        clients=plan.clients,
        replay=plan.replay,
    )
