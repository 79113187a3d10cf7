"""One replica whose disk takes long is in nobody's way: a majority is what a commit waits for.

``python -m benchmarks --only slow_replica`` measures the same on real nodes for a minute.
"""

from __future__ import annotations

import pytest

from jepsen_like.calls import Action, Call
from raftstore.types import Level, Outcome
from tests.jepsen.fault_world import World

SLOW_MS = 50.0
WRITES = 100
P99_FACTOR = 1.5
READS_FACTOR = 2.0


def took_ms(world: World, call: Call) -> float:
    """Virtual milliseconds until the client has its answer, which must be a good one."""
    begun, before = world.cluster.scheduler.now_ms, len(world.answers)
    world.client.ask(call, world.answers.append)
    world.wait(10_000.0, lambda: len(world.answers) > before)
    assert world.answers[-1].outcome is Outcome.OK
    return world.cluster.scheduler.now_ms - begun


def p99_ms(world: World) -> tuple[float, float]:
    """Of writes and of linearizable reads, one after another."""
    writes = [took_ms(world, Call(Action.PUT, "t", f"k{n}", n)) for n in range(WRITES)]
    get = Call(Action.GET, "t", "k0", level=Level.LINEARIZABLE)
    reads = [took_ms(world, get) for _ in range(WRITES)]
    return sorted(writes)[int(WRITES * 0.99)], sorted(reads)[int(WRITES * 0.99)]


@pytest.mark.slow
@pytest.mark.parametrize(("nodes", "slow"), [(3, 1), (5, 2)])
def test_commits_and_reads_do_not_wait_for_a_slow_minority(nodes: int, slow: int) -> None:
    """As many slow followers as there may be: writes stay within 1.5 times, reads within twice."""
    calm = p99_ms(World(nodes))
    world = World(nodes)
    followers = [name for name in world.target.nodes if name != world.leader()]
    for name in followers[:slow]:
        world.target.slow_disk(name, SLOW_MS)
    leader = world.leader()
    found = p99_ms(world)
    assert world.leader() == leader
    assert found[0] <= P99_FACTOR * calm[0] < SLOW_MS
    assert found[1] <= READS_FACTOR * calm[1] < SLOW_MS


def test_commits_wait_for_a_slow_majority() -> None:
    """The other side of it, which shows that the disks above are slow at all (S3.1)."""
    world = World(3)
    for name in world.target.nodes:
        if name != world.leader():
            world.target.slow_disk(name, SLOW_MS)
    assert p99_ms(world)[0] >= SLOW_MS
