"""Backups of a scripted cluster, and back: what is in them, and what is never taken for whole."""

from __future__ import annotations

import asyncio
import hashlib
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from raftstore import backup
from raftstore.aio import AsyncClient
from raftstore.backup import create, restore, target
from raftstore.backup.manifest import WriterBackup
from raftstore.client.blocking.client import Client, connect
from raftstore.errors import (
    ArgumentError,
    BackupError,
    SchemaError,
    StoreTooOldError,
    TableExistsError,
    UnavailableError,
    UnknownTableError,
)
from raftstore.protocol.admin import CreateTable
from raftstore.protocol.batches import (
    APPEND,
    BatchAnswer,
    BeginBatch,
    ChannelPart,
    CommitBatch,
    Manifest,
)
from raftstore.protocol.message import Failed, Message
from raftstore.protocol.payload import encode_rows
from raftstore.protocol.reads import Scan
from raftstore.protocol.snapshots import OpenSnapshot
from raftstore.protocol.staged import ChunkHeader, encode_staged
from raftstore.rows.schema import TableSchema
from raftstore.rows.sealing import seal
from raftstore.state_machines.batches.staging import check_of
from tests.integration.client.fake_batches import decide
from tests.integration.client.fake_cluster import FakeCluster, FakeNode
from tests.integration.client.fake_requests import execute
from tests.integration.client.play import QUICK, play

Work = Callable[[FakeCluster, Client], Any]
HOUR_MS = 3_600_000


def run(work: Work, partitions: int = 3) -> None:
    """Run a test with a blocking client in a thread, as programs have it; "t" is a table."""

    async def test(cluster: FakeCluster, _: AsyncClient) -> None:
        def in_thread() -> None:
            with connect(cluster.endpoints, settings=QUICK) as client:
                work(cluster, client)

        await asyncio.to_thread(in_thread)

    play(test, partitions=partitions)


def rows_of(client: Client, name: str) -> list[dict[str, Any]]:
    return list(client.table(name).scan())


def expire(cluster: FakeCluster, name: str, at_ms: int) -> int:
    """Have every row of a table expire at a moment; return how many."""
    count = 0
    for info in cluster.tables[name].channels:
        channel = cluster.channels[info.channel]
        channel.expiries = dict.fromkeys(channel.rows, at_ms)
        count += len(channel.rows)
    return count


def ttls(cluster: FakeCluster, name: str) -> set[int]:
    """Lifetimes with which rows of a table were written."""
    channels = [cluster.channels[info.channel] for info in cluster.tables[name].channels]
    return {ttl for channel in channels for ttl in channel.ttls_ms}


def test_gap_12_table_comes_back_under_another_name_with_all_that_it_had(tmp_path: Path) -> None:
    """Rows, schema, settings and the last batches of its writers; nothing of its identity
    (S0.1)."""

    def work(_: FakeCluster, client: Client) -> None:
        client.create_table(
            "typed", key="id", schema="id long, name string", partitions=3, ttl=60, max_lag=9
        )
        client.alter_table("typed", max_staleness=2.5, retention_records=5_000)
        table = client.table("typed")
        table.put_many([{"id": n, "name": f"n{n}"} for n in range(50)])
        table.write_batch([{"id": 99, "name": "b"}], writer="stream", batch_id=6, lineage="ck")
        made = backup.create_backup(client, str(tmp_path), tables=["typed"])
        assert (made.rows, [each.name for each in made.tables]) == (51, ["typed"])
        assert made.tables[0].writers == (WriterBackup("stream", "ck", 6),)
        done = backup.restore_backup(client, str(tmp_path), tables={"typed": "again"})
        (one,) = done.tables
        assert (one.source, one.name, one.rows, one.expired, one.writers) == (
            *("typed", "again"),
            *(51, 0, 1),
        )
        assert rows_of(client, "again") == rows_of(client, "typed")
        before, after = client.table_info("typed"), client.table_info("again")
        assert after.uuid != before.uuid
        for name in ("key_columns", "partitions", "schema_json", "max_staleness_ms", "settings"):
            assert getattr(after, name) == getattr(before, name)
        again = client.table("again")
        assert again.begin_batch("stream", 6, lineage="ck").is_already_written
        assert not again.begin_batch("stream", 7, lineage="ck").is_already_written
        assert backup.verify_backup(str(tmp_path)).problems == ()

    run(work)


