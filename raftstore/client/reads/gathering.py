"""Gets that callers begin in one turn of the loop, joined: one request for each channel.

A request costs many times what a key in it costs, at both ends. So a get waits until the turn of
the loop is over, at most, and shares its request with all gets of the same channel that want the
same; one get alone is sent as it is. What is joined is only the way: each caller has the answer
to its own keys, with the position, lag and age of the state that they were read from, which obeys
the bounds that each of them named.

Only the straight way is here: the best replica, or the leader, answers at once. Whatever else
happens, a refusal, a broken connection, a node that is silent, the callers are told, and each goes
the long way by itself (``replica_reads``, ``leader_requests``).
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from functools import partial
from typing import Final, NamedTuple

from raftstore.client.cluster.topology import Leader
from raftstore.client.context import Context
from raftstore.client.reads.read_requests import row_read
from raftstore.client.reads.read_spec import ReadWish
from raftstore.client.reads.replica_reads import ReplicaReads, RouteWish
from raftstore.errors import OverloadedError, RaftstoreError, TransportError
from raftstore.protocol.message import Failed
from raftstore.protocol.reads import Get, GetAnswer
from raftstore.protocol.requests import ClientAnswer
from raftstore.types import ChannelId, NodeId, Seq, node_name

KEYS_MAX: Final = 64
"""Keys of one joined request; more would only make the first of them wait."""
TURN_KEYS: Final = 16
"""After so many keys it is another replica's turn within one turn of the loop, so that several work
at the same time."""
SWEEP_MS: Final = 25
"""How often requests without an answer are looked at."""


class Found(NamedTuple):
    """The answer to a caller's keys: those of ``answer`` from number ``first`` on."""

    answer: GetAnswer
    first: int


class Missed(NamedTuple):
    """The straight way led nowhere; "" as the reason: nothing was sent."""

    node: NodeId | None
    reason: str

    def hosts(self) -> dict[str, str]:
        """The reason by the name of the node, as errors tell it."""
        return {} if self.node is None else {node_name(self.node): self.reason}


Waiter = asyncio.Future[Found | Missed]


@dataclass(slots=True, eq=False)
class _Group:
    """Keys of one channel that are asked for together."""

    channel: ChannelId
    wish: ReadWish
    deadline_ms: int
    """Of the first caller; the others, of the same turn, have a moment more."""
    keys: list[bytes] = field(default_factory=list)
    waiters: list[tuple[Waiter, int]] = field(default_factory=list)
    node: NodeId | None = None
    leader: Leader | None = None
    sent_ms: int = 0
    sent_s: float = 0.0

    def end(self, outcome: GetAnswer | Missed) -> None:
        """Tell all callers."""
        for waiter, first in self.waiters:
            if not waiter.done():
                found = outcome if isinstance(outcome, Missed) else Found(outcome, first)
                waiter.set_result(found)


