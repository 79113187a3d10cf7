"""The parts of a node that its channels work with, and those that are notified of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Generic, TypeVar

from raftstore.config import NodeSettings
from raftstore.core.effects import ConfigCommitted, PayloadEffect
from raftstore.core.events import Event
from raftstore.core.pending import PayloadRoom
from raftstore.engine.channel.active_channels import ActiveChannels
from raftstore.engine.channel.catch_ups import CatchUps
from raftstore.engine.channel.outbox import Outbox
from raftstore.engine.channel.storage_guard import StorageGuard
from raftstore.engine.clock import Clock
from raftstore.engine.node_ports import Tell
from raftstore.errors import Refusal
from raftstore.ports.election import ElectorFactory
from raftstore.ports.ids import IdSource
from raftstore.ports.log import MessageLog
from raftstore.ports.tables import Answers, TableStore
from raftstore.protocol.publish import PubAck, PubMsg, PubReject
from raftstore.types import ChannelConfig, NodeId, Role, Seq, Term

Channel = TypeVar("Channel")
"""The channels of the node (``ChannelRunner``), which know their parts, and not the other way."""

RoleBefore = tuple[Term, Role, NodeId | None]
"""Term, role and leader of a channel before they changed; the elector has the present ones."""


@dataclass(slots=True)
class ChannelNotices(Generic[Channel]):
    """The parts of a node that are notified of what happens to its channels, in this order each.

    They know the channels and not the other way round: the node fills this in when it is put
    together (``NodeRunner``).
    """

    opened: tuple[Callable[[Channel, int], None], ...] = ()
    """A channel was opened (now_ms)."""
    closed: tuple[Callable[[Channel], None], ...] = ()
    """A channel is closed, by a drop of its table or to be opened anew."""
    leader_changed: tuple[Callable[[Channel, RoleBefore, int], None], ...] = ()
    """Role, term or leader changed (already visible in the elector; now_ms)."""
    applied: tuple[Callable[[Channel, Answers, int], None], ...] = ()
    """The applied seq moved (now_ms), and the machine answered some of the records."""
    freshness_proven: tuple[Callable[[Channel], None], ...] = ()
    """How far the channel is committed became known anew."""
    snapshot_needed: tuple[Callable[[Channel, int], None], ...] = ()
    """No log brings the channel's rows or records back: only another replica's state (now_ms)."""
    histories_differ: tuple[Callable[[Channel, NodeId, Seq, int], None], ...] = ()
    """A peer has another chain hash at a seq that is committed on both (now_ms)."""
    state_differs: tuple[Callable[[Channel, str, int], None], ...] = ()
    """The state of the channel's machine here is not that of the others (why, now_ms)."""
    config_committed: tuple[Callable[[Channel, ConfigCommitted], None], ...] = ()
    """A configuration of the channel is known to be committed (M21)."""
    hand_over_refused: tuple[Callable[[Channel, str], None], ...] = ()
    """The leadership stays here for good: nobody was asked to take it over, for this reason."""


@dataclass(frozen=True, slots=True)
class ChannelParts(Generic[Channel]):
    """The parts of a node that its channels work with: one object for all of them."""

    me: NodeId
    boot_id: bytes
    settings: NodeSettings
    log: MessageLog
    tables: TableStore
    ids: IdSource
    clock: Clock
    elector_factory: ElectorFactory
    outbox: Outbox
    guard: StorageGuard
    active: ActiveChannels
    catch_ups: CatchUps
    notices: ChannelNotices[Channel]
    room: PayloadRoom
    """For payloads of clients, in all channels of the node."""
    tell: Tell
    halt: Callable[[str], None]
    """Stop the node (exit code 70)."""
    reply: Callable[[int, PubAck | PubReject], None]
    """Answer a publisher by its handle."""
    is_up: Callable[[NodeId], bool]
    """Up from this node's viewpoint."""
    stamp_ms: Callable[[ChannelConfig], int]
    """The time for the next record of a leader, in milliseconds since 1970 (S10)."""
    heard_leader: Callable[[Channel, NodeId], int | None]
    """When the leader's node last claimed this channel in a heartbeat (None: never, or gone;
    S1.8)."""
    stage_refusal: Callable[[Channel, PubMsg], Refusal | None]
    """Refuses a chunk of a micro-batch that the leader cannot take now."""
    repair_payloads: Callable[[Channel, PayloadEffect], Iterable[Event]]
    """Executes what the core asks for when payloads are missing; the answers."""
