"""The simulated target: every fault a world on virtual time can show."""

from __future__ import annotations

import errno
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Final

from jepsen_like.checker.voters import VoterSets
from jepsen_like.target.base import FaultUnavailableError, Target
from jepsen_like.target.batch_rows import BatchRows
from jepsen_like.target.sim_client import SimClient
from jepsen_like.target.sim_members import SimMembers
from jepsen_like.target.sim_parts import CODEC
from jepsen_like.target.timed_rows import span_of, without_ttl
from jepsen_like.workload.base import Committed
from raftstore.config import NodeSettings
from raftstore.engine.reports.status_report import node_status
from raftstore.protocol.admin import CreateTable
from raftstore.protocol.message import Done, Message
from raftstore.protocol.payload import decode_conditional, decode_rows
from raftstore.protocol.records import Record
from raftstore.rows.keys import decode_key
from raftstore.rows.sealing import unseal
from raftstore.testing.options import SimOptions
from raftstore.testing.sim_cluster import SimCluster
from raftstore.testing.sim_damage import flip_the_mark, lose_the_end
from raftstore.testing.sim_failpoints import FAILPOINTS
from raftstore.testing.sim_files import WRITE
from raftstore.testing.sim_node import SimNode
from raftstore.types import ChannelId, NodeId, RecordKind, channel_id, node_name

CLIENTS: Final = "clients"
ADMIN: Final = "admin"
ADMIN_HANDLE: Final = 1_999
PLENTY_BYTES: Final = 1 << 40
"""Free of a disk that was nearly full before."""
CLOCK_BELIEVED_MS: Final = 1_000.0
"""So long after a clock was set right others may go by what they heard of it before."""
RESTART_MS: Final = 500.0
"""A supervisor looks this often at a node that a disk error ended."""


