"""Asks channels, before a batch is decided, whether they hold what its manifest lists.

A manifest is a client's word. Were it decided unseen, a channel that lacks a chunk of it could
never apply it, nor anything after it. So each touched channel is asked first, all at once, and a
batch is decided only when each of them said yes.

A yes stays true until then, whatever happens in between
(``state_machines.batches.staging.staged_of``): only the end of the attempt lets a channel drop its
chunks, and a COMMIT behind that end in the coordinator's log is fenced. So a late yes, one of an
earlier leader of the channel, or one that a collection of garbage follows, does no harm. A no comes
from a leader that a quorum confirmed after the question.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from raftstore.config import BatchSettings
from raftstore.engine.channel.runner import ChannelRunner
from raftstore.errors import BatchIncompleteError, SchemaError, WriterFencedError
from raftstore.protocol.batches import AskStaged, ChannelPart, CommitBatch
from raftstore.record_machine import StateReader
from raftstore.state_machines.batches.coordinator import manifest_fault
from raftstore.state_machines.batches.txn_records import Verdict
from raftstore.state_machines.batches.txn_state import read_table
from raftstore.types import ChannelId, channel_id, channel_table

ASK_MS_MAX: Final = 5_000
"""The longest pause between two questions about one part."""


@dataclass(slots=True)
class _Open:
    """A part that its channel has not confirmed."""

    part: ChannelPart
    due_ms: int
    wait_ms: int
    is_hinted: bool = False
    """It was asked once more of whom a replica named as the leader."""


@dataclass(slots=True)
class _Check:
    request: CommitBatch
    open: dict[int, _Open]


def judge_unseen(
    request: CommitBatch, state: StateReader, partitions: int, unapplied: int
) -> Verdict | None:
    """Why a commit that applied state does not judge is not even asked about; None: it may be.

    ``partitions`` is the table's number from the catalog; ``unapplied`` are the seqs behind the
    state, each of which may have opened an attempt. What passes here is sent to other nodes.
    """
    head = read_table(state)
    opened = (0 if head is None else head.next_attempt - 1) + unapplied
    if request.attempt > opened:
        text = (
            f"attempt {request.attempt} of writer {request.writer!r} at batch {request.batch_id} "
            f"cannot commit: no attempt above {opened} was ever opened in this table; begin one"
        )
        return Verdict("refused", WriterFencedError.code, text)
    fault = manifest_fault(request.manifest, partitions)
    return None if fault is None else Verdict("refused", SchemaError.code, fault)


class CommitChecks:
    """The commits of one table that wait for their channels' word, by the token of their client's
    request; gone with the leadership."""

    def __init__(self, runner: ChannelRunner, settings: BatchSettings) -> None:
        self._runner = runner
        self._settings = settings
        self._checks: dict[int, _Check] = {}

    def add(self, token: int, request: CommitBatch, now_ms: int) -> bool:
        """Whether there is something to ask: False for a batch without rows."""
        wait_ms = self._settings.push_ms
        # A part without rows is there: it only says that the channel is emptied.
        parts = [part for part in request.manifest.parts if part.chunks]
        if parts:
            asked = {part.partition: _Open(part, now_ms, wait_ms) for part in parts}
            self._checks[token] = _Check(request, asked)
        return bool(parts)

    def forget(self, token: int) -> None:
        """Its client was answered, or waits no longer."""
        self._checks.pop(token, None)

    def next_questions(self, now_ms: int) -> Iterator[AskStaged]:
        """Channels to be asked now, for the first time or again."""
        for token, check in tuple(self._checks.items()):
            for asked in tuple(check.open.values()):
                if asked.due_ms > now_ms:
                    continue
                asked.due_ms = now_ms + asked.wait_ms
                asked.wait_ms = min(2 * asked.wait_ms, ASK_MS_MAX)
                asked.is_hinted = False
                if self.is_open(token, asked.part.partition):
                    yield self._question(token, check.request, asked.part)

    def is_open(self, token: int, partition: int) -> bool:
        """The commit still waits for the answer of this channel."""
        check = self._checks.get(token)
        return check is not None and partition in check.open

    def confirm(self, token: int, partition: int) -> CommitBatch | None:
        """A channel holds its part; the commit, if that was the last one to say so."""
        check = self._checks[token]
        del check.open[partition]
        if check.open:
            return None
        del self._checks[token]
        return check.request

    def again(self, token: int, partition: int) -> AskStaged | None:
        """The question for whom a replica named as the leader, once for each time it is asked."""
        check = self._checks[token]
        asked = check.open[partition]
        if asked.is_hinted:
            return None
        asked.is_hinted = True
        return self._question(token, check.request, asked.part)

    def refusal(self, token: int, partition: int, chunks: int, rows: int) -> Verdict:
        """A channel lacks what the manifest lists: the answer to its client."""
        check = self._checks[token]
        part = check.open[partition].part
        text = (
            f"attempt {check.request.attempt} of writer {check.request.writer!r} cannot commit "
            f"batch {check.request.batch_id}: the manifest lists {part.chunks} chunks with "
            f"{part.rows} rows in partition {partition}, and {chunks} with {rows} rows of them are "
            "staged, or others; nothing was decided. Stage them all, then commit what was staged"
        )
        return Verdict("refused", BatchIncompleteError.code, text)

    def request_of(self, token: int) -> CommitBatch:
        """The commit that waits."""
        return self._checks[token].request

    def next_deadline_ms(self) -> int | None:
        """When ``next_questions`` has some."""
        due = (asked.due_ms for check in self._checks.values() for asked in check.open.values())
        return min(due, default=None)

    def target_of(self, partition: int) -> ChannelId:
        """The channel of a partition of this table."""
        return channel_id(channel_table(self._runner.channel), partition)

    def _question(self, token: int, request: CommitBatch, part: ChannelPart) -> AskStaged:
        return AskStaged(
            channel=self._runner.channel,
            term=self._runner.elector.term,
            target=self.target_of(part.partition),
            token=token,
            writer=request.writer,
            attempt=request.attempt,
            winners=request.manifest.winners,
            part=part,
        )
