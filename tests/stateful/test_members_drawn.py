"""Members of a channel change in drawn worlds, and no rule is broken (``tests.member_world``)."""

from __future__ import annotations

import pytest

from tests.member_world import run


@pytest.mark.slow
@pytest.mark.parametrize("part", range(4))
def test_members_change_in_drawn_worlds(part: int) -> None:
    """S8: joins, moves, cancels and second lives, with crashes, elections and lost messages: one
    leader a term, nothing committed is lost or cut, reads are fresh, and every order ends."""
    ended = sum(run(seed).done_orders for seed in range(1 + 5 * part, 6 + 5 * part))
    assert ended > 0


@pytest.mark.slow
def test_witnesses_and_readers_change_in_drawn_worlds() -> None:
    """W1 to W6: the same with roles, and a majority of each voter set holds what is committed,
    whatever its witnesses have trimmed."""
    worlds = [run(seed, has_roles=True) for seed in range(1, 11)]
    assert sum(world.done_orders for world in worlds) > 0
    assert sum(world.trims for world in worlds) > 0
    assert sum(world.skips for world in worlds) > 0


@pytest.mark.slow
@pytest.mark.parametrize("seed", [339, 649])
def test_new_voters_hold_everything_when_the_joint_configuration_ends(seed: int) -> None:
    """W2: not before: one is late (339), or the leader takes the change back, counts by the old
    voters alone, and so commits the joint record without them (649, M8)."""
    assert run(seed, has_roles=True).done_orders > 0


@pytest.mark.slow
def test_leader_that_is_cut_off_need_not_have_what_a_later_one_commits() -> None:
    """The rule is about the term in which a record is committed (O2): here records of term 1 are
    committed in term 3, while the leader of term 2 is cut off and never had them."""
    assert run(1533).done_orders > 0
