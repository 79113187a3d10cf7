"""Questions to one replica of a channel, each bounded, and asked of no other instead."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import Final, TypeVar

from raftstore.client.context import Context
from raftstore.client.requests.answers import expect
from raftstore.client.requests.outcomes import error_of
from raftstore.errors import (
    OverloadedError,
    RequestTimeoutError,
    TransportError,
    UnavailableError,
    UnsupportedRequestError,
)
from raftstore.policy.levels import CHECK_LEVEL, MACHINE_RESTORE_LEVEL
from raftstore.protocol.message import Failed, Message, Request
from raftstore.protocol.reads import ClosePin
from raftstore.protocol.replica_checks import (
    EntriesAnswer,
    HashHistory,
    HashHistoryAnswer,
    HashRange,
    HashRangeAnswer,
    PinState,
    PinStateAnswer,
    ReadEntries,
)
from raftstore.types import ChannelId, NodeId, Seq, node_name

STEP_MS: Final = 60_000
"""For an answer that a node works for: it reads a bounded amount, but others may come first."""
MARGIN_MS: Final = 1_000
"""So much longer than the node is waited for."""

AnswerT = TypeVar("AnswerT", bound=Message)


class ReplicaQuestions:
    """Asks the replicas of one channel."""

    def __init__(self, context: Context, channel: ChannelId) -> None:
        self._context = context
        self._channel = channel

    async def pin(self, node: NodeId, seq: Seq, wait_ms: int) -> PinStateAnswer:
        """Pin the state behind the record that covers a seq, or the present one behind it."""
        return await self._ask(
            node, lambda number: PinState(number, self._channel, seq, wait_ms), PinStateAnswer
        )

    def close(self, node: NodeId, pin: int) -> None:
        """Notify the node that a state is needed no longer; it drops it by itself in time."""
        link = self._context.links.query(node)
        if link is not None and link.is_open:
            with suppress(TransportError, OverloadedError):
                link.request(lambda number: ClosePin(number, self._channel, pin))

    async def history(self, node: NodeId, seq: Seq) -> HashHistoryAnswer:
        """The hash of the node's log at a seq."""
        return await self._ask(
            node, lambda number: HashHistory(number, self._channel, seq, STEP_MS), HashHistoryAnswer
        )

    async def hashed(
        self,
        node: NodeId,
        pin: int,
        after: bytes,
        last: bytes,
        entries_max: int,
        *,
        lists: bool = False,
    ) -> HashRangeAnswer:
        """The hash of a part of a pinned state."""
        channel = self._channel
        return await self._ask(
            node,
            lambda number: HashRange(
                number, channel, pin, after, last, entries_max, STEP_MS, lists
            ),
            HashRangeAnswer,
        )

    async def entries(
        self, node: NodeId, pin: int, prefix: bytes, after: bytes, wait_ms: int
    ) -> EntriesAnswer:
        """Entries of a pinned state of a channel set whose keys begin with a prefix."""
        channel = self._channel
        return await self._ask(
            node,
            lambda number: ReadEntries(number, channel, pin, prefix, after, wait_ms),
            EntriesAnswer,
            needs=("the state of a channel set", MACHINE_RESTORE_LEVEL),
        )

    async def _ask(
        self,
        node: NodeId,
        build: Callable[[int], Request],
        kind: type[AnswerT],
        needs: tuple[str, int] = ("comparing replicas", CHECK_LEVEL),
    ) -> AnswerT:
        """Ask one node; raises RequestError: why it did not answer, and TransportError."""
        context, name = self._context, node_name(node)
        info = context.topology.nodes.get(node)
        if info is None:
            raise UnavailableError(f"{name} is no node of the cluster")
        link = context.links.know(node, info.endpoint)
        timeout_ms = getattr(build(0), "timeout_ms", STEP_MS) + MARGIN_MS
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                if not await link.open():
                    raise UnavailableError(f"{name} cannot be reached: {link.last_error}")
                what, level = needs
                if link.level < level:
                    raise UnsupportedRequestError(
                        f"{name} is at level {link.level}, and {what} needs level {level}; upgrade "
                        "this node"
                    )
                answer = await link.request(build)
        except TimeoutError as error:
            raise RequestTimeoutError(f"{name} did not answer within {timeout_ms} ms") from error
        if isinstance(answer, Failed):
            raise error_of(answer.code, answer.message)
        return expect(kind, answer)
