"""Nothing is decided that a channel could not apply: what is asked before a batch is decided."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from msgspec import structs

from raftstore.protocol.batches import (
    MISSING,
    OK,
    STAGED,
    TRUNCATE,
    AskStaged,
    BatchAnswer,
    ChannelPart,
    CommitBatch,
    StagedReply,
)
from raftstore.protocol.message import Failed, Message
from raftstore.protocol.publish import PubAck
from raftstore.types import INT63_MAX, PARTITION_MAX
from tests.unit.engine.batch_world import BatchWorld, refusal
from tests.unit.engine.engine_world import ask, run


def changed(request: CommitBatch, **fields: int) -> CommitBatch:
    """The same, with another first part."""
    first, *rest = request.manifest.parts
    parts = (structs.replace(first, **fields), *rest)
    rows = sum(part.rows for part in parts)
    manifest = structs.replace(request.manifest, parts=parts, rows=rows)
    return structs.replace(request, manifest=manifest)


def on_the_way(
    world: BatchWorld, kind: type[Message], seen: Callable[[Message], bool]
) -> Callable[[], None]:
    """Show messages of a kind between nodes; those for which ``seen`` is False are lost.

    Returns what makes the network whole again.
    """
    send = world.cluster.network.send

    def through(sender: str, receiver: str, message: Message) -> None:
        if not isinstance(message, kind) or seen(message):
            send(sender, receiver, message)

    world.cluster.network.send = through  # type: ignore[method-assign]
    return lambda: setattr(world.cluster.network, "send", send)


def asunder(world: BatchWorld) -> None:
    """Have partition 1 led by another node than partition 0, so that it is asked by messages."""
    for _ in range(10):
        leader = world.leader(1)
        if leader is not world.leader(0):
            return
        runner = leader.runner.channels[world.channels[1]]
        runner.request_hand_over(None, "test", int(world.cluster.scheduler.now_ms))
        run(world.cluster, 3_000)
    raise AssertionError("partition 1 stays where it is")


def serves(world: BatchWorld) -> None:
    """Every replica of every partition goes on, and a batch is committed as ever."""
    for node in world.cluster.nodes.values():
        assert node.runner.halt.reason is None
        for channel in world.channels:
            assert node.runner.channels[channel].stopped_reason is None
    attempt = world.begin(9, b"z" * 16).attempt
    for partition in range(len(world.channels)):
        world.stage(attempt, partition, {b"end": b"9"})
    assert world.commit(attempt, 9).verdict == OK
    for partition in range(len(world.channels)):
        assert world.get(partition, b"end") == [b"9"]


@pytest.mark.slow
@pytest.mark.parametrize("field", ["chunks", "rows", "bytes", "check"])
@pytest.mark.parametrize("partition", [0, 1])
def test_manifest_of_what_nobody_staged_is_refused_and_stops_nothing(
    field: str, partition: int
) -> None:
    """A client's word alone decides nothing; the attempt stays open for the right one."""
    world = BatchWorld.start()
    attempt = world.begin(1).attempt
    for number in range(2):
        rows = {b"a%d" % number: b"1", b"b%d" % number: b"2"}
        world.stage(attempt, partition, rows, number=number)
    right = world.commit_request(attempt, 1)
    end = world.seqs(0)
    more = getattr(right.manifest.parts[0], field) + 1
    [answer] = world.tell(changed(right, **{field: more}))
    assert refusal(answer) == "batch_incomplete"
    assert isinstance(answer, Failed)
    assert f"in partition {partition}" in answer.message
    assert world.seqs(0) == end, "nothing was written down"
    world.counter += 1
    [done] = world.tell(structs.replace(right, request_id=world.counter))
    assert isinstance(done, BatchAnswer)
    assert (done.verdict, done.rows) == (OK, 4)
    assert world.get(partition, b"a0", b"b1") == [b"1", b"2"]
    serves(world)


