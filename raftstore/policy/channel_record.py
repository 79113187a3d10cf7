"""Leader and in-sync replicas of a channel, and of which epochs that is (FIP-06, version 2).

Nothing is stored in this form: the term and the configurations are in the channel's own log, and
the rest is what its leader knows of the others. So there is no write of it that could be late; the
epochs say of which term, configuration and coordinator a view is (docs/protocol.md).
"""

from __future__ import annotations

from typing import Final, NamedTuple

import msgspec

from raftstore.types import NodeId, Seq, Term, node_name

VERSION: Final = 2


class RecordBody(msgspec.Struct, frozen=True, gc=False):
    """Leader and in-sync replicas of a partition, with the epochs of that (FIP-06)."""

    version: int
    leader: str
    leader_epoch: int
    """The term that it leads in."""
    replicas: list[str]
    isr: list[str]
    """Replicas whose logs keep up with the leader's, itself included."""
    hot_standby_replicas: list[str]
    """Those that keep the table up to date without leading."""
    iss: list[str]
    """Standbys in sync: those that have applied nearly everything, too."""
    coordinator_epoch: int
    """The term of the metadata channel."""
    bucket_epoch: int
    """Where the committed configuration stands in the channel's log; 0: the creation's."""


class ChannelRecord(NamedTuple):
    """One channel as its leader, or a node that its leader reports to, knows it."""

    leader: NodeId
    leader_epoch: Term
    """The term that it leads in."""
    replicas: tuple[NodeId, ...]
    isr: tuple[NodeId, ...]
    """Replicas whose logs keep up with the leader's, itself included."""
    hot_standby_replicas: tuple[NodeId, ...]
    """Those that keep the table up to date without leading."""
    iss: tuple[NodeId, ...]
    """Those of them that are in ``isr`` and have applied nearly everything."""
    coordinator_epoch: Term
    """Of the leader of the metadata channel."""
    bucket_epoch: Seq
    """Where the committed configuration stands in the channel's log; 0: it is the creation's."""

    def checked(self) -> ChannelRecord:
        """The same. FIP-07: the leader is no standby of itself, standbys in sync are hot standbys
        and in sync, and all are replicas."""
        standbys, isr = set(self.hot_standby_replicas), set(self.isr)
        assert self.leader not in standbys, f"{self.leader} is its own standby (FIP-07)"
        assert set(self.iss) <= standbys & isr, f"{self.iss} of {standbys} and {isr} (FIP-05)"
        assert standbys | isr <= {*self.replicas}, f"{standbys | isr} of {self.replicas} (FIP-06)"
        return self

    def shown(self) -> RecordBody:
        """As JSON has it, with the names of the nodes."""
        return RecordBody(
            version=VERSION,
            leader=node_name(self.leader),
            leader_epoch=self.leader_epoch,
            replicas=_names(self.replicas),
            isr=_names(self.isr),
            hot_standby_replicas=_names(self.hot_standby_replicas),
            iss=_names(self.iss),
            coordinator_epoch=self.coordinator_epoch,
            bucket_epoch=self.bucket_epoch,
        )


def record_of(
    *,
    leader: NodeId,
    leader_epoch: Term,
    replicas: tuple[NodeId, ...],
    in_sync: tuple[NodeId, ...],
    hot_standbys: tuple[NodeId, ...],
    standbys_in_sync: tuple[NodeId, ...],
    coordinator_epoch: Term,
    bucket_epoch: Seq,
) -> ChannelRecord:
    """The record of what is known: ``in_sync`` and ``standbys_in_sync`` may be of another moment
    than the replicas, so what does not fit is left out."""
    standbys = tuple(node for node in hot_standbys if node != leader and node in replicas)
    followers = tuple(node for node in in_sync if node != leader and node in replicas)
    return ChannelRecord(
        leader=leader,
        leader_epoch=leader_epoch,
        replicas=replicas,
        isr=(leader, *followers) if leader in replicas else followers,
        hot_standby_replicas=standbys,
        iss=tuple(node for node in standbys_in_sync if node in standbys and node in followers),
        coordinator_epoch=coordinator_epoch,
        bucket_epoch=bucket_epoch,
    ).checked()


def _names(nodes: tuple[NodeId, ...]) -> list[str]:
    return [node_name(node) for node in nodes]
