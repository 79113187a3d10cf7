"""One partition of a state machine in memory: for unit tests of a machine, and as the sequential
specification that simulated worlds are judged by."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

from raftstore.errors import PayloadTooLargeError, RejectedError, SchemaError, StateLimitError
from raftstore.machine import (
    COMMAND_BYTES_MAX,
    RESULT_BYTES_MAX,
    STATE_VALUE_BYTES_MAX,
    Chance,
    CommandContext,
    MemoryMachine,
    QueryContext,
    StateMachine,
)
from raftstore.testing.machines.memory_state import MemoryState, NoState, digest_of
from raftstore.types import Guid, Seq, Term

START_MS: Final = 1_700_000_000_000
"""Wall clock at the first command, unless given."""
STEP_MS: Final = 10
"""From one command to the next."""


class MachineDefectError(AssertionError):
    """The machine does not keep the contract; the message names the command and the remedy."""


@dataclass(frozen=True, slots=True)
class Place:
    """All that is said of a command besides itself, as the log of a channel says it."""

    seq: int
    time_ms: int
    term: int = 1
    guid: bytes = b""
    """Empty: made of the seq."""
    partition: int = 0
    version: int = 0
    """0: the machine's own."""


@dataclass(frozen=True, slots=True)
class Applied:
    """The outcome of one command."""

    result: bytes | None
    """None: it was rejected."""
    reason: str = ""
    """Of the rejection."""


class LocalMachine:
    """One partition of a machine, without nodes, log or disk.

    ``command`` and ``query`` take and give values as ``raftstore``'s channel sets do, and refuse
    what those refuse. ``restart`` makes a new object of the machine, as a node's start does.
    """

    def __init__(self, machine: type[StateMachine], *, partition: int = 0) -> None:
        self.machine = machine
        self.partition = partition
        self.seq = 0
        self.time_ms = START_MS
        """Of the newest command; set it to let time pass. It never goes back."""
        self._is_memory = issubclass(machine, MemoryMachine)
        self._state: MemoryState = NoState() if self._is_memory else MemoryState()
        self._object = machine()

    def command(self, key: str | bytes, value: Any, *, guid: bytes = b"") -> Any:
        """Apply one command and return its result; raises what ``apply`` raises."""
        encoded = self.machine.commands.encode(value)
        self.time_ms += STEP_MS
        place = Place(self.seq + 1, self.time_ms, guid=guid, partition=self.partition)
        applied = self.apply(as_key(key), encoded, place)
        if applied.result is None:
            raise RejectedError(applied.reason)
        return self.machine.results.decode(applied.result)

    def query(self, key: str | bytes, request: Any = b"") -> Any:
        """Answer a question by the present state."""
        answer = self.answer(as_key(key), self.machine.queries.encode(request))
        return self.machine.answers.decode(answer)

    def restart(self) -> None:
        """Go on with a new object of the machine, made of what replicas keep."""
        chunks = list(self.snapshot()) if self._is_memory else []
        self._object = self.machine()
        if isinstance(self._object, MemoryMachine):
            self._object.restore(iter(chunks))

    # --- by bytes ---------------------------------------------------------------------------------

    def apply(self, key: bytes, command: bytes, place: Place) -> Applied:
        """Apply an encoded command at a place of the log; RejectedError is an outcome."""
        if len(command) > COMMAND_BYTES_MAX:
            message = f"a command of {len(command)} bytes; allowed are {COMMAND_BYTES_MAX}"
            raise PayloadTooLargeError(message)
        self.seq, self.time_ms = place.seq, max(self.time_ms, place.time_ms)
        try:
            value = self.machine.commands.decode(command)
        except SchemaError as error:
            return Applied(None, f"the command is none of this machine: {error}")
        try:
            made = self._object.apply(value, self._context(key, place))
        except (RejectedError, StateLimitError) as error:
            self._state.drop()
            return Applied(None, str(error))
        except BaseException:
            self._state.drop()
            raise
        result = self.machine.results.encode(made)
        if len(result) > RESULT_BYTES_MAX:
            self._state.drop()
            message = f"its result has {len(result)} bytes, at most {RESULT_BYTES_MAX} are allowed"
            return Applied(None, message)
        self._state.take()
        return Applied(result)

    def answer(self, key: bytes, request: bytes) -> bytes:
        """Answer an encoded question; raises what ``query`` raises."""
        context = QueryContext(
            state=self._state.view(),
            key=key,
            seq=Seq(self.seq),
            time_ms=self.time_ms if self.seq else 0,
            partition=self.partition,
            version=self.machine.version,
        )
        return self.machine.answers.encode(
            self._object.query(self.machine.queries.decode(request), context)
        )

    def snapshot(self) -> Iterable[bytes]:
        """Chunks of a ``MemoryMachine``; keys and values in turn of any other."""
        if isinstance(self._object, MemoryMachine):
            for chunk in self._object.snapshot():
                _check_bytes(self.machine, chunk)
                if len(chunk) > STATE_VALUE_BYTES_MAX:
                    message = f"a chunk of {self.machine.__name__}.snapshot has {len(chunk)} bytes"
                    raise MachineDefectError(f"{message}; allowed are {STATE_VALUE_BYTES_MAX}")
                yield bytes(chunk)
        else:
            for pair in self._state.pairs().items():
                yield from pair

    def digest(self) -> str:
        """A hash over the whole state."""
        chunks = self.snapshot()
        return digest_of({b"%d" % at: chunk for at, chunk in enumerate(chunks)})

    def pairs(self) -> dict[bytes, bytes]:
        """The state's keys and values in their order; nothing for a ``MemoryMachine``."""
        return self._state.pairs()

    def _context(self, key: bytes, place: Place) -> CommandContext:
        guid = place.guid or place.seq.to_bytes(16, "big")
        seed = guid + place.seq.to_bytes(8, "big")
        return CommandContext(
            state=self._state,
            key=key,
            seq=Seq(place.seq),
            term=Term(place.term),
            time_ms=self.time_ms,
            guid=Guid(guid),
            partition=place.partition,
            version=place.version or self.machine.version,
            chance=Chance(seed),
        )


def _check_bytes(machine: type[StateMachine], chunk: object) -> None:
    if not isinstance(chunk, bytes | bytearray | memoryview):
        message = f"a chunk of {machine.__name__}.snapshot is {type(chunk).__name__}"
        raise MachineDefectError(f"{message}; yield bytes")


def as_key(key: str | bytes) -> bytes:
    """The bytes of a key."""
    return key.encode() if isinstance(key, str) else bytes(key)
