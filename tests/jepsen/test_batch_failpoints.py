"""Nodes die at every named place of a micro-batch's way, and everything comes back whole."""

from __future__ import annotations

from typing import Any

import pytest

from jepsen_like.calls import Action, Answer, Batch, Call
from jepsen_like.target.sim_client import SimClient
from jepsen_like.target.simulated import SimulatedTarget
from raftstore.faults import FAILPOINTS
from raftstore.testing.sim_failpoints import FAILPOINTS as SIMULATED
from raftstore.types import Level, Outcome
from tests.jepsen.fault_world import CALM

BATCH_POINTS = tuple(name for name in FAILPOINTS if name.startswith("batch."))
KEYS = tuple(f"k{number}" for number in range(120))
"""So many that each partition writes its part in several slices."""
TRIES = 40


class _World:
    """Three calm nodes, a table of four partitions, and one client."""

    def __init__(self) -> None:
        self.target = SimulatedTarget(CALM, {"t": 4}, clients=1)
        self.cluster = self.target.cluster
        self.target.start_world()
        self.wait(lambda: self.target.is_born)
        self.client = SimClient(self.cluster, 0, self.target.tables)

    def ask(self, call: Call) -> Answer:
        """The answer, within the client's deadline."""
        answers: list[Answer] = []
        self.client.ask(call, answers.append)
        self.wait(lambda: bool(answers))
        return answers[0]

    def batch(self, number: int) -> Answer:
        """A micro-batch that gives every key its number."""
        return self.ask(self.call(number))

    def call(self, number: int) -> Call:
        """The same, as a call."""
        rows = tuple((key, number) for key in KEYS)
        return Call(Action.BATCH, "t", "w", rows=rows, batch=Batch("w", number, tasks=3))

    def died(self) -> list[str]:
        """Names of the nodes that passed a failpoint."""
        events = [event for event in self.cluster.events.kept if event.name == "failpoint"]
        return [str(event.fields["node"]) for event in events]

    def run(self, milliseconds: float) -> None:
        """Let virtual time pass."""
        self.cluster.scheduler.run_until(self.cluster.scheduler.now_ms + milliseconds)

    def quiet(self) -> None:
        """Wait until all replicas hold the same."""
        self.wait(self.cluster.replicas_are_equal)

    def wait(self, ready: Any) -> None:
        """Let virtual time pass until it is so."""
        self.cluster.scheduler.run_until(self.cluster.scheduler.now_ms + 20_000.0, ready)
        assert ready()


def _values(answer: Answer) -> set[int]:
    assert answer.outcome is Outcome.OK, answer.error
    rows = answer.value["rows"]
    assert set(rows) == set(KEYS)
    return set(rows.values())


@pytest.mark.slow
@pytest.mark.parametrize("victims", ["coordinator", "everybody"])
@pytest.mark.parametrize("failpoint", BATCH_POINTS)
def test_node_dies_at_the_failpoint_of_a_batch_and_all_of_it_comes_back(
    failpoint: str, victims: str
) -> None:
    """Given a crash at any failpoint of a batch, of the coordinator or of all nodes, the batch is
    visible whole or not at all, and its replay completes it once.
    """
    world = _World()
    world.batch(1)
    leader = world.target.leaders()["t/0"]
    names = (leader,) if victims == "coordinator" else world.target.nodes
    for name in names:
        world.target.crash_at(name, failpoint)
    told = [1]
    for number in range(2, 2 + TRIES):
        if world.batch(number).outcome is Outcome.OK:
            told.append(number)
        if world.died():
            break
    assert set(world.died()) <= set(names)
    assert world.died(), f"nobody passed {failpoint}"
    world.target.heal_everything()
    world.run(3_000.0)
    newest = told[-1]
    # A batch in doubt is there or not, and then it is there in every row.
    [seen] = _values(world.ask(Call(Action.SNAPSHOT, "t")))
    assert seen in (newest, newest + 1)
    replayed = world.batch(newest + 1)
    assert replayed.outcome is Outcome.OK
    assert replayed.value["already"] == (seen == newest + 1)
    world.quiet()
    assert _values(world.ask(Call(Action.SNAPSHOT, "t"))) == {newest + 1}


def test_channel_that_a_crash_left_in_pieces_serves_nothing_until_it_is_whole() -> None:
    """A node died between two slices and learns of nobody when it is back: it answers no read of
    that partition at any level, by key or as of a commit; with the others it is whole again."""
    world = _World()
    world.batch(1)
    world.quiet()
    victim = next(name for name in world.target.nodes if name != world.target.leaders()["t/0"])
    world.target.crash_at(victim, "batch.mid-slice")
    told: list[Answer] = []
    world.client.ask(world.call(2), told.append)
    world.wait(lambda: world.died() == [victim])
    others = [name for name in world.target.nodes if name != victim]
    world.target.block([pair for other in others for pair in ((other, victim), (victim, other))])
    world.target.start([victim])
    world.wait(lambda: bool(told))
    refused = 0
    for key in KEYS[:12]:
        read = world.ask(Call(Action.GET, "t", key, level=Level.ANY, node=victim))
        refused += read.error == "unavailable"
        assert read.outcome is not Outcome.OK or read.value in (1, 2)
    assert refused, "no partition of the node was in pieces"
    world.target.unblock()
    world.quiet()
    assert world.ask(Call(Action.GET, "t", KEYS[0], level=Level.ANY, node=victim)).value == 2


def test_simulated_nodes_pass_every_place_of_a_batch() -> None:
    """Each failpoint of a batch that a real node may be crashed at exists in the simulated one."""
    assert len(BATCH_POINTS) == 8
    assert set(BATCH_POINTS) <= set(SIMULATED) <= set(FAILPOINTS)
