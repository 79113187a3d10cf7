"""Logs that tests write entry by entry, as no store would, and what recovery makes of them."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from raftstore.protocol.records import Record
from raftstore.storage.files import FileOps
from raftstore.storage.log.index import ChannelIndex, position_of
from raftstore.storage.log.mark import MarkRow
from raftstore.storage.log.records import (
    EntryKind,
    encode_drop,
    encode_give_up,
    encode_record,
    encode_segment,
    encode_truncation,
    encode_vote,
    first_chain,
)
from raftstore.storage.log.recovery import LogRecovery, OnLogRead, RecoveredLog, unheard
from raftstore.storage.log.segments import segment_path
from raftstore.types import ChannelId, History, NodeId, Seq, Term
from tests.storage_helpers import CHANNEL, STORE_UUID, record

Promised = dict[ChannelId, MarkRow]
Part = tuple[int, list[int], bool]
"""(start, base seqs, is suspect)"""


@dataclass(frozen=True)
class Place:
    """Where an entry was written."""

    path: Path
    segment: int
    offset: int
    length: int

    @property
    def end(self) -> int:
        """Offset behind it."""
        return self.offset + self.length

    @property
    def position(self) -> int:
        """As the index states it."""
        return position_of(self.segment, self.offset)


@dataclass
class WrittenLog:
    """Segments below a directory; each method writes one entry and returns its place."""

    data_directory: Path
    chain: int = first_chain(STORE_UUID)
    number: int = 0
    places: list[Place] = field(default_factory=list)
    chains: list[int] = field(default_factory=list)
    """Continued by each segment."""

    def __post_init__(self) -> None:
        self.directory.mkdir(parents=True)

    @property
    def directory(self) -> Path:
        """Of the segments."""
        return self.data_directory / "log"

    @property
    def path(self) -> Path:
        """The segment that is written."""
        return segment_path(self.directory, self.number)

    def segment(self, says: int | None = None, uuid: bytes = STORE_UUID) -> Place:
        """Begin the next segment; its header ``says`` that it is another number."""
        self.number += 1
        self.chains.append(self.chain)
        self.path.touch()
        number = self.number if says is None else says
        return self.write(encode_segment(uuid, number, self.chain))

    def record(
        self,
        seq: int,
        *,
        term: int = 1,
        rows: int = 1,
        channel: ChannelId = CHANNEL,
        kind: EntryKind = EntryKind.RECORD,
        **changed: Any,
    ) -> Place:
        """A record, or with FILL one that was given back."""
        made: Record = record(seq, term=term, rows=rows, **changed)
        head, chain = encode_record(channel, made, self.chain, kind)
        return self.write((head + made.payload, chain))

    def fill(self, seq: int, *, term: int = 1, rows: int = 1) -> Place:
        """A record that was given back."""
        return self.record(seq, term=term, rows=rows, kind=EntryKind.FILL)

    def vote(self, term: int, node: NodeId | None, channel: ChannelId = CHANNEL) -> Place:
        """Term and vote."""
        return self.write(encode_vote(channel, Term(term), node, self.chain))

    def truncation(self, from_seq: int) -> Place:
        """A cut of the channel."""
        return self.write(encode_truncation(CHANNEL, Seq(from_seq), self.chain))

    def drop(self, channel: ChannelId) -> Place:
        """The end of a channel."""
        return self.write(encode_drop(channel, self.chain))

    def give_up(self) -> Place:
        """Forget the parts behind the hole."""
        return self.write(encode_give_up(CHANNEL, self.chain))

    def write(self, encoded: tuple[bytes, int]) -> Place:
        """Append an entry to the segment."""
        entry, self.chain = encoded
        place = Place(self.path, self.number, self.path.stat().st_size, len(entry))
        with self.path.open("ab") as file:
            file.write(entry)
        self.places.append(place)
        return place

    def recovered(
        self,
        promised: Promised | None = None,
        ops: FileOps | None = None,
        on_read: OnLogRead = unheard,
    ) -> RecoveredLog:
        """One start of the log."""
        recovery = LogRecovery(
            ops or FileOps(), self.directory, STORE_UUID, promised or {}, on_read=on_read
        )
        return recovery.run()


def promise(term: int, seq: int) -> MarkRow:
    """A row of the mark that promises a record and nothing else."""
    return MarkRow(durable=History(Term(term), Seq(seq)))


def parts_of(index: ChannelIndex) -> list[Part]:
    """The log of a channel, and the parts behind its holes."""
    return [
        (part.start_seq, list(part.base_seqs), part.is_suspect) for part in (index, *index.kept)
    ]


def damage_body(place: Place, byte: int = 5) -> None:
    """One bit of an entry's body: its header still says where it ends."""
    data = bytearray(place.path.read_bytes())
    data[place.offset + 12 + byte] ^= 0x10
    place.path.write_bytes(data)


def destroy(first: Place, last: Place) -> None:
    """Everything from one entry to another, headers included."""
    assert first.path == last.path
    data = bytearray(first.path.read_bytes())
    data[first.offset : last.end] = b"\xee" * (last.end - first.offset)
    first.path.write_bytes(data)
