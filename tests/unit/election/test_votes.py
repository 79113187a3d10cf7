"""The rules for granting votes: S1.1 to S1.3."""

from __future__ import annotations

import pytest

from raftstore.protocol.election import PreVote, RequestVote
from raftstore.types import Role
from tests.unit.election.election_hosts import (
    OUTSIDER,
    A,
    B,
    C,
    D,
    E,
    RecordingHost,
    announce,
    elector,
    granted,
    history,
    pre_granted,
    pre_vote,
    refused,
    stale,
    stand,
    vote_request,
)

# --- S1.1 the comparator ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("mine", "theirs", "votes"),
    [
        (history(3, 10), history(3, 10), True),
        (history(3, 10), history(3, 9), False),
        (history(3, 10), history(3, 11), True),
        (history(3, 10), history(2, 99), False),
        (history(2, 99), history(3, 1), True),
        (history(0, 0), history(0, 0), True),
    ],
)
def test_vote_goes_to_a_history_that_is_not_behind(mine, theirs, votes):
    """S1.1: term of the last record first, then its seq; equal is enough (NATS-027,
    BLOG-30)."""
    host = RecordingHost(end=mine)
    elect = elector(host)
    elect.on_message(B, pre_vote(4, theirs), 0)
    ((_, reply),) = host.sent()
    assert reply.granted is votes
    elect.on_message(B, vote_request(4, theirs), 0)
    ((_, reply),) = host.sent()
    assert reply.granted is votes
    assert elect.voted_for == (B if votes else None)


def test_sequence_alone_would_elect_a_leader_without_a_committed_record():
    """S1.1's counter-example, played through.

    A led term 1 and wrote seqs 1..3 that reached nobody. B led term 2 and committed seq 1 and 2
    with C. By sequence alone A (3) beats C (2) and the committed records are lost; by term and
    sequence C refuses A, whatever A asks, and grants B. (GAP-01, NATS-209)
    """
    unacknowledged, committed = history(1, 3), history(2, 2)
    host = RecordingHost(me=C, end=committed)
    elect = elector(host, term=2)
    elect.on_message(A, pre_vote(3, unacknowledged), 0)
    elect.on_message(A, vote_request(3, unacknowledged), 0)
    assert elect.voted_for is None
    elect.on_message(B, vote_request(3, committed), 0)
    assert elect.voted_for == B


# --- S1.2 accepted history ----------------------------------------------------------------------


def test_vote_compares_with_the_accepted_history_of_the_moment():
    """S1.2: what was accepted since the last message counts, durable or not."""
    host = RecordingHost(end=history(3, 10))
    elect = elector(host)
    elect.on_message(B, pre_vote(4, history(3, 10)), 0)
    host.end = history(3, 11)
    elect.on_message(B, vote_request(4, history(3, 10)), 0)
    assert elect.voted_for is None


def test_candidate_asks_with_its_accepted_history():
    """S1.2: both rounds carry host.history()."""
    host = RecordingHost(end=history(3, 17))
    elect = elector(host)
    elect.suspect(0, 0)
    elect.poll(0)
    elect.on_message(B, pre_granted(4), 0)
    asked = [message for _, message in host.sent()]
    assert {type(message) for message in asked} == {PreVote, RequestVote}
    assert all(message.history == history(3, 17) for message in asked)


# --- S1.3 one vote per term, durable first, distinct voters -------------------------------------


def test_vote_is_given_once_per_term_and_stored_before_it_is_sent():
    """S1.3, S0.5: persist_vote precedes the grant; the second candidate is refused (GAP-04)."""
    host = RecordingHost()
    elect = elector(host)
    elect.on_message(B, vote_request(4, history(3, 10)), 0)
    elect.on_message(C, vote_request(4, history(9, 99)), 0)
    assert host.take() == [
        ("persist", 4, None),
        ("persist", 4, B),
        ("send", B, granted(4)),
        ("send", C, refused(4, term=4)),
    ]


