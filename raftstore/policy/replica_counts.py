"""Which replicas come and go so that every partition of a table has as many as it is to have.

One replica of a channel comes or goes at a time, and few channels are under way: each replica that
comes copies its table. What is planned depends on the configurations that were reported alone, so a
number that is edited before an earlier edit has ended needs no memory of that.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from typing import NamedTuple

from raftstore.policy.evacuation import HostedChannel, open_moves
from raftstore.policy.placement import NO_DOMAINS, doubled
from raftstore.types import ChannelId, NodeId


class CountChange(NamedTuple):
    """Voters that a channel is to have instead of its present ones; its learners stay."""

    channel: ChannelId
    voters: tuple[NodeId, ...]
    learners: tuple[NodeId, ...]
    witnesses: tuple[NodeId, ...] = ()
    """Those of the voters that have no table."""


class CountedNodes(NamedTuple):
    """Facts about nodes that a plan goes by."""

    takers: Collection[NodeId]
    """Nodes that may have more replicas and are up."""
    leaving: Collection[NodeId]
    """Nodes that drain or have left."""
    is_up: Callable[[NodeId], bool]
    domains: Mapping[NodeId, str] = NO_DOMAINS


def plan_counts(
    channels: Iterable[HostedChannel],
    wanted: Mapping[ChannelId, int],
    nodes: CountedNodes,
    leader_of: Callable[[ChannelId], NodeId | None],
) -> list[CountChange]:
    """Return the orders to give now, so that channels come nearer to the voters that are wanted.

    Channels without a wanted number only count as load. Few orders are open at a time
    (``open_moves``), those of operators included. A channel for which no node is free, or which
    would lose the live majority of its voters, waits.
    """
    channels = tuple(channels)
    held: dict[NodeId, int] = dict.fromkeys(sorted(nodes.takers), 0)
    for each in channels:
        for node in each.hosts:
            held[node] = held.get(node, 0) + 1
    moves = open_moves(channels, len(nodes.takers))
    orders: list[CountChange] = []
    for each in channels:
        if moves.is_full:
            break
        count = wanted.get(each.channel, len(each.voters))
        if each.has_order or count == len(each.voters):
            continue
        if len(each.voters) < count:
            voters = _with_one_more(each, nodes, held)
        else:
            voters = _with_one_less(each, nodes, held, leader_of(each.channel))
        if voters is None:
            continue
        takes = set(voters).difference(each.voters)
        if moves.may_take(takes):
            moves.add(takes)
            held.update((node, held[node] + 1) for node in takes)
            held.update((node, held[node] - 1) for node in each.voters if node not in voters)
            witnesses = tuple(node for node in each.witnesses if node in voters)
            orders.append(CountChange(each.channel, voters, each.learners, witnesses))
    return orders


def _with_one_more(
    each: HostedChannel, nodes: CountedNodes, held: Mapping[NodeId, int]
) -> tuple[NodeId, ...] | None:
    """The voters with one in the failure domain that has the fewest of them, on the node with the
    fewest replicas; None: no node is free."""
    members = (*each.voters, *each.learners)
    free = [node for node in held if node in nodes.takers and node not in members]
    if not free:
        return None
    takes = min(free, key=lambda node: (doubled(node, each.voters, nodes.domains), held[node]))
    return (*each.voters, takes)


def _with_one_less(
    each: HostedChannel, nodes: CountedNodes, held: Mapping[NodeId, int], leader: NodeId | None
) -> tuple[NodeId, ...] | None:
    """The voters without the one that is placed worst, and not the leader while another one may go;
    None: the channel has no live majority to lose one from. A witness goes before any table does,
    and the last table never."""

    def rank(node: NodeId) -> tuple[bool, bool, bool, bool, int, int, int]:
        others = [other for other in each.voters if other != node]
        return (
            node not in nodes.leaving,
            node not in each.witnesses,
            node == leader,
            nodes.is_up(node),
            -doubled(node, others, nodes.domains),
            -held[node],
            -each.voters.index(node),
        )

    if not _has_majority(each.voters, nodes):
        return None
    for goes in sorted(each.voters, key=rank):
        rest = tuple(node for node in each.voters if node != goes)
        has_table = any(node not in each.witnesses for node in rest)
        if has_table and _has_majority(rest, nodes):
            return rest
    return None


def _has_majority(voters: Collection[NodeId], nodes: CountedNodes) -> bool:
    return 2 * sum(map(nodes.is_up, voters)) > len(voters)
