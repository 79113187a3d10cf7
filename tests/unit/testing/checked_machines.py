"""Machines with one planted defect each; another process can import them."""

from __future__ import annotations

import random
import time
from collections.abc import Iterable, Iterator

import raftstore


class Good(raftstore.MemoryMachine):
    """Adds up, and counts how often."""

    commands = results = raftstore.codec(int)
    answers = raftstore.codec(int)

    def __init__(self) -> None:
        self.total = self.count = 0

    def apply(self, command: int, context: raftstore.CommandContext) -> int:
        if command < 0:
            raise raftstore.RejectedError("below 0")
        self.total += command
        self.count += 1
        return self.total * 100 + self.count

    def query(self, request: bytes, context: raftstore.QueryContext) -> int:
        return self.total

    def snapshot(self) -> Iterator[bytes]:
        yield b"%d" % self.total
        yield b"%d" % self.count

    def restore(self, chunks: Iterable[bytes]) -> None:
        self.total, self.count = map(int, chunks)


class LosesAField(Good):
    """Forgets the count."""

    def snapshot(self) -> Iterator[bytes]:
        yield b"%d" % self.total
        yield b"0"


class AsksTheClock(Good):
    """Adds what time it is, in years."""

    def apply(self, command: int, context: raftstore.CommandContext) -> int:
        return super().apply(command, context) + int(time.time() // 31_536_000)


class Draws(Good):
    """Adds a number at random."""

    def apply(self, command: int, context: raftstore.CommandContext) -> int:
        return super().apply(command, context) + random.randrange(1_000_000)


class Hashes(Good):
    """Depends on the order of a set of strings."""

    def apply(self, command: int, context: raftstore.CommandContext) -> int:
        # The first name alone is the same under two hash seeds in one of twenty runs.
        order = [name.partition(" ")[2] for name in {f"name {at}" for at in range(20)}]
        return super().apply(command, context) + int("".join(order[:8]))


class RejectsLate(Good):
    """Counts a command before it looks at it."""

    def apply(self, command: int, context: raftstore.CommandContext) -> int:
        self.count += 1
        return super().apply(command, context)


class ChangesInQuery(Good):
    """Counts questions, too."""

    def query(self, request: bytes, context: raftstore.QueryContext) -> int:
        self.count += 1
        return self.total


class KeepsInItself(raftstore.StateMachine):
    """Keeps in the object what belongs into the state."""

    commands = results = raftstore.codec(int)
    total = 0

    def apply(self, command: int, context: raftstore.CommandContext) -> int:
        self.total += command
        return self.total
