"""A queue: first in, first out, one for each key."""

from __future__ import annotations

import msgspec

import raftstore


class Push(msgspec.Struct, frozen=True, tag=True):
    """Put an item at the end."""

    item: str


class Pop(msgspec.Struct, frozen=True, tag=True):
    """Take the first item; rejected where there is none."""


class Queue(raftstore.StateMachine):
    """Items under the key, its length before it, and their numbers."""

    commands = raftstore.codec(Push | Pop)
    results = raftstore.codec(str)
    answers = raftstore.codec(int)

    def apply(self, command: Push | Pop, context: raftstore.CommandContext) -> str:
        start = _start(context.key)
        if isinstance(command, Pop):
            for key, item in context.state.range(start, _end(context.key), limit=1):
                context.state.delete(key)
                return item.decode()
            raise raftstore.RejectedError("the queue is empty")
        context.state.put(start + self.place(context), command.item.encode())
        return command.item

    def place(self, context: raftstore.CommandContext) -> bytes:
        """Where a pushed item stands: keys of one length are in the order of the log."""
        return context.seq.to_bytes(8, "big")

    def query(self, request: bytes, context: raftstore.QueryContext) -> int:
        """How many items there are."""
        start, end = _start(context.key), _end(context.key)
        return sum(1 for _ in context.state.range(start, end, limit=100_000))


def _start(name: bytes) -> bytes:
    return len(name).to_bytes(2, "big") + name


def _end(name: bytes) -> bytes:
    return _start(name) + b"\xff" * 9
