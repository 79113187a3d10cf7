"""Requests of clients besides reads: writes, tables, status, content hashes, hand-overs."""

from __future__ import annotations

from typing import Final

from raftstore.engine.channel.active_channels import ActiveChannels
from raftstore.engine.checkpoints import Checkpoints
from raftstore.engine.client_answers import ClientAnswers
from raftstore.engine.client_writes import ClientWrites
from raftstore.engine.node_ports import Tell
from raftstore.engine.reads.read_rules import restoring_refusal
from raftstore.engine.reports.content_hashes import ContentHashes
from raftstore.engine.reports.events import EVENTS_MAX
from raftstore.engine.reports.node_parts import NodeParts
from raftstore.engine.reports.node_reports import NodeReports
from raftstore.engine.reports.table_sizes import table_sizes
from raftstore.errors import (
    LeadershipLostError,
    NotLeaderError,
    OverloadedError,
    Refusal,
    RequestError,
    SchemaError,
    UnknownChannelError,
    UnknownTableError,
    UnsupportedRequestError,
)
from raftstore.protocol.admin import (
    Checkpoint,
    ClusterInfo,
    ClusterView,
    ContentHash,
    CreateTable,
    DropTable,
    EditTable,
    Events,
    EventsAnswer,
    Metrics,
    MetricsAnswer,
    SeenHeartbeat,
    SeenLags,
    Status,
    StatusAnswer,
    StepDown,
)
from raftstore.protocol.audit import ReportViolation
from raftstore.protocol.machines import SkipCommand
from raftstore.protocol.members import AskJoin, Drain, Join, MakeTicket, Retire
from raftstore.protocol.message import Done, failed
from raftstore.protocol.publish import PubMsg, PubReject
from raftstore.protocol.rebalance import AskTableSizes, RebalanceRequest
from raftstore.protocol.replica_checks import (
    HashHistory,
    HashRange,
    PinState,
    ReadEntries,
    RowExpiries,
)
from raftstore.protocol.requests import ClientRequest, OrderRequest
from raftstore.types import SEQ_MAX, ChannelId, NodeId, RecordKind, Role, Seq, channel_id

_BY_RESTORES: Final = (RecordKind.STAGED, RecordKind.MACHINE_RESTORE)
"""Kinds that a restore writes, which says by its token that it is the one."""


