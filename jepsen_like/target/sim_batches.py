"""Micro-batches and snapshots as a simulated client asks for them, question by question."""

from __future__ import annotations

import hashlib
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from jepsen_like.calls import Action, Answer, Batch, Call
from jepsen_like.target.sim_parts import CODEC, Pair, by_partition, sealed_row
from jepsen_like.target.sim_talk import ANY, Heard, Question, RefusedError, Script
from raftstore.client.cluster.vector import Commit, VectorRound, commit_of
from raftstore.client.writes.kinds import Write
from raftstore.protocol.batches import (
    ALREADY,
    APPEND,
    BatchAnswer,
    BeginBatch,
    ChannelPart,
    CommitBatch,
    Manifest,
)
from raftstore.protocol.message import Message
from raftstore.protocol.payload import encode_rows
from raftstore.protocol.reads import ClosePin, Get, GetAnswer, Scan, ScanAnswer
from raftstore.protocol.snapshots import OpenSnapshot, SnapshotAnswer
from raftstore.protocol.staged import ChunkHeader, encode_staged
from raftstore.rows.keys import decode_key
from raftstore.rows.sealing import unseal
from raftstore.state_machines.batches.staging import check_of
from raftstore.testing.sim_cluster import SimCluster
from raftstore.types import ChannelId, Level, NodeId, Outcome, RecordKind, Seq

PATIENCE_MS: Final = 400
TTL_MS: Final = 60_000
ROUNDS_MAX: Final = 5
"""A snapshot that was overtaken while it was opened is begun again so often, as the client does."""
ROWS_MAX: Final = 10_000
MODULUS: Final = 2**64

BATCH_ACTIONS: Final = (Action.BATCH, Action.STAGE, Action.COMMIT, Action.SNAPSHOT)

_Asked = Generator[Question, Heard, Message]


@dataclass(frozen=True, slots=True)
class _Ticket:
    """An attempt whose rows are staged."""

    batch: Batch
    attempt: int
    manifest: Manifest


