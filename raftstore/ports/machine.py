"""State machines, as tables apply records to them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import ClassVar, Final, NamedTuple, Protocol, runtime_checkable

from raftstore.config import MIB
from raftstore.errors import UnknownMachineError
from raftstore.machine import StateMachine as UserStateMachine
from raftstore.protocol.records import Record
from raftstore.types import Guid, RecordKind, Seq


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


StateWrites = Sequence[tuple[bytes, bytes | None]]

"""Keys and values of a channel's state beside its rows (None deletes), in the order of writing."""


class Way(Enum):
    """The method by which a machine applies records of a kind, and so what it sees then."""

    ROWS = "apply"
    """Rows, one at a time; where rows may have an expiry, ``LIFETIMES`` in its place."""
    STATE = "apply_state"
    """Rows, one at a time, and the state beside them."""
    LIFETIMES = "apply_with_lifetimes"
    """The same, and expired rows, too."""
    COMMAND = "apply_command"
    """Rows in order, and the state beside them: the state of a user's machine."""


Kinds = Mapping[RecordKind, Way]
"""The records that a machine takes. Term starts and configurations change no machine, and the
pieces of a BATCH_APPLY are written one by one (``BatchMachine.rows_of``)."""


class StateReader(Protocol):
    """A channel's state beside its rows, as it was before the record that is being applied.

    Keys begin with the byte 02 (staged rows) or 03 (coordinator): ``state_machines.state_keys``.
    """

    def get(self, key: bytes) -> bytes | None:
        """The value of a key."""

    def scan(self, start: bytes, stop: bytes, limit: int) -> list[tuple[bytes, bytes]]:
        """At most ``limit`` pairs of [start, stop) in the order of the keys."""


class StateMachine(Protocol):
    """Deterministic state behind a channel, over the rows of its table store (S10).

    ``apply`` sees the state through ``read`` and returns what to write; it must not use clocks,
    randomness, or anything but its arguments. A machine may say by a class attribute ``KINDS``
    which records it takes, and how; without one it is given all, by ``apply``.
    """

    def apply(self, record: Record, read: Callable[[bytes], Row | None]) -> ApplyResult:
        """Compute the writes of one committed record."""


@runtime_checkable
class BatchMachine(StateMachine, Protocol):
    """A state machine that also takes part in micro-batches; others are never sent any."""

    KINDS: ClassVar[Kinds]

    def apply_state(
        self, record: Record, read: Callable[[bytes], Row | None], state: StateReader
    ) -> ApplyResult:
        """Compute the writes of a committed record that goes by ``Way.STATE``."""

    def apply_with_lifetimes(
        self, record: Record, read: Callable[[bytes], Row | None], state: StateReader
    ) -> ApplyResult:
        """Compute the writes of a committed record of ``protocol.lifetimes.LIFETIME_KINDS``, or of
        any other kind that writes rows where rows may have an expiry. ``read`` gives expired rows,
        too."""

    def rows_of(
        self,
        of: tuple[Seq, int],
        mode: int,
        payload: bytes | memoryview,
        read: Callable[[bytes], Row | None],
        state_get: Callable[[bytes], bytes | None],
    ) -> Sequence[tuple[bytes, bytes | None]]:
        """The writes of staged rows that become visible: of the record ending at a seq, the chunk
        of this number.

        A row that has this seq already is the batch's own, written before a crash or by a piece
        before: computing it again must lead to the same. What ``outcomes_of`` gave of the chunk is
        in the state by then.
        """

    def first_needed(self, state: StateReader) -> Seq | None:
        """Seq of the oldest record of the log that the state still refers to; None: of none.

        A later state refers to no older record than this one, unless it is older than all that
        this one has applied.
        """

    def outcomes_of(
        self,
        of: tuple[Seq, int],
        mode: int,
        payload: bytes | memoryview,
        written: Sequence[tuple[bytes, bytes | None]],
        state_get: Callable[[bytes], bytes | None],
    ) -> StateWrites:
        """State written for readers of the changes of a chunk: of the record ending at a
        seq, the chunk of this number.

        ``written`` is what ``rows_of`` made of it. It goes into the state before any of these rows.
        """


class RowsReader(Protocol):
    """The rows of a channel as the records before the one at hand left them."""

    def get(self, key: bytes) -> bytes | None:
        """The value of a row."""

    def range(self, start: bytes, stop: bytes, limit: int) -> list[tuple[bytes, bytes]]:
        """At most ``limit`` keys and values of [start, stop), an empty ``stop`` is the end."""


@runtime_checkable
class CommandMachine(StateMachine, Protocol):
    """A machine that takes commands: that of users behind a channel set."""

    KINDS: ClassVar[Kinds]

    def apply_command(self, record: Record, rows: RowsReader, state: StateReader) -> ApplyResult:
        """Compute the writes of a committed record that goes by ``Way.COMMAND``; or why nothing can
        be applied any more (``ApplyResult.failure``)."""

    def skip(self, seq: Seq) -> None:
        """The command at this seq is to become nothing: what is committed behind it says so."""

    def forget(self) -> None:
        """Read all again from the state: what was computed last may not be in it."""


class MachineStop(NamedTuple):
    """A record that a machine of users could not apply; nothing behind it is applied here."""

    seq: Seq
    guid: Guid
    reason: str
    """What was raised, or what this node lacks."""
    differs: bool = False
    """What is applied here already is not what the others have."""


@dataclass(frozen=True, slots=True)
class MachineSource:
    """Code of a user's machine as a node has it."""

    name: str
    make: Callable[[], UserStateMachine]
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


DEFAULT_RULES: Final = MachineRules()


class Machines(Protocol):
    """The code of users' machines that a node has."""

    rules: MachineRules

    def is_at_hand(self, name: str) -> bool:
        """Whether ``load`` answers at once. Else it may take as long as any import, so it is called
        away from the node's thread."""

    def load(self, name: str) -> MachineSource:
        """The code of this name, ``module:Class`` or an entry point's. Raises UnknownMachineError,
        which says what is missing and what to do."""


class NoMachines:
    """A node that is given no code of users."""

    rules: MachineRules = DEFAULT_RULES

    def is_at_hand(self, name: str) -> bool:
        """Nothing is looked for."""
        del name
        return True

    def load(self, name: str) -> MachineSource:
        """Raises UnknownMachineError."""
        raise UnknownMachineError(f"this node was started without state machines, such as {name!r}")


@dataclass(frozen=True, slots=True)
class ApplyResult:
    """``writes``: key -> sealed value (``raftstore.rows.sealing``; None deletes), last one per key
    wins. ``conflict_seq``: not None when a condition did not hold; it is the seq of the key's
    present row, 0 if absent. ``state_writes`` go into the state beside the rows, in the same
    atomic batch; ``answer`` is what the leader answers the record's writer."""

    writes: Iterable[tuple[bytes, bytes | None]]
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
