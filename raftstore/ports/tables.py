"""The tables of a node, as the engine uses them: applied rows, states, snapshots."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

from raftstore.ports.machine import MachineStop
from raftstore.ports.scrub import TableStep
from raftstore.ports.table_copy import CopyPage, TableCopy
from raftstore.ports.table_files import TableFiles
from raftstore.protocol.records import Record
from raftstore.record_machine import RecordMachine, Row, StateReader, StateWrites
from raftstore.types import ChannelId, History, Seq


class Page(NamedTuple):
    """Rows in key order, whether there are more behind them, and the applied seq they are of."""

    rows: list[Row]
    more: bool
    applied_seq: Seq


class SealedPage(NamedTuple):
    """The same as they are stored and sent: (key, sealed value, seq)."""

    rows: list[tuple[bytes, bytes, Seq]]
    more: bool


class FoundRows(NamedTuple):
    """The rows of some keys as they are stored and sent, in the order of the keys."""

    values: list[bytes | None]
    """Sealed, each seal checked; None: there is no such row."""
    seqs: list[Seq]
    """Of the records that wrote them; 0 where there is no row."""
    size: int
    """Bytes of keys and values of the rows, without their seals."""
    applied_seq: Seq


class Counted(NamedTuple):
    """Rows found, and the key to go on from; None: the whole range was counted."""

    rows: int
    resume: bytes | None


class ExpiryPage(NamedTuple):
    """When rows of a range expire."""

    expiries: list[tuple[bytes, int]]
    """(key, expiry in ms since 1970) of the rows that do, in key order."""
    resume: bytes
    """The key to go on from; b"": nothing is left of the range."""


class Barrier(NamedTuple):
    """The applied state of a channel that survives a power cut, at the least (S6.4)."""

    applied_seq: Seq
    """The position of that state."""
    base_max: Seq
    """The highest base that the channel's log may have beside this state or any later one: below
    the oldest record of the log that the state still refers to, such as staged rows."""


class MergeStep(NamedTuple):
    """Outcome of a step of merging a table's files."""

    is_merged: bool = False
    """Something was merged; else it is not worth it, or waits."""
    is_over: bool = True
    """Nothing is left to be merged now."""
    waits: bool = False
    """It is worth it, but snapshots that are open keep what should go."""
    keeps: bool = False
    """Snapshots that were open may have kept some of what should have gone."""
    bytes_before: int = 0
    """Of the files, before the first step."""
    bytes_after: int = 0


class TableSnapshot(Protocol):
    """One applied state of a channel, which stays as it is while records go on being applied.

    Made and closed on the node's thread, read on any, by one reader at a time or several. It keeps
    old files of the store until it is closed, at the latest with the store.
    """

    applied_seq: Seq
    applied: History

    def page(self, start: bytes, stop: bytes, limit: int, bytes_max: int | None = None) -> Page:
        """As ``TableStore.scan``, of this state."""

    def sealed_page(self, start: bytes, stop: bytes, limit: int, bytes_max: int) -> SealedPage:
        """The same page, each seal checked and left on: many rows cost half of it so."""

    def count(self, start: bytes, stop: bytes, limit: int) -> Counted:
        """Count rows of [start, stop), at most ``limit`` of them; values are not looked at."""

    def has_lifetimes(self) -> bool:
        """Whether any row of the channel ever had an expiry."""

    def expiries(self, start: bytes, stop: bytes, limit: int) -> ExpiryPage:
        """When the rows of [start, stop) expire that have not; at most ``limit`` rows are read."""

    def copy_page(self, after: bytes | None, bytes_max: int) -> CopyPage:
        """All that the table consists of, in key order behind the key ``after`` (None: from the
        first), each checked; one pair, and more while they take no more than ``bytes_max``."""

    def verify(self, after: bytes | None, bytes_max: int) -> TableStep:
        """Read and check all that the table consists of behind the key ``after``, about so many
        bytes; damage is reported and stops nothing."""

    def state_scan(self, start: bytes, stop: bytes, limit: int) -> list[tuple[bytes, bytes]]:
        """At most ``limit`` pairs of the state beside the rows in [start, stop), in key order."""

    def close(self) -> None:
        """Release it after its last read; closing it again does nothing."""


Conflicts = tuple[tuple[Seq, Seq], ...]

"""(seq of a conditional record that did not hold, seq of the row there is)."""

Answers = tuple[tuple[Seq, bytes], ...]

"""(seq of a record, what the machine answers the writer)."""

ReadDone = Callable[[int], None]

"""What a read away from the node's thread leads to there; it is given the time in ms."""

AskBetween = Callable[[StateReader, Seq], ReadDone]

"""A read between two records, which is given the state beside the rows and the applied seq."""

BarrierDone = Callable[[Barrier, int], None]
"""Called on the node's thread with what a barrier made durable, and the time in ms."""

FilesDone = Callable[[TableFiles | None, Barrier, int], None]
"""The same with the files of the state behind the barrier; None: they cannot be had now."""

