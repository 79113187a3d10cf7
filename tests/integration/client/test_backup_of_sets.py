"""Channel sets in backups, with a client whose nodes are fake and whose machines are real."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

from raftstore import backup
from raftstore.backup import cutting, restore_sets
from raftstore.backup.manifest import FORMAT, TABLES_FORMAT, manifest_path
from raftstore.client.asyncio_client import AsyncClient
from raftstore.client.blocking.client import Client, connect
from raftstore.client.machines import channel_set_state
from raftstore.errors import (
    ArgumentError,
    BackupError,
    GuidExpiredError,
    MachineStoppedError,
    Outcome,
    RequestError,
    SchemaError,
    TableExistsError,
    UnavailableError,
    UnknownMachineError,
    UnknownTableError,
    UnsupportedRequestError,
)
from raftstore.machine import CommandContext, MemoryMachine, StateMachine, codec
from raftstore.protocol.machines import TOGETHER_LIMITS
from raftstore.protocol.message import Failed, Message
from raftstore.protocol.publish import PubMsg, PubReject
from raftstore.protocol.replica_checks import ReadEntries
from raftstore.state_machines.machine_origin import read_origin
from raftstore.types import RecordKind, Seq
from tests.integration.client.fake_cluster import Channel, FakeCluster, FakeNode, fail
from tests.integration.client.fake_requests import execute
from tests.integration.client.play import QUICK, play
from tests.unit.state_machines.test_shared_commands import shared

ANY: Any = object()


class Ledger(StateMachine):
    """Files each command under its seq, and returns what it was given."""

    results = codec(list[Any])

    def apply(self, command: bytes, context: CommandContext) -> list[Any]:
        """Changes nothing that was there."""
        place = b"%020d" % context.seq
        assert context.state.get(place) is None
        context.state.put(place, command)
        return [context.seq, context.term, context.time_ms, context.new_id()]


class Tally(MemoryMachine):
    """Lengths of commands, in memory."""

    results = codec(list[Any])

    def __init__(self) -> None:
        self.known: list[Any] = []

    def apply(self, command: bytes, context: CommandContext) -> list[Any]:
        """All of them."""
        self.known.append([context.seq, len(command), context.new_id()])
        return self.known

    def snapshot(self) -> Iterable[bytes]:
        """A chunk for each."""
        return [msgspec.msgpack.encode(each) for each in self.known]

    def restore(self, chunks: Iterable[bytes]) -> None:
        """Become that."""
        self.known = [msgspec.msgpack.decode(chunk) for chunk in chunks]


Work = Callable[[FakeCluster, Client], Any]


def run(work: Work) -> None:
    """A test with a blocking client in a thread, and two machines that the nodes have."""

    async def test(cluster: FakeCluster, _: AsyncClient) -> None:
        cluster.code = {"mine:Ledger": Ledger, "mine:Tally": Tally}
        cluster.add_table("l", 2, key=(), machine="mine:Ledger")
        cluster.add_table("m", 1, key=(), machine="mine:Tally")

        def in_thread() -> None:
            with connect(cluster.endpoints, settings=QUICK) as client:
                work(cluster, client)

        await asyncio.to_thread(in_thread)

    play(test)


def send(client: Client, name: str, *commands: bytes, partition: int = 0) -> list[Any]:
    """Commands one after the other; their results."""
    machine = Ledger if name.startswith("l") else Tally
    return [
        client.channelset(name, machine=machine).command_to_partition(partition, each).result
        for each in commands
    ]


def channels(cluster: FakeCluster, name: str) -> list[Channel]:
    return [cluster.channels[info.channel] for info in cluster.tables[name].channels]


def state_of(cluster: FakeCluster, name: str) -> list[Any]:
    """Keys, chunks, commands since and head of each partition."""
    found = []
    for channel in channels(cluster, name):
        bench = channel.bench
        assert bench is not None
        beside = {k: v for k, v in bench.state.items() if k[:2] in (b"\x02\x0a", b"\x02\x0b")}
        head = bench.user._head or (bench.head if b"\x02\x08" in bench.state else None)
        facts = None if head is None else (head.version, head.commands, head.time_ms, head.seq)
        found.append((dict(bench.rows), beside, facts))
    return found


def test_gap_12_channel_sets_come_back_with_all_that_they_had(tmp_path: Path) -> None:
    """State, version, numbers and times; nothing of their identity (S0.1). Seqs go on."""

    def work(cluster: FakeCluster, client: Client) -> None:
        for channel in channels(cluster, "l"):
            channel.now_ms = 9_000_000
        known = send(client, "l", *(b"c%d" % n for n in range(7)))
        send(client, "l", b"other", partition=1)
        tally = send(client, "m", b"x" * 600_000, b"y" * 600_000, b"z", b"zz")
        made = backup.create_backup(client, str(tmp_path))
        assert [found.name for found in made.sets] == ["l", "m"]
        assert made.format == FORMAT
        assert backup.verify_backup(str(tmp_path)).problems == ()
        uuids = {name: cluster.tables[name].uuid for name in ("l", "m")}
        done = backup.restore_backup(
            client, str(tmp_path), channelsets={"l": "l2", "m": "m2"}, replicas=1
        )
        assert [(each.source, each.name, each.commands) for each in done.channelsets] == [
            ("l", "l2", 8),
            ("m", "m2", 4),
        ]
        for name in ("l", "m"):
            assert state_of(cluster, name + "2") == state_of(cluster, name)
            found = cluster.tables[name + "2"]
            assert found.uuid != uuids[name]
            assert (found.settings.restoring, found.settings.from_backup) == (None, True)
        assert [asked.replicas for asked in cluster.created] == [1, 1]
        [later] = send(client, "l2", b"new")
        assert later[0] > known[-1][0] + 2**39, "what the source gave since is not given again"
        assert later[1] > known[-1][1]
        assert later[2] >= known[-1][2], "the clock here is behind that of the source"
        assert later[3] not in [each[3] for each in known]
        [all_known] = send(client, "m2", b"five")
        assert all_known[:4] == tally[-1]

    run(work)


def test_a_backup_of_commands_that_shared_records_has_them_one_by_one(tmp_path: Path) -> None:
    """As every version reads them; what they did, and which guids and seqs they had, comes back.
    The limits that it names are those by which the commands ended."""

    def work(cluster: FakeCluster, client: Client) -> None:
        [source] = channels(cluster, "m")
        assert source.bench is not None
        assert source.bench.limit(TOGETHER_LIMITS) is None
        source.bench.apply(shared(source.bench, [b"a", b"bb", b"ccc"]))
        source.seq = Seq(source.bench.seq)
        before = send(client, "m", b"dddd")
        made = backup.create_backup(client, str(tmp_path))
        [partition] = next(each for each in made.sets if each.name == "m").partitions
        assert (sum(file.rows for file in partition.journal), partition.limits) == (4, 1)
        backup.restore_backup(client, str(tmp_path), channelsets={"m": "m2"})
        [after] = send(client, "m2", b"new")
        assert after[:4] == before[0]
        assert [length for _, length, _ in after] == [1, 2, 3, 4, 3]

    run(work)


def test_everything_acknowledged_before_is_in_it(tmp_path: Path) -> None:
    """A partition is read where a linearizable read was answered, and behind it. The position that
    the backup names is that of the state."""

    def work(cluster: FakeCluster, client: Client) -> None:
        send(client, "l", b"one", b"two")
        made = backup.create_backup(client, str(tmp_path), channelsets=["l"])
        [found] = made.sets
        assert [(each.seq, each.commands) for each in found.partitions] == [(2, 2), (0, 0)]
        [first] = [
            node
            for node in cluster.nodes.values()
            if any(not isinstance(each, ReadEntries) for each in node.states_asked)
        ]
        assert [each.seq for each in first.states_asked if not isinstance(each, ReadEntries)] == [
            2,
            0,
        ]

    run(work)


def test_unchanged_partitions_of_sets_are_not_read_again(tmp_path: Path) -> None:
    """Files that are there are not written again; with --full all are."""

    def work(cluster: FakeCluster, client: Client) -> None:
        send(client, "l", b"one")
        send(client, "l", b"two", partition=1)
        first = backup.create_backup(client, str(tmp_path), channelsets=["l"])
        send(client, "l", b"three")
        for node in cluster.nodes.values():
            node.states_asked.clear()
        second = backup.create_backup(client, str(tmp_path), channelsets=["l"])
        read = {
            each.channel
            for node in cluster.nodes.values()
            for each in node.states_asked
            if isinstance(each, ReadEntries)
        }
        assert read == {channels(cluster, "l")[0].channel}
        assert second.sets[0].partitions[1] == first.sets[0].partitions[1]
        assert second.base == first.id
        third = backup.create_backup(client, str(tmp_path), channelsets=["l"])
        assert third.new_bytes == 0
        full = backup.create_backup(client, str(tmp_path), channelsets=["l"], full=True)
        assert full.new_bytes == third.bytes
        (tmp_path / third.sets[0].files[0].path).unlink()
        mended = backup.create_backup(client, str(tmp_path), channelsets=["l"])
        assert mended.new_bytes > 0

    run(work)


def test_tables_alone_are_of_the_format_that_versions_before_read(tmp_path: Path) -> None:
    """A backup with channel sets is of one that they refuse in words: their manifest has no such
    field."""

    def work(cluster: FakeCluster, client: Client) -> None:
        del cluster
        made = backup.create_backup(client, str(tmp_path), tables=["t"])
        content = (tmp_path / manifest_path(made.id)).read_bytes()
        assert made.format == TABLES_FORMAT == 1
        assert b"channelsets" not in content
        assert backup.restore_backup(client, str(tmp_path), tables={"t": "t2"}).channelsets == ()
        both = backup.create_backup(client, str(tmp_path))
        assert both.format == 2

    run(work)


def test_names_of_tables_and_sets_are_told_apart(tmp_path: Path) -> None:
    """One that is named as the other is refused with the way to name it."""

    def work(cluster: FakeCluster, client: Client) -> None:
        place = str(tmp_path)
        with pytest.raises(SchemaError, match="'l' is a channel set and no table; name it among"):
            backup.create_backup(client, place, tables=["t", "l"])
        with pytest.raises(SchemaError, match="'t' is a table and no channel set"):
            backup.create_backup(client, place, channelsets=["t"])
        with pytest.raises(ArgumentError, match="channelsets='l' is one name"):
            backup.create_backup(client, place, channelsets="l")
        cluster.tables["m"] = msgspec.structs.replace(
            cluster.tables["m"],
            settings=msgspec.structs.replace(cluster.tables["m"].settings, restoring="a" * 32),
        )
        with pytest.raises(UnavailableError, match="channel set 'm' is being restored"):
            backup.create_backup(client, place, channelsets=["m"])
        made = backup.create_backup(client, place)
        assert [each.name for each in made.parts] == ["t", "l"]
        with pytest.raises(BackupError, match="has no channel set 'm'; there are: l"):
            backup.restore_backup(client, place, channelsets=["m"])
        with pytest.raises(ArgumentError, match="two of them would be called 'x'"):
            backup.restore_backup(client, place, channelsets={"l": "x"}, tables={"t": "x"})

    run(work)


def test_restore_over_a_channel_set_is_refused_before_anything_is_made(tmp_path: Path) -> None:
    """Over a table, too: names are of one kind. Of several nothing is made."""

    def work(cluster: FakeCluster, client: Client) -> None:
        backup.create_backup(client, str(tmp_path))
        cluster.drop_table("t")
        with pytest.raises(TableExistsError, match=r"'l' exists.*--channelset l=NAME"):
            backup.restore_backup(client, str(tmp_path))
        assert "t" not in cluster.tables
        cluster.add_table("t")
        with pytest.raises(TableExistsError, match="table 't' exists"):
            backup.restore_backup(client, str(tmp_path), channelsets={"l": "t"})

    run(work)


def reject(code: str, text: str) -> Callable[[FakeNode, Message, Callable[[Message], None]], None]:
    def script(_: FakeNode, message: Message, reply: Callable[[Message], None]) -> None:
        assert isinstance(message, PubMsg)
        reply(PubReject(message.channel, message.term, message.guid, code, text, None, 0))

    return script


@pytest.mark.parametrize("before", [0, 1, 3, 4])
def test_killed_restore_of_a_set_goes_on_where_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, before: int
) -> None:
    """Nothing of it is served meanwhile, and each portion is applied once."""
    monkeypatch.setattr(restore_sets, "PORTION_ENTRIES", 2)

    def work(cluster: FakeCluster, client: Client) -> None:
        send(client, "l", *(b"c%d" % n for n in range(6)))
        send(client, "l", b"other", partition=1)
        backup.create_backup(client, str(tmp_path), channelsets=["l"])
        seen = 0

        def dies(report: backup.Progress) -> None:
            nonlocal seen
            assert cluster.tables[report.what].settings.restoring is not None
            if seen == before:
                raise KeyboardInterrupt
            seen += 1

        with pytest.raises(KeyboardInterrupt):
            backup.restore_backup(client, str(tmp_path), channelsets={"l": "l2"}, progress=dies)
        assert cluster.tables["l2"].settings.restoring is not None
        backup.restore_backup(client, str(tmp_path), channelsets={"l": "l2"})
        assert cluster.tables["l2"].settings.restoring is None
        assert state_of(cluster, "l2") == state_of(cluster, "l")
        for channel in channels(cluster, "l2"):
            portions = [each for each in channel.applied if each.kind is RecordKind.MACHINE_RESTORE]
            assert channel.bench is not None
            origin = read_origin(channel.bench.state.get)
            assert origin is not None
            assert len(portions) == origin.portions
        with pytest.raises(TableExistsError, match="'l2' exists"):
            backup.restore_backup(client, str(tmp_path), channelsets={"l": "l2"})

    run(work)


def test_restore_that_died_between_the_marks_finishes_the_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The one that was served since is not touched."""

    def work(cluster: FakeCluster, client: Client) -> None:
        send(client, "l", b"one")
        send(client, "m", b"one")
        backup.create_backup(client, str(tmp_path), channelsets=["l", "m"])
        names = {"l": "l2", "m": "m2"}
        finish = restore_sets.SetRestore.finish

        def dies(self: restore_sets.SetRestore) -> Any:
            if self.name == "m2":
                raise KeyboardInterrupt
            return finish(self)

        with monkeypatch.context() as patched:
            patched.setattr(restore_sets.SetRestore, "finish", dies)
            with pytest.raises(KeyboardInterrupt):
                backup.restore_backup(client, str(tmp_path), channelsets=names)
        assert cluster.tables["l2"].settings.restoring is None
        send(client, "l2", b"acknowledged")
        served = state_of(cluster, "l2")
        done = backup.restore_backup(client, str(tmp_path), channelsets=names)
        assert [each.name for each in done.channelsets] == ["m2"]
        assert cluster.tables["m2"].settings.restoring is None
        assert state_of(cluster, "l2") == served

    run(work)


