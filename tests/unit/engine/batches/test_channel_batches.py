"""Micro-batches at one channel that is led here: what is taken, answered, written down and
asked."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from raftstore.config import BatchSettings
from raftstore.core.chain import digest_of
from raftstore.engine.batches import participant as channel_batches
from raftstore.engine.batches.participant import ChannelBatches
from raftstore.engine.deadlines import NEVER_MS
from raftstore.errors import Refusal, UnavailableError
from raftstore.protocol.batches import (
    APPLIED,
    BUSY,
    MISSING,
    NOT_LEADER,
    NOT_YET,
    STAGED,
    ApplyBatch,
    AskStaged,
    ChannelPart,
    ResolvedWriter,
    ResolveWriter,
)
from raftstore.protocol.payload import encode_rows
from raftstore.protocol.publish import PubAck, PubMsg, PubReject
from raftstore.protocol.staged import BatchApply, ChunkHeader, decode_apply, encode_staged
from raftstore.state_machines.batches.staging import part_of
from raftstore.state_machines.batches.txn_records import Drop, decode_step
from raftstore.state_machines.state_keys import packed
from raftstore.types import ChannelId, NodeId, RecordKind, Role, Seq, Term, channel_id, make_guid
from tests.batch_bench import ChannelBench
from tests.unit.engine.batches.test_coordinated_table import TABLE, Tables

CHANNEL = channel_id(TABLE, 1)
COORDINATOR = channel_id(TABLE, 0)
ME, OTHER, THIRD = NodeId("n1"), NodeId("n2"), NodeId("n3")
ASK_MS = 1_000
SETTINGS = BatchSettings(ask_ms=ASK_MS, chunks_max=3, staged_bytes_max=1_000)


class Host:
    """The node; what it sends and proposes is kept."""

    def __init__(self) -> None:
        self.me = ME
        self.bench = ChannelBench(1)
        self.tables = Tables(self.bench.state)
        elector = SimpleNamespace(term=Term(3), role=Role.LEADER, leader=ME)
        core = SimpleNamespace(leader_is_ready=True)
        self.reads: list[tuple[Any, Any, int]] = []
        """What goes on when a quorum confirmed the leader, or did not, and when it was asked."""
        self.runner: Any = SimpleNamespace(
            channel=CHANNEL,
            name="orders/1",
            elector=elector,
            core=core,
            request_read=lambda *asked: self.reads.append(asked),
        )
        self.channels = {CHANNEL: self.runner}
        self.proposals = SimpleNamespace(propose=self._propose)
        self.proposed: list[tuple[bytes, Any, dict[str, Any]]] = []
        self.refusal: Refusal | None = None
        self.leaders: dict[ChannelId, NodeId | None] = {COORDINATOR: OTHER}
        self.sent: list[tuple[NodeId, Any]] = []

    def _propose(self, runner: Any, payload: bytes, done: Any, now_ms: int, **how: Any) -> None:
        assert runner is self.runner
        self.proposed.append((payload, done, how))

    def leader_of(self, channel: ChannelId) -> tuple[NodeId | None, Term]:
        return self.leaders[channel], Term(5)

    def serving_refusal(self, runner: Any) -> Refusal | None:
        return self.refusal

    def deliver(self, to: NodeId, message: Any) -> None:
        self.sent.append((to, message))

    def take(self) -> list[tuple[NodeId, Any]]:
        """Return and forget the messages sent since the last call."""
        sent, self.sent = self.sent, []
        return sent


class World:
    """A channel that is led here since time 0, with what its bench holds."""

    def __init__(self, *, staged: int = 0, settings: BatchSettings = SETTINGS) -> None:
        self.host = Host()
        for number in range(staged):
            self.stage(number)
        self.batches = ChannelBatches(
            self.host.channels, cast(Any, self.host.tables), *(cast(Any, self.host),) * 3, settings
        )
        self.batches.leader_changed(self.host.runner, 0)
        self.pass_time(0)

    @property
    def bench(self) -> ChannelBench:
        return self.host.bench

    def stage(self, number: int = 0, *, attempt: int = 1, writer: str = "w") -> None:
        """A chunk that is applied here."""
        self.bench.stage(ChunkHeader(writer, attempt, 0, 7, number), [(b"k%d" % number, b"v")])

    def pass_time(self, now_ms: int) -> None:
        """Fire the timer as often as it asks for until then."""
        for _ in range(1_000):
            due = self.batches.deadlines.next_ms
            if due > now_ms:
                return
            self.batches.on_timer(due)
        raise AssertionError("the timer never rests")

    def refusal(self, *, attempt: int = 1, writer: str = "w", tries: int = 0, size: int = 1) -> str:
        """Why a chunk is not taken; empty: it is."""
        header = ChunkHeader(writer, attempt, 0, 7, 0)
        payload = encode_staged(header, encode_rows([(b"k" * size, None)]))
        message = PubMsg(
            CHANNEL, Term(3), ME, make_guid(b"session1", 1), digest_of(payload), 1,
            RecordKind.STAGED, payload, attempt=tries,
        )  # fmt: skip
        refused = self.batches.stage_refusal(self.host.runner, message)
        return "" if refused is None else refused.error.code

    def part(self) -> ChannelPart:
        """All that is staged of attempt 1."""
        return part_of(1, self.bench.refs("w", 1))

    def ask(self, part: ChannelPart, *, channel: ChannelId = COORDINATOR) -> list[Any]:
        """The coordinator asks for a part; what is reported at once."""
        question = AskStaged(channel, Term(4), CHANNEL, 9, "w", 1, ((0, 7),), part)
        self.batches.on_ask_staged(OTHER, question, 10)
        return self.host.take()

    def apply_message(self, n: int, prev: int, *, channel: ChannelId = COORDINATOR) -> ApplyBatch:
        """The coordinator's message that applies batch ``n`` after ``prev``."""
        part = self.part()
        return ApplyBatch(
            channel, Term(4), CHANNEL, n, prev, "w", n, 1, 0, ((0, 7),), part, (0, n), 1_000
        )

    def push(self, n: int, prev: int, sender: NodeId = OTHER) -> list[tuple[NodeId, str, int]]:
        """The coordinator pushes a commit; (to, reason, applied) answered at once."""
        self.batches.on_apply_batch(sender, self.apply_message(n, prev), 10)
        return [(to, reply.reason, reply.applied) for to, reply in self.host.take()]

    def applied(self, n: int, prev: int) -> list[tuple[NodeId, str, int]]:
        """The record of a commit is applied here; what is reported."""
        message = self.apply_message(n, prev)
        batch = BatchApply(
            n, prev, "w", n, 1, 0, message.winners, message.part, message.vector, 1_000
        )
        self.bench.apply(batch)
        self.batches.on_applied(self.host.runner, 20)
        return [(to, reply.reason, reply.applied) for to, reply in self.host.take()]


