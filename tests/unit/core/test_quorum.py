"""Majorities: distinct voters, both sets when joint, nobody else."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raftstore.core.quorum import has_quorum, is_only_witness, majority, quorum_seq, rows_seq
from raftstore.types import ChannelConfig, MemberRole, NodeId, Seq
from tests.core_world import N1, N2, N3, OUTSIDER, TRIO

JOINT = ChannelConfig(((N1, N2, N3), (N3, NodeId("n4"), NodeId("n5"))))


@pytest.mark.parametrize(("size", "needed"), [(1, 1), (2, 2), (3, 2), (4, 3), (5, 3), (7, 4)])
def test_majority_is_more_than_half(size: int, needed: int) -> None:
    """A majority is the smallest number above half (NATS-025)."""
    assert majority(size) == needed


def test_quorum_seq_is_what_the_second_of_three_holds() -> None:
    """With three voters the middle match is held by two."""
    assert quorum_seq(TRIO, {N1: Seq(7), N2: Seq(5), N3: Seq(2)}) == 5


def test_quorum_seq_counts_missing_voters_as_zero() -> None:
    """A voter without a report counts as holding nothing."""
    assert quorum_seq(TRIO, {N1: Seq(7)}) == 0


def test_quorum_seq_ignores_outsiders_and_learners() -> None:
    """S3.6: learners, removed nodes and nodes of no configuration are not counted."""
    config = ChannelConfig(((N1, N2, N3),), learners=(NodeId("n4"),))
    match = {N1: Seq(9), NodeId("n4"): Seq(9), OUTSIDER: Seq(9)}
    assert quorum_seq(config, match) == 0


def test_quorum_seq_needs_both_majorities_when_joint() -> None:
    """S3.1: while the configuration is joint, the weaker of both majorities counts."""
    match = {N1: Seq(9), N2: Seq(9), N3: Seq(9)}
    assert quorum_seq(JOINT, match) == 0
    assert quorum_seq(JOINT, {**match, NodeId("n4"): Seq(4)}) == 4


def test_quorum_is_impossible_without_voters() -> None:
    """An empty configuration elects and commits nothing."""
    assert quorum_seq(ChannelConfig(()), {N1: Seq(3)}) == 0
    assert quorum_seq(ChannelConfig(((),)), {N1: Seq(3)}) == 0
    assert not has_quorum(ChannelConfig(()), {N1})
    assert not has_quorum(ChannelConfig(((),)), {N1})


def test_has_quorum_needs_distinct_voters_of_every_set() -> None:
    """Confirmations count once per voter, in both sets when joint."""
    assert has_quorum(TRIO, {N1, N3})
    assert not has_quorum(TRIO, {N1, OUTSIDER})
    assert not has_quorum(JOINT, {N1, N2})
    assert has_quorum(JOINT, {N1, N3, NodeId("n5")})


@given(st.lists(st.integers(0, 50), min_size=1, max_size=7))
def test_quorum_seq_is_held_by_a_majority_and_the_next_is_not(seqs: list[int]) -> None:
    """The result is exactly the highest position that more than half have reached."""
    nodes = [NodeId(f"v{i}") for i in range(len(seqs))]
    held = quorum_seq(ChannelConfig((tuple(nodes),)), dict(zip(nodes, map(Seq, seqs), strict=True)))
    assert sum(seq >= held for seq in seqs) >= majority(len(seqs))
    assert sum(seq >= held + 1 for seq in seqs) < majority(len(seqs))


def test_w6_rows_are_kept_by_as_many_voters_with_rows_as_make_a_majority() -> None:
    """A witness's copy has none; of both voter sets when joint, and never with too few of them."""
    witness = ChannelConfig(((N1, N2, N3),), roles={N3: MemberRole.WITNESS})
    match = {N1: Seq(7), N2: Seq(5), N3: Seq(9)}
    assert rows_seq(witness, match) == 5
    assert rows_seq(witness, {N1: Seq(7), N3: Seq(9)}) == 0
    assert rows_seq(TRIO, match) == quorum_seq(TRIO, match) == 7
    n4, n5 = NodeId("n4"), NodeId("n5")
    joint = ChannelConfig(JOINT.voter_sets, roles={N3: MemberRole.WITNESS})
    assert rows_seq(joint, {**match, n4: Seq(4), n5: Seq(6)}) == 4
    assert rows_seq(joint, {**match, n4: Seq(8), n5: Seq(6)}) == 5
    two = ChannelConfig(((N1, N2, N3, n4),), roles=dict.fromkeys((N3, n4), MemberRole.WITNESS))
    assert rows_seq(two, {**match, n4: Seq(9)}) == 0
    assert rows_seq(ChannelConfig(()), match) == rows_seq(ChannelConfig(((),)), match) == 0


@pytest.mark.parametrize(
    ("configs", "is_only"),
    [
        ([ChannelConfig(((N1, N2, N3),), roles={N3: MemberRole.WITNESS})], True),
        (
            [
                ChannelConfig(((N1, N2, N3),), roles={N3: MemberRole.WITNESS}),
                ChannelConfig(((N1, N2, N3),), (OUTSIDER,), roles={N3: MemberRole.WITNESS}),
            ],
            True,
        ),
        ([TRIO], False),
        ([ChannelConfig(((N1, N2),), (N3,), roles={N3: MemberRole.WITNESS})], False),
        (
            [
                ChannelConfig(
                    ((N1, N2, N3, OUTSIDER),),
                    roles={N3: MemberRole.WITNESS, OUTSIDER: MemberRole.WITNESS},
                )
            ],
            False,
        ),
        (
            [
                ChannelConfig(((N1, N2, N3),), roles={N3: MemberRole.WITNESS}),
                ChannelConfig(((N1, N2, N3), (N1, OUTSIDER, N3)), roles={N3: MemberRole.WITNESS}),
            ],
            False,
        ),
    ],
    ids=["alone", "beside_a_learner", "none", "no_voter", "one_of_two", "joint"],
)
def test_only_witness_is_one_without_which_voters_with_rows_commit(
    configs: list[ChannelConfig], *, is_only: bool
) -> None:
    """W6: another witness, or voters that come, may be what a record was committed by instead."""
    assert is_only_witness(configs, N3) is is_only
