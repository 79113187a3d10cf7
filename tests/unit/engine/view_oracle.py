"""The view of every channel, computed from nothing each time: slow and plain.

Written apart from ``raftstore.engine.reports.channel_views``, which keeps what it can: everything
here is a function of what the node knows at this moment.
"""

from __future__ import annotations

import msgspec

from raftstore.core.batches import NOT_REPORTED
from raftstore.core.progress import ProgressView
from raftstore.engine.channel.runner import ChannelRunner
from raftstore.engine.node_runner import NodeRunner
from raftstore.engine.reads.read_rules import serving_refusal
from raftstore.policy.lag import known_lag
from raftstore.protocol.admin import ChannelSync, ChannelView, ReplicaHint
from raftstore.protocol.node import ChannelPosition
from raftstore.types import ChannelId, MemberRole, NodeId, Role, Seq, channel_id


def channels_of(node: NodeRunner, now_ms: int) -> tuple[ChannelView, ...]:
    """Every channel of the catalog as this node must see it now."""
    views = []
    for table in node.controller.catalog.tables.values():
        for partition, replicas in enumerate(node.controller.catalog.placement_of(table)):
            channel = channel_id(table.uuid, partition)
            leader, term = node.controller.leader_of(channel)
            look = _Look(node, channel, now_ms, tuple(replicas))
            views.append(
                ChannelView(
                    channel=channel,
                    table=table.name,
                    partition=partition,
                    leader=leader,
                    term=term,
                    end_seq=look.end_seq,
                    leader_info_age_ms=look.age_ms,
                    replicas=tuple(look.at(replica) for replica in replicas),
                    batches=look.batches(),
                    sync=look.sync(leader, term),
                )
            )
    return tuple(views)


