"""Each thing that happens to a coordinator lets it go on at once: it pushes, answers and sets its
timer in the same turn."""

from __future__ import annotations

from typing import Any

import pytest

from raftstore.engine.deadlines import NEVER_MS
from raftstore.engine.shares import GIVEN_UP
from raftstore.protocol.batches import (
    ADOPT,
    ALREADY,
    APPLIED,
    MISSING,
    NOT_LEADER,
    OK,
    STAGED,
    ApplyBatch,
    ApplyBatchReply,
    AskStaged,
    ChannelPart,
    EditWriter,
    Manifest,
    ResolvedWriter,
    ResolveWriter,
    StagedReply,
)
from raftstore.state_machines.batches.txn_records import Commit, Trim, encode_verdict
from raftstore.types import NodeId, Seq, Term, channel_id
from tests.batch_bench import CoordinatorBench, manifest_of
from tests.unit.engine.batches.test_coordinated_table import CHANNEL, TABLE
from tests.unit.engine.batches.test_coordinator_alone import (
    OTHER,
    THIRD,
    World,
    asked,
    begin,
    codes,
    commit,
    decided,
    opened,
)

ANOTHER = channel_id(b"another-table-id", 0)
TTL_MS = 5_000
"""Of the attempts that ``opened`` and ``asked`` have."""


def pushes(world: World) -> list[tuple[int, int]]:
    """(partition, commit) that is sent since the last call."""
    targets = {channel_id(TABLE, partition): partition for partition in (0, 1)}
    return [(targets[message.target], message.n) for _, message in world.sent(ApplyBatch)]


def say_staged(
    world: World, token: int, partition: int, reason: str, *, chunks: int = 0, rows: int = 0
) -> list[Any]:
    """A channel reports its part of a batch; the answers to clients."""
    target = channel_id(TABLE, partition)
    reply = StagedReply(CHANNEL, Term(3), target, token, reason, chunks, rows)
    world.coordinator.on_staged_reply(OTHER, reply, world.now_ms)
    return world.told()


def two_commits() -> World:
    """Commit 1 touches both channels, commit 2 the second one; both are pushed for 100 ms."""
    bench = CoordinatorBench()
    for attempt, (writer, parts) in enumerate({"u": (0, 1), "v": (1,)}.items(), 1):
        bench.begin(writer)
        bench.commit(attempt, writer, parts=parts)
    world = World(bench)
    world.coordinator.leads(world.host.runner, 0)
    assert pushes(world) == [(0, 1), (1, 1)]
    world.pass_time(100)
    return world


# --- records that are applied ---------------------------------------------------------------------


def test_commit_is_pushed_when_its_record_is_applied_and_repeated_after_a_pause() -> None:
    """Rule 4: by this very turn, and by the timer that it sets."""
    world = asked()
    token = world.sent(AskStaged)[0][1].token
    assert [say_staged(world, token, partition, STAGED) for partition in (0, 1)] == [[], []]
    [step] = world.steps()
    assert isinstance(step, Commit)
    assert world.apply() == []
    assert pushes(world) == [(0, 1), (1, 1)]
    world.pass_time(199)
    assert pushes(world) == []
    world.pass_time(200)
    assert pushes(world) == [(0, 1), (1, 1)]


def test_decided_attempt_leaves_no_timer_and_is_counted() -> None:
    """Its time to live plays no part any more."""
    world = opened()
    world.pass_time(10)
    assert world.coordinator.deadlines.next_ms == TTL_MS
    world.ask(commit())
    [answer] = world.apply()
    assert answer.verdict == OK
    assert world.coordinator.deadlines.next_ms == NEVER_MS
    totals = {name: value for name, _, value in world.coordinator.meters.samples(0)}
    assert totals["raftstore_batches_committed_total"] == 1


def test_client_hears_of_what_an_earlier_leader_wrote_down_of_its_channels() -> None:
    """They will not say it again."""
    world = decided()
    assert world.told() == []
    verdict = encode_verdict(world.bench.step(Trim(((0, 1), (1, 1)))))
    world.coordinator.on_applied(world.host.runner, ((Seq(90), verdict),), 0)
    [answer] = world.told()
    assert (answer.request_id, answer.verdict, answer.n) == (5, OK, 1)