def resolved(*floors: tuple[str, int], channel: ChannelId = COORDINATOR) -> ResolvedWriter:
    """The coordinator's word on finished attempts."""
    return ResolvedWriter(channel, Term(4), CHANNEL, floors)


# --- staging --------------------------------------------------------------------------------------


def test_chunks_of_finished_attempts_are_refused_and_those_of_the_next_are_not() -> None:
    """Rule 6: per writer, and what was reported once stays."""
    world = World()
    world.batches.on_resolved(resolved(("w", 4), ("v", 1)), 10)
    world.batches.on_resolved(resolved(("w", 2)), 10)
    assert world.refusal(attempt=4) == "attempt_closed"
    assert world.refusal(attempt=5) == ""
    assert world.refusal(attempt=2, writer="v") == ""
    assert world.refusal(attempt=1, writer="v") == "attempt_closed"


def test_chunks_are_bounded_by_number_and_a_repeated_one_counts_once() -> None:
    """Those that are staged, and those that were admitted since."""
    world = World(staged=1)
    assert world.refusal() == ""
    assert [world.refusal(tries=n) for n in (1, 2, 3)] == ["", "", ""]
    assert world.refusal() == ""
    assert world.refusal() == "overloaded"
    assert world.refusal(tries=1) == "overloaded"


