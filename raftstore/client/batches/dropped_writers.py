"""Writers with batches in a table that is about to be dropped.

The catalog remembers them, so that a stream whose checkpoint outlives the table does not begin
another one in its middle. Asked before the drop: a writer whose first batch is committed between
the two is not remembered, and neither is anyone of a table whose coordinator does not answer.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import suppress
from functools import partial
from typing import Final

from raftstore.client.context import Context
from raftstore.client.requests.answers import expect
from raftstore.client.requests.leader_requests import Asked, LeaderRequests
from raftstore.config import DROPPED_WRITERS_MAX
from raftstore.errors import RequestError
from raftstore.policy.levels import why_kind_is_too_new
from raftstore.protocol.admin import TableInfo
from raftstore.protocol.batches import Writers, WritersAnswer, WriterView
from raftstore.types import ChannelId, RecordKind

PATIENCE_MS: Final = 10_000
"""A table without a leader is to be dropped, too."""


async def writers_of(
    context: Context, leaders: LeaderRequests, table: TableInfo, deadline_ms: int
) -> tuple[tuple[str, str], ...]:
    """Return (writer, lineage) of those with batches, the latest first; () if no node answers."""
    levels = {node: info.level for node, info in context.topology.nodes.items()}
    if why_kind_is_too_new(RecordKind.STAGED, levels) is not None:
        return ()  # some node does not know the question, and the table has no batches
    now_ms = context.now_ms()
    until_ms = now_ms + min(PATIENCE_MS, (deadline_ms - now_ms) // 2)
    views: list[WriterView] = []
    with suppress(RequestError):
        async for some in _views(leaders, table, until_ms):
            views += some
    found = sorted(views, key=lambda view: view.at_ms, reverse=True)
    # A job of its own has no next batch, and whose lineage no node reported cannot be known again.
    named = (
        (view.writer, view.lineage)
        for view in found
        if view.lineage and view.last_batch >= 0 and not view.one_shot
    )
    return tuple(named)[:DROPPED_WRITERS_MAX]


def _question(channel: ChannelId, after: str, request_id: int, left_ms: int) -> Writers:
    return Writers(request_id, channel, left_ms, after=after)


async def _views(
    leaders: LeaderRequests, table: TableInfo, until_ms: int
) -> AsyncGenerator[tuple[WriterView, ...], None]:
    """All writers of the table, some at a time: one answer has only so many, by name, and jobs of
    one batch, which are of no use here, may be more than that."""
    channel = table.channels[0].channel
    after = ""
    while True:
        answer = await leaders.ask(
            channel,
            partial(_question, channel, after),
            until_ms,
            asked=Asked(f"writers of table {table.name!r}", is_read=True),
        )
        reported = expect(WritersAnswer, answer)
        yield reported.writers
        if not (reported.more and reported.writers):
            return
        after = reported.writers[-1].writer
