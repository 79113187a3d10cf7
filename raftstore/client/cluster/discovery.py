"""Keeps the topology fresh: first contact, questions when something looks wrong, and a slow beat.

Any node answers discovery (S1.9). When leaders are wanted every reachable node is asked at once and
the topology keeps the newest of their answers; many callers who want to know share one round.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Final

from raftstore.client.cluster.links import Links, NodeLink
from raftstore.client.cluster.topology import Topology
from raftstore.client.settings import ClientSettings
from raftstore.errors import (
    ArgumentError,
    ConfigError,
    ConnectionLostError,
    ConnectTimeoutError,
    RaftstoreError,
    RequestTimeoutError,
    UnavailableError,
    UnknownTableError,
)
from raftstore.protocol.admin import ClusterInfo, ClusterInfoAnswer, TableInfo
from raftstore.protocol.message import Message
from raftstore.protocol.requests import ClientAnswer
from raftstore.transport.client_connection import ClientConnection
from raftstore.transport.endpoints import parse_endpoint
from raftstore.transport.handshake import GoodbyeCode, Purpose, client_hello
from raftstore.types import node_name

NAMES_SHOWN_MAX: Final = 20
"""Of the tables that an error lists."""
_ROUND_MS = 500
"""A round of questions that nobody answers is given up after this, and the next may begin."""
_CALM_MS: Final = 250
"""After so long without a round the next ones follow each other quickly again."""
CATALOG_AGE_MS_MAX: Final = 2_000
"""A node that lately received something from the leader of the catalog is believed that a table
does not exist."""


def split_endpoints(endpoints: str | Sequence[str]) -> tuple[str, ...]:
    """Read ``"host:port,host:port"`` or a list of addresses; ConfigError names a bad one."""
    try:
        parts = endpoints.split(",") if isinstance(endpoints, str) else list(endpoints)
    except TypeError:
        parts = [endpoints]  # type: ignore[list-item] # refused below
    if isinstance(endpoints, bytes | Mapping) or not all(isinstance(part, str) for part in parts):
        raise ArgumentError(
            f"endpoints={endpoints!r:.80} are no addresses; give a text or a list of texts, as in "
            "endpoints='127.0.0.1:4481,127.0.0.1:4482'"
        )
    found = tuple(dict.fromkeys(part.strip() for part in parts if part.strip()))
    if not found:
        raise ConfigError("no address was given; name at least one node, as in 127.0.0.1:4481")
    for endpoint in found:
        parse_endpoint(endpoint)
    return found


class Discovery:
    """Owner of the topology; see the module."""

    def __init__(
        self,
        endpoints: Sequence[str],
        topology: Topology,
        links: Links,
        *,
        settings: ClientSettings,
        now_ms: Callable[[], int],
        on_answer: Callable[[ClusterInfoAnswer], None],
    ) -> None:
        self._on_answer = on_answer
        self._endpoints = tuple(endpoints)
        self._topology = topology
        self._links = links
        self._settings = settings
        self._now_ms = now_ms
        self._round: asyncio.Task[None] | None = None
        self._next_round_ms = 0
        self._pause_ms = settings.refresh_first_ms
        self._wanted_ms = 0
        self._next_round: asyncio.TimerHandle | None = None
        self._complete_ms: int | None = None
        """The last moment at which an answer of late is known to have been complete."""
        self._beat: asyncio.Task[None] | None = None
        self._leaving: dict[asyncio.Task[None], None] = {}
        self._is_closed = False

    # --- life ------------------------------------------------------------------------------------

    async def start(self, deadline_ms: int) -> None:
        """Learn the cluster from whichever address answers first.

        Raises UnavailableError with a reason per address when none does before the deadline.
        """
        reasons: dict[str, str] = {}
        while not await self._first_contact(deadline_ms, reasons):
            pause_ms = min(self._settings.retry_max_ms, deadline_ms - self._now_ms())
            if pause_ms <= 0:
                text = "; ".join(f"{at}: {reasons.get(at, 'no answer')}" for at in self._endpoints)
                raise UnavailableError(f"no node of the cluster answered: {text}")
            await asyncio.sleep(pause_ms / 1000)
        self._beat = asyncio.get_running_loop().create_task(
            self._keep_fresh(), name="raftstore discovery"
        )

    async def close(self) -> None:
        """Stop asking, for good: nobody would await a round that began later."""
        self._is_closed = True
        self._cancel_next()
        tasks = [task for task in (self._beat, self._round) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, *self._leaving, return_exceptions=True)

    # --- questions -------------------------------------------------------------------------------

    def want_leaders(self) -> None:
        """Ask around, unless that was done a moment ago; the topology notifies its listeners."""
        now_ms = self._wanted_ms = self._now_ms()
        if now_ms >= self._next_round_ms:
            if now_ms >= self._next_round_ms + _CALM_MS:
                self._pause_ms = self._settings.refresh_first_ms
            self._begin_round()

    def _begin_round(self) -> None:
        if self._is_closed or self._round is not None:
            return
        self._cancel_next()
        self._round = asyncio.get_running_loop().create_task(
            self._ask_around(), name="raftstore discovery round"
        )
        self._round.add_done_callback(self._on_round_done)

    def _cancel_next(self) -> None:
        if self._next_round is not None:
            self._next_round.cancel()
            self._next_round = None

    async def news(self, until_ms: int) -> None:
        """Ask around and return after the first answer, at the latest at ``until_ms``.

        Raises UnavailableError once the client is closed.
        """
        while True:
            if self._is_closed:
                raise UnavailableError("the client was closed; connect again")
            self.want_leaders()
            if self._round is not None:
                left = until_ms - self._now_ms()
                await asyncio.wait({self._round}, timeout=max(left, 0) / 1000)
                return
            pause_ms = min(self._next_round_ms, until_ms) - self._now_ms()
            await asyncio.sleep(max(pause_ms, 0) / 1000)
            if self._now_ms() >= until_ms:
                return

    async def refresh(self, deadline_ms: int) -> ClusterInfoAnswer:
        """Ask one reachable node after the other; RequestTimeoutError when none answers in time."""
        reasons: dict[str, str] = {}
        while True:
            for link in self._askable():
                name = node_name(link.node)
                try:
                    async with asyncio.timeout(self._patience(deadline_ms)):
                        if await link.open():
                            return await self._ask(link)
                    reasons[name] = link.last_error
                except TimeoutError:
                    reasons.setdefault(name, "it did not answer")
                except RaftstoreError as error:
                    reasons[name] = str(error)
            if self._links.is_closed:
                raise UnavailableError("the client was closed; connect again")
            if self._now_ms() >= deadline_ms:
                text = "; ".join(f"{name}: {reason}" for name, reason in sorted(reasons.items()))
                raise RequestTimeoutError(f"no node reported the state of the cluster: {text}")
            await asyncio.sleep(self._settings.retry_min_ms / 1000)

    async def table(self, name: str, deadline_ms: int) -> TableInfo:
        """Return a table of the catalog; one that is unknown is looked for again first."""
        table = self._topology.table(name)
        if table is not None:
            return table
        asked_ms = self._now_ms()
        self._complete_ms = None  # what was complete before the question says nothing of now
        await self.refresh(deadline_ms)
        while (table := self._topology.table(name)) is None:
            if self._was_complete(asked_ms):
                raise UnknownTableError(
                    f"there is no table {name!r} ({self._known_tables()}); correct the name, or "
                    "create the table"
                )
            if self._now_ms() >= deadline_ms:
                raise UnavailableError(
                    f"whether there is a table {name!r} is not known: no node answered in time "
                    "whose copy of the catalog is known to be complete; retry"
                )
            await self.news(deadline_ms)
        return table

    def _known_tables(self) -> str:
        """The tables there are, the first of many."""
        names = [
            info.name if not info.machine else f"{info.name} (a channel set)"
            for info in self._topology.tables()
        ]
        if not names:
            return "there are none"
        more = f" and {len(names) - NAMES_SHOWN_MAX} more" if len(names) > NAMES_SHOWN_MAX else ""
        return f"there are: {', '.join(names[:NAMES_SHOWN_MAX])}{more}"

    def _was_complete(self, asked_ms: int) -> bool:
        """S1.9: a node that has just started may not know yet what there is.

        The leader's word is awaited for a moment; then a copy that was complete lately will do.
        """
        is_hasty = self._now_ms() < asked_ms + _ROUND_MS
        since_ms = asked_ms if is_hasty else asked_ms - CATALOG_AGE_MS_MAX
        return self._complete_ms is not None and self._complete_ms >= since_ms

    # --- inside ----------------------------------------------------------------------------------

    def _askable(self) -> list[NodeLink]:
        """Open links first: they answer at once."""
        return sorted(self._links.queries(), key=lambda link: not link.is_open)

    def _patience(self, deadline_ms: int) -> float:
        return max(0, min(_ROUND_MS, deadline_ms - self._now_ms())) / 1000

    async def _ask(self, link: NodeLink, *, with_lags: bool = True) -> ClusterInfoAnswer:
        answer = await link.request(lambda number: ClusterInfo(number, with_lags=with_lags))
        return self._take(answer, link.node)

    def _take(self, answer: ClientAnswer, of: str) -> ClusterInfoAnswer:
        if not isinstance(answer, ClusterInfoAnswer):
            raise ConnectionLostError(f"{of} answered discovery with {type(answer).__name__}")
        self._topology.merge(answer, self._now_ms())
        self._on_answer(answer)
        if answer.age_ms is not None and answer.version >= self._topology.version:
            complete_ms = self._now_ms() - answer.age_ms
            self._complete_ms = max(complete_ms, self._complete_ms or complete_ms)
        self._links.cluster_id = self._topology.cluster_id
        for node, info in self._topology.nodes.items():
            self._links.know(node, info.endpoint)
        self._links.drop_others(self._topology.nodes)
        return answer

    async def _ask_around(self) -> None:
        """End with the first answer; later ones are merged while the next round waits its turn."""
        asked = [asyncio.ensure_future(self._ask_one(link)) for link in self._links.queries()]
        try:
            async with asyncio.timeout(_ROUND_MS / 1000):
                for answer in asyncio.as_completed(asked):
                    if await answer:
                        # The others are a moment behind, and one of them may know better.
                        await asyncio.wait(asked, timeout=self._settings.refresh_min_ms / 1000)
                        return
        except TimeoutError:
            pass
        finally:
            for question in asked:
                question.cancel()
            await asyncio.gather(*asked, return_exceptions=True)

    async def _ask_one(self, link: NodeLink, *, with_lags: bool = True) -> bool:
        try:
            if not await link.open():
                return False
            await self._ask(link, with_lags=with_lags)
        except RaftstoreError:
            return False
        return True

    def _on_round_done(self, task: asyncio.Task[None]) -> None:
        self._round = None
        pause_ms = min(self._pause_ms, self._settings.refresh_min_ms)
        now_ms = self._now_ms()
        self._next_round_ms, self._pause_ms = now_ms + pause_ms, pause_ms * 3 // 2
        # New writes wait for those under way, which ask seldom: the search goes on by itself.
        was_wanted = now_ms <= self._wanted_ms + self._settings.seek_ms
        if not self._is_closed and was_wanted and self._topology.lacks_leaders:
            loop = asyncio.get_running_loop()
            self._next_round = loop.call_later(pause_ms / 1000, self._begin_round)
        if not task.cancelled():
            task.result()

    async def _keep_fresh(self) -> None:
        """Ask the nodes in turn: each knows the catalog, and its answer names every channel."""
        turn = 0
        while True:
            await asyncio.sleep(self._settings.refresh_interval_ms / 1000)
            links = self._links.queries()
            if not links or not await self._ask_in_time(links[turn % len(links)]):
                self.want_leaders()
            turn += 1

    async def _ask_in_time(self, link: NodeLink) -> bool:
        try:
            async with asyncio.timeout(_ROUND_MS / 1000):
                # Lags count for a second only: between two beats most reads go without them.
                return await self._ask_one(link, with_lags=False)
        except TimeoutError:
            return False

    # --- first contact ---------------------------------------------------------------------------

    async def _first_contact(self, deadline_ms: int, reasons: dict[str, str]) -> bool:
        """Ask every address at once; the first node that belongs to a cluster settles it."""
        timeout_ms = min(self._settings.connect_timeout_ms, deadline_ms - self._now_ms())
        if timeout_ms <= 0:
            return False
        tasks = [
            asyncio.ensure_future(self._introduce(endpoint, timeout_ms))
            for endpoint in self._endpoints
        ]
        waiting = dict(zip(tasks, self._endpoints, strict=True))
        try:
            while waiting:
                done, _ = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    endpoint = waiting.pop(task)
                    error = task.exception()
                    if error is None:
                        self._take(task.result(), endpoint)
                        return True
                    if not isinstance(error, RaftstoreError):
                        raise error
                    # The last attempts have little time; what earlier ones found says more.
                    if not isinstance(error, ConnectTimeoutError) or endpoint not in reasons:
                        reasons[endpoint] = str(error)
            return False
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _introduce(self, endpoint: str, timeout_ms: int) -> ClientAnswer:
        """Ask one address who it belongs to, over a connection of its own."""
        until_ms = self._now_ms() + timeout_ms
        answer: asyncio.Future[ClientAnswer] = asyncio.get_running_loop().create_future()

        def on_message(message: Message) -> None:
            if not answer.done() and isinstance(message, ClusterInfoAnswer):
                answer.set_result(message)

        def on_lost(error: ConnectionLostError) -> None:
            if not answer.done():
                answer.set_exception(error)

        connect = partial(
            ClientConnection.connect, endpoint, on_message=on_message, on_lost=on_lost
        )
        purpose = Purpose.OPERATOR if self._settings.is_operator else Purpose.CLIENT
        try:
            connection = await connect(timeout_ms=timeout_ms, hello=client_hello(b"", purpose))
        except ConnectionLostError as error:
            if error.code != GoodbyeCode.UNKNOWN_PURPOSE:
                raise
            # A node of an older version keeps no places for operators.
            connection = await connect(timeout_ms=max(1, until_ms - self._now_ms()))
        try:
            if not connection.cluster_id:
                raise UnavailableError(
                    "it belongs to no cluster yet; start the other founding members, then retry"
                )
            connection.send(ClusterInfo(1))
            async with asyncio.timeout_at(until_ms / 1000):
                return await answer
        except TimeoutError:
            raise ConnectTimeoutError(f"no answer within {timeout_ms} ms") from None
        finally:
            connection.close()
            # Its last bytes are on the way; ``close`` waits for that, the answer does not.
            leaving = asyncio.get_running_loop().create_task(connection.wait_closed())
            self._leaving[leaving] = None
            leaving.add_done_callback(self._leaving.pop)
