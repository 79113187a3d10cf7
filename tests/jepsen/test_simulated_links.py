"""Every simulated fault of links has its effect, and ends when it is healed."""

from __future__ import annotations

import pytest

from raftstore.protocol.publish import PubMsg
from raftstore.types import ChannelId, Guid, NodeId, RecordKind, Term
from tests.jepsen.fault_world import (
    CALM,
    PROBES,
    Pairs,
    World,
    calm_again,
    everyone,
)

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
    """A node that receives nothing still sends, one that sends nothing still receives."""
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
    # While it is listened to: a follower relays the write, so that it is soon done (S5.6).
    world.cluster.scheduler.after(100.0, world.write)
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
