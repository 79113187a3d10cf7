"""Gets that callers begin in one turn of the loop, sent together: one request for each node.

A request costs many times what a key in it costs, at both ends. So a get waits until the turn of
the loop is over, at most. Gets of one channel that have equal specifications are one group, and
groups for one node are one request, in which the node judges and answers each group by itself.
Sharing is a way of sending, no more: each caller has the answer to its own keys, with the position,
lag and age of the state that they were read from, which obeys the bounds that each of them named.

This module is the fast path: the router's first candidate, asked once. On refusal, disconnect or
when ``Patience`` leaves it, each caller falls back to ``ReadEngine``, which goes on by itself.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import partial
from typing import Final, NamedTuple

from raftstore.client.cluster.links import NodeLink
from raftstore.client.cluster.topology import Leader
from raftstore.client.context import Context
from raftstore.client.reads.read_engine import ReadEngine
from raftstore.client.reads.read_spec import ReadSpec
from raftstore.client.requests.attempt import LOOK_MS, Attempt, Verdict
from raftstore.errors import ConnectionLostError, OverloadedError, RaftstoreError, TransportError
from raftstore.policy.levels import GET_MANY_LEVEL
from raftstore.protocol.message import Failed
from raftstore.protocol.reads import (
    ChannelKeys,
    FoundKeys,
    Get,
    GetAnswer,
    GetMany,
    GetManyAnswer,
    row_read,
)
from raftstore.protocol.requests import ClientAnswer
from raftstore.types import ChannelId, NodeId, node_name

KEYS_MAX: Final = 64
"""Keys of one channel in a shared request; more would only make the first of them wait."""
CHANNELS_MAX: Final = 64
"""Channels of one request: with ``KEYS_MAX`` no more keys than a node takes at once."""
TURN_KEYS: Final = 64
"""After so many keys it is another replica's turn within one turn of the loop. With fewer, several
work at the same time on small requests, which takes twice the processor time on each side."""


class SharedAnswer(NamedTuple):
    """The answer to a caller's keys: those of ``answer`` from number ``first`` on."""

    answer: GetAnswer | FoundKeys
    first: int


class Fallback(NamedTuple):
    """The fast path led to no answer; "" as the reason: nothing was sent."""

    node: NodeId | None
    reason: str

    def hosts(self) -> dict[str, str]:
        """Return the reason by the name of the node, as errors state it."""
        return {} if self.node is None else {node_name(self.node): self.reason}


ANOTHER_SHAPE: Final = "its answer has another shape"

Waiter = asyncio.Future[SharedAnswer | Fallback]


@dataclass(slots=True, eq=False)
class _Group:
    """Keys of one channel that are asked for together."""

    channel: ChannelId
    keys: list[bytes] = field(default_factory=list)
    waiters: list[tuple[Waiter, int]] = field(default_factory=list)
    leader: Leader | None = None
    """Whom it asks as the leader."""

    def end(self, outcome: GetAnswer | FoundKeys | Fallback) -> None:
        """Hand the outcome to all callers."""
        for waiter, first in self.waiters:
            if not waiter.done():
                waiter.set_result(
                    outcome if isinstance(outcome, Fallback) else SharedAnswer(outcome, first)
                )


@dataclass(slots=True, eq=False)
class _Request:
    """Groups that are asked for at one node."""

    link: NodeLink
    spec: ReadSpec
    sent_s: float
    deadline_ms: int
    """Of the first caller; the others, of the same turn, have a moment more."""
    groups: tuple[_Group, ...]
    left: dict[int, _Group]
    """By their number those without an answer."""
    request_id: int = 0

    def attempt(self, group: _Group) -> Attempt:
        """Return what ``Patience`` judges."""
        return Attempt(group.channel, self.link.node, self.sent_s, self.deadline_ms, group.leader)


