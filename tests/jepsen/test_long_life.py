"""Days of one table's life: what each of them has to end with, and what ends them early."""

from __future__ import annotations

import pytest

from jepsen_like import long_life
from jepsen_like.long_life import Day, LongLife, options_of

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
