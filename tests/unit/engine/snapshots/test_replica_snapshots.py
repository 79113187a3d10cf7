"""Replicas that no log helps take a table or a base from their leader, and are whole again."""

from __future__ import annotations

import re
from collections.abc import Callable

import msgspec
import pytest

from raftstore.engine.snapshots.decisions import Lacking, takes_base, why_no_base, why_no_table
from raftstore.protocol.message import Message
from raftstore.protocol.replica_snapshots import (
    AskReplicaSnapshot,
    AskSnapshotChunk,
    BaseOffer,
    ReplicaSnapshotOffer,
    SnapshotChunk,
)
from raftstore.protocol.replication import MsgSync
from raftstore.testing.sim_node import SimNode
from raftstore.types import History, NodeId, Seq, Term
from tests.snapshot_world import SnapshotWorld, world_of
from tests.unit.engine.engine_world import run

pytestmark = pytest.mark.slow

COPY_STEPS = (
    "copy.before-write",
    "copy.before-sync",
    "copy.after-sync",
    "copy.before-switch",
    "copy.after-switch",
)


def away_and_cut(world: SnapshotWorld) -> SimNode:
    """A node that is down, and whose log ends below the base of all others."""
    away = world.followers()[0]
    away.kill("away")
    world.write(60)
    world.cut_all()
    return away


def filtered(world: SnapshotWorld, change: Callable[[str, str, Message], Message | None]) -> None:
    """Every message goes through ``change``; None: it is lost."""
    send = world.cluster.network.send

    def changed(sender: str, receiver: str, message: Message) -> None:
        kept = change(sender, receiver, message)
        if kept is not None:
            send(sender, receiver, kept)

    world.cluster.network.send = changed  # type: ignore[method-assign]


def test_follower_below_the_leaders_base_takes_its_table_then_its_base() -> None:
    """S6.6, NATS-197: it was away while everything that it lacks was cut from the logs."""
    world = world_of()
    away = away_and_cut(world)
    assert away.boot()
    world.settle()
    assert away.log.base(world.channel).seq > 50
    for name in (
        "replica_snapshot_needed",
        "replica_snapshot_started",
        "replica_snapshot_finished",
        "base_taken",
    ):
        assert world.told(name), name
    assert not world.told("replica_snapshot_failed")
    world.write(5)
    world.settle()
    away.kill("again")
    assert away.boot()
    world.settle()
    assert len(world.told("replica_snapshot_finished")) == 1


def test_sender_lets_its_snapshot_go_once_the_receiver_has_it() -> None:
    """It keeps each file that the table had and has not any more: of a table that is written to
    all the time that was hundreds of megabytes until the session was given up."""
    world = world_of()
    away = away_and_cut(world)
    assert away.boot()
    world.until(lambda: bool(world.told("replica_snapshot_finished")))
    before_ms = world.cluster.scheduler.now_ms
    senders = [node.runner.snapshots.sender for node in world.cluster.nodes.values()]
    assert any(sender.sent_chunks for sender in senders)
    world.until(lambda: not any(sender.sessions for sender in senders))
    assert world.cluster.scheduler.now_ms < before_ms + 1_000


def test_status_tells_how_far_a_snapshot_is() -> None:
    """With bytes, the rate and the time that is left; nothing once it is over."""
    world = world_of()
    away = away_and_cut(world)
    assert away.boot()
    runner = away.runner
    assert runner is not None

    def reasons() -> list[str]:
        status = runner.reports.status()
        return [each["reason"] for each in status["channels"]]

    world.until(lambda: any("copying, " in reason for reason in reasons()))
    [copying] = reasons()
    assert re.search(
        r"replica snapshot from n\d: copying, \d+ of about \d+ bytes, \d+ byt", copying
    )
    assert "s left" in copying
    world.settle()
    assert reasons() == [""]


