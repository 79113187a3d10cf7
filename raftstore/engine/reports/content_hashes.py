"""Hashes of whole channels, one after another: a client that is gone leaves the queue."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

from raftstore.config import ReadSettings
from raftstore.engine.channel.runner import ChannelRunner
from raftstore.engine.client_answers import ClientAnswers
from raftstore.engine.reads.read_rules import closing_refusal
from raftstore.engine.shares import GIVEN_UP, Shares, Waits
from raftstore.errors import (
    OverloadedError,
    QueryError,
    RequestError,
    UnavailableError,
    UnknownChannelError,
)
from raftstore.ports.tables import TableStore
from raftstore.protocol.admin import ContentHash, ContentHashAnswer
from raftstore.protocol.message import failed
from raftstore.protocol.reads import Served
from raftstore.types import ChannelId, NodeId, Seq


class _Asked(NamedTuple):
    client: int
    request: ContentHash
    runner: ChannelRunner


class ContentHashes:
    """The content hashes of one node. One is computed, the others wait without a snapshot."""

    def __init__(
        self,
        me: NodeId,
        channels: Mapping[ChannelId, ChannelRunner],
        tables: TableStore,
        lag: Callable[[ChannelRunner, Seq], tuple[int | None, int | None]],
        answers: ClientAnswers,
        settings: ReadSettings,
        *,
        wait_ms: int,
    ) -> None:
        """``wait_ms``: the longest time from a request to its answer."""
        self._me = me
        self._channels = channels
        self._tables = tables
        self._lag = lag
        """How far behind a state is now, and the age of that knowledge (S7.3)."""
        self._answers = answers
        self._settings = settings
        self._wait_ms = wait_ms
        self._tokens = 0
        self._running: int | None = None
        self.waiting: Waits[_Asked] = Waits(
            Shares("content hashes", "read.content_hashes_max", self._give_up)
        )
        """Requests without an answer."""

    def on_request(self, client: int, request: ContentHash, now_ms: int) -> None:
        """A client's request."""
        runner = self._channels.get(request.channel)
        if runner is None:
            self._fail(client, request, UnknownChannelError, "this node does not host the channel")
            return
        if not runner.has_rows:
            text = f"the replica of {runner.name} here is a witness and has no rows to be hashed"
            self._fail(client, request, UnavailableError, text)
            return
        if runner.unserved_until:
            text = f"channel {runner.name} repeats an apply that a stop interrupted; retry later"
            self._fail(client, request, UnavailableError, text)
            return
        full = self.waiting.shares.refusal(client, self._settings.content_hashes_max)
        if full is not None:
            self._fail(client, request, OverloadedError, full)
            return
        self._tokens += 1
        asked = _Asked(client, request, runner)
        self.waiting.add(client, self._tokens, asked, now_ms + self._wait_ms)
        self._start_next()

    def _give_up(self, client: int, token: int) -> None:
        """Others need a place of the client that has most of them."""
        asked = self.waiting.pop(token)
        if asked is not None:
            self._fail(client, asked.request, OverloadedError, GIVEN_UP)

    def on_client_gone(self, client: int) -> None:
        """Forget the client's questions; a hash that is being computed is finished unused."""
        self.waiting.pop_all_of(client)

    def on_timer(self, now_ms: int) -> None:
        """Refuse what has waited long enough."""
        for token in self.waiting.due(now_ms):
            asked = self.waiting.pop(token)
            assert asked is not None
            text = f"the hash was not computed within {self._wait_ms} ms, others come first; retry"
            self._fail(asked.client, asked.request, QueryError, text)

    def _start_next(self) -> None:
        while self._running is None:
            token = next(iter(self.waiting), None)
            asked = None if token is None else self.waiting.get(token)
            if token is None or asked is None:
                return
            channel = asked.request.channel
            if self._channels.get(channel) is not asked.runner:
                self.waiting.pop(token)
                self._fail(asked.client, asked.request, *closing_refusal(asked.runner))
                continue
            self._running = token

            def done(digest: bytes, rows: int, applied_seq: Seq, token: int = token) -> None:
                self._on_done(token, digest, rows, applied_seq)

            self._tables.start_content_hash(channel, done)

    def _on_done(self, token: int, digest: bytes, rows: int, applied_seq: Seq) -> None:
        self._running = None
        asked = self.waiting.pop(token)
        if asked is not None:
            self._answer(asked, digest, rows, applied_seq)
        self._start_next()

    def _answer(self, asked: _Asked, digest: bytes, rows: int, applied_seq: Seq) -> None:
        runner, channel = asked.runner, asked.request.channel
        if self._channels.get(channel) is not runner:
            self._fail(asked.client, asked.request, *closing_refusal(runner))
            return
        lag, age = self._lag(runner, applied_seq)
        served = Served(self._me, channel, runner.elector.term, applied_seq, lag, age, "any")
        answer = ContentHashAnswer(asked.request.request_id, digest, rows, served)
        self._answers.answer(asked.client, answer)

    def _fail(
        self, client: int, request: ContentHash, error: type[RequestError], text: str
    ) -> None:
        self._answers.answer(client, failed(request.request_id, error, text))
