"""One node: its channels, its view of the others, its catalog and its reads, behind one inbox.

Drivers (``raftstore.node`` and ``raftstore.testing``) call the ``on_…`` methods from one thread
and call ``on_timer`` at or after ``next_deadline_ms``. Calls between ``begin_turn`` and
``end_turn`` are one turn, any other call is one by itself. After every turn the driver lets the log
write what is pending and reports completion with ``on_log_durable``.
"""

from __future__ import annotations

from typing import Any, Final, cast

from raftstore.config import NodeSettings
from raftstore.engine.batches.service import BatchService, BatchStores
from raftstore.engine.catalog.controller import CatalogController
from raftstore.engine.catalog.step_down_limit import StepDownLimit
from raftstore.engine.channel.candidacies import Candidacies
from raftstore.engine.channel.hole_repairs import HoleRepairs
from raftstore.engine.channel.idle_electors import IdleElectors
from raftstore.engine.channel.outbox import Outbox
from raftstore.engine.channel.proposals import Proposals
from raftstore.engine.channel.runner import ChannelRunner
from raftstore.engine.channel.storage_guard import StorageGuard
from raftstore.engine.client_answers import ClientAnswers
from raftstore.engine.client_inbox import ClientInbox
from raftstore.engine.client_writes import ClientWrites
from raftstore.engine.clock import Clock
from raftstore.engine.deadlines import Deadlines
from raftstore.engine.message_kinds import BATCH_KINDS, ELECTION_KINDS, REPLICATION_KINDS
from raftstore.engine.meters import Meters
from raftstore.engine.node_ports import CLIENT_HANDLE_SELF, NodeIdentity, NodePorts
from raftstore.engine.peers.failover_watch import FailoverWatch
from raftstore.engine.peers.peer_parts import PeerParts
from raftstore.engine.peers.peer_watch import PeerWatch
from raftstore.engine.peers.replica_lag import ReplicaLagGuard
from raftstore.engine.reads.reader import Reader
from raftstore.engine.reports.cluster_info import ClusterInfoReport
from raftstore.engine.reports.content_hashes import ContentHashes
from raftstore.engine.reports.events import EventRing
from raftstore.engine.reports.metrics_report import metrics
from raftstore.engine.reports.status_report import node_status
from raftstore.engine.reports.view_report import ViewReport
from raftstore.engine.request_handler import RequestHandler
from raftstore.errors import Refusal
from raftstore.metrics import Histogram, Sample
from raftstore.ports.tables import Answers, Conflicts, ReadDone
from raftstore.protocol.batches import BatchMessage
from raftstore.protocol.election import ElectionMessage
from raftstore.protocol.message import Message
from raftstore.protocol.publish import PubAck, PubMsg, PubReject
from raftstore.protocol.replication import ReplicationBundle, ReplicationMessage
from raftstore.types import (
    ChannelId,
    NodeId,
    Role,
    Seq,
    StorageStall,
    Term,
    channel_id,
    node_name,
)

CHANNELS_PER_TURN: Final = 64
"""Channels whose timers run in one turn. With a thousand channels due at once, as after the end of
a node or the creation of a large table, messages get their turns in between."""


