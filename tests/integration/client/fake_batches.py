"""How a scripted node answers what clients ask of a coordinator."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from raftstore.protocol.batches import (
    ADOPT,
    BatchAnswer,
    BeginBatch,
    CloseBatch,
    CommitBatch,
    EditWriter,
    Writers,
    WritersAnswer,
)
from raftstore.protocol.message import Done, Failed, Message
from raftstore.protocol.payload import decode_rows
from raftstore.state_machines.batches.txn_records import Adopt, Close, Remove, Verdict
from raftstore.state_machines.batches.txn_state import read_table
from raftstore.types import channel_id, channel_table
from tests.integration.client.fake_snapshots import remember

if TYPE_CHECKING:
    from tests.integration.client.fake_cluster import FakeCluster, FakeNode

Reply = Callable[[Message], None]
WRITERS_MAX = 10_000
"""Writers in one answer."""
_BATCH_REQUESTS = BeginBatch | CommitBatch | CloseBatch | Writers | EditWriter


def coordinate(node: FakeNode, message: Message, reply: Reply) -> bool:
    """React to a request about batches; False for any other."""
    if not isinstance(message, _BATCH_REQUESTS):
        return False
    channel = node.cluster.channels.get(message.channel)
    if channel is None:
        reply(Failed(message.request_id, "unknown_channel", "not hosted here"))
    elif channel.leader != node.id:
        reply(Failed(message.request_id, "not_leader", "not I", leader_hint=channel.leader))
    else:
        reply(decide(node.cluster, message))
    return True


def decide(cluster: FakeCluster, message: Message) -> Message:
    """The coordinator's answer; a commit is applied everywhere at once."""
    assert isinstance(message, _BATCH_REQUESTS)
    truth = cluster.channels[message.channel].batches
    assert truth is not None
    match message:
        case BeginBatch():
            return _answer(message.request_id, truth.begin(message))
        case CommitBatch():
            decided = len(truth.decisions)
            verdict = truth.commit(message)
            for made in truth.decisions[decided:]:
                vector = read_table(truth.state).tail
                _apply(cluster, channel_table(message.channel), made, vector)
            return _answer(message.request_id, verdict)
        case CloseBatch():
            return _answer(message.request_id, truth.step(Close(message.writer, message.attempt)))
        case EditWriter():
            step = Remove(message.writer)
            if message.action == ADOPT:
                step = Adopt(message.writer, message.lineage)
            return _answer(message.request_id, truth.step(step))
    head = read_table(truth.state)
    next_commit, tail = (1, ()) if head is None else (head.next_commit, head.tail)
    found = [view for view in truth.views(message.writer) if view.writer > message.after]
    some = tuple(found[:WRITERS_MAX])
    more = len(found) > WRITERS_MAX
    return WritersAnswer(message.request_id, some, next_commit, 0, tail, next_commit - 1, more)


def _apply(cluster: FakeCluster, table: bytes, made, vector: tuple[int, ...]) -> None:
    partitions = range(len(cluster.channels))
    channels = [cluster.channels.get(channel_id(table, partition)) for partition in partitions]
    for channel in filter(None, channels):
        if made.is_overwrite:
            channel.rows.clear()
    for chunk in made.chunks:
        channel = channels[chunk.partition]
        channel.seq += chunk.rows
        channel.write(decode_rows(chunk.payload))
    for partition, newest in enumerate(vector):
        if newest == made.n:
            remember(channels[partition], made.n, vector)


def _answer(request_id: int, verdict: Verdict) -> Message:
    if verdict.code:
        return Failed(request_id, verdict.code, verdict.message)
    if verdict.name == "done":
        return Done(request_id)
    return BatchAnswer(
        request_id=request_id,
        verdict=verdict.name,
        attempt=verdict.attempt,
        n=verdict.n,
        batch_id=verdict.batch_id,
        vector=verdict.vector,
        rows=verdict.rows,
    )
