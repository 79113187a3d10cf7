"""Which rows share a record: every order of beginnings, cancellations and outcomes.

The model is the list of all rows that have no outcome, in the order in which they were begun, and
the records under way. It says nothing of how rows are kept, only what may be seen.
"""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from raftstore.client.settings import REQUEST_BYTES_MAX
from raftstore.client.writes.row_gathering import (
    DEADLINE_SHARE,
    RECORDS_UNDER_WAY_MAX,
    GatheredRow,
    RowGathering,
)

KEYS = st.sampled_from([b"a", b"b", b"c", b"d"])
SIZES = st.sampled_from([10, 1_000, REQUEST_BYTES_MAX // 2, REQUEST_BYTES_MAX + 1])
PATIENCE_MS = st.sampled_from([100, 105, 111, 5_000, 5_200, 60_000])


class RowGatheringMachine(RuleBasedStateMachine):
    """Rows come, leave, end, and are taken back."""

    def __init__(self) -> None:
        super().__init__()
        self.now_ms = 0
        self.gathering = RowGathering()
        self.begun: list[GatheredRow] = []
        self.records: list[list[GatheredRow]] = []

    def under_way(self) -> list[GatheredRow]:
        return [row for record in self.records for row in record]

    def waiting(self) -> list[GatheredRow]:
        under_way = self.under_way()
        return [row for row in self.begun if row not in under_way]

    def earlier(self, row: GatheredRow) -> list[GatheredRow]:
        """Writes of its key that it waits for."""
        before = self.begun[: self.begun.index(row)]
        return [
            other
            for other in before
            if other.key == row.key and not (other.is_conditional and row.is_conditional)
        ]

    @rule(key=KEYS, size=SIZES, patience_ms=PATIENCE_MS, is_conditional=st.booleans())
    def begin(self, key: bytes, size: int, patience_ms: int, is_conditional: bool) -> None:
        row = GatheredRow(key, size, self.now_ms + patience_ms, is_conditional)
        self.begun.append(row)
        self.gathering.add(row)

    @rule()
    def leave(self) -> None:
        may_leave = self.gathering.may_leave
        rows = self.gathering.take(self.now_ms)
        assert bool(rows) == may_leave
        if not rows:
            return
        assert all(row in self.waiting() for row in rows)
        for row in rows:
            assert not self.earlier(row), "a write left while one before it has no outcome"
        assert len({row.key for row in rows}) == len(rows)
        if len(rows) > 1:
            assert not any(row.is_conditional for row in rows)
            assert sum(row.size for row in rows) <= REQUEST_BYTES_MAX
            first_ms = min(row.deadline_ms for row in rows)
            last_ms = max(row.deadline_ms for row in rows)
            assert (last_ms - first_ms) * DEADLINE_SHARE <= max(0, first_ms - self.now_ms)
        self.records.append(rows)

    @precondition(lambda self: self.records)
    @rule(data=st.data())
    def end(self, data: st.DataObject) -> None:
        record = self.records.pop(data.draw(st.integers(0, len(self.records) - 1)))
        put_back = [row for row in record if data.draw(st.booleans())]
        self.gathering.end(record, put_back)
        self.begun = [row for row in self.begun if row not in record or row in put_back]

    @precondition(lambda self: self.begun)
    @rule(data=st.data())
    def take_back(self, data: st.DataObject) -> None:
        row = data.draw(st.sampled_from(self.begun))
        is_waiting = row in self.waiting()
        assert self.gathering.remove(row) == is_waiting
        if is_waiting:
            self.begun.remove(row)

    @rule(later_ms=st.sampled_from([1, 50, 5_000]))
    def wait(self, later_ms: int) -> None:
        self.now_ms += later_ms

    @invariant()
    def nothing_is_lost(self) -> None:
        waiting = self.gathering.waiting()
        assert len(waiting) == len(self.waiting())
        assert all(row in waiting for row in self.waiting())

    @invariant()
    def few_are_under_way(self) -> None:
        shared = [record for record in self.records if not record[0].is_conditional]
        assert len(shared) <= RECORDS_UNDER_WAY_MAX
        assert self.gathering.is_idle == (not shared)

    @invariant()
    def waiting_callers_have_a_reason(self) -> None:
        """A row that waits for no other leaves, unless the records under way are enough."""
        free = [row for row in self.waiting() if not self.earlier(row)]
        shared = [record for record in self.records if not record[0].is_conditional]
        may_share = len(shared) < RECORDS_UNDER_WAY_MAX
        assert self.gathering.may_leave == any(row.is_conditional or may_share for row in free)

    def teardown(self) -> None:
        for record in self.records:
            self.gathering.end(record, [])
        while rows := self.gathering.take(self.now_ms):
            self.gathering.end(rows, [])
        assert self.gathering.waiting() == []


RowGatheringMachine.TestCase.settings = settings(stateful_step_count=30)
TestRowGathering = RowGatheringMachine.TestCase
