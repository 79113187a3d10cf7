"""Users' state machines for programs without asyncio; see ``machines.channel_set``."""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from typing import Any, Unpack

from raftstore.client.asyncio_client import AsyncClient
from raftstore.client.blocking.background_loop import BackgroundLoop
from raftstore.client.blocking.iteration import iterate
from raftstore.client.explanation import ReadExplanation
from raftstore.client.machines.calls import Machine
from raftstore.client.machines.channel_set import AsyncChannelSet, Key
from raftstore.client.machines.channel_set_state import (
    AsyncChannelSetState,
    Entry,
    PinnedPartition,
)
from raftstore.client.machines.code import Codecs
from raftstore.client.machines.results import CommandResult, QueryResult
from raftstore.client.reads.read_spec import ReadOptions
from raftstore.machine import Codec
from raftstore.protocol.admin import TableInfo
from raftstore.protocol.machine_restore import RestorePortion
from raftstore.types import ChannelId, DurabilityName, Seq


class ChannelSet:
    """A channel set by name; made by ``client.channelset(name)``, which asks nobody."""

    def __init__(self, channelset: AsyncChannelSet, loop: BackgroundLoop) -> None:
        self._channelset = channelset
        self._loop = loop
        self.name = channelset.name

    def __repr__(self) -> str:
        return repr(self._channelset).replace("AsyncChannelSet", "ChannelSet", 1)

    def definition(self, *, timeout: float | None = None) -> TableInfo:
        """Return the definition as it is known here; asks only when it is not."""
        return self._loop.call(self._channelset.definition(timeout=timeout))

    def codecs(self, *, timeout: float | None = None) -> Codecs:
        """Return how values are encoded."""
        return self._loop.call(self._channelset.codecs(timeout=timeout))

    def command(
        self, key: Key, command: Any, *, guid: str | None = None, timeout: float | None = None
    ) -> Any:
        """Have a command applied, exactly once, and return its result.

        RejectedError when the machine refused it. An error with ``outcome`` UNKNOWN has its
        ``guid``: the same command given again with it is the same command.
        """
        return self._loop.call(self._channelset.command(key, command, guid=guid, timeout=timeout))

    def command_result(
        self, key: Key, command: Any, *, guid: str | None = None, timeout: float | None = None
    ) -> CommandResult:
        """The same; return the result with its place."""
        return self._loop.call(
            self._channelset.command_result(key, command, guid=guid, timeout=timeout)
        )

    def command_to_partition(
        self,
        partition: int,
        command: Any,
        *,
        key: Key = b"",
        guid: str | None = None,
        timeout: float | None = None,
    ) -> CommandResult:
        """Have a command applied by the machine of one partition, whatever its key is."""
        return self._loop.call(
            self._channelset.command_to_partition(
                partition, command, key=key, guid=guid, timeout=timeout
            )
        )

    def query(self, key: Key, request: Any = None, **options: Unpack[ReadOptions]) -> Any:
        """Ask the machine of a key's partition; linearizable by default."""
        return self._loop.call(self._channelset.query(key, request, **options))

    def query_result(
        self, key: Key, request: Any = None, **options: Unpack[ReadOptions]
    ) -> QueryResult:
        """The same; return the answer with who gave it and how fresh the state was."""
        return self._loop.call(self._channelset.query_result(key, request, **options))

    def query_partition(
        self, partition: int, request: Any = None, **options: Unpack[ReadOptions]
    ) -> QueryResult:
        """Ask the machine of one partition."""
        return self._loop.call(self._channelset.query_partition(partition, request, **options))

    def query_all(self, request: Any = None, **options: Unpack[ReadOptions]) -> list[Any]:
        """Ask the machine of every partition; return the answers in the order of partitions."""
        return self._loop.call(self._channelset.query_all(request, **options))


