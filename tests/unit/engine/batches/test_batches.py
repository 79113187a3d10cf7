"""Micro-batches on a running cluster: staged out of sight, decided once, applied everywhere."""

from __future__ import annotations

import pytest
from msgspec import structs

from raftstore.protocol.batches import ALREADY, OK, TRUNCATE, BatchAnswer
from raftstore.protocol.message import Failed, Message
from raftstore.protocol.payload import encode_rows
from raftstore.protocol.publish import PubAck, PubReject
from raftstore.protocol.snapshots import SnapshotAnswer
from raftstore.protocol.staged import ChunkHeader, encode_staged
from raftstore.types import RecordKind, Seq
from tests.unit.engine.batch_world import BatchWorld, refusal
from tests.unit.engine.engine_world import ask, publish, run


def test_staged_rows_are_invisible_until_their_batch_is_committed() -> None:
    """Rules 2 and 3: replicated and durable, but nobody reads them before the commit."""
    world = BatchWorld.start()
    attempt = world.begin(1).attempt
    assert isinstance(world.stage(attempt, 0, {b"a": b"1"}), PubAck)
    assert isinstance(world.stage(attempt, 1, {b"b": b"2"}), PubAck)
    assert world.get(0, b"a") == [None]
    assert world.get(1, b"b") == [None]
    answer = world.commit(attempt, 1)
    assert (answer.verdict, answer.n, answer.vector, answer.rows) == (OK, 1, (1, 1), 2)
    assert world.get(0, b"a") == [b"1"]
    assert world.get(1, b"b") == [b"2"]


def test_replayed_batch_is_already_there_and_changes_nothing() -> None:
    """Exactly once: whole batches are known again, whatever rows the replay would carry."""
    world = BatchWorld.start()
    attempt = world.begin(1).attempt
    world.stage(attempt, 0, {b"a": b"1"})
    world.commit(attempt, 1)
    replay = world.begin(1, b"b" * 16)
    assert (replay.verdict, replay.n) == (ALREADY, 1)
    again = world.commit(attempt, 1)
    assert (again.verdict, again.n) == (OK, 1)
    assert world.get(0, b"a") == [b"1"]


def test_overwrite_replaces_every_partition_at_once() -> None:
    """Rule 4: it touches all channels, also those that get no rows."""
    world = BatchWorld.start()
    attempt = world.begin(1).attempt
    world.stage(attempt, 0, {b"a": b"1"})
    world.stage(attempt, 1, {b"b": b"2"})
    world.commit(attempt, 1)
    attempt = world.begin(2, b"b" * 16).attempt
    world.stage(attempt, 0, {b"c": b"3"})
    answer = world.commit(attempt, 2, mode=TRUNCATE)
    assert answer.vector == (2, 2)
    assert world.get(0, b"a", b"c") == [None, b"3"]
    assert world.get(1, b"b") == [None]


def test_success_is_told_only_when_every_touched_channel_has_applied() -> None:
    """Rule 5: COMMIT and ALREADY wait for a channel that has no leader."""
    world = BatchWorld.start()
    attempt = world.begin(1).attempt
    world.stage(attempt, 0, {b"a": b"1"})
    world.stage(attempt, 1, {b"b": b"2"})
    coordinator = world.leader(0)
    # Partition 1 stops once it said that its rows are there: its replicas get nothing of it from
    # each other any more.
    blocked = world.channels[1]
    send = world.cluster.network.send

    def without_partition_1(sender: str, receiver: str, message: object) -> None:
        if getattr(message, "channel", None) != blocked:
            send(sender, receiver, message)  # type: ignore[arg-type]

    world.cluster.network.send = without_partition_1  # type: ignore[method-assign,assignment]
    committing = ask(world.cluster, coordinator, world.commit_request(attempt, 1))
    run(world.cluster, 3_000)
    replaying = ask(world.cluster, coordinator, world.begin_request(1, b"b" * 16))
    run(world.cluster, 1_000)
    assert committing == []
    assert replaying == []
    world.cluster.network.send = send  # type: ignore[method-assign]
    run(world.cluster, 20_000)
    replay = world.begin(1, b"c" * 16)
    assert replay.verdict == ALREADY
    assert world.get(1, b"b") == [b"2"]
    assert all(isinstance(each, BatchAnswer) or each is not None for each in committing)


