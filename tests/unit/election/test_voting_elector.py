"""The rules of elections: S0.3, S1.1 to S1.8 and S9, one promise per test."""

from __future__ import annotations

import pytest

from raftstore.election.voting_elector import VotingElector
from raftstore.errors import ElectionError
from raftstore.messages import PreVote, PreVoteReply, RequestVote, StepDownNotice
from raftstore.types import Role, Term
from tests.unit.election.election_world import (
    SETTINGS,
    STRANGER,
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
    lead,
    node,
    pre_granted,
    pre_refused,
    pre_vote,
    refused,
    stale,
    stand,
    step_down_notice,
    transfer_now,
    vote_request,
)

# --- S1.1 the comparator ---------------------------------------------------------------------------


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
    """S1.1: term of the last record first, then its seq; equal is enough."""
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
    sequence C refuses A, whatever A asks, and grants B.
    """
    unacknowledged, committed = history(1, 3), history(2, 2)
    host = RecordingHost(me=C, end=committed)
    elect = elector(host, term=2)
    elect.on_message(A, pre_vote(3, unacknowledged), 0)
    elect.on_message(A, vote_request(3, unacknowledged), 0)
    assert elect.voted_for is None
    elect.on_message(B, vote_request(3, committed), 0)
    assert elect.voted_for == B


# --- S1.2 accepted history -------------------------------------------------------------------------


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


# --- S1.3 one vote per term, durable first, distinct voters ----------------------------------------


def test_vote_is_given_once_per_term_and_stored_before_it_is_sent():
    """S1.3, S0.5: persist_vote precedes the grant; the second candidate is refused."""
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


def test_pre_votes_of_strangers_do_not_count():
    """S1.3: a pre-vote round too is decided by distinct voters."""
    host = RecordingHost(voter_sets=((A, B, C, D, E),))
    elect = elector(host)
    elect.suspect(0, 0)
    elect.poll(0)
    for sender in (B, B, STRANGER, A):
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


# --- S1.4 terms ------------------------------------------------------------------------------------


def test_pre_vote_changes_nothing_at_the_voter():
    """S1.4: a pre-vote adopts no term and stores nothing, granted or not."""
    host = RecordingHost()
    elect = elector(host)
    elect.on_message(B, pre_vote(9, history(9, 9)), 0)
    elect.on_message(C, pre_vote(50, history(0, 0)), 0)
    assert (elect.term, elect.voted_for, elect.role) == (3, None, Role.FOLLOWER)
    assert host.take() == [
        ("send", B, pre_granted(9, term=3)),
        ("send", C, pre_refused(50, term=3)),
    ]


def test_pre_vote_round_changes_nothing_at_the_candidate():
    """Pre-vote: a replica that cannot win keeps its term for ever."""
    host = RecordingHost()
    elect = elector(host)
    elect.suspect(0, 0)
    for now in range(0, 5_000, 10):
        elect.poll(now)
    assert (elect.term, elect.role) == (3, Role.FOLLOWER)
    assert not [call for call in host.take() if call[0] == "persist"]


def test_pre_vote_of_a_past_term_is_answered_with_the_term():
    """A replica that is behind learns the term before it disturbs anybody."""
    host = RecordingHost()
    elect = elector(host, term=9)
    elect.on_message(B, pre_vote(4, history(9, 99)), 0)
    assert host.sent() == [(B, pre_refused(4, term=9))]
    behind = elector(host)
    behind.suspect(0, 0)
    behind.poll(0)
    behind.on_message(B, pre_refused(4, term=9), 0)
    assert (behind.term, behind.role) == (9, Role.FOLLOWER)
    behind.on_message(B, pre_granted(4), 0)
    behind.on_message(C, pre_granted(4), 0)
    assert behind.term == 9


def test_pre_vote_is_refused_while_the_leader_is_heard():
    """Stickiness: the leader must be silent for sticky_ms before anybody else is wanted."""
    host = RecordingHost(heard={B: 1_000})
    elect = elector(host)
    elect.on_leader(B, Term(3), 900)
    host.take()
    elect.on_message(C, pre_vote(4, history(3, 10)), 1_000 + SETTINGS.sticky_ms - 1)
    assert host.sent() == [(C, pre_refused(4, term=3))]
    elect.on_message(C, pre_vote(4, history(3, 10)), 1_000 + SETTINGS.sticky_ms)
    assert host.sent() == [(C, pre_granted(4, term=3))]


def test_higher_term_is_stored_before_it_is_answered():
    """S1.4: adopting comes before processing, also when the vote is refused."""
    host = RecordingHost()
    elect = elector(host)
    elect.on_message(B, vote_request(8, history(0, 0)), 0)
    assert host.take() == [("persist", 8, None), ("send", B, refused(8, term=8))]


@pytest.mark.parametrize(
    "message", [stale(8), refused(4, term=8), pre_refused(4, term=8), transfer_now(8)]
)
def test_higher_term_in_any_answer_deposes_a_leader(message):
    """S1.4: whoever shows a higher term ends the leadership, without getting a vote."""
    host = RecordingHost()
    elect = elector(host)
    lead(elect, host)
    elect.on_message(C, message, 0)
    assert (elect.term, elect.voted_for, elect.role) == (8, None, Role.FOLLOWER)
    assert host.take() == [("persist", 8, None)]


@pytest.mark.parametrize(
    "message",
    [stale(4), refused(4, term=4), pre_refused(5, term=4), step_down_notice(3), granted(3)],
)
def test_equal_or_lower_term_changes_nothing_at_a_leader(message):
    """S1.4: old messages are not news."""
    host = RecordingHost()
    elect = elector(host)
    lead(elect, host)
    elect.on_message(C, message, 0)
    assert (elect.term, elect.role, host.take()) == (4, Role.LEADER, [])


def test_observe_term_adopts_without_voting():
    """S1.4: the engine's fence; equal and lower terms are no news."""
    host = RecordingHost()
    elect = elector(host)
    for term in (3, 2, 7, 7):
        elect.observe_term(Term(term))
    assert host.calls == [("persist", 7, None), ("role", 7, Role.FOLLOWER, None)]
    assert (elect.term, elect.role) == (7, Role.FOLLOWER)


