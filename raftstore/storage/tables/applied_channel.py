"""The applied state of one channel, and the records queued behind it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from raftstore.errors import PersistError
from raftstore.ports.machine import MachineStop
from raftstore.ports.tables import Piece
from raftstore.protocol.records import Record
from raftstore.record_machine import LOG_KINDS, ApplyResult, RecordMachine, Row, StateReader
from raftstore.storage.tables.channel_database import WriteBatch
from raftstore.storage.tables.keys import REMOVED_KEY, encode_count, rows_prefix
from raftstore.types import ChannelId, History, Seq


class ChannelView(Protocol):
    """record_machine.RecordView of one channel, in which the channel time of each record is set."""

    time_ms: int

    @property
    def state(self) -> StateReader:
        """The state beside the rows."""

    def row(self, key: bytes) -> Row | None:
        """One row."""

    def range(self, start: bytes, stop: bytes, limit: int) -> list[tuple[bytes, bytes]]:
        """At most ``limit`` keys and values of rows."""


class AppliedChannel:
    """One channel: what is applied (any thread reads it) and what is queued (loop thread)."""

    __slots__ = (
        "channel",
        "machine",
        "pieces",
        "commands",
        "kinds",
        "rereads",
        "pending_rows",
        "view",
        "stop",
        "prefix",
        "applied",
        "queued_seq",
        "in_pieces",
        "unflushed",
        "marked_seq",
        "truncated",
        "time_ms",
        "removed",
        "removed_applied",
        "removed_merged",
        "is_kept_for_readers",
        "merged_bytes",
        "was_merged_busy",
        "_removed_reported",
    )

    def __init__(
        self,
        channel: ChannelId,
        machine: RecordMachine,
        applied: History,
        marked: History,
        time_ms: int = 0,
        removed: int = 0,
    ) -> None:
        self.channel = channel
        self.machine = machine
        self.pieces = machine.pieces
        """The machine of records that are written in pieces."""
        self.commands = machine.commands
        """The machine, if it hosts one of users."""
        self.kinds = machine.kinds()
        """The machine for each kind of record; of what is not named it is ``machine``."""
        self.rereads = machine.REREADS
        self.pending_rows: dict[bytes, tuple[Seq, bytes | None]] = {}
        """Rows that a machine wrote which reads them again, and which are not in the database yet:
        seq and sealed value; apply thread."""
        self.view: ChannelView | None = None
        """The view of its machines, made with the first record; apply thread."""
        self.stop: MachineStop | None = None
        """The record at which the machine stopped: nothing is applied before ``resume``. Written
        on the apply thread before it is reported, and taken back when nothing is queued."""
        self.prefix = rows_prefix(channel)
        self.applied = applied
        self.queued_seq = applied.seq
        self.in_pieces = False
        """The record queued last still has pieces to come."""
        self.unflushed = applied
        self.marked_seq = marked.seq
        """Record that a crash left in pieces: nothing is served until it is applied."""
        self.truncated: bytes | None = None
        """Where the truncating piece applied last ended; written before it is reported."""
        self.time_ms = time_ms
        """The channel time behind the record computed last (``state_machines.expiry``); 0: no row
        ever had an expiry. It moves before what moved it can be read, so a snapshot of a channel
        for which it is 0 holds no such row."""
        self.removed = removed
        """Rows that were removed, at least so many keys of them; apply thread."""
        self.removed_applied = removed
        """Of these, those up to ``applied``: no later snapshot shows them; any thread."""
        self.removed_merged = 0
        """Of these, those whose bytes a merge has given back; thread of merges."""
        self.is_kept_for_readers = False
        """Snapshots were open while it was merged last; thread of merges."""
        self.was_merged_busy = False
        """It was written to while it was merged last; thread of merges."""
        self.merged_bytes: int | None = None
        """Bytes that its files took then, 0: it never was; None: it was not looked up yet; thread
        of merges."""
        self._removed_reported = removed

    def compute(self, record: Record, view: ChannelView) -> ApplyResult | None:
        """Have the machine of its kind apply a record; None: it is about the log itself."""
        kind = record.kind
        if kind in LOG_KINDS:
            return None
        view.time_ms = self.time_ms
        result = self.kinds.get(kind, self.machine).apply(record, view)
        if result.time_ms:
            # Before anybody can read what it writes: readers look here whether rows may expire.
            self.time_ms = result.time_ms
        return result

    def reach(self, position: History) -> None:
        """All up to there is in the database; apply thread."""
        self.applied = self.unflushed = position
        self.removed_applied = self.removed

    def take_back(self) -> None:
        """The machine stopped: what was queued behind is queued no longer; nothing is under way."""
        self.queued_seq = self.applied.seq

    def resume(self, skips: Seq | None) -> None:
        """Apply again from the record at which the machine stopped, which is to become nothing if
        it is at ``skips``."""
        assert self.commands is not None, "only machines of users stop"
        assert self.queued_seq == self.applied.seq, f"{self.queued_seq} > {self.applied.seq}"
        self.commands.forget()
        if skips is not None:
            self.commands.skip(skips)
        self.stop = None

    def queue(self, records: Sequence[Record]) -> None:
        """Count records as queued; raise PersistError if they do not follow what was."""
        for record in records:
            if record.base_seq != self.queued_seq + 1 or self.in_pieces:
                raise self._misplaced("a record", record)
            self.queued_seq = record.last_seq

    def queue_piece(self, piece: Piece) -> None:
        """Count a piece as queued; raise PersistError if it does not follow what was."""
        record = piece.record
        if piece.first:
            # The state that readers see meanwhile is taken now: everything before must be in it.
            follows = record.base_seq == self.applied.seq + 1 and not self.in_pieces
        else:
            follows = record.last_seq == self.queued_seq and self.in_pieces
        if not follows:
            raise self._misplaced("a piece of a record", record)
        self.queued_seq = record.last_seq
        self.in_pieces = not piece.last

    def tell_removed(self, batch: WriteBatch) -> None:
        """Have the batch remember how many rows were removed, if it is more than it was."""
        if self.removed != self._removed_reported:
            self._removed_reported = self.removed
            batch.put(REMOVED_KEY, encode_count(self.removed - self.removed_merged))

    def _misplaced(self, what: str, record: Record) -> PersistError:
        return PersistError(
            f"{what} at seq {record.base_seq} of channel {self.channel.hex()} cannot be "
            f"applied behind seq {self.queued_seq}; the node stops"
        )
