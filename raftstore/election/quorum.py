"""The quorum rule of elections: a majority of each voter set in force (S1.3)."""

from __future__ import annotations

from collections.abc import Collection

from raftstore.types import ChannelConfig, NodeId


def has_quorum(config: ChannelConfig, votes: Collection[NodeId]) -> bool:
    """Whether distinct ``votes`` hold a majority of every voter set of ``config``.

    Learners and strangers among the votes never count. A configuration without voters has no
    quorum. While two sets are in force (joint), both must agree, so no election can be won by
    the old or the new members alone.
    """
    return bool(config.voter_sets) and all(
        2 * sum(voter in votes for voter in dict.fromkeys(voters)) > len(dict.fromkeys(voters))
        for voters in config.voter_sets  # S1.3: joint = both majorities
    )
