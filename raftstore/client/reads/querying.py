"""One read of one channel: routes it by its wish and turns the answer over, checked."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Final, NamedTuple, TypeVar

from raftstore.client.context import Context
from raftstore.client.reads.gathering import Gathering, Missed
from raftstore.client.reads.read_requests import row_read
from raftstore.client.reads.read_spec import ReadWish
from raftstore.client.reads.replica_reads import ReplicaReads, RouteWish
from raftstore.client.requests.answers import expect
from raftstore.client.requests.leader_requests import Asked, BuildRequest, LeaderRequests
from raftstore.errors import (
    ArgumentError,
    DecodeError,
    NoReplicaAvailableError,
    NotLeaderError,
    OverloadedError,
    PageExpiredError,
    TransportError,
    UnknownChannelError,
)
from raftstore.policy.routing import Prefer
from raftstore.protocol.admin import ContentHash, ContentHashAnswer
from raftstore.protocol.changes import ChangeEndsAnswer, ChangesAnswer
from raftstore.protocol.reads import ClosePin, Count, CountAnswer, Get, GetAnswer, Scan, ScanAnswer
from raftstore.protocol.requests import ClientAnswer
from raftstore.protocol.snapshots import SnapshotAnswer
from raftstore.types import ChannelId, Level, NodeId, Seq, node_name

Answer = TypeVar(
    "Answer",
    GetAnswer,
    ScanAnswer,
    CountAnswer,
    ContentHashAnswer,
    SnapshotAnswer,
    ChangesAnswer,
    ChangeEndsAnswer,
)


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


OF_THE_PIN: Final = ReadWish(Level.ANY, None, None, None)
"""A pinned state is the first page's, whatever is asked for with the next."""
NOT_HOSTED: Final = (NotLeaderError.code, UnknownChannelError.code)
"""A node that answers so has no replica of the channel that it could have a state of."""


