"""The bounds that hold for a read: one rule for replicas, explanations and readiness. Pure."""

from __future__ import annotations

from typing import Final

from raftstore.protocol.reads import Bounds

UNBOUNDED: Final = Bounds()


def effective_bounds(request: Bounds, table: Bounds, node: Bounds) -> Bounds:
    """Request before table before node (BLOG-20)."""
    if request != UNBOUNDED:
        return request
    return table if table != UNBOUNDED else node
