"""How far the channel is committed is proven by round trips, never by what arrives (S7.3)."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raftstore.core.commit_proofs import MERGED_MS, PAIRS_MAX, Freshness
from raftstore.core.effects import FreshnessProven, ReadReady
from raftstore.core.events import (
    Applied,
    FreshnessRequested,
    ReadRequested,
    RoleChanged,
    Stalled,
)
from raftstore.protocol.message import Message
from raftstore.protocol.replication import (
    CommitNotice,
    FreshReply,
    FreshRequest,
    ReadIndexReply,
    ReadIndexRequest,
    StoreAck,
    StoreRequest,
)
from raftstore.types import Role, Seq, Term
from tests.core_world import CHANNEL, N1, N2, N3, OUTSIDER, Bench, make_replica


def leading() -> Bench:
    """A leader of term 1 whose term-start record is committed and applied."""
    bench = Bench(make_replica(N1))
    bench.lead()
    bench.persist()
    bench.receive(StoreAck(CHANNEL, Term(1), Seq(1)), N2)
    bench.receive(StoreAck(CHANNEL, Term(1), Seq(1)), N3)
    bench.do(Applied(Seq(1)))
    return bench


def following() -> Bench:
    """A follower of N2 in term 1."""
    bench = Bench(make_replica(N1))
    bench.follow(N2)
    return bench


def fresh_reply(bench: Bench, read_seq: int = 5, **changes: Any) -> FreshReply:
    """The answer to the newest request of the replica."""
    sent = [m for e in bench.all_effects for m in bench.sent(FreshRequest, [e])]
    fields = {"term": Term(1), "round_id": sent[-1].round_id} | changes
    return FreshReply(channel=CHANNEL, read_seq=Seq(read_seq), **fields)


def confirm(round_id: int) -> ReadIndexReply:
    """A voter's confirmation."""
    return ReadIndexReply(CHANNEL, Term(1), round_id)


def sent_anywhere(bench: Bench, kind: type[Message], since: int = 0) -> list[Any]:
    """Messages of a kind sent in all effects from an index on."""
    return bench.sent(kind, bench.all_effects[since:])


# --- the replica that asks ------------------------------------------------------------------------


def test_replica_asks_the_leader_and_learns_what_was_committed_when_it_asked() -> None:
    """S7.3: the proof counts from the moment of sending, however long the answer took."""
    bench = following()
    sent_ms = bench.now_ms
    bench.do(FreshnessRequested(sent_ms + 1_000))
    assert len(bench.sent(FreshRequest)) == 1
    bench.now_ms += 40
    assert bench.receive(fresh_reply(bench, 5)) == [FreshnessProven(sent_ms)]
    assert bench.replica.known_leader_commit_seq == 5
    assert bench.replica.fresh_as_of(Seq(5)) == sent_ms
    assert bench.replica.fresh_as_of(Seq(4)) is None


def test_reply_to_an_older_request_proves_nothing() -> None:
    """S7.3, S12: a late reply is of a round that started before the present request."""
    bench = following()
    bench.do(FreshnessRequested(2_000))
    old = fresh_reply(bench)
    bench.do(Stalled())
    assert bench.sent(FreshRequest)[0].round_id != old.round_id
    assert bench.receive(old) == []
    assert not bench.replica.is_trusting
    assert bench.of(FreshnessProven, bench.receive(fresh_reply(bench)))
    assert bench.replica.is_trusting


def test_reply_of_a_lower_term_or_of_another_node_proves_nothing() -> None:
    """S1.4, S7.3: only the leader of the present term knows."""
    bench = following()
    bench.do(Stalled())
    bench.do(FreshnessRequested(2_000))
    assert bench.receive(fresh_reply(bench), N3) == []
    assert bench.receive(fresh_reply(bench, term=Term(0))) == []
    assert not bench.replica.is_trusting


def test_doubled_reply_proves_nothing_new() -> None:
    """S12: the second one finds no request that it answers."""
    bench = following()
    bench.do(FreshnessRequested(2_000))
    reply = fresh_reply(bench)
    assert bench.receive(reply)
    bench.do(Stalled())
    assert bench.receive(reply) == []
    assert not bench.replica.is_trusting


