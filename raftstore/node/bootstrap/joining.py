"""Joins a cluster that exists (M28): asks its nodes by a token until one has entered this node.

The store and its id are on the disk before anything is asked, and the same id may ask again with
the same token as often as it needs to: so a crash or a lost answer at any point is repeated, never
mended. The store belongs to the cluster from the moment at which that is on its disk, and only then
are peers dialled.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress
from typing import Final, Protocol

from raftstore import faults
from raftstore.errors import (
    ERRORS_BY_CODE,
    ConfigError,
    NotLeaderError,
    RequestError,
    TransportError,
    UnsupportedRequestError,
)
from raftstore.node.bootstrap.birth import FoundedStore
from raftstore.node.logs import fields
from raftstore.protocol.admin import ClusterInfo, ClusterInfoAnswer
from raftstore.protocol.members import AskJoin, Join, JoinAccepted, JoinNonce
from raftstore.protocol.message import Failed, Message, Request
from raftstore.protocol.tickets import JoinClaim, Token, join_proof
from raftstore.storage.identity import Members
from raftstore.transport.client_connection import ClientConnection
from raftstore.transport.handshake import GoodbyeCode, Purpose, client_hello
from raftstore.types import Outcome, RequestId

logger = logging.getLogger("raftstore.node")

ROUND_MS: Final = 500
"""Pause between two rounds of questions."""
CONNECT_MS: Final = 1_000
ANSWER_MS: Final = 5_000
"""Longest time that the leader may take to have the node entered."""
REFUSED_ROUNDS: Final = 4
"""A refusal is for good when it is given in so many rounds in a row: within less, a leader that was
deposed may not know that it was (``election.quorum_contact_ms``), nor the ticket that its successor
has made."""
REPORT_EVERY_ROUNDS: Final = 10
"""A log line says so often why it is not done yet."""


class JoiningStore(FoundedStore, Protocol):
    """The durable side; ``record_joining`` has synced when it returns."""

    def record_joining(
        self, cluster_id: bytes, founders: Members, nodes: Members, number: int
    ) -> None:
        """The store belongs to the cluster from now on."""


class Joining:
    """One node's way into its cluster."""

    def __init__(self, store: JoiningStore, token: Token, advertise: str, level: int) -> None:
        self._store = store
        self._token = token
        self._advertise = advertise
        self._level = level
        self._leader_at = ""
        """Where the leader of the metadata channel is said to be; empty: not known."""
        self._known: dict[str, None] = dict.fromkeys(token.seeds)
        self._why = "no node of it has answered yet"
        self._refused_rounds = 0
        """The last rounds in which it was refused."""
        self._is_leaders_why = False
        """Who leads said so in this round: what the others say of themselves explains nothing."""

    async def wait_until_joined(self, stop: asyncio.Event) -> bool:
        """True when the store belongs to the cluster; False when asked to stop before.

        Raises ConfigError when the cluster refuses the node for good.
        """
        if not self._store.cluster_id and self._store.accepted_proposal:
            raise ConfigError(
                f"node {self._store.node} takes part in the founding of cluster "
                f"{self._store.accepted_proposal.hex()} and cannot join another; leave --join out "
                "to go on with that, or give it another, empty --data-dir"
            )
        rounds = 0
        reported = ""
        while not self._store.cluster_id and not stop.is_set():
            if await self._round():
                break
            if rounds % REPORT_EVERY_ROUNDS == 0 or (
                self._is_leaders_why and self._why != reported
            ):
                logger.info("joining", extra=fields(waits_because=self._why))
                reported = self._why
            rounds += 1
            with suppress(TimeoutError):
                async with asyncio.timeout(ROUND_MS / 1000):
                    await stop.wait()
        return bool(self._store.cluster_id)

    async def _round(self) -> bool:
        """Ask every address that is known, the leader's first; True: the node has joined."""
        self._is_leaders_why = False
        refusal = ""
        for address in dict.fromkeys(filter(None, (self._leader_at, *self._known))):
            answer = await self._ask(address)
            if isinstance(answer, JoinAccepted):
                self._accept(answer)
                return True
            if answer is not None:
                refusal = self._judge(address, answer) or refusal
        self._refused_rounds = self._refused_rounds + 1 if refusal else 0
        if self._refused_rounds == REFUSED_ROUNDS:
            raise ConfigError(f"the cluster does not take this node in: {refusal}")
        return False

    def _accept(self, answer: JoinAccepted) -> None:
        nodes = tuple((node, at) for node, at in answer.nodes if node != self._store.node)
        faults.reach("join.before-record")
        self._store.record_joining(self._token.cluster_id, answer.founders, nodes, answer.number)
        faults.reach("join.after-record")
        logger.info(
            "joined",
            extra=fields(cluster=self._token.cluster_id.hex(), number=answer.number),
        )

    def _judge(self, address: str, answer: Failed) -> str:
        """Note why it has to be asked again; the reason where it seems that that is of no use, and
        ConfigError where it certainly is."""
        error = ERRORS_BY_CODE.get(answer.code, RequestError)
        self._wait_because(f"{address}: {answer.message}", is_leaders=error is not NotLeaderError)
        if error is UnsupportedRequestError:
            raise ConfigError(
                f"the node at {address} is of a version in which no node can join; upgrade the "
                "nodes of the cluster first"
            )
        is_passing = error.retriable or error.outcome is Outcome.UNKNOWN
        return "" if is_passing else answer.message

    async def _ask(self, address: str) -> JoinAccepted | Failed | None:
        """Ask one node; None: it did not answer."""
        conversation = _Conversation()
        try:
            connection = await ClientConnection.connect(
                address,
                timeout_ms=CONNECT_MS,
                on_message=conversation.on_message,
                on_lost=lambda _: conversation.end(),
                hello=client_hello(self._token.cluster_id, Purpose.OPERATOR),
            )
        except TransportError as error:
            self._wait_because(str(error))
            is_foreign = getattr(error, "code", None) == GoodbyeCode.WRONG_CLUSTER
            # Behind a learned address may be a node that joins itself, where another one was.
            if is_foreign and address in self._token.seeds:
                raise ConfigError(
                    f"the node at {address} is not of cluster {self._token.cluster_id.hex()}, "
                    f"which the token is for ({error}); use a token of that cluster"
                ) from error
            return None
        try:
            return await self._converse(conversation, connection, address)
        except TransportError as error:
            self._wait_because(str(error))
            return None
        finally:
            connection.close()
            await connection.wait_closed()

    async def _converse(
        self, conversation: _Conversation, connection: ClientConnection, address: str
    ) -> JoinAccepted | Failed | None:
        nonce = await conversation.ask(connection, AskJoin)
        if not isinstance(nonce, JoinNonce):
            return nonce if isinstance(nonce, Failed) else None
        token = self._token
        claim = JoinClaim(
            token.cluster_id,
            token.ticket,
            self._store.node,
            self._advertise,
            self._level,
            nonce.nonce,
        )
        faults.reach("join.before-claim")
        answer = await conversation.ask(
            connection,
            lambda request_id: Join(
                request_id,
                token.ticket,
                self._store.node,
                self._advertise,
                self._level,
                join_proof(token.secret, claim),
                ANSWER_MS,
            ),
        )
        if isinstance(answer, Failed):
            await self._learn(conversation, connection)
        if isinstance(answer, (JoinAccepted, Failed)):
            return answer
        self._wait_because(f"{address} did not answer within {ANSWER_MS} ms")
        return None

    def _wait_because(self, why: str, *, is_leaders: bool = False) -> None:
        """Keep the reason to report: the leader's own, if it has one."""
        if not self._is_leaders_why:
            self._why, self._is_leaders_why = why, is_leaders

    async def _learn(self, conversation: _Conversation, connection: ClientConnection) -> None:
        """Where the other nodes are, and who leads."""
        info = await conversation.ask(connection, ClusterInfo)
        if isinstance(info, ClusterInfoAnswer):
            # Not its own: it may have been entered already, in a life that ended before it knew.
            addresses = {
                node.node: node.endpoint for node in info.nodes if node.node != self._store.node
            }
            self._known |= dict.fromkeys(addresses.values())
            leader = info.metadata_channel.leader
            self._leader_at = "" if leader is None else addresses.get(leader, "")


class _Conversation:
    """Questions on one connection, one after the other."""

    def __init__(self) -> None:
        self._asked = 0
        self._answer: asyncio.Future[Message | None] | None = None

    async def ask(
        self, connection: ClientConnection, build: Callable[[RequestId], Request]
    ) -> Message | None:
        """Return the answer; None: it did not come in time, or the connection ended."""
        self._asked += 1
        answer: asyncio.Future[Message | None] = asyncio.get_running_loop().create_future()
        self._answer = answer
        connection.send(build(self._asked))
        with suppress(TimeoutError):
            async with asyncio.timeout(ANSWER_MS / 1000):
                return await answer
        return None

    def on_message(self, message: Message) -> None:
        """Take an answer; one of an earlier question came too late."""
        answer = self._answer
        is_due = getattr(message, "request_id", None) == self._asked
        if answer is not None and is_due and not answer.done():
            answer.set_result(message)

    def end(self) -> None:
        """The connection was lost: no answer comes any more."""
        if self._answer is not None and not self._answer.done():
            self._answer.set_result(None)
