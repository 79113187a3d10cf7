"""The client for asyncio programs: one object per cluster, shared by all tasks of a loop."""

# ruff: noqa: ASYNC109 - timeout is what our callers expect to name, here as in blocking.py

from __future__ import annotations

import asyncio
import random
from collections.abc import Coroutine, Mapping, Sequence
from dataclasses import replace
from functools import partial
from types import TracebackType
from typing import Any, ClassVar, Self, Unpack

from raftstore.client.admin import Admin
from raftstore.client.arguments import flag, optional_function, text, texts, whole
from raftstore.client.auditing.audit import Audit
from raftstore.client.auditor import Auditor
from raftstore.client.batches.batch_writes import BatchWrites
from raftstore.client.cluster.discovery import Discovery, split_endpoints
from raftstore.client.cluster.links import Links, NodeLink
from raftstore.client.cluster.route_book import RouteBook
from raftstore.client.cluster.topology import Topology
from raftstore.client.comparing.comparison import Progress
from raftstore.client.comparing.results import ReplicaComparison
from raftstore.client.context import Context, timeout_in_ms
from raftstore.client.definitions import (
    SettingsGiven,
    TableEdits,
    check_is_table,
    table_changes,
    table_definition,
    warn_of_even_replicas,
)
from raftstore.client.explanation import ReadExplanation
from raftstore.client.kip535 import (
    AsyncReadOnlyStore,
    Listeners,
    Metadata,
    NodeMetadata,
    OnChange,
    Partitioner,
    Serializer,
)
from raftstore.client.machines.calls import MachineCalls
from raftstore.client.members import (
    TOKEN_LIFETIME_S,
    ClusterMember,
    Members,
    lifetime_in_ms,
)
from raftstore.client.opened import check_loop
from raftstore.client.reads.channel_reads import ChannelReads
from raftstore.client.reads.read_spec import CountOptions, ReadOptions, spec_of
from raftstore.client.rebalancing import RebalanceProposal, RebalanceStatus, Rebalancing
from raftstore.client.replicas import ReplicaChange, ReplicaOrders
from raftstore.client.requests.leader_requests import LeaderRequests
from raftstore.client.results import (
    ClusterEvents,
    ClusterStatus,
    CountResult,
    KeyQueryMetadata,
    TableDigest,
    WriteFate,
)
from raftstore.client.settings import ClientSettings, checked_settings
from raftstore.client.table import AsyncTable
from raftstore.client.writes.publisher import Publisher
from raftstore.client.writes.write_outcomes import WriteOutcomeQueries
from raftstore.errors import ArgumentError
from raftstore.policy.health import HealthState
from raftstore.policy.lag import LagInfo
from raftstore.protocol.admin import ClusterViewAnswer, TableInfo
from raftstore.protocol.batches import ADOPT, REMOVE
from raftstore.protocol.publish import PubAck, PubReject
from raftstore.types import DurabilityName, NodeId


