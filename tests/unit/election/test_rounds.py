"""The end of a round, what survives it, and from which moment a candidacy counts (S1.8)."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from raftstore.election.pysyncobj_elector import PySyncObjElector
from raftstore.protocol.election import PreVote, RequestVote
from raftstore.types import Role, Term
from tests.unit.election.election_hosts import (
    SETTINGS,
    A,
    B,
    C,
    RecordingHost,
    announce,
    elector,
    granted,
    history,
    lead,
    pre_granted,
    pre_vote,
    stale,
    stand,
    step_down_notice,
    vote_request,
)


def in_a_round(host: RecordingHost, now_ms: int = 0) -> PySyncObjElector:
    """An elector that asks whether it would be elected, and has forgotten what it sent."""
    elect = elector(host)
    elect.suspect(now_ms, 0)
    elect.poll(now_ms)
    host.take()
    return elect


def test_replica_stands_from_the_first_question_until_it_leads() -> None:
    """In a pre-vote round and as a candidate, and at no other time."""
    host = RecordingHost()
    elect = elector(host)
    assert not elect.is_standing
    elect.suspect(0, 0)
    elect.poll(0)
    assert elect.is_standing
    elect.on_message(B, pre_granted(4), 0)
    assert elect.is_standing
    elect.on_message(B, granted(4), 0)
    assert elect.role is Role.LEADER
    assert not elect.is_standing


def test_leader_is_not_armed_by_a_suspicion() -> None:
    """There is nobody to be suspected."""
    host = RecordingHost()
    elect = elector(host)
    lead(elect, host)
    elect.suspect(0, 0)
    assert elect.next_deadline_ms() is None


def test_nothing_is_repeated_before_its_time() -> None:
    """A poll that comes early changes nothing."""
    host = RecordingHost()
    elect = in_a_round(host, 100)
    elect.poll(100 + SETTINGS.resend_ms - 1)
    assert host.sent() == []
    elect.poll(100 + SETTINGS.resend_ms)
    assert [to for to, _ in host.sent()] == [B, C]


def test_leader_of_a_past_term_is_told_the_term() -> None:
    """S1.4: it is not followed, and learns at once that it is over."""
    host = RecordingHost()
    elect = elector(host, term=5)
    elect.on_message(B, announce(4), 0)
    assert (elect.leader, elect.term, host.sent()) == (None, 5, [(B, stale(5))])
    assert not elect.on_leader(B, Term(4), 0)


def test_only_a_leader_hands_over() -> None:
    """S9: a follower has nothing to give."""
    host = RecordingHost()
    elect = elector(host)
    elect.on_leader(B, Term(4), 0)
    host.take()
    elect.transfer(C)
    assert host.sent() == []


def by_vote(elect: PySyncObjElector) -> None:
    elect.on_message(B, vote_request(5, history(9, 9)), 1_000)


def by_deadline(elect: PySyncObjElector) -> None:
    elect.suspect(700, 300)
    elect.poll(1_000)


def by_candidacy(elect: PySyncObjElector) -> None:
    elect.suspect(900, 0)
    elect.poll(900)
    elect.on_message(B, pre_granted(4), 1_000)


def by_question(elect: PySyncObjElector) -> None:
    elect.on_message(C, pre_vote(4, history(9, 9)), 1_000)


def by_new_term(elect: PySyncObjElector) -> None:
    elect.observe_term(Term(5))


def by_notice(elect: PySyncObjElector) -> None:
    elect.on_leader(C, Term(4), 1_000)
    elect.on_message(C, step_down_notice(4), 1_000)
    elect.observe_term(Term(5))


@pytest.mark.parametrize(
    "arm", [by_vote, by_deadline, by_candidacy, by_question, by_new_term, by_notice]
)
def test_leader_that_was_silent_since_the_arming_is_given_its_time_and_no_more(
    arm: Callable[[PySyncObjElector], None],
) -> None:
    """S1.8: being heard in the millisecond of the arming is no reason to forget the candidacy,
    being heard a millisecond later is."""
    for heard_ms, due in ((1_000, 1_000 + SETTINGS.sticky_ms), (1_001, None)):
        host = RecordingHost(backoff=300)
        elect = elector(host)
        arm(elect)
        elect.on_leader(B, elect.term, 1_000)
        assert elect.next_deadline_ms() not in (None, 0)
        host.heard = {B: heard_ms}
        elect.poll(1_300)
        assert (elect.next_deadline_ms(), elect.is_standing) == (due, False)


def test_round_goes_on_while_the_leader_of_its_term_is_not_alive() -> None:
    """A message still queued when its connection died names the leader and ends nothing."""
    host = RecordingHost()
    elect = in_a_round(host)
    elect.on_leader(B, Term(3), 0)
    elect.poll(SETTINGS.resend_ms)
    assert [type(message) for _, message in host.sent()] == [PreVote, PreVote]


def test_round_ends_with_its_timers_when_the_leader_of_its_term_is_alive() -> None:
    """Nothing is repeated, and nothing waits for a time."""
    host = RecordingHost(heard={B: 0})
    elect = in_a_round(host)
    elect.on_leader(B, Term(3), 0)
    assert (elect.is_standing, elect.next_deadline_ms()) == (False, None)


def test_new_term_does_not_postpone_a_candidacy() -> None:
    """S1.8: or one that keeps asking would keep all others from standing."""
    elect = elector(RecordingHost(backoff=300))
    elect.suspect(0, 50)
    elect.observe_term(Term(5))
    assert elect.next_deadline_ms() == 50


def test_question_about_a_leader_that_is_alive_arms_nothing() -> None:
    """Only the asker does not receive it."""
    host = RecordingHost(heard={B: 0})
    elect = elector(host)
    elect.on_leader(B, Term(4), 0)
    elect.on_message(C, pre_vote(5, history(9, 9)), 10)
    assert elect.next_deadline_ms() is None


@pytest.mark.parametrize("proposed", [3, 5])
def test_answer_about_another_term_is_no_answer(proposed: int) -> None:
    """A round is for the next term alone."""
    host = RecordingHost()
    elect = in_a_round(host)
    elect.on_message(B, pre_granted(proposed), 0)
    assert (elect.role, elect.term) == (Role.FOLLOWER, 3)


def test_vote_is_told_again_although_the_candidate_has_won() -> None:
    """Once, and without a refusal behind it."""
    host = RecordingHost()
    elect = elector(host)
    elect.on_message(C, vote_request(4, history(9, 9)), 0)
    elect.on_leader(C, Term(4), 0)
    host.take()
    elect.on_message(C, vote_request(4, history(9, 9)), 0)
    assert host.sent() == [(C, granted(4))]


def test_request_against_a_leader_that_is_alive_is_dropped() -> None:
    """S1.4: its term is not adopted, and nothing is answered."""
    host = RecordingHost(heard={B: 0})
    elect = elector(host)
    elect.on_leader(B, Term(4), 0)
    host.take()
    elect.on_message(C, vote_request(9, history(9, 9)), SETTINGS.sticky_ms - 1)
    assert (elect.term, elect.leader, host.take()) == (4, B, [])


def test_leader_is_no_reason_for_itself_to_refuse_a_higher_term() -> None:
    """S1.4: whatever its node says of the connection to itself."""
    host = RecordingHost()
    elect = elector(host)
    lead(elect, host)
    host.heard = {A: 0}
    elect.on_message(C, vote_request(9, history(9, 9)), 0)
    assert (elect.term, elect.role, elect.voted_for) == (9, Role.FOLLOWER, C)


def test_notice_of_a_leader_that_gives_up_ends_the_round_against_it() -> None:
    """The next round begins when it is this replica's turn."""
    host = RecordingHost(me=C)
    elect = elector(host)
    elect.on_leader(B, Term(4), 0)
    elect.suspect(0, 0)
    elect.poll(0)
    assert elect.is_standing
    elect.on_message(B, step_down_notice(4), 0)
    assert (elect.is_standing, elect.next_deadline_ms()) == (False, SETTINGS.rank_step_ms)


def test_first_repetition_of_a_candidacy_after_a_leadership_is_soon() -> None:
    """Pauses grow within one candidacy, not from one to the next."""
    host = RecordingHost(backoff=100_000)
    elect = elector(host)
    now_ms = stand(elect, host)
    for _ in range(3):
        now_ms = elect.next_deadline_ms() or 0
        elect.poll(now_ms)
    elect.on_message(B, granted(4), now_ms)
    elect.step_down("test")
    elect.poll(now_ms)
    start_ms = elect.next_deadline_ms() or 0
    elect.poll(start_ms)
    assert elect.next_deadline_ms() == start_ms + SETTINGS.resend_ms


def test_candidate_whose_next_round_ends_still_asks_for_its_votes() -> None:
    """Votes it asked for in its term may still be granted."""
    host = RecordingHost(backoff=30)
    elect = elector(host)
    now_ms = stand(elect, host)
    elect.poll(now_ms + 30)
    host.healthy = False
    elect.on_message(B, pre_granted(5), now_ms + 30)
    host.take()
    elect.poll(now_ms + 30 + SETTINGS.resend_ms)
    assert {type(message) for _, message in host.sent()} == {RequestVote}
