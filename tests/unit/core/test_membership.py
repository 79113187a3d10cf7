"""The next step is legal whatever is ordered and however far a change is, and orders end (M8)."""

from __future__ import annotations

from itertools import combinations, product

import pytest

from raftstore.core.membership import (
    MemberView,
    Situation,
    Stage,
    Step,
    is_legal,
    is_open,
    next_step,
    stage_of,
)
from raftstore.types import ChangeTarget, ChannelConfig, NodeId, ReplicaId, ReplicaNumber
from tests.core_world import N1, N2, N3
from tests.unit.core.change_bench import N4, short, target

NODES = (N1, N2, N3, N4)
LIVE = dict.fromkeys(NODES, MemberView(is_live=True))
REPLACE = target(N1, N2, N4, new=(N4,))
TRIO = ChannelConfig(((N1, N2, N3),))
LEARNING = ChannelConfig(((N1, N2, N3),), (N4,), {N4: ReplicaNumber(7)}, 7)
JOINT = ChannelConfig(((N1, N2, N3), (N1, N2, N4)), (), {N4: ReplicaNumber(7)}, 7)


def situation(config: ChannelConfig, ordered: ChangeTarget | None, **other) -> Situation:
    """A leader n1 that may take a step."""
    fields = {"is_committed": True, "is_own_term": True, "views": LIVE, "may_hand_over": False}
    return Situation(config=config, target=ordered, me=ReplicaId(N1), **{**fields, **other})


def sets_of(nodes: tuple[NodeId, ...]) -> list[tuple[NodeId, ...]]:
    """All of their non-empty subsets."""
    return [each for size in range(1, len(nodes) + 1) for each in combinations(nodes, size)]


@pytest.mark.parametrize("voters", sets_of(NODES))
def test_every_order_is_reached_by_legal_steps(voters: tuple[NodeId, ...]) -> None:
    """M8: from any voters to any others, one replica at a time, and the last record ends it."""
    for wanted, learners in product(sets_of(NODES), ((), (N3,), (N4,))):
        if set(learners) & set(wanted):
            continue
        ordered = target(*wanted, learners=learners, new=set(NODES) - set(voters))
        config = ChannelConfig((voters,))
        for _ in range(30):
            step = next_step(situation(config, ordered))
            if step.config is None:
                break
            assert is_legal(config, step.config, is_committed=True), (config, step.config)
            config = step.config
        assert step == Step()
        assert (set(config.voters), set(config.learners)) == (set(wanted), set(learners))
        assert (config.change, config.ended, config.is_joint) == (7, True, False)
        assert set(config.numbers) == (set(wanted) | set(learners)) - set(voters)


@pytest.mark.parametrize("voters", sets_of(NODES))
def test_every_order_ends_wherever_it_is_cancelled(voters: tuple[NodeId, ...]) -> None:
    """B2, B3: by a legal record that ends it, without its learners."""
    for wanted in sets_of(NODES):
        new = set(NODES) - set(voters)
        ordered = target(*wanted, new=new)
        config, passed = ChannelConfig((voters,)), [ChannelConfig((voters,))]
        while (after := next_step(situation(config, ordered)).config) is not None:
            config = after
            passed.append(after)
        for begun in passed[:-1]:
            config = begun
            while (
                after := next_step(
                    situation(config, target(*wanted, new=new, cancelled=True))
                ).config
            ) is not None:
                assert is_legal(config, after, is_committed=True), (config, after)
                config = after
            assert (config.change, config.ended, config.is_joint) == (7, True, False)
            assert config.learners == ()
            if begun.is_joint:
                assert set(config.voters) == set(begun.voter_sets[0])


def test_nothing_follows_what_is_not_committed() -> None:
    """M7: except the way back from a joint record of the leader's own term (M8)."""
    for config, ordered in product((TRIO, LEARNING, JOINT), (None, REPLACE)):
        step = next_step(situation(config, ordered, is_committed=False))
        assert step.config is None
        assert step.waits_for
    undo = target(N1, N2, N4, new=(N4,), cancelled=True)
    step = next_step(situation(JOINT, undo, is_committed=False))
    assert step.config is not None
    assert short(step.config) == "123+4"
    assert is_legal(JOINT, step.config, is_committed=False)
    step = next_step(situation(JOINT, undo, is_committed=False, is_own_term=False))
    assert step.config is None