class RequestHandler:
    """Takes the writes and requests of all clients of one node."""

    def __init__(  # noqa: PLR0917 - each is one thing that it works with
        self,
        parts: NodeParts,
        active: ActiveChannels,
        answers: ClientAnswers,
        writes: ClientWrites,
        hashes: ContentHashes,
        reports: NodeReports,
        tell: Tell,
    ) -> None:
        self._parts = parts
        self._me = parts.me
        self._channels = parts.channels
        self._controller = parts.controller
        self._watch = parts.watch
        self._lag_guard = parts.lag_guard
        self._step_downs = parts.step_downs
        self._ring = parts.ring
        self._audit = parts.audit
        self._checks = parts.healing.checks
        self.checkpoints = Checkpoints(parts.channels, answers.answer, tell)
        self._active = active
        self._answers = answers
        self._writes = writes
        self._hashes = hashes
        self._reports = reports
        self._tell = tell

    def on_publish(self, client: int, message: PubMsg, now_ms: int) -> None:
        """A write, addressed to this node or a copy of one addressed to another replica."""
        runner = self._channels.get(message.channel)
        if runner is None:
            self._refuse_stranger(client, message)
            return
        if message.leader == self._me and message.channel == self._controller.metadata_channel:
            runner.reject(
                client, message, SchemaError, "the catalog is changed by table commands only"
            )
            return
        # Whether it may still be refused is for the core to say: it knows what was sequenced (S9).
        self._active.touched[runner.channel] = None
        refusal: Refusal | None = None
        if message.leader == self._me:
            refusal = self._controller.refusal_of(message.kind)
            table = self._controller.catalog.table_of(message.channel)
            if refusal is None and message.kind not in _BY_RESTORES:
                refusal = restoring_refusal(runner)
            if refusal is None and table is not None:
                refusal = self._lag_guard.refusal(runner, table.max_replica_lag, now_ms)
            refusal = refusal or self._controller.quorum_room.write_refusal(runner.config)
            refusal = refusal or self._writes.begin(client, message)
        runner.on_publish(client, message, now_ms, refusal=refusal)

    def on_request(  # noqa: C901 - one arm per kind
        self, client: int, message: ClientRequest, now_ms: int
    ) -> None:
        """Anything that is neither a write nor a read of rows."""
        match message:
            case ClusterInfo():
                self._answers.answer(client, self._reports.cluster_info.answer(message, now_ms))
            case Status():
                self._answers.answer(
                    client, StatusAnswer(message.request_id, self._reports.status())
                )
            case ContentHash():
                self._hashes.on_request(client, message, now_ms)
            case CreateTable():
                self._controller.commands.on_create_table(client, message, now_ms)
            case DropTable():
                self._controller.commands.on_drop_table(client, message, now_ms)
            case EditTable():
                self._controller.commands.on_edit_table(client, message, now_ms)
            case StepDown():
                self._step_down(client, message, now_ms)
            case Checkpoint():
                self.checkpoints.on_request(client, message)
            case ClusterView():
                self._answers.answer(client, self._reports.views.answer(message, now_ms))
            case Events():
                self._answers.answer(client, self._events(message))
            case Metrics():
                self._answers.answer(
                    client, MetricsAnswer(message.request_id, *self._reports.metrics())
                )
            case SeenHeartbeat() | SeenLags() | ReportViolation():
                self._on_seen(client, message, now_ms)
            case PinState() | HashRange() | HashHistory() | RowExpiries() | ReadEntries():
                self._checks.on_request(client, message, now_ms)
            case MakeTicket() | AskJoin() | Join() | Drain() | Retire():
                self._controller.node_commands.on_request(client, message, now_ms)
            case _ if isinstance(message, OrderRequest | RebalanceRequest | SkipCommand):
                self._on_replicas(client, message, now_ms)
            case _:
                kind = type(message).__name__
                self._tell("unexpected_message", client=client, kind=kind)
                text = (
                    f"this node answers no {kind}; install the same raftstore version on both sides"
                )
                self._answers.answer(
                    client, failed(message.request_id, UnsupportedRequestError, text)
                )

    def _on_seen(
        self, client: int, message: SeenHeartbeat | SeenLags | ReportViolation, now_ms: int
    ) -> None:
        """Take in what a client saw: of other nodes, or of answers that cannot be right."""
        if isinstance(message, SeenHeartbeat):
            self._seen_heartbeat(client, message, now_ms)
        elif isinstance(message, SeenLags):
            self._seen_lags(client, message, now_ms)
        else:
            self._audit.on_report(message, now_ms)
            self._answers.answer(client, Done(message.request_id))

    def _on_replicas(
        self, client: int, message: OrderRequest | RebalanceRequest | SkipCommand, now_ms: int
    ) -> None:
        """About the replicas of channels: where they are, where they shall be, how they go on."""
        if isinstance(message, SkipCommand):
            self._controller.machine_steps.on_skip(client, message, now_ms)
        elif isinstance(message, AskTableSizes):
            self._answers.answer(client, table_sizes(self._parts, message))
        elif isinstance(message, OrderRequest):
            self._controller.replica_commands.on_request(client, message, now_ms)
        else:
            self._controller.rebalance_commands.on_request(client, message, now_ms)

    def _refuse_stranger(self, client: int, message: PubMsg) -> None:
        """A write for a channel that is not here; other replicas' copies are not answered."""
        if message.leader == self._me:
            error: type[RequestError] = UnknownChannelError
            text = "this node does not host the channel"
            term = self._controller.hosting.last_term(message.channel)
            if term is not None and message.term <= term:
                # S4.1: a first copy of it may have been sequenced before the replica was removed.
                error = LeadershipLostError
                text = f"this node led the channel up to term {term}, and its replica was removed"
            answer = PubReject(
                channel=message.channel,
                term=message.term,
                guid=message.guid,
                code=error.code,
                message=text,
                attempt=message.attempt,
            )
            self._answers.reply(client, answer)

    def _step_down(self, client: int, message: StepDown, now_ms: int) -> None:
        runner = self._channels.get(message.channel)
        if runner is None or runner.elector.role is not Role.LEADER:
            hint = None if runner is None else runner.elector.leader
            text = "this node does not lead the channel"
            self._answers.answer(
                client, failed(message.request_id, NotLeaderError, text, leader_hint=hint)
            )
            return
        refusal = self._step_downs.refusal(runner.channel, runner.name, client, now_ms)
        if refusal is not None:
            self._answers.answer(client, failed(message.request_id, OverloadedError, refusal))
            return
        self._active.touch(runner.channel)
        if self._controller.commands.await_step_down(client, message, runner, now_ms):
            self._parts.leaders.given_away.asked(runner, now_ms + message.timeout_ms)
            runner.request_hand_over(message.target, "asked by an operator", now_ms)

    def _events(self, message: Events) -> EventsAnswer:
        limit = min(message.limit, EVENTS_MAX)
        next_number, found = self._ring.since(message.since, message.types, limit)
        return EventsAnswer(message.request_id, self._me, next_number, found)

    def _seen_heartbeat(self, client: int, message: SeenHeartbeat, now_ms: int) -> None:
        """KLIP-19: it may route queries to the node again; it connects and elects nobody."""
        node = self._known_node(client, message.request_id, message.node)
        if node is not None:
            self._watch.http_reports.on_heartbeat(node, now_ms)
            self._answers.answer(client, Done(message.request_id))

    def _seen_lags(self, client: int, message: SeenLags, now_ms: int) -> None:
        """KLIP-35: all of a report counts, or nothing of it."""
        node = self._known_node(client, message.request_id, message.node)
        if node is None:
            return
        said: list[tuple[ChannelId, Seq, Seq]] = []
        for name, partition, current, end in message.lags:
            table = self._controller.catalog.tables.get(name)
            if table is None or not 0 <= partition < table.partitions:
                text = f"there is no partition {partition} of a table {name!r}"
                self._answers.answer(client, failed(message.request_id, UnknownTableError, text))
                return
            if not 0 <= current <= SEQ_MAX or not 0 <= end <= SEQ_MAX:
                text = f"positions {current} and {end} of {name}/{partition} are not 0 to {SEQ_MAX}"
                self._answers.answer(client, failed(message.request_id, SchemaError, text))
                return
            said.append((channel_id(table.uuid, partition), current, end))
        self._watch.http_reports.on_positions(node, said, now_ms)
        self._answers.answer(client, Done(message.request_id))

    def _node_at(self, address: str) -> NodeId | None:
        """The node with this advertised address, of either of its interfaces."""
        for node, endpoint in self._controller.endpoints().items():
            if address in (endpoint, self._watch.reports.http_of.get(node)):
                return node
        return None

    def _known_node(self, client: int, request_id: int, name: str) -> NodeId | None:
        """The node of this name, id or address; if there is none, the client gets an error."""
        node = self._watch.peer_of(name) or self._node_at(name)
        if node is None:
            text = f"node {name!r} is not of this cluster; `raftstore status` lists its nodes"
            self._answers.answer(client, failed(request_id, SchemaError, text))
        return node