def test_next_leader_applies_what_the_last_one_decided() -> None:
    """Rule 4: the outbox is in the log; no driver and no earlier leader is needed."""
    world = BatchWorld.start(partitions=3)
    attempt = world.begin(1).attempt
    for partition in range(3):
        world.stage(attempt, partition, {b"k%d" % partition: b"v"})
    coordinator = world.leader(0)
    ask(world.cluster, coordinator, world.commit_request(attempt, 1))
    end = world.seqs(0)
    while coordinator.runner.channels[world.channels[0]].core.commit_seq <= end:
        run(world.cluster, 1)
    coordinator.crash("test")
    run(world.cluster, 30_000)
    assert world.leader(0) is not coordinator
    replay = world.begin(1, b"b" * 16)
    assert replay.verdict == ALREADY
    for partition in range(3):
        assert world.get(partition, b"k%d" % partition) == [b"v"]


@pytest.mark.slow
def test_chunks_of_a_lost_attempt_are_dropped_by_the_coordinators_word() -> None:
    """Rule 6: a channel that no commit touches asks, and drops what is finished."""
    world = BatchWorld.start()
    attempt = world.begin(1).attempt
    world.stage(attempt, 1, {b"b": b"2"})
    assert _staged(world, 1) == 1
    world.begin(1, b"b" * 16)  # closes it
    run(world.cluster, 200_000)
    assert _staged(world, 1) == 0
    assert world.get(1, b"b") == [None]


@pytest.mark.slow
def test_full_channel_counts_again_what_is_staged() -> None:
    """Chunks that were admitted and then refused are nowhere, and must not fill it for ever."""
    world = BatchWorld.start()
    attempt = world.begin(1).attempt
    node = world.leader(1).runner
    assert node is not None
    runner = node.channels[world.channels[1]]
    payload = encode_staged(ChunkHeader("orders", attempt, 1, 1, 1), encode_rows([(b"a", None)]))
    kind, channel = RecordKind.STAGED, runner.channel
    chunk = publish(world.cluster, world.leader(1), channel, 900, payload, kind=kind, rows=1)
    while node.batches.staged.stage_refusal(runner, chunk) is None:
        pass  # admitted, and never sequenced
    refused = world.stage(attempt, 1, {b"b": b"2"})
    assert isinstance(refused, PubReject)
    assert refused.code == "overloaded"
    run(world.cluster, 200_000)
    assert isinstance(world.stage(attempt, 1, {b"b": b"2"}), PubAck)


@pytest.mark.slow
def test_chunks_of_the_open_attempt_stay_however_old() -> None:
    """I1: what may still be committed is never dropped on a channel's own clock."""
    world = BatchWorld.start()
    attempt = world.begin(1).attempt
    world.stage(attempt, 1, {b"b": b"2"})
    run(world.cluster, 200_000)
    assert _staged(world, 1) == 1
    assert world.commit(attempt, 1).verdict == OK
    assert world.get(1, b"b") == [b"2"]


def test_batch_of_many_rows_counts_as_many_in_the_lag() -> None:
    """Lag is counted in rows: a BATCH_APPLY record takes the seqs of its rows."""
    world = BatchWorld.start()
    attempt = world.begin(1).attempt
    world.stage(attempt, 1, {b"k%03d" % n: b"v" for n in range(100)})
    before = world.seqs(1)
    world.commit(attempt, 1)
    assert world.seqs(1) == Seq(before + 100)


def test_state_of_a_commit_is_pinned_and_stays_whatever_follows() -> None:
    """Rule 7: each channel states the commit of its state; a pinned state is not moved by
    others."""
    world = BatchWorld.start()
    for number in (1, 2):
        attempt = world.begin(number, b"%016d" % number).attempt
        for partition in range(2):
            world.stage(attempt, partition, {b"id%d" % partition: b"%d" % number})
        world.commit(attempt, number)
        if number == 1:
            pinned = [world.open_snapshot(partition, keep=True) for partition in range(2)]
            assert [(each.commit, each.vector) for each in pinned] == [(1, (1, 1))] * 2
    assert [world.page(part, pinned[part].pin) for part in range(2)] == [[b"1"], [b"1"]]
    assert world.open_snapshot(0).commit == 2


def test_state_of_an_older_commit_is_kept_a_while_and_then_refused() -> None:
    """A reader that comes late to one channel gets the commit it means, or nothing."""
    world = BatchWorld.start()
    for number in (1, 2):
        attempt = world.begin(number, b"%016d" % number).attempt
        world.stage(attempt, 0, {b"id": b"%d" % number})
        world.commit(attempt, number)
    older = world.open_snapshot(0, as_of=1, keep=True)
    assert older.commit == 1
    assert world.page(0, older.pin) == [b"1"]
    run(world.cluster, 11_000)
    [late] = world.tell(world.snapshot_request(0, as_of=1))
    assert refusal(late) == "snapshot_expired"


