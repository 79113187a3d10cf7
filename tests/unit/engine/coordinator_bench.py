"""A coordinator whose records, channels and clients are a test's own."""

from __future__ import annotations

from typing import Any, cast

from raftstore.config import BatchSettings
from raftstore.engine.batches.coordinator import Coordinator
from raftstore.errors import Refusal
from raftstore.protocol.batches import (
    APPLIED,
    OPENED,
    ApplyBatchReply,
    BeginBatch,
    CommitBatch,
    Manifest,
)
from raftstore.protocol.message import Failed
from raftstore.protocol.publish import PubAck, PubReject
from raftstore.state_machines.batches.txn_records import (
    decode_step,
    encode_verdict,
)
from raftstore.types import ChannelId, NodeId, RecordKind, Seq, Term, channel_id, make_guid
from tests.batch_bench import CoordinatorBench, manifest_of
from tests.unit.engine.batches.test_coordinated_table import CHANNEL, TABLE
from tests.unit.engine.batches.test_new_coordinator import Host

OTHER, THIRD = NodeId("n2"), NodeId("n3")
GUID = make_guid(b"session1", 1)
SETTINGS = BatchSettings(push_ms=200, ask_ms=1_000, waiting_max=100)


class KeepingHost(Host):
    """Keeps what was proposed, and how; a record is applied when the test says so."""

    def __init__(self, bench: CoordinatorBench) -> None:
        super().__init__(bench)
        self.open: list[tuple[bytes, Any]] = []
        self.refusals: dict[str, Refusal] = {}
        self.leaders: dict[ChannelId, NodeId | None] = {}

    def _propose(self, runner: Any, payload: bytes, done: Any, now_ms: int, **how: Any) -> None:
        assert runner is self.runner
        assert how == {"kind": RecordKind.TXN}
        self.proposed.append(payload)
        self.open.append((payload, done))

    def refusal_of(self, kind: Any) -> Any:
        assert kind is RecordKind.TXN
        return self.refusals.get("level")

    def serving_refusal(self, runner: Any) -> Any:
        return self.refusals.get("serving")

    def leader_of(self, channel: ChannelId) -> tuple[NodeId, Term]:
        return cast(NodeId, self.leaders.get(channel, OTHER)), Term(1)


class World:
    """A coordinator of two partitions, whose records are applied by ``apply``."""

    def __init__(self, bench: CoordinatorBench | None = None) -> None:
        self.bench = bench or CoordinatorBench()
        self.host = KeepingHost(self.bench)
        self.coordinator = Coordinator(
            self.host.channels, cast(Any, self.host.tables), *(cast(Any, self.host),) * 4, SETTINGS
        )
        self.seq = 0
        self.now_ms = 0

    def ask(self, request: Any, client: int = 9) -> list[Any]:
        """A client's request; the answers since the last call."""
        self.coordinator.on_request(client, request, self.now_ms)
        return self.told()

    def told(self) -> list[Any]:
        """Answers since the last call."""
        told, self.host.answers = self.host.answers, []
        return told

    def sent(self, kind: type[Any]) -> list[tuple[NodeId, Any]]:
        """Messages of a kind since the last call."""
        sent, self.host.sent = self.host.sent, []
        return [(to, message) for to, message in sent if isinstance(message, kind)]

    def steps(self) -> list[Any]:
        """Return the steps that were proposed since the last call of ``apply``."""
        return [decode_step(payload) for payload, _ in self.host.open]

    def apply(self) -> list[Any]:
        """Everything proposed is committed and applied; the answers to clients."""
        answers = []
        for payload, done in self.host.open:
            self.seq += 1
            done(PubAck(CHANNEL, Term(3), GUID, Seq(self.seq), Seq(self.seq), Term(3), "", 2), 0)
            verdict = self.bench.step(decode_step(payload))
            answers.append((Seq(self.seq), encode_verdict(verdict)))
        self.host.open = []
        self.coordinator.on_applied(self.host.runner, tuple(answers), self.now_ms)
        return self.told()

    def refuse(self, code: str) -> list[Any]:
        """Everything proposed is refused; the answers to clients."""
        for _, done in self.host.open:
            done(PubReject(CHANNEL, Term(3), GUID, code, "later"), 0)
        self.host.open = []
        return self.told()

    def say_applied(self, partition: int, applied: int, **fields: Any) -> list[Any]:
        """A channel says how far it is; the answers to clients."""
        reply = {"n": applied, "reason": APPLIED} | fields
        message = ApplyBatchReply(
            CHANNEL, Term(3), channel_id(TABLE, partition), applied=applied, **reply
        )
        self.coordinator.on_apply_reply(OTHER, message, self.now_ms)
        return self.told()

    def pass_time(self, until_ms: int) -> list[Any]:
        """Fire the timer whenever it is due; the answers to clients."""
        for _ in range(1_000):
            coordinator = self.coordinator
            due = min(coordinator.deadlines.next_ms, coordinator.waiting.deadlines.next_ms)
            if due > until_ms:
                self.now_ms = until_ms
                return self.told()
            self.now_ms = max(due, self.now_ms)
            self.coordinator.on_timer(self.now_ms)
        raise AssertionError("the timer never rests")


def begin(
    request_id: int = 1, *, uuid: int = 1, ttl_ms: int = 5_000, wait: int = 900
) -> BeginBatch:
    """A task begins batch 1."""
    return BeginBatch(
        request_id, CHANNEL, "w", 1, uuid.to_bytes(16, "big"), "c", False, ttl_ms, wait
    )


def commit(
    request_id: int = 5, attempt: int = 1, *, manifest: Manifest | None = None, wait: int = 900
) -> CommitBatch:
    """The driver commits batch 1, without rows by default."""
    content = manifest or manifest_of(())
    return CommitBatch(request_id, CHANNEL, "w", 1, attempt, content, b"d", wait)


def codes(answers: list[Any]) -> list[tuple[int, str]]:
    """(request, code) of refusals."""
    assert all(isinstance(answer, Failed) for answer in answers), answers
    return [(answer.request_id, answer.code) for answer in answers]


def opened() -> World:
    """Attempt 1 is open."""
    world = World()
    world.ask(begin())
    [answer] = world.apply()
    assert (answer.verdict, answer.attempt) == (OPENED, 1)
    return world


def decided(parts: tuple[int, ...] = (0, 1)) -> World:
    """Commit 1 is decided, and its client waits until channels have applied it."""
    bench = CoordinatorBench()
    bench.begin()
    bench.commit(1, parts=parts)
    world = World(bench)
    assert world.ask(commit(manifest=manifest_of(parts), wait=60_000)) == []
    return world