def test_another_restore_does_not_go_on_with_a_set(tmp_path: Path) -> None:
    """States of two backups are never mixed."""

    def work(cluster: FakeCluster, client: Client) -> None:
        first = backup.create_backup(client, str(tmp_path), channelsets=["l"])
        send(client, "l", b"one")
        backup.create_backup(client, str(tmp_path), channelsets=["l"])

        def dies(_: backup.Progress) -> None:
            raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            backup.restore_backup(
                client, str(tmp_path), first.id, channelsets={"l": "l2"}, progress=dies
            )
        with pytest.raises(TableExistsError, match="'l2' is being restored from another backup"):
            backup.restore_backup(client, str(tmp_path), channelsets={"l": "l2"})
        assert cluster.tables["l2"].settings.restoring is not None

    run(work)


def test_a_set_is_not_served_unless_its_state_says_that_it_is_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Answers to portions that were lost and given again are no proof."""
    forged = restore_sets.head_of

    def short(source: Any) -> Any:
        return msgspec.structs.replace(forged(source), rows=99)

    def work(cluster: FakeCluster, client: Client) -> None:
        send(client, "l", b"one")
        backup.create_backup(client, str(tmp_path), channelsets=["l"])
        monkeypatch.setattr(restore_sets, "head_of", short)
        with pytest.raises(BackupError, match=r"l2/0 is not filled.*the last one says \(99"):
            backup.restore_backup(client, str(tmp_path), channelsets={"l": "l2"})
        monkeypatch.setattr(
            "raftstore.client.blocking.machines.ChannelSetState.put_portion", lambda *_, **__: 1
        )
        with pytest.raises(BackupError, match="l2/0 is not whole at seq 1"):
            backup.restore_backup(client, str(tmp_path), channelsets={"l": "l2"})
        assert cluster.tables["l2"].settings.restoring is not None

    run(work)


def test_damaged_files_of_sets_are_named(tmp_path: Path) -> None:
    """Missing and cut ones before anything is made, others before anything of them is written."""

    def work(cluster: FakeCluster, client: Client) -> None:
        send(client, "l", b"one")
        send(client, "m", b"two")
        made = backup.create_backup(client, str(tmp_path), channelsets=["l", "m"])
        path = tmp_path / made.sets[0].files[0].path
        content = path.read_bytes()
        path.write_bytes(content[:-1])
        with pytest.raises(BackupError, match="of channel set 'l' is missing or cut off"):
            backup.restore_backup(client, str(tmp_path), channelsets={"l": "l2"})
        assert "l2" not in cluster.tables
        path.write_bytes(content[:-1] + b"!")
        [problem] = backup.verify_backup(str(tmp_path)).problems
        assert problem.startswith("channel set l, partition 0: ")
        assert "is damaged: its" in problem
        with pytest.raises(BackupError, match="is damaged: its"):
            backup.restore_backup(client, str(tmp_path), channelsets={"l": "l2"})
        assert channels(cluster, "l2")[0].seq == 0

    run(work)


def test_a_set_that_is_made_anew_while_it_is_read_is_no_backup(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The state of one would have the name of the other."""

    def work(cluster: FakeCluster, client: Client) -> None:
        send(client, "l", b"one")
        closed: list[Any] = []

        def anew(_: Any, pinned: Any) -> None:
            closed.append(pinned)
            if len(closed) == 2:
                cluster.drop_table("l")
                cluster.add_table("l", 2, key=(), machine="mine:Ledger")

        monkeypatch.setattr("raftstore.client.blocking.machines.ChannelSetState.close", anew)
        with pytest.raises(UnknownTableError, match="dropped and created again while it was"):
            backup.create_backup(client, str(tmp_path), channelsets=["l"])
        assert backup.list_backups(str(tmp_path)) == []

    run(work)


