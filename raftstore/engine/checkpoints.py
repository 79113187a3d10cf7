"""Checkpoints: what was acknowledged before it was on the disk is synced, and said to be (S0.6).

An operator asks for one before power is switched off, or before a disk's image is taken (NATS-017).
The log of every channel here whose table asks for less than ``fsync`` is synced to its end. Until
the next write to a channel, nothing that it acknowledged can be lost by a stop of this node.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Final, NamedTuple

from raftstore.engine.channel.runner import ChannelRunner
from raftstore.engine.node_ports import CLIENT_HANDLE_SELF, Tell
from raftstore.engine.shares import Shares
from raftstore.errors import OverloadedError
from raftstore.protocol.admin import Checkpoint, CheckpointAnswer
from raftstore.protocol.message import Message, failed
from raftstore.types import ChannelId, Durability, RequestId, Seq

WAITING_MAX: Final = 16
"""Requests of one client that are not answered yet; of all clients together twice as many."""


class _Waiting(NamedTuple):
    client: int
    request_id: RequestId


class Checkpoints:
    """The checkpoints of one node that clients, or a signal, ask for.

    One is under way at a time. Requests that come meanwhile share the next one, since what was
    acknowledged before them may not be in this one; so a disk that hangs is waited for once.
    """

    def __init__(
        self,
        channels: Mapping[ChannelId, ChannelRunner],
        answer: Callable[[int, Message], None],
        tell: Tell,
    ) -> None:
        """``answer`` reaches a client by its handle; ``tell`` takes an event of the node."""
        self._channels = channels
        self._answer = answer
        self._tell = tell
        self._held: Shares[_Waiting] = Shares("checkpoints", "a fixed bound")
        self._next: list[_Waiting] = []
        """Those whom the checkpoint under way does not answer."""
        self._answered: list[_Waiting] = []
        """Those whom it does."""
        self._durable: dict[ChannelId, Seq] = {}
        self._left = 0
        """Channels of it that are not synced yet; 0: none is under way."""

    def on_request(self, client: int, request: Checkpoint) -> None:
        """Begin one; it is answered, and an event, when all is on the disk."""
        refusal = self._held.refusal(client, WAITING_MAX)
        if refusal is not None:
            self._answer(client, failed(request.request_id, OverloadedError, refusal))
            return
        waiting = _Waiting(client, request.request_id)
        self._held.take(client, waiting)
        self._next.append(waiting)
        if not self._left:
            self._begin()

    def on_client_gone(self, client: int) -> None:
        """Forget its requests; the syncs are under way in any case."""
        for waiting in self._held.of(client):
            self._held.give(client, waiting)
        self._next = [waiting for waiting in self._next if waiting.client != client]
        self._answered = [waiting for waiting in self._answered if waiting.client != client]

    def holds_for(self, client: int) -> bool:
        """Whether one is under way for the client."""
        return self._held.amount_of(client) > 0

    def _begin(self) -> None:
        self._answered, self._next, self._durable = self._next, [], {}
        runners = [
            runner
            for runner in self._channels.values()
            if runner.durable.durability is not Durability.FSYNC
        ]
        self._left = len(runners)
        for runner in runners:
            runner.checkpoint(partial(self._on_synced, runner))
        if not runners:
            self._end()

    def _on_synced(self, runner: ChannelRunner, is_synced: bool) -> None:  # noqa: FBT001
        if is_synced:
            self._durable[runner.channel] = runner.durable.durable_seq
        self._left -= 1
        if not self._left:
            self._end()

    def _end(self) -> None:
        durable = tuple(sorted(self._durable.items()))
        self._tell("checkpoint", channels=len(durable))
        answered, self._answered = self._answered, []
        for waiting in answered:
            self._held.give(waiting.client, waiting)
            if waiting.client != CLIENT_HANDLE_SELF:
                self._answer(waiting.client, CheckpointAnswer(waiting.request_id, durable))
        if self._next:
            self._begin()