def test_every_table_is_in_it_but_those_that_are_not_whole(tmp_path: Path) -> None:
    """By default; one that is named must be there and whole."""

    def work(cluster: FakeCluster, client: Client) -> None:
        client.create_table("other", key="k", partitions=1)
        client.create_table("half", key="k", partitions=1, restoring="0" * 32)
        made = backup.create_backup(client, str(tmp_path))
        assert [table.name for table in made.tables] == ["other", "t"]
        with pytest.raises(UnavailableError, match="'half' is being restored"):
            backup.create_backup(client, str(tmp_path), tables=["half"])
        with pytest.raises(UnknownTableError):
            backup.create_backup(client, str(tmp_path), tables=["nix"])
        with pytest.raises(ArgumentError, match="is one name"):
            backup.create_backup(client, str(tmp_path), tables="t")
        cluster.add_table("c", 1, key=(), machine="mine:Counter")
        with pytest.raises(SchemaError, match="'c' is a channel set and no table"):
            backup.create_backup(client, str(tmp_path), tables=["t", "c"])
        assert len(backup.list_backups(str(tmp_path))) == 1

    run(work)


def test_unchanged_partition_is_not_read_again(tmp_path: Path) -> None:
    """Its position says it; of one that moved only new files are written."""

    def work(cluster: FakeCluster, client: Client) -> None:
        client.table("t").put_many([{"id": n} for n in range(90)])
        first = backup.create_backup(client, str(tmp_path))
        ack = client.table("t").put({"id": 1, "name": "changed"})
        for node in cluster.nodes.values():
            node.reads.clear()
        second = backup.create_backup(client, str(tmp_path))
        scanned = [
            read.channel
            for node in cluster.nodes.values()
            for read in node.reads
            if isinstance(read, Scan) and read.pin
        ]
        assert scanned == [cluster.tables["t"].channels[ack.partition].channel]
        assert second.base == first.id
        assert 0 < second.new_bytes < first.new_bytes
        for number, (one, other) in enumerate(
            zip(first.tables[0].partitions, second.tables[0].partitions, strict=True)
        ):
            assert (one.files == other.files) is (number != ack.partition)
        third = backup.create_backup(client, str(tmp_path))
        assert (third.base, third.new_bytes) == (second.id, 0)
        full = backup.create_backup(client, str(tmp_path), full=True)
        assert (full.base, full.new_bytes) == (None, third.bytes)
        backup.restore_backup(client, str(tmp_path), first.id, tables={"t": "old"})
        assert "name" not in (client.table("old").get(1) or {"name": 0})
        backup.restore_backup(client, str(tmp_path), second.id, tables={"t": "new"})
        assert client.table("new").get(1) == {"id": 1, "name": "changed"}

    run(work)


def test_backup_of_other_tables_is_no_base(tmp_path: Path) -> None:
    """Clusters that share a place, and tables that are backed up in turn, stay incremental."""

    def work(cluster: FakeCluster, client: Client) -> None:
        client.create_table("u", key="id", partitions=1)
        client.table("t").put_many([{"id": n} for n in range(9)])
        first = backup.create_backup(client, str(tmp_path), tables=["t"])
        other = backup.create_backup(client, str(tmp_path), tables=["u"])
        assert other.base is None
        for node in cluster.nodes.values():
            node.reads.clear()
        again = backup.create_backup(client, str(tmp_path), tables=["t"])
        assert (again.base, again.new_bytes) == (first.id, 0)
        reads = [read for node in cluster.nodes.values() for read in node.reads]
        assert not [read for read in reads if isinstance(read, Scan) and read.pin]

    run(work)


