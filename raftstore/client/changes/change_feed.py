"""Changes of a table in the order of each partition: from a position on, and resumable.

Every committed change is reported once, with what it really did
(``raftstore.engine.reads.changes``): a row that was written, a key that was removed, or that all
rows of a partition were (a batch that replaced the table). Folding all of them gives the table. Any
replica serves the same changes.

A ``ChangePosition`` lies between two changes and means the same for ever and to every reader,
as long as the table lives and its log is kept.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import msgspec

from raftstore.client.context import Context
from raftstore.client.position import Position
from raftstore.client.reads.channel_reads import ChannelReads
from raftstore.client.reads.key_reads import gather_or_cancel
from raftstore.client.reads.read_spec import ReadSpec
from raftstore.client.settings import ANSWERS_AT_ONCE
from raftstore.client.token_text import token_bytes, token_text
from raftstore.errors import DataLossError, PositionError
from raftstore.policy.routing import Prefer
from raftstore.protocol.admin import TableInfo
from raftstore.protocol.changes import ChangeEnds, ChangeEndsAnswer, ChangePiece, Changes
from raftstore.protocol.payload import decode_rows
from raftstore.rows.schema import TableSchema
from raftstore.rows.sealing import unseal
from raftstore.state_machines.outcomes import is_set
from raftstore.types import CHANNEL_ID_BYTES, Level, Seq

ROWS_MAX: Final = 10_000
BYTES_MAX: Final = 4 * 1024 * 1024
"""Of one page, where the node does not bound it further."""
UPSERT: Final = "upsert"
DELETE: Final = "delete"
TRUNCATE: Final = "truncate"
EXPIRE: Final = "expire"
"""``Change.kind``."""

EARLIEST: Final = "earliest"
LATEST: Final = "latest"
"""Where changes may begin or end, besides positions."""

_LINEARIZABLE: Final = ReadSpec(Level.LINEARIZABLE)
_PREFIX: Final = "c1."
_ENCODER: Final = msgspec.msgpack.Encoder()
_DECODER: Final = msgspec.msgpack.Decoder(tuple[bytes, tuple[tuple[int, int, int], ...]])

Pair = tuple[bytes, bytes | None]
"""An encoded key, and the sealed value or None for a delete."""


class Place(NamedTuple):
    """Where a partition is read on: behind seq ``after``; of the record that follows ``sub`` says
    what was read (``ChangesAnswer``), and of the piece there so many rows."""

    after: Seq = Seq(0)
    sub: int = 0
    rows: int = 0


@dataclass(frozen=True, slots=True)
class ChangePosition:
    """A place in every partition of one table. ``str(position)`` is the token for ``start=``."""

    table_uuid: bytes
    places: tuple[Place, ...]

    @classmethod
    def parse(cls, token: str) -> ChangePosition:
        """Read a token; PositionError when it is not one."""
        try:
            uuid, places = _DECODER.decode(token_bytes(_PREFIX, token))
            if len(uuid) != CHANNEL_ID_BYTES - 2 or min(map(min, places), default=0) < 0:
                raise ValueError("it names no place")
        except (ValueError, msgspec.MsgspecError) as error:
            reason = "it is damaged" if isinstance(error, msgspec.MsgspecError) else error
            raise PositionError(
                f"{token!r:.80} is not a position of changes ({reason}); give one that was given "
                "with a change, or earliest or latest"
            ) from error
        return cls(uuid, tuple(Place(Seq(after), sub, rows) for after, sub, rows in places))

    def __str__(self) -> str:
        return token_text(_PREFIX, _ENCODER.encode((self.table_uuid, self.places)))


@dataclass(frozen=True, slots=True)
class Change:
    """One change. ``kind``: upsert, delete, expire (the row's lifetime was over) or truncate (all
    rows of the partition were removed)."""

    kind: str
    row: dict[str, Any] | None
    """The row; of a delete or an expiry its key columns, of a truncation None."""
    partition: int
    seq: Seq
    timestamp_ms: int
    """When the leader stored the write, or the batch was decided."""
    writer: str | None
    batch_id: int | None
    """Of the atomic batch that it came with."""
    position: ChangePosition
    """Behind this change and all that were delivered before."""
    expires_ms: int | None = None
    """When a row with a lifetime expires, by the wall clock of its leader."""


class FeedPage(NamedTuple):
    """Pieces of one partition, and the places before and behind them."""

    start: Place
    pieces: tuple[ChangePiece, ...]
    stop: Place


class Ends(NamedTuple):
    """Per partition the first and the last position there is."""

    first: tuple[Seq, ...]
    last: tuple[Seq, ...]


def pairs_of(piece: ChangePiece) -> list[Pair]:
    """The rows of a piece that count, in their order."""
    if not piece.rows:
        return []
    cells = iter(decode_rows(piece.rows))
    bits = piece.bits
    return [
        (key, sealed)
        for number, (key, sealed) in enumerate(zip(cells, cells, strict=True))
        if key is not None and (not bits or is_set(bits, number))
    ]


class ChangeFeed:
    """The changes of one table as it is now."""

    def __init__(
        self,
        context: Context,
        channel_reads: ChannelReads,
        info: TableInfo,
        timeout: float | None,
        prefer: Prefer | None = None,
    ) -> None:
        self.info = info
        self._prefer = prefer
        self._context = context
        self._channel_reads = channel_reads
        self._timeout = timeout
        self._slots = asyncio.Semaphore(ANSWERS_AT_ONCE)

    # --- positions --------------------------------------------------------------------------------

    async def ends(self) -> Ends:
        """The present end: all that was acknowledged before this call is at or below it."""
        found = await gather_or_cancel([self._ends(p) for p in range(self.info.partitions)])
        return Ends(*map(tuple, zip(*found, strict=True)))

    async def _ends(self, partition: int) -> tuple[Seq, Seq]:
        channel = self.info.channels[partition].channel
        deadline_ms = self._context.deadline_ms(self._timeout)
        async with self._slots:
            # A replica may be behind; what the leader confirms is no less than was acknowledged.
            led = await self._channel_reads.get(channel, (), _LINEARIZABLE, deadline_ms)
            answer = await self._ask_ends(partition, Seq(0), Seq(0), 0)
        return answer.first, max(led.served.applied_seq, answer.applied)

    async def limited(self, after: Seq, to_seq: Seq, partition: int, rows_max: int) -> Seq:
        """Where a partition comes with at most so many rows, in whole records, one at least."""
        reached, rows = after, 0
        while reached < to_seq and rows < rows_max:
            answer = await self._ask_ends(partition, reached, to_seq, rows_max - rows)
            if rows and rows + answer.rows > rows_max:
                break  # its first record alone is too much
            moved, reached, rows = answer.reached > reached, answer.reached, rows + answer.rows
            if not answer.more or not moved:
                break
        return reached

    async def _ask_ends(
        self, partition: int, after: Seq, to_seq: Seq, rows_max: int
    ) -> ChangeEndsAnswer:
        channel = self.info.channels[partition].channel

        def build(request_id: int, left_ms: int) -> ChangeEnds:
            return ChangeEnds(request_id, channel, after, to_seq, rows_max, left_ms)

        deadline_ms = self._context.deadline_ms(self._timeout)
        return await self._channel_reads.change_ends(channel, build, deadline_ms)

    def start_of(self, start: ChangePosition | Position | str | None, ends: Ends) -> list[Place]:
        """Where to begin; DataLossError for what is not there (any more, or yet)."""
        info = self.info
        if start is None or start == EARLIEST:
            return [Place(seq) for seq in ends.first]
        if start == LATEST:
            return [Place(seq) for seq in ends.last]
        places = places_of(start, info)
        for partition, place in enumerate(places):
            if not ends.first[partition] <= place.after <= ends.last[partition]:
                raise DataLossError(
                    f"{info.name}/{partition} has changes behind seq {ends.first[partition]} up to "
                    f"seq {ends.last[partition]}, and the position is {place.after}; it is of "
                    "another store, or of a state that was lost: start from earliest or latest"
                )
        return places

    # --- pieces -----------------------------------------------------------------------------------

    async def pages(
        self, partition: int, place: Place, to_seq: Seq
    ) -> AsyncGenerator[FeedPage, None]:
        """Iterate over pages of one partition; the next one is asked for meanwhile."""
        if place.after >= to_seq:
            return
        at = Place(place.after, place.sub)
        following = asyncio.ensure_future(self._page(partition, at, to_seq))
        try:
            while True:
                page = await following
                # A position inside a record ends there: what follows it ends behind ``to_seq``.
                is_over = page.stop.after >= to_seq or page.stop == page.start
                if not is_over:
                    following = asyncio.ensure_future(self._page(partition, page.stop, to_seq))
                yield page
                if is_over:
                    return
        finally:
            following.cancel()
            await asyncio.gather(following, return_exceptions=True)

    async def _page(self, partition: int, at: Place, to_seq: Seq) -> FeedPage:
        channel = self.info.channels[partition].channel

        def build(request_id: int, left_ms: int) -> Changes:
            return Changes(
                request_id, channel, at.after, at.sub, to_seq, ROWS_MAX, BYTES_MAX, left_ms
            )

        deadline_ms = self._context.deadline_ms(self._timeout)
        answer = await self._channel_reads.changes(channel, build, deadline_ms, self._prefer)
        return FeedPage(at, answer.pieces, Place(answer.after, answer.sub))


def places_of(start: Any, info: TableInfo) -> list[Place]:
    """The places that a position names in a table; PositionError when it is of another one.

    A position of a write or a snapshot (``Position``) does too: what changed since.
    """
    if isinstance(start, str):
        start = ChangePosition.parse(start) if start.startswith(_PREFIX) else Position.parse(start)
    if isinstance(start, Position):
        start.check_table(info)
        seqs = [start.seq_of(info.uuid, partition) for partition in range(info.partitions)]
        return [Place(seq or Seq(0)) for seq in seqs]
    if not isinstance(start, ChangePosition):
        raise PositionError(
            f"{start!r:.80} is no position; give one of a change, a write or a snapshot, or "
            "'earliest' or 'latest'"
        )
    if start.table_uuid != info.uuid or len(start.places) != info.partitions:
        raise PositionError(
            f"the position is of another table than today's {info.name!r} (perhaps an earlier one "
            "of that name); start from earliest or latest"
        )
    return list(start.places)


class ChangeReader:
    """Turns pages into changes, each with the position behind it."""

    def __init__(self, info: TableInfo, schema: TableSchema, places: Sequence[Place]) -> None:
        self._info = info
        self._schema = schema
        self._skip = [place.rows for place in places]
        self.places = list(places)
        """By partition: behind everything that was delivered."""

    @property
    def position(self) -> ChangePosition:
        """The same, for a reader that goes on later."""
        return ChangePosition(self._info.uuid, tuple(self.places))

    def read(self, partition: int, page: FeedPage) -> Iterator[Change]:
        """Iterate over the changes of a page that were not delivered before."""
        skip, reported = self._skip[partition], 0
        start = page.start
        for piece in page.pieces:
            for kind, row in self._changes(piece):
                reported += 1
                if reported <= skip:
                    continue
                self.places[partition] = Place(start.after, start.sub, reported)
                yield Change(
                    kind=kind,
                    row=row,
                    partition=partition,
                    seq=piece.seq,
                    timestamp_ms=piece.timestamp_ms,
                    writer=piece.writer or None,
                    batch_id=piece.batch_id if piece.writer else None,
                    position=self.position,
                    expires_ms=piece.expires_ms or None if kind == UPSERT else None,
                )
        self._skip[partition] = max(0, skip - reported)
        self.places[partition] = page.stop._replace(rows=self._skip[partition])

    def _changes(self, piece: ChangePiece) -> Iterator[tuple[str, dict[str, Any] | None]]:
        if piece.truncate:
            yield TRUNCATE, None
        schema = self._schema
        for key, sealed in pairs_of(piece):
            if sealed is None:
                kind = EXPIRE if piece.expired else DELETE
                yield kind, dict(zip(schema.key_columns, schema.decode_key(key), strict=True))
            else:
                yield UPSERT, schema.key_value_to_row(key, unseal(key, sealed))
