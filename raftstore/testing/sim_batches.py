"""Drivers of micro-batches in a simulated world: tasks, retries, restarts, zombies.

A job writes its batches in order, each until somebody got the answer that it is in the table, as
Spark does: its *lives* (driver processes) come and go at any step, a replay carries other rows in
other places, and a life that was believed dead may go on. They share only what a checkpoint holds:
the last batch that a life got an answer for.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Generator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import msgspec

from raftstore.client.writes.kinds import Write
from raftstore.errors import ERRORS_BY_CODE, RequestError
from raftstore.protocol.batches import (
    ALREADY,
    APPEND,
    OK,
    OPENED,
    BatchAnswer,
    BeginBatch,
    ChannelPart,
    CommitBatch,
    Manifest,
)
from raftstore.protocol.message import Failed, Message
from raftstore.protocol.payload import encode_rows
from raftstore.protocol.publish import PubAck
from raftstore.protocol.staged import ChunkHeader, encode_staged
from raftstore.rows.sealing import seal
from raftstore.testing.invariants import InvariantError
from raftstore.testing.sim_outcomes import Outcomes
from raftstore.testing.sim_publisher import SimPublisher
from raftstore.types import ChannelId, NodeId, RecordKind

if TYPE_CHECKING:
    from raftstore.testing.sim_cluster import SimCluster

ATTEMPT_TIMEOUT_MS: Final = 600.0
STEP_DEADLINE_MS: Final = 8_000.0
"""A life gives up when one of its steps takes longer."""
DEATH_PERCENT: Final = 4
"""Chance per step that a life dies, or that it is believed dead and goes on."""
TTL_MS: Final = 5_000
MODULUS: Final = 2**64


class LifeError(Exception):
    """The life ends: it was stopped, or knows no more."""


@dataclass(slots=True)
class _Sent:
    """The event that a life waits for."""

    channel: ChannelId
    message: Any
    deadline_ms: float
    number: int = 0


@dataclass(slots=True)
class _Decision:
    """The manifest that the driver of an attempt listed."""

    writer: str
    batch_id: int
    touched: tuple[int, ...]


class BatchOracle:
    """Answers that all jobs of a world got, held against the committed logs (I2, I5)."""

    def __init__(self, cluster: SimCluster) -> None:
        self._cluster = cluster
        self.listed: dict[int, _Decision] = {}
        """Attempt -> what its driver was about to commit."""
        self.reported: dict[tuple[str, int], int] = {}

    def on_success(self, writer: str, batch_id: int, answer: BatchAnswer) -> None:
        """I5: success was answered, so every channel that the batch touches has applied it."""
        decision = self.listed.get(answer.attempt)
        if decision is None or (decision.writer, decision.batch_id) != (writer, batch_id):
            self._fail(f"I5: batch {batch_id} of {writer} is reported as attempt {answer.attempt}")
            return
        first = self.reported.setdefault((writer, batch_id), answer.n)
        if first != answer.n:
            self._fail(f"I5: batch {batch_id} of {writer} is commit {first}, then {answer.n}")
        for partition in decision.touched:
            truth = self._cluster.oracle.truth(self._cluster.table_channels[partition])
            if truth.batches.newest < answer.n:
                self._fail(
                    f"I5: commit {answer.n} was reported as done; partition {partition} is at "
                    f"{truth.batches.newest}"
                )

    def check_final(self) -> None:
        """I2, I3: each batch once, in the order of its writer, whole in all channels it touches."""
        commits: dict[int, tuple[str, int, int]] = {}
        for channel in self._cluster.table_channels:
            for _, batch in self._cluster.oracle.truth(channel).batches.applied:
                known = commits.setdefault(batch.n, (batch.writer, batch.batch_id, batch.attempt))
                if known != (batch.writer, batch.batch_id, batch.attempt):
                    self._fail(f"I3: commit {batch.n} is {known} and {batch}")
        last: dict[str, int] = {}
        for n in sorted(commits):
            writer, batch_id, attempt = commits[n]
            if batch_id <= last.get(writer, -1):
                self._fail(f"I2: batch {batch_id} of {writer} comes after {last[writer]}")
            last[writer] = batch_id
            for partition in self.listed[attempt].touched:
                truth = self._cluster.oracle.truth(self._cluster.table_channels[partition])
                if all(batch.n != n for _, batch in truth.batches.applied):
                    self._fail(f"L1: commit {n} never came to partition {partition}")

    @staticmethod
    def _fail(text: str) -> None:
        raise InvariantError(text)


class SimJob:
    """One writer, its checkpoint, and the drivers that believe to be its own."""

    def __init__(
        self, cluster: SimCluster, index: int, oracle: BatchOracle, outcomes: Outcomes
    ) -> None:
        self.writer = f"job{index}"
        self.cluster = cluster
        self.oracle = oracle
        self.outcomes = outcomes
        # Its own randomness: worlds without jobs stay as they are.
        self.rng = random.Random(f"job {index} of {cluster.options.seed}")
        self.done = 0
        """The checkpoint: the newest batch that a life got an answer for."""
        self.is_stopped = False
        self._index = index
        self._lives: list[_Life] = []
        self._born = 0

    def start(self) -> None:
        """The first life begins."""
        self._bear()

    @property
    def is_idle(self) -> bool:
        """Leave the job without a driver."""
        return not any(life.is_alive for life in self._lives)

    def _bear(self) -> None:
        self._lives = [life for life in self._lives if life.is_alive]
        if self.is_stopped or len(self._lives) > 1:
            return
        life = _Life(self, 100_000 * (self._index + 1) + self._born, f"{self.writer}-{self._born}")
        self._born += 1
        self._lives.append(life)
        life.start()

    def believed_dead(self) -> None:
        """Somebody starts the job anew, whether its driver is dead or not."""
        self.cluster.scheduler.after(self.rng.uniform(50.0, 600.0), self._bear)

    def batches(self, life: _Life) -> Generator[tuple[ChannelId, Any], Message, None]:
        """The whole job as one life sees it."""
        while not self.is_stopped:
            batch_id = self.done + 1
            if self.rng.random() < 0.2:
                batch_id += 1  # foreachBatch jumps over what it finds empty
            self.outcomes.started += 1
            answer = yield from life.batch(batch_id)
            self.oracle.on_success(self.writer, batch_id, answer)
            self.outcomes.ok += 1
            self.done = max(self.done, batch_id)


class _Life:
    """One driver process with its tasks."""

    def __init__(self, job: SimJob, handle: int, name: str) -> None:
        self._job = job
        self._rng = job.rng
        self._cluster = job.cluster
        self._name = name
        own_rng = random.Random(f"{name} {job.cluster.options.seed}")
        self._publisher = SimPublisher(job.cluster, own_rng, self._deliver)
        self._numbers = 0
        self._sent: _Sent | None = None
        self._script: Generator[tuple[ChannelId, Any], Message, None] | None = None
        job.cluster.add_client(name, handle, self._on_message)

    @property
    def is_alive(self) -> bool:
        """Whether it still does something."""
        return self._script is not None

    def start(self) -> None:
        """Begin."""
        self._script = self._job.batches(self)
        self._go_on(None)

    # --- the script -------------------------------------------------------------------------------

    def batch(self, batch_id: int) -> Generator[tuple[ChannelId, Any], Message, BatchAnswer]:
        """One batch as a sink writes it; a replay makes everything anew."""
        rng, writer, channels = self._rng, self._job.writer, self._cluster.table_channels
        uuid = rng.randbytes(16)
        attempts: dict[int, None] = {}
        winners: dict[int, int] = {}
        staged: dict[int, list[tuple[int, int, bytes]]] = {}
        for task in range(rng.randint(1, 3)):
            begun = yield channels[0], BeginBatch(
                request_id=0, channel=channels[0], writer=writer, batch_id=batch_id, uuid=uuid,
                lineage="", one_shot=False, ttl_ms=TTL_MS, timeout_ms=5_000,
            )  # fmt: skip
            assert isinstance(begun, BatchAnswer)
            if begun.verdict == ALREADY:
                return begun
            assert begun.verdict == OPENED
            attempts[begun.attempt] = None
            # Speculation: a second run of the task stages, too, and only one of them counts.
            runs = [10 * task + run for run in range(2 if rng.random() < 0.2 else 1)]
            for run in runs:
                parts = yield from self._stage(begun.attempt, task, run, batch_id, uuid)
                if run == runs[-1]:
                    winners[task] = run
                    for partition, chunk in parts:
                        staged.setdefault(partition, []).append(chunk)
        if len(attempts) != 1:
            raise LifeError
        [attempt] = attempts
        manifest = Manifest(
            APPEND,
            tuple(sorted(winners.items())),
            tuple(_part(partition, chunks) for partition, chunks in sorted(staged.items())),
            sum(rows for chunks in staged.values() for rows, _, _ in chunks),
        )
        self._job.oracle.listed[attempt] = _Decision(writer, batch_id, tuple(sorted(staged)))
        digest = hashlib.blake2b(msgspec.msgpack.encode(manifest), digest_size=16).digest()
        committed = yield channels[0], CommitBatch(
            request_id=0, channel=channels[0], writer=writer, batch_id=batch_id, attempt=attempt,
            manifest=manifest, digest=digest, timeout_ms=5_000,
        )  # fmt: skip
        assert isinstance(committed, BatchAnswer)
        assert committed.verdict == OK
        return committed

    def _stage(
        self, attempt: int, task: int, run: int, batch_id: int, uuid: bytes
    ) -> Generator[tuple[ChannelId, Any], Message, list[tuple[int, tuple[int, int, bytes]]]]:
        rng, channels = self._rng, self._cluster.table_channels
        parts: list[tuple[int, tuple[int, int, bytes]]] = []
        for partition, channel in enumerate(channels):
            for number in range(rng.choice((0, 1, 1, 2))):
                rows = {b"batch %s" % self._job.writer.encode(): b"%d" % batch_id}
                for _ in range(rng.randint(0, 6)):
                    key = b"k%03d" % rng.randrange(self._cluster.options.keys)
                    rows[key] = uuid + rng.randbytes(2)
                cells = [(key, seal(key, value)) for key, value in sorted(rows.items())]
                header = ChunkHeader(self._job.writer, attempt, task, run, number)
                payload = encode_staged(header, encode_rows(cells))
                digest = hashlib.blake2b(payload, digest_size=16).digest()
                acknowledged = yield channel, Write(channel, RecordKind.STAGED, payload, len(cells))
                assert isinstance(acknowledged, PubAck)
                parts.append((partition, (len(cells), len(payload), digest)))
        return parts

    # --- sending and receiving
    # ---------------------------------------------------------------------

    def _go_on(self, answer: Message | None) -> None:
        """Let the script take its next step, or end."""
        script = self._script
        if script is None:
            return
        self._sent = None
        if self._rng.random() * 100 < DEATH_PERCENT and not self._job.is_stopped:
            self._job.believed_dead()
            if self._rng.random() < 0.6:
                self._die()
                return
        try:
            channel, message = script.send(answer) if answer is not None else next(script)
        except StopIteration:
            self._die()
            return
        except LifeError:
            self._end()
            return
        now_ms = self._cluster.scheduler.now_ms
        self._sent = _Sent(channel, message, now_ms + STEP_DEADLINE_MS)
        if isinstance(message, Write):
            self._publisher.publish(message, STEP_DEADLINE_MS, self._published)
            return
        self._cluster.scheduler.after(self._rng.uniform(0.0, 20.0), self._send, self._sent)

    def _send(self, sent: _Sent) -> None:
        if sent is not self._sent:
            return
        cluster = self._cluster
        if cluster.scheduler.now_ms >= sent.deadline_ms:
            self._end()
            return
        self._numbers += 1
        sent.number = self._numbers
        found = cluster.believed_leader(sent.channel)
        if found is not None:
            request = msgspec.structs.replace(sent.message, request_id=sent.number)
            cluster.network.send(self._name, found[0], request)
        cluster.scheduler.after(ATTEMPT_TIMEOUT_MS, self._again, sent, sent.number)

    def _again(self, sent: _Sent, number: int) -> None:
        if sent is self._sent and sent.number == number:
            self._send(sent)

    def _deliver(self, node: NodeId, message: Message) -> None:
        self._cluster.network.send(self._name, node, message)

    def _published(self, result: PubAck | RequestError) -> None:
        """A staged record has its outcome."""
        if isinstance(result, PubAck):
            self._go_on(result)
        else:
            self._end()

    def _on_message(self, sender: NodeId, message: Message) -> None:
        if isinstance(message, PubAck):
            self._cluster.oracle.on_ack(message.channel, message)
        self._publisher.on_message(sender, message)
        sent = self._sent
        if sent is None or getattr(message, "request_id", None) != sent.number:
            return
        if isinstance(message, BatchAnswer):
            self._go_on(message)
        elif isinstance(message, Failed):
            if ERRORS_BY_CODE[message.code].retriable:
                self._cluster.scheduler.after(40.0, self._again, sent, sent.number)
            else:
                self._end()

    def _end(self) -> None:
        """The life raises; its job is started again by somebody."""
        self._die()
        self._job.outcomes.not_applied += 1
        self._job.believed_dead()

    def _die(self) -> None:
        """End this life: nothing reports what it began."""
        self._sent = self._script = None
        self._publisher.end()


def _part(partition: int, chunks: list[tuple[int, int, bytes]]) -> ChannelPart:
    check = sum(int.from_bytes(digest[:8], "big") for _, _, digest in chunks) % MODULUS
    rows, size = sum(chunk[0] for chunk in chunks), sum(chunk[1] for chunk in chunks)
    return ChannelPart(partition, len(chunks), rows, size, check)