def test_batch_that_is_in_the_table_already_opens_nothing() -> None:
    """Its task gets that answer, and no time runs."""
    world = decided()
    for partition in (0, 1):
        world.say_applied(partition, 1)
    world.pass_time(2_000)
    world.apply()
    [answer] = world.ask(begin(7))
    assert (answer.verdict, answer.n) == (ALREADY, 1)
    world.pass_time(2_001)
    assert world.coordinator.deadlines.next_ms == NEVER_MS


def test_client_that_was_told_that_it_waited_too_long_hears_nothing_more() -> None:
    """One answer for each request; a wait of 0 ms is one of 1 ms."""
    world = World()
    assert world.ask(begin(1, wait=0)) == []
    world.ask(begin(2, wait=50))
    assert world.pass_time(0) == []
    assert codes(world.pass_time(1)) == [(1, "batch_pending")]
    assert codes(world.pass_time(60)) == [(2, "batch_pending")]
    assert world.apply() == []


# --- words of channels ----------------------------------------------------------------------------


def test_channels_next_commit_follows_at_once_when_it_has_applied_one() -> None:
    """Rule 4; it is repeated after a pause of its own."""
    world = two_commits()
    world.say_applied(1, 1)
    assert pushes(world) == [(1, 2)]
    world.say_applied(0, 1)
    world.pass_time(299)
    assert pushes(world) == []
    world.pass_time(300)
    assert pushes(world) == [(1, 2)]
    world.say_applied(1, 2)
    assert world.coordinator.deadlines.next_ms == 1_000, "only the log is to hear of it"


def test_push_that_another_answer_made_needless_is_not_sent() -> None:
    """A message to this node itself is answered while the others are still being sent."""
    bench = CoordinatorBench()
    for attempt, (writer, parts) in enumerate({"u": (0, 1), "v": (1,)}.items(), 1):
        bench.begin(writer)
        bench.commit(attempt, writer, parts=parts)
    world = World(bench)
    deliver = world.host.deliver

    def answering(to: NodeId, message: Any) -> None:
        deliver(to, message)
        if message.target == channel_id(TABLE, 0):
            reply = ApplyBatchReply(CHANNEL, Term(3), channel_id(TABLE, 1), 1, 1, APPLIED)
            world.coordinator.on_apply_reply(OTHER, reply, 0)

    world.host.deliver = answering  # type: ignore[method-assign]
    world.coordinator.leads(world.host.runner, 0)
    assert pushes(world) == [(0, 1), (1, 2)]


def test_channel_without_a_known_leader_is_pushed_to_when_it_has_one() -> None:
    """The other one is not kept waiting."""
    world = decided()
    world.host.leaders[channel_id(TABLE, 0)] = None
    world.coordinator.leads(world.host.runner, 0)
    assert pushes(world) == [(1, 1)]
    world.host.leaders.clear()
    world.pass_time(200)
    assert pushes(world) == [(0, 1), (1, 1)]


def test_words_for_a_leadership_that_is_not_here_say_nothing() -> None:
    """It has ended, or was never here."""
    world = asked()
    staged = StagedReply(ANOTHER, Term(3), ANOTHER, 1, STAGED)
    world.coordinator.on_staged_reply(OTHER, staged, 0)
    applied = ApplyBatchReply(ANOTHER, Term(3), ANOTHER, 1, 1, APPLIED)
    world.coordinator.on_apply_reply(OTHER, applied, 0)
    assert (world.told(), world.steps()) == ([], [])


def test_second_replica_that_names_a_leader_causes_no_question() -> None:
    """Until the pause is over."""
    world = asked()
    token = world.sent(AskStaged)[0][1].token
    for hint in (THIRD, NodeId("n4")):
        target = channel_id(TABLE, 0)
        reply = StagedReply(CHANNEL, Term(3), target, token, NOT_LEADER, leader_hint=hint)
        world.coordinator.on_staged_reply(OTHER, reply, 0)
    assert [to for to, _ in world.host.sent] == [THIRD]


