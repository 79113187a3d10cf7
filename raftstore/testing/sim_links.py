"""Peers of nodes in a world whose members change: nodes refuse those that they do not know.

A node dials those that its catalog names, and those that it believes without one; it takes what
comes from them, and refuses others with the judgement of real nodes (S0.1, M27). So two nodes talk
when each knows the other. Who is refused dials again, as long as it knows the one that refused it.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final

from raftstore.config import TransportSettings
from raftstore.transport.handshake import GoodbyeCode, Identity, Purpose, Refusal, judge_dialler
from raftstore.types import NodeId

if TYPE_CHECKING:
    from raftstore.testing.sim_clock import Scheduler
    from raftstore.testing.sim_node import SimNode

DIAL_MS: Final = (0.5, 20.0)
"""From the moment at which a node is known until a connection to it is open."""
GONE_MS: Final = (0.1, 5.0)
"""Until a peer sees that a connection has ended."""
Connect = Callable[["SimNode", int, "SimNode", int], None]


class SimLinks:
    """The peers that the network of each node was last given."""

    def __init__(
        self,
        nodes: Mapping[NodeId, SimNode],
        scheduler: Scheduler,
        seed: int,
        connect: Connect,
    ) -> None:
        """``connect(a, its life, b, its life)`` opens what both take, now."""
        self._nodes = nodes
        self._scheduler = scheduler
        # Of its own: dials of one world are not drawn from what decides its faults.
        self._rng = random.Random(f"dials {seed}")
        self._connect = connect
        self._known: dict[NodeId, dict[NodeId, str]] = {}
        self._dialling: dict[frozenset[NodeId], None] = {}
        """Pairs of which one dials again in a moment."""

    def booted(self, node: SimNode) -> None:
        """Its network knows these at first; the world has it meet all others. One that died in the
        midst of its start knows nobody."""
        if node.runner is not None:
            self._known[node.node] = node.runner.controller.reachable()

    def follow(self, node: SimNode) -> None:
        """The node looks whom it knows, as real ones do between two turns: new ones are dialled,
        and what others have with it ends."""
        assert node.runner is not None
        before, known = self._known[node.node], node.runner.controller.reachable()
        if known == before:
            return
        self._known[node.node] = known
        for peer in [peer for peer in known if peer not in before and peer != node.node]:
            self._dial_soon(node, peer, DIAL_MS)
        for peer in [peer for peer in before if peer not in known]:
            gone = self._nodes.get(peer)
            if gone is not None:
                after_ms = self._rng.uniform(*GONE_MS)
                self._scheduler.after(after_ms, self._lose, gone, gone.incarnation, node.node)

    def are_linked(self, a: NodeId, b: NodeId) -> bool:
        """Whether each knows the other."""
        known = self._known
        return b in known.get(a, ()) and a in known.get(b, ())

    def meet(self, a: SimNode, b: SimNode) -> bool:
        """Whether two nodes that are up take each other; who is refused dials again later."""
        refusals = [self._refusal(*pair) for pair in ((a, b), (b, a)) if self._dials(*pair)]
        if GoodbyeCode.RETIRED in [each.code for each in refusals if each is not None]:
            return False
        if self.are_linked(a.node, b.node):
            return True
        if refusals:
            settings = TransportSettings()
            pause_ms = settings.reconnect_min_ms, settings.reconnect_max_ms
            self._dial_soon(a, b.node, pause_ms)
        return False

    def _dials(self, node: SimNode, peer: SimNode) -> bool:
        return peer.node in self._known[node.node]

    def _refusal(self, dialler: SimNode, node: SimNode) -> Refusal | None:
        """Why a node does not take the one that dials it."""
        assert node.runner is not None
        assert dialler.runner is not None
        cluster_id = node.cluster.cluster_id
        hello = Identity(dialler.node, cluster_id, b"", dialler.name).hello(Purpose.PEER, node.node)
        me = Identity(node.node, cluster_id, b"", node.name)
        known, retired = self._known[node.node], node.runner.controller.catalog.retired
        refusal = judge_dialler(hello, me, known, retired, node.on_stranger)
        if refusal is not None and refusal.code == GoodbyeCode.RETIRED:
            dialler.retire(f"refused by {node.name}")
        return refusal

    def _dial_soon(self, node: SimNode, peer: NodeId, within_ms: tuple[float, float]) -> None:
        pair, other = frozenset((node.node, peer)), self._nodes.get(peer)
        if other is None or not (node.is_up and other.is_up) or pair in self._dialling:
            return
        self._dialling[pair] = None
        self._scheduler.after(self._rng.uniform(*within_ms), self._dial, pair, node, other)

    def _dial(self, pair: frozenset[NodeId], node: SimNode, other: SimNode) -> None:
        del self._dialling[pair]
        self._connect(node, node.incarnation, other, other.incarnation)

    def _lose(self, gone: SimNode, life: int, node: NodeId) -> None:
        """One that is known no more sees its connection end, and dials again."""
        if gone.incarnation == life and gone.is_up:
            gone.on_peer_lost(node, refused=False)
            self._dial_soon(gone, node, DIAL_MS)
