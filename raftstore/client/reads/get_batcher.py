"""Gets that callers begin in one turn of the loop, sent together: one request for each channel.

A request costs many times what a key in it costs, at both ends. So a get waits until the turn of
the loop is over, at most, and shares its request with all gets of the same channel that have an
equal specification. Sharing is a way of sending, no more: each caller has the answer to its own
keys, with the position, lag and age of the state that they were read from, which obeys the bounds
that each of them named.

This module is the fast path: the router's first candidate, asked once. On refusal, disconnect or
when ``Patience`` leaves it, each caller falls back to ``ReadEngine``, which goes on by itself.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from functools import partial
from typing import Final, NamedTuple

from msgspec.structs import replace

from raftstore.client.context import Context
from raftstore.client.reads.read_engine import ReadEngine
from raftstore.client.reads.read_spec import ReadSpec
from raftstore.client.requests.attempt import Attempt, Verdict
from raftstore.errors import OverloadedError, RaftstoreError, TransportError
from raftstore.protocol.message import Failed
from raftstore.protocol.reads import Get, GetAnswer
from raftstore.protocol.requests import ClientAnswer
from raftstore.types import ChannelId, NodeId, Seq, node_name

KEYS_MAX: Final = 64
"""Keys of one channel in a shared request; more would only make the first of them wait."""
TURN_KEYS: Final = 16
"""After so many keys it is another replica's turn within one turn of the loop, so that several work
at the same time."""


class SharedAnswer(NamedTuple):
    """The answer to a caller's keys: those of ``answer`` from number ``first`` on."""

    answer: GetAnswer
    first: int


class Fallback(NamedTuple):
    """The fast path led to no answer; "" as the reason: nothing was sent."""

    node: NodeId | None
    reason: str

    def hosts(self) -> dict[str, str]:
        """Return the reason by the name of the node, as errors tell it."""
        return {} if self.node is None else {node_name(self.node): self.reason}


Waiter = asyncio.Future[SharedAnswer | Fallback]


@dataclass(slots=True, eq=False)
class _Group:
    """Keys of one channel that are asked for together."""

    channel: ChannelId
    spec: ReadSpec
    deadline_ms: int
    """Of the first caller; the others, of the same turn, have a moment more."""
    keys: list[bytes] = field(default_factory=list)
    waiters: list[tuple[Waiter, int]] = field(default_factory=list)

    def end(self, outcome: GetAnswer | Fallback) -> None:
        """Tell all callers."""
        for waiter, first in self.waiters:
            if not waiter.done():
                waiter.set_result(
                    outcome if isinstance(outcome, Fallback) else SharedAnswer(outcome, first)
                )


def answers_keys(answer: object, channel: ChannelId, keys: int) -> bool:
    """Return whether an answer is to so many keys of this channel (S12)."""
    return (
        isinstance(answer, GetAnswer)
        and len(answer.values) == keys
        and len(answer.seqs) == keys
        and answer.served.channel == channel
    )


