"""Channel sets of real nodes in backups: taken under load and a killed leader, restored into
another cluster, and compared with what was answered at the positions of the backup."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from raftstore import backup
from raftstore.backup import restore_sets
from raftstore.backup.manifest import ChannelSetBackup
from raftstore.client.blocking.client import Client
from raftstore.errors import (
    GuidExpiredError,
    Outcome,
    RequestError,
    TableExistsError,
    UnknownMachineError,
)
from raftstore.local_cluster import LocalCluster
from tests.cluster.under_load import shell_json
from tests.cluster.watching import eventually

pytestmark = [pytest.mark.cluster, pytest.mark.slow]
ROOT = str(Path(__file__).parents[2])
NAMES = ("n1", "n2", "n3")
MACHINES = {
    "ledger": "tests.cluster.counting:Ledger",
    "memory": "tests.cluster.counting:MemoryLedger",
}
PARTITIONS = 2
LONG = "x" * 40_000
"""Commands of the machine in memory, so that it makes snapshots of itself meanwhile."""


@contextmanager
def cluster(directory: Path, path: str = ROOT) -> Iterator[tuple[LocalCluster, Client]]:
    """Three nodes with the machines of these tests."""
    environment = {name: {"PYTHONPATH": path} for name in NAMES}
    with LocalCluster(nodes=3, directory=directory, environment=environment) as running:
        with running.connect(timeout=20.0) as client:
            yield running, client


class Load:
    """A sender for each channel set, whose results are kept with their places, and a reader."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._stop = threading.Event()
        self.results: dict[tuple[str, int], list[tuple[int, list[Any]]]] = {
            (name, number): [] for name in MACHINES for number in range(PARTITIONS)
        }
        """Per partition (seq of the log, what the machine returned last)."""
        self.answers: list[tuple[str, int, int, list[Any]]] = []
        """Channel set, partition, applied seq, and what a query answered."""
        self.guids: dict[str, tuple[str, str]] = {}
        """The key and name of one command of each."""
        self.errors: list[BaseException] = []

    @contextmanager
    def running(self) -> Iterator[None]:
        """Send and ask meanwhile."""
        works = [lambda name=name: self._send(name) for name in MACHINES]
        works += [lambda name=name: self._ask(name) for name in MACHINES]
        threads = [threading.Thread(target=self._run, args=(work,)) for work in works]
        for thread in threads:
            thread.start()
        try:
            yield
        finally:
            self._stop.set()
            for thread in threads:
                thread.join()
        assert self.errors == []

    def _run(self, work: Any) -> None:
        try:
            while not self._stop.is_set():
                work()
        except BaseException as error:  # noqa: BLE001 - shown by the test's own thread
            self.errors.append(error)

    def _send(self, name: str) -> None:
        sets, number = self._client.channelset(name), self.count(name)
        key, command = f"k{number}", f"c{number}" if name == "ledger" else LONG
        guid: str | None = None
        while True:
            try:
                done = sets.command_result(key, command, guid=guid, timeout=1.0)
            except RequestError as error:
                if error.outcome is not Outcome.UNKNOWN:
                    raise
                guid = error.guid
            else:
                self.results[name, done.partition].append((done.seq, done.result))
                self.guids[name] = key, done.guid
                return

    def _ask(self, name: str) -> None:
        for number in range(PARTITIONS):
            found = self._client.channelset(name).query_partition(number, b"", max_lag=1_000)
            self.answers.append((name, number, found.applied_seq, found.answer))

    def count(self, name: str) -> int:
        return sum(len(self.results[name, number]) for number in range(PARTITIONS))

    def wait_for(self, more: int) -> None:
        """Until so many more commands of each were answered."""
        wanted = {name: self.count(name) + more for name in MACHINES}
        eventually(
            lambda: all(self.count(name) >= wanted[name] for name in MACHINES) or self.errors, bool
        )

    def expected(self, taken: ChannelSetBackup, number: int) -> list[list[Any]]:
        """The answer of a query at the position of the backup, by results alone."""
        upto = taken.partitions[number].seq
        return [result for seq, result in self.results[taken.name, number] if seq <= upto]


def all_of(client: Client, name: str) -> list[list[Any]]:
    """The answers of all partitions."""
    return [client.channelset(name).query_partition(n, b"").answer for n in range(PARTITIONS)]


def check_against_answers(load: Load, taken: ChannelSetBackup, restored: list[list[Any]]) -> None:
    """Answers from before the position are the beginning of what was restored, those from behind
    it go on from there."""
    assert load.answers
    for name, number, applied, answer in load.answers:
        if name != taken.name:
            continue
        known, position = restored[number], taken.partitions[number].seq
        if applied <= position:
            assert answer == known[: len(answer)]
        if applied >= position:
            assert answer[: len(known)] == known


