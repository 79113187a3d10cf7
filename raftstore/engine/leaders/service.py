"""Moves of leaderships, as the node's runner and its reports see them."""

from __future__ import annotations

from raftstore.engine.channel.channel_parts import RoleBefore
from raftstore.engine.channel.runner import ChannelRunner
from raftstore.engine.leaders.balancer import LeaderBalancer
from raftstore.engine.leaders.given_away import GivenAway
from raftstore.engine.leaders.move_requests import MoveRequests
from raftstore.engine.leaders.parts import LeaderParts
from raftstore.engine.leaders.standbys import Standbys
from raftstore.protocol.leader_moves import AskLead, LeadRefused, TakeLead
from raftstore.protocol.message import Message
from raftstore.types import NodeId


class Leaders:
    """All that moves leaderships so that every node leads its share."""

    def __init__(self, parts: LeaderParts) -> None:
        self._parts = parts
        settings = parts.node.settings.rebalance
        self.given_away = GivenAway(parts, settings.respect_ms)
        self.balancer = LeaderBalancer(parts, settings, self._ask, self.given_away)
        self.standbys = Standbys(parts, parts.node.settings.iss)
        self.move_requests = MoveRequests(parts, self.standbys, self.balancer.on_refused)
        self.deadlines = (self.balancer.deadlines, self.standbys.deadlines)
        parts.watch.reports.on_position = self.standbys.on_position
        parts.watch.reports.in_sync = self.standbys.in_sync
        parts.watch.reports.given_away = self.given_away.report
        parts.watch.reports.on_given_away = self.given_away.on_report
        parts.controller.on_leaders_switched = self.balancer.switched
        parts.watch.on_up_changed.append(self.standbys.up_changed)
        self.stood_still = self.move_requests.stood_still

    def leader_changed(self, runner: ChannelRunner, before: RoleBefore, now_ms: int) -> None:
        """A channel's role, term or leader changed."""
        self.standbys.leader_changed(runner, before, now_ms)
        self.given_away.leader_changed(runner, before, now_ms)
        self.balancer.leader_changed(runner.channel, now_ms)

    def on_timer(self, now_ms: int) -> None:
        """Look at standbys and at who leads what, when that is due."""
        self.standbys.on_timer(now_ms)
        self.balancer.on_timer(now_ms)

    def on_message(self, sender: NodeId, message: Message, now_ms: int) -> bool:
        """Take a message of another node; False: it is about something else."""
        if isinstance(message, TakeLead):
            self.move_requests.on_take_lead(sender, message)
        elif isinstance(message, AskLead):
            self.move_requests.on_ask_lead(sender, message, now_ms)
        elif isinstance(message, LeadRefused):
            self.balancer.on_refused(sender, message)
        else:
            return False
        return True

    def _ask(self, node: NodeId, request: TakeLead) -> None:
        if node == self._parts.me:
            self.move_requests.on_take_lead(node, request)
        else:
            self._parts.send(node, request)
