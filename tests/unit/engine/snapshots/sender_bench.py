"""A node that serves replica snapshots, each step by hand."""

from __future__ import annotations

from typing import Any

from raftstore.engine.deadlines import NEVER_MS
from raftstore.engine.snapshots.sender import SnapshotSender
from raftstore.ports.table_files import HeldFile
from raftstore.protocol.replica_snapshots import AskReplicaSnapshot, AskSnapshotChunk
from raftstore.types import ChannelId, NodeId, Seq
from tests.unit.engine.snapshots_bench import CHANNEL, B, Bench


class Sending(Bench):
    """A node that serves snapshots."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.sender = SnapshotSender(self.parts)

    def ask(
        self, sender: NodeId = B, request_id: int = 5, channel: ChannelId = CHANNEL, have: int = 50
    ) -> None:
        """A replica needs a table."""
        self.sender.on_ask(sender, AskReplicaSnapshot(channel, request_id, Seq(have), Seq(9)))

    def opened_files(self, *held: HeldFile) -> int:
        """The files of a table are served; return their number."""
        self.sender.on_ask(
            B, AskReplicaSnapshot(CHANNEL, 5, Seq(50), Seq(9), in_files=True, held=held)
        )
        self.barrier()
        [offer] = self.said()
        assert offer.files == 2, offer.reason
        return int(offer.snapshot_id)

    def opened(self, sender: NodeId = B, channel: ChannelId = CHANNEL, base_max: int = 33) -> int:
        """A snapshot is served; return its number."""
        self.ask(sender, channel=channel)
        self.barrier(base_max)
        [offer] = self.said()
        assert offer.snapshot_id, offer.reason
        return int(offer.snapshot_id)

    def chunk(self, snapshot: int, *numbers: int, sender: NodeId = B) -> None:
        """The receiver asks for chunks."""
        for number in numbers:
            request = AskSnapshotChunk(CHANNEL, snapshot, number)
            self.sender.on_ask_chunk(sender, request, self.now_ms)

    def numbers(self) -> list[int]:
        """Of the chunks that left since the last call."""
        return [chunk.number for chunk in self.said()]

    def go(self) -> None:
        """Everything is read, and leaves."""
        self.run_steps()
        while self.sender.sending.next_ms != NEVER_MS:
            self.timer(self.now_ms + 1)

    def timer(self, now_ms: int) -> None:
        """It is so late."""
        self.now_ms = now_ms
        self.sender.on_timer(now_ms)
