"""Leaderships that nodes gave away because an operator asked, so that they do not come back soon.

The node that was asked remembers it for a while (``rebalance.respect_ms``), and reports it with its
positions to the voters of the metadata channel: any of them may be the next that plans. Nothing is
stored: with a restart of the node that gave a leadership away the reason for that has mostly gone,
and it takes its share again.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from raftstore.engine.channel.channel_parts import RoleBefore
from raftstore.engine.channel.runner import ChannelRunner
from raftstore.engine.leaders.parts import LeaderParts
from raftstore.types import ChannelId, NodeId, Role, Term

REPORTED_MAX: Final = 1_000
"""Channels in one report, those given away last: each takes some twenty bytes, every second."""


class GivenAway:
    """Channels that this node gave away, and those that others reported."""

    def __init__(self, parts: LeaderParts, respect_ms: int) -> None:
        self._parts = parts
        self._respect_ms = respect_ms
        self._asked: dict[ChannelId, tuple[Term, int]] = {}
        """Requests under way: the term in which this node leads, and until when they count."""
        self._mine: dict[ChannelId, int] = {}
        """Until when each channel stays away from here."""
        self._reported: dict[NodeId, dict[ChannelId, int]] = {}

    # --- at the node that gives a leadership away -------------------------------------------------

    def asked(self, runner: ChannelRunner, until_ms: int) -> None:
        """An operator asks for a hand-over; what happens after ``until_ms`` is not his doing.

        That of the metadata channel is about who plans, and keeps no channel of a table away.
        """
        if runner.channel == self._parts.controller.metadata_channel:
            return
        self._asked[runner.channel] = runner.elector.term, until_ms

    def leader_changed(self, runner: ChannelRunner, before: RoleBefore, now_ms: int) -> None:
        """A channel's role, term or leader changed."""
        channel = runner.channel
        if runner.elector.role is Role.LEADER:
            self._mine.pop(channel, None)  # it was given back, or nobody else could lead
            return
        term, role, _ = before
        asked = self._asked.pop(channel, None) if role is Role.LEADER else None
        if asked is not None and asked[0] == term and now_ms <= asked[1]:
            self._mine.pop(channel, None)
            self._mine[channel] = now_ms + self._respect_ms

    def report(self, to: NodeId) -> tuple[tuple[ChannelId, int], ...]:
        """Channels that stay away from here, and for how long, as another node is to know it."""
        if not self._mine or to not in self._parts.controller.metadata.config().voters:
            return ()
        now_ms = self._parts.node.clock.now_ms
        self._mine = {each: until for each, until in self._mine.items() if until > now_ms}
        newest = tuple(self._mine.items())[-REPORTED_MAX:]
        return tuple((channel, until_ms - now_ms) for channel, until_ms in newest)

    # --- at the node that plans -------------------------------------------------------------------

    def on_report(
        self, sender: NodeId, kept: tuple[tuple[ChannelId, int], ...], arrived_ms: int
    ) -> None:
        """Another node says what it gave away; its newest report counts."""
        if kept:
            self._reported[sender] = {
                channel: arrived_ms + min(left_ms, self._respect_ms) for channel, left_ms in kept
            }
        else:
            self._reported.pop(sender, None)

    def kept(self, up: Collection[NodeId], now_ms: int) -> set[tuple[ChannelId, NodeId]]:
        """Channels that stay where they are, and nodes that each of them stays away from."""
        me = self._parts.me
        return {
            (channel, node)
            for node, channels in (*self._reported.items(), (me, self._mine))
            if node in up
            for channel, until_ms in channels.items()
            if now_ms < until_ms
        }
