"""Attempts that nobody goes on with: how long a coordinator leaves them open."""

from __future__ import annotations

from typing import Any, cast

import pytest

from raftstore.config import BatchSettings
from raftstore.engine.batches import coordinated_table as module
from raftstore.engine.batches.coordinated_table import CoordinatedTable
from raftstore.protocol.batches import Writers
from tests.batch_bench import CoordinatorBench
from tests.unit.engine.batches.test_coordinated_table import CHANNEL, Tables, leading_runner

TTL_MS = 9_000
"""Of every attempt that the bench opens."""
ASK_MS = 1_000


def table_of(bench: CoordinatorBench) -> CoordinatedTable:
    """The memory of a leader that begins."""
    settings = BatchSettings(push_ms=200, ask_ms=ASK_MS)
    return CoordinatedTable(leading_runner(), cast(Any, Tables(bench.state)), settings)


def opened(*writers: str) -> CoordinatorBench:
    """Each of them has an open attempt, numbered from 1 in this order."""
    bench = CoordinatorBench()
    for writer in writers:
        bench.begin(writer)
    return bench


def test_leadership_gives_all_open_attempts_their_whole_time() -> None:
    """By its own clock, from when it found them; those that are decided play no part."""
    bench = opened("u", "v", "done")
    bench.commit(3, "done")
    table = table_of(bench)
    assert table.next_deadline_ms(500) == 500, "the attempts are still to be looked for"
    table.scan_writers(500)
    assert table.next_deadline_ms(500) == 500 + TTL_MS
    assert table.take_expired(500 + TTL_MS - 1) == []
    assert table.take_expired(500 + TTL_MS) == [("u", 1), ("v", 2)]
    bench.begin("later")
    table.scan_writers(2_000)
    assert table.take_expired(10**9) == [("u", 1), ("v", 2)], "the search has ended"


def test_attempt_that_a_task_began_again_is_not_given_more_time_by_the_search() -> None:
    """The time that was stated to this leader itself counts."""
    table = table_of(opened("w"))
    table.touch(1, "w", 700, 0)
    table.scan_writers(500)
    assert table.take_expired(700) == [("w", 1)]


@pytest.mark.parametrize(("writers", "turns"), [(3, 2), (4, 3), (5, 3)])
def test_many_writers_are_looked_at_in_turns(
    monkeypatch: pytest.MonkeyPatch, writers: int, turns: int
) -> None:
    """Two of them each, every one once; a page that is not full is the last."""
    monkeypatch.setattr(module, "WRITERS_PER_TURN", 2)
    names = [f"w{number}" for number in range(writers)]
    table = table_of(opened(*names))
    for _ in range(turns):
        assert table.next_deadline_ms(0) == 0
        table.scan_writers(0)
    assert table.next_deadline_ms(0) == TTL_MS
    assert [writer for writer, _ in table.take_expired(TTL_MS)] == names


def test_attempt_that_is_begun_again_starts_anew_and_an_earlier_one_says_nothing() -> None:
    """A task of an attempt that is over may ask late."""
    table = table_of(opened("w"))
    table.scan_writers(0)
    table.touch(2, "w", 5_000, 0)
    table.touch(1, "w", 10, 0)
    assert table.next_deadline_ms(0) == 5_000
    table.touch(2, "w", 5_000, 3_000)
    assert table.next_deadline_ms(0) == 8_000
    table.settle(1)
    assert table.next_deadline_ms(0) == 8_000, "not that one"
    table.settle(2)
    assert table.next_deadline_ms(0) is None


def test_only_what_is_open_in_the_state_expires() -> None:
    """Neither an unknown writer, nor a closed attempt, nor one that another replaced."""
    bench = opened("closed", "replaced", "open")
    bench.commit(1, "closed")
    bench.begin("replaced", uuid=2)
    table = table_of(bench)
    for attempt, writer in enumerate(("closed", "replaced", "open"), 1):
        table.touch(attempt, writer, 100, 0)
    table.touch(9, "unknown", 100, 0)
    table.touch(10, "unknown too", 100, 0)
    table.touch(3, "open", 100, 0)
    assert table.take_expired(100) == [("open", 3)]
    assert table.take_expired(100 + ASK_MS - 1) == []
    assert table.take_expired(100 + ASK_MS) == [("open", 3)], "until a record has ended it"


def test_list_of_writers_is_told_in_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    """A full page says that there may be more."""
    table = table_of(opened("u", "v", "w"))
    monkeypatch.setattr(module, "WRITERS_MAX", 2)
    pages = []
    for after in ("", "v"):
        answer = table.tell_writers(Writers(1, CHANNEL, 900, after=after))
        pages.append(([writer.writer for writer in answer.writers], answer.more))
    assert pages == [(["u", "v"], True), (["w"], False)]
