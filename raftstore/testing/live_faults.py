"""Faults of nodes that run: bits of their files flip, and they die at named places.

A record or a row is damaged only while log and table of its channel are whole on all other nodes,
as one rotten disk among three is. The mark of one node may be hit, of which there is no copy; then
no record's bit flips in that world, and that node may end for good (S0.1).
"""

from __future__ import annotations

import random
from functools import partial
from typing import TYPE_CHECKING, Final

from raftstore.testing.options import SimOptions
from raftstore.testing.sim_damage import flip_a_record, flip_in_the_mark
from raftstore.testing.sim_failpoints import FAILPOINTS, MEMBER_FAILPOINTS
from raftstore.types import ChannelId

if TYPE_CHECKING:
    from collections.abc import Callable

    from raftstore.testing.sim_cluster import SimCluster
    from raftstore.testing.sim_node import SimNode

SUPERVISE_MS: Final = 700.0
"""How often somebody looks for nodes that ended by themselves."""
MARK_CHANCE: Final = 0.25
"""That a world damages a mark instead of records."""


class LiveFaults:
    """The live faults of one world."""

    def __init__(
        self, cluster: SimCluster, options: SimOptions, boot: Callable[[SimNode], None]
    ) -> None:
        self._cluster = cluster
        self._boot = boot
        self._rng = random.Random(f"live faults {options.seed}")
        self._hits_mark = self._rng.random() < MARK_CHANCE
        self._is_mark_hit = False
        self._failpoints: tuple[str, ...] = FAILPOINTS
        if options.member_changes:  # as likely as all others together, for orders are few
            self._failpoints += MEMBER_FAILPOINTS * (len(FAILPOINTS) // len(MEMBER_FAILPOINTS))
        self._is_on = bool(options.live_flip_percent or options.failpoint_percent)

    def start(self) -> None:
        """Start nodes again from now on that end by themselves, also when faults are over."""
        if self._is_on:
            self._cluster.scheduler.after(SUPERVISE_MS, self._supervise)

    def _supervise(self) -> None:
        for node in self._cluster.nodes.values():
            self._boot(node)
        self._cluster.scheduler.after(SUPERVISE_MS, self._supervise)

    def die_at_a_place(self, node: SimNode) -> bool:
        """The node dies where it passes one of the named places next."""
        if not node.is_up:
            return False
        node.failpoint = self._rng.choice(self._failpoints)
        return True

    def flip(self, node: SimNode) -> bool:
        """A bit of the node's files flips, of a row as often as of the log or the mark."""
        if not node.is_up:
            return False
        if self._rng.random() < 0.5:
            return self._flip_a_row(node)
        if self._hits_mark:
            return self._flip_the_mark()
        return self._flip_a_record(node)

    def _others(self, node: SimNode) -> list[SimNode]:
        return [each for each in self._cluster.nodes.values() if each is not node and each.is_up]

    def _flip_a_record(self, node: SimNode) -> bool:
        harm = partial(
            flip_a_record,
            others=self._others(node),
            others_max=len(self._cluster.nodes) - 1,
            committed=lambda channel: self._cluster.oracle.truth(channel).last_seq,
            may_hit=partial(self._are_whole, node),
        )
        return node.store.flip(harm)

    def _are_whole(self, node: SimNode, channel: ChannelId) -> bool:
        """Whether all others lack nothing of the channel: without a majority that does not recover
        there is rightly no leader (S0.3)."""
        others = (each for each in self._cluster.nodes.values() if each is not node)
        return all(_is_whole(other, channel) for other in others)

    def _flip_the_mark(self) -> bool:
        """Always the same node's, once: it may be refused."""
        node = self._cluster.nodes[self._cluster.node_ids[0]]
        whole = all(self._are_whole(node, channel) for channel in node.tables.stored_channels())
        if self._is_mark_hit or not node.is_up or not whole:
            return False
        self._is_mark_hit = node.store.may_refuse = True
        return node.store.flip(flip_in_the_mark)

    def _flip_a_row(self, node: SimNode) -> bool:
        channel = self._rng.choice(node.tables.stored_channels())
        keys = node.tables.stored_keys(channel)
        if not keys or not self._are_whole(node, channel):
            return False
        node.tables.corrupt(channel, self._rng.choice(keys))
        return True


def _is_whole(node: SimNode, channel: ChannelId) -> bool:
    """Whether log and table of a node are intact and together all of the channel."""
    tables, index = node.tables, node.log.index_of(channel)
    if node.store.may_refuse or index is None or channel not in tables.stored_channels():
        return False
    meet = index.base.seq <= tables.stored_position(channel).seq <= index.last_seq
    return meet and tables.is_intact(channel) and node.log.is_whole(channel)