class GetBatcher:
    """See the module."""

    def __init__(self, context: Context, engine: ReadEngine) -> None:
        self._context = context
        self._router = engine.router
        self._patience = engine.patience
        self._loop = asyncio.get_running_loop()
        self._open: dict[tuple[ChannelId, ReadSpec, int], _Group] = {}
        self._asked: dict[_Group, tuple[Attempt, asyncio.Future[ClientAnswer]]] = {}
        self._turn = self._turn_keys = 0
        self._sweep: asyncio.TimerHandle | None = None
        self._sweep_ms = 0

    def get(
        self, channel: ChannelId, keys: tuple[bytes, ...], spec: ReadSpec, timeout_ms: int
    ) -> Waiter:
        """Ask for keys of one channel; ``spec.may_share`` must hold."""
        waiter: Waiter = self._loop.create_future()
        place = (channel, spec, timeout_ms)
        group = self._open.get(place)
        if group is None or len(group.keys) >= KEYS_MAX:
            if not self._open:
                self._loop.call_soon(self._send_all)
            if group is not None:
                self._send(group)
            deadline_ms = self._context.now_ms() + timeout_ms
            group = self._open[place] = _Group(channel, spec, deadline_ms)
        group.waiters.append((waiter, len(group.keys)))
        group.keys += keys
        return waiter

    # --- sending ---------------------------------------------------------------------------------

    def _send_all(self) -> None:
        groups, self._open = self._open, {}
        self._next_turn()
        for group in groups.values():
            self._send(group)

    def _send(self, group: _Group) -> None:
        context, spec = self._context, group.spec
        leader = context.topology.leader_of(group.channel) if spec.needs_leader else None
        node = self._replica(group) if not spec.needs_leader else leader and leader.node
        link = None if node is None else context.links.query(node)
        if node is None or link is None or not link.is_open:
            group.end(Fallback(None, ""))
            return
        sent_s = self._loop.time()
        attempt = Attempt(group.channel, node, sent_s, group.deadline_ms, leader)
        request = Get(
            request_id=0,
            channel=group.channel,
            keys=tuple(group.keys),
            level=spec.level.value,
            max_lag=spec.max_lag,
            min_seq=Seq(0),
            timeout_ms=context.node_patience_ms(group.deadline_ms),
            max_staleness_ms=spec.max_staleness_ms,
            max_batches_behind=spec.max_batches_behind,
        )
        try:
            answer = link.request(lambda request_id: replace(request, request_id=request_id))
        except (TransportError, OverloadedError) as error:
            self._fail(group, attempt, str(error))
            return
        except RaftstoreError:
            # No fault of the node: each caller falls back and is told, and no other group is.
            group.end(Fallback(None, ""))
            return
        self._asked[group] = (attempt, answer)
        answer.add_done_callback(partial(self._answered, group))
        self._look_again(self._patience.next_look_ms(attempt, attempt.sent_ms))

    def _replica(self, group: _Group) -> NodeId | None:
        if self._turn_keys >= TURN_KEYS:
            self._next_turn()
        self._turn_keys += len(group.keys)
        spec = group.spec
        order = self._router.replicas(
            group.channel, spec.prefer, spec.max_lag, spec.max_batches_behind, self._turn
        )
        return order[0] if order else None

    def _next_turn(self) -> None:
        self._turn += 1
        self._turn_keys = 0

    # --- answers ---------------------------------------------------------------------------------

    def _answered(self, group: _Group, future: asyncio.Future[ClientAnswer]) -> None:
        attempt, _ = self._asked.pop(group, (None, None))
        if attempt is None:
            return  # it came too late
        try:
            answer = future.result()
        except TransportError as error:
            self._fail(group, attempt, str(error))
            return
        if isinstance(answer, GetAnswer) and answers_keys(answer, group.channel, len(group.keys)):
            now_s, book = self._loop.time(), self._context.book
            book.learn(answer.served, int(now_s * 1000))  # KLIP-48
            if attempt.leader is None:
                book.took(attempt.node, (now_s - attempt.sent_s) * 1000)
            group.end(answer)
            return
        reason = answer.message if isinstance(answer, Failed) else "its answer has another shape"
        self._fail(group, attempt, reason)

    def _fail(self, group: _Group, attempt: Attempt, reason: str) -> None:
        if attempt.leader is None:
            self._context.book.failed(group.channel, attempt.node, self._context.now_ms())
        group.end(Fallback(attempt.node, reason))

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
        for group, (attempt, answer) in tuple(self._asked.items()):
            verdict = self._patience.verdict(attempt, now_ms, is_late=is_late)
            if verdict is Verdict.OVERDUE:
                self._context.discovery.want_leaders()
            elif verdict is not Verdict.WAIT:
                del self._asked[group]
                answer.cancel()
                self._fail(group, attempt, verdict.reason)
        if self._asked:
            looks = (
                self._patience.next_look_ms(attempt, now_ms) for attempt, _ in self._asked.values()
            )
            self._look_again(min(looks))