def test_replacing_batch_of_rows_that_nobody_staged_is_refused_and_empties_nothing() -> None:
    """It touches all channels: those without rows are not asked, the others are."""
    world = BatchWorld.start()
    attempt = world.begin(1).attempt
    world.stage(attempt, 0, {b"a": b"1"})
    world.commit(attempt, 1)
    attempt = world.begin(2, b"b" * 16).attempt
    empty = world.commit_request(attempt, 2, mode=TRUNCATE)
    part = ChannelPart(1, 1, 1, 10, 5)
    manifest = structs.replace(
        empty.manifest, winners=((0, 0),), parts=(empty.manifest.parts[0], part), rows=1
    )
    [answer] = world.tell(structs.replace(empty, manifest=manifest))
    assert refusal(answer) == "batch_incomplete"
    assert world.get(0, b"a") == [b"1"]
    assert world.commit(attempt, 2, mode=TRUNCATE).verdict == OK
    assert world.get(0, b"a") == [None]
    serves(world)


def test_chunks_that_come_behind_those_of_the_manifest_stop_nothing() -> None:
    """Given a commit that its channels confirmed, chunks staged later do not stop it: a part is the
    first chunks of its tasks, in the log's order.
    """
    world = BatchWorld.start()
    attempt = world.begin(1).attempt
    world.stage(attempt, 1, {b"a": b"1"})
    request = world.commit_request(attempt, 1)
    # The same task goes on as if it had not reported what it staged.
    assert isinstance(world.stage(attempt, 1, {b"late": b"2"}, number=1), PubAck)
    [answer] = world.tell(request)
    assert isinstance(answer, BatchAnswer)
    assert (answer.verdict, answer.rows) == (OK, 1)
    assert world.get(1, b"a", b"late") == [b"1", None]
    serves(world)


def test_commit_is_decided_when_every_channel_has_said_yes_and_not_before() -> None:
    """A channel that does not answer is asked again; nothing is decided meanwhile."""
    world = BatchWorld.start(partitions=3)
    asunder(world)
    attempt = world.begin(1).attempt
    for partition in range(3):
        world.stage(attempt, partition, {b"k": b"v"})
    end = world.seqs(0)
    lost: list[Message] = []
    heal = on_the_way(world, AskStaged, lambda message: lost.append(message) or False)
    answers = ask(world.cluster, world.leader(), world.commit_request(attempt, 1))
    run(world.cluster, 2_000)
    assert len(lost) > 1, "it was asked again"
    assert answers == []
    assert world.seqs(0) == end
    heal()
    run(world.cluster, 2_500)
    [answer] = answers
    assert isinstance(answer, BatchAnswer)
    assert answer.verdict == OK


@pytest.mark.slow
def test_channel_without_an_answer_costs_the_commit_its_time_and_decides_nothing() -> None:
    """The client learns that it is pending; the next attempt is not held up by it."""
    world = BatchWorld.start()
    asunder(world)
    attempt = world.begin(1).attempt
    world.stage(attempt, 1, {b"k": b"v"})
    heal = on_the_way(world, StagedReply, lambda _: False)
    [answer] = world.tell(world.commit_request(attempt, 1), ms=6_000)
    assert refusal(answer) == "batch_pending"
    heal()
    run(world.cluster, 20_000)
    assert world.get(1, b"k") == [None]
    serves(world)


@pytest.mark.slow
def test_yes_of_before_the_attempt_ended_decides_nothing() -> None:
    """The chunks may be gone by then: COMMIT behind the end of its attempt is fenced (rule 1)."""
    world = BatchWorld.start()
    asunder(world)
    attempt = world.begin(1).attempt
    world.stage(attempt, 1, {b"k": b"v"})
    held: list[StagedReply] = []
    heal = on_the_way(world, StagedReply, lambda reply: held.append(reply) or False)
    coordinator = world.leader()
    answers = ask(
        world.cluster,
        coordinator,
        structs.replace(world.commit_request(attempt, 1), timeout_ms=1_000_000),
    )
    run(world.cluster, 500)
    early = held[0]
    assert early.reason == STAGED
    world.cluster.add_client("other", 778, lambda sender, message: None)
    newer = world.begin_request(1, b"b" * 16)
    world.cluster.network.send("other", coordinator.node, newer)
    run(world.cluster, 250_000)  # the channel has asked, and dropped them
    heal()
    world.cluster.network.send(world.leader(1).node, coordinator.node, early)
    run(world.cluster, 2_000)
    [answer] = answers
    assert refusal(answer) == "writer_fenced"
    serves(world)


