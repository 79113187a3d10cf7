"""Members change step by step, under any leader and with any death on the way (M2 to M26)."""

from __future__ import annotations

from dataclasses import replace

import pytest

from raftstore.core.change import Rounds
from raftstore.core.configs import encode_config
from raftstore.core.effects import HandOverFailed, ReadReady, Send, StepDown, TransferLeadership
from raftstore.core.events import Applied, HandOverRequested, ReadRequested, TimerFired
from raftstore.core.membership import Stage
from raftstore.protocol.publish import PubReject
from raftstore.protocol.replication import (
    MsgSyncRequest,
    ReadIndexReply,
    ReadIndexRequest,
    StoreAck,
    StoreRequest,
)
from raftstore.types import ChannelConfig, ReplicaNumber, Role, Seq, Term
from tests.core_world import CHANNEL, N1, N2, N3, Bench, Node, World, make_replica
from tests.unit.core.change_bench import (
    N4,
    N5,
    ORDER,
    REPLACE,
    SETTINGS,
    leader_of,
    led,
    order,
    settle,
    steps,
    target,
)


def run_until(world: World, node: Node, step: str, *, loses: bool = True) -> None:
    """Go on until the node's log has this configuration; what it sent with it is lost."""
    for _ in range(200):
        if step in steps(node):
            break
        if not world.deliver(first=1):
            for each in world.nodes.values():
                if each.is_up:
                    each.persist()
            if not world.network:
                world.tick(50)
    else:
        raise AssertionError(f"{step} is not reached: {steps(node)}")
    if loses:
        world.drop()


# --- the way of a change --------------------------------------------------------------------------


def test_replica_is_replaced_by_a_learner_then_two_sets_then_one() -> None:
    """M8, M9: each step is a record, the last one ends the order; the removed one is notified."""
    world = led()
    order(world, REPLACE)
    settle(world)
    assert steps(world[N1]) == steps(world[N4]) == ["123+4", "123/124", "124."]
    assert world[N3].replica.is_removed
    assert steps(world[N3]) == ["123+4", "123/124"], "nothing is deleted, and nothing more is sent"
    view = world[N1].replica.membership()
    assert (view.stage, view.waits_for, view.is_committed) == (Stage.NONE, "", True)
    assert view.config.numbers == {N4: ORDER}
    world.publish(1, to=[N1, N2, N4])
    settle(world)
    assert {world[n].replica.commit_seq for n in (N1, N2, N4)} == {world[N1].replica.last_seq}


def test_several_replicas_are_replaced_one_after_the_other() -> None:
    """M8: so that two sets never need two new voters; the leader leaves last, by a hand-over."""
    world = led()
    order(world, target(N1, N4, N5, new=(N4, N5)))
    settle(world, 5)
    assert steps(world[N1]) == ["123+4", "123/134", "134", "134+5", "134/145", "145."]


@pytest.mark.parametrize(
    ("ordered", "expected"),
    [
        (target(N1, N2, N3, N4, N5, new=(N4, N5)), ["123+4", "123/1234", "1234", "1234+5",
                                                    "1234/12345", "12345."]),
        (target(N1), ["123/13", "13", "13/1", "1."]),
        (target(N1, N2, N3, new=(), learners=(N4,)), ["123+4"]),
    ],
    ids=["more", "fewer", "read-replica"],
)  # fmt: skip
def test_number_of_replicas_changes(ordered, expected) -> None:
    """M8: each voter more or less by two sets; replicas that never vote are one record."""
    world = led()
    if ordered.learners:
        ordered = target(N1, N2, N3, new=(N4,), learners=(N4,))
    order(world, ordered)
    settle(world, 6)
    got = steps(world[N1])
    assert got[: len(expected)] == expected
    assert got[-1].endswith(".")
    assert leader_of(world).replica.membership().stage is Stage.NONE


def test_voter_may_stay_as_a_learner() -> None:
    """B4: it goes on having everything; undone, it votes again."""
    world = led(spare=(N4,))
    order(world, target(N1, N2, N4, new=(N4,), learners=(N3,)))
    settle(world)
    assert steps(world[N1]) == ["123+4", "123/124", "124+3."]
    assert world[N3].replica.last_seq == world[N1].replica.last_seq