@pytest.mark.parametrize("leads", [False, True])
def test_lost_table_behind_a_base_heals_by_itself(leads: bool) -> None:
    """S0.3: the replica is recovering until it has another one's table, and nobody has to act."""
    world = world_of()
    world.cut_all()
    world.write(5)
    node = world.leader if leads else world.followers()[0]
    node.kill("its table is damaged")
    node.tables.lose()
    assert node.boot()
    runner = node.runner
    assert runner is not None
    world.until(lambda: world.channel in runner.channels)
    core = runner.channels[world.channel].core
    assert (core.lacks_rows, core.is_recovering, core.may_vote()) == (True, True, False)
    world.settle()
    assert world.told("replica_snapshot_finished")
    assert not world.told("base_taken")


@pytest.mark.parametrize("step", COPY_STEPS)
@pytest.mark.parametrize("times", [1, 2])
def test_receiver_that_dies_at_any_step_is_whole_in_the_end(step: str, times: int) -> None:
    """S6.4: a stop leaves the former table or the copied one, and what is missing is fetched."""
    world = world_of()
    away = away_and_cut(world)
    assert away.boot()
    for _ in range(1 if step == COPY_STEPS[-1] else times):
        away.failpoint = step
        world.until(lambda: not away.is_up)
        assert away.boot()
    world.settle()


@pytest.mark.parametrize("message", [AskReplicaSnapshot, AskSnapshotChunk])
def test_sender_that_dies_in_the_middle_is_followed_by_another(message: type[Message]) -> None:
    """S6.2: the next leader's snapshot is begun from its start."""
    world = world_of()
    away = away_and_cut(world)
    seen: list[Message] = []
    receivers: list[NodeId] = []

    def watch(_sender: str, receiver: str, sent: Message) -> Message:
        if type(sent) is message:
            seen.append(sent)
            receivers.append(NodeId(receiver))
        return sent

    filtered(world, watch)
    assert away.boot()
    world.until(lambda: len(seen) >= (3 if message is AskSnapshotChunk else 1))
    sender = world.cluster.nodes[receivers[0]]
    sender.crash("in the middle")
    world.until(lambda: bool(world.told("replica_snapshot_failed")))
    # Two of three: with the one that needs a snapshot nobody can lead before the other is back.
    assert sender.boot()
    world.settle()


def test_leader_that_cannot_commit_without_the_receiver_gives_it_a_snapshot() -> None:
    """O6: of three one is gone for good, and the other one left needs a snapshot to acknowledge."""
    world = world_of()
    away = away_and_cut(world)
    gone = world.followers()[0]
    gone.kill("for good")
    other = world.leader
    other.kill("restarted")
    assert other.boot()
    assert away.boot()
    world.settle()
    assert world.told("replica_snapshot_finished")


def test_replica_between_table_and_base_helps_to_elect_a_leader() -> None:
    """S0.3, O6: nothing was lost here; without its vote one damaged replica more ends it all."""
    world = world_of()
    away = away_and_cut(world)
    third, leader = (n for n in world.cluster.nodes.values() if n is not away)
    has_base = [False]

    def hold(_sender: str, _receiver: str, sent: Message) -> Message | None:
        return None if isinstance(sent, BaseOffer) and not has_base[0] else sent

    filtered(world, hold)
    assert away.boot()
    world.until(lambda: bool(world.told("replica_snapshot_finished")))
    for node in (third, leader, away):
        node.kill("all at once")
    assert leader.boot()
    assert away.boot()
    world.until(world.has_leader)
    assert world.leader is leader
    assert away.runner is not None
    core = away.runner.channels[world.channel].core
    assert (core.is_recovering, core.may_vote(), core.may_stand()) == (True, True, False)
    has_base[0] = True
    world.write(5)
    world.settle()
    assert third.boot()
    world.settle()


