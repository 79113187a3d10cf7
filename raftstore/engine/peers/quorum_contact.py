"""Leaders without contact to a quorum give up their role (NATS-035).

Two questions, both by every voter set in force. Whether the voters' *nodes* are in contact, by
heartbeats: that is known at once and costs nothing per channel. And whether these nodes still host
the *replicas* that vote, under their numbers (M4): a node that lives may have deleted its replica
or host another one, and channels are moved behind the back of a leader that is cut off. The newest
report of each node says what it hosts, and in which terms. Only where the reports leave that open
is the channel itself asked, by a round of confirmations (S7.1): without one for
``election.quorum_contact_ms`` the role is given up, and with it all that is served by it.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from raftstore.config import ElectionSettings, LagSettings
from raftstore.core.quorum import has_quorum
from raftstore.engine.channel.runner import ChannelRunner
from raftstore.engine.peers.lag_reports import LagReports
from raftstore.types import ChannelId, NodeId, ReplicaId

REPORTS_MISSED_MAX: Final = 3
"""A report that is older than so many intervals says nothing of what its node hosts now."""
NO_CONTACT: Final = "no contact to a quorum"


class QuorumContact:
    """Watches the channels that this node leads."""

    def __init__(
        self, me: NodeId, reports: LagReports, election: ElectionSettings, lag: LagSettings
    ) -> None:
        self._me = me
        self._reports = reports
        self._contact_ms = election.quorum_contact_ms
        self._look_interval_ms = min(lag.report_interval_ms, self._contact_ms)
        self._report_age_max_ms = max(REPORTS_MISSED_MAX * lag.report_interval_ms, self._contact_ms)
        self._led: dict[ChannelId, ChannelRunner] = {}
        self._no_contact_since: dict[ChannelId, int] = {}
        self._unreported_since: dict[ChannelId, int] = {}
        """Channels of which the reports name no quorum of the voters."""
        self._next_look_ms = 0

    def begin(self, runner: ChannelRunner) -> None:
        """The channel is led here from now on, or in another term."""
        self.end(runner.channel)
        self._led[runner.channel] = runner

    def end(self, channel: ChannelId) -> None:
        """The channel is led here no more."""
        self._led.pop(channel, None)
        self._no_contact_since.pop(channel, None)
        self._unreported_since.pop(channel, None)

    def check(self, contact: Collection[NodeId], now_ms: int, *, is_whole: bool) -> None:
        """Have those give up that had no contact for too long.

        ``contact``: the other nodes that are in contact; ``is_whole``: all that there are.
        """
        if is_whole:
            self._no_contact_since.clear()
        else:
            self._check_nodes({self._me, *contact}, now_ms)
        if now_ms >= self._next_look_ms:
            self._next_look_ms = now_ms + self._look_interval_ms
            self._look_for_replicas(contact, now_ms)
        if self._unreported_since:
            self._check_replicas(now_ms)

    def _check_nodes(self, contact: Collection[NodeId], now_ms: int) -> None:
        decided: dict[tuple[tuple[NodeId, ...], ...], bool] = {}  # most channels have the same
        for channel, runner in tuple(self._led.items()):
            config = runner.core.config()
            is_held = decided.get(config.voter_sets)
            if is_held is None:
                is_held = decided[config.voter_sets] = has_quorum(config, contact)
            if is_held:
                self._no_contact_since.pop(channel, None)
                continue
            since = self._no_contact_since.setdefault(channel, now_ms)
            if now_ms - since >= self._contact_ms:
                del self._no_contact_since[channel]
                runner.step_down(NO_CONTACT, now_ms)

    def _look_for_replicas(self, contact: Collection[NodeId], now_ms: int) -> None:
        """Which channels have no quorum by the reports of the nodes that are in contact."""
        oldest_ms = now_ms - self._report_age_max_ms
        hosted = {node: self._reports.hosted_by(node, oldest_ms) for node in contact}
        for channel, runner in self._led.items():
            config, term = runner.core.config(), runner.elector.term
            found: list[NodeId] = []
            for node in config.voters:
                if node == self._me:
                    # M5: it counts itself as the replica that the configuration names.
                    if config.has_voter(ReplicaId(node, runner.core.number)):
                        found.append(node)
                    continue
                reported = hosted[node].get(channel) if node in hosted else None
                # S1.4: a replica in a later term may have helped another leader to a quorum.
                if reported is not None and reported.term <= term:
                    if reported.replica == config.number_of(node):
                        found.append(node)
            if has_quorum(config, found):
                self._unreported_since.pop(channel, None)
            else:
                self._unreported_since.setdefault(channel, now_ms)

    def _check_replicas(self, now_ms: int) -> None:
        """A round that a quorum confirms is contact, whatever the reports say."""
        for channel, since_ms in tuple(self._unreported_since.items()):
            runner = self._led.get(channel)
            if runner is None:
                continue
            proven_ms = runner.core.proven_ms
            silent_ms = now_ms - max(since_ms, since_ms if proven_ms is None else proven_ms)
            if silent_ms >= self._contact_ms:
                del self._unreported_since[channel]
                runner.step_down(NO_CONTACT, now_ms)
            elif 2 * silent_ms >= self._contact_ms:
                runner.request_proof(now_ms + self._contact_ms - silent_ms, now_ms)
