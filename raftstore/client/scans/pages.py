"""Scans over many pages as one: every partition in the state that its first page found.

The nodes pin those states; a pin is known by its node and a number. What a caller needs to go on
with a scan later, or in another process, is in a token: nothing of a scan is kept here.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Final

import msgspec

from raftstore.client.position import Position
from raftstore.client.reads.channel_reads import ChannelReads, Range
from raftstore.client.reads.read_spec import Pin, ReadSpec, pinned
from raftstore.client.results import ServedPart
from raftstore.client.settings import ANSWERS_AT_ONCE
from raftstore.client.token_text import token_bytes, token_text
from raftstore.errors import DecodeError, PageExpiredError, PageTokenError
from raftstore.protocol.admin import TableInfo
from raftstore.protocol.reads import ScanAnswer, Served
from raftstore.types import NodeId, Seq, Term, node_name

_PREFIX: Final = "s1."
TOKEN_CHARS_MAX: Final = 64 * 1024
"""A longer token is none of ours."""


class Place(msgspec.Struct, frozen=True, array_like=True):
    """One partition of a scan: the state it reads, and the pin if rows may be left there."""

    partition: int
    term: Term
    seq: Seq
    node: int = 0
    """Index into the token's nodes."""
    pin: int = 0
    """0: the partition has no more rows."""


class PageToken(msgspec.Struct, frozen=True, array_like=True):
    """Where a scan goes on: one key for all partitions, as rows come in key order over all."""

    table_uuid: bytes
    scan: bytes
    """Digest of range, columns and page-independent options: of which scan this is."""
    next_key: bytes
    nodes: tuple[str, ...]
    places: tuple[Place, ...]

    def text(self) -> str:
        """Return the token: opaque, safe in an address, and checked when it comes back."""
        return token_text(_PREFIX, _ENCODER.encode(self))

    @classmethod
    def parse(cls, text: str, info: TableInfo, scan: bytes) -> PageToken:
        """Read a token back; PageTokenError when it is damaged or of another scan."""
        try:
            token = _parsed(text)
        except (ValueError, TypeError, AttributeError, msgspec.MsgspecError) as error:
            raise PageTokenError(
                f"{text!r:.60} is no page token ({error}); give the one of the page before, or "
                "none to start again"
            ) from error
        if token.table_uuid != info.uuid or token.scan != scan:
            raise PageTokenError(
                f"the page token belongs to another scan than this one of table {info.name!r}; "
                "give the same range and options as for the page before"
            )
        if any(place.partition >= info.partitions for place in token.places):
            raise PageTokenError(
                f"the page token names partitions that table {info.name!r} does not have; give the "
                "token of a page of this table"
            )
        return token

    def position(self) -> Position:
        """The states that the scan reads."""
        return Position(
            {(self.table_uuid, place.partition): (place.term, place.seq) for place in self.places}
        )


_ENCODER: Final = msgspec.msgpack.Encoder()
_DECODER: Final = msgspec.msgpack.Decoder(PageToken)


def _parsed(text: str) -> PageToken:
    if len(text) > TOKEN_CHARS_MAX:
        raise ValueError(f"it is longer than {TOKEN_CHARS_MAX} characters")
    token = _DECODER.decode(token_bytes(_PREFIX, text))
    if not all(
        0 <= place.node < len(token.nodes) and min(place.partition, place.pin, place.seq) >= 0
        for place in token.places
        if place.pin
    ):
        raise ValueError("it names a node or pin that it does not have")
    return token


@dataclass(slots=True)
class _Lane:
    """One partition of a scan under way."""

    term: Term
    seq: Seq
    pin: Pin | None
    served: Served | None = None
    last_key: bytes | None = None
    """The last key of the last page that was fetched."""
    more: bool = True


