"""The faults and calls that every target offers a nemesis.

A target that cannot inject a fault raises `FaultUnavailableError`; the run then reports that fault
as not run, never as passed. Methods return once the fault is in force.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence


class FaultUnavailableError(Exception):
    """This target, machine or user cannot inject this fault; the text says what is missing."""


class NotRunError(Exception):
    """The machine did not let the run take place; it says nothing about the store, good or bad."""


class Target:
    """Faults by name; a target overrides those it can inject.

    Nodes are named n1, n2, …; ``clients`` stands for all clients where links are meant.
    """

    name = "none"
    nodes: tuple[str, ...] = ()

    def leaders(self) -> dict[str, str]:
        """Channel name -> node that leads it now, as far as the target knows."""
        raise FaultUnavailableError(f"target {self.name} does not know leaders")

    def is_up(self, node: str) -> bool:
        """The node's process runs (paused counts as running)."""
        raise FaultUnavailableError(f"target {self.name} does not know which nodes run")

    def kill(self, nodes: Collection[str]) -> None:
        """Kill (SIGKILL), all at the same moment; what the operating system holds survives."""
        raise self._cannot("kill")

    def start(self, nodes: Collection[str]) -> None:
        """Start nodes that are down; those that run stay."""
        raise self._cannot("start")

    def stop(self, node: str) -> None:
        """SIGTERM: hand over leadership and end."""
        raise self._cannot("stop")

    def pause(self, nodes: Collection[str]) -> None:
        """SIGSTOP."""
        raise self._cannot("pause")

    def resume(self, nodes: Collection[str]) -> None:
        """SIGCONT."""
        raise self._cannot("resume")

    def power_loss(self, nodes: Collection[str]) -> None:
        """The machine goes dark: whatever was not fsynced may be gone, in part or whole."""
        raise self._cannot("power_loss")

    def crash_at(self, node: str, failpoint: str) -> None:
        """The node dies the next time it passes the failpoint."""
        raise self._cannot("crash_at")

    def disarm(self, node: str) -> None:
        """Take back an order that has not struck yet; FaultUnavailableError says that it has not.

        Targets that do not know do nothing.
        """

    def failpoints(self) -> tuple[str, ...]:
        """The names `crash_at` knows."""
        return ()

    def block(self, links: Collection[tuple[str, str]]) -> None:
        """Nothing passes from the first to the second of each pair; other links are untouched."""
        raise self._cannot("block")

    def unblock(self) -> None:
        """Every link passes again."""
        raise self._cannot("unblock")

    def weather(
        self,
        *,
        loss: float = 0.0,
        duplicate: float = 0.0,
        reorder: float = 0.0,
        delay_ms: tuple[float, float] = (0.0, 0.0),
        bytes_per_second: int = 0,
    ) -> None:
        """All links between nodes; shares in 0..1; bytes_per_second 0: unlimited."""
        raise self._cannot("weather")

    def reset_connections(self, node: str | None = None) -> None:
        """RST on every connection (of the node)."""
        raise self._cannot("reset_connections")

    def slow_disk(self, node: str, milliseconds: float) -> None:
        """Each fsync takes this much longer; 0: healthy again."""
        raise self._cannot("slow_disk")

    def fail_disk(self, node: str, *, operation: str, sticky: bool) -> None:
        """The next write or fsync (operation "write" or "sync") fails with EIO, or all do."""
        raise self._cannot("fail_disk")

    def fill_disk(self, node: str) -> None:
        """ENOSPC from now on."""
        raise self._cannot("fill_disk")

    def crowd_disk(self, node: str, left_bytes: int) -> None:
        """Another program takes what is free of the disk, all but so many bytes."""
        raise self._cannot("crowd_disk")

    def hang_disk(self, node: str) -> None:
        """No fsync returns from now on, without an error."""
        raise self._cannot("hang_disk")

    def mend_disk(self, node: str) -> None:
        """No disk fault from now on; space is free again.

        FaultUnavailableError when an armed error never struck, where a target can know.
        """
        raise self._cannot("mend_disk")

    def damage(self, node: str, *, kind: str, file: str) -> str:
        """Kill the node and damage a file of its store; returns what was done.

        ``kind``: flip, truncate, zero, torn. ``file``: log, table, wal, manifest, current, mark,
        identity. The node stays down until `start`.
        """
        raise self._cannot("damage")

    def wipe(self, node: str) -> None:
        """Kill the node and take its whole data directory away."""
        raise self._cannot("wipe")

    def swap_stores(self, first: str, second: str) -> None:
        """Kill both nodes and exchange their data directories; the same call undoes it."""
        raise self._cannot("swap_stores")

    def shift_clock(self, node: str, *, jump_ms: float = 0.0, rate: float = 1.0) -> None:
        """The node's clocks jump and go on at this rate; (0, 1.0): as before the fault."""
        raise self._cannot("shift_clock")

    def kill_client(self, client: int) -> None:
        """A client (its number modulo their count) dies at work; another takes its place."""
        raise self._cannot("kill_client")

    def publish_to_one(self, client: int) -> None:
        """The client's next payload reaches one replica, not the leader; then the client dies."""
        raise self._cannot("publish_to_one")

    def disarm_client(self, client: int) -> None:
        """As ``disarm``, for the order of ``publish_to_one``."""

    def publish_again(self, client: int) -> None:
        """The client sends what was acknowledged to it last once more, under the same GUID."""
        raise self._cannot("publish_again")

    def step_down(self, channel: str) -> None:
        """Ask the channel's leader to hand over."""
        raise self._cannot("step_down")

    def replicas(self) -> dict[str, tuple[str, ...]]:
        """Partition -> nodes that vote in it, of those whose replicas nobody is changing."""
        raise self._cannot("changes of replicas")

    def staying(self) -> tuple[str, ...]:
        """Nodes that may be given replicas: members, and not on their way out."""
        raise self._cannot("changes of replicas")

    def move_replicas(self, channel: str, voters: Sequence[str]) -> None:
        """Order that these nodes vote in the partition, and no other, until `restore_replicas`."""
        raise self._cannot("move_replicas")

    def restore_replicas(self, channel: str) -> None:
        """Order as many replicas as before, on the same nodes if they are still there.

        FaultUnavailableError, after that, when what `move_replicas` ordered was never accepted.
        """
        raise self._cannot("restore_replicas")

    def join_node(self) -> str:
        """Let a new node join; its name. It belongs to ``nodes`` as soon as it has joined."""
        raise self._cannot("join_node")

    def remove_node(self, node: str) -> None:
        """Drain the node and have it leave for good; it gives away first what it hosts.

        FaultUnavailableError, after that, when it has not even joined.
        """
        raise self._cannot("remove_node")

    def drain_node(self, node: str) -> None:
        """Order that the node gives its replicas to others."""
        raise self._cannot("drain_node")

    def keep_node(self, node: str) -> None:
        """Take a drain back; FaultUnavailableError, after that, when it was never accepted."""
        raise self._cannot("keep_node")

    def _cannot(self, fault: str) -> FaultUnavailableError:
        return FaultUnavailableError(f"target {self.name} cannot inject {fault}")
