"""Nodes: none ended but by a fault that was fired, and none served on a store not its own."""

from __future__ import annotations

from jepsen_like.checker.verdict import Validity, Verdict
from jepsen_like.target.processes.deaths import NodeWatch

NAME = "nodes"


def check_nodes(watch: NodeWatch) -> Verdict:
    """INVALID for a node that ended by itself, or took a store that it must refuse (S0.1)."""
    alone = [death for death in watch.deaths if death.cause is None]
    figures = {"ended": len(watch.deaths), "unexplained": len(alone)}
    if watch.trespasses:
        text = f"{watch.trespasses[0]} (S0.1)"
        return Verdict(NAME, Validity.INVALID, text, figures=figures)
    if alone:
        text = f"no fault explains {len(alone)} ends of a node: {alone[0].text}"
        return Verdict(NAME, Validity.INVALID, text, figures=figures)
    text = f"{len(watch.deaths)} processes ended, each by a fault that was fired"
    return Verdict(NAME, Validity.VALID, text, figures=figures)
