"""Failures of other systems around snapshots, catching up and feeds, on simulated nodes.

Each test names its lesson, by its number in the table of docs/testing.md. Nodes, logs, tables and
messages are the production code; the network and the disks are simulated.
"""

from __future__ import annotations

from typing import Any

import pytest

from raftstore.client.reads.read_spec import spec_of
from raftstore.config import KIB, ReplicationSettings
from raftstore.protocol.changes import ChangesAnswer
from raftstore.protocol.message import Failed, Message
from raftstore.protocol.payload import encode_rows
from raftstore.protocol.publish import PubAck, PubReject, WriteFate, WriteFateAnswer
from raftstore.protocol.reads import GetAnswer
from raftstore.protocol.replica_snapshots import BaseOffer
from raftstore.protocol.replication import StoreAck
from raftstore.protocol.snapshots import OpenSnapshot, SnapshotAnswer
from raftstore.testing.sim_loop import SchedulerLoop
from raftstore.testing.sim_node import SimNode
from raftstore.types import History, Level, RecordKind, Seq, make_guid
from tests.far_scene import PATIENCE_MS, Scene
from tests.sim_client import SimClient, play
from tests.unit.engine.engine_world import run

pytestmark = pytest.mark.slow

LIMIT_BYTES = 2 * KIB
"""Of one answer of history; records of this size are answered one by one."""


# --- 3: a snapshot over a divergent tail -------------------------------------------------------


@pytest.mark.parametrize("beyond", [-5, 0, 1, 40])
def test_lesson_3_snapshot_over_a_divergent_tail_is_installed_once(beyond: int) -> None:
    """Lesson 3: the tail ends so many rows behind the snapshot; at 0 its last seq is that of the
    snapshot, of another term. It goes, and no more than twice the state is sent."""
    scene = Scene()
    old = scene.leader
    shared = scene.core(old).last_seq
    scene.cut_off(old)
    scene.send(old, scene.message(old, rows=60))
    run(scene.cluster, 20)
    tail: History = scene.core(old).history()
    assert tail.seq == shared + 60
    scene.await_another(old)
    old.kill("cut off")
    scene.put(10)
    scene.cut_all()
    scene.fill_up_to(tail.seq - beyond)
    assert scene.leader.log.base(scene.channel).seq > shared
    sizes = scene.history_bytes_to(old)
    scene.come_back(old)
    scene.settle()
    assert not scene.core(old)._state.lineage.holds(*tail)
    assert len(scene.told("replica_snapshot_finished")) == 1
    assert sum(sizes) <= 2 * scene.leader.tables.table_bytes(scene.channel)
    old.kill("again")
    scene.come_back(old)
    scene.settle()
    assert len(scene.told("replica_snapshot_finished")) == 1


# --- 4: a record that fills an answer ------------------------------------------------------------


@pytest.mark.parametrize("is_trimmed", [False, True])
@pytest.mark.parametrize("times", [1, 2])
def test_lesson_4_record_as_large_as_the_limit_does_not_end_progress(
    times: int, is_trimmed: bool
) -> None:
    """Lesson 4: each record alone fills an answer, or is larger than one; below, at and behind the
    place where the logs part. No answer is sent twice, and the replica has everything."""
    scene = Scene(ReplicationSettings(sync_batch_bytes_max=LIMIT_BYTES))
    size = times * LIMIT_BYTES
    for _ in range(3):
        scene.put(size=size)
    old = scene.leader
    scene.cut_off(old)
    scene.send(old, *(scene.message(old, size=size) for _ in range(4)))
    run(scene.cluster, 20)
    tail = scene.core(old).history()
    scene.await_another(old)
    old.kill("cut off")
    if is_trimmed:
        scene.cut_all()  # what both have is gone: the base is where the logs part
    for _ in range(8):
        scene.put(size=size)
    sizes = scene.history_bytes_to(old)
    scene.come_back(old)
    scene.settle()
    assert not scene.core(old)._state.lineage.holds(*tail)
    assert max(sizes) <= size + 200, "more than one record in an answer"
    assert len([each for each in sizes if each >= size]) <= 8 + 3, "something was sent again"
    assert not scene.told("replica_snapshot_needed")


