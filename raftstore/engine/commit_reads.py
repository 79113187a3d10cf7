"""States of a channel by commit: which one is applied here, and pins on it for reads that follow.

Who reads several channels as one wants the same commit of all of them. A channel says which commit
its state holds; one that is behind waits, one that is ahead answers from the state that it kept of
before (``Versions``), and what is not kept any more is refused, never mixed.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass
from typing import Protocol

from raftstore.batch_requests import OpenSnapshot, SnapshotAnswer
from raftstore.config import ReadSettings
from raftstore.engine.channel_runner import ChannelRunner
from raftstore.engine.coordinated_table import ChannelState
from raftstore.engine.scans import Scans
from raftstore.errors import NotUpToBoundError, OverloadedError, SnapshotExpiredError
from raftstore.machines.staging import BatchHead, read_head
from raftstore.messages import Message
from raftstore.ports import TableSnapshot, TableStore
from raftstore.requests import Failed, Served
from raftstore.types import ChannelId, Level

Refusal = tuple[str, str]


class CommitReadsHost(Protocol):
    """What states by commit need of their node."""

    channels: dict[ChannelId, ChannelRunner]
    tables: TableStore

    @property
    def scans(self) -> Scans:
        """Where pins live."""

    def serving_refusal(self, runner: ChannelRunner) -> Refusal | None:
        """Why a channel serves nothing here now."""

    def served_at(self, level: str, runner: ChannelRunner) -> Served:
        """What an answer tells of the newest state here."""

    def answer(self, client: int, message: Message) -> None:
        """Answer a client."""


@dataclass(slots=True, eq=False)
class _Waiting:
    """A request for a commit that is not applied here yet."""

    client: int
    request: OpenSnapshot
    runner: ChannelRunner
    deadline_ms: int


class CommitReads:
    """The requests of one node for states by commit."""

    def __init__(self, host: CommitReadsHost, settings: ReadSettings) -> None:
        self._host = host
        self._settings = settings
        self._waiting: dict[int, _Waiting] = {}
        self._deadlines: list[tuple[int, int]] = []
        self._tokens = 0

    def on_request(self, client: int, request: OpenSnapshot, now_ms: int) -> None:
        """Answer now, or when the commit is applied here."""
        runner = self._host.channels.get(request.channel)
        if runner is None:
            text = "this node does not host the channel; refresh the table's placement"
            self._fail(client, request, "unknown_channel", text)
            return
        waiting = _Waiting(client, request, runner, now_ms + max(1, request.timeout_ms))
        if self._try_answer(waiting, now_ms):
            return
        if len(self._waiting) >= self._settings.waiting_reads_max:
            limit = self._settings.waiting_reads_max
            text = f"{len(self._waiting)} of {limit} reads wait for a commit; retry later"
            self._fail(client, request, OverloadedError.code, text)
            return
        self._tokens += 1
        self._waiting[self._tokens] = waiting
        heapq.heappush(self._deadlines, (waiting.deadline_ms, self._tokens))

    def on_applied(self, runner: ChannelRunner, now_ms: int) -> None:
        """A channel's applied state moved."""
        for token, waiting in tuple(self._waiting.items()):
            if waiting.runner is runner and self._try_answer(waiting, now_ms):
                del self._waiting[token]

    def on_timer(self, now_ms: int) -> None:
        """Refuse what has waited long enough."""
        while self._deadlines and self._deadlines[0][0] <= now_ms:
            waiting = self._waiting.pop(heapq.heappop(self._deadlines)[1], None)
            if waiting is not None:
                request = waiting.request
                commit = self._head(waiting.runner).n
                seq = self._host.tables.applied_seq(waiting.runner.channel)
                text = (
                    f"channel {waiting.runner.name} has applied commit {commit} and seq {seq}, not "
                    f"commit {_needed(request)} and seq {request.min_seq} within "
                    f"{request.timeout_ms} ms; ask another replica"
                )
                self._fail(waiting.client, request, NotUpToBoundError.code, text)

    def on_channel_closed(self, runner: ChannelRunner) -> None:
        """The table was dropped."""
        for token, waiting in tuple(self._waiting.items()):
            if waiting.runner is runner:
                del self._waiting[token]
                text = "the table was dropped"
                self._fail(waiting.client, waiting.request, "unknown_channel", text)

    def next_deadline_ms(self) -> int | None:
        """When ``on_timer`` has something to do."""
        while self._deadlines and self._deadlines[0][1] not in self._waiting:
            heapq.heappop(self._deadlines)
        return self._deadlines[0][0] if self._deadlines else None

    # --- inside -----------------------------------------------------------------------------------

    def _head(self, runner: ChannelRunner) -> BatchHead:
        return read_head(ChannelState(self._host.tables, runner.channel))

    def _try_answer(self, waiting: _Waiting, now_ms: int) -> bool:
        """Whether the request got its answer."""
        request, runner = waiting.request, waiting.runner
        # S0.3, S13: asked each time, for a channel may stop serving while somebody waits.
        refusal = self._host.serving_refusal(runner)
        if refusal is not None:
            self._fail(waiting.client, request, *refusal)
            return True
        head = self._head(runner)
        applied = self._host.tables.applied_seq(runner.channel)
        if head.n < _needed(request) or applied < request.min_seq:
            return False
        commit, vector = head.n, head.vector
        snapshot: TableSnapshot | None = None
        if request.as_of and head.n > request.as_of:
            snapshot = self._host.tables.snapshot_at(runner.channel, request.as_of)
            if snapshot is None:
                text = (
                    f"channel {runner.name} has applied commit {head.n} and keeps the state of "
                    f"commit {request.as_of} no longer (read.versions_max, read.versions_keep_ms); "
                    "read a new snapshot"
                )
                self._fail(waiting.client, request, SnapshotExpiredError.code, text)
                return True
            # The vector of that commit is with whoever asked for it.
            commit, vector = request.as_of, ()
        self._answer(waiting, commit, vector, snapshot, now_ms)
        return True

    def _answer(
        self,
        waiting: _Waiting,
        commit: int,
        vector: tuple[int, ...],
        snapshot: TableSnapshot | None,
        now_ms: int,
    ) -> None:
        request, runner = waiting.request, waiting.runner
        applied = self._host.tables.applied_seq(runner.channel)
        if snapshot is not None:
            applied = snapshot.applied_seq
        pin = 0
        if request.keep:
            found = snapshot or self._host.tables.snapshot(runner.channel)
            kept = self._host.scans.keep(runner, found, now_ms, request.idle_ms)
            if isinstance(kept, str):
                found.close()
                self._fail(waiting.client, request, OverloadedError.code, kept)
                return
            pin = kept
        elif snapshot is not None:
            snapshot.close()
        answer = SnapshotAnswer(
            request_id=request.request_id,
            commit=commit,
            vector=vector,
            pin=pin,
            applied_seq=applied,
            served=self._host.served_at(Level.ANY.value, runner),
            life_ms=self._settings.scan_pin_life_ms,
        )
        self._host.answer(waiting.client, answer)

    def _fail(self, client: int, request: OpenSnapshot, code: str, text: str) -> None:
        self._host.answer(client, Failed(request.request_id, code, text))


def _needed(request: OpenSnapshot) -> int:
    return max(request.as_of, request.min_commit)
