"""Arithmetic of majorities, also of joint configurations; nothing else (S1.3, S3.1, S3.2).

Elections, commits and reads all count by this one rule.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping

from raftstore.types import ChannelConfig, NodeId, ReplicaId, Seq, without_repetition


def majority(size: int) -> int:
    """Smallest number of members that is more than half of ``size``."""
    assert size >= 0, f"{size} members"
    return size // 2 + 1


def has_quorum(config: ChannelConfig, confirmed: Collection[NodeId]) -> bool:
    """Whether distinct ``confirmed`` nodes hold a majority of every voter set of ``config``.

    Learners and strangers among them do not count (S3.6). A configuration without voters has no
    quorum. While two sets are in force (joint), both must agree, so that neither the old nor the
    new members can decide alone (S1.3).
    """
    return bool(config.voter_sets) and all(
        sum([voter in confirmed for voter in voters]) >= majority(len(voters))
        for voters in _distinct(config)
    )


def counted(config: ChannelConfig, replicas: Iterable[ReplicaId]) -> set[NodeId]:
    """The nodes of those replicas that have the number by which ``config`` names them (M4).

    Another life of a node's replica is not counted, whatever it says, this node's own included.
    """
    return {node for node, number in replicas if config.number_of(node) == number}


def quorum_seq(config: ChannelConfig, match: Mapping[NodeId, Seq]) -> Seq:
    """Highest seq that a majority of every voter set holds; 0 when there is none.

    ``match`` has one number per member id (S3.2: distinct members, never a count of acks); who is
    missing in it holds nothing.
    """
    # S3.6: only the voters of the configuration are looked up; anybody else is not counted.
    best: int | None = None
    for group in _distinct(config):
        seqs = sorted([match.get(node, 0) for node in group], reverse=True)
        held = seqs[majority(len(seqs)) - 1] if seqs else 0
        best = held if best is None else min(best, held)
    return Seq(best or 0)


def rows_seq(config: ChannelConfig, match: Mapping[NodeId, Seq]) -> Seq:
    """Highest seq that as many voters with rows hold as make a majority, of every voter set; 0 when
    there is none. Up to there the witnesses' copies are no longer needed (W6)."""
    best: int | None = None
    for group in _distinct(config):
        having = [node for node in group if not config.is_witness(node)]
        seqs = sorted([match.get(node, 0) for node in having], reverse=True)
        needed = majority(len(group))
        held = seqs[needed - 1] if needed <= len(seqs) else 0
        best = held if best is None else min(best, held)
    return Seq(best or 0)


def is_only_witness(configs: Iterable[ChannelConfig], node: NodeId) -> bool:
    """Whether this voter is the only witness in each configuration, none of which is joint. What it
    never held was committed by voters with rows alone then, so many as make a majority (W6)."""
    return all(
        not config.is_joint
        and [each for each in config.voters if config.is_witness(each)] == [node]
        for config in configs
    )


def quorum_ms(config: ChannelConfig, clocks: Mapping[NodeId, int]) -> int:
    """Latest time that the clocks of a majority of every voter set have reached; 0: there is none.

    ``clocks`` has a wall clock by member id; one that is missing or 0 is not known.
    """
    return quorum_seq(config, {node: Seq(ms) for node, ms in clocks.items()})


def _distinct(config: ChannelConfig) -> Iterator[tuple[NodeId, ...]]:
    """The voter sets; a voter listed twice counts once."""
    return map(without_repetition, config.voter_sets)
