"""One read of one channel: routes it by its wish and turns the answer over, checked."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, replace
from typing import NamedTuple, TypeVar

from raftstore.client.context import Context
from raftstore.client.leader_requests import Asked, BuildRequest, LeaderRequests
from raftstore.client.reads import ReadWish
from raftstore.client.replica_reads import ReplicaReads, RouteWish
from raftstore.errors import (
    ConfigError,
    DecodeError,
    NoReplicaAvailableError,
    OverloadedError,
    PageExpiredError,
    TransportError,
)
from raftstore.requests import (
    ClientAnswer,
    ClosePin,
    ContentHash,
    ContentHashAnswer,
    Count,
    CountAnswer,
    Get,
    GetAnswer,
    Scan,
    ScanAnswer,
)
from raftstore.types import ChannelId, Level, NodeId, Seq, node_name

Answer = TypeVar("Answer", GetAnswer, ScanAnswer, CountAnswer, ContentHashAnswer)


@dataclass(frozen=True, slots=True)
class Range:
    """Rows of one channel: [start, stop) of encoded keys, b"" is open; a page of them at most."""

    start: bytes
    stop: bytes
    limit: int = 0
    keys_only: bool = False
    keep: bool = False
    """Pin the state for further pages."""


class Pin(NamedTuple):
    """A state that a node keeps for the pages of a scan."""

    node: NodeId
    number: int


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
            return Get(
                request_id=request_id,
                channel=channel,
                keys=keys,
                level=wish.level.value,
                max_lag=wish.max_lag,
                min_seq=min_seq,
                timeout_ms=left_ms,
                max_staleness_ms=wish.max_staleness_ms,
                max_batches_behind=wish.max_batches_behind,
            )

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
        part: Range,
        wish: ReadWish,
        min_seq: Seq,
        deadline_ms: int,
    ) -> ScanAnswer:
        """Read one page of a range of one channel."""

        def build(request_id: int, left_ms: int) -> Scan:
            return Scan(
                request_id=request_id,
                channel=channel,
                start=part.start,
                stop=part.stop,
                limit=part.limit,
                level=wish.level.value,
                max_lag=wish.max_lag,
                min_seq=min_seq,
                timeout_ms=left_ms,
                keys_only=part.keys_only,
                max_staleness_ms=wish.max_staleness_ms,
                max_batches_behind=wish.max_batches_behind,
                keep=part.keep,
            )

        # Two states would be pinned, and one of them for nobody.
        wish = replace(wish, hedge=None) if part.keep and wish.hedge else wish
        return _expect(ScanAnswer, await self._ask(channel, build, wish, deadline_ms))

    async def scan_pinned(
        self, channel: ChannelId, part: Range, pin: Pin, deadline_ms: int
    ) -> ScanAnswer:
        """Read a page of the state that was pinned; PageExpiredError when that is gone."""
        what = f"page of {self._context.topology.name_of(channel)} at {node_name(pin.node)}"

        def build(request_id: int, left_ms: int) -> Scan:
            return Scan(
                request_id=request_id,
                channel=channel,
                start=part.start,
                stop=part.stop,
                limit=part.limit,
                level=Level.ANY.value,
                max_lag=None,
                min_seq=Seq(0),
                timeout_ms=left_ms,
                keys_only=part.keys_only,
                pin=pin.number,
            )

        try:
            answer = await self._replicas.ask(
                channel, build, deadline_ms, what=what, route=RouteWish(only=pin.node)
            )
        except NoReplicaAvailableError as error:
            reasons = "; ".join(error.hosts.values())
            raise PageExpiredError(
                f"{what}: the node that keeps the state of this scan did not serve it ({reasons}); "
                "start the scan again",
                hosts=error.hosts,
            ) from error
        return _expect(ScanAnswer, answer)

    def close_pin(self, channel: ChannelId, pin: Pin) -> None:
        """Tell the node that the state is no longer needed; it forgets it by itself in time."""
        link = self._context.links.query(pin.node)
        if link is not None and link.is_open:
            with suppress(TransportError, OverloadedError):
                link.request(lambda request_id: ClosePin(request_id, channel, pin.number))

    async def count(
        self,
        channel: ChannelId,
        part: Range,
        wish: ReadWish,
        min_seq: Seq,
        deadline_ms: int,
    ) -> CountAnswer:
        """Count the rows of a range of one channel."""

        def build(request_id: int, left_ms: int) -> Count:
            return Count(
                request_id=request_id,
                channel=channel,
                start=part.start,
                stop=part.stop,
                level=wish.level.value,
                max_lag=wish.max_lag,
                min_seq=min_seq,
                timeout_ms=left_ms,
                max_staleness_ms=wish.max_staleness_ms,
                max_batches_behind=wish.max_batches_behind,
            )

        return _expect(CountAnswer, await self._ask(channel, build, wish, deadline_ms))

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
