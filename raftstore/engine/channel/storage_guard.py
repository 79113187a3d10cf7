"""What a node does while its disk hangs, and how much it takes that is not on the disk (S0.4)."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from raftstore.config import NodeSettings
from raftstore.engine.channel.outbox import Outbox
from raftstore.errors import OverloadedError
from raftstore.ports.log import MessageLog
from raftstore.types import ChannelId, NodeId, StorageStall, node_name

if TYPE_CHECKING:
    from raftstore.engine.channel.runner import ChannelRunner


class GuardHost(Protocol):
    """What the guard needs of its node."""

    me: NodeId
    settings: NodeSettings
    log: MessageLog
    outbox: Outbox
    channels: dict[ChannelId, ChannelRunner]

    def event(self, name: str, **fields: object) -> None:
        """One structured log line."""


class StorageGuard:
    """Of one node; told by whoever watches its disk."""

    def __init__(self, host: GuardHost, stall: Callable[[], StorageStall | None]) -> None:
        self._host = host
        self.stall = stall
        """What the disk does not finish right now, for views."""
        self.reason: str | None = None
        """What the disk does not finish; None while it does."""

    def changed(self, stall: StorageStall | None, now_ms: int) -> None:
        """An operation takes too long, or (None) ended after all: every channel hears of it."""
        host, before = self._host, self.reason
        self.reason = None if stall is None else stall.told(node_name(host.me))
        # First: what the channels say now must not wait for the disk.
        host.outbox.is_stalled = stall is not None
        if self.reason is not None:
            host.event("storage_stalled", reason=self.reason)
        elif before is not None:
            host.event("storage_resumed", reason=before, dropped_messages=host.outbox.dropped)
        for runner in tuple(host.channels.values()):
            runner.on_storage_stalled(self.reason, now_ms)

    def opened(self, runner: ChannelRunner, now_ms: int) -> None:
        """A channel was opened."""
        if self.reason is not None:
            runner.on_storage_stalled(self.reason, now_ms)

    def refusal(self, more_bytes: int) -> tuple[str, str] | None:
        """Code and text if the log must not take so much more now.

        Whoever else holds it: what a quorum of others committed fills this node's memory, too.
        """
        limit = self._host.settings.storage.unsynced_bytes_max
        held = self._host.log.unsynced_bytes()
        if not held or held + more_bytes <= limit:
            return None
        text = f"{held} of {limit} bytes are not on the disk of {node_name(self._host.me)} yet"
        return OverloadedError.code, f"{text}; {self.reason or 'retry later'}"
