"""Every simulated fault does to the cluster what its name says, and heals."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from jepsen_like.calls import Action, Answer, Call
from jepsen_like.nemesis.catalogue import CATALOGUE
from jepsen_like.nemesis.fault import Heal
from jepsen_like.target.base import FaultUnavailableError
from jepsen_like.target.sim_client import SimClient
from jepsen_like.target.simulated import SimulatedTarget
from raftstore.messages import Heartbeat, Message, PubMsg
from raftstore.testing.options import SimOptions
from raftstore.testing.sim_node import FAILPOINTS, SimNode
from raftstore.types import ChannelId, Guid, NodeId, Outcome, RecordKind, Term

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
        """Who leads the table's only partition."""
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
    """After healing every node hears every other and writes are answered."""
    heal()
    world.run(3_000.0)
    assert world.up() == list(world.target.nodes)
    assert everyone(world) <= world.heard()
    before = len(world.answers)
    world.write_until(lambda: len(world.answers) >= before + 3)
    assert world.answers[-1].outcome is Outcome.OK


# --- processes ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "count"),
    [
        ("kill-leader", 1),
        ("kill-follower", 1),
        ("kill-quorum", 2),
        ("kill-all", 3),
        ("power-loss-one", 1),
        ("power-loss-quorum", 2),
        ("power-loss-all", 3),
        ("rolling-restart", 1),
    ],
)
def test_ended_nodes_are_silent_until_they_are_started(kind: str, count: int) -> None:
    """Exactly so many nodes stop sending; all work again afterwards."""
    world = World()
    leading = {world.leader(), world.target.leaders()["metadata"]}
    heal = world.inject(kind)
    down = [name for name in world.target.nodes if name not in world.up()]
    assert len(down) == count
    if "leader" in kind:
        assert down[0] in leading
    if "follower" in kind and len(leading) < 3:
        assert down[0] not in leading
    assert not [pair for pair in world.heard() if pair[0] in down]
    calm_again(world, heal)


@pytest.mark.parametrize(("kind", "loses"), [("kill-all", False), ("power-loss-all", True)])
def test_what_was_written_outlives_the_process_but_not_the_power(kind: str, loses: bool) -> None:
    """Unsynced operations are there after a kill; of power losses some take them."""
    lost = 0
    for seed in range(1, 6):
        world = World(seed=seed)
        for name in world.target.nodes:
            world.target.slow_disk(name, 60_000.0)
        world.write()
        world.run(100.0)
        assert all(n.log.last_operation() > n.log.durable_operation() for n in world.nodes())
        before = stored(world)
        world.inject(kind)
        lost += before - stored(world)
    assert (lost > 0) is loses


def stored(world: World) -> int:
    """Records of the table in all logs together."""
    return sum(len(list(node.log.records(world.channel))) for node in world.nodes())


@pytest.mark.parametrize(
    ("kind", "count"),
    [("pause-leader", 1), ("pause-follower", 1), ("pause-short", 1), ("pause-all", 3)],
)
def test_paused_nodes_run_but_say_nothing(kind: str, count: int) -> None:
    """What arrives meanwhile waits; afterwards it is dealt with."""
    world = World()
    heal = world.inject(kind)
    paused = [node.name for node in world.nodes() if node.is_paused]
    assert len(paused) == count
    assert world.up() == list(world.target.nodes)
    assert not [pair for pair in world.heard() if pair[0] in paused]
    calm_again(world, heal)


