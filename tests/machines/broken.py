"""The same machines with one bug planted in each, of the kind that people write."""

from __future__ import annotations

import os
import random
from collections.abc import Iterable, Iterator

import raftstore
from raftstore import recipes
from raftstore.recipes.lock import Acquire, Grant, Release, Renew
from raftstore.recipes.rate_limiter import Decision, Take
from tests.machines.ledger import Ledger, Transfer
from tests.machines.queue import Queue
from tests.machines.unique_index import UniqueIndex


class RandomCounter(recipes.Counter):
    """Not deterministic: a bonus at random."""

    def apply(self, command: int, context: raftstore.CommandContext) -> int:
        return super().apply(command + (random.random() < 0.1), context)


class ProcessCounter(recipes.Counter):
    """Its results are of the process that started the nodes: replicas agree, and are wrong."""

    def apply(self, command: int, context: raftstore.CommandContext) -> int:
        return super().apply(command, context) * 10_000_000 + os.getppid()


class HastyElection(recipes.Election):
    """A Resign that comes late ends a leadership that it does not know of, as in version 1."""

    version = 1


class MemoryCounter(raftstore.MemoryMachine):
    """A counter in memory, without a bug; it numbers its results."""

    commands = results = raftstore.codec(int)
    answers = raftstore.codec(int)

    def __init__(self) -> None:
        self.totals: dict[str, int] = {}
        self.commands_applied = 0

    def apply(self, command: int, context: raftstore.CommandContext) -> int:
        key = context.key.decode()
        self.totals[key] = self.totals.get(key, 0) + command
        self.commands_applied += 1
        return self.totals[key] * 1_000 + self.commands_applied

    def query(self, request: bytes, context: raftstore.QueryContext) -> int:
        return self.totals.get(context.key.decode(), 0)

    def snapshot(self) -> Iterator[bytes]:
        yield raftstore.JSON.encode(self.totals)
        yield b"%d" % self.commands_applied

    def restore(self, chunks: Iterable[bytes]) -> None:
        totals, count = chunks
        self.totals, self.commands_applied = raftstore.JSON.decode(totals), int(count)


class ForgetfulCounter(MemoryCounter):
    """Its snapshot lacks a field."""

    def restore(self, chunks: Iterable[bytes]) -> None:
        super().restore(chunks)
        self.commands_applied = 0


class UnfencedLock(recipes.Lock):
    """A lease that is over is taken over under the same token."""

    def apply(self, command: Acquire | Renew | Release, context: raftstore.CommandContext) -> Grant:
        before = self.query(b"", context)  # type: ignore[arg-type]
        after = super().apply(command, context)
        if before.holder and before.holder != after.holder and isinstance(command, Acquire):
            after = Grant(after.holder, before.token, after.until_ms)
            context.state.put(context.key, raftstore.codec(Grant).encode(after))
        return after


class OvertakingQueue(Queue):
    """Places are texts: item 10 stands before item 9."""

    def place(self, context: raftstore.CommandContext) -> bytes:
        return b"%d" % context.seq


class GenerousLedger(Ledger):
    """Reads both balances before it writes either: who pays itself gets richer."""

    def move(self, context: raftstore.CommandContext, command: Transfer) -> None:
        source = self.balance(context, command.source) - command.amount
        target = self.balance(context, command.target) + command.amount
        self.add(context, command.source, source - self.balance(context, command.source))
        self.add(context, command.target, target - self.balance(context, command.target))


class StickyIndex(UniqueIndex):
    """An address that is given up is never free again."""

    def free(self, context: raftstore.CommandContext, address: bytes | None) -> None:
        del context, address


class CheapLimiter(recipes.RateLimiter):
    """Several permits cost as much as one."""

    def apply(self, command: Take, context: raftstore.CommandContext) -> Decision:
        return super().apply(Take(command.limit, command.window_ms), context)