def test_chunks_are_bounded_by_bytes() -> None:
    """The bound itself may be reached."""
    world = World()
    small = encode_staged(ChunkHeader("w", 1, 0, 7, 0), encode_rows([(b"k", None)]))
    fitting = 1_000 - len(small)
    assert world.refusal(size=fitting) == "", "its header has other bytes for the length"
    assert world.refusal(size=fitting) == "overloaded"
    world = World()
    assert world.refusal(size=1_001) == "overloaded"
    assert world.refusal(size=1) == "", "a smaller one may follow"


def test_full_channel_counts_again_at_its_next_look() -> None:
    """Given a channel at its bound of staged rows, it refuses more until its next count: admitted
    rows may never have been staged, or are gone.
    """
    world = World(staged=2)
    assert world.refusal() == ""
    assert world.refusal() == "overloaded"
    world.pass_time(ASK_MS - 1)
    assert world.refusal() == "overloaded"
    world.pass_time(ASK_MS + 1)
    assert world.refusal() == ""


def test_channel_that_is_not_full_is_not_counted_again() -> None:
    """Counting costs turns of the loop; admitted chunks were counted already."""
    world = World(staged=1)
    assert world.refusal() == ""
    world.bench.drop("w", 1)
    world.pass_time(5 * ASK_MS)
    assert world.refusal() == ""
    assert world.refusal() == "overloaded"


def test_index_of_chunks_is_counted_in_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    """A turn looks at a bounded number; every chunk counts once, wherever the turn ends."""
    monkeypatch.setattr(channel_batches, "REFS_PER_TURN", 2)
    for staged in range(1, 6):
        settings = BatchSettings(ask_ms=ASK_MS, chunks_max=staged + 1)
        world = World(staged=staged, settings=settings)
        world.pass_time(10)
        assert (world.refusal(), world.refusal()) == ("", "overloaded")


def test_node_that_does_not_lead_refuses_no_chunk_and_sends_nothing() -> None:
    """The core says who leads; nothing of a leadership outlives it."""
    world = World()
    world.batches.on_resolved(resolved(("w", 4)), 10)
    world.host.runner.elector.role = Role.FOLLOWER
    world.batches.leader_changed(world.host.runner, 10)
    assert world.refusal(attempt=1) == ""
    world.host.runner.elector.role = Role.LEADER
    world.batches.leader_changed(world.host.runner, 20)
    assert world.refusal(attempt=1) == "", "another leadership begins anew"
    world.batches.on_channel_closed(world.host.runner)
    assert world.push(1, 0) == [(OTHER, NOT_LEADER, 0)]


# --- before a batch is decided --------------------------------------------------------------------


def test_part_that_is_here_is_confirmed_at_once() -> None:
    """The answer has the names of the question and goes to its sender."""
    world = World(staged=2)
    [(to, reply)] = world.ask(world.part())
    assert (to, reply.reason, reply.token, reply.target) == (OTHER, STAGED, 9, CHANNEL)
    assert (reply.channel, reply.term) == (COORDINATOR, Term(4))
    assert world.host.reads == []


