"""A catalog controller by itself: the test writes the catalog, channels open without a log."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import msgspec

from raftstore.config import LEVEL
from raftstore.engine.catalog.controller import CatalogController
from raftstore.engine.node_ports import NodeIdentity
from raftstore.engine.peers.known_levels import KnownLevels
from raftstore.errors import UnknownChannelError
from raftstore.protocol.publish import PubAck, PubReject
from raftstore.state_machines.catalog import (
    DROPPED_PREFIX,
    DroppedEntry,
    NodeEntry,
    TableEntry,
)
from raftstore.state_machines.catalog_machine import CatalogMachine
from raftstore.state_machines.catalog_members import (
    RetiredEntry,
    retired_key,
)
from raftstore.state_machines.catalog_replicas import ChangeReplicas
from raftstore.types import (
    ChannelConfig,
    ChannelId,
    NodeId,
    Role,
    Seq,
    Term,
    channel_id,
    make_guid,
    node_name,
)

ME, OTHER, THIRD = NODES = tuple(NodeId(f"n{number}@{number:032x}") for number in (1, 2, 3))
NEWCOMER = NodeId("n4@" + "4" * 32)
CLUSTER = b"the-clusters-id!"
METADATA = channel_id(CLUSTER, 0)
UUID = b"orders-table-id!"
INTERVAL_MS = 500
GUID = make_guid(b"session!", 1)


def table(name: str = "orders", uuid: bytes = UUID, partitions: int = 1, **more: Any) -> TableEntry:
    """A table with a replica of each partition here, by default."""
    placement = more.pop("placement", (NODES,) * partitions)
    return TableEntry(name, uuid, ("k",), partitions, 3, "fsync", None, "", placement, **more)


class Bench:
    """A node whose catalog the test writes; channels open without a log."""

    def __init__(self, level: int = LEVEL, **identity: Any) -> None:
        self.calls: list[tuple[Any, ...]] = []
        self.opened: list[tuple[str, dict[str, Any]]] = []
        self.machines: dict[ChannelId, Any] = {}
        self.remembered: set[ChannelId] = set()
        self.runners: dict[ChannelId, Any] = {}
        self.hints: dict[ChannelId, Any] = {}
        self.rows: dict[bytes, tuple[bytes, Seq]] = {}
        self.version = Seq(0)
        self.scans = 0
        self.role, self.is_ready = Role.LEADER, True
        self.config = ChannelConfig((NODES,))
        self.proposed: list[bytes] = []
        self.outcomes: list[Callable[[PubAck | PubReject, int], None]] = []
        self.levels = KnownLevels(ME, level)
        self.reports = SimpleNamespace(hints=self.hints, positions={})
        members = tuple((node, f"{node_name(node)}:7100") for node in NODES)
        me: Any = self
        parts: Any = SimpleNamespace(
            guard=SimpleNamespace(catalog_refusal=lambda: None),
            settings=SimpleNamespace(
                heartbeat=SimpleNamespace(discover_interval_ms=INTERVAL_MS),
                query=SimpleNamespace(standby_reads=True),
                storage=SimpleNamespace(channels_max=100),
                rebalance=SimpleNamespace(stuck_ms=60_000),
                replica=SimpleNamespace(replace_after_ms=0),
                membership=SimpleNamespace(report_wait_ms=0),
            ),
            log=SimpleNamespace(removed=lambda _channel: None, holds=lambda _channel: False),
            tables=me,
            outbox=me,
            ids=me,
            tell=lambda name, **fields: self.calls.append((name, fields)),
            clock=SimpleNamespace(wall_ms=lambda: 1_000_000),
        )
        self.retirements: list[str] = []
        self.down: set[NodeId] = set()
        self.on_up_changed: list[Callable[[NodeId], None]] = []
        self.controller = CatalogController(
            NodeIdentity(ME, CLUSTER, b"b" * 16, members, **identity),
            parts, me, me, self.levels, me, me,
        )  # fmt: skip
        self.controller.on_retired = self.retirements.append

    # --- what the controller works with -----------------------------------------------------------

    def start_query(self, ask: object) -> None:
        """No machine of users is here."""
        raise AssertionError(ask)

    def applied_seq(self, channel: ChannelId) -> Seq:
        """How far the catalog is applied."""
        assert channel == METADATA
        return self.version

    def is_leaving(self, channel: ChannelId) -> bool:
        """No table waits to go."""
        del channel
        return False

    def scan(self, channel: ChannelId, start: bytes, stop: bytes, limit: int) -> Any:
        """Every row of the catalog."""
        assert (channel, start, stop, limit) == (METADATA, b"", b"", 1_000_000)
        self.scans += 1
        rows = [
            SimpleNamespace(key=key, value=value, seq=seq)
            for key, (value, seq) in self.rows.items()
        ]
        return SimpleNamespace(more=False, rows=rows, applied_seq=self.version)

    def open(self, channel: ChannelId, name: str, machine: Any, now_ms: int, **how: Any) -> None:
        """A channel opens, unless the log remembers its drop."""
        if channel in self.remembered:
            raise UnknownChannelError("dropped")
        self.opened.append((name, {"now_ms": now_ms, **how}))
        self.machines[channel] = machine
        core = SimpleNamespace(leader_is_ready=self.is_ready, config=lambda: self.config)
        elector = SimpleNamespace(role=self.role, leader=OTHER, term=Term(6))
        self.runners[channel] = SimpleNamespace(
            channel=channel, name=name, bounds=how["bounds"], elector=elector, core=core, me=ME,
            commands=None,
            inform=lambda event, now_ms: self.calls.append(("inform", event, now_ms)),
        )  # fmt: skip

    def close(self, channel: ChannelId, now_ms: int) -> None:
        """A channel closes."""
        self.calls.append(("close", self.runners.pop(channel).name, now_ms))

    def drop(self, channel: ChannelId, now_ms: int) -> None:
        """A channel goes for good."""
        self.calls.append(("drop", self.runners.pop(channel).name, now_ms))

    def add_peer(self, node: NodeId, now_ms: int) -> None:
        """A node is known."""
        self.calls.append(("peer", node, now_ms))

    def remove_peer(self, node: NodeId, now_ms: int) -> None:
        """A node has left."""
        self.calls.append(("gone", node, now_ms))

    def uuid(self) -> bytes:
        """A guid."""
        return b"g" * 16

    def is_up(self, node: NodeId) -> bool:
        """All are, but those of the test."""
        return node not in self.down

    def forget_hints(self, exists: Any) -> None:
        """Tables are gone."""
        self.calls.append(("forget", exists))

    def propose(self, runner: Any, command: bytes, done: Any, now_ms: int) -> None:
        """A command for the log."""
        assert runner is self.runners[METADATA]
        assert now_ms >= 0
        self.proposed.append(command)
        self.outcomes.append(done)

    # --- what the test does -----------------------------------------------------------------------

    def put(self, *entries: TableEntry | NodeEntry) -> None:
        """Rows of the catalog."""
        self.version = Seq(self.version + 1)
        for entry in entries:
            named = isinstance(entry, TableEntry)
            name = entry.name if isinstance(entry, TableEntry) else node_name(entry.node)
            key = CatalogMachine.table_key(name) if named else CatalogMachine.node_key(name)
            self.rows[key] = (msgspec.msgpack.encode(entry), self.version)

    def remove(self, entry: TableEntry, *, is_told: bool = True) -> None:
        """The table is not in the catalog any more."""
        self.version = Seq(self.version + 1)
        del self.rows[CatalogMachine.table_key(entry.name)]
        if is_told:
            gone = msgspec.msgpack.encode(DroppedEntry(entry.name))
            self.rows[DROPPED_PREFIX + entry.uuid] = (gone, self.version)

    def retire(self, *nodes: NodeId) -> None:
        """The nodes have left."""
        self.version = Seq(self.version + 1)
        for node in nodes:
            self.rows.pop(CatalogMachine.node_key(node_name(node)), None)
            self.rows[retired_key(node)] = (msgspec.msgpack.encode(RetiredEntry()), self.version)

    def register(self, level: int = LEVEL) -> None:
        """All founders are in the catalog, as they are."""
        self.put(*(NodeEntry(node, f"{node_name(node)}:7100", level=level) for node in NODES))
        for node in NODES[1:]:
            self.controller.on_introduced(node, f"{node_name(node)}:7100", level)

    def start(self) -> CatalogController:
        """The controller, with everything open."""
        self.controller.start(1)
        return self.controller

    def orders(self) -> list[Any]:
        """Orders that were proposed for channels."""
        decode = msgspec.msgpack.Decoder(ChangeReplicas).decode
        return [decode(each) for each in self.proposed if b"change_replicas" in each]

    def named(self, name: str) -> list[tuple[Any, ...]]:
        """Calls of one name, without it."""
        return [call[1:] for call in self.calls if call[0] == name]
