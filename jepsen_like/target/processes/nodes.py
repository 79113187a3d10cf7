"""The processes of a cluster: they start, stop, die and are started again, behind their links."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import random
import threading
import time
from collections.abc import Collection, Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from types import MappingProxyType, TracebackType
from typing import Final, Self

from jepsen_like.checker.voters import VoterSets
from jepsen_like.target.base import FaultUnavailableError, NotRunError, Target
from jepsen_like.target.processes import ballast, power
from jepsen_like.target.processes.aside import STARTED, Aside
from jepsen_like.target.processes.asking import ask_leaders
from jepsen_like.target.processes.clients import Clients
from jepsen_like.target.processes.deaths import (
    EXIT_CONFIG,
    EXIT_STORAGE,
    PORT_TAKEN,
    Death,
    NodeWatch,
    last_words,
)
from jepsen_like.target.processes.members import CALL_S, ProcessMembers
from jepsen_like.target.processes.network import LOOPBACK, connect, extra_arguments
from jepsen_like.target.processes.orders import Orders
from jepsen_like.target.processes.proxy import Links, Weather
from jepsen_like.target.processes.strikes import Strike, Strikes
from raftstore.errors import ConfigError
from raftstore.local_cluster import LocalCluster
from raftstore.storage.faulty_files import UNSYNCED_SUFFIX

POLL_S: Final = 0.1
RESTART_AFTER_S: Final = 1.0
DIRECT_START_WAIT_S: Final = 60.0
REFUSAL_WAIT_S: Final = 8.0
LOG_END: Final = 2_000
"""Characters: what a process said last."""


class NodeProcesses(Target):
    """Nodes n1, n2, …, behind proxies or (``network``) each in a network namespace of its own.

    A supervisor starts a node again that exited 70.
    ``with_power``: every node on a disk of its own that can lose power (root); otherwise power loss
    is a kill after which what was not synced is taken back from the files. ``http``: nodes serve
    HTTP, too, on loopback and past all faults of links. ``environment``: variables of all nodes.
    """

    name = "processes"
    table_prefix = ""

    def __init__(
        self,
        directory: Path,
        *,
        nodes: int = 3,
        seed: int = 0,
        with_power: bool = False,
        network: str = LOOPBACK,
        http: bool = False,
        environment: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        self.nodes = tuple(f"n{number}" for number in range(1, nodes + 1))
        self.directory = directory
        self._rng = random.Random(seed)
        self._orders = Orders(directory, self.nodes, environment)
        self._strikes = Strikes(self.frames)
        self._log_bytes: dict[str, int] = {}
        self._aside: dict[str, Aside] = {}
        directory.mkdir(parents=True, exist_ok=True)
        self.cluster = LocalCluster(
            nodes,
            directory=directory,
            extra=extra_arguments(network),
            environment=self._orders.environment,
            http=http,
        )
        self._disks: power.Disks | None = None
        self._wants_power = with_power
        self._lock = threading.RLock()
        self._wanted: dict[str, bool] = dict.fromkeys(self.nodes, False)
        self._is_dark: set[str] = set()
        if not with_power:
            for node in self.nodes:
                self._orders.beside(node, UNSYNCED_SUFFIX).touch()
        self.exits: list[tuple[str, int]] = []
        """Every end of a process that nobody asked for: node and exit code."""
        self._watch = NodeWatch()
        self._damaged: set[str] = set()
        self._filled: set[str] = set()
        """Nodes whose disks were filled to the last byte, now or earlier in the run."""
        self._foreign: dict[str, int] = {}
        """Nodes on a store that is another's, or gone -> how long their logs were before that."""
        self._born: dict[str, int] = {}
        """How long the logs were when the processes of now began."""
        self._ended: dict[str, float] = {}
        """Nodes whose end was reported -> when."""
        self._crashes_spent: set[str] = set()
        """Of all nodes: node and line of an order to crash that explained a death already."""
        self.clients: Clients | None = None
        """Set by the run that starts clients."""
        self._members: ProcessMembers | None = None
        """From the first fault on that changes members."""
        self._done = threading.Event()
        self._supervisor = threading.Thread(target=self._supervise, name="supervisor", daemon=True)
        self.links = connect(self.cluster, network, seed)

    # --- start and end ----------------------------------------------------------------------------

    def __enter__(self) -> Self:
        try:
            if self._wants_power:
                mounts = {node: self.data(node) for node in self.nodes}
                self._disks = power.Disks(mounts, self.directory / "images")
            with self.blaming_the_machine():
                self.start(self.nodes)
                self.cluster.wait_until_ready(DIRECT_START_WAIT_S)
            self._supervisor.start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """End all processes, proxies and disks; logs and data stay in the directory."""
        self._done.set()
        if self._members is not None:
            self._members.close()
        if self._supervisor.is_alive():
            self._supervisor.join()
        self.cluster.close()
        self.links.close()
        if self._disks is not None:
            self._disks.close()

    @contextlib.contextmanager
    def blaming_the_machine(self) -> Iterator[None]:
        """Turn a failure inside into NotRunError if another program has a port of a node or its
        proxy.
        """
        try:
            yield
        except Exception as error:
            is_ours = isinstance(error, OSError) and error.errno == errno.EADDRINUSE
            robbed = [
                node
                for node, code in self.cluster.ended().items()
                if code == EXIT_CONFIG and PORT_TAKEN in self.log_text(node)[-LOG_END:]
            ]
            if not is_ours and not robbed:
                raise
            raise NotRunError(
                f"another program took a port of {', '.join(robbed) or 'a proxy'}; run it again"
            ) from error

    @property
    def endpoints(self) -> list[str]:
        """Where clients ask: by way of the proxies."""
        return self.cluster.endpoints

    def data(self, node: str) -> Path:
        """The node's data directory."""
        return self.directory / node

    def processes(self) -> dict[str, int]:
        """The process of each node that runs now."""
        found = {}
        for node in self.cluster.running():
            with contextlib.suppress(ConfigError):  # it died just now
                found[node] = self.cluster.pid(node)
        return found

    def log_text(self, node: str) -> str:
        """Everything the node's processes logged since ``forget_logs``."""
        return self._log_since(node, self._log_bytes.get(node, 0))

    def forget_logs(self) -> None:
        """Let ``log_text`` begin here."""
        self._log_bytes = {node: self.cluster.log_file(node).stat().st_size for node in self.nodes}

    def fired(self, node: str) -> tuple[str, ...]:
        """Orders of the fault control file that struck: ``number what``."""
        return self._orders.fired(node)

    def watched(self) -> NodeWatch:
        """The ends of the nodes so far; those that are down on another node's store refused it."""
        with self._lock:
            self._note_ends()
            for node in self._foreign:
                self._note_trespass(node)
            return self._watch

    def take_strikes(self) -> list[Strike]:
        """Everything done since the last call."""
        return self._strikes.take()

    def frames(self) -> dict[str, int]:
        """Counts of what was done to frames so far."""
        return asdict(self.links.counts)

    def heal(self) -> None:
        """End every fault; start what is down. Damaged and swapped stores stay as they are."""
        self.links.unblock()
        self.links.weather = Weather()
        self.resume(self.nodes)
        for node in self.nodes:
            self._orders.replace(node, {})
            ballast.give_back(self.data(node))
        self.start(self.nodes)

    # --- Target -----------------------------------------------------------------------------------

    def leaders(self) -> dict[str, str]:
        """The leader of the highest term any node reports, per channel; asked past all faults."""
        endpoints = [self.links.direct[node] for node in self.cluster.running()]
        return asyncio.run(ask_leaders(endpoints))

    def is_up(self, node: str) -> bool:
        """Its process runs."""
        return node in self.cluster.running()

    def kill(self, nodes: Collection[str]) -> None:
        """SIGKILL to all of them before any is waited for."""
        self._strikes.note("kill", nodes)
        self._kill(nodes)

    def start(self, nodes: Collection[str]) -> None:
        """Start those that are down; what was taken from their stores on purpose comes back."""
        there = [node for node in nodes if node in self._wanted]  # a guest may have left meanwhile
        for node in there:
            self._put_back(node)
            self._orders.change(node, crash_at="")
        with self._lock:
            for node in there:
                if node not in self._wanted:
                    continue
                if node in self._is_dark:
                    assert self._disks is not None
                    self._disks.come_back(node)
                    self._is_dark.discard(node)
                self._start(node)

    def stop(self, node: str) -> None:
        """SIGTERM and wait."""
        self._strikes.note("stop", [node])
        with self._lock:
            self._note_ends()
            self._wanted[node] = False
            if self.is_up(node):
                self.cluster.stop(node)
            self.links.listen(node, is_on=False)

    def pause(self, nodes: Collection[str]) -> None:
        """SIGSTOP those that run."""
        self._strikes.note("pause", [node for node in nodes if self.is_up(node)])
        for node in nodes:
            if self.is_up(node):
                self.cluster.pause(node)

    def resume(self, nodes: Collection[str]) -> None:
        """SIGCONT those that run."""
        for node in nodes:
            if self.is_up(node):
                self.cluster.resume(node)

    # --- members ----------------------------------------------------------------------------------

    def settle_members(self, seconds: float) -> str:
        """Wait until what faults changed of the members is as before; why it is not, or empty."""
        return "" if self._members is None else self._members.settle(seconds)

    def voters(self, began: int) -> VoterSets:
        """The voters of each partition, since when, on a clock that began at this moment of the
        monotonic one; empty as long as no fault changed members."""
        return VoterSets() if self._members is None else self._members.voters.since(began)

    def operator(self) -> ProcessMembers:
        """The one that changes members; FaultUnavailableError where nodes cannot join."""
        if not isinstance(self.links, Links) or self._disks is not None:
            raise FaultUnavailableError(
                "no node joins where nodes have disks or network namespaces of their own: run it "
                "on loopback, without disk-nearly-full and power losses"
            )
        if self._members is None:
            self._members = ProcessMembers(
                lambda: self.cluster.connect(timeout=CALL_S),
                len(self.nodes),
                self._start_guest,
                self._adopt_guest,
                self._end_guest,
            )
        return self._members

    def _start_guest(self, name: str, token: str) -> None:
        links = self.links
        assert isinstance(links, Links)
        with self._lock:
            self._orders.beside(name, UNSYNCED_SUFFIX).touch()
            self._wanted[name] = True
            self._born[name] = self._log_bytes_of(name)
            self._ended.pop(name, None)
            environment = self._orders.add(name)
            self.cluster.join(
                name, token, environment=environment, advertise=lambda at: links.add(name, at)
            )

    def _adopt_guest(self, name: str) -> None:
        self.nodes = (*self.nodes, name)

    def _end_guest(self, name: str) -> bool:
        """Later, if a fault has its directory in hand."""
        assert isinstance(self.links, Links)
        with self._lock:
            if name in self._foreign or name in self._aside:
                return False
            self.nodes = tuple(node for node in self.nodes if node != name)
            del self._wanted[name]
            self.cluster.forget(name)
            self.links.remove(name)
        return True

    def _has_left(self, node: str, code: int) -> bool:
        return code == EXIT_CONFIG and self._members is not None and self._members.may_end(node)

    # --- inside -----------------------------------------------------------------------------------

    def _kill(self, nodes: Collection[str]) -> None:
        with self._lock:
            self._note_ends()
            for node in nodes:
                self._wanted[node] = False
            self.cluster.kill_all([node for node in nodes if self.is_up(node)])
            for node in nodes:
                self.links.listen(node, is_on=False)

    def _start(self, node: str) -> None:
        """With the lock held."""
        self._note_ends()
        self._wanted[node] = True
        self.links.listen(node, is_on=True)
        if not self.is_up(node):
            self._born[node] = self._log_bytes_of(node)
            self.cluster.start(node)
            self._ended.pop(node, None)

    def _set_aside(self, node: str) -> Aside:
        if node in self._aside:
            raise FaultUnavailableError(f"{node} misses a part of its store already")
        aside = Aside(self.data(node), self.directory / "aside" / node, self.cluster.log_file(node))
        self._aside[node] = aside
        return aside

    def _put_back(self, node: str) -> None:
        """Once the node has said that it does not go on; if it does, it could do without."""
        aside = self._aside.get(node)
        if aside is None:
            return
        end = time.monotonic() + REFUSAL_WAIT_S
        while aside.refusal() is None and not aside.went_on() and time.monotonic() < end:
            time.sleep(POLL_S)
        # Who has said neither may be starting still: it acknowledged nothing on what it found.
        if aside.went_on() and not aside.is_whole:
            aside.drop()
        else:
            if aside.went_on():
                self._watch.trespasses.append(f"{node} started on an empty store under its old id")
            self._kill([node])
            aside.put_back()
        del self._aside[node]

    def _supervise(self) -> None:
        """Start a node again that exited 70 (S0.4); refuse for one that is down."""
        while not self._done.wait(POLL_S):
            with self._lock:
                self._note_ends()
                due = time.monotonic() - RESTART_AFTER_S
                for node, code in self.cluster.ended().items():
                    is_due = self._ended.get(node, time.monotonic()) <= due
                    if self._wanted[node] and code == EXIT_STORAGE and is_due:
                        self.start([node])

    def _log_bytes_of(self, node: str) -> int:
        """None yet before the first start."""
        log = self.cluster.log_file(node)
        return log.stat().st_size if log.exists() else 0

    def _log_since(self, node: str, at: int) -> str:
        return self.cluster.log_file(node).read_bytes()[at:].decode(errors="replace")

    def _note_ends(self) -> None:
        """Report every process that ended unasked, before anybody starts its node again.

        With the lock held.
        """
        for node, code in self.cluster.ended().items():
            if not self._wanted[node] or node in self._ended or self._has_left(node, code):
                continue
            self._ended[node] = time.monotonic()
            self.exits.append((node, code))
            self._watch.deaths.append(self._death(node, code))
            self.links.listen(node, is_on=False)

    def _death(self, node: str, code: int) -> Death:
        lines = [line for line in self.fired(node) if f"{node} {line}" not in self._crashes_spent]
        death = Death(
            node=node,
            code=code,
            said=last_words(self._log_since(node, self._born.get(node, 0))),
            store=str(self.data(node)),
            fired=[
                *(line.partition(" ")[2] for line in lines),
                *(["full"] if node in self._filled else []),
            ],
            damaged=node in self._damaged,
            is_foreign=node in self._foreign or node in self._aside,
        )
        crashed = [line for line in lines if line.partition(" ")[2] == death.cause]
        self._crashes_spent.update(f"{node} {line}" for line in crashed)
        return death

    def _note_trespass(self, node: str) -> None:
        """A node on another's store reports that it started: it must have refused."""
        if STARTED in self._log_since(node, self._foreign[node]):
            text = f"{node} started on a store that is another's"
            if text not in self._watch.trespasses:
                self._watch.trespasses.append(text)
