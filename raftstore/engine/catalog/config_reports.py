"""Committed configurations of channels, on their way into the catalog (M21, M22).

Nothing is remembered between two reports: a leader compares what is committed in its log with its
copy of the catalog, and reports until that shows it. So the next leader goes on where one stopped.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Final, Protocol

from raftstore.core.effects import ConfigCommitted
from raftstore.engine.channel.outbox import Outbox
from raftstore.engine.channel.proposals import OnOutcome, Proposals
from raftstore.engine.channel.runner import ChannelRunner
from raftstore.engine.deadlines import Deadlines
from raftstore.errors import Refusal
from raftstore.policy.levels import CONFIG_REPORT_LEVEL
from raftstore.protocol.message import Message
from raftstore.protocol.node import ConfigReport
from raftstore.protocol.publish import PubAck, PubReject
from raftstore.state_machines.catalog import Catalog
from raftstore.state_machines.catalog_entries import MEMBERS_FORMAT
from raftstore.state_machines.catalog_replicas import ReportConfig, report_config_command
from raftstore.types import ChannelId, NodeId, Role, Seq

LOOK_AGAIN_MS: Final = 20
"""How soon a change that ended is looked at again while live voters do not have it."""
_ENDED: Final = 2


class CatalogView(Protocol):
    """The node's copy of the catalog, and the way to change it."""

    catalog: Catalog
    proposals: Proposals

    @property
    def metadata(self) -> ChannelRunner:
        """The metadata channel of this node."""

    def refusal_of_format(self, number: int) -> Refusal | None:
        """Why a command of this format must not be written; None: it may."""


class ConfigReports:
    """Reports what is committed in channels that this node leads, and takes in what others do."""

    def __init__(
        self,
        view: CatalogView,
        channels: Mapping[ChannelId, ChannelRunner],
        outbox: Outbox,
        nodes_at_level: Callable[[int], Collection[NodeId]],
        is_up: Callable[[NodeId], bool],
        *,
        wait_ms: int,
        deadlines: Deadlines[int],
    ) -> None:
        """``wait_ms``: how long a report waits for live voters that are behind. ``deadlines``: of
        its owner; one key is used here."""
        self._is_up = is_up
        self._wait_ms = wait_ms
        self._waiting: dict[ChannelId, tuple[Seq, int]] = {}
        """Seq of a configuration that was not reported yet, and since when it could be."""
        self._view = view
        self._channels = channels
        self._outbox = outbox
        self._nodes_at_level = nodes_at_level
        self._changed: dict[ChannelId, None] = {}
        """Channels with a configuration that is not of their creation."""
        self._ended: dict[ChannelId, None] = {}
        """Channels whose change ended: others wait for the report of it, so it is made at once."""
        self._deadlines = deadlines
        self._proposed: dict[ChannelId, Seq] = {}
        """Seq of the configuration of which a report waits for its outcome here."""

    def on_committed(self, runner: ChannelRunner, committed: ConfigCommitted) -> None:
        """A configuration is known to be committed in the log here."""
        if runner.channel == self._view.metadata.channel:
            return
        self._changed[runner.channel] = None
        if committed.config.ended:
            self._ended[runner.channel] = None
            self._deadlines.push(_ENDED, 0)  # at once

    def on_closed(self, runner: ChannelRunner) -> None:
        """The channel is not open here any more."""
        self._changed.pop(runner.channel, None)
        self._ended.pop(runner.channel, None)
        self._waiting.pop(runner.channel, None)

    def on_timer(self, now_ms: int) -> None:
        """Report changes that ended: the node that leaves, and the next move, wait for that."""
        if not self._ended:
            return
        self._ended = {each: None for each in self._ended if self._report(each, now_ms)}
        if self._ended:
            self._deadlines.push(_ENDED, now_ms + LOOK_AGAIN_MS)
        else:
            self._deadlines.cancel(_ENDED)

    def report(self, now_ms: int) -> None:
        """Report what the catalog does not show yet of channels that this node leads."""
        for channel in tuple(self._changed):
            self._report(channel, now_ms)

    def _report(self, channel: ChannelId, now_ms: int) -> bool:
        """Whether live voters are waited for."""
        runner = self._channels.get(channel)
        if runner is None or runner.elector.role is not Role.LEADER:
            return False
        committed, known = runner.core.committed_config(), self._view.catalog.changes.get(channel)
        if known is not None and committed.seq <= known.config_seq:
            return False
        if self._waits(runner, committed.seq, now_ms):
            return True
        message = ConfigReport(channel, runner.elector.term, *committed)
        leader = self._view.metadata.elector.leader
        if leader == runner.me:
            self._take_in(message, now_ms)
        elif leader is not None and leader in self._nodes_at_level(CONFIG_REPORT_LEVEL):
            self._outbox.send_known(leader, message)
        return False

    def _waits(self, runner: ChannelRunner, seq: Seq, now_ms: int) -> bool:
        """M12: who is replaced deletes what it holds once this is reported; until then it is one
        copy more, should one of the few be lost that have the change."""
        waited = self._waiting.get(runner.channel)
        if waited is None or waited[0] != seq:
            waited = self._waiting[runner.channel] = seq, now_ms
        is_patient = now_ms < waited[1] + self._wait_ms
        return is_patient and any(map(self._is_up, runner.core.voters_behind(seq)))

    def on_message(self, message: Message, now_ms: int) -> bool:
        """Take a report of another node; False: it is about something else."""
        if not isinstance(message, ConfigReport):
            return False
        self._take_in(message, now_ms)
        return True

    def _take_in(self, message: ConfigReport, now_ms: int) -> None:
        view, channel = self._view, message.channel
        metadata = view.metadata
        if metadata.elector.role is not Role.LEADER or not metadata.core.leader_is_ready:
            return  # it is reported again, to whichever node leads then
        table = view.catalog.table_of(channel)
        known = view.catalog.changes.get(channel)
        is_known = known is not None and message.config_seq <= known.config_seq
        if table is None or is_known or self._proposed.get(channel, Seq(0)) >= message.config_seq:
            return
        self._proposed[channel] = message.config_seq
        report = ReportConfig(
            channel, table.name, message.config_seq, message.config_term, message.config
        )
        view.proposals.propose(
            metadata,
            report_config_command(report),
            self._done(channel, message.config_seq),
            now_ms,
            refusal=view.refusal_of_format(MEMBERS_FORMAT),
        )

    def _done(self, channel: ChannelId, seq: Seq) -> OnOutcome:
        def done(answer: PubAck | PubReject, now_ms: int) -> None:
            del answer, now_ms  # whatever came of it shows in the catalog, or it is reported again
            if self._proposed.get(channel) == seq:
                del self._proposed[channel]

        return done