def test_rounds_before_and_after_a_restart_have_other_numbers() -> None:
    """S12: a reply to the process before this one must not answer a request of this one."""
    ids = []
    for first in (1 << 40, 1 << 50):
        bench = Bench(make_replica(N1, first_round_id=first))
        bench.follow(N2)
        bench.do(FreshnessRequested(2_000))
        ids.append(bench.sent(FreshRequest)[0].round_id)
    assert ids[0] != ids[1]


def test_unanswered_request_is_repeated_until_nobody_waits_any_more() -> None:
    """One request at a time, the same one again, and silence after the last reader gave up."""
    bench = following()
    bench.do(FreshnessRequested(bench.now_ms + 250))
    bench.do(FreshnessRequested(bench.now_ms + 250))
    first = sent_anywhere(bench, FreshRequest)
    repeated = bench.sent(FreshRequest, bench.wait(5_000))
    assert len(first) == 1
    assert [m.round_id for m in repeated] == [first[0].round_id] * 2
    assert bench.receive(fresh_reply(bench)) == []


def test_proof_counts_from_the_first_sending_of_a_repeated_request() -> None:
    """S7.3: the answer may be one to the first copy, and knows nothing of what came after it."""
    bench = following()
    sent_ms = bench.now_ms
    bench.do(FreshnessRequested(sent_ms + 1_000))
    assert len(bench.sent(FreshRequest, bench.wait(250))) == 2
    assert bench.receive(fresh_reply(bench, 5)) == [FreshnessProven(sent_ms)]


def test_idle_replica_asks_nothing() -> None:
    """Given no reader, a replica asks for no proof: no timer and no message."""
    bench = following()
    bench.receive(fresh_reply_free())
    since = len(bench.all_effects)
    bench.wait(60_000)
    assert sent_anywhere(bench, FreshRequest, since) == []


def fresh_reply_free() -> FreshReply:
    """An answer that nobody asked for."""
    return FreshReply(CHANNEL, Term(1), 1, Seq(9))


def test_request_ends_with_its_leader_and_begins_again_with_the_next() -> None:
    """S7.3: without a leader there is nobody to ask, however long that takes."""
    bench = following()
    bench.do(FreshnessRequested(bench.now_ms + 1_000))
    bench.do(RoleChanged(Term(1), Role.FOLLOWER, None))
    assert bench.sent(FreshRequest, bench.wait(500)) == []
    bench.do(RoleChanged(Term(2), Role.FOLLOWER, N3))
    assert len(bench.sent(FreshRequest)) == 1


def test_reader_with_a_shorter_wait_does_not_shorten_that_of_another() -> None:
    """The request is repeated for as long as anybody waits."""
    bench = following()
    bench.do(FreshnessRequested(bench.now_ms + 900))
    bench.do(FreshnessRequested(bench.now_ms + 50))
    bench.wait(500)
    assert bench.sent(FreshRequest, bench.wait(300)) != []


def test_new_leader_is_asked_when_the_old_one_did_not_answer() -> None:
    """A reader that waits does not care who leads."""
    bench = following()
    bench.do(FreshnessRequested(bench.now_ms + 5_000))
    bench.do(RoleChanged(Term(2), Role.FOLLOWER, None))
    assert bench.sent(FreshRequest) == []
    effects = bench.do(RoleChanged(Term(2), Role.FOLLOWER, N3))
    (request,) = bench.sent(FreshRequest, effects)
    reply = FreshReply(CHANNEL, Term(2), request.round_id, Seq(7))
    assert bench.of(FreshnessProven, bench.receive(reply, N3))


def test_new_connection_to_the_leader_asks_again() -> None:
    """Given a new connection to the leader, the question is sent again: the one in flight is lost
    with the old connection.
    """
    bench = following()
    bench.do(FreshnessRequested(bench.now_ms + 5_000))
    assert len(bench.sent(FreshRequest, bench.follow(N2))) == 1


def test_messages_that_waited_do_not_end_the_distrust() -> None:
    """S7.3: after a stop the leader's messages may be as old as the stop was long."""
    bench = following()
    bench.do(Stalled())
    bench.receive(CommitNotice(CHANNEL, Term(1), Seq(9), Seq(9), Term(1), b""))
    bench.store_request(commit_seq=9)
    assert not bench.replica.is_trusting


