"""Keeps this node's channels in step with the catalog, and the nodes in it when it leads it.

The catalog is the applied state of the metadata channel. Every node hosts that channel; a node
without a metadata leader goes on with its last committed copy (S1.9). Tables exist only by a
committed command: no message ever creates a channel (S0.8).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from contextlib import suppress

from raftstore.core.events import TargetKnown
from raftstore.engine.catalog.config_reports import ConfigReports
from raftstore.engine.catalog.copy_reports import CopyReports
from raftstore.engine.catalog.evacuator import Evacuator
from raftstore.engine.catalog.failpoints import REPLICA_OPENED
from raftstore.engine.catalog.hosting import Hosting
from raftstore.engine.catalog.machine_codes import MachineCodes
from raftstore.engine.catalog.machine_steps import MachineSteps, StepParts
from raftstore.engine.catalog.node_commands import NodeCommands
from raftstore.engine.catalog.order_proposals import OrderProposals
from raftstore.engine.catalog.quorum_room import QuorumRoom
from raftstore.engine.catalog.rebalance_commands import RebalanceCommands
from raftstore.engine.catalog.rebalancer import Rebalancer
from raftstore.engine.catalog.replacer import Replacer
from raftstore.engine.catalog.replica_commands import ReplicaCommands
from raftstore.engine.catalog.seen_replicas import SeenReplicas
from raftstore.engine.catalog.strangers import Strangers
from raftstore.engine.catalog.table_commands import TableCommands
from raftstore.engine.catalog.table_definition import bounds_of
from raftstore.engine.catalog.table_replicas import TableReplicas
from raftstore.engine.channel.channel_parts import ChannelParts, RoleBefore
from raftstore.engine.channel.proposals import OnOutcome, Proposals
from raftstore.engine.channel.registry import ChannelRegistry
from raftstore.engine.channel.runner import NO_BOUNDS, ChannelRunner
from raftstore.engine.client_answers import ClientAnswers
from raftstore.engine.deadlines import Deadlines
from raftstore.engine.node_ports import (
    METADATA_NAME,
    NO_MACHINES,
    NodeIdentity,
    OnOpened,
    retirement,
)
from raftstore.engine.peers.known_levels import KnownLevels
from raftstore.engine.peers.peer_watch import PeerWatch
from raftstore.errors import Refusal, StoreTooOldError, UnavailableError, UnknownChannelError
from raftstore.policy.levels import (
    LEVEL_OF_KIND,
    newest_limits,
    why_format_is_too_new,
    why_kind_is_too_new,
)
from raftstore.policy.metadata_members import metadata_target
from raftstore.ports.machine import Machines
from raftstore.ports.tables import Answers
from raftstore.protocol.message import Message
from raftstore.protocol.publish import PubAck, PubReject
from raftstore.record_machine import RecordMachine
from raftstore.state_machines.catalog import (
    Catalog,
    TableEntry,
    register_node_command,
)
from raftstore.state_machines.catalog_entries import NodeEntry
from raftstore.state_machines.registry import (
    CATALOG,
    TABLE,
    WITNESS,
    MachinePlace,
    make_machine,
)
from raftstore.types import (
    FOUNDING_NUMBER,
    ChangeTarget,
    ChannelConfig,
    ChannelId,
    NodeId,
    RecordKind,
    ReplicaNumber,
    Role,
    Seq,
    Term,
    channel_id,
    channel_partition,
    channel_table,
    node_name,
)

CATALOG_ROWS_MAX = 1_000_000
"""A safety bound on one scan of the catalog; far above PARTITIONS_MAX tables."""
_OPENING = 0
_LEADING = 3
OPENED_AT_ONCE = 16
"""Channels of new tables that are opened in one turn; the next ones wait for the turns after it."""


class CatalogController:
    """Catalog of one node: its view, its channels; its commands are in ``commands``."""

    _discover_due_ms = 0
    _members_target: ChangeTarget | None = None
    """What the core of the metadata channel works towards."""

    def __init__(  # noqa: PLR0917 - each is one thing that it works with
        self,
        identity: NodeIdentity,
        parts: ChannelParts[ChannelRunner],
        registry: ChannelRegistry,
        watch: PeerWatch,
        levels: KnownLevels,
        proposals: Proposals,
        answers: ClientAnswers,
        machines: Machines = NO_MACHINES,
    ) -> None:
        settings = parts.settings
        self._identity, self._me = identity, identity.me
        self._tables = parts.tables
        self._tell = parts.tell
        self._registry = registry
        self._channels = registry.runners
        self._watch = watch
        self._discover_interval_ms = settings.heartbeat.discover_interval_ms
        self.metadata_channel = channel_id(identity.cluster_id, 0)
        self.catalog = Catalog.empty()
        self.proposals = proposals
        self.on_retired: Callable[[str], None] = lambda _: None
        """Is called when this node has left the cluster for ever (M27), with the reason."""
        self.on_leaders_switched: Callable[[int], None] = lambda _: None
        """Is called when an operator has turned even leaders on or off, with the time."""
        self._seen: dict[NodeId, str] = dict(identity.configured)
        if identity.advertise:
            self._seen[identity.me] = identity.advertise
        self._strangers = Strangers(watch.is_up, self._forget)
        self._known_levels = levels.by_node
        self._known_domains: dict[NodeId, str] = {identity.me: identity.failure_domain}
        self._registering: dict[NodeId, tuple[str, int, str]] = {}
        self.deadlines: Deadlines[int] = Deadlines()
        """Of channels that wait to be opened, tables that wait to go, changes that ended, and nodes
        that came up."""
        watch.on_up_changed.append(self._on_up_changed)
        self.config_reports = ConfigReports(
            self, self._channels, parts.outbox, levels.at_least, watch.is_up,
            wait_ms=settings.membership.report_wait_ms, deadlines=self.deadlines,
        )  # fmt: skip
        self.opening: deque[ChannelId] = deque()
        """Channels of the catalog that wait for a turn of the node to be opened in."""
        self.hosting = Hosting(
            identity.me, parts.log, parts.tables, registry, parts.tell, self.deadlines
        )
        self.quorum_room = QuorumRoom(watch.reports)
        self.commands = TableCommands(
            identity.me,
            parts.ids,
            answers,
            self,
            standby_reads=settings.query.standby_reads,
            channels_max=settings.storage.channels_max,
            no_space=parts.guard.catalog_refusal,
            quorum_room=self.quorum_room,
        )
        self._find_code(parts, answers, machines, levels)
        self._make_standing_orders(parts)
        self._make_rebalancing(parts, answers, levels)

    def _find_code(
        self,
        parts: ChannelParts[ChannelRunner],
        answers: ClientAnswers,
        machines: Machines,
        levels: KnownLevels,
    ) -> None:
        """The parts that know which code of users' machines there is, and what is in force."""
        self._machines = machines
        is_up = self._watch.is_up
        self.codes = MachineCodes(
            self._me, machines, parts.outbox, levels.at_least, is_up, parts.tables.start_query
        )
        self.machine_steps = MachineSteps(
            StepParts(
                self, self._channels, parts, answers, self.codes, self._watch.reports,
                lambda: newest_limits(self.levels().values()),
            )
        )  # fmt: skip

    def _make_rebalancing(
        self, parts: ChannelParts[ChannelRunner], answers: ClientAnswers, levels: KnownLevels
    ) -> None:
        """The parts that move nodes and replicas, one by one or so that nodes hold even shares."""
        is_up = self._watch.is_up
        self.node_commands = NodeCommands(
            self._identity, self.commands, answers, self, parts.clock.wall_ms, is_up, parts.tell
        )
        self.replica_commands = ReplicaCommands(self.commands, answers, self, is_up)
        self.copy_reports = CopyReports(
            self._me, lambda: self.metadata.elector.leader, parts.outbox, levels.at_least
        )
        self.rebalancer = Rebalancer(
            self, SeenReplicas(self._me, self._watch, self._channels), self.copy_reports,
            parts.settings.rebalance, parts.tell,
        )  # fmt: skip
        self.replacer = Replacer(
            self, parts.ids, is_up, parts.settings.replica.replace_after_ms, parts.tell
        )
        self.rebalance_commands = RebalanceCommands(
            self.commands, answers, self, self.rebalancer, self.copy_reports, parts.tell
        )

    def on_message(self, sender: NodeId, message: Message, now_ms: int) -> bool:
        """A report of another node; False: it is about something else."""
        if self.codes.on_message(sender, message, now_ms):
            return True
        return self.config_reports.on_message(message, now_ms) or self.copy_reports.on_message(
            sender, message
        )

    def _make_standing_orders(self, parts: ChannelParts[ChannelRunner]) -> None:
        """The parts that order replicas by themselves where this node leads the metadata."""
        is_up = self._watch.is_up
        self._orders = OrderProposals(self, parts.ids)
        self.evacuator = Evacuator(self, self._orders, is_up)
        self.table_replicas = TableReplicas(self, self._orders, is_up, parts.tell)

    def start(self, now_ms: int, on_opened: OnOpened = lambda _done, _total: None) -> None:
        """Open the metadata channel, then the channels of its last committed state."""
        for node, _ in self._identity.nodes or self._identity.members:
            self._watch.add_peer(node, now_ms)
        self._open_metadata(now_ms)
        self.on_catalog_applied(now_ms)
        while self.opening:  # nobody waits for a turn of a node that has just begun
            self._open_some(now_ms)
            done = len(self._channels)
            on_opened(done, done + len(self.opening))

    def reopen(self, runner: ChannelRunner, now_ms: int) -> None:
        """Close a channel whose log or table was replaced, and open it as after a restart."""
        channel = runner.channel
        table = self.catalog.table_of(channel)
        runner.is_reopened = table is not None or channel == self.metadata_channel
        self._registry.close(channel, now_ms)
        if channel == self.metadata_channel:
            self._open_metadata(now_ms)
            self.on_catalog_applied(now_ms)
        elif table is not None:
            self._open(channel, table, now_ms)
            self.hosting.follow(self.catalog, (channel,), now_ms)

    def _open_metadata(self, now_ms: int) -> None:
        self._registry.open(
            self.metadata_channel,
            METADATA_NAME,
            make_machine(CATALOG),
            now_ms,
            creation_config=self._identity.creation_config(),
            durability="fsync",
            bounds=NO_BOUNDS,
            number=ReplicaNumber(self._identity.number),
        )

    @property
    def metadata(self) -> ChannelRunner:
        """The metadata channel of this node."""
        return self._channels[self.metadata_channel]

    def endpoints(self) -> dict[NodeId, str]:
        """Every known node with its newest endpoint, in a stable order.

        S0.7: what was seen or configured since the start counts most, then the catalog; where the
        nodes were at the birth, or when this one joined, is only believed of those that nothing
        newer is known of. M27: who is retired is no node of the cluster any more.
        """
        first = dict(self._identity.nodes or self._identity.members)
        catalog = {entry.node: entry.endpoint for entry in self.catalog.nodes.values()}
        found = sorted({**first, **catalog, **self._seen}.items())
        return {node: at for node, at in found if node not in self.catalog.retired}

    def reachable(self) -> dict[NodeId, str]:
        """The endpoints, and those of nodes that the catalog here does not name yet."""
        strangers = self._strangers.endpoints
        return {**strangers, **self.endpoints()} if strangers else self.endpoints()

    def levels(self) -> dict[NodeId, int]:
        """The level of every known node, in a stable order.

        The lower one counts of those in the catalog and in its newest Hello: it may have been
        downgraded a moment ago. A node that is not in the catalog yet may be of any version.
        """
        known = {entry.node: entry.level for entry in self.catalog.nodes.values()}
        levels = {node: known.get(node, 0) for node in self.endpoints()}
        return {
            node: min(level, self._known_levels.get(node, level)) for node, level in levels.items()
        }

    def refusal_of(self, kind: RecordKind) -> Refusal | None:
        """Why a record of this kind must not be written: some node could not read it; else None."""
        if kind not in LEVEL_OF_KIND:
            return None
        return self._refusal(why_kind_is_too_new(kind, self.levels()))

    def refusal_of_format(self, number: int, gone: NodeId | None = None) -> Refusal | None:
        """The same of a catalog command of this format. ``gone``: a node that will not read it."""
        levels = {node: level for node, level in self.levels().items() if node != gone}
        return self._refusal(why_format_is_too_new(number, levels))

    def _refusal(self, text: str | None) -> Refusal | None:
        if text is None:
            return None
        # A node whose Hello says more than the catalog registers it in a moment.
        known = {
            entry.node
            for entry in self.catalog.nodes.values()
            if entry.level >= self._known_levels.get(entry.node, 0)
        }
        missing = ", ".join(node_name(node) for node in self.endpoints() if node not in known)
        if missing:  # as in the first moments of a cluster, and then an upgrade is no remedy
            return Refusal(
                UnavailableError,
                f"{missing}: not registered here yet as it is, so this may be too new; start "
                "it if it does not run",
            )
        return Refusal(StoreTooOldError, text)

    # --- the catalog changed ----------------------------------------------------------------------

    def on_catalog_applied(self, now_ms: int) -> None:
        """Read the catalog anew and open or close channels accordingly.

        A table that was copied from another replica may be behind what the log here had brought;
        the log brings it again, and until then what is known stays known (M12).
        """
        if self._tables.applied_seq(self.metadata_channel) > self.catalog.version:
            page = self._tables.scan(self.metadata_channel, b"", b"", CATALOG_ROWS_MAX)
            assert not page.more
            rows = ((row.key, row.value, row.seq) for row in page.rows)
            before = self.catalog
            self.catalog = Catalog.from_rows(rows, page.applied_seq, before=before)
            named = (entry.node for entry in self.catalog.nodes.values())
            self._strangers.forget({*named, *self.catalog.retired})
            self._follow(before, now_ms)
            self._lead_members(now_ms)
            if self.catalog.rebalance.leaders != before.rebalance.leaders:
                self.on_leaders_switched(now_ms)
        self.commands.check_waiting(now_ms)

    def _lead_members(self, now_ms: int) -> None:
        """M30: the log of the metadata channel is the catalog, which says who its members are to
        be; its leader works towards that."""
        runner, catalog = self.metadata, self.catalog
        if runner.elector.role is not Role.LEADER or not runner.core.leader_is_ready:
            return
        target = metadata_target(
            runner.core.config(),
            [entry.node for entry in catalog.nodes.values()],
            catalog.numbers,
            catalog.draining.keys() | catalog.retired.keys(),
            self._watch.is_up,
            Seq(catalog.version),
            hosts=catalog.hosts,
            domains=catalog.domains(),
        )
        if target != self._members_target:
            self._members_target = target
            runner.inform(TargetKnown(target), now_ms)
        self.table_replicas.look(now_ms)
        self.evacuator.look(now_ms)
        self.replacer.look(now_ms)
        self.rebalancer.look(now_ms)

    def _follow(self, before: Catalog, now_ms: int) -> None:
        """Bring peers and channels in step with what changed."""
        for entry in self.catalog.nodes.values():
            self._watch.add_peer(entry.node, now_ms)
        for node in self.catalog.retired.keys() - before.retired.keys():
            self._forget(node, now_ms)
        changed, is_gone = self.catalog.changed_since(before)
        if is_gone:
            self._close_dropped(now_ms)
        for table in changed:
            for channel in table.channels:
                runner = self._channels.get(channel)
                if runner is not None:
                    runner.bounds = bounds_of(table)
                    runner.table_settings = table.settings
                else:
                    self._open_soon(channel)
        self._follow_replicas(self.catalog.replicas_changed_since(before), now_ms)
        self._open_some(now_ms)

    def _follow_replicas(self, channels: Iterable[ChannelId], now_ms: int) -> None:
        """Bring replicas in step with what is ordered and reported (M12, M20)."""
        names = [name for name in channels if name != self.metadata_channel]
        self.hosting.follow(self.catalog, names, now_ms)
        for channel in names:
            if channel not in self._channels:
                self._open_soon(channel)

    def _open_soon(self, channel: ChannelId) -> None:
        if self.hosting.replica_of(channel, self.catalog) is not None:
            self.opening.append(channel)
            self.deadlines.push(_OPENING, 0)  # at once

    def _forget(self, node: NodeId, now_ms: int) -> None:
        """M27: a node has left for ever, or is believed no more (S0.1); nothing is said of it or to
        it."""
        self._seen.pop(node, None)
        self._known_levels.pop(node, None)
        self._known_domains.pop(node, None)
        self._registering.pop(node, None)
        self.copy_reports.forget(node)
        if node == self._me:
            self.on_retired(retirement(node, self._identity.cluster_id))
        else:
            self._watch.remove_peer(node, now_ms)

    def _close_dropped(self, now_ms: int) -> None:
        self._watch.forget_hints(self.exists)
        for channel in tuple(self._channels):
            # S0.8: a missing row may have been lost; only the row that the drop left proves a drop.
            if channel_table(channel) in self.catalog.dropped:
                self._tell("channel_closed", channel=self._channels[channel].name)
                self._registry.drop(channel, now_ms)

    def _open_some(self, now_ms: int) -> None:
        """Open the next channels that wait, not all in one turn: a large table has a thousand,
        and each takes a fraction of a millisecond."""
        for _ in range(min(OPENED_AT_ONCE, len(self.opening))):
            channel = self.opening.popleft()
            table = self.catalog.table_of(channel)
            if table is not None and channel not in self._channels:
                self._open(channel, table, now_ms)
                self.hosting.follow(self.catalog, (channel,), now_ms)
        if not self.opening:
            self.deadlines.cancel(_OPENING)

    def exists(self, channel: ChannelId) -> bool:
        """Whether the channel is hosted here or of a table of the catalog."""
        return channel in self._channels or self.catalog.table_of(channel) is not None

    def _on_up_changed(self, node: NodeId) -> None:
        """A node that came up may take replicas, and a member of the catalog that went is replaced;
        neither waits for the next regular look."""
        del node
        self.deadlines.push(_LEADING, 0)

    def on_applied(self, runner: ChannelRunner, answers: Answers, now_ms: int) -> None:
        """A channel's applied seq moved."""
        del answers
        if runner.channel == self.metadata_channel:
            self.on_catalog_applied(now_ms)

    def leader_changed(self, runner: ChannelRunner, before: RoleBefore, now_ms: int) -> None:
        """A channel got or lost its leader; waiting clients are answered on the next timer."""
        del before, now_ms
        if runner.channel == self.metadata_channel:
            self._registering.clear()
            self._members_target = None
            self._orders.forget()
            self.table_replicas.forget()
            self.replacer.forget()
            self.rebalancer.forget()

    def on_introduced(
        self, node: NodeId, endpoint: str, level: int, failure_domain: str = ""
    ) -> None:
        """A peer said where it can be reached (addresses may change, S0.7), its level, and what
        fails together with it."""
        if node in self._strangers.endpoints:
            self._strangers.renew(node)
        elif node not in self.endpoints():
            return  # it left, or lost its place, while it was connected: nothing comes of it
        elif endpoint:
            self._seen[node] = endpoint
        self._known_levels[node] = level
        self._known_domains[node] = failure_domain

    def on_stranger(self, node: NodeId, endpoint: str, now_ms: int) -> None:
        """A node of this cluster was refused, since nothing here names it; the leader that could
        have it named may be that very node."""
        is_alone = self.metadata.elector.leader is None
        is_named = node in self.catalog.retired or node in self.endpoints()
        if is_alone and not is_named and self._strangers.came(node, endpoint, now_ms):
            self._watch.add_peer(node, now_ms)

    def _open(self, channel: ChannelId, table: TableEntry, now_ms: int) -> None:
        partition = channel_partition(channel)
        hosted = self.hosting.replica_of(channel, self.catalog)
        if hosted is None:
            return
        # S0.8: the log remembers that a channel was dropped, and refuses to open it, where the
        # catalog is applied again from an earlier position and has not come to the drop yet.
        with suppress(UnknownChannelError):
            self._registry.open(
                channel,
                f"{table.name}/{partition}",
                self._machine_of(table, partition, is_witness=hosted.is_witness),
                now_ms,
                creation_config=ChannelConfig((tuple(table.placement[partition]),)),
                durability=table.durability,
                bounds=bounds_of(table),
                table_settings=table.settings,
                number=hosted.number,
            )
            if hosted.number != FOUNDING_NUMBER and self._channels[channel].core.last_seq == 0:
                self._tell(
                    REPLICA_OPENED, channel=f"{table.name}/{partition}", replica=hosted.number
                )

    def _machine_of(self, table: TableEntry, partition: int, *, is_witness: bool) -> RecordMachine:
        name = WITNESS if is_witness else table.machine or TABLE
        first, machines = table.machine_version, self._machines
        place = MachinePlace(
            partition, first, machines.rules, machines.load, from_backup=table.settings.from_backup
        )
        return make_machine(name, place)

    # --- timers -----------------------------------------------------------------------------------

    def on_timer(self, now_ms: int) -> None:
        """Register nodes where this node leads the metadata; answer waiting clients.

        They are looked at with every timer turn; ``commands`` knows the earliest deadline.
        """
        if now_ms >= self._discover_due_ms:
            self._discover_due_ms = now_ms + self._discover_interval_ms
            self._discover(now_ms)
            self._lead_members(now_ms)
            self._follow_replicas(tuple(self.catalog.changes), now_ms)
            self.config_reports.report(now_ms)
            self.copy_reports.report()
            self.machine_steps.look(now_ms)
        if _LEADING in self.deadlines:
            self.deadlines.cancel(_LEADING)
            self._lead_members(now_ms)
        self.config_reports.on_timer(now_ms)
        if self.hosting.on_timer(now_ms):
            self._follow_replicas(tuple(self.catalog.changes), now_ms)
        self._register_nodes(now_ms)
        self.codes.on_timer(now_ms)
        self._open_some(now_ms)
        if self.commands.waiting:
            self.commands.check_waiting(now_ms)

    def _discover(self, now_ms: int) -> None:
        """KLIP-20: peers come from the catalog and from the list of seeds, whichever names them."""
        for node in self.endpoints():
            self._watch.add_peer(node, now_ms)

    def _register_nodes(self, now_ms: int) -> None:
        """The catalog names every node with its present endpoint and level.

        One command per change: what was proposed is not proposed again, unless it was refused or
        another leader may have undone it.
        """
        runner = self.metadata
        if runner.elector.role is not Role.LEADER or not runner.core.leader_is_ready:
            return
        for node, endpoint in self.endpoints().items():
            known = self.catalog.nodes.get(node_name(node))
            entry = known or NodeEntry(node, endpoint)
            # A node that reported nothing since the start keeps what it is known with.
            level = self._known_levels.get(node, entry.level)
            domain = self._known_domains.get(node, entry.failure_domain)
            present = NodeEntry(node, endpoint, entry.format, level, domain)
            asked = (endpoint, level, domain)
            if known == present or self._registering.get(node) == asked:
                continue
            self._registering[node] = asked
            command = register_node_command(node, *asked)
            self.proposals.propose(runner, command, self._registered(node), now_ms)

    def _registered(self, node: NodeId) -> OnOutcome:
        def done(answer: PubAck | PubReject, now_ms: int) -> None:
            del now_ms
            if isinstance(answer, PubReject):
                self._registering.pop(node, None)  # tried again with the next timer

        return done

    def is_up(self, node: NodeId) -> bool:
        """Whether the node is up, as far as this node knows."""
        return node == self._me or self._watch.is_up(node)

    def leader_of(self, channel: ChannelId) -> tuple[NodeId | None, Term]:
        """The leader of a channel, here or elsewhere, as far as this node knows."""
        runner = self._channels.get(channel)
        if runner is not None:
            return runner.elector.leader, runner.elector.term
        hint = self._watch.reports.hints.get(channel)
        return (None, Term(0)) if hint is None else (hint.node, hint.term)