@pytest.mark.parametrize("failpoint", FAILPOINTS)
def test_node_dies_at_the_failpoint_and_nothing_leaves_it_after(failpoint: str) -> None:
    """Every named place is reached sooner or later, and the node is gone there and then."""
    world = World()
    victim = next(name for name in world.target.nodes if name != world.leader())
    if failpoint == "log.before-truncate":
        victim = leave_a_tail(world)
    world.target.crash_at(victim, failpoint)
    if failpoint == "log.before-truncate":
        world.target.unblock()
    elif failpoint.startswith("catch-up"):
        world.target.block([pair for pair in everyone(world) if victim in pair])
        world.write_until(lambda: len(world.answers) >= 5)
        world.target.unblock()
    elif failpoint.startswith(("vote", "mark")):
        world.target.kill((world.leader(),))
    world.write_until(lambda: bool(world.events("failpoint")))
    (passed,) = world.events("failpoint")
    assert passed == {"node": victim, "at": failpoint}
    assert world.events("kill")[-1]["node"] == victim
    world.target.disarm(victim)
    calm_again(world, lambda: world.target.start(world.target.nodes))


def leave_a_tail(world: World) -> str:
    """Cut the leader off with a record that only it has, and let others commit another one."""
    leader = world.leader()
    world.target.block([pair for pair in everyone(world) if leader in pair])
    world.write()
    world.run(400.0)
    world.write_until(lambda: world.leader() != leader)
    world.run(1_000.0)
    return leader


def test_failpoint_that_nobody_passes_is_not_run() -> None:
    """A fault that never struck is reported, not counted."""
    world = World()
    heal = world.inject("crash-at-failpoint")
    while world.events("failpoint"):
        heal()
        heal = world.inject("crash-at-failpoint")
    with pytest.raises(FaultUnavailableError, match="never passed"):
        heal()


def test_faults_on_nodes_that_are_down_are_not_run() -> None:
    """Nothing is killed, paused or armed twice."""
    world = World()
    world.inject("kill-all")
    for kind in ("kill-leader", "pause-all", "power-loss-one", "rolling-restart"):
        with pytest.raises(FaultUnavailableError, match="did not run"):
            world.inject(kind)


# --- links ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["isolate-leader", "isolate-follower", "flapping"])
def test_isolated_node_neither_hears_nor_is_heard(kind: str) -> None:
    """Nothing passes between one node and all others."""
    world = World()
    leading = set(world.target.leaders().values())
    heal = world.inject(kind)
    silent = everyone(world) - world.heard()
    (alone,) = (name for name in world.target.nodes if sum(name in p for p in silent) == 4)
    assert silent == {pair for pair in everyone(world) if alone in pair}
    assert (alone in leading) is (kind != "isolate-follower")
    calm_again(world, heal)


def groups(world: World, heard: Pairs) -> list[int]:
    """How many others each node exchanges messages with, sorted."""
    return sorted(
        sum({(a, b), (b, a)} <= heard for b in world.target.nodes if b != a)
        for a in world.target.nodes
    )


@pytest.mark.parametrize(
    ("kind", "degrees"),
    [
        ("partition-halves", [1, 1, 2, 2, 2]),
        ("partition-bridge", [2, 2, 2, 2, 4]),
        ("partition-ring", [2, 2, 2, 2, 2]),
    ],
)
def test_partition_has_its_shape(kind: str, degrees: list[int]) -> None:
    """Halves see themselves, a bridge sees all, a ring gives everybody another majority."""
    world = World(nodes=5)
    heal = world.inject(kind)
    assert groups(world, world.heard() & everyone(world)) == degrees
    calm_again(world, heal)


@pytest.mark.parametrize(("kind", "cut"), [("one-way-in", 2), ("one-way-out", 2), ("half-open", 1)])
def test_one_way_faults_leave_the_other_way_open(kind: str, cut: int) -> None:
    """The deaf still talk, the mute still hear."""
    world = World()
    heal = world.inject(kind)
    silent = everyone(world) - world.heard()
    assert len(silent) == cut
    assert not any((b, a) in silent for a, b in silent)
    ends = {pair[1] for pair in silent} if kind == "one-way-in" else {pair[0] for pair in silent}
    assert len(ends) == 1
    calm_again(world, heal)


