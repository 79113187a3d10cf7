"""Long-lived objects are frozen out of the collector's sight, but not too often."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

from raftstore.node.long_lived import GROWTH, LOOKS, LongLived


@pytest.fixture(autouse=True)
def _unfrozen() -> Iterator[None]:
    """Leave the collector as it was."""
    thresholds = gc.get_threshold()
    yield
    gc.unfreeze()
    gc.set_threshold(*thresholds)


@pytest.mark.slow
def test_opened_channels_are_frozen_when_there_are_many_more() -> None:
    """A full collection does not look at a thousand idle channels."""
    long_lived = LongLived()
    long_lived.started(8)
    kept = [[number] for number in range(1_000)]
    before = gc.get_freeze_count()
    long_lived.look(8 + GROWTH - 1)
    assert gc.get_freeze_count() == before
    long_lived.look(8 + GROWTH)
    assert gc.get_freeze_count() >= before + len(kept)
    after = gc.get_freeze_count()
    later = [[number] for number in range(1_000)]
    long_lived.look(8 + GROWTH + 1)
    assert gc.get_freeze_count() < after + len(later)


def test_collector_looks_less_often_than_by_itself() -> None:
    """The collector runs less often than by default: objects of a thousand elections are freed
    without it.
    """
    usual = gc.get_threshold()
    LongLived()
    assert gc.get_threshold() == LOOKS
    assert all(ours > theirs for ours, theirs in zip(LOOKS, usual, strict=True))
