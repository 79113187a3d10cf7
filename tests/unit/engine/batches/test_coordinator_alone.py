"""The coordinator without a cluster: whom it refuses, what it writes down and what it sends."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest

from raftstore.engine.batches import coordinator as coordinator_module
from raftstore.engine.deadlines import NEVER_MS
from raftstore.errors import Refusal, UnavailableError
from raftstore.protocol.batches import (
    ADOPT,
    APPLIED,
    BUSY,
    NOT_LEADER,
    NOT_YET,
    OK,
    OPENED,
    REMOVE,
    STAGED,
    TRUNCATE,
    ApplyBatch,
    ApplyBatchReply,
    AskStaged,
    BatchAnswer,
    CloseBatch,
    EditWriter,
    ResolvedWriter,
    ResolveWriter,
    StagedReply,
    Writers,
    WritersAnswer,
)
from raftstore.protocol.message import Done
from raftstore.state_machines.batches.txn_records import (
    Adopt,
    Begin,
    Close,
    Commit,
    Remove,
    Trim,
    decode_verdict,
    encode_verdict,
)
from raftstore.types import ChannelId, NodeId, Role, Seq, Term, channel_id
from tests.batch_bench import CoordinatorBench, manifest_of
from tests.unit.engine.batches.test_coordinated_table import CHANNEL, LEADER, TABLE, leading_runner
from tests.unit.engine.coordinator_bench import (
    OTHER,
    SETTINGS,
    THIRD,
    World,
    begin,
    codes,
    commit,
    decided,
    opened,
)

# --- whom it refuses ------------------------------------------------------------------------------


def test_follower_names_the_leader_if_it_knows_one() -> None:
    """A client finds the coordinator from any replica."""
    world = World()
    elector = world.host.runner.elector
    elector.role, elector.leader = Role.FOLLOWER, OTHER
    [answer] = world.ask(begin())
    assert (answer.code, answer.leader_hint) == ("not_leader", OTHER)
    elector.leader = None
    [answer] = world.ask(begin(2))
    assert (answer.request_id, answer.code, answer.leader_hint) == (2, "no_leader", None)
    assert world.host.proposed == []


def test_leader_that_is_not_ready_decides_nothing() -> None:
    """S7.1: what an earlier leader decided may not be in its state."""
    world = World()
    world.host.runner.core.leader_is_ready = False
    assert codes(world.ask(begin())) == [(1, "no_leader")]
    world.host.runner.core.leader_is_ready = True
    assert world.ask(begin()) == []


@pytest.mark.parametrize("why", ["serving", "level"])
def test_what_the_node_refuses_is_refused(why: str) -> None:
    """A channel that stopped, or nodes that cannot read such records yet."""
    world = World()
    world.host.refusals[why] = Refusal(UnavailableError, "not now")
    assert codes(world.ask(begin())) == [(1, "unavailable")]


def test_only_partition_0_of_a_table_coordinates() -> None:
    """Others say so, and a channel that is not here is not known."""
    world = World()
    other = channel_id(TABLE, 1)
    request = Writers(7, other, 1_000)
    assert codes(world.ask(request)) == [(7, "unknown_channel")]
    world.host.runner.channel = other
    world.host.channels[other] = world.host.runner
    assert codes(world.ask(request)) == [(7, "schema")]
    world.host.catalog.table_of = lambda channel: None
    assert codes(world.ask(request)) == [(7, "unknown_channel")]


def test_requests_that_wait_are_bounded() -> None:
    """Those that are answered give room."""
    world = World()
    for number in range(1, 200):
        answers = world.ask(begin(number, uuid=number))
        if answers:
            break
    assert codes(answers) == [(number, "overloaded")]
    assert number == 101
    world.refuse("overloaded")
    assert world.ask(begin(300, uuid=300)) == []


# --- what it writes down --------------------------------------------------------------------------


def test_tasks_of_one_batch_share_a_record_and_another_batch_has_its_own() -> None:
    """Until that record is answered: then the state has it, or the next task tries again."""
    world = World()
    for number in (1, 2, 3):
        world.ask(begin(number))
    world.ask(begin(4, uuid=2))
    steps = world.steps()
    assert [type(step) for step in steps] == [Begin, Begin]
    assert (steps[0].writer, steps[0].batch_id, steps[0].ttl_ms) == ("w", 1, 5_000)
    assert (steps[0].partitions, steps[0].lineage) == (2, "c")
    told = world.apply()
    assert [(a.request_id, a.attempt) for a in told] == [(1, 1), (2, 1), (3, 1), (4, 2)]


def test_refused_record_is_told_to_all_who_wait_for_it_and_tried_again() -> None:
    """Its own code and text, each client once."""
    world = World()
    world.ask(begin(1))
    world.ask(begin(2))
    assert codes(world.refuse("overloaded")) == [(1, "overloaded"), (2, "overloaded")]
    world.ask(begin(3))
    assert len(world.steps()) == 1
    assert [a.request_id for a in world.apply()] == [3]


def test_attempt_without_a_time_of_its_own_has_that_of_the_settings() -> None:
    """This leader closes the attempt when that time is over."""
    world = World()
    world.ask(begin(ttl_ms=0))
    [step] = world.steps()
    assert step.ttl_ms == SETTINGS.attempt_ttl_ms
    world.apply()
    world.pass_time(SETTINGS.attempt_ttl_ms - 1)
    assert world.steps() == []
    world.pass_time(SETTINGS.attempt_ttl_ms)
    assert world.steps() == [Close("w", 1)]


def test_each_request_becomes_its_step() -> None:
    """CLOSE, and what operators change of a writer."""
    world = opened()
    world.ask(CloseBatch(2, CHANNEL, "w", 1, 900))
    world.ask(EditWriter(3, CHANNEL, "w", ADOPT, "new", 900))
    world.ask(EditWriter(4, CHANNEL, "w", REMOVE, None, 900))
    assert world.steps() == [Close("w", 1), Adopt("w", "new"), Remove("w")]
    assert codes(world.ask(EditWriter(5, CHANNEL, "w", "paint", None, 900))) == [(5, "schema")]
    told = world.apply()
    assert [(type(a), a.request_id) for a in told] == [(Done, 2), (Done, 3), (Done, 4)]


@pytest.mark.parametrize(
    "request_made",
    [
        CloseBatch(2, CHANNEL, "", 1, 900),
        EditWriter(2, CHANNEL, "w" * 257, REMOVE, None, 900),
        EditWriter(2, CHANNEL, "w", ADOPT, "c" * 257, 900),
    ],
)
def test_names_that_no_record_may_hold_are_refused(request_made: Any) -> None:
    """Before anything is written down."""
    world = opened()
    assert codes(world.ask(request_made)) == [(2, "schema")]
    assert world.steps() == []
    assert world.ask(EditWriter(3, CHANNEL, "w", ADOPT, "c" * 256, 900)) == []


def test_empty_batch_is_decided_without_asking_anybody() -> None:
    """Its answer leaves when its record is applied."""
    world = opened()
    assert world.ask(commit()) == []
    [step] = world.steps()
    assert isinstance(step, Commit)
    assert (step.writer, step.batch_id, step.attempt, step.digest) == ("w", 1, 1, b"d")
    [answer] = world.apply()
    assert (answer.verdict, answer.n, answer.rows, answer.vector) == (OK, 1, 0, (0, 0))
    assert world.pass_time(100_000) == []
    assert world.steps() == [], "a decided attempt has no time that could be over"


# --- what is asked before a batch is decided ------------------------------------------------------


def asked() -> World:
    """A commit of rows in both channels waits for their word."""
    world = opened()
    world.ask(commit(manifest=manifest_of((0, 1)), wait=60_000))
    return world


def test_each_channel_is_asked_once_and_again_after_a_growing_pause() -> None:
    """All channels are asked at once, wherever their leaders are."""
    world = asked()
    questions = world.sent(AskStaged)
    assert [(to, q.target) for to, q in questions] == [
        (OTHER, channel_id(TABLE, 0)),
        (OTHER, channel_id(TABLE, 1)),
    ]
    assert {(q.writer, q.attempt, q.winners, q.term) for _, q in questions} == {
        ("w", 1, ((0, 7),), Term(3))
    }
    assert [q.part.partition for _, q in questions] == [0, 1]
    times = []
    for now in range(0, 13_000, 100):
        world.pass_time(now)
        if sent := world.sent(AskStaged):
            assert len(sent) == 2
            times.append(now)
    pauses = [after - before for before, after in zip([0, *times], times, strict=False)]
    assert pauses == [200, 400, 800, 1_600, 3_200, 5_000]


def test_channel_without_a_known_leader_is_asked_when_it_has_one() -> None:
    """The others are asked meanwhile."""
    world = opened()
    world.host.leaders[channel_id(TABLE, 0)] = None
    world.ask(commit(manifest=manifest_of((0, 1)), wait=60_000))
    assert [q.part.partition for _, q in world.sent(AskStaged)] == [1]
    world.host.leaders.clear()
    world.pass_time(200)
    assert [q.part.partition for _, q in world.sent(AskStaged)] == [0, 1]


def test_leader_that_a_replica_names_is_asked_at_once_and_only_once() -> None:
    """Two that name each other would be asked for ever; after a pause it may help again."""
    world = asked()
    token = world.sent(AskStaged)[0][1].token

    def wrong_leader(hint: NodeId | None, sender: NodeId = OTHER) -> list[NodeId]:
        target = channel_id(TABLE, 0)
        reply = StagedReply(CHANNEL, Term(3), target, token, NOT_LEADER, leader_hint=hint)
        world.coordinator.on_staged_reply(sender, reply, world.now_ms)
        return [to for to, question in world.sent(AskStaged) if question.target == target]

    assert wrong_leader(None) == []
    assert wrong_leader(OTHER) == [], "it names itself"
    assert wrong_leader(THIRD) == [THIRD]
    assert wrong_leader(THIRD) == []
    world.pass_time(200)
    world.sent(AskStaged)
    assert wrong_leader(THIRD) == [THIRD]


def test_client_that_waits_too_long_is_told_and_its_commit_is_not_decided() -> None:
    """When a client's wait times out, it is refused with batch_pending, the channels are not asked
    again and nothing is decided.
    """
    world = opened()
    world.ask(commit(manifest=manifest_of((0, 1)), wait=500))
    assert world.pass_time(499) == []
    assert codes(world.pass_time(500)) == [(5, "batch_pending")]
    world.sent(AskStaged)
    world.pass_time(4_000)
    assert world.sent(AskStaged) == []
    assert world.steps() == []


# --- decided batches ------------------------------------------------------------------------------


def test_client_hears_of_success_when_every_channel_has_applied_the_commit() -> None:
    """Rule 5: each channel's word counts for itself."""
    world = decided()
    assert world.say_applied(0, 1) == []
    assert world.say_applied(0, 1) == []
    [answer] = world.say_applied(1, 1)
    assert isinstance(answer, BatchAnswer)
    assert (answer.request_id, answer.verdict, answer.n, answer.rows) == (5, OK, 1, 2)
    assert world.say_applied(1, 2) == []


