"""Atomic micro-batches of one node: its coordinators and the channels that they tell."""

from __future__ import annotations

from typing import Any, Protocol

from raftstore.config import BatchSettings, ReadSettings
from raftstore.engine.batches.coordinator import Coordinator
from raftstore.engine.batches.participant import ChannelBatches
from raftstore.engine.catalog.controller import CatalogController
from raftstore.engine.channel.outbox import Outbox
from raftstore.engine.channel.proposals import Proposals
from raftstore.engine.channel.runner import ChannelRunner
from raftstore.engine.deadlines import Deadlines
from raftstore.engine.reads.changes import ChangeFeeds
from raftstore.engine.reads.commit_reads import CommitReads
from raftstore.engine.reads.reader import Reader
from raftstore.engine.reads.scans import Scans
from raftstore.errors import Refusal
from raftstore.ports.log import MessageLog
from raftstore.ports.tables import Answers, TableStore
from raftstore.protocol.batches import (
    ApplyBatch,
    ApplyBatchReply,
    AskStaged,
    BatchMessage,
    ResolvedWriter,
    ResolveWriter,
    StagedReply,
)
from raftstore.protocol.changes import ChangeEnds, Changes
from raftstore.protocol.message import Message
from raftstore.protocol.publish import PubMsg
from raftstore.protocol.reads import Served
from raftstore.protocol.requests import BatchRequest
from raftstore.protocol.snapshots import OpenSnapshot
from raftstore.state_machines.catalog import Catalog
from raftstore.types import ChannelId, NodeId, RecordKind, Role, Term, channel_partition


class BatchHost(Protocol):
    """What micro-batches need of their node."""

    me: NodeId
    channels: dict[ChannelId, ChannelRunner]
    metadata_channel: ChannelId
    log: MessageLog
    tables: TableStore
    outbox: Outbox
    keeper: CatalogController
    reader: Reader
    read: ReadSettings

    def answer(self, client: int, message: Message) -> None:
        """Answer a client."""


