"""Access for handlers: the client of the cluster, the own node, and facts for /livez."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress
from typing import Final, Protocol

from raftstore.client.asyncio_client import AsyncClient
from raftstore.client.cluster.links import NodeLink
from raftstore.client.requests.outcomes import error_of
from raftstore.client.settings import ClientSettings
from raftstore.config import MIB, HttpSettings, NodeSettings, QuerySettings
from raftstore.errors import ConnectionLostError, RaftstoreError, UnavailableError
from raftstore.http.auth import Guard
from raftstore.http.status_shape import KeptLayout
from raftstore.node.http_port import LiveFacts
from raftstore.node.logs import fields
from raftstore.node.system_clock import monotonic_ms, wall_ms
from raftstore.policy.routing import Prefer
from raftstore.protocol.message import Failed, Request
from raftstore.protocol.publish import PubAck, PubReject
from raftstore.protocol.requests import ClientAnswer
from raftstore.transport.handshake import Purpose
from raftstore.types import NodeId

logger = logging.getLogger("raftstore.http")

CONNECT_TIMEOUT_S = 5.0
OWN_ANSWER_S = 2.0
"""A node that has not answered itself by then stands still; more patience would not help."""
RETRY_S = 0.2
ANSWER_BYTES_MAX: Final = 16 * MIB
"""Rows of one answer: it is built in the memory of the node, in which everything else lives."""


class Gateway(Protocol):
    """The world of the handlers; tests have their own."""

    http: HttpSettings
    query: QuerySettings
    facts: LiveFacts
    guard: Guard
    layout: KeptLayout

    async def client(self, within_s: float) -> AsyncClient:
        """The client; UnavailableError if the node finds no cluster within this time."""

    async def ask_own_node(self, build: Callable[[int], Request]) -> ClientAnswer:
        """Ask the node itself; raises its refusal. The caller bounds the time."""

    def now_ms(self) -> int:
        """Monotonic clock."""

    def wall_ms(self) -> int:
        """Wall clock, for display only."""


class NodeGateway:
    """The gateway of a node: finds the cluster by way of the node itself, whenever it is ready to
    be found."""

    def __init__(self, settings: NodeSettings, facts: LiveFacts) -> None:
        self.http = settings.http
        self.query = settings.query
        self.facts = facts
        self.guard = Guard(settings.http)
        self.layout = KeptLayout()
        self._client: AsyncClient | None = None
        self._found = asyncio.Event()
        self._link: NodeLink | None = None
        self._finding: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin to look for the cluster; needs a running loop."""
        self._finding = asyncio.get_running_loop().create_task(self._find(), name="http client")

    async def close(self) -> None:
        """End the client; what is under way ends with it."""
        if self._finding is not None:
            self._finding.cancel()
            await asyncio.gather(self._finding, return_exceptions=True)
        if self._link is not None:
            self._link.stop()
            await self._link.wait_stopped()
        if self._client is not None:
            await self._client.close()

    async def _find(self) -> None:
        while self._client is None:
            # The own node only: who is asked before it has a cluster would not know more.
            if self.facts.node:
                settings = ClientSettings(
                    timeout_ms=self.query.routing_timeout_ms,
                    hedge_ms=self.query.hedge_ms,
                    prefer=Prefer(self.query.prefer),
                    home=self.facts.node,
                    answer_bytes_max=ANSWER_BYTES_MAX,
                    is_operator=True,
                )
                try:
                    self._client = await AsyncClient.connect(
                        [self.facts.endpoint], timeout=CONNECT_TIMEOUT_S, settings=settings
                    )
                except RaftstoreError as error:
                    logger.info("no cluster yet", extra=fields(reason=str(error)))
            if self._client is None:
                await asyncio.sleep(RETRY_S)
        self._found.set()

    async def client(self, within_s: float) -> AsyncClient:
        """The client; UnavailableError if the node finds no cluster within this time.

        A node that waits for its cluster to be founded refuses at once. One that has just started
        knows its cluster a moment later than it answers: a request in between waits, as for
        every other replica that is about to be ready (KLIP-01).
        """
        if self._client is None:
            if not self.facts.node:
                raise self._not_started()
            with suppress(TimeoutError):
                async with asyncio.timeout(within_s):
                    await self._found.wait()
        if self._client is None:
            raise UnavailableError(
                f"the node has not found its cluster within {within_s:.1f} s; ask another node, or "
                "retry later"
            )
        return self._client

    async def ask_own_node(self, build: Callable[[int], Request]) -> ClientAnswer:
        """Ask the node itself; raises its refusal. The caller bounds the time."""
        link = self._own_link()
        try:
            async with asyncio.timeout(OWN_ANSWER_S):
                if not await link.open():
                    raise UnavailableError(f"the node does not answer itself: {link.last_error}")
                answer = await link.request(build)
        except TimeoutError as error:
            raise UnavailableError(
                f"the node has not answered itself within {OWN_ANSWER_S} s: it is starting, or its "
                "disk or processor has too much to do; ask another node"
            ) from error
        except ConnectionLostError as error:
            raise UnavailableError(f"the node ended the connection: {error}") from error
        if isinstance(answer, Failed):
            raise error_of(
                answer.code, answer.message, leader_hint=answer.leader_hint, hosts=answer.hosts
            )
        return answer

    def _not_started(self) -> UnavailableError:
        phase = self.facts.start
        return UnavailableError("the node is starting" if phase is None else phase.text)

    def _own_link(self) -> NodeLink:
        if self._link is None:
            if not self.facts.node:
                raise self._not_started()
            self._link = NodeLink(
                NodeId(self.facts.node),
                self.facts.endpoint,
                _Nobody(),
                settings=ClientSettings(is_operator=True),
                jitter=lambda: 0.5,
                now_ms=monotonic_ms,
                cluster_id=self.facts.cluster_id,
                purpose=Purpose.QUERY,
            )
        return self._link

    def now_ms(self) -> int:
        """Monotonic clock."""
        return monotonic_ms()

    def wall_ms(self) -> int:
        """Wall clock, for display only."""
        return wall_ms()


class _Nobody:
    """The own link publishes nothing, and who asks on it sees its losses."""

    def on_publish_answer(self, node: NodeId, message: PubAck | PubReject) -> None:
        """Never comes."""

    def on_link_open(self, node: NodeId) -> None:
        """Ignore the result: its caller is gone."""

    def on_query_link_lost(self, node: NodeId) -> None:
        """Its requests have failed already."""

    def on_link_lost(self, node: NodeId, reason: str) -> None:
        """Its requests have failed with the reason."""

    def on_link_dismissed(self, node: NodeId, reason: str) -> None:
        """The next request connects again."""