def test_leader_of_a_higher_term_is_followed():
    """S1.4: its term is stored first, then the host learns the leader."""
    host = RecordingHost()
    elect = elector(host)
    lead(elect, host)
    assert elect.on_leader(B, Term(6), 0)
    assert host.calls == [("persist", 6, None), ("role", 6, Role.FOLLOWER, B)]


def test_candidate_follows_the_winner_of_its_term():
    """A candidate that lost hears so from the leader and stops asking."""
    host = RecordingHost(heard={B: 50})
    elect = elector(host)
    stand(elect, host)
    elect.on_message(B, announce(4), 50)
    assert (elect.role, elect.leader, elect.next_deadline_ms()) == (Role.FOLLOWER, B, None)


def test_rival_of_a_known_leader_gets_no_vote_in_that_term():
    """A term that has a leader needs no other vote, even from a node that has not voted yet."""
    host = RecordingHost()
    elect = elector(host)
    elect.on_leader(B, Term(4), 0)
    host.take()
    elect.on_message(C, vote_request(4, history(9, 9)), 0)
    assert (elect.voted_for, host.sent()) == (None, [(C, refused(4, term=4))])


def test_leader_answers_a_lost_replica_with_an_announcement():
    """S1.8: a replica that asks for votes under a leader did not hear of it."""
    host = RecordingHost()
    elect = elector(host)
    lead(elect, host)
    elect.on_message(C, pre_vote(5, history(3, 10)), 0)
    assert host.sent() == [(C, pre_refused(5, term=4)), (C, announce(4))]
    elect.on_message(C, vote_request(3, history(3, 10)), 0)
    assert host.sent() == [(C, refused(3, term=4)), (C, announce(4))]
    elect.on_message(C, pre_vote(9, history(3, 10)), 0)
    assert host.sent() == [(C, pre_refused(9, term=4))]