@pytest.mark.parametrize("change", ["follower", "not ready", "not served"])
def test_only_a_leader_that_is_ready_answers_for_its_channel(change: str) -> None:
    """S7.1: others name who leads, as far as they know."""
    world = World(staged=1)
    world.host.runner.elector.leader = THIRD
    if change == "follower":
        world.host.runner.elector.role = Role.FOLLOWER
        world.batches.leader_changed(world.host.runner, 5)
    elif change == "not ready":
        world.host.runner.core.leader_is_ready = False
    else:
        world.host.refusal = Refusal(UnavailableError, "stopped")
    [(to, reply)] = world.ask(world.part())
    assert (to, reply.reason, reply.leader_hint) == (OTHER, NOT_LEADER, THIRD)
    assert world.push(1, 0) == [(OTHER, NOT_LEADER, 0)]
    assert world.host.proposed == []


def test_part_that_is_not_here_is_called_missing_after_a_quorum_spoke() -> None:
    """With what was found; what came in between counts."""
    world = World(staged=1)
    two = part_of(1, [*world.bench.refs("w", 1)])
    wanted = ChannelPart(1, two.chunks + 1, two.rows + 1, 2 * two.bytes, two.check)
    assert world.ask(wanted) == []
    [(confirmed, _, _)] = world.host.reads
    confirmed(Seq(9))
    [(to, reply)] = world.host.take()
    assert (to, reply.reason, reply.chunks, reply.rows) == (OTHER, MISSING, 1, 1)

    assert world.ask(ChannelPart(1, 2, 2, 0, 0)) == []
    world.stage(1)
    assert world.ask(world.part())[0][1].reason == STAGED
    question = world.part()
    refs = world.bench.refs("w", 1)
    world.bench.state.write(tuple((ref.key, None) for ref in refs))
    assert world.ask(question) == []
    world.bench.state.write(tuple((ref.key, packed(ref)) for ref in refs))
    world.host.reads[-1][0](Seq(9))
    assert [reply.reason for _, reply in world.host.take()] == [STAGED]


def test_each_question_to_a_quorum_is_answered_by_itself() -> None:
    """Nothing is answered where nobody confirmed the leader: the coordinator asks again."""
    world = World()
    for _ in range(2):
        world.ask(ChannelPart(1, 1, 1, 10, 5))
    first, second = world.host.reads
    first[1](UnavailableError, "no quorum")
    assert world.host.take() == [], "it is asked again"
    second[0](Seq(9))
    assert len(world.host.take()) == 1


def test_leadership_that_ended_meanwhile_calls_nothing_missing() -> None:
    """The next leader is asked."""
    world = World()
    world.ask(ChannelPart(1, 1, 1, 10, 5))
    world.host.runner.elector.role = Role.FOLLOWER
    world.batches.leader_changed(world.host.runner, 5)
    world.host.reads[0][0](Seq(9))
    assert world.host.take() == []


def test_words_of_another_table_are_not_heard() -> None:
    """S0.8: nodes that do not know of the drop yet may name a channel of a dropped table."""
    world = World(staged=1)
    world.pass_time(ASK_MS)
    unknown = channel_id(b"another-table-id", 0)
    assert world.ask(world.part(), channel=unknown) == []
    world.batches.on_apply_batch(OTHER, world.apply_message(1, 0, channel=unknown), 10)
    world.batches.on_resolved(resolved(("w", 9), channel=unknown), 10)
    assert world.host.take() == []
    assert world.host.proposed == []
    assert world.refusal() == ""


def test_channel_that_this_node_does_not_host_gets_no_word() -> None:
    """S0.8: nobody waits for a dropped one."""
    world = World(staged=1)
    part, push = world.part(), world.apply_message(1, 0)
    world.batches.on_channel_closed(world.host.runner)
    del world.host.channels[CHANNEL]
    assert world.ask(part) == []
    world.batches.on_apply_batch(OTHER, push, 10)
    world.batches.on_resolved(resolved(("w", 9)), 10)
    world.batches.on_applied(world.host.runner, 10)
    assert world.host.take() == []
    assert world.host.proposed == []


# --- applying -------------------------------------------------------------------------------------