def test_decided_batch_is_pushed_to_each_channel_until_it_has_applied_it() -> None:
    """Whether anybody waits for it or not; the log learns of it a while later."""
    world = decided()
    world.coordinator.leads(world.host.runner, 0)
    pushes = world.sent(ApplyBatch)
    assert [(to, p.target, p.n) for to, p in pushes] == [
        (OTHER, channel_id(TABLE, 0), 1),
        (OTHER, channel_id(TABLE, 1), 1),
    ]
    world.say_applied(0, 1)
    world.pass_time(200)
    assert [p.target for _, p in world.sent(ApplyBatch)] == [channel_id(TABLE, 1)]
    world.say_applied(1, 1)
    world.pass_time(1_000)
    assert world.sent(ApplyBatch) == []
    assert world.steps() == [Trim(((0, 1), (1, 1)))]
    world.apply()
    assert world.bench.pending() == []
    world.pass_time(10_000)
    assert world.steps() == []


def test_channel_whose_leader_is_another_is_told_there_once() -> None:
    """As a replica named it; a channel that is not so far, or busy, has its pause."""
    world = decided()
    world.coordinator.leads(world.host.runner, 0)
    world.sent(ApplyBatch)

    def after(reason: str, hint: NodeId | None, n: int = 1) -> list[NodeId]:
        world.say_applied(0, 0, n=n, reason=reason, leader_hint=hint)
        return [to for to, _ in world.sent(ApplyBatch)]

    assert after(NOT_YET, THIRD) == []
    assert after(BUSY, THIRD) == []
    assert after(NOT_LEADER, None) == []
    assert after(NOT_LEADER, OTHER) == [], "it names itself"
    assert after(NOT_LEADER, THIRD, n=2) == []
    assert after(NOT_LEADER, THIRD) == [THIRD]
    assert after(NOT_LEADER, THIRD) == []
    world.pass_time(200)
    world.sent(ApplyBatch)
    assert after(NOT_LEADER, THIRD) == [THIRD]


