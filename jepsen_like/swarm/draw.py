"""The scene of a seed of the swarm: a workload, a set of faults, a cluster and its weather.

Swarm testing: a world that may draw from few kinds of faults goes deeper into each of them than
one that may draw from all, so most seeds leave most kinds out.
"""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Final

from jepsen_like.nemesis.catalogue import CATALOGUE
from jepsen_like.nemesis.members import MEMBER_FAULTS
from jepsen_like.scene import Scene
from jepsen_like.schedule import FaultEvent, draw_schedule, with_lone_fault
from jepsen_like.workload.registry import WORKLOADS
from raftstore.config import HeartbeatSettings, NodeSettings
from raftstore.testing.options import MEMBERS_FROM, SimOptions, draw_surroundings, override

OPERATIONS_MIN: Final = 500
ANSWERED_MIN: Final = 200
FAULTS_MIN: Final = 10
PROLONGED: Final = 4
"""A world goes on up to this many times its length until enough has happened in it."""
LOSES_A_NODE: Final = frozenset(("wipe", "flip-mark", "flip-identity"))
"""The node these hit is out for good, and every later fault strikes a smaller cluster: rare."""
MOVES_LEADERS: Final = ("kill-leader", "isolate-leader", "step-down", "pause-leader", "kill-all")
KINDS_MAX: Final = 8
SECONDS: Final = (60.0, 120.0, 180.0)
OPERATIONS_MEANT: Final = (550, 550, 800)
AVAILABLE: Final = 0.9
"""Share of the time in which clients are served, about."""
LATER_WORKLOADS: Final = ("bounded_time", "bounded_sessions")
LATER_SHARE: Final = 0.2
LATER_KINDS: Final = ("clock-hour",)
LATER_KINDS_SHARE: Final = 0.1
"""What came later is drawn on its own: the other worlds stay as they are."""
LATEST_WORKLOADS: Final = ("write_fates", "paged_scan", "bounded_batches", "http_sessions")
LATEST_SHARE: Final = 0.2
LATEST_KINDS: Final = ("clock-hour-back",)
LATEST_KINDS_SHARE: Final = 0.05
MEMBER_KINDS: Final = tuple(fault.name for fault in MEMBER_FAULTS)
MEMBER_SHARE: Final = 0.1
KILLS: Final = ("kill-leader", "kill-follower", "kill-quorum")
PARTITIONS: Final = ("isolate-leader", "isolate-follower", "partition-halves", "partition-ring")
"""Where members change there is always a kill and a partition, too."""
NEWEST_KINDS: Final = ("disk-nearly-full",)
NEWEST_KINDS_SHARE: Final = 0.05
BATCH_WORKLOADS: Final = ("bank_batches",)
BATCH_SHARE: Final = 0.15
LEADER_WORKLOADS: Final = ("leader_sessions",)
LEADER_SHARE: Final = 0.05
LIFETIME_WORKLOADS: Final = ("lifetimes",)
LIFETIME_SHARE: Final = 0.05

LONG_SHARE: Final = 0.1
"""Of worlds in which one node is cut off or stands still for long."""
LONG_KINDS: Final = (
    "isolate-leader", "isolate-follower", "one-way-in", "pause-leader", "pause-follower",
)  # fmt: skip
LONG_MS: Final = (10_500.0, 15_000.0)
"""Beyond the age at which a replica no longer trusts what it knows of its leader."""


def draw_scene(seed: int) -> Scene:
    """The world of this seed: same seed, same world, on every machine."""
    rng = random.Random(f"swarm {seed}")
    added = (
        *LATER_WORKLOADS, *LATEST_WORKLOADS, *BATCH_WORKLOADS, *LEADER_WORKLOADS,
        *LIFETIME_WORKLOADS,
    )  # fmt: skip
    workload = rng.choice([name for name in WORKLOADS if name not in added])
    kinds = _kinds(rng)
    workload, kinds = _added(seed, workload, kinds)
    nodes = rng.choice((3, 3, 3, 5))
    options = replace(draw_surroundings(seed), nodes=nodes, replicas=rng.choice((3, nodes)))
    seconds = rng.choice(SECONDS)
    clients = rng.choice((3, 5, 8))
    bursts = rng.choice((0, 50, 80))
    pauses = rng.choice(OPERATIONS_MEANT) * (100 - bursts) / 100
    pause_ms = seconds * 1_000 * clients * AVAILABLE / pauses
    faults = rng.choice((14, 25, 50))
    heartbeat_ms = rng.choice((100, 100, 200))
    schedule = draw_schedule(
        rng,
        kinds,
        until_ms=seconds * 1_000 * PROLONGED,
        pause_ms=max(300.0, seconds * 1_000 / faults),
    )
    schedule = _with_long_fault(seed, schedule, seconds)
    return Scene(
        seed=seed,
        workload=workload,
        kinds=kinds,
        options=options,
        schedule=_with_members(seed, kinds, schedule, seconds),
        seconds=seconds,
        clients=clients,
        replay=f"raftstore chaos simulate --seed {seed}",
        think_ms=(1.0, round(2 * pause_ms, 1)),
        burst_percent=bursts,
        settings=NodeSettings(
            name="",
            data_dir="",
            heartbeat=HeartbeatSettings(
                send_interval_ms=heartbeat_ms, check_interval_ms=heartbeat_ms // 2
            ),
        ),
        seconds_max=seconds * PROLONGED,
        operations_min=OPERATIONS_MIN,
        answered_min=ANSWERED_MIN,
        faults_min=FAULTS_MIN,
    )


