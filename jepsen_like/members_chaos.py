"""``make members-chaos``: the members of a cluster change under load, among nodes that are killed.

Three real nodes become five, then four, then three, with other nodes each time, until no founder is
left; the replicas of all tables go from three to five and back, and the disk of one node is lost in
each round and made good by two commands. Meanwhile workloads of the chaos kit run one after the
other on the cluster as its users would run them, a stream of Spark writes if ``tests.spark`` asks
for it, and any node is killed at any time, the ones that join, copy, or delete a replica at the
named places of that. The checkers of the workloads judge; a change has to end in time; and a node
that was killed has to be well when it is started again. Exit code 7: something was not as it must
be.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import random
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Final, TypeVar

import click

from jepsen_like.checker.verdict import Validity
from jepsen_like.plan import Plan
from jepsen_like.session import run_plan
from jepsen_like.target.processes.operator import CALL_S, Operator
from raftstore.client.blocking.client import Client
from raftstore.client.replicas import ReplicaChange
from raftstore.errors import ConfigError, RaftstoreError
from raftstore.faults import FAILPOINTS, VARIABLE
from raftstore.local_cluster import LocalCluster

WORKLOADS: Final = ("register", "bank", "list_append", "table_set", "sessions")
"""One after the other; each makes tables of its own, whose replicas move with all others."""
WORKLOAD_S: Final = 60.0
CLIENTS: Final = 4
STEP_S: Final = 180.0
"""Within this each change has to end, kills or not."""
KILL_EVERY_S: Final = 6.0
DOWN_S: Final = (0.3, 4.0)
LOOK_S: Final = 0.3
JOINS: Final = tuple(name for name in FAILPOINTS if name.startswith("join."))
ENTERS: Final = ("replica.after-open", "log.before-sync", "table.after-apply")
LEAVES: Final = ("replica.before-delete", "replica.before-drop")
EXIT_RETIRED: Final = 78
VIOLATION: Final = 7
NOT_ASKED: Final = ("progress", "status")
"""Checkers that have no record of the kills: channels may stand still, and nodes be down when a
workload ends."""
T = TypeVar("T")
NOTHING: Final = ReplicaChange("", (), (), 0, 0, "", (), (), "", 0)
"""Stands for a cluster without tables."""


class Fault(Exception):
    """Something was not as it must be; the text says what."""


class Nodes:
    """The processes, the orders to die at named places, and the supervisor that starts them again.

    Thread-safe: one lock for all that starts and ends processes.
    """

    def __init__(self, cluster: LocalCluster, orders: Path) -> None:
        self.cluster = cluster
        self._orders = orders
        self._number = itertools.count(1)
        self._lock = threading.RLock()
        self._gone: dict[str, None] = {}
        """Nodes that may end by themselves: they leave the cluster."""
        self._down: dict[str, float] = {}
        self.died_at: Counter[str] = Counter()
        """Named places at which nodes died."""
        self.kills = 0

    def environment(self, name: str) -> dict[str, str]:
        """Variables of a node's process."""
        return {VARIABLE: str(self._orders / name)}

    def arm(self, name: str, point: str) -> None:
        """The node dies the next time it passes there; nothing: at no place."""
        self._orders.mkdir(exist_ok=True)
        draft = self._orders / f"{name}.draft"
        draft.write_text(json.dumps({"number": next(self._number), "crash_at": point}))
        draft.rename(self._orders / name)

    def join(self, name: str, token: str) -> None:
        """Start a new node."""
        with self._lock:
            self._gone.pop(name, None)
            self.cluster.join(name, token, environment=self.environment(name))

    def leaves(self, name: str) -> None:
        """The node may end by itself from now on."""
        with self._lock:
            self._gone[name] = None

    def forget(self, name: str) -> None:
        """The node is no more."""
        with self._lock:
            self._gone.pop(name, None)
            self._down.pop(name, None)
            self.cluster.forget(name)
            (self._orders / name).unlink(missing_ok=True)

    def kill(self, name: str, down_s: float) -> None:
        """Kill -9; it is started again after that time."""
        with self._lock, contextlib.suppress(ConfigError):
            if name not in self._gone and not self._down:  # a majority shall be left
                self.cluster.kill(name)
                self._down[name] = time.monotonic() + down_s
                self.kills += 1

    def look(self) -> None:
        """Start nodes that are down. Fault: one ended by itself that should not have."""
        with self._lock:
            for name, code in self.cluster.ended().items():
                if name in self._gone and code == EXIT_RETIRED:
                    continue
                if code != -signal.SIGKILL:
                    raise Fault(f"{name} ended with {code}: {self.last_words(name)}")
                if name not in self._down:
                    self._note_death(name)
                if time.monotonic() >= self._down.get(name, 0.0):
                    self._down.pop(name, None)
                    self.cluster.start(name)

    def _note_death(self, name: str) -> None:
        fired = self._orders / f"{name}.fired"
        lines = fired.read_text().splitlines() if fired.exists() else []
        self.died_at[lines[-1].partition(" ")[2] if lines else "?"] += 1
        self.arm(name, "")

    def last_words(self, name: str) -> str:
        """The end of the node's log."""
        text = self.cluster.log_file(name).read_text(errors="replace")
        return " ".join(text.splitlines()[-3:])[-800:]

    def names(self) -> list[str]:
        """Nodes that are to stay."""
        with self._lock:
            every = dict.fromkeys((*self.cluster.running(), *self.cluster.ended()))
            return [name for name in every if name not in self._gone]