def test_word_of_another_table_counts_nothing() -> None:
    """Partitions of all tables have the same numbers."""
    world = decided(parts=(1,))
    target = channel_id(b"another-table-id", 1)
    reply = ApplyBatchReply(CHANNEL, Term(3), target, 1, 1, APPLIED)
    world.coordinator.on_apply_reply(OTHER, reply, 0)
    assert world.told() == []
    assert len(world.say_applied(1, 1)) == 1


# --- the end of a leadership ----------------------------------------------------------------------


def test_all_who_wait_hear_that_the_leadership_ended() -> None:
    """S4.3: in doubt, whatever they wait for; the table is another one then."""
    world = asked()
    world.ask(begin(8, uuid=8))
    world.coordinator.leader_changed(world.host.runner)
    assert world.told() == [], "it still leads"
    world.host.runner.elector.role = Role.FOLLOWER
    world.coordinator.leader_changed(world.host.runner)
    assert codes(world.told()) == [(5, "leadership_lost"), (8, "leadership_lost")]
    world.coordinator.leader_changed(world.host.runner)
    assert world.told() == []


@pytest.mark.parametrize(
    ("is_reopened", "code"), [(False, "unknown_table"), (True, "leadership_lost")]
)
def test_dropped_table_is_told_to_all_who_wait(is_reopened: bool, code: str) -> None:
    """Nothing is pushed for the table any more. Of one that is opened anew nobody is informed that
    it was dropped: what was decided goes on with the next leader (S4.3)."""
    world = decided()
    world.host.runner.is_reopened = is_reopened
    world.coordinator.on_channel_closed(world.host.runner)
    assert codes(world.told()) == [(5, code)]
    world.coordinator.on_channel_closed(world.host.runner)
    assert world.coordinator.deadlines.next_ms == NEVER_MS
    assert world.coordinator.waiting.deadlines.next_ms == NEVER_MS


