"""Rules S0.5, S0.8, S1.4, S1.8, S2.5 and S7.3 of the safety contract, in the engine."""

from __future__ import annotations

import pytest
from msgspec import structs

from raftstore.core.replica import Replica
from raftstore.engine.catalog import table_definition
from raftstore.engine.catalog.table_definition import name_problem
from raftstore.engine.channel.durable_tracker import DurableTracker
from raftstore.engine.channel.idle_electors import EVICT_INTERVAL_MS
from raftstore.engine.channel.outbox import Outbox
from raftstore.errors import ERRORS_BY_CODE
from raftstore.protocol.admin import ClusterInfo, CreateTable, DropTable, StepDown
from raftstore.protocol.message import Failed, Message
from raftstore.protocol.node import ChannelPosition, LagReport, LeadershipRequest
from raftstore.protocol.replication import CommitNotice, StaleTerm, StoreAck
from raftstore.testing.sim_log import SimLog
from raftstore.types import ChannelId, NodeId, Outcome, Role, Seq, Term, channel_id
from tests.unit.engine.engine_world import ask, calm_cluster, run, spy

CHANNEL = channel_id(bytes(16), 0)
PEER = NodeId("n2")


class Wire:
    """A transport that remembers what left."""

    def __init__(self) -> None:
        self.sent: list[Message] = []

    def send(self, to: NodeId, message: Message) -> None:
        """Bulk."""
        self.sent.append(message)

    def send_control(self, to: NodeId, message: Message) -> None:
        """Control."""
        self.sent.append(message)

    def reply(self, client: int, message: Message) -> None:
        """To a client."""

    def end_client(self, client: int, reason: str) -> None:
        """Never cut a client off."""


@pytest.mark.parametrize("lane", ["send", "send_control"])
def test_message_waits_for_the_operation_it_reveals(lane: str) -> None:
    """S0.5: it leaves when the log is durable up to there, and not a moment before."""
    log, wire = SimLog.new(), Wire()
    outbox = Outbox(log, wire)
    log.open_channel(CHANNEL)
    operation = log.set_vote(CHANNEL, Term(1), PEER)
    message = LeadershipRequest()
    getattr(outbox, lane)(PEER, message, after_operation=operation)
    assert not wire.sent
    log.flush()
    outbox.release(operation)
    assert wire.sent == [message]


def test_replication_message_waits_for_its_term() -> None:
    """S0.5: not even a StoreRequest carries a term that a crash could take back."""
    cluster, channel = calm_cluster()
    node = cluster.leaders()[channel]
    seen = spy(cluster, node)
    node.sync_completed = lambda *told: None  # type: ignore[method-assign]
    node.runner.on_log_durable = lambda *told: None  # type: ignore[union-attr, method-assign]
    runner = node.runner.channels[channel]  # type: ignore[union-attr]
    before = runner.elector.term
    runner.elector.observe_term(Term(before + 3))
    runner.on_replication(
        cluster.node_ids[0] if cluster.node_ids[0] != node.node else cluster.node_ids[1],
        CommitNotice(channel, Term(before + 3), Seq(0), Seq(99), Term(before + 3), b""),
        node.clock.now_ms(),
    )
    terms = [m.term for _, m in seen if getattr(m, "channel", None) == channel]
    assert all(term <= before for term in terms)


def test_truncated_record_is_never_reported_durable() -> None:
    """S2.5: the operation that wrote it may complete later; what was cut stays cut."""
    tracker = DurableTracker()
    tracker.appended(1, Seq(5))
    tracker.truncated(2, Seq(3))
    tracker.appended(3, Seq(4))
    assert tracker.completed(1)
    assert tracker.durable_seq == 2
    tracker.completed(3)
    assert tracker.durable_seq == 4


def test_message_for_an_unknown_channel_creates_nothing() -> None:
    """S0.8: channels exist by the catalog only."""
    cluster, channel = calm_cluster()
    node = cluster.nodes[cluster.node_ids[0]]
    assert node.runner is not None
    known = list(node.runner.channels)
    unknown = channel_id(b"\x07" * 16, 3)
    message = StoreAck(unknown, Term(9), Seq(1), Seq(1), Seq(1))
    node.on_message(cluster.node_ids[1], message)
    assert list(node.runner.channels) == known
    assert channel in known


def test_message_of_a_past_term_is_answered_with_the_present_one() -> None:
    """S1.4: a follower's message of a lower term is refused, whatever it says (NATS-031)."""
    cluster, channel = calm_cluster()
    node = cluster.leaders()[channel]
    assert node.runner is not None
    runner = node.runner.channels[channel]
    peer = next(other for other in cluster.node_ids if other != node.node)
    seen = spy(cluster, node)
    node.on_message(peer, StoreAck(channel, Term(runner.elector.term - 1), Seq(1), Seq(1), Seq(1)))
    told = [m.term for to, m in seen if isinstance(m, StaleTerm) and to == peer]
    assert told == [runner.elector.term]