def test_candidate_stores_its_own_vote_before_it_asks():
    """S1.3, S0.5: the request reveals a vote for oneself."""
    host = RecordingHost()
    elect = elector(host)
    elect.suspect(0, 0)
    elect.poll(0)
    host.take()
    elect.on_message(B, pre_granted(4), 0)
    request = vote_request(4, history(3, 10))
    assert host.take() == [("persist", 4, A), ("send", B, request), ("send", C, request)]


def test_candidate_refuses_rivals_of_its_term():
    """S1.3: its vote is its own."""
    host = RecordingHost()
    elect = elector(host)
    now = stand(elect, host)
    elect.on_message(C, vote_request(4, history(9, 99)), now)
    assert (host.sent(), elect.role) == ([(C, refused(4, term=4))], Role.CANDIDATE)


def test_vote_of_another_term_is_not_counted():
    """S1.3: a late grant of an older candidacy elects nobody."""
    host = RecordingHost()
    elect = elector(host)
    stand(elect, host)
    now = elect.next_deadline_ms() + host.backoff
    elect.poll(now)
    elect.on_message(B, pre_granted(5, term=4), now)
    assert elect.term == 5
    elect.on_message(B, granted(4), now)
    assert elect.role is Role.CANDIDATE
    elect.on_message(B, granted(5), now)
    assert elect.role is Role.LEADER


def test_votes_of_a_lost_candidacy_are_forgotten():
    """S1.3: votes are counted from zero in each term."""
    host = RecordingHost(voter_sets=((A, B, C, D, E),))
    elect = elector(host)
    now = stand(elect, host, helpers=2)
    elect.on_message(B, granted(4), now)
    elect.on_message(C, stale(6), now)
    elect.poll(elect.next_deadline_ms())
    for voter in (B, C):
        elect.on_message(voter, pre_granted(7), now)
    elect.on_message(C, granted(7), now)
    assert (elect.role, elect.term) == (Role.CANDIDATE, 7)


def test_joint_configuration_needs_both_majorities_in_both_rounds():
    """S1.3: while two voter sets are in force, pre-votes and votes need a majority of each."""
    host = RecordingHost(voter_sets=((A, B, C), (C, D, E)))
    elect = elector(host)
    elect.suspect(0, 0)
    elect.poll(0)
    for voter in (B, C):
        elect.on_message(voter, pre_granted(4), 0)
    assert elect.role is Role.FOLLOWER
    elect.on_message(D, pre_granted(4), 0)
    assert elect.role is Role.CANDIDATE
    for voter in (D, E):
        elect.on_message(voter, granted(4), 0)
    assert elect.role is Role.CANDIDATE
    elect.on_message(B, granted(4), 0)
    assert elect.role is Role.LEADER


def test_pre_votes_of_outsiders_do_not_count():
    """S1.3: a pre-vote round too is decided by distinct voters."""
    host = RecordingHost(voter_sets=((A, B, C, D, E),))
    elect = elector(host)
    elect.suspect(0, 0)
    elect.poll(0)
    for sender in (B, B, OUTSIDER, A):
        elect.on_message(sender, pre_granted(4), 0)
    assert elect.role is Role.FOLLOWER


def test_single_voter_elects_itself_without_messages():
    """A channel of one replica has a leader as soon as its vote is stored."""
    host = RecordingHost(voter_sets=((A,),))
    elect = elector(host)
    elect.suspect(0, 0)
    elect.poll(0)
    assert (elect.role, elect.leader, host.take()) == (Role.LEADER, A, [("persist", 4, A)])
    assert elect.next_deadline_ms() is None


def test_winner_announces_itself_to_every_member_after_its_vote():
    """The announcement (S0.5: behind the vote) goes to voters and learners."""
    host = RecordingHost(learners=(D,))
    elect = elector(host)
    now = stand(elect, host)
    elect.on_message(B, granted(4), now)
    assert host.roles() == [(4, Role.LEADER, A)]
    assert host.sent() == [(member, announce(4)) for member in (B, C, D)]
    assert elect.next_deadline_ms() is None


def test_learners_are_not_asked():
    """S3.6: learners have no vote to give."""
    host = RecordingHost(voter_sets=((A, B),), learners=(C, D))
    elect = elector(host)
    elect.suspect(0, 0)
    elect.poll(0)
    assert [to for to, _ in host.sent()] == [B]