MergeDone = Callable[[MergeStep, int], None]

"""Called on the node's thread with what became of a step of a merge, and the time in ms."""


class StoppableMachine(Protocol):
    """The machine of a channel, which may stop at a record that it cannot apply.

    Nothing from that record on is applied then: each call of ``TableStore.apply`` is answered as
    ever, with the applied seq that there is.
    """

    stop: MachineStop | None
    """Where and why it stopped; None: it goes on."""

    def take_back(self) -> None:
        """All calls are answered: what they handed over from the stop on is handed over anew."""

    def resume(self, skips: Seq | None) -> None:
        """Have it go on, after ``take_back``; the command at ``skips`` becomes nothing."""


class Piece(NamedTuple):
    """A piece of a record that is applied in several: a BATCH_APPLY and the rows it names.

    Its pieces are handed over in order, nothing else of the channel between them. The applied seq
    moves with the last one; until then reads see the state before the first. A record applied again
    after a crash is cut into the same rows in the same order, if maybe elsewhere.
    """

    record: Record
    first: bool
    last: bool
    chunks: Sequence[tuple[int, bytes | memoryview]] = ()
    """(mode, payload of rows as in a ROWS record), in the order in which they count."""
    ttls_ms: Sequence[int] = ()
    """How long the rows of each chunk live from the record's timestamp on (0: for ever); (): all
    for ever."""
    first_chunk: int = 0
    """Number of the first of them in the whole batch."""
    truncate_from: bytes | None = None
    """Rows from this key on are removed, a bounded number of them; then such a piece has no
    chunks and is not the last, and ``TableStore.truncated`` says where the next goes on."""
    state_writes: StateWrites = ()
    """With the last piece."""
    version: int = -1
    """With the first piece: the label under which the state before it is kept for readers that ask
    for it (``TableStore.snapshot``); -1: it is not kept."""


