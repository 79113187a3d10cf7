"""One channel from a node's viewpoint, kept from one view to the next.

Of a thousand channels few change between two views, and to look at one takes several times as long
as to compute its ages anew. So a look finds what does not depend on the time: positions, rows
behind, roles, and the moments from which ages count. Each view makes ages of them.

What a look finds changes only by a call of the node that moves the channel, or by a report that
says something else than the one before: both make it stale. Three things change without: what the
apply thread has done, when the leader last sent something, and who leads a channel that lives
elsewhere. They are read each time.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

import msgspec

from raftstore.core.batches import NOT_REPORTED
from raftstore.engine.channel.runner import ChannelRunner
from raftstore.engine.peers.lag_reports import NOBODY
from raftstore.engine.reads.read_rules import serving_refusal
from raftstore.engine.reports.node_parts import NodeParts
from raftstore.policy.lag import rows_behind
from raftstore.policy.standbys import HOT_STANDBY_ROLES, hot_standbys
from raftstore.protocol.admin import ChannelSync, ChannelView, ReplicaHint
from raftstore.protocol.node import ChannelPosition
from raftstore.types import ChannelId, MemberRole, NodeId, Role, Seq, Term

Reported = Mapping[NodeId, ChannelPosition]
_NOWHERE: Final = Seq(0)


class _Found(NamedTuple):
    """One replica at the last look; moments instead of ages."""

    node: NodeId
    applied_seq: Seq | None
    """None: not reported."""
    rows: int | None
    """How many it lacks, if the end of the channel is known at all."""
    batches: int | None
    as_of_ms: int | None
    """When its state was complete, proven by a round trip."""
    reported_ms: int | None
    """When it stated its position itself, other than in a report."""
    is_reported: bool
    is_here: bool
    role: str


class PlacedChannel(NamedTuple):
    """A channel of the catalog."""

    channel: ChannelId
    table: str
    partition: int
    replicas: tuple[NodeId, ...]
    roles: Mapping[NodeId, MemberRole] = {}
    """Of replicas that are no voters with rows."""
    config_seq: Seq = _NOWHERE
    """Of the configuration that the catalog has."""


class CachedChannelView:
    """See the module."""

    __slots__ = (
        "_age_max_ms",
        "_applied_seq",
        "_batches",
        "_end_seq",
        "_found",
        "_leader",
        "_leads",
        "_node",
        "_runner",
        "_reporting",
        "_sync",
        "_term",
        "channel",
        "is_stale",
        "partition",
        "placed",
        "replicas",
        "roles",
        "table",
    )

    def __init__(self, node: NodeParts, placed: PlacedChannel) -> None:
        self.placed = placed
        self.channel, self.table, self.partition, self.replicas, self.roles, _ = placed
        self.is_stale = True
        """Something happened to the channel since the last look."""
        self._node = node
        self._age_max_ms = node.settings.read.leader_info_age_max_ms
        self._runner: ChannelRunner | None = None
        self._found: list[_Found] = []
        self._applied_seq = _NOWHERE
        self._end_seq = _NOWHERE
        self._batches = NOT_REPORTED
        self._leads = False
        """This node leads it and knows how far it is committed."""
        self._leader: NodeId | None = None
        self._term = Term(0)
        self._sync: tuple[NodeId, Term, ChannelSync] | None = None
        """What the leader of a term knows of the others."""
        self._reporting: NodeId | None = None
        """Of a channel that lives elsewhere: the leader whose reports give its end."""

    # --- a view -----------------------------------------------------------------------------------

    def view(self, now_ms: int, reported_ms: Mapping[NodeId, int]) -> ChannelView:
        """The channel as it is now; ``reported_ms``: when the last report of each node came."""
        runner = self._runner
        if self.is_stale or (
            runner is not None and self._node.tables.applied_seq(self.channel) != self._applied_seq
        ):
            self._look()
            runner = self._runner
        leader, term, age_ms = self._leader, self._term, None
        if self._leads:
            age_ms = 0
        else:
            if runner is not None:
                heard_ms = runner.leader_info_heard_ms
            else:
                heard_ms = None if self._reporting is None else reported_ms.get(self._reporting)
                leader, term = self._node.controller.leader_of(self.channel)
            if heard_ms is not None:
                age_ms = max(0, now_ms - heard_ms)
        # S7.3: without a recent report of the leader nobody knows how far the channel has gone.
        known_ms = age_ms if age_ms is not None and age_ms <= self._age_max_ms else None
        hints = [_hint(found, now_ms, known_ms, reported_ms) for found in self._found]
        if self.roles:
            hints = [_with_role(hint, self.roles.get(hint.node)) for hint in hints]
        sync = self._sync
        return ChannelView(
            self.channel,
            self.table,
            self.partition,
            leader,
            term,
            self._end_seq,
            age_ms,
            tuple(hints),
            None if self._batches == NOT_REPORTED else self._batches,
            sync[2] if sync is not None and sync[:2] == (leader, term) else None,
        )

    # --- a look -----------------------------------------------------------------------------------

    def _look(self) -> None:
        self.is_stale = False
        node, channel = self._node, self.channel
        reported = node.watch.reports.positions.get(channel, NOBODY)
        self._end_seq, self._batches = node.watch.reports.committed(channel)
        self._runner = runner = node.channels.get(channel)
        if runner is None:
            self._leads = False
            self._reporting = node.watch.reports.reporting_leader(channel)
            self._found = [self._elsewhere(each, reported.get(each)) for each in self.replicas]
        else:
            self._look_at(runner, reported)
        self._sync = self._known_sync(runner, reported)

    def _known_sync(
        self, runner: ChannelRunner | None, reported: Reported
    ) -> tuple[NodeId, Term, ChannelSync] | None:
        """FIP-06: by the leader here, or by what the leader of the newest term reported."""
        node = self._node
        if runner is not None and runner.elector.role is Role.LEADER:
            record = node.leaders.standbys.record(runner)
            if record is None:
                return None
            sync = ChannelSync(
                record.isr, record.hot_standby_replicas, record.iss, record.bucket_epoch
            )
            return record.leader, record.leader_epoch, sync
        leading = [(at.term, each) for each, at in reported.items() if at.is_leader]
        if not leading:
            return None
        term, leader = max(leading)
        known = reported[leader].in_sync
        if known is None:
            return None
        if runner is None:
            config_seq = self.placed.config_seq
            standbys = tuple(
                each
                for each in self.replicas
                if each != leader and self.roles.get(each, MemberRole.VOTER) in HOT_STANDBY_ROLES
            )
        else:
            config_seq = runner.core.committed_config().seq
            standbys = hot_standbys(runner.config(), leader)
        iss = tuple(each for each in known.standbys if each in standbys)
        return leader, term, ChannelSync((leader, *known.nodes), standbys, iss, config_seq)

    def _look_at(self, runner: ChannelRunner, reported: Reported) -> None:
        """At a channel that is hosted here: its core knows most."""
        core, elector = runner.core, runner.elector
        self._applied_seq = self._node.tables.applied_seq(self.channel)
        self._end_seq = self._node.watch.known_commit(runner)
        self._leader, self._term = elector.leader, elector.term
        self._leads = elector.role is Role.LEADER and core.knows_position
        self._batches = max(self._batches, core.tell_batches(core.commit_seq))
        acked = core.progress()
        self._found = found = []
        for replica in self.replicas:
            if replica == self._node.me:
                found.append(self._here(runner))
                continue
            position, ack = reported.get(replica), acked.get(replica)
            applied_seq = None if position is None else position.applied_seq
            reported_ms = None if ack is None else ack.heard_ms
            if ack is not None and reported_ms is not None:
                applied_seq = max(applied_seq or _NOWHERE, ack.applied_seq)
            found.append(self._other(runner, replica, position, applied_seq, reported_ms))

    def _here(self, runner: ChannelRunner) -> _Found:
        core, applied_seq = runner.core, self._applied_seq
        # S7.3: a replica that stood still knows no end, and a leader has it from itself alone.
        rows: int | None = None
        if self._leads:
            rows = rows_behind(core.commit_seq, applied_seq)
        elif core.is_trusting:
            rows = rows_behind(self._end_seq, applied_seq)
        return _Found(
            node=self._node.me,
            applied_seq=applied_seq,
            rows=rows,
            batches=self._behind(runner, applied_seq, rows),
            as_of_ms=core.fresh_as_of(applied_seq),
            reported_ms=None,
            is_reported=False,
            is_here=True,
            role=_own_role(runner),
        )

    def _other(
        self,
        runner: ChannelRunner,
        replica: NodeId,
        position: ChannelPosition | None,
        applied_seq: Seq | None,
        reported_ms: int | None,
    ) -> _Found:
        """A replica elsewhere of a channel that is hosted here, too."""
        is_reported = position is not None
        said = self._said(replica, reported_ms, is_reported=is_reported)
        if said is not None:
            (applied_seq, reported_ms), is_reported = said, False
        if self._leader is not None:
            role = Role.LEADER.value if self._leader == replica else Role.FOLLOWER.value
        else:
            role = _role(position)
        if applied_seq is None:
            return _Found(replica, None, None, None, None, None, False, False, role)
        rows = rows_behind(self._end_seq, applied_seq)
        batches = self._behind(runner, applied_seq, rows)
        as_of_ms = runner.core.fresh_as_of(applied_seq)
        return _Found(
            replica, applied_seq, rows, batches, as_of_ms, reported_ms, is_reported, False, role
        )

    def _elsewhere(self, replica: NodeId, position: ChannelPosition | None) -> _Found:
        """A replica of a channel that is not hosted here."""
        reported_ms = None
        role, is_reported = _role(position), position is not None
        applied_seq = None if position is None else position.applied_seq
        said = self._said(replica, None, is_reported=is_reported)
        if said is not None:
            (applied_seq, reported_ms), is_reported = said, False
        if applied_seq is None:
            return _Found(replica, None, None, None, None, None, False, False, role)
        rows = rows_behind(self._end_seq, applied_seq)
        batches: int | None = 0
        if rows:
            batches = None
            # Micro-batches that the state lacks: never less than it does (S7.3), as a hint.
            if position is not None and NOT_REPORTED not in (
                position.applied_batches,
                self._batches,
            ):
                batches = max(0, self._batches - position.applied_batches)
        return _Found(
            replica, applied_seq, rows, batches, None, reported_ms, is_reported, False, role
        )

    def _said(
        self, replica: NodeId, reported_ms: int | None, *, is_reported: bool
    ) -> tuple[Seq, int] | None:
        """KLIP-35: where it is said to be, if that is newer than what it stated itself.

        It orders the replicas, but what they are measured by stays what is known.
        """
        watch = self._node.watch
        said = watch.http_reports.position(self.channel, replica)
        if said is None:
            return None
        moments = [reported_ms, watch.reports.heard_ms.get(replica) if is_reported else None]
        if any(moment is not None and moment >= said.heard_ms for moment in moments):
            return None
        return said.applied_seq, said.heard_ms

    def _behind(self, runner: ChannelRunner, applied_seq: Seq, rows: int | None) -> int | None:
        """Micro-batches that a state lacks: never less than it does (S7.3), as a hint."""
        if not rows:
            return rows
        core = runner.core
        # What is not committed here yet cannot be counted here; a batch needs a seq of its own.
        counted = Seq(min(applied_seq, core.commit_seq))
        between = core.batches_between(counted, self._end_seq)
        return None if between is None else between[1]


def _own_role(runner: ChannelRunner) -> str:
    """The role of the replica here; where it serves nothing, why (``policy.views``)."""
    if serving_refusal(runner) is None:
        return runner.elector.role.value
    if runner.stopped_reason is not None or not runner.core.is_recovering:
        return "not serving"
    return "in doubt" if runner.core.doubt else "recovering"


def _role(position: ChannelPosition | None) -> str:
    """The last report of a replica about itself."""
    if position is None:
        return ""
    return Role.LEADER.value if position.is_leader else Role.FOLLOWER.value


def _hint(
    found: _Found, now_ms: int, known_ms: int | None, reported_ms: Mapping[NodeId, int]
) -> ReplicaHint:
    """One replica now. ``known_ms``: how old the known end of the channel is; None: unknown."""
    node, applied_seq, rows, batches, as_of_ms, said_ms, is_reported, is_here, role = found
    if applied_seq is None:
        return ReplicaHint(node, _NOWHERE, None, None, None, role, None)
    # How old the state may be, as a hint: proven by a round trip, or as the leader reported. Round
    # trips are made only when a read asks for a bound in time; between them a replica that lacks
    # nothing is as old as the last report of its leader, however long ago it reported its own
    # position: that only grows. A replica that serves proves it.
    time_ms = None if as_of_ms is None else max(0, now_ms - as_of_ms)
    if rows is None or known_ms is None:
        rows = batches = None
    elif rows == 0 and (time_ms is None or known_ms < time_ms):
        time_ms = known_ms
    if is_here:
        return ReplicaHint(node, applied_seq, rows, time_ms, batches, role, 0)
    if is_reported:
        heard_ms = reported_ms.get(node)
        if said_ms is None or (heard_ms is not None and heard_ms > said_ms):
            said_ms = heard_ms
    said_ms_ago = None if said_ms is None else max(0, now_ms - said_ms)
    return ReplicaHint(node, applied_seq, rows, time_ms, batches, role, said_ms_ago)


def _with_role(hint: ReplicaHint, role: MemberRole | None) -> ReplicaHint:
    """A replica that never leads is shown as what it is, unless it says why it serves nothing."""
    is_plain = role is MemberRole.WITNESS or hint.role in ("", Role.FOLLOWER.value)
    if role is None or not is_plain:
        return hint
    return msgspec.structs.replace(hint, role=role.value)


class ChannelViewCache:
    """All channels of the catalog, in its order."""

    def __init__(self, node: NodeParts) -> None:
        self._node = node
        self._kept: dict[ChannelId, CachedChannelView] = {}

    def follow(self, channels: Iterable[PlacedChannel]) -> None:
        """The catalog is another: these are its channels."""
        before = self._kept
        self._kept = {}
        for placed in channels:
            kept = before.get(placed.channel)
            if kept is None or kept.placed != placed:
                kept = CachedChannelView(self._node, placed)
            self._kept[placed.channel] = kept

    def moved(self, *channels: ChannelId) -> None:
        """Mark these channels: their views may be out of date."""
        kept = self._kept
        for channel in channels:
            if channel in kept:
                kept[channel].is_stale = True

    def all_moved(self) -> None:
        """The same of every channel."""
        for kept in self._kept.values():
            kept.is_stale = True

    def views(self, now_ms: int) -> list[ChannelView]:
        """Every channel as it is now."""
        watch = self._node.watch
        for channel in watch.http_reports.channels():
            self.moved(channel)  # whose word is the newest changes with every report
        reported_ms = watch.reports.heard_ms
        return [kept.view(now_ms, reported_ms) for kept in self._kept.values()]
