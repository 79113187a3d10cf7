"""A table's atomic batches as one object decides them: for stores that are not real nodes.

The guards are the product's own (``machines.coordinator``); chunks are kept and folded here, apart
from ``machines.staging``.
"""

from __future__ import annotations

from hashlib import blake2b
from typing import NamedTuple

from raftstore.protocol.batches import TRUNCATE, BeginBatch, ChannelPart, CommitBatch, WriterView
from raftstore.protocol.staged import ChunkHeader, decode_header
from raftstore.state_machines.batches.coordinator import judge_begin, judge_commit
from raftstore.state_machines.batches.txn_records import AnyStep, Begin, Commit, Trim, Verdict
from raftstore.state_machines.batches.txn_state import (
    outbox,
    read_table,
    read_writer,
    view_of,
    writers,
)
from tests.batch_bench import CoordinatorBench


class StagedChunk(NamedTuple):
    """A chunk that a partition holds, seen by nobody."""

    partition: int
    header: ChunkHeader
    rows: int
    size: int
    digest: bytes
    payload: bytes
    """Its rows."""


class Decision(NamedTuple):
    """A batch that is in the table."""

    n: int
    writer: str
    batch_id: int
    is_overwrite: bool
    chunks: tuple[StagedChunk, ...]


class BatchTruth:
    """See the module. May be pickled."""

    def __init__(self, partitions: int) -> None:
        self.bench = CoordinatorBench(partitions)
        self.chunks: dict[tuple, StagedChunk] = {}
        self.decisions: list[Decision] = []
        self.begun = 0
        """Requests to begin, answered in whatever way."""

    @property
    def state(self):
        """The durable state of the coordinator."""
        return self.bench.state

    def stage(self, partition: int, payload: bytes, rows: int) -> None:
        """Keep a chunk; of two with one name the first stays."""
        header, view = decode_header(payload)
        digest = blake2b(payload, digest_size=16).digest()
        chunk = StagedChunk(partition, header, rows, len(payload), digest, bytes(view))
        self.chunks.setdefault((partition, *header[:5]), chunk)

    def begin(self, request: BeginBatch) -> Verdict:
        """Answer a BEGIN."""
        self.begun += 1
        known = judge_begin(request, self.state, partitions=self.bench.partitions, pending_max=64)
        return known or self.bench.step(
            Begin(
                writer=request.writer,
                batch_id=request.batch_id,
                uuid=request.uuid,
                lineage=request.lineage,
                one_shot=request.one_shot,
                ttl_ms=request.ttl_ms,
                partitions=self.bench.partitions,
            )
        )

    def commit(self, request: CommitBatch) -> Verdict:
        """Answer a COMMIT; what it decides is in the table at once."""
        known = judge_commit(request, self.state)
        if known is not None:
            return known
        fields = (request.writer, request.batch_id, request.attempt)
        verdict = self.bench.step(Commit(*fields, request.manifest, request.digest, 1_000))
        if not verdict.code and all(made.n != verdict.n for made in self.decisions):
            self._decide(request, verdict.n)
        return verdict

    def step(self, step: AnyStep) -> Verdict:
        """Do anything else."""
        return self.bench.step(step)

    def views(self, writer: str = "") -> tuple[WriterView, ...]:
        """The writers as a coordinator reports them."""
        one = read_writer(writer, self.state) if writer else None
        found = [(writer, one)] if one else writers(self.state, "", 10_000)
        return tuple(view_of(name, each) for name, each in found if writer in ("", name))

    def _decide(self, request: CommitBatch, n: int) -> None:
        manifest = request.manifest
        winners = set(manifest.winners)
        mine = [
            chunk
            for chunk in self.chunks.values()
            if chunk.header[:2] == (request.writer, request.attempt)
        ]
        listed = [chunk for chunk in mine if chunk.header[2:4] in winners]
        listed.sort(key=lambda chunk: (chunk.partition, chunk.header[2], chunk.header[4]))
        for part in manifest.parts:
            chunks = [chunk for chunk in listed if chunk.partition == part.partition]
            # I1: what the manifest lists is there, all of it and nothing else.
            assert part == ChannelPart(
                part.partition,
                len(chunks),
                sum(chunk.rows for chunk in chunks),
                sum(chunk.size for chunk in chunks),
                sum(int.from_bytes(chunk.digest[:8], "big") for chunk in chunks) % 2**64,
            )
        assert len(listed) == sum(part.chunks for part in manifest.parts)
        for chunk in mine:
            del self.chunks[(chunk.partition, *chunk.header[:5])]
        self.decisions.append(
            Decision(n, request.writer, request.batch_id, manifest.mode == TRUNCATE, tuple(listed))
        )
        head = read_table(self.state)
        assert head is not None
        if outbox(self.state):
            self.bench.step(Trim(tuple((part.partition, n) for part in manifest.parts)))
