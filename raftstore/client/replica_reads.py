"""Reads that any replica may answer: levels bounded and any, positions, and named replicas.

A replica that refuses, is lost or stays silent is followed by the next one within the same request
(KLIP-37, KIP-01), so a node that is killed costs a read a few milliseconds. When all have failed
the round is repeated until the deadline, and the error names a reason per node (BLOG-21).
"""

from __future__ import annotations

import asyncio
from typing import Final

from raftstore.client.context import Context
from raftstore.client.leader_requests import BuildRequest
from raftstore.client.outcomes import error_of
from raftstore.client.routing import ReplicaOrder
from raftstore.errors import (
    NoReplicaAvailableError,
    OverloadedError,
    TransportError,
    UnknownTableError,
)
from raftstore.requests import ClientAnswer, Failed
from raftstore.types import ChannelId, NodeId, node_name

ALL_FAILED: Final = "All nodes are dead or exceed max allowed lag."
"""ksqlDB's words (BLOG-21), kept for those who look for them."""


class _Read:
    """One read at all replicas: who is being asked, and why the others did not serve it."""

    def __init__(self, *, may_wait: bool) -> None:
        self.may_wait = may_wait
        self.pending: dict[asyncio.Future[ClientAnswer], NodeId] = {}
        self.hosts: dict[str, str] = {}

    def failed(self, node: NodeId, reason: str) -> None:
        self.hosts[node_name(node)] = reason


class ReplicaReads:
    """See the module."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._order = ReplicaOrder()

    async def ask(
        self,
        channel: ChannelId,
        build: BuildRequest,
        deadline_ms: int,
        *,
        what: str,
        only: NodeId | None = None,
        may_wait: bool = False,
    ) -> ClientAnswer:
        """Return the first good answer of a replica (of ``only`` that node, if given).

        ``may_wait``: a replica may have to wait for a position that others have reached already.

        Raises NoReplicaAvailableError at the deadline, and at once what no replica can answer
        (a request that is too large, an unknown table).
        """
        context = self._context
        backoff = context.backoff()
        read = _Read(may_wait=may_wait)
        try:
            while (now_ms := context.now_ms()) < deadline_ms:
                context.check_open()
                replicas = context.topology.replicas_of(channel)
                if not replicas:
                    raise UnknownTableError(f"{what}: the table was dropped")
                order = self._order.order(channel, replicas, self._is_reachable, now_ms)
                for node in order if only is None else (only,):
                    # Whoever is silent is not asked again, and still may answer.
                    if node not in read.pending.values() and await self._send(
                        channel, node, build, deadline_ms, read
                    ):
                        answer = await self._while_alive(channel, node, read)
                        if answer is not None:
                            return answer
                context.discovery.want_leaders()
                pause_ms = min(backoff.next_ms(), deadline_ms - context.now_ms())
                answer = await self._next_answer(channel, read, pause_ms)
                if answer is not None:
                    return answer
        finally:
            for silent in read.pending:
                silent.cancel()
        for node in read.pending.values():
            read.failed(node, "it did not answer before the deadline")
        reasons = "; ".join(f"{host}: {reason}" for host, reason in sorted(read.hosts.items()))
        raise NoReplicaAvailableError(
            f"Unable to execute pull query {what}: {ALL_FAILED} {reasons}", hosts=read.hosts
        )

    async def _send(
        self,
        channel: ChannelId,
        node: NodeId,
        build: BuildRequest,
        deadline_ms: int,
        read: _Read,
    ) -> bool:
        context = self._context
        link = context.links.of(node)
        if link is None:
            read.failed(node, "it is not known to the cluster")
            return False
        if not link.is_open:
            patience_ms = min(context.settings.warm_up_ms, deadline_ms - context.now_ms())
            try:
                async with asyncio.timeout(max(0, patience_ms) / 1000):
                    await link.open()
            except TimeoutError:
                read.failed(node, "no connection yet")
                return False
        left_ms = max(1, deadline_ms - context.now_ms())
        try:
            answer = link.request(lambda request_id: build(request_id, left_ms))
        except (TransportError, OverloadedError) as error:
            self._failed(channel, node, str(error), read)
            return False
        read.pending[answer] = node
        return True

    async def _while_alive(
        self, channel: ChannelId, node: NodeId, read: _Read
    ) -> ClientAnswer | None:
        """Wait for an answer; None when the node just asked has failed, is silent or too slow.

        Silent means that it answers nobody: a busy cluster is not helped by asking twice.
        """
        context, settings = self._context, self._context.settings
        link = context.links.of(node)
        asked_ms = context.now_ms()
        while True:
            answer = await self._next_answer(channel, read, settings.hedge_ms)
            if answer is not None:
                return answer
            now_ms = context.now_ms()
            heard_ms = asked_ms if link is None else max(asked_ms, link.heard_ms)
            is_silent = now_ms - heard_ms >= settings.hedge_ms
            if is_silent:
                self._order.failed(channel, node, now_ms)
            is_slow = read.may_wait and now_ms - asked_ms >= settings.suspect_ms
            if is_silent or is_slow or node not in read.pending.values():
                return None

    async def _next_answer(
        self, channel: ChannelId, read: _Read, patience_ms: int
    ) -> ClientAnswer | None:
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
            node = read.pending.pop(future)
            try:
                answer = future.result()
            except TransportError as error:
                self._failed(channel, node, str(error), read)
                continue
            if not isinstance(answer, Failed):
                self._order.answered(channel, node)
                return answer
            self._failed(channel, node, answer.message, read)
            refusal = error_of(answer.code, answer.message, hosts=answer.hosts)
            if not refusal.retriable:
                raise refusal
        return None

    def _failed(self, channel: ChannelId, node: NodeId, reason: str, read: _Read) -> None:
        read.failed(node, reason)
        self._order.failed(channel, node, self._context.now_ms())

    def _is_reachable(self, node: NodeId) -> bool:
        link = self._context.links.of(node)
        return link is not None and (link.is_open or not link.is_settled)
