"""Micro-batches in a calm simulated cluster: a table with partitions, and a driver's words."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field

import msgspec

from raftstore.protocol.batches import (
    APPEND,
    BatchAnswer,
    BeginBatch,
    CloseBatch,
    CommitBatch,
    Manifest,
)
from raftstore.protocol.message import Failed, Message
from raftstore.protocol.payload import encode_rows
from raftstore.protocol.publish import PubAck
from raftstore.protocol.reads import Get, GetAnswer, Scan, ScanAnswer
from raftstore.protocol.snapshots import OpenSnapshot, SnapshotAnswer
from raftstore.protocol.staged import ChunkHeader, encode_staged
from raftstore.rows.sealing import seal, unseal
from raftstore.state_machines.batches.staging import ChunkRef, part_of
from raftstore.testing.options import SimOptions
from raftstore.testing.sim_cluster import SimCluster
from raftstore.testing.sim_node import SimNode
from raftstore.types import ChannelId, RecordKind, Seq
from tests.unit.engine.engine_world import ask, publish, run


@dataclass
class BatchWorld:
    """One table, and a driver that speaks to the present leaders."""

    cluster: SimCluster
    channels: tuple[ChannelId, ...]
    counter: int = 0
    staged: dict[tuple[int, int], list[ChunkRef]] = field(default_factory=dict)
    """(attempt, partition) -> chunks that were acknowledged."""

    @classmethod
    def start(cls, partitions: int = 2, seed: int = 1, *, retention: bool = False) -> BatchWorld:
        """Three healthy nodes and a table whose channels all have leaders."""
        cluster = SimCluster(
            SimOptions(seed=seed, partitions=partitions, evict_percent=0, retention=retention)
        )
        cluster.start()
        cluster.create_table(partitions)
        run(cluster, 10_000)
        assert cluster.every_channel_has_a_leader()
        return cls(cluster, tuple(cluster.table_channels))

    def leader(self, partition: int = 0) -> SimNode:
        """The node that leads a partition."""
        return self.cluster.leaders()[self.channels[partition]]

    def seqs(self, partition: int = 0) -> int:
        """The end of the partition's log."""
        runner = self.leader(partition).runner
        return runner.channels[self.channels[partition]].core.last_seq

    def tell(self, *requests: Message, partition: int = 0, ms: float = 2_000) -> list[Message]:
        """Send requests to a partition's leader at once, and return the answers."""
        answers = ask(self.cluster, self.leader(partition), *requests)
        run(self.cluster, ms)
        return answers

    def begin_request(
        self,
        batch_id: int,
        uuid: bytes = b"a" * 16,
        writer: str = "orders",
        ttl_ms: int = 3_600_000,
    ) -> BeginBatch:
        """The BeginBatch that each task of a batch sends."""
        self.counter += 1
        return BeginBatch(
            request_id=self.counter,
            channel=self.channels[0],
            writer=writer,
            batch_id=batch_id,
            uuid=uuid,
            lineage="",
            one_shot=False,
            ttl_ms=ttl_ms,
            timeout_ms=5_000,
        )

    def begin(self, batch_id: int, uuid: bytes = b"a" * 16, writer: str = "orders") -> BatchAnswer:
        """Open an attempt, or learn why it is not needed."""
        [answer] = self.tell(self.begin_request(batch_id, uuid, writer))
        assert isinstance(answer, BatchAnswer), answer
        return answer

    def stage(
        self,
        attempt: int,
        partition: int,
        rows: dict[bytes, bytes | None],
        *,
        writer: str = "orders",
        task: int = 0,
        number: int = 0,
    ) -> Message:
        """Stage one chunk of a task, and return the answer."""
        self.counter += 1
        cells = [(key, None if value is None else seal(key, value)) for key, value in rows.items()]
        header = ChunkHeader(writer, attempt, task, task, number)
        payload = encode_staged(header, encode_rows(cells))
        message = publish(
            self.cluster,
            self.leader(partition),
            self.channels[partition],
            self.counter,
            payload,
            kind=RecordKind.STAGED,
            rows=len(rows),
        )
        [answer] = self.tell(message, partition=partition, ms=500)
        if isinstance(answer, PubAck):
            digest = hashlib.blake2b(payload, digest_size=16).digest()
            ref = ChunkRef(
                answer.base_seq, answer.last_seq, len(rows), len(payload), 0, digest, writer,
                attempt, task, task, number,
            )  # fmt: skip
            self.staged.setdefault((attempt, partition), []).append(ref)
        return answer

    def manifest(self, attempt: int, mode: int = APPEND) -> Manifest:
        """Everything that was staged under an attempt."""
        parts = tuple(
            part_of(partition, self.staged.get((attempt, partition), []))
            for partition in range(len(self.channels))
            if mode != APPEND or (attempt, partition) in self.staged
        )
        tasks = {
            ref.partition_id: ref.task_attempt_id
            for (at, _), refs in self.staged.items()
            for ref in refs
            if at == attempt
        }
        winners = tuple(sorted(tasks.items()))
        return Manifest(mode, winners, parts, sum(part.rows for part in parts))

    def commit_request(
        self, attempt: int, batch_id: int, *, mode: int = APPEND, writer: str = "orders"
    ) -> CommitBatch:
        """The driver's word that the batch is whole."""
        self.counter += 1
        manifest = self.manifest(attempt, mode)
        digest = hashlib.blake2b(msgspec.msgpack.encode(manifest), digest_size=16).digest()
        return CommitBatch(
            request_id=self.counter,
            channel=self.channels[0],
            writer=writer,
            batch_id=batch_id,
            attempt=attempt,
            manifest=manifest,
            digest=digest,
            timeout_ms=5_000,
        )

    def commit(self, attempt: int, batch_id: int, *, mode: int = APPEND) -> BatchAnswer:
        """Commit, and wait until it is applied everywhere."""
        [answer] = self.tell(self.commit_request(attempt, batch_id, mode=mode))
        assert isinstance(answer, BatchAnswer), answer
        return answer

    def close_request(self, attempt: int, writer: str = "orders") -> CloseBatch:
        """Give an attempt up."""
        self.counter += 1
        return CloseBatch(self.counter, self.channels[0], writer, attempt, 5_000)

    def get(self, partition: int, *keys: bytes) -> list[bytes | None]:
        """Values at the partition's leader."""
        self.counter += 1
        request = Get(
            self.counter, self.channels[partition], keys, "linearizable", None, Seq(0), 1_000
        )
        [answer] = self.tell(request, partition=partition, ms=500)
        assert isinstance(answer, GetAnswer), answer
        return [
            None if sealed is None else unseal(key, sealed)
            for key, sealed in zip(keys, answer.values, strict=True)
        ]

    def snapshot_request(
        self, partition: int, *, as_of: int = 0, keep: bool = False, timeout_ms: int = 2_000
    ) -> OpenSnapshot:
        """Ask a channel for the state of a commit."""
        self.counter += 1
        channel = self.channels[partition]
        return OpenSnapshot(self.counter, channel, as_of, keep, 0, timeout_ms)

    def open_snapshot(
        self, partition: int, *, as_of: int = 0, keep: bool = False
    ) -> SnapshotAnswer:
        """The state of a commit, at the partition's leader."""
        request = self.snapshot_request(partition, as_of=as_of, keep=keep)
        [answer] = self.tell(request, partition=partition, ms=500)
        assert isinstance(answer, SnapshotAnswer), answer
        return answer

    def page_request(self, partition: int, pin: int) -> Scan:
        """Ask for all rows of a pinned state."""
        self.counter += 1
        return Scan(
            self.counter, self.channels[partition], b"", b"", 100, "any", None, Seq(0), 1_000,
            keep=True, pin=pin,
        )  # fmt: skip

    def page(self, partition: int, pin: int) -> list[bytes]:
        """Values of all rows of a pinned state."""
        request = self.page_request(partition, pin)
        [answer] = self.tell(request, partition=partition, ms=500)
        assert isinstance(answer, ScanAnswer), answer
        return [unseal(key, sealed) for key, sealed, _ in answer.rows if sealed is not None]


def refusal(answer: Message) -> str:
    """The code of a refusal."""
    assert isinstance(answer, Failed), answer
    return answer.code