def test_a_state_that_is_given_up_while_it_is_read_is_read_again(tmp_path: Path) -> None:
    """From another pin, some times; then it is said."""

    def gone(node: FakeNode, message: Message, reply: Callable[[Message], None]) -> None:
        if isinstance(message, ReadEntries):
            reply(Failed(message.request_id, "page_expired", "the pinned state is gone"))
        else:
            execute(node, message, reply)

    def work(cluster: FakeCluster, client: Client) -> None:
        send(client, "l", b"one")
        node = cluster.nodes["n1"]
        node.request_scripts.extend([gone] * 6)
        made = backup.create_backup(client, str(tmp_path), channelsets=["l"])
        assert made.rows == 1
        node.request_scripts.extend([gone] * 1_000)
        with pytest.raises(RequestError, match="the pinned state is gone"):
            backup.create_backup(client, str(tmp_path), channelsets=["l"], full=True)
        node.request_scripts.clear()

    run(work)


def test_what_nodes_say_of_the_code_is_what_a_restore_says(tmp_path: Path) -> None:
    """They get the versions that come back."""

    def lacks(_: FakeNode, message: Message, reply: Callable[[Message], None]) -> None:
        text = "node n2 has version 1 of mine:Ledger, and version 3 is in force in the backup"
        reply(Failed(message.request_id, "unknown_machine", text))  # type: ignore[attr-defined]

    def work(cluster: FakeCluster, client: Client) -> None:
        for number, channel in enumerate(channels(cluster, "l")):
            assert channel.bench is not None
            channel.bench.first_version = number + 2
            channel.bench.code = type("Newer", (Ledger,), {"version": 3})
            channel.bench.restart()
            send(client, "l", b"one", partition=number)
        made = backup.create_backup(client, str(tmp_path), channelsets=["l"])
        assert [each.version for each in made.sets[0].partitions] == [2, 3]
        cluster.nodes["n1"].request_scripts.append(lacks)
        with pytest.raises(UnknownMachineError, match="version 3 is in force in the backup"):
            backup.restore_backup(client, str(tmp_path), channelsets={"l": "l2"})
        backup.restore_backup(client, str(tmp_path), channelsets={"l": "l2"})
        assert cluster.created[-1].machine_versions == (2, 3)
        heads = [channel.bench.head.version for channel in channels(cluster, "l2") if channel.bench]
        assert heads == [2, 3]

    run(work)