def test_reader_of_a_commit_waits_until_it_is_applied_or_its_time_is_up() -> None:
    """A replica that is behind never answers with an older commit."""
    world = BatchWorld.start()
    [late] = world.tell(world.snapshot_request(0, as_of=1), ms=2_500)
    assert refusal(late) == "not_up_to_bound"
    waiting: list[Message] = []
    world.cluster.add_client("waiter", 778, lambda _, message: waiting.append(message))
    request = world.snapshot_request(0, as_of=1, timeout_ms=60_000)
    world.cluster.network.send("waiter", world.leader(0).node, request)
    attempt = world.begin(1).attempt
    world.stage(attempt, 0, {b"a": b"1"})
    world.commit(attempt, 1)
    [answer] = waiting
    assert isinstance(answer, SnapshotAnswer)
    assert answer.commit == 1


def test_reader_of_the_newest_state_waits_for_the_commit_that_it_must_hold() -> None:
    """``min_commit`` counts without ``as_of``, and beside a lower one."""
    world = BatchWorld.start()
    request = structs.replace(world.snapshot_request(0, timeout_ms=500), min_commit=1)
    [late] = world.tell(request, ms=1_000)
    assert refusal(late) == "not_up_to_bound"
    assert isinstance(late, Failed)
    assert "has applied commit 0" in late.message
    assert "not commit 1" in late.message
    newest = structs.replace(world.snapshot_request(0, timeout_ms=60_000), min_commit=2)
    older = structs.replace(world.snapshot_request(0, as_of=1, timeout_ms=60_000), min_commit=2)
    answers: list[Message] = []
    world.cluster.add_client("reader", 779, lambda sender, message: answers.append(message))
    for each in (newest, older):
        world.cluster.network.send("reader", world.leader().node, each)
    commits = []
    for batch in (1, 2):
        attempt = world.begin(batch, bytes([batch]) * 16).attempt
        world.stage(attempt, 0, {b"a": b"%d" % batch})
        world.commit(attempt, batch)
        commits.append(sorted(a.commit for a in answers if isinstance(a, SnapshotAnswer)))
    assert commits == [[], [1, 2]]


def test_reader_who_waits_for_a_commit_hears_nothing_of_a_channel_that_stopped_serving() -> None:
    """S13: what is applied behind a history that differs is not to be trusted."""
    world = BatchWorld.start()
    waiting: list[Message] = []
    world.cluster.add_client("waiter", 778, lambda _, message: waiting.append(message))
    node = world.leader(0)
    request = world.snapshot_request(0, as_of=1, timeout_ms=60_000)
    world.cluster.network.send("waiter", node.node, request)
    run(world.cluster, 100)
    assert node.runner is not None
    runner = node.runner.channels[world.channels[0]]
    attempt = world.begin(1).attempt
    world.stage(attempt, 0, {b"a": b"1"})
    now_ms = node.clock.now_ms()
    runner.on_broken("a quorum has another history", now_ms)
    assert runner.stopped_reason is not None
    node.runner.batches.on_applied(runner, (), now_ms)
    run(world.cluster, 100)
    [answer] = waiting
    assert refusal(answer) == "unavailable"


def test_snapshot_waits_for_rows_that_were_written_one_by_one() -> None:
    """A reader that names the position of an acknowledged row never gets a snapshot without it: the
    node refuses one that it has not reached.
    """
    world = BatchWorld.start()
    attempt = world.begin(1).attempt
    world.stage(attempt, 0, {b"a": b"1"})
    world.commit(attempt, 1)
    applied = world.open_snapshot(0).applied_seq
    request = structs.replace(world.snapshot_request(0), min_seq=applied)
    [answer] = world.tell(request)
    assert isinstance(answer, SnapshotAnswer)
    request = structs.replace(world.snapshot_request(0), min_seq=Seq(applied + 1))
    [late] = world.tell(request, ms=2_500)
    assert refusal(late) == "not_up_to_bound"


def test_snapshot_stays_pinned_as_long_as_its_reader_asked_for() -> None:
    """A job's tasks begin when there is room for them; the longest TTL is the node's."""
    world = BatchWorld.start()
    request = structs.replace(world.snapshot_request(0, keep=True), idle_ms=100_000)
    [answer] = world.tell(request)
    assert isinstance(answer, SnapshotAnswer)
    short = world.open_snapshot(0, keep=True)
    assert answer.life_ms == 300_000, "so who wants more hears so at once"
    run(world.cluster, 40_000)
    assert world.page(0, answer.pin) == []
    [gone] = world.tell(world.page_request(0, short.pin))
    assert refusal(gone) == "page_expired"


def _staged(world: BatchWorld, partition: int) -> int:
    """Chunks in the index of every replica, which must all agree."""
    channel = world.channels[partition]
    counts = {
        len(node.runner.ports.tables.state_scan(channel, b"\x02\x01", b"\x02\x02", 1_000))
        for node in world.cluster.nodes.values()
    }
    assert len(counts) == 1
    return counts.pop()