class Changes:
    """Steps of the operator, round after round, until the time is over."""

    def __init__(self, nodes: Nodes, client: Client, rng: random.Random, end_s: float) -> None:
        self._nodes = nodes
        self._client = client
        self._operator = Operator(client)
        self._rng = rng
        self._end_s = end_s
        self._names = (f"n{number}" for number in itertools.count(4))
        self._points = itertools.cycle(JOINS)
        self._has_failed: Callable[[], bool] = lambda: False
        self.done: Counter[str] = Counter()
        self.slowest: dict[str, float] = {}
        self.sizes: list[int] = [3]
        """Numbers of nodes that the cluster had, in order."""

    def run(self, has_failed: Callable[[], bool]) -> None:
        """Rounds; each begins and ends with three nodes. Raises Fault."""
        self._has_failed = has_failed
        while not self._is_over() or not self.done["round"]:
            oldest = self._members()[:2]
            self._join_one()
            self._join_one()
            self._spread(5)
            self._spread(3)
            for name in oldest:
                self._retire(name)
            self._lose_disk()
            self.done["round"] += 1
            click.echo(f"  round {self.done['round']}: {', '.join(self._members())} are left")

    def _is_over(self) -> bool:
        return time.monotonic() >= self._end_s

    # --- steps ------------------------------------------------------------------------------------

    def _join_one(self) -> None:
        name = next(self._names)
        self._nodes.arm(name, next(self._points))
        token = self._until("token", self._operator.token)
        self._nodes.join(name, token)
        self._until("join", lambda: self._operator.is_up(name))
        self._count("join")

    def _spread(self, replicas: int) -> None:
        """Every table to so many replicas, on nodes that are drawn; some orders are cancelled and
        given again."""
        for channel in [each.channel for each in self._replicas() if each is not NOTHING]:
            voters = self._rng.sample(self._members(replicas), replicas)
            known = next((each for each in self._replicas() if each.channel == channel), None)
            if known is None:
                continue  # the table went with its workload
            entering = [name for name in voters if name not in known.voters]
            leaving = [name for name in known.voters if name not in voters]
            for names, points in ((entering, ENTERS), (leaving, LEAVES)):
                if names and self._rng.random() < 0.5:
                    self._nodes.arm(self._rng.choice(names), self._rng.choice(points))
            order = partial(self._operator.order, channel, voters)
            if self._rng.random() < 0.2:
                self._until("order", order)
                self._until("cancel", partial(self._operator.cancel, channel))
                self._count("cancel")
            self._until("order", order)
            self._until(f"{replicas} replicas", partial(self._operator.has, channel, voters))
            self._count(f"{replicas} replicas")

    def _retire(self, name: str) -> None:
        self._until("drain", lambda: self._operator.drain(name))
        self._nodes.arm(name, self._rng.choice(LEAVES))
        self._until("leave", lambda: self._leaves(name))
        self._nodes.forget(name)
        self._count("leave")

    def _leaves(self, name: str) -> bool:
        if name in self._operator.names():
            self._nodes.leaves(name)
        return self._operator.retire(name)

    def _lose_disk(self) -> None:
        """Two commands: a token in its place, and the new node."""
        name = self._rng.choice(self._members())
        self._until("whole", self._is_whole)
        began = time.monotonic()
        self._nodes.forget(name)
        token = self._until("replace", lambda: self._operator.token(replaces=name))
        self._nodes.arm(name, next(self._points))
        self._nodes.join(name, token)
        self._until("whole again", self._is_whole)
        self._count("lost disk")
        took = time.monotonic() - began
        click.echo(f"  the disk of {name} was lost; whole again after {took:.1f} s")

    # --- looking ----------------------------------------------------------------------------------

    def _until(self, what: str, attempt: Callable[[], T]) -> T:
        """Try again until it gives something true; Fault when it takes too long."""
        began, last = time.monotonic(), ""
        while time.monotonic() < began + STEP_S:
            if self._has_failed():
                raise Fault(f"{what} was given up, for something else was wrong")
            try:
                found = attempt()
            except (RaftstoreError, OSError, TimeoutError) as error:
                found, last = None, str(error)
            if found:
                took = time.monotonic() - began
                self.slowest[what] = max(took, self.slowest.get(what, 0.0))
                return found
            time.sleep(LOOK_S)
        raise Fault(f"{what} did not end within {STEP_S:.0f} s: {last}; {self._state()}")

    def _state(self) -> str:
        """The state of all channels, for a message."""
        try:
            found = self._operator.replicas()
        except (RaftstoreError, OSError, TimeoutError) as error:
            return str(error)
        return "; ".join(
            f"{each.channel} {each.voters} {each.learners} {each.stage} {each.ordered}"
            for each in found
        )

    def _replicas(self) -> Sequence[ReplicaChange]:
        return self._until("list", lambda: self._operator.replicas() or (NOTHING,))

    def _members(self, at_least: int = 1) -> list[str]:
        """By the time of their coming. A node that was down a moment ago may answer, whose catalog
        does not name those that joined meanwhile."""

        def enough() -> list[str]:
            names = self._operator.names()
            return names if len(names) >= at_least else []

        return self._until("members", enough)

    def _is_whole(self) -> bool:
        """Every replica of every table and of the catalog is on a live node, and no order open."""
        members = self._client.members(timeout=CALL_S)
        alive = {each.id for each in members if each.up}
        hosts = [
            set(channel.replicas)
            for table in self._client.tables(timeout=CALL_S)
            for channel in table.channels
        ]
        voters = [each for each in members if each.catalog == "voter" and each.up]
        is_calm = not any(each.change for each in self._client.replicas(timeout=CALL_S))
        is_hosted = all(len(replicas) >= 3 and replicas <= alive for replicas in hosts)
        return is_calm and is_hosted and len(voters) >= 3

    def _count(self, what: str) -> None:
        self.done[what] += 1
        size = len(self._members())
        if size != self.sizes[-1]:
            self.sizes.append(size)


