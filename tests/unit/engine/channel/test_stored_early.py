"""Records that count as stored before they are durable, by the table's durability (S0.6)."""

from __future__ import annotations

from typing import Any
from unittest.mock import Mock

import pytest

from raftstore.engine.channel.durable_tracker import DurableTracker
from raftstore.engine.channel.promised_durability import PromisedDurability
from raftstore.types import Durability, Seq, channel_id

CHANNEL = channel_id(bytes(16), 0)


def tracker(durability: Durability, *, in_force: bool = True) -> DurableTracker:
    """Of an empty log."""
    return DurableTracker(durability, in_force=durability if in_force else Durability.FSYNC)


def rows(tracked: DurableTracker, operation: int, last_seq: int) -> None:
    """Append a record of rows."""
    tracked.appended(operation, Seq(last_seq))
    if tracked.durability is not Durability.FSYNC:
        tracked.may_count_early()


@pytest.mark.parametrize(
    ("durability", "stored"),
    [
        (Durability.FSYNC, [0, 0, 0, 2]),
        (Durability.BUFFERED, [0, 1, 1, 2]),
        (Durability.MEMORY, [2, 2, 2, 2]),
    ],
)
def test_record_counts_when_its_durability_says(durability: Durability, stored: list[int]) -> None:
    """NATS-016: at once, when the system has it, or when it is durable."""
    tracked = tracker(durability)
    rows(tracked, 10, 1)
    rows(tracked, 11, 2)
    found: list[Any] = [tracked.stored_seq]
    for step, operation in ((tracked.written, 10), (tracked.completed, 9), (tracked.completed, 11)):
        step(operation)
        found.append(tracked.stored_seq)
    assert found == stored


@pytest.mark.parametrize("durability", [Durability.BUFFERED, Durability.MEMORY])
def test_nothing_counts_behind_a_record_of_another_kind(durability: Durability) -> None:
    """S0.6: a step of a micro-batch, a new term or a cut counts once durable; the rest waits."""
    tracked = tracker(durability)
    rows(tracked, 1, 1)
    tracked.appended(2, Seq(2))
    rows(tracked, 3, 3)
    tracked.written(3)
    assert tracked.stored_seq == 1
    tracked.completed(2)
    assert tracked.stored_seq == 3
    tracked.truncated(4, Seq(3))
    rows(tracked, 5, 3)
    tracked.written(5)
    assert tracked.stored_seq == 2
    tracked.completed(4)
    assert tracked.stored_seq == 3


def test_nothing_counts_early_before_the_mark_says_so() -> None:
    """S0.6: the promise is made once, and again behind a checkpoint."""
    log = Mock()
    log.promise.side_effect = [7, 9, 11]
    tracked = tracker(Durability.MEMORY, in_force=False)
    promised = PromisedDurability(log, CHANNEL, tracked)
    rows(tracked, 6, 1)
    promised.want()
    rows(tracked, 8, 2)
    promised.want()
    assert (tracked.stored_seq, promised.is_awaited) == (0, True)
    assert not promised.on_durable(6)
    assert promised.on_durable(7)
    assert tracked.stored_seq == 2
    ended: list[bool] = []
    promised.take_back(ended.append)
    rows(tracked, 10, 3)
    assert tracked.stored_seq == 2
    promised.want()
    assert (promised.on_durable(9), ended) == (False, [True])
    assert promised.on_durable(11)
    assert tracked.stored_seq == 3
    assert [call.args for call in log.promise.call_args_list] == [
        (CHANNEL, Durability.MEMORY),
        (CHANNEL, Durability.FSYNC),
        (CHANNEL, Durability.MEMORY),
    ]
