"""Where everything that clients send enters a node, and where all that is held for one ends."""

from __future__ import annotations

import traceback
from struct import error as StructError
from typing import Final, Protocol, cast

import msgspec

from raftstore.config import ATTEMPT_TTL_MS_MAX
from raftstore.engine.batches.service import BatchService
from raftstore.engine.catalog.controller import CatalogController
from raftstore.engine.channel.runner import ChannelRunner
from raftstore.engine.client_answers import ClientAnswers
from raftstore.engine.client_writes import ClientWrites
from raftstore.engine.meters import Meters
from raftstore.engine.reads.reader import Reader
from raftstore.engine.reports.content_hashes import ContentHashes
from raftstore.engine.request_handler import RequestHandler
from raftstore.errors import SchemaError
from raftstore.protocol.message import Message, Request, failed
from raftstore.protocol.publish import PubMsg, WriteFate
from raftstore.protocol.reads import ClosePin, Count, Get, GetMany, Scan
from raftstore.protocol.requests import BatchRequest, ClientRequest
from raftstore.types import ChannelId, NodeId

VALUE_ERRORS: Final = (OverflowError, StructError, RecursionError)
"""What Python raises when a value does not fit where it is put. Ranges and judgements come before
that, so each is a mistake in raftstore; but it is a client that has it made, again and again.
Assertions, storage errors and all others are about this node and stop it (S0.4)."""


class InboxHost(Protocol):
    """The parts of a node that answer clients."""

    me: NodeId
    answers: ClientAnswers
    channels: dict[ChannelId, ChannelRunner]
    reader: Reader
    controller: CatalogController
    batches: BatchService
    hashes: ContentHashes
    requests: RequestHandler
    writes: ClientWrites
    meters: Meters

    def has_moved(self) -> bool:
        """Whether the present call has done anything to a channel."""

    def end_client(self, client: int, reason: str) -> None:
        """End its connection."""

    def event(self, name: str, **fields: object) -> None:
        """One structured log line."""


class ClientInbox:
    """Takes messages of clients to the part that answers them."""

    def __init__(self, node: InboxHost, request_timeout_max_ms: int) -> None:
        """``request_timeout_max_ms``: nothing waits longer for a client."""
        self._node = node
        self._times_max_ms = (
            ("timeout_ms", request_timeout_max_ms),
            ("ttl_ms", ATTEMPT_TTL_MS_MAX),
        )

    def on_message(self, client: int, message: Message, now_ms: int) -> None:
        """A publish or a request of a client connection."""
        try:
            self._take(client, message, now_ms)
        except VALUE_ERRORS as error:
            # Only while no channel has moved is it certain that nothing was done by halves: then
            # the node is as it was but for what it holds for this client, and that ends here.
            if isinstance(message, PubMsg) or self._node.has_moved():
                raise
            self._end(client, cast("Request", message), error)

    def _end(self, client: int, request: Request, error: Exception) -> None:
        """A value that nobody judged was too large for what was done with it (docs/decisions)."""
        at = traceback.extract_tb(error.__traceback__)[-1]
        where = f"{at.filename.rpartition('/')[2]}:{at.lineno}"
        kind = type(request).__name__
        self._node.event(
            "unexpected_message", client=client, kind=kind, at=where, reason=repr(error)
        )
        self.on_gone(client)
        text = f"a value of this {kind} cannot be counted with ({error}); nothing was done"
        self._node.answers.answer(client, failed(request.request_id, SchemaError, text))
        self._node.end_client(client, text)

    def _take(self, client: int, message: Message, now_ms: int) -> None:
        node = self._node
        for name, most_ms in self._times_max_ms:
            if getattr(message, name, 0) > most_ms:
                # What is held for a client has an end, however long the client would wait.
                message = msgspec.structs.replace(message, **{name: most_ms})
        if isinstance(message, PubMsg):
            if message.leader == node.me:
                node.meters.write_began(message, now_ms)
            node.requests.on_publish(client, message, now_ms)
        elif isinstance(message, (Get, Scan, Count)):
            node.meters.read_began(client, message, now_ms)
            node.reader.on_request(client, message, node.channels.get(message.channel), now_ms)
        elif isinstance(message, GetMany):
            node.meters.read_began(client, message, now_ms)
            node.reader.many.on_request(client, message, node.channels, now_ms)
        elif isinstance(message, BatchRequest):
            node.batches.on_request(client, message, now_ms)
        elif isinstance(message, ClosePin):
            node.reader.on_close_pin(client, message)
        elif isinstance(message, WriteFate):
            runner = node.channels.get(message.channel)
            node.reader.fates.on_request(client, message, runner, now_ms)
        else:
            node.requests.on_request(client, cast("ClientRequest", message), now_ms)

    def on_gone(self, client: int) -> None:
        """The connection ended, and with it all that is held for it; what it had proposed goes on,
        for that may be in the log already (S4.1)."""
        node = self._node
        node.reader.on_client_gone(client)
        node.batches.on_client_gone(client)
        node.hashes.on_client_gone(client)
        node.controller.commands.on_client_gone(client)
        node.writes.on_client_gone(client)
        node.meters.client_gone(client)

    def holds_for(self, client: int) -> bool:
        """Whether anything is under way for the client."""
        node = self._node
        return (
            node.reader.holds_for(client)
            or node.batches.holds_for(client)
            or node.hashes.waiting.shares.amount_of(client) > 0
            or node.controller.commands.held.amount_of(client) > 0
            or node.writes.holds_for(client)
        )
