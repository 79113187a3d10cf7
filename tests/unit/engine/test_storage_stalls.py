"""A leader whose disk hangs leads no longer, although its network and its peers are well (S0.4)."""

from __future__ import annotations

import pytest

from raftstore.protocol.admin import StepDown
from raftstore.protocol.election import (
    LeaderAnnounce,
    PreVote,
    PreVoteReply,
    RequestVote,
    StepDownNotice,
    TransferNow,
    VoteReply,
)
from raftstore.protocol.message import Done, Failed, Message
from raftstore.protocol.payload import encode_rows
from raftstore.protocol.publish import PubAck, PubReject
from raftstore.protocol.reads import Get, GetAnswer
from raftstore.protocol.replication import StoreAck
from raftstore.rows.sealing import seal
from raftstore.testing.sim_cluster import SimCluster
from raftstore.testing.sim_node import SimNode
from raftstore.types import ChannelId, FollowerMode, Role, Seq, Term
from tests.unit.engine.engine_world import ask, calm_cluster, publish, run, spy

HANDOVER_MS = 2_000
LIMIT_MS = 5_000
SOON_MS = 300
"""For a hand-over among nodes that are well."""


def row(value: bytes) -> bytes:
    """The payload of a write of one row."""
    return encode_rows([(b"k", seal(b"k", value))])


def leading() -> tuple[SimCluster, ChannelId, SimNode]:
    """A calm cluster and the leader of its partition."""
    cluster, channel = calm_cluster()
    return cluster, channel, cluster.leaders()[channel]


def hang_under_writes(
    cluster: SimCluster, channel: ChannelId, leader: SimNode, writes: int = 3
) -> list[Message]:
    """The leader's disk hangs, writes go on; their answers."""
    leader.disk.hang()
    return ask(
        cluster,
        leader,
        *(publish(cluster, leader, channel, n, row(b"%d" % n)) for n in range(1, writes + 1)),
    )


def read(channel: ChannelId, request_id: int = 9) -> Get:
    """A linearizable read."""
    return Get(request_id, channel, (b"k",), "linearizable", None, Seq(0), 5_000)


def ask_and_wait(cluster: SimCluster, node: SimNode, *messages: Message) -> list[Message]:
    """The answers that come soon."""
    answers = ask(cluster, node, *messages)
    run(cluster, 100)
    return answers


def test_leadership_moves_although_network_and_heartbeats_are_well() -> None:
    """O6: another leads soon after the patience is over, and everything acknowledged is there."""
    cluster, channel, leader = leading()
    answers = hang_under_writes(cluster, channel, leader)
    run(cluster, HANDOVER_MS + SOON_MS)
    new = cluster.leaders()[channel]
    assert new is not leader
    assert new.runner.channels[channel].core.leader_is_ready
    assert [type(answer) for answer in answers] == [PubAck] * 3
    [found] = ask_and_wait(cluster, new, read(channel))
    assert isinstance(found, GetAnswer)
    assert found.seqs[0] == max(answer.last_seq for answer in answers if isinstance(answer, PubAck))


def test_leader_that_hangs_refuses_writes_and_linearizable_reads_with_the_cause() -> None:
    """S4.1: refused is certainly not applied, so the publisher goes elsewhere at once."""
    cluster, channel, leader = leading()
    hang_under_writes(cluster, channel, leader)
    others = [node for node in cluster.node_ids if node != leader.node]
    send = cluster.network.send
    # The hand-over takes as long as it may: its message reaches nobody.
    cluster.network.send = lambda a, b, message: (  # type: ignore[method-assign]
        None if isinstance(message, TransferNow) else send(a, b, message)
    )
    run(cluster, HANDOVER_MS + 100)
    assert leader.runner.channels[channel].elector.role is Role.LEADER
    answers = ask(cluster, leader, publish(cluster, leader, channel, 50, row(b"50")), read(channel))
    run(cluster, 50)
    refused, unread = sorted(answers, key=lambda answer: type(answer).__name__, reverse=True)
    assert isinstance(refused, PubReject)
    assert refused.code == "unavailable"
    assert isinstance(unread, Failed)
    assert unread.code == "unavailable"
    for text in (refused.message, unread.message):
        assert f"the disk of {leader.name} has not finished fdatasync on log for 2.0 s" in text
    # ... and when nobody took over, it steps down: the others elect by their histories.
    run(cluster, 1_500)
    assert cluster.leaders()[channel].node in others


