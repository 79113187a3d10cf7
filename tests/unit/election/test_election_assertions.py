"""Invariants of term, vote and role, asserted where they are kept: each is broken by hand here.

pysyncobj's mistakes are ElectionErrors (``test_guarded_machine``): these are mistakes of our own.
"""

from __future__ import annotations

import pytest

from raftstore.election.fixed_elector import FixedElector
from raftstore.election.voting_elector import VotingElector
from raftstore.types import Role, Term
from tests.unit.election.election_hosts import (
    CHANNEL,
    A,
    B,
    RecordingHost,
    elector,
    lead,
    stand,
    vote_request,
)


def test_a_term_is_won_by_the_votes_that_were_asked_for() -> None:
    """S1.3, S13: and never again once it was given up."""
    host = RecordingHost()
    elect = elector(host)
    stand(elect, host)
    machine = elect._state
    machine.resigned = True
    with pytest.raises(AssertionError, match="term 4 was given up and is won again"):
        machine.win()
    machine._asked_term = Term(3)
    with pytest.raises(AssertionError, match="no vote of term 4 was asked for"):
        machine.win()


def test_a_leader_voted_for_itself() -> None:
    """S1.3: its own vote is part of its majority."""
    host = RecordingHost()
    elect = elector(host)
    lead(elect, host)
    machine = elect._state
    machine.voted_for = B
    with pytest.raises(AssertionError, match="leads term 4 with its vote for b@"):
        machine._set_role(Role.LEADER, A)


def test_only_the_winner_of_a_term_is_followed_in_it() -> None:
    """S13, S1.8: until it gave the term up."""
    host = RecordingHost()
    elect = elector(host)
    assert elect.on_leader(B, Term(4), 0)
    machine = elect._state
    machine.term_leader = None
    with pytest.raises(AssertionError, match=r"b@.* is followed in term 4, which None won"):
        machine._set_role(Role.FOLLOWER, B)
    machine.term_leader, machine.resigned = B, True
    with pytest.raises(AssertionError, match="is followed in term 4, which was given up"):
        machine._set_role(Role.FOLLOWER, B)


def test_a_candidate_counts_its_own_vote() -> None:
    """S1.3: a majority is counted with it."""
    host = RecordingHost()
    elect = elector(host)
    stand(elect, host)
    elect._votes = set()
    with pytest.raises(AssertionError, match="a candidate of 4 without its vote"):
        elect._count_votes()


def test_votes_of_a_term_that_is_over_are_not_asked_for_again() -> None:
    """S1.3: a grant would count in another term than it was given in."""
    host = RecordingHost()
    elect = elector(host)
    stand(elect, host)
    elect._request = vote_request(3, host.end)
    with pytest.raises(AssertionError, match="votes are asked for 3 again in term 4"):
        elect._repeat_requests(0)


def test_only_a_leader_says_that_it_leads() -> None:
    """S1.5: the replicas that receive it follow it."""
    with pytest.raises(AssertionError, match="announces that it leads"):
        elector(RecordingHost())._announce(B)


def test_only_a_vote_that_was_given_is_told() -> None:
    """S1.3: in the term in which it was given."""
    elect = elector(RecordingHost(), voted_for=B)
    elect._reply_vote(B, Term(3), granted=True)
    elect._reply_vote(A, Term(3), granted=False)
    for candidate, term in ((A, 3), (B, 2)):
        with pytest.raises(AssertionError, match=f"sent a vote in {term}, which in 3 is b@"):
            elect._reply_vote(candidate, Term(term), granted=True)


def test_the_machine_gets_a_majority_as_a_candidate_only() -> None:
    """S1.3, S1.4: and follows no leader of a term that is over."""
    host = RecordingHost()
    elect = elector(host)
    machine = elect._state._ready()
    with pytest.raises(AssertionError, match="is given a majority"):
        machine.grant_majority()
    with pytest.raises(AssertionError, match="the leader of 2 is followed in term 3"):
        machine.learn_leader(B, Term(2))


@pytest.mark.parametrize(
    ("term", "role", "leader", "words"),
    [
        (2, Role.FOLLOWER, None, "the term would fall from 3 to 2"),
        (4, Role.LEADER, B, "a@.* of term 4 led by b@"),
        (3, Role.LEADER, A, "term 3 is led twice"),
    ],
)
def test_a_named_leader_keeps_the_rules_of_terms(
    term: int, role: Role, leader: str | None, words: str
) -> None:
    """S1.4, S1.5, S2.1: without votes, too."""
    elect = FixedElector(RecordingHost(), CHANNEL, Term(3), leader=A)
    with pytest.raises(AssertionError, match=words):
        elect._move(Term(term), role, leader)  # type: ignore[arg-type]


def test_somebody_stands_after_a_leader_that_gives_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """S1.8: the leader of before, should nobody have heard of it."""
    host = RecordingHost()
    elect = elector(host)
    lead(elect, host)
    monkeypatch.setattr(VotingElector, "on_role", lambda _elector: None)
    with pytest.raises(AssertionError, match="nobody is to stand after the leader of term 4"):
        elect.step_down("a test")


def test_every_round_of_an_election_ends_by_itself() -> None:
    """S1.8: whatever becomes of its answers; and it begins with the own vote."""
    host = RecordingHost()
    elect = elector(host)
    with pytest.raises(AssertionError, match="a round of term 3 that nothing ends"):
        elect._start_pre_vote(0)
    with pytest.raises(AssertionError, match="a candidacy 1 ms ago"):
        elect._arm(0, -1)
    elect._pre_votes = {B}
    with pytest.raises(AssertionError, match="a round of 3 without its own vote"):
        elect._ask_pre_votes()


def test_a_term_is_given_up_once_and_by_its_leader() -> None:
    """S1.5: another node gives up what it leads, and no more than that."""
    host = RecordingHost()
    elect = elector(host)
    stand(elect, host)
    machine = elect._state
    with pytest.raises(AssertionError, match=r"Role.CANDIDATE gives term 4 up"):
        machine.resign(A)
    machine.resign(B)
    with pytest.raises(AssertionError, match="term 4 is given up twice"):
        machine.resign(B)


def test_nobody_else_leads_than_the_named_leader() -> None:
    """S1.5: two that were given different names would be two leaders."""
    fixed = FixedElector(RecordingHost(me=B), CHANNEL, Term(3), leader=A)
    fixed._deadline_ms = 0
    with pytest.raises(AssertionError, match=r"b@.* is to lead instead of a@"):
        fixed.poll(0)


def test_a_leader_is_the_node_that_leads() -> None:
    """S1.5: the role and the name of the leader say the same."""
    fixed = FixedElector(RecordingHost(), CHANNEL, Term(3), leader=A)
    with pytest.raises(AssertionError, match=r"Role.LEADER of term 4 led by b@"):
        fixed._move(Term(4), Role.LEADER, B)
    host = RecordingHost()
    elect = elector(host)
    lead(elect, host)
    with pytest.raises(AssertionError, match=r"Role.FOLLOWER of term 4 led by a@"):
        elect._state._set_role(Role.FOLLOWER, A)


def test_a_term_never_falls() -> None:
    """S1.4: whatever the machine did with it."""
    host = RecordingHost()
    elect = elector(host)
    lead(elect, host)
    with pytest.raises(AssertionError, match="the term fell from 5 to 4"):
        elect._state._mirror(Term(5))
