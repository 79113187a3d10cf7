"""A cluster of real processes with every fault that loopback, files and signals allow."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import random
import threading
import time
from collections.abc import Collection, Iterator
from dataclasses import asdict
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from jepsen_like.target.base import FaultUnavailableError, NotRunError, Target
from jepsen_like.target.processes import power
from jepsen_like.target.processes.aside import Aside
from jepsen_like.target.processes.asking import ASK_TIMEOUT_S, ask_leaders
from jepsen_like.target.processes.clients import Clients
from jepsen_like.target.processes.damage import damage_file
from jepsen_like.target.processes.network import LOOPBACK, connect, extra_arguments
from jepsen_like.target.processes.orders import Orders
from jepsen_like.target.processes.proxy import Weather
from jepsen_like.target.processes.strikes import Strike, Strikes
from jepsen_like.target.processes.unsynced import lose_unsynced
from raftstore.errors import RaftstoreError
from raftstore.faults import FAILPOINTS
from raftstore.local_cluster import LocalCluster
from raftstore.storage.faulty_files import UNSYNCED_SUFFIX

EXIT_STORAGE: Final = 70
EXIT_CONFIG: Final = 78
POLL_S: Final = 0.1
RESTART_AFTER_S: Final = 1.0
DIRECT_START_WAIT_S: Final = 60.0
REFUSAL_WAIT_S: Final = 8.0
PORT_TAKEN: Final = "the port is in use"
"""How a node says that (`raftstore.transport.endpoints`)."""
LOG_END: Final = 2_000
"""Characters: what a process said last."""
BEYOND_REPAIR: Final = {"mark": "mark", "identity": "raftstore.json"}
"""Damage to these keeps a node out for good (S0.1): a copy comes back when the fault is over."""


class ProcessTarget(Target):
    """Nodes n1, n2, …, behind proxies or (``network``) each in a network namespace of its own.

    A supervisor starts a node again that exited 70.
    ``with_power``: every node on a disk of its own that can lose power (root); otherwise power loss
    is a kill after which what was not synced is taken back from the files.
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
    ) -> None:
        self.nodes = tuple(f"n{number}" for number in range(1, nodes + 1))
        self.directory = directory
        self._rng = random.Random(seed)
        self._orders = Orders(directory, self.nodes)
        self._strikes = Strikes(self.frames)
        self._log_bytes: dict[str, int] = {}
        self._aside: dict[str, Aside] = {}
        directory.mkdir(parents=True, exist_ok=True)
        self.cluster = LocalCluster(
            nodes,
            directory=directory,
            extra=extra_arguments(network),
            environment=self._orders.environment,
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
        self.clients: Clients | None = None
        """Whoever runs clients sets it."""
        self._done = threading.Event()
        self._supervisor = threading.Thread(target=self._supervise, name="supervisor", daemon=True)
        self.links = connect(self.cluster, network, seed)

    # --- life -------------------------------------------------------------------------------------

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
        if self._supervisor.is_alive():
            self._supervisor.join()
        self.cluster.close()
        self.links.close()
        if self._disks is not None:
            self._disks.close()

    @contextlib.contextmanager
    def blaming_the_machine(self) -> Iterator[None]:
        """What fails inside is NotRunError if another program has a port of a node or its proxy."""
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

    def log_text(self, node: str) -> str:
        """Everything the node's processes logged since ``forget_logs``."""
        data = self.cluster.log_file(node).read_bytes()
        return data[self._log_bytes.get(node, 0) :].decode(errors="replace")

    def forget_logs(self) -> None:
        """Let ``log_text`` begin here."""
        self._log_bytes = {node: self.cluster.log_file(node).stat().st_size for node in self.nodes}

    def fired(self, node: str) -> tuple[str, ...]:
        """Orders of the fault control file that struck: ``number what``."""
        return self._orders.fired(node)

    def take_strikes(self) -> list[Strike]:
        """Everything done since the last call."""
        return self._strikes.take()

    def frames(self) -> dict[str, int]:
        """What was done to frames so far."""
        return asdict(self.links.counts)

    def heal(self) -> None:
        """End every fault; start what is down. Damaged and swapped stores stay as they are."""
        self.links.unblock()
        self.links.weather = Weather()
        self.resume(self.nodes)
        for node in self.nodes:
            self._orders.replace(node, {})
        self.start(self.nodes)

    # --- Target -----------------------------------------------------------------------------------

    def leaders(self) -> dict[str, str]:
        """The leader of the highest term any node tells of, per channel; asked past all faults."""
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
        for node in nodes:
            self._put_back(node)
            self._orders.change(node, crash_at="")
        with self._lock:
            for node in nodes:
                if node in self._is_dark:
                    assert self._disks is not None
                    self._disks.come_back(node)
                    self._is_dark.discard(node)
                self._start(node)

    def stop(self, node: str) -> None:
        """SIGTERM and wait."""
        self._strikes.note("stop", [node])
        with self._lock:
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

    def power_loss(self, nodes: Collection[str]) -> None:
        """With disks of their own all file systems stop first, then the processes are killed."""
        with self._lock:
            if self._disks is None:
                self._kill(nodes)
                for node in nodes:
                    journal = self._orders.beside(node, UNSYNCED_SUFFIX)
                    lost = lose_unsynced(journal, self.data(node), self._rng)
                    self._strikes.note(
                        f"power loss by taking back {', '.join(lost) or 'nothing'}", [node]
                    )
                return
            dark = [node for node in nodes if node not in self._is_dark]
            for node in dark:
                self._disks.go_dark(node)
            self._is_dark.update(dark)
            self._kill(nodes)
            self._strikes.note("power loss of ext4 file systems", nodes)

    def crash_at(self, node: str, failpoint: str) -> None:
        """Order the crash; the supervisor leaves the node down until `start`."""
        if failpoint not in FAILPOINTS:
            raise FaultUnavailableError(
                f"there is no failpoint {failpoint!r}; there are {', '.join(FAILPOINTS)}"
            )
        number = self._orders.next_number()
        self._orders.change(node, crash_at=failpoint, number=number)
        self._note_order(f"crash at {failpoint}", node, number)

    def disarm(self, node: str) -> None:
        """Take the order to crash back."""
        self._orders.change(node, crash_at="")

    def failpoints(self) -> tuple[str, ...]:
        """Those of ``raftstore.faults``."""
        return FAILPOINTS

    def block(self, links: Collection[tuple[str, str]]) -> None:
        """In addition to what is blocked already."""
        named = ", ".join(f"{source}>{destination}" for source, destination in links)
        inside = sorted({name for link in links for name in link if name in self.nodes})
        self._strikes.note_frames(f"block {named}", inside, ("blocked",))
        self.links.block(links)

    def unblock(self) -> None:
        """Every link passes again."""
        self.links.unblock()

    def weather(
        self,
        *,
        loss: float = 0.0,
        duplicate: float = 0.0,
        reorder: float = 0.0,
        delay_ms: tuple[float, float] = (0.0, 0.0),
        bytes_per_second: int = 0,
    ) -> None:
        """Frames of links between nodes; control connections with the heartbeats too."""
        weather = Weather(loss, duplicate, reorder, delay_ms, bytes_per_second)
        if weather != Weather():
            changed = ("lost", "duplicated", "reordered", "delayed")
            self._strikes.note_frames(f"weather {weather}", self.nodes, changed)
        self.links.weather = weather

    def reset_connections(self, node: str | None = None) -> None:
        """RST to both ends."""
        self._strikes.note_frames("reset connections", [node] if node else self.nodes, ("resets",))
        self.links.reset(node)

    def slow_disk(self, node: str, milliseconds: float) -> None:
        """Of log and mark; the tables are never synced."""
        if not milliseconds:
            self._orders.change(node, sync_delay_ms=0.0)
            return
        number = self._orders.next_number()
        self._orders.change(node, sync_delay_ms=milliseconds, number=number)
        self._note_order(f"syncs take {milliseconds:.0f} ms more", node, number)

    def fail_disk(self, node: str, *, operation: str, sticky: bool) -> None:
        """Of log, mark and identity."""
        if operation not in ("write", "sync"):
            raise FaultUnavailableError(f"a disk cannot fail at {operation!r}; use write or sync")
        number = self._orders.next_number()
        self._orders.change(node, fail=operation, is_sticky=sticky, number=number)
        self._note_order(f"{operation} fails with EIO", node, number)

    def fill_disk(self, node: str) -> None:
        """Every write of log and mark meets ENOSPC, and the disk shows no free space."""
        number = self._orders.next_number()
        self._orders.change(node, is_full=True, number=number)
        self._note_order("no space left", node, number)

    def mend_disk(self, node: str) -> None:
        """As if there had been nothing."""
        self._orders.change(node, is_full=False, fail="", is_sticky=False, sync_delay_ms=0.0)

    def damage(self, node: str, *, kind: str, file: str) -> str:
        """See `damage_file`. Where it keeps the node out for good, the node meets it at once."""
        self._kill([node])
        if file in BEYOND_REPAIR:
            self._set_aside(node).take(BEYOND_REPAIR[file])
        try:
            said = damage_file(self.data(node), kind=kind, file=file, rng=self._rng)
        except FaultUnavailableError:
            self.start([node])
            raise
        self._strikes.note(said, [node])
        if file in BEYOND_REPAIR:
            with self._lock:
                self._start(node)
        return said

    def wipe(self, node: str) -> None:
        """The node starts on an empty directory, and what it had comes back with `start`."""
        self._kill([node])
        aside = self._set_aside(node)
        aside.take_all()
        self._strikes.note(
            "wipe", [node], lambda: aside.refusal() is not None, f"{node} does not refuse to start"
        )
        with self._lock:
            self._start(node)

    def swap_stores(self, first: str, second: str) -> None:
        """Exchange the directories."""
        if self._disks is not None:
            raise FaultUnavailableError("stores on disks of their own cannot be swapped")
        pair = (first, second)
        self._kill(pair)
        before = len(self.exits)
        aside = self.directory / "swapping"
        self.data(first).rename(aside)
        self.data(second).rename(self.data(first))
        aside.rename(self.data(second))
        refused = {(node, EXIT_CONFIG) for node in pair}
        self._strikes.note(
            "swap stores",
            pair,
            lambda: refused <= set(self.exits[before:]),
            f"{first} and {second} did not both refuse a foreign store",
        )

    def shift_clock(self, node: str, *, jump_ms: float = 0.0, rate: float = 1.0) -> None:
        """The wall clock jumps either way, the monotonic one only ahead."""
        number = self._orders.next_number()
        self._orders.change(node, clock_jump_ms=jump_ms, clock_rate=rate, clock_number=number)
        if (jump_ms, rate) != (0.0, 1.0):
            self._note_order(f"clock jumps {jump_ms:.0f} ms, rate {rate:.2f}", node, number)

    def kill_client(self, client: int) -> None:
        """Its connections are gone at once; what it asked for last has no answer."""
        self._clients().kill(client)
        self._strikes.note(f"kill client {client}", [])

    def publish_to_one(self, client: int) -> None:
        """At the client's own links: the payload leaves for one follower, and for nobody else."""
        reached = self._clients().reach_one(client)
        self._strikes.note(
            f"client {client} dies when one replica has its payload",
            [],
            reached.is_set,
            "it published nothing while it was armed",
        )

    def disarm_client(self, client: int) -> None:
        """A strike that did not happen is told as such already."""
        del client
        self._clients().disarm()

    def publish_again(self, client: int) -> None:
        """By the first client from this number on that wrote; it has to be acknowledged."""
        answered = self._clients().publish_again(client)
        self._strikes.note(
            f"client {client} sends again what was acknowledged to it",
            [],
            answered.is_set,
            "what was sent again was not acknowledged again",
        )

    def step_down(self, channel: str) -> None:
        """As an operator does; a refusal is no fault."""
        self._strikes.note(f"step down of {channel}", [])
        with (
            contextlib.suppress(RaftstoreError),
            self.cluster.connect(timeout=ASK_TIMEOUT_S) as client,
        ):
            client.step_down(channel)

    # --- inside -----------------------------------------------------------------------------------

    def _clients(self) -> Clients:
        if self.clients is None:
            raise FaultUnavailableError("there are no clients that could be struck")
        return self.clients

    def _note_order(self, what: str, node: str, number: int) -> None:
        """The node writes down what it was ordered when it strikes."""
        self._strikes.note(
            what,
            [node],
            lambda: self._orders.has_fired(node, number),
            f"{node} never came to where it should strike",
        )

    def _kill(self, nodes: Collection[str]) -> None:
        with self._lock:
            for node in nodes:
                self._wanted[node] = False
            self.cluster.kill_all([node for node in nodes if self.is_up(node)])
            for node in nodes:
                self.links.listen(node, is_on=False)

    def _start(self, node: str) -> None:
        """With the lock held."""
        self._wanted[node] = True
        self.links.listen(node, is_on=True)
        if not self.is_up(node):
            self.cluster.start(node)

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
        while aside.refusal() is None and time.monotonic() < end:
            time.sleep(POLL_S)
        if aside.refusal() is None and self.is_up(node) and not aside.is_whole:
            aside.drop()
        else:
            self._kill([node])
            aside.put_back()
        del self._aside[node]

    def _supervise(self) -> None:
        """Start a node again that exited 70 (S0.4); refuse for one that is down."""
        told: dict[str, float] = {}
        waited = 0.0
        while not self._done.wait(POLL_S):
            waited += POLL_S
            with self._lock:
                for node, code in self.cluster.ended().items():
                    if not self._wanted[node]:
                        continue
                    if node not in told:
                        told[node] = waited
                        self.exits.append((node, code))
                        self.links.listen(node, is_on=False)
                    elif code == EXIT_STORAGE and waited - told[node] >= RESTART_AFTER_S:
                        del told[node]
                        self.start([node])
                for node in self.cluster.running():
                    told.pop(node, None)
