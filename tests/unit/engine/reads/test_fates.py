"""Questions for the fate of a write, asked of the nodes of a cluster (N4)."""

from __future__ import annotations

from raftstore.protocol.message import Failed, Message
from raftstore.protocol.payload import encode_conditional, encode_rows
from raftstore.protocol.publish import PubReject, WriteFate, WriteFateAnswer
from raftstore.rows.sealing import seal
from raftstore.testing.sim_cluster import SimCluster
from raftstore.testing.sim_node import SimNode
from raftstore.types import ChannelId, RecordKind, Seq, Term, make_guid
from tests.unit.engine.engine_world import ask, calm_cluster, publish, run

ROW = encode_rows([(b"k", seal(b"k", b"v"))])


def question(channel: ChannelId, counter: int, timeout_ms: int = 1_000) -> WriteFate:
    """A question for the fate of the counter-th write."""
    return WriteFate(1, channel, make_guid(b"producer", counter), timeout_ms)


def write(cluster: SimCluster, channel: ChannelId, counter: int) -> None:
    """A row at the leader."""
    leader = cluster.leaders()[channel]
    cluster.add_client("writer", 778, lambda sender, message: None)
    cluster.network.send("writer", leader.node, publish(cluster, leader, channel, counter, ROW))
    run(cluster, 200)


def told(answers: list[Message]) -> str:
    """The fate, or the code of the refusal; "" while there is no answer."""
    if not answers:
        return ""
    [answer] = answers
    if isinstance(answer, Failed):
        return answer.code
    assert isinstance(answer, WriteFateAnswer)
    return answer.fate


def cut(cluster: SimCluster, node: SimNode) -> None:
    """Nothing passes between the node and its peers any more."""
    others = [other for other in cluster.node_ids if other != node.node]
    cluster.network.cut_groups([node.node], others)


def test_n4_fates_are_told_by_the_leader() -> None:
    """Committed with its place, or never applied."""
    cluster, channel = calm_cluster()
    write(cluster, channel, 1)
    leader = cluster.leaders()[channel]
    answers = ask(cluster, leader, question(channel, 1))
    run(cluster, 200)
    assert told(answers) == "committed"
    [answer] = answers
    assert isinstance(answer, WriteFateAnswer)
    assert answer.seq == leader.tables.applied_seq(channel)
    answers = ask(cluster, leader, question(channel, 2))
    run(cluster, 200)
    assert told(answers) == "not_applied"


def test_n4_write_that_arrives_after_its_fate_was_told_is_refused() -> None:
    """S5.6: its message was under way all the time; the answer stays true (NATS-187)."""
    cluster, channel = calm_cluster()
    leader = cluster.leaders()[channel]
    late = publish(cluster, leader, channel, 1, ROW)
    ask(cluster, leader, question(channel, 1))
    run(cluster, 200)
    answers = ask(cluster, leader, late)
    run(cluster, 200)
    assert [answer.code for answer in answers if isinstance(answer, PubReject)] == ["guid_fenced"]
    answers = ask(cluster, leader, question(channel, 1))
    run(cluster, 200)
    assert told(answers) == "not_applied"


def test_n4_leader_of_the_past_tells_no_fate() -> None:
    """S7.1: what it has not got may be committed by its successor; it needs a round to know."""
    cluster, channel = calm_cluster()
    past = cluster.leaders()[channel]
    cut(cluster, past)
    answers = ask(cluster, past, question(channel, 1, timeout_ms=500))
    run(cluster, 300)
    assert told(answers) == ""
    run(cluster, 300)
    assert told(answers) == "query_error"


def test_n4_follower_names_the_leader() -> None:
    """GAP-08: the refusal says where to ask."""
    cluster, channel = calm_cluster()
    leader = cluster.leaders()[channel]
    follower = next(node for node in cluster.nodes.values() if node is not leader)
    answers = ask(cluster, follower, question(channel, 1))
    run(cluster, 200)
    assert told(answers) == "not_leader"
    [answer] = answers
    assert isinstance(answer, Failed)
    assert answer.leader_hint == leader.node


def test_n4_pending_write_is_waited_for() -> None:
    """The answer comes with its commit."""
    cluster, channel = calm_cluster()
    leader = cluster.leaders()[channel]
    write_first = publish(cluster, leader, channel, 1, ROW)
    answers = ask(cluster, leader, write_first, question(channel, 1))
    run(cluster, 300)
    fates = [answer.fate for answer in answers if isinstance(answer, WriteFateAnswer)]
    assert fates == ["committed"]


def test_n4_question_of_an_earlier_leadership_is_not_answered_by_a_later_one() -> None:
    """Given a question that was confirmed in an earlier term, the leader refuses it: its log may
    have lost the write since, and others may have it.

    With five replicas: a write at A and C is asked about at A, B leads and takes it from A, A leads
    again and dies, and C, elected, commits it.
    """
    cluster, channel = calm_cluster()
    leader = cluster.leaders()[channel]
    assert leader.runner is not None
    runner, fates = leader.runner.channels[channel], leader.runner.reader.write_outcomes
    cut(cluster, leader)
    asked = ask(cluster, leader, question(channel, 1, timeout_ms=60_000))
    run(cluster, 100)
    [token] = fates.open
    fates.open.of(token).term = Term(runner.elector.term - 1)
    fates.on_confirmed(token, Seq(0))
    run(cluster, 100)
    assert told(asked) == "not_leader"


def test_n4_condition_is_told_with_the_fate() -> None:
    """A conditional write that changed nothing is committed all the same."""
    cluster, channel = calm_cluster()
    leader = cluster.leaders()[channel]
    payload = encode_conditional(b"k", seal(b"k", b"v"), Seq(99))
    message = publish(cluster, leader, channel, 1, payload, kind=RecordKind.CONDITIONAL)
    ask(cluster, leader, message)
    run(cluster, 300)
    answers = ask(cluster, leader, question(channel, 1))
    run(cluster, 200)
    [answer] = answers
    assert isinstance(answer, WriteFateAnswer)
    assert (answer.fate, answer.condition) == ("committed", "conflict")


def test_n4_malformed_question_is_refused() -> None:
    """A clear error with its code, at once."""
    cluster, channel = calm_cluster()
    leader = cluster.leaders()[channel]
    answers = ask(cluster, leader, question(channel, 0))
    run(cluster, 50)
    assert told(answers) == "schema"
    unknown = ChannelId(bytes(18))
    answers = ask(cluster, leader, question(unknown, 1))
    run(cluster, 50)
    assert told(answers) == "unknown_channel"