def test_new_leader_gives_open_attempts_all_of_their_time() -> None:
    """Rule 6: it does not know when the tasks began; the time counts by its own clock."""
    bench = CoordinatorBench()
    bench.begin()
    world = World(bench)
    world.now_ms = 500
    world.ask(Writers(2, CHANNEL, 900))
    world.pass_time(500 + 8_999)
    assert world.steps() == []
    world.pass_time(500 + 9_000)
    assert world.steps() == [Close("w", 1)]
    world.pass_time(500 + 9_999)
    assert len(world.steps()) == 1, "that record is under way"
    world.pass_time(500 + 10_000)
    assert len(world.steps()) == 2, "and is looked after, for it may have been refused"
    world.apply()
    world.pass_time(60_000)
    assert world.steps() == []


def test_task_that_begins_again_prolongs_its_attempt() -> None:
    """A newer attempt of the writer takes the place of the older one."""
    world = opened()
    world.pass_time(4_000)
    [answer] = world.ask(begin(2))
    assert (answer.verdict, answer.attempt) == (OPENED, 1)
    world.pass_time(8_999)
    assert world.steps() == []
    world.ask(begin(3, uuid=3))
    world.apply()
    world.pass_time(13_998)
    assert world.steps() == []
    world.pass_time(13_999)
    assert world.steps() == [Close("w", 2)]