def test_cut_clients_reach_nobody_who_leads() -> None:
    """Links to one leader are cut for clients, and no others."""
    world = World()
    heal = world.inject("clients-cut")
    world.write()
    heard = world.heard()
    cut = [name for name in world.target.nodes if ("c0", name) not in heard]
    assert len(cut) == 1
    assert cut[0] in world.target.leaders().values()
    assert everyone(world) <= heard
    heal()


def test_loss_takes_three_of_ten_messages() -> None:
    """The share that arrives is what it should be."""
    world = World()
    heal = world.inject("loss")
    assert 0.6 * PROBES < len(world.probe()) < 0.8 * PROBES
    heal()
    assert len(world.probe()) == PROBES


def test_duplicates_arrive_twice() -> None:
    """Every second message comes again."""
    world = World()
    heal = world.inject("duplicates")
    assert 1.4 * PROBES < len(world.probe()) < 1.6 * PROBES
    heal()
    assert len(world.probe()) == PROBES


def test_reordered_messages_are_late() -> None:
    """One of ten comes up to three seconds after those sent behind it."""
    world = World()
    heal = world.inject("reorder")
    late = [delay for _, delay in world.probe() if delay > 100.0]
    assert 0.05 * PROBES < len(late) < 0.15 * PROBES
    heal()
    assert max(delay for _, delay in world.probe()) <= CALM.delay_max_ms


def test_slow_links_take_long() -> None:
    """Delays up to a quarter of a second, and then no more."""
    world = World()
    heal = world.inject("slow-link")
    assert 200.0 < max(delay for _, delay in world.probe()) <= 250.0
    heal()
    assert max(delay for _, delay in world.probe()) <= CALM.delay_max_ms


def test_narrow_link_carries_64_kib_a_second() -> None:
    """Ten messages of 32 KiB need five seconds."""
    world = World()
    big = PubMsg(
        channel=ChannelId(bytes(18)), term=Term(1), leader=NodeId("n1@0"), guid=Guid(bytes(16)),
        digest=bytes(16), rows=1, kind=RecordKind.ROWS, payload=bytes(32_768),
    )  # fmt: skip
    heal = world.inject("narrow-link")
    assert 5_000.0 < world.probe(big, 10)[-1][1] < 5_200.0
    heal()
    assert world.probe(big, 10)[-1][1] <= CALM.delay_max_ms


@pytest.mark.parametrize("kind", ["reset", "reset-storm"])
def test_reset_connections_break_and_come_back(kind: str) -> None:
    """Both ends see it; nobody is declared dead for it."""
    world = World()
    lost = len(world.events("peer_lost"))
    heal = world.inject(kind)
    assert len(world.events("peer_lost")) > lost
    assert all(not event["refused"] for event in world.events("peer_lost")[lost:])
    calm_again(world, heal)


# --- disks ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["sync-error", "write-error"])
def test_one_failed_write_ends_the_node_once(kind: str) -> None:
    """S0.4: the node stops at its next write, and runs again when somebody starts it."""
    world = World()
    heal = world.inject(kind)
    world.write_until(lambda: bool(world.events("disk_error")))
    (error,) = world.events("disk_error")
    heal()
    assert str(error["node"]) in world.up()
    calm_again(world, heal)
    assert len(world.events("disk_error")) == 1


def test_disk_error_that_nothing_met_is_not_run() -> None:
    """An armed error that no write ran into was no fault."""
    world = World()
    heal = world.inject("sync-error")
    with pytest.raises(FaultUnavailableError, match="wrote nothing"):
        heal()
    assert not world.events("disk_error")


@pytest.mark.parametrize("kind", ["sync-error-sticky", "disk-full"])
def test_lasting_disk_error_keeps_the_node_out(kind: str) -> None:
    """No restart helps before the disk is mended; then the node comes back by itself."""
    world = World()
    heal = world.inject(kind)
    world.write_until(lambda: bool(world.events("disk_error")))
    broken = str(world.events("disk_error")[0]["node"])
    world.run(3_000.0)
    world.target.start((broken,))
    assert broken not in world.up()
    calm_again(world, heal)