def test_message_of_a_later_term_is_adopted() -> None:
    """S1.4: a leader that sees a higher term leads no more (NATS-032)."""
    cluster, channel = calm_cluster()
    node = cluster.leaders()[channel]
    assert node.runner is not None
    runner = node.runner.channels[channel]
    peer = next(other for other in cluster.node_ids if other != node.node)
    later = Term(runner.elector.term + 5)
    node.on_message(peer, StoreAck(channel, later, Seq(1), Seq(1), Seq(1)))
    assert runner.elector.term == later
    assert runner.elector.role is not Role.LEADER


def test_leader_that_restarts_unseen_is_replaced() -> None:
    """S1.8: its heartbeats go on, but it claims the channel no more; nobody waits for ever."""
    cluster, channel = calm_cluster()
    node = cluster.leaders()[channel]
    cluster.node_gone = lambda gone: None  # type: ignore[method-assign]
    cluster.node_connected = lambda back: None  # type: ignore[method-assign]
    node.crash("unseen restart")
    node.boot()
    others = [n for n in cluster.nodes.values() if n is not node]
    for other in others:
        node.on_peer_connected(other.node, other.level)
    run(cluster, 10_000)
    assert cluster.every_channel_has_a_leader()


def test_leader_without_contact_to_a_quorum_gives_up_its_role() -> None:
    """NATS-035: it could commit nothing, and its clients had better look elsewhere."""
    cluster, channel = calm_cluster()
    node = cluster.leaders()[channel]
    assert node.runner is not None
    others = [other for other in cluster.node_ids if other != node.node]
    cluster.network.cut_groups([node.node], others)
    run(cluster, 5_000)
    assert node.runner.channels[channel].elector.role is not Role.LEADER


def test_old_position_of_the_leader_is_infinite_lag() -> None:
    """S7.3: a replica that has not heard the leader for too long does not know its lag."""
    cluster, channel = calm_cluster()
    leader = cluster.leaders()[channel]
    node = next(n for n in cluster.nodes.values() if n is not leader)
    assert node.runner is not None
    runner = node.runner.channels[channel]
    reader, now = node.runner.reader, node.clock.now_ms()
    assert reader.lag(runner, now)[0] == 0
    later = now + node.settings.read.leader_info_age_max_ms + 1_000
    assert reader.lag(runner, later)[0] is None


def test_report_that_waited_for_the_main_loop_is_as_old_as_its_arrival() -> None:
    """S7.3: behind the elections of a thousand channels it waits for seconds, and no stop is
    reported.

    The age that a bounded read states, and is refused by, counts from when the report arrived.
    """
    cluster, channel = calm_cluster()
    leader = cluster.leaders()[channel]
    node = next(n for n in cluster.nodes.values() if n is not leader)
    assert node.runner is not None
    seen = spy(cluster, leader)
    run(cluster, 1_500)
    position = reported(seen, channel)[-1]
    runner, now = node.runner.channels[channel], node.clock.now_ms()
    runner.leader_info_heard_ms = None
    node.runner.on_peer_message(leader.node, LagReport(0, (position,)), now - 3_000, now)
    assert node.runner.reader.lag(runner, now) == (0, 3_000)
    assert node.runner.watch.reports.updated_ms_ago(leader.node, now) == 3_000


def test_replica_that_never_heard_a_leader_knows_no_lag() -> None:
    """S7.3: unknown fails closed."""
    cluster, channel = calm_cluster()
    leader = cluster.leaders()[channel]
    node = next(n for n in cluster.nodes.values() if n is not leader)
    assert node.runner is not None
    runner = node.runner.channels[channel]
    runner.leader_info_heard_ms = None
    assert node.runner.reader.lag(runner, node.clock.now_ms()) == (None, None)


def reported(seen: list[tuple[NodeId, Message]], channel: ChannelId) -> list[ChannelPosition]:
    """Positions of a channel in the lag reports that were sent."""
    reports = [message for _, message in seen if isinstance(message, LagReport)]
    return [p for report in reports for p in report.positions if p.channel == channel]


