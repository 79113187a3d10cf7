"""The way back to clients: answers are counted, and what the clients had held is given back."""

from __future__ import annotations

from collections.abc import Mapping

from raftstore.engine.audit import NodeAudit
from raftstore.engine.channel.proposals import Proposals
from raftstore.engine.channel.runner import ChannelRunner
from raftstore.engine.client_writes import ClientWrites
from raftstore.engine.clock import Clock
from raftstore.engine.meters import Meters
from raftstore.engine.node_ports import CLIENT_HANDLE_SELF
from raftstore.engine.peers.failover_watch import FailoverWatch
from raftstore.engine.relayed_writes import RelayedWrites
from raftstore.ports.transport import Transport
from raftstore.protocol.message import Message
from raftstore.protocol.publish import PubAck, PubReject
from raftstore.types import ChannelId


class ClientAnswers:
    """Answers of one node to its clients."""

    def __init__(  # noqa: PLR0913, PLR0917 - what is reported with each answer
        self,
        transport: Transport,
        clock: Clock,
        channels: Mapping[ChannelId, ChannelRunner],
        proposals: Proposals,
        writes: ClientWrites,
        meters: Meters,
        failovers: FailoverWatch,
        relayed: RelayedWrites,
        audit: NodeAudit,
    ) -> None:
        self._transport = transport
        self._clock = clock
        self._channels = channels
        self._proposals = proposals
        self._writes = writes
        self._meters = meters
        self._failovers = failovers
        self._relayed = relayed
        self._audit = audit

    def answer(self, client: int, message: Message) -> None:
        """Answer a request."""
        now_ms = self._clock.now_ms
        for served in self._meters.answered(client, message, now_ms):
            self._failovers.on_read(served.channel, now_ms)
            runner = self._channels.get(served.channel)
            if runner is not None:
                table = runner.name.rpartition("/")[0]
                self._meters.served_within(table, served, runner.bounds.max_staleness_ms)
        self._audit.answered(client, message, now_ms)
        self._transport.reply(client, message)

    def reply(self, client: int, message: PubAck | PubReject) -> None:
        """Answer a publisher: a client, this node's own proposals, or a node that relayed it."""
        now_ms = self._clock.now_ms
        if client == CLIENT_HANDLE_SELF:
            self._proposals.on_answer(message, now_ms)
        elif client < CLIENT_HANDLE_SELF:
            self._writes.settled(client, message)
            self._relayed.reply(client, message)
        else:
            self._writes.settled(client, message)
            self._meters.write_ended(message, now_ms)
            if isinstance(message, PubAck):
                self._failovers.on_write(message.channel, now_ms)
            self._transport.reply(client, message)
