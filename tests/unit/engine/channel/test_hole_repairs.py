"""Replicas whose logs have holes do not take part until other nodes filled them (S0.3)."""

from __future__ import annotations

from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest

from raftstore.cli.log import log
from raftstore.core.chain import digest_of
from raftstore.engine.channel.hole_repairs import HoleRepairs, fault_of
from raftstore.policy.levels import REFILL_LEVEL
from raftstore.protocol.election import RequestVote
from raftstore.protocol.node import Hole, Refill, RefillRequest, Run
from raftstore.protocol.payload import encode_rows
from raftstore.protocol.records import Record
from raftstore.protocol.replication import CommitNotice
from raftstore.rows.sealing import seal
from raftstore.testing.sim_cluster import SimCluster
from raftstore.testing.sim_damage import flip_payload
from raftstore.testing.sim_node import SimNode
from raftstore.types import ChannelId, History, RecordKind, Seq, Term, make_guid
from tests.storage_helpers import all_records
from tests.unit.engine.engine_world import calm_cluster, publish, run

ROWS = 12


def damaged(
    cluster: SimCluster, channel: ChannelId, places: dict[str, int], *, boots: bool = True
) -> dict[str, SimNode]:
    """Kill all nodes, damage one record of the channel on some, and start them again."""
    nodes = {node.name: node for node in cluster.nodes.values()}
    for name, node in nodes.items():
        if name in places:
            node.damage("a bit flips", partial(flip_payload, channel=channel, at=places[name]))
        else:
            node.kill("to be damaged")
    if boots:
        for node in nodes.values():
            node.boot()
    return nodes


def runner_of(node: SimNode, channel: ChannelId) -> Any:
    """The channel on a node."""
    assert node.runner is not None
    return node.runner.channels[channel]


@pytest.fixture
def world() -> tuple[SimCluster, ChannelId]:
    """Three nodes with some rows in one partition."""
    cluster, channel = calm_cluster()
    leader = cluster.leaders()[channel]
    assert leader.runner is not None
    for number in range(ROWS):
        payload = encode_rows([(b"%d" % number, seal(b"%d" % number, b"row"))])
        leader.on_client_message(1, publish(cluster, leader, channel, number + 1, payload))
    run(cluster, 4_000)
    assert [len(rows) for rows in contents(cluster, channel)] == [ROWS] * 3
    return cluster, channel


def contents(cluster: SimCluster, channel: ChannelId) -> list[list[tuple[bytes, Seq]]]:
    """Rows of the channel on every node."""
    return [
        [(row.key, row.seq) for row in node.tables.scan(channel, b"", b"", 1_000).rows]
        for node in cluster.nodes.values()
    ]


def test_majority_of_damaged_logs_heals_without_a_leader(
    world: tuple[SimCluster, ChannelId],
) -> None:
    """Every record has an intact copy: all are held again, and all replicas take part."""
    cluster, channel = world
    before = contents(cluster, channel)
    nodes = damaged(cluster, channel, {"n1": 3, "n2": 7})
    assert [runner_of(node, channel).hole is None for node in nodes.values()] == [0, 0, 1]
    run(cluster, 8_000)
    assert cluster.every_channel_has_a_leader()
    assert contents(cluster, channel) == before
    for node in nodes.values():
        assert runner_of(node, channel).core.may_vote()
        assert len(node.log._channels[channel]) > ROWS


def test_laggard_that_is_whole_is_not_needed(world: tuple[SimCluster, ChannelId]) -> None:
    """The damaged ones hold more than the third, which stays down: they heal each other."""
    cluster, channel = world
    nodes = damaged(cluster, channel, {"n1": 3, "n2": 7}, boots=False)
    for name in ("n1", "n2"):
        nodes[name].boot()
    run(cluster, 8_000)
    assert channel in cluster.leaders()


