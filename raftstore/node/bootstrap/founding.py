"""Carries the messages of a cluster's birth (S0.7) until the store belongs to a cluster."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from raftstore.config import NodeSettings
from raftstore.errors import BirthRefusedError, ConfigError, TransportError
from raftstore.node.bootstrap.birth import Birth, BirthStore
from raftstore.node.logs import fields
from raftstore.protocol.bootstrap import BirthMessage
from raftstore.protocol.message import Failed, Message, Request
from raftstore.protocol.publish import PubMsg, PubReject
from raftstore.protocol.tickets import parse_token
from raftstore.storage.identity import Members
from raftstore.transport.client_connection import ClientConnection
from raftstore.transport.handshake import Identity, Purpose
from raftstore.types import NodeId, node_name

logger = logging.getLogger("raftstore.node")

ROUND_MS: Final = 150
"""Pause between two rounds of questions to the other founders."""
COMPLETE_ROUNDS: Final = 400
"""A proposer repeats BirthComplete this often after the birth, for founders that missed it."""
ANSWER_MS: Final = 1_000


def check_founders_are_named(settings: NodeSettings) -> None:
    """A store without a cluster needs founding members or a token; ConfigError without both."""
    if not settings.initial_cluster and not settings.join:
        raise ConfigError(
            f"data directory {settings.data_dir} belongs to no cluster yet and no founding members "
            "are configured; pass --initial-cluster n1=host:port,n2=host:port,n3=host:port, or, to "
            "join a cluster that exists, --join with a token of `raftstore cluster token`"
        )


def check_founders_agree(settings: NodeSettings, members: Members) -> None:
    """An --initial-cluster left in the configuration must be the one of the birth (S0.7)."""
    names = sorted(name for name, _ in settings.initial_cluster)
    born = sorted(node_name(node) for node, _ in members)
    if names and names != born:
        raise ConfigError(
            f"data directory {settings.data_dir} belongs to a cluster founded by "
            f"{', '.join(born)}, but --initial-cluster names {', '.join(names)}; use another "
            "--data-dir, or leave --initial-cluster out"
        )


def check_token_agrees(settings: NodeSettings, cluster_id: bytes) -> None:
    """A --join left in the configuration must be of the cluster that the store belongs to: with
    another one somebody has the wrong directory, or wants the node to leave its cluster."""
    if not settings.join:
        return
    wanted = parse_token(settings.join).cluster_id
    if wanted != cluster_id:
        raise ConfigError(
            f"data directory {settings.data_dir} belongs to cluster {cluster_id.hex()}, but the "
            f"token of --join is for cluster {wanted.hex()}; use another, empty --data-dir, or "
            "leave --join out"
        )


def waits_for_founders(settings: NodeSettings) -> str:
    """Return what a node says of itself that cannot be founded without the others."""
    others = [name for name, _ in settings.initial_cluster if name != settings.name]
    return (
        f"waits for its cluster to be founded: {', '.join(others)} must be running, each with "
        "the same --initial-cluster; retry then"
    )


class Founding:
    """One node's part in the birth, over the network."""

    def __init__(
        self,
        store: BirthStore,
        settings: NodeSettings,
        advertise: str,
        identity: Callable[[], Identity],
        new_cluster_id: bytes,
    ) -> None:
        self._store = store
        self._settings = settings
        self._identity = identity
        self._birth = Birth(store, advertise, settings.initial_cluster, new_cluster_id)
        self._addresses = dict(settings.initial_cluster)
        self._born = asyncio.Event()
        self._refused: BirthRefusedError | None = None
        self._tail: asyncio.Task[None] | None = None
        self._joined: dict[str, None] = {}

    async def wait_until_born(self, stop: asyncio.Event) -> bool:
        """True when the store belongs to a cluster; False when asked to stop before.

        Raises ConfigError when the cluster cannot be founded as configured.
        """
        if self._is_born():
            check_founders_agree(self._settings, self._store.members)
            check_token_agrees(self._settings, self._store.cluster_id)
            self._repeat_completion()
            return True
        self._check_founders()
        waiting = asyncio.get_running_loop().create_task(stop.wait())
        try:
            while not self._is_born() and not stop.is_set():
                await self._round()
                if self._refused is not None:
                    raise self._refused
                if not self._is_born():
                    with suppress(TimeoutError):
                        async with asyncio.timeout(ROUND_MS / 1000):
                            await self._born.wait()
        finally:
            waiting.cancel()
        if self._is_born():
            logger.info("cluster founded", extra=fields(cluster=self._store.cluster_id.hex()))
            self._repeat_completion()
        return self._is_born()

    def on_message(self, message: Message) -> Message | None:
        """A founder's message on an accepted connection; the answer, if there is one."""
        assert isinstance(message, BirthMessage)
        answer = self._take(message)
        if self._is_born():
            self._born.set()
        return answer

    def on_member_connected(self, node: NodeId) -> None:
        """A peer of this cluster connected: it was born, it need not be repeated."""
        self._joined[node_name(node)] = None

    async def close(self) -> None:
        """Stop repeating."""
        if self._tail is not None:
            self._tail.cancel()
            with suppress(asyncio.CancelledError):
                await self._tail

    def _is_born(self) -> bool:
        return self._birth.is_born

    def _take(self, message: BirthMessage) -> BirthMessage | None:
        try:
            return self._birth.on_message(message)
        except BirthRefusedError as error:
            if not self._is_born():
                self._refused = error
            logger.error("founding refused", extra=fields(reason=str(error)))  # noqa: TRY400
            return None

    async def _round(self) -> None:
        self._birth.propose_if_ready()
        messages = self._birth.next_messages()
        if messages:
            await asyncio.gather(*(self._ask(name, message) for name, message in messages))
        self._birth.propose_if_ready()

    async def _ask(self, name: str, message: BirthMessage) -> None:
        """Send one message to a founder and take its answer; silence is asked again later."""
        answered = asyncio.Event()

        def on_message(answer: Message) -> None:
            if isinstance(answer, BirthMessage):
                self._take(answer)
            answered.set()

        try:
            connection = await ClientConnection.connect(
                self._addresses[name],
                timeout_ms=ANSWER_MS,
                on_message=on_message,
                on_lost=lambda _: answered.set(),
                hello=self._identity().hello(Purpose.BIRTH),
            )
        except TransportError:
            return
        connection.send(message)
        with suppress(TimeoutError):
            # Completion has no answer: closing after a moment lets it arrive.
            async with asyncio.timeout(0.05 if self._is_born() else ANSWER_MS / 1000):
                await answered.wait()
        connection.close()
        await connection.wait_closed()

    def _repeat_completion(self) -> None:
        if self._birth.is_proposer and self._addresses:
            self._tail = asyncio.get_running_loop().create_task(self._complete_others())

    async def _complete_others(self) -> None:
        for _ in range(COMPLETE_ROUNDS):
            waiting = [
                self._ask(name, message)
                for name, message in self._birth.next_messages()
                if name not in self._joined
            ]
            if not waiting:
                return
            await asyncio.gather(*waiting)
            await asyncio.sleep(ROUND_MS / 1000)

    def _check_founders(self) -> None:
        names = [name for name, _ in self._settings.initial_cluster]
        check_founders_are_named(self._settings)
        me = node_name(self._store.node)
        if me not in names:
            raise ConfigError(
                f"node {me!r} is not among the founding members {', '.join(names)}; correct "
                "--id or --initial-cluster"
            )


def refusal_before_birth(message: Message, *, joins: bool = False) -> Message:
    """The answer to a client while this node belongs to no cluster yet."""
    text = "the node is waiting for its cluster to be founded; start the other members"
    if joins:
        text = "the node is waiting to be taken into its cluster; ask another node"
    if isinstance(message, PubMsg):
        return PubReject(
            channel=message.channel,
            term=message.term,
            guid=message.guid,
            code="unavailable",
            message=text,
            attempt=message.attempt,
        )
    assert isinstance(message, Request)
    return Failed(message.request_id, "unavailable", text)
