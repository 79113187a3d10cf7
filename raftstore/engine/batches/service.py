"""Atomic micro-batches of one node: its coordinators and the channels that they notify."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from raftstore.config import NodeSettings
from raftstore.engine.batches.batch_sender import BatchSender
from raftstore.engine.batches.coordinator import Coordinator
from raftstore.engine.batches.participant import ChannelBatches
from raftstore.engine.catalog.controller import CatalogController
from raftstore.engine.channel.channel_parts import RoleBefore
from raftstore.engine.channel.outbox import Outbox
from raftstore.engine.channel.runner import ChannelRunner
from raftstore.engine.client_answers import ClientAnswers
from raftstore.engine.deadlines import Deadlines
from raftstore.engine.node_ports import METADATA_NAME
from raftstore.engine.reads.change_readers import ChangeReaders
from raftstore.engine.reads.changes import ChangeFeeds
from raftstore.engine.reads.commit_reads import CommitReads
from raftstore.engine.reads.reader import Reader
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
from raftstore.protocol.requests import BatchRequest
from raftstore.protocol.snapshots import OpenSnapshot
from raftstore.types import ChannelId, NodeId, Role, Term, channel_partition


class BatchStores(NamedTuple):
    """Where batches are kept, and the way out to other nodes."""

    log: MessageLog
    tables: TableStore
    outbox: Outbox


class BatchService:
    """Takes what clients and nodes say about micro-batches to whom it concerns."""

    def __init__(  # noqa: PLR0917 - each is one thing that its parts work with
        self,
        me: NodeId,
        channels: Mapping[ChannelId, ChannelRunner],
        stores: BatchStores,
        controller: CatalogController,
        reader: Reader,
        answers: ClientAnswers,
        settings: NodeSettings,
    ) -> None:
        log, tables, outbox = stores
        self._controller = controller
        self._me = me
        self.sender = sender = BatchSender(me, log, outbox, self._on_own)
        self.coordinator = Coordinator(
            channels, tables, controller, reader, answers, sender, settings.batch
        )
        self.staged = ChannelBatches(channels, tables, controller, reader, sender, settings.batch)
        self.states = CommitReads(channels, tables, reader, answers, settings.read)
        self.feeds = ChangeFeeds(channels, log, tables, reader, answers, settings.read)
        self._channels = channels
        self.change_readers = ChangeReaders(settings.retention.reader_idle_ms)
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
            if request.channel in self._channels:
                self.change_readers.asked(request.channel, client, request.after, now_ms)
            self.feeds.on_request(client, request)
        else:
            self.coordinator.on_request(client, request, now_ms)

    def on_message(self, sender: NodeId, message: BatchMessage, now_ms: int) -> None:
        """Another node's message, or this node's own to itself."""
        self._now_ms = now_ms
        known = self._controller.leader_of(message.channel)[1]
        if isinstance(message, ApplyBatch | AskStaged) and message.term < known:
            return  # S1.4: its sender leads no more; the present leader sends it, too
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
        if runner.name == METADATA_NAME:
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

    def leader_changed(self, runner: ChannelRunner, before: RoleBefore, now_ms: int) -> None:
        """A channel's role, term or leader changed."""
        del before
        if runner.name != METADATA_NAME:
            self.coordinator.leader_changed(runner)
            self.staged.leader_changed(runner, now_ms)

    def on_channel_opened(self, runner: ChannelRunner, now_ms: int) -> None:
        """A channel was opened, at a start or anew."""
        self.states.on_channel_opened(runner, now_ms)

    def on_channel_closed(self, runner: ChannelRunner) -> None:
        """The table was dropped."""
        self._begun.pop(runner.channel, None)
        self.coordinator.on_channel_closed(runner)
        self.staged.on_channel_closed(runner)
        self.states.on_channel_closed(runner)

    def on_client_gone(self, client: int) -> None:
        """End everything that the client waited for."""
        self.coordinator.on_client_gone(client)
        self.states.on_client_gone(client)
        self.change_readers.client_gone(client)

    def holds_for(self, client: int) -> bool:
        """Whether anything waits for the client here."""
        return self.coordinator.held.amount_of(client) > 0 or self.states.holds_for(client)

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

    def _on_own(self, message: BatchMessage) -> None:
        self.on_message(self._me, message, self._now_ms)
