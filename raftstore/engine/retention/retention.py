"""Retention of a node's logs and tables, as its runner and its reports see it."""

from __future__ import annotations

from raftstore.engine.channel.runner import ChannelRunner
from raftstore.engine.deadlines import Deadlines
from raftstore.engine.retention.floors import Floor, Floors, RetentionParts
from raftstore.engine.retention.merger import Merger
from raftstore.engine.retention.outcome_trimmer import OutcomeTrimmer
from raftstore.engine.retention.trimmer import Trimmer
from raftstore.protocol.message import Message
from raftstore.protocol.trimming import TrimmingMessage
from raftstore.types import NodeId


class Retention:
    """All that trims logs and merges tables of one node."""

    def __init__(self, parts: RetentionParts) -> None:
        self.floors = Floors(parts)
        self.trimmer = Trimmer(parts, self.floors)
        self.merger = Merger(parts)
        self.outcome_trimmer = OutcomeTrimmer(parts)

    @property
    def deadlines(self) -> tuple[Deadlines[int], ...]:
        """When ``on_timer`` has something to do; always the same objects."""
        return self.trimmer.deadlines, self.merger.deadlines, self.outcome_trimmer.deadlines

    def start(self, now_ms: int) -> None:
        """Trim logs and merge tables from now on, if that is done at all."""
        self.outcome_trimmer.start(now_ms)
        self.trimmer.start(now_ms)
        self.merger.start(now_ms)

    def on_timer(self, now_ms: int) -> None:
        """Run what is due."""
        self.trimmer.on_timer(now_ms)
        self.merger.on_timer(now_ms)
        self.outcome_trimmer.on_timer(now_ms)

    def on_message(self, sender: NodeId, message: Message) -> bool:
        """Take a message of another node; False: it is about something else."""
        if not isinstance(message, TrimmingMessage):
            return False
        self.outcome_trimmer.on_message(sender, message)
        return True

    def channel_closed(self, runner: ChannelRunner) -> None:
        """The channel is not here any more, or is opened anew."""
        self.trimmer.channel_closed(runner)
        self.merger.channel_closed(runner)
        self.outcome_trimmer.channel_closed(runner)
        self.floors.channel_closed(runner)

    def floors_of(self, runner: ChannelRunner, now_ms: int) -> list[Floor]:
        """Everything that needs records of a channel, the lowest first."""
        found = self.floors.of(runner, now_ms)
        held_by = self.trimmer.held_by(runner.channel)
        if held_by is not None and held_by.bytes_max is None:
            found.append(held_by)
        return sorted(found, key=lambda floor: floor.seq)
