"""Nodes that joined while this one was away: its catalog does not name them yet (S0.1, S0.7).

A node refuses peers that it does not know. One that comes back knows none of those that joined
meanwhile; if one of them leads the metadata channel by now, the catalog that names it would have to
come from it, and never would. So while the metadata channel has no leader here, a peer that has the
id of this cluster is believed where it can be reached. It is no node that the catalog is made of:
this node never registers it, and forgets it when the catalog names it, as a node or as retired.

Anybody who knows the id of the cluster can say that it is such a node, so there are few places, and
none is kept for ever: who dials gets the place of the one that dialled longest ago.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Final

from raftstore.types import NodeId

STRANGERS_MAX: Final = 16
"""Nodes that are believed at a time: one that leads the metadata channel is among those that dial
this node."""
KEPT_MS: Final = 5_000
"""So long one that is connected keeps its place for certain: longer than a leader takes to say that
it leads, and an election to end. Then there is a leader here, and nobody else is believed."""


class Strangers:
    """Strangers that one node believes."""

    def __init__(
        self, is_up: Callable[[NodeId], bool], on_ended: Callable[[NodeId, int], None]
    ) -> None:
        """``is_up``: whether a node is connected; ``on_ended(node, now_ms)`` is called with every
        one that lost its place to another."""
        self._is_up = is_up
        self._on_ended = on_ended
        self.endpoints: dict[NodeId, str] = {}
        """Where each can be reached, as it said; who dialled longest ago comes first."""
        self._since_ms: dict[NodeId, int] = {}
        """When each got its place."""

    def came(self, node: NodeId, endpoint: str, now_ms: int) -> bool:
        """Such a node was refused; whether it is welcome from now on."""
        if not endpoint or not self._has_place(node, now_ms):
            return False
        self.endpoints[node] = endpoint
        self._since_ms.setdefault(node, now_ms)
        self.renew(node)
        return True

    def renew(self, node: NodeId) -> None:
        """One that is believed has dialled, or was connected."""
        self.endpoints[node] = self.endpoints.pop(node)

    def forget(self, named: Collection[NodeId]) -> None:
        """The catalog names these."""
        for node in [node for node in self.endpoints if node in named]:
            self._end(node)

    def _has_place(self, node: NodeId, now_ms: int) -> bool:
        if node in self.endpoints or len(self.endpoints) < STRANGERS_MAX:
            return True
        for other in self.endpoints:
            if now_ms - self._since_ms[other] >= KEPT_MS or not self._is_up(other):
                self._end(other)
                self._on_ended(other, now_ms)
                return True
        return False

    def _end(self, node: NodeId) -> None:
        del self.endpoints[node], self._since_ms[node]
