"""One read of one channel: routes it by its wish and turns the answer over, checked."""

from __future__ import annotations

from typing import TypeVar

from raftstore.client.context import Context
from raftstore.client.leader_requests import Asked, BuildRequest, LeaderRequests
from raftstore.client.reads import ReadWish
from raftstore.client.replica_reads import ReplicaReads, RouteWish
from raftstore.errors import ConfigError, DecodeError
from raftstore.requests import (
    ClientAnswer,
    ContentHash,
    ContentHashAnswer,
    CountAnswer,
    Get,
    GetAnswer,
    Scan,
    ScanAnswer,
)
from raftstore.types import ChannelId, NodeId, Seq, node_name

Answer = TypeVar("Answer", GetAnswer, ScanAnswer, ContentHashAnswer)


class Querying:
    """All reads of one client."""

    def __init__(self, context: Context, leaders: LeaderRequests) -> None:
        self._context = context
        self._leaders = leaders
        self._replicas = ReplicaReads(context)

    async def get(
        self,
        channel: ChannelId,
        keys: tuple[bytes, ...],
        wish: ReadWish,
        min_seq: Seq,
        deadline_ms: int,
    ) -> GetAnswer:
        """Read keys of one channel; one value per key, in order."""

        def build(request_id: int, left_ms: int) -> Get:
            return Get(request_id, channel, keys, wish.level.value, wish.max_lag, min_seq, left_ms)

        answer = _expect(GetAnswer, await self._ask(channel, build, wish, deadline_ms))
        if len(answer.values) != len(keys) or len(answer.seqs) != len(keys):
            raise DecodeError(
                f"{node_name(answer.served.node)} answered {len(answer.values)} values "
                f"for {len(keys)} keys; it is broken or speaks another version"
            )
        return answer

    async def scan(
        self,
        channel: ChannelId,
        start: bytes,
        stop: bytes,
        limit: int,
        wish: ReadWish,
        min_seq: Seq,
        *,
        deadline_ms: int,
        keys_only: bool,
    ) -> ScanAnswer:
        """Read one page of [start, stop) of one channel; b"" is open."""

        def build(request_id: int, left_ms: int) -> Scan:
            return Scan(
                request_id=request_id,
                channel=channel,
                start=start,
                stop=stop,
                limit=limit,
                level=wish.level.value,
                max_lag=wish.max_lag,
                min_seq=min_seq,
                timeout_ms=left_ms,
                keys_only=keys_only,
            )

        return _expect(ScanAnswer, await self._ask(channel, build, wish, deadline_ms))

    async def content_hash(
        self, channel: ChannelId, replica: NodeId, deadline_ms: int
    ) -> ContentHashAnswer:
        """Hash the whole channel at one replica."""
        answer = await self._replicas.ask(
            channel,
            lambda request_id, _: ContentHash(request_id, channel),
            deadline_ms,
            what=f"content hash of {self._context.topology.name_of(channel)}",
            route=RouteWish(only=replica),
        )
        return _expect(ContentHashAnswer, answer)

    def node_named(self, name: str) -> NodeId:
        """Return the node with this name or id; ConfigError if there is none."""
        node = self._context.topology.node_named(name)
        if node is None:
            known = ", ".join(sorted(map(node_name, self._context.topology.nodes)))
            raise ConfigError(f"there is no node {name!r} in the cluster (there are: {known})")
        return node

    async def _ask(
        self,
        channel: ChannelId,
        build: BuildRequest,
        wish: ReadWish,
        deadline_ms: int,
    ) -> ClientAnswer:
        answer = await self._route(channel, build, wish, deadline_ms)
        if isinstance(answer, GetAnswer | ScanAnswer | CountAnswer):
            self._context.book.learn(answer.served, self._context.now_ms())  # KLIP-48
        return answer

    async def _route(
        self,
        channel: ChannelId,
        build: BuildRequest,
        wish: ReadWish,
        deadline_ms: int,
    ) -> ClientAnswer:
        what = f"{self._context.topology.name_of(channel)} (level {wish.level.value})"
        if wish.needs_leader and wish.replica is None:
            asked = Asked(f"read of {what}", is_read=True)
            return await self._leaders.ask(channel, build, deadline_ms, asked=asked)
        route = RouteWish(
            only=None if wish.replica is None else self.node_named(wish.replica),
            prefer=wish.prefer,
            max_lag=wish.max_lag,
            max_batches_behind=wish.max_batches_behind,
            hedge=wish.hedge,
            may_wait=wish.at_least is not None,
        )
        return await self._replicas.ask(channel, build, deadline_ms, what=what, route=route)


def _expect(kind: type[Answer], answer: ClientAnswer) -> Answer:
    if isinstance(answer, kind):
        return answer
    raise DecodeError(
        f"a node answered with {type(answer).__name__} where {kind.__name__} was expected; "
        "it is broken or speaks another version"
    )
