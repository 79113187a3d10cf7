"""The channels that a node has open. Who opens and closes them is the catalog's controller."""

from __future__ import annotations

from raftstore.engine.channel.channel_parts import ChannelParts
from raftstore.engine.channel.runner import ChannelRunner
from raftstore.protocol.reads import Bounds
from raftstore.protocol.table_settings import DEFAULT_SETTINGS, TableSettings
from raftstore.record_machine import RecordMachine
from raftstore.types import FOUNDING_NUMBER, ChannelConfig, ChannelId, ReplicaNumber


class ChannelRegistry:
    """Opens and closes the channels of one node. The parts in ``ChannelNotices`` are notified of
    each channel that comes or goes."""

    def __init__(
        self, parts: ChannelParts[ChannelRunner], runners: dict[ChannelId, ChannelRunner]
    ) -> None:
        """``runners``: of the open channels, kept here and looked up everywhere."""
        self._parts = parts
        self.runners = runners

    def open(  # noqa: PLR0913 - each is one thing that a channel has
        self,
        channel: ChannelId,
        name: str,
        machine: RecordMachine,
        now_ms: int,
        *,
        creation_config: ChannelConfig,
        durability: str,
        bounds: Bounds,
        table_settings: TableSettings = DEFAULT_SETTINGS,
        number: ReplicaNumber = FOUNDING_NUMBER,
    ) -> None:
        """Open a channel from what log and tables hold of it, as the replica of this number (M14).

        Raises ``UnknownChannelError`` if the log remembers that it was dropped (S0.8).
        """
        parts = self._parts
        runner = ChannelRunner(
            parts,
            channel=channel,
            name=name,
            creation_config=creation_config,
            machine=machine,
            durability=durability,
            bounds=bounds,
            number=number,
        )
        runner.table_settings = table_settings
        self.runners[channel] = runner
        parts.active.touch(channel)
        if parts.guard.reason is not None:
            runner.on_storage_stalled(parts.guard.reason, now_ms)
        for notify in parts.notices.opened:
            notify(runner, now_ms)

    def close(self, channel: ChannelId, now_ms: int) -> None:
        """Nothing is left of it but what log and tables hold."""
        runner = self.runners.pop(channel)
        for notify in self._parts.notices.closed:
            notify(runner)
        runner.close(now_ms)

    def remove(self, channel: ChannelId, number: ReplicaNumber, now_ms: int) -> int:
        """Its replica of this number was removed from the channel: it never votes, acks or serves
        again (M14). Returns the operation of the log; once that is durable, its table may go."""
        self.close(channel, now_ms)
        return self._parts.log.remove_replica(channel, number)

    def drop(self, channel: ChannelId, now_ms: int) -> None:
        """Its table was dropped: it never votes, acks or serves again (S0.8)."""
        self.close(channel, now_ms)
        self._parts.log.drop_channel(channel)
        self._parts.tables.drop(channel)
