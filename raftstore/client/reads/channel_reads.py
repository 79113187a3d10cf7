"""Reads of one channel: builds the request, has the engine ask, and checks the answer."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, Final

import msgspec

from raftstore.client.context import Context
from raftstore.client.reads.get_batcher import Fallback, GetBatcher, answers_keys
from raftstore.client.reads.read_engine import ReadEngine
from raftstore.client.reads.read_spec import Pin, ReadSpec, pinned
from raftstore.client.reads.router import RoutingPolicy
from raftstore.client.requests.answers import expect
from raftstore.client.requests.attempt import BuildRequest
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
from raftstore.protocol.machines import MachineAnswer, MachineQuery
from raftstore.protocol.reads import (
    ClosePin,
    Count,
    CountAnswer,
    Get,
    GetAnswer,
    ReadRequest,
    RequestT,
    Scan,
    ScanAnswer,
    row_read,
)
from raftstore.protocol.replica_checks import RowExpiries, RowExpiriesAnswer
from raftstore.protocol.requests import ClientAnswer
from raftstore.protocol.snapshots import SnapshotAnswer
from raftstore.types import ChannelId, NodeId, Seq, node_name


@dataclass(frozen=True, slots=True)
class Range:
    """Rows of one channel: [start, stop) of encoded keys, b"" is open; a page of them at most."""

    start: bytes
    stop: bytes
    limit: int = 0
    keys_only: bool = False
    keep: bool = False
    """Pin the state for further pages."""


NOT_HOSTED: Final = (NotLeaderError.code, UnknownChannelError.code)
"""A node that answers so has no replica of the channel that it could have a state of."""


def builder_of(
    kind: type[RequestT], channel: ChannelId, spec: ReadSpec, min_seq: Seq, **what: Any
) -> BuildRequest:
    """Return what builds a request for rows of a channel; ``what``: its keys, or its range."""
    wanted = spec.consistency(min_seq)

    def build(request_id: int, left_ms: int) -> ReadRequest:
        return row_read(kind, request_id, channel, wanted, left_ms, **what)

    return build


class ChannelReads:
    """All reads of one client. With a pin in its specification a read is of that state;
    PageExpiredError when that is gone."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._engine = ReadEngine(context)
        self.batcher = GetBatcher(context, self._engine)

    async def get(
        self,
        channel: ChannelId,
        keys: tuple[bytes, ...],
        spec: ReadSpec,
        deadline_ms: int,
        *,
        min_seq: Seq = Seq(0),
        fallback: Fallback | None = None,
        stopped_wait_ms: int | None = None,
    ) -> GetAnswer:
        """Read keys of one channel; one value per key, in order.

        ``fallback``: how a request shared with others failed before. ``stopped_wait_ms``: see
        ``RoutingPolicy``.
        """
        build = builder_of(Get, channel, spec, min_seq, keys=keys)
        hosts = {} if fallback is None else fallback.hosts()
        found = await self._ask(
            channel, build, spec, deadline_ms, hosts, stopped_wait_ms=stopped_wait_ms
        )
        answer = expect(GetAnswer, found)
        if spec.pin is not None and not answer.served.pinned:
            raise DecodeError(
                f"{node_name(answer.served.node)} answered of another state than the pinned one; "
                "install the same raftstore version on both sides"
            )
        if not answers_keys(answer, channel, len(keys)):
            raise DecodeError(
                f"{node_name(answer.served.node)} answered {len(answer.values)} values "
                f"for {len(keys)} keys, or for another channel; it is broken or speaks another "
                "version"
            )
        return answer

    async def scan(
        self,
        channel: ChannelId,
        part: Range,
        spec: ReadSpec,
        deadline_ms: int,
        min_seq: Seq = Seq(0),
    ) -> ScanAnswer:
        """Read one page of a range of one channel."""
        build = builder_of(
            Scan,
            channel,
            spec,
            min_seq,
            start=part.start,
            stop=part.stop,
            limit=part.limit,
            keys_only=part.keys_only,
            keep=part.keep and spec.pin is None,
        )
        # Two states would be pinned, and one of them never be used.
        spec = replace(spec, hedge=None) if part.keep and spec.hedge else spec
        return expect(ScanAnswer, await self._ask(channel, build, spec, deadline_ms))

    async def count(
        self,
        channel: ChannelId,
        part: Range,
        spec: ReadSpec,
        deadline_ms: int,
        min_seq: Seq = Seq(0),
    ) -> CountAnswer:
        """Count the rows of a range of one channel."""
        build = builder_of(Count, channel, spec, min_seq, start=part.start, stop=part.stop)
        return expect(CountAnswer, await self._ask(channel, build, spec, deadline_ms))

    async def ask_machine(
        self,
        channel: ChannelId,
        question: tuple[bytes, bytes],
        spec: ReadSpec,
        deadline_ms: int,
        min_seq: Seq = Seq(0),
    ) -> MachineAnswer:
        """Ask the state machine of one channel; ``question``: key and request."""
        wanted = msgspec.structs.asdict(spec.consistency(min_seq))
        del wanted["pin"]
        key, request = question

        def build(request_id: int, left_ms: int) -> MachineQuery:
            return MachineQuery(
                request_id=request_id,
                channel=channel,
                key=key,
                request=request,
                timeout_ms=left_ms,
                **wanted,
            )

        return expect(MachineAnswer, await self._ask(channel, build, spec, deadline_ms))

    async def _ask(
        self,
        channel: ChannelId,
        build: BuildRequest,
        spec: ReadSpec,
        deadline_ms: int,
        hosts: Mapping[str, str] | None = None,
        *,
        stopped_wait_ms: int | None = None,
    ) -> ClientAnswer:
        pin, name = spec.pin, self._context.topology.name_of(channel)
        if pin is not None:
            answer = await self._ask_pinned(channel, build, spec, pin, deadline_ms)
        else:
            only = None if spec.replica is None else self.node_named(spec.replica)
            policy = replace(RoutingPolicy.of(spec, only), stopped_wait_ms=stopped_wait_ms)
            what = f"{name} (level {spec.level.value})"
            if policy.at_leader:
                what = f"read of {what}"
            answer = await self._engine.ask(
                channel, build, deadline_ms, what=what, policy=policy, hosts=hosts
            )
        if isinstance(answer, GetAnswer | ScanAnswer | CountAnswer):
            self._context.book.learn(answer.served, self._context.now_ms())  # KLIP-48
        return answer

    async def _ask_pinned(
        self, channel: ChannelId, build: BuildRequest, spec: ReadSpec, pin: Pin, deadline_ms: int
    ) -> ClientAnswer:
        what = f"page of {self._context.topology.name_of(channel)} at {node_name(pin.node)}"
        policy = RoutingPolicy.of(spec, pin.node)
        try:
            return await self._engine.ask(channel, build, deadline_ms, what=what, policy=policy)
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
        spec: ReadSpec,
        deadline_ms: int,
        *,
        takes_newer: bool,
    ) -> SnapshotAnswer:
        """Ask for the commit that a replica's state holds, any replica's."""
        what = f"snapshot of {self._context.topology.name_of(channel)}"
        policy = RoutingPolicy(
            only=None if spec.replica is None else self.node_named(spec.replica),
            prefer=spec.prefer,
            may_wait=True,
            takes_newer=takes_newer,
        )
        answer = await self._engine.ask(channel, build, deadline_ms, what=what, policy=policy)
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
        policy = RoutingPolicy(prefer=prefer)
        return await self._engine.ask(channel, build, deadline_ms, what=what, policy=policy)

    async def expiries(
        self, channel: ChannelId, pin: Pin, start: bytes, stop: bytes, deadline_ms: int
    ) -> RowExpiriesAnswer:
        """Ask when the rows of a range of a pinned state expire."""
        answer = await self._ask_pinned(
            channel,
            lambda number, left_ms: RowExpiries(number, channel, pin.number, start, stop, left_ms),
            pinned(pin),
            pin,
            deadline_ms,
        )
        return expect(RowExpiriesAnswer, answer)

    def close_pin(self, channel: ChannelId, pin: Pin) -> None:
        """Notify the node that the state is no longer needed; it drops it by itself in time."""
        link = self._context.links.query(pin.node)
        if link is not None and link.is_open:
            with suppress(TransportError, OverloadedError):
                link.request(lambda request_id: ClosePin(request_id, channel, pin.number))

    async def content_hash(
        self, channel: ChannelId, replica: NodeId, deadline_ms: int
    ) -> ContentHashAnswer:
        """Hash the whole channel at one replica."""
        answer = await self._engine.ask(
            channel,
            lambda request_id, _: ContentHash(request_id, channel),
            deadline_ms,
            what=f"content hash of {self._context.topology.name_of(channel)}",
            policy=RoutingPolicy(only=replica),
        )
        return expect(ContentHashAnswer, answer)

    def node_named(self, name: str) -> NodeId:
        """Return the node with this name or id; ArgumentError if there is none."""
        node = self._context.topology.node_named(name)
        if node is None:
            known = ", ".join(sorted(map(node_name, self._context.topology.nodes)))
            raise ArgumentError(f"there is no node {name!r} in the cluster (there are: {known})")
        return node
