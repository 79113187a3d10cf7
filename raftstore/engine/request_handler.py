"""Requests of clients besides reads: writes, tables, status, content hashes, hand-overs."""

from __future__ import annotations

from typing import Any, Protocol

from raftstore.engine.catalog.controller import CatalogController
from raftstore.engine.catalog.step_down_limit import StepDownLimit
from raftstore.engine.channel.runner import ChannelRunner
from raftstore.engine.client_answers import ClientAnswers
from raftstore.engine.client_writes import ClientWrites
from raftstore.engine.peers.peer_watch import PeerWatch
from raftstore.engine.peers.replica_lag import ReplicaLagGuard
from raftstore.engine.reports.cluster_info import ClusterInfoReport
from raftstore.engine.reports.content_hashes import ContentHashes
from raftstore.engine.reports.events import EVENTS_MAX, EventRing
from raftstore.engine.reports.view_report import ViewReport
from raftstore.errors import (
    NotLeaderError,
    OverloadedError,
    Refusal,
    SchemaError,
    UnknownChannelError,
    UnknownTableError,
    UnsupportedRequestError,
)
from raftstore.metrics import Histogram, Sample
from raftstore.ports.tables import TableStore
from raftstore.protocol.admin import (
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
from raftstore.protocol.message import Done, failed
from raftstore.protocol.publish import PubMsg, PubReject
from raftstore.protocol.requests import ClientRequest
from raftstore.types import SEQ_MAX, ChannelId, NodeId, Role, Seq, channel_id


class RequestHandlerHost(Protocol):
    """The node as the handler of requests uses it."""

    me: NodeId
    answers: ClientAnswers
    channels: dict[ChannelId, ChannelRunner]
    metadata_channel: ChannelId
    tables: TableStore
    controller: CatalogController
    watch: PeerWatch
    cluster_info: ClusterInfoReport
    views: ViewReport
    ring: EventRing
    writes: ClientWrites

    def metrics(self) -> tuple[tuple[Sample, ...], tuple[Histogram, ...]]:
        """Everything that is counted and measured."""

    def status(self) -> dict[str, Any]:
        """The JSON-shaped state of the node."""

    def touched(self, runner: ChannelRunner) -> None:
        """Something happened to the channel: its next deadline may be another."""

    def event(self, name: str, **fields: object) -> None:
        """One structured log line."""


class RequestHandler:
    """Takes the writes and requests of all clients of one node."""

    def __init__(
        self,
        host: RequestHandlerHost,
        lag_guard: ReplicaLagGuard,
        step_downs: StepDownLimit,
        hashes: ContentHashes,
    ) -> None:
        self._host = host
        self._lag_guard = lag_guard
        self._step_downs = step_downs
        self._hashes = hashes

    def on_publish(self, client: int, message: PubMsg, now_ms: int) -> None:
        """A write, addressed to this node or a copy of one addressed to another replica."""
        host = self._host
        runner = host.channels.get(message.channel)
        if runner is None:
            self._refuse_stranger(client, message)
            return
        if message.leader == host.me and message.channel == host.metadata_channel:
            runner.reject(
                client, message, SchemaError, "the catalog is changed by table commands only"
            )
            return
        # Whether it may still be refused is for the core to say: it knows what was sequenced (S9).
        host.touched(runner)
        refusal: Refusal | None = None
        if message.leader == host.me:
            refusal = host.controller.refusal_of(message.kind)
            table = host.controller.catalog.table_of(message.channel)
            if refusal is None and table is not None:
                refusal = self._lag_guard.refusal(runner, table.max_replica_lag, now_ms)
            refusal = refusal or host.writes.begin(client, message)
        runner.on_publish(client, message, now_ms, refusal=refusal)
        if runner.stopped_reason is not None:
            host.writes.settled(client, message)  # S13: there may be no answer

    def on_request(  # noqa: C901 - one arm per kind
        self, client: int, message: ClientRequest, now_ms: int
    ) -> None:
        """Anything that is neither a write nor a read of rows."""
        host = self._host
        match message:
            case ClusterInfo():
                host.answers.answer(client, host.cluster_info.answer(message, now_ms))
            case Status():
                host.answers.answer(client, StatusAnswer(message.request_id, host.status()))
            case ContentHash():
                self._hashes.on_request(client, message, now_ms)
            case CreateTable():
                host.controller.commands.on_create_table(client, message, now_ms)
            case DropTable():
                host.controller.commands.on_drop_table(client, message, now_ms)
            case EditTable():
                host.controller.commands.on_edit_table(client, message, now_ms)
            case StepDown():
                self._step_down(client, message, now_ms)
            case ClusterView():
                host.answers.answer(client, host.views.answer(message, now_ms))
            case Events():
                host.answers.answer(client, self._events(message))
            case Metrics():
                host.answers.answer(client, MetricsAnswer(message.request_id, *host.metrics()))
            case SeenHeartbeat():
                self._seen_heartbeat(client, message, now_ms)
            case SeenLags():
                self._seen_lags(client, message, now_ms)
            case _:
                kind = type(message).__name__
                host.event("unexpected_message", client=client, kind=kind)
                text = f"this node answers no {kind}; install the same raftstore version on both"
                host.answers.answer(
                    client, failed(message.request_id, UnsupportedRequestError, text)
                )

    def _refuse_stranger(self, client: int, message: PubMsg) -> None:
        """A write for a channel that is not here; other replicas' copies are not answered."""
        if message.leader == self._host.me:
            text = "this node does not host the channel"
            answer = PubReject(
                channel=message.channel,
                term=message.term,
                guid=message.guid,
                code=UnknownChannelError.code,
                message=text,
                attempt=message.attempt,
            )
            self._host.answers.reply(client, answer)

    def _step_down(self, client: int, message: StepDown, now_ms: int) -> None:
        host = self._host
        runner = host.channels.get(message.channel)
        if runner is None or runner.elector.role is not Role.LEADER:
            hint = None if runner is None else runner.elector.leader
            text = "this node does not lead the channel"
            host.answers.answer(
                client, failed(message.request_id, NotLeaderError, text, leader_hint=hint)
            )
            return
        refusal = self._step_downs.refusal(runner.channel, runner.name, client, now_ms)
        if refusal is not None:
            host.answers.answer(client, failed(message.request_id, OverloadedError, refusal))
            return
        host.touched(runner)
        if host.controller.commands.await_step_down(client, message, runner, now_ms):
            runner.request_hand_over(message.target, "asked by an operator", now_ms)

    def _events(self, message: Events) -> EventsAnswer:
        limit = min(message.limit, EVENTS_MAX)
        next_number, found = self._host.ring.since(message.since, message.types, limit)
        return EventsAnswer(message.request_id, self._host.me, next_number, found)

    def _seen_heartbeat(self, client: int, message: SeenHeartbeat, now_ms: int) -> None:
        """KLIP-19: it may route queries to the node again; it connects and elects nobody."""
        node = self._known_node(client, message.request_id, message.node)
        if node is not None:
            self._host.watch.http_reports.on_heartbeat(node, now_ms)
            self._host.answers.answer(client, Done(message.request_id))

    def _seen_lags(self, client: int, message: SeenLags, now_ms: int) -> None:
        """KLIP-35: all of a report counts, or nothing of it."""
        host = self._host
        node = self._known_node(client, message.request_id, message.node)
        if node is None:
            return
        said: list[tuple[ChannelId, Seq, Seq]] = []
        for name, partition, current, end in message.lags:
            table = host.controller.catalog.tables.get(name)
            if table is None or not 0 <= partition < table.partitions:
                text = f"there is no partition {partition} of a table {name!r}"
                host.answers.answer(client, failed(message.request_id, UnknownTableError, text))
                return
            if not 0 <= current <= SEQ_MAX or not 0 <= end <= SEQ_MAX:
                text = f"positions {current} and {end} of {name}/{partition} are no sequences"
                host.answers.answer(client, failed(message.request_id, SchemaError, text))
                return
            said.append((channel_id(table.uuid, partition), current, end))
        host.watch.http_reports.on_positions(node, said, now_ms)
        host.answers.answer(client, Done(message.request_id))

    def _node_at(self, address: str) -> NodeId | None:
        """The node with this advertised address, of either of its interfaces."""
        host = self._host
        for node, endpoint in host.controller.endpoints().items():
            if address in (endpoint, host.watch.reports.http_of.get(node)):
                return node
        return None

    def _known_node(self, client: int, request_id: int, name: str) -> NodeId | None:
        """The node of this name or id; whoever told of a stranger hears so."""
        node = self._host.watch.peer_of(name) or self._node_at(name)
        if node is None:
            text = f"node {name!r} is not of this cluster; `raftstore status` lists its nodes"
            self._host.answers.answer(client, failed(request_id, SchemaError, text))
        return node
