"""Load on the store while Spark writes: readers at two levels and a writer of single rows."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from raftstore.aio import AsyncClient, AsyncTable
from raftstore.errors import RequestError
from raftstore.types import Outcome

PAUSE_S: Final = 0.005
"""Between two operations of one client: about 200 operations a second each."""
READ_TIMEOUT_S: Final = 5.0
WRITE_TIMEOUT_S: Final = 10.0
PUTS_TABLE: Final = "demo_puts"


@dataclass(slots=True)
class Series:
    """Successes and failures of one kind of operation, and its longest silence."""

    name: str
    ok: int = 0
    failed: int = 0
    unknown: int = 0
    longest_gap_s: float = 0.0
    gap_started_s: float = 0.0
    last_error: str = ""
    _last_ok: float | None = None

    def succeeded(self) -> None:
        """An operation completed now; the gap is the time since the one before."""
        now = time.monotonic()
        if self._last_ok is not None and now - self._last_ok > self.longest_gap_s:
            self.longest_gap_s = now - self._last_ok
            self.gap_started_s = self._last_ok
        self._last_ok = now
        self.ok += 1

    def refused(self, error: RequestError) -> None:
        """An operation failed, or its outcome is unknown."""
        self.last_error = str(error)
        if error.outcome is Outcome.UNKNOWN:
            self.unknown += 1
        else:
            self.failed += 1


@dataclass(slots=True)
class Load:
    """All clients of the demo, on one event loop."""

    client: AsyncClient
    tables: Sequence[tuple[str, Sequence[Any]]]
    """(table, keys to ask for); keys may not be written yet, which is an answer too."""
    writes: Series = field(default_factory=lambda: Series("single puts"))
    bounded: Series = field(default_factory=lambda: Series("bounded reads"))
    linearizable: Series = field(default_factory=lambda: Series("linearizable reads"))
    acknowledged: dict[int, str] = field(default_factory=dict)
    """Every put that was acknowledged: id -> text. Nothing of it may ever be missing."""
    in_doubt: dict[int, str] = field(default_factory=dict)
    """Puts whose outcome is unknown: they may be there or not, but never with another text."""
    _tasks: list[asyncio.Task[None]] = field(default_factory=list)

    async def start(self) -> None:
        """Create the table of the single puts and start every client."""
        await self.client.create_table(PUTS_TABLE, key="id", partitions=2, if_not_exists=True)
        loop = asyncio.get_running_loop()
        self._tasks = [
            loop.create_task(self._write()),
            loop.create_task(self._read(self.bounded, {"max_lag": 1_000_000})),
            loop.create_task(self._read(self.linearizable, {})),
        ]

    async def stop(self) -> None:
        """Stop all clients; an operation under way is finished first."""
        for task in self._tasks:
            task.cancel()
        for task in self._tasks:
            try:
                await task
            except asyncio.CancelledError:
                continue

    async def _write(self) -> None:
        table = self.client.table(PUTS_TABLE)
        number = 0
        while True:
            number += 1
            text = f"put {number}"
            self.in_doubt[number] = text  # until it is known
            try:
                await table.put({"id": number, "text": text}, timeout=WRITE_TIMEOUT_S)
            except RequestError as error:
                self.writes.refused(error)
                if error.outcome is Outcome.NOT_APPLIED:
                    del self.in_doubt[number]
            else:
                self.writes.succeeded()
                self.acknowledged[number] = self.in_doubt.pop(number)
            await asyncio.sleep(PAUSE_S)

    async def _read(self, series: Series, options: dict[str, Any]) -> None:
        pick = random.Random(series.name)
        handles: list[tuple[AsyncTable, Sequence[Any]]] = [
            (self.client.table(name), keys) for name, keys in self.tables
        ]
        while True:
            table, keys = pick.choice(handles)
            try:
                await table.get(pick.choice(keys), timeout=READ_TIMEOUT_S, **options)
            except RequestError as error:
                if error.code != "unknown_table":  # Spark has not made it yet
                    series.refused(error)
            else:
                series.succeeded()
            await asyncio.sleep(PAUSE_S)