def test_second_life_of_a_replica_replaces_the_first_by_leaving_first() -> None:
    """A configuration has one number for a node: the earlier life leaves, then the next enters."""
    world = led(spare=())
    order(world, target(N1, N2, N3, new=(N3,)), at=[N1])
    settle(world)
    assert steps(world[N1]) == ["123/12", "12", "12+3"]
    world[N3].begin_life(ReplicaNumber(ORDER))
    settle(world)
    assert steps(world[N1])[3:] == ["12/123", "123."]
    assert world[N1].replica.config().number_of(N3) == ORDER


def test_only_replica_is_not_replaced_by_its_own_next_life() -> None:
    """There would be nobody left who has the records."""
    world = led(ChannelConfig(((N1,),)), spare=())
    order(world, target(N1, new=(N1,)))
    settle(world)
    assert steps(world[N1]) == []
    assert "cannot be replaced on its own node" in world[N1].replica.membership().waits_for


def test_second_life_of_the_only_replica_never_leads_by_itself() -> None:
    """M4: {1} -> {4}, and 1 comes back with an empty log and the creation's configuration, which
    names its first life."""
    world = led(ChannelConfig(((N1,),)))
    world.publish(1)
    order(world, target(N4, new=(N4,)))
    settle(world, 6)
    assert steps(world[N4])[-1] == "4."
    world[N1].begin_life(ReplicaNumber(9))
    assert world.try_to_elect(N1, voters=[N1]) is None
    world[N1].step(ReadRequested(1))
    assert ReadReady(1, Seq(0)) not in [effect for _, effect in world.trace]


# --- when a step may be taken ---------------------------------------------------------------------


def test_leader_changes_nothing_before_it_committed_in_its_term() -> None:
    """M6: what an older leader's configuration committed must be behind it."""
    world = led()
    order(world, REPLACE)
    world[N1].step_down()
    world.drop()
    world.elect(N2, voters=[N2, N3])
    world[N2].persist()
    assert [s for s in steps(world[N2]) if s != "123+4"] == []
    before = steps(world[N2])
    world.drop()
    order(world, REPLACE, at=[N2])
    assert steps(world[N2]) == before
    assert "of the leader's term" in world[N2].replica.membership().waits_for
    settle(world)
    assert steps(world[N2])[-1] == "124."


def test_next_configuration_waits_for_the_commit_of_the_one_before() -> None:
    """M7: one at a time."""
    world = led()
    order(world, REPLACE, at=[N1])
    world.tick(2_000)
    assert steps(world[N1]) == ["123+4"]
    assert "not committed" in world[N1].replica.membership().waits_for


def test_two_sets_wait_until_both_have_a_live_majority() -> None:
    """M10: with another voter silent the new set could commit nothing."""
    world = led()
    world[N2].crash()
    world[N3].crash()
    order(world, target(N1, N2, N4, new=(N4,)))
    settle(world, 2)
    assert steps(world[N1]) == ["123+4"]
    world[N3].boot()
    settle(world, 3)
    assert steps(world[N1])[-1] == "124."


@pytest.mark.parametrize(
    ("change", "waits"),
    [
        ({"promote_lag_max": -1}, "rows to apply"),
        ({"promote_round_ms": 0}, "is too slow"),
    ],
)
def test_learner_that_would_slow_the_channel_down_is_not_promoted(change, waits: str) -> None:
    """M11, BLOG-30: for availability; the change goes on trying."""
    world = led()
    for node in world.nodes.values():
        node.replica._state.membership = replace(SETTINGS, **change)
    order(world, REPLACE)
    settle(world)
    assert steps(world[N1]) == ["123+4"]
    assert waits in world[N1].replica.membership().waits_for


