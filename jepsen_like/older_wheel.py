"""Nodes of the version before this one, as it was built, beside nodes of this version.

``make upgrades-wheel`` (``python -m jepsen_like.older_wheel``) founds three node processes from the
wheel of that version, and exchanges them one after the other under writes and reads: by this
version, back by the older one, and again, leaders first and followers first by turns. After each
exchange an older client writes and reads, too. What the older nodes could not read is asked for
while there is one, and must be refused. Faults are judged as in ``jepsen_like.upgrades``.

Then a table is made that the older version cannot read. Its node must refuse to start, and be well
again as this version. At last, in another cluster, an older node loses its disk in the middle of
the exchange: while it is down it is replaced by an empty node of this version, once no other node
is older. Exit code 7: something was not as it must be.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Final, TypeVar

import click

from jepsen_like.upgrades import (
    BATCHES,
    NODES,
    PARTITIONS,
    READY_S,
    REFUSED_S,
    TABLE,
    VIOLATION,
    Load,
    Outcome,
    judge,
    look_into_logs,
)
from raftstore.client.blocking.client import Client
from raftstore.config import LEVEL
from raftstore.errors import RaftstoreError, SchemaError, StoreTooOldError, UnavailableError
from raftstore.local_cluster import LocalCluster

WHEEL: Final = (
    Path(__file__).parent.parent / "tests/data/versions" / "raftstore-0.1.0-py3-none-any.whl"
)
REFUSALS: Final = (70, 78)
"""Exit codes of a node that cannot read what a newer one wrote."""
T = TypeVar("T")
CLIENT_TABLE: Final = "older_client"
TOO_NEW: Final = "too_new"
CLIENT: Final = """
import sys
import raftstore

place, endpoints, table, count = sys.argv[1:]
assert raftstore.__file__.startswith(place), raftstore.__file__
with raftstore.connect(endpoints.split(","), timeout=20.0) as client:
    if table not in [known.name for known in client.tables()]:
        client.create_table(table, key="id", partitions=2)
    rows = client.table(table)
    rows.put({"id": int(count), "n": 1})
    print(sorted(row["id"] for row in rows.scan(level="linearizable")))