def test_change_of_leader_does_not_disturb_a_table() -> None:
    """Its sender need not lead: all that is applied was committed; the log is matched anew."""
    world = world_of()
    away = away_and_cut(world)
    assert away.boot()
    world.until(lambda: bool(world.told("replica_snapshot_started")))
    old = world.leader
    old.hand_over_all()
    world.settle()
    assert world.leader is not old
    assert not world.told("replica_snapshot_failed")
    assert len(world.told("replica_snapshot_finished")) == 1


def senders(world: SnapshotWorld, name: str) -> list[str]:
    """Peers in the events of this name."""
    found = [re.search(r"peer='?(\w+)", line) for line in world.told(name)]
    return [match[1] for match in found if match is not None]


@pytest.mark.parametrize("how", ["kill", "crash"])
@pytest.mark.parametrize("chunks", [2, 3])
def test_receiver_that_restarts_goes_on_with_what_it_has(how: str, chunks: int) -> None:
    """NATS-154: of what a power cut takes, as much is sent again; the table moved on meanwhile."""
    world = world_of()
    away = away_and_cut(world)
    sent: list[int] = []

    def watch(_sender: str, _receiver: str, message: Message) -> Message:
        if isinstance(message, SnapshotChunk):
            sent.append(len(message.pairs))
        return message

    filtered(world, watch)
    assert away.boot()
    world.until(lambda: len(sent) == chunks)
    run(world.cluster, 20)
    getattr(away, how)("in the middle")
    world.write(3)
    assert away.boot()
    world.settle()
    [resumed] = world.told("replica_snapshot_resumed") or [""]
    assert senders(world, "replica_snapshot_resumed") in (
        [],
        senders(world, "replica_snapshot_started")[:1],
    )
    assert resumed or how == "crash", "all of it may be lost with the power"
    assert len(world.told("replica_snapshot_finished")) == 1


def half_a_copy() -> tuple[SnapshotWorld, SimNode, list[str]]:
    """A replica that has three chunks of a table, and who has sent each so far."""
    world = world_of()
    away = away_and_cut(world)
    chunks: list[str] = []

    def watch(sender: str, _receiver: str, message: Message) -> Message:
        if isinstance(message, SnapshotChunk):
            chunks.append(sender)
        return message

    filtered(world, watch)
    assert away.boot()
    world.until(lambda: len(chunks) == 3)
    run(world.cluster, 20)
    return world, away, chunks


def test_another_replica_sends_the_rest_when_the_sender_dies() -> None:
    """NATS-154: nothing is written meanwhile, so both have the same table."""
    world, _, chunks = half_a_copy()
    first = world.cluster.nodes[NodeId(chunks[0])]
    first.kill("for good")
    world.settle(60_000)
    assert chunks[-1] != chunks[0]
    assert senders(world, "replica_snapshot_resumed")
    assert not world.told("replica_snapshot_begun_anew")


def test_copy_is_begun_anew_when_nobody_has_the_same_table() -> None:
    """Its event says so: rows were written since, and the one that kept the snapshot is gone."""
    world, away, chunks = half_a_copy()
    away.kill("away again")
    world.write(3)
    first = world.cluster.nodes[NodeId(chunks[0])]
    first.kill("restarted")
    assert first.boot()
    assert away.boot()
    world.settle(60_000)
    [anew] = world.told("replica_snapshot_begun_anew")
    assert "nobody has the rest" in anew
    assert not world.told("replica_snapshot_resumed")


SIZES = ("bytes_total", "chunks_total")


def metrics_of(node: SimNode) -> dict[tuple[str, str], float]:
    """Metrics of replica snapshots, by name and direction."""
    assert node.runner is not None
    before = "raftstore_replica_snapshot_"
    return {
        (name.removeprefix(before), labels[0][1]): value
        for name, labels, value in node.runner.reports.metrics()[0]
        if name.startswith(before) and labels
    }


