"""Worlds whose members change all along: which there are, what they do, and what they notice."""

from __future__ import annotations

import pytest

from raftstore.testing.campaign import run_seed
from raftstore.testing.invariants import InvariantError
from raftstore.testing.nemesis import KILLS, PARTITIONS
from raftstore.testing.options import MEMBERS_FROM, WITNESSES_FROM, draw_options, override
from raftstore.testing.sim_failpoints import MEMBER_FAILPOINTS
from raftstore.testing.sim_members import _check_next
from raftstore.testing.simulation import Simulation
from raftstore.types import ChannelConfig, NodeId, ReplicaNumber
from tests.unit.engine.catalog.test_hosting import World
from tests.unit.engine.engine_world import run

N1, N2, N3, N4 = (NodeId(f"n{number}@00") for number in (1, 2, 3, 4))
TRIO = ChannelConfig(((N1, N2, N3),), change=5)
CHANGES = {"member_changes": "yes"}


def test_worlds_of_known_seeds_keep_their_members() -> None:
    """Mutations and regressions name seeds: what happens in them stays."""
    assert not any(draw_options(seed).member_changes for seed in range(1, MEMBERS_FROM))
    drawn = [draw_options(seed) for seed in range(MEMBERS_FROM, MEMBERS_FROM + 200)]
    changing = [world for world in drawn if world.member_changes]
    assert 15 <= len(changing) <= 60
    assert all(world.durability == "fsync" for world in changing)
    assert not any(world.live_flip_percent for world in changing)


def test_world_that_is_asked_for_changes_is_made_fit_for_them() -> None:
    """The oracle of damage reckons with a copy on every node; other options stay as drawn."""
    seed = next(seed for seed in range(31, 900) if draw_options(seed).live_flip_percent)
    assert override(draw_options(seed), CHANGES).live_flip_percent == 0
    kept = override(draw_options(seed), {**CHANGES, "live_flip_percent": "5"})
    assert kept.live_flip_percent == 5


@pytest.mark.parametrize(
    ("after", "why"),
    [
        (ChannelConfig(((N1, N2, N4),), change=6), "no voter set stays"),
        (ChannelConfig(((N1, N2, N3),), numbers={N3: ReplicaNumber(6)}, change=6), "no voter set"),
        (ChannelConfig(((N1, N2, N3),), (N4,), change=4), "an order came back"),
        (ChannelConfig(((N1, N2, N3),), (N4,), change=5), "an order came back"),
    ],
)
def test_history_that_no_rule_allows_is_noticed(after: ChannelConfig, why: str) -> None:
    """Voters that change without a joint set, another life included, and orders that ended."""
    ended = ChannelConfig(TRIO.voter_sets, change=5, ended=True)
    with pytest.raises(InvariantError, match=why):
        _check_next(ended, after, 10)


def test_history_that_the_rules_allow_is_none_of_these() -> None:
    """Into two sets, and out of them to either side."""
    joint = ChannelConfig(((N1, N2, N3), (N1, N2, N4)), change=6)
    _check_next(TRIO, joint, 1)
    for group in joint.voter_sets:
        _check_next(joint, ChannelConfig((group,), change=6, ended=True), 2)


@pytest.mark.parametrize("failpoint", MEMBER_FAILPOINTS)
def test_move_goes_on_when_a_node_dies_at_any_place_of_it(failpoint: str) -> None:
    """M12, M14: the new replica opens again, the old one is deleted once, and the order ends."""
    world = World()
    leaving = next(node for node in world.members if node != world.leader().node)
    dying = world.stranger if failpoint == "replica.after-open" else leaving
    world.node(dying).failpoint = failpoint
    stays = [node for node in world.members if node != leaving]
    target = (*stays, world.stranger)
    seq = world.order_now(*target)
    run(world.cluster, 3_000)
    died = world.node(dying)
    assert [why for _, _, why in died.ends] == ["failpoint"], failpoint
    died.boot()
    run(world.cluster, 6_000)
    entry = world.catalog.changes[world.channel]
    assert entry.target is None
    assert entry.ended is not None
    assert (entry.ended.change, entry.ended.is_done) == (seq, True)
    hosts = [node.node for node in world.cluster.nodes.values() if world.hosts(node.node)]
    assert sorted(hosts) == sorted(target)
    assert world.node(leaving).log.removed(world.channel) is not None


@pytest.mark.slow
@pytest.mark.parametrize("seed", [101, 104])
def test_world_whose_members_change_holds_every_promise(seed: int) -> None:
    """S8: nodes join, drain, leave and are replaced, replicas move and orders are cancelled, under
    all other faults."""
    verdict = run_seed(seed, CHANGES)
    assert verdict.violation is None, (
        f"{verdict.violation}; replay: raftstore simulate --seed {seed} --set member_changes=yes"
    )
    assert verdict.faults["order"] + verdict.faults["join"] >= 4
    for kinds in (KILLS, PARTITIONS):
        assert verdict.faults.keys() & set(kinds)


def test_world_with_changes_goes_on_until_nodes_were_killed_and_parted_too() -> None:
    """S8: each of the three in every seed, however the faults are drawn."""
    world = Simulation(override(draw_options(MEMBERS_FROM), CHANGES))
    nemesis = world.nemesis
    assert not nemesis.has_killed_and_parted
    nemesis.kinds = {"crash": 3, "join": 1}
    assert not nemesis.has_killed_and_parted
    nemesis.kinds = {"one_way": 1, "weather": 9}
    assert not nemesis.has_killed_and_parted
    nemesis.kinds["failpoint"] = 1
    assert nemesis.has_killed_and_parted


def test_witnesses_are_drawn_from_a_seed_on() -> None:
    """Worlds that are known keep voters with rows alone; half of the later ones have witnesses."""
    drawn = {seed: draw_options(seed) for seed in range(MEMBERS_FROM, WITNESSES_FROM + 400)}
    changing = {seed: world for seed, world in drawn.items() if world.member_changes}
    having = [seed for seed, world in changing.items() if world.member_witnesses]
    assert having
    assert min(having) >= WITNESSES_FROM
    later = [seed for seed in changing if seed >= WITNESSES_FROM]
    assert 0.2 < len(having) / len(later) < 0.8
    assert not any(world.member_witnesses for world in drawn.values() if not world.member_changes)
