"""The guards: whatever a vote machine must not do stops the node before anything is sent."""

from __future__ import annotations

import pytest

from raftstore.election.voting_elector import VotingElector
from raftstore.errors import ElectionError
from raftstore.types import Role, Term
from tests.unit.election.election_hosts import (
    CHANNEL,
    SETTINGS,
    A,
    B,
    C,
    RecordingHost,
    elector,
    granted,
    history,
    lead,
    pre_granted,
    vote_request,
)


class HonestMachine:
    """A vote machine without pysyncobj; each test spoils one of its verbs."""

    def __init__(self, owner):
        self.owner, self.term, self.role, self.leader = owner, owner.term, Role.FOLLOWER, None

    def _move(self, term, voted_for, role=Role.FOLLOWER, leader=None):
        self.term, self.role, self.leader = term, role, leader
        self.owner.persist(term, voted_for)

    def request_vote(self, candidate, term, end):
        if term > self.term:
            self._move(term, None)
        if self.owner.voted_for is None and end >= self.owner.own_history():
            self._move(term, candidate)
            self.owner.vote_granted(candidate, term)

    def observe_term(self, term):
        self._move(term, None)

    def learn_leader(self, leader, term):
        if term > self.term:
            self._move(term, None)
        self.role, self.leader = Role.FOLLOWER, leader

    def start_election(self):
        self._move(Term(self.term + 1), self.owner.me, Role.CANDIDATE)
        self.owner.vote_requested(self.term, self.owner.own_history())

    def grant_majority(self):
        self.role, self.leader = Role.LEADER, self.owner.me

    def close(self):
        pass


def made_of(**spoilt):
    """An elector over an honest machine with some verbs replaced, and its host."""
    machine = type("SpoiltMachine", (HonestMachine,), spoilt)
    host = RecordingHost()
    return host, VotingElector(
        host, CHANNEL, Term(3), None, settings=SETTINGS, make_machine=machine
    )


def elect_it(elect):
    """Through a pre-vote and a vote."""
    elect.suspect(0, 0)
    elect.poll(0)
    elect.on_message(B, pre_granted(4), 0)
    elect.on_message(B, granted(4), 0)


def test_honest_machine_passes_all_guards():
    """The guards refuse misbehaviour, not another implementation."""
    _, elect = made_of()
    elect_it(elect)
    assert (elect.role, elect.term) == (Role.LEADER, 4)
    elect.on_message(C, vote_request(6, history(3, 10)), 0)
    assert (elect.role, elect.voted_for) == (Role.FOLLOWER, C)
    assert elect.on_leader(C, Term(6), 0)
    elect.observe_term(Term(9))
    assert (elect.term, elect.leader) == (9, None)


@pytest.mark.parametrize(
    ("spoilt", "problem"),
    [
        ({"start_election": lambda self: None}, "did not start an election in term 4"),
        (
            {"start_election": lambda self: self._move(4, A, Role.CANDIDATE)},
            "asked no voter for a vote",
        ),
        (
            {"start_election": lambda self: self.owner.vote_requested(4, history(3, 10))},
            "asked before it voted",
        ),
        (
            {
                "start_election": lambda self: (
                    HonestMachine.start_election(self),
                    setattr(self, "role", Role.LEADER),
                )
            },
            "is no candidate in its own election",
        ),
        ({"grant_majority": lambda self: None}, "refused a majority in term 4"),
        (
            {"grant_majority": lambda self: setattr(self, "term", 5)},
            "is in term 5, 4 is stored",
        ),
    ],
)
def test_election_that_goes_another_way_stops_the_node(spoilt, problem):
    """Standing means: next term, own vote stored, voters asked, candidate, then leader."""
    _, elect = made_of(**spoilt)
    with pytest.raises(ElectionError, match=problem):
        elect_it(elect)


@pytest.mark.parametrize(
    ("answer", "problem"),
    [
        (lambda self, c, t, h: None, "did not adopt term 5"),
        (lambda self, c, t, h: self._move(2, None), "lowered the term from 3 to 2"),
        (
            lambda self, c, t, h: (self._move(5, c), self._move(5, C)),
            "changed the vote of term 5 from b@.* to c@",
        ),
        (
            lambda self, c, t, h: (self._move(5, c), self._move(5, None)),
            "changed the vote of term 5 from b@.* to None",
        ),
        (
            lambda self, c, t, h: (self._move(5, None), self.owner.vote_granted(c, 5)),
            "granted a vote it had not stored",
        ),
    ],
)
def test_vote_that_goes_another_way_stops_the_node_before_it_is_sent(answer, problem):
    """S1.3: no grant leaves that is not the one stored vote of its term."""
    host, elect = made_of(request_vote=answer)
    with pytest.raises(ElectionError, match=problem):
        elect.on_message(B, vote_request(5, history(3, 10)), 0)
    assert host.sent() == []


def test_observing_a_term_must_not_vote():
    """S1.4: a term alone is no reason for a vote."""
    _, elect = made_of(observe_term=lambda self, term: self._move(term, B))
    with pytest.raises(ElectionError, match="did not just adopt term 9"):
        elect.observe_term(Term(9))


def test_leader_must_be_followed_in_its_term():
    """A machine that ignores a leader would stand against it."""
    _, elect = made_of(learn_leader=lambda self, leader, term: None)
    with pytest.raises(ElectionError, match="did not adopt term 7"):
        elect.on_leader(B, Term(7), 0)
    _, elect = made_of(learn_leader=lambda self, leader, term: None)
    with pytest.raises(ElectionError, match="did not follow"):
        elect.on_leader(B, Term(3), 0)


def test_leadership_must_not_end_without_a_higher_term():
    """A leader that quietly became a follower could be elected nowhere and answer everywhere."""
    _, elect = made_of()
    elect_it(elect)
    elect._state._machine.role = Role.FOLLOWER
    with pytest.raises(ElectionError, match="lost term 4 without a higher one"):
        elect._state._mirror(Term(4))


def test_record_of_a_later_term_than_ours_stops_the_node():
    """S1.5: nobody appends for a term that the replica has not adopted."""
    host = RecordingHost()
    elect = elector(host)
    host.end = history(4, 11)
    with pytest.raises(ElectionError, match="holds a record of term 4 but is in term 3"):
        elect.on_message(B, vote_request(9, history(9, 9)), 0)


def test_persist_guards_hold_for_pysyncobj_too():
    """The guards sit under every machine, the real one included."""
    host = RecordingHost()
    elect = elector(host)
    lead(elect, host)
    for term, voted_for in ((3, None), (4, None), (4, B)):
        with pytest.raises(ElectionError, match="pysyncobj"):
            elect._state.persist(Term(term), voted_for)
    assert host.take() == []
