"""Executes what channels ask for when payloads are missing: whom to ask, and what to give (S5.4).

The rules are in ``raftstore.core.payload_repair`` and ``raftstore.core.missed_writes``; here are
levels, reports of other nodes, and the log.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from raftstore.config import ROWS_PER_RECORD_MAX
from raftstore.core.effects import AskPayloads, GivePayloads, PayloadEffect, SendIfKnown, TakeWrite
from raftstore.core.events import Event, PayloadSource
from raftstore.engine.channel.outbox import Outbox
from raftstore.engine.channel.runner import ChannelRunner
from raftstore.policy.levels import PAYLOAD_LEVEL
from raftstore.policy.payload_sources import ReportedLog, next_source
from raftstore.ports.log import MessageLog
from raftstore.protocol.codec import LEVEL_OF_MESSAGE
from raftstore.protocol.log_ends import LogEnd
from raftstore.protocol.message import Message
from raftstore.protocol.payload_repair import FoundPayload, PayloadResponse, WantedPayload
from raftstore.protocol.publish import PubMsg
from raftstore.types import ChannelId, NodeId, Seq


class PayloadRepairs:
    """Repairs of payloads at one node."""

    def __init__(
        self,
        log: MessageLog,
        outbox: Outbox,
        *,
        nodes_at_level: Callable[[int], tuple[NodeId, ...]],
        is_up: Callable[[NodeId], bool],
        reported: Callable[[ChannelId], Mapping[NodeId, ReportedLog]],
        publish: Callable[[NodeId, PubMsg], None],
    ) -> None:
        """``nodes_at_level``: the other nodes that reported at least this level, in a stable order;
        ``reported``: what they reported of their logs of a channel; ``publish``: judge a message
        that this node relayed."""
        self._log = log
        self._outbox = outbox
        self._nodes_at_level = nodes_at_level
        self._is_up = is_up
        self._reported = reported
        self._publish = publish

    def execute(self, runner: ChannelRunner, effect: PayloadEffect) -> tuple[Event, ...]:
        """Do what the core of this channel decided; the events that answer it."""
        match effect:
            case SendIfKnown(to, message):
                self._send(runner, to, message)
            case AskPayloads(seq, asked):
                return (PayloadSource(seq, self._source(runner, seq, asked)),)
            case GivePayloads(to):
                self._send(runner, to, self._response(runner, effect))
            case TakeWrite(sender, write):
                self._publish(sender, write)
            case _:
                raise AssertionError(f"{effect} is nothing that can be executed")
        return ()

    def _send(self, runner: ChannelRunner, to: NodeId, message: Message) -> None:
        """Send the message, unless the node came back as a version that does not know it since it
        spoke."""
        if to in self._nodes_at_level(LEVEL_OF_MESSAGE[type(message)]):
            # S0.5: no message of a term leaves before the term is durable here, and none that
            # gives the end of the log away before that is.
            is_end = type(message) is LogEnd
            after = self._log.last_operation() if is_end else runner.term_operation
            self._outbox.send(to, message, after_operation=after)

    def _source(self, runner: ChannelRunner, seq: Seq, asked: tuple[NodeId, ...]) -> NodeId | None:
        members = runner.config().members
        able = [
            node
            for node in self._nodes_at_level(PAYLOAD_LEVEL)
            if node in members and self._is_up(node)
        ]
        return next_source(
            seq,
            leader=runner.core.leader,
            able=able,
            reported=self._reported(runner.channel),
            asked=asked,
        )

    def _response(self, runner: ChannelRunner, give: GivePayloads) -> PayloadResponse:
        found, left = list(give.held), give.bytes_max
        for wanted in give.stored:
            payload = self._stored(runner.channel, wanted)
            if payload is None:
                continue
            left -= len(payload)
            if found and left < 0:
                break
            found.append(FoundPayload(wanted.guid, wanted.digest, payload))
        return PayloadResponse(
            channel=runner.channel,
            term=give.term,
            request_id=give.request_id,
            payloads=tuple(found),
        )

    def _stored(self, channel: ChannelId, wanted: WantedPayload) -> bytes | None:
        """The payload in the log, if it is the one that was meant (S5.2)."""
        to_seq = Seq(wanted.seq + ROWS_PER_RECORD_MAX - 1)
        for record in self._log.read(channel, wanted.seq, to_seq=to_seq, bytes_max=0):
            is_meant = (record.guid, record.digest) == (wanted.guid, wanted.digest)
            if is_meant and record.base_seq == wanted.seq:
                return record.payload
        return None
