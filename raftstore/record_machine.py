"""Machines over records: the contract of everything that stands behind a channel.

A channel is a log of records, each of a kind. Behind it is a *record machine*: a pure function of
the committed records over two ordered key spaces, the rows of the channel and the state beside
them. What it computes for one record is written in one atomic batch with the applied position
(S10), and is copied, compared, checksummed and healed by the store, whatever the machine is. This
module is all that the store, the engine and the simulator know of machines: a table, its
micro-batches, the catalog, a witness and the host of users' state machines are written against it
and nothing else, and the import rules hold both sides to that.

A program that only wants to be replicated derives from ``raftstore.machine.StateMachine``, which
has results, versions and rejections on top of this. The lower contract is for machines that want
the records themselves: rows encoded as the log has them, several kinds, no result kept. Such a
machine runs on simulated replicas with ``raftstore.testing.own_machine.run_machine``; nodes run
those that ``raftstore.state_machines.registry`` lists.

A kind belongs to one machine of a channel (``RecordMachine.kinds``), and the machines of one
channel share its log, so that what one of them refers to is committed and in order (S11).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Final, Protocol

from raftstore.config import MIB
from raftstore.errors import DecodeError
from raftstore.machine import StateMachine, StateView
from raftstore.protocol.machines import CommandEnd
from raftstore.protocol.records import Record
from raftstore.types import Guid, RecordKind, Seq

NOTHING: Final[Mapping[bytes, Any]] = {}
LOG_KINDS: Final = frozenset({RecordKind.TERM_START, RecordKind.CONFIG})
"""Records about the log itself: no machine is given them."""


# --- what a machine sees --------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Row:
    """A stored row: ``seq`` is the last_seq of the record that wrote it."""

    key: bytes
    value: bytes
    seq: Seq
    expires_ms: int = 0
    """When it expires, in channel time (``state_machines.expiry``); 0: never."""

    @property
    def size(self) -> int:
        """Bytes of key and value."""
        return len(self.key) + len(self.value)


def is_expired(expires_ms: int, time_ms: int) -> bool:
    """Whether a row with this expiry has expired at this channel time; 0 as expiry: it never
    does."""
    return 0 < expires_ms <= time_ms


Change = tuple[bytes, bytes | None]
"""A key and its value; None deletes."""
StateWrites = Sequence[Change]
"""Keys and values of a channel's state beside its rows, in the order of writing."""


class StateReader(Protocol):
    """A channel's state beside its rows, as it was before the record that is being applied.

    Keys begin with the byte 02 (staged rows) or 03 (coordinator): ``state_machines.state_keys``.
    """

    def get(self, key: bytes) -> bytes | None:
        """The value of a key."""

    def scan(self, start: bytes, stop: bytes, limit: int) -> list[tuple[bytes, bytes]]:
        """At most ``limit`` pairs of [start, stop) in the order of the keys."""


class RecordView(Protocol):
    """All that a machine may know besides its record: rows and state as the records before left
    them. It must not read once it has returned what it writes."""

    @property
    def state(self) -> StateReader:
        """The state beside the rows."""

    @property
    def time_ms(self) -> int:
        """0: no row of the channel ever had an expiry. Else about the channel time; the exact one
        is in the state (``state_machines.expiry``)."""

    def row(self, key: bytes) -> Row | None:
        """One row, whether it has expired or not."""

    def range(self, start: bytes, stop: bytes, limit: int) -> list[tuple[bytes, bytes]]:
        """At most ``limit`` keys and values of rows of [start, stop), an empty ``stop`` is the
        end."""


class DictView:
    """A view of rows and state in two dictionaries: for tools, and to try a machine without a
    store."""

    def __init__(
        self,
        rows: Mapping[bytes, Row] = NOTHING,
        state: Mapping[bytes, bytes] = NOTHING,
        time_ms: int = 0,
    ) -> None:
        self.rows = rows
        self.row = rows.get
        self.state: StateReader = _DictState(state)
        self.time_ms = time_ms

    def range(self, start: bytes, stop: bytes, limit: int) -> list[tuple[bytes, bytes]]:
        """At most ``limit`` keys and values of rows of [start, stop)."""
        keys = sorted(key for key in self.rows if key >= start and (not stop or key < stop))
        return [(key, self.rows[key].value) for key in keys[:limit]]


class _DictState:
    def __init__(self, state: Mapping[bytes, bytes]) -> None:
        self._state = state
        self.get = state.get

    def scan(self, start: bytes, stop: bytes, limit: int) -> list[tuple[bytes, bytes]]:
        keys = sorted(key for key in self._state if start <= key < stop)
        return [(key, self._state[key]) for key in keys[:limit]]


