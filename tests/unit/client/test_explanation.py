"""The explanation of a read: which replica would answer, judged by every node's own status."""

from __future__ import annotations

from typing import Any

import pytest

from raftstore.client.explanation import Whom, explain_read
from raftstore.client.results import ClusterStatus, NodeStatus
from raftstore.policy.routing import Prefer
from raftstore.protocol.admin import ChannelInfo, TableInfo
from raftstore.protocol.reads import Bounds, Served
from raftstore.types import Level, Seq, Term, channel_id, node_id

NODES = [node_id(f"n{number}", bytes([number]) * 16) for number in (1, 2, 3)]
UUID = b"u" * 16
TABLE = TableInfo(
    name="orders",
    uuid=UUID,
    key_columns=("id",),
    partitions=1,
    replicas=3,
    durability="fsync",
    max_lag=None,
    schema_json="",
    channels=(ChannelInfo(channel_id(UUID, 0), tuple(NODES), NODES[0], Term(3)),),
)


def channel(role: str, applied: int, lag: int | None) -> dict[str, Any]:
    """A node's status of its replica; 100 rows are committed."""
    return {
        "table": "orders",
        "partition": 0,
        "role": role,
        "term": 3,
        "applied_seq": applied,
        "commit_seq": 100 if role == "leader" else applied,
        "last_seq": 100,
        "lag": lag,
        "leader_info_age_ms": 10,
    }


def cluster(*said: dict[str, Any] | None) -> ClusterStatus:
    """n1, n2, n3 with their own words; None did not answer."""
    nodes = tuple(
        NodeStatus(
            name=f"n{number}",
            id=node,
            endpoint=f"host:{number}",
            up=words is not None,
            status=None if words is None else {"channels": [words]},
            error=None if words is not None else "it did not answer in time",
        )
        for number, (node, words) in enumerate(zip(NODES, said, strict=True), 1)
    )
    return ClusterStatus("c", 1, 0, "n1", nodes, (TABLE,), TABLE.channels[0])


def test_explanation_orders_the_leader_first_and_then_by_lag() -> None:
    """KLIP-37: live replicas by smallest lag."""
    status = cluster(
        channel("follower", 90, 10), channel("leader", 100, 0), channel("follower", 99, 1)
    )
    found = explain_read(status, TABLE, 0, Level.BOUNDED, Bounds(50))
    assert [(r.node, r.order) for r in found.replicas] == [("n2", 1), ("n3", 2), ("n1", 3)]
    assert [r.behind for r in found.replicas] == [0, 1, 10]
    assert found.is_servable


def test_explanation_says_why_a_replica_is_refused() -> None:
    """KLIP-38, KLIP-39, KLIP-43: dead, too far behind, or not knowing how far."""
    status = cluster(None, channel("leader", 100, None), channel("follower", 40, 60))
    found = explain_read(status, TABLE, 0, Level.BOUNDED, Bounds(50))
    reasons = {replica.node: replica.reason for replica in found.replicas}
    assert reasons["n1"].startswith("not alive")
    assert reasons["n2"] == "no lag information"
    assert reasons["n3"] == "lag 60 > 50"
    assert not found.is_servable
    assert found.smallest_max_lag == 60


@pytest.mark.parametrize("mode", ["recovering", "stopped"])
@pytest.mark.parametrize("level", [Level.ANY, Level.BOUNDED])
def test_replica_that_serves_nothing_is_not_asked_and_says_why(mode: str, level: Level) -> None:
    """S0.3, S0.6: in its own words; no bound would do there, however near it believes to be."""
    refusing = {"mode": mode, "reason": "in doubt on this node: no answer from n1"}
    status = cluster(None, channel("follower", 100, 0) | refusing, channel("follower", 60, 40))
    found = explain_read(status, TABLE, 0, level, Bounds(50 if level is Level.BOUNDED else None))
    verdicts = {replica.node: (replica.order, replica.reason) for replica in found.replicas}
    assert verdicts["n2"] == (None, f"{mode}: in doubt on this node: no answer from n1")
    assert verdicts["n3"] == (1, "asked")
    assert found.smallest_max_lag == 40


def test_replica_that_catches_up_is_asked() -> None:
    """NATS-028: within its bound it serves."""
    status = cluster(None, channel("follower", 90, 10) | {"mode": "catching_up"}, None)
    found = explain_read(status, TABLE, 0, Level.BOUNDED, Bounds(50))
    assert [replica.node for replica in found.replicas if replica.order] == ["n2"]


