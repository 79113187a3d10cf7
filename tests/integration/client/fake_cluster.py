"""Nodes that speak the real frames on loopback and behave as a test asks.

One ``FakeCluster`` is the truth: tables, rows, who leads, what was applied. Its ``FakeNode``s
answer like nodes, except that the next publishes or reads a node gets may be scripted: refused,
answered late, never, or by closing the connection. Nothing sleeps; tests wait for what they want
to see.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Self

from msgspec import structs

from raftstore.config import LEVEL, PROTOCOL_VERSION
from raftstore.machine import StateMachine
from raftstore.protocol.admin import (
    ChannelInfo,
    ChannelView,
    ClusterInfo,
    ClusterInfoAnswer,
    ClusterViewAnswer,
    CreateTable,
    NodeInfo,
    ReplicaHint,
    TableInfo,
)
from raftstore.protocol.audit import ReportViolation
from raftstore.protocol.codec import decode, encode_frame_of
from raftstore.protocol.framing import ReceiveBuffer
from raftstore.protocol.lifetimes import WITHOUT_TTL, decode_with_ttl
from raftstore.protocol.machines import MACHINE_KINDS, MachineQuery
from raftstore.protocol.message import Failed, Message
from raftstore.protocol.node import Goodbye, Hello
from raftstore.protocol.payload import decode_conditional, decode_rows
from raftstore.protocol.publish import PubAck, PubMsg, PubReject
from raftstore.protocol.reads import (
    Bounds,
    Consistency,
    Count,
    FoundKeys,
    Get,
    GetAnswer,
    GetMany,
    GetManyAnswer,
    RefusedKeys,
    Scan,
    row_read,
)
from raftstore.protocol.replica_checks import PinState, ReadEntries
from raftstore.protocol.snapshots import OpenSnapshot
from raftstore.protocol.staged import decode_header
from raftstore.protocol.table_settings import DEFAULT_SETTINGS, TableSettings
from raftstore.types import (
    ChannelId,
    Guid,
    NodeId,
    RecordKind,
    Seq,
    Term,
    channel_id,
    node_id,
)
from tests.batch_truth import BatchTruth
from tests.integration.client.fake_machines import count, count_all
from tests.integration.client.fake_requests import execute, read
from tests.integration.client.fake_snapshots import Applied
from tests.integration.client.fake_states import apply_really
from tests.machine_bench import MachineBench

CLUSTER_ID = b"c" * 16
METADATA = channel_id(CLUSTER_ID, 0)
Answer = Callable[["FakeNode", Message, Callable[[Message], None]], None]
"""A scripted reaction: (node, message, reply)."""


@dataclass
class Channel:
    """One channel: placement, leader, and what was committed."""

    channel: ChannelId
    replicas: tuple[NodeId, ...]
    leader: NodeId | None
    term: Term = Term(1)
    seq: Seq = Seq(0)
    rows: dict[bytes, tuple[bytes, Seq]] = field(default_factory=dict)
    acks: dict[Guid, PubAck] = field(default_factory=dict)
    applied: list[PubMsg] = field(default_factory=list)
    ttls_ms: list[int] = field(default_factory=list)
    """How long the rows of each of them live; 0: for ever. Here none ever expires."""
    expiries: dict[bytes, int] = field(default_factory=dict)
    """When rows are said to expire, in ms since 1970, as a test wants it."""
    partition: int = 0
    batches: BatchTruth | None = None
    iss: tuple[NodeId, ...] = ()
    history: list[Applied] = field(default_factory=list)
    bench: MachineBench | None = None
    """The real machine of a channel set, if the cluster has its code."""
    now_ms: int = 0
    """The clock of its leader."""

    def apply(self, message: PubMsg) -> PubAck:
        """Apply once per guid and return the ack, as a leader that committed it would."""
        known = self.acks.get(message.guid)
        if known is not None:
            return known
        base = Seq(self.seq + 1)
        self.seq = Seq(self.seq + message.rows)
        self.applied.append(message)
        conflict_seq: Seq | None = None
        kind, payload, ttl_ms = message.kind, bytes(message.payload), 0
        if kind in WITHOUT_TTL:
            ttl_ms, inner = decode_with_ttl(payload)
            kind, payload = WITHOUT_TTL[kind], bytes(inner)
        if kind is RecordKind.CONDITIONAL:
            key, sealed, expected = decode_conditional(payload)
            present = self.rows[key][1] if key in self.rows else Seq(0)
            if present != expected:
                conflict_seq = present
            cells = [key, sealed]
        elif kind is RecordKind.BATCH_MARK or kind in MACHINE_KINDS:
            cells = []
        elif kind is RecordKind.STAGED:
            assert self.batches is not None
            self.batches.stage(self.partition, payload, message.rows)
            ttl_ms = decode_header(payload)[0].ttl_ms
            cells = []
        else:
            cells = decode_rows(payload)
        self.ttls_ms.append(ttl_ms)
        if conflict_seq is None:
            self.write(cells)
        ack = PubAck(
            channel=self.channel,
            term=self.term,
            guid=message.guid,
            base_seq=base,
            last_seq=self.seq,
            record_term=self.term,
            durability="fsync",
            replicas_acked=2,
            conflict=conflict_seq is not None,
            conflict_seq=conflict_seq or Seq(0),
        )
        if kind in MACHINE_KINDS:
            ack = self._command(message, ack)
        self.acks[message.guid] = ack
        return ack

    def _command(self, message: PubMsg, ack: PubAck) -> PubAck:
        """Apply commands, or a portion of a state."""
        if self.bench is not None:
            return apply_really(self, message, ack)
        if message.kind is RecordKind.MACHINE_COMMANDS:
            return count_all(self, message, ack)
        return count(self, bytes(message.payload), ack)

    def write(self, cells: list[bytes | None]) -> None:
        """Rows become visible."""
        for key, sealed in zip(cells[::2], cells[1::2], strict=True):
            assert key is not None
            if sealed is None:
                self.rows.pop(key, None)
            else:
                self.rows[key] = (sealed, self.seq)


ACCEPTING_TURNS = 3
"""Turns of the loop after which a connection that was being accepted has been dropped, too."""


class FakeNode:
    """One node: a listening socket and its scripts."""

    def __init__(self, cluster: FakeCluster, name: str) -> None:
        self.cluster = cluster
        self.id = node_id(name, name.encode().ljust(16, b"\0"))
        self.name = name
        self.store_id = self.id
        """What it says in its Hello: the store it really has."""
        self.endpoint = ""
        self.publish_scripts: deque[Answer] = deque()
        self.read_scripts: deque[Answer] = deque()
        self.request_scripts: deque[Answer] = deque()
        self.published: list[PubMsg] = []
        self.reads: list[Get | Scan | Count] = []
        self.queries: list[MachineQuery] = []
        self.many: list[GetMany] = []
        """Requests for several channels; ``reads`` has each of their parts."""
        self.read_level = LEVEL
        """What it says in its Hello."""
        self.pins: dict[int, tuple[Seq, dict[bytes, tuple[bytes, Seq]]]] = {}
        self.pinned = 0
        self.states: dict[int, dict[bytes, bytes]] = {}
        """Entries of the states of channel sets that it pinned."""
        self.states_asked: list[PinState | ReadEntries] = []
        self.page_rows_max = 1_000_000
        """It cuts its pages, as a node does whose rows are large."""
        self.snapshots: list[OpenSnapshot] = []
        self.commits_behind: dict[ChannelId, int] = {}
        self.kept = 8
        """States of before that it keeps of a channel."""
        self.events: list[dict[str, Any]] = []
        self.reports: list[ReportViolation] = []
        """What clients reported of their audits."""
        self.is_silent = False
        self.is_new = False
        """It has just started and knows nothing of the catalog yet."""
        self.copy: ClusterInfoAnswer | None = None
        """An old copy of the catalog that it goes on to answer with."""
        self.lag: int | None = 0
        self.level = LEVEL
        self.state = ""
        """As the catalog has it; empty: active."""
        self.greeted: list[str] = []
        """What connections were for, known or not."""
        self.purposes = ("client", "query")
        """What it knows connections to be for."""
        self._server: asyncio.Server | None = None
        self._writers: list[asyncio.StreamWriter] = []
        self._readers: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        """Listen, on the port of the last time if there was one."""
        port = int(self.endpoint.rpartition(":")[2]) if self.endpoint else 0
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", port)
        self.endpoint = f"127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    async def kill(self) -> None:
        """Close the listening socket and reset every connection, as kill -9 does."""
        server, self._server = self._server, None
        if server is not None:
            server.close()
        self.drop_connections()
        for task in self._readers:
            task.cancel()
        await asyncio.gather(*self._readers, return_exceptions=True)
        self._readers.clear()
        for _ in range(ACCEPTING_TURNS):
            await asyncio.sleep(0)

    def drop_connections(self) -> None:
        """Reset every connection."""
        for writer in self._writers:
            writer.transport.abort()
        self._writers.clear()

    def dismiss_idle(self) -> None:
        """End every connection as a node does that needs the places of idle ones."""
        for writer in self._writers:
            writer.write(encode_frame_of(Goodbye("idle", "others needed its place")))
            writer.close()
        self._writers.clear()

    @property
    def connections(self) -> int:
        """Open client connections."""
        return len(self._writers)

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._server is None:  # killed while this connection was being accepted
            writer.transport.abort()
            return
        self._writers.append(writer)
        self._readers.append(asyncio.get_running_loop().create_task(self._serve(reader, writer)))

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:

        def reply(message: Message) -> None:
            if not writer.transport.is_closing():
                writer.write(encode_frame_of(message))

        buffer = ReceiveBuffer()
        try:
            while data := await reader.read(65_536):
                for body in buffer.feed(data):
                    self._take(decode(body), reply)
                self.cluster.changed.set()
        except (ConnectionError, asyncio.CancelledError):
            pass
        finally:
            writer.transport.abort()
            if writer in self._writers:
                self._writers.remove(writer)

    def _take(self, message: Message, reply: Callable[[Message], None]) -> None:
        if isinstance(message, Hello):
            self.greeted.append(message.purpose)
            if message.purpose not in self.purposes:
                reply(Goodbye("unknown_purpose", f"the purpose {message.purpose!r} is not known"))
                return
            reply(
                Hello(
                    PROTOCOL_VERSION,
                    message.purpose,
                    self.cluster.cluster_id,
                    self.store_id,
                    b"boot",
                    level=self.read_level,
                )
            )
            return
        if self.is_silent:
            return
        if isinstance(message, PubMsg):
            self.published.append(message)
            if message.leader == self.id:
                script = self.publish_scripts.popleft() if self.publish_scripts else publish
                script(self, message, reply)
        elif isinstance(message, Get | Scan | Count):
            self.reads.append(message)
            (self.read_scripts.popleft() if self.read_scripts else read)(self, message, reply)
        elif isinstance(message, GetMany):
            self.many.append(message)
            self._take_many(message, reply)
        elif isinstance(message, ClusterInfo):
            reply(self.cluster.info(message.request_id, self))
        elif not hasattr(message, "request_id"):
            return  # a Goodbye
        else:
            script = self.request_scripts.popleft() if self.request_scripts else execute
            script(self, message, reply)

    def _take_many(self, message: GetMany, reply: Callable[[Message], None]) -> None:
        """Each part is a Get with a script of its own, answered as soon as it may be."""

        def reply_part(number: int, answer: Message) -> None:
            if isinstance(answer, GetAnswer):
                found = FoundKeys(number, answer.values, answer.seqs, answer.served)
                reply(GetManyAnswer(message.request_id, (found,)))
            else:
                assert isinstance(answer, Failed)
                refused = RefusedKeys(number, answer.code, answer.message, answer.leader_hint)
                reply(GetManyAnswer(message.request_id, (), (refused,)))

        for number, part in enumerate(message.parts):
            consistency = Consistency(
                message.level,
                max_lag=message.max_lag,
                max_staleness_ms=message.max_staleness_ms,
                max_batches_behind=message.max_batches_behind,
            )
            get = row_read(
                Get,
                message.request_id,
                part.channel,
                consistency,
                message.timeout_ms,
                keys=part.keys,
            )
            self._take(get, partial(reply_part, number))


class FakeCluster:
    """The truth behind the nodes; an async context manager."""

    def __init__(self, *names: str) -> None:
        self.cluster_id = CLUSTER_ID
        self.nodes = {name: FakeNode(self, name) for name in names or ("n1", "n2", "n3")}
        self.version = 1
        self.tables: dict[str, TableInfo] = {}
        self.channels: dict[ChannelId, Channel] = {}
        self.changed = asyncio.Event()
        self.skipped: list[tuple[ChannelId, Seq]] = []
        """Commands that an operator had skipped."""
        self.created: list[CreateTable] = []
        self.code: dict[str, type[StateMachine]] = {}
        """Machines that are really there, by name: channel sets of them have a state."""
        self.metadata = Channel(METADATA, self._ids(), self._ids()[0])
        self.channels[METADATA] = self.metadata

    async def __aenter__(self) -> Self:
        for node in self.nodes.values():
            await node.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        for node in self.nodes.values():
            await node.kill()

    def _ids(self) -> tuple[NodeId, ...]:
        return tuple(node.id for node in self.nodes.values())

    @property
    def endpoints(self) -> str:
        """All addresses."""
        return ",".join(node.endpoint for node in self.nodes.values())

    def add_table(
        self,
        name: str = "t",
        partitions: int = 1,
        *,
        key: tuple[str, ...] = ("id",),
        leaders: tuple[str, ...] = ("n1",),
        schema_json: str = "",
        settings: TableSettings = DEFAULT_SETTINGS,
        machine: str = "",
        version: int = 1,
    ) -> list[Channel]:
        """Create a table; partition i is led by ``leaders[i % len]``."""
        self.version += 1
        # As long as any, whatever the name: a fuzzer gives tables names of all kinds.
        uuid = f"{name}-{self.version}".encode()[-16:].rjust(16, b"u")
        channels = []
        truth = BatchTruth(partitions)
        for partition in range(partitions):
            leader = self.nodes[leaders[partition % len(leaders)]].id
            channel = Channel(channel_id(uuid, partition), self._ids(), leader)
            channel.partition, channel.batches = partition, truth
            if machine in self.code:
                channel.bench = MachineBench(
                    self.code[machine], from_backup=settings.from_backup, first_version=version
                )
            self.channels[channel.channel] = channel
            channels.append(channel)
        self.tables[name] = TableInfo(
            name=name,
            uuid=uuid,
            key_columns=key,
            partitions=partitions,
            replicas=len(self.nodes),
            durability="fsync",
            max_lag=None,
            schema_json=schema_json,
            channels=tuple(ChannelInfo(c.channel, c.replicas, None, Term(0)) for c in channels),
            settings=settings,
            machine=machine,
            machine_version=version if machine else 0,
        )
        return channels

    def drop_table(self, name: str) -> None:
        """Remove a table."""
        self.version += 1
        for channel in self.tables.pop(name).channels:
            del self.channels[channel.channel]

    def elect(self, channel: Channel, name: str | None) -> None:
        """A new term, with a leader or without."""
        channel.term = Term(channel.term + 1)
        channel.leader = None if name is None else self.nodes[name].id

    def info(self, request_id: int, node: FakeNode) -> ClusterInfoAnswer:
        """The answer of every node to ClusterInfo."""
        if node.copy is not None:
            return structs.replace(node.copy, request_id=request_id)
        return ClusterInfoAnswer(
            request_id=request_id,
            cluster_id=self.cluster_id,
            version=0 if node.is_new else self.version,
            age_ms=None if node.is_new else 0,
            answered_by=node.id,
            nodes=tuple(
                NodeInfo(n.id, n.endpoint, n._server is not None, level=n.level, state=n.state)
                for n in self.nodes.values()
            ),
            tables=() if node.is_new else tuple(map(self._table, self.tables.values())),
            metadata_channel=self._channel(METADATA),
        )

    def view(self, request_id: int, node: FakeNode) -> ClusterViewAnswer:
        """The answer of a node to ClusterView: its own replicas, as far behind as it is."""
        channels = []
        for table in self.tables.values():
            for partition, info in enumerate(table.channels):
                channel = self.channels[info.channel]
                role = "leader" if channel.leader == node.id else "follower"
                applied = Seq(channel.seq - (node.lag or 0))
                own = ReplicaHint(node.id, applied, node.lag, 40, 0, role, 0)
                place = (info.channel, table.name, partition, channel.leader, channel.term)
                channels.append(ChannelView(*place, channel.seq, 0, (own,)))
        return ClusterViewAnswer(
            request_id, node.id, self.cluster_id, self.version, 0, Bounds(), (), tuple(channels)
        )

    def _table(self, table: TableInfo) -> TableInfo:
        channels = tuple(self._channel(channel.channel) for channel in table.channels)
        values = {name: getattr(table, name) for name in table.__struct_fields__}
        return TableInfo(**(values | {"channels": channels}))

    def _channel(self, channel_id_: ChannelId) -> ChannelInfo:
        channel = self.channels[channel_id_]
        return ChannelInfo(
            channel.channel, channel.replicas, channel.leader, channel.term, iss=channel.iss
        )

    async def until(self, condition: Callable[[], object]) -> None:
        """Wait until something the nodes received makes the condition true."""
        async with asyncio.timeout(5):
            while not condition():
                self.changed.clear()
                await self.changed.wait()


# --- reactions ------------------------------------------------------------------------------------


def publish(node: FakeNode, message: Message, reply: Callable[[Message], None]) -> None:
    """React as the node really would: apply and ack if it leads in this term, else refuse."""
    assert isinstance(message, PubMsg)
    channel = node.cluster.channels.get(message.channel)
    if channel is None:
        _reject(message, reply, "unknown_channel", None)
    elif channel.leader != node.id or channel.term != message.term:
        _reject(message, reply, "not_leader", channel)
    else:
        reply(channel.apply(message))


def _reject(
    message: PubMsg, reply: Callable[[Message], None], code: str, channel: Channel | None
) -> None:
    term = message.term if channel is None else channel.term
    hint = None if channel is None else channel.leader
    text = f"{code} by script"
    reply(PubReject(message.channel, term, message.guid, code, text, hint, message.attempt))


def refuse(code: str) -> Answer:
    """Refuse a publish with a code and no hint."""

    def script(node: FakeNode, message: Message, reply: Callable[[Message], None]) -> None:
        assert isinstance(message, PubMsg)
        _reject(message, reply, code, None)

    return script


def silence(node: FakeNode, message: Message, reply: Callable[[Message], None]) -> None:
    """Never answer."""


def lose(node: FakeNode, message: Message, reply: Callable[[Message], None]) -> None:
    """Drop the connections without doing anything."""
    node.drop_connections()


def apply_and_lose(node: FakeNode, message: Message, reply: Callable[[Message], None]) -> None:
    """Commit, and drop the connections before the answer."""
    assert isinstance(message, PubMsg)
    node.cluster.channels[message.channel].apply(message)
    node.drop_connections()


def apply_and(code: str) -> Answer:
    """Commit, but answer with a code: quorum_timeout of a write that commits later."""

    def script(node: FakeNode, message: Message, reply: Callable[[Message], None]) -> None:
        assert isinstance(message, PubMsg)
        node.cluster.channels[message.channel].apply(message)
        _reject(message, reply, code, None)

    return script


def fail(code: str, message_text: str = "by script") -> Answer:
    """Refuse a read or another request."""

    def script(node: FakeNode, message: Message, reply: Callable[[Message], None]) -> None:
        reply(Failed(message.request_id, code, message_text))  # type: ignore[attr-defined]

    return script


def read_behind(rows: dict[bytes, tuple[bytes, Seq]], seq: Seq) -> Answer:
    """Answer a read from an older state."""

    def script(node: FakeNode, message: Message, reply: Callable[[Message], None]) -> None:
        channel = node.cluster.channels[message.channel]  # type: ignore[attr-defined]
        newest = channel.rows, channel.seq
        channel.rows, channel.seq = rows, seq
        read(node, message, reply)
        channel.rows, channel.seq = newest

    return script