def test_learner_that_nobody_hears_is_not_promoted() -> None:
    """M11: the channel would wait for it."""
    world = led()
    world[N4].crash()
    order(world, REPLACE)
    settle(world)
    assert steps(world[N1]) == ["123+4"]
    assert "n4 is not heard" in world[N1].replica.membership().waits_for
    assert world[N1].replica.membership().learner_lags[N4] > 0


def test_rounds_measure_from_end_to_end() -> None:
    """M11: a round is over when the learner comes to where the log ended at its beginning."""
    rounds = Rounds(Seq(10), 100)
    rounds.on_match(Seq(9), Seq(20), 150, 500)
    assert rounds.took_ms is None
    rounds.on_match(Seq(10), Seq(20), 700, 500)
    assert (rounds.took_ms, rounds.end_seq, rounds.slow) == (600, 20, 1)
    rounds.on_match(Seq(25), Seq(30), 900, 500)
    assert (rounds.took_ms, rounds.end_seq, rounds.slow) == (200, 30, 1)


# --- orders that are cancelled, repeated or old ---------------------------------------------------


def test_order_that_is_cancelled_before_anything_happened_ends_in_the_log() -> None:
    """B2: a record repeats the configuration, so that no leader with an old catalog begins it."""
    world = led()
    order(world, replace_cancelled())
    settle(world)
    assert steps(world[N1]) == ["123."]
    order(world, REPLACE)
    settle(world)
    assert steps(world[N1]) == ["123."]


def test_cancelled_order_drops_its_learner() -> None:
    """M22: before two sets are in force."""
    world = led()
    order(world, REPLACE, at=[N1])
    run_until(world, world[N1], "123+4")
    order(world, replace_cancelled())
    settle(world)
    assert steps(world[N1]) == ["123+4", "123."]
    assert world[N4].replica.is_removed


def test_cancelled_order_is_undone_from_two_sets() -> None:
    """M8, M9: back to the old voters; the new one is a learner, then dropped."""
    world = led()
    order(world, REPLACE)
    run_until(world, world[N1], "123/124")
    order(world, replace_cancelled())
    settle(world)
    assert steps(world[N1]) == ["123+4", "123/124", "123+4", "123."]


def test_new_voter_that_dies_at_once_does_not_hold_the_channel() -> None:
    """M8: nobody but the leader that appended the joint record can have gone on from it, so it may
    go back before the record is committed."""
    world = led()
    order(world, REPLACE)
    run_until(world, world[N1], "123/124")
    world[N4].crash()
    world[N2].crash()  # so the new set has no majority left, and the old one has
    order(world, replace_cancelled())
    assert steps(world[N1])[-1] == "123+4"
    settle(world)
    assert steps(world[N1]) == ["123+4", "123/124", "123+4", "123."]


def test_series_that_is_cancelled_in_the_middle_ends_where_it_is() -> None:
    """B3: the way back is another order."""
    world = led()
    both = target(N1, N4, N5, new=(N4, N5))
    order(world, both)
    run_until(world, world[N1], "134")
    order(world, target(N1, N4, N5, new=(N4, N5), cancelled=True))
    settle(world)
    assert steps(world[N1]) == ["123+4", "123/134", "134", "134."]


def test_old_order_does_not_undo_a_newer_one() -> None:
    """B2: the leader's copy of the catalog is of the time before."""
    world = led()
    order(world, REPLACE)
    settle(world)
    back = target(N1, N2, N3, change=9, new=(N3,))
    world[N3].begin_life(ReplicaNumber(9))
    order(world, back)
    settle(world)
    done = ["123+4", "123/124", "124.", "124+3", "124/123", "123."]
    assert sorted(steps(world[N1])) == sorted(done)
    before = steps(world[N1])
    order(world, REPLACE)
    settle(world)
    assert steps(world[N1]) == before


def test_learner_of_an_earlier_order_is_dropped_first() -> None:
    """A6: nobody hosts it any more, and its node has another number now."""
    world = led()
    order(world, REPLACE, at=[N1])
    run_until(world, world[N1], "123+4")
    world[N4].begin_life(ReplicaNumber(9))
    order(world, target(N1, N2, N4, change=9, new=(N4,)))
    settle(world)
    assert steps(world[N1]) == ["123+4", "123", "123+4", "123/124", "124."]
    assert world[N1].replica.config().number_of(N4) == 9