class AsyncClient(MachineCalls):
    """Made by ``raftstore.aio.connect(...)``; close it, or use it as a context manager.

    Any of the given addresses suffices to find the cluster. ``timeout`` of every method is in
    seconds (default: that of the client) and bounds the whole call with its retries; no call hangs
    past it.
    """

    _link_type: ClassVar[type[NodeLink]] = NodeLink
    """What connects it to a node."""

    def __init__(self, endpoints: str | Sequence[str], settings: ClientSettings) -> None:
        """Build it without contacting anybody; ``connect`` does that."""
        loop = asyncio.get_running_loop()
        jitter = random.Random().random

        def now_ms() -> int:
            check_loop(loop)
            return int(loop.time() * 1000)

        addresses = split_endpoints(endpoints)
        self._endpoints = ",".join(addresses)
        topology = Topology()
        links = Links(
            self, settings=settings, jitter=jitter, now_ms=now_ms, link_type=self._link_type
        )
        book = RouteBook(partial(_reach, links))
        self._discovery = Discovery(
            addresses,
            topology,
            links,
            settings=settings,
            now_ms=now_ms,
            on_answer=lambda answer: book.learn_cluster(answer, now_ms()),
        )
        self._context = Context(topology, links, self._discovery, settings, jitter, book, now_ms)
        self._publisher = Publisher(self._context)
        self._leaders = leaders = LeaderRequests(self._context)
        self._channel_reads = ChannelReads(self._context)
        self._auditor = Auditor(self._context, self._channel_reads)
        self._admin = Admin(self._context, leaders, self._channel_reads)
        self._members = Members(self._context, leaders)
        self._replicas = ReplicaOrders(self._context, leaders)
        self._rebalancing = Rebalancing(self._context, leaders)
        self._metadata = Metadata(self._context)
        self._listeners = Listeners(topology)
        self._write_outcomes = WriteOutcomeQueries(self._context, leaders)

    @classmethod
    async def connect(
        cls,
        endpoints: str | Sequence[str],
        *,
        timeout: float | None = None,
        settings: ClientSettings | None = None,
        audit: Audit | None = None,
    ) -> Self:
        """Find the cluster within ``timeout`` seconds (5), which becomes the default of all calls.

        Raises UnavailableError with a reason per address, ConfigError for a bad address.
        """
        settings = checked_settings(settings)
        if timeout is not None:
            settings = replace(settings, timeout_ms=timeout_in_ms(timeout))
        if audit is not None:
            settings = replace(settings, audit=audit)
        client = cls(endpoints, settings)
        try:
            await client._discovery.start(client._context.deadline_ms(None))
            client._auditor.start()
        except BaseException:
            await client.close()
            raise
        return client

    def __repr__(self) -> str:
        topology = self._context.topology
        cluster = topology.cluster_id.hex()[:8] or "none yet"
        state = "closed" if self._context.links.is_closed else "open"
        return (
            f"<{type(self).__name__} of {self._endpoints}: cluster {cluster}, "
            f"{len(topology.nodes)} nodes, {state}>"
        )

    # --- tables ----------------------------------------------------------------------------------

    def table(self, name: str) -> AsyncTable:
        """Return a handle of a table; whether it exists is found out when it is used."""
        name = text("name", name)
        return AsyncTable(name, self._context, self._publisher, self._channel_reads)

    def create_table(  # noqa: PLR0913 - a definition has many parts, all by name
        self,
        name: str,
        *,
        key: str | Sequence[str],
        partitions: int = 8,
        replicas: int = 3,
        schema: Any = None,
        durability: DurabilityName = "fsync",
        max_lag: int | None = None,
        if_not_exists: bool = False,
        timeout: float | None = None,
        **settings: Unpack[SettingsGiven],
    ) -> Coroutine[Any, Any, TableInfo]:
        """Create a table; every channel has a leader when this returns.

        ``name``: 1 to 128 letters (a to z, A to Z), digits, "_", "." and "-", the first of them a
        letter or digit.
        ``schema`` names columns and types: ``{"id": "long"}``, ``"id long, total double"`` as in
        Spark SQL, or Spark's schema or its JSON; without one a table takes any columns.
        A schema of the key columns alone fixes their types and leaves the other columns free.
        ``max_lag`` is the bound of level bounded where a read names none. ``settings``:
        retention_bytes, retention_records and retention_age (seconds) of the log of each partition,
        ttl (how long rows live that are written without a ttl of their own, see ``table.put``);
        what is not named is decided by the nodes' own settings. TableExistsError if there is one;
        with ``if_not_exists`` only if it has another definition.
        """
        warn_of_even_replicas(replicas)

        async def create() -> TableInfo:
            definition = table_definition(
                key=key,
                partitions=partitions,
                replicas=replicas,
                schema=schema,
                durability=durability,
                max_lag=max_lag,
                settings=settings,
            )
            flag("if_not_exists", if_not_exists)
            return await self._admin.create_table(
                text("name", name),
                definition,
                self._context.deadline_ms(timeout),
                if_not_exists=if_not_exists,
            )

        return create()

    async def alter_table(
        self, name: str, *, timeout: float | None = None, **changes: Unpack[TableEdits]
    ) -> TableInfo:
        """Change settings of a table, or what bounds reads that name none, or append columns.

        The settings: retention_bytes, retention_records, retention_age (seconds), ttl (of rows
        that are written from then on, by clients that know of it). The bounds:
        max_lag (rows), max_staleness (seconds), max_batches_behind, max_replica_lag, standby_reads.
        None removes one. Every node goes by them as soon as its copy of the catalog has them.
        Raises ArgumentError for a value that cannot be, StoreTooOldError while a node of an older
        version could not go by a setting. ``add_columns`` appends columns that the table lacks, as
        a schema of Spark or its ``json()``; they are null in the rows that are there, and one that
        is there with another type is refused (SchemaError).
        """
        return await self._admin.edit_table(
            text("name", name), table_changes(changes), self._context.deadline_ms(timeout)
        )

    async def edit_table(
        self, name: str, *, timeout: float | None = None, **changes: Unpack[TableEdits]
    ) -> TableInfo:
        """The same as ``alter_table``, under its earlier name."""
        return await self.alter_table(name, timeout=timeout, **changes)

    async def drop_table(self, name: str, *, timeout: float | None = None) -> None:
        """Remove a table with all its rows; UnknownTableError if there is none."""
        await self._admin.drop_table(text("name", name), self._context.deadline_ms(timeout))

    async def tables(self, *, timeout: float | None = None) -> tuple[TableInfo, ...]:
        """Return all tables in name order, with placement and leaders."""
        return await self._admin.tables(self._context.deadline_ms(timeout))

    async def table_info(self, name: str, *, timeout: float | None = None) -> TableInfo:
        """Return a table's definition, placement and leaders."""
        info = await self._admin.table_info(text("name", name), self._context.deadline_ms(timeout))
        check_is_table(info)
        return info

    # --- the cluster -----------------------------------------------------------------------------

    async def query_metadata_for_key(
        self,
        table: str,
        key: Any,
        *,
        serializer: Serializer | None = None,
        partitioner: Partitioner | None = None,
        timeout: float | None = None,
    ) -> KeyQueryMetadata:
        """Return leader, other replicas and partition of a key: hints for routing (KIP-535).

        ``serializer`` encodes the key and ``partitioner`` chooses the partition of an encoded key,
        instead of the table's own ways.
        """
        optional_function("serializer", serializer)
        optional_function("partitioner", partitioner)
        return await self._metadata.of_key(
            text("table", table),
            key,
            self._context.deadline_ms(timeout),
            serializer=serializer,
            partitioner=partitioner,
        )

    async def standby_metadata_for_key(
        self, table: str, key: Any, *, timeout: float | None = None
    ) -> tuple[NodeMetadata, ...]:
        """Return the nodes that replicate a key's partition without leading it."""
        deadline_ms = self._context.deadline_ms(timeout)
        return await self._metadata.standbys_of_key(text("table", table), key, deadline_ms)

    async def all_metadata(self, *, timeout: float | None = None) -> tuple[NodeMetadata, ...]:
        """Return every node with the channels it leads and those it follows."""
        return await self._metadata.all(self._context.deadline_ms(timeout))

    async def all_local_store_partition_lags(
        self, node: str | None = None, *, timeout: float | None = None
    ) -> dict[str, dict[int, LagInfo]]:
        """Return the lag of every replica that a node hosts: table -> partition -> lag.

        Without a name it is the home node of the settings, else the one that answers first.
        """
        return await self._metadata.lags_of(node, self._context.deadline_ms(timeout))

    async def cluster_view(
        self, node: str | None = None, *, timeout: float | None = None
    ) -> ClusterViewAnswer:
        """Return a node's viewpoint: nodes, leaders, positions and lags of replicas (hints).

        Without a name it is the home node of the settings, else the one that answers first.
        """
        return await self._metadata.view(node, self._context.deadline_ms(timeout))

    async def store(
        self,
        table: str,
        include_stale_stores: bool = False,  # noqa: FBT001, FBT002 - KIP-535's own shape
        *,
        node: str | None = None,
        timeout: float | None = None,
    ) -> AsyncReadOnlyStore:
        """Return a read-only view of a table; every call checks again whether it may be read.

        Without stale stores only the leader serves, with them any replica, or the named node alone.
        InvalidStateStoreError, with its reason, when it cannot be read.
        """
        store = AsyncReadOnlyStore(
            self.table(table), self._context, include_stale_stores=include_stale_stores, node=node
        )
        await store.check(self._context.deadline_ms(timeout))
        return store

    def on_change(self, callback: OnChange) -> None:
        """Call ``callback(channel, metadata)`` whenever another node leads a channel.

        It is called on the client's event loop and must return at once; what it raises is logged.
        """
        self._listeners.add(callback)

    async def count(self, table: str, **options: Unpack[CountOptions]) -> CountResult:
        """Count rows; takes what ``table.count`` takes."""
        return await self.table(table).count(**options)

    async def fate(self, guid: str, *, timeout: float | None = None) -> WriteFate:
        """Return what became of a write, by the guid of its ack or of its error.

        "not_applied" is a promise that it never will be; "unknown" says why. Single writes that
        shared a record share its guid, and the answer is true of all of them.
        """
        return await self._write_outcomes.fate(guid, self._context.deadline_ms(timeout))

    async def adopt_writer(
        self,
        table: str,
        writer: str,
        *,
        lineage: str | None = None,
        timeout: float | None = None,
    ) -> None:
        """Let a writer of batches begin at any batch id again, for the checkpoint ``lineage``.

        None: for the next one that comes. For a checkpoint that was made anew or set back: whether
        batches are then written twice is for the caller to know.
        """
        await self._edit_writer(table, writer, ADOPT, lineage, timeout)

    async def remove_writer(self, table: str, writer: str, *, timeout: float | None = None) -> None:
        """Forget a writer of batches: its next batch is the first one, whatever its id."""
        await self._edit_writer(table, writer, REMOVE, None, timeout)

    async def _edit_writer(
        self, table: str, writer: str, action: str, lineage: str | None, timeout: float | None
    ) -> None:
        deadline_ms = self._context.deadline_ms(timeout)
        info = await self._discovery.table(text("table", table), deadline_ms)
        batches = BatchWrites(self._context)
        await batches.edit_writer(info, writer, action, lineage, deadline_ms)

    async def events(
        self,
        types: Sequence[str] | str = (),
        since: Mapping[str, int] | None = None,
        *,
        limit: int = 1_000,
        timeout: float | None = None,
    ) -> ClusterEvents:
        """Return what the nodes noticed (``types``: failover, role, peer_health, ...; none: all).

        ``since`` is the ``next`` of an earlier answer.
        """
        chosen = texts("types", types)
        whole("limit", limit, 1)
        if since is not None and not isinstance(since, Mapping):
            raise ArgumentError(
                f"since={since!r:.80} is no map of nodes to numbers; give `next` of an answer"
            )
        deadline_ms = self._context.deadline_ms(timeout)
        return await self._admin.events(chosen, since or {}, limit, deadline_ms)

    async def explain_get(
        self, table: str, key: Any, **options: Unpack[ReadOptions]
    ) -> ReadExplanation:
        """Return which replicas a read would ask now, in which order, and why not the others."""
        deadline_ms = self._context.deadline_ms(options.get("timeout"))
        spec = spec_of(options)
        view = await self._metadata.view(None, deadline_ms)
        return await self._admin.explain_get(
            text("table", table), key, spec, view.bounds, deadline_ms
        )

    async def cluster_status(self, *, timeout: float | None = None) -> ClusterStatus:
        """Return the cluster as one node sees it, with every node's own state."""
        return await self._admin.cluster_status(self._context.deadline_ms(timeout))

    async def content_hash(
        self,
        table: str,
        replica: str,
        *,
        partition: int | None = None,
        timeout: float | None = None,
    ) -> TableDigest:
        """Hash a table's rows at one node, of one partition or all that it hosts.

        Equal hashes at equal seqs mean equal replicas.
        """
        deadline_ms = self._context.deadline_ms(timeout)
        return await self._admin.content_hash(text("table", table), replica, partition, deadline_ms)

    async def compare_replicas(
        self,
        channel: str,
        *,
        keys_max: int = 20,
        progress: Progress | None = None,
        timeout: float | None = None,
    ) -> ReplicaComparison:
        """Compare all replicas of a channel by their histories and entry by entry.

        ``channel``: ``table/partition``. Writes go on meanwhile; what replicas hold is compared at
        one position. ``keys_max``: so many differing keys are named at most. ``progress`` is called
        with how far it is. ``timeout``: for the replicas to come to one position, and not for the
        comparison. A replica that cannot be asked is left out, and the result says why.
        """
        whole("keys_max", keys_max, 1)
        optional_function("progress", progress)
        timeout_ms = self._context.timeout_ms(timeout)
        name = text("channel", channel)
        return await self._admin.compare_replicas(name, keys_max, progress, timeout_ms)

    async def checkpoint(
        self, nodes: Sequence[str] = (), *, timeout: float | None = None
    ) -> Mapping[str, Mapping[str, int] | str]:
        """Have nodes (default: all) sync what they acknowledged before it was on their disks.

        Tables with ``durability`` ``buffered`` or ``memory`` need it before power is switched off.
        Returns for each node up to which seq each of their channels (``table/partition``) is on its
        disk, or why the node did not answer.
        """
        names = texts("nodes", nodes)
        return await self._admin.checkpoint(names, self._context.deadline_ms(timeout))

    async def members(self, *, timeout: float | None = None) -> tuple[ClusterMember, ...]:
        """Return the nodes of the cluster, as one of them knows them."""
        return await self._members.list(self._context.deadline_ms(timeout))

    async def join_token(
        self,
        *,
        replaces: str | None = None,
        lifetime: float = TOKEN_LIFETIME_S,
        force: bool = False,
        timeout: float | None = None,
    ) -> str:
        """Let one new node join within ``lifetime`` seconds; returns the token for its ``--join``.

        ``replaces``: a node whose store is lost and whose place the new one takes. It never comes
        back, and its replicas count as dead until they are elsewhere: refused (StillMemberError,
        UnavailableError) where it is up, or channels would lose their quorum, unless ``force``.
        """
        name = "" if replaces is None else text("replaces", replaces)
        lifetime_ms = lifetime_in_ms(lifetime)
        is_forced = flag("force", force)
        deadline_ms = self._context.deadline_ms(timeout)
        return await self._members.join_token(name, lifetime_ms, deadline_ms, is_forced=is_forced)

    async def drain_node(
        self, node: str, *, drains: bool = True, timeout: float | None = None
    ) -> None:
        """Place no further replicas on a node; ``drains=False`` takes that back."""
        deadline_ms = self._context.deadline_ms(timeout)
        await self._members.drain(text("node", node), deadline_ms, drains=flag("drains", drains))

    async def remove_node(self, node: str, *, timeout: float | None = None) -> None:
        """Retire a node that drains and has no replica any more; its id never comes back.

        Raises StillMemberError while it has one.
        """
        await self._members.remove(text("node", node), self._context.deadline_ms(timeout))

    async def order_replicas(
        self,
        channel: str,
        nodes: Sequence[str],
        *,
        learners: Sequence[str] = (),
        witnesses: Sequence[str] = (),
        reason: str | None = None,
        force: bool = False,
        timeout: float | None = None,
    ) -> int:
        """Order that ``nodes`` vote in ``table/partition``; returns the number of the order.

        ``learners`` become read replicas, which never vote. ``witnesses`` are those of the new
        voters that keep the log without the rows; present witnesses stay what they are.

        It is carried out by the leader of the channel, one replica after another; ``replicas``
        shows how far it is. Raises ChangePendingError while another order is open, and
        UnavailableError where too few nodes are up for it, unless ``force``.
        """
        deadline_ms = self._context.deadline_ms(timeout)
        voters, others = texts("nodes", nodes), texts("learners", learners)
        without_rows = texts("witnesses", witnesses)
        found = await self._admin.channel_named(text("channel", channel), deadline_ms)
        return await self._replicas.order(
            (channel, found),
            voters,
            others,
            "" if reason is None else text("reason", reason),
            deadline_ms,
            is_forced=flag("force", force),
            witnesses=without_rows,
        )

    async def cancel_order(
        self, channel: str, change: int, *, timeout: float | None = None
    ) -> None:
        """End an order for the replicas of ``table/partition`` where it is.

        Raises ChangeDoneError when it is not open any more.
        """
        deadline_ms = self._context.deadline_ms(timeout)
        number = whole("change", change, 1)
        found = await self._admin.channel_named(text("channel", channel), deadline_ms)
        await self._replicas.cancel((channel, found), number, deadline_ms)

    async def replicas(self, *, timeout: float | None = None) -> tuple[ReplicaChange, ...]:
        """Return every channel with its replicas, and the orders for others."""
        return await self._replicas.list(self._context.deadline_ms(timeout))

    async def plan_rebalance(self, *, timeout: float | None = None) -> RebalanceProposal:
        """Plan which replicas should move so that nodes hold even shares; nothing is moved."""
        return await self._rebalancing.plan(self._context.deadline_ms(timeout))

    async def start_rebalance(
        self, plan: RebalanceProposal, *, reason: str | None = None, timeout: float | None = None
    ) -> int:
        """Begin the moves of a plan; returns the number of the rebalance.

        Raises ChangePendingError while another one is open, or where the plan is not of the present
        replicas any more.
        """
        words = "" if reason is None else text("reason", reason)
        return await self._rebalancing.start(plan, words, self._context.deadline_ms(timeout))

    async def rebalance_status(self, *, timeout: float | None = None) -> RebalanceStatus:
        """Return how far the open rebalance is, or how the last one ended."""
        return await self._rebalancing.status(self._context.deadline_ms(timeout))

    async def cancel_rebalance(self, number: int = 0, *, timeout: float | None = None) -> None:
        """Begin no further move, and end those under way where they are. 0: of the open one.

        Raises ChangeDoneError when it is not open, or is being cancelled already.
        """
        chosen = whole("number", number, 0)
        await self._rebalancing.cancel(chosen, self._context.deadline_ms(timeout))

    async def throttle_copies(self, bytes_per_s: int, *, timeout: float | None = None) -> None:
        """Let each node send so many bytes of tables a second at most; 0: as it is set."""
        most = whole("bytes_per_s", bytes_per_s, 0)
        await self._rebalancing.throttle(most, self._context.deadline_ms(timeout))

    async def balance_leaders(self, is_on: bool | None, *, timeout: float | None = None) -> None:  # noqa: FBT001
        """Have leaders made even by themselves, or not; None: as ``rebalance.leaders`` is set."""
        if is_on not in (True, False, None):
            raise ArgumentError(f"is_on={is_on!r:.80} is no switch; give True, False or None")
        await self._rebalancing.switch_leaders(is_on, self._context.deadline_ms(timeout))

    async def tag_node(self, node: str, tag: str, *, timeout: float | None = None) -> None:
        """Tag a node ``permanent_offline`` or ``temporary_offline``; ``none`` takes it away."""
        deadline_ms = self._context.deadline_ms(timeout)
        await self._rebalancing.tag(text("node", node), text("tag", tag), deadline_ms)

    async def step_down(
        self, channel: str, *, target: str | None = None, timeout: float | None = None
    ) -> None:
        """Have the leader of ``table/partition`` hand over, to the node ``target`` if given."""
        await self._admin.step_down(
            text("channel", channel), target, self._context.deadline_ms(timeout)
        )

    # --- life ------------------------------------------------------------------------------------

    async def close(self) -> None:
        """End all connections. Running calls end, too: writes without an answer as UNKNOWN."""
        await self._auditor.close()
        self._publisher.close()
        await self._discovery.close()
        await self._context.links.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    # --- links.LinkOwner -------------------------------------------------------------------------

    def on_publish_answer(self, node: NodeId, message: PubAck | PubReject) -> None:
        """Hand it to the write that waits for it."""
        self._publisher.on_publish_answer(node, message)

    def on_link_open(self, node: NodeId) -> None:
        """Writes may go on."""
        self._publisher.on_link_open(node)

    def on_query_link_lost(self, node: NodeId) -> None:
        """Refresh the topology at once: channels that the node led may need another leader."""
        self._context.book.lost(node, self._context.now_ms())
        self._discovery.want_leaders()

    def on_link_lost(self, node: NodeId, reason: str) -> None:
        """Refresh the topology at once: channels that the node led need another leader."""
        self._discovery.want_leaders()
        self._publisher.on_link_lost(node, reason)

    def on_link_dismissed(self, node: NodeId, reason: str) -> None:
        """The node is as well as before; what was on the way to it is sent again."""
        self._publisher.on_link_lost(node, reason)


def _reach(links: Links, node: NodeId) -> HealthState:
    """How a node looks from here: by the connection to it."""
    link = links.query(node)
    if link is None or (link.is_settled and not link.is_open):
        return HealthState.DOWN
    return HealthState.UP if link.is_open else HealthState.UNKNOWN
