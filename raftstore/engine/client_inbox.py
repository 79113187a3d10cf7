"""Where everything that clients send enters a node, and where all that is held for one ends."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from struct import error as StructError
from typing import Final, cast

import msgspec

from raftstore.config import ATTEMPT_TTL_MS_MAX
from raftstore.engine.channel.active_channels import ActiveChannels
from raftstore.engine.client_answers import ClientAnswers
from raftstore.engine.client_writes import ClientWrites
from raftstore.engine.node_ports import Tell
from raftstore.engine.reports.content_hashes import ContentHashes
from raftstore.engine.reports.node_parts import NodeParts
from raftstore.engine.request_handler import RequestHandler
from raftstore.errors import SchemaError
from raftstore.protocol.machines import MachineQuery
from raftstore.protocol.message import Message, Request, failed
from raftstore.protocol.publish import PubMsg, WriteFate
from raftstore.protocol.reads import ClosePin, Count, Get, GetMany, Scan
from raftstore.protocol.requests import BatchRequest, ClientRequest

VALUE_ERRORS: Final = (OverflowError, StructError, RecursionError)
"""What Python raises when a value does not fit where it is put. Ranges and judgements come before
that, so each is a mistake in raftstore; but it is a client that has it made, again and again.
Assertions, storage errors and all others are about this node and stop it (S0.4)."""


class ClientInbox:
    """Takes messages of clients to the part that answers them."""

    def __init__(  # noqa: PLR0917 - each is one thing that it works with
        self,
        parts: NodeParts,
        active: ActiveChannels,
        answers: ClientAnswers,
        writes: ClientWrites,
        hashes: ContentHashes,
        requests: RequestHandler,
        end_client: Callable[[int, str], None],
        tell: Tell,
    ) -> None:
        """``end_client``: end a connection for a reason."""
        self._me = parts.me
        self._channels = parts.channels
        self._reader = parts.reader
        self._batches = parts.batches
        self._checks = parts.healing.checks
        self._commands = parts.controller.commands
        self._meters = parts.meters
        self._audit = parts.audit
        self._active = active
        self._answers = answers
        self._writes = writes
        self._hashes = hashes
        self._requests = requests
        self._end_client = end_client
        self._tell = tell
        # Nothing waits longer for a client.
        request_timeout_max_ms = parts.settings.transport.request_timeout_max_ms
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
            if isinstance(message, PubMsg) or self._active.touched:
                raise
            self._end(client, cast("Request", message), error)

    def _end(self, client: int, request: Request, error: Exception) -> None:
        """A value that nobody judged was too large for what was done with it (docs/decisions)."""
        at = traceback.extract_tb(error.__traceback__)[-1]
        where = f"{at.filename.rpartition('/')[2]}:{at.lineno}"
        kind = type(request).__name__
        self._tell("unexpected_message", client=client, kind=kind, at=where, reason=repr(error))
        self.on_gone(client)
        text = f"a value of this {kind} cannot be counted with ({error}); nothing was done"
        self._answers.answer(client, failed(request.request_id, SchemaError, text))
        self._end_client(client, text)

    def _take(self, client: int, message: Message, now_ms: int) -> None:
        if type(message) is PubMsg:  # it has no times
            if message.leader == self._me:
                self._meters.write_began(message, now_ms)
            self._requests.on_publish(client, message, now_ms)
            return
        for name, most_ms in self._times_max_ms:
            if getattr(message, name, 0) > most_ms:
                # What is held for a client has an end, however long the client would wait.
                message = msgspec.structs.replace(message, **{name: most_ms})
        if isinstance(message, (Get, Scan, Count, MachineQuery)):
            self._meters.read_began(client, message, now_ms)
            self._audit.read_began(client, message, self._channels, now_ms)
            self._reader.on_request(client, message, self._channels.get(message.channel), now_ms)
        elif isinstance(message, GetMany):
            self._meters.read_began(client, message, now_ms)
            self._audit.read_began(client, message, self._channels, now_ms)
            self._reader.many.on_request(client, message, self._channels, now_ms)
        elif isinstance(message, BatchRequest):
            self._batches.on_request(client, message, now_ms)
        elif isinstance(message, ClosePin):
            self._reader.scans.on_close_pin(client, message)
        elif isinstance(message, WriteFate):
            runner = self._channels.get(message.channel)
            self._reader.write_outcomes.on_request(client, message, runner, now_ms)
        else:
            self._requests.on_request(client, cast("ClientRequest", message), now_ms)

    def on_gone(self, client: int) -> None:
        """The connection ended, and with it all that is held for it; what it had proposed goes on,
        for that may be in the log already (S4.1)."""
        self._reader.on_client_gone(client)
        self._batches.on_client_gone(client)
        self._hashes.on_client_gone(client)
        self._checks.on_client_gone(client)
        self._requests.checkpoints.on_client_gone(client)
        self._commands.on_client_gone(client)
        self._writes.on_client_gone(client)
        self._meters.client_gone(client)
        self._audit.client_gone(client)

    def holds_for(self, client: int) -> bool:
        """Whether anything is under way for the client."""
        return (
            self._reader.holds_for(client)
            or self._batches.holds_for(client)
            or self._hashes.waiting.shares.amount_of(client) > 0
            or self._checks.holds_for(client)
            or self._requests.checkpoints.holds_for(client)
            or self._commands.held.amount_of(client) > 0
            or self._writes.holds_for(client)
        )
