"""Witnesses in a calm simulated cluster: they vote and keep the log, and have no rows."""

from __future__ import annotations

from typing import Any

import pytest

from raftstore.core.replica import Replica
from raftstore.engine.retention.floors import WITNESS
from raftstore.ports.log import Base
from raftstore.ports.table_copy import POSITION_KEY
from raftstore.protocol.admin import ContentHash
from raftstore.protocol.message import Done, Failed, Message, Request
from raftstore.protocol.node import Hole
from raftstore.protocol.payload import encode_rows
from raftstore.protocol.reads import Get
from raftstore.protocol.replica_snapshots import (
    AskReplicaSnapshot,
    AskSnapshotChunk,
    ReplicaSnapshotOffer,
    SnapshotChunk,
)
from raftstore.rows.sealing import seal
from raftstore.testing.sim_node import SimNode
from raftstore.types import History, Level, MemberRole, Seq, Term, node_name
from tests.unit.engine.catalog.replica_world import World
from tests.unit.engine.engine_world import ask, publish, run, spy

pytestmark = pytest.mark.slow

KEY = b"key"


def with_witness(**options: Any) -> tuple[World, SimNode]:
    """Two voters with rows, one of which leads, and a witness in the place of the third."""
    world = World(**options)
    gone = next(node for node in world.members if node != world.leader.node)
    wanted = tuple(world.stranger if node == gone else node for node in world.members)
    names = tuple(map(node_name, wanted))
    put(world, 1)
    answer = world.order(*names, witnesses=(node_name(world.stranger),))
    assert isinstance(answer, Done), answer
    run(world.cluster, 20_000)
    config = world.seen().config
    assert config.role_of(world.stranger) is MemberRole.WITNESS
    assert set(config.voters) == set(wanted)
    assert config.ended
    return world, world.cluster.nodes[world.stranger]


def put(world: World, counter: int, size: int = 1, within_ms: int = 2_000) -> None:
    """The row's next value, acknowledged."""
    payload = encode_rows([(KEY, seal(KEY, b"%d" % counter * size))])
    message = publish(world.cluster, world.leader, world.channel, counter, payload)
    answers = ask(world.cluster, world.leader, message)
    run(world.cluster, within_ms)
    assert len(answers) == 1, answers


def asked(world: World, node: SimNode, request: Request) -> Any:
    """The node's answer."""
    answers = ask(world.cluster, node, request)
    run(world.cluster, 2_000)
    (answer,) = answers
    return answer


def runner_of(world: World, node: SimNode) -> Any:
    """The channel at the node."""
    return node.runner.channels[world.channel]


def get(world: World, node: SimNode) -> Any:
    """A read of the least level."""
    return asked(world, node, Get(1, world.channel, (KEY,), Level.ANY.value, None, 0, 1_000))


def other_of(world: World, witness: SimNode) -> SimNode:
    """The voter with rows that does not lead."""
    config = world.seen().config
    names = [n for n in config.voters if n not in (witness.node, world.leader.node)]
    return world.cluster.nodes[names[0]]


def test_witness_has_the_log_and_no_rows() -> None:
    """W7: it acknowledges, and refuses whatever needs a row."""
    world, witness = with_witness()
    for counter in range(2, 6):
        put(world, counter)
    runner = runner_of(world, witness)
    assert runner.core.commit_seq == runner_of(world, world.leader).core.commit_seq
    assert runner.parts.tables.applied_seq(world.channel) == runner.core.commit_seq
    assert not runner.parts.tables.scan(world.channel, b"", b"\xff", 10).rows
    for request in (
        Get(1, world.channel, (KEY,), Level.ANY.value, None, 0, 1_000),
        ContentHash(1, world.channel),
    ):
        answer = asked(world, witness, request)
        assert isinstance(answer, Failed)
        assert "witness" in answer.message


def test_witness_makes_the_quorum_and_gives_back_what_it_acknowledged() -> None:
    """W4: what leader and witness committed survives the leader: the witness stands last, brings
    the other voter up to date and has it lead."""
    world, witness = with_witness()
    leader, late = world.leader, other_of(world, witness)
    late.crash("to be late")
    put(world, 2)
    put(world, 3)
    leader.crash("for good")
    late.boot()
    run(world.cluster, 30_000)
    assert world.leader is late
    assert b"3" in get(world, late).values[0]
    put(world, 4)
    leader.boot()
    run(world.cluster, 10_000)
    assert b"4" in get(world, late).values[0]