def test_many_writers_are_looked_at_in_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    """A new leadership begins with a bounded number at a time, and misses none."""
    monkeypatch.setattr(coordinator_module.CoordinatedTable.__module__ + ".WRITERS_PER_TURN", 2)
    for count in range(1, 6):
        bench = CoordinatorBench()
        for number in range(count):
            bench.begin(f"w{number}")
        world = World(bench)
        world.ask(Writers(2, CHANNEL, 900))
        world.pass_time(9_000)
        assert sorted(step.writer for step in world.steps()) == [f"w{n}" for n in range(count)]


# --- questions ------------------------------------------------------------------------------------


def test_floors_are_told_to_the_channel_that_asks() -> None:
    """Rule 6: what is open, and what it has to apply still, is not finished for it."""
    bench = CoordinatorBench()
    bench.begin("u")
    bench.begin("v")
    bench.commit(1, "u", parts=(1,))
    world = World(bench)

    def floors(partition: int, channel: ChannelId = CHANNEL) -> Any:
        target = channel_id(TABLE, partition)
        question = ResolveWriter(channel, Term(1), target, ("u", "v", "w"))
        world.coordinator.on_resolve(THIRD, question)
        sent = world.sent(ResolvedWriter)
        return [(to, m.target == target, m.floors) for to, m in sent]

    assert floors(0) == [(THIRD, True, (("u", 2), ("v", 1), ("w", 2)))]
    assert floors(1) == [(THIRD, True, (("u", 0), ("v", 1), ("w", 2)))]
    assert floors(0, channel_id(b"another-table-id", 0)) == []
    world.host.refusals["serving"] = Refusal(UnavailableError, "stopped")
    assert floors(0) == []


def test_floors_are_of_one_position_while_records_are_applied() -> None:
    """Two attempts that begin between two reads of the state would have the writer's open attempt
    be a later one than the next that the state before knows (I1)."""
    bench = CoordinatorBench()
    bench.begin("u")
    world = World(bench)
    begun = [partial(bench.begin, writer, uuid=2) for writer in ("v", "u")]
    live_get = bench.state.get

    def get_and_apply(key: bytes) -> bytes | None:
        found = live_get(key)
        apply()
        return found

    def apply() -> None:
        due, begun[:] = begun[:], []
        for begin_one in due:
            begin_one()

    bench.state.get = get_and_apply  # type: ignore[method-assign]
    world.host.tables.on_snapshot_read = apply
    question = ResolveWriter(CHANNEL, Term(1), channel_id(TABLE, 0), ("u",))
    world.coordinator.on_resolve(THIRD, question)
    assert [m.floors for _, m in world.sent(ResolvedWriter)] == [(("u", 0),)]


def test_writers_are_told_one_by_one_or_all() -> None:
    """With what the table has decided, and how much of it is everywhere."""
    bench = CoordinatorBench()
    world = World(bench)

    def told(**fields: Any) -> WritersAnswer:
        [answer] = world.ask(Writers(2, CHANNEL, 900, **fields))
        assert isinstance(answer, WritersAnswer)
        return answer

    assert (told().writers, told().next_commit, told().applied_everywhere) == ((), 1, 0)
    for writer in ("u", "v", "w"):
        bench.begin(writer)
    bench.commit(1, "u", parts=(1,))
    bench.commit(2, "v", parts=(0,))
    world.coordinator._tables.clear()
    assert [w.writer for w in told().writers] == ["u", "v", "w"]
    assert [w.writer for w in told(after="u").writers] == ["v", "w"]
    assert [w.writer for w in told(writer="v").writers] == ["v"]
    assert told(writer="x").writers == ()
    assert not told().more
    assert (told().next_commit, told().outbox, told().applied_everywhere) == (3, 2, 0)
    assert told().vector == (2, 1)
    world.say_applied(0, 2)
    assert (told().outbox, told().applied_everywhere) == (1, 0)
    world.say_applied(1, 1)
    assert (told().outbox, told().applied_everywhere) == (0, 2)


