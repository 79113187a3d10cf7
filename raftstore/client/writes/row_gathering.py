"""Which single-row writes of one channel share the next record, and which wait. Pure.

What costs is the record, not the row in it. So a write that finds nothing under way leaves at once,
by itself; those that are begun while ``RECORDS_UNDER_WAY_MAX`` records are under way leave together
when one of them has its outcome. The rules, each in one place below:

* a key is in one record under way at most, and once in it: writes of one key are applied in the
  order they were begun, through any retry, and each has a version of its own (``if_position``);
* rows share a record only when their deadlines are close: the outcome of the record is reported to
  all of them at the first of these, and nobody loses more than a tenth of its time by that;
* rows share a record only when they have one lifetime (TTL), as it is the record's;
* a conditional write has a record of its own, and is never held up by those that share. It waits
  for the unconditional writes of its key that were begun before it, and they for it.

A row is *ready* when no earlier write of its key is in its way, else it is *behind* that one.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Final

from raftstore.client.settings import REQUEST_BYTES_MAX, REQUEST_ROWS_MAX

RECORDS_UNDER_WAY_MAX: Final = 2
"""Shared records of one channel without an outcome: while one is on its way back, another is being
stored."""
DEADLINE_SHARE: Final = 10
"""Deadlines in one record differ by this part of the time that is left until the first, at most."""


@dataclass(slots=True, eq=False)
class GatheredRow:
    """A write of one row, as far as sharing is concerned."""

    key: bytes
    size: int
    """Bytes that it takes in a record."""
    deadline_ms: int
    is_conditional: bool = False
    ttl_ms: int = 0
    """How long it lives; 0: for ever."""


class RowGathering:
    """The rows of one channel that have no outcome yet."""

    def __init__(self) -> None:
        self._ready: dict[GatheredRow, None] = {}
        self._ready_alone: dict[GatheredRow, None] = {}
        self._behind: dict[bytes, deque[GatheredRow]] = {}
        self._active: dict[bytes, GatheredRow] = {}
        """By key: the unconditional write that is ready or under way."""
        self._conditions: dict[bytes, int] = {}
        """By key: conditional writes that are ready or under way."""
        self._shared_under_way = 0

    @property
    def is_idle(self) -> bool:
        """Nothing that could share a record is under way."""
        return self._shared_under_way == 0

    @property
    def may_leave(self) -> bool:
        """Whether ``take`` returns rows."""
        if self._ready_alone:
            return True
        return bool(self._ready) and self._shared_under_way < RECORDS_UNDER_WAY_MAX

    def waiting(self) -> list[GatheredRow]:
        """Return all rows that are in no record, the ready ones first."""
        behind = [row for rows in self._behind.values() for row in rows]
        return [*self._ready_alone, *self._ready, *behind]

    # --- what happened ---------------------------------------------------------------------------

    def add(self, row: GatheredRow) -> None:
        """A write begins."""
        if row.key in self._behind or self._is_held_up(row):
            self._behind.setdefault(row.key, deque()).append(row)
        else:
            self._make_ready(row)

    def remove(self, row: GatheredRow) -> bool:
        """A write that is in no record ends; False when it is in one."""
        behind = self._behind.get(row.key)
        if behind is not None and row in behind:
            behind.remove(row)
            if not behind:
                del self._behind[row.key]
            self._advance(row.key)  # what was behind it may be held up no more
            return True
        ready = self._ready_alone if row.is_conditional else self._ready
        if row not in ready:
            return False
        del ready[row]
        self._release(row)
        return True

    def take(self, now_ms: int) -> list[GatheredRow]:
        """Return the rows of the next record, which is under way from now on; [] if none may be."""
        if self._ready_alone:
            row = next(iter(self._ready_alone))
            del self._ready_alone[row]
            return [row]
        if not self.may_leave:
            return []
        self._shared_under_way += 1
        rows = self._next_shared(now_ms)
        for row in rows:
            del self._ready[row]
        return rows

    def end(self, rows: list[GatheredRow], put_back: list[GatheredRow]) -> None:
        """A record has its outcome. ``put_back``: those of its rows that leave again, first."""
        back = dict.fromkeys(put_back)
        if not rows[0].is_conditional:
            self._shared_under_way -= 1
            self._ready = {**back, **self._ready}
        else:
            self._ready_alone = {**back, **self._ready_alone}
        for row in rows:
            if row not in back:
                self._release(row)

    # --- inside ----------------------------------------------------------------------------------

    def _next_shared(self, now_ms: int) -> list[GatheredRow]:
        rows: list[GatheredRow] = []
        size = first_ms = last_ms = 0
        for row in self._ready:
            if rows and row.ttl_ms != rows[0].ttl_ms:
                continue
            if not rows:
                first_ms = last_ms = row.deadline_ms
            elif len(rows) >= REQUEST_ROWS_MAX or size + row.size > REQUEST_BYTES_MAX:
                break
            earliest_ms = min(first_ms, row.deadline_ms)
            latest_ms = max(last_ms, row.deadline_ms)
            if (latest_ms - earliest_ms) * DEADLINE_SHARE > max(0, earliest_ms - now_ms):
                continue  # one of them would get its outcome too early: this row leaves with others
            first_ms, last_ms = earliest_ms, latest_ms
            rows.append(row)
            size += row.size
        return rows

    def _is_held_up(self, row: GatheredRow) -> bool:
        """Whether a write of the same key, begun before, must have its outcome first."""
        if row.key in self._active:
            return True
        # Conditional writes do not wait for each other: their conditions order them.
        return not row.is_conditional and row.key in self._conditions

    def _make_ready(self, row: GatheredRow) -> None:
        if row.is_conditional:
            self._conditions[row.key] = self._conditions.get(row.key, 0) + 1
            self._ready_alone[row] = None
        else:
            self._active[row.key] = row
            self._ready[row] = None

    def _release(self, row: GatheredRow) -> None:
        """The write is in nobody's way any more."""
        key = row.key
        if not row.is_conditional:
            del self._active[key]
        elif self._conditions[key] > 1:
            self._conditions[key] -= 1
        else:
            del self._conditions[key]
        self._advance(key)

    def _advance(self, key: bytes) -> None:
        """Make ready what nothing holds up any more, in order."""
        behind = self._behind.get(key)
        while behind and not self._is_held_up(behind[0]):
            self._make_ready(behind.popleft())
        if behind is not None and not behind:
            self._behind.pop(key, None)
