"""The members that the metadata channel is to have (M30): every node, three or five as voters.

The log of that channel is the catalog, so there is no order to wait for: nodes that joined and left
in it are the order. A cluster whose nodes are its founders keeps the members that it began with.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Final

from raftstore.policy.placement import NO_DOMAINS, doubled
from raftstore.types import ChangeTarget, ChannelConfig, NodeId, ReplicaNumber, Seq

VOTERS_MAX: Final = 5
VOTERS_OF_FEW: Final = 3
"""With fewer nodes than ``VOTERS_MAX``: four voters bear the loss of no more of them than three."""


def metadata_target(
    config: ChannelConfig,
    nodes: Sequence[NodeId],
    numbers: Mapping[NodeId, Seq],
    leaving: Collection[NodeId],
    is_up: Callable[[NodeId], bool],
    version: Seq,
    *,
    hosts: Callable[[], Collection[NodeId]] = tuple,
    domains: Mapping[NodeId, str] = NO_DOMAINS,
) -> ChangeTarget | None:
    """Return what the leader is to work towards; None: the members are as they are to be.

    ``nodes``: all that are registered; ``numbers``: of those that joined; ``leaving``: those that
    drain or were retired. A voter that is away stays one: nobody knows whether it comes back.
    ``version``: the seq up to which the catalog is applied, which numbers a change that begins; one
    that is under way keeps its number, whatever has joined or left since. ``domains``: who comes
    or goes is chosen by the failure domains of the other voters; nobody is exchanged for them.
    """
    present = config.voter_sets[-1]
    is_founding = config.change == 0 and not numbers
    if is_founding and not any(node in leaving for node in present):
        return None
    voters = _voters(present, nodes, leaving, is_up, hosts, domains)
    learners = tuple(node for node in nodes if node not in voters)
    is_joint = len(config.voter_sets) > 1
    is_same = set(voters) == set(present) and set(learners) == set(config.learners)
    if is_same and not is_joint and (config.ended or config.change == 0):
        return None
    is_under_way = bool(config.change) and not config.ended
    return ChangeTarget(
        config.change if is_under_way else max(version, config.change + 1),
        voters,
        learners,
        {node: ReplicaNumber(numbers[node]) for node in (*voters, *learners) if node in numbers},
    )


def _voters(
    present: Sequence[NodeId],
    nodes: Sequence[NodeId],
    leaving: Collection[NodeId],
    is_up: Callable[[NodeId], bool],
    hosts: Callable[[], Collection[NodeId]],
    domains: Mapping[NodeId, str],
) -> tuple[NodeId, ...]:
    """Return the voters of the next change: at most one comes, and at most one goes (M8)."""
    staying = [node for node in present if node not in leaving]
    going = [node for node in present if node in leaving]
    others = [node for node in nodes if node not in present and node not in leaving]
    there = len(staying) + len(others)
    wanted = VOTERS_MAX if there >= VOTERS_MAX else min(there, VOTERS_OF_FEW)
    coming: list[NodeId] = []
    if len(staying) < wanted:
        able = [node for node in others if is_up(node)]
        coming = sorted(able, key=lambda node: doubled(node, staying, domains))[:1]
    if len(staying) > wanted and not going:
        # One that is away first: the others lose nothing by it. The preferred leader last.
        going = sorted(
            staying[1:], key=lambda node: (is_up(node), -doubled(node, staying, domains))
        )
    if going and len(staying) < wanted and not coming:
        going = []  # nobody is there to take its place
    if going and not coming and len(present) <= VOTERS_OF_FEW:
        busy = hosts()
        going = [node for node in going if node not in busy]
    leaves = going[:1]
    after = (*(node for node in present if node not in leaves), *coming)
    return after or tuple(present)  # the last one keeps the catalog wherever it goes
