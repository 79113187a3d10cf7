"""When the members at a node's addresses are another cluster's, and when that is not certain."""

from __future__ import annotations

import pytest

from raftstore.node.bootstrap.foreign_cluster import ForeignCluster
from raftstore.storage.identity import Belonging
from raftstore.types import NodeId, node_id

OURS, THEIRS = b"our cluster id..", b"their cluster id"


def member(number: int) -> NodeId:
    """The id of founding member n1, n2, …"""
    return node_id(f"n{number}", bytes([number]) * 16)


def seen_by_n1(members: int) -> ForeignCluster:
    """Knowledge of n1, one of so many founding members, at the beginning: none yet."""
    all_of_them = tuple((member(at), f"127.0.0.1:{at}") for at in range(1, members + 1))
    return ForeignCluster(Belonging(member(1), OURS, all_of_them))


@pytest.mark.parametrize(("members", "fatal"), [(2, 1), (3, 2), (4, 2), (5, 3), (7, 4)])
def test_foreign_members_end_a_node_when_they_leave_no_quorum(members: int, fatal: int) -> None:
    """One fewer may be a mistake in an address; with them the node can never serve."""
    seen = seen_by_n1(members)
    for at in range(2, fatal + 1):
        seen.on_cluster_of(member(at), THEIRS)
    assert seen.verdict() is None
    seen.on_cluster_of(member(fatal + 1), THEIRS)
    assert seen.verdict() == THEIRS
    assert len(seen.members) == fatal


def test_foreign_members_end_no_node_that_met_its_own_cluster() -> None:
    """A wrong answer never stops a node that any peer accepted, before it or after it."""
    before, after = seen_by_n1(3), seen_by_n1(3)
    before.on_accepted()
    for at in (2, 3):
        before.on_cluster_of(member(at), THEIRS)
        after.on_cluster_of(member(at), THEIRS)
    after.on_cluster_of(member(2), OURS)
    assert (before.verdict(), after.verdict()) == (None, None)


def test_foreign_member_counts_once_and_only_while_it_is_foreign() -> None:
    """The same answer again proves nothing; a member without a cluster is not of another one."""
    seen = seen_by_n1(3)
    seen.on_cluster_of(member(2), THEIRS)
    seen.on_cluster_of(member(2), THEIRS)
    seen.on_cluster_of(member(1), THEIRS)
    seen.on_cluster_of(member(9), THEIRS)
    assert seen.verdict() is None
    seen.on_cluster_of(member(2), b"")
    seen.on_cluster_of(member(3), THEIRS)
    assert seen.verdict() is None
    assert seen.members == (member(3),)


def test_foreign_cluster_alone_among_founders_has_nobody_to_ask() -> None:
    """A cluster of one node is settled before it asks."""
    seen = seen_by_n1(1)
    assert seen.others == ()
    assert seen.is_settled(0)


def test_foreign_cluster_is_settled_when_no_answer_can_change_it() -> None:
    """Given members that never answer, the question is settled once their answers could not change
    it.
    """
    seen = seen_by_n1(3)
    assert not seen.is_settled(2)
    assert seen.is_settled(1)
    seen.on_cluster_of(member(2), THEIRS)
    assert not seen.is_settled(1)
    assert seen.is_settled(0)
    seen.on_cluster_of(member(3), THEIRS)
    assert seen.is_settled(0)