def test_gap_12_states_under_load_come_back_as_they_were_at_the_positions_of_the_backup(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By results and by queries, over a killed leader; the restore dies in the middle and loses a
    node, and nothing is answered before all is whole. Then seqs, times and ids go on, and guids of
    the source are unknown."""
    monkeypatch.setattr(restore_sets, "PORTION_ENTRIES", 10)
    monkeypatch.setattr(restore_sets, "PORTION_BYTES", 100_000)
    place = str(tmp_path / "backups")
    with cluster(tmp_path / "a") as (source, client):
        for name, machine in MACHINES.items():
            client.create_channelset(name, machine, partitions=PARTITIONS)
        load = Load(client)
        with load.running():
            load.wait_for(60)
            acked = {place_: len(found) for place_, found in load.results.items()}
            first = backup.create_backup(client, place)
            source.kill(shell_leader(client))
            load.wait_for(10)
            second = backup.create_backup(client, place)
            load.wait_for(10)
    for made in (first, second):
        assert backup.verify_backup(place, made.id).problems == ()
    assert second.base == first.id
    assert first.channelset("memory").partitions[0].chunks, "it made a snapshot of itself"
    with cluster(tmp_path / "b") as (target, client):
        die_and_go_on(target, client, place, first.id)
        backup.restore_backup(
            client, place, second.id, channelsets={name: f"{name}2" for name in MACHINES}
        )
        for made, suffix in ((first, "1"), (second, "2")):
            for name in MACHINES:
                taken = made.channelset(name)
                restored = all_of(client, name + suffix)
                assert restored == [load.expected(taken, n) for n in range(PARTITIONS)]
                check_against_answers(load, taken, restored)
        for (name, number), count in acked.items():
            known = load.results[name, number]
            if count:
                seq = first.channelset(name).partitions[number].seq
                assert seq >= known[count - 1][0], "everything acknowledged before is in it"
        check_numbers(client, load)
        for name in ("ledger1", "memory2"):
            for number in range(PARTITIONS):
                assert not client.compare_replicas(f"{name}/{number}").is_different
        with pytest.raises(TableExistsError, match="'ledger1' exists"):
            backup.restore_backup(client, place, channelsets={"ledger": "ledger1"})
        [one, _] = shell_json(target, "backup", "ls", place)
        assert (one["tables"], one["channelsets"]) == (0, 2)


def shell_leader(client: Client) -> str:
    found = client.channelset("ledger").query_result("k", b"")
    return found.node


def die_and_go_on(target: LocalCluster, client: Client, place: str, made: str) -> None:
    """A restore that dies after some portions, and the one that goes on while a node is killed."""
    names = {name: f"{name}1" for name in MACHINES}
    seen = 0

    def dies(_: backup.Progress) -> None:
        nonlocal seen
        seen += 1
        if seen == 4:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        backup.restore_backup(client, place, made, channelsets=names, progress=dies)
    for name in names.values():
        sets = client.channelset(name)
        for number in range(PARTITIONS):
            with pytest.raises(RequestError, match="is being restored from a backup"):
                sets.query_partition(number, b"", level="any", timeout=2.0)
            with pytest.raises(RequestError, match="is being restored from a backup"):
                sets.command_to_partition(number, "early", timeout=2.0)
    victims = ["n2"]

    def kill_one(_: backup.Progress) -> None:
        if victims:
            target.kill(victims.pop())

    backup.restore_backup(client, place, made, channelsets=names, progress=kill_one)
    target.start("n2")
    target.wait_until_ready()


def check_numbers(client: Client, load: Load) -> None:
    """Seqs, terms and times that a machine is given go on behind all that the source gave, also
    behind the backup, and ids are new; a guid of the source is unknown."""
    for name in MACHINES:
        known = [result for number in range(PARTITIONS) for _, result in load.results[name, number]]
        for suffix in "12":
            sets = client.channelset(name + suffix)
            for number in range(PARTITIONS):
                [seq, term, time_ms, new_id, *_] = sets.command_to_partition(number, "new").result
                assert seq > max(each[0] for each in known)
                assert term > max(each[1] for each in known)
                before = all_of(client, name + suffix)[number][:-1]
                assert time_ms >= max((each[2] for each in before), default=0)
                assert new_id not in [each[3] for each in known]
            key, guid = load.guids[name]
            with pytest.raises(GuidExpiredError, match="to another channel set than today's"):
                sets.command(key, "again", guid=guid)


def test_a_backup_is_not_restored_where_code_is_missing_or_cannot_go_on(tmp_path: Path) -> None:
    """The node and the version are named, and nothing is made. The files are read without us."""
    place = str(tmp_path / "backups")
    code = tmp_path / "code"
    code.mkdir()
    (code / "mine.py").write_text(machine_text(version=2))
    with cluster(tmp_path / "a", os.pathsep.join([str(code)])) as (_, client):
        client.create_channelset("c", "mine:Machine", partitions=1)
        sets = client.channelset("c")
        assert sets.command("k", b"value") == b"2"
        made = backup.create_backup(client, place)
    [part] = made.channelset("c").partitions
    assert part.version == 2
    table = pq.read_table(Path(place) / part.rows[0].path)
    assert table.select(["key", "value"]).to_pylist() == [{"key": b"k", "value": b"value"}]
    (code / "mine.py").write_text(machine_text(version=1))
    with cluster(tmp_path / "b", str(code)) as (_, client):
        with pytest.raises(UnknownMachineError, match="and version 2 is in force in the backup"):
            backup.restore_backup(client, place)
        assert client.channelsets() == ()
    (code / "mine.py").write_text(machine_text(version=9, oldest=3))
    with cluster(tmp_path / "c", str(code)) as (_, client):
        with pytest.raises(UnknownMachineError, match="goes back to 3 and no further"):
            backup.restore_backup(client, place)
    (code / "mine.py").unlink()
    with cluster(tmp_path / "d", str(code)) as (_, client):
        with pytest.raises(UnknownMachineError, match=r"cannot load the state machine.*mine"):
            backup.restore_backup(client, place)
        assert client.channelsets() == ()


def machine_text(*, version: int, oldest: int = 1) -> str:
    """Code of a machine that returns the version in force."""
    return f"""
import raftstore

class Machine(raftstore.StateMachine):
    version, oldest_version = {version}, {oldest}

    def apply(self, command, context):
        context.state.put(context.key, command)
        return b"%d" % context.version
"""