# --- the leader that answers ----------------------------------------------------------------------


def test_leader_answers_after_a_round_that_started_after_the_request() -> None:
    """S7.1: a request that comes during a round waits for the next one."""
    bench = leading()
    bench.do(ReadRequested(1))
    assert bench.receive(FreshRequest(CHANNEL, Term(1), 70), N3) == []
    effects = bench.receive(confirm(1), N2)
    assert bench.of(ReadReady, effects) == [ReadReady(1, Seq(1))]
    assert bench.sent(FreshReply) == []
    assert {m.round_id for m in bench.sent(ReadIndexRequest)} == {2}
    bench.receive(confirm(2), N2)
    assert [(m.round_id, m.read_seq) for m in bench.sent(FreshReply)] == [(70, 1)]


def test_leader_proves_nothing_alone() -> None:
    """S7.1: without a quorum no reply, and the round is given up."""
    bench = leading()
    bench.receive(FreshRequest(CHANNEL, Term(1), 70), N3)
    assert len(bench.sent(ReadIndexRequest, bench.wait(1_000))) == 2 * 9
    assert bench.sent(ReadIndexRequest, bench.wait(10_000)) == []
    assert sent_anywhere(bench, FreshReply) == []
    assert bench.receive(confirm(1), N2) == []


def test_one_round_answers_every_replica_with_its_newest_request() -> None:
    """A repeated or newer request of a replica takes the place of the older one."""
    bench = leading()
    bench.do(ReadRequested(1))
    for round_id, sender in ((70, N3), (70, N3), (71, N3), (5, N2)):
        bench.receive(FreshRequest(CHANNEL, Term(1), round_id), sender)
    bench.receive(confirm(1), N2)
    bench.receive(confirm(2), N2)
    assert sorted(m.round_id for m in bench.sent(FreshReply)) == [5, 71]


def test_new_leader_answers_no_replica_before_it_committed_in_its_term() -> None:
    """S7.1: until then it does not know what is committed."""
    bench = Bench(make_replica(N1))
    bench.lead()
    assert bench.receive(FreshRequest(CHANNEL, Term(1), 70), N3) == []
    bench.persist()
    bench.receive(StoreAck(CHANNEL, Term(1), Seq(1)), N2)
    bench.receive(confirm(1), N2)
    assert [(m.round_id, m.read_seq) for m in bench.sent(FreshReply)] == [(70, 1)]


def test_deposed_leader_answers_no_replica() -> None:
    """S1.4: what it was asked dies with its term."""
    bench = leading()
    bench.receive(FreshRequest(CHANNEL, Term(1), 70), N3)
    bench.do(RoleChanged(Term(2), Role.FOLLOWER, N2))
    bench.lead(3)
    assert bench.receive(confirm(1), N2) == []


def test_outsider_is_not_answered() -> None:
    """S3.6: only members of the channel take part."""
    bench = leading()
    assert bench.receive(FreshRequest(CHANNEL, Term(1), 70), OUTSIDER) == []


def test_leader_knows_what_it_asked_for_itself() -> None:
    """S7.3: the proof counts from the start of the round."""
    bench = leading()
    started_ms = bench.now_ms
    bench.do(FreshnessRequested(started_ms + 1_000))
    bench.now_ms += 30
    assert bench.receive(confirm(1), N2) == [FreshnessProven(started_ms)]
    assert bench.replica.fresh_as_of(Seq(1)) == started_ms


# --- the leader that stood still ------------------------------------------------------------------


def test_leader_that_stood_still_tells_no_position_until_it_is_confirmed() -> None:
    """S7.3: another may lead since, and a follower would take the old position for the present."""
    bench = leading()
    bench.do(Stalled())
    (first, *_) = bench.sent(ReadIndexRequest)
    assert not bench.replica.knows_position
    bench.publish(1)
    assert {m.commit_seq for m in bench.sent(StoreRequest)} == {0}
    bench.receive(confirm(first.round_id), N2)
    assert bench.replica.knows_position
    bench.wait(50)
    notices = sent_anywhere(bench, CommitNotice)
    assert notices[-1].commit_seq == 1