def test_slow_disk_makes_its_node_late() -> None:
    """What other nodes have long synced still waits there."""
    world = World()
    heal = world.inject("slow-disk")
    (slow,) = (node for node in world.nodes() if node.extra_sync_ms)
    world.write()
    world.run(80.0)
    late = [n.name for n in world.nodes() if n.log.last_operation() > n.log.durable_operation()]
    assert late == [slow.name]
    calm_again(world, heal)


@pytest.mark.parametrize("kind", ["torn-tail", "flip-log", "truncate-log"])
def test_damaged_log_is_noticed_and_refilled(kind: str) -> None:
    """S0.3: records promised by the mark are gone; the replica recovers from the others."""
    world = World()
    world.write_until(lambda: len(world.answers) >= 20)
    world.run(500.0)
    node = world.nodes()[0]
    before = len(list(node.log.records(world.channel)))
    heal = world.inject(kind)
    assert len(list(node.log.records(world.channel))) < before
    heal()
    assert node.runner is not None
    assert node.runner.channels[world.channel].core.is_recovering
    world.run(3_000.0)
    assert not node.runner.channels[world.channel].core.is_recovering
    assert len(list(node.log.records(world.channel))) >= before
    calm_again(world, heal)


@pytest.mark.parametrize("kind", ["flip-table", "truncate-table"])
def test_damaged_table_is_rebuilt_from_the_log(kind: str) -> None:
    """The rows are gone with the store, and all there again after the restart."""
    world = World()
    world.write_until(lambda: len(world.answers) >= 5)
    node = world.nodes()[0]
    rows = node.tables.content_hash(world.channel)
    heal = world.inject(kind)
    assert node.tables.content_hash(world.channel)[1] == 0
    heal()
    world.run(1_000.0)
    assert node.tables.content_hash(world.channel)[:2] == rows[:2]
    calm_again(world, heal)


@pytest.mark.parametrize("kind", ["wipe", "flip-mark", "flip-identity"])
def test_node_without_its_store_never_comes_back(kind: str) -> None:
    """S0.1: it needs a new id; the others go on without it."""
    world = World()
    heal = world.inject(kind)
    heal()
    world.run(5_000.0)
    assert world.up() == ["n2", "n3"]
    assert world.events("refused")
    before = len(world.answers)
    world.write_until(lambda: len(world.answers) >= before + 3)
    assert world.answers[-1].outcome is Outcome.OK
    assert world.cluster.replicas_are_equal() or world.cluster.every_channel_has_a_leader()
    with pytest.raises(FaultUnavailableError, match="does not run any more"):
        world.inject(kind)


def test_nodes_with_each_others_stores_refuse_to_start() -> None:
    """Both stay out until the stores are where they belong."""
    world = World()
    heal = world.inject("swap-stores")
    world.run(2_000.0)
    assert len(world.up()) == 1
    assert {event["node"] for event in world.events("refused")} == set(world.target.nodes) - set(
        world.up()
    )
    calm_again(world, heal)


def test_second_damaged_store_is_not_run() -> None:
    """With two damaged stores acknowledged records may rightly be gone."""
    world = World()
    world.target.damage("n1", kind="flip", file="log")
    with pytest.raises(FaultUnavailableError, match="second damaged"):
        world.target.damage("n2", kind="flip", file="log")


# --- clocks, clients, operators -------------------------------------------------------------------


def clocks(world: World) -> list[tuple[float, float]]:
    """(monotonic, wall) of every node."""
    found = []
    for node in world.nodes():
        assert node.runner is not None
        found.append((float(node.clock.now_ms()), float(node.runner.wall_ms())))
    return found


