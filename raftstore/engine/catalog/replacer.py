"""Replicas of a node that is gone are made anew on others (``replica.replace_after_ms``).

The leader of the metadata channel counts for how long it has seen a node down, from when it began
to lead; once that is long enough, it begins a rebalance that moves only what that node holds. A
rebalance that is open goes first. When the node comes back, what has not begun is not begun.
"""

from __future__ import annotations

from collections.abc import Callable

from raftstore.engine.catalog.evacuator import leaving_nodes
from raftstore.engine.catalog.table_commands import CatalogView
from raftstore.engine.node_ports import Tell
from raftstore.policy.rebalance import ClusterNodes, PlacedChannel, plan_replacement
from raftstore.ports.ids import IdSource
from raftstore.protocol.publish import PubAck, PubReject
from raftstore.protocol.rebalance import WantedMove
from raftstore.state_machines.catalog import Catalog
from raftstore.state_machines.catalog_entries import MEMBERS_FORMAT
from raftstore.state_machines.catalog_rebalance import (
    MOVES_MAX,
    BeginRebalance,
    rebalance_command,
)
from raftstore.types import NodeId, node_name


class Replacer:
    """Nodes that are gone, as one node sees them while it leads the metadata channel."""

    def __init__(
        self,
        view: CatalogView,
        ids: IdSource,
        is_up: Callable[[NodeId], bool],
        after_ms: int,
        tell: Tell,
    ) -> None:
        """``after_ms``: a node that is down for so long is replaced; 0: none is."""
        self._view = view
        self._ids = ids
        self._is_up = is_up
        self._after_ms = after_ms
        self._tell = tell
        self._down_since_ms: dict[NodeId, int] = {}
        self._is_proposing = False

    def forget(self) -> None:
        """The leader changed: the next one counts anew."""
        self._down_since_ms.clear()
        self._is_proposing = False

    def look(self, now_ms: int) -> None:
        """Begin what is due. The caller leads the metadata channel, and is ready."""
        if not self._after_ms:
            return
        catalog = self._view.catalog
        nodes = [entry.node for entry in catalog.nodes.values()]
        down = [node for node in nodes if not self._is_up(node)]
        self._down_since_ms = {n: self._down_since_ms.get(n, now_ms) for n in down}
        if self._is_proposing or catalog.rebalance.open is not None:
            return
        if self._view.refusal_of_format(MEMBERS_FORMAT) is not None:
            return
        # Where half of the nodes are gone something else is wrong, and copies would make it worse.
        if 2 * len(down) >= len(nodes):
            return
        busy = {*leaving_nodes(catalog), *catalog.rebalance.tags}
        for node, since_ms in self._down_since_ms.items():
            if node in busy or now_ms - since_ms < self._after_ms:
                continue
            moves = self._moves(catalog, node)
            if moves:
                self._begin(node, moves, now_ms - since_ms, now_ms)
                return

    def _moves(self, catalog: Catalog, gone: NodeId) -> tuple[WantedMove, ...]:
        takers = [node for node in catalog.placeable() if self._is_up(node)]
        busy = leaving_nodes(catalog)
        plan = plan_replacement(
            placed_channels(catalog, busy), ClusterNodes(takers, (gone,), domains_of(catalog))
        )
        moves = plan.moves[:MOVES_MAX]
        return tuple(wanted(move.before, move.after) for move in moves)

    def _begin(
        self, node: NodeId, moves: tuple[WantedMove, ...], down_ms: int, now_ms: int
    ) -> None:
        reason = f"{node_name(node)} is down for {down_ms // 1000} s"
        self._is_proposing = True

        def done(answer: PubAck | PubReject, at_ms: int) -> None:
            self._is_proposing = False
            self._view.on_catalog_applied(at_ms)
            if not isinstance(answer, PubReject) and not answer.conflict:
                self._tell("rebalance_started", reason=reason, moves=len(moves))

        command = BeginRebalance(self._ids.uuid(), reason, moves, replaces=node)
        view = self._view
        view.proposals.propose(view.metadata, rebalance_command(command), done, now_ms)


def wanted(before: PlacedChannel, after: PlacedChannel) -> WantedMove:
    """A move of a plan, as the catalog keeps it."""
    return WantedMove(
        before.channel,
        after.voters,
        after.learners,
        before.voters,
        before.learners,
        before.table_bytes,
    )


def placed_channels(catalog: Catalog, busy: dict[NodeId, NodeId | None]) -> list[PlacedChannel]:
    """Every channel with its replicas; those are left alone of which nodes drain, for they are
    moved already (``evacuator``)."""
    placed: list[PlacedChannel] = []
    for channel in catalog.channels():
        entry = catalog.entry_of(channel)
        if entry is not None:
            config = entry.config
            may_move = entry.order is None and not busy.keys() & set(config.members)
            # A plan knows no roles: a witness must not become a voter with rows, nor one a witness.
            may_move = may_move and not any(map(config.is_witness, config.voters))
            placed.append(PlacedChannel(channel, config.voters, config.learners, may_move=may_move))
    return placed


def domains_of(catalog: Catalog) -> dict[NodeId, str]:
    """The failure domain of each node that has one."""
    return catalog.domains()
