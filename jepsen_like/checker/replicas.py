"""Replicas: after healing, every replica of a channel holds the same rows."""

from __future__ import annotations

from jepsen_like.checker.verdict import Validity, Verdict
from jepsen_like.workload.base import Run


def check_replicas(run: Run) -> Verdict:
    """INVALID when replicas of one channel differ; UNDECIDED when no hash was collected."""
    hashes = run.replica_hashes
    differing = [channel for channel in sorted(hashes) if len(set(hashes[channel].values())) > 1]
    figures = {"channels": len(hashes), "differing": len(differing)}
    if differing:
        table, partition = differing[0]
        nodes = ", ".join(f"{n}={h}" for n, h in sorted(hashes[differing[0]].items()))
        text = f"replicas of {table}/{partition} differ: {nodes}"
        return Verdict("replicas", Validity.INVALID, text, figures=figures)
    if not hashes or any(not nodes for nodes in hashes.values()):
        text = "some channel, or all, has no replica hash to compare"
        return Verdict("replicas", Validity.UNDECIDED, text, figures=figures)
    text = f"the replicas of {len(hashes)} channels are equal"
    return Verdict("replicas", Validity.VALID, text, figures=figures)