def test_two_sets_finish_forward_without_a_catalog() -> None:
    """M9: every leader finishes them, also one that knows of no order; it does not end it."""
    world = led()
    order(world, REPLACE)
    run_until(world, world[N1], "123/124", loses=False)
    world.deliver(sender=N1)
    for node in (N2, N3, N4):
        world[node].persist()
    world.drop()
    world[N1].crash()
    order(world, None)
    world.elect(N2, voters=[N2, N3, N4])
    settle(world)
    assert steps(world[N2]) == ["123+4", "123/124", "124"]
    order(world, REPLACE)
    settle(world)
    assert steps(world[N2]) == ["123+4", "123/124", "124", "124."]


# --- the leader that leaves -----------------------------------------------------------------------


def test_leader_that_leaves_hands_over_first() -> None:
    """M26, M25: to a voter that stays, of all sets and of the order."""
    world = led()
    order(world, target(N2, N3, N4, new=(N4,)))
    settle(world, 1)
    asked = [effect.to for _, effect in world.trace if isinstance(effect, TransferLeadership)]
    assert set(asked) == {N2}
    assert steps(world[N1]) == ["123+4"]


def test_leader_that_cannot_hand_over_leads_until_it_is_removed() -> None:
    """M26, M5: then it steps down, after the members know of the commit."""
    world = led()
    order(world, target(N2, N3, N4, new=(N4,)))
    settle(world, 8)
    failed = [effect for _, effect in world.trace if isinstance(effect, HandOverFailed)]
    assert len(failed) == SETTINGS.hand_over_tries
    assert steps(world[N2]) == ["123+4", "123/234", "234."]
    assert [me for me, effect in world.trace if isinstance(effect, StepDown)] == [N1]
    assert world[N1].role is Role.FOLLOWER
    assert {world[n].replica.commit_seq for n in (N2, N3, N4)} == {world[N2].replica.last_seq}
    assert world.try_to_elect(N1) is None, "its removal is committed (M18)"


def removing_its_leader() -> tuple[World, Seq]:
    """N1 leads, has handed its role to nobody, and has just written the last configuration, which
    does not name it; the seq of that record."""
    world = led()
    for node in world.nodes.values():
        node.replica._state.membership = replace(SETTINGS, hand_over_tries=0)
    order(world, target(N2, N3, N4, new=(N4,)))
    run_until(world, world[N1], "234.", loses=False)
    return world, world[N1].replica.last_seq


def test_removed_leader_does_not_count_itself() -> None:
    """M5: its own disk is no vote for what the new set has to hold."""
    world, seq = removing_its_leader()
    world[N1].persist()
    world.deliver(to=N2, sender=N1)
    world[N2].persist()
    assert world[N2].replica.durable_seq == seq
    world.deliver(to=N1, sender=N2)
    assert world[N1].replica.commit_seq < seq


def test_removed_leader_says_that_the_removal_is_committed() -> None:
    """M5: in the same step in which it gives up."""
    world, seq = removing_its_leader()
    for _ in range(50):
        if world[N1].role is not Role.LEADER:
            break
        world.drop(sender=N1, kind="CommitNotice")
        world.deliver()
        for node in world.nodes.values():
            node.persist()
    notices = [e.message for e in world.pick(kind="CommitNotice", sender=N1)]
    assert {notice.commit_seq for notice in notices} == {seq}
    assert {e.to for e in world.pick(kind="CommitNotice", sender=N1)} == {N2, N3, N4}


def test_fewer_voters_commit_what_they_hold_already() -> None:
    """M25: commit is looked at anew, for the next acknowledgement may never come."""
    bench = Bench(make_replica(N1, config=ChannelConfig(((N1, N2, N3, N4, N5),))))
    bench.lead()
    bench.persist()
    bench.receive(StoreAck(CHANNEL, Term(1), Seq(1)), N2)
    assert bench.replica.commit_seq == 0
    leader = bench.replica._leader
    assert leader is not None
    three = ChannelConfig(((N1, N2, N3),))
    leader._append_config(three, encode_config(three))
    assert bench.replica.commit_seq == 1