class NodeRunner:
    """Everything one node does: its inputs, the order of work, and what it is made of."""

    _is_in_turn = False

    def __init__(self, identity: NodeIdentity, ports: NodePorts, settings: NodeSettings) -> None:
        self.identity = identity
        self.me = identity.me
        self.boot_id = identity.boot_id
        self.log = ports.log
        self.tables = ports.tables
        self.ids = ports.ids
        self.replication = settings.replication
        self.election = settings.election
        self.read = settings.read
        self.settings = settings
        self.clock = Clock(ports.wall_ms)
        self.outbox = Outbox(ports.log, ports.transport, self.takes_bundles)
        self.writes = ClientWrites(settings.replication.client_payload_bytes_max)
        self.guard = StorageGuard(
            identity.me,
            ports.log,
            self.outbox,
            self.event,
            unsynced_bytes_max=settings.storage.unsynced_bytes_max,
            stall=ports.stall,
        )
        self.channels: dict[ChannelId, ChannelRunner] = {}
        self.halted: str | None = None
        self.draining = False
        self._ports = ports
        self.end_client = ports.transport.end_client
        self._timers: Deadlines[ChannelId] = Deadlines()
        self._candidacies = Candidacies()
        self._idle = IdleElectors(self.channels)
        self._touched: dict[ChannelId, None] = {}
        """Channels that the present call has done anything to."""
        self._moved: dict[ChannelId, None] = {}
        """Channels that the earlier calls of the turn have done anything to."""
        self._awaiting: dict[ChannelId, ChannelRunner] = {}
        self.ring = EventRing()
        self.meters = Meters()
        self.failovers = FailoverWatch(self.me, self.channels, self.event)
        parts = PeerParts(
            identity,
            ports.ids,
            self.clock,
            self.outbox,
            self.channels,
            self.failovers,
            self.event,
            self.exists,
            lambda channel: self.views.moved(channel),  # noqa: PLW0108 - it is made later
        )
        self.watch = PeerWatch(
            parts, heartbeat=settings.heartbeat, election=settings.election, lag=settings.lag
        )
        self.metadata_channel = channel_id(identity.cluster_id, 0)
        self._assemble(identity, ports, settings)
        self._deadlines = self._all_deadlines()

    def _assemble(self, identity: NodeIdentity, ports: NodePorts, settings: NodeSettings) -> None:
        """Make the parts that answer clients, from what they work with."""
        proposals = Proposals(ports.ids)
        self.answers = ClientAnswers(
            ports.transport,
            self.clock,
            self.channels,
            proposals,
            self.writes,
            self.meters,
            self.failovers,
        )
        self.reader = Reader(
            self.me, ports.tables, ports.ids, self.clock, self.answers, self.watch, settings
        )
        self.controller = CatalogController(self, proposals, self.answers, ports.elector_factory)
        self.repairs = HoleRepairs(
            ports.log,
            self.outbox,
            self.channels,
            self.event,
            told_level=self.controller.told_level,
            reopen=self.reopen,
            bytes_max=settings.replication.sync_batch_bytes_max,
            first_request_id=int.from_bytes(identity.boot_id[:8], "big") >> 2,
        )
        self.views = ViewReport(self)
        self.batches = BatchService(
            self.me,
            self.channels,
            BatchStores(ports.log, ports.tables, self.outbox),
            self.controller,
            self.reader,
            self.answers,
            settings,
        )
        self.cluster_info = ClusterInfoReport(
            identity, self.controller, self.watch, self.reader, self.views
        )
        request_ms_max = settings.transport.request_timeout_max_ms
        self.lag_guard = ReplicaLagGuard(
            self.watch, self.event, settings.replication.lag_patience_ms
        )
        self.step_downs = StepDownLimit()
        self.hashes = ContentHashes(
            self.me,
            self.channels,
            ports.tables,
            self.lag,
            self.answers,
            settings.read,
            wait_ms=request_ms_max,
        )
        self.requests = RequestHandler(self, self.lag_guard, self.step_downs, self.hashes)
        self._inbox = ClientInbox(self, request_ms_max)

    def _all_deadlines(self) -> tuple[Deadlines[Any], ...]:
        reader, controller = self.reader, self.controller
        return (
            self._timers,
            reader.deadlines,
            reader.scans.deadlines,
            reader.fates.open.deadlines,
            controller.deadlines,
            controller.commands.deadlines,
            self.hashes.waiting.deadlines,
            self.failovers.deadlines,
            self.repairs.deadlines,
            *self.batches.deadlines,
        )

    def start(self, now_ms: int) -> None:
        """Open the metadata channel and every channel of the last committed catalog (S1.9)."""
        self.clock.now_ms = now_ms
        for node, _ in self.identity.members:
            self.watch.add_peer(node, now_ms)
        self.controller.start(now_ms)
        self._after()

    # --- turns ------------------------------------------------------------------------------------

    def begin_turn(self) -> None:
        """The calls from here to ``end_turn`` are one turn; ``next_deadline_ms`` is right again at
        its end."""
        self._is_in_turn = True
        self.outbox.mail.hold()

    def end_turn(self, now_ms: int) -> None:
        """All that had arrived was told."""
        self._is_in_turn = False
        self._begin(now_ms)
        self._after()
        if self.halted is not None:
            self.outbox.mail.drop()  # S0.4: nothing leaves any more
        self.outbox.mail.flush()

    # --- inputs -----------------------------------------------------------------------------------

    def on_peer_message(
        self, sender: NodeId, message: Message, arrived_ms: int, now_ms: int
    ) -> None:
        """A message of an authenticated peer; ``arrived_ms`` is when its bytes were read (S12)."""
        self._begin(now_ms)
        kind = type(message)
        if kind in REPLICATION_KINDS:
            self._replicate(sender, cast("ReplicationMessage", message), now_ms)
        elif kind is ReplicationBundle:
            for each in cast("ReplicationBundle", message).messages():
                self._replicate(sender, each, now_ms)
        elif kind in ELECTION_KINDS:
            election = cast("ElectionMessage", message)
            runner = self.channels.get(election.channel)
            if runner is not None:
                self._touched[runner.channel] = None
                self.failovers.on_election(runner, election, now_ms)
                runner.on_election(sender, election, now_ms)
        elif kind in BATCH_KINDS:
            self.batches.on_message(sender, cast("BatchMessage", message), now_ms)
        elif not self.watch.on_message(sender, message, arrived_ms, now_ms):
            self.repairs.on_message(sender, message, now_ms)
        self._after()

    def _replicate(self, sender: NodeId, message: ReplicationMessage, now_ms: int) -> None:
        runner = self.channels.get(message.channel)
        if runner is not None:  # S0.8: a message never creates a channel
            self._touched[runner.channel] = None
            runner.on_replication(sender, message, now_ms)

    def on_peer_connected(self, node: NodeId, advertise: str, level: int, now_ms: int) -> None:
        """A connection to a peer is established; its address and level may be others (S0.7)."""
        self._begin(now_ms)
        self.watch.on_connected(node, now_ms)
        self.controller.on_introduced(node, advertise, level)
        for runner in tuple(self.channels.values()):
            if runner.elector.leader == node:
                self._touched[runner.channel] = None
                runner.on_leader_reachable_again(now_ms)
        self._after()

    def on_peer_lost(self, node: NodeId, now_ms: int, *, refused: bool) -> None:
        """A connection to a peer broke or was refused."""
        self._begin(now_ms)
        self.watch.on_lost(node, now_ms, refused=refused)
        self._after()

    def on_listened(self, until_ms: int, late_ms: int) -> None:
        """The driver has told every heartbeat that had come by then; its own were so late."""
        self.watch.health.listened(until_ms, late_ms)

    def on_client_message(self, client: int, message: Message, now_ms: int) -> None:
        """A publish or a request of a client connection (handles start at 1)."""
        assert client != CLIENT_HANDLE_SELF
        self._begin(now_ms)
        self._inbox.on_message(client, message, now_ms)
        self._after()

    def on_client_gone(self, client: int, now_ms: int) -> None:
        """A client's connection ended, and with it all that is held for it."""
        self._begin(now_ms)
        self._inbox.on_gone(client)
        self._after()

    def holds_for(self, client: int) -> bool:
        """Whether anything is under way for the client."""
        return self._inbox.holds_for(client)

    def on_log_durable(self, operation: int, now_ms: int) -> None:
        """The log is durable up to ``operation``: release what waited, then tell the channels."""
        self._begin(now_ms)
        self.outbox.release(operation)
        self.repairs.on_durable(operation)
        awaiting, self._awaiting = self._awaiting, {}
        for runner in awaiting.values():
            self._touched[runner.channel] = None
            runner.on_log_durable(operation, now_ms)
            if runner.awaits_durability:
                self._awaiting[runner.channel] = runner
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
        self._begin(now_ms)
        runner = self.channels.get(channel)
        if runner is not None:
            self._touched[channel] = None
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
        for channel in self._timers.due(now_ms, CHANNELS_PER_TURN):
            runner = self.channels.get(channel)
            if runner is not None:
                self._touched[channel] = None
                runner.on_timer(now_ms, may_stand=self._candidacies.may_stand(runner, now_ms))
        if self.watch.due_ms <= now_ms:
            self.watch.on_timer(now_ms)
        self._idle.on_timer(now_ms)
        self.reader.on_timer(now_ms)
        self.controller.on_timer(now_ms)
        self.hashes.on_timer(now_ms)
        self.repairs.on_timer(now_ms)
        self.failovers.on_timer(now_ms)
        self.batches.on_timer(now_ms)
        self._after()

    def next_deadline_ms(self) -> int:
        """When on_timer must be called at the latest."""
        return min(self.watch.due_ms, *[each.next_ms for each in self._deadlines])

    def begin_drain(self, now_ms: int) -> None:
        """SIGTERM: refuse new writes here and hand every leadership over (S9)."""
        self._begin(now_ms)
        self.draining = True
        for runner in tuple(self.channels.values()):
            if runner.elector.role is Role.LEADER:
                self._touched[runner.channel] = None
                self._give_away(runner)
        self._after()

    def _give_away(self, runner: ChannelRunner) -> None:
        runner.request_hand_over(None, "node is stopping", self.clock.now_ms, keeps_trying=True)

    def is_drained(self) -> bool:
        """No channel is led here any more that anybody else could lead."""
        return not any(
            runner.elector.role is Role.LEADER and len(runner.core.config().voters) > 1
            for runner in self.channels.values()
        )

    # --- what drivers and parts look at -----------------------------------------------------------

    def heartbeats(self) -> dict[NodeId, tuple[bytes, bool]]:
        """Per peer (leading digest, heard_receiver) for the next heartbeats."""
        return {node: self.watch.heartbeat_content(at) for node, at in self.watch.peers.items()}

    def status(self) -> dict[str, Any]:
        """The JSON-shaped state of this node."""
        return node_status(self, self.clock.now_ms) | self._ports.extra_status()

    def metrics(self) -> tuple[tuple[Sample, ...], tuple[Histogram, ...]]:
        """Everything that is counted and measured here."""
        samples, histograms = self._ports.extra_metrics()
        own_samples, own_histograms = metrics(self, self.clock.now_ms)
        return (*own_samples, *samples), (*own_histograms, *histograms)

    def lag(self, runner: ChannelRunner, applied: Seq) -> tuple[int | None, int | None]:
        """(rows, ms): how far behind a state is now, and the age of that knowledge."""
        return self.reader.lag(runner, self.clock.now_ms, applied)

    def heard_leader(self, runner: ChannelRunner, leader: NodeId) -> int | None:
        """Node-level view of a leader (S1.8)."""
        return self.watch.heard_leader(runner, leader)

    def leader_changed(self, runner: ChannelRunner, old: tuple[Term, Role, NodeId | None]) -> None:
        """A channel's role, term or leader changed."""
        elector = runner.elector
        leader = None if elector.leader is None else node_name(elector.leader)
        self.event(
            "role",
            channel=runner.name,
            role=elector.role.value,
            term=elector.term,
            leader=leader,
            was=old[1].value,
        )
        self.watch.leader_changed(runner, old)
        self.failovers.leader_changed(runner, old[2], self.clock.now_ms)
        self.meters.role_changed(elector.role)
        if self.draining and elector.role is Role.LEADER:
            self._give_away(runner)  # S9: no new writes
        self._touched[runner.channel] = None
        self.controller.leader_changed(runner)
        self.batches.leader_changed(runner, self.clock.now_ms)

    def applied(self, runner: ChannelRunner, answers: Answers) -> None:
        """A channel's applied seq moved."""
        self.reader.on_applied(runner)
        self.batches.on_applied(runner, answers, self.clock.now_ms)
        if runner.channel == self.metadata_channel:
            self.controller.on_catalog_applied(self.clock.now_ms)

    def log_used(self, runner: ChannelRunner) -> None:
        """A channel waits for the log."""
        self._awaiting[runner.channel] = runner

    def exists(self, channel: ChannelId) -> bool:
        """Whether the channel is hosted here or of a table of the catalog."""
        return channel in self.channels or self.controller.catalog.table_of(channel) is not None

    def takes_bundles(self, node: NodeId) -> bool:
        """Whether the node's version knows messages of many channels in one."""
        return self.controller.takes_bundles(node)

    def is_up(self, node: NodeId) -> bool:
        """Up from this node's viewpoint."""
        return self.watch.is_up(node)

    def hand_over_failed(self, runner: ChannelRunner, reason: str, *, was_asked: bool) -> None:
        """Tell the client that asked for the hand-over why there is none, if that is certain."""
        self.event("hand_over_failed", channel=runner.name, reason=reason)
        if not was_asked:
            self.controller.commands.step_down_refused(runner, reason)

    def freshness_proven(self, runner: ChannelRunner) -> None:
        """A channel's commit position is known anew."""
        self.reader.on_freshness(runner)

    def has_moved(self) -> bool:
        """Whether the present call has done anything to a channel."""
        return bool(self._touched)

    def reply(self, client: int, message: PubAck | PubReject) -> None:
        """Answer a publisher."""
        self.answers.reply(client, message)

    def stage_refusal(self, runner: ChannelRunner, message: PubMsg) -> Refusal | None:
        """Why a leader takes no such chunk of a micro-batch now."""
        return self.batches.staged.stage_refusal(runner, message)

    def wall_ms(self) -> int:
        """Wall clock (record timestamps, display)."""
        return self._ports.wall_ms()

    def event(self, name: str, **fields: object) -> None:
        """One structured log line, and for some kinds an event that is kept."""
        self.ring.add(name, fields, self.wall_ms())
        self._ports.on_event(name, fields)

    def halt(self, reason: str) -> None:
        """S0.4: nothing leaves this node any more; the driver exits with code 70."""
        if self.halted is None:
            self.halted = reason
            self._ports.on_halt(reason)

    # --- channels ---------------------------------------------------------------------------------

    def add_channel(self, runner: ChannelRunner, now_ms: int) -> None:
        """A channel was opened by the controller."""
        self.channels[runner.channel] = runner
        self._touched[runner.channel] = None
        if self.guard.reason is not None:
            runner.on_storage_stalled(self.guard.reason, now_ms)
        self.watch.channel_opened(runner, now_ms)
        self.repairs.opened(runner, now_ms)

    def remove_channel(self, channel: ChannelId) -> None:
        """Its table was dropped: it never votes, acks or serves again (S0.8)."""
        self._close_channel(channel)
        self.log.drop_channel(channel)
        self.tables.drop(channel)

    def reopen(self, runner: ChannelRunner) -> None:
        """Its log is another than when it was opened: as after a restart."""
        self._close_channel(runner.channel)
        self.controller.reopen(runner.channel, self.clock.now_ms)

    def _close_channel(self, channel: ChannelId) -> None:
        runner = self.channels.pop(channel)
        self.repairs.closed(channel)
        self.meters.channel_closed(runner.core.statistics())
        self._timers.cancel(channel)
        self._candidacies.forget(channel)
        self._awaiting.pop(channel, None)
        self.watch.channel_closed(runner)
        self.reader.on_channel_closed(runner)
        self.batches.on_channel_closed(runner)
        self.lag_guard.forget(channel)
        runner.close(self.clock.now_ms)

    # --- bookkeeping ------------------------------------------------------------------------------

    def _begin(self, now_ms: int) -> None:
        """A call of the driver: notice first if it comes later than the timer was due (S7.3).

        The driver's clock counts the time in which the process was stopped or the machine asleep.
        """
        guard_ms = self.settings.read.stall_guard_ms
        if now_ms - self.clock.now_ms > guard_ms and now_ms - self.next_deadline_ms() > guard_ms:
            self._stalled(now_ms)
        self.clock.now_ms = now_ms

    def _stalled(self, now_ms: int) -> None:
        due_ms = max(self.clock.now_ms, self.next_deadline_ms())  # a deadline of 0 says "at once"
        self.event("stalled", late_ms=now_ms - due_ms)
        self.clock.now_ms = now_ms
        self.watch.all_moved()
        self.views.all_moved()  # whoever asks first after the stop is answered within this call
        for runner in tuple(self.channels.values()):
            runner.on_stalled(now_ms)

    def touched(self, runner: ChannelRunner) -> None:
        """Re-arm the channel's timer before the present call ends."""
        self._touched[runner.channel] = None

    def _after(self) -> None:
        """The end of a call."""
        touched = self._touched
        while touched:
            self._touched = {}
            self._moved |= touched
            for channel in touched:
                # At once: what the next call of the turn tells of the channel is of now (S7.3).
                self.watch.moved(channel)
                self.views.moved(channel)
                if channel in self.failovers.under_way and channel in self.channels:
                    self.failovers.touched(self.channels[channel], self.clock.now_ms)
            touched = self._touched
        if not self._is_in_turn:
            self._settle()

    def _settle(self) -> None:
        """Send what the turn collected; re-arm the timers of every channel that it touched."""
        self.reader.many.flush()
        moved, self._moved = self._moved, {}
        for channel in moved:
            runner = self.channels.get(channel)
            if runner is not None:
                due_ms = self._candidacies.not_before(channel, runner.next_deadline_ms())
                if due_ms is None:
                    self._timers.cancel(channel)
                else:
                    self._timers.push(channel, due_ms)
