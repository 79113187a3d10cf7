"""A state machine of users for real nodes: a counter for each key, in the state or in memory."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

from raftstore.errors import RejectedError
from raftstore.machine import CommandContext, MemoryMachine, QueryContext, StateMachine, codec


class Counter(StateMachine):
    """Adds to the total of a key; refuses to fall below 0."""

    commands = results = answers = codec(int)

    def apply(self, command: Any, context: CommandContext) -> Any:
        """The total behind it."""
        total = int(context.state.get(context.key) or 0) + command
        if total < 0:
            raise RejectedError(f"{total} is below 0")
        context.state.put(context.key, b"%d" % total)
        return total

    def query(self, request: Any, context: QueryContext) -> Any:
        """The total of a key, or without one of all keys."""
        if request == b"fail":
            raise LookupError("asked to fail")
        if not context.key:
            return sum(int(value) for _, value in context.state.range(limit=10_000))
        return int(context.state.get(context.key) or 0)


class MemoryCounter(MemoryMachine):
    """The same in a dict."""

    commands = results = answers = codec(int)

    def __init__(self) -> None:
        self.totals: dict[bytes, int] = {}

    def apply(self, command: Any, context: CommandContext) -> Any:
        """The total behind it."""
        self.totals[context.key] = self.totals.get(context.key, 0) + command
        return self.totals[context.key]

    def query(self, request: Any, context: QueryContext) -> Any:
        """The total of a key."""
        del request
        return self.totals.get(context.key, 0)

    def snapshot(self) -> Iterable[bytes]:
        """All totals."""
        return [msgspec.msgpack.encode(sorted(self.totals.items()))]

    def restore(self, chunks: Iterable[bytes]) -> None:
        """All totals."""
        self.totals = dict(msgspec.msgpack.decode(b"".join(chunks), type=list[tuple[bytes, int]]))


class Ledger(StateMachine):
    """Keeps all that it was given with each command under its seq, and returns it."""

    commands = codec(str)
    results = answers = codec(list[Any])

    def apply(self, command: Any, context: CommandContext) -> Any:
        """[seq, term, time, new id, command]."""
        known = [context.seq, context.term, context.time_ms, context.new_id(), command]
        place = context.seq.to_bytes(8, "big")
        if context.state.get(place) is not None:
            raise RejectedError(f"seq {context.seq} was given before")
        context.state.put(place, msgspec.msgpack.encode(known))
        return known

    def query(self, request: Any, context: QueryContext) -> Any:
        """All of them, in the order of seqs."""
        del request
        stored = context.state.range(limit=100_000)
        return [msgspec.msgpack.decode(value) for _, value in stored]


class MemoryLedger(MemoryMachine):
    """The same in a list, with a long text so that snapshots are made."""

    commands = codec(str)
    results = answers = codec(list[Any])

    def __init__(self) -> None:
        self.known: list[list[Any]] = []

    def apply(self, command: Any, context: CommandContext) -> Any:
        """[seq, term, time, new id, length of the command]."""
        drawn = context.new_id()
        self.known.append([context.seq, context.term, context.time_ms, drawn, len(command)])
        return self.known[-1]

    def query(self, request: Any, context: QueryContext) -> Any:
        """All of them."""
        del request, context
        return self.known

    def snapshot(self) -> Iterable[bytes]:
        """All of them."""
        return [msgspec.msgpack.encode(each) for each in self.known]

    def restore(self, chunks: Iterable[bytes]) -> None:
        """All of them."""
        self.known = [msgspec.msgpack.decode(chunk) for chunk in chunks]
