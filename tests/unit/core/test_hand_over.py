"""Handing the leadership over without losing or refusing more than needed (S9)."""

from __future__ import annotations

from raftstore.config import ReplicationSettings
from raftstore.core.effects import Effect, HandOverFailed, SendIfKnown, StepDown, TransferLeadership
from raftstore.core.events import Applied, HandOverRequested, RoleChanged, StorageStalled
from raftstore.core.refused_writes import HELD_MAX, HELD_MS
from raftstore.protocol.publish import PubAck
from raftstore.protocol.replication import AskApplied, CommitNotice, StoreAck
from raftstore.types import ChannelConfig, NodeId, Role, Seq, Term
from tests.core_world import CHANNEL, N1, N2, N3, OUTSIDER, Bench, make_replica, record


def leading(config: ChannelConfig | None = None) -> Bench:
    """A leader of term 1 with everything committed by itself and n2."""
    bench = Bench(make_replica(N1, **({} if config is None else {"config": config})))
    bench.lead()
    bench.persist()
    acked(bench)
    return bench


def acked(bench: Bench, node: NodeId = N2, *, applied_seq: int | None = None) -> list[Effect]:
    """A follower has everything, and applied it, too, unless that is named."""
    end = bench.replica.last_seq
    applied = end if applied_seq is None else Seq(applied_seq)
    return bench.receive(StoreAck(CHANNEL, Term(1), end, applied, end), node)


def test_target_that_is_equal_takes_over_at_once() -> None:
    """S9: the target durably holds our end, so the transfer may leave."""
    bench = leading()
    assert bench.do(HandOverRequested(N2, "drain")) == [TransferLeadership(N2)]


def test_leader_stops_accepting_and_waits_until_the_target_is_equal() -> None:
    """S9: first stop accepting, then wait for the durable match to reach the end."""
    bench = leading()
    bench.publish(1)
    assert bench.of(TransferLeadership, bench.do(HandOverRequested(N2, "drain"))) == []
    assert not bench.appended(bench.publish(2))
    bench.persist()
    effects = acked(bench)
    assert bench.of(TransferLeadership, effects) == [TransferLeadership(N2)]
    assert isinstance(bench.replies(effects)[0][1], PubAck)


def test_any_equal_voter_takes_over_when_none_is_named() -> None:
    """Without a target the first voter that is equal to our end is asked."""
    bench = leading()
    assert bench.do(HandOverRequested(None, "stopping")) == [TransferLeadership(N2)]


def test_leader_accepts_again_when_the_hand_over_times_out() -> None:
    """S9: on timeout resume."""
    bench = leading()
    acked(bench, N3, applied_seq=0)
    assert not bench.of(TransferLeadership, bench.do(HandOverRequested(N3, "drain")))
    bench.publish(1)
    assert bench.replies(bench.wait(HELD_MS))[0][1].code == "unavailable"
    (failed,) = bench.of(HandOverFailed, bench.wait(1_000))
    assert "n3 has 1 rows to apply" in failed.reason
    bench.publish(2)
    assert len(bench.appended()) == 1


def test_transfer_that_is_not_taken_up_times_out_too() -> None:
    """S9: a target that never wins leaves the old leader in office."""
    bench = leading()
    bench.do(HandOverRequested(N2, "drain"))
    (failed,) = bench.of(HandOverFailed, bench.wait(1_000))
    assert "did not take over" in failed.reason


def test_pending_publishes_are_unknown_when_the_target_wins() -> None:
    """S9: pending publishes still commit or become UNKNOWN."""
    bench = leading()
    bench.publish(1)
    bench.do(HandOverRequested(N2, "drain"))
    ((_, answer),) = bench.replies(bench.do(RoleChanged(Term(2), Role.FOLLOWER, N2)))
    assert answer.code == "leadership_lost"


def test_known_retries_are_answered_during_a_hand_over() -> None:
    """A committed write's retry needs no new seq."""
    bench = leading()
    bench.publish(1)
    bench.persist()
    acked(bench)
    bench.do(HandOverRequested(N3, "drain"))
    ((_, answer),) = bench.replies(bench.publish(1, client=8, attempt=1))
    assert isinstance(answer, PubAck)


def test_impossible_hand_overs_fail_at_once() -> None:
    """No other voter, a target that is no voter, or not leading: refused, and writes go on."""
    alone = leading(ChannelConfig(((N1,),)))
    assert len(alone.of(HandOverFailed, alone.do(HandOverRequested(None, "x")))) == 1
    bench = leading()
    assert len(bench.of(HandOverFailed, bench.do(HandOverRequested(OUTSIDER, "x")))) == 1
    bench.publish(1)
    assert len(bench.appended()) == 1
    follower = Bench(make_replica(N1))
    assert len(follower.of(HandOverFailed, follower.do(HandOverRequested(N2, "x")))) == 1