@pytest.mark.parametrize("stepped_down", [False, True])
def test_second_leader_in_one_term_stops_the_node(stepped_down):
    """O1, S13: nobody may go on after seeing two leaders in one term, even if one gave up."""
    host = RecordingHost()
    elect = elector(host)
    lead(elect, host)
    if stepped_down:
        elect.step_down("test")
    with pytest.raises(ElectionError, match="two leaders in term 4"):
        elect.on_leader(B, Term(4), 0)


@pytest.mark.parametrize("message", [announce(4), step_down_notice(4)])
def test_second_leader_seen_by_a_follower_stops_the_node(message):
    """O1, S13: a witness stops too."""
    host = RecordingHost()
    elect = elector(host)
    elect.on_leader(B, Term(4), 0)
    with pytest.raises(ElectionError, match="two leaders in term 4"):
        elect.on_message(C, message, 0)


def test_winning_a_term_that_had_a_leader_stops_the_node():
    """O1, S13: a quorum for a second leader is impossible, so something lies."""
    host = RecordingHost()
    elect = elector(host)
    now = stand(elect, host)
    elect._state.term_leader = C
    with pytest.raises(ElectionError, match="two leaders in term 4"):
        elect.on_message(B, granted(4), now)


# --- S0.3, S1.6 who may vote and stand -------------------------------------------------------------


def test_recovering_replica_neither_votes_nor_stands():
    """S0.3: it may have acknowledged records that it no longer holds."""
    host = RecordingHost(healthy=False)
    elect = elector(host)
    elect.on_message(B, pre_vote(4, history(9, 9)), 0)
    elect.on_message(B, vote_request(4, history(9, 9)), 0)
    elect.suspect(0, 0)
    for now in range(0, 3_000, 50):
        elect.poll(now)
    assert (elect.term, host.take()) == (3, [])
    elect.on_leader(B, Term(5), 0)
    host.take()
    elect.on_message(B, transfer_now(5), 0)
    assert (elect.role, host.take()) == (Role.FOLLOWER, [])


def test_recovering_replica_does_not_repeat_a_vote():
    """S0.3: not even a vote that is on disk, and a candidacy in preparation ends."""
    host = RecordingHost(healthy=False)
    elect = elector(host, term=4, voted_for=B)
    elect.on_message(B, vote_request(4, history(3, 10)), 0)
    assert host.take() == []
    host.healthy = True
    elect.suspect(0, 0)
    elect.poll(0)
    host.healthy = False
    elect.on_message(B, pre_granted(5), 0)
    assert elect.term == 4


def test_recovering_replica_still_tells_its_term():
    """S0.3 forbids votes, not the answer that a term is past."""
    host = RecordingHost(healthy=False)
    elect = elector(host, term=9)
    elect.on_message(B, vote_request(4, history(3, 10)), 0)
    elect.on_message(B, pre_vote(4, history(3, 10)), 0)
    assert host.sent() == [(B, refused(4, term=9)), (B, pre_refused(4, term=9))]


def test_recovered_replica_stands():
    """S0.3: the candidacy waits, it is not forgotten."""
    host = RecordingHost(healthy=False)
    elect = elector(host)
    elect.suspect(0, 0)
    elect.poll(0)
    host.healthy = True
    elect.poll(elect.next_deadline_ms())
    assert isinstance(host.sent()[0][1], PreVote)


def test_catching_up_is_no_reason_to_refuse_or_not_to_stand():
    """S1.6: after a full restart all may be behind; only histories decide.

    The elector has no other input about the log than host.history(), so an empty replica votes
    for an empty candidate and stands itself.
    """
    host = RecordingHost(end=history(0, 0))
    elect = elector(host, term=0)
    elect.on_message(B, pre_vote(1, history(0, 0)), 0)
    elect.on_message(B, vote_request(1, history(0, 0)), 0)
    assert host.sent() == [(B, pre_granted(1, term=0)), (B, granted(1))]
    elect.poll(elect.next_deadline_ms())
    assert isinstance(host.sent()[0][1], PreVote)