def test_no_of_a_channel_that_applied_the_batch_meanwhile_is_no_refusal() -> None:
    """A COMMIT that is sent twice: the chunks of the second are gone, for the first was decided."""
    world = BatchWorld.start()
    attempt = world.begin(1).attempt
    world.stage(attempt, 1, {b"k": b"v"})
    first = world.commit_request(attempt, 1)
    again = structs.replace(first, request_id=first.request_id + 500)
    answers = world.tell(first, again)
    assert [a.verdict for a in answers if isinstance(a, BatchAnswer)] == [OK, OK]


@pytest.mark.slow
def test_word_of_another_leadership_counts_nothing() -> None:
    """Tokens begin anew with each: an old yes would be taken for that of another batch."""
    world = BatchWorld.start()
    asunder(world)
    attempt = world.begin(1).attempt
    world.stage(attempt, 1, {b"k": b"v"})
    held: list[StagedReply] = []
    heal = on_the_way(world, StagedReply, lambda reply: held.append(reply) or False)
    coordinator = world.leader()
    wrong = changed(world.commit_request(attempt, 1), rows=7, chunks=7)
    answers = ask(world.cluster, coordinator, wrong)
    run(world.cluster, 500)
    heal()
    reply = held[0]
    assert reply.reason == MISSING
    end = world.seqs(0)
    old = structs.replace(reply, reason=STAGED, term=reply.term - 1)
    world.cluster.network.send(world.leader(1).node, coordinator.node, old)
    run(world.cluster, 50)
    assert world.seqs(0) == end
    run(world.cluster, 6_000)
    assert refusal(answers[0]) == "batch_incomplete"
    serves(world)


def test_leader_that_no_quorum_confirms_says_no_to_nothing() -> None:
    """S7.1: it may be deposed without knowing it, and lack what was staged under a newer one."""
    world = BatchWorld.start()
    asunder(world)
    leader, channel = world.leader(1), world.channels[1]
    attempt = world.begin(1).attempt
    send = world.cluster.network.send

    def apart(sender: str, receiver: str, message: Message) -> None:
        if isinstance(message, StagedReply):
            told.append(message)
        # Cut off in this channel alone: the coordinator still reaches it.
        if getattr(message, "channel", None) != channel:
            send(sender, receiver, message)

    told: list[Message] = []
    world.cluster.network.send = apart  # type: ignore[method-assign]
    question = AskStaged(
        channel=world.channels[0],
        term=world.leader().runner.channels[world.channels[0]].elector.term,
        target=channel,
        token=1,
        writer="orders",
        attempt=attempt,
        winners=((0, 0),),
        part=ChannelPart(1, 1, 1, 10, 5),
    )
    send(world.leader().node, leader.node, question)
    run(world.cluster, 20_000)
    assert told == []


@pytest.mark.slow
@pytest.mark.parametrize(
    ("parts", "attempt", "code"),
    [
        ((2,), 1, "schema"),  # the table has partitions 0 and 1
        ((PARTITION_MAX,), 1, "schema"),
        ((0, 0), 1, "schema"),
        ((2,), 2, "writer_fenced"),
        ((0,), 2, "writer_fenced"),  # nobody opened it yet
        ((1,), INT63_MAX, "writer_fenced"),
    ],
)
def test_commit_that_no_table_could_take_is_sent_to_no_other_node(
    parts: tuple[int, ...], attempt: int, code: str
) -> None:
    """Given a commit that no table could take, the node refuses it and asks no other node: one
    frame of a client must not reach them all.
    """
    world = BatchWorld.start()
    asunder(world)
    assert world.begin(1).attempt == 1
    asked: list[Message] = []
    heal = on_the_way(world, AskStaged, lambda message: bool(asked.append(message)))
    listed = tuple(ChannelPart(partition, 1, 1, 50, 5) for partition in parts)
    request = world.commit_request(attempt, 1)
    manifest = structs.replace(request.manifest, winners=((0, 0),), parts=listed, rows=len(listed))
    [answer] = world.tell(structs.replace(request, attempt=attempt, manifest=manifest))
    assert refusal(answer) == code
    assert asked == []
    heal()
    world.begin(2, b"c" * 16)
    serves(world)
