"""Nodes that joined while this one was away: its catalog does not name them yet (S0.1, S0.7).

A node refuses peers that it does not know. One that comes back knows none of those that joined
meanwhile; if one of them leads the metadata channel by now, the catalog that names it would have to
come from it, and never would. So while the metadata channel has no leader here, a peer that has the
id of this cluster is believed where it can be reached. It is no node that the catalog is made of:
this node never registers it, and forgets it when the catalog names it, as a node or as retired.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from raftstore.types import NodeId

STRANGERS_MAX: Final = 16
"""Nodes that are believed at a time: one that leads the metadata channel is among those that dial
this node."""


class Strangers:
    """Strangers that one node believes."""

    def __init__(self) -> None:
        self.endpoints: dict[NodeId, str] = {}
        """Where each can be reached, as it said."""

    def came(self, node: NodeId, endpoint: str) -> bool:
        """Such a node was refused; whether it is welcome from now on."""
        is_welcome = bool(endpoint) and len(self.endpoints) < STRANGERS_MAX
        if is_welcome:
            self.endpoints[node] = endpoint
        return is_welcome

    def forget(self, named: Collection[NodeId]) -> None:
        """The catalog names these."""
        for node in [node for node in self.endpoints if node in named]:
            del self.endpoints[node]