def test_removed_member_stands_until_its_removal_is_committed():
    """Raft 4.2.2: it may hold the longest history; it asks the others and does not count itself."""
    host = RecordingHost(voter_sets=((B, C),), committed=False)
    elect = elector(host)
    elect.suspect(0, 0)
    elect.poll(0)
    elect.on_message(B, pre_granted(4), 0)
    assert elect.role is Role.FOLLOWER
    elect.on_message(C, pre_granted(4), 0)
    elect.on_message(B, granted(4), 0)
    assert elect.role is Role.CANDIDATE
    elect.on_message(C, granted(4), 0)
    assert elect.role is Role.LEADER


def test_removed_member_does_not_stand_once_its_removal_is_committed():
    """S8: nor does a learner."""
    host = RecordingHost(voter_sets=((B, C),), learners=(A,))
    elect = elector(host)
    elect.suspect(0, 0)
    for now in range(0, 3_000, 50):
        elect.poll(now)
    assert host.take() == []


def test_voter_votes_for_a_candidate_outside_its_own_view():
    """S8: the candidate counts by its configuration, the voter by nothing but history."""
    host = RecordingHost()
    elect = elector(host)
    elect.on_message(node("new"), vote_request(4, history(3, 10)), 0)
    assert elect.voted_for == node("new")


# --- timers, S1.8 ----------------------------------------------------------------------------------


def test_elector_has_no_timer_in_steady_state():
    """S1.8: nothing is armed at start, under a leader that lives, or while leading."""
    host = RecordingHost(heard={B: 100})
    elect = elector(host)
    assert elect.next_deadline_ms() is None
    elect.suspect(0, 50)
    assert elect.next_deadline_ms() == 50
    elect.on_leader(B, Term(4), 100)
    assert elect.next_deadline_ms() is None
    elect.poll(10_000)
    assert host.sent() == []


def test_suspicion_does_not_postpone_or_hasten_an_armed_candidacy():
    """A detector that repeats itself must not defeat the backoff, nor starve the candidacy."""
    host = RecordingHost()
    elect = elector(host)
    elect.suspect(0, 100)
    elect.suspect(50, 100)
    elect.suspect(60, 0)
    assert elect.next_deadline_ms() == 100


def test_lost_requests_are_repeated_until_answered():
    """Pre-votes and votes go again every resend_ms, only to those who did not grant."""
    host = RecordingHost(backoff=10_000, voter_sets=((A, B, C, D, E),))
    elect = elector(host)
    elect.suspect(0, 0)
    elect.poll(0)
    assert len(host.sent()) == 4
    elect.on_message(B, pre_granted(4), 10)
    assert elect.next_deadline_ms() == SETTINGS.resend_ms
    elect.poll(SETTINGS.resend_ms)
    assert [to for to, _ in host.sent()] == [C, D, E]
    elect.on_message(C, pre_granted(4), 70)
    host.take()
    elect.on_message(D, granted(4), 80)
    assert elect.next_deadline_ms() == 70 + SETTINGS.resend_ms
    elect.poll(70 + SETTINGS.resend_ms)
    request = vote_request(4, history(3, 10))
    assert host.sent() == [(B, request), (C, request), (E, request)]


def test_refused_pre_vote_is_retried_after_the_backoff_not_at_once():
    """A voter that still hears the leader may agree later; a refusal triggers nothing."""
    host = RecordingHost(backoff=300)
    elect = elector(host)
    elect.suspect(0, 0)
    elect.poll(0)
    host.take()
    for _ in range(5):
        elect.on_message(B, pre_refused(4, term=3), 1)
        elect.on_message(C, pre_refused(4, term=3), 1)
    assert host.take() == []
    assert elect.next_deadline_ms() == SETTINGS.resend_ms
    elect.poll(300)
    assert isinstance(host.sent()[0][1], PreVote)
    assert elect.next_deadline_ms() == 300 + SETTINGS.resend_ms
    elect.on_message(B, pre_granted(4), 310)
    assert elect.role is Role.CANDIDATE


