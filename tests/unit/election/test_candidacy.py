"""When a replica stands, and how leadership is given up: S1.8 and S9."""

from __future__ import annotations

import pytest

from raftstore.election.voting_elector import LEARNER_BACKOFFS, RESEND_GROWTH_MAX, VotingElector
from raftstore.protocol.codec import decode, encode
from raftstore.protocol.election import PreVote, PreVoteReply, RequestVote, StepDownNotice
from raftstore.types import TERM_MAX, Role, Term
from tests.unit.election.election_hosts import (
    SETTINGS,
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
    pre_granted,
    pre_refused,
    pre_vote,
    stale,
    stand,
    step_down_notice,
    transfer_now,
    vote_request,
)

# --- terms that cannot be reported, S12 -----------------------------------------------------------


def test_nobody_stands_for_a_term_that_no_message_has_room_for():
    """S12: the highest term can be sent and stored; an election would lead above it."""
    host = RecordingHost(backoff=100)
    elect = elector(host)
    elect.on_message(B, stale(TERM_MAX - 1), 0)
    assert elect.term == TERM_MAX - 1
    elect.poll(150)
    assert host.sent()
    assert all(decode(encode(message)) == message for _, message in host.sent())
    elect.on_message(B, pre_granted(TERM_MAX), 160)
    assert (elect.term, elect.role) == (TERM_MAX, Role.CANDIDATE)
    assert all(decode(encode(message)) == message for _, message in host.sent())
    host.take()
    for now_ms in (500, 1_000, 1_500):
        elect.poll(now_ms)
    elect.on_message(B, announce(TERM_MAX), 1_600)
    elect.on_message(B, transfer_now(TERM_MAX), 1_700)
    assert elect.term == TERM_MAX
    assert all(decode(encode(message)) == message for _, message in host.sent())


# --- timers, S1.8 -------------------------------------------------------------------------------


def test_elector_has_no_timer_in_steady_state():
    """S1.8: nothing is armed at start, under a live leader, or while leading."""
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
    """Pre-votes and votes go again after resend_ms, only to those who did not grant; then after
    twice as long each time, for a voter with too much to do answers later the more it is asked."""
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
    assert elect.next_deadline_ms() == 70 + 2 * SETTINGS.resend_ms
    elect.poll(70 + 2 * SETTINGS.resend_ms)
    request = vote_request(4, history(3, 10))
    assert host.sent() == [(B, request), (C, request), (E, request)]
    pauses = []
    for _ in range(6):
        at = elect.next_deadline_ms()
        elect.poll(at)
        pauses.append(elect.next_deadline_ms() - at)
    longest = RESEND_GROWTH_MAX * SETTINGS.resend_ms
    assert pauses == [8 * SETTINGS.resend_ms, longest, longest, longest, longest, longest]
    # With a leader again, its next candidacy is as quick as the first.
    elect.on_message(D, announce(4), at + 1)
    elect.suspect(at + 10_000, 0)
    elect.poll(at + 10_000)
    assert elect.next_deadline_ms() == at + 10_000 + SETTINGS.resend_ms


def test_refused_pre_vote_is_retried_after_the_backoff_not_at_once():
    """A voter in contact with the leader may agree later; a refusal triggers nothing."""
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
    assert elect.next_deadline_ms() == 300 + 2 * SETTINGS.resend_ms
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


def test_votes_of_a_failed_candidacy_do_not_count_in_the_next_one():
    """S1.3: the voter of the last term may have voted for somebody else in this one."""
    host = RecordingHost(backoff=300, voter_sets=((A, B, C, D, E),))
    elect = elector(host)
    stand(elect, host, helpers=2)
    elect.on_message(B, granted(4), 10)
    elect.poll(300)
    for voter in (B, C):
        elect.on_message(voter, pre_granted(5), 310)
    assert (elect.role, elect.term) == (Role.CANDIDATE, Term(5))
    elect.on_message(C, granted(5), 320)
    assert elect.role is Role.CANDIDATE, "two of five in this term"
    elect.on_message(D, granted(5), 330)
    assert elect.role is Role.LEADER


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


def test_round_ends_when_the_term_rises():
    """Given a higher term during a round of pre-votes, the round ends: pre-votes of the old term do
    not count for the next.
    """
    host = RecordingHost(voter_sets=((A, B, C, D, E),))
    elect = elector(host)
    elect.suspect(0, 0)
    elect.poll(0)
    elect.on_message(B, pre_granted(4), 1)
    elect.observe_term(Term(9))
    elect.on_message(C, pre_granted(10, term=9), 2)
    assert (elect.role, elect.term) == (Role.FOLLOWER, 9)


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
    """Given a leader whose connection broke, a message of it that was still queued does not end the
    candidacy.
    """
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


# --- step-down and S9 transfer ------------------------------------------------------------------


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
    """NATS-211: no timeout is waited for, and the voters do not all stand at once; a learner comes
    after all of them (M18)."""
    host = RecordingHost(me=me, learners=(D,), heard={B: 100})
    elect = elector(host)
    elect.on_leader(B, Term(4), 100)
    host.take()
    elect.on_message(B, step_down_notice(4), 100)
    assert (elect.leader, elect.term, host.take()) == (None, 4, [])
    later_ms = LEARNER_BACKOFFS * SETTINGS.backoff_max_ms if me == D else 0
    assert elect.next_deadline_ms() == 100 + rank * SETTINGS.rank_step_ms + later_ms


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


def test_candidate_that_stopped_serving_meanwhile_does_not_win():
    """S13: its history was found to differ while it stood; leading now would stop the node."""
    host = RecordingHost()
    elect = elector(host)
    now = stand(elect, host)
    host.healthy = False
    elect.on_message(B, granted(elect.term), now)
    elect.on_message(C, granted(elect.term), now)
    assert elect.role is Role.CANDIDATE
    assert host.sent() == []