def test_witness_keeps_records_until_voters_with_rows_have_them() -> None:
    """W6: its log is the second copy of what a late voter lacks, and no bound gives it up."""
    world, witness = with_witness()
    late = other_of(world, witness)
    late.crash("to be late")
    put(world, 2)
    at = runner_of(world, witness).core.commit_seq
    floors = witness.runner.retention.floors
    runner = runner_of(world, witness)
    (floor,) = [f for f in floors.of(runner, 0) if f.name == WITNESS]
    assert floor.seq < at
    assert floor.bytes_max is None
    late.boot()
    run(world.cluster, 5_000)
    runner = runner_of(world, witness)
    (floor,) = [f for f in floors.of(runner, 0) if f.name == WITNESS]
    assert floor.seq == runner.core.commit_seq
    # A voter with rows keeps none for that reason.
    own = world.leader.runner.retention.floors.of(runner_of(world, world.leader), 0)
    assert not [f for f in own if f.name == WITNESS]


@pytest.mark.parametrize("is_down", [False, True])
def test_witness_survives_a_restart(is_down: bool) -> None:
    """It is opened as what its log says that it is."""
    world, witness = with_witness()
    witness.crash("a restart")
    if is_down:
        put(world, 2)
    witness.boot()
    run(world.cluster, 5_000)
    runner = runner_of(world, witness)
    assert not runner.has_rows
    assert not runner.core.is_recovering
    assert runner.core.commit_seq == runner_of(world, world.leader).core.commit_seq


def test_orders_that_would_lean_on_witnesses_are_refused() -> None:
    """W1, W3: with the value and the remedy, and nothing is half done."""
    world = World()
    names = tuple(map(node_name, world.members))
    stranger = node_name(world.stranger)
    for answer, text in (
        (world.order(names[0], stranger, witnesses=(stranger,)), "1 of 2 voters would be witn"),
        (world.order(*names, witnesses=names[:1]), "has the rows and cannot become a witness"),
        (world.order(*names, witnesses=(stranger,)), "is to be a witness and no voter"),
    ):
        assert isinstance(answer, Failed), answer
        assert (answer.code, text in answer.message) == ("schema", True)
    world, witness = with_witness()
    others = [node_name(n) for n in world.seen().config.voters if n != witness.node]
    answer = world.order(*others, learners=(stranger,), order=b"r" * 16)
    assert (answer.code, "is a witness without rows" in answer.message) == ("schema", True)
    assert isinstance(world.order(*others, order=b"s" * 16), Done)
    run(world.cluster, 20_000)
    assert witness.node not in world.hosts()


def test_witness_gives_no_table() -> None:
    """W7: who lacks rows would be whole with none."""
    world, witness = with_witness()
    other = other_of(world, witness)
    sent = spy(world.cluster, witness)
    request = AskReplicaSnapshot(world.channel, 7, Seq(0), Seq(0))
    witness.runner.snapshots.on_message(other.node, request, 0)
    run(world.cluster, 1_000)
    (offer,) = [m for _, m in sent if isinstance(m, ReplicaSnapshotOffer)]
    assert (offer.snapshot_id, "is a witness" in offer.reason) == (0, True)
    assert witness.node not in other.runner.snapshots.receiver._parts.sources(
        runner_of(world, other)
    )


def test_witness_that_needs_a_table_gets_its_position_alone() -> None:
    """W6: behind that its log may begin; rows it gets none."""
    world, witness = with_witness()
    sent = spy(world.cluster, world.leader)
    request = AskReplicaSnapshot(world.channel, 7, Seq(0), Seq(0), without_rows=True)
    sender, clock = world.leader.runner.snapshots, world.leader.clock
    sender.on_message(witness.node, request, clock.now_ms())
    run(world.cluster, 1_000)
    (offer,) = [m for _, m in sent if isinstance(m, ReplicaSnapshotOffer)]
    asked_for = AskSnapshotChunk(world.channel, offer.snapshot_id, 0)
    sender.on_message(witness.node, asked_for, clock.now_ms())
    run(world.cluster, 1_000)
    (chunk,) = [m for _, m in sent if isinstance(m, SnapshotChunk)]
    assert chunk.is_last
    assert [key for key, _ in chunk.pairs] == [POSITION_KEY]
    assert chunk.all_pairs == 1


def test_base_for_a_witness_waits_for_voters_with_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """W6: what it skips it never holds, so others must: not another witness instead."""
    world, witness = with_witness()
    late = other_of(world, witness)
    late.crash("to be late")
    put(world, 2)
    leader = world.leader
    sender = leader.runner.snapshots.sender
    core = runner_of(world, leader).core
    at = Base(core.term, core.commit_seq, bytes(16), b"")
    assert sender._why_no_base_for(witness.node, world.channel, at) is None
    with monkeypatch.context() as older:
        older.setattr(sender, "_nodes_at_level", lambda _: ())
        assert sender._why_no_base_for(witness.node, world.channel, at), "it would not judge itself"
    monkeypatch.setattr(Replica, "is_only_witness", lambda *_: False)
    reason = sender._why_no_base_for(witness.node, world.channel, at)
    assert reason is not None
    assert "too few voters with rows" in reason
    assert sender._why_no_base_for(late.node, world.channel, at) is None
    late.boot()
    run(world.cluster, 5_000)
    assert sender._why_no_base_for(witness.node, world.channel, at) is None
    assert sender._rows_seq_for(witness.node, world.channel) >= at.seq
    assert sender._rows_seq_for(late.node, world.channel) == 0
    follower = runner_of(world, late).core
    assert follower.rows_seq() == 0, "only a leader knows"
    monkeypatch.undo()
    assert not follower.is_only_witness(witness.node), "nor this"
    assert runner_of(world, world.leader).core.is_only_witness(witness.node)


