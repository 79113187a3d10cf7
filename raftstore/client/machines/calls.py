"""The calls of a client about channel sets."""

# ruff: noqa: ASYNC109 - timeout is what our callers expect to name, here as in blocking.py

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any, Unpack

from raftstore.client.admin import Admin
from raftstore.client.arguments import flag, text, whole
from raftstore.client.context import Context
from raftstore.client.definitions import warn_of_even_replicas, warn_of_findings
from raftstore.client.explanation import ReadExplanation
from raftstore.client.kip535 import Metadata
from raftstore.client.machines.channel_set import AsyncChannelSet, Key, key_bytes, query_spec
from raftstore.client.machines.channel_set_state import AsyncChannelSetState
from raftstore.client.machines.code import codecs_given, name_of
from raftstore.client.machines.repeats import CommandRepeats
from raftstore.client.reads.channel_reads import ChannelReads
from raftstore.client.reads.read_spec import ReadOptions, count_of
from raftstore.client.requests.leader_requests import Asked, LeaderRequests
from raftstore.client.writes.publisher import Publisher
from raftstore.config import PARTITIONS_MAX, REPLICAS_MAX
from raftstore.errors import SchemaError
from raftstore.machine import Codec, StateMachine
from raftstore.policy.levels import MACHINE_LEVEL
from raftstore.protocol.admin import TableInfo
from raftstore.protocol.machines import SkipCommand
from raftstore.types import DurabilityName, Seq

Machine = type[StateMachine] | str
"""A machine's class, or its name in the catalog: ``package.module:Class``, or an entry point."""


class MachineCalls:
    """The part of ``AsyncClient`` that is about state machines of users."""

    _context: Context
    _publisher: Publisher
    _channel_reads: ChannelReads
    _admin: Admin
    _leaders: LeaderRequests
    _metadata: Metadata

    def channelset(
        self, name: str, *, machine: Machine | None = None, codec: Codec[Any] | None = None
    ) -> AsyncChannelSet:
        """Return a handle of a channel set; whether it exists is found out when it is used.

        ``machine``: its class or name, whose codecs encode commands, results, requests and answers;
        without one the class that the catalog names is imported, if it is installed here.
        ``codec``: one for all values instead, such as JSON.
        """
        return AsyncChannelSet(
            text("name", name),
            self._context,
            self._publisher,
            self._channel_reads,
            codecs_given(machine, codec),
            CommandRepeats(self._publisher, self._leaders),
        )

    def channelset_state(self, name: str) -> AsyncChannelSetState:
        """Return what gives the state of a channel set to a backup, and brings it back.

        ``raftstore.backup`` uses it.
        """
        return AsyncChannelSetState(
            text("name", name), self._context, self._admin, self._channel_reads, self._publisher
        )

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
    ) -> Coroutine[Any, Any, TableInfo]:
        """Create a channel set: partitions, each a replicated log with a state machine.

        ``machine``: a subclass of StateMachine, or its name ``package.module:Class``,
        or that of an entry point of the group "raftstore.machines"; every node must be able to
        import it (UnknownMachineError names one that is not). Every channel has a leader when this
        returns. ``name`` and the other arguments are those of ``create_table``; names of tables and
        channel sets are of one kind, and TableExistsError is raised for either. Lines of a class by
        which replicas may come to differ are named by a UserWarning each (``machine_lint``).
        """
        warn_of_even_replicas(replicas)
        warn_of_findings(machine)

        async def create() -> TableInfo:
            whole("partitions", partitions, 1, PARTITIONS_MAX)
            whole("replicas", replicas, 1, REPLICAS_MAX)
            count_of("max_lag", max_lag, "commands")
            flag("if_not_exists", if_not_exists)
            return await self._admin.create_channelset(
                text("name", name),
                {
                    "machine": name_of(machine),
                    "partitions": partitions,
                    "replicas": replicas,
                    "durability": durability,
                    "max_lag": max_lag,
                },
                self._context.deadline_ms(timeout),
                if_not_exists=if_not_exists,
            )

        return create()

    async def drop_channelset(self, name: str, *, timeout: float | None = None) -> None:
        """Remove a channel set with all its state; UnknownTableError if there is none."""
        deadline_ms = self._context.deadline_ms(timeout)
        await self._admin.drop_channelset(text("name", name), deadline_ms)

    async def channelsets(self, *, timeout: float | None = None) -> tuple[TableInfo, ...]:
        """Return all channel sets in name order, with placement and leaders."""
        return await self._admin.channelsets(self._context.deadline_ms(timeout))

    async def channelset_info(self, name: str, *, timeout: float | None = None) -> TableInfo:
        """Return a channel set's definition, placement and leaders."""
        deadline_ms = self._context.deadline_ms(timeout)
        return await self._admin.channelset_info(text("name", name), deadline_ms)

    async def skip_command(
        self, name: str, partition: int, seq: int, *, timeout: float | None = None
    ) -> None:
        """Make the command nothing at which the machine of a partition stopped.

        It is for commands that no version of the machine can apply: its sender was answered that
        it is in the log, and it never has a result. ``seq`` is what MachineStoppedError names; any
        other is refused.
        """
        deadline_ms = self._context.deadline_ms(timeout)
        info = await self._admin.channelset_info(text("name", name), deadline_ms)
        channel = info.channels[whole("partition", partition, 0, info.partitions - 1)].channel
        at = Seq(whole("seq", seq, 1))
        await self._leaders.ask(
            channel,
            lambda request_id, left_ms: SkipCommand(request_id, channel, at, left_ms),
            deadline_ms,
            asked=Asked(
                f"skip of command {at} of {name}/{partition}", is_read=False, level=MACHINE_LEVEL
            ),
        )

    async def explain_query(
        self, name: str, key: Key, **options: Unpack[ReadOptions]
    ) -> ReadExplanation:
        """Return which replicas a query would ask now, in which order, and why not the others."""
        deadline_ms = self._context.deadline_ms(options.get("timeout"))
        spec, encoded = query_spec(options), key_bytes(key)
        view = await self._metadata.view(None, deadline_ms)
        info = await self._admin.channelset_info(text("name", name), deadline_ms)
        if not info.machine:
            raise SchemaError(f"{name!r} is a table; ask explain_get")
        return await self._admin.explain_key(info.name, encoded, spec, view.bounds, deadline_ms)