class _Look:
    """At one channel, at one moment."""

    def __init__(
        self, node: NodeRunner, channel: ChannelId, now_ms: int, replicas: tuple[NodeId, ...]
    ) -> None:
        self._node = node
        self._channel = channel
        self._now_ms = now_ms
        self._replicas = replicas
        self._runner: ChannelRunner | None = node.channels.get(channel)
        self._reported: dict[NodeId, ChannelPosition] = node.watch.positions.get(channel, {})
        self._acked: dict[NodeId, ProgressView] = {}
        self._own_lag: int | None = None
        self.age_ms: int | None
        if self._runner is None:
            self.end_seq = node.watch.reports.committed(channel).seq
            self.age_ms = self._teller_age_ms()
        else:
            self._acked = self._runner.core.progress()
            self._own_lag, self.age_ms = node.reader.lag(self._runner, now_ms)
            self.end_seq = node.watch.known_commit(self._runner)

    def at(self, replica: NodeId) -> ReplicaHint:
        """The hint about one replica, with the role that it was given unless it serves nothing."""
        hint, given = self._at(replica), self._node.controller.catalog.roles_of(self._channel)
        word = "" if replica not in given else given[replica].value
        if word == "witness" or (word and hint.role in ("", Role.FOLLOWER.value)):
            return msgspec.structs.replace(hint, role=word)
        return hint

    def _may_lead(self, replica: NodeId) -> bool:
        """Neither a reader nor a witness, by the newest configuration that is known here."""
        if self._runner is not None:
            role = self._runner.config().role_of(replica)
        else:
            given = self._node.controller.catalog.roles_of(self._channel)
            role = given.get(replica, MemberRole.VOTER)
        return role not in (MemberRole.READER, MemberRole.WITNESS)

    def _at(self, replica: NodeId) -> ReplicaHint:
        runner = self._runner
        if replica == self._node.me and runner is not None:
            lag = self._own_lag
            applied = self._node.parts.tables.applied_seq(self._channel)
            time_ms, behind = self._time_ms(applied, lag), self._behind(replica, applied, lag)
            role = runner.elector.role.value
            if serving_refusal(runner) is not None:
                role = "in doubt" if runner.core.doubt else "not serving"
                if runner.stopped_reason is None and not runner.core.doubt:
                    role = "recovering" if runner.core.is_recovering else role
            return ReplicaHint(replica, applied, lag, time_ms, behind, role, 0)
        found, told_ms_ago = self._told(replica)
        said = self._node.watch.http_reports.position(self._channel, replica)
        if said is not None and (told_ms_ago is None or self._now_ms - said.heard_ms < told_ms_ago):
            found, told_ms_ago = said.applied_seq, self._now_ms - said.heard_ms
        role = self._role(replica)
        if found is None:
            return ReplicaHint(replica, Seq(0), None, None, None, role, None)
        age_max_ms = self._node.parts.settings.read.leader_info_age_max_ms
        lag = known_lag(self.end_seq, found, self.age_ms, age_max_ms)
        time_ms, behind = self._time_ms(found, lag), self._behind(replica, found, lag)
        return ReplicaHint(replica, found, lag, time_ms, behind, role, told_ms_ago)

    def sync(self, leader: NodeId | None, term: int) -> ChannelSync | None:
        """The replicas that keep up, by the leader: this node, or what that one reported."""
        node, runner = self._node, self._runner
        entry = node.controller.catalog.changes.get(self._channel)
        members, config_seq = self._replicas, Seq(0) if entry is None else entry.config_seq
        if runner is not None:
            members, config_seq = runner.config().members, runner.core.committed_config().seq
        if leader == node.me and runner is not None:
            told = node.leaders.standbys.in_sync(runner)
        else:
            position = None if leader is None else self._reported.get(leader)
            is_of_term = position is not None and position.is_leader and position.term == term
            if any(at.is_leader and at.term > term for at in self._reported.values()):
                return None  # the leader that is shown has been deposed, and counts for nothing
            told = position.in_sync if position is not None and is_of_term else None
        if told is None or leader is None:
            return None
        hot = tuple(each for each in members if each != leader and self._may_lead(each))
        iss = tuple(each for each in told.standbys if each in hot)
        return ChannelSync((leader, *told.nodes), hot, iss, config_seq)

    def batches(self) -> int | None:
        """Micro-batches in what is committed, as far as any node reported."""
        told = [self._node.watch.reports.committed(self._channel).batches]
        if self._runner is not None:
            told.append(self._runner.core.tell_batches(self._runner.core.commit_seq))
        most = max(told)
        return None if most == NOT_REPORTED else most

    def _teller_age_ms(self) -> int | None:
        leading = [(told.term, node) for node, told in self._reported.items() if told.is_leader]
        if not leading:
            return None
        newest = max(term for term, _ in leading)
        teller = [node for term, node in leading if term == newest][-1]
        if not self._reported[teller].commit_seq:
            return None
        return self._node.watch.reports.updated_ms_ago(teller, self._now_ms)

    def _time_ms(self, applied: Seq, lag: int | None) -> int | None:
        known = []
        as_of_ms = None if self._runner is None else self._runner.core.fresh_as_of(applied)
        if as_of_ms is not None:
            known.append(max(0, self._now_ms - as_of_ms))
        if lag == 0 and self.age_ms is not None:
            known.append(self.age_ms)
        return min(known, default=None)

    def _behind(self, replica: NodeId, applied: Seq, lag: int | None) -> int | None:
        if not lag:
            return lag
        if self._runner is not None:
            core = self._runner.core
            between = core.batches_between(Seq(min(applied, core.commit_seq)), self.end_seq)
            return None if between is None else between[1]
        position = self._reported.get(replica)
        if position is None or position.applied_batches == NOT_REPORTED:
            return None
        batches = self._node.watch.reports.committed(self._channel).batches
        return None if batches == NOT_REPORTED else max(0, batches - position.applied_batches)

    def _told(self, replica: NodeId) -> tuple[Seq | None, int | None]:
        """Where it said that it is, by a report or by an acknowledgement, and how long ago."""
        seqs: list[Seq] = []
        ages: list[int] = []
        position, acked = self._reported.get(replica), self._acked.get(replica)
        if position is not None:
            seqs.append(position.applied_seq)
            told_ms_ago = self._node.watch.reports.updated_ms_ago(replica, self._now_ms)
            ages += [] if told_ms_ago is None else [told_ms_ago]
        if acked is not None and acked.heard_ms is not None:
            seqs.append(acked.applied_seq)
            ages.append(max(0, self._now_ms - acked.heard_ms))
        return max(seqs, default=None), min(ages, default=None)

    def _role(self, replica: NodeId) -> str:
        if self._runner is not None and self._runner.elector.leader is not None:
            leads = self._runner.elector.leader == replica
        elif replica in self._reported:
            leads = self._reported[replica].is_leader
        else:
            return ""
        return Role.LEADER.value if leads else Role.FOLLOWER.value
