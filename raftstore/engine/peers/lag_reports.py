"""Positions of replicas: what this node reports of its own, and what others reported (KLIP-35).

Every connected node gets the positions of all replicas here, so that each node can order the
replicas of any channel for a query, hosted or not. The commit positions that were reported also
count for the lag of a replica here (KLIP-36): the furthest of a channel is kept beside the
positions, so a report that comes late or twice takes nothing back, nor does a replica that knows
less than it did before: a leader that stood still, or a restarted node. Everything is in memory
(KIP-30).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple

import msgspec

from raftstore.config import LagSettings
from raftstore.core.batches import NOT_REPORTED
from raftstore.engine.channel.runner import ChannelRunner
from raftstore.engine.peers.gap_reports import GapReports
from raftstore.engine.peers.http_reports import HttpReports
from raftstore.engine.peers.peer_parts import PeerParts
from raftstore.policy.payload_sources import ReportedLog
from raftstore.protocol.node import ChannelPosition, InSync, LagReport
from raftstore.types import ChannelId, DiskRoom, NodeId, Role, Seq, Term

LATE_REPORTS_MAX = 64
"""A report that is up to so many older than the newest one is late or came twice; one that seems
older still is the first of a sender that was started again."""


class Committed(NamedTuple):
    """How far a channel is known to be committed; of two the greater one says more."""

    seq: Seq
    batches: int
    """Micro-batches up to there; NOT_REPORTED: the sender of the seq did not count them."""


KeptChannels = tuple[tuple[ChannelId, int], ...]
"""Channels, and for how many ms they stay where they are."""


class _Mine(NamedTuple):
    """The position of a channel here, with its hash and without."""

    whole: ChannelPosition
    hashless: ChannelPosition


NOTHING_HOSTED: Final[Mapping[ChannelId, ChannelPosition]] = {}
NOBODY: Final[dict[NodeId, ChannelPosition]] = {}
NOTHING: Final = Committed(Seq(0), NOT_REPORTED)


@dataclass(slots=True)
class LeaderHint:
    """The leader of a channel, as it reported itself (hints only, S7.4)."""

    node: NodeId
    term: Term


class LagReports:
    """Positions of the replicas of all channels that exist, by channel and node."""

    def __init__(self, parts: PeerParts, settings: LagSettings, http_reports: HttpReports) -> None:
        self._parts = parts
        self._settings = settings
        self._http_reports = http_reports
        self._http = parts.identity.http
        self._mine: dict[ChannelId, _Mine] = {}
        """What was reported of the channels here to which nothing has happened since."""
        self.hints: dict[ChannelId, LeaderHint] = {}
        """Who leads the channels that live elsewhere."""
        self.http_of: dict[NodeId, str] = {parts.identity.me: self._http}
        """Where the HTTP interface of each node that reported it is; empty: it has none."""
        self._room_of: dict[NodeId, int] = {}
        """Of the nodes whose disks are nearly full."""
        self._counter = 0
        self._newest: dict[NodeId, int] = {}
        self.heard_ms: dict[NodeId, int] = {}
        """When the last report of each node arrived."""
        self.positions: dict[ChannelId, dict[NodeId, ChannelPosition]] = {}
        """As they were reported last."""
        self._hosted: dict[NodeId, dict[ChannelId, ChannelPosition]] = {}
        """What the newest report of each node names."""
        self._committed: dict[ChannelId, Committed] = {}
        self.gaps = GapReports(parts)
        self.on_position: Callable[[ChannelRunner, NodeId, ChannelPosition], None] = _nothing
        """Is called with every position that is reported of a channel hosted here."""
        self.in_sync: Callable[[ChannelRunner], InSync | None] = _unknown
        """Who keeps up with a leader here."""
        self.given_away: Callable[[NodeId], KeptChannels] = lambda _: ()
        """What a node is to know of leaderships that operators had this one give away."""
        self.on_given_away: Callable[[NodeId, KeptChannels, int], None] = _no_word
        """Is called with what other nodes report of that, and when it arrived."""

    # --- reports sent -----------------------------------------------------------------------------

    def moved(self, *channels: ChannelId) -> None:
        """Something happened to these: their positions are read anew for the next report."""
        mine = self._mine
        for channel in channels:
            if channel in mine:
                del mine[channel]

    def all_moved(self) -> None:
        """The same of every channel."""
        self._mine.clear()

    def report(self, to: Iterable[NodeId]) -> None:
        """Report all replicas here to these nodes, unless that is switched off.

        Even then nodes that host a channel get the report, because they compare histories (S13) and
        order their candidacy by it, and every node learns who leads.
        """
        mine = self._positions_here()
        wall_ms = self._parts.clock.wall_ms()
        self._counter += 1
        about_me = self._counter, self._http, self._parts.disk_room().value
        is_for_all = self._settings.enable
        for node in to:
            self.gaps.report(node, self._counter)
            # S13: only who hosts a channel compares histories. The hash is half of a position, and
            # in a large cluster few of those who get it host the channel.
            needed = tuple(
                whole if node in members else hashless
                for members, whole, hashless in mine
                if is_for_all or whole.is_leader or node in members
            )
            report = LagReport(wall_ms, needed, *about_me, self.given_away(node))
            self._parts.outbox.send_known(node, report)

    def _positions_here(self) -> list[tuple[tuple[NodeId, ...], ChannelPosition, ChannelPosition]]:
        """The members of each channel here, and its position with its hash and without."""
        reported = self._mine
        mine: list[tuple[tuple[NodeId, ...], ChannelPosition, ChannelPosition]] = []
        for channel, runner in self._parts.channels.items():
            known = reported.get(channel)
            # S7.3: a leader may stop knowing its position while nothing happens to its channel.
            if known is None or (known.whole.is_leader and not runner.core.knows_position):
                whole = self._position(runner)
                hashless = msgspec.structs.replace(whole, commit_hash=b"")
                known = reported[channel] = _Mine(whole, hashless)
                self.gaps.look(runner)
            mine.append((runner.core.config().members, *known))
        return mine

    def _position(self, runner: ChannelRunner) -> ChannelPosition:
        commit_seq, commit_hash = runner.core.chain_hash_at_commit()
        is_leader = runner.elector.role is Role.LEADER
        if is_leader and not runner.core.knows_position:
            commit_seq, commit_hash = Seq(0), b""  # S7.3: it does not know the position of its term
        applied_seq = runner.parts.tables.applied_seq(runner.channel)
        return ChannelPosition(
            channel=runner.channel,
            term=runner.elector.term,
            is_leader=is_leader,
            applied_seq=applied_seq,
            commit_seq=commit_seq,
            last_seq=runner.core.last_seq,
            commit_hash=commit_hash,
            commit_batches=runner.core.tell_batches(commit_seq),
            applied_batches=runner.core.tell_batches(applied_seq),
            replica=runner.core.number,
            in_sync=self.in_sync(runner) if is_leader else None,
        )

    # --- reports received -------------------------------------------------------------------------

    def on_report(self, sender: NodeId, message: LagReport, arrived_ms: int, now_ms: int) -> None:
        """KLIP-35: remember positions; compare chain hashes (S13)."""
        if self.is_late(sender, message):
            return
        # S7.3: it may have waited behind a thousand elections, and all ages count from its arrival.
        self.heard_ms[sender] = arrived_ms
        self.http_of[sender] = message.http
        if message.room:
            self._room_of[sender] = message.room
        else:
            self._room_of.pop(sender, None)
        self.on_given_away(sender, message.given_away, arrived_ms)
        self._hosted[sender] = {}
        for position in message.positions:
            channel = position.channel
            runner = self._parts.channels.get(channel)
            if runner is None:
                if self._parts.exists(channel):  # S0.8: a report makes no channel known
                    self._take(sender, position, arrived_ms)
                    if position.is_leader:
                        self._hint(channel, sender, position.term)
                continue
            self._take(sender, position, arrived_ms)
            self.on_position(runner, sender, position)
            if position.is_leader and position.commit_seq:
                runner.on_leader_position(sender, position.term, arrived_ms, now_ms)
            runner.on_peer_hash(
                sender,
                position.commit_seq,
                position.commit_hash,
                now_ms,
                batches=position.commit_batches,
            )

    def _take(self, sender: NodeId, position: ChannelPosition, arrived_ms: int) -> None:
        self._hosted[sender][position.channel] = position
        # What somebody else said of it before is worth nothing now.
        is_unsaid = self._http_reports.forget(position.channel, sender, until_ms=arrived_ms)
        if self.keep(sender, position) or is_unsaid:
            self._parts.moved(position.channel)

    def _hint(self, channel: ChannelId, leader: NodeId, term: Term) -> None:
        """S7.4: one that was deposed, and does not know it yet, is no hint any more."""
        hint = self.hints.get(channel)
        if hint is None or term >= hint.term:
            self.hints[channel] = LeaderHint(leader, term)

    def is_late(self, sender: NodeId, message: LagReport) -> bool:
        """Whether a newer report of the sender, or this one, was here before (S12)."""
        newest, counter = self._newest.get(sender, 0), message.counter
        if counter and 0 <= newest - counter < LATE_REPORTS_MAX:
            return True
        self._newest[sender] = counter
        return False

    def hosts(self, node: NodeId, channel: ChannelId) -> bool:
        """Whether the newest report of another node names a replica of the channel."""
        return channel in self._hosted.get(node, NOTHING_HOSTED)

    def restarted(self, node: NodeId) -> None:
        """The node counts its reports anew, and may have lost what it hosted."""
        self._newest.pop(node, None)
        self._hosted.pop(node, None)

    def keep(self, sender: NodeId, position: ChannelPosition) -> bool:
        """Remember a position; what was known to be committed stays known (KLIP-36).

        False: it says what was known.
        """
        channel = position.channel
        known = self.positions.get(channel)
        if known is None:
            known = self.positions[channel] = {}
        if known.get(sender) == position:
            return False
        known[sender] = position
        reported = Committed(position.commit_seq, position.commit_batches)
        if reported > self.committed(channel):
            self._committed[channel] = reported
        return True

    def forget(self, channel: ChannelId) -> None:
        """The table of the channel was dropped."""
        self._mine.pop(channel, None)
        self.hints.pop(channel, None)
        self.positions.pop(channel, None)
        for hosted in self._hosted.values():
            hosted.pop(channel, None)
        self._committed.pop(channel, None)
        self.gaps.forget(channel)

    def forget_node(self, node: NodeId) -> None:
        """The node has left the cluster: where its replicas are does not matter any more."""
        for known in (self._newest, self._hosted, self.heard_ms, self.http_of, self._room_of):
            known.pop(node, None)
        for channel in [at for at, hint in self.hints.items() if hint.node == node]:
            del self.hints[channel]
        for channel, positions in self.positions.items():
            if positions.pop(node, None) is not None:
                self._parts.moved(channel)
        self.gaps.node_left(node)
        self.on_given_away(node, (), 0)

    def forget_unless(self, exists: Callable[[ChannelId], bool]) -> None:
        """Tables were dropped, among them some whose channels live elsewhere."""
        known = self.positions | self.hints
        for channel in [channel for channel in known if not exists(channel)]:
            self.forget(channel)

    # --- what is known ----------------------------------------------------------------------------

    def logs_of(self, channel: ChannelId) -> dict[NodeId, ReportedLog]:
        """The logs of a channel as other nodes reported them."""
        gaps = self.gaps.of(channel)
        logs: dict[NodeId, ReportedLog] = {}
        for node, position in self.positions.get(channel, NOBODY).items():
            reported = gaps.get(node)
            logs[node] = (
                ReportedLog(Seq(0), position.last_seq)
                if reported is None
                else ReportedLog(reported.first_seq, reported.end_seq, reported.gaps)
            )
        return logs

    def hosted_by(self, node: NodeId, since_ms: int) -> Mapping[ChannelId, ChannelPosition]:
        """The replicas that the node's newest report names; none if it came before that."""
        if self.heard_ms.get(node, since_ms - 1) < since_ms:
            return NOTHING_HOSTED
        return self._hosted.get(node, NOTHING_HOSTED)

    @property
    def is_disk_full(self) -> bool:
        """Whether any other node's disk is nearly full."""
        return bool(self._room_of)

    def has_room(self, node: NodeId, wanted: DiskRoom) -> bool:
        """Whether the node's disk has room for as much, as it reported last; of one that never did
        nothing is known."""
        reported = self._room_of.get(node, DiskRoom.PLENTY.value)
        return (
            self._parts.disk_room().value if node == self._parts.identity.me else reported
        ) <= wanted

    def updated_ms_ago(self, node: NodeId, now_ms: int) -> int | None:
        """How long ago the node's last report arrived; None: none ever did."""
        heard_ms = self.heard_ms.get(node)
        return None if heard_ms is None else max(0, now_ms - heard_ms)

    def committed(self, channel: ChannelId) -> Committed:
        """The furthest that any replica ever reported to be committed."""
        return self._committed.get(channel, NOTHING)

    def reporting_leader(self, channel: ChannelId) -> NodeId | None:
        """The leader of the highest term, if it reports its position; one of the past does not
        count.

        S7.3: it reports none before it has committed in its term, and after it stood still.
        """
        leader: NodeId | None = None
        term = Term(0)
        for node, position in self.positions.get(channel, NOBODY).items():
            if position.is_leader and position.term >= term:
                leader, term = node if position.commit_seq else None, position.term
        return leader


def _nothing(runner: ChannelRunner, sender: NodeId, position: ChannelPosition) -> None:
    """A report goes nowhere else."""


def _no_word(sender: NodeId, given_away: KeptChannels, arrived_ms: int) -> None:
    """A report goes nowhere else."""


def _unknown(runner: ChannelRunner) -> InSync | None:
    """In-sync followers are not known."""