@pytest.mark.parametrize(
    ("kind", "monotonic", "wall"),
    [
        ("clock-forward", 11_000.0, 11_000.0),
        ("clock-back", 1_000.0, -9_000.0),
        ("clock-slow", 500.0, 1_000.0),
        ("clock-fast", 2_000.0, 1_000.0),
    ],
)
def test_clock_of_one_node_is_off(kind: str, monotonic: float, wall: float) -> None:
    """A second later the monotonic and the wall clock of one node show this much more."""
    world = World()
    before = clocks(world)
    heal = world.inject(kind)
    world.run(1_000.0)
    passed = [(b[0] - a[0], b[1] - a[1]) for a, b in zip(before, clocks(world), strict=True)]
    off = [(m, w) for m, w in passed if abs(m - 1_000.0) > 10.0 or abs(w - 1_000.0) > 10.0]
    assert len(off) == 1
    assert off[0] == pytest.approx((monotonic, wall), abs=5.0)
    calm_again(world, heal)


def test_strobing_clocks_are_all_off() -> None:
    """Every clock jumps and runs at a rate of its own."""
    world = World()
    before = clocks(world)
    heal = world.inject("clock-strobe")
    world.run(1_000.0)
    passed = [b[0] - a[0] for a, b in zip(before, clocks(world), strict=True)]
    assert len({round(p) for p in passed}) == 3
    assert all(abs(p - 1_000.0) > 1.0 for p in passed)
    calm_again(world, heal)


def test_step_down_moves_a_leader() -> None:
    """Somebody else leads a channel soon afterwards."""
    world = World()
    before = world.target.leaders()
    heal = world.inject("step-down")
    world.wait(5_000.0, lambda: len(world.target.leaders()) == 2)
    world.run(1_500.0)
    assert world.target.leaders() != before
    calm_again(world, heal)


def test_dead_client_leaves_its_write_in_doubt() -> None:
    """Its write is UNKNOWN, and whoever comes after it starts a session of its own."""
    world = World()
    world.write()
    heal = world.inject("kill-client")
    assert world.answers[-1].outcome is Outcome.UNKNOWN
    assert not world.client.has_acknowledged
    calm_again(world, heal)
    with pytest.raises(FaultUnavailableError, match="at work"):
        world.inject("kill-client")


def test_publisher_that_dies_reaches_one_follower_only() -> None:
    """S5.5: one replica holds the payload, the leader does not, the write is UNKNOWN."""
    world = World()
    heal = world.inject("publish-to-one")
    begin = world.cluster.scheduler.now_ms
    world.write()
    assert world.answers[-1].outcome is Outcome.UNKNOWN
    world.run(200.0)
    reached = [
        event.fields["node"]
        for event in world.cluster.events.messages
        if event.at_ms >= begin and event.fields["from"] == "c0"
    ]
    assert len(reached) == 1
    assert reached[0] != world.leader()
    calm_again(world, heal)


def test_order_to_reach_one_that_no_write_met_is_not_run() -> None:
    """A client that published nothing lost nothing."""
    world = World()
    heal = world.inject("publish-to-one")
    with pytest.raises(FaultUnavailableError, match="published nothing"):
        heal()


def test_repeated_publish_is_answered_with_the_same_place() -> None:
    """S4.5: the second ack names the first one's seq, and nothing is committed twice."""
    world = World()
    commits = world.cluster.oracle.commits
    acks = message_count(world, "PubAck")
    heal = world.inject("publish-again")
    world.run(500.0)
    assert message_count(world, "PubAck") > acks
    assert world.cluster.oracle.commits == commits
    calm_again(world, heal)


def message_count(world: World, kind: str) -> int:
    """How many messages of this kind arrived."""
    return sum(event.fields["kind"] == kind for event in world.cluster.events.messages)


def test_every_fault_has_its_effect_shown_here() -> None:
    """A fault in the catalogue without a test of its effect would be a name only."""
    text = Path(__file__).read_text(encoding="utf-8")
    missing = [kind for kind in CATALOGUE if f'"{kind}"' not in text]
    assert missing == []