def test_leader_that_tells_no_position_makes_nobody_fresh() -> None:
    """S7.3: one that has committed nothing in its term knows no position of that term either."""
    cluster, channel = calm_cluster()
    leader = cluster.leaders()[channel]
    node = next(n for n in cluster.nodes.values() if n is not leader)
    assert node.runner is not None
    seen = spy(cluster, leader)
    run(cluster, 1_500)
    position = reported(seen, channel)[-1]
    assert position.is_leader
    runner = node.runner.channels[channel]
    runner.leader_info_heard_ms = None
    term, now = runner.elector.term, node.clock.now_ms()
    silent = structs.replace(position, commit_seq=Seq(0), commit_hash=b"")
    notice = CommitNotice(channel, term, Seq(0), runner.core.last_seq, term, b"")
    runner.on_replication(leader.node, notice, now)
    node.runner.on_peer_message(leader.node, LagReport(0, (silent,)), now, now)
    assert node.runner.reader.lag(runner, now) == (None, None)
    node.runner.on_peer_message(leader.node, LagReport(0, (position,)), now, now)
    assert node.runner.reader.lag(runner, now) == (0, 0)


def test_leader_reports_no_position_before_it_committed_in_its_term(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """S7.3: also in the report that every node sends of its channels."""
    cluster, channel = calm_cluster()
    leader = cluster.leaders()[channel]
    seen = spy(cluster, leader)
    run(cluster, 1_500)
    assert {position.commit_seq > 0 for position in reported(seen, channel)} == {True}
    seen.clear()
    monkeypatch.setattr(Replica, "knows_position", False)
    run(cluster, 1_500)
    assert {position.commit_seq for position in reported(seen, channel)} == {0}


def test_copy_of_the_catalog_that_may_be_incomplete_has_no_age() -> None:
    """S1.9: a client takes nothing for absent that only such a copy does not have."""
    cluster, _ = calm_cluster()
    node = cluster.nodes[cluster.node_ids[0]]
    assert node.runner is not None
    cluster_info, now = node.runner.reports.cluster_info, node.clock.now_ms()
    assert cluster_info.answer(ClusterInfo(1), now).age_ms is not None
    node.runner.controller.metadata.leader_info_heard_ms = None
    behind = next(
        n.runner for n in cluster.nodes.values()
        if n.runner is not None and n.runner.controller.metadata.elector.role is not Role.LEADER
    )  # fmt: skip
    behind.controller.metadata.leader_info_heard_ms = None
    assert behind.reports.cluster_info.answer(ClusterInfo(1), now).age_ms is None
    behind.controller.metadata.leader_info_heard_ms = now
    told = next(iter(behind.watch.positions[behind.metadata_channel].values()))
    ahead = structs.replace(told, commit_seq=Seq(10_000))
    behind.watch.reports.keep(cluster.node_ids[0], ahead)
    assert behind.reports.cluster_info.answer(ClusterInfo(1), now).age_ms is None


def test_silent_leader_is_succeeded_although_nobody_asks_for_the_channel() -> None:
    """S1.8: heartbeats that stop suffice; no client and no broken connection is needed."""
    cluster, channel = calm_cluster()
    old = cluster.leaders()[channel]
    others = [node for node in cluster.node_ids if node != old.node]
    cluster.network.cut_groups([old.node], others)
    run(cluster, 1_500)
    leaders = [
        node
        for node in others
        if (runner := cluster.nodes[node].runner) is not None
        and runner.channels[channel].elector.role is Role.LEADER
    ]
    assert len(leaders) == 1


def test_elections_that_are_over_give_their_memory_back() -> None:
    """Between elections no channel holds an instance of pysyncobj, whatever its role."""
    cluster, _ = calm_cluster()
    run(cluster, 2 * EVICT_INTERVAL_MS)
    for node in cluster.nodes.values():
        for runner in node.runner.channels.values():
            assert not runner.elector.evict(), "there was still something to free"


def test_hand_over_that_is_not_seen_to_end_in_time_is_in_doubt() -> None:
    """S4.1: the leader was asked to go and may still go, so nobody may call it not applied."""
    cluster, channel = calm_cluster()
    leader = cluster.leaders()[channel]
    for node in cluster.nodes.values():
        if node is not leader:
            node.crash("nobody is left to take over")
    answers = ask(cluster, leader, StepDown(1, channel, None, 100))
    run(cluster, 2_000)
    assert [a.code for a in answers if isinstance(a, Failed)] == ["operation_in_doubt"]
    assert ERRORS_BY_CODE["operation_in_doubt"].outcome is Outcome.UNKNOWN


def test_table_without_all_leaders_in_time_is_in_doubt() -> None:
    """S0.8, S4.1: the table is in the catalog; only its leaders were not seen in time."""
    cluster, _ = calm_cluster()
    metadata = cluster.nodes[cluster.node_ids[0]].runner.metadata_channel
    leader = cluster.leaders()[metadata]
    request = CreateTable(1, "late", ("k",), 4, 3, "fsync", None, "", False, timeout_ms=1)
    answers = ask(cluster, leader, request)
    run(cluster, 3_000)
    assert [a.code for a in answers if isinstance(a, Failed)] == ["operation_in_doubt"]
    assert "late" in leader.runner.controller.catalog.tables


def test_drop_of_a_table_that_was_replaced_removes_nothing() -> None:
    """S0.8: a late retry means the table it was sent for, not another one of the same name."""
    cluster, _ = calm_cluster()
    leader = cluster.leaders()[cluster.nodes[cluster.node_ids[0]].runner.metadata_channel]
    answers = ask(cluster, leader, DropTable(1, "t", 1_000, uuid=bytes(16)))
    run(cluster, 1_000)
    assert [a.code for a in answers if isinstance(a, Failed)] == ["unknown_table"]
    assert "t" in leader.runner.controller.catalog.tables


@pytest.mark.parametrize(
    "name", ["", "_t", "-t", ".t", "a/b", "t:scan", "a,b", "a b", "größe", "t\n", "x" * 129]
)
def test_name_that_would_mean_something_else_in_a_path_is_refused(name: str) -> None:
    """A name that means something else in a path or an option is refused: dropping a row of
    table "a" must not reach a table called "a/keys/1".
    """
    cluster, _ = calm_cluster()
    leader = cluster.leaders()[cluster.nodes[cluster.node_ids[0]].runner.metadata_channel]
    request = CreateTable(1, name, ("k",), 1, 3, "fsync", None, "", False, timeout_ms=1_000)
    answers = ask(cluster, leader, request)
    run(cluster, 1_000)
    [failed] = [answer for answer in answers if isinstance(answer, Failed)]
    assert failed.code == "schema"
    assert "letters" in failed.message
    assert name not in leader.runner.controller.catalog.tables


def test_names_of_letters_digits_and_what_paths_keep_are_usable() -> None:
    """Topics of Kafka and tables of Spark are called like that."""
    for name in ("t", "0", "Orders_2024", "a.b-c_d", "x" * 128):
        assert name_problem(name) is None


def test_table_that_has_its_name_already_keeps_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Programs that create their table when they start go on, whatever an older version allowed."""
    cluster, _ = calm_cluster()
    monkeypatch.setattr(table_definition, "name_problem", "{} is no name any more".format)
    leader = cluster.leaders()[cluster.nodes[cluster.node_ids[0]].runner.metadata_channel]
    request = CreateTable(1, "t", ("k",), 1, 3, "fsync", None, "", False, timeout_ms=1_000)
    answers = ask(cluster, leader, request)
    run(cluster, 1_000)
    assert [answer.code for answer in answers if isinstance(answer, Failed)] == ["table_exists"]


def test_definition_with_a_malformed_schema_is_refused_with_a_sentence() -> None:
    """A table nobody could read must not get into the catalog, whatever a client sends."""
    cluster, _ = calm_cluster()
    metadata = cluster.nodes[cluster.node_ids[0]].runner.metadata_channel
    leader = cluster.leaders()[metadata]
    request = CreateTable(
        1, "bad", ("k",), 1, 3, "fsync", None, '{"type":', False, timeout_ms=1_000
    )
    answers = ask(cluster, leader, request)
    run(cluster, 1_000)
    [failed] = [answer for answer in answers if isinstance(answer, Failed)]
    assert failed.code == "schema"
    assert "df.schema.json()" in failed.message
    assert "bad" not in leader.runner.controller.catalog.tables


@pytest.mark.parametrize("told_before", [False, True])
def test_engine_compares_a_reported_hash_when_its_own_commit_reaches_it(told_before: bool) -> None:
    """S13: a report that came too early is compared when the same report comes again later.

    Shows S13.1.
    """
    cluster, channel = calm_cluster()
    follower = next(
        node for node in cluster.nodes.values() if node is not cluster.leaders()[channel]
    )
    runner = follower.runner.channels[channel]
    differing: list[Seq] = []
    runner.parts.notices.histories_differ = (lambda _r, _n, seq, _ms: differing.append(seq),)
    ahead, wrong = Seq(runner.core.commit_seq + 1), b"another history."
    if told_before:
        runner.on_peer_hash(PEER, ahead, wrong, 0)
    assert not runner.core.is_disputed
    leader = cluster.leaders()[channel].runner
    leader.channels[channel].request_hand_over(
        None, "a new term start is a new committed record", leader.clock.now_ms
    )
    run(cluster, 5_000)
    assert runner.core.commit_seq >= ahead
    runner.on_peer_hash(PEER, ahead, wrong, 0)
    assert runner.core.is_disputed
    assert differing == [ahead]
