"""Keeps this node's channels in step with the catalog, and changes the catalog when it leads it.

The catalog is the applied state of the metadata channel. Every node hosts that channel; a node
without a metadata leader goes on with its last committed copy (S1.9). Tables exist only by a
committed command: no message ever creates a channel (S0.8).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import msgspec

from raftstore.cluster.placement import PlacementError, place_table
from raftstore.config import FRAME_BYTES_MAX, WAITING_COMMANDS_MAX
from raftstore.engine.channel_runner import ChannelHost, ChannelRunner
from raftstore.engine.node_ports import NodeIdentity
from raftstore.engine.peer_watch import PeerWatch
from raftstore.engine.proposals import OnOutcome, Proposals
from raftstore.engine.reads import Reader
from raftstore.engine.table_definition import definition_problem, entry_of
from raftstore.errors import UnknownChannelError
from raftstore.machines.catalog import (
    Catalog,
    CatalogMachine,
    TableEntry,
    create_table_command,
    drop_table_command,
    register_node_command,
)
from raftstore.machines.table import TableMachine
from raftstore.messages import Message, PubAck, PubReject
from raftstore.ports import ElectorFactory
from raftstore.requests import (
    ChannelInfo,
    ClusterInfo,
    ClusterInfoAnswer,
    CreateTable,
    Done,
    DropTable,
    Failed,
    NodeInfo,
    StepDown,
    TableInfo,
)
from raftstore.types import (
    ChannelConfig,
    ChannelId,
    NodeId,
    Role,
    Term,
    channel_id,
    node_name,
)

METADATA_NAME = "_metadata/0"
CATALOG_ROWS_MAX = 1_000_000
"""A safety bound on one scan of the catalog; far above PARTITIONS_MAX tables."""
CATALOG_BYTES_MAX = FRAME_BYTES_MAX // 2
"""Tables with their schemas and placements: all of them travel in one answer to discovery, which
adds the leaders."""


class KeeperHost(ChannelHost, Protocol):
    """What the keeper needs of its node, besides what the channels it opens need."""

    identity: NodeIdentity
    channels: dict[ChannelId, ChannelRunner]
    metadata_channel: ChannelId
    watch: PeerWatch
    reader: Reader

    def creation_config(self) -> ChannelConfig:
        """Creation configuration of the metadata channel."""

    def add_channel(self, runner: ChannelRunner, now_ms: int) -> None:
        """A channel was opened."""

    def remove_channel(self, channel: ChannelId) -> None:
        """The table of a channel was dropped."""

    def answer(self, client: int, message: Message) -> None:
        """Answer a client."""


@dataclass(slots=True)
class _Waiting:
    """A client that waits for leaders of a new table, or for a hand-over."""

    client: int
    request_id: int
    deadline_ms: int
    channels: tuple[ChannelId, ...]
    was_leader: tuple[NodeId, Term] | None = None
    what: str = ""


class CatalogKeeper:
    """Catalog of one node: its view, its channels, its commands."""

    def __init__(self, node: KeeperHost, elector_factory: ElectorFactory) -> None:
        self._node = node
        self._elector_factory = elector_factory
        self.catalog = Catalog.empty()
        self.proposals = Proposals(node.ids)
        self._waiting: list[_Waiting] = []
        self._seen: dict[NodeId, str] = dict(node.identity.configured)
        if node.identity.advertise:
            self._seen[node.me] = node.identity.advertise
        self._registering: dict[NodeId, str] = {}

    def start(self, now_ms: int) -> None:
        """Open the metadata channel, then the channels of its last committed state."""
        node = self._node
        runner = ChannelRunner(
            node,
            channel=node.metadata_channel,
            name=METADATA_NAME,
            creation_config=node.creation_config(),
            machine=CatalogMachine(),
            durability="fsync",
            elector_factory=self._elector_factory,
        )
        node.add_channel(runner, now_ms)
        self.on_catalog_applied(now_ms)

    @property
    def metadata(self) -> ChannelRunner:
        """The metadata channel of this node."""
        return self._node.channels[self._node.metadata_channel]

    def endpoints(self) -> dict[NodeId, str]:
        """Every known node with its newest endpoint, in a stable order.

        S0.7: what was seen or configured since the start counts most, then the catalog; where the
        founders were at the birth is only believed of those that nothing newer is known of.
        """
        founding = dict(self._node.identity.members)
        catalog = {entry.node: entry.endpoint for entry in self.catalog.nodes.values()}
        return dict(sorted({**founding, **catalog, **self._seen}.items()))

    # --- the catalog changed ----------------------------------------------------------------------

    def on_catalog_applied(self, now_ms: int) -> None:
        """Read the catalog anew and open or close channels accordingly."""
        node = self._node
        page = node.tables.scan(node.metadata_channel, b"", b"", CATALOG_ROWS_MAX)
        assert not page.more
        rows = ((row.key, row.value) for row in page.rows)
        self.catalog = Catalog.from_rows(rows, page.applied_seq)
        for entry in self.catalog.nodes.values():
            node.watch.add_peer(entry.node, now_ms)
        node.watch.forget_hints(
            lambda channel: channel in node.channels or self.catalog.table_of(channel) is not None
        )
        wanted: dict[ChannelId, tuple[TableEntry, int]] = {}
        for table in self.catalog.tables.values():
            for partition, replicas in enumerate(table.placement):
                if node.me in replicas:
                    wanted[channel_id(table.uuid, partition)] = (table, partition)
        for channel in tuple(node.channels):
            if channel != node.metadata_channel and channel not in wanted:
                node.event("channel_closed", channel=node.channels[channel].name)
                node.remove_channel(channel)
        for channel, (table, partition) in wanted.items():
            if channel not in node.channels:
                self._open(channel, table, partition, now_ms)
        self._check_waiting(now_ms)

    def leader_changed(self, runner: ChannelRunner) -> None:
        """A channel got or lost its leader; waiting clients are answered on the next timer."""
        if runner.channel == self._node.metadata_channel:
            self._registering.clear()

    def on_endpoint_seen(self, node: NodeId, endpoint: str) -> None:
        """A peer said where it can be reached (addresses may change, S0.7)."""
        if endpoint:
            self._seen[node] = endpoint

    def _open(self, channel: ChannelId, table: TableEntry, partition: int, now_ms: int) -> None:
        try:
            runner = ChannelRunner(
                self._node,
                channel=channel,
                name=f"{table.name}/{partition}",
                creation_config=ChannelConfig((tuple(table.placement[partition]),)),
                machine=TableMachine(),
                durability=table.durability,
                elector_factory=self._elector_factory,
                max_lag=table.max_lag,
            )
        except UnknownChannelError:
            # S0.8: the catalog is applied again from an earlier position, and has not come to the
            # drop of this table yet, which the log remembers.
            return
        self._node.add_channel(runner, now_ms)

    # --- timers -----------------------------------------------------------------------------------

    def next_deadline_ms(self) -> int | None:
        """Waiting clients are looked at with every timer turn; the earliest deadline counts."""
        return min((w.deadline_ms for w in self._waiting), default=None)

    def on_timer(self, now_ms: int) -> None:
        """Register nodes where this node leads the metadata; answer waiting clients."""
        self._register_nodes(now_ms)
        self._check_waiting(now_ms)

    def _register_nodes(self, now_ms: int) -> None:
        """The catalog names every node with its present endpoint."""
        runner = self.metadata
        if runner.elector.role is not Role.LEADER or not runner.core.leader_is_ready:
            return
        for node, endpoint in self.endpoints().items():
            known = self.catalog.nodes.get(node_name(node))
            if known is not None and (known.node, known.endpoint) == (node, endpoint):
                continue
            if self._registering.get(node) == endpoint:
                continue
            self._registering[node] = endpoint
            self.proposals.propose(
                runner, register_node_command(node, endpoint), self._registered(node), now_ms
            )

    def _registered(self, node: NodeId) -> OnOutcome:
        def done(answer: PubAck | PubReject, now_ms: int) -> None:
            del now_ms
            if isinstance(answer, PubReject):
                self._registering.pop(node, None)  # tried again with the next timer

        return done

    # --- requests ---------------------------------------------------------------------------------

    def cluster_info(self, request: ClusterInfo, now_ms: int) -> ClusterInfoAnswer:
        """The node's copy of the catalog with its version and age (S1.9); no age, no promise."""
        node = self._node
        lag, age = node.reader.lag(self.metadata, now_ms)
        nodes = [
            NodeInfo(
                member,
                endpoint,
                node.watch.is_up(member),
                pid=node.identity.pid if member == node.me else 0,
            )
            for member, endpoint in self.endpoints().items()
        ]
        return ClusterInfoAnswer(
            request_id=request.request_id,
            cluster_id=node.identity.cluster_id,
            version=self.catalog.version,
            age_ms=age if lag == 0 else None,
            answered_by=node.me,
            nodes=tuple(nodes),
            tables=tuple(self._table_info(table) for table in self.catalog.tables.values()),
            metadata_channel=self._channel_info(
                node.metadata_channel, node.creation_config().voters
            ),
        )

    def on_create_table(self, client: int, request: CreateTable, now_ms: int) -> None:
        """Compare-and-set on the name; answered when every partition has a leader (S0.8)."""
        if self._refuse_command(client, request.request_id):
            return
        problem = definition_problem(request)
        if problem is not None:
            self._fail(client, request.request_id, "schema", problem)
            return
        existing = self.catalog.tables.get(request.name)
        if existing is not None:
            self._answer_existing(client, request, existing, now_ms)
            return
        node = self._node
        candidates = [e.node for e in self.catalog.nodes.values()]
        try:
            placement = place_table(
                partitions=request.partitions,
                replicas=request.replicas,
                nodes=candidates,
                existing=[t.placement for t in self.catalog.tables.values()],
            )
        except PlacementError as error:
            self._fail(client, request.request_id, "unavailable", str(error))
            return
        entry = msgspec.structs.replace(
            entry_of(request), uuid=node.ids.uuid(), placement=placement
        )
        size = len(msgspec.msgpack.encode((*self.catalog.tables.values(), entry)))
        if size > CATALOG_BYTES_MAX:
            text = (
                f"with table {request.name!r} the catalog has {size} bytes, the limit is "
                f"{CATALOG_BYTES_MAX}; use fewer partitions or a smaller schema, or drop tables"
            )
            self._fail(client, request.request_id, "payload_too_large", text)
            return

        def done(answer: PubAck | PubReject, at_ms: int) -> None:
            if self._answer_failure(client, request.request_id, answer, "table"):
                return
            self.on_catalog_applied(at_ms)  # the answer comes with the apply, before its notice
            current = self.catalog.tables.get(request.name)
            if current is None or current.uuid != entry.uuid:
                if current is not None:
                    self._answer_existing(client, request, current, at_ms)
                    return
                text = f"table {request.name!r} was created and dropped again meanwhile"
                self._fail(client, request.request_id, "operation_in_doubt", text)
                return
            self._await_leaders(client, request, current, at_ms)

        self.proposals.propose(self.metadata, create_table_command(entry), done, now_ms)

    def on_drop_table(self, client: int, request: DropTable, now_ms: int) -> None:
        """Remove a table; its UUID is remembered as dropped."""
        if self._refuse_command(client, request.request_id):
            return
        entry = self.catalog.tables.get(request.name)
        if entry is None:
            text = f"there is no table {request.name!r}; `raftstore table ls` lists them"
            self._fail(client, request.request_id, "unknown_table", text)
            return
        if request.uuid not in (b"", entry.uuid):
            text = f"the table {request.name!r} that was meant is gone; another has its name now"
            self._fail(client, request.request_id, "unknown_table", text)
            return

        def done(answer: PubAck | PubReject, at_ms: int) -> None:
            if not self._answer_failure(client, request.request_id, answer, "drop"):
                self.on_catalog_applied(at_ms)  # the answer comes before the apply's notice
                self._node.answer(client, self._done(request.request_id))

        self.proposals.propose(
            self.metadata, drop_table_command(request.name, entry.uuid), done, now_ms
        )

    def await_step_down(
        self, client: int, request: StepDown, runner: ChannelRunner, now_ms: int
    ) -> bool:
        """Answer when the channel has another leader, or at the deadline; False: refused."""
        if self._refuse_overload(client, request.request_id):
            return False
        self._waiting.append(
            _Waiting(
                client,
                request.request_id,
                now_ms + request.timeout_ms,
                (runner.channel,),
                was_leader=(runner.me, runner.elector.term),
                what=f"hand-over of {runner.name}",
            )
        )
        return True

    def step_down_refused(self, runner: ChannelRunner, reason: str) -> None:
        """S9: nobody was asked to take over, so the leadership certainly stays."""
        asked = (runner.me, runner.elector.term)
        still: list[_Waiting] = []
        for waiting in self._waiting:
            if waiting.channels == (runner.channel,) and waiting.was_leader == asked:
                text = f"{waiting.what}: {reason}"
                self._fail(waiting.client, waiting.request_id, "unavailable", text)
            else:
                still.append(waiting)
        self._waiting = still

    # --- helpers ----------------------------------------------------------------------------------

    def _table_info(self, table: TableEntry) -> TableInfo:
        return TableInfo(
            name=table.name,
            uuid=table.uuid,
            key_columns=table.key_columns,
            partitions=table.partitions,
            replicas=table.replicas,
            durability=table.durability,
            max_lag=table.max_lag,
            schema_json=table.schema_json,
            channels=tuple(
                self._channel_info(channel_id(table.uuid, partition), tuple(replicas))
                for partition, replicas in enumerate(table.placement)
            ),
        )

    def _channel_info(self, channel: ChannelId, replicas: tuple[NodeId, ...]) -> ChannelInfo:
        leader, term = self._leader_of(channel)
        return ChannelInfo(channel, replicas, leader, term)

    def _leader_of(self, channel: ChannelId) -> tuple[NodeId | None, Term]:
        runner = self._node.channels.get(channel)
        if runner is not None:
            return runner.elector.leader, runner.elector.term
        hint = self._node.watch.hints.get(channel)
        return (None, Term(0)) if hint is None else (hint.node, hint.term)

    def _refuse_command(self, client: int, request_id: int) -> bool:
        """Before anything is done: such an answer says that it certainly will not be."""
        return self._refuse_unless_leader(client, request_id) or self._refuse_overload(
            client, request_id
        )

    def _refuse_unless_leader(self, client: int, request_id: int) -> bool:
        elector = self.metadata.elector
        if elector.role is Role.LEADER and self.metadata.core.leader_is_ready:
            return False
        if elector.leader is not None and elector.leader != self._node.me:
            text = f"the catalog is led by {node_name(elector.leader)}, ask there"
            self._node.answer(
                client, Failed(request_id, "not_leader", text, leader_hint=elector.leader)
            )
        else:
            text = "the metadata channel has no leader now; data channels go on, retry later"
            self._fail(client, request_id, "no_leader", text)
        return True

    def _refuse_overload(self, client: int, request_id: int) -> bool:
        count = len(self._waiting) + self.proposals.open
        if count < WAITING_COMMANDS_MAX:
            return False
        text = (
            f"{count} table and leadership commands are not finished on this node, the limit is "
            f"{WAITING_COMMANDS_MAX}; retry later"
        )
        self._fail(client, request_id, "overloaded", text)
        return True

    def _answer_existing(
        self, client: int, request: CreateTable, existing: TableEntry, now_ms: int
    ) -> None:
        same = existing.same_definition(entry_of(request))
        if same and request.if_not_exists:
            self._await_leaders(client, request, existing, now_ms)
            return
        text = f"table {request.name!r} exists already" + (
            "" if same else " with another definition (see `raftstore table info`)"
        )
        self._fail(client, request.request_id, "table_exists", text)

    def _answer_failure(
        self, client: int, request_id: int, answer: PubAck | PubReject, what: str
    ) -> bool:
        if isinstance(answer, PubReject):
            self._fail(client, request_id, answer.code, answer.message)
            return True
        if answer.conflict and what == "drop":
            self._fail(client, request_id, "unknown_table", "the table was dropped meanwhile")
            return True
        return False

    def _await_leaders(
        self, client: int, request: CreateTable, table: TableEntry, now_ms: int
    ) -> None:
        channels = tuple(channel_id(table.uuid, p) for p in range(table.partitions))
        self._waiting.append(
            _Waiting(
                client,
                request.request_id,
                now_ms + request.timeout_ms,
                channels,
                what=f"leaders of table {request.name!r}",
            )
        )
        self._check_waiting(now_ms)

    def _done(self, request_id: int) -> Done:
        """With the version of the catalog that shows it: other copies may be behind (S1.9)."""
        return Done(request_id, {"version": self.catalog.version})

    def _check_waiting(self, now_ms: int) -> None:
        still: list[_Waiting] = []
        for waiting in self._waiting:
            missing = [c for c in waiting.channels if not self._has_new_leader(c, waiting)]
            if not missing:
                self._node.answer(waiting.client, self._done(waiting.request_id))
            elif now_ms >= waiting.deadline_ms:
                text = (
                    f"{waiting.what}: {len(missing)} of {len(waiting.channels)} channels have "
                    "no new leader yet; it goes on, and `raftstore channel ls` shows how it ended"
                )
                self._fail(waiting.client, waiting.request_id, "operation_in_doubt", text)
            else:
                still.append(waiting)
        self._waiting = still

    def _has_new_leader(self, channel: ChannelId, waiting: _Waiting) -> bool:
        leader, term = self._leader_of(channel)
        return leader is not None and (leader, term) != waiting.was_leader

    def _fail(self, client: int, request_id: int, code: str, text: str) -> None:
        self._node.answer(client, Failed(request_id, code, text))