def test_follower_gives_the_table_and_the_leader_is_spared() -> None:
    """Both have it; the base comes from the leader."""
    world = world_of()
    away = away_and_cut(world)
    chunks: list[str] = []

    def watch(sender: str, receiver: str, message: Message) -> Message | None:
        if isinstance(message, SnapshotChunk):
            chunks.append(sender)
        is_early = world.cluster.scheduler.now_ms < until_ms
        return (
            None if is_early and receiver == away.node and isinstance(message, MsgSync) else message
        )

    # Its leader names what it lacks when it is connected to both.
    until_ms = world.cluster.scheduler.now_ms + 100
    filtered(world, watch)
    assert away.boot()
    world.settle()
    assert world.leader.node not in chunks
    assert len(chunks) > 2
    told = {
        name: metrics_of(world.cluster.nodes[NodeId(chunks[0])])[name, "sent"] for name in SIZES
    }
    assert told == {name: metrics_of(away)[name, "received"] for name in SIZES}
    assert told["chunks_total"] == len(chunks)
    assert told["bytes_total"] > 20 * 200
    assert metrics_of(world.leader)["bytes_total", "sent"] == 0


def test_damaged_chunk_is_asked_for_again() -> None:
    """S12: nothing of it is written."""
    world = world_of()
    away = away_and_cut(world)
    damaged: list[int] = []

    def damage(_sender: str, _receiver: str, sent: Message) -> Message:
        if isinstance(sent, SnapshotChunk) and sent.number == 2 and not damaged:
            damaged.append(2)
            (key, value), *others = sent.pairs
            return msgspec.structs.replace(sent, pairs=((key, value + b"!"), *others))
        return sent

    filtered(world, damage)
    assert away.boot()
    world.settle()
    assert damaged
    assert world.told("replica_snapshot_chunk_damaged")
    assert not world.told("replica_snapshot_failed")


def test_table_that_was_not_read_back_as_it_was_sent_is_not_switched_to() -> None:
    """S6.4: the sender's digest over everything decides."""
    world = world_of()
    away = away_and_cut(world)
    wrong: list[int] = []

    def damage(_sender: str, _receiver: str, sent: Message) -> Message:
        if isinstance(sent, SnapshotChunk) and sent.is_last and not wrong:
            wrong.append(1)
            return msgspec.structs.replace(sent, all_digest=bytes(16))
        return sent

    filtered(world, damage)
    assert away.boot()
    world.settle()
    assert wrong
    [failed] = world.told("replica_snapshot_failed")
    assert "read back" in failed


def test_lost_messages_are_said_again() -> None:
    """S12: every third message about a snapshot is lost."""
    world = world_of()
    away = away_and_cut(world)
    count = 0

    def lose(_sender: str, _receiver: str, sent: Message) -> Message | None:
        nonlocal count
        kinds = AskReplicaSnapshot | ReplicaSnapshotOffer | AskSnapshotChunk | SnapshotChunk
        if isinstance(sent, kinds | BaseOffer):
            count += 1
            if count % 3 == 0:
                return None
        return sent

    filtered(world, lose)
    assert away.boot()
    world.settle(120_000)
    assert count > 10


def test_snapshot_that_nobody_asks_for_is_closed() -> None:
    """NATS-169: what is being sent is pinned, and no longer than somebody asks for it: LevelDB
    keeps old files for it.
    """
    world = world_of()
    away = away_and_cut(world)
    others = [node for node in world.cluster.nodes.values() if node is not away]
    assert away.boot()
    world.until(lambda: any(node.tables.open_snapshots for node in others))
    [sender] = [node for node in others if node.tables.open_snapshots]
    assert sender.runner is not None
    assert list(sender.runner.snapshots.pinned(world.channel)) == [away.node]
    away.kill("for good")
    run(world.cluster, 40_000)
    assert sender.runner is not None
    assert sender.tables.open_snapshots == 0
    assert sender.runner.snapshots.pinned(world.channel) == {}


