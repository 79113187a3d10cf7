"""Replica snapshots in files: worlds in which a replica takes the files of another one's table."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import pytest

from raftstore.protocol.message import Message
from raftstore.protocol.replica_snapshots import (
    AskReplicaSnapshot,
    AskSnapshotChunk,
    ReplicaSnapshotOffer,
    SnapshotChunk,
    TableFilePart,
    TableFilesRefused,
)
from raftstore.record_machine import Row
from raftstore.testing.sim_node import SimNode
from raftstore.types import NodeId
from tests.snapshot_world import SnapshotWorld, world_of
from tests.unit.engine.engine_world import run
from tests.unit.engine.snapshots.test_replica_snapshots import (
    COPY_STEPS,
    away_and_cut,
    filtered,
    senders,
)

STEPS = (*COPY_STEPS, "copy.after-file")


def watched(world: SnapshotWorld, *kinds: type[Message]) -> list[tuple[str, Message]]:
    """Messages of these kinds that are sent from now on, and who sent them."""
    seen: list[tuple[str, Message]] = []

    def watch(sender: str, _receiver: str, message: Message) -> Message:
        if isinstance(message, kinds):
            seen.append((sender, message))
        return message

    filtered(world, watch)
    return seen


def change_first(
    world: SnapshotWorld, change: Callable[[TableFilePart], Message | None]
) -> list[int]:
    """Change the first part for which ``change`` returns something else."""
    changed: list[int] = []

    def once(_sender: str, _receiver: str, message: Message) -> Message | None:
        if isinstance(message, TableFilePart) and not changed:
            found = change(message)
            if found is not message:
                changed.append(message.number)
                return found
        return message

    filtered(world, once)
    return changed


def kept(world: SnapshotWorld) -> int:
    """Snapshots and files that are kept anywhere."""
    return sum(node.tables.open_snapshots for node in world.cluster.nodes.values())


def test_follower_below_the_leaders_base_takes_its_files_then_its_base() -> None:
    """S6.6: as in pairs, and no pair is sent; what was kept for it goes at once."""
    world = world_of(in_files=True)
    away = away_and_cut(world)
    seen = watched(world, TableFilePart, SnapshotChunk)
    assert away.boot()
    world.settle()
    assert len(world.told("replica_snapshot_finished")) == 1
    assert world.told("base_taken")
    assert not world.told("replica_snapshot_failed")
    names = [part.name for _, part in seen if isinstance(part, TableFilePart)]
    assert len(set(names)) >= 4
    assert len(names) == len(seen)
    assert kept(world) == 0
    world.write(5)
    world.settle()


@pytest.mark.parametrize("is_older", [False, True])
def test_parts_have_quick_digests_unless_a_node_of_an_earlier_version_sends_them(
    is_older: bool,
) -> None:
    """S12: it does not look at what it is asked for there, and its offer says nothing of it."""
    world = world_of(in_files=True)
    away = away_and_cut(world)
    asked, offers = list[bool](), list[bool]()

    def between(_sender: str, _receiver: str, message: Message) -> Message:
        if isinstance(message, ReplicaSnapshotOffer):
            offers.append(message.quick_digests)
        if isinstance(message, AskReplicaSnapshot):
            asked.append(message.quick_digests)
            if is_older:
                return msgspec.structs.replace(message, quick_digests=False)
        return message

    filtered(world, between)
    assert away.boot()
    world.settle()
    assert set(asked) == {True}
    assert set(offers) == {not is_older}
    assert world.told("replica_snapshot_finished")
    assert not world.told("replica_snapshot_chunk_damaged")


def test_rows_go_on_being_written_meanwhile() -> None:
    """The files say how far they are, which is at least as far as was offered."""
    world = world_of(in_files=True)
    away = away_and_cut(world)
    offers = watched(world, ReplicaSnapshotOffer)
    assert away.boot()
    world.until(lambda: bool(offers))
    world.write(10)
    world.settle()
    assert world.told("replica_snapshot_finished")


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("times", [1, 2])
def test_receiver_that_dies_at_any_step_is_whole_in_the_end(step: str, times: int) -> None:
    """S6.4: a stop leaves the former table or the copied one; whole files are not sent again."""
    world = world_of(in_files=True)
    away = away_and_cut(world)
    assert away.boot()
    for _ in range(1 if step == "copy.after-switch" else times):
        away.failpoint = step
        world.until(lambda: not away.is_up)
        assert away.boot()
    world.settle()
    world.until(lambda: kept(world) == 0, 40_000)


@pytest.mark.parametrize("step", ["files.before-link", "files.after-link"])
def test_sender_that_dies_with_the_links_is_followed_by_another(step: str) -> None:
    """Its links go with it."""
    world = world_of(in_files=True)
    away = away_and_cut(world)
    others = [node for node in world.cluster.nodes.values() if node is not away]
    for node in others:
        node.failpoint = step
    assert away.boot()
    world.until(lambda: any(not node.is_up for node in others))
    for node in others:
        node.failpoint = None
        if not node.is_up:
            assert node.boot()
    world.settle(60_000)
    assert kept(world) == 0


@pytest.mark.parametrize("message", [AskReplicaSnapshot, TableFilePart])
def test_sender_that_dies_in_the_middle_is_followed_by_another(message: type[Message]) -> None:
    """S6.2: of the files that are there those that the next one has just so are not sent again."""
    world = world_of(in_files=True)
    away = away_and_cut(world)
    seen: list[str] = []

    def watch(sender: str, receiver: str, sent: Message) -> Message:
        if type(sent) is message:
            seen.append(receiver if message is AskReplicaSnapshot else sender)
        return sent

    filtered(world, watch)
    assert away.boot()
    world.until(lambda: len(seen) >= (6 if message is TableFilePart else 1))
    run(world.cluster, 20)
    sender = world.cluster.nodes[NodeId(seen[0])]
    sender.crash("in the middle")
    world.until(lambda: bool(world.told("replica_snapshot_failed")))
    assert sender.boot()
    world.settle()
    assert senders(world, "replica_snapshot_resumed") or message is AskReplicaSnapshot
    assert kept(world) == 0


@pytest.mark.parametrize("how", ["kill", "crash"])
def test_files_that_are_there_are_not_sent_again(how: str) -> None:
    """NATS-154: the table moved on meanwhile, and most of its files are what they were."""
    world = world_of(in_files=True)
    away = away_and_cut(world)
    seen = watched(world, TableFilePart)
    assert away.boot()
    world.until(lambda: len(seen) >= 6)
    run(world.cluster, 20)
    getattr(away, how)("in the middle")
    world.write(3)
    before = len(seen)
    assert away.boot()
    world.settle()
    assert world.told("replica_snapshot_resumed")
    held = [part for _, part in seen[before:] if isinstance(part, TableFilePart) and part.is_held]
    assert held
    assert all(not part.content and part.at for part in held)


def test_damaged_part_is_asked_for_again() -> None:
    """S12: nothing of it is written."""
    world = world_of(in_files=True)
    away = away_and_cut(world)
    changed = change_first(
        world,
        lambda part: (
            msgspec.structs.replace(part, content=part.content[:-1] + b"!")
            if part.number == 2
            else part
        ),
    )
    assert away.boot()
    world.settle()
    assert changed == [2]
    assert world.told("replica_snapshot_chunk_damaged")
    assert not world.told("replica_snapshot_failed")


def test_files_that_are_not_all_that_was_sent_are_not_switched_to() -> None:
    """S6.4: the sender's digest over all parts decides, before anything is opened."""
    world = world_of(in_files=True)
    away = away_and_cut(world)
    changed = change_first(
        world,
        lambda part: msgspec.structs.replace(part, all_digest=bytes(16)) if part.is_last else part,
    )
    assert away.boot()
    world.settle()
    assert changed
    [failed] = world.told("replica_snapshot_failed")
    assert "digest over" in failed


