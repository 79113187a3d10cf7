"""A stream whose table was dropped and made anew, on a running cluster."""

from __future__ import annotations

import msgspec
import pytest

from raftstore.config import DROPPED_WRITERS_MAX
from raftstore.protocol.admin import DropTable
from raftstore.protocol.batches import OPENED, BatchAnswer
from raftstore.protocol.message import Done, Message
from raftstore.testing.sim_node import SimNode
from tests.unit.engine.batch_world import BatchWorld, refusal
from tests.unit.engine.engine_world import ask, run


def catalog_leader(world: BatchWorld) -> SimNode:
    runner = world.leader().runner
    assert runner is not None
    return world.cluster.leaders()[runner.metadata_channel]


def make_anew(world: BatchWorld, writers: tuple[tuple[str, str], ...]) -> None:
    """Drop the table, which had these writers, and create it again."""
    dropped = ask(world.cluster, catalog_leader(world), DropTable(1, "t", 5_000, writers=writers))
    run(world.cluster, 2_000)
    assert [type(answer) for answer in dropped] == [Done]
    world.cluster.table_channels.clear()
    world.cluster.create_table(2)
    run(world.cluster, 10_000)
    assert world.cluster.every_channel_has_a_leader()
    world.channels = tuple(world.cluster.table_channels)
    world.staged.clear()


def begin(world: BatchWorld, batch_id: int, lineage: str, writer: str = "orders") -> Message:
    request = world.begin_request(batch_id, b"%016d" % world.counter, writer)
    [answer] = world.tell(msgspec.structs.replace(request, lineage=lineage))
    return answer


def is_opened(answer: Message) -> bool:
    return isinstance(answer, BatchAnswer) and answer.verdict == OPENED


@pytest.mark.slow
def test_stream_does_not_begin_a_table_anew_in_its_middle() -> None:
    """The batches before would be missing in silence; every later leader answers the same. A new
    checkpoint and another writer begin at any number, and so does the stream at batch 0."""
    world = BatchWorld.start()
    assert is_opened(begin(world, 4, "ck"))
    make_anew(world, (("orders", "ck"),))
    assert refusal(begin(world, 5, "ck")) == "unknown_table"
    world.leader().crash("test")
    run(world.cluster, 30_000)
    assert refusal(begin(world, 5, "ck")) == "unknown_table"
    assert is_opened(begin(world, 5, "ck", writer="second"))
    assert is_opened(begin(world, 5, "new"))
    make_anew(world, ())
    # The second table knew the writer by its new checkpoint, and nobody reported who had what in
    # it.
    assert refusal(begin(world, 6, "ck")) == "unknown_table"
    assert is_opened(begin(world, 0, "ck"))
    assert is_opened(begin(world, 1, "ck"))


def test_catalog_remembers_so_many_writers_and_none_that_cannot_be() -> None:
    """A client's list is a client's word."""
    world = BatchWorld.start()
    named = tuple((f"w{n}", "ck") for n in range(DROPPED_WRITERS_MAX + 1))
    make_anew(world, (("", "ck"), ("w", ""), ("w", "x" * 300), *named))
    runner = catalog_leader(world).runner
    assert runner is not None
    remembered = runner.controller.catalog.dropped_writers["t"]
    assert remembered == frozenset(named[: DROPPED_WRITERS_MAX - 3])