"""


class OlderVersion:
    """An unpacked wheel, whose dependencies are those of this environment."""

    def __init__(self, wheel: Path, directory: Path) -> None:
        self.place = directory / "older"
        with zipfile.ZipFile(wheel) as packed:
            packed.extractall(self.place)
        self.environment = {"PYTHONPATH": str(self.place), "PYTHONSAFEPATH": "1"}

    @property
    def command(self) -> tuple[str, ...]:
        """Starts a node of it: without the settings that only newer versions know."""
        variables = (f"{name}={value}" for name, value in self.environment.items())
        return ("env", "-u", "RAFTSTORE_STORAGE_RESERVE_BYTES", *variables)

    def use_client(self, nodes: LocalCluster, count: int) -> str:
        """Write row ``count`` by a client of it; why not all rows up to it are shown, or ""."""
        arguments = [str(self.place), ",".join(nodes.endpoints), CLIENT_TABLE, str(count)]
        done = subprocess.run(
            [sys.executable, "-c", CLIENT, *arguments],
            env=os.environ | self.environment,
            capture_output=True,
            text=True,
            timeout=2 * READY_S,
            check=False,
        )
        if done.stdout.strip() == str(list(range(1, count + 1))):
            return ""
        return f"the older client after its row {count}: {done.stdout}{done.stderr[-500:]}"


class Exchange:
    """Three nodes, each of the older version or of this one."""

    def __init__(self, nodes: LocalCluster, older: OlderVersion, outcome: Outcome) -> None:
        self.nodes = nodes
        self.outcome = outcome
        self._older = older
        self.older_nodes: set[str] = set()
        for name in NODES:
            self.install(name, is_older=True)

    def install(self, name: str, *, is_older: bool) -> None:
        """The next start of the node is of that version."""
        command = self._older.command if is_older else ()
        self.nodes.place(name, listen=self.nodes.endpoints_by_node()[name], command=command)
        (self.older_nodes.add if is_older else self.older_nodes.discard)(name)

    def exchange(self, name: str, *, is_older: bool) -> None:
        """Stop a node in order and start it as the other version, on the same directory."""
        code = self.nodes.stop(name)
        if code != 0:
            self.outcome.faults.append(f"{name} ended with {code} when it was stopped")
        self.install(name, is_older=is_older)
        self.nodes.start(name)
        self.nodes.wait_until_ready()
        self.outcome.restarts += 1

    def use_older_client(self) -> None:
        """A client of the older version writes one more row and reads all of them."""
        self.outcome.client_rows += 1
        if problem := self._older.use_client(self.nodes, self.outcome.client_rows):
            self.outcome.faults.append(problem)

    def refuse_too_new(self, client: Client) -> None:
        """While a node is older: its version refuses as leader, this one names it."""
        if not self.older_nodes:
            return
        try:
            client.create_table(TOO_NEW, key="id", durability="buffered", timeout=5.0)
        except (StoreTooOldError, SchemaError):
            self.outcome.too_new += 1
        except RaftstoreError as error:
            name = type(error).__name__
            self.outcome.errors[name] = self.outcome.errors.get(name, 0) + 1
        else:
            self.outcome.faults.append("a table of level 6 was created beside a node of level 5")

    def refuse_replacement(self, client: Client, lost: str) -> None:
        """While another node is older than that, no token is made by which one joins."""
        try:
            client.join_token(replaces=lost, timeout=5.0)
        except RaftstoreError:
            self.outcome.too_new += 1
        else:
            self.outcome.faults.append(f"a token that replaces {lost} beside a node of level 5")

    def replace(self, client: Client, lost: str) -> None:
        """Its disk is lost; an empty node of this version takes its place, and has all replicas."""
        self.nodes.forget(lost)
        self.older_nodes.discard(lost)
        self.nodes.join(lost, _eventually(lambda: client.join_token(replaces=lost, timeout=5.0)))

        def is_whole() -> None:
            placed = client.replicas(timeout=5.0)
            missing = [each.channel for each in placed if set(each.voters) != set(NODES)]
            voters = [each.name for each in client.members() if each.catalog == "voter"]
            if missing or len(voters) < len(NODES) or not all(m.up for m in client.members()):
                raise UnavailableError(f"{lost} has no replica of {missing}, voters: {voters}")

        _eventually(is_whole)
        self.outcome.restarts += 1

    def go_too_far(self) -> None:
        """Once something of this level is written, the older version refuses to start."""
        for each in sorted(self.older_nodes):
            self.exchange(each, is_older=False)
        nodes, name = self.nodes, NODES[-1]
        with nodes.connect(timeout=READY_S) as client:
            end_s = time.monotonic() + READY_S
            while _levels(client) != {LEVEL} and time.monotonic() < end_s:
                time.sleep(0.05)
            client.create_table(TOO_NEW, key="id", durability="buffered")
            client.table(TOO_NEW).put({"id": 1})
        nodes.stop(name)
        self.install(name, is_older=True)
        nodes.start(name)
        end_s = time.monotonic() + REFUSED_S
        while name in nodes.running() and time.monotonic() < end_s:
            time.sleep(0.05)
        code = nodes.ended().get(name)
        if code not in REFUSALS:
            said = nodes.log_file(name).read_text("utf-8", "replace").splitlines()[-1:]
            self.outcome.faults.append(f"{name}, older, ended with {code}: {said}")
        if name in nodes.running():
            nodes.kill(name)
        self.install(name, is_older=False)
        nodes.start(name)
        nodes.wait_until_ready()
        with nodes.connect(timeout=READY_S) as client:
            if client.table(TOO_NEW).get(1, level="linearizable") is None:
                self.outcome.faults.append(f"{TOO_NEW} lost its row while {name} was older")


def run_wheel(
    directory: Path, *, wheel: Path = WHEEL, directions: tuple[int, ...], too_far: bool
) -> Outcome:
    """Exchange so many nodes by turns up and down: the leader goes first up and last down, then
    the other way round. ``too_far``: have the older version refuse what it cannot read in the end.
    """
    outcome = Outcome()
    directory.mkdir(parents=True, exist_ok=True)
    cluster = LocalCluster(len(NODES), directory=directory / "cluster")
    nodes = Exchange(cluster, OlderVersion(wheel, directory), outcome)
    with cluster:
        with cluster.connect(timeout=READY_S) as client:
            for table in (TABLE, BATCHES):
                client.create_table(table, key="id", partitions=PARTITIONS)
            nodes.use_older_client()
            with Load(client, outcome) as load:
                for direction, count in enumerate(directions):
                    leader_first = (direction + direction // 2) % 2 == 0
                    for name in _order(client, leader_first=leader_first)[:count]:
                        nodes.exchange(name, is_older=direction % 2 == 1)
                        load.must_go_on()
                        nodes.refuse_too_new(client)
                    nodes.use_older_client()
            judge(client, load, outcome)
        look_into_logs(cluster, outcome)
        if too_far:
            nodes.go_too_far()
    return outcome


def run_lost_disk(directory: Path, *, wheel: Path = WHEEL) -> Outcome:
    """An older node loses its disk during the exchange, and nobody can upgrade it any more: while
    another one is older it cannot be replaced, and then it is, under load."""
    outcome = Outcome()
    directory.mkdir(parents=True, exist_ok=True)
    cluster = LocalCluster(len(NODES), directory=directory / "cluster")
    nodes = Exchange(cluster, OlderVersion(wheel, directory), outcome)
    with cluster:
        with cluster.connect(timeout=READY_S) as client:
            for table in (TABLE, BATCHES):
                client.create_table(table, key="id", partitions=PARTITIONS)
            first, other, lost = _order(client, leader_first=False)
            with Load(client, outcome) as load:
                nodes.exchange(first, is_older=False)
                load.must_go_on()
                cluster.kill(lost)
                nodes.refuse_replacement(client, lost)
                nodes.exchange(other, is_older=False)
                load.must_go_on()
                nodes.replace(client, lost)
                load.must_go_on()
            judge(client, load, outcome)
        look_into_logs(cluster, outcome)
    return outcome


def _order(client: Client, *, leader_first: bool) -> list[str]:
    """All nodes, that of the metadata channel's leader first or last."""
    leader = str(client.cluster_status().metadata_channel.leader).split("@", 1)[0]
    return sorted(NODES, key=lambda name: ((name != leader) == leader_first, name))


