"""The sending side of a simulated node, while it lives."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Protocol

from raftstore.protocol.message import Message
from raftstore.protocol.reads import GetAnswer, GetManyAnswer, Served
from raftstore.protocol.replication import ReplicationBundle, StoreAck
from raftstore.testing.invariants import InvariantError
from raftstore.testing.sim_clock import DriftingClock
from raftstore.testing.sim_host import SimHost
from raftstore.testing.sim_levels import is_readable
from raftstore.transport.handshake import TO_ACCEPTOR, Purpose
from raftstore.types import NodeId

ROUNDING_MS: Final = 2
"""Clocks are read in whole milliseconds, when an age began and when it was reported."""


class Sender(Protocol):
    """The node that sends."""

    cluster: SimHost
    node: NodeId
    incarnation: int
    failpoint: str | None
    level: int
    known_levels: dict[NodeId, int]
    is_dying: bool
    clock: DriftingClock

    @property
    def is_up(self) -> bool:
        """Whether it lives now."""

    held_sends: list[tuple[Callable[..., None], tuple[object, ...]]] | None
    """What leaves when the present step has ended well; None: at once."""

    def reach(self, failpoint: str) -> bool:
        """Pass a named place; True when it dies there."""


class SimTransport:
    """ports.Transport of one node's present life."""

    def __init__(self, node: Sender) -> None:
        self._node = node
        self._life = node.incarnation
        self._network = node.cluster.network

    def send(self, to: NodeId, message: Message) -> None:
        """Bulk lane."""
        self._send_over(Purpose.PEER, to, message)

    def send_control(self, to: NodeId, message: Message) -> None:
        """Control lane; the simulated network treats both alike."""
        self._send_over(Purpose.CONTROL, to, message)

    def _send_over(self, purpose: Purpose, to: NodeId, message: Message) -> None:
        node = self._node
        if type(message) not in TO_ACCEPTOR[purpose]:
            text = f"a {type(message).__name__} would end a connection of purpose {purpose.value}"
            raise InvariantError(text)
        if not is_readable(message, node.level):
            return  # a version of this level does not know what it would say
        self._check_level(to, message)
        acks = type(message) is StoreAck or (
            type(message) is ReplicationBundle and bool(message.store_acks)
        )
        if node.failpoint is not None and acks:
            self._send_ack(to, message)
        elif node.incarnation == self._life and node.is_up and not node.is_dying:
            self._emit(self._network.send, node.node, to, message)

    def reply(self, client: int, message: Message) -> None:
        """Answer a simulated client."""
        if self._may_send():
            if isinstance(message, GetAnswer):
                self._served(message.served, 0.0)
            elif isinstance(message, GetManyAnswer):
                # What is found for several requests of a turn leaves at its end.
                for found in message.found:
                    self._served(found.served, self._node.cluster.options.turn_max_ms)
            self._emit(self._node.cluster.send_to_client, self._node.node, client, message)

    def end_client(self, client: int, reason: str) -> None:
        """Nothing that a simulated client sends asks for that."""
        raise AssertionError(f"simulated clients are right, but {client} was cut off: {reason}")

    def _served(self, served: Served, turn_ms: float) -> None:
        """Check an answer that was read within ``turn_ms`` before now, and reports whole
        milliseconds."""

        def as_of_ms(age_ms: int) -> float:
            clock = self._node.clock
            return clock.showed_ms(clock.now_ms() - age_ms - ROUNDING_MS) - turn_ms

        self._node.cluster.oracle.on_served(served.channel, served, as_of_ms)

    def _emit(self, send: Callable[..., None], *arguments: object) -> None:
        held = self._node.held_sends
        if held is None:
            send(*arguments)
        else:
            held.append((send, arguments))

    def _send_ack(self, to: NodeId, ack: Message) -> None:
        node = self._node
        node.reach("ack.before-send")
        if self._may_send():
            self._emit(node.cluster.network.send, node.node, to, ack)
        node.reach("ack.after-send")

    def _check_level(self, to: NodeId, message: Message) -> None:
        """The peer reads it, as far as it reported on the connection that would carry it."""
        level = self._node.known_levels.get(to)
        if level is not None and not is_readable(message, level) and self._may_send():
            text = (
                f"levels: {self._node.node} sends a {type(message).__name__} to {to}, which "
                f"reported level {level}"
            )
            raise InvariantError(text)

    def _may_send(self) -> bool:
        node = self._node
        return node.incarnation == self._life and node.is_up and not node.is_dying