class Background:
    """Threads that run until the changes are over, and the faults that they met."""

    def __init__(self, is_over: threading.Event) -> None:
        self.is_over = is_over
        self.faults: list[str] = []
        self._threads: list[threading.Thread] = []

    def start(self, name: str, work: Callable[[], None]) -> None:
        """Run it in a thread; what it raises is a fault and ends everything."""

        def run() -> None:
            try:
                work()
            except Exception as error:  # noqa: BLE001 - whatever it is, it is reported
                self.faults.append(f"{name}: {type(error).__name__}: {error}")
                self.is_over.set()

        thread = threading.Thread(target=run, name=name, daemon=True)
        self._threads.append(thread)
        thread.start()

    def join(self) -> None:
        """Wait for all of them."""
        for thread in self._threads:
            thread.join()


class Run:
    """One run: founders, workloads, kills, changes, and what came of them."""

    def __init__(
        self, directory: Path, seed: int, seconds: float, workloads: Sequence[str]
    ) -> None:
        self.directory = directory
        self._seed = seed
        self._seconds = seconds
        self._workloads = workloads
        self._is_over = threading.Event()
        self._is_quiet = threading.Event()
        """Nobody uses the cluster any more."""
        self.background = Background(self._is_over)
        orders = directory / "orders"
        environment = {name: {VARIABLE: str(orders / name)} for name in ("n1", "n2", "n3")}
        self.cluster = LocalCluster(3, directory=directory / "nodes", environment=environment)
        self.nodes = Nodes(self.cluster, orders)
        self.judged: Counter[str] = Counter()
        self.operations = 0

    @property
    def is_over(self) -> bool:
        """Whether threads are to end."""
        return self._is_over.is_set()

    def run(self, beside: Callable[[Run], None] | None = None) -> Changes:
        """Everything; what was wrong is in ``background``. ``beside`` runs in a thread."""
        rng = random.Random(f"members {self._seed}")
        with self.cluster, self.cluster.connect(timeout=CALL_S) as client:
            changes = Changes(self.nodes, client, rng, time.monotonic() + self._seconds)
            self.background.start("supervisor", self._supervise)
            self.background.start("kills", self._kill)
            others = Background(self._is_over)
            others.start("workloads", self._work)
            if beside is not None:
                others.start("stream", lambda: beside(self))
            try:
                changes.run(lambda: self.is_over)
            except Fault as error:
                self.background.faults.append(str(error))
            self._is_over.set()
            others.join()
            self._is_quiet.set()
            self.background.join()
            self.background.faults += others.faults
        return changes

    def _supervise(self) -> None:
        """Until the last reader has read: nodes may still die where they were ordered to."""
        while not self._is_quiet.wait(LOOK_S):
            self.nodes.look()

    def _kill(self) -> None:
        rng = random.Random(f"kills {self._seed}")
        while not self._is_over.wait(rng.expovariate(1.0 / KILL_EVERY_S)):
            self.nodes.kill(rng.choice(self.nodes.names()), rng.uniform(*DOWN_S))

    def _work(self) -> None:
        for number, name in enumerate(itertools.cycle(self._workloads)):
            if self.is_over:
                return
            plan = Plan(
                name, (), "cluster", WORKLOAD_S, self._seed + number, CLIENTS,
                self.directory / f"{number}-{name}", endpoints=tuple(self.cluster.endpoints),
            )  # fmt: skip
            result = run_plan(plan, lambda _: None)
            self.operations += len(result.history)
            wrong = [
                f"{name}: {verdict.checker}: {verdict.summary}"
                for verdict in result.verdicts
                if verdict.validity is Validity.INVALID and verdict.checker not in NOT_ASKED
            ]
            self.background.faults += wrong
            self.judged[f"{name} {'wrong' if wrong else 'right'}"] += 1
            click.echo(f"  {name}: {len(result.history)} operations, {len(wrong)} faults")


