"""Messages about micro-batches on their way out, to other nodes and to this one."""

from __future__ import annotations

from collections.abc import Callable

from raftstore.engine.channel.outbox import Outbox
from raftstore.ports.log import MessageLog
from raftstore.protocol.batches import BatchMessage
from raftstore.types import NodeId


class BatchSender:
    """Sends a node's messages about micro-batches."""

    def __init__(
        self,
        me: NodeId,
        log: MessageLog,
        outbox: Outbox,
        to_self: Callable[[BatchMessage], None],
    ) -> None:
        """``to_self`` takes the messages of this node to itself."""
        self._me = me
        self._log = log
        self._outbox = outbox
        self._to_self = to_self

    def deliver(self, to: NodeId, message: BatchMessage) -> None:
        """Send once all that it may report is durable here (S0.5); to this very node: at once."""
        if to == self._me:
            self._to_self(message)
        else:
            self._outbox.send(to, message, after_operation=self._log.last_operation())