def test_members_of_an_idle_channel_are_asked_to_acknowledge() -> None:
    """M10: those that said nothing for long may live all the same."""
    world = led()
    settle(world)
    world.tick(60_000)
    assert world.network == []
    order(world, target(N1, N2))
    settle(world)
    assert steps(world[N1])[-1] == "12."


def test_late_request_for_history_does_not_hold_a_change() -> None:
    """S12: it came behind the report of being steady, which is not repeated."""
    world = led()
    settle(world)
    late = MsgSyncRequest(CHANNEL, world[N1].term, 1, Seq(1), (), 1000)
    for node in (N2, N3):
        world[N1].receive(node, late)
    world.drop()
    assert world[N1].replica.progress()[N2].is_catching_up
    order(world, target(N1, N2))
    settle(world)
    assert steps(world[N1])[-1] == "12."


def test_learner_that_leads_takes_no_writes() -> None:
    """M18: it leads until a voter can; what it took would be in doubt."""
    world = led(ChannelConfig(((N1, N2, N3),), (N4,)), spare=())
    world[N1].crash()
    world.elect(N4, voters=[N2, N3, N4])
    client = world.publish(1)
    ((_, answer),) = [(to, each) for to, each in world.replies if to == client]
    assert isinstance(answer, PubReject)
    assert answer.code == "unavailable"


def test_last_step_goes_first_on_a_node_that_stops() -> None:
    """A11: with two sets in force it asks one voter after another, and all are too far behind."""
    world = led()
    order(world, REPLACE)
    run_until(world, world[N1], "123/124")
    world[N1].step(HandOverRequested(None, "stopping", keeps_trying=True))
    settle(world, 5)
    assert steps(world[N1])[-1] == "124."
    assert world[N1].role is Role.LEADER, "it goes on asking"


def test_hand_over_asks_voters_of_all_sets_only() -> None:
    """M25: another one would have to give the leadership up at once."""
    world = led()
    order(world, REPLACE)
    run_until(world, world[N1], "123/124")
    world.trace.clear()
    for one in (N3, N4):
        world[N1].step(HandOverRequested(one, "maintenance"))
    refused = [effect.reason for _, effect in world.trace if isinstance(effect, HandOverFailed)]
    assert len(refused) == 2
    assert all("no other voter" in reason for reason in refused)


def test_last_step_waits_for_a_hand_over_and_then_goes_first() -> None:
    """A11: a node that stops would stay for ever."""
    world = led()
    order(world, REPLACE)
    run_until(world, world[N1], "123/124", loses=False)
    world[N1].step(HandOverRequested(N2, "maintenance"))
    world.settle()
    assert world[N1].replica.membership().is_committed
    assert steps(world[N1])[-1] == "123/124"
    settle(world)
    assert steps(world[N1])[-1] == "124."


# --- followers that come and go, and reads --------------------------------------------------------


def test_round_of_reads_is_judged_by_the_newest_configuration() -> None:
    """M25: voters that are added while it is under way are asked, and both sets confirm."""
    bench = Bench(make_replica(N1, config=ChannelConfig(((N1, N2, N3),), (N4, N5))))
    bench.lead()
    bench.persist()
    bench.receive(StoreAck(CHANNEL, Term(1), Seq(1)), N2)
    bench.do(Applied(Seq(1)))
    bench.do(ReadRequested(1))
    (first, *_) = bench.sent(ReadIndexRequest)
    leader = bench.replica._leader
    assert leader is not None
    joint = ChannelConfig(((N1, N2, N3), (N1, N4, N5)))
    leader._append_config(joint, encode_config(joint))
    asked = [e for e in bench.do(TimerFired()) if isinstance(e, Send)]
    assert {N4, N5} <= {e.to for e in asked if isinstance(e.message, ReadIndexRequest)}
    reply = ReadIndexReply(CHANNEL, Term(1), first.round_id)
    assert bench.of(ReadReady, bench.receive(reply, N2)) == []
    assert bench.of(ReadReady, bench.receive(reply, N4)) == [ReadReady(1, Seq(1))]