def _eventually(do: Callable[[], T]) -> T:
    """The result, once it succeeds."""
    end_s = time.monotonic() + READY_S
    while True:
        try:
            return do()
        except RaftstoreError:
            if time.monotonic() > end_s:
                raise
            time.sleep(0.1)


def _levels(client: Client) -> set[int]:
    """Levels that the nodes reported, as all of them see it."""
    seen = [node.status["levels"] for node in client.cluster_status().nodes if node.status]
    return {level for levels in seen for level in levels.values()}


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--rounds", default=2, show_default=True, help="How often up and down again.")
@click.option("--wheel", default=WHEEL, type=click.Path(path_type=Path), help="The older version.")
@click.option("--directory", type=click.Path(path_type=Path), help="Data and logs; kept.")
def main(rounds: int, wheel: Path, directory: Path | None) -> None:
    """Exchange nodes of two versions under load, up and down: nothing may be lost."""
    with ExitStack() as stack:
        where = directory or Path(stack.enter_context(tempfile.TemporaryDirectory()))
        exchanged = run_wheel(
            where, wheel=wheel, directions=(len(NODES),) * 2 * rounds, too_far=True
        )
        lost = run_lost_disk(where / "lost disk", wheel=wheel)
    for title, outcome in (("exchanged", exchanged), ("a lost disk", lost)):
        click.echo(f"--- {title}")
        for line in outcome.lines():
            click.echo(line)
    sys.exit(VIOLATION if exchanged.faults or lost.faults else 0)


if __name__ == "__main__":
    main()
