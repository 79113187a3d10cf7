"""KIP-535 for a client: where keys live, how far behind whom, and a strict view of one store.

Everything about placement and lag is a hint (S7.4): the node that is asked decides. The facade of a
store re-checks on every call, so a handle that is kept over a change of leader raises instead of
reading a replica that serves no more.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable, Iterable
from dataclasses import dataclass
from typing import Any, Final

from raftstore.client.cluster.topology import Topology, witnesses_of
from raftstore.client.context import Context
from raftstore.client.results import KeyQueryMetadata
from raftstore.client.table_reads import TableReads
from raftstore.errors import (
    ArgumentError,
    InvalidStateStoreError,
    NoLeaderError,
    NoReplicaAvailableError,
    NotLeaderError,
    RequestError,
    TransportError,
    UnavailableError,
    UnknownChannelError,
    UnknownTableError,
)
from raftstore.policy.lag import LagInfo, rows_behind
from raftstore.protocol.admin import (
    ChannelInfo,
    ClusterView,
    ClusterViewAnswer,
    NodeInfo,
    TableInfo,
)
from raftstore.protocol.message import Failed
from raftstore.rows.partitioner import partition_of
from raftstore.rows.schema import TableSchema
from raftstore.transport.endpoints import parse_endpoint
from raftstore.types import ChannelId, NodeId, Seq, Term, node_name

logger = logging.getLogger("raftstore.client")

Serializer = Callable[[Any], bytes]
"""Key -> encoded key, as ``raftstore.rows`` encodes it."""
Partitioner = Callable[[bytes, int], int]
"""(encoded key, number of partitions) -> partition."""
OnChange = Callable[[str, KeyQueryMetadata], object]
"""("table/partition", who serves it now)."""


@dataclass(frozen=True, slots=True)
class NodeMetadata:
    """The channels of a node (KIP-535's StreamsMetadata), as ``table/partition``."""

    host: str
    port: int
    active_channels: frozenset[str]
    """Channels that it leads."""
    standby_channels: frozenset[str]
    """Channels that it replicates without leading them."""
    active_tables: frozenset[str]
    standby_tables: frozenset[str]


class Metadata:
    """Placement, from the topology; lags, from the nodes."""

    def __init__(self, context: Context) -> None:
        self._context = context

    async def of_key(
        self,
        name: str,
        key: Any,
        deadline_ms: int,
        *,
        serializer: Serializer | None = None,
        partitioner: Partitioner | None = None,
    ) -> KeyQueryMetadata:
        """Return who serves a key; waits a moment for a leader, not for ever."""
        context = self._context
        table = await context.discovery.table(name, deadline_ms)
        channel = table.channels[_partition(table, key, serializer, partitioner)]
        if context.topology.leader_of(channel.channel) is None:
            until_ms = min(deadline_ms, context.now_ms() + context.settings.suspect_ms)
            await context.discovery.news(until_ms)
        return channel_metadata(context.topology, channel, table.channels.index(channel))

    async def standbys_of_key(
        self, name: str, key: Any, deadline_ms: int
    ) -> tuple[NodeMetadata, ...]:
        """Return the nodes that replicate a key's partition without leading it (KIP-28)."""
        found = await self.of_key(name, key, deadline_ms)
        nodes = {f"{node.host}:{node.port}": node for node in await self.all(deadline_ms)}
        return tuple(nodes[host] for host in found.standby_hosts if host in nodes)

    async def all(self, deadline_ms: int) -> tuple[NodeMetadata, ...]:
        """Return every node with what it hosts, ordered by name (KIP-18)."""
        context = self._context
        await context.discovery.refresh(deadline_ms)
        tables = context.topology.tables()
        nodes = sorted(context.topology.nodes.values(), key=lambda info: info.node)
        return tuple(_node_metadata(info, tables) for info in nodes)

    async def lags_of(self, name: str | None, deadline_ms: int) -> dict[str, dict[int, LagInfo]]:
        """Return the lag of every replica, active or standby, that one node hosts (KIP-11)."""
        node = await self._node(name, deadline_ms)
        answer = await self._view_of(node, deadline_ms)
        lags: dict[str, dict[int, LagInfo]] = {}
        for channel in answer.channels:
            own = next((hint for hint in channel.replicas if hint.node == node), None)
            if own is None or self._context.topology.table(channel.table) is None:
                continue  # not hosted there, or the catalog's own channel
            # KIP-12: a leader that is ready reports 0, one that is not its real lag.
            behind = own.lag
            if behind is None:
                behind = rows_behind(channel.end_seq, own.applied_seq)
            lags.setdefault(channel.table, {})[channel.partition] = LagInfo(
                own.applied_seq, Seq(own.applied_seq + behind), behind, own.time_lag_ms
            )
        return lags

    async def view(self, name: str | None, deadline_ms: int) -> ClusterViewAnswer:
        """Return one node's viewpoint of everything that routing uses (KLIP-33)."""
        return await self._view_of(await self._node(name, deadline_ms), deadline_ms)

    async def _view_of(self, node: NodeId, deadline_ms: int) -> ClusterViewAnswer:
        link = self._context.links.query(node)
        reason = "it does not report its view of the cluster"
        try:
            async with asyncio.timeout_at(deadline_ms / 1000):
                if link is not None and await link.open():
                    answer = await link.request(ClusterView)
                    if isinstance(answer, ClusterViewAnswer):
                        return answer
                    if isinstance(answer, Failed):
                        reason = answer.message
        except (TimeoutError, TransportError) as error:
            reason = str(error) or "it did not answer in time"
        raise UnavailableError(f"the node {node_name(node)} cannot be asked: {reason}; retry later")

    async def _node(self, name: str | None, deadline_ms: int) -> NodeId:
        if name is None:
            home = self._context.home()
            if home is not None:
                return home
            return (await self._context.discovery.refresh(deadline_ms)).answered_by
        node = self._context.topology.node_named(name)
        if node is None:
            known = ", ".join(sorted(map(node_name, self._context.topology.nodes)))
            raise ArgumentError(f"there is no node {name!r} in the cluster (there are: {known})")
        return node


class Listeners:
    """Register a listener for changed metadata (KIP-27)."""

    def __init__(self, topology: Topology) -> None:
        self._topology = topology
        self._callbacks: list[OnChange] = []
        topology.on_leader_change(self._changed)

    def add(self, callback: OnChange) -> None:
        """Call it after each change of a channel's leader."""
        if not callable(callback):
            raise ArgumentError(f"callback={callback!r:.80} cannot be called; give a function")
        self._callbacks.append(callback)

    def _changed(self, channel: ChannelId) -> None:
        name = self._topology.name_of(channel)
        table, _, partition = name.rpartition("/")
        known = self._topology.table(table)
        if known is None or not self._callbacks:
            return
        number = int(partition)
        metadata = channel_metadata(self._topology, known.channels[number], number)
        for callback in self._callbacks:
            try:
                callback(name, metadata)
            except Exception:
                # What a listener does wrong must stop neither the client nor the other listeners.
                logger.exception("a listener of on_change failed")


def channel_metadata(topology: Topology, channel: ChannelInfo, partition: int) -> KeyQueryMetadata:
    """Return who serves a channel, as it is known now."""
    leader = topology.leader_of(channel.channel)
    hosts = {node: info.endpoint for node, info in topology.nodes.items()}
    having = topology.readable_of(channel.channel)
    standbys = [node for node in having if leader is None or node != leader.node]
    return KeyQueryMetadata(
        active_host=None if leader is None else hosts.get(leader.node),
        standby_hosts=tuple(hosts[node] for node in standbys if node in hosts),
        partition=partition,
        term=Term(0) if leader is None else leader.term,
        in_sync_standby_hosts=tuple(
            hosts[node] for node in standbys if node in hosts and node in channel.iss
        ),
    )


def _partition(
    table: TableInfo, key: Any, serializer: Serializer | None, partitioner: Partitioner | None
) -> int:
    if serializer is None:
        encoded = TableSchema(table.key_columns, table.schema_json).key_of(key)
    else:
        encoded = serializer(key)
        if not isinstance(encoded, bytes):
            raise ArgumentError(f"the serializer returned {encoded!r:.80}, which is not bytes")
    if partitioner is None:
        return partition_of(encoded, table.partitions)
    partition = partitioner(encoded, table.partitions)
    if type(partition) is not int or not 0 <= partition < table.partitions:
        raise ArgumentError(
            f"the partitioner returned {partition!r:.80}; "
            f"table {table.name!r} has the partitions 0 to {table.partitions - 1}"
        )
    return partition


def _node_metadata(info: NodeInfo, tables: Iterable[TableInfo]) -> NodeMetadata:
    active: dict[str, str] = {}
    standby: dict[str, str] = {}
    for table in tables:
        for partition, channel in enumerate(table.channels):
            if info.node in channel.replicas and info.node not in witnesses_of(channel):
                role = active if channel.leader == info.node else standby
                role[f"{table.name}/{partition}"] = table.name
    host, port = parse_endpoint(info.endpoint)
    return NodeMetadata(
        host=host,
        port=port,
        active_channels=frozenset(active),
        standby_channels=frozenset(standby),
        active_tables=frozenset(active.values()),
        standby_tables=frozenset(standby.values()),
    )


# --- the facade of a store ------------------------------------------------------------------------


REASONS: Final[tuple[tuple[type[RequestError], str], ...]] = (
    (UnknownTableError, "unknown_table"),
    (UnknownChannelError, "not_hosted"),
    (NotLeaderError, "not_leader"),
    (NoLeaderError, "initializing"),
    (UnavailableError, "initializing"),
    (NoReplicaAvailableError, "initializing"),
)


class AsyncReadOnlyStore:
    """A table as KIP-535's ``store()`` returns one; made by ``client.store(...)``.

    Without stale stores only the leader serves, once it is ready; with them any replica does, also
    one that follows or catches up. Each call checks that anew: InvalidStateStoreError says why not.
    """

    def __init__(
        self,
        table: TableReads,
        context: Context,
        *,
        include_stale_stores: bool,
        node: str | None,
    ) -> None:
        self.name = table.name
        self._table = table
        self._context = context
        self._options: dict[str, Any] = {"level": "any" if include_stale_stores else "leader"}
        if node is not None:
            self._options |= {"replica": node}

    async def get(self, key: Any, *, timeout: float | None = None) -> dict[str, Any] | None:  # noqa: ASYNC109
        """Return the row with this key or None."""
        try:
            return await self._table.get(key, timeout=timeout, **self._options)
        except RequestError as error:
            raise self._invalid(error) from error

    async def range(
        self,
        start: Any = None,
        stop: Any = None,
        *,
        timeout: float | None = None,  # noqa: ASYNC109
    ) -> AsyncGenerator[dict[str, Any], None]:
        """Iterate over the rows with start <= key < stop, in key order."""
        async for row in self._rows(start=start, stop=stop, timeout=timeout):
            yield row

    async def prefix(
        self,
        prefix: Any,
        *,
        timeout: float | None = None,  # noqa: ASYNC109
    ) -> AsyncGenerator[dict[str, Any], None]:
        """Iterate over the rows whose key begins so, in key order."""
        async for row in self._rows(prefix=prefix, timeout=timeout):
            yield row

    async def approx_count(self, *, timeout: float | None = None) -> int:  # noqa: ASYNC109
        """Return how many rows there are; every partition is counted at its own moment."""
        try:
            return (await self._table.count(timeout=timeout, **self._options)).rows
        except RequestError as error:
            raise self._invalid(error) from error

    async def check(self, deadline_ms: int) -> None:
        """Raise InvalidStateStoreError when there is no such table, or the node has none of it."""
        try:
            self._context.check_open()
            table = await self._context.discovery.table(self.name, deadline_ms)
        except RequestError as error:
            raise self._invalid(error) from error
        named = self._options.get("replica")
        node = None if named is None else self._context.topology.node_named(named)
        if named is not None and not any(node in c.replicas for c in table.channels):
            raise InvalidStateStoreError(
                f"the node {named!r} hosts no partition of table {self.name!r}; ask another one",
                reason="not_hosted",
            )

    async def _rows(self, **options: Any) -> AsyncGenerator[dict[str, Any], None]:
        rows = self._table.scan(**options, **self._options)
        try:
            async for row in rows:
                yield row
        except RequestError as error:
            raise self._invalid(error) from error
        finally:
            await rows.aclose()

    def _invalid(self, error: RequestError) -> RequestError:
        """Return why the store cannot be read, or the error itself if the store is not at fault."""
        if self._context.links.is_closed:
            reason: str | None = "closed"
        elif isinstance(error, NoReplicaAvailableError):
            reason = next((r for c, r in REASONS if c.code in error.codes.values()), "initializing")
        else:
            reason = next((r for cls, r in REASONS if isinstance(error, cls)), None)
        if reason is None:
            return error
        hosts = getattr(error, "hosts", None)
        text = f"the store {self.name!r} cannot be read ({reason}): {error}"
        return InvalidStateStoreError(text, hosts=hosts, reason=reason)
