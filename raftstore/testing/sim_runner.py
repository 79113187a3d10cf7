"""The production node as the simulator runs it, and its randomness."""

from __future__ import annotations

import random

from raftstore.config import NodeSettings
from raftstore.engine.channel.runner import ChannelRunner
from raftstore.engine.node_ports import NodeIdentity, NodePorts
from raftstore.engine.node_runner import NodeRunner
from raftstore.types import ChannelId


class SimIds:
    """ports.IdSource from the world's random generator."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng

    def uuid(self) -> bytes:
        """16 random bytes."""
        return self._rng.randbytes(16)

    def below(self, limit: int) -> int:
        """A random integer in [0, limit)."""
        return self._rng.randrange(limit)


class WatchedRunner(NodeRunner):
    """The production node; it also reports which channels its last step may have changed."""

    def __init__(self, identity: NodeIdentity, ports: NodePorts, settings: NodeSettings) -> None:
        self.looked_at: dict[ChannelId, None] = {}
        super().__init__(identity, ports, settings)

    def _after(self) -> None:
        if self._active.touched:
            self.looked_at.update(self._active.touched)
            super()._after()
        elif self._schedule.has_moved or self.reader.many.has_answers:
            super()._after()  # the end of a turn whose calls have touched or read something

    def take_changed(self) -> list[ChannelRunner]:
        """Channels touched since the last call: nothing else moves a term, a role or a seq."""
        touched, channels = self.looked_at, self.channels
        if not touched:
            return []
        self.looked_at = {}
        return [channels[channel] for channel in touched if channel in channels]