def test_table_that_is_not_as_far_as_was_offered_is_not_switched_to() -> None:
    """S6.4: a position from elsewhere would have records applied to rows that lack others."""
    world = world_of(in_files=True)
    away = away_and_cut(world)
    changed: list[int] = []

    def ahead(_sender: str, _receiver: str, message: Message) -> Message:
        if isinstance(message, ReplicaSnapshotOffer) and message.files and not changed:
            changed.append(message.seq)
            return msgspec.structs.replace(message, seq=message.seq + 1)
        return message

    filtered(world, ahead)
    assert away.boot()
    world.settle()
    [failed] = world.told("replica_snapshot_failed")
    assert f"it is at (2, {changed[0]}), not (2, {changed[0] + 1})" in failed


def damaged_row(node: SimNode, world: SnapshotWorld) -> bytes:
    """One row of the node's table is not what was written, where no checksum of a file shows it."""
    table = node.tables._tables[world.channel]
    key = table.keys_in_order()[10]
    row = table.rows[key]
    table.rows[key] = Row(row.key, row.value[:-1] + b"!", row.seq, row.expires_ms)
    return key


def test_damaged_table_of_the_sender_is_refused_and_looked_at() -> None:
    """S13: the receiver reads what nobody read, says so, and takes another replica's in pairs; the
    sender's is replaced."""
    world = world_of(in_files=True)
    away = away_and_cut(world)
    sender = next(node for node in world.followers() if node is not away)
    key = damaged_row(sender, world)
    refused = watched(world, TableFilesRefused)
    assert away.boot()
    world.until(lambda: bool(world.told("table_damaged")))
    assert [node for node, _ in refused] == [away.node]
    assert world.told("replica_snapshot_refused")
    [failed] = world.told("replica_snapshot_failed")[:1]
    assert key.hex() in failed
    world.settle(120_000)
    for node in world.cluster.nodes.values():
        assert node.tables.get(world.channel, key) is not None
    assert kept(world) == 0


