"""A calm simulated cluster in which a test injects one fault and looks what it does."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace

from jepsen_like.calls import Action, Answer, Call
from jepsen_like.nemesis.catalogue import CATALOGUE
from jepsen_like.nemesis.fault import Heal
from jepsen_like.target.sim_client import SimClient
from jepsen_like.target.simulated import SimulatedTarget
from raftstore.protocol.message import Message
from raftstore.protocol.node import Heartbeat
from raftstore.testing.options import SimOptions
from raftstore.testing.sim_node import SimNode
from raftstore.types import NodeId, Outcome

CALM = SimOptions(seed=1, delay_max_ms=2.0, sync_max_ms=1.0, evict_percent=0)
PROBES = 400
IN_FLIGHT_MS = 30.0

Pairs = set[tuple[str, str]]


class World:
    """A born cluster of calm weather with one busy client."""

    def __init__(self, nodes: int = 3, seed: int = 1) -> None:
        options = replace(CALM, seed=seed, nodes=nodes, replicas=nodes)
        self.target = SimulatedTarget(options, {"t": 1}, clients=1)
        self.cluster = self.target.cluster
        self.cluster.events.keeps_messages = True
        self.target.start_world()
        self.wait(10_000.0, lambda: self.target.is_born)
        self.client = SimClient(self.cluster, 0, self.target.tables)
        self.target.clients.append(self.client)
        self.answers: list[Answer] = []
        self.rng = random.Random(7)
        (self.channel,) = self.target.tables["t"]
        self.write()
        self.run(1_000.0)

    def run(self, milliseconds: float) -> None:
        """Let virtual time pass."""
        self.cluster.scheduler.run_until(self.cluster.scheduler.now_ms + milliseconds)

    def wait(self, milliseconds: float, ready: Callable[[], bool]) -> None:
        """Let virtual time pass until it is so."""
        self.cluster.scheduler.run_until(self.cluster.scheduler.now_ms + milliseconds, ready)
        assert ready()

    def inject(self, kind: str) -> Heal:
        """Start the fault, whatever it takes."""
        return CATALOGUE[kind].inject(self.target, self.rng)

    def write(self) -> None:
        """Begin a write; its answer is kept."""
        if not self.client.is_at_work:
            number = len(self.answers)
            self.client.ask(Call(Action.PUT, "t", f"k{number}", number), self.answers.append)

    def write_until(self, ready: Callable[[], bool]) -> None:
        """One write after the other until it is so."""
        for _ in range(200):
            if ready():
                return
            self.write()
            self.run(50.0)
        raise AssertionError("it never came to that")

    def nodes(self) -> list[SimNode]:
        """All nodes in order."""
        return list(self.cluster.nodes.values())

    def up(self) -> list[str]:
        """Names of the nodes that run."""
        return [name for name in self.target.nodes if self.target.is_up(name)]

    def node(self, name: str) -> SimNode:
        """The node of this name."""
        (found,) = (node for node in self.nodes() if node.name == name)
        return found

    def leader(self) -> str:
        """The name of the node that leads the table's only partition."""
        return self.target.leaders()["t/0"]

    def events(self, name: str) -> list[dict[str, object]]:
        """Fields of the events of this name so far."""
        return [event.fields for event in self.cluster.events.kept if event.name == name]

    def heard(self, milliseconds: float = 700.0) -> Pairs:
        """(sender, receiver) of whatever arrives from now on, but for what is under way."""
        self.run(IN_FLIGHT_MS)
        begin = self.cluster.scheduler.now_ms
        self.run(milliseconds)
        return {
            (str(event.fields["from"]), str(event.fields["node"]))
            for event in self.cluster.events.messages
            if event.at_ms > begin
        }

    def probe(self, message: Message | None = None, count: int = PROBES) -> list[tuple[int, float]]:
        """Send numbered messages over one link; (number, delay) in order of arrival."""
        arrived: list[tuple[int, float]] = []
        sent_ms = self.cluster.scheduler.now_ms

        def on_message(sender: NodeId, found: Message) -> None:
            del sender
            number = found.counter if isinstance(found, Heartbeat) else 0
            arrived.append((number, self.cluster.scheduler.now_ms - sent_ms))

        self.cluster.add_client("probe", 9_998, on_message)
        for number in range(count):
            beat = Heartbeat(b"boot", number, 0, b"", True)
            self.cluster.network.send(self.nodes()[0].node, "probe", message or beat)
        self.run(10_000.0)
        return arrived

    def link(self, *pairs: tuple[str, str]) -> Pairs:
        """These pairs, both ways."""
        return {(a, b) for pair in pairs for a, b in (pair, pair[::-1])}


def everyone(world: World) -> Pairs:
    """All ordered pairs of nodes."""
    return {(a, b) for a in world.target.nodes for b in world.target.nodes if a != b}


def calm_again(world: World, heal: Heal) -> None:
    """After healing messages pass between all nodes and writes are answered."""
    heal()
    world.run(3_000.0)
    assert world.up() == list(world.target.nodes)
    assert everyone(world) <= world.heard()
    before = len(world.answers)
    world.write_until(lambda: len(world.answers) >= before + 3)
    assert world.answers[-1].outcome is Outcome.OK