@pytest.mark.parametrize(
    ("config", "ordered"),
    [
        (ChannelConfig(((N1, N2, N3),), change=8), REPLACE),
        (ChannelConfig(((N1, N2, N3),), change=8, ended=True), REPLACE),
        (ChannelConfig(((N1, N2, N3),), change=7, ended=True), REPLACE),
        (
            ChannelConfig(((N1, N2, N3),), change=7, ended=True),
            target(N1, N2, N4, new=(N4,), cancelled=True),
        ),
        (LEARNING, target(N1, N2, change=6)),
        (LEARNING, target(N1, N2, N3, change=6, cancelled=True)),
    ],
)
def test_orders_of_an_old_catalog_are_ignored(config, ordered) -> None:
    """B2: below the change of the newest configuration, or ended by one."""
    assert not is_open(config, ordered)
    assert next_step(situation(config, ordered)).config is None


def test_unfinished_change_waits_for_its_order() -> None:
    """B2: the copy of the catalog here is of the time before it."""
    step = next_step(situation(LEARNING, None))
    assert step.config is None
    assert "order 7" in step.waits_for
    assert next_step(situation(TRIO, None)) == Step()


@pytest.mark.parametrize(
    ("silent", "goes_on"),
    [((N2,), True), ((N4,), True), ((N3,), True), ((N2, N3), False), ((N2, N4), False)],
)
def test_two_sets_need_a_live_majority_each(silent: tuple[NodeId, ...], goes_on: bool) -> None:
    """M10: each of the two would else commit nothing."""
    views = {**LIVE, **dict.fromkeys(silent, MemberView(is_live=False))}
    step = next_step(situation(LEARNING, REPLACE, views=views))
    assert step.config == (JOINT if goes_on else None)
    assert ("too few voters" in step.waits_for) != goes_on


def test_leader_that_is_to_leave_hands_over_if_it_may() -> None:
    """M26: before two sets are in force, and not for ever."""
    ordered = target(N2, N3, N4, new=(N4,))
    step = next_step(situation(LEARNING, ordered, may_hand_over=True))
    assert (step.config, step.hands_over) == (None, True)
    step = next_step(situation(LEARNING, ordered))
    assert step.config is not None
    assert short(step.config) == "123/234"


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (TRIO, ChannelConfig(((N1, N2, N4),), change=7)),
        (TRIO, ChannelConfig(((N1, N2),), change=7)),
        (TRIO, ChannelConfig(((N1, N2, N3), (N1, N2, N4)), change=7)),
        (TRIO, ChannelConfig(((N1, N2, N3),), (N4, NodeId("n5")), change=7)),
        (LEARNING, ChannelConfig(((N1, N2, N3), (N1, N4)), change=7)),
        (LEARNING, ChannelConfig(((N1, N2), (N1, N2, N4)), (), LEARNING.numbers, 7)),
        (LEARNING, ChannelConfig(((N1, N2, N3), (N1, N2, N4)), (), {}, 7)),
        (LEARNING, ChannelConfig(((N1, N2, N3),), change=6)),
        (JOINT, ChannelConfig(((N1, N3, N4),), (), JOINT.numbers, 7)),
        (JOINT, ChannelConfig(((N1, N2, N4),), (), {}, 7)),
        (JOINT, ChannelConfig(((N1, N2, N3), (N1, N2, N4)), (), JOINT.numbers, 7)),
        (ChannelConfig(((N1, N2, N3),), change=7, ended=True), LEARNING),
    ],
)
def test_other_steps_are_not_legal(before: ChannelConfig, after: ChannelConfig) -> None:
    """M8: voters change by two sets, one at a time, by number, and an order is not begun again."""
    assert not is_legal(before, after, is_committed=True)


def test_nothing_but_the_way_back_is_legal_behind_what_is_not_committed() -> None:
    """M7, M8."""
    final = ChannelConfig(((N1, N2, N4),), (), JOINT.numbers, 7, ended=True)
    assert is_legal(JOINT, final, is_committed=True)
    assert not is_legal(JOINT, final, is_committed=False)
    assert not is_legal(TRIO, LEARNING, is_committed=False)


def test_stages_are_told_by_log_and_order() -> None:
    """For status: nothing is remembered between two steps."""
    final = ChannelConfig(((N1, N2, N4),), (), JOINT.numbers, 7, ended=True)
    shown = [
        stage_of(config, ordered, is_committed=is_committed)
        for config, ordered, is_committed in (
            (TRIO, None, True),
            (TRIO, REPLACE, True),
            (LEARNING, REPLACE, True),
            (JOINT, None, True),
            (final, REPLACE, False),
            (final, REPLACE, True),
        )
    ]
    assert shown == [
        Stage.NONE,
        Stage.WAITING,
        Stage.LEARNER,
        Stage.JOINT,
        Stage.FINAL,
        Stage.NONE,
    ]
