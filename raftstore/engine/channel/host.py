"""What one channel needs of the node it runs on."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from raftstore.config import ElectionSettings, ReadSettings, ReplicationSettings
from raftstore.core.pending import PayloadRoom
from raftstore.engine.channel.outbox import Outbox
from raftstore.engine.channel.storage_guard import StorageGuard
from raftstore.ports.ids import IdSource
from raftstore.ports.log import MessageLog
from raftstore.ports.tables import Answers, TableStore
from raftstore.protocol.publish import PubAck, PubMsg, PubReject
from raftstore.types import NodeId, Role, Seq, Term

if TYPE_CHECKING:
    from raftstore.engine.channel.runner import ChannelRunner


class ChannelHost(Protocol):
    """What a channel runner needs of its node."""

    me: NodeId
    boot_id: bytes
    log: MessageLog
    tables: TableStore
    outbox: Outbox
    guard: StorageGuard
    ids: IdSource
    replication: ReplicationSettings
    election: ElectionSettings
    read: ReadSettings

    @property
    def writes(self) -> PayloadRoom:
        """What clients may have held, in all channels of the node."""

    def reply(self, client: int, message: PubAck | PubReject) -> None:
        """Answer a publisher."""

    def leader_changed(self, runner: ChannelRunner, old: tuple[Term, Role, NodeId | None]) -> None:
        """Role, term or leader of the channel changed (already visible in the elector)."""

    def heard_leader(self, runner: ChannelRunner, leader: NodeId) -> int | None:
        """When the leader's node was last heard claiming this channel (None: never, or gone)."""

    def is_up(self, node: NodeId) -> bool:
        """Up from this node's viewpoint."""

    def hand_over_failed(self, runner: ChannelRunner, reason: str, *, was_asked: bool) -> None:
        """The leadership stays here, for good if nobody was asked to take it over."""

    def read_ready(self, token: int, read_seq: Seq) -> None:
        """A linearizable read was confirmed."""

    def read_refused(self, token: int, code: str, message: str) -> None:
        """A linearizable read cannot be confirmed here."""

    def freshness_proven(self, runner: ChannelRunner) -> None:
        """How far the channel is committed became known anew."""

    def applied(self, runner: ChannelRunner, answers: Answers) -> None:
        """The channel's applied seq moved, and its machine answered some of the records."""

    def stage_refusal(self, runner: ChannelRunner, message: PubMsg) -> tuple[str, str] | None:
        """Why the leader takes no such chunk of a micro-batch now."""

    def wall_ms(self) -> int:
        """Wall clock, for record timestamps."""

    def touched(self, runner: ChannelRunner) -> None:
        """Something happened to the channel: its next deadline may be another."""

    def log_used(self, runner: ChannelRunner) -> None:
        """The channel has operations in the log that are not durable yet."""

    def event(self, name: str, **fields: object) -> None:
        """One structured log line."""

    def halt(self, reason: str) -> None:
        """Stop the node (exit code 70)."""
