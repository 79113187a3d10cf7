"""States of a channel by commit: which one is applied here, and pins on it for reads that follow.

Who reads several channels as one wants the same commit of all of them. A channel says which commit
its state holds; one that is behind waits, one that is ahead answers from the state that it kept of
before (``Versions``), and what is not kept any more is refused, never mixed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from raftstore.config import ReadSettings
from raftstore.engine.channel.applied_state import AppliedState
from raftstore.engine.channel.runner import ChannelRunner
from raftstore.engine.client_answers import ClientAnswers
from raftstore.engine.reads.position_waits import PositionWaits
from raftstore.engine.reads.read_rules import closing_refusal, restoring_refusal
from raftstore.engine.reads.reader import Reader
from raftstore.engine.shares import GIVEN_UP, Shares, Waits
from raftstore.errors import (
    NotUpToBoundError,
    OverloadedError,
    RequestError,
    SnapshotExpiredError,
    UnknownChannelError,
)
from raftstore.ports.tables import TableSnapshot, TableStore
from raftstore.protocol.message import failed
from raftstore.protocol.snapshots import OpenSnapshot, SnapshotAnswer
from raftstore.state_machines.batches.staging import BatchHead, read_head
from raftstore.types import ChannelId, Level


@dataclass(slots=True, eq=False)
class _Waiting:
    """A request for a commit that is not applied here yet."""

    client: int
    request: OpenSnapshot
    runner: ChannelRunner


class CommitReads:
    """The requests of one node for states by commit."""

    def __init__(
        self,
        channels: Mapping[ChannelId, ChannelRunner],
        tables: TableStore,
        reader: Reader,
        answers: ClientAnswers,
        settings: ReadSettings,
    ) -> None:
        self._channels = channels
        self._tables = tables
        self._reader = reader
        self._answers = answers
        self._settings = settings
        self.waiting: Waits[_Waiting] = Waits(
            Shares("reads waiting for a commit", "read.waiting_reads_max", self._give_up)
        )
        self._commits = PositionWaits()
        """Tokens by the commit that they wait for."""
        self._seqs = PositionWaits()
        """Those whose commit is applied, by the seq that is not."""
        self._tokens = 0

    def on_request(self, client: int, request: OpenSnapshot, now_ms: int) -> None:
        """Answer now, or when the commit is applied here."""
        runner = self._channels.get(request.channel)
        if runner is None:
            text = "this node does not host the channel; refresh the table's placement"
            self._fail(client, request, UnknownChannelError, text)
            return
        waiting = _Waiting(client, request, runner)
        if self._try_answer(waiting, now_ms):
            return
        full = self.waiting.shares.refusal(client, self._settings.waiting_reads_max)
        if full is not None:
            self._fail(client, request, OverloadedError, full)
            return
        self._tokens += 1
        deadline_ms = now_ms + max(1, request.timeout_ms)
        self.waiting.add(client, self._tokens, waiting, deadline_ms)
        self._await(self._tokens, waiting)

    def _await(self, token: int, waiting: _Waiting) -> None:
        request, channel = waiting.request, waiting.runner.channel
        if self._head(waiting.runner).n < _needed(request):
            self._commits.add(channel, _needed(request), token)
        else:
            self._seqs.add(channel, request.min_seq, token)

    def _forget(self, token: int) -> _Waiting | None:
        self._commits.drop(token)
        self._seqs.drop(token)
        return self.waiting.pop(token)

    def on_applied(self, runner: ChannelRunner, now_ms: int) -> None:
        """A channel's applied state moved: look at who waited for that, and for no later one."""
        if not self.waiting.waits:
            return
        for token in self._reached(runner):
            waiting = self.waiting.of(token)
            if self._try_answer(waiting, now_ms):
                self._forget(token)
            else:
                self._await(token, waiting)

    def _reached(self, runner: ChannelRunner) -> list[int]:
        channel, commits, seqs = runner.channel, self._commits, self._seqs
        if self.waiting and self._reader.serving_refusal(runner) is not None:
            # S0.3, S13: no read need wait for what a channel that stopped will not answer.
            return [token for token in self.waiting if self.waiting.of(token).runner is runner]
        reached: list[int] = []
        if channel in commits:
            reached += commits.take_reached(channel, self._head(runner).n)
        if channel in seqs:
            reached += seqs.take_reached(channel, self._tables.applied_seq(channel))
        return reached

    def _give_up(self, client: int, token: int) -> None:
        """Others need a place of the client that has most of them."""
        waiting = self._forget(token)
        if waiting is not None:
            self._fail(client, waiting.request, OverloadedError, GIVEN_UP)

    def on_client_gone(self, client: int) -> None:
        """Forget everything that the client waited for."""
        for token in self.waiting.shares.of(client):
            self._forget(token)

    def holds_for(self, client: int) -> bool:
        """Whether anything waits for the client here."""
        return self.waiting.shares.amount_of(client) > 0

    def on_timer(self, now_ms: int) -> None:
        """Refuse what has waited long enough."""
        for token in self.waiting.due(now_ms):
            waiting = self._forget(token)
            if waiting is not None:
                request = waiting.request
                commit = self._head(waiting.runner).n
                seq = self._tables.applied_seq(waiting.runner.channel)
                text = (
                    f"channel {waiting.runner.name} has applied commit {commit} and seq {seq}, not "
                    f"commit {_needed(request)} and seq {request.min_seq} within "
                    f"{request.timeout_ms} ms; ask another replica"
                )
                self._fail(waiting.client, request, NotUpToBoundError, text)

    def on_channel_opened(self, runner: ChannelRunner, now_ms: int) -> None:
        """Opened anew, perhaps from another replica's table: look at what waited."""
        for token in self.waiting:
            waiting = self.waiting.of(token)
            if waiting.runner.channel != runner.channel:
                continue
            waiting.runner = runner
            if self._try_answer(waiting, now_ms):
                self._forget(token)
            else:
                self._await(token, waiting)

    def on_channel_closed(self, runner: ChannelRunner) -> None:
        """The table was dropped; of a channel that is opened anew all that waits goes on."""
        if runner.is_reopened:
            return
        for token in self.waiting:
            waiting = self.waiting.get(token)
            if waiting is not None and waiting.runner is runner:
                self._forget(token)
                self._fail(waiting.client, waiting.request, *closing_refusal(runner))

    # --- inside -----------------------------------------------------------------------------------

    def _head(self, runner: ChannelRunner) -> BatchHead:
        return read_head(AppliedState(self._tables, runner.channel))

    def _try_answer(self, waiting: _Waiting, now_ms: int) -> bool:
        """Whether the request got its answer."""
        request, runner = waiting.request, waiting.runner
        # S0.3, S13: asked each time, for a channel may stop serving while somebody waits.
        refusal = self._reader.serving_refusal(runner) or restoring_refusal(runner)
        if refusal is not None:
            self._fail(waiting.client, request, *refusal)
            return True
        head = self._head(runner)
        applied = self._tables.applied_seq(runner.channel)
        if head.n < _needed(request) or applied < request.min_seq:
            return False
        commit, vector = head.n, head.vector
        snapshot: TableSnapshot | None = None
        if request.as_of and head.n > request.as_of:
            snapshot = self._tables.snapshot_at(runner.channel, request.as_of)
            if snapshot is None:
                text = (
                    f"channel {runner.name} has applied commit {head.n} and keeps the state of "
                    f"commit {request.as_of} no longer (read.versions_max, read.versions_keep_ms); "
                    "read a new snapshot"
                )
                self._fail(waiting.client, request, SnapshotExpiredError, text)
                return True
            # The caller has the vector of that commit.
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
        applied = self._tables.applied_seq(runner.channel)
        if snapshot is not None:
            applied = snapshot.applied_seq
        pin = 0
        if request.keep:
            found = snapshot or self._tables.snapshot(runner.channel)
            kept = self._reader.scans.keep(waiting.client, runner, found, now_ms, request.idle_ms)
            if isinstance(kept, str):
                found.close()
                self._fail(waiting.client, request, OverloadedError, kept)
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
            served=self._reader.served_at(Level.ANY.value, runner),
            life_ms=self._settings.scan_pin_life_ms,
        )
        self._answers.answer(waiting.client, answer)

    def _fail(
        self, client: int, request: OpenSnapshot, error: type[RequestError], text: str
    ) -> None:
        self._answers.answer(client, failed(request.request_id, error, text))


def _needed(request: OpenSnapshot) -> int:
    return max(request.as_of, request.min_commit)
