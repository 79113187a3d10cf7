"""The durable log of a node, as the engine uses it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple, Protocol

import msgspec

from raftstore.config import FRAME_BYTES_MAX, KIB
from raftstore.ports.scrub import LogVerifying
from raftstore.protocol.node import Hole
from raftstore.protocol.records import Record
from raftstore.types import (
    DIGEST_BYTES,
    ChannelId,
    Digest,
    Durability,
    History,
    LineageEntry,
    NodeId,
    Seq,
    Term,
)


class Base(msgspec.Struct, frozen=True, array_like=True):
    """The state of a channel's log in front of the first record that the log still holds (S6.5).

    Always of committed records, and a function of them alone (S6.7): replicas may have different
    bases, and of one seq all of them have the same.
    """

    term: Term
    """Of the record that ends at ``seq``; 0 while nothing was removed."""
    seq: Seq
    """The last seq that the log does not hold any more."""
    chain_hash: Digest
    """The chain hash at ``seq`` (S13)."""
    folds: bytes
    """What replicas derive from all records up to ``seq``, encoded (``raftstore.core.folds``);
    empty for the empty log."""

    @property
    def history(self) -> History:
        """Term and seq of the last record that was removed."""
        return History(self.term, self.seq)


BASE_BYTES_MAX: Final = FRAME_BYTES_MAX - 4 * KIB
"""Of the folds of a base: it is one entry of the log, and one message to another replica."""
EMPTY_BASE: Final = Base(Term(0), Seq(0), bytes(DIGEST_BYTES), b"")
"""Of a log that still holds everything since its first record."""


@dataclass(frozen=True, slots=True)
class RecoveredChannel:
    """The log's content for a channel when it is opened.

    ``shortfall`` is (term, seq) of the mark (S0.3) when the log is shorter than what was
    acknowledged: the replica is *recovering*. ``hole``: the first one behind ``last_seq``.
    ``base``: what stands for the records in front of the first one held; never above ``last_seq``.
    ``in_doubt``: acknowledged records may be lost, and nothing here shows which (S0.6).
    """

    channel: ChannelId
    term: Term
    voted_for: NodeId | None
    lineage: tuple[LineageEntry, ...]
    last_seq: Seq
    shortfall: History | None = None
    hole: Hole | None = None
    base: Base = EMPTY_BASE
    in_doubt: bool = False


class DroppedRecords(NamedTuple):
    """Records of dropped channels and removed replicas that are still in segments, for others'
    sake."""

    size_bytes: int
    segment: int
    """The newest segment that may have any; 0: there is none."""


class LogExtent(Protocol):
    """How much of a channel's log there is, and in which segments."""

    def bytes_between(self, after: Seq, to_seq: Seq) -> int:
        """Bytes of the entries of records behind ``after`` and up to ``to_seq``."""

    def seq_keeping(self, *, bytes_max: int, records_max: int) -> Seq:
        """The lowest seq, where a record ends or the base is, behind which no more is held."""

    def end_between(self, low: Seq, high: Seq) -> Seq | None:
        """The end of the record in the middle of those that end behind ``low`` and before ``high``;
        None: there is none."""

    def end_in(self, segment: int) -> Seq:
        """The last seq that the channel has in segments up to this one, or its base's seq."""

    def reach(self, from_seq: Seq, *, to_seq: Seq, bytes_max: int, records_max: int) -> Seq:
        """The last seq that ``MessageLog.read`` with these bounds gives, and at most
        ``records_max`` records; the seq in front of ``from_seq`` when there is none."""


