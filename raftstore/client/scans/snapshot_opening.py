"""Opening one state of all channels of a table: who is asked for what, until ``vector`` is content.

Every channel is asked at any replica and its state pinned with the answer. Channels that turn out
to be behind the highest commit that any node reported are asked again as of it; a replica that does
not come there in time is passed over. Usually nobody is behind and one round is all.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, TypedDict, cast

from raftstore.client.arguments import text, whole
from raftstore.client.batches.batch_writes import BatchResult, BatchWrites, TableWriters
from raftstore.client.cluster.vector import Commit, Vector, VectorRound, commit_of
from raftstore.client.context import Context
from raftstore.client.position import Position
from raftstore.client.reads.channel_reads import ChannelReads
from raftstore.client.reads.key_reads import gather_or_cancel
from raftstore.client.reads.read_spec import Pin, ReadOptions, ReadSpec, spec_of
from raftstore.client.settings import ANSWERS_AT_ONCE
from raftstore.errors import (
    ArgumentError,
    DecodeError,
    NotUpToBoundError,
    RequestError,
    SnapshotExpiredError,
    UnknownTableError,
)
from raftstore.policy.routing import Prefer
from raftstore.protocol.admin import TableInfo
from raftstore.protocol.snapshots import OpenSnapshot, SnapshotAnswer
from raftstore.protocol.staged import writer_fault
from raftstore.types import Level, LevelName, NodeId, PreferName, Seq, Term

ROUNDS_MAX: Final = 5
"""A snapshot of the newest state that was overtaken while it was opened is begun again so often."""
_BOUNDS: Final = ("max_lag", "max_staleness", "max_batches_behind")
LINEARIZABLE: Final = ReadSpec(Level.LINEARIZABLE)


@dataclass(frozen=True, slots=True)
class SnapshotToken:
    """A snapshot as other processes may read it, as long as the nodes keep it."""

    table_uuid: bytes
    n: int
    vector: Vector
    nodes: tuple[str, ...]
    """By partition: who keeps the state; () when nobody was asked to."""
    pins: tuple[int, ...]
    terms: tuple[Term, ...]
    seqs: tuple[Seq, ...]
    """By partition: the position that was read."""
    life_ms: int = 0
    """The longest that all of the nodes keep it, however it is read; 0: they do not report it."""


@dataclass(frozen=True, slots=True)
class SnapshotSpec:
    """The wanted state of a snapshot."""

    read: ReadSpec
    floor: Commit = Commit()  # noqa: RUF009 - immutable
    exactly: Commit | None = None
    keep: bool = True
    idle_ms: int = 0


class SnapshotOptions(TypedDict, total=False):
    """How a snapshot is to be read; see ``ReadOptions``."""

    level: Level | LevelName | None
    max_lag: int | None
    max_staleness: float | None
    max_batches_behind: int | None
    replica: str | None
    prefer: Prefer | PreferName | None
    columns: Sequence[str] | None
    timeout: float | None


def snapshot_read_spec(
    options: SnapshotOptions, position: Position | str | None, *, is_floor_given: bool
) -> ReadSpec:
    """Check the read options of a snapshot; ArgumentError for what it cannot be."""
    given = cast(ReadOptions, {**options})
    if position is not None:
        given["at_least"] = position
    elif is_floor_given and all(given.get(name) is None for name in ("level", *_BOUNDS)):
        given["level"] = Level.ANY
    spec = spec_of(given)
    if spec.level is Level.LEADER:
        raise ArgumentError(
            "a snapshot has no level leader; use linearizable, bounded, or any, whose snapshots "
            "may be older but never go back"
        )
    return spec


def check_is_of(given: BatchResult | SnapshotToken, info: TableInfo) -> None:
    """S0.8: refuse a batch or a snapshot of another table, also one of this name that was dropped:
    its commits have the numbers of other ones here."""
    if not isinstance(given, BatchResult | SnapshotToken):
        raise ArgumentError(
            f"{given!r:.80} is neither a batch nor a snapshot; give what commit_batch returned, or "
            "the token of a snapshot"
        )
    if given.table_uuid != info.uuid or len(given.vector) not in (0, info.partitions):
        what = "batch" if isinstance(given, BatchResult) else "snapshot"
        raise UnknownTableError(
            f"the {what} is of another table than today's {info.name!r} (perhaps an earlier one "
            "of that name); open a new snapshot"
        )


class SnapshotOpening:
    """Opens one snapshot of one table."""

    def __init__(
        self,
        context: Context,
        channel_reads: ChannelReads,
        info: TableInfo,
        spec: SnapshotSpec,
        deadline_ms: int,
    ) -> None:
        self._context = context
        self._channel_reads = channel_reads
        self._info = info
        self._spec = spec
        self._deadline_ms = deadline_ms
        self._slots = asyncio.Semaphore(ANSWERS_AT_ONCE)
        self._answers: dict[int, SnapshotAnswer] = {}

    async def open(self) -> SnapshotToken:
        """Return the snapshot; SnapshotExpiredError when its state is not kept any more."""
        min_seqs = await self._min_seqs()
        for left in reversed(range(ROUNDS_MAX)):
            try:
                commit = await self._round(min_seqs)
            except SnapshotExpiredError:
                # Overtaken by more commits than are kept: there is a newer state to be had.
                self._close()
                if self._spec.exactly is not None or not left:
                    raise
            except BaseException:
                self._close()
                raise
            else:
                self._context.floors.note(self._info.uuid, commit.vector)
                return self._token(commit)
        raise AssertionError("the last round neither ended nor raised")

    # --- inside -----------------------------------------------------------------------------------

    async def _min_seqs(self) -> list[Seq]:
        """The position that each partition must have applied, for rows written one by one.

        At level linearizable the leaders say what was acknowledged before now, at level bounded a
        replica that is within the bounds says what it has; with that in it a state of any replica
        will do.
        """
        info, spec = self._info, self._spec
        given = [spec.read.min_seq(info, partition) for partition in range(info.partitions)]
        if spec.read.level is Level.ANY or spec.exactly is not None:
            return given
        # S7.3: the bounds are those of a read that is answered now; refused like any other.
        asked = spec.read if spec.read.level is Level.BOUNDED else LINEARIZABLE

        async def newest(partition: int) -> Seq:
            channel = info.channels[partition].channel
            async with self._slots:
                answer = await self._channel_reads.get(
                    channel, (), asked, self._deadline_ms, min_seq=given[partition]
                )
            return max(given[partition], answer.served.applied_seq)

        return await gather_or_cancel([newest(p) for p in range(info.partitions)])

    async def _round(self, min_seqs: list[Seq]) -> Commit:
        info, spec = self._info, self._spec
        partitions = range(info.partitions)
        if spec.exactly is not None:
            exactly = spec.exactly
            await gather_or_cancel([self._ask_as_of(p, exactly.at(p)) for p in partitions])
            return exactly
        floor = max(spec.floor, self._context.floors.of(info.uuid), key=lambda commit: commit.n)
        asked = VectorRound(info.partitions, floor)
        await gather_or_cancel([self._ask(p, 0, min_seqs[p]) for p in partitions])
        for partition, answer in self._answers.items():
            asked.on_reply(partition, answer.commit, answer.vector)
        late = asked.late()
        await gather_or_cancel([self._ask_as_of(p, n) for p, n in late.items()])
        for partition in late:
            asked.on_late_reply(partition, self._answers[partition].commit)
        return asked.result()

    async def _ask_as_of(self, partition: int, n: int) -> None:
        await self._ask(partition, n, Seq(0))
        found = self._answers[partition].commit
        if n == 0 and found:  # "as of no commit" cannot be asked for
            raise SnapshotExpiredError(
                f"{self._info.name}/{partition} has applied commit {found}, and the state before "
                "its first commit is not kept; read a new snapshot"
            )
        if n != found:
            raise DecodeError(f"asked for commit {n} and answered with {found}: the node is broken")

    async def _ask(self, partition: int, as_of: int, min_seq: Seq) -> None:
        spec = self._spec
        channel = self._info.channels[partition].channel

        def build(request_id: int, left_ms: int) -> OpenSnapshot:
            return OpenSnapshot(
                request_id, channel, as_of, spec.keep, 0, left_ms, min_seq, spec.idle_ms
            )

        async with self._slots:
            answer = await self._channel_reads.open_snapshot(
                channel,
                build,
                spec.read,
                self._deadline_ms,
                takes_newer=spec.exactly is None,
            )
        before = self._answers.get(partition)
        self._answers[partition] = answer
        if before is not None:
            self._close_pin(partition, before)

    def _close(self) -> None:
        for partition, answer in self._answers.items():
            self._close_pin(partition, answer)
        self._answers.clear()

    def _close_pin(self, partition: int, answer: SnapshotAnswer) -> None:
        if answer.pin:
            channel = self._info.channels[partition].channel
            self._channel_reads.close_pin(channel, Pin(answer.served.node, answer.pin))

    def _token(self, commit: Commit) -> SnapshotToken:
        answers = [self._answers[partition] for partition in range(self._info.partitions)]
        is_kept = self._spec.keep
        if is_kept and not all(answer.pin for answer in answers):
            raise DecodeError("a node kept no state; install the same raftstore on both sides")
        return SnapshotToken(
            table_uuid=self._info.uuid,
            n=commit.n,
            vector=commit.vector or (0,) * self._info.partitions,
            nodes=tuple(answer.served.node for answer in answers) if is_kept else (),
            pins=tuple(answer.pin for answer in answers) if is_kept else (),
            terms=tuple(answer.served.term for answer in answers),
            seqs=tuple(answer.applied_seq for answer in answers),
            life_ms=min((answer.life_ms for answer in answers if answer.life_ms), default=0),
        )


async def commit_of_batch(
    context: Context, info: TableInfo, batch: Any, deadline_ms: int
) -> Commit:
    """Return the commit of a batch, as its result or as (writer, batch id), with its vector;
    SnapshotExpiredError when that is forgotten.

    A batch that is named is waited for until the deadline. The coordinator remembers the newest
    vector alone, and the last batch of each writer.
    """
    if isinstance(batch, BatchResult):
        what, n, vector = f"commit {batch.n}", batch.n, batch.vector
    else:
        if not isinstance(batch, tuple) or len(batch) != 2:
            raise ArgumentError(
                f"at_batch={batch!r:.80} is no batch; give what commit_batch returned, or "
                "(writer, batch id)"
            )
        writer, batch_id = batch
        if not isinstance(writer, str):
            text("writer", writer)
        if type(batch_id) is not int:
            whole("batch_id", batch_id, 0)
        fault = writer_fault(writer)  # "" would ask for all of them
        if fault is not None:
            raise ArgumentError(f"at_batch={batch!r:.60}: {fault}")
        what = f"batch {batch_id} of writer {writer!r}"
        reported, last = await _await_batch(context, info, writer, batch_id, deadline_ms)
        n = reported.writers[0].last_n if last == batch_id else -1
        vector = reported.vector
    if n < 0 or max(vector, default=0) > n:
        raise SnapshotExpiredError(
            f"the state of table {info.name!r} after {what} is no longer known, because other "
            "batches were committed since; give what commit_batch returned, or read a new snapshot"
        )
    return commit_of(vector)


async def _await_batch(
    context: Context, info: TableInfo, writer: str, batch_id: int, deadline_ms: int
) -> tuple[TableWriters, int]:
    """Ask again and again until the batch is committed; return the answer and the writer's last."""
    backoff, reported = context.backoff(), None
    while True:
        try:
            reported = await BatchWrites(context).writers(info, writer, deadline_ms)
        except RequestError:
            if reported is None or context.now_ms() < deadline_ms:
                raise
        last = max((view.last_batch for view in reported.writers), default=-1)
        if last >= batch_id:
            return reported, last
        pause_ms = backoff.next_ms()
        if context.now_ms() + pause_ms >= deadline_ms:
            known = (
                f"the writer's last is {last}" if reported.writers else "nor is such a writer known"
            )
            raise NotUpToBoundError(
                f"batch {batch_id} of writer {writer!r} is not in table {info.name!r} ({known}); "
                "read again once it is committed, or give it more time"
            )
        await asyncio.sleep(pause_ms / 1000)


def pin_of(token: SnapshotToken, partition: int) -> Pin:
    """Return who keeps the state of a partition; ArgumentError when nobody does."""
    if not token.pins:
        raise ArgumentError("the snapshot was opened with keep=False: open it with keep=True")
    return Pin(NodeId(token.nodes[partition]), token.pins[partition])
