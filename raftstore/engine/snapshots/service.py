"""Replica snapshots of one node: those it serves, those it takes in, and the way of messages."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from raftstore.engine.channel.channel_parts import RoleBefore
from raftstore.engine.channel.runner import ChannelRunner
from raftstore.engine.deadlines import Deadlines
from raftstore.engine.snapshots.parts import SnapshotParts
from raftstore.engine.snapshots.receiver import SnapshotReceiver
from raftstore.engine.snapshots.sender import SnapshotSender
from raftstore.ports.tables import Answers
from raftstore.protocol.replica_snapshots import (
    AskBase,
    AskReplicaSnapshot,
    AskSnapshotChunk,
    AskSnapshotRest,
    BaseOffer,
    ReplicaSnapshotMessage,
    ReplicaSnapshotOffer,
    SnapshotChunk,
    TableFilePart,
    TableFilesRefused,
)
from raftstore.types import ChannelId, NodeId, Seq


class ReplicaSnapshots:
    """Both sides of replica snapshots at one node."""

    def __init__(self, parts: SnapshotParts) -> None:
        self.receiver = SnapshotReceiver(parts)
        self.sender = SnapshotSender(parts, self.receiver.is_damaged)
        if parts.catch_ups is not None:
            parts.catch_ups.on_steady = self.receiver.pauses.steady
        self.deadlines: tuple[Deadlines[Any], ...] = (
            self.sender.idle,
            self.sender.sending,
            self.receiver.deadlines,
        )

    def report_to(
        self,
        replaced: Callable[[ChannelRunner, int], None],
        refused: Callable[[ChannelRunner, int], None],
    ) -> None:
        """Set who is notified of a table that was replaced here, and of one that another replica
        could not read (now_ms)."""
        self.receiver.on_replaced, self.sender.on_refused = replaced, refused

    def on_message(self, sender: NodeId, message: ReplicaSnapshotMessage, now_ms: int) -> None:
        """A message of another node, to one of the two sides."""
        match message:
            case AskReplicaSnapshot():
                self.sender.on_ask(sender, message)
            case AskSnapshotRest():
                self.sender.on_ask_rest(sender, message, now_ms)
            case AskSnapshotChunk():
                self.sender.on_ask_chunk(sender, message, now_ms)
            case AskBase():
                self.sender.on_ask_base(sender, message)
            case ReplicaSnapshotOffer():
                self.receiver.on_offer(sender, message, now_ms)
            case SnapshotChunk() | TableFilePart():
                self.receiver.taking.on_chunk(sender, message, now_ms)
            case TableFilesRefused():
                self.sender.on_files_refused(sender, message, now_ms)
            case BaseOffer():
                self.receiver.on_base(sender, message, now_ms)

    def on_timer(self, now_ms: int) -> None:
        """Run what is due."""
        self.sender.on_timer(now_ms)
        self.receiver.on_timer(now_ms)

    def on_needed(self, runner: ChannelRunner, now_ms: int) -> None:
        """A channel's core asks for a replica snapshot."""
        self.receiver.needed(runner, now_ms)

    def on_opened(self, runner: ChannelRunner, now_ms: int) -> None:
        """A channel was opened."""
        self.receiver.channel_opened(runner, now_ms)

    def on_closed(self, runner: ChannelRunner) -> None:
        """A channel was closed."""
        self.sender.channel_closed(runner.channel)
        self.receiver.channel_closed(runner)

    def leader_changed(self, runner: ChannelRunner, before: RoleBefore, now_ms: int) -> None:
        """Role, term or leader of a channel changed."""
        if (before[0], before[2]) != (runner.elector.term, runner.elector.leader):
            self.receiver.leader_changed(runner, now_ms)

    def on_peer_lost(self, node: NodeId, now_ms: int) -> None:
        """A connection broke, and with it what was asked or on its way."""
        self.receiver.peer_lost(node, now_ms)

    def on_applied(self, runner: ChannelRunner, answers: Answers, now_ms: int) -> None:
        """Records of a channel were applied."""
        del answers
        self.receiver.advance(runner.channel, now_ms)

    def on_durable(self, now_ms: int) -> None:
        """More of the log is durable."""
        self.receiver.on_durable(now_ms)

    def pinned(self, channel: ChannelId) -> dict[NodeId, Seq]:
        """For each receiver of the channel, behind which seq its log needs records."""
        return self.sender.pinned(channel)
