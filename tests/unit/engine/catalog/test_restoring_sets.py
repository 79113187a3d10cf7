"""A channel set that is being restored answers nobody and takes the portions of its restore alone,
by the catalog's mark and by its own state (GAP-12); on a running cluster."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
from msgspec import structs

from raftstore.machine import StateMachine
from raftstore.policy.levels import MACHINE_RESTORE_LEVEL
from raftstore.protocol.admin import CreateTable
from raftstore.protocol.machine_restore import RestoredHead, RestorePortion, encode_portion
from raftstore.protocol.machines import (
    CommandAck,
    MachineAnswer,
    MachineQuery,
    encode_command,
)
from raftstore.protocol.message import Done, Failed, Message
from raftstore.protocol.publish import PubReject
from raftstore.protocol.replica_checks import (
    ROW_ENTRY,
    EntriesAnswer,
    PinState,
    PinStateAnswer,
    ReadEntries,
)
from raftstore.protocol.table_settings import TableSettings
from raftstore.rows.sealing import seal, unseal
from raftstore.state_machines.machine_state import MachineHead, read_head
from raftstore.state_machines.state_keys import MACHINE_CHUNKS, MACHINE_HEAD, unpacked
from raftstore.testing.options import SimOptions
from raftstore.testing.sim_cluster import SimCluster
from raftstore.testing.sim_node import SimNode
from raftstore.types import RecordKind, Seq, Term
from tests.simulation.test_channelsets import Installed
from tests.unit.engine.catalog.test_edit_table import answered, catalog_leader, edit
from tests.unit.engine.channel.test_levels import follower_of_all, reinstall
from tests.unit.engine.engine_world import calm_cluster, publish, run
from tests.unit.state_machines.test_user_machine import INT, Counter, Mended, Tally

TOKEN = "0123456789abcdef" * 2
UUID = bytes.fromhex(TOKEN)
CREATED = CreateTable(
    7, "r", (), 1, 3, "fsync", None, "", False, 5_000, TableSettings(restoring=TOKEN),
    "counters:Counter", (1, 1),
)  # fmt: skip
HEAD = RestoredHead(1, 9, 1, Seq(50), Seq(1_000), Term(8), 2, 0, 0)
KEYS = {b"k": b"40", b"other": b"1"}


def portions(keys: Iterable[bytes] = KEYS) -> list[RestorePortion]:
    """One for each key; the last one has the head."""
    found = [
        RestorePortion(UUID, number, ((key, seal(key, KEYS[key])),))
        for number, key in enumerate(keys)
    ]
    return [*found[:-1], structs.replace(found[-1], head=HEAD)]


class World:
    """A cluster with a channel set on its way in."""

    def __init__(self, code: type[StateMachine] = Counter, *, creates: bool = True) -> None:
        self.machines = Installed(code)
        options = SimOptions(seed=1, partitions=1, evict_percent=0)
        self.cluster = SimCluster(options, machines=self.machines)
        self.cluster.start()
        run(self.cluster, 3_000)
        self.counter = 0
        if not creates:
            return
        [done] = self.tell(catalog_leader(self.cluster), CREATED)
        assert isinstance(done, Done), done
        runner = catalog_leader(self.cluster).runner
        assert runner is not None
        [self.channel] = runner.controller.catalog.tables["r"].channels

    def tell(self, node: SimNode, *messages: Message) -> list[Message]:
        return answered(self.cluster, node, *messages)

    @property
    def leader(self) -> SimNode:
        return self.cluster.leaders()[self.channel]

    def publish(self, kind: RecordKind, payload: bytes) -> Message:
        self.counter += 1
        message = publish(self.cluster, self.leader, self.channel, self.counter, payload, kind=kind)
        [answer] = self.tell(self.leader, message)
        return answer

    def portion(self, portion: RestorePortion) -> Message:
        return self.publish(RecordKind.MACHINE_RESTORE, encode_portion(portion))

    def command(self, value: int) -> Message:
        payload = encode_command(b"k", INT.encode(value))
        return self.publish(RecordKind.MACHINE_COMMAND, payload)

    def queries(self) -> list[Message]:
        """Answers at every level, of the leader, and at any of every replica."""
        asked = [
            MachineQuery(20 + n, self.channel, b"k", b"", level, 1_000, Seq(0), 500)
            for n, level in enumerate(("linearizable", "leader", "bounded"))
        ]
        found = self.tell(self.leader, *asked)
        for node in self.cluster.nodes.values():
            query = MachineQuery(30, self.channel, b"k", b"", "any", None, Seq(0), 500)
            found += self.tell(node, query)
        assert len(found) == 6
        return found

    def finish(self) -> None:
        """Remove the mark."""
        request = edit(self.cluster, self.channel, restoring=None)
        [done] = self.tell(catalog_leader(self.cluster), request)
        assert isinstance(done, Done)

    def head(self) -> MachineHead | None:
        runner = self.leader.runner
        assert runner is not None
        tables = runner.ports.tables
        return read_head(lambda key: tables.state_get(self.channel, key))


def is_refused(answer: Message) -> bool:
    """By the rule, and not for another reason."""
    assert isinstance(answer, Failed | PubReject), answer
    return answer.code == "unavailable" and "is being restored from a backup" in answer.message


def test_gap_12_part_of_a_channel_set_is_neither_asked_nor_commanded() -> None:
    """At no level, at no replica, before the state is whole or the mark is gone; then at all."""
    world = World()
    assert all(map(is_refused, [*world.queries(), world.command(1)]))
    for portion in portions():
        assert isinstance(world.portion(portion), CommandAck)
        assert all(map(is_refused, [*world.queries(), world.command(1)]))
    world.finish()
    answer = world.command(2)
    assert isinstance(answer, CommandAck)
    assert INT.decode(answer.result) == 42
    found = world.queries()
    assert [INT.decode(each.answer) for each in found if isinstance(each, MachineAnswer)] == [
        42
    ] * 6


def test_gap_12_a_mark_that_is_gone_too_early_serves_no_part() -> None:
    """The state itself says whether it is whole: a replica that is behind, or an operator who
    removed the mark, has nothing of it taken for the whole."""
    world = World()
    first, last = portions()
    assert isinstance(world.portion(first), CommandAck)
    world.finish()
    assert all(map(is_refused, [*world.queries(), world.command(1)]))
    late = world.portion(last)
    assert isinstance(late, PubReject)
    assert "is not being filled by this restore" in late.message
    assert world.head() is None


def test_portions_of_another_restore_and_of_a_set_that_is_served_are_refused() -> None:
    """Acknowledged commands would be overwritten, or states of two backups mixed."""
    world = World()
    foreign = structs.replace(portions()[0], token=b"another restore.")
    answer = world.portion(foreign)
    assert isinstance(answer, PubReject)
    assert "is not being filled by this restore" in answer.message
    for portion in portions():
        world.portion(portion)
    world.finish()
    answer = world.portion(portions()[0])
    assert isinstance(answer, PubReject)
    assert "is not being filled by this restore" in answer.message
    damaged = structs.replace(portions()[0], rows=((b"k", b"no seal"),))
    answer = world.portion(damaged)
    assert isinstance(answer, PubReject)
    assert "does not match its checksum" in answer.message


def test_a_restore_goes_on_over_restarts_of_all_nodes_and_a_new_leader() -> None:
    """Each portion is in the log of every replica."""
    world = World(Tally)
    head = structs.replace(HEAD, rows=0, chunks=2)
    chunks = [
        RestorePortion(UUID, 0, chunks=((0, b"k=40"),)),
        RestorePortion(UUID, 1, chunks=((1, b"other=1"),), head=head),
    ]
    assert isinstance(world.portion(chunks[0]), CommandAck)
    for node in world.cluster.nodes.values():
        node.kill("everything stops")
    for node in world.cluster.nodes.values():
        node.boot()
    run(world.cluster, 10_000)
    assert is_refused(world.command(1))
    again = world.portion(chunks[0])
    assert isinstance(again, CommandAck)
    assert not again.is_rejected
    assert isinstance(world.portion(chunks[1]), CommandAck)
    world.finish()
    world.leader.kill("its replica is gone")
    run(world.cluster, 10_000)
    answer = world.command(2)
    assert isinstance(answer, CommandAck)
    assert INT.decode(answer.result) == 42


def test_a_newer_version_comes_into_force_behind_the_state() -> None:
    """Code that is newer than what is in force in the backup waits until there is a state."""
    world = World(Mended)
    run(world.cluster, 20_000)
    assert world.head() is None
    for portion in portions():
        world.portion(portion)
    head = world.head()
    assert head is not None
    assert head.version == 1
    world.finish()
    run(world.cluster, 20_000)
    head = world.head()
    assert head is not None
    assert (head.version, head.commands, head.seq) == (2, 9, 50)


def test_the_state_of_a_channel_set_is_read_entry_by_entry() -> None:
    """Rows and what is beside them, by the beginnings of keys; each with its seal."""
    world = World()
    for portion in portions():
        world.portion(portion)
    world.finish()
    world.command(2)
    node = follower_of_all(world.cluster, world.channel)
    [pinned] = world.tell(node, PinState(1, world.channel, Seq(0), 1_000))
    assert isinstance(pinned, PinStateAnswer)
    world.command(5)

    def read(prefix: bytes, after: bytes = b"") -> EntriesAnswer:
        request = ReadEntries(2, world.channel, pinned.pin, prefix, after, 1_000)
        [answer] = world.tell(node, request)
        assert isinstance(answer, EntriesAnswer), answer
        return answer

    rows = read(ROW_ENTRY)
    found = {key[1:]: unseal(key[1:], sealed) for key, sealed in rows.entries}
    assert {**found, b"last": b""} == {b"k": b"42", b"last": b"", b"other": b"1"}
    assert not rows.more
    behind = read(ROW_ENTRY, ROW_ENTRY + b"k")
    assert [key[1:] for key, _ in behind.entries] == [b"last", b"other"]
    [(key, sealed)] = read(MACHINE_HEAD).entries
    assert key == MACHINE_HEAD
    assert unpacked(unseal(key, sealed), MachineHead).commands == 10
    assert read(MACHINE_CHUNKS).entries == ()
    [gone] = world.tell(node, ReadEntries(3, world.channel, 99, ROW_ENTRY, b"", 1_000))
    assert isinstance(gone, Failed)
    assert gone.code == "page_expired"


def test_rows_of_a_table_are_scanned_and_not_read_as_entries() -> None:
    """They may have expired, or belong to a batch that is not applied."""
    cluster, channel = calm_cluster()
    leader = cluster.leaders()[channel]
    [pinned] = answered(cluster, leader, PinState(1, channel, Seq(0), 1_000))
    assert isinstance(pinned, PinStateAnswer)
    request = ReadEntries(2, channel, pinned.pin, ROW_ENTRY, b"", 1_000)
    [refused] = answered(cluster, leader, request)
    assert isinstance(refused, Failed)
    assert "is of a table, and only a channel set gives entries; scan its rows" in refused.message


def test_channel_set_is_not_restored_while_a_node_would_go_on_by_other_numbers() -> None:
    """A node of an older level reads no portion, and does not know where seqs go on."""
    world = World(creates=False)
    leader = catalog_leader(world.cluster)
    older = next(node for node in world.cluster.nodes.values() if node is not leader)
    reinstall(world.cluster, older, MACHINE_RESTORE_LEVEL - 1)
    [failed] = world.tell(catalog_leader(world.cluster), CREATED)
    assert isinstance(failed, Failed)
    assert failed.code == "store_too_old"


@pytest.mark.parametrize(
    "request_",
    [
        structs.replace(CREATED, machine_versions=None),
        structs.replace(CREATED, settings=TableSettings()),
    ],
)
def test_versions_and_token_of_a_restore_come_together(request_: CreateTable) -> None:
    """One without the other is a set that nobody could fill, or one that looks restored."""
    cluster, _ = calm_cluster()
    [failed] = answered(cluster, catalog_leader(cluster), request_)
    assert isinstance(failed, Failed)
    assert (
        "with the versions of a state that is restored into it, or with neither" in failed.message
    )