def test_only_what_says_a_durable_term_and_nothing_else_leaves_past_the_disk() -> None:
    """S0.5: a hand-over may pass the barrier; votes, candidacies, acknowledgements may not."""
    cluster, channel, leader = leading()
    seen = spy(cluster, leader)
    hang_under_writes(cluster, channel, leader)
    run(cluster, 100)
    log, core = leader.log, leader.runner.channels[channel].core
    assert log.durable_operation() < log.last_operation()
    # Its answer would state how long a log is that a crash may shorten.
    term, history = core.term, core.history()
    peer = next(node for node in cluster.node_ids if node != leader.node)
    asked = PreVote(channel=channel, term=term, proposed_term=Term(term + 1), history=history)
    leader.on_message(peer, asked)
    run(cluster, 2 * HANDOVER_MS)
    kinds = {type(message) for _, message in seen}
    assert TransferNow in kinds
    assert not kinds & {PreVoteReply, VoteReply, RequestVote, PreVote, LeaderAnnounce, StoreAck}
    leader.disk.heal()
    run(cluster, 1_000)
    assert StoreAck in {type(message) for _, message in seen}


@pytest.mark.slow
def test_term_that_is_not_durable_keeps_even_a_hand_over_back() -> None:
    """S0.5: after a crash this node would not know the term that it spoke of."""
    cluster, channel, leader = leading()
    runner = leader.runner.channels[channel]
    leader.disk.hang()
    seen = spy(cluster, leader)
    runner.term_operation = leader.log.last_operation() + 1
    runner.send_election(cluster.node_ids[0], TransferNow(channel=channel, term=runner.core.term))
    runner.send_election(
        cluster.node_ids[0], StepDownNotice(channel=channel, term=runner.core.term)
    )
    run(cluster, 50)
    assert not {type(message) for _, message in seen} & {TransferNow, StepDownNotice}


def test_follower_that_hangs_neither_votes_nor_stands() -> None:
    """S0.5: it could report it to nobody, and repeating it would only fill its memory."""
    cluster, channel, leader = leading()
    follower = next(node for node in cluster.nodes.values() if node is not leader)
    follower.disk.hang()
    ask(cluster, leader, publish(cluster, leader, channel, 1, row(b"1")))
    run(cluster, HANDOVER_MS + SOON_MS)
    assert not follower.runner.channels[channel].may_vote()
    leader.kill("test")
    run(cluster, LIMIT_MS - HANDOVER_MS - 2 * SOON_MS)
    assert channel not in cluster.leaders()  # one voter of three is well
    assert follower.runner.outbox.waiting < 100
    follower.disk.heal()
    run(cluster, 2_000)
    assert cluster.leaders()[channel].runner.channels[channel].core.leader_is_ready


def test_step_down_that_an_operator_asks_for_does_not_wait_for_the_disk() -> None:
    """Before the patience is over, too: `channel step-down` is how people help themselves."""
    cluster, channel, leader = leading()
    hang_under_writes(cluster, channel, leader)
    run(cluster, 100)
    answers = ask(cluster, leader, StepDown(1, channel, None, 5_000))
    run(cluster, SOON_MS)
    assert [type(answer) for answer in answers] == [Done]
    assert cluster.leaders()[channel] is not leader


def test_drain_does_not_wait_for_the_disk() -> None:
    """SIGTERM: what can be handed over is."""
    cluster, channel, leader = leading()
    hang_under_writes(cluster, channel, leader)
    run(cluster, 100)
    leader.runner.begin_drain(leader.clock.now_ms())
    run(cluster, SOON_MS)
    assert leader.runner.drain.is_done()


