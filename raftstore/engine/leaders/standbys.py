"""Which replicas of the channels that a node leads are standbys in sync (FIP-10, FIP-17, FIP-18).

Followers report what they have applied with every lag report, and the leader judges each report by
where its log ends when that arrives. A node that falls silent is noticed at the next look, once a
second, for all channels together; so are its entries and exits reported, in one event a look.
"""

from __future__ import annotations

from typing import Any, Final

from raftstore.config import IssSettings
from raftstore.engine.channel.channel_parts import RoleBefore
from raftstore.engine.channel.runner import ChannelRunner
from raftstore.engine.deadlines import Deadlines
from raftstore.engine.leaders.parts import LeaderParts
from raftstore.policy.channel_record import ChannelRecord, record_of
from raftstore.policy.standbys import (
    CATCHES_UP,
    SILENT,
    InSyncStandbys,
    hot_standbys,
    is_hot_standby_candidate,
)
from raftstore.protocol.node import ChannelPosition, InSync
from raftstore.types import ChannelId, NodeId, Role, Seq, node_name

LOOK_MS: Final = 1_000
"""Between two looks at nodes that fell silent."""
REPORTS_MISSED_MAX: Final = 3
"""A node that is up and sent no report for longer than so many take is silent all the same."""
CHANGES_SHOWN: Final = 5
"""Entries and exits that an event names; the others of the same look are counted."""

_LOOK: Final = 0


class _Led:
    """A channel that this node leads in one term."""

    __slots__ = ("judged", "reasons", "runner", "seen")

    def __init__(self, runner: ChannelRunner, max_lag: int) -> None:
        self.runner = runner
        self.judged = InSyncStandbys(max_lag)
        self.reasons: dict[NodeId, str] = {}
        """Why standbys are not in sync."""
        self.seen: dict[NodeId, tuple[ChannelPosition, Seq]] = {}
        """The report by which a standby was judged in sync, and the end of the log then."""


