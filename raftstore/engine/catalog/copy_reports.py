"""How far copies of tables are, as the nodes that take them report it to the metadata leader."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Protocol

from raftstore.engine.channel.outbox import Outbox
from raftstore.policy.levels import REBALANCE_LEVEL
from raftstore.protocol.message import Message
from raftstore.protocol.rebalance import CopyReport, CopyState
from raftstore.types import ChannelId, NodeId


class Taken(Protocol):
    """A table on its way in."""

    bytes: int


class CopyReports:
    """Reports of this node, and those that it got while it leads the metadata channel."""

    def __init__(
        self,
        me: NodeId,
        planner: Callable[[], NodeId | None],
        outbox: Outbox,
        known_level: Callable[[int], Collection[NodeId]],
    ) -> None:
        """``planner``: the leader of the metadata channel, as far as known here."""
        self._me = me
        self._planner = planner
        self._outbox = outbox
        self._known_level = known_level
        self.taken: Mapping[ChannelId, Taken] = {}
        """Tables that this node takes."""
        self._known: dict[NodeId, dict[ChannelId, int]] = {}
        self._reports = False
        """Whether the last report named a table: then one more is due when there is none."""

    def report(self) -> None:
        """Report all copies on their way, while there are some, and once that there are none."""
        copies = tuple(CopyState(channel, each.bytes) for channel, each in self.taken.items())
        leader = self._planner()
        if leader == self._me:
            self._take(self._me, copies)
        elif (copies or self._reports) and leader is not None:
            if leader in self._known_level(REBALANCE_LEVEL):
                self._outbox.send_known(leader, CopyReport(copies))
        self._reports = bool(copies)

    def on_message(self, sender: NodeId, message: Message) -> bool:
        """Take a report of another node; False: it is about something else."""
        if not isinstance(message, CopyReport):
            return False
        if sender in self._known_level(REBALANCE_LEVEL):  # else it has left, and this came late
            self._take(sender, message.copies)
        return True

    def forget(self, node: NodeId) -> None:
        """The node has left."""
        self._take(node, ())

    def bytes_of(self, channel: ChannelId, node: NodeId) -> int:
        """Bytes that the node has taken of the channel's table; 0 also if it takes none."""
        return self._known.get(node, {}).get(channel, 0)

    def _take(self, node: NodeId, copies: Collection[CopyState]) -> None:
        if copies:
            self._known[node] = {each.channel: each.bytes for each in copies}
        else:
            self._known.pop(node, None)