class SimulatedTarget(Target):
    """Faults over `SimCluster`."""

    name = "simulated"

    def __init__(
        self,
        options: SimOptions,
        tables: Mapping[str, int],
        clients: int,
        settings: NodeSettings | None = None,
    ) -> None:
        self.cluster = SimCluster(options, settings)
        self.tables: dict[str, list[ChannelId]] = {}
        self._wanted = dict(tables)
        self._by_name = {node_name(node): self.cluster.nodes[node] for node in self.cluster.nodes}
        self.nodes = tuple(self._by_name)
        self._client_names = tuple(f"c{index}" for index in range(clients))
        self.clients: list[SimClient] = []
        """Those a client fault may hit."""
        self._clocks: dict[str, tuple[float, float]] = {}
        """Nodes whose clocks were set: how far ahead they are, or were last, and since when."""
        self._damaged: str | None = None
        self._down: dict[str, None] = {}
        """Nodes that stay down until somebody starts them."""
        self._members: SimMembers | None = None
        """From the first fault on that changes members."""

    # --- the world --------------------------------------------------------------------------------

    def start_world(self) -> None:
        """Boot every node and ask for the tables, until they are there."""
        self.cluster.add_client(ADMIN, ADMIN_HANDLE, self._on_created)
        self.cluster.start()
        self._ask_for_tables()
        self._supervise()

    @property
    def is_born(self) -> bool:
        """Every table exists and each of its partitions has a leader."""
        return len(self.tables) == len(self._wanted) and self.cluster.every_channel_has_a_leader()

    def heal_everything(self) -> None:
        """No fault from now on; every node that may start is started."""
        self.cluster.network.heal()
        for node in self._by_name.values():
            node.store.files.mend()
            self._free_disk(node)
            node.failpoint = None
            node.extra_sync_ms = node.wall_offset_ms = 0.0
            node.resume()
            node.shift_clock(jump_ms=0.0, rate=1.0)
        self.start(self.nodes)
        self.cluster.reconnect_all()
        if self._members is not None:
            self._members.heal()

    def why_not_settled(self) -> str:
        """The changes of members that are not over; empty: there are none."""
        return "" if self._members is None else self._members.why_not_settled()

    def voters(self) -> VoterSets:
        """The voters of each partition, since when; empty as long as no fault changed members."""
        return VoterSets() if self._members is None else self._members.voters

    def commits(self) -> dict[tuple[str, int], list[Committed]]:
        """The committed log of every partition, as the oracle saw it grow."""
        return {
            (table, partition): self._committed(channel)
            for table, channels in self.tables.items()
            for partition, channel in enumerate(channels)
        }

    def replica_hashes(self) -> dict[tuple[str, int], dict[str, str]]:
        """Hash of the rows of every replica that runs."""
        return {
            (table, partition): {
                name: node.tables.content_hash(channel)[0].hex()
                for name, node in self._by_name.items()
                if node.runner is not None and channel in node.runner.channels
            }
            for table, channels in self.tables.items()
            for partition, channel in enumerate(channels)
        }

    def views(self) -> dict[str, dict[str, Any]]:
        """The status that every running node reports of the cluster."""
        return {
            name: node_status(node.runner.parts, node.clock.now_ms())
            for name, node in self._by_name.items()
            if node.runner is not None
        }

    def _committed(self, channel: ChannelId) -> list[Committed]:
        truth = self.cluster.oracle.truth(channel)
        marks = set(truth.marks)
        found: list[Committed] = []
        batches = BatchRows()
        for known in truth.records:
            record = known.record
            at = int(known.committed_ms * 1_000_000)
            is_batch = record.kind is RecordKind.BATCH_APPLY
            span = span_of(record)
            found += [
                Committed(
                    record.last_seq, record.guid, decode_key(key)[0], _value(key, sealed),
                    is_conflict=record.last_seq in truth.conflicts, committed_at=at,
                    is_batch=is_batch, span=span,
                )
                for key, sealed in batches.of(record) or _pairs(record)
            ] or [
                Committed(
                    record.last_seq, record.guid, None, None, committed_at=at, is_row=False,
                    is_mark=record.last_seq in marks, span=span,
                )
            ]  # fmt: skip
        return found

    def _ask_for_tables(self) -> None:
        missing = [name for name in self._wanted if name not in self.tables]
        found = self.cluster.believed_leader(channel_id(self.cluster.cluster_id, 0))
        for name in missing if found is not None else ():
            assert found is not None
            request = CreateTable(
                request_id=1 + list(self._wanted).index(name), name=name, key_columns=("k",),
                partitions=self._wanted[name],
                replicas=min(self.cluster.options.replicas, len(self.nodes)),
                durability="fsync", max_lag=None, schema_json="", if_not_exists=True,
                timeout_ms=2_000,
            )  # fmt: skip
            self.cluster.network.send(ADMIN, found[0], request)
        if missing:
            self.cluster.scheduler.after(100.0, self._ask_for_tables)

    def _on_created(self, sender: NodeId, message: Message) -> None:
        runner = self.cluster.nodes[sender].runner
        if not isinstance(message, Done) or runner is None:
            return
        name = list(self._wanted)[message.request_id - 1]
        if name not in self.tables:
            self.tables[name] = list(runner.controller.catalog.tables[name].channels)
            self.cluster.table_channels += self.tables[name]

    def _supervise(self) -> None:
        """Restart what ended by itself and may run again: a full disk keeps its node waiting."""
        for name, node in self._by_name.items():
            may_start = node.refused is None and not node.store.files.is_broken
            if not node.is_up and name not in self._down and may_start:
                node.boot()
            if name in self.nodes and self._has_left(node):
                self.nodes = tuple(each for each in self.nodes if each != name)
        self.cluster.scheduler.after(RESTART_MS, self._supervise)

    # --- processes --------------------------------------------------------------------------------

    def leaders(self) -> dict[str, str]:
        names = {channel: name for name, channel in self._partitions().items()}
        names[channel_id(self.cluster.cluster_id, 0)] = "metadata"
        return {
            names[ChannelId(channel)]: node.name
            for channel, node in self.cluster.leaders().items()
            if channel in names
        }

    def is_up(self, node: str) -> bool:
        return self._node(node).is_up

    def kill(self, nodes: Collection[str]) -> None:
        for node in self._running(nodes):
            self._down[node.name] = None
            node.kill("killed")

    def start(self, nodes: Collection[str]) -> None:
        for name in nodes:
            self._down.pop(name, None)
            node = self._node(name)
            if not node.is_up and not node.store.files.is_broken:
                node.boot()

    def stop(self, node: str) -> None:
        self._running((node,))
        self._node(node).hand_over_all()
        self.kill((node,))

    def pause(self, nodes: Collection[str]) -> None:
        for node in self._running(nodes):
            self.cluster.trace("pause", node=node.name)
            node.pause()

    def resume(self, nodes: Collection[str]) -> None:
        for name in nodes:
            self._node(name).resume()

    def power_loss(self, nodes: Collection[str]) -> None:
        for node in self._running(nodes):
            self._down[node.name] = None
            node.crash("power loss")

    def crash_at(self, node: str, failpoint: str) -> None:
        (victim,) = self._running((node,))
        victim.failpoint = failpoint

    def disarm(self, node: str) -> None:
        victim = self._node(node)
        armed, victim.failpoint = victim.failpoint, None
        if armed is not None:
            raise FaultUnavailableError(f"{node} never passed {armed} while it was armed")

    def failpoints(self) -> tuple[str, ...]:
        # No log is cut in these worlds, so no replica takes another one's table.
        return tuple(name for name in FAILPOINTS if not name.startswith(("copy.", "files.")))

    # --- network ----------------------------------------------------------------------------------

    def block(self, links: Collection[tuple[str, str]]) -> None:
        self.cluster.trace("cut", links=" ".join(f"{a}>{b}" for a, b in links))
        for sender, receiver in links:
            for source in self._endpoints(sender):
                for target in self._endpoints(receiver):
                    self.cluster.network.cut(source, target)

    def unblock(self) -> None:
        self.cluster.trace("uncut")
        self.cluster.network.heal_partitions()
        self.cluster.reconnect_all()

    def weather(
        self,
        *,
        loss: float = 0.0,
        duplicate: float = 0.0,
        reorder: float = 0.0,
        delay_ms: tuple[float, float] = (0.0, 0.0),
        bytes_per_second: int = 0,
    ) -> None:
        self.cluster.trace(
            "weather", loss=loss, duplicate=duplicate, reorder=reorder, delay_ms=delay_ms[1],
            bytes_per_second=bytes_per_second,
        )  # fmt: skip
        network = self.cluster.network
        network.loss_percent = loss * 100
        network.duplicate_percent = duplicate * 100
        network.late_percent = reorder * 100
        network.delay_max_ms = max(delay_ms[1], self.cluster.options.delay_max_ms)
        network.bytes_per_second = bytes_per_second

    def reset_connections(self, node: str | None = None) -> None:
        nodes = list(self._by_name.values())
        for index, first in enumerate(nodes):
            for second in nodes[index + 1 :]:
                if node in (None, first.name, second.name):
                    self.cluster.reset_connection(first, second)

    # --- disks ------------------------------------------------------------------------------------

    def slow_disk(self, node: str, milliseconds: float) -> None:
        self.cluster.trace("slow_disk", node=node, milliseconds=milliseconds)
        self._node(node).extra_sync_ms = milliseconds

    def fail_disk(self, node: str, *, operation: str, sticky: bool) -> None:
        self.cluster.trace("fail_disk", node=node, operation=operation, sticky=sticky)
        self._node(node).store.files.fail(operation, is_lasting=sticky)

    def fill_disk(self, node: str) -> None:
        self.cluster.trace("fill_disk", node=node)
        self._node(node).store.files.fail(WRITE, code=errno.ENOSPC, is_lasting=True)

    def crowd_disk(self, node: str, left_bytes: int) -> None:
        """The node finds out in time (GAP-13): a full disk that fails writes is ``fill_disk``."""
        self.cluster.trace("crowd_disk", node=node, left_bytes=left_bytes)
        self._node(node).free_bytes = left_bytes

    def hang_disk(self, node: str) -> None:
        self.cluster.trace("hang_disk", node=node)
        self._node(node).disk.hang()

    def mend_disk(self, node: str) -> None:
        self._node(node).disk.heal()
        files = self._node(node).store.files
        self._free_disk(self._node(node))
        is_unstruck = files.is_failing and not files.is_broken
        files.mend()
        if is_unstruck:
            raise FaultUnavailableError(f"{node} wrote nothing while an error waited for it")

    @staticmethod
    def _free_disk(node: SimNode) -> None:
        if node.free_bytes is not None:
            node.free_bytes = PLENTY_BYTES

    def damage(self, node: str, *, kind: str, file: str) -> str:
        victim = self._node(node)
        if file == "mark":
            self._refuse_twice(node)
            self._refuse_while_changing()
            self._claim_damage(node)
            self._down[node] = None
            victim.store.must_refuse = f"there is {kind} in its mark"
            victim.damage(f"{kind} in the mark", flip_the_mark)
            return f"{kind}: the mark of {node} fails its checksum, so the node refuses to start"
        if file == "identity":
            self._lose(node, f"{kind} in the {file}")
            return f"{kind}: the {file} of {node} fails its checksum, so the node refuses to start"
        self._refuse_twice(node)
        if file == "log":
            self._claim_damage(node)
        self._down[node] = None
        if file == "log":
            victim.damage(f"{kind} in the log", lose_the_end)
            return f"{kind}: records at the end of the log of {node} fail their checksum"
        victim.kill(f"{kind} in {file}")
        victim.tables.lose()
        return f"{kind}: the tables of {node} cannot be opened and are rebuilt from the log"

    def wipe(self, node: str) -> None:
        self._lose(node, "its data directory is gone")

    def swap_stores(self, first: str, second: str) -> None:
        for name, other in ((first, second), (second, first)):
            node = self._node(name)
            swapped = f"it has the store of {other}"
            if node.refused is not None and node.refused != swapped:
                raise FaultUnavailableError(f"{name} is refused already: {node.refused}")
        for name, other in ((first, second), (second, first)):
            node = self._node(name)
            self._down[name] = None
            node.kill("stores are exchanged")
            node.refused = None if node.refused else f"it has the store of {other}"

    # --- clocks, clients, operators ---------------------------------------------------------------

    def shift_clock(self, node: str, *, jump_ms: float = 0.0, rate: float = 1.0) -> None:
        """The wall clock jumps either way, the monotonic one only ahead."""
        victim = self._node(node)
        self.cluster.trace("shift_clock", node=node, jump_ms=jump_ms, rate=rate)
        victim.wall_offset_ms = victim.wall_offset_ms + jump_ms if jump_ms else 0.0
        self._note_clocks(node)
        victim.shift_clock(jump_ms=max(0.0, jump_ms), rate=rate)

    def _note_clocks(self, node: str) -> None:
        """The oracle has to know how far two clocks are ahead, or are believed to be still."""
        now_ms, offset_ms = self.cluster.scheduler.now_ms, self._by_name[node].wall_offset_ms
        before_ms, _ = self._clocks.get(node, (0.0, 0.0))
        self._clocks[node] = (offset_ms or before_ms, now_ms)
        ahead = sorted(
            ms
            for name, (ms, at_ms) in self._clocks.items()
            if self._by_name[name].wall_offset_ms or at_ms > now_ms - CLOCK_BELIEVED_MS
        )
        oracle = self.cluster.oracle
        oracle.clocks_ahead_ms = max(oracle.clocks_ahead_ms, *ahead[-2:-1], 0.0)

    def kill_client(self, client: int) -> None:
        self._client(client, lambda found: found.is_at_work, "is at work").die()

    def publish_to_one(self, client: int) -> None:
        self._client(client, lambda _: True, "works").reaches_one = True

    def disarm_client(self, client: int) -> None:
        armed = self._client(client, lambda _: True, "works")
        if armed.reaches_one:
            armed.reaches_one = False
            raise FaultUnavailableError(f"{armed.name} published nothing while it was armed")

    def publish_again(self, client: int) -> None:
        self._client(client, lambda found: found.has_acknowledged, "wrote anything").repeat()

    def step_down(self, channel: str) -> None:
        leader = self.leaders().get(channel)
        if leader is not None:
            self._node(leader).hand_over_all()

    # --- members ----------------------------------------------------------------------------------

    def replicas(self) -> dict[str, tuple[str, ...]]:
        return self._operator().replicas()

    def staying(self) -> tuple[str, ...]:
        return self._operator().staying()

    def move_replicas(self, channel: str, voters: Sequence[str]) -> None:
        self.cluster.trace("move_replicas", channel=channel, to=",".join(voters))
        self._operator().move(channel, voters)

    def restore_replicas(self, channel: str) -> None:
        self._operator().restore(channel)

    def join_node(self) -> str:
        return self._operator().join()

    def remove_node(self, node: str) -> None:
        self._operator().remove(node)

    def drain_node(self, node: str) -> None:
        self._operator().drain(node)

    def keep_node(self, node: str) -> None:
        self._operator().keep(node)

    # --- inside -----------------------------------------------------------------------------------

    def _operator(self) -> SimMembers:
        if self._members is None:
            self._members = SimMembers(self.cluster, self._partitions, self._adopt)
        return self._members

    def _adopt(self, node: SimNode) -> None:
        """A node that has joined is one of the nodes that faults choose from."""
        self._by_name[node.name] = node
        self.nodes = (*self.nodes, node.name)
        node.boot()

    def _has_left(self, node: SimNode) -> bool:
        return node.node not in self.cluster.node_ids

    def _partitions(self) -> dict[str, ChannelId]:
        return {
            f"{table}/{partition}": channel
            for table, channels in self.tables.items()
            for partition, channel in enumerate(channels)
        }

    def _refuse_while_changing(self) -> None:
        """A copy that a change counts on is not lost for good: a majority may go with it."""
        why = self.why_not_settled()
        if why:
            raise FaultUnavailableError(f"no store is lost while members change: {why}")

    def _claim_damage(self, node: str) -> None:
        """With two damaged stores an acknowledged record may be gone, and rightly so (S0.3)."""
        if self._damaged not in (None, node):
            raise FaultUnavailableError(
                f"{self._damaged} is damaged already; a second damaged store may lose "
                "acknowledged records"
            )
        self._damaged = node

    def _lose(self, node: str, why: str) -> None:
        """The node never starts again: it needs a new id and a change of the members (S0.1)."""
        self._refuse_twice(node)
        self._refuse_while_changing()
        self._claim_damage(node)
        victim = self._node(node)
        self._down[node] = None
        victim.crash(why)
        victim.refused = why

    def _refuse_twice(self, node: str) -> None:
        refused = self._node(node).refused or self._node(node).store.must_refuse
        if refused is not None:
            raise FaultUnavailableError(f"{node} does not run any more: {refused}")

    def _running(self, nodes: Collection[str]) -> list[SimNode]:
        """The nodes that run; FaultUnavailableError when none does."""
        found = [self._node(name) for name in nodes if self._node(name).is_up]
        if not found:
            raise FaultUnavailableError(f"{', '.join(nodes)} did not run when the fault came")
        return found

    def _client(self, number: int, fits: Callable[[SimClient], bool], what: str) -> SimClient:
        """The first client from this number on that fits."""
        count = len(self.clients)
        for step in range(count):
            client = self.clients[(number + step) % count]
            if fits(client):
                return client
        raise FaultUnavailableError(f"no client {what}")

    def _node(self, name: str) -> SimNode:
        return self._by_name[name]

    def _endpoints(self, name: str) -> Sequence[str]:
        return self._client_names if name == CLIENTS else (self._node(name).node,)


def _pairs(record: Record) -> list[tuple[bytes, bytes | None]]:
    kind, payload, _ = without_ttl(record)
    if kind is RecordKind.CONDITIONAL:
        key, sealed, _ = decode_conditional(payload)
        return [(key, sealed)]
    if kind is not RecordKind.ROWS:
        return []
    flat = decode_rows(payload)
    return [(flat[at] or b"", flat[at + 1]) for at in range(0, len(flat), 2)]


def _value(key: bytes, sealed: bytes | None) -> Any:
    return None if sealed is None else CODEC.decode(unseal(key, sealed))["v"]
