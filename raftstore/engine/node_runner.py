"""One node: its channels, its view of the others, its catalog and its reads, behind one inbox.

Here the parts of a node are put together, and what happens is taken to the part it is for. Drivers
(``raftstore.node`` and ``raftstore.testing``) call the ``on_…`` methods from one thread and call
``on_timer`` at or after ``next_deadline_ms``. Calls between ``begin_turn`` and ``end_turn`` are one
turn, any other call is one by itself. After every turn the driver lets the log write what is
pending and reports completion with ``on_log_durable``.
"""

from __future__ import annotations

from typing import Any, cast

from raftstore.config import NodeSettings
from raftstore.engine.audit import NodeAudit
from raftstore.engine.batches.service import BatchService, BatchStores
from raftstore.engine.catalog.controller import CatalogController
from raftstore.engine.catalog.step_down_limit import StepDownLimit
from raftstore.engine.channel.active_channels import ActiveChannels
from raftstore.engine.channel.catch_ups import CatchUps
from raftstore.engine.channel.channel_parts import ChannelNotices, ChannelParts
from raftstore.engine.channel.disk_space import DiskSpace
from raftstore.engine.channel.drain import Drain
from raftstore.engine.channel.hole_repairs import HoleRepairs
from raftstore.engine.channel.idle_electors import IdleElectors
from raftstore.engine.channel.outbox import Outbox
from raftstore.engine.channel.payload_repairs import PayloadRepairs
from raftstore.engine.channel.proposals import Proposals
from raftstore.engine.channel.quorum_clock import QuorumClock
from raftstore.engine.channel.registry import ChannelRegistry
from raftstore.engine.channel.runner import ChannelRunner
from raftstore.engine.channel.schedule import ChannelSchedule
from raftstore.engine.channel.space_hand_overs import SpaceHandOvers
from raftstore.engine.channel.storage_guard import StorageGuard
from raftstore.engine.client_answers import ClientAnswers
from raftstore.engine.client_inbox import ClientInbox
from raftstore.engine.client_writes import ClientWrites
from raftstore.engine.clock import Clock
from raftstore.engine.deadlines import Deadlines
from raftstore.engine.halt import NodeHalt
from raftstore.engine.healing.parts import HealingParts
from raftstore.engine.healing.service import Healing
from raftstore.engine.leaders.parts import LeaderParts
from raftstore.engine.leaders.service import Leaders
from raftstore.engine.message_kinds import (
    BATCH_KINDS,
    ELECTION_KINDS,
    HEALING_KINDS,
    REPLICATION_KINDS,
    SNAPSHOT_KINDS,
)
from raftstore.engine.meters import Meters
from raftstore.engine.node_ports import CLIENT_HANDLE_SELF, NodeIdentity, NodePorts, OnOpened
from raftstore.engine.peers.failover_watch import FailoverWatch
from raftstore.engine.peers.known_levels import KnownLevels
from raftstore.engine.peers.peer_parts import PeerParts
from raftstore.engine.peers.peer_watch import PeerWatch
from raftstore.engine.peers.replica_lag import ReplicaLagGuard
from raftstore.engine.reads.reader import Reader
from raftstore.engine.relayed_writes import RelayedWrites
from raftstore.engine.reports.content_hashes import ContentHashes
from raftstore.engine.reports.events import EventLog, EventRing
from raftstore.engine.reports.node_parts import NodeParts
from raftstore.engine.reports.node_reports import NodeReports
from raftstore.engine.request_handler import RequestHandler
from raftstore.engine.retention.expirer import Expirer
from raftstore.engine.retention.floors import RetentionParts
from raftstore.engine.retention.retention import Retention
from raftstore.engine.snapshots.parts import SnapshotParts
from raftstore.engine.snapshots.service import ReplicaSnapshots
from raftstore.ports.tables import Answers, Conflicts, ReadDone
from raftstore.protocol.batches import BatchMessage
from raftstore.protocol.election import ElectionMessage, TransferNow
from raftstore.protocol.healing import HealingMessage
from raftstore.protocol.message import Message
from raftstore.protocol.replica_snapshots import ReplicaSnapshotMessage
from raftstore.protocol.replication import ReplicationBundle, ReplicationMessage
from raftstore.types import ChannelId, NodeId, Seq, StorageStall