def test_failed_candidacy_is_followed_by_a_round_for_the_next_term():
    """A candidate without a quorum asks again after the backoff, by a new pre-vote."""
    host = RecordingHost(backoff=300)
    elect = elector(host)
    stand(elect, host)
    elect.poll(300)
    asked = host.sent()
    assert (B, pre_vote(5, history(3, 10), term=4)) in asked
    assert elect.role is Role.CANDIDATE


def test_voter_gives_its_candidate_time():
    """After a grant the own candidacy waits for the backoff."""
    host = RecordingHost(backoff=300)
    elect = elector(host)
    elect.suspect(0, 10)
    elect.on_message(B, vote_request(4, history(3, 10)), 5)
    assert elect.next_deadline_ms() == 305


def test_voter_stands_itself_when_its_candidate_dies():
    """S1.8: after a pre-vote or a vote for somebody who vanished, the channel is still armed."""
    host = RecordingHost(backoff=300)
    elect = elector(host)
    elect.on_message(B, pre_vote(4, history(3, 10)), 0)
    assert elect.next_deadline_ms() == 300


def test_round_ends_when_the_leader_is_heard_again():
    """A pre-vote quorum that arrives after the leader came back starts no election."""
    host = RecordingHost()
    elect = elector(host)
    elect.on_leader(B, Term(4), 0)
    elect.suspect(0, 0)
    elect.poll(0)
    host.heard[B] = 20
    elect.on_message(C, pre_granted(5, term=4), 30)
    assert (elect.role, elect.term) == (Role.FOLLOWER, 4)
    elect.on_message(C, pre_granted(5, term=4), 500)
    assert elect.term == 4


def test_candidacy_waits_for_a_silent_leader_and_is_not_forgotten():
    """S1.8: suspected but heard within sticky_ms: look again when that has passed."""
    host = RecordingHost(heard={B: 900})
    elect = elector(host)
    elect.on_leader(B, Term(4), 900)
    elect.suspect(1_000, 10)
    host.take()
    elect.poll(1_010)
    assert (host.take(), elect.next_deadline_ms()) == ([], 900 + SETTINGS.sticky_ms)
    elect.poll(900 + SETTINGS.sticky_ms)
    assert isinstance(host.sent()[0][1], PreVote)


def test_candidacy_is_given_up_when_the_leader_was_heard_since():
    """Steady state again: no timer stays behind."""
    host = RecordingHost(heard={B: 900})
    elect = elector(host)
    elect.on_leader(B, Term(4), 900)
    elect.suspect(1_000, 10)
    host.heard[B] = 1_005
    elect.poll(1_010)
    assert elect.next_deadline_ms() is None


def test_message_of_a_dead_leader_does_not_keep_it_in_office():
    """What was still queued when its connection died must not disarm the candidacy."""
    host = RecordingHost(heard={B: 100})
    elect = elector(host)
    elect.on_leader(B, Term(4), 100)
    del host.heard[B]
    elect.suspect(110, 20)
    assert elect.on_leader(B, Term(4), 115)
    assert elect.next_deadline_ms() == 130
    host.take()
    elect.on_message(C, pre_vote(5, history(3, 10), term=4), 120)
    assert host.sent() == [(C, pre_granted(5, term=4))]
    elect.poll(130)
    assert isinstance(host.sent()[0][1], PreVote)


def test_leader_is_alive_by_its_messages_while_its_connection_is():
    """A busy leader whose heartbeats are late is heard through its records."""
    host = RecordingHost(heard={B: 0})
    elect = elector(host)
    elect.on_leader(B, Term(4), 5_000)
    host.take()
    elect.on_message(C, pre_vote(5, history(9, 9)), 5_100)
    assert host.sent() == [(C, pre_refused(5, term=4))]


def test_memory_of_an_old_leader_does_not_protect_the_next_term():
    """Having heard the leader of term 4 says nothing about a leader of term 6."""
    host = RecordingHost(heard={B: 0, C: 0})
    elect = elector(host)
    elect.on_leader(B, Term(4), 5_000)
    elect.observe_term(Term(5))
    elect.on_leader(C, Term(6), 5_000)
    elect.observe_term(Term(7))
    host.take()
    elect.on_message(D, vote_request(8, history(9, 9)), 5_001)
    assert elect.voted_for == D


