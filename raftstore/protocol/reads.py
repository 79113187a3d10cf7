"""Reading rows: gets, scans, counts, how fresh an answer must be and how fresh it is.

Keys and values are encoded bytes (``raftstore.rows``); nodes never decode values.
"""

from __future__ import annotations

from typing import Any, TypeVar

import msgspec

from raftstore.protocol.message import Message, Request
from raftstore.protocol.tags import tag_of
from raftstore.types import (
    ChannelId,
    Count63,
    NodeId,
    RequestId,
    Seq,
    Span63,
    Term,
    TimeoutMs,
    Told63,
)


class Get(Request, frozen=True, array_like=True, gc=False, tag=tag_of):
    """Read keys of one channel (one or many; one answer per key, in order).

    ``max_lag`` counts rows, ``max_staleness_ms`` time and ``max_batches_behind`` micro-batches
    (level bounded; every one given must hold). ``min_seq``: wait until that seq is applied
    (at_least). ``timeout_ms`` bounds every wait at the node. ``pin``: as in Scan, the keys are read
    in a state that is pinned.
    """

    channel: ChannelId
    keys: tuple[bytes, ...]
    level: str
    max_lag: Count63 | None
    min_seq: Seq
    timeout_ms: TimeoutMs
    max_staleness_ms: Count63 | None = None
    max_batches_behind: Count63 | None = None
    pin: Count63 = 0


class GetAnswer(Message, frozen=True, array_like=True, gc=False, tag=tag_of):
    """Sealed values (None = absent; the reader checks the seal) with the seq of the record that
    wrote each, and where they were read."""

    request_id: RequestId
    values: tuple[bytes | None, ...]
    seqs: tuple[Seq, ...]
    served: Served


class Served(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """By whom and how fresh (S7.3): position applied, lag in rows (None = unknown), age in ms of
    what the replica knows of its leader (None: none has ever been known)."""

    node: NodeId
    channel: ChannelId
    term: Term
    applied_seq: Seq
    lag: Span63 | None
    leader_info_age_ms: Span63 | None
    level: str
    staleness_ms: Span63 | None = None
    """Everything committed longer ago than this is in the state (proven by a round trip, S7.3);
    None: not known."""
    batches_behind: Count63 | None = None
    batches: Told63 = -1
    """Micro-batches the state holds; -1: not reported."""
    pinned: bool = False
    """Read from a snapshot that an earlier page pinned."""


class ChannelKeys(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Keys of one channel."""

    channel: ChannelId
    keys: tuple[bytes, ...]


class GetMany(Request, frozen=True, array_like=True, gc=False, tag=tag_of):
    """Read keys of several channels at one node, as with one Get for each of ``parts``.

    Each part is judged, waits, and is answered or refused by itself; the fields are those of Get.
    Nodes below ``raftstore.policy.levels.GET_MANY_LEVEL`` do not know it.
    """

    parts: tuple[ChannelKeys, ...]
    level: str
    max_lag: Count63 | None
    timeout_ms: TimeoutMs
    max_staleness_ms: Count63 | None = None
    max_batches_behind: Count63 | None = None


class FoundKeys(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The answer to one part of a GetMany; the fields are those of GetAnswer."""

    part: Count63
    """Its place in ``GetMany.parts``."""
    values: tuple[bytes | None, ...]
    seqs: tuple[Seq, ...]
    served: Served


class RefusedKeys(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Why one part of a GetMany is not served; the fields are those of Failed."""

    part: Count63
    code: str
    message: str
    leader_hint: NodeId | None = None


class GetManyAnswer(Message, frozen=True, array_like=True, gc=False, tag=tag_of):
    """Answers to some parts of a GetMany. Each part is answered once; those that have to wait
    come in later answers with the same id."""

    request_id: RequestId
    found: tuple[FoundKeys, ...]
    refused: tuple[RefusedKeys, ...] = ()


class Bounds(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """How far behind a bounded read may be; None is "not bounded so"."""

    max_lag: Count63 | None = None
    max_staleness_ms: Count63 | None = None
    max_batches_behind: Count63 | None = None


class Scan(Request, frozen=True, array_like=True, gc=False, tag=tag_of):
    """Read a key range [start, stop) of one channel in key order; b"" is open. One page.

    ``keep`` pins the state of this page at the node for the pages that follow; they name it by
    ``pin`` and then level and bounds no longer matter: the state is the first page's. With
    ``keep`` a ``limit`` of 0 only pins: an answer without rows that says that there is more.
    """

    channel: ChannelId
    start: bytes
    stop: bytes
    limit: Count63
    level: str
    max_lag: Count63 | None
    min_seq: Seq
    timeout_ms: TimeoutMs
    keys_only: bool = False
    max_staleness_ms: Count63 | None = None
    max_batches_behind: Count63 | None = None
    keep: bool = False
    pin: Count63 = 0


class ScanAnswer(Message, frozen=True, array_like=True, gc=False, tag=tag_of):
    """A page; ``more`` says that the range has rows after the last key of this page. ``pin`` names
    the pinned state for the next page; 0: none is kept."""

    request_id: RequestId
    rows: tuple[tuple[bytes, bytes | None, Seq], ...]
    more: bool
    served: Served
    pin: Count63 = 0


class ClosePin(Request, frozen=True, array_like=True, gc=False, tag=tag_of):
    """The state that a scan pinned is no longer needed; Done also when it was gone already."""

    channel: ChannelId
    pin: Count63


class Count(Request, frozen=True, array_like=True, gc=False, tag=tag_of):
    """Count the rows of a key range [start, stop) of one channel; bounds as in Get."""

    channel: ChannelId
    start: bytes
    stop: bytes
    level: str
    max_lag: Count63 | None
    min_seq: Seq
    timeout_ms: TimeoutMs
    max_staleness_ms: Count63 | None = None
    max_batches_behind: Count63 | None = None
    pin: Count63 = 0


class CountAnswer(Message, frozen=True, array_like=True, gc=False, tag=tag_of):
    """Rows of the range in the state that ``served`` describes."""

    request_id: RequestId
    rows: Count63
    served: Served


ReadRequest = Get | Scan | Count
"""The requests that read rows of one channel as a ``Consistency`` says."""

RequestT = TypeVar("RequestT", Get, Scan, Count)


class Consistency(msgspec.Struct, frozen=True, gc=False):
    """How fresh the state must be that a request for rows is answered from.

    Every ``ReadRequest`` has these fields, each at its own place on the wire; ``row_read`` puts
    them there.
    """

    level: str
    """The value of a ``Level``."""
    min_seq: Seq = Seq(0)
    """Of the channel; the replica answers once it has applied it."""
    max_lag: Count63 | None = None
    """Rows; of level bounded, as the next two. None: the table's bound, else the node's."""
    max_staleness_ms: Count63 | None = None
    max_batches_behind: Count63 | None = None
    """Micro-batches."""
    pin: Count63 = 0
    """A state that a scan pinned; with it the others have no meaning. 0: the present state."""


def row_read(
    kind: type[RequestT],
    request_id: RequestId,
    channel: ChannelId,
    consistency: Consistency,
    timeout_ms: TimeoutMs,
    **what: Any,
) -> RequestT:
    """Return the request for rows of a channel; ``what``: its keys, or its range."""
    fields = msgspec.structs.asdict(consistency)
    return kind(request_id=request_id, channel=channel, timeout_ms=timeout_ms, **what, **fields)
