"""Reads that any replica may answer: levels bounded and any, positions, and named replicas.

The order is ``cluster.routing``'s, by what ``route_book`` knows. A replica that refuses, is lost or
stays silent is followed by the next one within the same request (KLIP-37, KIP-01), so a node that
is killed costs a read a few milliseconds. When all have failed the round is repeated until the
deadline, and the error names a reason per node (BLOG-21).
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from raftstore.client.context import Context
from raftstore.client.reads.routes import Bounded, Routes
from raftstore.client.requests.leader_requests import BuildRequest
from raftstore.client.requests.outcomes import ERRORS_BY_CODE, error_of
from raftstore.errors import (
    DataLossError,
    LagExceededError,
    NotLeaderError,
    NotUpToBoundError,
    OverloadedError,
    RequestError,
    SnapshotExpiredError,
    TransportError,
    UnknownChannelError,
    UnknownTableError,
    UnsupportedRequestError,
)
from raftstore.policy.routing import Prefer, no_replica_available
from raftstore.protocol.admin import ContentHashAnswer
from raftstore.protocol.message import Failed
from raftstore.protocol.reads import CountAnswer, GetAnswer, ScanAnswer
from raftstore.protocol.requests import ClientAnswer
from raftstore.types import ChannelId, NodeId, node_name

REFUSED_ROUNDS: Final = 3
"""When every replica is alive and has refused for its lag this often in a row, the read is refused:
more patience is for nodes that may come back, not for a bound that nobody meets. So it is when
those that are alive have refused for themselves."""
OWN_REFUSALS: Final = (DataLossError, SnapshotExpiredError, UnsupportedRequestError)
"""Final at one replica, and only there: each keeps states and changes for itself, may have been
built anew, and is upgraded when its turn comes."""


@dataclass(frozen=True, slots=True)
class RouteWish:
    """Which replicas, in which order."""

    only: NodeId | None = None
    prefer: Prefer | None = None
    max_lag: int | None = None
    max_batches_behind: int | None = None
    hedge: bool | None = None
    may_wait: bool = False
    """A replica may have to wait for a position that others have reached already."""
    takes_newer: bool = False
    """Where a replica keeps the state no longer, the caller would rather have a newer one at once
    than ask the others for this one."""


class _Read:
    """One read at all replicas: who is being asked, and why the others did not serve it."""

    def __init__(
        self,
        channel: ChannelId,
        build: BuildRequest,
        deadline_ms: int,
        route: RouteWish,
        hosts: Mapping[str, str] | None,
    ) -> None:
        self.route = route
        self.channel = channel
        self.build = build
        self.deadline_ms = deadline_ms
        self.pending: dict[asyncio.Future[ClientAnswer], tuple[NodeId, float]] = {}
        self.hosts: dict[str, str] = dict(hosts or {})
        self.refusals: dict[NodeId, RequestError] = {}
        self.refused_rounds = 0

    def failed(self, node: NodeId, reason: str) -> None:
        self.hosts[node_name(node)] = reason
        self.refusals.pop(node, None)

    def is_asked(self, node: NodeId) -> bool:
        return any(node == asked for asked, _ in self.pending.values())

    def is_final(self, refusal: RequestError) -> bool:
        """Whether no other replica need be asked."""
        if self.route.takes_newer and isinstance(refusal, SnapshotExpiredError):
            return True
        return not refusal.retriable and not isinstance(refusal, OWN_REFUSALS)

    def own_refusal(self) -> RequestError | None:
        """Why a replica cannot serve it, once none that is there could or might do so yet."""
        refusals = list(self.refusals.values())
        is_all = all(isinstance(refusal, OWN_REFUSALS) for refusal in refusals)
        return refusals[0] if refusals and is_all and not self.pending else None


class ReplicaReads:
    """See the module."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._routes = Routes(context.book)

    async def ask(
        self,
        channel: ChannelId,
        build: BuildRequest,
        deadline_ms: int,
        *,
        what: str,
        route: RouteWish,
        hosts: Mapping[str, str] | None = None,
    ) -> ClientAnswer:
        """Return the first good answer of a replica; of two that were hedged the newer one.

        ``hosts``: who did not serve it before, and why.

        Raises NoReplicaAvailableError at the deadline (NotUpToBoundError when it was a position
        that was waited for), and at once what no replica can answer: a request that is too large,
        an unknown table, a bound that no replica meets although all of them are alive, a state
        that none of them keeps.
        """
        context = self._context
        backoff = context.backoff()
        read = _Read(channel, build, deadline_ms, route, hosts)
        try:
            while context.now_ms() < deadline_ms:
                context.check_open()
                replicas = context.topology.replicas_of(channel)
                if not replicas:
                    raise UnknownTableError(f"{what}: the table was dropped")
                answer = await self._round(read, self._order(channel, replicas, route), route)
                if answer is not None:
                    return answer
                if _is_refused(read, replicas, route.only):
                    break
                context.discovery.want_leaders()
                pause_ms = min(backoff.next_ms(), deadline_ms - context.now_ms())
                answer = await self._next_answer(read, pause_ms)
                if answer is not None:
                    return answer
        finally:
            for silent in read.pending:
                silent.cancel()
        raise _failure(read, what)

    def order(
        self, channel: ChannelId, replicas: tuple[NodeId, ...], route: RouteWish, turn: int
    ) -> tuple[NodeId, ...]:
        """All replicas, best first; ``turn`` is for those who take turns."""
        context = self._context
        leader = context.topology.leader_of(channel)
        bounded = Bounded(
            prefer=route.prefer or Prefer(context.settings.prefer),
            max_lag=route.max_lag,
            max_batches_behind=route.max_batches_behind,
            local=context.home(),
        )
        if bounded.prefer is not Prefer.ANY_IN_BOUND:
            turn = 0
        node = None if leader is None else leader.node
        return self._routes.order(channel, replicas, node, bounded, turn, context.now_ms())

    def _order(
        self, channel: ChannelId, replicas: tuple[NodeId, ...], route: RouteWish
    ) -> tuple[NodeId, ...]:
        """The named replica, or all of them."""
        if route.only is not None:
            return (route.only,)
        return self.order(channel, replicas, route, self._context.book.next_turn(channel))

    async def _round(
        self, read: _Read, order: tuple[NodeId, ...], route: RouteWish
    ) -> ClientAnswer | None:
        """Ask one replica after the other; None when all have failed or stay silent."""
        if route.hedge and len(order) > 1:
            answer = await self._hedged(read, order[:2])
            if answer is not None:
                return answer
            order = order[2:]
        for node in order:
            # Whoever is silent is not asked again, and still may answer.
            if not read.is_asked(node) and await self._send(read, node):
                answer = await self._while_alive(read, node, route)
                if answer is not None:
                    return answer
        return None

    async def _hedged(self, read: _Read, nodes: tuple[NodeId, ...]) -> ClientAnswer | None:
        """KLIP-47: of the two best the one that has applied more; the slower gets a moment."""
        settings = self._context.settings
        for node in nodes:
            if not read.is_asked(node):
                await self._send(read, node)
        answers: list[ClientAnswer] = []
        patience_ms = settings.suspect_ms
        while read.pending and len(answers) < len(nodes):
            left_ms = read.deadline_ms - self._context.now_ms()
            asked = len(read.pending)
            answer = await self._next_answer(read, min(patience_ms, left_ms))
            if answer is not None:
                answers.append(answer)
                patience_ms = settings.hedge_ms
            elif len(read.pending) == asked:
                break  # nobody said anything
        return max(answers, key=_applied_seq, default=None)

    async def _send(self, read: _Read, node: NodeId) -> bool:
        context = self._context
        link = context.links.query(node)
        if link is None:
            read.failed(node, "it is not known to the cluster")
            return False
        if not link.is_open:
            patience_ms = min(context.settings.warm_up_ms, read.deadline_ms - context.now_ms())
            try:
                async with asyncio.timeout(max(0, patience_ms) / 1000):
                    await link.open()
            except TimeoutError:
                self._failed(
                    read, node, link.last_error if link.is_settled else "no connection yet"
                )
                return False
        patience_ms = context.node_patience_ms(read.deadline_ms)
        try:
            answer = link.request(lambda request_id: read.build(request_id, patience_ms))
        except (TransportError, OverloadedError) as error:
            self._failed(read, node, str(error))
            return False
        read.pending[answer] = (node, asyncio.get_running_loop().time())
        return True

    async def _while_alive(
        self, read: _Read, node: NodeId, route: RouteWish
    ) -> ClientAnswer | None:
        """Wait for an answer; None when the node just asked has failed, is silent or too slow.

        Silent means that it answers nobody: a busy cluster is not helped by asking twice.
        """
        context, settings = self._context, self._context.settings
        link = context.links.query(node)
        asked_ms = context.now_ms()
        while True:
            patience_ms = min(settings.hedge_ms, read.deadline_ms - context.now_ms())
            answer = await self._next_answer(read, patience_ms)
            if answer is not None:
                return answer
            now_ms = context.now_ms()
            heard_ms = asked_ms if link is None else max(asked_ms, link.heard_ms)
            is_silent = now_ms - heard_ms >= settings.hedge_ms
            if is_silent:
                context.book.failed(read.channel, node, now_ms)
            is_slow = route.may_wait and now_ms - asked_ms >= settings.suspect_ms
            is_left = (is_silent or is_slow) and route.hedge is not False
            if is_left or not read.is_asked(node) or now_ms >= read.deadline_ms:
                return None

    async def _next_answer(self, read: _Read, patience_ms: int) -> ClientAnswer | None:
        """Wait for an answer of anybody asked; None after a failure, or when patience ends.

        Raises a refusal that every replica would repeat.
        """
        patience_s = max(0, patience_ms) / 1000
        if not read.pending:
            await asyncio.sleep(patience_s)
            return None
        done, _ = await asyncio.wait(
            read.pending, timeout=patience_s, return_when=asyncio.FIRST_COMPLETED
        )
        for future in done:
            node, asked_s = read.pending.pop(future)
            try:
                answer = future.result()
            except TransportError as error:
                self._failed(read, node, str(error))
                continue
            if not isinstance(answer, Failed):
                took_s = asyncio.get_running_loop().time() - asked_s
                self._context.book.took(node, took_s * 1000)
                return answer
            self._failed(read, node, answer.message)
            refusal = error_of(answer.code, answer.message, hosts=answer.hosts)
            read.refusals[node] = refusal
            # What a newer node calls by a name that is not known here is its own refusal alone.
            if answer.code in ERRORS_BY_CODE and read.is_final(refusal):
                raise refusal
        return None

    def _failed(self, read: _Read, node: NodeId, reason: str) -> None:
        read.failed(node, reason)
        self._context.book.failed(read.channel, node, self._context.now_ms())


