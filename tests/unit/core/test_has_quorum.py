"""One rule for elections, commits and reads: a majority of each voter set in force."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from raftstore.core.quorum import has_quorum
from raftstore.types import ChannelConfig
from tests.unit.election.election_hosts import OUTSIDER, A, B, C, D, E

voters = st.lists(st.sampled_from([A, B, C, D, E]), min_size=1, unique=True).map(tuple)
ballots = st.frozensets(st.sampled_from([A, B, C, D, E, OUTSIDER]))


def test_quorum_is_a_majority_of_distinct_voters():
    """Half of the voters is no quorum, one more is (S1.7)."""
    four = ChannelConfig(voter_sets=((A, B, C, D),))
    assert not has_quorum(four, {A, B})
    assert has_quorum(four, {A, B, C})


def test_quorum_ignores_learners_and_outsiders():
    """S3.6, S1.3: votes from outside the voter set never count."""
    config = ChannelConfig(voter_sets=((A, B, C),), learners=(D, E))
    assert not has_quorum(config, {A, D, E, OUTSIDER})


def test_quorum_counts_a_voter_listed_twice_once():
    """A repeated name neither adds a vote nor raises the number needed."""
    config = ChannelConfig(voter_sets=((A, A, B, C),))
    assert not has_quorum(config, {A})
    assert has_quorum(config, {A, B})


def test_quorum_needs_both_majorities_while_joint():
    """S1.3: while two sets are in force, neither of them can decide alone."""
    joint = ChannelConfig(voter_sets=((A, B, C), (C, D, E)))
    assert not has_quorum(joint, {A, B, C})
    assert not has_quorum(joint, {C, D, E})
    assert has_quorum(joint, {A, C, D})


def test_quorum_does_not_exist_without_voters():
    """An empty configuration can elect nobody."""
    assert not has_quorum(ChannelConfig(voter_sets=()), {A})
    assert not has_quorum(ChannelConfig(voter_sets=((),)), {A})


@given(sets=st.lists(voters, min_size=1, max_size=2), one=ballots, other=ballots)
def test_quorums_always_share_a_voter(sets, one, other):
    """Two quorums of one configuration intersect, which is what makes one vote per term enough."""
    config = ChannelConfig(voter_sets=tuple(sets))
    if has_quorum(config, one) and has_quorum(config, other):
        assert one & other & frozenset(config.voters)
