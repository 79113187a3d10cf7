"""Between nodes: a channel's table or its log's base, for a replica that no log helps (S6.6).

A state of committed records is right at any time and in every term, so that none of these messages
has one. They are node to node; a node is only sent one when it reported the level they came with.
"""

from __future__ import annotations

from typing import Final

from raftstore.protocol.message import Message
from raftstore.protocol.tags import tag_of
from raftstore.types import ChannelId, Count63, Digest, RequestId, Seq, Term

CHUNKS_AHEAD: Final = 2
"""Chunks that are asked for and not written yet."""


class AskReplicaSnapshot(Message, frozen=True, array_like=True, gc=False, tag=tag_of):
    """Node -> replica: offer me a snapshot of your table above ``have_seq``, such that a log with a
    base at ``base_seq`` has all that the snapshot still refers to."""

    channel: ChannelId
    request_id: RequestId
    have_seq: Seq
    base_seq: Seq
    without_rows: bool = False
    """A witness asks: its position alone, for its log is to begin near the leader's."""
    in_files: bool = False
    """Offer the files of the table, if they can be had; nodes below level 9 do not look at it."""
    held: tuple[tuple[str, Count63, Digest], ...] = ()
    """Files that are here already, or their beginnings: name, bytes and digest."""
    quick_digests: bool = False
    """Digest parts of files by XXH3 in place of BLAKE2b, if you know how; the offer says so."""


class AskSnapshotRest(Message, frozen=True, array_like=True, gc=False, tag=tag_of):
    """Node -> replica: I have the first pairs of the table of this position, up to the key
    ``after``; offer me the others, if yours has the same ones.

    While that is being compared the answer is an offer without a snapshot and without a reason.
    """

    channel: ChannelId
    request_id: RequestId
    term: Term
    seq: Seq
    after: bytes
    pairs: Count63
    digest: bytes
    """Over these pairs."""


class ReplicaSnapshotOffer(Message, frozen=True, array_like=True, gc=False, tag=tag_of):
    """The answer. ``snapshot_id`` names the snapshot to this node for as long as its chunks are
    asked for; 0: there is none, and ``reason`` says why."""

    channel: ChannelId
    request_id: RequestId
    snapshot_id: Count63
    term: Term
    seq: Seq
    """Of the last record that is applied in it."""
    base_max: Seq
    """The highest base that a log may have beside it."""
    table_bytes: Count63
    """About so many will follow."""
    reason: str = ""
    files: Count63 = 0
    """The table is sent as so many files (``TableFilePart``), and ``term`` and ``seq`` are of a
    record that is applied in them, if not the last; 0: in pairs."""
    quick_digests: bool = False
    """Digests of parts of files are of XXH3, 128 bits, as was asked for; else of BLAKE2b."""


class AskSnapshotChunk(Message, frozen=True, array_like=True, gc=False, tag=tag_of):
    """Node -> replica: send me this chunk, counted from 0; the one before it was asked for.

    More than ``CHUNKS_AHEAD`` behind the last one it says that the receiver has all of them: the
    sender lets its snapshot go, which keeps files of the table. Older versions wait until nobody
    has asked for a while.
    """

    channel: ChannelId
    snapshot_id: Count63
    number: Count63


class SnapshotChunk(Message, frozen=True, array_like=True, gc=False, tag=tag_of):
    """The answer: keys without the channel's id and stored values, in key order.

    ``reason``: the snapshot is not there any more, and why. With the last chunk comes the digest
    over all pairs of all chunks, and their number.
    """

    channel: ChannelId
    snapshot_id: Count63
    number: Count63
    pairs: tuple[tuple[bytes, bytes], ...]
    digest: bytes
    is_last: bool = False
    all_pairs: Count63 = 0
    all_digest: bytes = b""
    reason: str = ""


class TableFilePart(Message, frozen=True, array_like=True, gc=False, tag=tag_of):
    """The answer where the table is sent in files: a range of bytes of one of them.

    With the last part of all comes the digest over the digests of all parts.
    """

    channel: ChannelId
    snapshot_id: Count63
    number: Count63
    name: str
    at: Count63
    content: bytes
    digest: Digest
    is_file_end: bool
    is_held: bool = False
    """The receiver has this file, or its beginning: as much as ``at`` says, and this is no part."""
    is_last: bool = False
    all_digest: bytes = b""


class TableFilesRefused(Message, frozen=True, array_like=True, gc=False, tag=tag_of):
    """Node -> replica: the files that you sent are as you sent them, and not a table of the
    channel; look at yours. It ends the snapshot."""

    channel: ChannelId
    snapshot_id: Count63
    reason: str


class AskBase(Message, frozen=True, array_like=True, gc=False, tag=tag_of):
    """Node -> replica: give me the base of your log; mine may begin at ``base_max`` at most."""

    channel: ChannelId
    request_id: RequestId
    base_max: Seq


class BaseOffer(Message, frozen=True, array_like=True, gc=False, tag=tag_of):
    """The answer: the base of the sender's log with its folds; ``reason``: why there is none.
    ``rows_seq``, to a witness: up to where enough voters with rows acknowledged the log."""

    channel: ChannelId
    request_id: RequestId
    term: Term
    seq: Seq
    chain_hash: Digest
    folds: bytes
    reason: str = ""
    rows_seq: Seq = Seq(0)


ReplicaSnapshotMessage = (
    AskReplicaSnapshot
    | AskSnapshotRest
    | ReplicaSnapshotOffer
    | AskSnapshotChunk
    | SnapshotChunk
    | TableFilePart
    | TableFilesRefused
    | AskBase
    | BaseOffer
)
