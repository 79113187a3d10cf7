"""A table that is being restored serves nobody and takes the batches of its restore alone, until
the mark is removed (GAP-12); on a running cluster."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec import structs

from raftstore.policy.levels import RESTORE_LEVEL
from raftstore.protocol.admin import CreateTable, DropTable
from raftstore.protocol.batches import OPENED, BatchAnswer
from raftstore.protocol.changes import Changes, ChangesAnswer
from raftstore.protocol.message import Done, Failed, Message
from raftstore.protocol.payload import encode_rows
from raftstore.protocol.publish import PubAck, PubReject
from raftstore.protocol.reads import Count, CountAnswer, Get, GetAnswer, Scan, ScanAnswer
from raftstore.protocol.snapshots import OpenSnapshot, SnapshotAnswer
from raftstore.protocol.table_settings import TableSettings
from raftstore.rows.sealing import seal
from raftstore.types import Seq
from tests.unit.engine.batch_world import BatchWorld
from tests.unit.engine.catalog.test_edit_table import answered, catalog_leader, edit
from tests.unit.engine.channel.test_levels import follower_of_all, reinstall
from tests.unit.engine.engine_world import calm_cluster, publish, run

TOKEN = "0123456789abcdef" * 2
UUID = bytes.fromhex(TOKEN)
RESTORED = CreateTable(
    7, "r", ("id",), 1, 3, "fsync", None, "", False, 5_000, TableSettings(restoring=TOKEN)
)


def restoring() -> BatchWorld:
    """A cluster with a table on its way in, and the words of who restores it."""
    cluster, _ = calm_cluster()
    leader = catalog_leader(cluster)
    [done] = answered(cluster, leader, RESTORED)
    assert isinstance(done, Done)
    run(cluster, 5_000)
    assert leader.runner is not None
    return BatchWorld(cluster, leader.runner.controller.catalog.tables["r"].channels)


def reads(world: BatchWorld) -> list[Message]:
    """One request of each kind that shows rows."""
    channel = world.channels[0]
    row = (b"k",)
    levels = ("linearizable", "leader", "any")
    return [
        *(Get(10 + n, channel, row, level, None, Seq(0), 500) for n, level in enumerate(levels)),
        Get(13, channel, row, "bounded", 1_000, Seq(0), 500),
        Scan(14, channel, b"", b"", 10, "any", None, Seq(0), 500),
        Count(15, channel, b"", b"", "any", None, Seq(0), 500),
        OpenSnapshot(16, channel, 0, True, 0, 500),
        Changes(17, channel, Seq(0), 0, Seq(0), 10, 1_000, 500),
    ]


def write(world: BatchWorld, counter: int) -> Message:
    """A row, written by itself."""
    payload = encode_rows([(b"mine", seal(b"mine", b"v"))])
    message = publish(world.cluster, world.leader(), world.channels[0], counter, payload)
    [answer] = world.tell(message)
    return answer


def finish(world: BatchWorld) -> None:
    """Remove the mark."""
    request = edit(world.cluster, world.channels[0], restoring=None)
    [done] = answered(world.cluster, catalog_leader(world.cluster), request)
    assert isinstance(done, Done)


def is_refused(answer: Message) -> bool:
    """By the rule, and not for another reason."""
    assert isinstance(answer, Failed | PubReject), answer
    return answer.code == "unavailable" and "is being restored from a backup" in answer.message


def test_gap_12_part_of_a_table_is_never_read() -> None:
    """At no level, by no kind of read, not by changes either; when the mark is gone by all."""
    world = restoring()
    opened = world.begin(0, UUID, "raftstore.restore")
    staged = world.stage(opened.attempt, 0, {b"k": b"v"}, writer="raftstore.restore")
    assert isinstance(staged, PubAck), "the restore itself stages rows"
    request = world.commit_request(opened.attempt, 0, writer="raftstore.restore")
    assert isinstance(world.tell(request)[0], BatchAnswer)
    answers = world.tell(*reads(world))
    assert len(answers) == len(reads(world))
    assert all(map(is_refused, answers))
    finish(world)
    kinds = {type(answer) for answer in world.tell(*reads(world))}
    assert kinds == {GetAnswer, ScanAnswer, CountAnswer, SnapshotAnswer, ChangesAnswer}


def test_gap_12_nobody_else_writes_to_a_table_that_is_not_whole() -> None:
    """An acknowledged row would be overwritten by an older one of the backup. Nor does a stream
    begin that found the table before its own last batch was known."""
    world = restoring()
    assert is_refused(write(world, 1))
    [answer] = world.tell(world.begin_request(5, b"other uuid here."))
    assert is_refused(answer)
    finish(world)
    assert isinstance(write(world, 2), PubAck)
    assert world.begin(5, b"other uuid here.").verdict == OPENED


def test_restore_brings_back_writers_of_a_table_that_was_dropped() -> None:
    """They are remembered as those whose earlier batches are gone; here they come back."""
    world = restoring()
    cluster = world.cluster
    dropped = DropTable(1, "r", 5_000, writers=(("orders", "ck"),))
    [done] = answered(cluster, catalog_leader(cluster), dropped)
    assert isinstance(done, Done)
    [done] = answered(cluster, catalog_leader(cluster), RESTORED)
    assert isinstance(done, Done)
    run(cluster, 5_000)
    runner = catalog_leader(cluster).runner
    assert runner is not None
    again = BatchWorld(cluster, runner.controller.catalog.tables["r"].channels)
    request = structs.replace(again.begin_request(6, UUID), lineage="ck")
    [opened] = again.tell(request)
    assert isinstance(opened, BatchAnswer)
    assert opened.verdict == OPENED
    again.commit(opened.attempt, 6)
    finish(again)
    later = structs.replace(again.begin_request(7), lineage="ck")
    [opened] = again.tell(later)
    assert isinstance(opened, BatchAnswer)
    assert opened.verdict == OPENED


def test_mark_outlives_restarts_of_all_nodes() -> None:
    """It is in the catalog: a node that starts opens the table with it."""
    world = restoring()
    for node in world.cluster.nodes.values():
        node.kill("everything stops")
    for node in world.cluster.nodes.values():
        node.boot()
    run(world.cluster, 10_000)
    assert all(map(is_refused, world.tell(*reads(world))))


def test_table_that_was_served_is_never_marked() -> None:
    """Readers would lose it, and a restore would write over acknowledged rows."""
    cluster, channel = calm_cluster()
    leader = catalog_leader(cluster)
    [failed] = answered(cluster, leader, edit(cluster, channel, restoring=TOKEN))
    assert isinstance(failed, Failed)
    assert f"restoring='{TOKEN}' cannot be set" in failed.message


@pytest.mark.parametrize("token", ["", "x" * 32, TOKEN.upper(), TOKEN + "0"])
def test_what_is_no_token_is_refused(token: Any) -> None:
    """No BEGIN could name it, and the table would be shut for ever."""
    cluster, _ = calm_cluster()
    request = structs.replace(RESTORED, settings=TableSettings(restoring=token))
    [failed] = answered(cluster, catalog_leader(cluster), request)
    assert isinstance(failed, Failed)
    assert "is no token of a restore" in failed.message


def test_table_is_not_restored_while_a_node_would_serve_part_of_it() -> None:
    """A node of an older level does not know the mark."""
    cluster, channel = calm_cluster()
    reinstall(cluster, follower_of_all(cluster, channel), RESTORE_LEVEL - 1)
    [failed] = answered(cluster, catalog_leader(cluster), RESTORED)
    assert isinstance(failed, Failed)
    assert failed.code == "store_too_old"
