"""The members of the metadata channel: all nodes, three or five of them voters (M30)."""

from __future__ import annotations

import itertools

import pytest

from raftstore.policy.metadata_members import metadata_target
from raftstore.types import ChangeTarget, ChannelConfig, NodeId, ReplicaNumber, Seq

NODES = tuple(NodeId(f"n{number}@" + str(number) * 32) for number in range(1, 9))
N1, N2, N3, N4, N5, N6, N7, N8 = NODES
FOUNDERS = (N1, N2, N3)


def target(
    config: ChannelConfig,
    *,
    joined: tuple[NodeId, ...] = (),
    leaving: tuple[NodeId, ...] = (),
    retired: tuple[NodeId, ...] = (),
    away: tuple[NodeId, ...] = (),
    founders: tuple[NodeId, ...] = FOUNDERS,
    hosting: tuple[NodeId, ...] = (),
) -> ChangeTarget | None:
    """With the numbers 11, 12, … for those that joined."""
    numbers = {node: Seq(11 + at) for at, node in enumerate(joined)}
    nodes = [node for node in (*founders, *joined) if node not in retired]
    gone = {*leaving, *retired}
    return metadata_target(
        config, nodes, numbers, gone, lambda node: node not in away, Seq(50), hosts=lambda: hosting
    )


def after(found: ChangeTarget) -> ChannelConfig:
    """The configuration that ends the change."""
    return ChannelConfig((found.voters,), found.learners, found.numbers, found.change, ended=True)


def settled(config: ChannelConfig, **how: tuple[NodeId, ...]) -> ChannelConfig:
    """The configuration after all changes; each replaces one voter at most (M8)."""
    for _ in range(10):
        found = target(config, **how)
        if found is None:
            return config
        before = set(config.voters)
        assert len(before - set(found.voters)) <= 1
        assert len(set(found.voters) - before) <= 1
        config = after(found)
    raise AssertionError(f"no end of changes: {config}")


def test_cluster_of_founders_keeps_what_it_began_with() -> None:
    """An upgrade changes the members of no cluster, whatever their number."""
    for founders in (NODES[:1], NODES[:2], NODES[:3], NODES[:4], NODES):
        assert target(ChannelConfig((founders,)), founders=founders, away=(N1,)) is None


def test_node_that_joined_becomes_a_learner_with_its_number() -> None:
    """B4: the record by which it joined is the order, and its seq the number."""
    found = target(ChannelConfig((FOUNDERS,)), joined=(N4,))
    assert found == ChangeTarget(50, FOUNDERS, (N4,), {N4: ReplicaNumber(11)})
    assert target(after(found), joined=(N4,)) is None


def test_learner_that_is_away_is_a_member_all_the_same() -> None:
    """It has just joined, and dials in a moment."""
    found = target(ChannelConfig((FOUNDERS,)), joined=(N4,), away=(N4,))
    assert found is not None
    assert found.learners == (N4,)


def test_draining_voter_gives_its_place_and_learns_on() -> None:
    """B4: its node needs the catalog until it has left."""
    config = settled(ChannelConfig((FOUNDERS,)), joined=(N4,), leaving=(N3,))
    assert (set(config.voters), config.learners) == ({N1, N2, N4}, (N3,))


def test_retired_voter_is_replaced_by_who_is_there() -> None:
    """The founders may be replaced one after the other until none is left."""
    config = ChannelConfig((FOUNDERS,))
    joined = (N4, N5, N6)
    for lost, new in zip(FOUNDERS, joined, strict=True):
        gone = FOUNDERS[: FOUNDERS.index(lost) + 1]
        here = joined[: joined.index(new) + 1]
        config = settled(config, joined=here, retired=gone)
        assert set(config.voters) == {*FOUNDERS, *here} - set(gone)
    assert config.numbers == {N4: 11, N5: 12, N6: 13}


def test_retired_voter_stays_while_nobody_can_take_its_place() -> None:
    """Two of three are a majority as long as both live; two of two need both as well, but one of
    them could not be replaced any more."""
    found = target(ChannelConfig((FOUNDERS,)), joined=(N4,), retired=(N3,), away=(N4,))
    assert found is not None
    assert set(found.voters) == set(FOUNDERS)


def test_draining_voter_that_holds_replicas_waits_for_another_one_in_its_place() -> None:
    """Two of three that drain, or all, would leave the catalog on one disk; their replicas wait
    for other nodes, too."""
    for leaving in (FOUNDERS, (N2, N3), (N3,)):
        config = settled(ChannelConfig((FOUNDERS,)), leaving=leaving, hosting=FOUNDERS)
        assert set(config.voters) == set(FOUNDERS)
    config = settled(ChannelConfig((FOUNDERS,)), leaving=(N2, N3), hosting=(N1, N2))
    assert set(config.voters) == {N1, N2}
    config = settled(ChannelConfig((FOUNDERS,)), leaving=(N3,), hosting=FOUNDERS, joined=(N4,))
    assert set(config.voters) == {N1, N2, N4}
    five = ChannelConfig((NODES[:5],), change=20, ended=True)
    config = settled(five, leaving=(N2, N3, N4, N5), founders=NODES[:5], hosting=NODES[:5])
    assert len(config.voters) == 3


