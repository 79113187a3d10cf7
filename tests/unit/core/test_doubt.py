"""A replica that may have lost acknowledged records: whom it asks, whom it believes, and until when
it takes no part (S0.6)."""

from __future__ import annotations

from typing import Any

from raftstore.core.doubt import ASK_MS, LEADERLESS_ROUNDS
from raftstore.core.effects import DoubtEnded, RaiseTerm, SendIfKnown
from raftstore.core.events import Received, RoleChanged, TimerFired
from raftstore.protocol.log_ends import AskLogEnd, LogEnd
from raftstore.protocol.replication import ReadIndexRequest, StoreAck
from raftstore.types import ChannelConfig, History, NodeId, RequestId, Role, Seq, Term
from tests.core_bench import CHANNEL, N1, N2, N3, Bench, make_replica, record, term_start

OWN = [term_start(1, 1), record(2), record(3)]
"""The log that is left: its end is (1, 3), in term 2."""


class Doubting:
    """A replica in doubt, and the answers that it gets."""

    def __init__(self, **more: Any) -> None:
        self.bench = Bench(make_replica(records=OWN, term=2, in_doubt=True, **more))
        self.replica = self.bench.replica
        self.bench.do(TimerFired())

    def questions(self) -> list[tuple[NodeId, AskLogEnd]]:
        """All that were asked since the last call, in order."""
        found = [
            (effect.to, effect.message)
            for effect in self.bench.all_effects
            if isinstance(effect, SendIfKnown) and isinstance(effect.message, AskLogEnd)
        ]
        self.bench.all_effects.clear()
        return found

    def round(self) -> RequestId:
        """Begin the next round of questions; return its id."""
        self.questions()
        self.bench.wait(ASK_MS)
        (first, *_) = self.questions()
        return first[1].request_id

    def answer(
        self,
        sender: NodeId,
        request_id: int,
        history: tuple[int, int],
        *,
        term: int = 2,
        leads: bool = False,
    ) -> None:
        """An answer arrives."""
        end = History(Term(history[0]), Seq(history[1]))
        message = LogEnd(
            channel=CHANNEL,
            term=Term(term),
            request_id=RequestId(request_id),
            history=end,
            leads=leads,
        )
        self.bench.do(Received(sender, message))

    def raise_term(self, term: int) -> None:
        """The elector adopts a term."""
        self.bench.do(RoleChanged(Term(term), Role.FOLLOWER, None))
        self.bench.persist(term=term)

    @property
    def parts(self) -> tuple[bool, bool, bool]:
        """Whether it is recovering, would vote for anybody, and may stand."""
        replica = self.replica
        return replica.is_recovering, replica.may_vote(), replica.may_stand()

    def votes_for(self, term: int, seq: int) -> bool:
        """Whether a candidate of this history may get its vote."""
        return self.replica.may_vote(History(Term(term), Seq(seq)))


def test_replica_in_doubt_asks_all_others_and_takes_no_part() -> None:
    """S0.6: no vote, no candidacy, no acknowledgement; no question changes anything anywhere."""
    doubting = Doubting()
    asked = doubting.questions()
    assert [to for to, _ in asked] == [N2, N3]
    assert not any(question.is_fence for _, question in asked)
    assert doubting.parts == (True, False, False)
    doubting.bench.follow(N2, 2)
    doubting.bench.receive(ReadIndexRequest(channel=CHANNEL, term=Term(2), round_id=RequestId(1)))
    assert not doubting.bench.sent(StoreAck)
    assert "a leader has to answer, or all replicas" in doubting.replica.doubt


def test_end_of_a_leader_is_a_target() -> None:
    """S0.6: it votes for who has come as far, and stands again when its own log has."""
    doubting = Doubting()
    doubting.answer(N2, doubting.round(), (2, 7), leads=True)
    assert doubting.parts == (True, True, False)
    assert not doubting.votes_for(2, 6)
    assert doubting.votes_for(2, 7)
    assert "seq 7 of term 2" in doubting.replica.doubt
    doubting.answer(N2, doubting.round(), (1, 3), leads=True)
    assert doubting.parts == (False, True, True)
    assert doubting.bench.of(DoubtEnded, doubting.bench.all_effects)
    assert doubting.replica.doubt == ""


