"""Terms and who may take part: S1.4, S0.3, S1.6, and one leader per term (O1)."""

from __future__ import annotations

import pytest

from raftstore.election.voting_elector import LEARNER_BACKOFFS
from raftstore.errors import ElectionError
from raftstore.protocol.election import PreVote
from raftstore.types import EMPTY_HISTORY, ChannelConfig, MemberRole, ReplicaNumber, Role, Term
from tests.unit.election.election_hosts import (
    DEFAULT_END,
    SETTINGS,
    A,
    B,
    C,
    D,
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

# --- S1.4 terms ---------------------------------------------------------------------------------


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
    """S1.4: a message of a higher term ends the leadership, but gets no vote."""
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
    """A candidate that lost learns so from the leader and stops asking."""
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
    """S1.8: a replica that asks for votes under a leader did not learn of it."""
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


# --- S0.3, S1.6 who may vote and stand ----------------------------------------------------------


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


def test_replica_that_recovers_for_its_table_alone_votes_and_does_not_stand():
    """S0.3, S1.1: its log is whole, and is what candidates are compared with."""
    host = RecordingHost(healthy=False, votes_only=True)
    elect = elector(host)
    elect.suspect(0, 0)
    for now in range(0, 3_000, 50):
        elect.poll(now)
    assert (elect.term, host.take()) == (3, [])
    elect.on_message(B, pre_vote(4, history(9, 9)), 3_000)
    elect.on_message(B, vote_request(4, history(9, 9)), 3_000)
    assert host.sent() == [(B, pre_granted(4, term=3)), (B, granted(4))]
    elect.on_leader(B, Term(5), 3_000)
    host.take()
    elect.on_message(B, transfer_now(5), 3_000)
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
    for an empty candidate and stands itself. (NATS-034)
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
    host = RecordingHost(voter_sets=((B, C),), before=ChannelConfig(((A, B, C),)))
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


@pytest.mark.parametrize(
    "host",
    [
        RecordingHost(voter_sets=((B, C),)),
        RecordingHost(voter_sets=((B, C),), before=ChannelConfig(((B, C, D),), (A,))),
        RecordingHost(voter_sets=((B, C),), learners=(A,), end=EMPTY_HISTORY),
        RecordingHost(voter_sets=((A, B, C),), numbers={A: ReplicaNumber(7)}),
        RecordingHost(voter_sets=((A, B, C),), number=ReplicaNumber(7)),
        RecordingHost(voter_sets=((B, C),), learners=(A,), number=ReplicaNumber(7)),
    ],
    ids=["removed", "never-voter", "empty-learner", "earlier-life", "later-life", "later-learner"],
)
def test_only_who_may_hold_the_longest_history_stands(host: RecordingHost):
    """M18, M4: not one whose removal is committed, or that was no voter before; not a learner or a
    stranger without records; and no other life of a member's replica than the one it names."""
    elect = elector(host)
    elect.suspect(0, 0)
    for now in range(0, 3_000, 50):
        elect.poll(now)
    assert host.take() == []


def test_learner_with_records_stands_after_all_voters():
    """M18: it may hold the only copy of the newest term, and a voter counts it as one; it does not
    count itself."""
    host = RecordingHost(voter_sets=((B, C),), learners=(A,))
    elect = elector(host)
    elect.suspect(0, 0)
    late_ms = LEARNER_BACKOFFS * SETTINGS.backoff_max_ms
    elect.poll(late_ms - 1)
    assert host.take() == []
    elect.poll(late_ms)
    assert [to for to, _ in host.sent()] == [B, C]
    elect.on_message(B, pre_granted(4), late_ms)
    assert elect.role is Role.FOLLOWER
    elect.on_message(C, pre_granted(4), late_ms)
    assert elect.role is Role.CANDIDATE


def test_witness_with_records_stands_after_all_voters_with_rows():
    """W4: it may hold the only copy of a record that a quorum has; nobody asks it to take over."""
    host = RecordingHost(member_roles={A: MemberRole.WITNESS})
    elect = elector(host)
    elect.suspect(0, 0)
    late_ms = LEARNER_BACKOFFS * SETTINGS.backoff_max_ms
    elect.poll(late_ms - 1)
    assert host.take() == []
    elect.poll(late_ms)
    assert [to for to, _ in host.sent()] == [B, C]
    elect.on_message(B, pre_granted(4), late_ms)
    assert elect.role is Role.CANDIDATE
    elect.on_message(B, announce(4), late_ms)
    elect.on_message(B, transfer_now(4), late_ms)
    assert elect.role is Role.FOLLOWER


def test_reader_never_stands():
    """W5: no voter counts it before it holds a record by which it is none."""
    host = RecordingHost(voter_sets=((B, C),), learners=(A,), member_roles={A: MemberRole.READER})
    elect = elector(host)
    elect.suspect(0, 0)
    for now in range(0, 20_000, 50):
        elect.poll(now)
    assert host.take() == []


def test_votes_count_by_the_number_of_the_replica():
    """M4: what an earlier or a later life of a voter's replica grants is not counted."""
    host = RecordingHost(numbers={B: ReplicaNumber(7)})
    elect = elector(host)
    elect.suspect(0, 0)
    elect.poll(0)
    elect.on_message(B, pre_granted(4), 0)
    elect.on_message(C, pre_granted(4, replica=7), 0)
    assert elect.role is Role.FOLLOWER
    elect.on_message(B, pre_granted(4, replica=7), 0)
    assert elect.role is Role.CANDIDATE
    elect.on_message(B, granted(4), 0)
    elect.on_message(C, granted(4, replica=7), 0)
    assert elect.role is Role.CANDIDATE
    elect.on_message(C, granted(4), 0)
    assert elect.role is Role.LEADER


def test_voter_names_its_replica():
    """M4: the candidate counts by what the reply says."""
    host = RecordingHost(number=ReplicaNumber(7), numbers={A: ReplicaNumber(7)})
    elect = elector(host)
    elect.on_message(B, pre_vote(4, DEFAULT_END), 0)
    elect.on_message(B, vote_request(4, DEFAULT_END), 0)
    assert [message.replica for _, message in host.sent()] == [7, 7]


def test_one_replica_of_a_second_life_never_elects_itself():
    """M4: a table with one replica, {a} -> {b}, and a comes back with an empty log: its newest
    configuration is the creation's, which names it as it was."""
    host = RecordingHost(voter_sets=((A,),), number=ReplicaNumber(7), end=EMPTY_HISTORY)
    elect = elector(host)
    elect.suspect(0, 0)
    for now in range(0, 3_000, 50):
        elect.poll(now)
    assert elect.role is Role.FOLLOWER
    assert host.take() == []


def test_voter_votes_for_a_candidate_outside_its_own_view():
    """S8: the candidate counts by its configuration, the voter by nothing but history."""
    host = RecordingHost()
    elect = elector(host)
    elect.on_message(node("new"), vote_request(4, history(3, 10)), 0)
    assert elect.voted_for == node("new")


@pytest.mark.parametrize("proposed", [2, 3])
def test_pre_vote_for_a_term_that_is_not_newer_is_refused(proposed):
    """S1.3: in the present term a vote may have been given, and a leader elected, already."""
    host = RecordingHost()
    elect = elector(host)
    elect.on_message(B, pre_vote(proposed, history(9, 99), term=2), 10)
    assert host.sent() == [(B, pre_refused(proposed, term=3))]


def test_recovering_replica_answers_pre_votes_of_the_past_alone():
    """S0.3: it takes no part in an election; an asker of the past still learns the term."""
    host = RecordingHost(healthy=False)
    elect = elector(host)
    elect.on_message(B, pre_vote(4, history(9, 99)), 10)
    assert host.sent() == []
    elect.on_message(B, pre_vote(3, history(9, 99)), 10)
    assert host.sent() == [(B, pre_refused(3, term=3))]


def test_nobody_else_can_say_that_this_replica_leads():
    """S13: it would know; believing it, two would take themselves for the leader."""
    elect = elector(RecordingHost())
    with pytest.raises(ElectionError, match="term 3"):
        elect.on_leader(A, Term(3), 10)