def test_round_from_before_the_stop_does_not_confirm_the_leader_after_it() -> None:
    """S7.3: its confirmations may have waited in a buffer; the next round counts."""
    bench = leading()
    bench.do(ReadRequested(1))
    bench.now_ms += 20_000
    bench.do(Stalled())
    bench.receive(confirm(1), N2)
    assert not bench.replica.knows_position
    bench.receive(confirm(2), N2)
    assert bench.replica.knows_position


def test_leader_that_stood_still_asks_until_it_is_confirmed_or_deposed() -> None:
    """Its followers would wait for a commit position for ever otherwise."""
    bench = leading()
    bench.do(Stalled())
    bench.wait(10_000)
    last = sent_anywhere(bench, ReadIndexRequest)[-1].round_id
    bench.receive(confirm(last), N2)
    assert bench.replica.knows_position


# --- pairs ----------------------------------------------------------------------------------------

PAIRS = st.lists(st.tuples(st.integers(0, 2_000), st.integers(0, 50)), max_size=120)


@given(PAIRS, st.integers(0, 55))
def test_no_state_is_called_newer_than_a_pair_proves(
    pairs: list[tuple[int, int]], applied: int
) -> None:
    """Pairs may be forgotten or merged, which makes a state older, never newer."""
    freshness = Freshness()
    for known_ms, seq in pairs:
        freshness.learn(known_ms, Seq(seq))
    proven = max((t for t, seq in pairs if seq <= applied), default=None)
    found = freshness.as_of(Seq(applied))
    assert found is None or (proven is not None and found <= proven)


def test_state_is_as_new_as_the_newest_pair_at_or_below_it() -> None:
    """The pairs of a channel that moves on, whatever order they come in."""
    freshness = Freshness()
    for known_ms, seq in ((300, 9), (100, 3), (200, 3), (150, 9)):
        freshness.learn(known_ms, Seq(seq))
    asked = [freshness.as_of(Seq(applied)) for applied in (2, 3, 8, 9, 100)]
    assert asked == [None, 200, 200, 300, 300]


def test_pairs_are_bounded_and_the_newest_stays() -> None:
    """Close ones are merged, old ones are spaced out."""
    freshness = Freshness()
    for step in range(10_000):
        freshness.learn(step, Seq(step))
        assert len(freshness._times) <= PAIRS_MAX
    assert freshness.as_of(Seq(9_999)) == 9_999
    assert freshness.as_of(Seq(9_900)) is not None


@pytest.mark.slow
@pytest.mark.parametrize("every_ms", [1, 5, 20, 1_000])
def test_age_of_a_state_far_behind_stays_known_however_often_something_commits(
    every_ms: int,
) -> None:
    """Readers see the view of before while a large batch is applied, and ask for its age."""
    freshness = Freshness()
    end_ms = 600_000
    for known_ms in range(0, end_ms + 1, every_ms):
        freshness.learn(known_ms, Seq(known_ms))
    for behind_ms in (1_000, 2_000, 10_000, 60_000):
        as_of = freshness.as_of(Seq(end_ms - behind_ms))
        assert as_of is not None
        assert behind_ms <= end_ms - as_of <= 1.5 * behind_ms + 2 * max(every_ms, MERGED_MS)


def test_stop_of_the_node_forgets_what_was_proven() -> None:
    """S7.3: only what starts after it counts."""
    freshness = Freshness()
    freshness.learn(100, Seq(3))
    freshness.distrust(500)
    assert freshness.as_of(Seq(3)) is None
    freshness.learn(499, Seq(3))
    assert not freshness.is_trusted
    freshness.learn(500, Seq(3))
    assert freshness.is_trusted


def test_every_proof_counts_while_there_are_few() -> None:
    """S7.3: given no more proofs than are kept, each state is as old as its own proof says."""
    freshness = Freshness()
    for number in range(1, PAIRS_MAX + 1):
        freshness.learn(number * 1_000, Seq(number))
    known = [freshness.as_of(Seq(number)) for number in range(1, PAIRS_MAX + 1)]
    assert known == [number * 1_000 for number in range(1, PAIRS_MAX + 1)]
