"""Sentences of the NATS document on replication, each with the promise raftstore makes of it.

The seven message-replication cases are scripts (tests/scripts); here are the properties around
them: order, payloads, terms, bounds.
"""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from raftstore.config import ReplicationSettings
from raftstore.core.effects import Append, Send
from raftstore.protocol.publish import PayloadRelay, PubAck
from raftstore.protocol.replication import MsgSync, StoreRequest
from raftstore.types import NodeId
from tests.core_world import N1, N2, N3, World


def led() -> World:
    """Three nodes, n1 leading, all steady."""
    world = World()
    world.elect(N1)
    world.settle(ticks=2)
    return world


def payload_bytes_sent_by(world: World, node: NodeId) -> int:
    """Payload bytes in everything a node asked to send."""
    total = 0
    for me, effect in world.trace:
        if me != node or not isinstance(effect, Send):
            continue
        match effect.message:
            case StoreRequest(records=metas):
                total += sum(len(meta.payload or b"") for meta in metas)
            case PayloadRelay(payload=payload):
                total += len(payload)
            case _:
                pass
    return total


def test_leader_sends_no_payload_to_healthy_replicas() -> None:
    """NATS-004: "a proprietary protocol that will take advantage of data already being sent by NATS
    clients"; the payload crosses the wire once per replica, from the publisher."""
    world = led()
    world.trace.clear()
    for counter in range(1, 21):
        world.publish(counter, payload=bytes(1_000))
        world.settle()
    assert payload_bytes_sent_by(world, N1) == 0
    assert not [e for _, e in world.trace if isinstance(e, Send) and isinstance(e.message, MsgSync)]
    assert all(world[n].replica.last_seq == 21 for n in (N1, N2, N3))


def test_follower_holds_data_until_the_leader_names_it() -> None:
    """NATS-005: "The follower holds data until the leader sends information required"."""
    world = led()
    world.publish(1, to=[N2])
    assert world[N2].writes == []
    assert world[N2].replica.statistics().pending_payloads.messages == 1


def test_followers_may_persist_before_the_leader_does() -> None:
    """NATS-049: the leader sends the metadata, "the[n] persist the message locally"."""
    world = led()
    world.publish(1)
    world.deliver(kind="StoreRequest")
    world[N2].persist()
    world[N3].persist()
    assert world[N1].disk.last_seq == 1
    assert world[N2].disk.last_seq == 2
    world.deliver(N1)
    assert world[N1].replica.commit_seq == 2
    assert world[N1].applied_seq == 1


def test_uncommitted_records_are_applied_nowhere() -> None:
    """NATS-125 as the contract changed it (S4.2): nothing is visible before it is committed."""
    world = led()
    world.publish(1)
    world.drop(N2)
    world.drop(N3)
    world[N1].persist()
    assert all(node.applied_seq == 1 for node in world.nodes.values())


def test_leader_that_hears_of_a_new_term_steps_down_before_anything_else() -> None:
    """The core's part: "it'll step down to become a follower"."""
    world = led()
    client = world.publish(1)
    world.drop()
    world.elect(N2, voters=[N2, N3])
    world.deliver(N1, "StoreRequest")
    assert world[N1].replica.role.value == "follower"
    assert [answer.code for answer in world.answers(client) if not isinstance(answer, PubAck)] == [
        "leadership_lost"
    ]


def test_lagging_follower_returns_to_lag_zero_when_writes_stop() -> None:
    """NATS-008: "Clustered servers are hot, replicating data in real-time"."""
    world = led()
    for counter in range(1, 30):
        world.publish(counter)
    for _ in range(3):
        world.tick(25)
        world.settle()
    assert all(node.applied_seq == 30 for node in world.nodes.values())


def test_catch_up_never_needs_more_memory_than_its_bounds() -> None:
    """NATS-137: "This prevents unbounded memory growth"."""
    settings = ReplicationSettings(
        live_queue_messages_max=5, pending_messages_max=8, sync_batch_bytes_max=64
    )
    world = World(settings=settings)
    world.elect(N1)
    world.settle(ticks=2)
    world[N3].crash()
    for counter in range(1, 61):
        world.publish(counter, to=[N1, N2])
    world.settle()
    world[N3].boot()
    world.tick(300)
    for counter in range(61, 121):
        world.publish(counter)
        world.deliver(first=4)
        statistics = world[N3].replica.statistics()
        assert statistics.live_queue.messages <= 5
        assert statistics.pending_payloads.messages <= 8
        for node in world.nodes.values():
            node.persist()
    world.settle(ticks=4)
    assert world[N3].log == world[N1].log


@given(
    st.lists(st.tuples(st.integers(1, 12), st.permutations([N1, N2, N3])), max_size=25),
    st.randoms(use_true_random=False),
)
def test_all_replicas_end_with_the_leaders_order(
    publishes: list[tuple[int, list[NodeId]]], chance: object
) -> None:
    """NATS-046: "multiple publishers ... receiving messages in different order amongst members"."""
    world = led()
    for counter, order in publishes:
        for node in order:
            world.publish(counter, to=[node])
            if world.network and chance.random() < 0.4:  # type: ignore[attr-defined]
                index = chance.randrange(len(world.network))  # type: ignore[attr-defined]
                envelope = world.network.pop(index)
                world[envelope.to].receive(envelope.sender, envelope.message)
    world.settle(ticks=4)
    assert world[N2].log == world[N3].log == world[N1].log
    guids = [stored.guid for stored in world[N1].log[1:]]
    assert len(guids) == len(set(guids)) == len({counter for counter, _ in publishes})


def test_records_are_persisted_in_order_and_whole() -> None:
    """NATS-053: "persist the message with the timestamp, sequence number, and data"."""
    world = led()
    world.publish(1, rows=5)
    world.publish(2)
    world.settle(ticks=1)
    appended = [e.records for me, e in world.trace if me == N2 and isinstance(e, Append)]
    flat = [stored for records in appended for stored in records]
    assert [(s.base_seq, s.last_seq) for s in flat] == [(1, 1), (2, 6), (7, 7)]
    assert [s.timestamp_ms for s in flat] == [s.timestamp_ms for s in world[N1].log]
