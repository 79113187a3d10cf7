"""A whole simulated cluster in one thread: nodes, network, clients' ends, and the oracle."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Final

from raftstore.config import (
    KIB,
    MIB,
    ExpirySettings,
    NodeSettings,
    RebalanceSettings,
    RetentionSettings,
    ScrubSettings,
    SnapshotSettings,
    StorageSettings,
)
from raftstore.engine.node_ports import NO_MACHINES
from raftstore.ports.machine import Machines
from raftstore.protocol.admin import CreateTable
from raftstore.protocol.members import JoinAccepted
from raftstore.protocol.message import Done, Message
from raftstore.testing.invariants import InvariantError, Oracle
from raftstore.testing.losses import Losses
from raftstore.testing.options import SimOptions
from raftstore.testing.rotting_node import RottingNode
from raftstore.testing.sim_clock import Scheduler
from raftstore.testing.sim_levels import check_records, is_readable
from raftstore.testing.sim_links import SimLinks
from raftstore.testing.sim_loop import SchedulerLoop
from raftstore.testing.sim_network import SimNetwork
from raftstore.testing.sim_node import SimNode
from raftstore.testing.sim_tables import SimTables
from raftstore.testing.sim_trace import Trace
from raftstore.types import ChannelId, Durability, NodeId, Role, Term, channel_id, node_id

SCRUB: Final = ScrubSettings(second_bytes_max=4 * MIB, interval_ms=500)
"""So that several passes go over all of a world's nodes."""
EXPIRY: Final = ExpirySettings(keys_max=1, late_ms_max=0)
"""Of a world with rows that expire: others are due and hidden while the next one is removed."""
RETENTION: Final = RetentionSettings(
    enabled=True,
    channel_bytes=1 * KIB,
    channel_records=20,
    log_bytes=8 * KIB,
    slow_replica_bytes=2 * KIB,
    reader_bytes=2 * KIB,
    interval_ms=50,
)
"""Of a world with retention: something is due all the time, and replicas are left behind."""
REBALANCE: Final = RebalanceSettings(calm_ms=3_000, respect_ms=10_000)
"""Leaders are made even while faults go on, too."""
NO_REBALANCE: Final = RebalanceSettings(leaders=False)
"""Where worlds do not ask for it, and tests say nothing of their own."""
NO_RETENTION: Final = RetentionSettings(enabled=False, merge_tables=False)
"""Of a world without: nothing would be due, and nobody looks."""
SNAPSHOT: Final = SnapshotSettings(
    chunk_bytes_max=1 * KIB, session_ms=5_000, request_ms=200, retry_ms=100, pause_ms_max=5_000
)
"""Of the same: replica snapshots of several chunks; pauses between them end before replicas have to
be equal."""
RETENTION_SEGMENT_BYTES: Final = 2 * KIB
ROTTING_CACHE_BYTES: Final = 2 * KIB
"""Of a world whose files rot: what is read comes from them."""
STORAGE = StorageSettings(
    segment_bytes=16 * KIB,
    log_cache_bytes=256 * KIB,
    tables_stall_handover_ms=2_000,
    stall_limit_ms=5_000,
)
"""A disk hangs for seconds in a world, not for minutes, and a log has several files."""
MIN_FREE_BYTES: Final = 256 * KIB
"""The marks of nodes whose disks fill up: clients fill what is left below them within seconds."""
FULL_DISK_BATCH_BYTES: Final = 16 * KIB
ClientEnd = Callable[[NodeId, Message], None]
"""Receives (node, message) at a simulated client."""

ADMIN_HANDLE = 9_999


def _settings(options: SimOptions, given: NodeSettings | None) -> NodeSettings:
    """Settings of the nodes of a world: given ones, and what its options need."""
    base = given or NodeSettings(name="", data_dir="", storage=STORAGE)
    if not options.retention and base.retention == RetentionSettings():
        base = replace(base, retention=NO_RETENTION)
    if options.retention:
        storage = replace(base.storage, segment_bytes=RETENTION_SEGMENT_BYTES)
        base = replace(base, storage=storage, retention=RETENTION, snapshot=SNAPSHOT)
    if base.rebalance == RebalanceSettings():
        base = replace(base, rebalance=REBALANCE if options.even_leaders else NO_REBALANCE)
    if options.ttl_percent:
        base = replace(base, expiry=EXPIRY)
    if options.full_disk_percent:
        storage = replace(base.storage, min_free_bytes=MIN_FREE_BYTES, free_check_ms=100)
        replication = replace(base.replication, sync_batch_bytes_max=FULL_DISK_BATCH_BYTES)
        base = replace(base, storage=storage, replication=replication)
    if options.live_flip_percent:
        storage = replace(base.storage, log_cache_bytes=ROTTING_CACHE_BYTES)
        base = replace(base, storage=storage)
    scrub = SCRUB if options.scrub else ScrubSettings(enabled=False)
    return replace(base, scrub=scrub)


