"""Where replicas go whose nodes leave the cluster: those that drain, and those that were replaced.

One replica of a channel moves at a time, and few channels do: each of them copies its table.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import NamedTuple

from raftstore.policy.open_moves import OpenMoves
from raftstore.policy.placement import NO_DOMAINS, doubled
from raftstore.types import ChannelId, NodeId


class HostedChannel(NamedTuple):
    """A channel and its replicas."""

    channel: ChannelId
    voters: tuple[NodeId, ...]
    learners: tuple[NodeId, ...] = ()
    has_order: bool = False
    """Its replicas are being changed already."""
    witnesses: tuple[NodeId, ...] = ()
    """Voters without rows."""
    takes: tuple[NodeId, ...] = ()
    """The nodes that get a replica by its order."""

    @property
    def hosts(self) -> set[NodeId]:
        """The nodes that have a replica, or get one: until a leader reports what became of an order
        they are not in the configuration."""
        return {*self.voters, *self.learners, *self.takes}


class Evacuation(NamedTuple):
    """Replicas that a channel is to have in the place of its present ones."""

    channel: ChannelId
    voters: tuple[NodeId, ...]
    learners: tuple[NodeId, ...]
    leaves: NodeId
    witnesses: tuple[NodeId, ...] = ()
    """The one that comes, if it takes the place of a witness."""


def plan_evacuations(
    channels: Iterable[HostedChannel],
    leaving: Mapping[NodeId, NodeId | None],
    nodes: Collection[NodeId],
    domains: Mapping[NodeId, str] = NO_DOMAINS,
) -> list[Evacuation]:
    """Return the orders to give now.

    ``leaving``: nodes that leave, and who takes each one's place, if anybody was named. ``nodes``:
    those that may take replicas and are up. The named one is taken if it is among them. Else it is
    a node whose failure domain has the fewest of the channel's other replicas, of these the one
    with the fewest replicas; a channel that has one on every node waits for another node.
    """
    channels = tuple(channels)
    held = dict.fromkeys(sorted(nodes), 0)
    for each in channels:
        for node in each.hosts:
            if node in held:
                held[node] += 1
    moves = open_moves(channels, len(nodes))
    orders: list[Evacuation] = []
    for each in channels:
        if moves.is_full:
            break
        order = None if each.has_order else _evacuated(each, leaving, held, domains)
        if order is None:
            continue
        takes = set(order.voters).difference(each.voters)
        if moves.may_take(takes):
            moves.add(takes)
            held.update((node, held[node] + 1) for node in takes)
            orders.append(order)
    return orders


def open_moves(channels: Iterable[HostedChannel], nodes: int) -> OpenMoves:
    """The orders that these channels have, in a cluster with so many nodes that take replicas."""
    return OpenMoves(nodes, (each.takes for each in channels if each.has_order))


def _evacuated(
    each: HostedChannel,
    leaving: Mapping[NodeId, NodeId | None],
    held: Mapping[NodeId, int],
    domains: Mapping[NodeId, str],
) -> Evacuation | None:
    members = (*each.voters, *each.learners)
    gone = [node for node in members if node in leaving]
    if not gone:
        return None
    leaves = gone[0]
    if leaves in each.learners:  # it never voted: the channel has all that it needs
        learners = tuple(node for node in each.learners if node != leaves)
        return Evacuation(each.channel, each.voters, learners, leaves)
    free = [node for node in held if node not in members]
    if not free:
        return None
    named = leaving[leaves]
    stay = [node for node in members if node not in leaving]
    takes = named if named in free else None
    if takes is None:
        takes = min(free, key=lambda node: (doubled(node, stay, domains), held[node]))
    voters = tuple(takes if node == leaves else node for node in each.voters)
    witnesses = (takes,) if leaves in each.witnesses else ()
    return Evacuation(each.channel, voters, each.learners, leaves, witnesses)