def answers_keys(answer: GetAnswer | FoundKeys, channel: ChannelId, keys: int) -> bool:
    """Return whether an answer is to so many keys of this channel (S12)."""
    return (
        len(answer.values) == keys and len(answer.seqs) == keys and answer.served.channel == channel
    )


class GetBatcher:
    """See the module."""

    def __init__(self, context: Context, engine: ReadEngine) -> None:
        self._context = context
        self._router = engine.router
        self._patience = engine.patience
        self._loop = asyncio.get_running_loop()
        self._open: dict[tuple[ReadSpec, int], dict[ChannelId, _Group]] = {}
        self._asked: dict[_Request, None] = {}
        self._turn = self._turn_keys = 0
        self._sweep: asyncio.TimerHandle | None = None
        self._sweep_ms = 0

    def get(
        self, channel: ChannelId, keys: tuple[bytes, ...], spec: ReadSpec, timeout_ms: int
    ) -> Waiter:
        """Ask for keys of one channel; ``spec.may_share`` must hold."""
        waiter: Waiter = self._loop.create_future()
        place = (spec, timeout_ms)
        groups = self._open.get(place)
        if groups is None:
            if not self._open:
                self._loop.call_soon(self._send_all)
            groups = self._open[place] = {}
        group = groups.get(channel)
        if group is None or len(group.keys) >= KEYS_MAX:
            if group is not None:
                self._send(spec, timeout_ms, [group])
            group = groups[channel] = _Group(channel)
        group.waiters.append((waiter, len(group.keys)))
        group.keys += keys
        return waiter

    # --- sending ---------------------------------------------------------------------------------

    def _send_all(self) -> None:
        opened, self._open = self._open, {}
        self._next_turn()
        for (spec, timeout_ms), groups in opened.items():
            self._send(spec, timeout_ms, groups.values())

    def _send(self, spec: ReadSpec, timeout_ms: int, groups: Iterable[_Group]) -> None:
        links, routed = self._context.links, dict[NodeLink, list[_Group]]()
        for group in groups:
            node = self._choose(group, spec)
            link = None if node is None else links.query(node)
            if link is None or not link.is_open:
                group.end(Fallback(None, ""))
            else:
                routed.setdefault(link, []).append(group)
        for link, together in routed.items():
            at_once = CHANNELS_MAX if link.level >= GET_MANY_LEVEL else 1
            for first in range(0, len(together), at_once):
                self._ask(link, spec, timeout_ms, together[first : first + at_once])

    def _choose(self, group: _Group, spec: ReadSpec) -> NodeId | None:
        if spec.needs_leader:
            group.leader = self._context.topology.leader_of(group.channel)
            return None if group.leader is None else group.leader.node
        if self._turn_keys >= TURN_KEYS:
            self._next_turn()
        self._turn_keys += len(group.keys)
        order = self._router.replicas(
            group.channel, spec.prefer, spec.max_lag, spec.max_batches_behind, self._turn
        )
        return order[0] if order else None

    def _next_turn(self) -> None:
        self._turn += 1
        self._turn_keys = 0

    def _ask(self, link: NodeLink, spec: ReadSpec, timeout_ms: int, groups: list[_Group]) -> None:
        sent_s = self._loop.time()
        deadline_ms = int(sent_s * 1000) + timeout_ms
        left = dict(enumerate(groups))
        request = _Request(link, spec, sent_s, deadline_ms, tuple(groups), left)
        patience_ms = self._context.node_patience_ms(deadline_ms)
        try:
            request.request_id = link.ask(
                partial(_message, request, patience_ms), partial(self._on_answer, request)
            )
        except (TransportError, OverloadedError) as error:
            self._fail_all(request, str(error))
            return
        except RaftstoreError:
            # No fault of the node: each caller falls back and learns the outcome; other groups are
            # not touched.
            for group in groups:
                group.end(Fallback(None, ""))
            return
        self._asked[request] = None
        now_ms = int(sent_s * 1000)
        self._look_again(self._patience.next_look_ms(request.attempt(groups[0]), now_ms))

    # --- answers ---------------------------------------------------------------------------------

    def _on_answer(self, request: _Request, answer: ClientAnswer | ConnectionLostError) -> None:
        if isinstance(answer, GetManyAnswer):
            self._take(request, answer)
        elif isinstance(answer, GetAnswer) and len(request.groups) == 1:
            self._found(request, 0, answer)
        elif isinstance(answer, Failed):
            self._fail_all(request, answer.message)
        elif isinstance(answer, ConnectionLostError):
            self._fail_all(request, str(answer))
        else:
            self._fail_all(request, ANOTHER_SHAPE)
        if not request.left:
            self._end(request)

    def _take(self, request: _Request, answer: GetManyAnswer) -> None:
        for refused in answer.refused:
            group = request.left.pop(refused.part, None)
            if group is not None:
                self._fail(request, group, refused.message)
        for found in answer.found:
            self._found(request, found.part, found)

    def _found(self, request: _Request, number: int, answer: GetAnswer | FoundKeys) -> None:
        group = request.left.pop(number, None)
        if group is None:
            return  # it came too late, or nobody asked for it
        if not answers_keys(answer, group.channel, len(group.keys)):
            self._fail(request, group, ANOTHER_SHAPE)
            return
        now_s, book = self._loop.time(), self._context.book
        book.learn(answer.served, int(now_s * 1000))  # KLIP-48
        if group.leader is None:
            book.took(request.link.node, (now_s - request.sent_s) * 1000)
        group.end(answer)

    def _fail_all(self, request: _Request, reason: str) -> None:
        left, request.left = request.left, {}
        for group in left.values():
            self._fail(request, group, reason)

    def _fail(self, request: _Request, group: _Group, reason: str) -> None:
        node = request.link.node
        if group.leader is None:
            self._context.book.failed(group.channel, node, self._context.now_ms())
        group.end(Fallback(node, reason))

    def _end(self, request: _Request) -> None:
        request.link.forget(request.request_id)
        self._asked.pop(request, None)

    # --- patience --------------------------------------------------------------------------------

    def _look_again(self, at_ms: int) -> None:
        if self._sweep is not None:
            if self._sweep_ms <= at_ms:
                return
            self._sweep.cancel()
        self._sweep_ms = at_ms
        self._sweep = self._loop.call_at(at_ms / 1000, self._look)

    def _look(self) -> None:
        """Leave the attempts that ``Patience`` leaves."""
        self._sweep = None
        now_ms = self._context.now_ms()
        is_late = self._patience.is_late(self._sweep_ms, now_ms)
        look_ms = now_ms + LOOK_MS
        for request in tuple(self._asked):
            for number, group in tuple(request.left.items()):
                attempt = request.attempt(group)
                verdict = self._patience.verdict(attempt, now_ms, is_late=is_late)
                if verdict is Verdict.OVERDUE:
                    self._context.discovery.want_leaders()
                elif verdict is not Verdict.WAIT:
                    del request.left[number]
                    self._fail(request, group, verdict.reason)
                look_ms = min(look_ms, self._patience.next_look_ms(attempt, now_ms))
            if not request.left:
                self._end(request)
        if self._asked:
            self._look_again(look_ms)


def _message(request: _Request, patience_ms: int, request_id: int) -> Get | GetMany:
    """Return what is sent; one group alone goes as a Get, which every node knows."""
    spec, groups = request.spec, request.groups
    if len(groups) > 1:
        return GetMany(
            request_id=request_id,
            parts=tuple([ChannelKeys(group.channel, tuple(group.keys)) for group in groups]),
            level=spec.level.value,
            max_lag=spec.max_lag,
            timeout_ms=patience_ms,
            max_staleness_ms=spec.max_staleness_ms,
            max_batches_behind=spec.max_batches_behind,
        )
    return row_read(
        Get,
        request_id,
        groups[0].channel,
        spec.consistency(),
        patience_ms,
        keys=tuple(groups[0].keys),
    )
