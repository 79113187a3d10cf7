"""The result of comparing the replicas of a channel."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from raftstore.types import Seq


@dataclass(frozen=True, slots=True)
class ComparedReplica:
    """One replica of a channel that was compared with the others, or could not be."""

    node: str
    base_seq: Seq | None = None
    """The log has what is behind it."""
    chain_hash: str = ""
    """Of the log, where the comparison of histories ended."""
    applied_seq: Seq | None = None
    """Of the state whose entries were compared."""
    differs: bool = False
    """From most others: by its history or by its content."""
    not_compared: str = ""
    """Why it was not, or not to the end; empty: it was."""


@dataclass(frozen=True, slots=True)
class HistoryDifference:
    """Where the log of a replica parts from that of the others."""

    node: str
    equal_to: Seq
    """Up to here both are the same."""
    differs_at: Seq
    """Here they are not."""
    record: dict[str, Any] | None = None
    """The replica's record there: first_seq, last_seq, term, kind, guid and digest; None: none
    ends there."""
    others: dict[str, Any] | None = None
    """The record of the others likewise."""
    damage: str = ""
    """What is wrong with the replica's record itself, if that was found."""


@dataclass(frozen=True, slots=True)
class EntryDifference:
    """One entry of a table that is not the same on all replicas."""

    kind: str
    """``row``, or ``state`` for what is kept beside the rows for micro-batches and expiries."""
    key: dict[str, Any] | str
    """The key columns of a row; of the state its key in hex."""
    digests: dict[str, str | None]
    """Replica -> digest of all that it stores under the key; None: it has no such entry."""


@dataclass(frozen=True, slots=True)
class RangeDifference:
    """A part of a table that is not the same on all replicas, and was not looked into further."""

    after: str
    """The key in hex behind which it begins."""
    last: str
    """The last key in hex; empty: it goes to the end of the table."""
    replicas: tuple[str, ...]
    """Those that differ from most."""


@dataclass(frozen=True, slots=True)
class ReplicaComparison:
    """All replicas of one channel, compared by their histories and entry by entry."""

    channel: str
    replicas: tuple[ComparedReplica, ...]
    log_from: Seq
    log_to: Seq
    """The part of the log behind ``log_from`` and up to ``log_to`` is in every log that was
    compared; a chain hash stands for all that was in front of it."""
    entries: int
    """Entries that were compared: rows, and the state beside them."""
    histories: tuple[HistoryDifference, ...] = ()
    keys: tuple[EntryDifference, ...] = ()
    ranges: tuple[RangeDifference, ...] = ()
    more_ranges: int = 0
    """Parts that differ and are not listed."""

    @property
    def is_different(self) -> bool:
        """Whether two replicas differ."""
        return bool(self.histories or self.keys or self.ranges)

    @property
    def is_whole(self) -> bool:
        """Whether every replica was compared to the end."""
        return not any(replica.not_compared for replica in self.replicas)


@dataclass(frozen=True, slots=True)
class ComparisonProgress:
    """How far a comparison is."""

    part: str
    """``history`` or ``contents``."""
    done: int
    total: int
    """Of a history in seqs, of contents in bytes, where ``total`` is about what there is."""
