"""Rolling upgrades and downgrades of running nodes, while clients write and read.

``make upgrades`` (``python -m jepsen_like.upgrades``) starts three node processes as an older
version and rolls them up, down, up and down again between levels, one node at a time, each by
SIGTERM or kill -9. An older node reports its level and reads no more than that version did
(``raftstore.node.older_version``): what is too new for it ends the connection that brought it, and
both sides say so in their logs. Meanwhile one client writes rows and micro-batches, reads them by
single gets, as clients of every version do, and by gets of many keys, which newer nodes are asked
for in one message. Then it asks: is all that was acknowledged there, did a read go back, are the
replicas equal, did a node end by itself or meet what it could not read? Exit code 7: it was not so.

The last node then goes below the first level that its log needs: it must refuse to start, in words
and without changing anything, and be well again as the newer version.
"""

from __future__ import annotations

import json
import random
import sys
import tempfile
import threading
import time
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Self

import click

from jepsen_like.equal_replicas import difference
from raftstore.client.blocking.client import Client
from raftstore.config import LEVEL
from raftstore.errors import RaftstoreError, StoreTooOldError
from raftstore.faults import VARIABLE
from raftstore.local_cluster import LocalCluster

NODES: Final = ("n1", "n2", "n3")
TABLE: Final = "rows"
BATCHES: Final = "batches"
PARTITIONS: Final = 4
KEYS: Final = 24
BATCH_ROWS: Final = 16
LOWEST: Final = 1
"""Once there are micro-batches, older versions stop at them."""
READY_S: Final = 30.0
REFUSED_S: Final = 20.0
REFUSAL: Final = "written by a newer raftstore"
EXIT_REFUSED: Final = 70
NOT_READ: Final = ("versions differ", "malformed message")
"""Lines of a node that sent or was sent what one of the two cannot read."""
VIOLATION: Final = 7


@dataclass(slots=True)
class Outcome:
    """Counts and faults of a run."""

    restarts: int = 0
    writes: int = 0
    """Acknowledged rows."""
    batches: int = 0
    """Acknowledged micro-batches."""
    reads: int = 0
    refused: int = 0
    """Micro-batches that were refused because some node was too old."""
    errors: dict[str, int] = field(default_factory=dict)
    """Other refusals and unknown outcomes, by class."""
    too_new: int = 0
    """Refused tables that a node of the older version could not have read."""
    client_rows: int = 0
    """Rows that clients of the older version wrote."""
    faults: list[str] = field(default_factory=list)
    """What was not as it must be."""

    def lines(self) -> list[str]:
        """For people."""
        return [
            f"{self.restarts} restarts as another version",
            f"{self.writes} rows and {self.batches} micro-batches acknowledged, {self.refused} "
            f"micro-batches refused by nodes below level {LOWEST}, {self.reads} reads",
            f"errors that clients got: {self.errors or 'none'}",
            f"{len(self.faults)} faults",
            *self.faults,
        ]


def run_upgrades(rounds: int, seed: int, directory: Path) -> Outcome:
    """Roll up and down so many times, and judge; a round is two directions of three restarts."""
    rng = random.Random(f"upgrades {seed}")
    outcome = Outcome()
    orders = {name: directory / f"{name}.orders" for name in NODES}
    directory.mkdir(parents=True, exist_ok=True)
    for path in orders.values():
        path.write_text(json.dumps({"level": 0}))
    environment = {name: {VARIABLE: str(path)} for name, path in orders.items()}
    with LocalCluster(
        len(NODES), directory=directory / "cluster", environment=environment
    ) as nodes:
        with nodes.connect(timeout=READY_S) as client:
            for table in (TABLE, BATCHES):
                client.create_table(table, key="id", partitions=PARTITIONS)
            with Load(client, outcome) as load:
                for _ in range(rounds):
                    for target in (LEVEL, rng.randrange(LOWEST, LEVEL)):
                        _roll(nodes, orders, target, rng, outcome)
                        load.must_go_on()
            judge(client, load, outcome)
        look_into_logs(nodes, outcome)
        _go_too_far(nodes, orders[NODES[-1]], outcome)
    return outcome


def _roll(
    nodes: LocalCluster, orders: dict[str, Path], target: int, rng: random.Random, outcome: Outcome
) -> None:
    """Install another version on one node after the other."""
    for name in rng.sample(NODES, len(NODES)):
        if rng.random() < 0.5:
            nodes.stop(name)
        else:
            nodes.kill(name)
        orders[name].write_text(json.dumps({"level": target}))
        nodes.start(name)
        nodes.wait_until_ready()
        outcome.restarts += 1