class PinnedScan:
    """The states that one scan reads. ``fetch`` is what ``scanning.merged`` takes its pages from.

    ``snapshot=False``: pages are read each for itself, and the scan is of no single state.
    ``rows_max``: so many rows are wanted of all partitions together; None: all there are.
    """

    def __init__(  # noqa: PLR0913 - what is read, and how
        self,
        channel_reads: ChannelReads,
        info: TableInfo,
        spec: ReadSpec,
        stop: bytes,
        *,
        page_rows: int,
        keys_only: bool,
        deadline_ms: Callable[[], int],
        snapshot: bool = True,
        rows_max: int | None = None,
    ) -> None:
        self._channel_reads = channel_reads
        self._info = info
        self._spec = spec
        self._stop = stop
        self._page_rows = page_rows
        self._keys_only = keys_only
        self._snapshot = snapshot
        # A page of all the rows that are wanted needs no state kept for others behind it.
        self._keep = snapshot and (rows_max is None or rows_max > page_rows)
        self._deadline_ms = deadline_ms
        self._slots = asyncio.Semaphore(ANSWERS_AT_ONCE)
        self._lanes: dict[int, _Lane] = {}

    # --- beginning -------------------------------------------------------------------------------

    async def open(self, partition: int) -> None:
        """Pin the state of a partition before a row of it is read."""
        await self._begin(partition, Range(b"", self._stop, 0, self._keys_only, keep=True))
        if self._lanes[partition].pin is None:
            raise DecodeError(
                f"{self._info.name}/{partition}: the node pinned no state; "
                "install the same raftstore version on both sides"
            )

    def resume(self, token: PageToken) -> None:
        """Go on with the states of a token."""
        for place in token.places:
            node = NodeId(token.nodes[place.node]) if place.pin else NodeId("")
            pin = Pin(node, place.pin) if place.pin else None
            self._lanes[place.partition] = _Lane(place.term, place.seq, pin, more=bool(place.pin))

    # --- pages -----------------------------------------------------------------------------------

    async def fetch(self, partition: int, at: bytes) -> ScanAnswer:
        """Return the page of a partition that begins at a key."""
        part = Range(at, self._stop, self._page_rows, self._keys_only, keep=self._keep)
        lane = self._lanes.get(partition)
        if not self._snapshot:
            return await self._begin(partition, part)
        if lane is None:
            return await self._first(partition, part)
        if lane.pin is None:
            return ScanAnswer(0, (), False, _nothing(self._info, partition, lane))
        async with self._slots:
            channel = self._info.channels[partition].channel
            answer = await self._channel_reads.scan(
                channel, part, pinned(lane.pin), self._deadline_ms()
            )
        self._fetched(lane, answer)
        return answer

    async def _first(self, partition: int, part: Range) -> ScanAnswer:
        answer = await self._begin(partition, part)
        if not part.keep:
            if not answer.more or len(answer.rows) >= self._page_rows:
                return answer
            # It was cut by its bytes: others have to follow, and all of them are of one state.
            answer = await self._begin(partition, replace(part, keep=True))
        if answer.more and not answer.pin:
            raise PageExpiredError(
                f"{self._info.name}/{partition}: the state was given up while its first page was "
                "read; start the scan again, or raise read.scan_pin_idle_ms"
            )
        return answer

    async def _begin(self, partition: int, part: Range) -> ScanAnswer:
        channel = self._info.channels[partition].channel
        min_seq = self._spec.min_seq(self._info, partition)
        async with self._slots:
            answer = await self._channel_reads.scan(
                channel, part, self._spec, self._deadline_ms(), min_seq
            )
        served = answer.served
        pin = Pin(served.node, answer.pin) if answer.pin else None
        lane = self._lanes[partition] = _Lane(served.term, served.applied_seq, pin)
        self._fetched(lane, answer)
        return answer

    @staticmethod
    def _fetched(lane: _Lane, answer: ScanAnswer) -> None:
        lane.served = answer.served
        lane.more = answer.more
        lane.last_key = answer.rows[-1][0] if answer.rows else lane.last_key

    # --- ending ----------------------------------------------------------------------------------

    def token(self, scan: bytes, last_key: bytes) -> PageToken | None:
        """Return where to go on behind a key, closing what has no more rows; None: nowhere."""
        nodes: dict[str, int] = {}
        places = []
        for partition, lane in sorted(self._lanes.items()):
            is_over = not lane.more and (lane.last_key is None or lane.last_key <= last_key)
            if is_over:
                self._close(partition, lane)
            place = Place(partition, lane.term, lane.seq)
            if lane.pin is not None:
                number = nodes.setdefault(lane.pin.node, len(nodes))
                place = Place(partition, lane.term, lane.seq, number, lane.pin.number)
            places.append(place)
        if not nodes:
            return None
        next_key = last_key + b"\0"
        return PageToken(self._info.uuid, scan, next_key, tuple(nodes), tuple(places))

    def close(self) -> None:
        """Give up every state that is still pinned."""
        for partition, lane in self._lanes.items():
            self._close(partition, lane)

    def _close(self, partition: int, lane: _Lane) -> None:
        pin, lane.pin = lane.pin, None
        if pin is not None:
            self._channel_reads.close_pin(self._info.channels[partition].channel, pin)

    # --- what was read ---------------------------------------------------------------------------

    def position(self) -> Position:
        """The states that are read."""
        uuid = self._info.uuid
        return Position({(uuid, p): (lane.term, lane.seq) for p, lane in self._lanes.items()})

    def served(self) -> tuple[ServedPart, ...]:
        """By whom, of every partition that was read."""
        reported = {p: lane.served for p, lane in self._lanes.items() if lane.served is not None}
        return served_parts(reported)


def served_parts(reported: Mapping[int, Served]) -> tuple[ServedPart, ...]:
    """Return what callers learn of each partition's answer, in order."""
    return tuple(
        ServedPart(
            partition=partition,
            node=node_name(served.node),
            term=served.term,
            applied_seq=served.applied_seq,
            lag=served.lag,
            leader_info_age_ms=served.leader_info_age_ms,
            staleness_ms=served.staleness_ms,
            batches_behind=served.batches_behind,
        )
        for partition, served in sorted(reported.items())
    )


def _nothing(info: TableInfo, partition: int, lane: _Lane) -> Served:
    """The answer for a partition that an earlier page has read to its end."""
    channel = info.channels[partition].channel
    return Served(NodeId(""), channel, lane.term, lane.seq, None, None, "any", pinned=True)
