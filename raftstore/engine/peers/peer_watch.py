"""Beliefs about the other nodes: alive or not, and which channels they claim to lead.

Raft is never ticked (S1.8): a channel without a live leader is found here, from node heartbeats
(one per pair of nodes, whatever the number of channels), from broken connections and from digests
of who claims what. Everything here is suspicion; only votes decide.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from raftstore.config import ElectionSettings, HeartbeatSettings, LagSettings
from raftstore.core.effects import ConfigCommitted
from raftstore.engine.channel.channel_parts import RoleBefore
from raftstore.engine.channel.runner import ChannelRunner
from raftstore.engine.peers.http_reports import HttpReports
from raftstore.engine.peers.lag_reports import LagReports
from raftstore.engine.peers.peer_parts import PeerParts
from raftstore.engine.peers.quorum_contact import QuorumContact
from raftstore.policy.failover import LOST, REFUSED, UNCLAIMED
from raftstore.policy.health import HealthChange, HealthState, HealthTable
from raftstore.policy.leadership import LeadershipDigest
from raftstore.protocol.message import Message
from raftstore.protocol.node import (
    ChannelPosition,
    Heartbeat,
    LagReport,
    LeadershipList,
    LeadershipRequest,
)
from raftstore.protocol.payload_repair import GapReport
from raftstore.types import ChannelId, NodeId, Role, Seq, Term, node_name

LIST_REQUEST_INTERVAL_MS: Final = 100
"""At most one LeadershipRequest per peer in this time, or in a quarter as many milliseconds as
there are channels here, whichever is longer."""
OPENING_STEP_MS: Final = 250
"""Distance between the candidacies of a new channel's replicas: longer than two nodes may learn of
it one after the other."""
OPENING_CHANNEL_MS: Final = 4
"""Added to it for each channel that waits for its first leader: an election takes about as long."""


@dataclass(slots=True)
class Peer:
    """One other node as seen from here."""

    node: NodeId
    connected: bool = False
    last_heard_ms: int | None = None
    claimed_ms: int | None = None
    """When it last claimed to lead what it is believed to lead, as far as ``unclaimed`` says."""
    boot_id: bytes = b""
    hears_me: bool = False
    led_by_me: LeadershipDigest = field(default_factory=LeadershipDigest)
    led_by_peer: LeadershipDigest = field(default_factory=LeadershipDigest)
    unclaimed: dict[ChannelId, None] = field(default_factory=dict)
    list_requested_ms: int | None = None
    wall_ms: int = 0
    """Its wall clock as its newest heartbeat reports it; 0: it is not known."""
    was_up: bool = False
    """As it was last reported to ``on_up_changed``."""


class PeerWatch:
    """Failure detection, leadership claims and positions of all other nodes."""

    def __init__(
        self,
        parts: PeerParts,
        *,
        heartbeat: HeartbeatSettings,
        election: ElectionSettings,
        lag: LagSettings,
    ) -> None:
        self._parts = parts
        self._me = parts.identity.me
        self._heartbeat = heartbeat
        self._election = election
        self._lag = lag
        self.peers: dict[NodeId, Peer] = {}
        self.health = HealthTable(heartbeat)
        self.http_reports = HttpReports(heartbeat)
        self.reports = LagReports(parts, lag, self.http_reports)
        self._leaderless: dict[ChannelId, ChannelRunner] = {}
        self._contact = QuorumContact(self._me, self.reports, election, lag)
        self._next_check_ms = 0
        self._next_report_ms = 0
        self.due_ms = 0
        """When on_timer wants to be called."""
        self.on_up_changed: list[Callable[[NodeId], None]] = []
        """Are called with every node that came up or is up no more."""

    # --- membership and channels ------------------------------------------------------------------

    def add_peer(self, node: NodeId, now_ms: int) -> None:
        """A node of the cluster became known."""
        if node == self._me or node in self.peers:
            return
        self.peers[node] = Peer(node)
        self.health.add_peer(node, now_ms)
        for runner in self._parts.channels.values():
            self._claim_changed(self.peers[node], runner, runner.elector.leader, add=True)

    def remove_peer(self, node: NodeId, now_ms: int) -> None:
        """M27: a node has left the cluster for ever: nothing of it is watched or shown any more."""
        peer = self.peers.pop(node, None)
        if peer is None:
            return
        self.health.remove_peer(node)
        self.reports.forget_node(node)
        self.http_reports.forget_node(node)
        for runner in tuple(self._parts.channels.values()):
            if runner.elector.leader == node:
                runner.suspect_leader(self.candidacy_delay_ms(runner), now_ms)
        if peer.was_up:
            self._report_up_changed(node)
        self._parts.tell("peer_removed", peer=node_name(node))

    def wall_ms(self, node: NodeId) -> int:
        """The wall clock that another node has certainly reached: what its newest heartbeat said.
        0: it is not known.

        Nothing is added for the time since then: the clock here that would count it may have
        jumped, and then all others would seem to agree with it.
        """
        peer = self.peers.get(node)
        return 0 if peer is None else peer.wall_ms

    def channel_opened(self, runner: ChannelRunner, now_ms: int) -> None:
        """S1.8: a channel opened without a known leader is armed at once.

        Those of a new table are armed on all their nodes within moments, and the node that learns
        of the table first is not the one that shall lead: so the preferred replica is left time to
        stand, the more of it the more channels it may have to stand for.
        """
        self._leaderless[runner.channel] = runner
        step_ms = self._election.rank_step_ms
        if not runner.core.last_seq:
            step_ms += OPENING_STEP_MS + len(self._leaderless) * OPENING_CHANNEL_MS
        runner.suspect_leader(self.candidacy_delay_ms(runner, step_ms), now_ms)

    def channel_closed(self, runner: ChannelRunner) -> None:
        """Its table was dropped: forget every claim about it."""
        self._leaderless.pop(runner.channel, None)
        self._contact.end(runner.channel)
        self.reports.forget(runner.channel)
        for peer in self.peers.values():
            peer.unclaimed.pop(runner.channel, None)
            self._claim_changed(peer, runner, runner.elector.leader, add=False)

    def forget_hints(self, exists: Callable[[ChannelId], bool]) -> None:
        """Tables were dropped: what is known of channels that live elsewhere is of no use."""
        self.reports.forget_unless(exists)
        self.http_reports.forget_unless(exists)

    def leader_changed(self, runner: ChannelRunner, old: RoleBefore, now_ms: int) -> None:
        """The elector moved: keep the digests of claims in step."""
        del now_ms
        channel, leader = runner.channel, runner.elector.leader
        for peer in self.peers.values():
            if old[2] is not None:
                self._toggle(peer, channel, old[0], old[2], add=False)
            self._claim_changed(peer, runner, leader, add=True)
            peer.unclaimed.pop(channel, None)
        if leader is None:
            self._leaderless[channel] = runner
        else:
            self._leaderless.pop(channel, None)
        if runner.elector.role is Role.LEADER:
            self._contact.begin(runner)
        else:
            self._contact.end(channel)

    def config_committed(self, runner: ChannelRunner, committed: ConfigCommitted) -> None:
        """S1.8: a channel is claimed to its members. Its leader need not be one of them: it leads
        until the configuration without it is committed, and a replica that missed its
        StepDownNotice learns of it from the claims alone (M17)."""
        del committed  # the newest one counts, committed or not (M2)
        leader, members = runner.elector.leader, runner.core.config().members
        if leader is None:
            return
        for peer in self.peers.values():
            follower = peer.node if leader == self._me else self._me
            self._toggle(peer, runner.channel, runner.elector.term, leader, add=follower in members)

    # --- what arrives -----------------------------------------------------------------------------

    def on_connected(self, node: NodeId, now_ms: int) -> None:
        """A connection to the peer was established."""
        peer = self.peers.get(node)
        if peer is None:
            return
        if not peer.connected:
            self._parts.tell("peer_up", peer=node_name(node))
        peer.connected = True
        peer.last_heard_ms = now_ms
        if peer.claimed_ms is None:  # S1.8: later on: a node that was restarted leads nothing yet
            peer.claimed_ms = now_ms
        self.health.on_heartbeat(node, now_ms)
        self._note_up(peer)

    def on_lost(self, node: NodeId, now_ms: int, *, refused: bool) -> None:
        """The connection broke or was refused: suspect at once what the peer leads (KLIP-49)."""
        peer = self.peers.get(node)
        if peer is None:
            return
        if peer.connected:
            self._parts.tell("peer_lost", peer=node_name(node), refused=refused)
        peer.connected = False
        peer.hears_me = False
        change = self.health.connection_lost(node, now_ms, refused=refused)
        if change is not None:
            self._tell(change)
        self._note_up(peer)
        self._suspect_led_by(node, REFUSED if refused else LOST, now_ms)

    def on_message(self, sender: NodeId, message: Message, arrived_ms: int, now_ms: int) -> bool:
        """A message between nodes; False: it is not for this part."""
        if isinstance(message, Heartbeat):
            self.on_heartbeat(sender, message, arrived_ms)
        elif isinstance(message, LeadershipRequest):
            self.on_leadership_request(sender)
        elif isinstance(message, LeadershipList):
            self.on_leadership_list(sender, message, now_ms)
        elif isinstance(message, LagReport):
            if sender in self.peers:  # else it has left, and its last report came behind that
                self.reports.on_report(sender, message, arrived_ms, now_ms)
        elif isinstance(message, GapReport):
            if sender in self.peers:
                self.reports.gaps.on_report(sender, message)
        else:
            return False
        return True

    def on_heartbeat(self, sender: NodeId, message: Heartbeat, arrived_ms: int) -> None:
        """KLIP-31: counted by arrival on the local monotonic clock."""
        peer = self.peers.get(sender)
        if peer is None:
            return
        skew_ms = message.sent_ms - self._parts.clock.wall_ms()
        self.health.on_heartbeat(sender, arrived_ms, skew_ms=skew_ms)
        peer.wall_ms = message.sent_ms
        peer.connected = True
        peer.last_heard_ms = arrived_ms
        peer.hears_me = message.heard_receiver
        self._note_up(peer)
        restarted = peer.boot_id not in (b"", message.boot_id)
        if restarted:
            self.reports.restarted(sender)
        peer.boot_id = message.boot_id
        if message.leading_digest == peer.led_by_peer.value and not restarted:
            peer.unclaimed.clear()
            peer.claimed_ms = arrived_ms
            return
        due = peer.list_requested_ms
        # A list names every channel that the peer leads: with thousands it is asked for less often.
        interval_ms = max(LIST_REQUEST_INTERVAL_MS, len(self._parts.channels) // 4)
        if due is None or arrived_ms - due >= interval_ms:
            peer.list_requested_ms = arrived_ms
            self._parts.outbox.send_known(sender, LeadershipRequest())

    def on_leadership_request(self, sender: NodeId) -> None:
        """Send the list of channels this node leads and the sender hosts."""
        leading = tuple(
            (runner.channel, runner.elector.term)
            for runner in self._parts.channels.values()
            if runner.elector.role is Role.LEADER and sender in runner.core.config().members
        )
        self._parts.outbox.send_known(sender, LeadershipList(self._parts.identity.boot_id, leading))

    def on_leadership_list(self, sender: NodeId, message: LeadershipList, now_ms: int) -> None:
        """S1.8: adopt what the sender claims; suspect what it no longer claims."""
        peer = self.peers.get(sender)
        if peer is None:
            return
        peer.claimed_ms = now_ms
        claimed = dict(message.leading)
        for channel, term in message.leading:
            runner = self._parts.channels.get(channel)
            if runner is not None:
                peer.unclaimed.pop(channel, None)
                runner.on_leader_claim(sender, term, now_ms)
        wait = self._heartbeat.missed_threshold * self._heartbeat.send_interval_ms
        for runner in tuple(self._parts.channels.values()):
            if runner.elector.leader != sender:
                continue
            if claimed.get(runner.channel) != runner.elector.term:
                peer.unclaimed[runner.channel] = None
                self._parts.failovers.leader_suspected(runner, UNCLAIMED, now_ms)
                runner.suspect_leader(wait + self.candidacy_delay_ms(runner), now_ms)

    # --- timers -----------------------------------------------------------------------------------

    def on_timer(self, now_ms: int) -> None:
        """Check health and contact; report positions."""
        if now_ms >= self._next_check_ms:
            self._next_check_ms = now_ms + self._heartbeat.check_interval_ms
            self._check(now_ms)
        if now_ms >= self._next_report_ms:
            self._next_report_ms = now_ms + self._lag.report_interval_ms
            self.reports.report(peer.node for peer in self.peers.values() if peer.connected)
        self.due_ms = min(self._next_check_ms, self._next_report_ms)

    def _check(self, now_ms: int) -> None:
        for change in self.health.check(now_ms):
            self._tell(change)
            self._note_up(self.peers[change.node])
            if not change.up:
                cause = change.reason.removesuffix(" in a row")
                self._suspect_led_by(change.node, cause, now_ms)
        for runner in tuple(self._leaderless.values()):
            # Nobody claims it and nothing is armed: stand (S1.8).
            if runner.elector.role is Role.FOLLOWER and runner.elector.next_deadline_ms() is None:
                runner.suspect_leader(self.candidacy_delay_ms(runner), now_ms)
        self._suspect_silent(now_ms)
        self._check_contact(now_ms)

    def _suspect_silent(self, now_ms: int) -> None:
        """S1.8: a message of a lost node that was still on its way stills no suspicion for good."""
        for peer in self.peers.values():
            if self.is_up(peer.node):
                continue
            for channel, _ in peer.led_by_peer.pairs:
                runner = self._parts.channels.get(channel)
                if runner is None or runner.elector.leader != peer.node:
                    continue
                if runner.elector.next_deadline_ms() is None:
                    runner.suspect_leader(self.candidacy_delay_ms(runner), now_ms)

    def _check_contact(self, now_ms: int) -> None:
        contact = [peer.node for peer in self.peers.values() if self.in_contact(peer)]
        self._contact.check(contact, now_ms, is_whole=len(contact) == len(self.peers))

    # --- views ------------------------------------------------------------------------------------

    @property
    def positions(self) -> dict[ChannelId, dict[NodeId, ChannelPosition]]:
        """Where replicas are, as their nodes reported."""
        return self.reports.positions

    def heartbeats(self) -> dict[NodeId, tuple[bytes, bool]]:
        """Per peer (leading digest, heard_receiver) for the next heartbeats."""
        return {node: self.heartbeat_content(peer) for node, peer in self.peers.items()}

    def heartbeat_content(self, peer: Peer) -> tuple[bytes, bool]:
        """(leading digest, heard_receiver) of the next heartbeat to this peer."""
        return peer.led_by_me.value, self.health.is_up(peer.node) and peer.connected

    def expected_heartbeats(self) -> dict[NodeId, tuple[bytes, bytes, bool]]:
        """Boot id, leading digest and heard_receiver of the heartbeats that would change nothing
        here but the time of the last sign of their senders: all is well with them, and they say
        what they said.
        """
        return {
            peer.node: (peer.boot_id, peer.led_by_peer.value, peer.hears_me)
            for peer in self.peers.values()
            if peer.connected
            and not peer.unclaimed
            and self.health.state(peer.node) is HealthState.UP
        }

    def in_contact(self, peer: Peer) -> bool:
        """Both directions work: this node receives from the peer, and the peer says that it
        receives from this node."""
        return peer.connected and peer.hears_me and self.health.is_up(peer.node)

    def is_up(self, node: NodeId) -> bool:
        """Up from this node's viewpoint."""
        if node == self._me:
            return True
        peer = self.peers.get(node)
        return peer is not None and peer.connected and self.health.is_up(node)

    def is_routable(self, node: NodeId, now_ms: int) -> bool:
        """Whether queries go there first: up, or said to live over HTTP since it was found down.

        Without ``heartbeat.enable`` silence holds nobody back (BLOG-19), a broken connection does.
        Elections ask ``is_up``.
        """
        if self.is_up(node):
            return True
        peer = self.peers.get(node)
        if peer is None:
            return False
        if not self._heartbeat.enable and peer.connected:
            return True
        return self.http_reports.lives(node, now_ms, after_ms=self.health.since_ms(node))

    def peer_of(self, name: str) -> NodeId | None:
        """The known node of this id or name, this one included; None for a stranger."""
        for node in (self._me, *self.peers):
            if name in (node, node_name(node)):
                return node
        return None

    def heard_leader(self, runner: ChannelRunner, leader: NodeId) -> int | None:
        """When the leader's node last claimed to lead what it is believed to lead.

        None: it is gone or disclaims the channel.
        """
        if leader == self._me:
            return None
        peer = self.peers.get(leader)
        if peer is None or not peer.connected or runner.channel in peer.unclaimed:
            return None
        # S1.8: living is not leading: a heartbeat that claims something else does not count.
        return peer.claimed_ms

    def known_commit(self, runner: ChannelRunner) -> Seq:
        """KLIP-36: the highest commit seq any replica reported, or the leader reported."""
        # The first is at least what is committed here.
        return max(runner.core.known_leader_commit_seq, self.reports.committed(runner.channel).seq)

    def candidacy_delay_ms(self, runner: ChannelRunner, step_ms: int | None = None) -> int:
        """Lag-aware order of candidacy: each live voter known to be ahead delays us a step.

        Of voters with equal histories the one that comes first in the placement is ahead. One of
        which nothing is known counts as equal; what another life of it reported is not its (M4).
        """
        config = runner.core.config()
        voters = config.voters
        reported = self.positions.get(runner.channel, {})
        mine = (-runner.core.last_seq, self._order(voters, self._me))
        ahead = 0
        for node in voters:
            if node in (self._me, runner.elector.leader) or not self.is_up(node):
                continue
            position = reported.get(node)
            seq = runner.core.last_seq
            if position is not None and position.replica == config.number_of(node):
                seq = position.last_seq
            ahead += (-seq, self._order(voters, node)) < mine
        step_ms = self._election.rank_step_ms if step_ms is None else step_ms
        return ahead * step_ms + self._parts.ids.below(self._election.jitter_ms + 1)

    @staticmethod
    def _order(voters: tuple[NodeId, ...], node: NodeId) -> int:
        return voters.index(node) if node in voters else len(voters)

    # --- helpers ----------------------------------------------------------------------------------

    def _tell(self, change: HealthChange) -> None:
        self._parts.tell(
            "peer_health", peer=node_name(change.node), up=change.up, reason=change.reason
        )

    def _note_up(self, peer: Peer) -> None:
        """Report a node that came up or went down; called after each change it may come from."""
        is_up = self.is_up(peer.node)
        if is_up is not peer.was_up:
            peer.was_up = is_up
            self._report_up_changed(peer.node)

    def _report_up_changed(self, node: NodeId) -> None:
        for notify in self.on_up_changed:
            notify(node)

    def _suspect_led_by(self, node: NodeId, cause: str, now_ms: int) -> None:
        heard_ms = self.peers[node].last_heard_ms
        self._parts.failovers.node_suspected(node, cause, heard_ms, now_ms)
        for runner in tuple(self._parts.channels.values()):
            if runner.elector.leader == node:
                runner.suspect_leader(self.candidacy_delay_ms(runner), now_ms)

    def _claim_changed(
        self, peer: Peer, runner: ChannelRunner, leader: NodeId | None, *, add: bool
    ) -> None:
        """A leader claims its channel to the members that it knows. A replica that follows a leader
        was one of them to it, whatever the configuration that is known here says of either."""
        if leader is None:
            return
        if add and leader == self._me and peer.node not in runner.core.config().members:
            return
        self._toggle(peer, runner.channel, runner.elector.term, leader, add=add)

    def _toggle(
        self, peer: Peer, channel: ChannelId, term: Term, leader: NodeId, *, add: bool
    ) -> None:
        if leader == self._me:
            digest = peer.led_by_me
        elif leader == peer.node:
            digest = peer.led_by_peer
        else:
            return
        change: Callable[[ChannelId, Term], None] = digest.add if add else digest.remove
        change(channel, term)
