"""A simulated node whose files rot while it runs: it ends when it reads damage, as a real one does.

What reads back damage of its log or its tables stops the process (S0.4); a supervisor starts it
again. A damaged table is put aside at the start after it was read, and sometimes at any other.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from raftstore.errors import StorageError
from raftstore.protocol.message import Message
from raftstore.storage.log.group_commit import Batch
from raftstore.testing.sim_node import SimNode
from raftstore.types import NodeId, StorageStall

FOUND_AT_START: Final = 0.5
"""How often LevelDB finds damage when it is opened."""


class RottingNode(SimNode):
    """Ends on what is damaged here, and on nothing else."""

    has_read_damage = False
    """The last life ended by it."""

    @property
    def is_rotten(self) -> bool:
        """Whether anything that this node stores is known to be damaged, but not to the node."""
        if self.incarnation and self.log.has_flipped:
            return True
        return not all(map(self.tables.is_intact, self.tables.stored_channels()))

    def boot(self) -> bool:
        """As any node; a table that was found to be damaged is put aside."""
        if self.has_read_damage or self.store.rng.random() < FOUND_AT_START:
            self.tables.reset_damaged()
        self.has_read_damage = False
        with self._ends_on_damage():
            super().boot()
        return self.is_up

    @contextmanager
    def _ends_on_damage(self) -> Iterator[None]:
        """Guard one step: of one that ends on damage the messages are lost with the process, since
        the oracle has not looked at it."""
        if self.held_sends is not None:
            yield
            return
        self.held_sends = []
        try:
            yield
            held, self.held_sends = self.held_sends, None
            for send, arguments in held:
                send(*arguments)
        except StorageError as error:
            self.held_sends = None
            if not self.is_rotten:
                raise
            self.cluster.trace("disk_error", node=self.name, error=str(error))
            self.has_read_damage = True
            self.crash("it read damage")

    def _halt(self, reason: str) -> None:
        if self.is_rotten:
            self.has_read_damage = True
        else:
            super()._halt(reason)

    def on_message(self, sender: NodeId, message: Message) -> None:
        """A peer's message arrived."""
        with self._ends_on_damage():
            super().on_message(sender, message)

    def on_client_message(self, client: int, message: Message) -> None:
        """A client's message arrived."""
        with self._ends_on_damage():
            super().on_client_message(client, message)

    def sync_completed(self, incarnation: int, batch: Batch) -> None:
        """The log writer has finished a group commit."""
        with self._ends_on_damage():
            super().sync_completed(incarnation, batch)

    def _end_turn(self, incarnation: int) -> None:
        with self._ends_on_damage():
            super()._end_turn(incarnation)

    def _applied(self, incarnation: int) -> None:
        with self._ends_on_damage():
            super()._applied(incarnation)

    def _read(self, incarnation: int) -> None:
        with self._ends_on_damage():
            super()._read(incarnation)

    def _timer(self, incarnation: int, due: float) -> None:
        with self._ends_on_damage():
            super()._timer(incarnation, due)

    def on_peer_connected(self, node: NodeId, level: int) -> None:
        """A connection to a peer was established."""
        with self._ends_on_damage():
            super().on_peer_connected(node, level)

    def on_peer_lost(self, node: NodeId, *, refused: bool) -> None:
        """A connection to a peer broke."""
        with self._ends_on_damage():
            super().on_peer_lost(node, refused=refused)

    def hand_over_all(self) -> None:
        """An operator asks every leader here to hand over (S9)."""
        with self._ends_on_damage():
            super().hand_over_all()

    def on_disk_stall(self, stall: StorageStall | None) -> None:
        """The watchdog reports that the disk hangs, or goes on."""
        with self._ends_on_damage():
            super().on_disk_stall(stall)

    def resume(self) -> None:
        """SIGCONT: everything that waited happens now, in order."""
        with self._ends_on_damage():
            super().resume()
