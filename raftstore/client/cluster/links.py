"""Connections per node, made on demand, kept alive, and answers matched to their requests.

A node has two: one for writes and one for everything else, because a node whose disk is behind
stops reading writes, and because a question should not wait behind megabytes of rows.

A link never decides what to do about a failure: it says at once that the node cannot be asked, and
tries in the background to reach it again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Container
from functools import partial
from typing import Protocol, cast

from raftstore.client.cluster.backoff import Backoff, Jitter
from raftstore.client.settings import ClientSettings
from raftstore.errors import ConnectionLostError, RaftstoreError
from raftstore.protocol.message import Message, Request
from raftstore.protocol.publish import PubAck, PubReject
from raftstore.protocol.requests import ClientAnswer
from raftstore.transport.client_connection import ClientConnection
from raftstore.transport.handshake import GoodbyeCode, Purpose, client_hello
from raftstore.types import NodeId, node_name

AnswerHandler = Callable[[ClientAnswer | ConnectionLostError], None]


class LinkOwner(Protocol):
    """Listener for answers to publishing and for the life of links. Must not raise."""

    def on_publish_answer(self, node: NodeId, message: PubAck | PubReject) -> None:
        """A node answered a publish."""

    def on_link_open(self, node: NodeId) -> None:
        """A connection for writes was made."""

    def on_link_lost(self, node: NodeId, reason: str) -> None:
        """An open connection for writes ended; nothing sent on it will be answered."""

    def on_link_dismissed(self, node: NodeId, reason: str) -> None:
        """The node ended a connection for writes that was idle; what was sent on it meanwhile will
        not be answered."""

    def on_query_link_lost(self, node: NodeId) -> None:
        """An open connection for queries ended; its requests have failed already."""


class NodeLink:
    """A connection to one node, known by its id: an address may be taken by another node."""

    def __init__(
        self,
        node: NodeId,
        endpoint: str,
        owner: LinkOwner,
        *,
        settings: ClientSettings,
        jitter: Jitter,
        now_ms: Callable[[], int],
        cluster_id: bytes,
        purpose: Purpose = Purpose.CLIENT,
    ) -> None:
        self.node = node
        self.purpose = purpose
        self.endpoint = endpoint
        self.heard_ms = 0
        """When the node said something for the last time."""
        self._now_ms = now_ms
        self.last_error = "no connection was tried yet"
        self._owner = owner
        self._settings = settings
        self._cluster_id = cluster_id
        self._backoff = Backoff(
            min_ms=settings.reconnect_min_ms, max_ms=settings.reconnect_max_ms, jitter=jitter
        )
        self._connection: ClientConnection | None = None
        self._answers: dict[int, asyncio.Future[ClientAnswer]] = {}
        self._handlers: dict[int, AnswerHandler] = {}
        self._next_request = 0
        self._task: asyncio.Task[None] | None = None
        self._attempt: asyncio.Future[bool] | None = None
        self._hurry = asyncio.Event()
        self._was_tried = False
        self._is_stopped = False
        is_operator = settings.is_operator and purpose is Purpose.QUERY
        self._lane = Purpose.OPERATOR if is_operator else purpose

    # --- life ------------------------------------------------------------------------------------

    @property
    def is_open(self) -> bool:
        """True while requests can be sent."""
        return self._connection is not None and self._connection.is_open

    @property
    def level(self) -> int:
        """The protocol level of the node; 0 without a connection."""
        return 0 if self._connection is None else self._connection.level

    @property
    def is_settled(self) -> bool:
        """False before the first attempt to connect has ended."""
        return self._was_tried

    @property
    def can_send(self) -> bool:
        """False while so much waits for the socket that callers should let it drain."""
        return self._connection is not None and self._connection.can_send

    def start(self) -> None:
        """Connect in the background, if that is not under way."""
        # A connection that is ending is reported lost first, so that no answer gets mixed up.
        if self._task is None and self._connection is None and not self._is_stopped:
            self._begin_attempt()
            self._task = asyncio.get_running_loop().create_task(
                self._keep_connected(), name=f"raftstore link to {node_name(self.node)}"
            )

    async def open(self) -> bool:
        """Return whether the node can be asked, after the attempt that is under way, if any.

        A node that was unreachable a moment ago is answered for at once.
        """
        self.start()
        if self._attempt is not None:
            return await asyncio.shield(self._attempt)
        return self.is_open

    def retry_now(self) -> None:
        """News say that the node is up: do not wait for the next attempt."""
        self._hurry.set()

    def stop(self) -> None:
        """End the connection and the attempts to make one."""
        self._is_stopped = True
        if self._task is not None:
            self._task.cancel()
        self._end_attempt(reached=False)
        self._fail_requests(ConnectionLostError("the client was closed"))
        if self._connection is not None:
            self._connection.close()

    async def wait_stopped(self) -> None:
        """Wait, after ``stop``, until task and socket are gone."""
        if self._task is not None:
            await asyncio.gather(self._task, return_exceptions=True)
        if self._connection is not None:
            await self._connection.wait_closed()

    # --- sending ---------------------------------------------------------------------------------

    def request(self, build: Callable[[int], Request]) -> asyncio.Future[ClientAnswer]:
        """Send what ``build`` makes of a new request id; the future holds the answer.

        Raises ConnectionLostError or OverloadedError: then nothing was sent. The future fails with
        ConnectionLostError when the connection ends. Cancel it to stop waiting.
        """
        connection = self._live()
        self._next_request += 1
        request = build(self._next_request)
        connection.send(request)
        answer: asyncio.Future[ClientAnswer] = asyncio.get_running_loop().create_future()
        self._answers[self._next_request] = answer
        # Answered, failed or given up: the table holds only what somebody waits for.
        answer.add_done_callback(partial(self._drop, request.request_id))
        return answer

    def ask(self, build: Callable[[int], Request], on_answer: AnswerHandler) -> int:
        """Send what ``build`` makes of a new request id, and return the id.

        ``on_answer`` gets every answer until ``forget``, or once the ConnectionLostError with which
        the connection ended. Raises ConnectionLostError or OverloadedError: then nothing was sent.
        """
        connection = self._live()
        self._next_request += 1
        request = build(self._next_request)
        connection.send(request)
        self._handlers[request.request_id] = on_answer
        return request.request_id

    def forget(self, request_id: int) -> None:
        """Drop the answers to a request that come from now on."""
        self._handlers.pop(request_id, None)

    def send_frame(self, frame: bytes) -> None:
        """Send an encoded frame; ConnectionLostError or OverloadedError if nothing was sent."""
        self._live().send_frame(frame)

    async def drain(self) -> None:
        """Wait until ``can_send``; ConnectionLostError when the connection ends meanwhile."""
        await self._live().drain()

    def _live(self) -> ClientConnection:
        if self._connection is None:
            raise ConnectionLostError(f"no connection to {node_name(self.node)}: {self.last_error}")
        return self._connection

    # --- connecting ------------------------------------------------------------------------------

    def _begin_attempt(self) -> None:
        self._attempt = asyncio.get_running_loop().create_future()

    def _end_attempt(self, *, reached: bool) -> None:
        self._was_tried = True
        attempt, self._attempt = self._attempt, None
        if attempt is not None and not attempt.done():
            attempt.set_result(reached)

    async def _keep_connected(self) -> None:
        """Try until a connection stands; ``_on_lost`` starts this again."""
        while True:
            if self._attempt is None:
                self._begin_attempt()
            try:
                connection = await self._connect()
            except RaftstoreError as error:
                self.last_error = str(error)
                if self._steps_aside(error):
                    continue
            else:
                self._task = None
                self._backoff.reset()
                self._connection = connection
                self._end_attempt(reached=True)
                if self.purpose is Purpose.CLIENT:
                    self._owner.on_link_open(self.node)
                return
            self._end_attempt(reached=False)
            await self._pause()

    async def _connect(self) -> ClientConnection:
        connection = await ClientConnection.connect(
            self.endpoint,
            timeout_ms=self._settings.connect_timeout_ms,
            on_message=self._on_message,
            on_lost=self._on_lost,
            hello=client_hello(self._cluster_id, self._lane),
        )
        if connection.peer != self.node:
            peer = connection.peer
            connection.close()
            raise ConnectionLostError(
                f"{self.endpoint} is the address of {peer} now, not of {self.node}"
            )
        return connection

    def _steps_aside(self, error: RaftstoreError) -> bool:
        """A node of an older version knows no lane for queries: ask it on one for writes."""
        code = error.code if isinstance(error, ConnectionLostError) else ""
        is_unknown = code == GoodbyeCode.UNKNOWN_PURPOSE and self._lane is not Purpose.CLIENT
        if is_unknown:
            is_operator = self._lane is Purpose.OPERATOR
            self._lane = Purpose.QUERY if is_operator else Purpose.CLIENT
        return is_unknown

    async def _pause(self) -> None:
        self._hurry.clear()
        try:
            async with asyncio.timeout(self._backoff.next_ms() / 1000):
                await self._hurry.wait()
        except TimeoutError:
            pass

    # --- receiving -------------------------------------------------------------------------------

    def _on_message(self, message: Message) -> None:
        self.heard_ms = self._now_ms()
        if isinstance(message, PubAck | PubReject):
            self._owner.on_publish_answer(self.node, message)
            return
        answer = cast(ClientAnswer, message)
        handler = self._handlers.get(answer.request_id)
        if handler is not None:
            handler(answer)
            return
        waiting = self._answers.get(answer.request_id)
        if waiting is not None and not waiting.done():
            waiting.set_result(answer)

    def _on_lost(self, error: ConnectionLostError) -> None:
        self._connection = None
        self.last_error = str(error)
        self._fail_requests(error)
        if error.code == GoodbyeCode.IDLE:
            # The node gave the place to others, which says nothing of it. A return at once
            # would take the place of the next idle one, without end: the next request connects.
            self._was_tried = False
            if self.purpose is Purpose.CLIENT:
                self._owner.on_link_dismissed(self.node, str(error))
            return
        self.start()
        if self.purpose is Purpose.CLIENT:
            self._owner.on_link_lost(self.node, str(error))
        else:
            self._owner.on_query_link_lost(self.node)

    def _fail_requests(self, error: ConnectionLostError) -> None:
        for waiting in list(self._answers.values()):
            if not waiting.done():
                waiting.set_exception(error)
                waiting.exception()  # who stopped waiting does not need to retrieve it
        handlers, self._handlers = self._handlers, {}
        for handler in handlers.values():
            handler(error)

    def _drop(self, request_id: int, _: asyncio.Future[ClientAnswer]) -> None:
        self._answers.pop(request_id, None)


class Links:
    """All links of a client, made when first needed; ``of`` is for writes, the rest for queries."""

    def __init__(
        self,
        owner: LinkOwner,
        *,
        settings: ClientSettings,
        jitter: Jitter,
        now_ms: Callable[[], int],
        link_type: type[NodeLink] = NodeLink,
    ) -> None:
        self.cluster_id = b""
        self._link_type = link_type
        self.is_closed = False
        self._now_ms = now_ms
        self._owner = owner
        self._settings = settings
        self._jitter = jitter
        self._links: dict[NodeId, NodeLink] = {}
        self._queries: dict[NodeId, NodeLink] = {}
        self._dropped: list[NodeLink] = []

    def of(self, node: NodeId) -> NodeLink | None:
        """Return the link to a known node that its writes take."""
        return self._links.get(node)

    def query(self, node: NodeId) -> NodeLink | None:
        """Return the link to a known node that everything else takes."""
        return self._queries.get(node)

    def queries(self) -> tuple[NodeLink, ...]:
        """Return every link for queries."""
        return tuple(self._queries.values())

    def drop_others(self, nodes: Container[NodeId]) -> None:
        """Give up the links to nodes that are not in the catalog any more."""
        for lane in (self._links, self._queries):
            for node in [node for node in lane if node not in nodes]:
                link = lane.pop(node)
                link.stop()
                self._dropped.append(link)

    def know(self, node: NodeId, endpoint: str) -> NodeLink:
        """Return the node's link for queries, with its newest address; so is the one for writes."""
        self._know(self._links, node, endpoint, Purpose.CLIENT)
        return self._know(self._queries, node, endpoint, Purpose.QUERY)

    def _know(
        self, lane: dict[NodeId, NodeLink], node: NodeId, endpoint: str, purpose: Purpose
    ) -> NodeLink:
        link = lane.get(node)
        if link is None:
            link = lane[node] = self._link_type(
                node,
                endpoint,
                self._owner,
                settings=self._settings,
                jitter=self._jitter,
                now_ms=self._now_ms,
                cluster_id=self.cluster_id,
                purpose=purpose,
            )
        elif endpoint != link.endpoint:
            link.endpoint = endpoint
            link.retry_now()
        return link

    async def close(self) -> None:
        """Close all of them and wait until no task and no socket is left."""
        self.is_closed = True
        links = [*self._links.values(), *self._queries.values(), *self._dropped]
        for link in links:
            link.stop()
        await asyncio.gather(*(link.wait_stopped() for link in links))
