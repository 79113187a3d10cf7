"""What coordinators of micro-batches need of their node."""

from __future__ import annotations

from typing import Protocol

from raftstore.engine.channel.proposals import Proposals
from raftstore.engine.channel.runner import ChannelRunner
from raftstore.errors import Refusal
from raftstore.ports.tables import TableStore
from raftstore.protocol.batches import BatchMessage
from raftstore.protocol.message import Message
from raftstore.state_machines.catalog import Catalog
from raftstore.types import ChannelId, NodeId, RecordKind, Term


class CoordinatorHost(Protocol):
    """What coordinators need of their node."""

    me: NodeId
    channels: dict[ChannelId, ChannelRunner]
    tables: TableStore

    @property
    def proposals(self) -> Proposals:
        """Records that this node makes as a leader."""

    @property
    def catalog(self) -> Catalog:
        """This node's copy of the catalog."""

    def refusal_of(self, kind: RecordKind) -> Refusal | None:
        """Why records of this kind must not be written yet (levels)."""

    def leader_of(self, channel: ChannelId) -> tuple[NodeId | None, Term]:
        """Who leads a channel, as far as this node knows."""

    def serving_refusal(self, runner: ChannelRunner) -> Refusal | None:
        """Why a channel serves nothing here now."""

    def answer(self, client: int, message: Message) -> None:
        """Answer a client."""

    def deliver(self, to: NodeId, message: BatchMessage) -> None:
        """Send to a node, this one included, once what it tells is durable here (S0.5)."""
