"""Replicas that move so that nodes hold even shares: how far they are."""

from __future__ import annotations

from typing import Final

import msgspec

from raftstore.http.queries import Timed
from raftstore.http.routes import Answer, Call, Route


class MoveBody(msgspec.Struct, frozen=True):
    """A move of a channel's replicas."""

    channel: str
    sources: tuple[str, ...]
    targets: tuple[str, ...]
    state: str
    """NOT_STARTED, EXPANDING, CATCHING_UP, SWITCHING, SHRINKING; COMPLETED, FAILED, CANCELED or
    TIMEOUT at the end."""
    bytes: int
    """Of the channel's table when it was planned; 0: not known."""
    copied: int
    change: int
    """The order by which it is carried out; 0: there is none yet."""
    reason: str
    """Why it ended so, or what it waits for."""


class RebalanceBody(msgspec.Struct, frozen=True):
    """The rebalance that is open, else the last one; number 0: there was none."""

    number: int
    state: str
    reason: str
    is_open: bool
    is_cancelled: bool
    begun_ms: int
    ended_ms: int
    """Wall clock; 0: it is open."""
    throttle: int
    """Bytes of tables that a node sends in a second at most; 0: its setting counts."""
    tags: dict[str, str]
    """Of nodes that have one."""
    leaders: bool | None
    """Whether leaders are made even, as an operator has said; null: as rebalance.leaders of the
    nodes is set."""
    moves: tuple[MoveBody, ...]


async def rebalance(call: Call) -> Answer:
    """Show how far the open rebalance is, or how the last one ended."""
    found = await (await call.client()).rebalance_status(timeout=call.left_s)
    return Answer(msgspec.convert(found, RebalanceBody, from_attributes=True))


ROUTES: Final = (
    Route(
        "GET",
        "/v1/rebalance",
        "The rebalance of replicas that is open, or the last one: its moves and their states.",
        rebalance,
        Timed,
        RebalanceBody,
    ),
)