def test_follower_that_loses_its_leaders_name_is_armed():
    """S1.8: observing a term without knowing who leads it must end in a candidacy."""
    host = RecordingHost(backoff=300)
    elect = elector(host)
    elect.on_leader(B, Term(4), 0)
    elect.observe_term(Term(5))
    assert elect.next_deadline_ms() == 0
    elect.poll(1_000)
    assert elect.next_deadline_ms() == 1_300
    elect.poll(1_300)
    assert isinstance(host.sent()[0][1], PreVote)


def test_knowing_the_leader_again_cancels_the_arming():
    """The leader of the observed term shows up before the next poll."""
    host = RecordingHost(heard={C: 10})
    elect = elector(host)
    elect.observe_term(Term(5))
    elect.on_leader(C, Term(5), 10)
    assert elect.next_deadline_ms() is None


# --- step-down and S9 transfer ---------------------------------------------------------------------


@pytest.mark.parametrize("evicted", [False, True])
def test_step_down_keeps_the_term_and_tells_the_members(evicted):
    """S9, NATS-211: the role goes, the term and the vote stay, the members may elect at once."""
    host = RecordingHost(learners=(D,), backoff=300)
    elect = elector(host)
    lead(elect, host)
    if evicted:
        assert elect.evict()
    elect.step_down("test")
    assert host.roles() == [(4, Role.FOLLOWER, None)]
    assert host.take() == [("send", to, step_down_notice(4)) for to in (B, C, D)]
    elect.on_message(B, vote_request(4, history(9, 9)), 0)
    assert (elect.term, elect.voted_for) == (4, A)
    assert elect.next_deadline_ms() == 300


def test_step_down_of_a_follower_does_nothing():
    """Only a leader has something to give up."""
    host = RecordingHost()
    elect = elector(host)
    elect.on_leader(B, Term(4), 0)
    host.take()
    elect.step_down("test")
    assert (elect.leader, host.calls) == (B, [])


@pytest.mark.parametrize(("me", "rank"), [(A, 0), (C, 1), (D, 2)])
def test_step_down_notice_arms_the_voters_one_rank_apart(me, rank):
    """NATS-211: no timeout is waited for, and the voters do not all stand at once."""
    host = RecordingHost(me=me, learners=(D,), heard={B: 100})
    elect = elector(host)
    elect.on_leader(B, Term(4), 100)
    host.take()
    elect.on_message(B, step_down_notice(4), 100)
    assert (elect.leader, elect.term, host.take()) == (None, 4, [])
    assert elect.next_deadline_ms() == 100 + rank * SETTINGS.rank_step_ms


def test_step_down_notice_overrides_a_backoff():
    """It is known now that nobody leads."""
    host = RecordingHost(backoff=300)
    elect = elector(host)
    elect.on_leader(B, Term(4), 0)
    elect.suspect(0, 500)
    elect.on_message(B, step_down_notice(4), 100)
    assert elect.next_deadline_ms() == 100


def test_step_down_notice_of_a_later_term_is_adopted():
    """S1.4: the announcement of that leader was lost, its end is news as well."""
    host = RecordingHost()
    elect = elector(host)
    elect.on_message(B, step_down_notice(6), 100)
    assert (elect.term, elect.leader, elect.next_deadline_ms()) == (6, None, 100)


def test_messages_of_a_leader_that_gave_up_are_stale():
    """Records still queued behind the notice must not bring the leader back into office."""
    host = RecordingHost(heard={B: 100})
    elect = elector(host)
    elect.on_leader(B, Term(4), 100)
    elect.on_message(B, step_down_notice(4), 100)
    host.take()
    assert not elect.on_leader(B, Term(4), 101)
    elect.on_message(B, announce(4), 101)
    assert (elect.leader, host.take(), elect.next_deadline_ms()) == (None, [], 100)
    elect.on_message(B, step_down_notice(4), 150)
    assert elect.next_deadline_ms() == 100
    assert elect.on_leader(B, Term(5), 200)