# --- 6: waiters below an installed snapshot -------------------------------------------------------


def away_and_cut(scene: Scene) -> SimNode:
    """A node that was away while everything that it lacks was cut from the logs."""
    away = scene.followers()[0]
    away.kill("away")
    scene.put(60)
    scene.cut_all()
    return away


def test_lesson_6_reads_that_wait_below_an_installed_snapshot_are_answered() -> None:
    """Lesson 6: reads and states of sessions that ask for a position in the snapshot get at once
    what is so, long before their deadline: never that the table was dropped, never nothing."""
    scene = Scene()
    away = away_and_cut(scene)
    end = scene.core(scene.leader).commit_seq
    assert away.boot()
    run(scene.cluster, 20)
    before_ms = scene.cluster.scheduler.now_ms
    open_snapshot = OpenSnapshot(2, scene.channel, 0, False, 0, PATIENCE_MS, Seq(end))
    answers = scene.send(away, scene.get(end), open_snapshot)
    run(scene.cluster, 20)
    assert scene.applied(away) < end
    assert not answers, "they wait"
    scene.until(lambda: len(answers) == 2)
    assert scene.told("replica_snapshot_finished")
    assert scene.cluster.scheduler.now_ms - before_ms < PATIENCE_MS / 4
    for answer in answers:
        assert isinstance(answer, Failed), answer
        assert answer.code == "unavailable", answer
        assert "recovering" in answer.message, answer
    scene.settle()
    told = scene.asked(away, scene.get(end), open_snapshot)
    assert {type(answer) for answer in told} == {GetAnswer, SnapshotAnswer}, "in either order"
    served = [each.served.applied_seq for each in told if isinstance(each, GetAnswer)]
    opened = [each.applied_seq for each in told if isinstance(each, SnapshotAnswer)]
    assert min(served + opened) >= end


def test_lesson_6_client_that_waits_at_a_replica_gets_the_row_of_its_position() -> None:
    """Lesson 6: with the client, which asks another replica when its own is replaced."""
    scene = Scene()
    away = away_and_cut(scene)
    end = Seq(scene.core(scene.leader).commit_seq)
    assert away.boot()
    run(scene.cluster, 50)
    loop = SchedulerLoop(scene.cluster.scheduler)
    with loop.running():
        client = SimClient(scene.cluster, away, 4_001)

    async def read() -> Any:
        await client.learn()
        spec = spec_of({"level": Level.ANY})
        deadline_ms = client._context.now_ms() + PATIENCE_MS
        return await client._channel_reads.get(
            scene.channel, (b"000001",), spec, deadline_ms, min_seq=end
        )

    answer = play(loop, scene.cluster, read(), PATIENCE_MS / 4)
    assert answer.served.applied_seq >= end
    assert answer.values[0] is not None


def test_lesson_6_writes_in_flight_and_retries_below_a_snapshot_are_answered() -> None:
    """Lesson 6: what waits at a leader that is cut off is in doubt, and its retry is acknowledged
    with its first place, also by a replica that knows it from a snapshot alone."""
    scene = Scene()
    old = scene.leader
    others = [node for node in scene.cluster.nodes.values() if node is not old]
    scene.loses = lambda to, sent: to == old.node and isinstance(sent, StoreAck)
    write = scene.message(old)
    waiting = scene.send(old, write)
    run(scene.cluster, 50)
    assert not waiting, "nobody acknowledges to this leader"
    scene.cut_off(old)
    scene.await_another(old)
    scene.until(lambda: bool(waiting))
    [answer] = waiting
    assert isinstance(answer, PubReject)
    assert answer.code in ("leadership_lost", "quorum_timeout", "not_leader"), answer
    [first] = scene.retried(write)
    assert isinstance(first, PubAck)
    old.kill("cut off")
    scene.put(60)
    scene.cut_all()
    assert scene.leader.log.base(scene.channel).seq > first.last_seq
    scene.loses = lambda to, sent: False
    scene.come_back(old)
    scene.settle()
    assert scene.told("replica_snapshot_finished")
    scene.have_lead(old)
    [again] = scene.retried(write)
    assert isinstance(again, PubAck)
    assert (again.base_seq, again.last_seq) == (first.base_seq, first.last_seq)
    [told] = scene.asked(old, WriteFate(1, scene.channel, write.guid, 500))
    assert isinstance(told, WriteFateAnswer)
    assert (told.fate, told.seq) == ("committed", first.last_seq)
    assert len({node.tables.content_hash(scene.channel) for node in [old, *others]}) == 1


