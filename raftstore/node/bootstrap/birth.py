"""Birth of a cluster (S0.7): decided once, by the lowest name, accepted durably by every member.

States of a founding member: *asking* (the proposer asks every other member who it is), *proposing*
(one proposal, durable at the proposer first), *born* (all accepted; the store belongs to the
cluster for ever). Members answer at any time, also after the birth: "I belong to a cluster already"
is an answer, and makes a proposer refuse. Nothing here does I/O; the node's runtime carries the
messages and repeats ``next_messages`` until the birth is complete.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final, Protocol

from raftstore.errors import BirthRefusedError
from raftstore.protocol.bootstrap import (
    BirthAccepted,
    BirthComplete,
    BirthInfo,
    BirthMessage,
    BirthProposal,
    BirthQuery,
)
from raftstore.storage.identity import TWO_FOUNDINGS_REMEDY
from raftstore.types import NodeId, node_name

Members = tuple[tuple[NodeId, str], ...]

CLUSTER_ID_BYTES: Final = 16
"""A random UUID: the table UUID of the metadata channel (S0.8)."""


class FoundedStore(Protocol):
    """A store, as far as it says to which cluster it belongs."""

    @property
    def node(self) -> NodeId:
        """This node's id."""

    @property
    def cluster_id(self) -> bytes:
        """The cluster of this store; b"" before birth."""

    @property
    def accepted_proposal(self) -> bytes:
        """Cluster id of the only founding ever accepted; b"" if none."""


class BirthStore(FoundedStore, Protocol):
    """The durable side; every ``record_…`` is fsynced when it returns."""

    @property
    def members(self) -> Members:
        """Members of that proposal."""

    def record_proposal(self, cluster_id: bytes, members: Members) -> None:
        """Accept a proposal; StoreIdentityError if another one was accepted before."""

    def record_birth(self, cluster_id: bytes, members: Members) -> None:
        """The store belongs to the cluster from now on."""


