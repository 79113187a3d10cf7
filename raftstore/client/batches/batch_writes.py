"""Atomic micro-batches as a program writes them: begin, stage, commit (docs/protocol.md).

``BatchWrites`` asks the coordinator of a table, the leader of its partition 0. Everything it asks
may be asked again: an attempt is known by its uuid, a commit by its attempt. So what may succeed
later is repeated until the time is up, an answer that is still to come ("batch_pending") is asked
for again, and a writer that learns that another attempt took over stops for good.
"""

from __future__ import annotations

import asyncio
import hashlib
import secrets
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final, TypeVar

import msgspec

from raftstore.client.arguments import text, whole
from raftstore.client.batches.stager import StagedParts, add_parts
from raftstore.client.context import Context
from raftstore.client.requests.answers import expect
from raftstore.client.requests.attempt import BuildRequest
from raftstore.client.requests.leader_requests import Asked, LeaderRequests
from raftstore.config import MANIFEST_BYTES_MAX
from raftstore.errors import (
    ArgumentError,
    BatchPendingError,
    PayloadTooLargeError,
    RequestError,
    StoreTooOldError,
    UnknownTableError,
)
from raftstore.policy.levels import why_kind_is_too_new
from raftstore.protocol.admin import UNREGISTERED, TableInfo
from raftstore.protocol.batches import (
    ADOPT,
    ALREADY,
    APPEND,
    REMOVE,
    TRUNCATE,
    BatchAnswer,
    BeginBatch,
    ChannelPart,
    CloseBatch,
    CommitBatch,
    EditWriter,
    Manifest,
    Writers,
    WritersAnswer,
    WriterView,
)
from raftstore.protocol.message import Done
from raftstore.protocol.staged import writer_fault
from raftstore.types import ChannelId, RecordKind

UUID_BYTES: Final = 16
REGISTER_WAIT_MS: Final = 3_000
"""A node registers within this in the first moments of a cluster."""
REGISTER_PAUSE_MS: Final = 100
ASK_MS_MAX: Final = 10_000
"""A coordinator answers within this, if only that the batch is pending; one that has not after
twice that is asked again."""
MODES: Final = {"append": APPEND, "overwrite": TRUNCATE}

_ENCODER: Final = msgspec.msgpack.Encoder()
Answer = TypeVar("Answer")


@dataclass(frozen=True, slots=True)
class BatchTicket:
    """The answer to ``begin_batch``; may be sent to other processes."""

    writer: str
    batch_id: int
    verdict: str
    """opened: stage under ``attempt``; already: the batch is in the table, by commit ``n``."""
    attempt: int
    n: int = 0
    vector: tuple[int, ...] = ()
    rows: int = 0
    """Of the batch that is in the table."""
    table_uuid: bytes = b""

    @property
    def is_already_written(self) -> bool:
        """There is nothing left to do."""
        return self.verdict == ALREADY


@dataclass(frozen=True, slots=True)
class BatchResult:
    """A batch that is in the table, in every channel that it touches."""

    n: int
    """Its place in the order of the table's batches."""
    vector: tuple[int, ...]
    """Per partition, the newest commit that touches it, as of ``n`` or later."""
    rows: int
    already: bool
    """It was there before: nothing of this attempt was used."""
    table_uuid: bytes
    """Of the table that it is in: one made anew under the name counts its batches from 1 (S0.8)."""


@dataclass(frozen=True, slots=True)
class TableWriters:
    """The writers of a table's batches, as its coordinator knows them."""

    writers: tuple[WriterView, ...]
    next_commit: int
    outbox: int
    """Decided batches that some channel has not applied yet."""
    vector: tuple[int, ...]
    applied_everywhere: int
    """The newest commit up to which every channel has applied every one."""


@dataclass(slots=True)
class _AskedOfBatch(Asked):
    """A refusal carries the state of the batch, whatever became of earlier attempts to ask."""

    ends_by_refusals: bool = False

    def final(self, error: RequestError) -> RequestError:
        return error if self.ends_by_refusals else Asked.final(self, error)

    def outcome(self) -> RequestError:
        # "Not yet" says more than that nobody knows.
        return self.error if isinstance(self.error, BatchPendingError) else Asked.outcome(self)