def _is_refused(read: _Read, replicas: tuple[NodeId, ...], only: NodeId | None) -> bool:
    """Whether no patience helps: a named replica is not the one that may serve, or every replica
    is alive and too far behind, and was so for several rounds; or none can that is there."""
    if only is not None:
        replicas = (only,)
        if isinstance(read.refusals.get(only), NotLeaderError | UnknownChannelError):
            return True
    refusals = [read.refusals.get(node) for node in replicas]
    is_lagging = all(isinstance(refusal, LagExceededError) for refusal in refusals)
    is_own = read.own_refusal() is not None
    if is_own and None not in refusals:
        return True
    read.refused_rounds = read.refused_rounds + 1 if is_lagging or is_own else 0
    return read.refused_rounds >= REFUSED_ROUNDS


def _failure(read: _Read, what: str) -> RequestError:
    """What to raise when no replica served the read in time."""
    own = read.own_refusal()
    if own is not None:
        return own
    for node, _ in read.pending.values():
        # Asked again just now: what it refused for before says more than that the time is up.
        if node not in read.refusals:
            read.failed(node, "it did not answer before the deadline")
    reasons = "; ".join(f"{host}: {reason}" for host, reason in sorted(read.hosts.items()))
    if any(isinstance(refusal, NotUpToBoundError) for refusal in read.refusals.values()):
        return NotUpToBoundError(
            f"{what}: the position was not reached before the deadline ({reasons}); "
            "retry with more time, or check where the position comes from",
            hosts=read.hosts,
        )
    codes = {node_name(node): refusal.code for node, refusal in read.refusals.items()}
    return no_replica_available(what, read.hosts, codes)


def _applied_seq(answer: ClientAnswer) -> int:
    """How new the state is that an answer was read from."""
    if isinstance(answer, GetAnswer | ScanAnswer | CountAnswer | ContentHashAnswer):
        return answer.served.applied_seq
    return 0