class SimCluster:
    """Builds and runs a world. Every random choice comes from one generator, in a fixed order."""

    def __init__(
        self,
        options: SimOptions,
        settings: NodeSettings | None = None,
        *,
        make_tables: Callable[[], SimTables] = SimTables,
        machines: Machines = NO_MACHINES,
    ) -> None:
        """``machines``: code of users' state machines that all nodes have."""
        self.options = options
        self.machines = machines
        self.make_tables = make_tables
        self.rng = random.Random(f"world {options.seed}")
        self.scheduler = Scheduler()
        self.loop = SchedulerLoop(self.scheduler)
        """Of the clients whose code is the production client's."""
        self.oracle = Oracle(lambda: self.scheduler.now_ms)
        self.cluster_id = self.rng.randbytes(16)
        self.network = SimNetwork(self.scheduler, self.rng, options, self._deliver)
        self.events = Trace()
        self.table_channels: list[ChannelId] = []
        self.on_life: list[Callable[[NodeId], None]] = []
        """Called when a node has come or gone."""
        self._clients: dict[str, ClientEnd] = {}
        self._client_names: dict[int, str] = {}
        self._client_handles: dict[str, int] = {}
        self._base = base = _settings(options, settings)
        self.node_ids = [
            node_id(f"n{index + 1}", self.rng.randbytes(16)) for index in range(options.nodes)
        ]
        """Nodes of the cluster; those that left are in ``nodes`` alone."""
        self.founders = tuple(self.node_ids)
        make = RottingNode if options.live_flip_percent else SimNode
        self.nodes = {node: make(self, node, base) for node in self.node_ids}
        self.links: SimLinks | None = None
        """Who knows whom; None: all nodes know each other all along."""
        if options.member_changes:
            self.change_members()
        if options.durability != Durability.FSYNC.label:
            durability = Durability[options.durability.upper()]
            self.oracle.losses = Losses(self.nodes.values(), self.table_channels, durability)

    def start(self) -> None:
        """Boot every node."""
        for node in self.nodes.values():
            node.boot()

    def change_members(self) -> None:
        """Nodes may join and leave from now on, and refuse peers that they do not know."""
        self.options = replace(self.options, member_changes=True)
        self.links = SimLinks(self.nodes, self.scheduler, self.options.seed, self._connect)
        for node in self.nodes.values():
            if node.is_up:
                self.links.booted(node)

    def add_node(self, node: NodeId, joined: JoinAccepted) -> SimNode:
        """The place of a node that has joined; it is not started yet."""
        added = self.nodes[node] = SimNode(self, node, self._base, joined)
        self.node_ids.append(node)
        self.trace("joined", node=added.name, number=joined.number)
        return added

    def node_left(self, node: NodeId) -> None:
        """A node never comes back: clients ask the others from now on."""
        if node in self.node_ids:
            self.node_ids.remove(node)
        self.trace("left", node=self.nodes[node].name, why=self.nodes[node].refused)

    # --- observation ------------------------------------------------------------------------------

    def trace(self, name: str, **fields: object) -> None:
        """One event of the world's history; the digest of all events distinguishes runs."""
        self.events.add(self.scheduler.now_ms, name, fields)

    @property
    def lines(self) -> list[str]:
        """The kept events, one line each."""
        return self.events.lines()

    def trace_digest(self) -> str:
        """Equal for two runs of one seed, on every machine and hash seed."""
        return self.events.digest()

    def leaders(self) -> dict[bytes, SimNode]:
        """Channel -> the live node that leads it in the highest term."""
        best: dict[bytes, tuple[int, SimNode]] = {}
        for node in self.nodes.values():
            if node.runner is None:
                continue
            for channel, runner in node.runner.channels.items():
                if runner.elector.role is Role.LEADER:
                    found = best.get(channel)
                    if found is None or found[0] < runner.elector.term:
                        best[channel] = (runner.elector.term, node)
        return {channel: node for channel, (_, node) in best.items()}

    def halted(self, name: str, reason: str) -> None:
        """A node stopped by itself: right after a disk error, a bug otherwise."""
        self.trace("halt", node=name, reason=reason)
        message = f"S13: {name} halted: {reason}"
        raise InvariantError(message)

    def believed_leader(self, channel: ChannelId) -> tuple[NodeId, Term] | None:
        """The leader as a random live node knows it: mostly right, like a client's cache."""
        live = [node for node in self.nodes.values() if node.runner is not None]
        if not live:
            return None
        runner = self.rng.choice(live).runner
        assert runner is not None
        found = runner.channels.get(channel)
        if found is None or found.elector.leader is None:
            return None
        return found.elector.leader, found.elector.term

    def replicas(self, channel: ChannelId) -> list[NodeId]:
        """Where the channel lives, as far as the live nodes know; every node when none knows."""
        found = [
            node.node
            for node in self.nodes.values()
            if node.runner is not None and channel in node.runner.channels
        ]
        return found or list(self.node_ids)

    def every_channel_has_a_leader(self) -> bool:
        """O6: some live node leads each channel and has committed in its term."""
        leaders = self.leaders()
        for channel in self.expected_channels():
            node = leaders.get(channel)
            if node is None or node.runner is None:
                return False
            if not node.runner.channels[channel].core.leader_is_ready:
                return False
        return True

    def expected_channels(self) -> list[ChannelId]:
        """The metadata channel and every partition of the table."""
        return [channel_id(self.cluster_id, 0), *self.table_channels]

    def replicas_are_equal(self) -> bool:
        """Every replica has committed and applied the same, all of it."""
        leaders = self.leaders()
        return all(
            channel in leaders and self._is_equal(channel, leaders[channel])
            for channel in self.expected_channels()
        )

    def _is_equal(self, channel: ChannelId, leader: SimNode) -> bool:
        assert leader.runner is not None
        replicas: list[SimNode] = []
        ends: dict[tuple[int, int], None] = {}
        config = leader.runner.channels[channel].core.config()
        for member in config.members:
            if member not in self.nodes:
                return False  # the cluster has it, and it has yet to be started
            node = self.nodes[member]
            if node.refused is not None:
                continue  # S0.1: its store is gone, and with it its part in the cluster
            runner = None if node.runner is None else node.runner.channels.get(channel)
            if runner is None:
                return False
            core = runner.core
            if core.commit_seq != core.last_seq or core.is_recovering:
                return False
            if node.tables.applied_seq(channel) != core.commit_seq:
                return False
            if not config.is_witness(member):  # it has no rows
                replicas.append(node)
            ends[core.last_seq, core.commit_seq] = None
        if len(ends) != 1:
            return False
        if self.options.live_flip_percent and not all(
            node.tables.is_intact(channel) and not node.log.has_flipped for node in replicas
        ):
            return False  # found and made good before long, or never
        return len({node.tables.content_hash(channel)[0] for node in replicas}) == 1

    def positions(self) -> str:
        """Positions of all replicas, for messages."""
        parts = []
        for node in self.nodes.values():
            for runner in [] if node.runner is None else node.runner.channels.values():
                core = runner.core
                parts.append(
                    f"{node.name}:{runner.name} {runner.elector.role.value} "
                    f"term={runner.elector.term} {core.mode.value} last={core.last_seq} "
                    f"commit={core.commit_seq} applied={node.tables.applied_seq(runner.channel)}"
                )
        return "; ".join(parts)

    def check_final(self) -> None:
        """O4 on every replica, but for those that were removed and are not deleted yet."""
        leaders = self.leaders()
        for node in self.nodes.values():
            if node.refused is not None:
                continue
            assert node.runner is not None
            self.oracle.check_final(
                [
                    runner
                    for runner in node.runner.channels.values()
                    if self._is_member(node.node, runner.channel, leaders)
                ]
            )

    def _is_member(
        self, node: NodeId, channel: ChannelId, leaders: Mapping[bytes, SimNode]
    ) -> bool:
        leader = leaders.get(channel)
        runner = None if leader is None else leader.runner
        return runner is None or node in runner.channels[channel].core.config().members

    # --- the table --------------------------------------------------------------------------------

    def create_table(self, partitions: int, machine: str = "") -> None:
        """Ask the leader of the metadata channel, as a client does, until it is there; with a
        machine of ``machines`` it is a channel set."""
        self.add_client("admin", ADMIN_HANDLE, self._on_admin_answer)
        self._table_request = CreateTable(
            request_id=1,
            name="t",
            key_columns=() if machine else ("k",),
            partitions=partitions,
            replicas=min(self.options.replicas, len(self.node_ids)),
            durability=self.options.durability,
            max_lag=None,
            schema_json="",
            if_not_exists=True,
            timeout_ms=2_000,
            machine=machine,
        )
        self._ask_for_table()

    def _ask_for_table(self) -> None:
        if self.table_channels:
            return
        found = self.believed_leader(channel_id(self.cluster_id, 0))
        if found is not None:
            self.network.send("admin", found[0], self._table_request)
        self.scheduler.after(100.0, self._ask_for_table)

    def _on_admin_answer(self, sender: NodeId, message: Message) -> None:
        if isinstance(message, Done) and not self.table_channels:
            runner = self.nodes[sender].runner
            assert runner is not None
            table = runner.controller.catalog.tables["t"]
            self.table_channels.extend(table.channels)

    # --- wiring -----------------------------------------------------------------------------------

    def add_client(self, name: str, handle: int, end: ClientEnd) -> None:
        """A simulated client: ``handle`` is what nodes answer to."""
        self._clients[name] = end
        self._client_names[handle] = name
        self._client_handles[name] = handle

    def send_to_client(self, sender: NodeId, client: int, message: Message) -> None:
        """A node's answer."""
        name = self._client_names.get(client)
        if name is not None:
            self.network.send(sender, name, message)

    def node_connected(self, booted: NodeId) -> None:
        """Connections are established both ways a moment after a boot."""
        node = self.nodes[booted]
        if self.links is not None:
            self.links.booted(node)
        self._tell_of_life(booted)
        for other in self.nodes.values():
            if other is not node and other.is_up:
                delay = self.rng.uniform(0.5, 20.0)
                self.scheduler.after(
                    delay, self._connect, node, node.incarnation, other, other.incarnation
                )

    def look_at_peers(self, node: SimNode) -> None:
        """From time to time a node's network is given the peers that the node knows by now."""
        if self.links is not None:
            self.links.follow(node)

    def node_gone(self, gone: NodeId) -> None:
        """Peers see the broken connection, unless a partition hides it."""
        node = self.nodes[gone]
        self._tell_of_life(gone)
        for other in self.nodes.values():
            if other is not node and other.is_up:
                delay = self.rng.uniform(0.1, 5.0)
                self.scheduler.after(delay, self._lose, other, other.incarnation, node)

    def _tell_of_life(self, node: NodeId) -> None:
        for notify in tuple(self.on_life):
            notify(node)

    def reset_connection(self, a: SimNode, b: SimNode) -> None:
        """A connection breaks and comes back: both sides see it, neither is dead."""
        for node, peer in ((a, b), (b, a)):
            if node.is_up and peer.is_up:
                node.on_peer_lost(peer.node, refused=False)
        self._reconnect(a, b)

    def reconnect_all(self) -> None:
        """Every pair of live nodes gets a working connection again."""
        nodes = list(self.nodes.values())
        for index, a in enumerate(nodes):
            for b in nodes[index + 1 :]:
                self._reconnect(a, b)

    def _reconnect(self, a: SimNode, b: SimNode) -> None:
        if a.is_up and b.is_up:
            delay = self.rng.uniform(0.5, 20.0)
            self.scheduler.after(delay, self._connect, a, a.incarnation, b, b.incarnation)

    def _connect(self, a: SimNode, life_a: int, b: SimNode, life_b: int) -> None:
        if (a.incarnation, b.incarnation) != (life_a, life_b) or not (a.is_up and b.is_up):
            return
        if self.network.is_cut(a.node, b.node) or self.network.is_cut(b.node, a.node):
            self.scheduler.after(50.0, self._connect, a, life_a, b, life_b)
            return
        if self.links is not None and not self.links.meet(a, b):
            return
        a.on_peer_connected(b.node, b.level)
        b.on_peer_connected(a.node, a.level)

    def _lose(self, observer: SimNode, life: int, gone: SimNode) -> None:
        if observer.incarnation != life or not observer.is_up or gone.is_up:
            return
        if not self.network.is_cut(gone.node, observer.node):
            observer.on_peer_lost(gone.node, refused=True)

    def _is_cut_off(self, sender: str, receiver: SimNode) -> bool:
        """S0.1, M27: there is no connection between nodes of which one does not know the other."""
        if self.links is None or sender in self._client_handles:
            return False
        return not self.links.are_linked(NodeId(sender), receiver.node)

    def _deliver(self, sender: str, receiver: str, message: Message) -> None:
        self.events.add_message(self.scheduler.now_ms, sender, receiver, type(message).__name__)
        node = self.nodes.get(NodeId(receiver))
        if node is None and receiver in self._clients:
            self._clients[receiver](NodeId(sender), message)
        elif node is None:
            assert self.options.member_changes, f"{receiver} is nobody"  # it has yet to be started
        elif node.runner is not None and not self._is_cut_off(sender, node):
            handle = self._client_handles.get(sender)
            if not is_readable(message, node.level):
                return  # it was sent to an earlier life, whose connection ended with it
            if handle is None:
                if node.level == 0:
                    check_records(node.name, node.level, message)
                node.on_message(NodeId(sender), message)
            else:
                node.on_client_message(handle, message)