def test_verdicts_of_records_by_other_leaders_reach_nobody_else() -> None:
    """Records of an earlier leader are applied here, too."""
    world = opened()
    world.ask(commit())
    own = world.host.open.pop()
    verdict = encode_verdict(world.bench.step(Close("unknown", 7)))
    world.coordinator.on_applied(world.host.runner, ((Seq(50), verdict),), 0)
    assert world.told() == []
    assert decode_verdict(verdict).name != OK
    world.host.open.append(own)
    assert len(world.apply()) == 1
    assert world.host.me == LEADER


def test_records_of_an_earlier_leader_have_this_one_go_on_with_its_commits() -> None:
    """They may be applied here after the leadership began; a follower pushes nothing."""
    bench = CoordinatorBench()
    bench.begin()
    bench.commit(1)
    world = World(bench)
    answers = ((Seq(2), encode_verdict(bench.step(Close("other", 9)))),)
    elector, core = world.host.runner.elector, world.host.runner.core
    core.leader_is_ready = False
    world.coordinator.on_applied(world.host.runner, answers, 0)
    core.leader_is_ready, elector.role = True, Role.FOLLOWER
    world.coordinator.on_applied(world.host.runner, answers, 0)
    elector.role = Role.LEADER
    world.coordinator.on_applied(world.host.runner, (), 0)
    assert world.sent(ApplyBatch) == []
    world.coordinator.on_applied(world.host.runner, answers, 0)
    assert len(world.sent(ApplyBatch)) == 2


def test_commit_of_a_client_that_is_gone_is_not_decided() -> None:
    """Given clients that are gone, late confirmations of the channels decide nothing: no client
    would get the answer, and a driver that comes back asks again.
    """
    world = asked()
    token = world.sent(AskStaged)[0][1].token
    world.coordinator.on_client_gone(8)
    world.coordinator.on_client_gone(9)
    for partition in (0, 1):
        target = channel_id(TABLE, partition)
        reply = StagedReply(CHANNEL, Term(3), target, token, STAGED)
        world.coordinator.on_staged_reply(OTHER, reply, 0)
    assert world.steps() == []
    world.pass_time(1_000)
    assert world.sent(AskStaged) == []


def test_push_that_was_answered_meanwhile_is_not_sent() -> None:
    """This very node may lead a channel, and then it answers at once."""
    world = decided()
    deliver = world.host.deliver

    def answered_at_once(to: NodeId, message: Any) -> None:
        deliver(to, message)
        world.say_applied(1, 1)

    world.host.deliver = answered_at_once  # type: ignore[method-assign]
    world.coordinator.leads(world.host.runner, 0)
    assert [push.target for _, push in world.sent(ApplyBatch)] == [channel_id(TABLE, 0)]


def test_commit_of_an_attempt_that_nobody_can_have_opened_is_fenced_at_once() -> None:
    """Records that are not applied here yet may have opened it: then it is not fenced."""
    world = opened()
    rows = manifest_of((0, 1))
    assert codes(world.ask(commit(attempt=2, manifest=rows))) == [(5, "writer_fenced")]
    assert world.sent(AskStaged) == []
    world.host.runner.core.last_seq = Seq(1)
    assert world.ask(commit(6, attempt=2, manifest=rows)) == []
    assert len(world.sent(AskStaged)) == 2
    assert codes(world.ask(commit(7, attempt=3, manifest=rows))) == [(7, "writer_fenced")]


def test_only_channels_with_rows_are_asked_of_a_replacing_batch() -> None:
    """The others are emptied, which needs nothing to be there."""
    world = opened()
    world.ask(commit(manifest=manifest_of((1,), mode=TRUNCATE)))
    assert [q.part.partition for _, q in world.sent(AskStaged)] == [1]


def test_leadership_of_one_table_ends_without_those_of_others() -> None:
    """Their clients wait on."""
    world = asked()
    other = leading_runner()
    other.channel = channel_id(b"another-table-id", 0)
    world.host.channels[other.channel] = other
    world.ask(Writers(7, other.channel, 900))
    other.elector.role = Role.FOLLOWER
    world.coordinator.leader_changed(other)
    assert world.told() == []