class Gathering:
    """See the module."""

    def __init__(self, context: Context, replicas: ReplicaReads) -> None:
        self._context = context
        self._replicas = replicas
        self._loop = asyncio.get_running_loop()
        self._open: dict[tuple[ChannelId, int, int], _Group] = {}
        self._asked: dict[_Group, asyncio.Future[ClientAnswer]] = {}
        self._turn = self._turn_keys = 0
        self._sweep: asyncio.TimerHandle | None = None
        self._sweep_ms = 0

    def get(
        self,
        channel: ChannelId,
        keys: tuple[bytes, ...],
        wish: ReadWish,
        timeout_ms: int,
    ) -> Waiter:
        """Ask for keys of one channel; ``wish.is_plain`` must hold."""
        waiter: Waiter = self._loop.create_future()
        place = (channel, id(wish), timeout_ms)  # the group keeps the wish, and so its id
        group = self._open.get(place)
        if group is None or len(group.keys) >= KEYS_MAX:
            if not self._open:
                self._loop.call_soon(self._send_all)
            if group is not None:
                self._send(group)
            deadline_ms = self._context.now_ms() + timeout_ms
            group = self._open[place] = _Group(channel, wish, deadline_ms)
        group.waiters.append((waiter, len(group.keys)))
        group.keys += keys
        return waiter

    # --- inside ----------------------------------------------------------------------------------

    def _send_all(self) -> None:
        groups, self._open = self._open, {}
        self._next_turn()
        for group in groups.values():
            self._send(group)

    def _send(self, group: _Group) -> None:
        context, wish = self._context, group.wish
        node = self._choose(group)
        link = None if node is None else context.links.query(node)
        if link is None or not link.is_open:
            group.end(Missed(None, ""))
            return
        group.node = node
        group.sent_s = self._loop.time()
        group.sent_ms = int(group.sent_s * 1000)
        build = row_read(Get, group.channel, wish, Seq(0), keys=tuple(group.keys))
        patience_ms = context.node_patience_ms(group.deadline_ms)
        try:
            answer = link.request(lambda request_id: build(request_id, patience_ms))
        except (TransportError, OverloadedError) as error:
            self._miss(group, str(error))
            return
        except RaftstoreError:
            # No fault of the node: whoever goes the long way is told, and nobody of another group.
            group.end(Missed(None, ""))
            return
        self._asked[group] = answer
        answer.add_done_callback(partial(self._answered, group))
        self._look_again(min(group.sent_ms + SWEEP_MS, group.deadline_ms))

    def _choose(self, group: _Group) -> NodeId | None:
        context, channel = self._context, group.channel
        leader = context.topology.leader_of(channel)
        if group.wish.needs_leader:
            group.leader = leader
            return None if leader is None else leader.node
        replicas = context.topology.replicas_of(channel)
        if not replicas:
            return None
        if self._turn_keys >= TURN_KEYS:
            self._next_turn()
        self._turn_keys += len(group.keys)
        wish = group.wish
        route = RouteWish(
            prefer=wish.prefer, max_lag=wish.max_lag, max_batches_behind=wish.max_batches_behind
        )
        return self._replicas.order(channel, replicas, route, self._turn)[0]

    def _next_turn(self) -> None:
        self._turn += 1
        self._turn_keys = 0

    def _answered(self, group: _Group, future: asyncio.Future[ClientAnswer]) -> None:
        if self._asked.pop(group, None) is None:
            return  # it came too late
        try:
            answer = future.result()
        except TransportError as error:
            self._miss(group, str(error))
            return
        asked = len(group.keys)
        if (
            isinstance(answer, GetAnswer)
            and len(answer.values) == asked
            and len(answer.seqs) == asked
        ):
            now_s = self._loop.time()
            book = self._context.book
            book.learn(answer.served, int(now_s * 1000))  # KLIP-48
            assert group.node is not None
            if group.leader is None:
                book.took(group.node, (now_s - group.sent_s) * 1000)
            group.end(answer)
            return
        reason = answer.message if isinstance(answer, Failed) else "its answer has another shape"
        self._miss(group, reason)

    def _miss(self, group: _Group, reason: str) -> None:
        assert group.node is not None
        if group.leader is None:
            self._context.book.failed(group.channel, group.node, self._context.now_ms())
        group.end(Missed(group.node, reason))

    # --- silence ---------------------------------------------------------------------------------

    def _look_again(self, at_ms: int) -> None:
        if self._sweep is not None:
            if self._sweep_ms <= at_ms:
                return
            self._sweep.cancel()
        self._sweep_ms = at_ms
        self._sweep = self._loop.call_at(at_ms / 1000, self._look)

    def _look(self) -> None:
        """Give up what has no answer and will have none in time, or elsewhere sooner."""
        self._sweep = None
        now_ms = self._context.now_ms()
        # A loop that is late itself has not read yet what others said meanwhile.
        is_late = now_ms - self._sweep_ms > SWEEP_MS
        for group, answer in tuple(self._asked.items()):
            reason = self._hopeless(group, now_ms, is_late=is_late)
            if reason is not None:
                del self._asked[group]
                answer.cancel()
                self._miss(group, reason)
        if self._asked:
            first_ms = min(group.deadline_ms for group in self._asked)
            self._look_again(max(now_ms + 1, min(now_ms + SWEEP_MS, first_ms)))

    def _hopeless(self, group: _Group, now_ms: int, *, is_late: bool) -> str | None:
        context, settings = self._context, self._context.settings
        if now_ms >= group.deadline_ms:
            return "it did not answer before the deadline"
        assert group.node is not None
        if group.leader is not None:
            newest = context.topology.leader_of(group.channel)
            if newest is not None and newest.term > group.leader.term:
                return "it did not answer, and another node leads now"
            if now_ms - group.sent_ms >= settings.suspect_ms:
                context.discovery.want_leaders()
            return None
        link = context.links.query(group.node)
        heard_ms = group.sent_ms if link is None else max(group.sent_ms, link.heard_ms)
        # Silent means that it answers nobody: a busy cluster is not helped by asking twice.
        is_silent = not is_late and now_ms - heard_ms >= settings.hedge_ms
        return "it is silent" if is_silent else None