class MessageLog(Protocol):
    """The node's replicated log: every channel's records, terms and votes, one fsync for all.

    Writes are buffered in call order and numbered; ``flush`` makes them durable in that order, so
    a crash leaves a prefix. Nothing written may be *revealed* before it is durable (S0.5); the
    engine keeps its outbox behind the numbers returned here.
    """

    @property
    def verifying(self) -> LogVerifying:
        """Reads it back while the node runs."""

    def channels(self) -> tuple[ChannelId, ...]:
        """Channels the log knows, in a stable order, without those whose replica was removed."""

    def open_channel(self, channel: ChannelId, number: int | None = None) -> RecoveredChannel:
        """The recovered state of the channel; an empty one for a new channel.

        ``number``: of the replica; None: whichever the log is of. Raises UnknownChannelError for a
        channel that was dropped, and for a replica that was removed (S0.1).
        """

    def base(self, channel: ChannelId) -> Base:
        """The base of the channel's log: the state in front of its first record."""

    def rebase(self, channel: ChannelId, base: Base) -> int:
        """Buffer that the channel's log begins behind ``base``; return the operation number.

        Records behind it stay if the log holds the one that it ends with, or held it and lost it
        with a hole; else all of them go. The present base again moves nothing but the place where
        it is stored. A base that goes down, that contradicts the log, or that it holds in
        front of a hole stops the node (S6.5). Raises StorageError, changing nothing, for one that
        is too large to be stored.
        """

    def why_hole_stays(self, channel: ChannelId, base: Base) -> str | None:
        """Why this base cannot stand for what the log lacks; None: it can (S0.3)."""

    def may_hold(self, channel: ChannelId, promised: History) -> bool:
        """Whether that record is held, or was before the base, or was lost with a hole that will be
        filled (S0.3)."""

    def floor(self) -> int:
        """Number of the first segment of the log that is kept; what is in front of it is removed,
        or will be when the operation is durable that ``begin_floor`` buffered last."""

    def live_from(self, channel: ChannelId) -> int | None:
        """The oldest segment that the channel needs: of its base entry, or of the first record
        behind the base; None: it needs none. The floor, for a channel with a hole."""

    def floor_max(self) -> int:
        """The highest floor that ``begin_floor`` takes now: no channel needs a segment below."""

    def dropped(self) -> DroppedRecords:
        """Records of dropped channels and removed replicas in the segments that there are."""

    def leave_segment(self, segment: int) -> None:
        """Have the next operation begin another segment if this one is the newest, so that it can
        go."""

    def begin_floor(self, segment: int) -> int:
        """Buffer that segments below are removed, a bounded number at once; return the operation
        number. A segment below which some channel needs one, and one that is no higher than the
        floor, stops the node."""

    def append(self, channel: ChannelId, records: Sequence[Record]) -> int:
        """Buffer records contiguous with the channel's end; return the operation number."""

    def truncate(self, channel: ChannelId, from_seq: Seq) -> int:
        """Buffer the removal of records with base_seq >= from_seq; return the operation number."""

    def fill(self, channel: ChannelId, records: Sequence[Record]) -> int:
        """Buffer records proven to be those that the channel lost; return the operation number."""

    def give_up(self, channel: ChannelId) -> int:
        """Buffer that what is behind the hole is forgotten; return the operation number."""

    def refill(self, channel: ChannelId, hole: Hole, *, bytes_max: int) -> list[Record]:
        """Records of another replica's hole, if this log is proven to hold the same (S2.4)."""

    def set_vote(self, channel: ChannelId, term: Term, voted_for: NodeId | None) -> int:
        """Buffer the term and vote; return the operation number."""

    def promise(self, channel: ChannelId, durability: Durability) -> int:
        """Buffer that the channel acknowledges at ``durability`` from now on (S0.6); return the
        operation number. FSYNC: nothing that is not synced was acknowledged."""

    def end_doubt(self, channel: ChannelId) -> int:
        """Buffer that what the channel acknowledged is held again; return the operation number."""

    def drop_channel(self, channel: ChannelId) -> int:
        """Buffer the removal of a dropped table's channel; its id is refused for ever after."""

    def remove_replica(self, channel: ChannelId, number: int) -> int:
        """Buffer that replicas of the channel up to ``number`` are removed from this node; return
        the operation number. Once it is durable their table may go.

        What they held and promised is gone. Their term and vote go on: a replica of a higher number
        that is opened here must not vote in a term again in which they did (S1.3).
        """

    def holds(self, channel: ChannelId) -> bool:
        """Whether anything is known of a replica of the channel that is not removed."""

    def removed(self, channel: ChannelId) -> int | None:
        """The highest number of a replica of the channel that was removed here; None: none was."""

    def last_operation(self) -> int:
        """Number of the newest buffered operation (0: none yet)."""

    def durable_operation(self) -> int:
        """Number of the newest durable operation."""

    def read(
        self, channel: ChannelId, from_seq: Seq, *, to_seq: Seq, bytes_max: int
    ) -> list[Record]:
        """Records from the one containing ``from_seq`` to ``to_seq``, verified by CRC; buffered
        ones too, one if any, then at most ``bytes_max`` of payload."""

    def records(self, channel: ChannelId) -> Iterator[Record]:
        """All records in order, for the start; payloads may be b"" but of CONFIG and BATCH_MARK."""

    def heads(self, channel: ChannelId, after: Seq, *, to_seq: Seq, limit: int) -> list[Record]:
        """At most ``limit`` records behind the one that ends with ``after``, up to ``to_seq``; with
        payloads as ``records`` has them."""

    def extent(self, channel: ChannelId) -> LogExtent:
        """How much there is of the channel, and where; of now, and not to be kept."""

    def unsynced_bytes(self) -> int:
        """Bytes of memory in entries that are not durable yet."""

    def size_bytes(self) -> int:
        """Bytes on disk; shown in status."""