def test_explanation_of_a_linearizable_read_asks_the_leader_alone() -> None:
    """S7.1: nobody else may answer."""
    status = cluster(channel("leader", 100, 0), channel("follower", 100, 0), None)
    found = explain_read(status, TABLE, 0, Level.LINEARIZABLE, Bounds())
    assert [(r.node, r.order, r.reason) for r in found.replicas][:2] == [
        ("n1", 1, "asked"),
        ("n2", None, "not the leader"),
    ]


def test_explanation_without_any_answer_serves_nothing() -> None:
    """No bound would help then, and it says so."""
    found = explain_read(cluster(None, None, None), TABLE, 0, Level.ANY, Bounds())
    assert not found.is_servable
    assert found.smallest_max_lag is None


def test_explanation_tells_every_bound_and_which_would_be_met() -> None:
    """Rows, time and micro-batches: the smallest bound of each that some replica meets now."""
    status = cluster(channel("leader", 100, 0), channel("follower", 90, 10), None)
    place = TABLE.channels[0].channel
    served = {
        node: Served(node, place, Term(3), Seq(100), 0, 0, "any", staleness_ms, batches)
        for node, staleness_ms, batches in ((NODES[0], 3, None), (NODES[1], 250, 2))
    }
    found = explain_read(status, TABLE, 0, Level.BOUNDED, Bounds(50, 200), served=served)
    reasons = {replica.node: replica.reason for replica in found.replicas}
    assert (reasons["n1"], reasons["n2"]) == ("asked", "time lag 250 ms > 200 ms")
    smallest = (
        found.smallest_max_lag,
        found.smallest_max_staleness_ms,
        found.smallest_max_batches_behind,
    )
    assert smallest == (0, 3, 2)
    whom = Whom(prefer=Prefer.NEAREST, local=NODES[1])
    near = explain_read(status, TABLE, 0, Level.ANY, Bounds(), whom=whom)
    assert [replica.node for replica in near.replicas][:2] == ["n2", "n1"]


def test_explanation_of_a_read_of_one_replica_asks_that_one_alone() -> None:
    """The explanation of a read with --replica judges that replica alone, by its own lag and
    bounds.
    """
    status = cluster(
        channel("leader", 100, 0), channel("follower", 90, 10), channel("follower", 99, 1)
    )
    found = explain_read(status, TABLE, 0, Level.BOUNDED, Bounds(9), whom=Whom(only=NODES[1]))
    assert {replica.node: replica.reason for replica in found.replicas} == {
        "n1": "another replica was asked for",
        "n2": "lag 10 > 9",
        "n3": "another replica was asked for",
    }
    assert not found.is_servable
    assert found.smallest_max_lag == 10
    found = explain_read(status, TABLE, 0, Level.BOUNDED, Bounds(10), whom=Whom(only=NODES[1]))
    assert [replica.order for replica in found.replicas] == [1, None, None]
    elsewhere = node_id("n9", b"9" * 16)
    found = explain_read(status, TABLE, 0, Level.ANY, Bounds(), whom=Whom(only=elsewhere))
    assert [(r.node, r.reason) for r in found.replicas][-1] == ("n9", "not hosting")
    assert not found.is_servable


def test_explanation_says_who_would_wait_for_the_position() -> None:
    """A replica that is behind the position answers later, not never."""
    status = cluster(channel("leader", 100, 0), channel("follower", 90, 10), None)
    found = explain_read(status, TABLE, 0, Level.ANY, Bounds(), whom=Whom(min_seq=Seq(95)))
    assert [replica.reason for replica in found.replicas] == [
        "asked",
        "asked; waits for seq 95, it has applied 90",
        "not alive: it did not answer in time",
    ]


def test_explanation_says_who_leads_and_why_another_one_than_preferred() -> None:
    """The first replica of the placement leads a new table; operators ask why it does not."""
    follower, leader = channel("follower", 100, 0), channel("leader", 100, 0)

    def told(*said: dict[str, Any] | None) -> tuple[str | None, str, str]:
        found = explain_read(cluster(*said), TABLE, 0, Level.ANY, Bounds())
        return found.leader, found.preferred_leader, found.leader_note

    assert told(leader, follower, follower) == ("n1", "n1", "")
    assert told(None, leader, follower) == ("n2", "n1", "n1 is preferred and does not answer")
    behind = follower | {"mode": "catching_up"}
    assert told(behind, leader, follower) == ("n2", "n1", "n1 is preferred and is catching_up")
    assert told(follower, follower, follower) == (None, "n1", "no leader is known; n1 is preferred")
    name, _, note = told(follower, follower, leader)
    assert name == "n3"
    assert "raftstore channel step-down orders/0 --to n1" in note
    # Two that claim it: the newer term counts.
    assert told(leader, leader | {"term": 4}, follower)[0] == "n2"