def test_transfer_elects_the_target_without_a_pre_vote():
    """S9: the leader asks, the target stands at once with the flag, voters ignore stickiness."""
    host = RecordingHost(heard={B: 100})
    elect = elector(host)
    elect.on_leader(B, Term(4), 100)
    host.take()
    elect.on_message(B, transfer_now(4), 101)
    request = vote_request(5, history(3, 10), transfer=True)
    assert host.take() == [("persist", 5, A), ("send", B, request), ("send", C, request)]
    voter = elector(RecordingHost(me=C, heard={B: 100}))
    voter.on_leader(B, Term(4), 100)
    voter.on_message(A, request, 102)
    assert voter.voted_for == A


def test_transfer_is_refused_from_anybody_but_the_leader():
    """S9: a candidacy without pre-vote is a privilege of the current term's leader."""
    host = RecordingHost()
    elect = elector(host)
    elect.on_leader(B, Term(4), 0)
    host.take()
    elect.on_message(C, transfer_now(4), 0)
    elect.on_message(B, transfer_now(3), 0)
    assert (elect.role, host.take()) == (Role.FOLLOWER, [])


def test_transfer_is_sent_by_a_leader_which_leads_on():
    """S9: until a higher term shows up, nothing has changed."""
    host = RecordingHost()
    elect = elector(host)
    elect.transfer(B)
    lead(elect, host)
    elect.transfer(A)
    elect.transfer(C)
    assert host.take() == [("send", C, transfer_now(4))]
    assert elect.role is Role.LEADER
    elect.on_message(C, vote_request(5, history(3, 10), transfer=True), 0)
    assert (elect.role, elect.voted_for) == (Role.FOLLOWER, C)


def test_transfer_flag_ends_with_the_candidacy():
    """The flag excuses one election, not the rounds after it."""
    host = RecordingHost(backoff=300)
    elect = elector(host)
    elect.on_leader(B, Term(4), 0)
    elect.on_message(B, transfer_now(4), 0)
    host.take()
    elect.poll(300)
    elect.on_message(C, pre_granted(6, term=4), 300)
    requests = [m for _, m in host.sent() if isinstance(m, RequestVote) and m.term == 6]
    assert requests == [vote_request(6, history(3, 10))] * 2


def test_eviction_never_changes_behaviour():
    """The same story with and without eviction at every step gives the same record."""

    def story(*, evict: bool) -> list[object]:
        host = RecordingHost(heard={B: 0})
        elect: VotingElector = elector(host)
        steps = [
            (B, announce(4)),
            (C, vote_request(5, history(3, 10), transfer=True)),
            (C, vote_request(5, history(3, 10))),
            (C, announce(5)),
            (C, transfer_now(5)),
            (B, granted(6)),
            (C, vote_request(6, history(9, 9))),
            (C, pre_vote(7, history(9, 9))),
            (C, stale(9)),
            (C, vote_request(9, history(3, 9))),
            (B, vote_request(9, history(3, 10))),
            (B, announce(9)),
            (B, step_down_notice(9)),
            (C, vote_request(9, history(9, 9))),
            (C, vote_request(10, history(9, 9))),
        ]
        seen: list[object] = []
        for sender, message in steps:
            if evict:
                elect.evict()
            elect.on_message(sender, message, 0)
            seen.append((elect.term, elect.voted_for, elect.role, elect.leader))
        return [seen, host.calls]

    assert story(evict=True) == story(evict=False)


def test_notice_and_reply_types_are_what_the_wire_knows():
    """Refusals and notices are messages of the channel, with the sender's own term."""
    host = RecordingHost()
    elect = elector(host, term=9)
    elect.on_message(B, pre_vote(4, history(0, 0)), 0)
    ((_, reply),) = host.sent()
    assert isinstance(reply, PreVoteReply)
    assert reply.term == 9
    lead(elect, host)
    elect.step_down("test")
    assert all(isinstance(message, StepDownNotice) for _, message in host.sent())
