"""Arithmetic of majorities, also of joint configurations; nothing else (S1.3, S3.1, S3.2)."""

from __future__ import annotations

from collections.abc import Container, Mapping

from raftstore.types import ChannelConfig, NodeId, Seq


def majority(size: int) -> int:
    """Smallest number of members that is more than half of ``size``."""
    assert size >= 0
    return size // 2 + 1


def has_quorum(config: ChannelConfig, confirmed: Container[NodeId]) -> bool:
    """Tell whether ``confirmed`` holds a majority of every voter set (both when joint).

    Learners and strangers in ``confirmed`` do not count (S3.6); a configuration without voters
    has no quorum at all.
    """
    if not config.voter_sets:
        return False
    return all(
        sum(node in confirmed for node in group) >= majority(len(group))
        for group in config.voter_sets
    )


def quorum_seq(config: ChannelConfig, match: Mapping[NodeId, Seq]) -> Seq:
    """Highest seq that a majority of every voter set holds; 0 when there is none.

    ``match`` has one number per member id (S3.2: distinct members, never a count of acks); who is
    missing in it holds nothing.
    """
    # S3.6: only the voters of the configuration are looked up; anybody else is not counted.
    best: int | None = None
    for group in config.voter_sets:
        seqs = sorted((match.get(node, 0) for node in group), reverse=True)
        held = seqs[majority(len(group)) - 1] if seqs else 0
        best = held if best is None else min(best, held)
    return Seq(best or 0)