def test_decided_batch_becomes_one_record_and_is_told_when_it_is_applied() -> None:
    """To everybody who asked meanwhile, each once, whatever leads the coordinator."""
    world = World(staged=2)
    assert world.push(1, 0) == []
    [(payload, _, how)] = world.host.proposed
    assert how == {"kind": RecordKind.BATCH_APPLY, "rows": 2}
    batch = decode_apply(payload)
    assert (batch.n, batch.prev, batch.writer, batch.part) == (1, 0, "w", world.part())
    assert world.push(1, 0) == []
    assert world.push(1, 0, sender=THIRD) == []
    assert len(world.host.proposed) == 1
    assert world.applied(1, 0) == [(OTHER, APPLIED, 1), (THIRD, APPLIED, 1)]
    assert world.push(1, 0) == [(OTHER, APPLIED, 1)]
    world.batches.on_applied(world.host.runner, 30)
    assert world.host.take() == []


def test_only_what_is_applied_is_told_of_several_that_wait() -> None:
    """A record of a commit may be in the log long before it is applied."""
    world = World(staged=1)
    world.push(1, 0)
    world.batches.on_applied(world.host.runner, 15)
    assert world.host.take() == [], "another record was applied"
    assert world.applied(1, 0) == [(OTHER, APPLIED, 1)]


def test_batch_out_of_its_turn_is_put_off() -> None:
    """Rule 4: along the chain of the commits that touch this channel."""
    world = World(staged=1)
    assert world.push(3, 2) == [(OTHER, NOT_YET, 0)]
    assert world.host.proposed == []
    world.push(2, 0)
    world.applied(2, 0)
    assert world.push(3, 2) == []
    assert world.push(5, 3) == [(OTHER, NOT_YET, 2)]
    assert len(world.host.proposed) == 2


def test_batch_whose_record_was_refused_is_told_busy_and_may_be_pushed_again() -> None:
    """All who asked are answered; an acknowledged record alone says nothing yet."""
    world = World(staged=1)
    world.push(1, 0)
    world.push(1, 0, sender=THIRD)
    [(_, done, _)] = world.host.proposed
    guid = make_guid(b"session1", 1)
    done(PubReject(CHANNEL, Term(3), guid, "overloaded", "later"), 15)
    told = [(to, reply.reason, reply.applied) for to, reply in world.host.take()]
    assert told == [(OTHER, BUSY, 0), (THIRD, BUSY, 0)]
    assert world.push(1, 0) == []
    [_, (_, done, _)] = world.host.proposed
    done(PubAck(CHANNEL, Term(3), guid, Seq(2), Seq(2), Term(3), "fsync", 2), 15)
    assert world.host.take() == []


def test_applied_batch_gives_room_for_chunks() -> None:
    """Its chunks are counted no more, at the next turn."""
    world = World(staged=3)
    assert world.refusal() == "overloaded"
    world.push(1, 0)
    world.applied(1, 0)
    world.pass_time(30)
    assert world.refusal() == ""


# --- garbage --------------------------------------------------------------------------------------


def test_old_chunks_are_asked_about_at_the_second_look() -> None:
    """Only writers whose oldest attempt is the same as before: others are at work."""
    world = World()
    world.stage(0)
    world.pass_time(ASK_MS)
    assert world.host.take() == [], "they may be a moment old"
    world.stage(0, writer="young")
    world.pass_time(2 * ASK_MS)
    [(to, question)] = world.host.take()
    assert to == OTHER
    assert question == ResolveWriter(COORDINATOR, Term(5), CHANNEL, ("w",))
    world.bench.drop("w", 1)
    world.stage(0, attempt=2)
    world.pass_time(3 * ASK_MS)
    assert [asked.writers for _, asked in world.host.take()] == [("young",)]


def test_coordinator_without_a_leader_is_asked_later() -> None:
    """Nothing is sent to nobody."""
    world = World(staged=1)
    world.host.leaders[COORDINATOR] = None
    world.pass_time(5 * ASK_MS)
    assert world.host.take() == []
    world.host.leaders[COORDINATOR] = OTHER
    world.pass_time(6 * ASK_MS)
    assert len(world.host.take()) == 1


