"""Takes the times of failovers from what happens in the engine, and reports each as one event."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Final

from raftstore.engine.channel.channel_parts import RoleBefore
from raftstore.engine.channel.runner import ChannelRunner
from raftstore.engine.deadlines import Deadlines
from raftstore.engine.node_ports import Tell
from raftstore.metrics import DURATIONS_MS, FixedHistogram, Histogram
from raftstore.policy import failover
from raftstore.policy.failover import FailoverRecord, FailoverTracker
from raftstore.protocol.election import StepDownNotice, TransferNow
from raftstore.protocol.message import Message
from raftstore.types import ChannelId, NodeId, Role, channel_partition, node_name

CHECK_INTERVAL_MS = 500
_CHECK: Final = 0
PHASES: Final[dict[str, Callable[[FailoverRecord], int | None]]] = {
    "detect": lambda record: record.detect_ms,
    "vote": lambda record: record.vote_ms,
    "first_read": lambda record: record.first_read_ms,
    "first_write": lambda record: record.first_write_ms,
}
"""Parts of a failover whose times are reported, as ``FailoverRecord`` defines them."""


class FailoverWatch:
    """One tracker with its eyes."""

    def __init__(self, me: NodeId, channels: Mapping[ChannelId, ChannelRunner], tell: Tell) -> None:
        self._me = me
        self._channels = channels
        self._tell_event = tell
        self._tracker = FailoverTracker(me)
        self.under_way = self._tracker.under_way
        """Channels whose failover is not over."""
        self.deadlines: Deadlines[int] = Deadlines()
        """One: of the next look at what is under way."""
        self.count = 0
        """Failovers that ended with a leader here."""
        self._times = {phase: FixedHistogram(DURATIONS_MS) for phase in PHASES}

    def histograms(self) -> tuple[Histogram, ...]:
        """How long each part of those failovers took."""
        return tuple(
            times.shown("raftstore_failover_duration_seconds", (("phase", phase),), scale=0.001)
            for phase, times in self._times.items()
        )

    def node_suspected(self, node: NodeId, cause: str, heard_ms: int | None, now_ms: int) -> None:
        """Something says that a node is gone, and with it the leader of what it leads."""
        self._tracker.on_cause(node, cause, heard_ms)
        for runner in self._channels.values():
            if runner.elector.leader == node:
                self._suspect(runner.channel, node, cause, heard_ms, now_ms)

    def leader_suspected(self, runner: ChannelRunner, cause: str, now_ms: int) -> None:
        """The channel's leader lives, and says that it leads no more."""
        leader = runner.elector.leader
        if leader != self._me:
            self._suspect(runner.channel, leader, cause, now_ms, now_ms)

    def on_election(self, runner: ChannelRunner, message: Message, now_ms: int) -> None:
        """Before the elector sees it: a leader that gives up its role says so."""
        if isinstance(message, TransferNow):
            self.leader_suspected(runner, failover.HAND_OVER, now_ms)
        elif isinstance(message, StepDownNotice):
            self.leader_suspected(runner, failover.STEP_DOWN, now_ms)

    def leader_changed(self, runner: ChannelRunner, before: RoleBefore, now_ms: int) -> None:
        """The elector moved."""
        old_leader = before[2]
        elector, channel = runner.elector, runner.channel
        if elector.role is Role.LEADER:
            self._tracker.on_elected(channel, elector.term, now_ms)
        elif elector.leader is not None or old_leader == self._me:
            seen = self._tracker.on_succeeded(channel, elector.leader, elector.term, now_ms)
            if seen is not None:
                self._tell_seen(runner, seen)
        else:
            self._suspect(channel, old_leader, failover.UNKNOWN, None, now_ms)
        self._rest()

    def _rest(self) -> None:
        """Nothing is looked at while nothing is under way."""
        if not self.under_way:
            self.deadlines.cancel(_CHECK)

    def touched(self, channels: Iterable[ChannelId], now_ms: int) -> None:
        """Something happened to these: is the leader ready where a failover is under way?"""
        for channel in channels:
            runner = self._channels.get(channel) if channel in self.under_way else None
            if runner is None or runner.elector.role is not Role.LEADER:
                continue
            if runner.core.leader_is_ready:
                self._tracker.on_ready(channel, now_ms)

    def on_read(self, channel: ChannelId, now_ms: int) -> None:
        """A read of the channel was served here."""
        if channel in self.under_way:
            self._tell(self._tracker.on_read(channel, now_ms))
            self._rest()

    def on_write(self, channel: ChannelId, now_ms: int) -> None:
        """A client's write was committed here."""
        if channel in self.under_way:
            self._tell(self._tracker.on_write(channel, now_ms))
            self._rest()

    def on_timer(self, now_ms: int) -> None:
        """End the records of channels that are idle: no read or write will."""
        if now_ms < self.deadlines.next_ms:
            return
        self.deadlines.push(_CHECK, now_ms + CHECK_INTERVAL_MS)
        for channel in self._tracker.channels:
            if channel not in self._channels:
                self._tracker.on_abandoned(channel)
        for record in self._tracker.on_timer(now_ms):
            self._tell(record)
        self._rest()

    def _suspect(
        self,
        channel: ChannelId,
        leader: NodeId | None,
        cause: str,
        heard_ms: int | None,
        now_ms: int,
    ) -> None:
        if not self.under_way:
            self.deadlines.push(_CHECK, now_ms + CHECK_INTERVAL_MS)
        self._tracker.on_suspect(channel, leader, cause, heard_ms=heard_ms, now_ms=now_ms)

    def _tell_seen(self, runner: ChannelRunner, seen: FailoverRecord) -> None:
        """N8: kept here, too, for the node that leads now may be the next to die."""
        self._tell_event(
            "failover_seen",
            channel=runner.name,
            table=runner.name.rpartition("/")[0],
            partition=channel_partition(runner.channel),
            old_leader=node_name(seen.old_leader),
            new_leader=node_name(seen.new_leader),
            term=seen.term,
            cause=seen.cause,
            detect_ms=seen.detect_ms,
            vote_ms=seen.vote_ms,
        )

    def _tell(self, record: FailoverRecord | None) -> None:
        if record is None:
            return
        self.count += 1
        for phase, duration_ms in PHASES.items():
            if (took_ms := duration_ms(record)) is not None:
                self._times[phase].observe(took_ms)
        runner = self._channels.get(record.channel)
        self._tell_event(
            "failover",
            channel=record.channel.hex() if runner is None else runner.name,
            table="" if runner is None else runner.name.rpartition("/")[0],
            partition=channel_partition(record.channel),
            old_leader=node_name(record.old_leader),
            new_leader=node_name(record.new_leader),
            term=record.term,
            cause=record.cause,
            detect_ms=record.detect_ms,
            vote_ms=record.vote_ms,
            ready_ms=record.ready_ms,
            first_read_ms=record.first_read_ms,
            first_write_ms=record.first_write_ms,
            total_ms=record.total_ms,
        )