def test_a_guid_of_the_source_is_unknown_in_what_was_restored(tmp_path: Path) -> None:
    """Its command may be in the state: it is neither applied again nor called not applied."""

    def work(cluster: FakeCluster, client: Client) -> None:
        source = client.channelset("l", machine=Ledger)
        named = source.command_result("k", b"one").guid
        backup.create_backup(client, str(tmp_path), channelsets=["l"])
        cluster.drop_table("l")
        backup.restore_backup(client, str(tmp_path), channelsets=["l"])
        before = state_of(cluster, "l")
        with pytest.raises(GuidExpiredError, match="to another channel set than today's") as told:
            client.channelset("l", machine=Ledger).command("k", b"one", guid=named)
        assert told.value.outcome is Outcome.UNKNOWN
        assert told.value.guid == named
        assert state_of(cluster, "l") == before

    run(work)


def test_a_node_of_the_version_before_is_named(tmp_path: Path) -> None:
    """It cannot give a state; tables alone go on to be backed up."""

    def work(cluster: FakeCluster, client: Client) -> None:
        del client
        for node in cluster.nodes.values():
            node.read_level = 8
        with connect(cluster.endpoints, settings=QUICK) as older:
            with pytest.raises(UnsupportedRequestError, match="needs level 9; upgrade this node"):
                backup.create_backup(older, str(tmp_path))
            assert backup.create_backup(older, str(tmp_path), tables=["t"]).format == TABLES_FORMAT

    run(work)