class BatchWrites:
    """See the module. Every method is bounded by its deadline."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._leaders = LeaderRequests(context)

    async def check_level(self, table: str, deadline_ms: int) -> None:
        """Raise StoreTooOldError unless every node of the cluster can read staged rows."""
        if self._too_old() is None:
            return
        # They may have been upgraded since. In the first moments of a cluster none has registered.
        end_ms = min(deadline_ms, self._context.now_ms() + REGISTER_WAIT_MS)
        while True:
            await self._context.discovery.refresh(deadline_ms)
            reason = self._too_old()
            if reason is None:
                return
            if self._all_registered() or self._context.now_ms() >= end_ms:
                raise StoreTooOldError(f"table {table!r}: {reason}")
            await asyncio.sleep(REGISTER_PAUSE_MS / 1000)

    def _too_old(self) -> str | None:
        levels = {node: info.level for node, info in self._context.topology.nodes.items()}
        return why_kind_is_too_new(RecordKind.STAGED, levels)

    def _all_registered(self) -> bool:
        nodes = self._context.topology.nodes.values()
        return all(info.state != UNREGISTERED for info in nodes)

    async def begin(
        self,
        info: TableInfo,
        writer: str,
        batch_id: int,
        *,
        uuid: bytes | None,
        lineage: str,
        one_shot: bool,
        ttl_ms: int,
        deadline_ms: int,
    ) -> BatchTicket:
        """BEGIN."""
        uuid = secrets.token_bytes(UUID_BYTES) if uuid is None else uuid
        whole("batch_id", batch_id, 0)
        fault = writer_fault(text("writer", writer))
        if fault is not None:
            raise ArgumentError(fault)
        if type(uuid) is not bytes or len(uuid) != UUID_BYTES:
            raise ArgumentError(f"uuid={uuid!r:.80} is not {UUID_BYTES} bytes; give them, or none")
        await self.check_level(info.name, deadline_ms)
        channel = _coordinator(info)

        def build(request_id: int, _: int) -> BeginBatch:
            return BeginBatch(
                request_id=request_id,
                channel=channel,
                writer=writer,
                batch_id=batch_id,
                uuid=uuid,
                lineage=lineage,
                one_shot=one_shot,
                ttl_ms=ttl_ms,
                timeout_ms=self._patience_ms(deadline_ms),
            )

        what = f"begin of batch {batch_id} of writer {writer!r} in table {info.name!r}"
        asked = _AskedOfBatch(what, is_read=False, ends_by_refusals=True)
        reported = await self._ask(channel, build, deadline_ms, asked, BatchAnswer)
        return BatchTicket(
            writer=writer,
            batch_id=batch_id,
            verdict=reported.verdict,
            attempt=reported.attempt,
            n=reported.n,
            vector=reported.vector,
            rows=reported.rows,
            table_uuid=info.uuid,
        )

    async def commit(
        self,
        info: TableInfo,
        ticket: BatchTicket,
        parts: Iterable[StagedParts],
        mode: str,
        deadline_ms: int,
    ) -> BatchResult:
        """COMMIT: returns when every channel that the batch touches has applied it."""
        check_same_table(ticket, info)
        if ticket.is_already_written:
            return result_of(ticket)
        manifest = manifest_of(parts, mode, info.partitions)
        encoded = _ENCODER.encode(manifest)
        if len(encoded) > MANIFEST_BYTES_MAX:
            raise PayloadTooLargeError(
                f"batch {ticket.batch_id} of writer {ticket.writer!r} was staged by "
                f"{len(manifest.winners)} tasks, which take {len(encoded)} bytes to list; the "
                f"limit is {MANIFEST_BYTES_MAX}: write it with fewer tasks",
                size=len(encoded),
                limit=MANIFEST_BYTES_MAX,
            )
        digest = hashlib.blake2b(encoded, digest_size=16).digest()
        channel = _coordinator(info)

        def build(request_id: int, _: int) -> CommitBatch:
            return CommitBatch(
                request_id=request_id,
                channel=channel,
                writer=ticket.writer,
                batch_id=ticket.batch_id,
                attempt=ticket.attempt,
                manifest=manifest,
                digest=digest,
                timeout_ms=self._patience_ms(deadline_ms),
            )

        what = f"commit of batch {ticket.batch_id} of writer {ticket.writer!r} in {info.name!r}"
        asked = _AskedOfBatch(what, is_read=False)
        reported = await self._ask(channel, build, deadline_ms, asked, BatchAnswer)
        return BatchResult(
            reported.n,
            reported.vector,
            reported.rows,
            reported.verdict == ALREADY,
            table_uuid=info.uuid,
        )

    async def abort(self, info: TableInfo, ticket: BatchTicket, deadline_ms: int) -> None:
        """CLOSE."""
        check_same_table(ticket, info)
        if ticket.is_already_written:
            return
        channel = _coordinator(info)
        await self._ask(
            channel,
            lambda request_id, _: CloseBatch(
                request_id, channel, ticket.writer, ticket.attempt, self._patience_ms(deadline_ms)
            ),
            deadline_ms,
            Asked(f"end of attempt {ticket.attempt} in {info.name!r}", is_read=False),
            Done,
        )

    async def writers(self, info: TableInfo, writer: str, deadline_ms: int) -> TableWriters:
        """The table's writers, or one of them. What is said of the table is as of the first answer;
        where there are more writers than one answer has, later ones may be newer, never older."""
        first = last = await self._writers(info, writer, "", deadline_ms)
        found = list(first.writers)
        while last.more and last.writers and not writer:
            last = await self._writers(info, "", last.writers[-1].writer, deadline_ms)
            if last.next_commit < first.next_commit:  # of a leader that was deposed: again
                return await self.writers(info, writer, deadline_ms)
            found += last.writers
        return TableWriters(
            tuple(found), first.next_commit, first.outbox, first.vector, first.applied_everywhere
        )

    async def _writers(
        self, info: TableInfo, writer: str, after: str, deadline_ms: int
    ) -> WritersAnswer:
        channel = _coordinator(info)
        return await self._ask(
            channel,
            lambda request_id, _: Writers(
                request_id, channel, self._patience_ms(deadline_ms), writer, after
            ),
            deadline_ms,
            Asked(f"writers of table {info.name!r}", is_read=True),
            WritersAnswer,
        )

    async def edit_writer(
        self, info: TableInfo, writer: str, action: str, lineage: str | None, deadline_ms: int
    ) -> None:
        """Adopt or remove a writer."""
        assert action in (ADOPT, REMOVE)
        await self.check_level(info.name, deadline_ms)
        channel = _coordinator(info)
        await self._ask(
            channel,
            lambda request_id, _: EditWriter(
                request_id, channel, writer, action, lineage, self._patience_ms(deadline_ms)
            ),
            deadline_ms,
            Asked(f"{action} of writer {writer!r} in table {info.name!r}", is_read=False),
            Done,
        )

    def _patience_ms(self, deadline_ms: int) -> int:
        return min(ASK_MS_MAX, self._context.node_patience_ms(deadline_ms))

    async def _ask(
        self,
        channel: ChannelId,
        build: BuildRequest,
        deadline_ms: int,
        asked: Asked,
        kind: type[Answer],
    ) -> Answer:
        context = self._context
        while True:
            until_ms = min(deadline_ms, context.now_ms() + 2 * ASK_MS_MAX)
            try:
                answer = await self._leaders.ask(channel, build, until_ms, asked=asked)
            except RequestError as error:
                # Before its time only a final refusal ends a request; when an earlier attempt is
                # in doubt it raises that (S4.1). Asked again it would be refused again, at once.
                is_late = until_ms <= context.now_ms() < deadline_ms
                if is_late and error.retriable and not context.links.is_closed:
                    continue
                raise
            break
        return expect(kind, answer)


def manifest_of(staged: Iterable[StagedParts], mode: str, partitions: int) -> Manifest:
    """The batch's manifest: one winner for each task, one part for each partition.

    A batch that replaces the table names every partition, those without rows too (rule 4).
    """
    if mode not in MODES:
        raise ArgumentError(f"mode={mode!r} is unknown; use {' or '.join(MODES)}")
    tasks = sorted(staged, key=lambda task: task.partition_id)
    parts: dict[int, ChannelPart] = {}
    if MODES[mode] == TRUNCATE:
        parts = {partition: ChannelPart(partition, 0, 0, 0, 0) for partition in range(partitions)}
    for task in tasks:
        for part in task.parts:
            known = parts.get(part.partition)
            parts[part.partition] = part if known is None else add_parts(known, part)
    winners = tuple((task.partition_id, task.task_attempt_id) for task in tasks)
    if len({partition_id for partition_id, _ in winners}) != len(winners):
        raise ArgumentError("two attempts of one task are listed; list the one that counts")
    return Manifest(
        mode=MODES[mode],
        winners=winners,
        parts=tuple(parts[partition] for partition in sorted(parts)),
        rows=sum(part.rows for part in parts.values()),
    )


def result_of(ticket: BatchTicket) -> BatchResult:
    """The result of a batch that is in the table already, from its ticket."""
    assert ticket.is_already_written
    return BatchResult(
        ticket.n, ticket.vector, ticket.rows, already=True, table_uuid=ticket.table_uuid
    )


def check_ticket(given: Any) -> None:
    """Raise ArgumentError for what is no ticket of a batch."""
    if not isinstance(given, BatchTicket):
        raise ArgumentError(f"{given!r:.80} is no ticket; give what begin_batch returned")


def check_same_table(ticket: BatchTicket, info: TableInfo) -> None:
    """S0.8: refuse an attempt that was opened in another table of this name."""
    check_ticket(ticket)
    if ticket.table_uuid != info.uuid:
        raise UnknownTableError(
            f"table {info.name!r} was dropped and created again since attempt {ticket.attempt} of "
            f"writer {ticket.writer!r} began: begin the batch again"
        )


def _coordinator(info: TableInfo) -> ChannelId:
    return info.channels[0].channel