def test_last_voter_keeps_the_catalog() -> None:
    """A cluster without tables may drain all of its nodes."""
    config = settled(ChannelConfig((FOUNDERS,)), leaving=FOUNDERS)
    assert len(config.voters) == 1


def test_three_voters_become_five_and_three_again() -> None:
    """M30: 3 to 5 nodes and back to 3, one step at a time."""
    grown = settled(ChannelConfig((FOUNDERS,)), joined=(N4, N5))
    assert set(grown.voters) == {N1, N2, N3, N4, N5}
    four = settled(grown, joined=(N4, N5), leaving=(N5,))
    assert len(four.voters) == 3
    assert N5 not in four.voters
    three = settled(four, joined=(N4, N5), retired=(N5,), leaving=(N4,))
    assert set(three.voters) == set(FOUNDERS)
    assert three.learners == (N4,)


def test_voter_too_many_is_taken_from_those_that_are_away() -> None:
    """It helps nobody there; the preferred leader goes last."""
    config = ChannelConfig((NODES[:4],), (N5,), change=7, ended=True)
    found = target(config, founders=NODES[:4], joined=(N5,), leaving=(N5,), away=(N2,))
    assert found is not None
    assert set(found.voters) == {N1, N3, N4}


def test_founding_nodes_that_have_not_registered_yet_stay_voters() -> None:
    """The catalog of a young cluster is empty."""
    found = metadata_target(
        ChannelConfig((FOUNDERS,)), [N1, N4], {N4: Seq(11)}, (), lambda _: True, Seq(50)
    )
    assert found is not None
    assert found.voters == FOUNDERS


def test_change_under_way_is_worked_on_until_it_has_ended() -> None:
    """A new leader takes it on from the log."""
    joint = ChannelConfig((FOUNDERS, (N1, N2, N4)), (), {N4: ReplicaNumber(11)}, 40)
    found = target(joint, joined=(N4,), leaving=(N3,))
    assert found is not None
    assert (found.change, found.voters, found.learners) == (40, (N1, N2, N4), (N3,))
    unended = ChannelConfig((FOUNDERS,), (N4,), {N4: ReplicaNumber(11)}, 40)
    found = target(unended, joined=(N4,))
    assert found is not None
    assert found.change == 40


def test_change_that_begins_is_numbered_above_all_before() -> None:
    """B2: else the log would take it for one of an old copy."""
    ended = ChannelConfig((FOUNDERS,), (), {}, 60, ended=True)
    found = target(ended, joined=(N4,))
    assert found is not None
    assert found.change == 61


@pytest.mark.parametrize("count", [1, 2, 3])
def test_majority_of_live_voters_is_never_given_up(count: int) -> None:
    """Some are away, drain or are gone: the voters of the next step have a live majority
    wherever the present ones do."""
    config = ChannelConfig((FOUNDERS,))
    for away in itertools.combinations((*FOUNDERS, N4), count):
        for leaving in itertools.combinations(FOUNDERS, count):
            found = target(config, joined=(N4,), leaving=leaving, away=away)
            live = [node for node in FOUNDERS if node not in away]
            if found is None or 2 * len(live) <= len(FOUNDERS):
                continue
            alive = [node for node in found.voters if node not in away]
            assert 2 * len(alive) > len(found.voters), (away, leaving)


def test_voter_comes_from_a_failure_domain_without_one_and_goes_from_a_crowded_one() -> None:
    """Among those that may; nobody who could stay is exchanged for it."""
    config = ChannelConfig((FOUNDERS,), (N4, N5), change=20, ended=True)
    domains = {N1: "a", N2: "b", N3: "c", N4: "a", N5: "c"}
    found = metadata_target(
        config, [N1, N2, N3, N4, N5], {N4: Seq(11), N5: Seq(12)}, {N3}, lambda _: True, Seq(50),
        domains=domains,
    )  # fmt: skip
    assert found is not None
    assert found.voters == (N1, N2, N5)
    config = ChannelConfig(((N1, N2, N3, N4, N5),), change=20, ended=True)
    nodes = [N1, N2, N3, N4]  # N5 was retired: three voters are enough for four nodes
    found = metadata_target(
        config, nodes, {N4: Seq(11)}, {N5}, lambda _: True, Seq(50), domains=domains
    )
    assert found is not None
    assert found.voters == (N1, N2, N3, N4)
    config = ChannelConfig((found.voters,), change=50, ended=True)
    found = metadata_target(
        config, nodes, {N4: Seq(11)}, {N5}, lambda _: True, Seq(60), domains=domains
    )
    assert found is not None
    assert found.voters == (N1, N2, N3)