def test_line_of_a_hole_names_what_is_lost_and_the_commands_for_it() -> None:
    """It is what an operator has at 3 a.m.: the channel by name and id, the seqs, and a remedy."""
    told: list[tuple[str, dict[str, Any]]] = []
    host: Any = SimpleNamespace(event=lambda name, **fields: told.append((name, fields)))
    lost = Hole(Seq(4), Seq(6), Term(1), ())
    channel = ChannelId(b"orders-table-id!\x00\x03")
    runner: Any = SimpleNamespace(name="orders/3", channel=channel, hole=lost)
    repairs = HoleRepairs(
        host,
        host,
        {},
        host.event,
        nodes_at_level=lambda _: (),
        reopen=lambda _: None,
        bytes_max=1,
        first_request_id=1,
    )
    repairs.opened(runner, 0)
    ((name, fields),) = told
    assert name == "hole"
    assert (fields["channel"], fields["id"]) == ("orders/3", channel.hex())
    assert (fields["from_seq"], fields["to_seq"]) == (4, 6)
    for command in ("check", "fill"):
        assert f"raftstore log {command} DIR" in fields["remedy"]
        assert command in log.commands


def test_node_that_came_back_older_is_neither_answered_nor_asked_again(
    world: tuple[SimCluster, ChannelId],
) -> None:
    """A late question of its earlier life gets no answer that the present one cannot read."""
    cluster, channel = world
    nodes = cluster.nodes
    asking, asked = list(nodes.values())[:2]
    assert asked.runner is not None
    sent: list[object] = []

    def send(_to: object, message: object, **_: object) -> None:
        if isinstance(message, Refill | RefillRequest):
            sent.append(type(message))

    repairs: Any = asked.runner.repairs
    repairs._outbox.send = send
    lost = Hole(Seq(2), Seq(2), Term(1), ())
    request = RefillRequest(channel, 7, lost, 1_000)
    repairs.on_request(asking.node, request)
    assert sent == [Refill]

    now = asked.clock.now_ms()
    asked.runner.on_peer_connected(asking.node, "", REFILL_LEVEL - 1, now)
    repairs.on_request(asking.node, request)
    runner: Any = asked.runner.channels[channel]
    runner.hole = lost
    repairs.opened(runner, now)
    repairs.open[channel].asked = asking.node
    repairs._ask(repairs.open[channel], now)
    assert sent == [Refill]
    asked.runner.on_peer_connected(asking.node, "", REFILL_LEVEL, now)
    repairs._ask(repairs.open[channel], now)
    assert sent == [Refill, RefillRequest]


def test_replica_with_a_hole_takes_no_part(world: tuple[SimCluster, ChannelId]) -> None:
    """S0.3: no vote, no ack, no answer, no term: alone it stays as it is for ever."""
    cluster, channel = world
    nodes = damaged(cluster, channel, {"n1": 3}, boots=False)
    node = nodes["n1"]
    node.boot()
    runner = runner_of(node, channel)
    term = runner.elector.term
    sent: list[object] = []
    runner.send_election = lambda _, message: sent.append(message)
    run(cluster, 5_000)
    sender, higher = nodes["n2"].node, Term(term + 5)
    runner.on_replication(
        sender, CommitNotice(channel, higher, Seq(0), Seq(1), Term(1), b"", -1), 10**9
    )
    runner.on_election(
        sender, RequestVote(channel, higher, History(Term(9), Seq(99)), transfer=False), 10**9
    )
    runner.on_leader_claim(sender, higher, 10**9)
    assert not runner.core.may_vote()
    assert runner.hole == Hole(Seq(4), Seq(4), runner.hole.prev_term, runner.hole.runs)
    assert (sent, runner.elector.term) == ([], term)
    assert node.runner is not None
    (own,) = [each for each in node.runner.reports.status()["channels"] if each["table"] == "t"]
    assert own["mode"] == "recovering"


def test_same_record_lost_everywhere_is_never_given_up(
    world: tuple[SimCluster, ChannelId],
) -> None:
    """No leader holds what was acknowledged, so nobody may say that it never was."""
    cluster, channel = world
    nodes = damaged(cluster, channel, {"n1": 5, "n2": 5, "n3": 5})
    run(cluster, 20_000)
    assert channel not in cluster.leaders()
    for node in nodes.values():
        assert runner_of(node, channel).hole is not None
        assert len(node.log._channels[channel].kept[0]) > ROWS - 7


