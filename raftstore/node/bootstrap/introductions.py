"""Asks who is at the addresses of the other members, until one of this node's cluster answers."""

from __future__ import annotations

import asyncio
from typing import Final

from raftstore.config import NodeSettings
from raftstore.errors import ConfigError, TransportError
from raftstore.node.bootstrap.foreign_cluster import ForeignCluster
from raftstore.storage.identity import Belonging
from raftstore.transport.client_connection import ClientConnection
from raftstore.transport.handshake import Identity, Purpose
from raftstore.types import NodeId, node_name

ANSWER_MS: Final = 1_000
"""A member that says nothing for this long may be anybody."""
ROUND_MS: Final = 2_000
"""Pause between two rounds while nobody of the own cluster was met."""


class Introductions:
    """One node's questions, in one boot."""

    def __init__(self, settings: NodeSettings, mine: Belonging) -> None:
        self._data_dir = settings.data_dir
        self._mine = mine
        # The founders may be long gone where a node joined later.
        others = mine.nodes or mine.members
        self._foreign = ForeignCluster(mine._replace(members=others))
        self._hello = Identity(mine.node, mine.cluster_id, b"", "").hello(Purpose.BIRTH)
        configured = dict(settings.initial_cluster)
        self._addresses = {
            node: configured.get(node_name(node), address) for node, address in others
        }

    def on_accepted(self) -> None:
        """A peer accepted this node: nobody needs to be asked any more."""
        self._foreign.on_accepted()

    async def ask(self) -> None:
        """Ask every member once, for as long as their answers can decide anything.

        Raises ConfigError when so many belong to another cluster that this node can never be part
        of a quorum.
        """
        asking = {
            asyncio.create_task(self._ask(node, self._addresses[node]))
            for node in self._foreign.others
        }
        try:
            while asking and not self._foreign.is_settled(len(asking)):
                done, asking = await asyncio.wait(asking, return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    task.result()
        finally:
            for task in asking:
                task.cancel()
            if asking:
                await asyncio.wait(asking)
        theirs = self._foreign.verdict()
        if theirs is not None:
            raise self._refusal(theirs)

    async def watch(self) -> None:
        """Ask until a member of the own cluster is met. Raises ConfigError as ``ask`` does."""
        while not self._foreign.has_met_own:
            await asyncio.sleep(ROUND_MS / 1000)
            await self.ask()

    async def _ask(self, node: NodeId, address: str) -> None:
        try:
            connection = await ClientConnection.connect(
                address,
                timeout_ms=ANSWER_MS,
                on_message=lambda _: None,
                on_lost=lambda _: None,
                hello=self._hello,
            )
        except (TransportError, ConfigError):
            return  # no node there, or no address: that says nothing
        self._foreign.on_cluster_of(node, connection.cluster_id)
        connection.close()
        await connection.wait_closed()

    def _refusal(self, theirs: bytes) -> ConfigError:
        at = ", ".join(
            f"{node_name(node)} at {self._addresses[node]}" for node in self._foreign.members
        )
        return ConfigError(
            f"data directory {self._data_dir} belongs to cluster {self._mine.cluster_id.hex()}, "
            f"but {at} belong to cluster {theirs.hex()}; start this node with its directory of "
            "that cluster, or point --initial-cluster at the members of its own"
        )
