"""Tables, status and hand-over: what changes or shows the cluster rather than rows."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from raftstore.client.batches.dropped_writers import writers_of
from raftstore.client.cluster.topology import witnesses_of
from raftstore.client.comparing.comparison import ChannelComparison, Progress
from raftstore.client.comparing.questions import ReplicaQuestions
from raftstore.client.comparing.results import ReplicaComparison
from raftstore.client.context import Context
from raftstore.client.definitions import check_is_table
from raftstore.client.explanation import ReadExplanation, Whom, explain_read
from raftstore.client.reads.channel_reads import ChannelReads
from raftstore.client.reads.key_reads import gather_or_cancel
from raftstore.client.reads.read_spec import ANY_STATE, ReadSpec
from raftstore.client.requests.attempt import BuildRequest
from raftstore.client.requests.leader_requests import Asked, LeaderRequests
from raftstore.client.results import (
    ClusterEvents,
    ClusterStatus,
    NodeStatus,
    ReplicaDigest,
    TableDigest,
)
from raftstore.config import QuerySettings
from raftstore.errors import (
    ArgumentError,
    ConnectionInDoubtError,
    ConnectionLostError,
    OperationInDoubtError,
    RaftstoreError,
    RequestError,
    SchemaError,
    TableExistsError,
    UnknownTableError,
)
from raftstore.policy.bounds import effective_bounds
from raftstore.policy.levels import (
    DURABILITY_LEVEL,
    MACHINE_LEVEL,
    MACHINE_RESTORE_LEVEL,
    MEMBERS_LEVEL,
    RESTORE_LEVEL,
    TABLE_SETTINGS_LEVEL,
)
from raftstore.policy.routing import Prefer
from raftstore.protocol.admin import (
    Checkpoint,
    CheckpointAnswer,
    ContentHashAnswer,
    CreateTable,
    DropTable,
    EditTable,
    Events,
    EventsAnswer,
    NodeInfo,
    Status,
    StatusAnswer,
    StepDown,
    TableInfo,
)
from raftstore.protocol.message import Done, Failed
from raftstore.protocol.reads import Bounds, Served
from raftstore.protocol.requests import ClientAnswer
from raftstore.protocol.table_settings import DEFAULT_SETTINGS, SETTING_LIMITS
from raftstore.rows.partitioner import partition_of
from raftstore.rows.schema import TableSchema
from raftstore.types import (
    DURABILITIES,
    EVENT_TYPES,
    ChannelId,
    Level,
    NodeId,
    channel_partition,
    node_name,
)

CONTENT_HASHES_IN_FLIGHT = 16
"""Partitions hashed at a time, so that a table of any size leaves room for others at the node."""
_STATUS_PATIENCE_S = 1.0
"""A node that does not answer with its status within this is shown without it."""

ANSWER_MARGIN_MS: Final = 1_000
"""So much earlier than the caller a node stops waiting, a tenth of the time at most."""


FAILOVER: Final = "failover"
SEEN: Final = "failover_seen"
"""Of a failover as the new leader reports it, and as another replica saw it."""


class Admin:
    """See the module. Every method is bounded by its deadline."""

    def __init__(
        self, context: Context, leaders: LeaderRequests, channel_reads: ChannelReads
    ) -> None:
        self._context = context
        self._leaders = leaders
        self._channel_reads = channel_reads

    # --- tables ----------------------------------------------------------------------------------

    async def create_table(
        self, name: str, definition: dict[str, Any], deadline_ms: int, *, if_not_exists: bool
    ) -> TableInfo:
        """Create the table and return it; every channel has a leader then (S0.8)."""
        settings = definition["settings"]
        level = 0 if settings == DEFAULT_SETTINGS else TABLE_SETTINGS_LEVEL
        if settings.restoring is not None:
            level = RESTORE_LEVEL  # others would serve the table before it is whole
        asked = Asked(f"create table {name!r}", is_read=False, level=level)
        return await self._create(name, definition, deadline_ms, asked, if_not_exists=if_not_exists)

    async def create_channelset(
        self, name: str, definition: dict[str, Any], deadline_ms: int, *, if_not_exists: bool
    ) -> TableInfo:
        """Create the channel set and return it; every channel has a leader then."""
        if definition["durability"] not in DURABILITIES:
            names = ", ".join(DURABILITIES)
            raise ArgumentError(
                f"durability={definition['durability']!r:.80} is not known; use one of {names}"
            )
        # Others would make a table of it, or serve it before it is whole.
        is_restored = definition.get("machine_versions") is not None
        level = MACHINE_RESTORE_LEVEL if is_restored else MACHINE_LEVEL
        asked = Asked(f"create channel set {name!r}", is_read=False, level=level)
        definition = {**definition, "key_columns": (), "schema_json": ""}
        return await self._create(name, definition, deadline_ms, asked, if_not_exists=if_not_exists)

    async def _create(
        self,
        name: str,
        definition: dict[str, Any],
        deadline_ms: int,
        asked: Asked,
        *,
        if_not_exists: bool,
    ) -> TableInfo:

        def build(request_id: int, left_ms: int) -> CreateTable:
            return CreateTable(
                request_id=request_id,
                name=name,
                if_not_exists=if_not_exists,
                # The answer of the node, how many channels are led by then, is to arrive in time.
                timeout_ms=max(1, left_ms - min(left_ms // 10, ANSWER_MARGIN_MS)),
                **definition,
            )

        try:
            done = await self._ask_metadata(build, deadline_ms, asked)
        except TableExistsError as error:
            if not asked.is_in_doubt:
                raise
            raise ConnectionInDoubtError(
                f"{asked.what}: an attempt was not answered, and the table exists now ({error}); "
                "compare its definition with table_info before using it"
            ) from error
        await self._see(done, asked.what, deadline_ms)
        table = self._context.topology.table(name)
        if table is None:
            raise OperationInDoubtError(
                f"{asked.what}: the table was created, and the catalog no longer has it: another "
                "client dropped it; make sure that it is wanted before creating it again"
            )
        return self._context.topology.describe(table)

    async def drop_table(self, name: str, deadline_ms: int) -> None:
        """Remove the table with all its rows."""
        await self._context.discovery.refresh(deadline_ms)
        table = await self._context.discovery.table(name, deadline_ms)
        if table.machine:
            raise SchemaError(
                f"{name!r} is a channel set; drop_channelset (`raftstore machine rm`) removes it"
            )
        writers = await writers_of(self._context, self._leaders, table, deadline_ms)
        await self._drop(table, f"drop table {name!r}", writers, deadline_ms)

    async def drop_channelset(self, name: str, deadline_ms: int) -> None:
        """Remove the channel set with all its state."""
        table = await self.channelset_info(name, deadline_ms)
        await self._drop(table, f"drop channel set {name!r}", (), deadline_ms)

    async def _drop(
        self, table: TableInfo, what: str, writers: tuple[Any, ...], deadline_ms: int
    ) -> None:
        name, asked = table.name, Asked(what, is_read=False)
        done: ClientAnswer | None = None
        try:
            done = await self._ask_metadata(
                lambda request_id, left_ms: DropTable(
                    request_id, name, left_ms, table.uuid, writers
                ),
                deadline_ms,
                asked,
            )
        except UnknownTableError:
            if not asked.is_in_doubt:
                raise  # else: the attempt without an answer removed it
        await self._see(done, asked.what, deadline_ms)

    async def _see(self, done: ClientAnswer | None, what: str, deadline_ms: int) -> None:
        """Until the catalog held here shows what was done: a node's copy may be behind (S1.9)."""
        version = done.detail.get("version", 0) if isinstance(done, Done) else 0
        await self._look_again(what, deadline_ms)
        context = self._context
        while context.topology.version < version:
            if context.now_ms() >= deadline_ms:
                raise OperationInDoubtError(
                    f"{what}: it was done, but no node that answered shows it yet; see "
                    "`raftstore table ls` before repeating it"
                )
            await context.discovery.news(deadline_ms)

    async def _look_again(self, what: str, deadline_ms: int) -> None:
        """See what a command that was done has changed; failing here must not deny it."""
        try:
            await self._context.discovery.refresh(deadline_ms)
        except RequestError as error:
            raise OperationInDoubtError(
                f"{what}: it was done, but the catalog could not be read afterwards ({error}); "
                "see `raftstore table ls` before repeating it"
            ) from error

    async def edit_table(self, name: str, changes: dict[str, Any], deadline_ms: int) -> TableInfo:
        """Change properties of a table; returns it as it is then."""
        level = 0 if SETTING_LIMITS.keys().isdisjoint(changes) else TABLE_SETTINGS_LEVEL
        if "restoring" in changes:
            level = RESTORE_LEVEL
        if "replicas" in changes:
            level = MEMBERS_LEVEL
        asked = Asked(f"edit table {name!r}", is_read=False, level=level)
        await self._context.discovery.refresh(deadline_ms)
        uuid = (await self._context.discovery.table(name, deadline_ms)).uuid
        done = await self._ask_metadata(
            lambda request_id, left_ms: EditTable(request_id, name, uuid, changes, left_ms),
            deadline_ms,
            asked,
        )
        await self._see(done, asked.what, deadline_ms)
        return self._context.topology.describe(
            await self._context.discovery.table(name, deadline_ms)
        )

    async def tables(self, deadline_ms: int) -> tuple[TableInfo, ...]:
        """Return all tables, as a node knows them now."""
        await self._context.discovery.refresh(deadline_ms)
        return tuple(table for table in self._context.topology.tables() if not table.machine)

    async def channelsets(self, deadline_ms: int) -> tuple[TableInfo, ...]:
        """Return all channel sets, as a node knows them now."""
        await self._context.discovery.refresh(deadline_ms)
        return tuple(table for table in self._context.topology.tables() if table.machine)

    async def channelset_info(self, name: str, deadline_ms: int) -> TableInfo:
        """Return one channel set, as a node knows it now."""
        try:
            info = await self.table_info(name, deadline_ms)
        except UnknownTableError as error:
            raise UnknownTableError(
                f"there is no channel set {name!r}; correct the name (`raftstore machine ls`), or "
                "create it (create_channelset)"
            ) from error
        if not info.machine:
            raise SchemaError(f"{name!r} is a table and no channel set; see `raftstore table`")
        return info

    async def table_info(self, name: str, deadline_ms: int) -> TableInfo:
        """Return one table, as a node knows it now."""
        await self._context.discovery.refresh(deadline_ms)
        table = await self._context.discovery.table(name, deadline_ms)
        return self._context.topology.describe(table)

    async def _ask_metadata(
        self, build: BuildRequest, deadline_ms: int, asked: Asked
    ) -> ClientAnswer:
        channel = self._context.topology.metadata_channel
        assert channel is not None
        return await self._leaders.ask(channel, build, deadline_ms, asked=asked)

    # --- where and how ---------------------------------------------------------------------------

    async def explain_get(
        self, name: str, key: Any, spec: ReadSpec, node_bounds: Bounds, deadline_ms: int
    ) -> ReadExplanation:
        """The same for a key as users have it."""
        table = await self._context.discovery.table(name, deadline_ms)
        check_is_table(table)
        encoded = TableSchema(table.key_columns, table.schema_json).key_of(key)
        return await self.explain_key(name, encoded, spec, node_bounds, deadline_ms)

    async def explain_key(
        self, name: str, encoded: bytes, spec: ReadSpec, node_bounds: Bounds, deadline_ms: int
    ) -> ReadExplanation:
        """Ask every node for its state and judge who would answer a read of this key.

        ``node_bounds`` hold where neither the read nor the table names any.
        """
        only = None if spec.replica is None else self._channel_reads.node_named(spec.replica)
        status = await self.cluster_status(deadline_ms)
        table = await self._context.discovery.table(name, deadline_ms)
        # A channel set has no keys to read: what is asked of it is how fresh it is.
        probed = () if table.machine else (encoded,)
        partition = partition_of(encoded, table.partitions)
        spec = spec.for_table(table)
        bounds = effective_bounds(
            Bounds(spec.max_lag, spec.max_staleness_ms, spec.max_batches_behind),
            Bounds(table.max_lag, table.max_staleness_ms, table.max_batches_behind),
            node_bounds,
        )
        replicas = table.channels[partition].replicas
        answers = await asyncio.gather(
            *(self._probe(table, partition, node, probed, spec, deadline_ms) for node in replicas)
        )
        return explain_read(
            status,
            table,
            partition,
            spec.level,
            bounds,
            served={served.node: served for served in answers if served is not None},
            whom=Whom(
                prefer=spec.prefer or Prefer(self._context.settings.prefer),
                local=self._context.home(),
                only=only,
                min_seq=spec.min_seq(table, partition),
            ),
        )

    async def _probe(
        self,
        table: TableInfo,
        partition: int,
        node: NodeId,
        keys: tuple[bytes, ...],
        spec: ReadSpec,
        deadline_ms: int,
    ) -> Served | None:
        """The facts of an answer; a replica proves the age of its state only when asked to."""
        patience_ms = round(_STATUS_PATIENCE_S * 1000)
        until_ms = min(deadline_ms, self._context.now_ms() + patience_ms)
        bound_ms = spec.max_staleness_ms or QuerySettings().routing_timeout_ms
        channel = table.channels[partition].channel
        for level, staleness_ms in ((Level.BOUNDED, bound_ms), (Level.ANY, None)):
            probe = replace(
                ANY_STATE, level=level, max_staleness_ms=staleness_ms, replica=node_name(node)
            )
            try:
                answer = await self._channel_reads.get(channel, keys, probe, until_ms)
            except RequestError:
                continue
            return answer.served
        return None

    async def cluster_status(self, deadline_ms: int) -> ClusterStatus:
        """Ask one node for the cluster, and every node for itself."""
        answer = await self._context.discovery.refresh(deadline_ms)
        nodes = await asyncio.gather(
            *(self._node_status(info, deadline_ms) for info in answer.nodes)
        )
        topology = self._context.topology
        return ClusterStatus(
            cluster_id=answer.cluster_id.hex(),
            version=answer.version,
            age_ms=answer.age_ms,
            viewpoint=node_name(answer.answered_by),
            nodes=tuple(sorted(nodes, key=lambda node: node.name)),
            tables=tuple(map(topology.describe, answer.tables)),
            metadata_channel=topology.describe_channel(answer.metadata_channel),
        )

    async def _node_status(self, info: NodeInfo, deadline_ms: int) -> NodeStatus:
        status: dict[str, Any] | None = None
        error: str | None = None
        left_s = (deadline_ms - self._context.now_ms()) / 1000
        try:
            async with asyncio.timeout(max(0, min(_STATUS_PATIENCE_S, left_s))):
                link = self._context.links.know(info.node, info.endpoint)
                if not await link.open():
                    raise ConnectionLostError(link.last_error)
                answer = await link.request(Status)
                if isinstance(answer, StatusAnswer):
                    status = answer.status
                else:
                    error = (
                        answer.message if isinstance(answer, Failed) else "its answer is no status"
                    )
        except TimeoutError:
            error = "it did not answer in time"
        except RaftstoreError as reason:
            error = str(reason)
        return NodeStatus(
            name=node_name(info.node),
            id=info.node,
            endpoint=info.endpoint,
            up=info.up,
            status=status,
            error=error,
        )

    async def events(
        self, types: tuple[str, ...], since: Mapping[str, int], limit: int, deadline_ms: int
    ) -> ClusterEvents:
        """Ask every node for its events; ArgumentError names a type that no node keeps."""
        check_event_types(types)
        if FAILOVER in types:
            types = (*types, SEEN)
        answer = await self._context.discovery.refresh(deadline_ms)
        reported = await asyncio.gather(
            *(self._events_of(node, types, since, limit, deadline_ms) for node in answer.nodes)
        )
        found = {node_name(n.node): t for n, t in zip(answer.nodes, reported, strict=True)}
        events = merged_failovers(
            {"node": name, **event}
            for name, said in found.items()
            if isinstance(said, EventsAnswer)
            for event in said.events
        )
        return ClusterEvents(
            events=tuple(sorted(events, key=lambda event: event.get("at_wall_ms", 0))),
            next={
                name: said.next if isinstance(said, EventsAnswer) else since.get(name, 0)
                for name, said in found.items()
            },
            errors={name: said for name, said in found.items() if isinstance(said, str)},
        )

    async def checkpoint(
        self, names: Sequence[str], deadline_ms: int
    ) -> Mapping[str, Mapping[str, int] | str]:
        """Have nodes sync what they acknowledged before it was on their disks (NATS-017)."""
        answer = await self._context.discovery.refresh(deadline_ms)
        nodes = {node_name(info.node): info for info in answer.nodes}
        for name in names:
            if name not in nodes:
                known = ", ".join(sorted(nodes))
                raise ArgumentError(f"{name!r:.80} is no node; there are {known}")
        chosen = {name: nodes[name] for name in sorted(names or nodes)}
        said = await asyncio.gather(
            *(self._checkpoint_of(info, deadline_ms) for info in chosen.values())
        )
        return dict(zip(chosen, said, strict=True))

    async def _checkpoint_of(self, info: NodeInfo, deadline_ms: int) -> Mapping[str, int] | str:
        left_s = (deadline_ms - self._context.now_ms()) / 1000
        try:
            async with asyncio.timeout(max(0, left_s)):
                link = self._context.links.know(info.node, info.endpoint)
                if not await link.open():
                    return link.last_error
                if link.level < DURABILITY_LEVEL:
                    return f"it is at level {link.level}, and writes nothing before it is synced"
                answer = await link.request(Checkpoint)
        except TimeoutError:
            return "it did not answer in time; its disk may hang"
        except RaftstoreError as error:
            return str(error)
        if isinstance(answer, CheckpointAnswer):
            name_of = self._context.topology.name_of
            return {name_of(channel): seq for channel, seq in answer.durable}
        return answer.message if isinstance(answer, Failed) else "its answer is of another kind"

    async def _events_of(
        self,
        info: NodeInfo,
        types: tuple[str, ...],
        since: Mapping[str, int],
        limit: int,
        deadline_ms: int,
    ) -> EventsAnswer | str:
        left_s = (deadline_ms - self._context.now_ms()) / 1000
        start = since.get(node_name(info.node), 0)
        try:
            async with asyncio.timeout(max(0, min(_STATUS_PATIENCE_S, left_s))):
                link = self._context.links.know(info.node, info.endpoint)
                if not await link.open():
                    return link.last_error
                answer = await link.request(lambda number: Events(number, start, types, limit))
        except TimeoutError:
            return "it did not answer in time"
        except RaftstoreError as error:
            return str(error)
        if isinstance(answer, EventsAnswer):
            return answer
        return answer.message if isinstance(answer, Failed) else "its answer holds no events"

    # --- checks and operations -------------------------------------------------------------------

    async def content_hash(
        self, name: str, replica: str, only: int | None, deadline_ms: int
    ) -> TableDigest:
        """Hash every partition of the table at one node that hosts it, or only one."""
        table = await self._context.discovery.table(name, deadline_ms)
        node = self._channel_reads.node_named(replica)
        hosted = [
            (partition, channel.channel)
            for partition, channel in enumerate(table.channels)
            if node in channel.replicas
            and node not in witnesses_of(channel)
            and only in (None, partition)
        ]
        lanes = asyncio.Semaphore(CONTENT_HASHES_IN_FLIGHT)

        async def answer_of(channel: ChannelId) -> ContentHashAnswer:
            async with lanes:
                return await self._channel_reads.content_hash(channel, node, deadline_ms)

        answers = await gather_or_cancel([answer_of(channel) for _, channel in hosted])
        return TableDigest(
            table=name,
            node=node_name(node),
            partitions=tuple(
                ReplicaDigest(
                    partition=partition,
                    node=node_name(node),
                    digest=answer.digest.hex(),
                    rows=answer.rows,
                    applied_seq=answer.served.applied_seq,
                )
                for (partition, _), answer in zip(hosted, answers, strict=True)
            ),
        )

    async def compare_replicas(
        self, channel: str, keys_max: int, progress: Progress | None, timeout_ms: int
    ) -> ReplicaComparison:
        """Compare the replicas of ``table/partition`` by their histories and entry by entry."""
        deadline_ms = self._context.now_ms() + timeout_ms
        channel_id = await self.channel_named(channel, deadline_ms)
        if channel_id == self._context.topology.metadata_channel:
            raise ArgumentError("the catalog has no rows; name a channel of a table, as orders/0")
        table = await self._context.discovery.table(channel.rpartition("/")[0], deadline_ms)
        placed = table.channels[channel_partition(channel_id)]
        comparison = ChannelComparison(
            channel,
            tuple(node for node in placed.replicas if node not in witnesses_of(placed)),
            ReplicaQuestions(self._context, channel_id),
            None if table.machine else TableSchema(table.key_columns, table.schema_json),
            now_ms=self._context.now_ms,
            timeout_ms=timeout_ms,
            shown_max=keys_max,
            progress=progress or (lambda _: None),
        )
        return await comparison.compare()

    async def step_down(self, channel: str, target: str | None, deadline_ms: int) -> None:
        """Have the leader of ``table/partition`` hand over, to ``target`` if given (S9)."""
        channel_id = await self.channel_named(channel, deadline_ms)
        to = None if target is None else self._channel_reads.node_named(target)
        before = self._context.topology.leader_of(channel_id)
        try:
            await self._leaders.ask(
                channel_id,
                lambda request_id, left_ms: StepDown(request_id, channel_id, to, left_ms),
                deadline_ms,
                asked=Asked(f"hand-over of {channel}", is_read=False),
                is_repeatable=False,
            )
        except ConnectionInDoubtError:
            # The new leader may be known earlier than the old one answers: it is all that is asked.
            leader = self._context.topology.leader_of(channel_id)
            is_new = before is not None and leader is not None and leader.term > before.term
            if leader is None or not is_new or to not in (None, leader.node):
                raise
        await self._look_again(f"hand-over of {channel}", deadline_ms)

    async def channel_named(self, channel: str, deadline_ms: int) -> ChannelId:
        """Return the id of ``table/partition``; ArgumentError for what is none."""
        name, _, partition_text = channel.rpartition("/")
        metadata = self._context.topology.metadata_channel
        if metadata is not None and channel == self._context.topology.name_of(metadata):
            return metadata
        if not name or not partition_text.isdecimal():
            raise ArgumentError(f"{channel!r} is no channel; write table/partition, as in orders/0")
        table = await self._context.discovery.table(name, deadline_ms)
        if int(partition_text) >= table.partitions:
            raise ArgumentError(
                f"the table {name!r} has the partitions 0 to {table.partitions - 1}, "
                f"not {partition_text}"
            )
        return table.channels[int(partition_text)].channel


def merged_failovers(events: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """One event for each failover (N8): the new leader's own, or else what a replica saw of it."""
    found = list(events)
    own: dict[tuple[Any, Any], dict[str, Any]] = {}
    for wanted in (FAILOVER, SEEN):
        for event in found:
            if event["type"] == wanted:
                own.setdefault((event.get("channel"), event.get("term")), event)
    reported = {id(event) for event in own.values()}
    return [
        {**event, "type": FAILOVER} if event["type"] == SEEN else event
        for event in found
        if event["type"] not in (FAILOVER, SEEN) or id(event) in reported
    ]


def check_event_types(types: Sequence[str]) -> None:
    """An unknown type would match nothing, which reads like "nothing happened"."""
    for name in types:
        if name not in EVENT_TYPES:
            known = ", ".join(EVENT_TYPES)
            raise ArgumentError(f"there are no events of type {name!r}; use one of {known}")