@dataclass(slots=True)
class Birth:
    """One node's part in the founding of its cluster."""

    store: BirthStore
    advertise: str
    founders: tuple[tuple[str, str], ...]
    """(name, host:port) of every founding member, as configured."""
    new_cluster_id: bytes
    """16 random bytes for the proposal, should this node be the proposer."""
    _infos: dict[str, BirthInfo] = field(default_factory=dict)
    _accepted: dict[NodeId, None] = field(default_factory=dict)

    @property
    def is_born(self) -> bool:
        """The store belongs to a cluster."""
        return bool(self.store.cluster_id)

    @property
    def is_proposer(self) -> bool:
        """The lowest name proposes; a node that was given no founders founds nothing."""
        names = [name for name, _ in self.founders]
        return bool(names) and node_name(self.store.node) == min(names)

    def next_messages(self) -> list[tuple[str, BirthMessage]]:
        """Messages to send now, as (founder name, message); call it again until born.

        A proposer also repeats BirthComplete for members that may not have received it, as long as
        the runtime asks. A member that is not born asks the others: it may have missed that,
        however long ago, or be the empty replacement of one that was (see ``_on_info``).
        """
        me = node_name(self.store.node)
        others = [name for name, _ in self.founders if name != me]
        if not self.is_proposer:
            return [] if self.is_born else [(name, BirthQuery(me)) for name in others]
        if self.is_born:
            return [(name, BirthComplete(self.store.cluster_id)) for name in others]
        if self.store.accepted_proposal:
            proposal = BirthProposal(self.store.accepted_proposal, self.store.members)
            return [(name, proposal) for name in others if not self._has_accepted(name)]
        return [(name, BirthQuery(me)) for name in others if name not in self._infos]

    def on_message(self, message: BirthMessage) -> BirthMessage | None:
        """Take a message of another founder; return the answer, if there is one.

        Raises BirthRefusedError when the founding is impossible and an operator must look.
        """
        match message:
            case BirthQuery():
                return self._info()
            case BirthInfo():
                self._on_info(message)
            case BirthProposal(cluster_id, members):
                return self._on_proposal(cluster_id, members)
            case BirthAccepted(cluster_id, node):
                if cluster_id == self.store.accepted_proposal:
                    self._accepted[node] = None
                    self._complete_if_all_accepted()
            case BirthComplete(cluster_id):
                if cluster_id == self.store.accepted_proposal and not self.is_born:
                    self.store.record_birth(cluster_id, self.store.members)
        return None

    def propose_if_ready(self) -> None:
        """The proposer knows every member and none belongs to a cluster: one proposal, durable."""
        if not self.is_proposer or self.is_born or self.store.accepted_proposal:
            self._complete_if_all_accepted()
            return
        infos = [self._info_of(name) for name, _ in self.founders]
        known = [info for info in infos if info is not None]
        if len(known) < len(infos):
            return
        members = tuple((info.node, info.advertise) for info in known)
        self.store.record_proposal(self.new_cluster_id, members)
        self._complete_if_all_accepted()

    def _complete_if_all_accepted(self) -> None:
        if not self.is_proposer or self.is_born or not self.store.accepted_proposal:
            return
        others = [node for node, _ in self.store.members if node != self.store.node]
        if all(node in self._accepted for node in others):
            self.store.record_birth(self.store.accepted_proposal, self.store.members)

    def _on_info(self, info: BirthInfo) -> None:
        name, me = node_name(info.node), node_name(self.store.node)
        if name not in dict(self.founders):
            raise BirthRefusedError(
                f"the node at {info.advertise} calls itself {name!r}, which --initial-cluster does "
                f"not name ({', '.join(founder for founder, _ in self.founders)}); correct it"
            )
        # S0.1: nobody is born before all have accepted, so who has not, and meets a member that is
        # born, has lost its store. A proposal may still be on its way to any but the proposer.
        foreign = info.cluster_id or (info.accepted_proposal if self.is_proposer else b"")
        if foreign and foreign != self.store.accepted_proposal:
            raise BirthRefusedError(
                f"node {name} at {info.advertise} already belongs to cluster {foreign.hex()}, "
                "which takes a new store in by a token alone: leave its directories as they are. "
                "If this node was its member and its store is lost, `raftstore cluster replace "
                f"{me}` prints one, and `raftstore node --id {me} --join TOKEN` in the place of "
                "--initial-cluster takes the place of the lost store; if it is to found another "
                "cluster, correct --initial-cluster, which names members of that one"
            )
        self._infos[name] = info
        # Somebody is born by the proposal accepted here: so all had accepted it.
        if info.cluster_id and not self.is_born:
            self.store.record_birth(info.cluster_id, self.store.members)

    def _on_proposal(self, cluster_id: bytes, members: Members) -> BirthMessage | None:
        if len(cluster_id) != CLUSTER_ID_BYTES or not any(cluster_id):
            raise BirthRefusedError(
                f"the proposal has {cluster_id.hex()!r}, which is no cluster id of "
                f"{CLUSTER_ID_BYTES} bytes; the proposer is broken"
            )
        named = sorted(node_name(node) for node, _ in members)
        if named != sorted(name for name, _ in self.founders):
            raise BirthRefusedError(
                f"the proposed members {', '.join(named)} are not those of --initial-cluster here "
                f"({', '.join(sorted(name for name, _ in self.founders))}); use one list everywhere"
            )
        if self.store.node not in (node for node, _ in members):
            raise BirthRefusedError(
                f"the proposal names another store for {node_name(self.store.node)}; "
                "was this data directory replaced while the cluster was being founded?"
            )
        accepted = self.store.accepted_proposal
        # S0.7: at most one proposal, ever.
        if accepted and (accepted, self.store.members) != (cluster_id, members):
            raise BirthRefusedError(
                f"{node_name(self.store.node)} already accepted the founding of cluster "
                f"{accepted.hex()} and cannot accept {cluster_id.hex()}: {TWO_FOUNDINGS_REMEDY}"
            )
        self.store.record_proposal(cluster_id, members)
        return BirthAccepted(cluster_id, self.store.node)

    def _info(self) -> BirthInfo:
        store = self.store
        return BirthInfo(store.node, self.advertise, store.cluster_id, store.accepted_proposal)

    def _info_of(self, name: str) -> BirthInfo | None:
        return self._info() if name == node_name(self.store.node) else self._infos.get(name)

    def _has_accepted(self, name: str) -> bool:
        return any(node_name(node) == name for node in self._accepted)
