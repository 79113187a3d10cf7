"""A new coordinator calls nothing incomplete that an earlier one decided (rule 5)."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

from raftstore.config import BatchSettings
from raftstore.engine.batches.coordinator import Coordinator
from raftstore.protocol.batches import (
    APPLIED,
    MISSING,
    OK,
    STAGED,
    ApplyBatchReply,
    BatchAnswer,
    CommitBatch,
    StagedReply,
)
from raftstore.protocol.message import Failed, Message
from raftstore.types import ChannelId, NodeId, Seq, Term, channel_id
from tests.batch_bench import CoordinatorBench, manifest_of
from tests.unit.engine.batches.test_coordinated_table import (
    CHANNEL,
    LEADER,
    TABLE,
    Tables,
    leading_runner,
)

OTHER = NodeId("n2")


class Host:
    """The node of a coordinator; what it sends and has written down is kept."""

    def __init__(self, bench: CoordinatorBench) -> None:
        self.me = LEADER
        self.runner = leading_runner()
        self.channels = {CHANNEL: self.runner}
        self.tables = Tables(bench.state)
        entry = SimpleNamespace(name="orders", partitions=2)
        self.catalog = SimpleNamespace(table_of=lambda channel: entry, dropped_writers={})
        self.proposals = SimpleNamespace(propose=self._propose)
        self.proposed: list[bytes] = []
        self.answers: list[Message] = []
        self.sent: list[tuple[NodeId, Any]] = []

    def _propose(self, runner: Any, payload: bytes, *_: Any, **__: Any) -> None:
        self.proposed.append(payload)

    def refusal_of(self, kind: Any) -> None:
        return None

    def serving_refusal(self, runner: Any) -> None:
        return None

    def leader_of(self, channel: ChannelId) -> tuple[NodeId, Term]:
        return OTHER, Term(1)

    def answer(self, client: int, message: Message) -> None:
        self.answers.append(message)

    def deliver(self, to: NodeId, message: Any) -> None:
        self.sent.append((to, message))


class World:
    """Attempt 1 of a writer is open, and its client asks a new coordinator to commit it."""

    def __init__(self) -> None:
        self.bench = CoordinatorBench()
        self.bench.begin()
        self.host = Host(self.bench)
        self.coordinator = Coordinator(
            self.host.channels,
            cast(Any, self.host.tables),
            *(cast(Any, self.host),) * 4,
            BatchSettings(),
        )
        manifest = manifest_of((0, 1))
        request = CommitBatch(5, CHANNEL, "w", 1, 1, manifest, b"d", 1_000)
        self.coordinator.on_request(9, request, 0)
        self.tokens = [message.token for _, message in self.host.sent]
        assert len(self.tokens) == 2, "each channel is asked"

    def say(self, partition: int, reason: str, *, term: int = 3) -> None:
        """The leader of a partition answers."""
        reply = StagedReply(
            CHANNEL, Term(term), channel_id(TABLE, partition), self.tokens[partition], reason
        )
        self.coordinator.on_staged_reply(OTHER, reply, 10)

    def applied(self, partition: int, n: int) -> None:
        """A channel has applied a commit."""
        target = channel_id(TABLE, partition)
        reply = ApplyBatchReply(CHANNEL, Term(3), target, n, n, APPLIED)
        self.coordinator.on_apply_reply(OTHER, reply, 20)


def test_batch_that_is_committed_and_not_applied_here_is_not_called_incomplete() -> None:
    """Its chunks are gone because channels have applied it: the state here is the older one."""
    world = World()
    world.host.runner.core.commit_seq = Seq(2)
    world.host.tables.applied = Seq(1)
    world.say(0, MISSING)
    world.say(1, MISSING)
    assert world.host.answers == []
    world.host.tables.applied = Seq(2)
    world.bench.commit(1)  # now it is applied
    world.say(1, MISSING)
    assert world.host.answers == [], "and the channels have not said that they have applied it"
    world.applied(0, 1)
    world.applied(1, 1)
    [answer] = world.host.answers
    assert isinstance(answer, BatchAnswer)
    assert (answer.verdict, answer.n, answer.rows) == (OK, 1, 2)


def test_batch_that_was_decided_while_its_channels_were_asked_is_not_called_incomplete() -> None:
    """Its own record is judged again before anybody is answered that rows are missing."""
    world = World()
    world.bench.commit(1)
    world.applied(0, 1)
    world.applied(1, 1)
    world.say(0, MISSING)
    [answer] = world.host.answers
    assert isinstance(answer, BatchAnswer)
    assert (answer.verdict, answer.n) == (OK, 1)
    assert world.host.proposed == []


def test_batch_that_nobody_staged_and_nobody_decided_is_incomplete() -> None:
    """The answer that the two above are not."""
    world = World()
    world.say(1, MISSING)
    [answer] = world.host.answers
    assert isinstance(answer, Failed)
    assert answer.code == "batch_incomplete"
    assert "in partition 1" in answer.message
    world.say(0, STAGED)
    assert world.host.proposed == []


def test_batch_is_decided_once_when_every_channel_has_said_yes() -> None:
    """A yes that is repeated, or of another leadership, is none."""
    world = World()
    world.say(0, STAGED)
    world.say(0, STAGED)
    world.say(1, STAGED, term=2)
    assert world.host.proposed == []
    world.say(1, STAGED)
    world.say(1, STAGED)
    assert len(world.host.proposed) == 1
    assert world.host.answers == []