# --- 17: positions that are derived from a log ----------------------------------------------------

KINDS = (RecordKind.ROWS, RecordKind.CONDITIONAL, RecordKind.BATCH_MARK)


def derived(scene: Scene, node: SimNode) -> dict[str, object]:
    """Everything that a node knows of a channel without reading its log."""
    state = scene.core(node)._state
    ends = [record.last_seq for record in node.log.records(scene.channel)]
    guids = [make_guid(b"producer", counter) for counter in range(1, scene.counter + 1)]
    found = [state.dedupe.find(guid) for guid in guids]
    return {
        "base": state.base.history,
        "lineage": state.lineage.newest(),
        "chain": [state.chain.at(end) for end in ends],
        "batches": [state.batches.at(end) for end in ends],
        "configuration": (state.configs.current, state.configs.current_seq),
        "timestamp": state.tail.last_timestamp_ms,
        "uncommitted": (state.uncommitted_records, state.tail.bytes),
        "writes": [each and (each.base_seq, each.last_seq, each.term) for each in found],
        "sessions": (state.dedupe.sessions, state.dedupe.outcomes),
        "channel time": node.tables.channel_time(scene.channel),
        "changes": scene.changes(node, state.base.seq),
    }


@pytest.mark.parametrize("is_trimmed", [False, True])
def test_lesson_17_positions_derived_from_a_log_are_right_after_each_truncation(
    is_trimmed: bool,
) -> None:
    """Lesson 17: terms, chain, batches, configuration, recognised writes, the time of the channel
    and changes are what a start of the node finds in the log, and those of the other replicas."""
    scene = Scene()
    for number in range(4):
        for kind in KINDS:
            scene.put(kind=kind)
        scene.put(ttl_ms=300)
        old = scene.leader
        scene.cut_off(old)
        lost = [scene.message(old, kind=kind) for kind in KINDS[number % 3 :]]
        scene.send(old, *lost, scene.message(old, ttl_ms=50))
        run(scene.cluster, 20)
        tail = scene.core(old).history()
        scene.await_another(old)
        scene.put(kind=KINDS[number % 3])
        scene.cluster.network.heal()
        scene.cluster.reconnect_all()
        scene.settle()
        if is_trimmed:
            scene.cut(scene.followers()[0])
            scene.settle()
        assert not scene.core(old)._state.lineage.holds(*tail)
        run(scene.cluster, 3_000)
        scene.settle()
        followed = {node.name: derived(scene, node) for node in scene.followers()}
        for node in scene.followers():
            node.kill("restarted")
            scene.come_back(node)
            scene.settle()
        again = {node.name: derived(scene, node) for node in scene.followers()}
        assert again == followed
        led = derived(scene, scene.leader)
        for mine in followed.values():
            for name in ("writes", "configuration", "timestamp", "channel time"):
                assert mine[name] == led[name], name
    assert scene.leader.tables.channel_time(scene.channel)


# --- 19: feeds around what was cut ----------------------------------------------------------------


