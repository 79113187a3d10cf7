"""The order in which replicas are asked (KLIP-37, KIP-535)."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from raftstore.client.routing import PENALTY_MS, ReplicaOrder
from raftstore.types import ChannelId, NodeId, node_id

CHANNEL = ChannelId(b"t" * 18)
A, B, C = (node_id(name, name.encode() * 16) for name in "abc")


def everyone(_: NodeId) -> bool:
    return True


def test_replicas_take_turns() -> None:
    """Healthy replicas share the reads."""
    order = ReplicaOrder()
    first = [order.order(CHANNEL, (A, B, C), everyone, 0)[0] for _ in range(6)]
    assert first == [A, B, C, A, B, C]


def test_unreachable_replicas_come_last() -> None:
    """A node without a connection is asked when nobody else answers."""
    order = ReplicaOrder()
    for _ in range(3):
        assert order.order(CHANNEL, (A, B, C), lambda node: node != A, 0)[-1] == A


def test_replica_that_failed_comes_last_for_a_while() -> None:
    """A refusal sends a replica to the end until the penalty is over or it answers."""
    order = ReplicaOrder()
    order.failed(CHANNEL, A, 0)
    assert order.order(CHANNEL, (A, B, C), everyone, PENALTY_MS - 1) == [B, C, A]
    order.answered(CHANNEL, A)
    order.failed(CHANNEL, B, 0)
    assert order.order(CHANNEL, (A, B, C), everyone, 1)[-1] == B
    assert order.order(CHANNEL, (A, B, C), everyone, PENALTY_MS) == [C, A, B]
    assert order.order(CHANNEL, (), everyone, 0) == []


@given(st.lists(st.tuples(st.sampled_from([A, B, C]), st.booleans(), st.integers(0, 3_000))))
def test_every_replica_stays_in_the_list(history: list[tuple[NodeId, bool, int]]) -> None:
    """Whatever failed, all replicas are asked in the end, each once."""
    order = ReplicaOrder()
    for node, has_failed, now_ms in history:
        if has_failed:
            order.failed(CHANNEL, node, now_ms)
        else:
            order.answered(CHANNEL, node)
        listed = order.order(CHANNEL, (A, B, C), lambda other, down=node: other != down, now_ms)
        assert sorted(listed) == [A, B, C]
