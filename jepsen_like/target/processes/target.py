"""A cluster of real processes with every fault that loopback, files and signals allow."""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import shutil
import threading
from collections.abc import Collection
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

from jepsen_like.target.base import FaultUnavailableError, Target
from jepsen_like.target.processes import power
from jepsen_like.target.processes.damage import damage_file
from jepsen_like.target.processes.proxy import Links, Weather
from raftstore.errors import RaftstoreError
from raftstore.faults import FAILPOINTS, VARIABLE
from raftstore.local_cluster import LocalCluster
from raftstore.messages import Message
from raftstore.requests import ClusterInfo, ClusterInfoAnswer
from raftstore.transport.client_connection import ClientConnection
from raftstore.types import node_name

EXIT_STORAGE: Final = 70
POLL_S: Final = 0.1
RESTART_AFTER_S: Final = 1.0
ASK_TIMEOUT_S: Final = 2.0
DIRECT_START_WAIT_S: Final = 60.0


class ProcessTarget(Target):
    """Nodes n1, n2, … behind proxies; a supervisor starts a node again that exited 70.

    ``with_power``: every node on a disk of its own that can lose power (root).
    """

    name = "processes"
    table_prefix = ""

    def __init__(
        self, directory: Path, *, nodes: int = 3, seed: int = 0, with_power: bool = False
    ) -> None:
        self.nodes = tuple(f"n{number}" for number in range(1, nodes + 1))
        self.directory = directory
        self._rng = random.Random(seed)
        self._orders: dict[str, dict[str, Any]] = {node: {} for node in self.nodes}
        self._number = 0
        directory.mkdir(parents=True, exist_ok=True)
        self.cluster = LocalCluster(
            nodes,
            directory=directory,
            environment={n: {VARIABLE: str(self._control(n).absolute())} for n in self.nodes},
        )
        self._disks: power.Disks | None = None
        self._wants_power = with_power
        self._lock = threading.RLock()
        self._wanted: dict[str, bool] = dict.fromkeys(self.nodes, False)
        self._is_dark: set[str] = set()
        self.exits: list[tuple[str, int]] = []
        """Every end of a process that nobody asked for: node and exit code."""
        self._done = threading.Event()
        self._supervisor = threading.Thread(target=self._supervise, name="supervisor", daemon=True)
        self.links = Links(self.cluster.endpoints_by_node(), seed)
        self.cluster.advertise(self.links.endpoints)

    # --- life -------------------------------------------------------------------------------------

    def __enter__(self) -> Self:
        try:
            if self._wants_power:
                mounts = {node: self.data(node) for node in self.nodes}
                self._disks = power.Disks(mounts, self.directory / "images")
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

    @property
    def endpoints(self) -> list[str]:
        """Where clients ask: by way of the proxies."""
        return self.cluster.endpoints

    def data(self, node: str) -> Path:
        """The node's data directory."""
        return self.directory / node

    def log_text(self, node: str) -> str:
        """Everything the node's processes logged so far."""
        return self.cluster.log_file(node).read_text(errors="replace")

    def fired(self, node: str) -> tuple[str, ...]:
        """Orders of the fault control file that struck: ``number what``."""
        path = self._control(node).with_name(self._control(node).name + ".fired")
        return tuple(path.read_text().splitlines()) if path.exists() else ()

    def heal(self) -> None:
        """End every fault; start what is down. Damaged, wiped and swapped stores stay as are."""
        self.links.unblock()
        self.links.weather = Weather()
        self.resume(self.nodes)
        for node in self.nodes:
            self._order(node, {})
        self.start(self.nodes)

    # --- Target -----------------------------------------------------------------------------------

    def leaders(self) -> dict[str, str]:
        """The leader of the highest term any node tells of, per channel; asked past the proxies."""
        return asyncio.run(self._ask_leaders())

    def is_up(self, node: str) -> bool:
        """Its process runs."""
        return node in self.cluster.running()

    def kill(self, nodes: Collection[str]) -> None:
        """SIGKILL to all of them before any is waited for."""
        with self._lock:
            for node in nodes:
                self._wanted[node] = False
            self.cluster.kill_all([node for node in nodes if self.is_up(node)])
            for node in nodes:
                self.links.listen(node, is_on=False)

    def start(self, nodes: Collection[str]) -> None:
        """Start those that are down."""
        with self._lock:
            for node in nodes:
                if node in self._is_dark:
                    assert self._disks is not None
                    self._disks.come_back(node)
                    self._is_dark.discard(node)
                self._wanted[node] = True
                self.links.listen(node, is_on=True)
                if not self.is_up(node):
                    self.cluster.start(node)

    def stop(self, node: str) -> None:
        """SIGTERM and wait."""
        with self._lock:
            self._wanted[node] = False
            if self.is_up(node):
                self.cluster.stop(node)
            self.links.listen(node, is_on=False)

    def pause(self, nodes: Collection[str]) -> None:
        """SIGSTOP those that run."""
        for node in nodes:
            if self.is_up(node):
                self.cluster.pause(node)

    def resume(self, nodes: Collection[str]) -> None:
        """SIGCONT those that run."""
        for node in nodes:
            if self.is_up(node):
                self.cluster.resume(node)

    def power_loss(self, nodes: Collection[str]) -> None:
        """All file systems stop first, then the processes are killed."""
        if self._disks is None:
            raise FaultUnavailableError(
                power.why_unavailable() or "this cluster was started without disks of its own"
            )
        with self._lock:
            dark = [node for node in nodes if node not in self._is_dark]
            for node in dark:
                self._disks.go_dark(node)
            self._is_dark.update(dark)
            self.kill(nodes)

    def crash_at(self, node: str, failpoint: str) -> None:
        """Order the crash; the supervisor leaves the node down until `start`."""
        if failpoint not in FAILPOINTS:
            raise FaultUnavailableError(
                f"there is no failpoint {failpoint!r}; there are {', '.join(FAILPOINTS)}"
            )
        self._change(node, crash_at=failpoint, number=self._next())

    def failpoints(self) -> tuple[str, ...]:
        """Those of ``raftstore.faults``."""
        return FAILPOINTS

    def block(self, links: Collection[tuple[str, str]]) -> None:
        """In addition to what is blocked already."""
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
        self.links.weather = Weather(loss, duplicate, reorder, delay_ms, bytes_per_second)

    def reset_connections(self, node: str | None = None) -> None:
        """RST to both ends."""
        self.links.reset(node)

    def slow_disk(self, node: str, milliseconds: float) -> None:
        """Of log and mark; the tables are never synced."""
        self._change(node, sync_delay_ms=milliseconds)

    def fail_disk(self, node: str, *, operation: str, sticky: bool) -> None:
        """Of log, mark and identity."""
        if operation not in ("write", "sync"):
            raise FaultUnavailableError(f"a disk cannot fail at {operation!r}; use write or sync")
        self._change(node, fail=operation, is_sticky=sticky, number=self._next())

    def fill_disk(self, node: str) -> None:
        """Every write of log and mark meets ENOSPC, and the disk shows no free space."""
        self._change(node, is_full=True)

    def mend_disk(self, node: str) -> None:
        """As if there had been nothing."""
        self._change(node, is_full=False, fail="", is_sticky=False, sync_delay_ms=0.0)

    def damage(self, node: str, *, kind: str, file: str) -> str:
        """See `damage_file`."""
        self.kill([node])
        return damage_file(self.data(node), kind=kind, file=file, rng=self._rng)

    def wipe(self, node: str) -> None:
        """The directory is left empty."""
        self.kill([node])
        for path in self.data(node).iterdir():
            if path.is_dir() and path.name != "lost+found":
                shutil.rmtree(path)
            elif path.is_file():
                path.unlink()

    def swap_stores(self, first: str, second: str) -> None:
        """Exchange the directories."""
        if self._disks is not None:
            raise FaultUnavailableError("stores on disks of their own cannot be swapped")
        self.kill([first, second])
        aside = self.directory / "swapping"
        self.data(first).rename(aside)
        self.data(second).rename(self.data(first))
        aside.rename(self.data(second))

    def shift_clock(self, node: str, *, jump_ms: float = 0.0, rate: float = 1.0) -> None:
        """The wall clock jumps either way, the monotonic one only ahead."""
        numbers = {"clock_number": self._next()}
        self._change(node, clock_jump_ms=jump_ms, clock_rate=rate, **numbers)

    def step_down(self, channel: str) -> None:
        """As an operator does; a refusal is no fault."""
        with (
            contextlib.suppress(RaftstoreError),
            self.cluster.connect(timeout=ASK_TIMEOUT_S) as client,
        ):
            client.step_down(channel)

    # --- inside -----------------------------------------------------------------------------------

    def _control(self, node: str) -> Path:
        return self.directory / f"{node}.faults"

    def _next(self) -> int:
        self._number += 1
        return self._number

    def _change(self, node: str, **orders: Any) -> None:
        self._order(node, {**self._orders[node], **orders})

    def _order(self, node: str, orders: dict[str, Any]) -> None:
        self._orders[node] = orders
        aside = self._control(node).with_name(f"{node}.faults.new")
        aside.write_text(json.dumps(orders), encoding="utf-8")
        aside.rename(self._control(node))

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

    async def _ask_leaders(self) -> dict[str, str]:
        found: dict[str, tuple[int, str]] = {}
        endpoints = self.cluster.endpoints_by_node()
        answers = await asyncio.gather(*(self._ask(endpoints[n]) for n in self.cluster.running()))
        for name, term, leader in (each for answer in answers for each in answer):
            found[name] = max(found.get(name, (0, "")), (term, leader))
        return {name: leader for name, (_, leader) in sorted(found.items())}

    async def _ask(self, endpoint: str) -> list[tuple[str, int, str]]:
        """What this one node says: a client would go on to others."""
        answer: asyncio.Future[ClusterInfoAnswer] = asyncio.get_running_loop().create_future()

        def on_message(message: Message) -> None:
            if isinstance(message, ClusterInfoAnswer) and not answer.done():
                answer.set_result(message)

        timeout_ms = int(ASK_TIMEOUT_S * 1000)
        try:
            async with asyncio.timeout(ASK_TIMEOUT_S):
                connection = await ClientConnection.connect(
                    endpoint,
                    timeout_ms=timeout_ms,
                    on_message=on_message,
                    on_lost=lambda _error: None,
                )
                try:
                    connection.send(ClusterInfo(1))
                    tables = (await answer).tables
                finally:
                    connection.close()
        except (RaftstoreError, OSError, TimeoutError):
            return []
        return [
            (f"{table.name}/{number}", channel.term, node_name(channel.leader))
            for table in tables
            for number, channel in enumerate(table.channels)
            if channel.leader is not None
        ]