@dataclass(frozen=True, slots=True)
class ApplyResult:
    """``writes``: key -> sealed value (``raftstore.rows.sealing``; None deletes), last one per key
    wins. ``conflict_seq``: not None when a condition did not hold; it is the seq of the key's
    present row, 0 if absent. ``state_writes`` go into the state beside the rows, in the same
    atomic batch; ``answer`` is what the leader answers the record's writer."""

    writes: Iterable[Change]
    conflict_seq: Seq | None = None
    state_writes: StateWrites = ()
    answer: bytes | None = None
    expires_ms: int = 0
    """Of all rows that are written; 0: never."""
    time_ms: int = 0
    """The channel time from this record on; 0: as before."""
    failure: str | None = None
    """Why the record cannot be applied: nothing of it is written, nor of any behind it."""
    differs: bool = False
    """It cannot be applied to this replica's state, which is not that of the others."""
    failed_at: tuple[Seq, Guid] | None = None
    """The command that cannot be applied, where it is one of several in the record."""


# --- machines -------------------------------------------------------------------------------------


class RecordMachine(ABC):
    """Deterministic state behind a channel (S10): no clock, no randomness, nothing but what it is
    given.

    One object serves one replica, on the thread that applies. It may remember only what it can
    compute again from its rows and state.
    """

    LABEL: ClassVar[str] = "channel"
    """The sort of channel, in messages."""
    KINDS: ClassVar[frozenset[RecordKind]] = frozenset()
    """The records that this machine takes itself. One with neither kinds nor parts is given all."""
    PARTS: ClassVar[Sequence[RecordMachine]] = ()
    """Machines that share the channel's log with it, each with kinds of its own."""
    HOLDS_ROWS: ClassVar[bool] = True
    """False: a replica with it has nothing to read, and counts in quorums alone."""
    REREADS: ClassVar[bool] = False
    """What it wrote is mostly read by the next records: it is kept at hand until it is in the
    database, so that many records stay one atomic batch. It costs a table of rows more than it
    saves."""

    @abstractmethod
    def apply(self, record: Record, view: RecordView) -> ApplyResult:
        """Compute the writes of one committed record. A StorageError stops the node with all that
        it has (S0.4)."""

    def check(self, kind: RecordKind, payload: bytes, rows: int) -> None:
        """Raise DecodeError or CorruptRecordError unless a client may have this record applied.

        A leader asks before it sequences it: once committed, a payload that no replica can apply
        would stop them all.
        """
        del payload, rows
        raise DecodeError(f"a {self.LABEL} takes no records of clients, such as kind {kind:d}")

    def first_needed(self, state: StateReader) -> Seq | None:
        """Seq of the oldest record of the log that the state still refers to; None: of none.

        Logs are trimmed below it and no further. A later state refers to no older record than this
        one, unless it is older than all that this one has applied.
        """
        found = (part.first_needed(state) for part in self.PARTS)
        return min((seq for seq in found if seq is not None), default=None)

    @property
    def pieces(self) -> PieceMachine | None:
        """Itself or a part, where some records are written piece by piece."""
        return next((part.pieces for part in self.PARTS if part.pieces is not None), None)

    @property
    def commands(self) -> CommandMachine | None:
        """Itself, where it hosts a machine of users, which may stop at a command."""
        return None

    def kinds(self) -> Mapping[RecordKind, RecordMachine]:
        """The machine for each kind of record: this one, or a part of it. Raises ValueError where
        two would take the same kind, and where one would take a record of the log itself."""
        found: dict[RecordKind, RecordMachine] = dict.fromkeys(self.KINDS, self)
        for part in self.PARTS:
            for kind, machine in part.kinds().items():
                if (other := found.setdefault(kind, machine)) is not machine:
                    names = f"{type(other).__name__} and {type(machine).__name__}"
                    raise ValueError(f"records of kind {kind:d} belong to {names}; name one")
        if taken := LOG_KINDS & found.keys():
            raise ValueError(f"records of kind {min(taken):d} are of the log, and of no machine")
        return found


class Chunk(Protocol):
    """A record further down the log whose rows a piece writes."""

    @property
    def base_seq(self) -> int:
        """Its first seq."""

    @property
    def last_seq(self) -> int:
        """Its last one."""

    @property
    def size(self) -> int:
        """Bytes of its payload."""

    @property
    def mode(self) -> int:
        """How its rows are written, as ``PieceMachine.rows_of`` knows it."""

    @property
    def digest(self) -> bytes:
        """Position of the record: another one in its place is no longer this chunk."""


@dataclass(frozen=True, slots=True)
class PiecePlan:
    """The plan of a record that is written in pieces: the deletion of all rows if ``truncate``,
    then rows of these chunks in this order, and ``state_writes`` with the last of them."""

    chunks: Sequence[Chunk] = ()
    truncate: bool = False
    state_writes: StateWrites = ()
    version: int = -1
    """Label under which the state before the record is kept for readers; -1: it is not."""
    broken: str | None = None
    """Why nobody can apply the record (I1): then the channel stops serving everywhere."""