def test_chunks_of_finished_attempts_are_dropped_by_one_record() -> None:
    """Rule 6: only what was seen here, only up to the floor, and one record at a time."""
    world = World(staged=1)
    world.pass_time(ASK_MS)
    world.batches.on_resolved(resolved(("w", 0), ("unknown", 7)), 10)
    assert world.host.proposed == []
    world.batches.on_resolved(resolved(("w", 1)), 10)
    world.batches.on_resolved(resolved(("w", 1)), 10)
    [(payload, done, how)] = world.host.proposed
    assert how == {"kind": RecordKind.TXN}
    assert decode_step(payload) == Drop("w", 1)
    done(PubReject(CHANNEL, Term(3), make_guid(b"session1", 1), "overloaded", "later"), 15)
    world.batches.on_resolved(resolved(("w", 1)), 20)
    assert len(world.host.proposed) == 2, "it was refused, and is tried again"


def test_dropped_chunks_give_room() -> None:
    """They are counted no more, at the next turn after the record is there."""
    world = World(staged=3)
    world.pass_time(ASK_MS)
    assert world.refusal(attempt=2) == "overloaded"
    world.batches.on_resolved(resolved(("w", 1)), ASK_MS)
    [(_, done, _)] = world.host.proposed
    world.bench.drop("w", 1)
    done(PubAck(CHANNEL, Term(3), make_guid(b"session1", 1), Seq(4), Seq(4), Term(3), "", 2), 1_005)
    world.pass_time(1_010)
    assert world.refusal(attempt=2) == ""


def test_remembered_floors_are_bounded_and_the_newest_stay(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Given more resolved writers than the bound, the oldest floor is forgotten: its rows are
    dropped later, when the coordinator says so.
    """
    monkeypatch.setattr(channel_batches, "FLOORS_MAX", 2)
    world = World()
    for writer in "abacd":
        world.batches.on_resolved(resolved((writer, 5)), 10)
    refused = [w for w in "abcd" if world.refusal(writer=w, attempt=5) == "attempt_closed"]
    assert refused == ["c", "d"]


def test_leadership_that_goes_on_forgets_nothing() -> None:
    """The elector reports every change, also one that does not concern this replica's role."""
    world = World()
    world.batches.on_resolved(resolved(("w", 4)), 10)
    world.batches.leader_changed(world.host.runner, 20)
    assert world.refusal(attempt=4) == "attempt_closed"


def test_first_look_comes_a_period_after_the_leadership_began() -> None:
    """Chunks of the leader before may be a moment old; a timer that is early looks at nothing."""
    world = World(staged=1)
    world.host.runner.elector.role = Role.FOLLOWER
    world.batches.leader_changed(world.host.runner, 100)
    world.host.runner.elector.role = Role.LEADER
    world.batches.leader_changed(world.host.runner, 700)
    world.pass_time(700 + ASK_MS)
    assert world.host.take() == []
    world.batches.on_timer(700 + 2 * ASK_MS - 1)
    assert world.host.take() == []
    world.pass_time(700 + 2 * ASK_MS)
    assert len(world.host.take()) == 1
    world.batches.on_timer(700 + 2 * ASK_MS)
    assert world.host.take() == []


def test_timer_looks_at_each_led_channel_once_a_period() -> None:
    """It never looks again after the leadership."""
    world = World()
    assert world.batches.deadlines.next_ms == ASK_MS
    world.batches.on_timer(ASK_MS)
    assert world.batches.deadlines.next_ms == 2 * ASK_MS
    world.host.runner.elector.role = Role.FOLLOWER
    world.batches.leader_changed(world.host.runner, ASK_MS)
    world.pass_time(10 * ASK_MS)
    assert world.batches.deadlines.next_ms == NEVER_MS