class SimBatches:
    """The batches and snapshots of one client."""

    def __init__(
        self,
        cluster: SimCluster,
        tables: Mapping[str, Sequence[ChannelId]],
    ) -> None:
        self._cluster = cluster
        self._tables = tables
        self._tickets: dict[str, _Ticket] = {}
        self._floor = Commit()
        """The newest commit it saw: snapshots never go back. Its successor goes on from it."""

    def forget(self) -> None:
        """The process is gone, and its tickets are."""
        self._tickets.clear()

    def script(self, call: Call) -> Script:
        """The questions of a call."""
        match call.action:
            case Action.BATCH:
                return self._batch(call)
            case Action.STAGE:
                return self._stage_only(call)
            case Action.COMMIT:
                return self._commit_only(call)
            case _:
                return self._snapshot(call)

    # --- batches ----------------------------------------------------------------------------------

    def _batch(self, call: Call) -> Script:
        begun = yield from self._stage(call)
        if isinstance(begun, BatchAnswer):
            return self._answer_of(begun)
        return (yield from self._commit(call, begun))

    def _stage_only(self, call: Call) -> Script:
        begun = yield from self._stage(call)
        if isinstance(begun, BatchAnswer):
            return self._answer_of(begun)
        token = str(begun.attempt)
        self._tickets[token] = begun
        return Answer(Outcome.OK, {"attempt": begun.attempt}, token=token)

    def _commit_only(self, call: Call) -> Script:
        ticket = self._tickets.pop(call.token, None)
        if ticket is None:
            return Answer(Outcome.NOT_APPLIED, error="no_ticket")
        return (yield from self._commit(call, ticket))

    def _stage(self, call: Call) -> Generator[Question, Heard, _Ticket | BatchAnswer]:
        """Begin and stage; nothing of it can be seen yet, whatever comes of it."""
        try:
            return (yield from self._begun_and_staged(call))
        except RefusedError as error:
            raise RefusedError(error.code, Outcome.NOT_APPLIED) from None

    def _begun_and_staged(self, call: Call) -> Generator[Question, Heard, _Ticket | BatchAnswer]:
        batch, channels = call.batch, self._tables[call.table]
        assert batch is not None
        begun = yield from _ask(Question(channels[0], BeginBatch(
            request_id=0, channel=channels[0], writer=batch.writer, batch_id=batch.number,
            uuid=self._cluster.rng.randbytes(16), lineage="", one_shot=False, ttl_ms=TTL_MS,
            timeout_ms=PATIENCE_MS,
        )))  # fmt: skip
        assert isinstance(begun, BatchAnswer)
        if begun.verdict == ALREADY:
            return begun
        parts: dict[int, list[ChannelPart]] = {}
        for task in range(batch.tasks):
            rows = call.rows[task :: batch.tasks]
            if task == 0 and batch.lost:
                yield from self._stage_task(batch, begun.attempt, (0, 1), batch.lost, channels)
            staged = yield from self._stage_task(batch, begun.attempt, (task, 0), rows, channels)
            for part in staged:
                parts.setdefault(part.partition, []).append(part)
        manifest = Manifest(
            APPEND,
            tuple((task, 0) for task in range(batch.tasks)),
            tuple(_sum(partition, found) for partition, found in sorted(parts.items())),
            len(call.rows),
        )
        return _Ticket(batch, begun.attempt, manifest)

    def _stage_task(
        self,
        batch: Batch,
        attempt: int,
        task: tuple[int, int],
        rows: Sequence[tuple[str | int, Any]],
        channels: Sequence[ChannelId],
    ) -> Generator[Question, Heard, list[ChannelPart]]:
        pairs: list[Pair] = [sealed_row(key, value) for key, value in rows]
        parts = []
        for partition, cells in sorted(by_partition(pairs, len(channels)).items()):
            header = ChunkHeader(batch.writer, attempt, *task, 0)
            payload = encode_staged(header, encode_rows(cells))
            digest = hashlib.blake2b(payload, digest_size=16).digest()
            record = Write(channels[partition], RecordKind.STAGED, payload, len(cells))
            yield Question(channels[partition], record)
            check = check_of(digest)
            parts.append(ChannelPart(partition, 1, len(cells), len(payload), check))
        return parts

    def _commit(self, call: Call, ticket: _Ticket) -> Script:
        channel = self._tables[call.table][0]
        digest = hashlib.blake2b(msgspec.msgpack.encode(ticket.manifest), digest_size=16).digest()
        try:
            reported = yield from _ask(Question(channel, CommitBatch(
                request_id=0, channel=channel, writer=ticket.batch.writer,
                batch_id=ticket.batch.number, attempt=ticket.attempt, manifest=ticket.manifest,
                digest=digest, timeout_ms=PATIENCE_MS,
            )))  # fmt: skip
        except RefusedError as error:
            # An earlier try may have been decided: a later "no" says nothing of it.
            raise RefusedError(error.code, Outcome.UNKNOWN) from None
        assert isinstance(reported, BatchAnswer)
        return self._answer_of(reported)

    def _answer_of(self, reported: BatchAnswer) -> Answer:
        self._note(commit_of(reported.vector))
        value = {
            "n": reported.n,
            "vector": list(reported.vector),
            "already": reported.verdict == ALREADY,
        }
        return Answer(Outcome.OK, value)

    # --- snapshots --------------------------------------------------------------------------------

    def _snapshot(self, call: Call) -> Script:
        for left in reversed(range(ROUNDS_MAX)):
            try:
                return (yield from self._read(call))
            except RefusedError as error:
                is_exact = call.wanted is not None and call.wanted.is_exact
                if error.code != "snapshot_expired" or is_exact or not left:
                    raise RefusedError(error.code, Outcome.NOT_APPLIED) from None
        raise AssertionError("the last round neither answered nor raised")

    def _read(self, call: Call) -> Script:
        channels, wanted = self._tables[call.table], call.wanted
        opened: dict[int, tuple[SnapshotAnswer, NodeId]] = {}
        if wanted is not None and wanted.is_exact:
            commit = commit_of(wanted.vector)
            for partition, channel in enumerate(channels):
                opened[partition] = yield from _opened(channel, commit.at(partition), Seq(0))
                if opened[partition][0].commit != commit.at(partition):
                    raise RefusedError("snapshot_expired", Outcome.NOT_APPLIED)
        else:
            floors = [self._floor, commit_of(wanted.vector if wanted else ())]
            asked = VectorRound(len(channels), max(floors, key=lambda each: each.n))
            min_seqs = yield from self._min_seqs(call, channels)
            for partition, channel in enumerate(channels):
                found = yield from _opened(channel, 0, min_seqs[partition])
                asked.on_reply(partition, found[0].commit, found[0].vector)
                opened[partition] = found
            for partition, n in asked.late().items():
                yield _let_go(channels[partition], *opened[partition])
                opened[partition] = yield from _opened(channels[partition], n, Seq(0))
                asked.on_late_reply(partition, opened[partition][0].commit)
            commit = asked.result()
        self._note(commit)
        rows: dict[Any, Any] = {}
        for partition, channel in enumerate(channels):
            rows.update((yield from self._rows(channel, *opened[partition])))
            yield _let_go(channel, *opened[partition])
        vector = commit.vector or (0,) * len(channels)
        positions = tuple((at, each.applied_seq) for at, (each, _) in opened.items())
        value = {"n": commit.n, "vector": list(vector), "rows": rows}
        return Answer(Outcome.OK, value, positions=positions)

    def _min_seqs(
        self, call: Call, channels: Sequence[ChannelId]
    ) -> Generator[Question, Heard, list[Seq]]:
        """The leaders' positions: rows that were acknowledged one by one before
        now are below them.
        """
        if call.level is not Level.LINEARIZABLE:
            return [Seq(0)] * len(channels)
        found = []
        for channel in channels:
            level = Level.LINEARIZABLE.value
            answer = yield from _ask(
                Question(channel, Get(0, channel, (), level, None, Seq(0), PATIENCE_MS))
            )
            assert isinstance(answer, GetAnswer)
            found.append(answer.served.applied_seq)
        return found

    def _rows(
        self, channel: ChannelId, opened: SnapshotAnswer, node: NodeId
    ) -> Generator[Question, Heard, dict[Any, Any]]:
        request = Scan(
            0, channel, b"", b"", ROWS_MAX, Level.ANY.value, None, Seq(0), PATIENCE_MS,
            pin=opened.pin,
        )  # fmt: skip
        page = yield from _ask(Question(channel, request, node))
        assert isinstance(page, ScanAnswer)
        assert not page.more, "tables fit one page"
        rows: dict[Any, Any] = {}
        for key, sealed, seq in page.rows:
            plain = None if sealed is None else unseal(key, sealed)
            self._cluster.oracle.on_read(
                channel, key, plain, seq, opened.applied_seq, must_include=None
            )
            rows[decode_key(key)[0]] = None if plain is None else CODEC.decode(plain)["v"]
        return rows

    def _note(self, commit: Commit) -> None:
        self._floor = max(self._floor, commit, key=lambda each: each.n)


def _ask(question: Question) -> _Asked:
    heard = yield question
    return heard.message


def _opened(
    channel: ChannelId, as_of: int, min_seq: Seq
) -> Generator[Question, Heard, tuple[SnapshotAnswer, NodeId]]:
    request = OpenSnapshot(0, channel, as_of, True, 0, PATIENCE_MS, min_seq)
    heard = yield Question(channel, request, ANY)
    assert isinstance(heard.message, SnapshotAnswer)
    return heard.message, heard.sender


def _let_go(channel: ChannelId, opened: SnapshotAnswer, node: NodeId) -> Question:
    return Question(channel, ClosePin(0, channel, opened.pin), node, is_answered=False)


def _sum(partition: int, parts: Sequence[ChannelPart]) -> ChannelPart:
    """The sum of the parts that tasks staged in one partition; written anew, so that the client's
    is tested too.
    """
    return ChannelPart(
        partition,
        sum(part.chunks for part in parts),
        sum(part.rows for part in parts),
        sum(part.bytes for part in parts),
        sum(part.check for part in parts) % MODULUS,
    )
