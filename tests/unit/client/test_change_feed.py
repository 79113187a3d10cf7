"""Positions of changes: they mean the same for any cut of the pages, and survive encoding."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from raftstore.client.changes.change_feed import (
    ChangeFeed,
    ChangePosition,
    ChangeReader,
    FeedPage,
    Place,
    places_of,
)
from raftstore.client.position import Position
from raftstore.errors import PositionError
from raftstore.protocol.admin import ChannelInfo, TableInfo
from raftstore.protocol.changes import ChangeEndsAnswer, ChangePiece
from raftstore.protocol.payload import encode_rows
from raftstore.rows.schema import TableSchema
from raftstore.rows.sealing import seal
from raftstore.types import ChannelId, Seq, Term

UUID = b"u" * 16
SCHEMA = TableSchema(("id",))
CHANNELS = tuple(ChannelInfo(ChannelId(UUID + bytes((0, n))), (), None, Term(0)) for n in range(2))
INFO = TableInfo("t", UUID, ("id",), 2, 3, "fsync", None, "", CHANNELS)


def piece(seq: int, *ids: int) -> ChangePiece:
    """Rows with these ids."""
    rows = [SCHEMA.row_to_key_value({"id": number}) for number in ids]
    return ChangePiece(Seq(seq), 0, encode_rows((key, seal(key, value)) for key, value in rows))


def place(after: int, sub: int = 0, rows: int = 0) -> Place:
    """Somewhere in a partition."""
    return Place(Seq(after), sub, rows)


def test_position_comes_back_as_it_was_told() -> None:
    """As text; what is none is refused, and so is one of another table or a place before any."""
    position = ChangePosition(UUID, (place(5, 7, 3), place(0)))
    assert ChangePosition.parse(str(position)) == position
    assert places_of(str(position), INFO) == list(position.places)
    since = Position.at(UUID, 1, Term(2), Seq(9))
    assert places_of(since, INFO) == places_of(str(since), INFO) == [place(0), place(9)]
    text = str(position)
    letters = [(at, letter) for at in range(3, len(text) - 1) for letter in "AB z"]
    lower = [text[:at] + letter + text[at + 1 :] for at, letter in letters if letter != text[at]]
    negative = ChangePosition(UUID, (place(-1), place(0)))
    for bad in ("c1.", text[:-9], *lower, f" {text}", str(negative), "elsewhere"):
        with pytest.raises(PositionError):
            places_of(bad, INFO)
    for other in (ChangePosition(b"v" * 16, position.places), ChangePosition(UUID, (place(0),))):
        with pytest.raises(PositionError, match="another table"):
            places_of(other, INFO)


@pytest.mark.parametrize("told", range(7))
def test_reader_goes_on_behind_the_change_however_pages_are_cut(told: int) -> None:
    """A page that was cut elsewhere, or that holds less than was reported, changes nothing."""
    pieces = (piece(2, 1, 2), piece(5, 3, 4, 5), piece(6, 6))
    whole = FeedPage(place(0), pieces, place(6))
    first = ChangeReader(INFO, SCHEMA, [place(0), place(0)])
    seen = [(change.row, change.position) for change in first.read(0, whole)]
    assert [row for row, _ in seen] == [{"id": n} for n in range(1, 7)]
    assert first.position.places == (place(6), place(0))
    start = seen[told - 1][1] if told else ChangePosition(UUID, (place(0), place(0)))
    second = ChangeReader(INFO, SCHEMA, start.places)
    cut = (
        FeedPage(place(0), pieces[:1], place(2)),
        FeedPage(place(2), pieces[1:2], place(5)),
        FeedPage(place(5), pieces[2:], place(6)),
    )
    rest = [change.row for page in cut for change in second.read(0, page)]
    assert rest == [{"id": n} for n in range(told + 1, 7)]
    assert second.position == first.position


def test_limit_is_kept_by_whole_records_over_several_answers() -> None:
    """A first record whatever its size, and no other that is too much."""
    sizes = {2: 2, 5: 3, 6: 1, 16: 10}
    asked = []

    async def change_ends(_channel: Any, build: Any, _deadline_ms: int) -> ChangeEndsAnswer:
        request = build(1, 1_000)
        asked.append(request)
        # One record an answer, as if each had as many bytes as a node looks at.
        reached = min(seq for seq in sizes if seq > request.after)
        more = reached < request.to_seq and sizes[reached] < request.rows_max
        return ChangeEndsAnswer(1, Seq(0), Seq(16), Seq(reached), sizes[reached], more)

    async def limited(rows_max: int, after: int = 0, to_seq: int = 16) -> int:
        context: Any = SimpleNamespace(deadline_ms=lambda _timeout: 0)
        channel_reads: Any = SimpleNamespace(change_ends=change_ends)
        feed = ChangeFeed(context, channel_reads, INFO, None)
        return await feed.limited(Seq(after), Seq(to_seq), 0, rows_max)

    async def test() -> None:
        wanted = {1: 2, 2: 2, 3: 2, 5: 5, 6: 6, 15: 6, 16: 16}
        assert {rows: await limited(rows) for rows in wanted} == wanted
        assert await limited(1, after=6) == 16
        asked.clear()
        assert await limited(5, after=16) == 16
        assert asked == []

    asyncio.run(test())