def test_leader_of_our_term_decides_about_what_nobody_else_has_held(
    world: tuple[SimCluster, ChannelId],
) -> None:
    """S0.3: what it does not hold was never acknowledged; an older leader may not say so."""
    cluster, channel = world
    nodes = damaged(cluster, channel, {"n1": 3}, boots=False)
    node = nodes["n1"]
    node.boot()
    assert node.runner is not None
    repairs, runner = node.runner.repairs, runner_of(node, channel)
    repair = repairs.open[channel]
    runner.elector.observe_term(Term(runner.elector.term + 5))
    term = runner.elector.term
    for leader_term, is_done in ((0, False), (term - 1, False), (term, True)):
        repair.request_id = 77
        answer = Refill(channel, 77, (), Term(leader_term))
        repairs.on_refill(nodes["n2"].node, answer, 0)
        assert repair.is_done is is_done
    hole, shortfall = (
        node.log.open_channel(channel).hole,
        node.log.open_channel(channel).shortfall,
    )
    assert hole is None
    assert shortfall is not None


def test_late_answer_of_another_question_fills_nothing(
    world: tuple[SimCluster, ChannelId],
) -> None:
    """S12: answers are distinguished by their numbers."""
    cluster, channel = world
    nodes = damaged(cluster, channel, {"n1": 3}, boots=False)
    nodes["n1"].boot()
    runner = nodes["n1"].runner
    assert runner is not None
    lost = all_records(nodes["n2"].log, channel)[3]
    runner.repairs.open[channel].request_id = 5
    runner.repairs.on_refill(nodes["n2"].node, Refill(channel, 4, (lost,), Term(0)), 0)
    assert runner_of(nodes["n1"], channel).hole is not None


def one(seq: int, term: int = 3, rows: int = 1, payload: bytes = b"row") -> Record:
    """A record."""
    return Record(
        term=Term(term),
        base_seq=Seq(seq),
        rows=rows,
        guid=make_guid(b"session!", seq),
        timestamp_ms=0,
        digest=digest_of(b"row"),
        kind=RecordKind.ROWS,
        payload=payload,
    )


RUNS = (
    Run(Term(3), Seq(1), Seq(4)),
    Run(Term(4), Seq(8), Seq(9)),
    Run(Term(6), Seq(10), Seq(12)),
)
HOLE = Hole(Seq(5), Seq(7), Term(3), RUNS)


@pytest.mark.parametrize(
    ("records", "fault"),
    [
        ((one(5), one(6), one(7)), None),
        ((one(5), one(6, 4, rows=2)), None),
        ((one(6),), "does not fit into the hole at 5"),
        ((one(5), one(7)), "does not fit into the hole at 6"),
        ((one(5, rows=4),), "does not fit into the hole"),
        ((one(5, rows=0),), "does not fit into the hole"),
        ((one(5, 2),), "between its neighbours"),
        ((one(5, 5),), "between its neighbours"),
        ((one(5, 4), one(6, 3)), "between its neighbours"),
        ((one(5, payload=b"other"),), "not what its digest says"),
    ],
)
def test_what_does_not_fit_is_refused(records: tuple[Record, ...], fault: str | None) -> None:
    """The answer is checked again by the node that lost the records."""
    found = fault_of(records, HOLE)
    assert found is None if fault is None else fault in (found or "")


def test_replica_stays_deaf_until_what_was_filled_is_durable(
    world: tuple[SimCluster, ChannelId],
) -> None:
    """S0.5: it would reveal what a crash may take back, and write behind an end that moved."""
    cluster, channel = world
    nodes = damaged(cluster, channel, {"n1": 3}, boots=False)
    node = nodes["n1"]
    node.boot()
    assert node.runner is not None
    repairs, runner = node.runner.repairs, runner_of(node, channel)
    lost = all_records(nodes["n2"].log, channel)[3]
    repairs.open[channel].request_id = 5
    repairs.on_refill(nodes["n2"].node, Refill(channel, 5, (lost,), Term(0)), 0)
    assert node.log.open_channel(channel).hole is None
    assert runner_of(node, channel) is runner
    assert runner.hole is not None
    operation = node.log.last_operation()
    repairs.on_durable(operation - 1)
    assert runner_of(node, channel) is runner
    repairs.on_durable(operation)
    assert runner_of(node, channel) is not runner
    assert runner_of(node, channel).hole is None
    assert runner_of(node, channel).core.may_vote()
