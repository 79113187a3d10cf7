"""Changes asked of the nodes of a cluster: all replicas answer the same."""

from __future__ import annotations

from raftstore.protocol.changes import ChangeEnds, ChangeEndsAnswer, Changes, ChangesAnswer
from raftstore.protocol.payload import encode_rows
from raftstore.rows.sealing import seal
from raftstore.testing.sim_node import SimNode
from raftstore.types import Seq
from tests.unit.engine.batch_world import BatchWorld, refusal
from tests.unit.engine.engine_world import ask, publish, run


def put(world: BatchWorld, key: bytes) -> None:
    """One row of partition 0."""
    world.counter += 1
    payload = encode_rows([(key, seal(key, b"value"))])
    leader = world.leader()
    message = publish(world.cluster, leader, world.channels[0], world.counter, payload)
    world.tell(message, ms=500)


def told(world: BatchWorld, node: SimNode) -> tuple[ChangesAnswer, ChangeEndsAnswer]:
    """The first page of partition 0, and its ends, at a node."""
    channel = world.channels[0]
    answers = ask(
        world.cluster,
        node,
        Changes(1, channel, Seq(0), 0, Seq(0), 1_000, 1 << 20, 1_000),
        ChangeEnds(2, channel, Seq(0), Seq(0), 1_000, 1_000),
    )
    run(world.cluster, 500)
    page, ends = sorted(answers, key=lambda answer: type(answer).__name__, reverse=True)
    assert isinstance(page, ChangesAnswer), page
    assert isinstance(ends, ChangeEndsAnswer), ends
    return page, ends


def test_every_replica_tells_the_same_changes_before_and_after_a_failover() -> None:
    """Rows and a batch, each once; what follows under another leader comes behind them."""
    world = BatchWorld.start()
    put(world, b"a")
    opened = world.begin(0)
    world.stage(opened.attempt, 0, {b"b": b"staged", b"a": None})
    before = told(world, world.leader())[0]
    assert [piece.writer for piece in before.pieces] == [""]
    world.commit(opened.attempt, 0)
    run(world.cluster, 2_000)
    nodes = [node for node in world.cluster.nodes.values() if node.is_up]
    pages = [told(world, node) for node in nodes]
    assert len(pages) == 3
    assert all(page == pages[0] for page in pages)
    first = pages[0][0]
    assert [(piece.writer, piece.batch_id) for piece in first.pieces] == [("", -1), ("orders", 0)]
    assert (first.after, first.sub, first.applied) == (world.seqs(), 0, world.seqs())
    assert (pages[0][1].reached, pages[0][1].rows) == (world.seqs(), 3)

    leader = world.leader()
    leader.kill("test")
    run(world.cluster, 10_000)
    put(world, b"c")
    run(world.cluster, 2_000)
    assert world.leader().node != leader.node
    later = told(world, world.leader())[0]
    assert later.pieces[:2] == first.pieces
    assert len(later.pieces) == 3


def test_changes_of_no_table_are_refused() -> None:
    """The catalog is no table, and a channel that is not here has no changes."""
    world = BatchWorld.start()
    leader = world.leader()
    asked = [
        Changes(number, channel, Seq(0), 0, Seq(0), 1, 1, 1_000)
        for number, channel in enumerate((leader.runner.metadata_channel, bytes(18)))
    ]
    answers = ask(world.cluster, leader, *asked)  # type: ignore[arg-type]
    run(world.cluster, 500)
    assert [refusal(answer) for answer in answers] == ["unknown_channel"] * 2
