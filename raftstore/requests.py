"""What clients and operators ask of a node, and what it answers.

Each request has a ``request_id`` chosen by the client, unique on its connection; the Response
carries it back. Publishing is not here: it is ``PubMsg``/``PubAck``/``PubReject``, correlated by
guid. Keys and values are already encoded bytes (``raftstore.rows``); nodes never decode values.
"""

from __future__ import annotations

from typing import Any

import msgspec

from raftstore.messages import Message
from raftstore.types import ChannelId, NodeId, Seq, Term


class Request(Message, frozen=True, array_like=True, gc=False):
    """Base of requests."""

    request_id: int


class Get(Request, frozen=True, array_like=True, gc=False, tag=100):
    """Read keys of one channel (one or many; one answer per key, in order).

    ``max_lag`` counts rows (level bounded). ``min_seq``: wait until that seq is applied
    (at_least). ``timeout_ms`` bounds every wait at the node.
    """

    channel: ChannelId
    keys: tuple[bytes, ...]
    level: str
    max_lag: int | None
    min_seq: Seq
    timeout_ms: int


class GetAnswer(Message, frozen=True, array_like=True, gc=False, tag=101):
    """Sealed values (None = absent; the reader checks the seal) with the seq of the record that
    wrote each, and where they were read."""

    request_id: int
    values: tuple[bytes | None, ...]
    seqs: tuple[Seq, ...]
    served: Served


class Served(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """By whom and how fresh (S7.3): position applied, lag in rows (None = unknown), age in ms of
    what the replica knows of its leader (None = never heard)."""

    node: NodeId
    channel: ChannelId
    term: Term
    applied_seq: Seq
    lag: int | None
    leader_info_age_ms: int | None
    level: str


class Scan(Request, frozen=True, array_like=True, gc=False, tag=102):
    """Read a key range [start, stop) of one channel in key order; b"" is open. One page."""

    channel: ChannelId
    start: bytes
    stop: bytes
    limit: int
    level: str
    max_lag: int | None
    min_seq: Seq
    timeout_ms: int
    keys_only: bool = False


class ScanAnswer(Message, frozen=True, array_like=True, gc=False, tag=103):
    """A page; ``more`` tells that the range has rows after the last key of this page."""

    request_id: int
    rows: tuple[tuple[bytes, bytes | None, Seq], ...]
    more: bool
    served: Served


class ContentHash(Request, frozen=True, array_like=True, gc=False, tag=104):
    """Hash of the whole applied table state of one channel on the node asked (channel verify)."""

    channel: ChannelId


class ContentHashAnswer(Message, frozen=True, array_like=True, gc=False, tag=105):
    """``digest`` over keys, values and seqs in key order at ``applied_seq``."""

    request_id: int
    digest: bytes
    rows: int
    served: Served


class ClusterInfo(Request, frozen=True, array_like=True, gc=False, tag=106):
    """Ask for the node's copy of the catalog and its view of leaders (hints only, S7.4)."""

    known_version: int = 0


class NodeInfo(msgspec.Struct, frozen=True, array_like=True):
    """A registered node: ``endpoint`` is its advertised host:port."""

    node: NodeId
    endpoint: str
    up: bool
    pid: int = 0


class ChannelInfo(msgspec.Struct, frozen=True, array_like=True):
    """Placement of one channel and who leads it as far as the answering node knows."""

    channel: ChannelId
    replicas: tuple[NodeId, ...]
    leader: NodeId | None
    term: Term


class TableInfo(msgspec.Struct, frozen=True, array_like=True):
    """A table of the catalog."""

    name: str
    uuid: bytes
    key_columns: tuple[str, ...]
    partitions: int
    replicas: int
    durability: str
    max_lag: int | None
    schema_json: str
    channels: tuple[ChannelInfo, ...]


class ClusterInfoAnswer(Message, frozen=True, array_like=True, gc=False, tag=107):
    """The catalog at ``version`` (metadata channel's applied seq). ``age_ms`` is how long ago this
    copy was known to be complete; None: it is not known to be (S1.9)."""

    request_id: int
    cluster_id: bytes
    version: int
    age_ms: int | None
    answered_by: NodeId
    nodes: tuple[NodeInfo, ...]
    tables: tuple[TableInfo, ...]
    metadata_channel: ChannelInfo


class CreateTable(Request, frozen=True, array_like=True, gc=False, tag=108):
    """Compare-and-set on the name; answered when every partition has a leader (S0.8)."""

    name: str
    key_columns: tuple[str, ...]
    partitions: int
    replicas: int
    durability: str
    max_lag: int | None
    schema_json: str
    if_not_exists: bool
    timeout_ms: int


class DropTable(Request, frozen=True, array_like=True, gc=False, tag=109):
    """Remove a table; its UUID never serves again (S0.8). ``uuid`` names the very table that is
    meant, so that a retry never removes another one of the same name; b"" is whichever it is."""

    name: str
    timeout_ms: int
    uuid: bytes = b""


class Done(Message, frozen=True, array_like=True, gc=False, tag=110):
    """Success without content."""

    request_id: int
    detail: dict[str, Any] = {}


class Failed(Message, frozen=True, array_like=True, gc=False, tag=111):
    """A RequestError by its code. ``hosts``: one reason per node, where that applies."""

    request_id: int
    code: str
    message: str
    leader_hint: NodeId | None = None
    hosts: dict[str, str] = {}


class Status(Request, frozen=True, array_like=True, gc=False, tag=112):
    """The node's own state for `raftstore status`: channels, roles, lags, sizes, warnings."""


class StatusAnswer(Message, frozen=True, array_like=True, gc=False, tag=113):
    """A JSON-shaped snapshot; the shape is documented in ``raftstore.cluster.status``."""

    request_id: int
    status: dict[str, Any]


class StepDown(Request, frozen=True, array_like=True, gc=False, tag=114):
    """Operator: the leader of the channel hands over, to ``target`` if given (S9)."""

    channel: ChannelId
    target: NodeId | None = None
    timeout_ms: int = 5000


ClientRequest = Get | Scan | ContentHash | ClusterInfo | CreateTable | DropTable | Status | StepDown
ClientAnswer = (
    GetAnswer | ScanAnswer | ContentHashAnswer | ClusterInfoAnswer | StatusAnswer | Done | Failed
)