class NodeRunner:
    """Everything one node does: what it is made of, its inputs, and the order of work."""

    _is_in_turn = False

    def __init__(self, identity: NodeIdentity, ports: NodePorts, settings: NodeSettings) -> None:
        self.me = me = identity.me
        self.identity, self.ports, self._settings = identity, ports, settings
        self.clock = Clock(ports.wall_ms)
        self.halt = NodeHalt(ports.on_halt)
        self.ring = EventRing()
        self.events = EventLog(self.ring, ports.wall_ms, ports.on_event)
        self.meters = Meters()
        self.channels: dict[ChannelId, ChannelRunner] = {}
        self._active = ActiveChannels()
        self._schedule = ChannelSchedule(self.channels, self._active)
        self._idle = IdleElectors(self.channels)
        self.drain = Drain(self.channels, self._active, self.clock)
        self.levels = KnownLevels(me, identity.level)
        self.outbox = Outbox(ports.log, ports.transport, self.levels.takes_bundles)
        look = ports.free_bytes, ports.log.unsynced_bytes, SpaceHandOvers(me, self.channels).offer
        self.space = DiskSpace(me, settings.storage, self.events.tell, *look)
        self.guard = StorageGuard(
            me, ports.log, self.outbox, self.events.tell, space=self.space, stall=ports.stall,
            unsynced_bytes_max=settings.storage.unsynced_bytes_max,
        )  # fmt: skip
        self.writes = ClientWrites(settings.replication.client_payload_bytes_max)
        self._make_peers()
        self._make_channels()
        self.metadata_channel = self.controller.metadata_channel
        self._make_reports()
        self._positions_moved = self.watch.reports.moved
        self._views_moved = self.views.kept.moved
        self._deadlines: tuple[Deadlines[Any], ...] = (
            self._schedule.deadlines,
            *self.reader.all_deadlines,
            self.controller.deadlines,
            self.controller.commands.deadlines,
            self.controller.codes.deadlines,
            self.hashes.waiting.deadlines,
            self.failovers.deadlines,
            self.repairs.deadlines,
            *self.retention.deadlines,
            self.expirer.deadlines,
            *self.leaders.deadlines,
            self.space.deadlines,
            *self.snapshots.deadlines,
            *self.healing.deadlines,
            *self.batches.deadlines,
        )

    def _make_peers(self) -> None:
        """The watch of other nodes, and the way back to clients."""
        settings, ports, channels = self._settings, self.ports, self.channels
        self.failovers = FailoverWatch(self.me, channels, self.events.tell)
        parts = PeerParts(
            self.identity,
            ports.ids,
            self.clock,
            self.outbox,
            channels,
            self.failovers,
            self.events.tell,
            # These are made later, since they look at the watch.
            exists=lambda channel: self.controller.exists(channel),  # noqa: PLW0108
            moved=lambda channel: self.views.kept.moved(channel),  # noqa: PLW0108
            nodes_at_level=self.levels.at_least,
            disk_room=self.guard.room,
        )
        self.watch = PeerWatch(
            parts, heartbeat=settings.heartbeat, election=settings.election, lag=settings.lag
        )
        self.catch_ups = CatchUps(
            settings.catchup,
            settings.replication.sync_batch_bytes_max,
            self.events.tell,
            ports.on_give_up,
        )
        self.lag_guard = ReplicaLagGuard(
            self.watch, self.events.tell, settings.replication.lag_patience_ms
        )
        self.audit = NodeAudit(settings.audit, self.identity.boot_id, self.watch, self.events.tell)
        self._proposals = Proposals(ports.ids)
        self.relayed = RelayedWrites(self.outbox, self.levels.at_least)
        self.answers = ClientAnswers(
            ports.transport,
            self.clock,
            channels,
            self._proposals,
            self.writes,
            self.meters,
            self.failovers,
            self.relayed,
            self.audit,
        )
        self.reader = Reader(
            self.me, ports.tables, ports.ids, self.clock, self.answers, self.watch, settings
        )

    def _make_channels(self) -> None:
        """The parts that open channels, and those that are notified of what happens to them."""
        settings, ports, identity = self._settings, self.ports, self.identity
        notices = ChannelNotices[ChannelRunner]()
        ahead_ms = settings.replication.stamp_ahead_ms
        parts = ChannelParts(
            me=self.me,
            boot_id=identity.boot_id,
            settings=settings,
            log=ports.log,
            tables=ports.tables,
            ids=ports.ids,
            clock=self.clock,
            elector_factory=ports.elector_factory,
            outbox=self.outbox,
            guard=self.guard,
            active=self._active,
            catch_ups=self.catch_ups,
            notices=notices,
            room=self.writes,
            tell=self.events.tell,
            halt=self.halt.halt,
            reply=self.answers.reply,
            is_up=self.watch.is_up,
            stamp_ms=QuorumClock(self.me, ports.wall_ms, self.watch.wall_ms, ahead_ms).stamp_ms,
            heard_leader=self.watch.heard_leader,
            # Made later, since it looks at the catalog, whose controller opens channels.
            stage_refusal=lambda *of: self.batches.staged.stage_refusal(*of),  # noqa: PLW0108
            repair_payloads=self._payload_repairs().execute,
        )
        self.registry = ChannelRegistry(parts, self.channels)
        self.controller = controller = CatalogController(
            identity, parts, self.registry, self.watch, self.levels, self._proposals, self.answers,
            ports.machines,
        )  # fmt: skip
        self.leaders = Leaders(
            LeaderParts(parts, self.channels, controller, self.watch, self.levels, self.drain)
        )
        self.repairs = HoleRepairs(
            ports.log,
            self.outbox,
            self.channels,
            self.events.tell,
            nodes_at_level=self.levels.at_least,
            reopen=lambda runner: controller.reopen(runner, self.clock.now_ms),
            bytes_max=settings.replication.sync_batch_bytes_max,
            first_request_id=int.from_bytes(identity.boot_id[:8], "big") >> 2,
        )
        self._make_snapshots()
        self.batches = BatchService(
            self.me, self.channels, BatchStores(ports.log, ports.tables, self.outbox), controller,
            self.reader, self.answers, settings,
        )  # fmt: skip
        self._make_retention()
        self._make_healing()
        self._connect(notices)

    def _payload_repairs(self) -> PayloadRepairs:
        """The part that asks for missing payloads, and gives them."""
        return PayloadRepairs(
            self.ports.log,
            self.outbox,
            nodes_at_level=self.levels.at_least,
            is_up=self.watch.is_up,
            reported=self.watch.reports.logs_of,
            # Made later, since it looks at the catalog, whose controller opens channels.
            publish=lambda node, write: self.requests.on_publish(
                self.relayed.handle_of(node), write, self.clock.now_ms
            ),
        )

    def _make_retention(self) -> None:
        """The parts that trim the logs of channels, and that have rows expire."""
        parts = RetentionParts(
            me=self.me,
            channels=self.channels,
            log=self.ports.log,
            tables=self.ports.tables,
            watch=self.watch,
            readers=self.batches.change_readers,
            clock=self.clock,
            node_levels=self.controller.levels,
            settings=self._settings.retention,
            segment_bytes=self._settings.storage.segment_bytes,
            tell=self.events.tell,
            proposals=self._proposals,
            refusal_of=self.controller.refusal_of,
            outbox=self.outbox,
            nodes_at_level=self.levels.at_least,
            is_space_low=lambda: self.space.is_low,
            claim=self.space.claim,
        )
        self.retention = Retention(parts)
        self.retention.floors.keep_for_transfers(self.snapshots.pinned)
        self.expirer = Expirer(parts, self._settings.expiry)

    def _make_healing(self) -> None:
        """The part that looks for damage, and makes it good."""
        parts = HealingParts(
            self.channels, self.ports.log, self.ports.tables, self._settings.scrub,
            self.events.tell, lambda runner: self.controller.reopen(runner, self.clock.now_ms),
            self.snapshots.receiver.replace, self.me, self.outbox, self.levels,
            int.from_bytes(self.identity.boot_id[:8], "big") >> 2, self.reader.scans,
            self.answers, self._settings.read, self.clock,
        )  # fmt: skip
        self.healing = Healing(parts)
        self.snapshots.report_to(self.healing.table_repairs.replaced, self.healing.scrubber.look)

    def _make_snapshots(self) -> None:
        """The part that gives other replicas their tables, and takes theirs."""
        self.snapshots = ReplicaSnapshots(
            SnapshotParts(
                self.ports.log,
                self.ports.tables,
                self.outbox,
                self.channels,
                self._settings.snapshot,
                self.events.tell,
                self.levels.at_least,
                lambda runner: self.controller.reopen(runner, self.clock.now_ms),
                int.from_bytes(self.identity.boot_id[:8], "big") >> 2,
                self.space.shortage,
                self.catch_ups,
                lambda: self.controller.catalog.rebalance.throttle,
                lambda *asked: self.retention.floors.rows_seq(*asked),  # noqa: PLW0108 - made later
                self.watch.is_up,
            )
        )
        self.controller.copy_reports.taken = self.snapshots.receiver.transfers
        self.repairs.on_unfilled = self.snapshots.receiver.hole_unfilled

    def _connect(self, notices: ChannelNotices[ChannelRunner]) -> None:
        """Name the parts that are notified of what happens to channels, in this order."""
        watch, reader, batches = self.watch, self.reader, self.batches
        notices.opened = (
            watch.channel_opened,
            self.repairs.opened,
            self.healing.opened,
            self.snapshots.on_opened,
            reader.on_channel_opened,
            batches.on_channel_opened,
        )
        self.controller.on_retired = self.ports.on_retired
        notices.snapshot_needed = (self.snapshots.on_needed,)
        notices.closed = (
            self.repairs.closed,
            self.catch_ups.channel_closed,
            self.snapshots.on_closed,
            self.meters.channel_closed,
            self.audit.channel_closed,
            self._schedule.on_closed,
            watch.channel_closed,
            reader.on_channel_closed,
            batches.on_channel_closed,
            self.lag_guard.channel_closed,
            self.retention.channel_closed,
            self.expirer.channel_closed,
            self.healing.closed,
            self.controller.config_reports.on_closed,
        )
        notices.leader_changed = (
            watch.leader_changed,
            self.catch_ups.leader_changed,
            self.failovers.leader_changed,
            self.meters.leader_changed,
            self.drain.leader_changed,
            self.controller.leader_changed,
            batches.leader_changed,
            self.snapshots.leader_changed,
            self.expirer.leader_changed,
            self.leaders.leader_changed,
        )
        notices.applied = (
            reader.on_applied,
            batches.on_applied,
            self.controller.on_applied,
            self.snapshots.on_applied,
            self.expirer.on_applied,
        )
        notices.freshness_proven = (reader.on_freshness,)
        notices.config_committed = (
            watch.config_committed,
            self.controller.config_reports.on_committed,
        )
        notices.histories_differ = (self.healing.divergences.differs,)
        notices.state_differs = (self.healing.table_repairs.found,)
        notices.hand_over_refused = (self.controller.commands.step_down_refused,)

    def _make_reports(self) -> None:
        """Reports of the node, and the parts where messages of clients enter it."""
        ports, settings = self.ports, self._settings
        self.parts = parts = NodeParts(
            identity=self.identity,
            settings=settings,
            log=ports.log,
            tables=ports.tables,
            outbox=self.outbox,
            channels=self.channels,
            controller=self.controller,
            watch=self.watch,
            reader=self.reader,
            batches=self.batches,
            meters=self.meters,
            failovers=self.failovers,
            lag_guard=self.lag_guard,
            catch_ups=self.catch_ups,
            retention=self.retention,
            healing=self.healing,
            expirer=self.expirer,
            leaders=self.leaders,
            snapshots=self.snapshots,
            step_downs=StepDownLimit(),
            guard=self.guard,
            drain=self.drain,
            ring=self.ring,
            audit=self.audit,
        )
        self.reports = NodeReports(parts, self.clock, ports)
        self.views = self.reports.views
        self.hashes = ContentHashes(
            self.me,
            self.channels,
            ports.tables,
            self.reader.lag_of,
            self.answers,
            settings.read,
            wait_ms=settings.transport.request_timeout_max_ms,
        )
        self.requests = RequestHandler(
            parts,
            self._active,
            self.answers,
            self.writes,
            self.hashes,
            self.reports,
            self.events.tell,
        )
        self.inbox = ClientInbox(
            parts,
            self._active,
            self.answers,
            self.writes,
            self.hashes,
            self.requests,
            ports.transport.end_client,
            self.events.tell,
        )

    def start(self, now_ms: int, on_opened: OnOpened = lambda _done, _total: None) -> None:
        """Open the metadata channel and every channel of the last committed catalog (S1.9)."""
        self.clock.now_ms = now_ms
        self.controller.start(now_ms, on_opened)
        self.retention.start(now_ms)
        self.healing.start(now_ms)
        self.space.start(now_ms)
        self._after()

    # --- turns ------------------------------------------------------------------------------------

    def begin_turn(self) -> None:
        """The calls up to ``end_turn`` are one turn; then ``next_deadline_ms`` is right again."""
        self._is_in_turn = True
        self.outbox.mail.hold()

    def end_turn(self, now_ms: int) -> None:
        """All that had arrived was handed on."""
        self._is_in_turn = False
        if now_ms != self.clock.now_ms:
            self._begin(now_ms)
        self._after()
        if self.halt.reason is not None:
            self.outbox.mail.drop()  # S0.4: nothing leaves any more
        self.outbox.mail.flush()

    # --- inputs -----------------------------------------------------------------------------------

    def on_peer_message(  # noqa: C901 - one arm per conversation
        self, sender: NodeId, message: Message, arrived_ms: int, now_ms: int
    ) -> None:
        """A message of an authenticated peer; ``arrived_ms`` is when its bytes were read (S12)."""
        if now_ms != self.clock.now_ms:
            self._begin(now_ms)
        kind = type(message)
        if kind in REPLICATION_KINDS:
            replication: Any = message
            self._replicate(sender, replication, now_ms)
        elif kind is ReplicationBundle:
            for each in cast("ReplicationBundle", message).messages():
                self._replicate(sender, each, now_ms)
        elif kind in ELECTION_KINDS:
            election = cast("ElectionMessage", message)
            runner = self.channels.get(election.channel)
            # S9: a leadership that would be given away at once is declined.
            is_declined = kind is TransferNow and self.space.is_low
            if runner is not None and not is_declined:
                self._active.touch(runner.channel)
                self.failovers.on_election(runner, election, now_ms)
                runner.on_election(sender, election, now_ms)
        elif kind in BATCH_KINDS:
            self.batches.on_message(sender, cast("BatchMessage", message), now_ms)
        elif kind in HEALING_KINDS:
            self.healing.divergences.on_message(sender, cast("HealingMessage", message), now_ms)
        elif kind in SNAPSHOT_KINDS:
            self.snapshots.on_message(sender, cast("ReplicaSnapshotMessage", message), now_ms)
        elif not (
            self.watch.on_message(sender, message, arrived_ms, now_ms)
            or self.retention.on_message(sender, message)
            or self.leaders.on_message(sender, message, now_ms)
            or self.controller.on_message(sender, message, now_ms)
        ):
            self.repairs.on_message(sender, message, now_ms)
        self._after()

    def _replicate(self, sender: NodeId, message: ReplicationMessage, now_ms: int) -> None:
        runner = self.channels.get(message.channel)
        if runner is not None:  # S0.8: a message never creates a channel
            runner.on_replication(sender, message, now_ms)

    def on_peer_connected(
        self, node: NodeId, advertise: str, level: int, now_ms: int, domain: str = ""
    ) -> None:
        """A connection to a peer is established; what it says of itself may be new (S0.7)."""
        self._begin(now_ms)
        self.watch.on_connected(node, now_ms)
        self.controller.on_introduced(node, advertise, level, domain)
        for runner in tuple(self.channels.values()):
            if runner.elector.leader == node:
                self._active.touch(runner.channel)
                runner.on_leader_reachable_again(now_ms)
        self._after()

    def on_peer_lost(self, node: NodeId, now_ms: int, *, refused: bool) -> None:
        """A connection to a peer broke or was refused."""
        self._begin(now_ms)
        self.watch.on_lost(node, now_ms, refused=refused)
        self.snapshots.on_peer_lost(node, now_ms)
        self._after()

    def on_client_message(self, client: int, message: Message, now_ms: int) -> None:
        """A publish or a request of a client connection (handles start at 1)."""
        assert client != CLIENT_HANDLE_SELF
        if now_ms != self.clock.now_ms:
            self._begin(now_ms)
        self.inbox.on_message(client, message, now_ms)
        self._after()

    def on_client_gone(self, client: int, now_ms: int) -> None:
        """A client's connection ended, and with it all that is held for it."""
        self._begin(now_ms)
        self.inbox.on_gone(client)
        self._after()

    def on_log_durable(self, operation: int, now_ms: int) -> None:
        """The log is durable up to ``operation``: release what waited, then notify the channels."""
        self._begin(now_ms)
        self.outbox.release(operation)
        self.repairs.on_durable(operation)
        self._schedule.on_log_durable(operation, now_ms)
        self.snapshots.on_durable(now_ms)
        self._after()

    def on_log_written(self, operation: int, now_ms: int) -> None:
        """The system has the log up to ``operation`` (S0.6)."""
        self._begin(now_ms)
        self._schedule.on_log_written(operation, now_ms)
        self._after()

    def on_applied(
        self,
        channel: ChannelId,
        applied_seq: Seq,
        conflicts: Conflicts,
        now_ms: int,
        answers: Answers = (),
    ) -> None:
        """The table store applied committed records of a channel, or a piece of one."""
        if now_ms != self.clock.now_ms:
            self._begin(now_ms)
        runner = self.channels.get(channel)
        if runner is not None:
            runner.on_applied(applied_seq, conflicts, now_ms, answers)
        self._after()

    def on_read(self, done: ReadDone, now_ms: int) -> None:
        """A read that was started away from this thread is done."""
        self._begin(now_ms)
        self.reader.on_read(done, now_ms)
        self._after()

    def on_storage_stalled(self, stall: StorageStall | None, now_ms: int) -> None:
        """The disk takes too long for an operation; None: it went on after all (S0.4)."""
        self._begin(now_ms)
        self.guard.changed(stall)
        for runner in tuple(self.channels.values()):
            runner.on_storage_stalled(self.guard.reason, now_ms)
        self._after()

    def on_timer(self, now_ms: int) -> None:
        """Run timers that are due: the node's, and a slice of the channels'."""
        self._begin(now_ms)
        self._schedule.on_timer(now_ms)
        if self.watch.due_ms <= now_ms:
            self.watch.on_timer(now_ms)
        self._idle.on_timer(now_ms)
        self.reader.on_timer(now_ms)
        self.controller.on_timer(now_ms)
        self.hashes.on_timer(now_ms)
        self.repairs.on_timer(now_ms)
        self.space.on_timer(now_ms)
        self.retention.on_timer(now_ms)
        self.expirer.on_timer(now_ms)
        self.leaders.on_timer(now_ms)
        self.snapshots.on_timer(now_ms)
        self.healing.on_timer(now_ms)
        self.failovers.on_timer(now_ms)
        self.batches.on_timer(now_ms)
        self._after()

    def next_deadline_ms(self) -> int:
        """When on_timer must be called at the latest."""
        next_ms = self.watch.due_ms
        for each in self._deadlines:  # asked for in every turn: no call is made for each
            if each.next_ms < next_ms:  # noqa: PLR1730
                next_ms = each.next_ms
        return next_ms

    def begin_drain(self, now_ms: int) -> None:
        """SIGTERM: refuse new writes here and hand every leadership over (S9)."""
        self._begin(now_ms)
        self.drain.begin()
        self._after()

    # --- bookkeeping ------------------------------------------------------------------------------

    def _begin(self, now_ms: int) -> None:
        """A call of the driver: notice first if it comes later than the timer was due (S7.3).

        The driver's clock counts the time in which the process was stopped or the machine asleep.
        """
        guard_ms = self._settings.read.stall_guard_ms
        if now_ms - self.clock.now_ms > guard_ms and now_ms - self.next_deadline_ms() > guard_ms:
            self._stalled(now_ms)
        self.clock.now_ms = now_ms

    def _stalled(self, now_ms: int) -> None:
        due_ms = max(self.clock.now_ms, self.next_deadline_ms())  # a deadline of 0 says "at once"
        self.events.tell("stalled", late_ms=now_ms - due_ms)
        self.clock.now_ms = now_ms
        self.leaders.stood_still(now_ms)
        self.watch.reports.all_moved()
        self.views.kept.all_moved()  # the first request after the stop is answered within this call
        for runner in tuple(self.channels.values()):
            runner.on_stalled(now_ms)

    def _after(self) -> None:
        """The end of a call."""
        while self._active.touched:  # to look at one may touch others
            touched = self._schedule.take_touched()
            # At once: what the next call of the turn reports of the channel is of now (S7.3).
            self._positions_moved(*touched)
            self._views_moved(*touched)
            if self.failovers.under_way:
                self.failovers.touched(touched, self.clock.now_ms)
        if not self._is_in_turn:
            self._settle()

    def _settle(self) -> None:
        """Send what the turn collected; re-arm the timers of every channel that it touched."""
        self.reader.many.flush()
        self._schedule.settle()
