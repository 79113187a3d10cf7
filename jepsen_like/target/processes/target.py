"""A cluster of real processes with every fault that loopback, files and signals allow."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Sequence
from typing import Final

from jepsen_like.target.base import FaultUnavailableError
from jepsen_like.target.processes import ballast
from jepsen_like.target.processes.asking import ASK_TIMEOUT_S
from jepsen_like.target.processes.clients import Clients
from jepsen_like.target.processes.damage import damage_file
from jepsen_like.target.processes.deaths import EXIT_CONFIG
from jepsen_like.target.processes.nodes import NodeProcesses
from jepsen_like.target.processes.proxy import Weather
from jepsen_like.target.processes.unsynced import lose_unsynced
from raftstore.errors import RaftstoreError
from raftstore.faults import FAILPOINTS, MOVES
from raftstore.storage.faulty_files import UNSYNCED_SUFFIX

BEYOND_REPAIR: Final = {"mark": "mark", "identity": "raftstore.json"}
"""Damage to these keeps a node out for good (S0.1): a copy comes back when the fault is over."""
DISK_LOW: Final = 'event="disk_low"'
SPACE_BACK: Final = 'event="disk_space_back"'
NOTICED_FULL: Final = (DISK_LOW, "no space left", "No space left", "waiting for disk space")
"""A node says one of these when its disk fills up, or is full."""


class ProcessTarget(NodeProcesses):
    """Real nodes and every fault there is for them."""

    def power_loss(self, nodes: Collection[str]) -> None:
        """With disks of their own all file systems stop first, then the processes are killed."""
        number = self._orders.next_number()
        for node in nodes:
            self._orders.change(node, power_losses=number)
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
            self._note_ends()
            for node in dark:
                self._wanted[node] = False  # how it meets the dark is part of the fault
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
        """Failpoints of ``raftstore.faults``, but for those of replica snapshots, of joins and of
        moves: here no log is cut, and members stay."""
        return tuple(
            name for name in FAILPOINTS if not name.startswith(("copy.", "files.", *MOVES))
        )

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
        """Slow the syncs of log and mark down; the tables are never synced."""
        if not milliseconds:
            self._orders.change(node, sync_delay_ms=0.0)
            return
        number = self._orders.next_number()
        self._orders.change(node, sync_delay_ms=milliseconds, number=number)
        self._note_order(f"syncs take {milliseconds:.0f} ms more", node, number)

    def fail_disk(self, node: str, *, operation: str, sticky: bool) -> None:
        """Let writes or syncs of log, mark and identity fail."""
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

    def crowd_disk(self, node: str, left_bytes: int) -> None:
        """On a disk of its own: another program's file takes what is free, and stays until the disk
        is mended."""
        if self._disks is None:
            raise FaultUnavailableError(
                "a disk that fills up needs disks of the nodes' own: run it as root where loop "
                "devices are, and without swap-stores"
            )
        before = self.cluster.log_file(node).stat().st_size
        taken = ballast.take_all_but(self.data(node), left_bytes)
        if not left_bytes:
            self._filled.add(node)
        self._strikes.note(
            f"{taken} bytes of its disk taken, {left_bytes} left",
            [node],
            lambda: self._is_short_of_space(node, before),
            f"{node} never noticed that its disk is nearly full",
        )

    def hang_disk(self, node: str) -> None:
        """Let no fdatasync of log, mark and identity return."""
        number = self._orders.next_number()
        self._orders.change(node, hang="sync", number=number)
        self._note_order("syncs hang", node, number)

    def mend_disk(self, node: str) -> None:
        """As if there had been nothing."""
        ballast.give_back(self.data(node))
        self._orders.change(
            node, is_full=False, fail="", hang="", is_sticky=False, sync_delay_ms=0.0
        )

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
        self._damaged.add(node)
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
        for node in pair:
            if node in self._foreign:
                self._note_trespass(node)
                del self._foreign[node]  # each has its own again
            else:
                self._foreign[node] = self.cluster.log_file(node).stat().st_size
        aside = self.directory / "swapping"
        self.data(first).rename(aside)
        self.data(second).rename(self.data(first))
        aside.rename(self.data(second))
        refused = {(node, EXIT_CONFIG) for node in pair}
        self._strikes.note(
            "swap stores",
            pair,
            lambda: refused <= set(self.exits[before:]),
            f"{first} and {second} did not both refuse the other's store",
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
        """A strike that did not happen is reported as such already."""
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

    def replicas(self) -> dict[str, tuple[str, ...]]:
        """By the catalog."""
        return self.operator().replicas()

    def staying(self) -> tuple[str, ...]:
        """By the catalog."""
        return self.operator().staying()

    def move_replicas(self, channel: str, voters: Sequence[str]) -> None:
        """The operator orders it as soon as somebody answers."""
        self.operator().move(channel, voters)
        self._strikes.note(f"replicas of {channel} to {', '.join(voters)}", [])

    def restore_replicas(self, channel: str) -> None:
        """Likewise."""
        self.operator().restore(channel)

    def join_node(self) -> str:
        """A process behind a proxy of its own."""
        name = self.operator().join()
        self._strikes.note(f"{name} joins", [])
        return name

    def remove_node(self, node: str) -> None:
        """Its process ends once it has left, and what it stored goes."""
        self.operator().remove(node)

    def drain_node(self, node: str) -> None:
        """The operator orders it as soon as somebody answers."""
        self.operator().drain(node)
        self._strikes.note(f"drain {node}", [])

    def keep_node(self, node: str) -> None:
        """Likewise."""
        self.operator().keep(node)

    # --- inside -----------------------------------------------------------------------------------

    def _is_short_of_space(self, node: str, since: int) -> bool:
        """Whether the node said so since then, or before and has seen no space meanwhile."""
        said = self._log_since(node, since)
        if any(text in said for text in NOTICED_FULL):
            return True
        whole = self._log_since(node, 0)
        return whole.rfind(DISK_LOW) > whole.rfind(SPACE_BACK)

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