def test_confirmation_of_a_voter_that_left_is_not_kept_for_its_next_life() -> None:
    """M4, M25: the round goes on, and its node has another replica now."""
    bench = Bench(make_replica(N1))
    bench.lead()
    bench.persist()
    for node in (N2, N3):
        bench.receive(StoreAck(CHANNEL, Term(1), Seq(1)), node)
    bench.do(Applied(Seq(1)))
    bench.do(ReadRequested(1))
    (asked, *_) = bench.sent(ReadIndexRequest)
    leader = bench.replica._leader
    assert leader is not None
    five = ChannelConfig(((N1, N2, N3, N4, N5),), (), {})
    leader._append_config(five, encode_config(five))
    bench.receive(ReadIndexReply(CHANNEL, Term(1), asked.round_id), N2)
    again = ChannelConfig(five.voter_sets, (), {N2: ReplicaNumber(9)})
    leader._append_config(again, encode_config(again))
    effects = bench.receive(ReadIndexReply(CHANNEL, Term(1), asked.round_id), N3)
    assert bench.of(ReadReady, effects) == []


def test_records_are_sent_to_the_members_of_the_newest_configuration() -> None:
    """M2, M25: from its append on, the record of the configuration itself, too."""
    world = led()
    order(world, REPLACE, at=[N1])
    sent = world.pick(kind="StoreRequest", to=N4)
    assert len(sent) == 1
    assert isinstance(sent[0].message, StoreRequest)
    settle(world)
    assert N3 not in world[N1].replica.progress()


def test_removed_replica_that_comes_back_is_notified() -> None:
    """M13: it was cut off while it was removed; no term rises by it (M19)."""
    world = led()
    world[N3].crash()
    order(world, REPLACE)
    settle(world)
    term = world[N1].term
    world[N3].boot()
    world[N3].follow(N1, term)
    settle(world, 1)
    assert world[N3].replica.is_removed
    assert world.try_to_elect(N3, voters=[N3, N4]) is None
    assert world[N4].term == term


# --- who stands, who votes, who follows (M16 to M18) ----------------------------------------------


def test_replica_whose_log_does_not_name_it_votes_for_two_sets() -> None:
    """M16: 1 alone holds the joint record, 2 is down; nobody else can complete both sets."""
    world = led()
    order(world, REPLACE)
    run_until(world, world[N1], "123/124")
    world[N1].persist()
    world[N2].crash()
    assert world[N4].replica.config().voters == (N1, N2, N3)
    world.elect(N1, voters=[N1, N3, N4])
    settle(world)
    assert steps(world[N1])[-1] == "124."


def test_learner_with_the_newest_term_lets_the_others_elect() -> None:
    """M18: 2 won a term and died when 4 alone had its first record; 1 holds a joint record, so it
    needs 4, which has the newer log; 3 needs 1, which has the longer one."""
    world = led()
    order(world, REPLACE)
    run_until(world, world[N1], "123/124")
    world[N1].persist()
    world[N1].crash(len(world[N1].writes))
    world.elect(N2, voters=[N2, N3])
    world[N2].persist()
    world.deliver(sender=N2, to=N4)
    settle_between(world, N2, N4)
    assert world[N4].replica.history().term == world[N2].term
    world.drop()
    world[N2].crash()
    world[N1].boot()
    assert world.try_to_elect(N1, voters=[N1, N3, N4]) is None
    assert world.try_to_elect(N3, voters=[N1, N3, N4]) is None
    world.elect(N4, voters=[N1, N3, N4])
    settle(world, 1)
    assert world[N4].role is Role.FOLLOWER, "it leads no longer than it must (M5)"
    world.elect(N1, voters=[N1, N3, N4])
    order(world, REPLACE)
    settle(world)
    assert steps(world[N1])[-1] == "124."


