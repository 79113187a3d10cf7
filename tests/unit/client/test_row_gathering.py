"""Rows that share records: the order of one key's writes, conditional ones among them."""

from __future__ import annotations

from raftstore.client.writes.row_gathering import GatheredRow, RowGathering


def row(key: bytes = b"k", *, is_conditional: bool = False) -> GatheredRow:
    return GatheredRow(key, 10, 5_000, is_conditional)


def test_conditional_writes_wait_for_unconditional_ones_of_their_key_only() -> None:
    """Among themselves their conditions order them; another key holds nobody up."""
    gathering = RowGathering()
    put, swap, again, other = row(), row(is_conditional=True), row(is_conditional=True), row(b"o")
    for each in (put, swap, again, other):
        gathering.add(each)
    assert gathering.take(0) == [put, other]
    assert not gathering.may_leave
    gathering.end([put, other], [])
    assert [gathering.take(0), gathering.take(0), gathering.take(0)] == [[swap], [again], []]


def test_write_waits_for_every_conditional_one_of_its_key() -> None:
    """Each of them was begun before it, and must find the row as it was."""
    gathering = RowGathering()
    swap, again, put = row(is_conditional=True), row(is_conditional=True), row()
    for each in (swap, again, put):
        gathering.add(each)
    assert [gathering.take(0), gathering.take(0), gathering.take(0)] == [[swap], [again], []]
    gathering.end([again], [])
    assert gathering.take(0) == []
    gathering.end([swap], [])
    assert gathering.take(0) == [put]


def test_rows_put_back_leave_before_those_that_wait() -> None:
    """They were begun earlier; and later writes of their keys stay behind them."""
    gathering = RowGathering()
    first, second, later, other = row(b"1"), row(b"2"), row(b"1"), row(b"3")
    for each in (first, second):
        gathering.add(each)
    assert gathering.take(0) == [first, second]
    for each in (later, other):
        gathering.add(each)
    gathering.end([first, second], [first])
    assert gathering.take(0) == [first, other]
    assert gathering.waiting() == [later]
