"""Messages that wait for durability: nothing may reveal state a crash could take back (S0.5)."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from raftstore.engine.channel.peer_mail import PeerMail
from raftstore.ports.log import MessageLog
from raftstore.ports.transport import Transport
from raftstore.protocol.election import StepDownNotice, TransferNow
from raftstore.protocol.message import Message
from raftstore.types import NodeId

TermOnly = TransferNow | StepDownNotice
"""What a leader says when it gives its leadership away: the term it won, which is durable."""


class Outbox:
    """Sends in order, each message not before a given log operation is durable.

    One per node: the log is one too. A message whose operation is durable already leaves at once,
    unless an earlier one of the same lane still waits (order within a lane is kept).

    While the disk hangs (S0.4) nothing new waits: what may leave does, past those that wait, and
    what may not is dropped. The network promises neither order nor delivery (S12), so all of it is
    said again, and the memory stays bounded.
    """

    def __init__(
        self,
        log: MessageLog,
        transport: Transport,
        takes_bundles: Callable[[NodeId], bool] = lambda _: False,
    ) -> None:
        """``takes_bundles``: whether a peer's version knows messages of many channels in one."""
        self._log = log
        self.mail = PeerMail(transport.send, takes_bundles)
        """Bulk messages that may leave, until the end of the turn."""
        self._bulk: deque[tuple[int, NodeId, Message]] = deque()
        self._control: deque[tuple[int, NodeId, Message]] = deque()
        self._send_bulk = self.mail.send
        self._send_control = transport.send_control
        self.is_stalled = False
        """The disk hangs."""
        self.dropped = 0
        """Messages that would have had to wait meanwhile."""

    def send(self, to: NodeId, message: Message, *, after_operation: int) -> None:
        """Send on the bulk lane once ``after_operation`` is durable."""
        self._enqueue(self._bulk, self._send_bulk, after_operation, to, message)

    def send_control(self, to: NodeId, message: Message, *, after_operation: int) -> None:
        """Send on the control lane once ``after_operation`` is durable."""
        self._enqueue(self._control, self._send_control, after_operation, to, message)

    def send_known(self, to: NodeId, message: Message) -> None:
        """Send on the control lane what may reveal anything that is in the log by now (S0.5)."""
        self.send_control(to, message, after_operation=self._log.last_operation())

    def send_term(self, to: NodeId, message: TermOnly, *, term_operation: int) -> None:
        """Send on the control lane what says a term and nothing else.

        S0.5: it waits until its term is durable, and for nothing else: a leader whose disk hangs
        must still be able to give its leadership away (S0.4).
        """
        if self._log.durable_operation() >= term_operation:
            self._send_control(to, message)
        else:
            self.send_control(to, message, after_operation=term_operation)

    def release(self, durable_operation: int) -> None:
        """Send everything that waited for operations up to ``durable_operation``."""
        # Control first: an election must not queue behind bulk bytes.
        for lane, send in (
            (self._control, self._send_control),
            (self._bulk, self._send_bulk),
        ):
            while lane and lane[0][0] <= durable_operation:
                _, to, message = lane.popleft()
                send(to, message)

    @property
    def waiting(self) -> int:
        """Messages not sent yet."""
        return len(self._bulk) + len(self._control)

    def _enqueue(
        self,
        lane: deque[tuple[int, NodeId, Message]],
        send: Callable[[NodeId, Message], None],
        operation: int,
        to: NodeId,
        message: Message,
    ) -> None:
        is_free = not lane or self.is_stalled
        if is_free and operation <= self._log.durable_operation():  # S0.5: the barrier
            send(to, message)
            return
        if self.is_stalled:
            self.dropped += 1
            return
        assert not lane or lane[-1][0] <= operation or operation <= self._log.last_operation()
        # A later message may need less; it still leaves in order, so it takes the lane's maximum.
        need = max(operation, lane[-1][0]) if lane else operation
        lane.append((need, to, message))
