"""The state as one command of a user's machine sees and changes it (``raftstore.machine.State``),
with the bounds of what it may write."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from heapq import merge
from itertools import islice
from operator import itemgetter
from typing import Any, Final

from raftstore.errors import SchemaError, StateLimitError, StorageError
from raftstore.machine import COMMAND_WRITES_MAX, STATE_KEY_BYTES_MAX, STATE_VALUE_BYTES_MAX
from raftstore.protocol.machines import CommandEnd
from raftstore.record_machine import RecordView
from raftstore.rows.sealing import seal

RANGE_ROWS: Final = 256
"""Rows that a command's range reads at a time, whatever its limit is."""
UNBOUNDED: Final = 2**63
"""Bytes: the limits in force have no bound."""


class CommandState:
    """machine.State of one command: over the rows, with what the command wrote itself."""

    def __init__(self, view: RecordView, bytes_max: int = UNBOUNDED) -> None:
        self._view = view
        self._bytes_max = bytes_max
        self.written: dict[bytes, bytes | None] = {}
        self.bytes = 0
        """Of keys and values in it."""
        self.broken: StorageError | None = None
        """What a read of the table raised, whatever the machine made of it."""
        self._has_ended = False

    def end(self) -> None:
        """The command has ended: who kept this would read another one's state, and write what is
        lost in silence."""
        self._has_ended = True

    def get(self, key: bytes) -> bytes | None:
        """The value of a key; None: it is not there."""
        self._check()
        if key in self.written:
            return self.written[key]
        try:
            row = self._view.row(key)
        except StorageError as error:
            self.broken = error
            raise
        return None if row is None else row.value

    def range(
        self, start: bytes = b"", stop: bytes = b"", *, limit: int = 1000
    ) -> Iterator[tuple[bytes, bytes]]:
        """At most ``limit`` keys and values of [start, stop) in the order of the keys, as they are
        when it is called: what is written while they are gone through changes none of them."""
        self._check()
        written = {
            key: value
            for key, value in self.written.items()
            if key >= start and (not stop or key < stop)
        }
        kept = (pair for pair in self._stored(start, stop) if pair[0] not in written)
        own = ((key, value) for key in sorted(written) if (value := written[key]) is not None)
        return islice(merge(kept, own, key=itemgetter(0)), max(limit, 0))

    def _stored(self, start: bytes, stop: bytes) -> Iterator[tuple[bytes, bytes]]:
        """Rows page by page: a limit is no promise that so many are there, or are looked at."""
        more = True
        while more:
            self._check()
            try:
                found = self._view.range(start, stop, RANGE_ROWS)
            except StorageError as error:
                self.broken = error
                raise
            yield from found
            more = len(found) == RANGE_ROWS
            if more:
                start = found[-1][0] + b"\0"

    def put(self, key: Any, value: Any) -> None:
        """Set a key."""
        if not isinstance(key, bytes) or not isinstance(value, bytes):
            kinds = f"{type(key).__name__} and {type(value).__name__}"
            raise SchemaError(f"a key and a value of the state are bytes, not {kinds}")
        if not 0 < len(key) <= STATE_KEY_BYTES_MAX:
            text = f"a key of the state has {len(key)} bytes, 1 to {STATE_KEY_BYTES_MAX} are"
            raise StateLimitError(f"{text} allowed")
        if len(value) > STATE_VALUE_BYTES_MAX:
            text = f"the value of {key!r:.80} has {len(value)} bytes, at most"
            raise StateLimitError(f"{text} {STATE_VALUE_BYTES_MAX} are allowed")
        self._write(key, value)

    def delete(self, key: Any) -> None:
        """Remove a key, if it is there."""
        if not isinstance(key, bytes):
            raise SchemaError(f"a key of the state is bytes, not {type(key).__name__}")
        self._write(key, None)

    def _write(self, key: bytes, value: bytes | None) -> None:
        self._check()
        # Before it is written: a machine that goes on all the same has not gone over the limit.
        if len(self.written) >= COMMAND_WRITES_MAX and key not in self.written:
            raise StateLimitError(f"a command changes more than {COMMAND_WRITES_MAX} keys")
        size = self.bytes + len(value or b"")
        if key in self.written:
            size -= len(self.written[key] or b"")
        else:
            size += len(key)
        if size > self._bytes_max:
            text = f"a command writes {size} bytes of keys and values, at most {self._bytes_max}"
            raise StateLimitError(f"{text} are allowed; write less at once")
        self.written[key], self.bytes = value, size

    def _check(self) -> None:
        if self._has_ended:
            raise RuntimeError(
                "this is the state of a command that has ended; use context.state of the command "
                "at hand, in the thread that applies it"
            )


class NoState:
    """machine.State of a machine in memory: empty, and takes nothing."""

    def get(self, key: bytes) -> bytes | None:
        """Nothing is there."""
        del key
        return None

    def range(
        self, start: bytes = b"", stop: bytes = b"", *, limit: int = 1000
    ) -> Iterator[tuple[bytes, bytes]]:
        """Nothing is there."""
        del start, stop, limit
        return iter(())

    def put(self, key: bytes, value: bytes) -> None:
        """Refused."""
        del value
        raise SchemaError(f"a MemoryMachine keeps its state in itself, not under {key!r:.80}")

    def delete(self, key: bytes) -> None:
        """Refused."""
        raise SchemaError(f"a MemoryMachine keeps its state in itself, not under {key!r:.80}")


def sealed_writes(
    changes: CommandState | NoState, end: CommandEnd
) -> Sequence[tuple[bytes, bytes | None]]:
    """The rows that a command leaves; one that is rejected leaves nothing but its end."""
    if not isinstance(changes, CommandState) or end.is_rejected:
        return ()
    written = changes.written.items()
    return [(key, None if value is None else seal(key, value)) for key, value in written]