def report(run: Run, changes: Changes) -> int:
    """Say what came of it; the exit code."""
    slowest = ", ".join(f"{what} {took:.1f} s" for what, took in sorted(changes.slowest.items()))
    counts = ", ".join(f"{count} x {what}" for what, count in sorted(changes.done.items()))
    places = ", ".join(f"{name} {count}" for name, count in sorted(run.nodes.died_at.items()))
    click.echo(f"{counts}; nodes: {' -> '.join(map(str, changes.sizes))}")
    click.echo(f"{run.nodes.kills} kills, and deaths at {places or 'no named place'}")
    click.echo(f"slowest: {slowest}")
    click.echo(f"{run.operations} operations of workloads: {dict(run.judged)}")
    click.echo(f"{len(run.background.faults)} faults")
    for fault in run.background.faults:
        click.echo(fault)
    return VIOLATION if run.background.faults else 0


def execute(
    minutes: float,
    seed: int,
    workloads: Sequence[str],
    directory: Path | None,
    beside: Callable[[Run], None] | None = None,
) -> None:
    """Run in a directory, which stays if something is wrong; ends the process."""
    where = directory or Path(tempfile.mkdtemp(prefix="raftstore-members-"))
    click.echo(f"everything is in {where}")
    run = Run(where, seed, minutes * 60, workloads)
    code = report(run, run.run(beside))
    if directory is None and not code:
        shutil.rmtree(where)
    sys.exit(code)


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--minutes", default=30.0, show_default=True, help="How long at least.")
@click.option("--seed", default=1, show_default=True, help="Of the plan of changes and kills.")
@click.option("--workload", "workloads", multiple=True, help="Instead of those that are usual.")
@click.option("--directory", type=click.Path(path_type=Path), help="Data and logs; kept.")
def main(minutes: float, seed: int, workloads: tuple[str, ...], directory: Path | None) -> None:
    """Change members of real nodes under load, among kills: nothing may be lost or stuck."""
    execute(minutes, seed, workloads or WORKLOADS, directory)


if __name__ == "__main__":
    main()