def test_voter_that_its_own_log_removed_stands_until_that_is_committed() -> None:
    """M18: 1 alone holds the record that removes it; 3 is refused by it, 4 by both."""
    world = led()
    for node in world.nodes.values():
        node.replica._state.membership = replace(SETTINGS, hand_over_tries=0)
    order(world, target(N2, N3, N4, new=(N4,)))
    run_until(world, world[N1], "234.")
    world[N1].persist()
    world[N2].crash()
    world[N1].step_down()
    assert world.try_to_elect(N3, voters=[N1, N3, N4]) is None
    world.elect(N1, voters=[N1, N3, N4])
    settle(world)
    assert world[N1].role is Role.FOLLOWER
    world.elect(N3, voters=[N3, N4])
    settle(world)
    assert steps(world[N3])[-1] == "234."


def test_leader_that_the_newest_configuration_here_does_not_name_is_followed() -> None:
    """M17: 3 alone holds the record that removes 1, which leads now; without 3 nothing commits."""
    world = led()
    world.elect(N3)
    world.settle()
    for node in world.nodes.values():
        node.replica._state.membership = replace(SETTINGS, hand_over_tries=0)
    order(world, target(N2, N3, N4, new=(N4,)))
    run_until(world, world[N3], "234.")
    world[N3].persist()
    world[N3].step_down()
    world.elect(N1, voters=[N1, N2, N4])
    world.drop()
    world[N2].crash()
    order(world, None)
    term, seq = world[N1].term, world[N1].replica.last_seq
    world[N3].follow(N1, term)
    settle(world, 1)
    assert world[N3].replica.history().term == term
    assert world[N1].replica.commit_seq >= seq


# --- small parts ----------------------------------------------------------------------------------


def replace_cancelled():
    """The order of these tests, taken back."""
    return target(N1, N2, N4, new=(N4,), cancelled=True)


def settle_between(world: World, one, other) -> None:
    """Messages between these two arrive; all else is lost."""
    for _ in range(20):
        world.deliver(sender=one, to=other)
        world.deliver(sender=other, to=one)
        world[one].persist()
        world[other].persist()


def test_m12_leader_knows_which_voters_lack_its_change() -> None:
    """Those that have not acknowledged it in this term; nobody else can say it."""
    world = led()
    assert world[N1].replica.voters_behind(world[N1].replica.last_seq) == ()
    world.publish(1, to=[N1, N2])
    for node in (N1, N2):
        world[node].persist()
    ahead = Seq(world[N1].replica.last_seq + 1)
    assert set(world[N1].replica.voters_behind(ahead)) == {N2, N3}
    assert world[N2].replica.voters_behind(ahead) == ()


def test_voter_far_behind_neither_blocks_a_change_nor_calls_an_election() -> None:
    """M10: one that is down or gets its history record by record is not waited for while the others
    are a majority of both sets; when it is back it follows, and no term rises by it."""
    world = led()
    world[N2].crash(0)
    for number in range(40):
        world.publish(number, to=[N1, N3])
    order(world, REPLACE)
    settle(world)
    assert steps(world[N1])[-1] == "124."
    term = world[N1].term
    world.sync_records_max = 1
    world[N2].boot()
    order(world, target(N1, N2, N5, change=ORDER + 1, new=(N5,)))
    world[N5].begin_life(ReplicaNumber(ORDER + 1))
    order(world, target(N1, N2, N5, change=ORDER + 1, new=(N5,)), at=[N5])
    behind = []
    for _ in range(200):
        behind.append(world[N1].replica.last_seq - world[N2].replica.last_seq)
        if steps(world[N1])[-1] == "125.":
            break
        world.deliver(first=3)
        for each in world.nodes.values():
            if each.is_up:
                each.persist()
        if not world.network:
            world.tick(50)
    assert steps(world[N1])[-1] == "125."
    assert behind[-1] > 0, "the change waited until it had all"
    settle(world, 20)
    assert steps(world[N2])[-1] == "125."
    assert {world[node].term for node in (N1, N2, N5)} == {term}
    assert leader_of(world).me == N1
