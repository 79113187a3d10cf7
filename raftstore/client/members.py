"""Nodes of the cluster: which there are, and what operators have them do (M27, M28)."""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from typing import Any, Final

from raftstore.client.context import Context
from raftstore.client.requests.attempt import BuildRequest
from raftstore.client.requests.leader_requests import Asked, LeaderRequests
from raftstore.errors import ArgumentError
from raftstore.policy.levels import MEMBERS_LEVEL
from raftstore.protocol.members import Drain, MakeTicket, Retire
from raftstore.protocol.tickets import (
    ID_BYTES,
    SECRET_BYTES,
    SEEDS_MAX,
    TICKET_LIFETIME_MS_MAX,
    Token,
    stored_key,
    token_text,
)
from raftstore.types import node_name

TOKEN_LIFETIME_S: Final = 3_600.0
VOTER: Final = "voter"
LEARNER: Final = "learner"


@dataclass(frozen=True, slots=True)
class ClusterMember:
    """One node of the cluster."""

    name: str
    id: str
    endpoint: str
    http: str
    up: bool
    """As seen by the node that answered."""
    state: str
    """``active``; ``draining``: no replica is placed there any more; or the tag of the node
    (``raftstore cluster tag``)."""
    catalog: str
    """``voter``, ``learner``, or empty: its part in the metadata channel."""
    replicas: int
    """Of tables."""
    level: int
    failure_domain: str
    """What fails together with it, such as a rack; empty: it did not say."""


def lifetime_in_ms(lifetime: Any) -> int:
    """The lifetime of a token in milliseconds; ArgumentError for what is none."""
    most_s = TICKET_LIFETIME_MS_MAX // 1000
    if type(lifetime) not in (int, float) or not 0.001 <= lifetime <= most_s:  # nor is a NaN
        raise ArgumentError(
            f"lifetime={lifetime!r:.80} is no lifetime of a token; give 0.001 to {most_s} seconds"
        )
    seconds: float = lifetime
    return round(seconds * 1000)


class Members:
    """Questions and commands of one client. Every method is bounded by its deadline."""

    def __init__(self, context: Context, leaders: LeaderRequests) -> None:
        self._context = context
        self._leaders = leaders

    async def list(self, deadline_ms: int) -> tuple[ClusterMember, ...]:
        """Return the nodes as one of them knows them."""
        answer = await self._context.discovery.refresh(deadline_ms)
        metadata = answer.metadata_channel
        hosted = [node for t in answer.tables for c in t.channels for node in c.replicas]
        return tuple(
            ClusterMember(
                name=node_name(info.node),
                id=info.node,
                endpoint=info.endpoint,
                http=info.http,
                up=info.up,
                state=info.state or "active",
                catalog=VOTER if info.node in metadata.replicas else LEARNER,
                replicas=hosted.count(info.node),
                level=info.level,
                failure_domain=info.failure_domain,
            )
            for info in sorted(answer.nodes, key=lambda info: info.node)
        )

    async def join_token(
        self, replaces: str, lifetime_ms: int, deadline_ms: int, *, is_forced: bool
    ) -> str:
        """Let one node join, and return what it needs for that. The secret in it is known to
        nobody else: the catalog keeps its hash."""
        answer = await self._context.discovery.refresh(deadline_ms)
        ticket, secret = secrets.token_bytes(ID_BYTES), secrets.token_bytes(SECRET_BYTES)
        # Those that are up first: one that answers is enough.
        nodes = sorted(answer.nodes, key=lambda info: not info.up)
        seeds = [
            each.endpoint for each in nodes if replaces not in (each.node, node_name(each.node))
        ]

        def build(request_id: int, left_ms: int) -> MakeTicket:
            key = stored_key(secret)
            return MakeTicket(request_id, ticket, key, lifetime_ms, left_ms, replaces, is_forced)

        await self._ask("make a join token", build, deadline_ms)
        return token_text(Token(answer.cluster_id, ticket, secret, tuple(seeds[:SEEDS_MAX])))

    async def drain(self, name: str, deadline_ms: int, *, drains: bool) -> None:
        """Place no further replicas on a node and move those it has, or take that back."""
        await self._ask(
            f"drain node {name!r}",
            lambda request_id, left_ms: Drain(request_id, name, drains, left_ms),
            deadline_ms,
        )

    async def remove(self, name: str, deadline_ms: int) -> None:
        """Retire a node for ever."""
        await self._ask(
            f"remove node {name!r}",
            lambda request_id, left_ms: Retire(request_id, name, left_ms),
            deadline_ms,
        )

    async def _ask(self, what: str, build: BuildRequest, deadline_ms: int) -> None:
        await self._context.discovery.refresh(deadline_ms)
        channel = self._context.topology.metadata_channel
        assert channel is not None
        asked = Asked(what, is_read=False, level=MEMBERS_LEVEL)
        await self._leaders.ask(channel, build, deadline_ms, asked=asked)