def test_what_is_not_on_the_disk_is_bounded_though_others_commit_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """S0.4: neither what a leader sequences nor what a follower is sent fills the memory."""
    cluster, channel, leader = leading()
    limit = leader.settings.storage.unsynced_bytes_max
    monkeypatch.setattr(type(leader.log), "unsynced_bytes", scaled(limit // 1_000))
    answers = hang_under_writes(cluster, channel, leader, writes=100)
    run(cluster, 500)
    accepted = [answer for answer in answers if isinstance(answer, PubAck)]
    refused = [answer for answer in answers if isinstance(answer, PubReject)]
    assert 0 < len(accepted) < len(answers) == 100
    assert {answer.code for answer in refused} == {"overloaded"}
    assert "bytes are not on the disk of" in refused[0].message
    assert leader.log.unsynced_bytes() <= 1.01 * limit  # each record counts a thousand times


def test_follower_drops_what_its_disk_does_not_take_and_catches_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """S0.4: what is dropped is as good as lost on the way (S12)."""
    cluster, channel, leader = leading()
    follower = next(node for node in cluster.nodes.values() if node is not leader)
    limit = leader.settings.storage.unsynced_bytes_max
    monkeypatch.setattr(type(leader.log), "unsynced_bytes", scaled(limit // 1_000))
    follower.disk.hang()
    for number in range(1, 101):
        ask(cluster, leader, publish(cluster, leader, channel, number, row(b"%d" % number)))
        run(cluster, 10)
    end = leader.runner.channels[channel].core.commit_seq
    assert follower.log.unsynced_bytes() <= 2 * limit
    assert follower.runner.channels[channel].core.last_seq < end - 10
    follower.disk.heal()
    run(cluster, 3_000)
    core = follower.runner.channels[channel].core
    assert (core.last_seq, core.commit_seq, core.mode) == (end, end, FollowerMode.STEADY)


def scaled(factor: int):  # type: ignore[no-untyped-def]
    """As if each record were so much larger."""

    def unsynced_bytes(log: object) -> int:
        durable, kept = log._durable_position, log._cache._records  # type: ignore[attr-defined]
        return factor * sum(len(at.payload) for place, at in kept.items() if place >= durable)

    return unsynced_bytes


def test_disk_that_goes_on_in_time_leaves_everything_as_it_was() -> None:
    """A pause below the patience costs nothing but time."""
    cluster, channel, leader = leading()
    answers = hang_under_writes(cluster, channel, leader)
    run(cluster, HANDOVER_MS - 200)
    leader.disk.heal()
    run(cluster, 500)
    assert cluster.leaders()[channel] is leader
    assert [type(answer) for answer in answers] == [PubAck] * 3
    more = ask(cluster, leader, publish(cluster, leader, channel, 9, row(b"9")))
    run(cluster, 100)
    assert [type(answer) for answer in more] == [PubAck]


def test_disk_that_goes_on_late_lets_its_node_take_part_again() -> None:
    """It lost its leaderships and nothing else."""
    cluster, channel, leader = leading()
    hang_under_writes(cluster, channel, leader)
    run(cluster, HANDOVER_MS + 2_000)
    leader.disk.heal()
    run(cluster, 2_000)
    assert leader.is_up
    runner = leader.runner.channels[channel]
    assert runner.may_vote()
    assert (
        runner.core.commit_seq
        == cluster.leaders()[channel].runner.channels[channel].core.commit_seq
    )
    assert leader.runner.guard.reason is None


def test_node_whose_disk_hangs_for_too_long_ends() -> None:
    """S0.4: a replica that does nothing is replaced by one that starts again."""
    cluster, channel, leader = leading()
    hang_under_writes(cluster, channel, leader)
    run(cluster, LIMIT_MS - 500)
    assert leader.is_up
    run(cluster, 1_000)
    assert not leader.is_up
    leader.disk.heal()
    leader.boot()
    run(cluster, 3_000)
    assert cluster.replicas_are_equal()


def test_messages_that_would_wait_are_dropped_and_counted() -> None:
    """S0.4: reports alone would fill the memory; the network promises none of them (S12)."""
    cluster, channel, leader = leading()
    hang_under_writes(cluster, channel, leader)
    run(cluster, HANDOVER_MS + 100)
    waiting = leader.runner.outbox.waiting
    run(cluster, LIMIT_MS - HANDOVER_MS - SOON_MS)
    assert leader.runner.outbox.waiting == waiting
    assert leader.runner.outbox.dropped > 3


def test_status_and_metrics_show_the_stall_while_it_lasts() -> None:
    """An operator sees the cause, not only what comes of it."""
    cluster, channel, leader = leading()
    hang_under_writes(cluster, channel, leader)
    run(cluster, HANDOVER_MS + 1_000)
    status = leader.runner.reports.status()
    stall = status["storage_stall"]
    assert (stall["doing"], stall["path"]) == ("fdatasync", "log")
    assert 2_900 < stall["for_ms"] < 3_100
    assert any("has not finished fdatasync" in text for text in status["warnings"])
    samples = {name: value for name, _, value in leader.runner.reports.metrics()[0]}
    assert 2.9 < samples["raftstore_storage_stalled_seconds"] < 3.1
    assert samples["raftstore_unsynced_bytes"] > 0
    leader.disk.heal()
    run(cluster, 500)
    status = leader.runner.reports.status()
    assert status["storage_stall"] is None
    assert status["warnings"] == []