def test_lesson_19_feed_from_a_future_position_waits_and_tells_nothing_old() -> None:
    """Lesson 19: a position that is not there yet is refused by every replica; once it is, what
    follows it is reported, and nothing of before."""
    scene = Scene()
    future = Seq(scene.applied(scene.leader) + 5)
    for node in scene.cluster.nodes.values():
        [refused] = scene.asked(node, scene.page(future))
        assert isinstance(refused, Failed)
        assert refused.code == "not_up_to_bound"
    for _ in range(8):
        scene.put()
    expected = scene.changes(scene.leader, future)
    assert [piece.seq for piece in expected] == [future + 1, future + 2, future + 3]
    for node in scene.cluster.nodes.values():
        assert scene.changes(node, future) == expected


def test_lesson_19_feed_from_positions_that_were_just_cut() -> None:
    """Lesson 19: the base itself is a position, and the deletion right behind it is reported; every
    position in front of it is refused with the base, by each replica with its own."""
    scene = Scene()
    scene.put(3)
    base = scene.applied(scene.leader)
    whole = scene.changes(scene.leader, 0)
    scene.cut_all()
    scene.delete(b"000001")
    scene.put(kind=RecordKind.CONDITIONAL)
    scene.settle()
    expected = scene.changes(scene.leader, base)
    assert [piece.rows for piece in expected[:1]] == [encode_rows([(b"000001", None)])]
    assert len(expected) == 2
    scene.cut(scene.followers()[0])
    scene.settle()
    bases = set()
    for node in scene.cluster.nodes.values():
        first = node.log.base(scene.channel).seq
        bases.add(first)
        assert scene.changes(node, first) == [each for each in expected if each.seq > first]
        for after in (0, 1, base - 1, first - 1):
            [refused] = scene.asked(node, scene.page(Seq(after)))
            assert isinstance(refused, Failed), (after, refused)
            assert refused.code == "data_loss", refused
            assert f"seq {first}" in refused.message, refused
    assert len(bases) > 1, "one replica cut more than the others"
    assert whole[-1].seq == base


def test_lesson_19_feed_over_an_install_and_two_snapshots_in_a_row() -> None:
    """Lesson 19: a reader at a replica that takes one snapshot, and another one before it has a
    base for the first, is refused or gets what is so, never less and never more."""
    scene = Scene()
    away = scene.followers()[0]
    away.kill("away")
    scene.put(60)
    truth = {piece.seq: piece for piece in scene.changes(scene.leader, 0)}
    scene.cut_all()
    answers: list[Message] = []

    def read(*positions: int) -> None:
        """Pages behind these positions, asked of the replica that is replaced."""
        for after in positions:
            answers.extend(scene.asked(away, scene.page(Seq(after)), ms=20))

    scene.loses = lambda to, sent: isinstance(sent, BaseOffer)
    assert away.boot()
    finished = scene.count("replica_snapshot_finished")
    while not finished[0]:
        read(0, 20, 81)
    scene.put(40)
    scene.put(kind=RecordKind.CONDITIONAL)
    first = scene.leader.log.base(scene.channel).seq
    truth |= {piece.seq: piece for piece in scene.changes(scene.leader, first)}
    scene.cut_others(away)
    scene.put(3)
    scene.loses = lambda to, sent: False
    while finished[0] == 1:
        read(0, 20, 81, first)
    scene.settle()
    base = away.log.base(scene.channel).seq
    read(0, 20, first, base)
    told = scene.changes(scene.leader, base)
    truth |= {piece.seq: piece for piece in told}
    assert base > first
    assert finished[0] == 2
    assert told == scene.changes(away, base)
    assert told
    refused = {answer.code for answer in answers if isinstance(answer, Failed)}
    assert refused == {"data_loss", "unavailable", "not_up_to_bound"}
    pages = [answer.pieces for answer in answers if isinstance(answer, ChangesAnswer)]
    assert any(pages)
    for page in filter(None, pages):
        # All of a stretch of the history: nothing is passed over, nothing is made up.
        between = [truth[seq] for seq in sorted(truth) if page[0].seq <= seq <= page[-1].seq]
        assert list(page) == between
