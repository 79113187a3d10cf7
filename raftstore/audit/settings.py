"""Settings of the audit of a node's own answers; part of ``raftstore.config.NodeSettings``."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class AuditSettings:
    """Judging what this node answers to real reads, of few keys, against each other."""

    keys_per_million: int = 1_000
    """So many of a million keys are watched, by a hash; others after a while. 0: none, and nothing
    is judged; 1000000: all, which costs a read of a key about 10 us of the main loop."""
    keys_max: int = 1_024
    """Keys of which answers are remembered, up to 8 KiB each; those beyond are counted as left
    out."""
    rotate_ms: int = 600_000
    """After so long other keys are watched."""
