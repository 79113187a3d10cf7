"""One channel on its way to a table or a base of another replica: what is known of it so far."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import Final

from raftstore.config import MIB
from raftstore.engine.channel.runner import ChannelRunner
from raftstore.engine.snapshots.decisions import Lacking
from raftstore.ports.log import Base
from raftstore.ports.table_copy import ResumePoint, TableCopy
from raftstore.ports.table_files import PartsDigest
from raftstore.protocol.replica_snapshots import (
    AskBase,
    AskReplicaSnapshot,
    AskSnapshotRest,
    SnapshotChunk,
    TableFilePart,
)
from raftstore.types import EMPTY_HISTORY, History, NodeId, node_name

SMALL_BYTES: Final = 4 * MIB
"""Most of the time that the copy of a table of no more takes is waiting for answers."""


class Stage(Enum):
    """How far one replica is."""

    LOOKING = "looking"
    REREADING = "reading what was copied before"
    ASKING = "asking for an offer"
    COPYING = "copying"
    VERIFYING = "reading back"
    ENDING = "switching"


@dataclass(slots=True, eq=False)
class Transfer:
    """One channel on its way to a table or a base."""

    runner: ChannelRunner
    source: NodeId
    is_for_base: bool = False
    """It is expected to take a base and no table."""
    stage: Stage = Stage.LOOKING
    lacking: Lacking | None = None
    request_id: int = 0
    asked: AskBase | AskReplicaSnapshot | AskSnapshotRest | None = None
    give_up_ms: int = 0
    snapshot_id: int = 0
    position: History = EMPTY_HISTORY
    table_bytes: int = 0
    copy: TableCopy | None = None
    rest: ResumePoint | None = None
    """How far an attempt before this one had come."""
    in_files: bool = False
    """The table is sent in files."""
    has_quick_digests: bool = False
    """The sender digests parts of files as it was asked to."""
    held: dict[str, bytes] = field(default_factory=dict)
    """Files of an attempt before this one, and their digests."""
    parts: PartsDigest = field(default_factory=PartsDigest)
    """Over all parts of files that were written."""
    started_ms: int = 0
    moved_ms: int = field(init=False)
    """When it last came further, by ``SMALL_BYTES`` while it comes."""
    moved_bytes: int = -SMALL_BYTES
    """``bytes`` then."""
    asked_chunks: int = 0
    """The number of the next chunk to be asked for."""
    taken_chunks: int = 0
    early: dict[int, SnapshotChunk | TableFilePart] = field(default_factory=dict)
    """The chunk behind the next one, when it came first."""
    is_writing: bool = False
    last: SnapshotChunk | TableFilePart | None = None
    pairs: int = 0
    bytes: int = 0
    base: Base | None = None
    operation: int = 0
    """Of the log: what has to be durable before the next step."""
    is_ending: bool = False

    def __post_init__(self) -> None:
        """Count from its start whether it moves."""
        self.moved_ms = self.started_ms

    @property
    def awaits_source(self) -> bool:
        """Whether the next thing to come is an answer of the other node."""
        return self.stage in (Stage.ASKING, Stage.COPYING)

    @property
    def is_large(self) -> bool:
        """Whether it is a large table that comes or is read back, or may be one: no offer says yet
        how large it is."""
        if self.stage in (Stage.COPYING, Stage.VERIFYING):
            return self.table_bytes > SMALL_BYTES
        return self.stage is not Stage.ENDING

    def described(self, now_ms: int) -> str:
        """How far it is, for people."""
        text = f"replica snapshot from {node_name(self.source)}: {self.stage.value}"
        if self.stage is Stage.COPYING:
            rate = self.bytes * 1_000 // max(1, now_ms - self.started_ms)
            left_s = max(0, self.table_bytes - self.bytes) // max(1, rate)
            text += f", {self.bytes} of about {self.table_bytes} bytes, {rate} bytes/s, "
            text += f"{left_s} s left"
        return text