class ChannelSetState:
    """The state of a channel set as backups take and bring it; made by
    ``client.channelset_state(name)``."""

    def __init__(self, state: AsyncChannelSetState, loop: BackgroundLoop) -> None:
        self._state = state
        self._loop = loop
        self.name = state.name

    def pin(
        self, info: TableInfo, partition: int, *, timeout: float | None = None
    ) -> PinnedPartition:
        """Pin the state of a partition: all that was acknowledged before the call is in it."""
        return self._loop.call(self._state.pin(info, partition, timeout=timeout))

    def pin_at(self, info: TableInfo, partition: int, seq: int) -> PinnedPartition:
        """Pin the state of a partition at any replica that has applied this seq."""
        return self._loop.call(self._state.pin_at(info, partition, seq))

    def entries(
        self, pinned: PinnedPartition, prefix: bytes
    ) -> Generator[Sequence[Entry], None, None]:
        """Iterate over pages of the entries whose keys begin with a prefix, in key order."""
        return iterate(self._state.entries(pinned, prefix), self._loop, 1)

    def close(self, pinned: PinnedPartition) -> None:
        """Notify the node that the state is needed no longer."""
        if not self._loop.is_stopped:
            self._loop.call(self._state.close(pinned))

    def create(self, definition: Mapping[str, Any], *, timeout: float | None = None) -> TableInfo:
        """Create the channel set as one that is being filled."""
        return self._loop.call(self._state.create(definition, timeout=timeout))

    def put_portion(
        self, channel: ChannelId, portion: RestorePortion, *, timeout: float | None = None
    ) -> Seq:
        """Have a portion applied by all replicas; return the seq of its record."""
        return self._loop.call(self._state.put_portion(channel, portion, timeout=timeout))


class MachineClient:
    """The part of ``Client`` that is about state machines of users."""

    _client: AsyncClient
    _loop: BackgroundLoop

    def channelset(
        self, name: str, *, machine: Machine | None = None, codec: Codec[Any] | None = None
    ) -> ChannelSet:
        """Return a handle of a channel set; whether it exists is found out when it is used.

        ``machine``: its class or name, whose codecs are used; ``codec``: one for all values.
        """
        return ChannelSet(self._client.channelset(name, machine=machine, codec=codec), self._loop)

    def channelset_state(self, name: str) -> ChannelSetState:
        """Return what gives the state of a channel set to a backup, and brings it back."""
        return ChannelSetState(self._client.channelset_state(name), self._loop)

    def create_channelset(
        self,
        name: str,
        machine: Machine,
        *,
        partitions: int = 8,
        replicas: int = 3,
        durability: DurabilityName = "fsync",
        max_lag: int | None = None,
        if_not_exists: bool = False,
        timeout: float | None = None,
    ) -> TableInfo:
        """Create a channel set: partitions, each a replicated log with a state machine."""
        return self._loop.call(
            self._client.create_channelset(
                name,
                machine,
                partitions=partitions,
                replicas=replicas,
                durability=durability,
                max_lag=max_lag,
                if_not_exists=if_not_exists,
                timeout=timeout,
            )
        )

    def drop_channelset(self, name: str, *, timeout: float | None = None) -> None:
        """Remove a channel set with all its state; UnknownTableError if there is none."""
        self._loop.call(self._client.drop_channelset(name, timeout=timeout))

    def channelsets(self, *, timeout: float | None = None) -> tuple[TableInfo, ...]:
        """Return all channel sets in name order, with placement and leaders."""
        return self._loop.call(self._client.channelsets(timeout=timeout))

    def channelset_info(self, name: str, *, timeout: float | None = None) -> TableInfo:
        """Return a channel set's definition, placement and leaders."""
        return self._loop.call(self._client.channelset_info(name, timeout=timeout))

    def skip_command(
        self, name: str, partition: int, seq: int, *, timeout: float | None = None
    ) -> None:
        """Make the command nothing at which the machine of a partition stopped."""
        self._loop.call(self._client.skip_command(name, partition, seq, timeout=timeout))

    def explain_query(self, name: str, key: Key, **options: Unpack[ReadOptions]) -> ReadExplanation:
        """Return which replicas a query would ask now, in which order, and why not the others."""
        return self._loop.call(self._client.explain_query(name, key, **options))