class Querying:
    """All reads of one client."""

    def __init__(self, context: Context, leaders: LeaderRequests) -> None:
        self._context = context
        self._leaders = leaders
        self._replicas = ReplicaReads(context)
        self.gathering = Gathering(context, self._replicas)

    async def get(
        self,
        channel: ChannelId,
        keys: tuple[bytes, ...],
        wish: ReadWish,
        min_seq: Seq,
        deadline_ms: int,
        missed: Missed | None = None,
    ) -> GetAnswer:
        """Read keys of one channel; one value per key, in order. ``missed``: what was tried."""
        build = row_read(Get, channel, wish, min_seq, keys=keys)
        answer = expect(GetAnswer, await self._ask(channel, build, wish, deadline_ms, missed))
        return _checked(answer, keys)

    async def get_pinned(
        self, channel: ChannelId, keys: tuple[bytes, ...], pin: Pin, deadline_ms: int
    ) -> GetAnswer:
        """Read keys in the state that was pinned; PageExpiredError when that is gone."""
        build = row_read(Get, channel, OF_THE_PIN, Seq(0), keys=keys, pin=pin.number)
        answer = expect(GetAnswer, await self._ask_pinned(channel, build, pin, deadline_ms))
        if not answer.served.pinned:
            raise DecodeError(
                f"{node_name(answer.served.node)} answered of another state than the pinned one; "
                "install the same raftstore version on both sides"
            )
        return _checked(answer, keys)

    async def scan(
        self,
        channel: ChannelId,
        part: Range,
        wish: ReadWish,
        min_seq: Seq,
        deadline_ms: int,
    ) -> ScanAnswer:
        """Read one page of a range of one channel."""
        build = row_read(
            Scan,
            channel,
            wish,
            min_seq,
            start=part.start,
            stop=part.stop,
            limit=part.limit,
            keys_only=part.keys_only,
            keep=part.keep,
        )
        # Two states would be pinned, and one of them for nobody.
        wish = replace(wish, hedge=None) if part.keep and wish.hedge else wish
        return expect(ScanAnswer, await self._ask(channel, build, wish, deadline_ms))

    async def scan_pinned(
        self, channel: ChannelId, part: Range, pin: Pin, deadline_ms: int
    ) -> ScanAnswer:
        """Read a page of the state that was pinned; PageExpiredError when that is gone."""
        build = row_read(
            Scan,
            channel,
            OF_THE_PIN,
            Seq(0),
            start=part.start,
            stop=part.stop,
            limit=part.limit,
            keys_only=part.keys_only,
            pin=pin.number,
        )
        return expect(ScanAnswer, await self._ask_pinned(channel, build, pin, deadline_ms))

    async def _ask_pinned(
        self, channel: ChannelId, build: BuildRequest, pin: Pin, deadline_ms: int
    ) -> ClientAnswer:
        what = f"page of {self._context.topology.name_of(channel)} at {node_name(pin.node)}"
        try:
            return await self._replicas.ask(
                channel, build, deadline_ms, what=what, route=RouteWish(only=pin.node)
            )
        except NoReplicaAvailableError as error:
            if not self._is_lost(pin, error):
                raise
            reasons = "; ".join(error.hosts.values())
            raise PageExpiredError(
                f"{what}: the node that keeps the state of this scan did not serve it ({reasons}); "
                "start the scan again",
                hosts=error.hosts,
            ) from error

    def _is_lost(self, pin: Pin, error: NoReplicaAvailableError) -> bool:
        """Whether a state is gone with its node, or with the channel there. A node that is there
        and did not serve it in time may still keep it; when it does not, it says so."""
        if error.codes.get(node_name(pin.node)) in NOT_HOSTED:
            return True
        link = self._context.links.query(pin.node)
        return link is None or (link.is_settled and not link.is_open)

    async def open_snapshot(
        self,
        channel: ChannelId,
        build: BuildRequest,
        wish: ReadWish,
        deadline_ms: int,
        *,
        takes_newer: bool,
    ) -> SnapshotAnswer:
        """Ask for the commit that a replica's state holds, any replica's (``RouteWish``)."""
        what = f"snapshot of {self._context.topology.name_of(channel)}"
        route = RouteWish(
            only=None if wish.replica is None else self.node_named(wish.replica),
            prefer=wish.prefer,
            may_wait=True,
            takes_newer=takes_newer,
        )
        answer = await self._replicas.ask(channel, build, deadline_ms, what=what, route=route)
        return expect(SnapshotAnswer, answer)

    async def changes(
        self,
        channel: ChannelId,
        build: BuildRequest,
        deadline_ms: int,
        prefer: Prefer | None = None,
    ) -> ChangesAnswer:
        """Read changes at any replica that has applied them."""
        return expect(ChangesAnswer, await self._ask_any(channel, build, deadline_ms, prefer))

    async def change_ends(
        self, channel: ChannelId, build: BuildRequest, deadline_ms: int
    ) -> ChangeEndsAnswer:
        """Ask any replica which changes there are."""
        return expect(ChangeEndsAnswer, await self._ask_any(channel, build, deadline_ms))

    async def _ask_any(
        self,
        channel: ChannelId,
        build: BuildRequest,
        deadline_ms: int,
        prefer: Prefer | None = None,
    ) -> ClientAnswer:
        what = f"changes of {self._context.topology.name_of(channel)}"
        route = RouteWish(prefer=prefer)
        return await self._replicas.ask(channel, build, deadline_ms, what=what, route=route)

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
        build = row_read(Count, channel, wish, min_seq, start=part.start, stop=part.stop)
        return expect(CountAnswer, await self._ask(channel, build, wish, deadline_ms))

    async def count_pinned(
        self, channel: ChannelId, part: Range, pin: Pin, deadline_ms: int
    ) -> CountAnswer:
        """Count rows of the state that was pinned; PageExpiredError when that is gone."""
        build = row_read(
            Count,
            channel,
            OF_THE_PIN,
            Seq(0),
            start=part.start,
            stop=part.stop,
            pin=pin.number,
        )
        return expect(CountAnswer, await self._ask_pinned(channel, build, pin, deadline_ms))

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
        return expect(ContentHashAnswer, answer)

    def node_named(self, name: str) -> NodeId:
        """Return the node with this name or id; ArgumentError if there is none."""
        node = self._context.topology.node_named(name)
        if node is None:
            known = ", ".join(sorted(map(node_name, self._context.topology.nodes)))
            raise ArgumentError(f"there is no node {name!r} in the cluster (there are: {known})")
        return node

    async def _ask(
        self,
        channel: ChannelId,
        build: BuildRequest,
        wish: ReadWish,
        deadline_ms: int,
        missed: Missed | None = None,
    ) -> ClientAnswer:
        hosts = {} if missed is None else missed.hosts()
        answer = await self._route(channel, build, wish, deadline_ms, hosts)
        if isinstance(answer, GetAnswer | ScanAnswer | CountAnswer):
            self._context.book.learn(answer.served, self._context.now_ms())  # KLIP-48
        return answer

    async def _route(
        self,
        channel: ChannelId,
        build: BuildRequest,
        wish: ReadWish,
        deadline_ms: int,
        hosts: dict[str, str],
    ) -> ClientAnswer:
        what = f"{self._context.topology.name_of(channel)} (level {wish.level.value})"
        if wish.needs_leader and wish.replica is None:
            asked = Asked(f"read of {what}", is_read=True, hosts=hosts)
            return await self._leaders.ask(channel, build, deadline_ms, asked=asked)
        route = RouteWish(
            only=None if wish.replica is None else self.node_named(wish.replica),
            prefer=wish.prefer,
            max_lag=wish.max_lag,
            max_batches_behind=wish.max_batches_behind,
            hedge=wish.hedge,
            may_wait=wish.at_least is not None,
        )
        return await self._replicas.ask(
            channel, build, deadline_ms, what=what, route=route, hosts=hosts
        )


def _checked(answer: GetAnswer, keys: tuple[bytes, ...]) -> GetAnswer:
    if len(answer.values) != len(keys) or len(answer.seqs) != len(keys):
        raise DecodeError(
            f"{node_name(answer.served.node)} answered {len(answer.values)} values "
            f"for {len(keys)} keys; it is broken or speaks another version"
        )
    return answer
