"""An ordered space of keys in memory, as ``context.state`` is one, with the contract's bounds.

What a command writes lies over the committed state until ``take`` or ``drop``, so a rejected
command leaves nothing and reads of the command see what it wrote.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator, Mapping
from hashlib import blake2b

from raftstore.errors import SchemaError, StateLimitError
from raftstore.machine import (
    COMMAND_WRITE_BYTES_MAX,
    COMMAND_WRITES_MAX,
    STATE_KEY_BYTES_MAX,
    STATE_VALUE_BYTES_MAX,
)


class MemoryState:
    """``State`` of the contract, for one partition."""

    def __init__(self, pairs: Mapping[bytes, bytes] | None = None) -> None:
        self._values = dict(pairs or {})
        self._keys = sorted(self._values)
        self._written: dict[bytes, bytes | None] = {}
        self._bytes = 0
        """Of keys and values in it."""

    # --- the contract -----------------------------------------------------------------------------

    def get(self, key: bytes) -> bytes | None:
        """The value of a key; None: it is not there."""
        if key in self._written:
            return self._written[key]
        return self._values.get(key)

    def range(
        self, start: bytes = b"", stop: bytes = b"", *, limit: int = 1000
    ) -> Iterator[tuple[bytes, bytes]]:
        """At most ``limit`` keys and values of [start, stop) in the order of the keys."""
        if limit < 0:
            raise SchemaError(f"limit={limit} of a range is below 0")
        found = self._between(start, stop)
        if self._written:
            within = (key for key in self._written if start <= key and (not stop or key < stop))
            found = sorted({*found, *within})
        # All at once: the state may be written to while the pairs are looked at.
        pairs = list[tuple[bytes, bytes]]()
        for key in found:
            if len(pairs) >= limit:
                break
            value = self.get(key)
            if value is not None:
                pairs.append((key, value))
        return iter(pairs)

    def put(self, key: bytes, value: bytes) -> None:
        """Set a key; SchemaError where it is beyond the bounds of the contract."""
        if not isinstance(value, bytes):
            raise SchemaError(f"the value of {key!r:.80} is {type(value).__name__}; give bytes")
        if len(value) > STATE_VALUE_BYTES_MAX:
            message = f"the value of {key!r:.80} has {len(value)} bytes"
            raise StateLimitError(f"{message}; allowed are {STATE_VALUE_BYTES_MAX}")
        self._write(key, value)

    def delete(self, key: bytes) -> None:
        """Remove a key, if it is there."""
        self._write(key, None)

    # --- of the test kit --------------------------------------------------------------------------

    def take(self) -> None:
        """The command is applied: what it wrote is the state."""
        for key, value in self._written.items():
            if value is not None:
                if key not in self._values:
                    insort(self._keys, key)
                self._values[key] = value
            elif self._values.pop(key, None) is not None:
                del self._keys[bisect_left(self._keys, key)]
        self.drop()

    def drop(self) -> None:
        """The command is refused: the state is as before."""
        self._written.clear()
        self._bytes = 0

    def pairs(self) -> dict[bytes, bytes]:
        """Keys and values in the order of the keys."""
        return {key: self._values[key] for key in self._keys}

    def digest(self) -> str:
        """A hash over all keys and values."""
        return digest_of(self.pairs())

    def view(self) -> MemoryView:
        """The state of this moment, which never changes."""
        return MemoryView(self)

    def _between(self, start: bytes, stop: bytes) -> list[bytes]:
        first = bisect_left(self._keys, start)
        return self._keys[first : bisect_left(self._keys, stop) if stop else None]

    def _write(self, key: bytes, value: bytes | None) -> None:
        if not isinstance(key, bytes):
            raise SchemaError(f"the key {key!r:.80} is {type(key).__name__}; give bytes")
        if not key:
            raise StateLimitError("the key is empty; give at least one byte")
        if len(key) > STATE_KEY_BYTES_MAX:
            message = f"the key {key[:80]!r}... has {len(key)} bytes"
            raise StateLimitError(f"{message}; allowed are {STATE_KEY_BYTES_MAX}")
        if key not in self._written and len(self._written) >= COMMAND_WRITES_MAX:
            message = f"a command writes more than {COMMAND_WRITES_MAX} keys"
            raise StateLimitError(f"{message}; split it into several commands")
        if key in self._written:
            size = self._bytes - len(self._written[key] or b"") + len(value or b"")
        else:
            size = self._bytes + len(key) + len(value or b"")
        if size > COMMAND_WRITE_BYTES_MAX:
            message = f"a command writes {size} bytes of keys and values"
            raise StateLimitError(f"{message}; allowed are {COMMAND_WRITE_BYTES_MAX}")
        self._written[key], self._bytes = value, size


class MemoryView:
    """``StateView`` of the contract: a copy of a state, for queries, that takes no writes."""

    def __init__(self, state: MemoryState) -> None:
        self._state = MemoryState(state.pairs())

    def get(self, key: bytes) -> bytes | None:
        """The value of a key; None: it is not there."""
        return self._state.get(key)

    def range(
        self, start: bytes = b"", stop: bytes = b"", *, limit: int = 1000
    ) -> Iterator[tuple[bytes, bytes]]:
        """At most ``limit`` keys and values of [start, stop) in the order of the keys."""
        return self._state.range(start, stop, limit=limit)


class NoState(MemoryState):
    """``context.state`` of a ``MemoryMachine``: it is empty and takes nothing."""

    def _write(self, key: bytes, value: bytes | None) -> None:
        del value
        message = f"a MemoryMachine keeps its state in itself: context.state took {key!r:.80}"
        raise SchemaError(f"{message}; derive from raftstore.StateMachine to use it")


def digest_of(pairs: Mapping[bytes, bytes]) -> str:
    """A hash over keys and values, in the order given."""
    made = blake2b(digest_size=16)
    for key, value in pairs.items():
        for part in (key, value):
            made.update(len(part).to_bytes(4, "big"))
            made.update(part)
    return made.hexdigest()