def test_tail_that_is_no_part_of_the_channel_goes_with_the_snapshot() -> None:
    """S6.4: the receiver was cut off as a leader, with records that nobody else has."""
    world = world_of()
    old = world.leader
    others = [node for node in world.cluster.nodes.values() if node is not old]
    for node in others:
        world.cluster.network.cut(old.node, node.node)
        world.cluster.network.cut(node.node, old.node)
    world.write(3)
    assert old.runner is not None
    stray = old.runner.channels[world.channel].core.history()
    world.until(lambda: world.channel in world.cluster.leaders() and world.leader is not old)
    old.kill("cut off")
    world.write(60)
    world.cut_all()
    world.cluster.network.heal()
    assert old.boot()
    world.cluster.reconnect_all()
    world.settle(60_000)
    assert stray.seq > 20
    assert old.runner is not None
    assert not old.runner.channels[world.channel].core._state.lineage.holds(*stray)


def test_node_of_an_older_version_is_not_asked() -> None:
    """Level 3 does not know replica snapshots: the replica waits until the others are upgraded."""
    world = world_of()
    away = away_and_cut(world)
    asked: list[Message] = []

    def watch(_sender: str, _receiver: str, sent: Message) -> Message:
        if isinstance(sent, AskReplicaSnapshot):
            asked.append(sent)
        return sent

    filtered(world, watch)
    for node in world.cluster.nodes.values():
        node.level = 3
        if node is not away:
            node.kill("downgraded")
            assert node.boot()
    world.until(lambda: world.channel in world.cluster.leaders())
    away.level = 4
    assert away.boot()
    run(world.cluster, 5_000)
    assert not asked
    assert world.told("replica_snapshot_needed")


# --- decisions ------------------------------------------------------------------------------------

LACKING = Lacking(
    lacks_rows=False, applied_seq=Seq(50), base_seq=Seq(10), base_max=Seq(40), trimmed_to=Seq(31)
)


@pytest.mark.parametrize(
    ("trimmed_to", "lacks_rows", "expected"),
    [
        (2, False, True),
        (31, False, True),
        (41, False, True),
        (42, False, False),
        (0, False, False),
        (31, True, False),
    ],
)
def test_base_is_taken_as_far_as_the_table_allows(
    trimmed_to: int, lacks_rows: bool, expected: bool
) -> None:
    """I1: never above a staged record that the table refers to."""
    lacking = LACKING._replace(trimmed_to=Seq(trimmed_to), lacks_rows=lacks_rows)
    assert takes_base(lacking) is expected


@pytest.mark.parametrize(
    ("seq", "base_max", "lacks_rows", "reason"),
    [
        (51, 30, False, None),
        (50, 30, False, "up to seq 50"),
        (51, 9, False, "behind seq 9, the log here"),
        (51, 29, False, "behind seq 29, the leader's log begins with 31"),
        (5, 30, True, None),
        (5, 9, True, "behind seq 9, the log here"),
    ],
)
def test_table_is_taken_if_it_is_newer_and_this_log_has_what_it_refers_to(
    seq: int, base_max: int, lacks_rows: bool, reason: str | None
) -> None:
    """I1: for the base of this log."""
    lacking = LACKING._replace(lacks_rows=lacks_rows)
    found = why_no_table(lacking, History(Term(3), Seq(seq)), Seq(base_max))
    assert found is None if reason is None else found is not None and reason in found


@pytest.mark.parametrize(
    ("seq", "lacks_rows", "reason"),
    [
        (10, False, "already"),
        (11, False, None),
        (40, False, None),
        (41, False, "needs"),
        (11, True, "needs"),
    ],
)
def test_base_never_goes_down_nor_above_what_the_table_has(
    seq: int, lacks_rows: bool, reason: str | None
) -> None:
    """S6.5, I1."""
    found = why_no_base(LACKING._replace(lacks_rows=lacks_rows), Seq(seq))
    assert found is None if reason is None else found is not None and reason in found