def test_leader_of_a_lower_term_is_not_believed() -> None:
    """S0.6: it may lack what this replica acknowledged in its own term."""
    doubting = Doubting()
    doubting.answer(N2, doubting.round(), (1, 7), term=1, leads=True)
    assert doubting.parts == (True, False, False)


def test_answer_to_an_earlier_round_or_life_is_not_believed() -> None:
    """S0.6: it may be of what was lost since."""
    doubting = Doubting()
    earlier = doubting.round()
    now = doubting.round()
    for request_id in (earlier, now + 1, 0):
        doubting.answer(N2, request_id, (1, 3), leads=True)
    assert doubting.parts == (True, False, False)


def test_without_a_leader_all_have_to_answer_in_a_term_above_its_own() -> None:
    """S0.6: a majority may lack what the third one holds, and in a term in which this replica may
    have acknowledged, records may still be under way."""
    doubting = Doubting()
    doubting.raise_term(3)
    doubting.answer(N2, doubting.round(), (1, 9), term=3)
    assert doubting.parts == (True, False, False)
    again = doubting.round()
    assert "no answer from " + "n3" in doubting.replica.doubt
    doubting.answer(N2, again, (1, 9), term=3)
    doubting.answer(N3, again, (1, 12), term=2)
    assert doubting.parts == (True, False, False)
    last = doubting.round()
    doubting.answer(N2, last, (1, 9), term=3)
    doubting.answer(N3, last, (1, 12), term=3)
    assert doubting.parts == (True, True, False)
    assert not doubting.votes_for(1, 11)
    assert doubting.votes_for(1, 12)


def test_terms_are_raised_when_nobody_leads() -> None:
    """S0.6: the replica takes over a term above all first, and asks the others to do so."""
    doubting = Doubting()
    for _ in range(LEADERLESS_ROUNDS):
        assert not doubting.bench.of(RaiseTerm)
        request_id = doubting.round()
        doubting.answer(N2, request_id, (1, 3), term=2)
        doubting.answer(N3, request_id, (1, 2), term=5)
    assert [effect.term for effect in doubting.bench.of(RaiseTerm, doubting.bench.all_effects)] == [
        5
    ]
    doubting.raise_term(5)
    doubting.questions()
    doubting.bench.wait(ASK_MS)
    asked = doubting.questions()
    assert [(question.term, question.is_fence) for _, question in asked] == [(5, True)] * 2
    request_id = asked[0][1].request_id
    doubting.answer(N2, request_id, (1, 3), term=5)
    doubting.answer(N3, request_id, (1, 2), term=5)
    assert doubting.parts == (False, True, True), "its own log is the longest"


def test_newer_answer_replaces_the_target() -> None:
    """S0.6: nobody may hold any more what was reported to the one before."""
    doubting = Doubting()
    doubting.answer(N2, doubting.round(), (2, 100), leads=True)
    doubting.answer(N3, doubting.round(), (3, 4), term=3, leads=True)
    assert doubting.votes_for(3, 4)
    assert not doubting.votes_for(2, 100)


def test_replica_without_others_is_in_no_doubt_for_long() -> None:
    """S0.6: what it lost, nobody holds."""
    alone = Doubting(config=ChannelConfig(((N1,),)))
    assert alone.parts == (False, True, True)


def test_replica_that_lacks_what_its_mark_promised_waits_for_that_too() -> None:
    """S0.3, S0.6: what is known to be missing stays missing, whatever else was lost."""
    doubting = Doubting(shortfall=(1, 5))
    doubting.answer(N2, doubting.round(), (1, 3), leads=True)
    assert doubting.parts == (True, False, False)


def test_every_replica_tells_its_end() -> None:
    """S0.6: one in doubt, too; a leader says that it leads."""
    question = AskLogEnd(channel=CHANNEL, term=Term(0), request_id=RequestId(77), is_fence=False)
    for bench in (Bench(make_replica(records=OWN, term=2)), Doubting().bench):
        (told,) = [
            effect.message
            for effect in bench.do(Received(N3, question))
            if isinstance(effect, SendIfKnown) and isinstance(effect.message, LogEnd)
        ]
        assert (told.request_id, told.term, told.history, told.leads) == (77, 2, (1, 3), False)
    leader = Bench(make_replica(records=OWN, term=2))
    leader.lead(3)
    (told,) = [
        effect.message
        for effect in leader.do(Received(N3, question))
        if isinstance(effect, SendIfKnown)
    ]
    assert (told.history, told.leads) == ((3, 4), True)
