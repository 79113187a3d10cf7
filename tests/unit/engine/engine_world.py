"""A calm simulated cluster for tests of the engine: one table, three nodes, nothing goes wrong."""

from __future__ import annotations

import hashlib

from raftstore.errors import ERRORS_BY_CODE, RequestError
from raftstore.protocol.message import Message
from raftstore.protocol.publish import PubMsg
from raftstore.testing.options import SimOptions
from raftstore.testing.sim_cluster import SimCluster
from raftstore.testing.sim_node import SimNode
from raftstore.types import ChannelId, NodeId, RecordKind, make_guid


def calm_cluster(seed: int = 1) -> tuple[SimCluster, ChannelId]:
    """Three healthy nodes with one table of one partition, and the partition's channel."""
    cluster = SimCluster(SimOptions(seed=seed, partitions=1, evict_percent=0))
    cluster.start()
    cluster.create_table(1)
    run(cluster, 3_000)
    assert cluster.every_channel_has_a_leader()
    return cluster, cluster.table_channels[0]


def run(cluster: SimCluster, ms: float) -> None:
    """Let virtual time pass."""
    cluster.scheduler.run_until(cluster.scheduler.now_ms + ms)


def spy(cluster: SimCluster, node: SimNode) -> list[tuple[NodeId, Message]]:
    """Everything the node sends from now on, with its receivers."""
    seen: list[tuple[NodeId, Message]] = []
    send = cluster.network.send

    def recorded(sender: str, receiver: str, message: Message) -> None:
        if sender == node.node:
            seen.append((NodeId(receiver), message))
        send(sender, receiver, message)

    cluster.network.send = recorded  # type: ignore[method-assign]
    return seen


def ask(cluster: SimCluster, node: SimNode, *messages: Message) -> list[Message]:
    """Send as one client does, in order; the answers come into the list."""
    answers: list[Message] = []
    cluster.add_client("operator", 777, lambda sender, message: answers.append(message))
    for message in messages:
        cluster.network.send("operator", node.node, message)
    return answers


def error_class(code: str) -> type[RequestError]:
    """The error behind a code on the wire."""
    return ERRORS_BY_CODE[code]


def publish(
    cluster: SimCluster,
    leader: SimNode,
    channel: ChannelId,
    counter: int,
    payload: bytes,
    *,
    kind: RecordKind = RecordKind.ROWS,
    rows: int = 1,
) -> PubMsg:
    """A write, of one row by default, addressed to the leader alone, which relays it."""
    runner = leader.runner.channels[channel]
    return PubMsg(
        channel=channel,
        term=runner.elector.term,
        leader=leader.node,
        guid=make_guid(b"producer", counter),
        digest=hashlib.blake2b(payload, digest_size=16).digest(),
        rows=rows,
        kind=kind,
        payload=payload,
        relay_to=tuple(node for node in cluster.node_ids if node != leader.node),
    )