def test_table_that_was_made_anew_takes_nothing_from_the_base(tmp_path: Path) -> None:
    """S0.8: positions of another table of the name say nothing."""

    def work(_: FakeCluster, client: Client) -> None:
        client.table("t").put({"id": 1})
        backup.create_backup(client, str(tmp_path))
        client.drop_table("t")
        client.create_table("t", key="id", partitions=3)
        client.table("t").put({"id": 2})
        backup.create_backup(client, str(tmp_path))
        backup.restore_backup(client, str(tmp_path), tables={"t": "u"})
        assert rows_of(client, "u") == [{"id": 2}]

    run(work)


def test_columns_that_were_appended_are_in_all_files_of_the_next_backup(tmp_path: Path) -> None:
    """Spark reads the files of a table as one: partitions that did not move are written, too."""

    def work(_: FakeCluster, client: Client) -> None:
        client.create_table("c", key="id", schema="id long, a long", partitions=3)
        client.table("c").put_many([{"id": n, "a": n} for n in range(30)])
        backup.create_backup(client, str(tmp_path), tables=["c"])
        client.alter_table("c", add_columns="b string")
        second = backup.create_backup(client, str(tmp_path), tables=["c"])
        assert second.new_bytes == second.bytes
        assert backup.verify_backup(str(tmp_path)).problems == ()

    run(work)