class TableStore(Protocol):
    """Applied state of every channel of a node. Reads see only applied (hence committed) records,
    and no row that has expired at the channel time of the state that they see.

    ``apply`` is asynchronous: records are applied in seq order, exactly once, with the applied seq
    in the same atomic batch (S10); completion comes as ``NodeRunner.on_applied``, once per call.
    So does ``apply_piece``, whose records are too large for one batch: all reads are of the state
    before the first piece until the last one is in, and if a crash comes between them, the channel
    serves nothing until they were all applied again (``unserved_until``).
    """

    def open_channel(self, channel: ChannelId, machine: RecordMachine) -> Seq:
        """Attach the channel's state machine; return the applied seq found in the store."""

    def applied_seq(self, channel: ChannelId) -> Seq:
        """Highest applied seq that reads of this channel see."""

    def apply(self, channel: ChannelId, records: Sequence[Record]) -> None:
        """Queue committed records, contiguous with what was queued before."""

    def apply_piece(self, channel: ChannelId, piece: Piece) -> None:
        """Queue a piece of a committed record.

        The first one comes when all that was queued for the channel before is applied, the next
        after one that truncates when that one is.
        """

    def stoppable(self, channel: ChannelId) -> StoppableMachine:
        """Whether the channel's machine stopped, and the way to have it go on."""

    def channel_time(self, channel: ChannelId) -> int:
        """About the channel time of what is applied (``state_machines.expiry``), never less than
        readers see; 0: no row of the channel ever had an expiry."""

    def truncated(self, channel: ChannelId) -> bytes | None:
        """Where the truncating piece applied last ended; None: no row is left."""

    def unserved_until(self, channel: ChannelId) -> Seq:
        """Seq to be applied before anything is answered from this channel; 0: all may be.

        A crash left it with some pieces of that record and not the others.
        """

    def state_get(self, channel: ChannelId, key: bytes) -> bytes | None:
        """A value of the state beside the rows, of the applied state."""

    def state_scan(
        self, channel: ChannelId, start: bytes, stop: bytes, limit: int
    ) -> list[tuple[bytes, bytes]]:
        """At most ``limit`` pairs of that state in [start, stop), in key order."""

    def get(self, channel: ChannelId, key: bytes) -> Row | None:
        """One row; raises CorruptRecordError if its checksum is wrong."""

    def get_many(self, channel: ChannelId, keys: Sequence[bytes], bytes_max: int) -> FoundRows:
        """Several rows of one applied state, in the order of the keys, and the applied seq of it.

        Ends with the row that takes keys and values beyond ``bytes_max`` bytes, if one does.
        """

    def scan(
        self,
        channel: ChannelId,
        start: bytes,
        stop: bytes,
        limit: int,
        bytes_max: int | None = None,
    ) -> Page:
        """Rows of [start, stop) in key order (b"" = open), all of one applied state.

        At most ``limit`` rows and ``bytes_max`` bytes of keys and values (None: no such bound),
        but a first row whatever its size. No more than one row beyond the page is read.
        """

    def snapshot(self, channel: ChannelId) -> TableSnapshot:
        """The applied state as it is now."""

    def snapshot_at(self, channel: ChannelId, version: int) -> TableSnapshot | None:
        """The kept state with this label (``Piece.version``); None: it is not kept."""

    def versions(self, channel: ChannelId) -> tuple[int, ...]:
        """Labels of the kept states, oldest first; the one being replaced is not among them."""

    def release_version(self, channel: ChannelId, label: int) -> None:
        """Keep the state no longer; who holds a snapshot of it goes on reading."""

    def start_read(self, read: Callable[[], ReadDone]) -> None:
        """Call ``read`` behind the others before it, away from the node's thread.

        What it returns comes back as ``NodeRunner.on_read``, unless the store is closed before. A
        read that raises stops the node (S0.4).
        """

    def start_query(self, ask: Callable[[], ReadDone]) -> None:
        """Call ``ask``, which is code of somebody else, behind the others before it, away from the
        node's thread and from that of reads.

        What it returns comes back as of ``start_read``. It may take as long as it likes: nobody
        takes that for a disk that hangs (S0.4). One that raises stops the node.
        """

    def start_between(self, channel: ChannelId, ask: AskBetween) -> None:
        """Call ``ask`` on the thread that applies, between two records of the channel: behind
        all that is queued, with the state beside the rows and the applied seq of that moment.

        What it returns comes back as ``NodeRunner.on_read``, unless the store is closed before. It
        must not raise but for a StorageError, which stops the node (S0.4).
        """

    def start_barrier(self, channel: ChannelId, done: BarrierDone) -> None:
        """Make what readers see of the channel now survive a power cut, away from the node's
        thread.

        ``done`` is called from ``NodeRunner.on_read``, unless the store is closed before; never
        when that failed: then the node stops (S0.4). Records go on being applied meanwhile.
        """

    def start_merge(
        self, channel: ChannelId, done: MergeDone, *, is_quiet: bool, is_urgent: bool
    ) -> None:
        """Give back bytes on disk that the channel's rows do not need, or a part of them, away from
        the node's thread, if that is worth it.

        ``is_quiet``: nothing was applied for a while, so that little is worth it. ``is_urgent``: it
        does not wait for snapshots that are open. ``done`` is called as for ``start_barrier``.
        """

    def content_hash(self, channel: ChannelId) -> tuple[bytes, int, Seq]:
        """Digest over all rows in key order, their number, and the applied seq it was taken at."""

    def start_content_hash(
        self, channel: ChannelId, done: Callable[[bytes, int, Seq], None]
    ) -> None:
        """The same without blocking the node: ``done`` is called later on the node's thread."""

    def applied_history(self, channel: ChannelId) -> History:
        """Term and seq of the last record that is applied."""

    def copied_position(self, channel: ChannelId) -> History:
        """Up to where the table was copied from another replica; (0, 0): it was built here."""

    def base_max(self, channel: ChannelId) -> Seq:
        """The highest base that the channel's log may have beside what is applied
        (``Barrier.base_max``); of a table that was just opened."""

    def is_idle(self, channel: ChannelId) -> bool:
        """Whether everything that was queued for the channel is applied."""

    def table_bytes(self, channel: ChannelId) -> int:
        """About how many bytes the channel's table takes."""

    def start_files(self, channel: ChannelId, done: FilesDone) -> None:
        """Take a barrier as ``start_barrier`` does, and keep the files of the table behind it.

        ``done`` is called as of ``start_barrier``. Records go on being applied meanwhile.
        """

    def begin_copy(
        self, channel: ChannelId, position: History, *, in_files: bool = False
    ) -> TableCopy:
        """Begin a table for the channel aside from the one it has; it takes no file yet.

        ``position``: of the table that is copied. ``in_files``: a ``FilesCopy`` is returned.
        """

    def begun_copy(self, channel: ChannelId) -> TableCopy | None:
        """Hand over the copy that an earlier life of the node began, once; None: there is none."""

    def start_copy_step(self, channel: ChannelId | None, step: Callable[[], ReadDone]) -> None:
        """Call ``step`` behind the others before it of the channel (None: it is of none) on the
        threads of copies, to and from this node; steps of other channels may run beside it.

        What it returns comes back as ``NodeRunner.on_read``, unless the store is closed before. A
        step that raises stops the node (S0.4).
        """

    def install(self, channel: ChannelId, copy: TableCopy, *, keeps_former: bool = False) -> None:
        """The copy, which is complete, is the channel's table from now on; nothing is queued for
        the channel, which is to be opened again. Readers of the former table go on with it.

        ``keeps_former``: it is evidence, and stays where nothing reads it."""

    def drop(self, channel: ChannelId) -> None:
        """Delete all rows of a channel whose table was dropped, or whose replica was removed."""

    def is_leaving(self, channel: ChannelId) -> bool:
        """Whether rows are still being deleted: it must not be opened again before they are."""

    def queued_bytes(self) -> int:
        """Payload bytes waiting to be applied."""

    def size_bytes(self) -> int:
        """Approximate bytes on disk."""