class Load:
    """Clients that go on all the time, and the answers they got."""

    def __init__(self, client: Client, outcome: Outcome) -> None:
        self._client = client
        self._outcome = outcome
        self._ends = threading.Event()
        self.acknowledged: dict[int, int] = {}
        """Key -> the number of its newest acknowledged row."""
        self.tried = 0
        self.batch = 0
        """The newest acknowledged micro-batch."""
        self._seen = 0
        self._threads = [
            threading.Thread(target=self._run, args=(turn,), name=name, daemon=True)
            for name, turn in (("rows", self._rows), ("micro-batches", self._batches))
        ]

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ends.set()
        for thread in self._threads:
            thread.join()

    def must_go_on(self) -> None:
        """Wait until rows and a micro-batch were acknowledged since the last time."""
        outcome = self._outcome
        before = (outcome.writes, outcome.batches)
        end_s = time.monotonic() + READY_S
        while outcome.writes < before[0] + KEYS or outcome.batches <= before[1]:
            if time.monotonic() > end_s:
                outcome.faults.append(
                    f"after {outcome.restarts} restarts nothing is acknowledged any more: "
                    f"{outcome.writes} rows, {outcome.batches} micro-batches"
                )
                return
            time.sleep(0.01)

    def _run(self, turn: object) -> None:
        assert callable(turn)
        while not self._ends.is_set():
            try:
                turn()
            except StoreTooOldError:
                self._outcome.refused += 1
                self._ends.wait(0.1)
            except RaftstoreError as error:
                name = type(error).__name__
                self._outcome.errors[name] = self._outcome.errors.get(name, 0) + 1
            except AssertionError as error:
                self._outcome.faults.append(str(error))
                return
            self._ends.wait(0.01)

    def _rows(self) -> None:
        """Write one row, read it and others back: linearizable reads never go back."""
        table = self._client.table(TABLE)
        self.tried += 1
        number, key = self.tried, self.tried % KEYS
        table.put({"id": key, "n": number}, timeout=5.0)
        self.acknowledged[key] = number
        self._outcome.writes += 1
        found = table.get(key, level="linearizable", timeout=5.0)
        self._check(key, found, number, "a linearizable get")
        wanted = dict(self.acknowledged)
        rows = table.get_many([{"id": key} for key in wanted], level="leader", timeout=5.0)
        for (key, least), row in zip(wanted.items(), rows, strict=True):
            self._check(key, row, least, "a get of many keys at the leaders")
        table.get_many([{"id": key} for key in wanted], level="any", timeout=5.0)
        self._outcome.reads += 3

    def _check(self, key: int, row: dict[str, object] | None, least: int, what: str) -> None:
        shown = 0 if row is None else row["n"]
        assert isinstance(shown, int)
        assert least <= shown <= self.tried, (
            f"{what} shows {shown} for key {key}, of which {least} was acknowledged before and "
            f"{self.tried} is the newest that was written"
        )

    def _batches(self) -> None:
        """Write the next micro-batch, again and again until it is acknowledged."""
        rows = [{"id": key, "batch": self.batch + 1} for key in range(BATCH_ROWS)]
        table = self._client.table(BATCHES)
        table.write_batch(rows, writer="load", batch_id=self.batch + 1, timeout=5.0)
        self.batch += 1
        self._outcome.batches += 1


# --- what is asked afterwards ---------------------------------------------------------------------


def judge(client: Client, load: Load, outcome: Outcome) -> None:
    """All that was acknowledged is there, and the replicas are equal."""
    rows = client.table(TABLE)
    for key, number in load.acknowledged.items():
        row = rows.get(key, level="linearizable")
        if row is None or not number <= row["n"] <= load.tried:
            outcome.faults.append(f"key {key} shows {row}, {number} was acknowledged")
    shown = [row["batch"] for row in client.table(BATCHES).scan(level="linearizable")]
    if len(shown) != BATCH_ROWS or len(set(shown)) != 1 or shown[0] < load.batch:
        outcome.faults.append(f"micro-batch {load.batch} was acknowledged, a scan shows {shown}")
    for table in (TABLE, BATCHES):
        _be_equal(client, table, outcome)


def _be_equal(client: Client, table: str, outcome: Outcome) -> None:
    differs = difference(client, table, NODES, READY_S)
    if differs:
        outcome.faults.append(differs)


def look_into_logs(nodes: LocalCluster, outcome: Outcome) -> None:
    """No node ended by itself, and none was sent what it cannot read."""
    for name, code in nodes.ended().items():
        outcome.faults.append(f"{name} ended with exit code {code}")
    for name in NODES:
        for line in nodes.log_file(name).read_text("utf-8", "replace").splitlines():
            if any(title in line for title in NOT_READ):
                outcome.faults.append(f"{name} says: {line}")


def _go_too_far(nodes: LocalCluster, orders: Path, outcome: Outcome) -> None:
    """A version that cannot read the log refuses it and touches nothing."""
    name = NODES[-1]
    nodes.stop(name)
    orders.write_text(json.dumps({"level": 0}))
    nodes.start(name)
    end_s = time.monotonic() + REFUSED_S
    while name in nodes.running() and time.monotonic() < end_s:
        time.sleep(0.02)
    code = nodes.ended().get(name)
    said = nodes.log_file(name).read_text("utf-8", "replace")
    if code != EXIT_REFUSED or REFUSAL not in said:
        outcome.faults.append(
            f"{name} at level 0 with records of level 1 ended with {code}, not {EXIT_REFUSED} and "
            f"{REFUSAL!r}: {said.splitlines()[-1:]}"
        )
    if name in nodes.running():
        nodes.kill(name)
    orders.write_text("{}")
    nodes.start(name)
    nodes.wait_until_ready()
    with nodes.connect(timeout=READY_S) as client:
        for table in (TABLE, BATCHES):
            _be_equal(client, table, outcome)


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--rounds", default=20, show_default=True, help="How often up and down again.")
@click.option("--seed", default=1, show_default=True, help="Draws levels, orders and kills.")
@click.option("--directory", type=click.Path(path_type=Path), help="Data and logs; kept.")
def main(rounds: int, seed: int, directory: Path | None) -> None:
    """Roll three node processes up and down between levels under load: nothing may be lost."""
    with ExitStack() as stack:
        where = directory or Path(stack.enter_context(tempfile.TemporaryDirectory()))
        outcome = run_upgrades(rounds, seed, where)
    for line in outcome.lines():
        click.echo(line)
    sys.exit(VIOLATION if outcome.faults else 0)


if __name__ == "__main__":
    main()