def test_table_that_is_made_anew_while_it_is_read_is_no_backup(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S0.8: the definition of one table beside the rows of another."""

    def work(_: FakeCluster, client: Client) -> None:
        taken = create.captured

        def then_dropped(table: Any, name: str) -> Any:
            found = taken(table, name)
            client.drop_table(name)
            client.create_table(name, key="other", partitions=3)
            return found

        monkeypatch.setattr(create, "captured", then_dropped)
        with pytest.raises(UnknownTableError, match="'t' was dropped and created again"):
            backup.create_backup(client, str(tmp_path))
        assert backup.list_backups(str(tmp_path)) == []

    run(work)


def test_s10_batch_that_is_decided_while_the_state_is_opened_is_known_with_its_rows(
    tmp_path: Path,
) -> None:
    """A writer's last batch is the last one in the state: neither is it written twice after a
    restore, nor left out."""

    def work(cluster: FakeCluster, client: Client) -> None:
        table = client.table("t")
        table.write_batch([{"id": 0}], writer="w", batch_id=0)
        committed = 0

        def script(node: FakeNode, message: Message, reply: Callable[[Message], None]) -> None:
            """Between the question who has written what and the state, and behind the state."""
            nonlocal committed
            if isinstance(message, OpenSnapshot) and committed < 6:
                committed += 1
                _commit(cluster, committed)
            execute(node, message, reply)
            if isinstance(message, OpenSnapshot) and committed < 6:
                committed += 1
                _commit(cluster, committed)

        for node in cluster.nodes.values():
            node.request_scripts.extend([script] * 1_000)
        made = backup.create_backup(client, str(tmp_path))
        for node in cluster.nodes.values():
            node.request_scripts.clear()
        assert committed == 6
        (writer,) = made.tables[0].writers
        backup.restore_backup(client, str(tmp_path), tables={"t": "u"})
        rows = rows_of(client, "u")
        assert [row["id"] for row in rows] == list(range(writer.batch_id + 1))

    run(work, partitions=1)


def _commit(cluster: FakeCluster, batch_id: int) -> None:
    """Another client's batch, begun and decided at once: its row is the batch's number."""
    (info,) = cluster.tables["t"].channels
    channel = cluster.channels[info.channel]
    asked = (channel.channel, "w", batch_id)
    begun = decide(cluster, BeginBatch(1, *asked, b"%016d" % batch_id, "", False, 0, 1_000))
    assert isinstance(begun, BatchAnswer)
    key, value = TableSchema(("id",), "").row_to_key_value({"id": batch_id})
    rows = encode_rows([(key, seal(key, value))])
    payload = encode_staged(ChunkHeader("w", begun.attempt, 0, 0, 0), rows)
    assert channel.batches is not None
    channel.batches.stage(0, payload, 1)
    check = check_of(hashlib.blake2b(payload, digest_size=16).digest())
    manifest = Manifest(APPEND, ((0, 0),), (ChannelPart(0, 1, 1, len(payload), check),), 1)
    answer = decide(cluster, CommitBatch(2, *asked, begun.attempt, manifest, b"d" * 16, 1_000))
    assert isinstance(answer, BatchAnswer)


def test_batches_that_never_pause_are_said_to_be_too_close(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rather than a state with writers of another."""
    monkeypatch.setattr(create, "CAPTURES_MAX", 3)
    monkeypatch.setattr(create, "PAUSE_MS_MAX", 1)
    monkeypatch.setattr(create, "is_of_state", lambda told, vector: False)

    def work(_: FakeCluster, client: Client) -> None:
        with pytest.raises(UnavailableError, match="'t' follow each other so closely"):
            backup.create_backup(client, str(tmp_path))
        assert backup.list_backups(str(tmp_path)) == []

    run(work)


def test_gap_12_backup_that_was_killed_is_none_and_the_next_one_uses_its_files(
    tmp_path: Path,
) -> None:
    """It left files without a manifest; they are not written again."""

    class KilledError(Exception):
        pass

    def kill(report: backup.Progress) -> None:
        if report.rows > 15:
            raise KilledError

    def work(_: FakeCluster, client: Client) -> None:
        client.table("t").put_many([{"id": n} for n in range(60)])
        with pytest.raises(KilledError):
            backup.create_backup(client, str(tmp_path), progress=kill)
        assert backup.list_backups(str(tmp_path)) == []
        left = sum(path.stat().st_size for path in tmp_path.rglob("*.parquet"))
        assert left > 0
        made = backup.create_backup(client, str(tmp_path))
        assert made.new_bytes == made.bytes - left
        assert backup.verify_backup(str(tmp_path)).problems == ()

    run(work)


def test_backup_whose_files_were_taken_meanwhile_is_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """``backup rm --force`` took its creation for dead: it fails, and leaves no manifest."""

    def work(_: FakeCluster, client: Client) -> None:
        client.table("t").put({"id": 1, "n": 1})
        add = create.Repository.add

        def added(place: create.Repository, manifest: backup.Manifest) -> None:
            backup.remove_backups(place.url, force=True)
            add(place, manifest)

        monkeypatch.setattr(create.Repository, "add", added)
        with pytest.raises(BackupError, match="removed with --force while this one was made"):
            backup.create_backup(client, str(tmp_path))
        assert backup.list_backups(str(tmp_path)) == []
        monkeypatch.undo()
        backup.create_backup(client, str(tmp_path))
        assert backup.verify_backup(str(tmp_path)).problems == ()

    run(work)


def test_restore_over_a_table_is_refused_before_anything_is_made(tmp_path: Path) -> None:
    """With the name and the remedy; the other tables of the backup are not created either."""

    def work(cluster: FakeCluster, client: Client) -> None:
        client.create_table("a", key="k", partitions=1)
        backup.create_backup(client, str(tmp_path))
        client.drop_table("a")
        with pytest.raises(TableExistsError, match=r"'t' exists.*--table t=NAME.*drop"):
            backup.restore_backup(client, str(tmp_path))
        assert list(cluster.tables) == ["t"]
        with pytest.raises(ArgumentError, match="two of them would be called 'x'"):
            backup.restore_backup(client, str(tmp_path), tables={"a": "x", "t": "x"})
        with pytest.raises(BackupError, match="has no table 'b'"):
            backup.restore_backup(client, str(tmp_path), tables=["b"])

    run(work)


@pytest.mark.parametrize("stop_at", [BeginBatch, CommitBatch])
def test_killed_restore_is_never_whole_and_goes_on_when_it_is_repeated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stop_at: type[Message]
) -> None:
    """Wherever it was killed; batches that were decided are not written again."""
    monkeypatch.setattr(restore, "BATCH_ROWS", 10)

    class KilledError(Exception):
        pass

    def work(cluster: FakeCluster, client: Client) -> None:
        client.table("t").put_many([{"id": n} for n in range(35)])
        client.table("t").write_batch([{"id": 99}], writer="s", batch_id=3, lineage="ck")
        backup.create_backup(client, str(tmp_path))
        for killed_after in range(7):
            name = f"u{killed_after}"
            seen = 0
            call = client._loop.call

            def counted(coroutine: Any) -> Any:
                nonlocal seen
                wanted = "begin_batch" if stop_at is BeginBatch else "commit_batch"
                if getattr(coroutine, "__qualname__", "").endswith(wanted):
                    seen += 1
                    if seen > killed_after:  # noqa: B023 - used in this turn
                        coroutine.close()
                        raise KilledError
                return call(coroutine)  # noqa: B023

            monkeypatch.setattr(client._loop, "call", counted)
            try:
                backup.restore_backup(client, str(tmp_path), tables={"t": name})
            except KilledError:
                assert client.table_info(name).settings.restoring is not None
            monkeypatch.setattr(client._loop, "call", call)
            if client.table_info(name).settings.restoring is not None:
                backup.restore_backup(client, str(tmp_path), tables={"t": name})
            assert client.table_info(name).settings.restoring is None
            assert rows_of(client, name) == rows_of(client, "t")
            assert client.table(name).begin_batch("s", 3, lineage="ck").is_already_written

    run(work)


