"""The elector whose leader is named beforehand."""

from __future__ import annotations

import pytest

from raftstore.election.fixed_elector import fixed_elector_factory
from raftstore.errors import ElectionError
from raftstore.types import Role, Term
from tests.unit.election.election_hosts import (
    CHANNEL,
    A,
    B,
    C,
    RecordingHost,
    announce,
    history,
    stale,
    step_down_notice,
    vote_request,
)


def fixed(host, term=3, leader=A):
    """An elector of ``host`` that knows the leader."""
    return fixed_elector_factory(leader)(host, CHANNEL, Term(term), None)


def test_named_replica_leads_a_new_term_when_asked_to():
    """S2.1: after each restart it leads a term of its own, stored before it is sent."""
    host = RecordingHost()
    elect = fixed(host)
    assert (elect.role, elect.next_deadline_ms()) == (Role.FOLLOWER, None)
    elect.suspect(0, 5)
    elect.poll(4)
    assert elect.role is Role.FOLLOWER
    elect.poll(5)
    assert (elect.role, elect.leader, elect.term, elect.voted_for) == (Role.LEADER, A, 4, A)
    assert host.calls == [
        ("persist", 4, A),
        ("role", 4, Role.LEADER, A),
        ("send", B, announce(4)),
        ("send", C, announce(4)),
    ]
    elect.suspect(9, 0)
    assert elect.next_deadline_ms() is None


def test_named_replica_counts_the_term_of_its_last_record():
    """S1.5: its records' term is never ahead of it."""
    elect = fixed(RecordingHost(end=history(8, 1)))
    elect.suspect(0, 0)
    elect.poll(0)
    assert elect.term == 9


def test_named_replica_waits_while_recovering():
    """S0.3: may_vote() False means no leading."""
    host = RecordingHost(healthy=False, backoff=300)
    elect = fixed(host)
    elect.suspect(0, 0)
    elect.poll(0)
    assert (elect.role, elect.next_deadline_ms()) == (Role.FOLLOWER, 300)
    host.healthy = True
    elect.poll(300)
    assert elect.role is Role.LEADER


def test_named_replica_takes_the_next_term_after_a_higher_one():
    """S1.4: deposed by a term, it leads a later one at the following poll."""
    host = RecordingHost()
    elect = fixed(host)
    elect.suspect(0, 0)
    elect.poll(0)
    elect.on_message(B, stale(9), 0)
    assert (elect.role, elect.term, elect.next_deadline_ms()) == (Role.FOLLOWER, 9, 0)
    elect.poll(0)
    assert (elect.role, elect.term) == (Role.LEADER, 10)


def test_others_follow_the_named_leader_and_never_stand():
    """No votes: a suspicion changes nothing."""
    host = RecordingHost(me=B)
    elect = fixed(host)
    elect.suspect(0, 0)
    elect.poll(0)
    assert (elect.role, elect.next_deadline_ms()) == (Role.FOLLOWER, None)
    elect.on_message(A, announce(4), 0)
    elect.on_message(C, vote_request(9, history(9, 9)), 0)
    assert (elect.leader, elect.term, elect.voted_for) == (A, 4, None)
    assert host.take() == [("persist", 4, None)]


def test_stale_announcement_is_answered_with_the_term():
    """S1.4: a past term is refused, and the answer says so."""
    host = RecordingHost(me=B)
    elect = fixed(host, term=9)
    elect.on_message(A, announce(4), 0)
    assert host.take() == [("send", A, stale(9))]


def test_other_leaders_are_a_mistake_of_the_configuration():
    """Two names in one cluster must not go on."""
    elect = fixed(RecordingHost(me=B))
    with pytest.raises(ElectionError, match="give every node the same name"):
        elect.on_leader(C, Term(4), 0)


def test_step_down_is_told_and_lasts_until_the_next_suspicion():
    """The engine's step-down works; a transfer has nobody to go to."""
    host = RecordingHost()
    elect = fixed(host)
    elect.suspect(0, 0)
    elect.poll(0)
    host.take()
    elect.transfer(B)
    elect.step_down("test")
    assert (elect.role, elect.leader, elect.term) == (Role.FOLLOWER, None, 4)
    assert host.sent() == [(B, step_down_notice(4)), (C, step_down_notice(4))]
    follower = fixed(RecordingHost(me=B))
    follower.on_leader(A, Term(4), 0)
    follower.on_message(A, step_down_notice(4), 0)
    assert follower.leader is None
    assert not elect.evict()


def test_named_replica_never_stands_and_persists_a_term_once():
    """The named replica never stands as a candidate, and it stores its term once."""
    host = RecordingHost()
    elect = fixed(host)
    elect.suspect(0, 0)
    assert not elect.is_standing
    elect.poll(0)
    elect.step_down("test")
    assert [call for call in host.calls if call[0] == "persist"] == [("persist", 4, A)]