def _added(seed: int, workload: str, kinds: tuple[str, ...]) -> tuple[str, tuple[str, ...]]:
    """Workloads and faults that came later, each drawn by a generator of its own: the worlds that
    draw none of them stay as they were."""
    later = random.Random(f"swarm {seed} later")
    if later.random() < LATER_SHARE:
        workload = later.choice(LATER_WORKLOADS)
    if later.random() < LATER_KINDS_SHARE:
        kinds = (*kinds, *LATER_KINDS)
    latest = random.Random(f"swarm {seed} latest")
    if latest.random() < LATEST_SHARE:
        workload = latest.choice(LATEST_WORKLOADS)
    if latest.random() < LATEST_KINDS_SHARE:
        kinds = (*kinds, *LATEST_KINDS)
    batches = random.Random(f"swarm {seed} batches")
    if batches.random() < BATCH_SHARE:
        workload = batches.choice(BATCH_WORKLOADS)
    leaders = random.Random(f"swarm {seed} leaders")
    if leaders.random() < LEADER_SHARE:
        workload = leaders.choice(LEADER_WORKLOADS)
    newest = random.Random(f"swarm {seed} newest")
    if newest.random() < NEWEST_KINDS_SHARE:
        kinds = (*kinds, *NEWEST_KINDS)
    kinds = (*kinds, *(kind for kind in _member_kinds(seed) if kind not in kinds))
    lifetimes = random.Random(f"swarm {seed} lifetimes")
    if lifetimes.random() < LIFETIME_SHARE:
        workload = lifetimes.choice(LIFETIME_WORKLOADS)
    return workload, kinds


def _member_kinds(seed: int) -> tuple[str, ...]:
    """Now and then some that change members, with a kill and a partition."""
    rng = random.Random(f"swarm {seed} members")
    if seed < MEMBERS_FROM or rng.random() >= MEMBER_SHARE:
        return ()
    chosen = rng.sample(MEMBER_KINDS, rng.randint(1, 3))
    return (*chosen, rng.choice(KILLS), rng.choice(PARTITIONS))


def _with_members(
    seed: int, kinds: tuple[str, ...], schedule: tuple[FaultEvent, ...], seconds: float
) -> tuple[FaultEvent, ...]:
    """Where members change, a change, a kill and a partition strike in the time that the world has
    at least."""
    rng = random.Random(f"swarm {seed} member faults")
    events = list(schedule)
    for group in (MEMBER_KINDS, KILLS, PARTITIONS) if set(kinds) & set(MEMBER_KINDS) else ():
        until_ms = seconds * 1_000 * 0.8
        if not any(each.kind in group and each.at_ms < until_ms for each in events):
            kind = rng.choice([kind for kind in kinds if kind in group])
            at_ms = round(rng.uniform(0.0, until_ms), 2)
            lasts_ms = round(rng.uniform(*CATALOGUE[kind].lasts_ms), 2)
            events.append(FaultEvent(at_ms, kind, lasts_ms, rng.randrange(1_000_000_000)))
    return tuple(sorted(events, key=lambda each: each.at_ms))


def changed(
    scene: Scene,
    *,
    workload: str | None = None,
    options: dict[str, str] | None = None,
    schedule: tuple[FaultEvent, ...] | None = None,
) -> Scene:
    """The scene with another workload, other options or other faults; ValueError for options."""
    chosen: SimOptions = override(scene.options, options or {})
    scene = replace(scene, options=chosen, workload=workload or scene.workload)
    return scene if schedule is None else under(scene, schedule)


def under(scene: Scene, schedule: tuple[FaultEvent, ...]) -> Scene:
    """The scene under these faults, however few they are."""
    return replace(scene, schedule=schedule, faults_min=0)


def _with_long_fault(
    seed: int, schedule: tuple[FaultEvent, ...], seconds: float
) -> tuple[FaultEvent, ...]:
    """Now and then one fault outlasts what most do by far; other worlds stay as they are."""
    rng = random.Random(f"swarm {seed} long")
    if rng.random() >= LONG_SHARE:
        return schedule
    lasts_ms = rng.uniform(*LONG_MS)
    at_ms = rng.uniform(0.0, seconds * 1_000 - lasts_ms)
    return with_lone_fault(rng, schedule, rng.choice(LONG_KINDS), at_ms=at_ms, lasts_ms=lasts_ms)


def _kinds(rng: random.Random) -> tuple[str, ...]:
    """Up to ``KINDS_MAX`` kinds, one of which moves leaders; now and then every one."""
    rare = rng.random() < 0.1
    added = (*LATER_KINDS, *LATEST_KINDS, *NEWEST_KINDS, *MEMBER_KINDS)
    drawn = [kind for kind in CATALOGUE if kind not in added]
    known = [kind for kind in drawn if rare or kind not in LOSES_A_NODE]
    if rng.random() < 0.15:
        return tuple(known)
    chosen = rng.sample(known, rng.randint(1, KINDS_MAX - 1))
    mover = rng.choice(MOVES_LEADERS)
    return tuple(dict.fromkeys((*chosen, mover)))
