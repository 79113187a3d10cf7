"""The asyncio client over the simulated network: its links, loop and first knowledge.

Everything above a connection is the production code: topology, route book, read engine. A link
stands until its node has died and time has passed, or a request found out; requests and answers
travel on the network of the world.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, cast

from raftstore.client.asyncio_client import AsyncClient
from raftstore.client.cluster.links import LinkOwner, NodeLink
from raftstore.client.settings import ClientSettings
from raftstore.errors import ConnectionLostError
from raftstore.protocol.admin import ClusterInfo
from raftstore.protocol.message import Message, Request
from raftstore.protocol.requests import ClientAnswer
from raftstore.testing.sim_cluster import SimCluster
from raftstore.testing.sim_loop import SchedulerLoop
from raftstore.testing.sim_node import SimNode
from raftstore.types import NodeId


class SimLink(NodeLink):
    """A connection to one simulated node; ``SimClient`` gives it its network."""

    client: SimClient

    def __init__(self, node: NodeId, endpoint: str, owner: LinkOwner, **kept: Any) -> None:
        super().__init__(node, endpoint, owner, **kept)
        assert isinstance(owner, SimClient)
        self.client = owner
        self._is_connected = self._peer.is_up
        self._was_tried = True
        owner.sim_links[node, self.purpose.name] = self

    @property
    def _peer(self) -> SimNode:
        return self.client.cluster.nodes[self.node]

    @property
    def is_open(self) -> bool:
        """Whether nobody has noticed yet that the node is gone."""
        return self._is_connected

    @property
    def can_send(self) -> bool:
        """There is always room."""
        return self._is_connected

    def start(self) -> None:
        """Connect, if the node is there."""
        self._is_connected = self._is_connected or self._peer.is_up
        if not self._is_connected:
            self.last_error = "connection refused"

    async def open(self) -> bool:
        """Whether the node can be asked."""
        self.start()
        return self._is_connected

    def look(self) -> None:
        """Notice that the node is gone."""
        if self._is_connected and not self._peer.is_up:
            self._is_connected = False
            self.last_error = "connection lost"
            self._fail_requests(ConnectionLostError(self.last_error))
            self.client.on_query_link_lost(self.node)

    def request(self, build: Callable[[int], Request]) -> asyncio.Future[ClientAnswer]:
        """Send a request; ConnectionLostError when that finds out that the node is gone."""
        self._next_request += 1
        request = build(self._next_request)
        self.client.sent.append((self.node, request))
        self.look()
        if not self._is_connected:
            raise ConnectionLostError(self.last_error)
        answer: asyncio.Future[ClientAnswer] = asyncio.get_running_loop().create_future()
        number = self._next_request
        self._answers[number] = answer
        answer.add_done_callback(lambda _: self._answers.pop(number, None))
        self.client.cluster.network.send(self.client.name, self.node, request)
        return answer

    def on_answer(self, message: Message) -> None:
        """An answer of the node came."""
        self._on_message(message)


class SimClient(AsyncClient):
    """A client beside a node of a simulated world."""

    _link_type = SimLink

    def __init__(self, cluster: SimCluster, home: SimNode, handle: int) -> None:
        self.cluster = cluster
        self.name = f"client of {home.name}"
        self.home = home
        self.sent: list[tuple[NodeId, Request]] = []
        """Every request, with the node that it was for."""
        self.sim_links: dict[tuple[NodeId, str], SimLink] = {}
        cluster.add_client(self.name, handle, self._on_message)
        super().__init__("127.0.0.1:1", ClientSettings(home=home.name))

    def _on_message(self, sender: NodeId, message: Message) -> None:
        if self._told is not None and not self._told.done() and not self._context.links.queries():
            self._told.set_result(cast(ClientAnswer, message))
            return
        self.sim_links[sender, "QUERY"].on_answer(message)

    _told: asyncio.Future[ClientAnswer] | None = None

    async def learn(self) -> None:
        """Get what the home knows of the cluster, as when connecting to it."""
        link = self._context.links.query(self.home.node)
        if link is not None:
            await self._discovery._ask(link)
            return
        self._told = asyncio.get_running_loop().create_future()
        self.cluster.network.send(self.name, self.home.node, ClusterInfo(1, with_lags=True))
        self._discovery._take(await self._told, self.home.name)

    async def be_idle(self) -> None:
        """End the questions after the leader that nobody waits for any more."""
        asking = self._discovery._round
        if asking is not None:
            asking.cancel()
            await asyncio.gather(asking, return_exceptions=True)

    def look(self) -> None:
        """Time has passed: connections to dead nodes have ended."""
        for link in self.sim_links.values():
            link.look()


def play(
    loop: SchedulerLoop, cluster: SimCluster, work: Coroutine[Any, Any, Any], ms_max: float
) -> Any:
    """Run a coroutine of the client to its end, in virtual time."""
    with loop.running():
        task = loop.create_task(work)
        scheduler = cluster.scheduler
        scheduler.run_until(scheduler.now_ms + ms_max, task.done)
        assert task.done(), "the client is not done in time"
        return task.result()