def test_restore_of_another_backup_does_not_go_on_with_a_table(tmp_path: Path) -> None:
    """Rows of both would be mixed."""

    def work(cluster: FakeCluster, client: Client) -> None:
        client.create_table("u", key="id", partitions=3, restoring="0" * 32)
        backup.create_backup(client, str(tmp_path), tables=["t"])
        with pytest.raises(TableExistsError, match="is being restored from another backup"):
            backup.restore_backup(client, str(tmp_path), tables={"t": "u"})
        assert cluster.tables["u"].settings.restoring == "0" * 32

    run(work)


def test_restore_that_was_stopped_between_two_tables_finishes_the_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The one that is whole is known by its last batch; a whole restore that is repeated is
    refused."""

    def work(_: FakeCluster, client: Client) -> None:
        client.create_table("a", key="id", partitions=1)
        client.table("a").put({"id": 1})
        client.table("t").put({"id": 2})
        backup.create_backup(client, str(tmp_path))
        names = {"a": "a2", "t": "t2"}
        finish = restore.TableRestore.finish

        def stopped(each: Any) -> Any:
            if each.name == "t2":
                raise KeyboardInterrupt
            return finish(each)

        monkeypatch.setattr(restore.TableRestore, "finish", stopped)
        with pytest.raises(KeyboardInterrupt):
            backup.restore_backup(client, str(tmp_path), tables=names)
        monkeypatch.setattr(restore.TableRestore, "finish", finish)
        assert rows_of(client, "a2") == [{"id": 1}]
        done = backup.restore_backup(client, str(tmp_path), tables=names)
        assert [table.name for table in done.tables] == ["t2"]
        assert rows_of(client, "t2") == [{"id": 2}]
        with pytest.raises(TableExistsError):
            backup.restore_backup(client, str(tmp_path), tables=names)

    run(work)


def test_damaged_and_missing_files_are_named_before_or_while_they_are_read(tmp_path: Path) -> None:
    """A table whose file is damaged is never whole; verify names every one, without a cluster."""

    def work(_: FakeCluster, client: Client) -> None:
        client.table("t").put_many([{"id": n} for n in range(60)])
        made = backup.create_backup(client, str(tmp_path))
        files = made.tables[0].files
        one, other = tmp_path / files[0].path, tmp_path / files[1].path
        content = bytearray(one.read_bytes())
        content[len(content) // 2] ^= 1
        one.write_bytes(content)
        with pytest.raises(BackupError, match=f"{files[0].sha256}.*is damaged"):
            backup.restore_backup(client, str(tmp_path), tables={"t": "u"})
        assert client.table_info("u").settings.restoring is not None
        other.unlink()
        with pytest.raises(BackupError, match=f"{files[1].path} of table 't' is missing"):
            backup.restore_backup(client, str(tmp_path), tables={"t": "v"})
        assert "v" not in [info.name for info in client.tables()]
        problems = backup.verify_backup(str(tmp_path)).problems
        assert len(problems) == 2
        assert files[0].path in problems[0]
        assert "is damaged" in problems[0]
        assert files[1].path in problems[1]

    run(work)


def test_rows_live_as_long_as_they_would_have(tmp_path: Path) -> None:
    """Those whose time is over are not written, and counted; those without one live for ever, also
    where the table has a ttl."""

    def work(cluster: FakeCluster, client: Client) -> None:
        # When this file was read may be long ago, where all tests are collected first.
        now_ms = time.time_ns() // 1_000_000
        client.table("t").put_many([{"id": n} for n in range(30)])
        count = expire(cluster, "t", now_ms + HOUR_MS)
        assert count == 30
        backup.create_backup(client, str(tmp_path))
        backup.restore_backup(client, str(tmp_path), tables={"t": "u"})
        assert all(HOUR_MS - 120_000 < ttl <= HOUR_MS for ttl in ttls(cluster, "u"))
        expire(cluster, "t", now_ms - 1)
        client.table("t").put({"id": 1_000})
        backup.create_backup(client, str(tmp_path), full=True)
        (done,) = backup.restore_backup(client, str(tmp_path), tables={"t": "v"}).tables
        assert (done.rows, done.expired) == (31, 30)
        assert rows_of(client, "v") == [{"id": 1_000}]
        assert ttls(cluster, "v") == {0}

    run(work)


def test_cluster_that_has_just_been_founded_is_given_time_to_report_its_levels(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A new cluster is where most backups go to; a node that is too old for good is refused."""
    monkeypatch.setattr(target, "LEVEL_PAUSE_S", 0.01)
    monkeypatch.setattr(target, "LEVEL_LOOKS", 3)

    def too_old(node: FakeNode, message: Message, reply: Callable[[Message], None]) -> None:
        assert isinstance(message, CreateTable)
        reply(Failed(message.request_id, "store_too_old", "n2 is at level 0; upgrade it"))

    def work(cluster: FakeCluster, client: Client) -> None:
        client.table("t").put({"id": 1})
        backup.create_backup(client, str(tmp_path))
        cluster.nodes["n1"].request_scripts.extend([too_old] * 2)
        backup.restore_backup(client, str(tmp_path), tables={"t": "u"})
        assert rows_of(client, "u") == [{"id": 1}]
        cluster.nodes["n1"].request_scripts.extend([too_old] * 3)
        with pytest.raises(StoreTooOldError, match="upgrade it"):
            backup.restore_backup(client, str(tmp_path), tables={"t": "v"})

    run(work)