def test_files_of_a_large_state_are_cut_by_its_keys(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So a change touches one of them."""
    monkeypatch.setattr(cutting, "_is_cut", lambda key: key[-1:] in b"05")

    def work(cluster: FakeCluster, client: Client) -> None:
        del cluster
        send(client, "l", *(b"c%d" % n for n in range(14)))
        first = backup.create_backup(client, str(tmp_path), channelsets=["l"])
        assert [file.rows for file in first.sets[0].files] == [5, 5, 4]
        send(client, "l", b"one more")
        second = backup.create_backup(client, str(tmp_path), channelsets=["l"])
        assert second.sets[0].files[:2] == first.sets[0].files[:2]
        backup.restore_backup(client, str(tmp_path), channelsets={"l": "l2"})

    run(work)


def test_rm_keeps_files_of_sets_that_others_need(tmp_path: Path) -> None:
    """Those that none needs go."""

    def work(cluster: FakeCluster, client: Client) -> None:
        del cluster
        send(client, "l", b"one")
        send(client, "l", b"two", partition=1)
        first = backup.create_backup(client, str(tmp_path), channelsets=["l"])
        send(client, "l", b"three")
        second = backup.create_backup(client, str(tmp_path), channelsets=["l"])
        removed = backup.remove_backups(str(tmp_path), [first.id])
        assert removed.files == 1
        assert backup.verify_backup(str(tmp_path)).problems == ()
        assert backup.verify_backup(str(tmp_path)).channelsets == 1
        backup.remove_backups(str(tmp_path), [second.id])
        assert list((tmp_path / "data").rglob("*.parquet")) == []

    run(work)


def test_asyncio_takes_channel_sets_too(tmp_path: Path) -> None:
    """The same names."""

    async def test(cluster: FakeCluster, client: AsyncClient) -> None:
        cluster.code = {"mine:Ledger": Ledger}
        cluster.add_table("l", 1, key=(), machine="mine:Ledger")
        await client.channelset("l", machine=Ledger).command("k", b"one")
        place = str(tmp_path)
        made = await backup.aio.create_backup(cluster.endpoints, place, channelsets=["l"])
        assert made.rows == 1
        done = await backup.aio.restore_backup(cluster.endpoints, place, channelsets={"l": "l2"})
        assert [each.name for each in done.channelsets] == ["l2"]
        assert state_of(cluster, "l2") == state_of(cluster, "l")

    play(test)


STOPPED = (
    "l/0: the state machine stopped at seq 4 (command 00): ZeroDivisionError; install other code"
)


def test_partition_whose_machine_stopped_ends_the_backup_at_once_with_its_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However much time requests have: people have to do something, and the error says what."""
    monkeypatch.setattr(channel_set_state, "STOPPED_WAIT_MS", 200)

    def work(cluster: FakeCluster, _: Client) -> None:
        stopped = fail("machine_stopped", STOPPED)
        cluster.nodes["n1"].read_scripts.extend([stopped] * 10_000)
        began_s = time.monotonic()
        patient = replace(QUICK, timeout_ms=12_000)
        with (
            connect(cluster.endpoints, settings=patient) as client,
            pytest.raises(MachineStoppedError) as error,
        ):
            backup.create_backup(client, str(tmp_path), channelsets=["l"])
        assert time.monotonic() - began_s < 8
        assert str(error.value).startswith(f"{STOPPED}; then make the backup again, or name what")
        assert "--channelset" in str(error.value)
        assert list(tmp_path.rglob("*.json")) == []

    run(work)


def test_backup_waits_for_the_leader_whose_machine_goes_on(tmp_path: Path) -> None:
    """Where the code is old on some nodes alone, one that has it leads a moment later."""

    def work(cluster: FakeCluster, client: Client) -> None:
        send(client, "l", b"one")
        cluster.nodes["n1"].read_scripts.extend([fail("machine_stopped", STOPPED)] * 3)
        made = backup.create_backup(client, str(tmp_path), channelsets=["l"])
        assert made.sets[0].rows == 1

    run(work)