class PieceMachine(RecordMachine):
    """A machine some of whose records bring any number of rows at once, from records before.

    They are written in slices, each an atomic batch; the applied position comes with the last one,
    and readers look at the state before until then. After a crash in between the record is applied
    again as a whole, over some rows of its own, and must lead to the same.
    """

    IN_PIECES: ClassVar[frozenset[RecordKind]] = frozenset()
    """The kinds that are written so; they are never given to ``apply``."""

    @property
    def pieces(self) -> PieceMachine:
        """This one."""
        return self

    @abstractmethod
    def plan(self, record: Record, state: StateReader) -> PiecePlan:
        """The plan of such a record, made when everything before it is applied: a function of
        record and state, so every replica makes the same one, and again after a crash."""

    @abstractmethod
    def chunk_rows(self, payload: bytes) -> tuple[memoryview, int]:
        """The rows in a chunk's payload, and their lifetime in ms (0: for ever)."""

    @abstractmethod
    def rows_of(
        self,
        of: tuple[Seq, int],
        mode: int,
        payload: bytes | memoryview,
        read: Callable[[bytes], Row | None],
        state_get: Callable[[bytes], bytes | None],
    ) -> Sequence[Change]:
        """The writes of rows that become visible: of the record ending at a seq, the chunk of this
        number.

        A row that has this seq already is the record's own, written before a crash or by a piece
        before: computing it again must lead to the same. What ``outcomes_of`` gave of the chunk is
        in the state by then.
        """

    @abstractmethod
    def outcomes_of(
        self,
        of: tuple[Seq, int],
        mode: int,
        payload: bytes | memoryview,
        written: Sequence[Change],
        state_get: Callable[[bytes], bytes | None],
    ) -> StateWrites:
        """State written for readers of the changes of a chunk: of the record ending at a
        seq, the chunk of this number.

        ``written`` is what ``rows_of`` made of it. It goes into the state before any of these rows.
        """


# --- hosts of users' machines ---------------------------------------------------------------------


@dataclass(frozen=True, slots=True, eq=False)
class QueryAtWork:
    """A query of a machine in memory, which is asked between commands."""

    key: bytes


class CommandMachine(RecordMachine):
    """A host of a users' machine: it stops at a command that cannot be applied, in place of ending
    the node (``ApplyResult.failure``), keeps results, and answers queries."""

    @property
    def commands(self) -> CommandMachine:
        """This one."""
        return self

    at_work: Record | QueryAtWork | None = None
    """What users' code is doing on the thread that applies: a command or a query, another object
    each time; any thread looks. None: nothing."""

    @property
    @abstractmethod
    def is_in_memory(self) -> bool | None:
        """Whether its state is in the object, which only the thread that applies may ask; None:
        that is not known before its code is here. Any thread, and at once: nothing is imported."""

    @abstractmethod
    def skip(self, seq: Seq) -> None:
        """The command at this seq is to become nothing: what is committed behind it says so."""

    @abstractmethod
    def forget(self) -> None:
        """Read all again from the state: what was computed last may not be in it."""

    @abstractmethod
    def is_whole(self, get: Callable[[bytes], bytes | None]) -> bool:
        """Whether the state is all that it begins with: False while it comes from a backup. Once it
        is, it stays so."""

    @abstractmethod
    def version_in_force(self, get: Callable[[bytes], bytes | None]) -> int:
        """The version by which the next command is applied."""

    @abstractmethod
    def limits_in_force(self, get: Callable[[bytes], bytes | None]) -> int:
        """The number of the limits by which the next command is judged."""

    @abstractmethod
    def ends_of(self, answer: bytes, commands: int) -> Sequence[CommandEnd]:
        """The ends of so many commands of one record, as ``ApplyResult.answer`` has them."""

    @abstractmethod
    def kept_ends(
        self, base_seq: Seq, last_seq: Seq, state: StateReader
    ) -> Sequence[CommandEnd] | None:
        """The ends of the commands of a record as the state keeps them; None: some are kept no
        longer. It is read once, however many commands there are."""

    @abstractmethod
    def kept_end(self, seq: Seq, state: StateReader) -> CommandEnd | None:
        """The end of the command at a seq as the state keeps it; None: it is kept no longer."""

    @abstractmethod
    def query(
        self, key: bytes, request: bytes, view: StateView, get: Callable[[bytes], bytes | None]
    ) -> CommandEnd:
        """Ask a machine with its state on the disk, away from the node's thread, for its code may
        be imported. Raises UnavailableError for one in memory; then ``is_in_memory`` is known."""

    @abstractmethod
    def query_memory(self, key: bytes, request: bytes, state: StateReader) -> CommandEnd:
        """Ask a machine in memory, between commands; raises nothing."""


@dataclass(frozen=True, slots=True)
class MachineSource:
    """Code of a user's machine as a node has it."""

    name: str
    make: Callable[[], StateMachine]
    version: int
    oldest_version: int


@dataclass(frozen=True, slots=True)
class MachineRules:
    """How much is kept. All replicas of a channel must go by the same numbers."""

    results_kept: int = 16_384
    """Results of a partition, the newest: a retry of a command is answered by them."""
    result_bytes_kept: int = 16 * MIB
    """The same in bytes."""
    journal_bytes: int = 1 * MIB
    """Commands of a machine in memory kept behind its snapshot; at so many bytes, and at twice the
    bytes of the snapshot, the next one is made."""
    is_interruptible: bool = False
    """KeyboardInterrupt ends the process, which is a simulation: Ctrl-C reaches its main thread. In
    a node no thread gets it but from a machine that raises it, which is an error of the machine."""


DEFAULT_RULES: Final = MachineRules()
