"""Requests for keys of several channels: each part is a Get to the reader, answers leave together.

A part counts for every limit and share like the Get that it is, and may wait or be refused by
itself. What is known of a request's parts when a call into the engine ends leaves as one message,
so that a part that waits holds up no other.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import count
from typing import NewType, Protocol

from raftstore.engine.channel.runner import ChannelRunner
from raftstore.engine.client_answers import ClientAnswers
from raftstore.engine.reads.read_rules import GET_BYTES_MAX
from raftstore.errors import PayloadTooLargeError, SchemaError
from raftstore.protocol.message import Failed, failed
from raftstore.protocol.reads import (
    FoundKeys,
    Get,
    GetAnswer,
    GetMany,
    GetManyAnswer,
    ReadRequest,
    RefusedKeys,
)
from raftstore.types import ChannelId, Seq

PartId = NewType("PartId", int)
"""A part that waits in the reader; never used again."""


class GetReader(Protocol):
    """Answers each part."""

    def on_request(
        self,
        client: int,
        request: ReadRequest,
        runner: ChannelRunner | None,
        now_ms: int,
        part: PartId | None = None,
    ) -> None:
        """A read; answered now or when it may be, to ``collect`` if it is a part."""


@dataclass(slots=True, eq=False)
class _Request:
    """One request, and what of it is answered and did not leave yet."""

    client: int
    request_id: int
    found: list[FoundKeys] = field(default_factory=list)
    refused: list[RefusedKeys] = field(default_factory=list)
    size: int = 0
    """Bytes of the rows that were found."""


class ManyGets:
    """See the module. A table of the parts says where the answer to each goes on."""

    def __init__(self, answers: ClientAnswers, reader: GetReader, keys_max: int) -> None:
        self._answers = answers
        self._reader = reader
        self._keys_max = keys_max
        self._ids = count()
        self._parts: dict[PartId, tuple[_Request, int]] = {}
        """Parts without an answer, each with its request and its number there."""
        self._ready: dict[_Request, None] = {}

    def on_request(
        self,
        client: int,
        request: GetMany,
        channels: Mapping[ChannelId, ChannelRunner],
        now_ms: int,
    ) -> None:
        """Read all parts; what can be answered at once leaves with ``flush``."""
        keys = sum(max(1, len(part.keys)) for part in request.parts)
        if keys > self._keys_max:
            text = f"{keys} keys in one request, the limit is {self._keys_max}; split it"
            self._answers.answer(client, failed(request.request_id, PayloadTooLargeError, text))
            return
        if not request.parts:
            text = "no keys are asked for; name some"
            self._answers.answer(client, failed(request.request_id, SchemaError, text))
        asked = _Request(client, request.request_id)
        for number, part in enumerate(request.parts):
            part_id = PartId(next(self._ids))
            self._parts[part_id] = (asked, number)
            get = Get(
                request.request_id,
                part.channel,
                part.keys,
                request.level,
                request.max_lag,
                Seq(0),
                request.timeout_ms,
                request.max_staleness_ms,
                request.max_batches_behind,
            )
            self._reader.on_request(client, get, channels.get(part.channel), now_ms, part_id)

    def collect(self, part: PartId, answer: GetAnswer | Failed) -> None:
        """A part is answered or refused; its client gets it with ``flush``."""
        known = self._parts.pop(part, None)
        if known is None:
            return  # its client is gone
        asked, number = known
        if isinstance(answer, Failed):
            refused = RefusedKeys(number, answer.code, answer.message, answer.leader_hint)
            asked.refused.append(refused)
        else:
            size = sum([len(value) for value in answer.values if value is not None])
            if asked.found and asked.size + size > GET_BYTES_MAX:
                self._send(asked)
            asked.size += size
            asked.found.append(FoundKeys(number, answer.values, answer.seqs, answer.served))
        self._ready[asked] = None

    @property
    def has_answers(self) -> bool:
        """Whether ``flush`` would send anything."""
        return bool(self._ready)

    def flush(self) -> None:
        """Send clients what is known by now."""
        while self._ready:
            self._send(next(iter(self._ready)))

    def on_client_gone(self, client: int) -> None:
        """Forget everything that the client asked for."""
        gone = [part for part, (asked, _) in self._parts.items() if asked.client == client]
        for part in gone:
            del self._parts[part]
        for asked in [asked for asked in self._ready if asked.client == client]:
            del self._ready[asked]

    def _send(self, asked: _Request) -> None:
        self._ready.pop(asked, None)
        found, refused = tuple(asked.found), tuple(asked.refused)
        asked.found, asked.refused, asked.size = [], [], 0
        self._answers.answer(asked.client, GetManyAnswer(asked.request_id, found, refused))
