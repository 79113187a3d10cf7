"""The applied state of one channel, and the records queued behind it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from raftstore.errors import PersistError
from raftstore.ports.machine import (
    ApplyResult,
    BatchMachine,
    CommandMachine,
    Kinds,
    MachineStop,
    Row,
    RowsReader,
    StateMachine,
    StateReader,
    Way,
)
from raftstore.ports.tables import Piece
from raftstore.protocol.records import Record
from raftstore.storage.tables.channel_database import WriteBatch
from raftstore.storage.tables.keys import REMOVED_KEY, encode_count, rows_prefix
from raftstore.types import ChannelId, History, Seq


class AppliedChannel:
    """One channel: what is applied (any thread reads it) and what is queued (loop thread)."""

    __slots__ = (
        "channel",
        "machine",
        "batches",
        "commands",
        "kinds",
        "pending_rows",
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
        "removed_merged",
        "_removed_reported",
    )

    def __init__(
        self,
        channel: ChannelId,
        machine: StateMachine,
        applied: History,
        marked: History,
        time_ms: int = 0,
        removed: int = 0,
    ) -> None:
        self.channel = channel
        self.machine = machine
        self.batches = machine if isinstance(machine, BatchMachine) else None
        """The machine, if it takes part in micro-batches."""
        self.commands = machine if isinstance(machine, CommandMachine) else None
        """The machine, if it takes commands of users."""
        self.kinds: Kinds = getattr(machine, "KINDS", {})
        """The records that it takes, and how; what is not named goes to its ``apply``."""
        self.pending_rows: dict[bytes, bytes | None] = {}
        """Rows that commands wrote and that are not in the database yet, sealed; apply thread."""
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
        self.removed_merged = 0
        """Of these, those whose bytes a merge has given back; thread of merges."""
        self._removed_reported = removed

    def compute(
        self,
        record: Record,
        read: Callable[[bytes], Row | None],
        state: Callable[[], StateReader],
        rows: Callable[[], RowsReader],
    ) -> ApplyResult:
        """Have the machine apply a record in the way of its kind."""
        way, batches = self.kinds.get(record.kind, Way.ROWS), self.batches
        if way is Way.COMMAND and self.commands is not None:
            return self.commands.apply_command(record, rows(), state())
        if batches is None or (way is Way.ROWS and not self.time_ms):
            return self.machine.apply(record, read)
        if way is Way.STATE:
            return batches.apply_state(record, read, state())
        result = batches.apply_with_lifetimes(record, read, state())
        # Before anybody can read what it writes: readers look here whether rows may expire.
        self.time_ms = result.time_ms or self.time_ms
        return result

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