def test_learner_is_no_target() -> None:
    """S9: only voters may lead."""
    bench = leading(ChannelConfig(((N1, N2),), learners=(N3,)))
    bench.publish(1)
    bench.persist()
    bench.receive(StoreAck(CHANNEL, Term(1), Seq(2)), N3)
    assert bench.of(TransferLeadership, bench.do(HandOverRequested(None, "x"))) == []


def test_voter_that_is_down_is_not_asked_although_it_was_equal() -> None:
    """S9: an idle channel's dead voter holds our end, too; asking it would only lose time."""
    bench = leading()
    acked(bench, N3)
    event = HandOverRequested(None, "stopping", down=(N2,))
    assert bench.do(event) == [TransferLeadership(N3)]


def test_hand_over_fails_at_once_when_every_other_voter_is_down() -> None:
    """Given that all other voters are down, the hand-over fails at once; no voter was asked, so the
    leadership stays and writes go on.
    """
    bench = leading()
    (failed,) = bench.of(
        HandOverFailed, bench.do(HandOverRequested(None, "stopping", down=(N2, N3)))
    )
    assert not failed.was_asked
    bench.publish(1)
    assert len(bench.appended()) == 1


def test_named_target_is_asked_whatever_is_believed_of_it() -> None:
    """An operator's word counts more than a suspicion."""
    bench = leading()
    assert bench.do(HandOverRequested(N2, "drain", down=(N2,))) == [TransferLeadership(N2)]


def test_failed_hand_over_tells_whether_the_target_may_still_take_over() -> None:
    """S4.1: only when nobody was asked is it certain that nothing comes of it."""
    bench = leading()
    bench.do(HandOverRequested(N3, "drain"))
    (failed,) = bench.of(HandOverFailed, bench.wait(1_000))
    assert not failed.was_asked
    bench.do(HandOverRequested(N2, "drain"))
    (failed,) = bench.of(HandOverFailed, bench.wait(1_000))
    assert failed.was_asked


def test_node_that_stops_asks_the_next_voter_when_one_does_not_take_over() -> None:
    """S9: one after the other, equal ones only, and no write is accepted in between."""
    bench = leading()
    acked(bench, N3)
    asked = bench.do(HandOverRequested(None, "stopping", keeps_trying=True))
    assert asked == [TransferLeadership(N2)]
    effects = bench.wait(1_000)
    (failed,) = bench.of(HandOverFailed, effects)
    assert failed.was_asked
    assert bench.of(TransferLeadership, effects) == [TransferLeadership(N3)]
    bench.publish(1)
    assert not bench.appended()
    effects = bench.wait(1_000)
    assert bench.replies(effects)[0][1].code == "unavailable"
    assert bench.of(TransferLeadership, effects) == [TransferLeadership(N2)]


def test_node_that_stops_passes_over_a_voter_that_is_behind() -> None:
    """S9: a voter whose end differs from the leader's is not asked, although all others failed."""
    bench = leading()
    bench.do(HandOverRequested(None, "stopping", keeps_trying=True))
    assert bench.of(TransferLeadership, bench.wait(1_000)) == [TransferLeadership(N2)]
    bench.wait(1_000)
    acked(bench, N3)
    assert bench.of(TransferLeadership, bench.wait(1_000)) == [TransferLeadership(N3)]


# --- what publishers are answered meanwhile -------------------------------------------------------


def test_refused_write_is_answered_with_the_name_of_the_successor() -> None:
    """S9: its publisher goes there at once, and asks nobody who leads."""
    bench = leading()
    bench.publish(1)
    bench.do(HandOverRequested(N2, "drain"))
    assert not bench.replies(bench.publish(2))
    bench.persist()
    assert bench.of(TransferLeadership, acked(bench)) == [TransferLeadership(N2)]
    bench.do(RoleChanged(Term(2), Role.FOLLOWER, None))
    assert not bench.replies(bench.publish(3)), "it does not lead any more, and knows nobody yet"
    answers = [
        answer for _, answer in bench.replies(bench.do(RoleChanged(Term(2), Role.FOLLOWER, N2)))
    ]
    assert [(each.code, each.term, each.leader_hint) for each in answers] == [
        ("unavailable", 2, N2),
        ("not_leader", 2, N2),
    ]
    assert not bench.replies(bench.wait(HELD_MS))