def test_floors_are_asked_of_the_coordinator_of_the_same_table_alone() -> None:
    """A channel that is not here, or of another table, knows none of them."""
    world = opened()
    ask = ResolveWriter(CHANNEL, Term(1), channel_id(TABLE, 1), ("w",))
    world.coordinator.on_resolve(OTHER, ask)
    assert len(world.sent(ResolvedWriter)) == 1
    foreign = ResolveWriter(CHANNEL, Term(1), channel_id(b"another-table-id", 1), ("w",))
    world.coordinator.on_resolve(OTHER, foreign)
    world.host.channels.clear()
    world.coordinator.on_resolve(OTHER, ask)
    assert world.host.sent == []


def test_leadership_of_a_table_without_batches_costs_nothing() -> None:
    """No memory and no timer, until somebody begins one."""
    world = World()
    world.coordinator.leads(world.host.runner, 0)
    assert world.coordinator.deadlines.next_ms == NEVER_MS


# --- what channels are asked ----------------------------------------------------------------------


def test_question_is_repeated_also_when_nothing_else_set_the_timer() -> None:
    """The commit itself does."""
    world = opened()
    world.pass_time(100)
    assert world.coordinator.deadlines.next_ms == TTL_MS
    world.ask(commit(manifest=manifest_of((0, 1)), wait=60_000))
    assert len(world.sent(AskStaged)) == 2
    world.pass_time(300)
    assert len(world.sent(AskStaged)) == 2


@pytest.mark.parametrize("reason", [STAGED, MISSING])
def test_channels_that_have_answered_are_asked_no_more(reason: str) -> None:
    """The timer is that of the attempt again."""
    world = opened()
    world.pass_time(10)
    world.ask(commit(manifest=manifest_of((1,)), wait=60_000))
    token = world.sent(AskStaged)[0][1].token
    assert world.coordinator.deadlines.next_ms == 210
    say_staged(world, token, 1, reason)
    assert world.coordinator.deadlines.next_ms == TTL_MS


def test_batch_that_is_not_all_there_is_refused_with_what_is() -> None:
    """Which partition, and how much of what."""
    world = opened()
    part = ChannelPart(1, 4, 40, 400, 5)
    world.ask(commit(manifest=Manifest(0, ((0, 7),), (part,), 40)))
    token = world.sent(AskStaged)[0][1].token
    [answer] = say_staged(world, token, 1, MISSING, chunks=3, rows=30)
    assert answer.code == "batch_incomplete"
    assert "lists 4 chunks with 40 rows in partition 1, and 3 with 30 rows" in answer.message


# --- bounds ---------------------------------------------------------------------------------------


def test_refusal_of_a_client_that_waits_for_too_much_names_the_setting() -> None:
    """With how much it holds, and what an operator may change."""
    world = World()
    for number in range(1, 101):
        assert world.ask(begin(number, uuid=number)) == []
    [answer] = world.ask(begin(101, uuid=101))
    assert "holds 100 batch requests and wants 1 more" in answer.message
    assert "(batch.waiting_max)" in answer.message


def test_largest_holder_gives_up_its_newest_request_when_others_need_the_place() -> None:
    """It gets that answer, and its channels are asked for it no more."""
    world = opened()
    whole = manifest_of((1,))
    for client in (1, 2):
        for number in range(100):
            request_id = 1_000 * client + number
            assert world.ask(commit(request_id, manifest=whole, wait=60_000), client) == []
    tokens = [question.token for _, question in world.sent(AskStaged)]
    assert len(tokens) == 200
    [answer] = world.ask(EditWriter(3, CHANNEL, "w", ADOPT, "new", 900), 3)
    assert (answer.request_id, answer.code, answer.message) == (1_099, "batch_pending", GIVEN_UP)
    world.pass_time(200)
    again = {question.token for _, question in world.sent(AskStaged)}
    assert again == set(tokens) - {tokens[99]}