def test_asyncio_has_the_same_names(tmp_path: Path) -> None:
    """With a connection of its own, in a thread."""

    async def test(cluster: FakeCluster, client: AsyncClient) -> None:
        await client.table("t").put({"id": 1})
        made = await backup.aio.create_backup(cluster.endpoints, str(tmp_path))
        assert [name for name, _ in await backup.aio.list_backups(str(tmp_path))] == [made.id]
        done = await backup.aio.restore_backup(cluster.endpoints, str(tmp_path), tables={"t": "u"})
        assert done.backup == made.id
        assert await client.table("u").get(1) == {"id": 1}
        assert (await backup.aio.verify_backup(str(tmp_path))).problems == ()

    play(test)


def test_cancelled_call_of_asyncio_makes_no_backup(tmp_path: Path) -> None:
    """It ends at its next file, and nothing of it goes on behind the caller's back."""

    async def test(cluster: FakeCluster, client: AsyncClient) -> None:
        await client.table("t").put_many([{"id": n} for n in range(30)])
        loop, begun = asyncio.get_running_loop(), asyncio.Event()
        cancelled = threading.Event()

        def progress(_: backup.Progress) -> None:
            loop.call_soon_threadsafe(begun.set)
            cancelled.wait(10)

        call = backup.aio.create_backup(cluster.endpoints, str(tmp_path), progress=progress)
        task = asyncio.create_task(call)
        await begun.wait()
        task.cancel()
        loop.call_later(0.05, cancelled.set)
        with pytest.raises(asyncio.CancelledError):
            await task
        assert await backup.aio.list_backups(str(tmp_path)) == []

    play(test, partitions=8)