class Standbys:
    """Judges the standbys of the channels that this node leads."""

    def __init__(self, parts: LeaderParts, settings: IssSettings) -> None:
        self._parts = parts
        self._settings = settings
        self._led: dict[ChannelId, _Led] = {}
        self._silent: frozenset[NodeId] = frozenset()
        self._changes: list[str] = []
        """Entries and exits since the last event, not more than are shown."""
        self.entered_total = 0
        self.left_total = 0
        self._reported = (0, 0)
        """The totals at the last event."""
        self.deadlines: Deadlines[int] = Deadlines()
        """One: of the next look."""

    # --- what happens -----------------------------------------------------------------------------

    def leader_changed(self, runner: ChannelRunner, before: RoleBefore, now_ms: int) -> None:
        """A channel's role, term or leader changed: what was known counts no longer."""
        del before
        if runner.elector.role is not Role.LEADER:
            self._led.pop(runner.channel, None)
            return
        self._led[runner.channel] = _Led(runner, self._settings.max_lag)
        if _LOOK not in self.deadlines:
            self.deadlines.push(_LOOK, now_ms + LOOK_MS)

    def up_changed(self, node: NodeId) -> None:
        """A node came up, or is up no more: at once others keep up with the leaders here.

        Nothing else happened to these channels, and what is shown and reported of them is kept.
        """
        for led in self._led.values():
            if node in led.runner.config().members:
                self._parts.node.active.touch(led.runner.channel)

    def on_position(self, runner: ChannelRunner, sender: NodeId, position: ChannelPosition) -> None:
        """A replica of a channel that is hosted here reported where it is."""
        led = self._led.get(runner.channel)
        if led is None or led.runner is not runner:
            return
        core, config = runner.core, runner.config()
        if position.replica != config.number_of(sender):
            return  # M4: another life of the node's replica
        if not is_hot_standby_candidate(config, sender):
            self._note(led, sender, led.judged.leave(sender), "")
            return
        seen = (position, core.last_seq)
        if sender in led.judged and led.seen.get(sender) == seen:
            return  # nothing was written or applied since it was found in sync
        found = led.judged.judge(
            sender, position.applied_seq, core.last_seq, self._why_not(runner, sender)
        )
        if found.in_sync:
            led.seen[sender] = seen
        self._note(led, sender, found.has_changed, found.reason)

    def _why_not(self, runner: ChannelRunner, node: NodeId) -> str:
        """Why a replica is not in sync whatever it has applied; empty: nothing speaks against."""
        if not self._is_heard(node):
            return SILENT
        progress = runner.core.progress().get(node)
        if progress is None or not progress.keeps_up(runner.core.commit_seq):
            return CATCHES_UP
        return ""

    def _is_heard(self, node: NodeId) -> bool:
        watch, node_parts = self._parts.watch, self._parts.node
        if not watch.is_up(node):
            return False
        age_ms = watch.reports.updated_ms_ago(node, node_parts.clock.now_ms)
        missed_ms = REPORTS_MISSED_MAX * node_parts.settings.lag.report_interval_ms + LOOK_MS
        return age_ms is not None and age_ms <= missed_ms

    def _note(self, led: _Led, node: NodeId, has_changed: bool, reason: str) -> None:  # noqa: FBT001
        is_in = node in led.judged
        if is_in:
            led.reasons.pop(node, None)
        elif reason:
            led.reasons[node] = reason
        if not has_changed:
            return
        self.entered_total += is_in
        self.left_total += not is_in
        if len(self._changes) < CHANGES_SHOWN:
            word = "entered" if is_in else f"left: {reason or 'it is no standby any more'}"
            self._changes.append(f"{led.runner.name} {node_name(node)} {word}")
        # What this node reports of the channel is another.
        self._parts.node.active.touch(led.runner.channel)

    # --- a look -----------------------------------------------------------------------------------

    def on_timer(self, now_ms: int) -> None:
        """Look for nodes that fell silent, and report what changed."""
        for _ in self.deadlines.due(now_ms):
            self._look()
            if self._led:
                self.deadlines.push(_LOOK, now_ms + LOOK_MS)

    def _look(self) -> None:
        channels = self._parts.channels
        for channel in [at for at, led in self._led.items() if channels.get(at) is not led.runner]:
            del self._led[channel]  # closed
        silent = frozenset(node for node in self._parts.watch.peers if not self._is_heard(node))
        if silent != self._silent:
            for led in self._led.values():
                self._parts.node.active.touch(led.runner.channel)
                for node in led.judged.nodes:
                    if node in silent:
                        self._note(led, node, led.judged.leave(node), SILENT)
        self._silent = silent
        self._report()

    def _report(self) -> None:
        entered, left = self._reported
        self._reported = (self.entered_total, self.left_total)
        entered, left = self.entered_total - entered, self.left_total - left
        if entered or left:
            changes = "; ".join(self._changes)
            self._changes.clear()
            self._parts.node.tell("iss_changed", entered=entered, left=left, first=changes)

    # --- what is known ----------------------------------------------------------------------------

    def in_sync(self, runner: ChannelRunner) -> InSync | None:
        """The followers in sync with this leader; None: it has committed nothing in its term."""
        led = self._led.get(runner.channel)
        if led is None or led.runner is not runner or not runner.core.leader_is_ready:
            return None
        commit_seq, config = runner.core.commit_seq, runner.config()
        isr = [
            node
            for node, progress in runner.core.progress().items()
            if progress.keeps_up(commit_seq) and self._parts.watch.is_up(node)
        ]
        iss = [
            node for node in isr if node in led.judged and is_hot_standby_candidate(config, node)
        ]
        return InSync((*iss, *(node for node in isr if node not in iss)), len(iss))

    def why_not_in_sync(self, runner: ChannelRunner, node: NodeId) -> str:
        """Why a replica of a channel that is led here is no standby in sync; empty: it is one."""
        known = self.in_sync(runner)
        if known is not None and node in known.standbys:
            return ""
        led = self._led.get(runner.channel)
        return (led and led.reasons.get(node)) or "it has not reported what it has applied yet"

    def record(self, runner: ChannelRunner) -> ChannelRecord | None:
        """FIP-06: the record of a channel that this node leads."""
        known = self.in_sync(runner)
        if known is None:
            return None
        config = runner.config()
        return record_of(
            leader=runner.me,
            leader_epoch=runner.elector.term,
            replicas=config.members,
            in_sync=known.nodes,
            hot_standbys=hot_standbys(config, runner.me),
            standbys_in_sync=known.standbys,
            coordinator_epoch=self._parts.controller.metadata.elector.term,
            bucket_epoch=runner.core.committed_config().seq,
        )

    def counts(self) -> dict[str, int]:
        """Sums over the channels that are led here, for metrics and status."""
        hot = known = 0
        for led in self._led.values():
            if led.runner.channel == self._parts.controller.metadata_channel:
                continue
            config = led.runner.config()
            hot += len(hot_standbys(config, led.runner.me))
            found = self.in_sync(led.runner)
            known += 0 if found is None else found.standbys_in_sync
        return {"hot_standbys": hot, "in_sync": known}

    def status(self) -> dict[str, Any]:
        """For ``raftstore status``."""
        return {**self.counts(), "entered": self.entered_total, "left": self.left_total}
