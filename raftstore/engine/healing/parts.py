"""The parts of a node that healing works with: one object for all of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from raftstore.config import ReadSettings, ScrubSettings
from raftstore.engine.channel.outbox import Outbox
from raftstore.engine.channel.runner import ChannelRunner
from raftstore.engine.client_answers import ClientAnswers
from raftstore.engine.clock import Clock
from raftstore.engine.node_ports import Tell
from raftstore.engine.peers.known_levels import KnownLevels
from raftstore.engine.reads.scans import Scans
from raftstore.ports.log import MessageLog
from raftstore.ports.tables import TableStore
from raftstore.types import ChannelId, NodeId


@dataclass(frozen=True, slots=True)
class HealingParts:
    """The parts of one node that healing works with."""

    channels: Mapping[ChannelId, ChannelRunner]
    log: MessageLog
    tables: TableStore
    settings: ScrubSettings
    tell: Tell
    reopen: Callable[[ChannelRunner], None]
    """Open a channel anew from what log and table hold of it."""
    replace: Callable[[ChannelRunner, int], None]
    """Have a channel's table replaced by another replica's (now_ms)."""
    me: NodeId
    outbox: Outbox
    levels: KnownLevels
    first_id: int
    """Above all ids of questions that other lives of this node used."""
    scans: Scans
    answers: ClientAnswers
    reads: ReadSettings
    clock: Clock