def test_witness_takes_no_base_above_what_it_holds_for_a_late_voter() -> None:
    """W6: its log is the second copy, which the leader's word does not end. What it may have held
    and lost counts as well."""
    world, witness = with_witness()
    late = other_of(world, witness)
    late.crash("to be late")
    end = runner_of(world, witness).core.last_seq
    put(world, 2)
    runner = runner_of(world, witness)
    parts = witness.runner.snapshots.receiver._parts
    assert parts.why_kept(runner, end) is None
    reason = parts.why_kept(runner, runner.core.commit_seq)
    assert reason is not None
    assert "voters with rows are known to have what is up to seq" in reason
    assert parts.why_kept(runner_of(world, world.leader), runner.core.commit_seq) is None
    late.boot()
    run(world.cluster, 5_000)
    runner = runner_of(world, witness)
    assert parts.why_kept(runner, Seq(runner.core.last_seq + 9)) is None, "it never held that"
    runner.core._state.recovering = History(runner.core.term, runner.core.last_seq)
    runner.core._state.keeps_promises = False
    assert parts.why_kept(runner, runner.core.last_seq) is None
    assert parts.why_kept(runner, Seq(runner.core.last_seq + 9)) is not None


def test_witness_far_behind_makes_the_quorum_while_a_damaged_voter_waits_for_a_leader() -> None:
    """W6, O6: logs were trimmed beyond its end while it was away, and a voter lost records that
    nobody has any more: that one takes part when a leader has committed, and the leader in its term
    when it has the witness."""
    world, witness = with_witness(retention=True)
    leader, damaged = world.leader, other_of(world, witness)
    end = runner_of(world, witness).core.last_seq
    witness.crash("away for long")
    for counter in range(2, 50):
        put(world, counter, size=400, within_ms=200)
    assert runner_of(world, leader).core.base.seq > end
    assert runner_of(world, damaged).core.base.seq > end
    runner = runner_of(world, damaged)
    runner.hole = Hole(runner.core.base.seq, runner.core.last_seq, Term(1), ())
    leader.crash("to forget what others hold")
    leader.boot()
    witness.boot()
    run(world.cluster, 20_000)
    assert world.leader is leader
    put(world, 50)


def test_status_of_every_node_says_who_is_the_witness() -> None:
    """Of its own replica, and of the others as its configuration says."""
    world, witness = with_witness()
    shown = {}
    for node in (world.leader, witness):
        assert node.runner is not None
        channels = node.runner.reports.status()["channels"]
        (channel,) = [each for each in channels if each["channel"] == world.channel.hex()]
        shown[node] = channel["member"]
        members = {each["node"]: each["member"] for each in channel["replicas"]}
        assert members.pop(witness.name) == "witness"
        assert set(members.values()) == {"voter"}
    assert shown == {world.leader: "voter", witness: "witness"}


@pytest.mark.parametrize("is_away", [False, True], ids=["there", "away"])
def test_log_of_a_witness_is_trimmed_and_it_never_asks_for_a_table(*, is_away: bool) -> None:
    """W6, W7: as the logs of the others are. Where they were trimmed beyond its end while it was
    away, it begins behind a base that voters with rows hold, and goes on to vote."""
    world, witness = with_witness(retention=True)
    asked: list[AskReplicaSnapshot] = []
    send = world.cluster.network.send

    def seen(sender: str, receiver: str, message: Message) -> None:
        if sender == witness.node and isinstance(message, AskReplicaSnapshot):
            asked.append(message)
        send(sender, receiver, message)

    world.cluster.network.send = seen  # type: ignore[method-assign]
    first = runner_of(world, witness).core.base.seq
    end = runner_of(world, witness).core.last_seq
    if is_away:
        witness.crash("away for long")
    for counter in range(2, 50):
        put(world, counter, size=400, within_ms=200)
    assert runner_of(world, world.leader).core.base.seq > end
    if is_away:
        assert not asked
        witness.boot()
        run(world.cluster, 20_000)
    core = runner_of(world, witness).core
    assert core.base.seq > max(first, end if is_away else 0)
    assert core.commit_seq == runner_of(world, world.leader).core.commit_seq
    assert core.last_seq - core.base.seq < core.last_seq // 2
    assert all(request.without_rows for request in asked)
    assert not runner_of(world, witness).parts.tables.scan(world.channel, b"", b"\xff", 10).rows
    other_of(world, witness).crash("so that the witness is needed")
    put(world, 50)