def test_lost_messages_are_said_again() -> None:
    """S12: every third message about a snapshot is lost."""
    world = world_of(in_files=True)
    away = away_and_cut(world)
    count = 0

    def lose(_sender: str, _receiver: str, sent: Message) -> Message | None:
        nonlocal count
        kinds = AskReplicaSnapshot | ReplicaSnapshotOffer | AskSnapshotChunk | TableFilePart
        if isinstance(sent, kinds):
            count += 1
            if count % 3 == 0:
                return None
        return sent

    filtered(world, lose)
    assert away.boot()
    world.settle(120_000)
    assert count > 10


def test_files_that_nobody_asks_for_are_let_go() -> None:
    """NATS-169: what a replica makes another one keep ends with its session."""
    world = world_of(in_files=True)
    away = away_and_cut(world)
    others = [node for node in world.cluster.nodes.values() if node is not away]
    assert away.boot()
    world.until(lambda: any(node.tables.open_snapshots for node in others))
    [sender] = [node for node in others if node.tables.open_snapshots]
    world.until(lambda: sender.runner is None or bool(sender.runner.snapshots.sender.sessions))
    assert sender.runner is not None
    assert list(sender.runner.snapshots.pinned(world.channel)) == [away.node]
    assert sender.runner.snapshots.sender.files_bytes > 1_000
    away.kill("for good")
    run(world.cluster, 40_000)
    assert sender.tables.open_snapshots == 0
    assert sender.runner.snapshots.sender.files_bytes == 0


@pytest.mark.parametrize("older", ["sender", "receiver"])
def test_node_of_an_older_version_gets_and_gives_pairs(older: str) -> None:
    """Level 8 does not know files."""
    world = world_of(in_files=True)
    away = away_and_cut(world)
    for node in world.cluster.nodes.values():
        if (node is away) == (older == "receiver"):
            node.level = 8
            if node is not away:
                node.kill("downgraded")
                assert node.boot()
    seen = watched(world, TableFilePart, SnapshotChunk, AskReplicaSnapshot)
    assert away.boot()
    world.settle()
    assert world.told("replica_snapshot_finished")
    assert not any(isinstance(message, TableFilePart) for _, message in seen)
    if older == "sender":
        asked = [message for _, message in seen if isinstance(message, AskReplicaSnapshot)]
        assert asked
        assert not any(message.in_files for message in asked)


def test_copy_in_files_is_begun_anew_in_pairs_where_files_are_not_to_be_had() -> None:
    """The next sender has a file system without links."""
    world = world_of(in_files=True)
    away = away_and_cut(world)
    seen = watched(world, TableFilePart)
    assert away.boot()
    world.until(lambda: len(seen) >= 6)
    run(world.cluster, 20)
    away.kill("in the middle")
    for node in world.cluster.nodes.values():
        node.tables.has_links = False
    assert away.boot()
    world.settle()
    [anew] = world.told("replica_snapshot_begun_anew")
    assert "in pairs" in anew
    assert world.told("replica_snapshot_finished")


def test_table_that_a_record_is_being_written_to_is_given_in_pairs() -> None:
    """Its files hold what readers are not shown."""
    world = world_of(in_files=True)
    away = away_and_cut(world)
    for node in world.followers():
        table = node.tables._tables[world.channel]
        table.view = table.copy()
    seen = watched(world, TableFilePart, SnapshotChunk)
    assert away.boot()
    world.until(lambda: bool(seen))
    assert isinstance(seen[0][1], SnapshotChunk)
