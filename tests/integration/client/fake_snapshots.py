"""How a scripted node answers who wants a state by its commit; nodes may be some commits behind."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from raftstore.protocol.message import Failed, Message
from raftstore.protocol.reads import Served
from raftstore.protocol.snapshots import OpenSnapshot, SnapshotAnswer
from raftstore.types import ChannelId, Seq

if TYPE_CHECKING:
    from tests.integration.client.fake_cluster import Channel, FakeNode

Rows = dict[bytes, tuple[bytes, Seq]]


@dataclass(frozen=True)
class Applied:
    """A channel right after a commit."""

    n: int
    vector: tuple[int, ...]
    seq: Seq
    rows: Rows


def remember(channel: Channel, n: int, vector: tuple[int, ...]) -> None:
    """A commit was applied to the channel."""
    channel.history.append(Applied(n, vector, channel.seq, dict(channel.rows)))


def open_snapshot(node: FakeNode, message: Message, reply: Callable[[Message], None]) -> bool:
    """Handle a request for a snapshot; False for any other request."""
    if not isinstance(message, OpenSnapshot):
        return False
    node.snapshots.append(message)
    channel = node.cluster.channels.get(message.channel)
    if channel is None:
        reply(Failed(message.request_id, "unknown_channel", "not hosted here"))
        return True
    history = channel.history[: len(channel.history) - node.commits_behind.get(channel.channel, 0)]
    applied = Applied(0, (), channel.seq, dict(channel.rows))
    if history:
        applied = history[-1]
        if len(history) == len(channel.history):
            applied = Applied(applied.n, applied.vector, channel.seq, dict(channel.rows))
    if applied.n < max(message.as_of, message.min_commit) or applied.seq < message.min_seq:
        late = Failed(message.request_id, "not_up_to_bound", f"{node.name} holds {applied.n}")
        asyncio.get_running_loop().call_later(message.timeout_ms / 1000, reply, late)
        return True
    vector = applied.vector
    if message.as_of and applied.n > message.as_of:
        kept = [state for state in history[:-1][::-1][: node.kept] if state.n == message.as_of]
        if not kept:
            text = f"{node.name} keeps the state of commit {message.as_of} no longer"
            reply(Failed(message.request_id, "snapshot_expired", text))
            return True
        applied, vector = kept[0], ()
    pin = 0
    if message.keep:
        pin = node.pinned = node.pinned + 1
        node.pins[pin] = (applied.seq, applied.rows)
    served = served_by(node, channel.channel, applied.seq)
    reply(SnapshotAnswer(message.request_id, applied.n, vector, pin, applied.seq, served))
    return True


def served_by(node: FakeNode, channel: ChannelId, seq: Seq) -> Served:
    """By whom."""
    return Served(node.id, channel, node.cluster.channels[channel].term, seq, node.lag, 0, "any")