def test_refused_write_waits_for_no_successor_that_does_not_come() -> None:
    """S9: within a bound, and not at all behind a hand-over that has failed."""
    bench = leading()
    bench.do(HandOverRequested(N2, "drain"))
    bench.publish(1)
    assert not bench.replies(bench.wait(HELD_MS - 1))
    assert len(bench.replies(bench.wait(1))) == 1
    quick = Bench(make_replica(settings=ReplicationSettings(hand_over_timeout_ms=HELD_MS // 2)))
    quick.lead()
    quick.persist()
    acked(quick)
    quick.do(HandOverRequested(N2, "drain"))
    quick.publish(1)
    assert len(quick.replies(quick.wait(HELD_MS // 2))) == 1


def test_refused_writes_that_wait_have_a_deadline() -> None:
    """The replica wakes up for the first of them, though nothing else is due."""
    rare = ReplicationSettings(
        commit_notice_interval_ms=10_000, resend_interval_ms=10_000, hand_over_timeout_ms=10_000
    )
    bench = Bench(make_replica(settings=rare))
    bench.lead()
    bench.persist()
    acked(bench)
    bench.do(HandOverRequested(N2, "drain"))
    bench.publish(1)
    due_ms = bench.now_ms + HELD_MS
    assert bench.replica.next_deadline_ms() == due_ms
    bench.wait(1)
    bench.publish(2)
    assert bench.replica.next_deadline_ms() == due_ms


def test_write_at_a_leader_that_was_deposed_without_a_word_is_refused_at_once() -> None:
    """The next leader is unknown here, and for how long: its publisher had better ask around."""
    bench = leading()
    bench.do(RoleChanged(Term(2), Role.FOLLOWER, None))
    assert bench.replies(bench.publish(1))[0][1].code == "not_leader"
    asked = leading()
    asked.do(HandOverRequested(N2, "drain"))
    asked.do(RoleChanged(Term(2), Role.FOLLOWER, None))
    asked.wait(HELD_MS)
    assert asked.replies(asked.publish(1))[0][1].code == "not_leader"


def test_refused_writes_that_wait_are_bounded() -> None:
    """A client makes a node hold so many answers at most."""
    bench = leading()
    bench.do(HandOverRequested(N2, "drain"))
    for counter in range(1, HELD_MAX + 1):
        assert not bench.replies(bench.publish(counter))
    assert len(bench.replies(bench.publish(HELD_MAX + 1))) == 1
    assert len(bench.replies(bench.wait(HELD_MS))) == HELD_MAX


# --- what the successor's table shows (FIP-20) ----------------------------------------------------


def asked_to_apply(bench: Bench, effects: list[Effect]) -> list[tuple[NodeId, Seq]]:
    """Nodes that were asked to acknowledge once their table shows a seq."""
    return [
        (each.to, each.message.seq)
        for each in bench.of(SendIfKnown, effects)
        if isinstance(each.message, AskApplied)
    ]


def test_target_is_asked_again_for_what_it_has_applied() -> None:
    """FIP-20, S12: the question or its answer may be lost; a notice makes older versions answer."""
    bench = leading()
    bench.publish(1)
    bench.persist()
    acked(bench, applied_seq=1)
    effects = bench.do(HandOverRequested(N2, "drain"))
    assert asked_to_apply(bench, effects) == [(N2, Seq(2))]
    assert asked_to_apply(bench, acked(bench, applied_seq=1)) == [], "it was asked a moment ago"
    effects = bench.wait(ReplicationSettings().commit_notice_interval_ms)
    assert asked_to_apply(bench, effects) == [(N2, Seq(2))]
    assert bench.sent(CommitNotice, effects)
    assert bench.of(TransferLeadership, acked(bench)) == [TransferLeadership(N2)]
    assert asked_to_apply(bench, bench.wait(100)) == []


def test_target_that_gets_equal_after_the_commit_is_asked_at_once() -> None:
    """FIP-20: writes wait, so not until the next repetition of the question; and once."""
    bench = leading()
    bench.publish(1)
    bench.persist()
    bench.do(HandOverRequested(N2, "drain"))
    assert asked_to_apply(bench, acked(bench, N3)) == [], "n3 committed it, n2 may not have it yet"
    assert asked_to_apply(bench, acked(bench, applied_seq=1)) == [(N2, Seq(2))]
    assert asked_to_apply(bench, acked(bench, applied_seq=1)) == []
    assert bench.of(TransferLeadership, acked(bench)) == [TransferLeadership(N2)]


def test_nobody_is_asked_to_apply_what_is_not_committed() -> None:
    """S4.2: it cannot be applied; the commit itself leads to the question."""
    bench = leading()
    bench.publish(1)
    acked(bench, applied_seq=1)
    assert asked_to_apply(bench, bench.do(HandOverRequested(N2, "drain"))) == []
    assert asked_to_apply(bench, bench.persist()) == [(N2, Seq(2))]


def test_writes_go_on_until_the_target_is_near() -> None:
    """FIP-20: a table that is thousands of rows behind would hold all writes up for as long."""
    bench = Bench(make_replica(settings=ReplicationSettings(hand_over_lag_max=2)))
    bench.lead()
    for counter in range(1, 4):
        bench.publish(counter)
    bench.persist()
    acked(bench, applied_seq=1)
    bench.do(HandOverRequested(N2, "drain"))
    assert len(bench.appended(bench.publish(4))) == 1, "3 rows are to be applied there"
    bench.persist()
    acked(bench, applied_seq=3)
    assert not bench.appended(bench.publish(5))
    assert bench.of(TransferLeadership, acked(bench)) == [TransferLeadership(N2)]


def test_target_that_never_gets_near_costs_no_write() -> None:
    """FIP-20: bounded, and the reason names what is missing and the setting."""
    bench = Bench(make_replica(settings=ReplicationSettings(hand_over_lag_max=0)))
    bench.lead()
    bench.persist()
    acked(bench, applied_seq=0)
    bench.do(HandOverRequested(N2, "drain"))
    (failed,) = bench.of(HandOverFailed, bench.wait(1_000))
    assert "n2 has 1 rows to apply, more than 0" in failed.reason
    assert "writes went on" in failed.reason
    assert not failed.was_asked
    bench.publish(1)
    assert len(bench.appended()) == 1


def test_time_to_get_near_is_not_taken_from_the_time_without_writes() -> None:
    """S9: the second wait is bounded by itself."""
    bench = Bench(make_replica(settings=ReplicationSettings(hand_over_lag_max=0)))
    bench.lead()
    bench.persist()
    acked(bench, applied_seq=0)
    bench.do(HandOverRequested(N2, "drain"))
    bench.wait(900)
    bench.publish(1)
    bench.persist()
    assert not bench.of(HandOverFailed, bench.wait(99))
    acked(bench, applied_seq=2)
    assert bench.of(TransferLeadership) == [TransferLeadership(N2)]
    assert not bench.of(HandOverFailed, bench.wait(999))
    assert bench.of(HandOverFailed, bench.wait(1))


def test_node_that_stops_waits_for_no_table_twice() -> None:
    """S9: a node that ends anyway had better hand over to a voter that lacks no record."""
    bench = leading()
    bench.publish(1)
    bench.persist()
    acked(bench, applied_seq=1)
    event = HandOverRequested(None, "stopping", keeps_trying=True)
    assert not bench.of(TransferLeadership, bench.do(event))
    assert not bench.appended(bench.publish(2))
    assert bench.of(TransferLeadership, bench.wait(1_000)) == [TransferLeadership(N2)]


def test_disk_that_hangs_waits_for_no_table() -> None:
    """S0.4: nothing is served here, so a voter that holds everything leads at once."""
    bench = leading()
    acked(bench, applied_seq=0)
    assert bench.of(TransferLeadership, bench.do(StorageStalled("it hangs", ()))) == [
        TransferLeadership(N2)
    ]


def test_follower_acknowledges_once_its_table_shows_what_was_asked_for() -> None:
    """FIP-10: at once if it does already, later otherwise, and once."""
    bench = Bench(make_replica(N1))
    bench.steady()
    bench.store_request(record(1), prev_term=0, commit_seq=1, inlined=True)
    bench.persist()
    assert bench.sent(StoreAck, bench.receive(AskApplied(CHANNEL, Term(1), Seq(1)))) == []
    (ack,) = bench.sent(StoreAck, bench.do(Applied(Seq(1))))
    assert (ack.match_seq, ack.applied_seq) == (1, 1)
    assert bench.sent(StoreAck, bench.do(Applied(Seq(1)))) == []
    assert len(bench.sent(StoreAck, bench.receive(AskApplied(CHANNEL, Term(1), Seq(1))))) == 1


# --- a learner that leads (M18) -------------------------------------------------------------------


def learner_that_leads() -> Bench:
    """It was elected for its log alone, and has committed nothing yet."""
    bench = Bench(make_replica(N3, config=ChannelConfig(((N1, N2),), learners=(N3,))))
    bench.lead(me=N3)
    bench.persist()
    bench.receive(StoreAck(CHANNEL, Term(1), Seq(1)), N1)
    return bench


def test_learner_that_leads_hands_over_to_the_first_voter_with_its_log() -> None:
    """M18: it knows who that is, so the others need not find out by electing."""
    bench = learner_that_leads()
    effects = bench.receive(StoreAck(CHANNEL, Term(1), Seq(1)), N2)
    assert bench.of(TransferLeadership, effects) == [TransferLeadership(N1)]
    assert not bench.of(StepDown, effects)
    assert bench.replies(bench.publish(1, leader=N3))[0][1].code == "unavailable"


def test_learner_that_leads_gives_up_when_no_voter_takes_over() -> None:
    """M18, M5: it leads no longer than it must."""
    bench = learner_that_leads()
    bench.receive(StoreAck(CHANNEL, Term(1), Seq(1)), N2)
    assert len(bench.of(StepDown, bench.wait(1_000))) == 1
    assert bench.replies(bench.publish(1, leader=N3))[0][1].code == "unavailable"