class BatchService:
    """Takes what clients and nodes say about micro-batches to whom it concerns."""

    def __init__(self, node: BatchHost, settings: BatchSettings) -> None:
        self._node = node
        self.me = node.me
        self.channels = node.channels
        self.tables = node.tables
        self.coordinator = Coordinator(self, settings)
        self.staged = ChannelBatches(self, settings)
        self.states = CommitReads(self, node.read)
        self.feeds = ChangeFeeds(self, node.read)
        self._begun: dict[ChannelId, Term] = {}
        """Partition 0s led here -> the term in which their coordinator went to work."""
        self._now_ms = 0

    # --- inputs -----------------------------------------------------------------------------------

    def on_request(self, client: int, request: BatchRequest, now_ms: int) -> None:
        """A client's request."""
        self._now_ms = now_ms
        if isinstance(request, OpenSnapshot):
            self.states.on_request(client, request, now_ms)
        elif isinstance(request, Changes | ChangeEnds):
            self.feeds.on_request(client, request)
        else:
            self.coordinator.on_request(client, request, now_ms)

    def on_message(self, sender: NodeId, message: BatchMessage, now_ms: int) -> None:
        """Another node's message, or this node's own to itself."""
        self._now_ms = now_ms
        known = self.leader_of(message.channel)[1]
        if isinstance(message, ApplyBatch | AskStaged) and message.term < known:
            return  # S1.4: its sender leads no more; whoever leads now sends it, too
        match message:
            case ApplyBatch():
                self.staged.on_apply_batch(sender, message, now_ms)
            case ApplyBatchReply():
                self.coordinator.on_apply_reply(sender, message, now_ms)
            case AskStaged():
                self.staged.on_ask_staged(sender, message, now_ms)
            case StagedReply():
                self.coordinator.on_staged_reply(sender, message, now_ms)
            case ResolveWriter():
                self.coordinator.on_resolve(sender, message)
            case ResolvedWriter():
                self.staged.on_resolved(message, now_ms)

    def on_applied(self, runner: ChannelRunner, answers: Answers, now_ms: int) -> None:
        """Records of a channel were applied here."""
        if runner.channel == self._node.metadata_channel:
            return
        self._now_ms = now_ms
        self.staged.on_applied(runner, now_ms)
        self.states.on_applied(runner, now_ms)
        self.coordinator.on_applied(runner, answers, now_ms)
        # Everything of earlier terms is applied when the first record of this one is.
        if channel_partition(runner.channel) == 0 and runner.elector.role is Role.LEADER:
            term = runner.elector.term
            if runner.core.leader_is_ready and self._begun.get(runner.channel) != term:
                self._begun[runner.channel] = term
                self.coordinator.leads(runner, now_ms)

    def leader_changed(self, runner: ChannelRunner, now_ms: int) -> None:
        """A channel's role, term or leader changed."""
        if runner.channel != self._node.metadata_channel:
            self.coordinator.leader_changed(runner)
            self.staged.leader_changed(runner, now_ms)

    def on_channel_closed(self, runner: ChannelRunner) -> None:
        """The table was dropped."""
        self._begun.pop(runner.channel, None)
        self.coordinator.on_channel_closed(runner)
        self.staged.on_channel_closed(runner)
        self.states.on_channel_closed(runner)

    def on_client_gone(self, client: int) -> None:
        """What the client waited for ends with it."""
        self.coordinator.on_client_gone(client)
        self.states.on_client_gone(client)

    def holds_for(self, client: int) -> bool:
        """Whether anything waits for the client here."""
        return self.coordinator.held.amount_of(client) > 0 or self.states.holds_for(client)

    def stage_refusal(self, runner: ChannelRunner, message: PubMsg) -> Refusal | None:
        """Why the leader takes no such chunk now."""
        return self.staged.stage_refusal(runner, message)

    def on_timer(self, now_ms: int) -> None:
        """Run what is due."""
        self._now_ms = now_ms
        self.coordinator.on_timer(now_ms)
        self.staged.on_timer(now_ms)
        self.states.on_timer(now_ms)

    @property
    def deadlines(self) -> tuple[Deadlines[Any], ...]:
        """When ``on_timer`` has something to do; always the same objects."""
        coordinator, states = self.coordinator, self.states
        return (
            coordinator.deadlines,
            coordinator.waiting.deadlines,
            self.staged.deadlines,
            states.waiting.deadlines,
        )

    # --- hosts of coordinator and channels --------------------------------------------------------

    @property
    def log(self) -> MessageLog:
        """The log that changes are read from."""
        return self._node.log

    @property
    def metadata_channel(self) -> ChannelId:
        """The channel that belongs to no table."""
        return self._node.metadata_channel

    @property
    def proposals(self) -> Proposals:
        """Records that this node makes as a leader."""
        return self._node.keeper.proposals

    @property
    def catalog(self) -> Catalog:
        """This node's copy of the catalog."""
        return self._node.keeper.catalog

    def refusal_of(self, kind: RecordKind) -> Refusal | None:
        """Why records of this kind must not be written yet (levels)."""
        return self._node.keeper.refusal_of(kind)

    def leader_of(self, channel: ChannelId) -> tuple[NodeId | None, Term]:
        """Who leads a channel, as far as this node knows."""
        return self._node.keeper.leader_of(channel)

    def serving_refusal(self, runner: ChannelRunner) -> Refusal | None:
        """Why a channel serves nothing here now."""
        return self._node.reader.serving_refusal(runner)

    @property
    def scans(self) -> Scans:
        """Where pins live."""
        return self._node.reader.scans

    def served_at(self, level: str, runner: ChannelRunner) -> Served:
        """What an answer tells of the newest state here."""
        return self._node.reader.served_at(level, runner)

    def answer(self, client: int, message: Message) -> None:
        """Answer a client."""
        self._node.answer(client, message)

    def deliver(self, to: NodeId, message: BatchMessage) -> None:
        """Send once all that it may tell is durable here (S0.5); to this very node: at once."""
        if to == self.me:
            self.on_message(to, message, self._now_ms)
        else:
            node = self._node
            node.outbox.send(to, message, after_operation=node.log.last_operation())
