"""Days of one table's life: what each of them has to end with, and what ends them early."""

from __future__ import annotations

import pytest

from jepsen_like import long_life
from jepsen_like.long_life import Day, LongLife, options_of
from raftstore.core.folds import BaseMaker, FoldBounds, Folds

DAY_MS = 3_000.0


@pytest.mark.slow
def test_days_end_with_equal_replicas_and_logs_within_their_bound() -> None:
    """Writers, micro-batches and faults begin again each day; each evening says what there is."""
    days: list[Day] = []
    figures = LongLife(options_of(1, 500), DAY_MS).run(2, days.append)
    assert figures.violation is None
    assert figures.days == days
    assert [day.number for day in days] == [1, 2]
    assert 0 < days[0].records < days[1].records
    assert days[1].rows > 0
    assert days[0].hashes != days[1].hashes
    assert days[1].log_bytes_max > 0
    assert figures.acknowledged > 50
    assert figures.batches > 0
    assert figures.trims > 0


@pytest.mark.slow
def test_log_that_is_not_cut_ends_the_days(monkeypatch: pytest.MonkeyPatch) -> None:
    """The bound is looked at all along, not only in the evening."""
    monkeypatch.setattr(long_life, "BEYOND_BYTES_MAX", -long_life.RETENTION.log_bytes + 1_000)
    figures = LongLife(options_of(1, 500), DAY_MS).run(1, lambda _: None)
    assert figures.violation is not None
    assert "a log of" in figures.violation
    assert figures.days == []


@pytest.mark.slow
def test_bases_grow_until_as_much_is_remembered_as_may_be(monkeypatch: pytest.MonkeyPatch) -> None:
    """S4.5: what sessions may ask for again is bounded by number, whatever the days bring."""
    small = FoldBounds(guid_window=16, sessions_max=8, outcomes_max=40)
    for reader in (Folds.__init__, BaseMaker.__init__):
        monkeypatch.setitem(reader.__kwdefaults__, "bounds", small)
    figures = LongLife(options_of(1, 500), DAY_MS).run(4, lambda _: None)
    assert figures.violation is None
    _, second, *_, last = figures.days
    assert last.records > 1.5 * second.records
    assert 0 < last.bases_bytes_max < 1.2 * second.bases_bytes_max
