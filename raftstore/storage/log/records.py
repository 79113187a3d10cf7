"""Bytes of the log's entries.

An entry is ``[length u32][crc u32][chain u32][body]``, all numbers big-endian:

* ``length`` of the body in bytes;
* ``crc`` = CRC-32 of the body, so one entry can be verified by random access;
* ``chain`` = CRC-32 of (length, crc) continued from the previous entry's chain, so entries that
  were lost, exchanged or left over from another file are noticed, across segments too.

A body starts with its kind. RECORD holds one record of one channel: fixed fields with a checksum of
their own (so the fields can be read and verified without the payload), then the payload as it came
from its publisher. TRUNCATE, VOTE and DROP are the other changes of a channel. FILL is a
RECORD that takes the place of a damaged one, wherever it stands, and GIVE_UP forgets what is held
behind such a hole (``raftstore.storage.log.recovery``). BASE says behind what the log of a channel
begins from now on, and all that a start has to know of it: its term and vote, and its end, so that
nothing of the channel is needed from older files. REMOVED says that the channel's replica of a
number is removed from the node; what follows is of a later one. SEGMENT is the first entry of each
file: magic, format version, store UUID, number of the segment and the chain it continues. A batch
of records is several RECORD entries: each stays readable by itself.

Pure functions over bytes; damage is raised as ``DamagedEntryError``, which the log turns into a cut
or into CorruptRecordError. An entry or record of an unknown kind whose checksums fit is none: it is
NewerFormatError, for a newer version wrote it (GAP-15).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from enum import IntEnum
from struct import Struct
from struct import error as StructError
from typing import Final, NamedTuple

from raftstore.config import FORMAT_VERSION, FRAME_BYTES_MAX
from raftstore.crc import crc32
from raftstore.errors import NewerFormatError, StorageError
from raftstore.ports.log import Base
from raftstore.protocol.records import Record
from raftstore.types import (
    CHANNEL_ID_BYTES,
    DIGEST_BYTES,
    ChannelId,
    History,
    NodeId,
    RecordKind,
    Seq,
    Term,
)

HEADER: Final = Struct(">III")
HEADER_BYTES: Final = HEADER.size
BODY_BYTES_MAX: Final = FRAME_BYTES_MAX
SEGMENT_MAGIC: Final = b"raftstore log\x00\r\n"

_LINK: Final = Struct(">II")
_META: Final = Struct(f">B{CHANNEL_ID_BYTES}sQQI16sqBB{DIGEST_BYTES}s")
_META_CRC: Final = Struct(">I")
_TRUNCATE: Final = Struct(f">B{CHANNEL_ID_BYTES}sQ")
_VOTE: Final = Struct(f">B{CHANNEL_ID_BYTES}sQ?")
_DROP: Final = Struct(f">B{CHANNEL_ID_BYTES}s")
_REMOVED: Final = Struct(f">B{CHANNEL_ID_BYTES}sQQ?")
_BASE: Final = Struct(f">B{CHANNEL_ID_BYTES}sBQHQQQQ{DIGEST_BYTES}s")
_VOTED: Final = 1
_REPLACES: Final = 2
_SEGMENT: Final = Struct(f">B{len(SEGMENT_MAGIC)}sH16sQI")
SEGMENT_HEADER_BYTES: Final = HEADER_BYTES + _SEGMENT.size
META_BYTES: Final = _META.size + _META_CRC.size
RECORD_HEAD_BYTES: Final = HEADER_BYTES + META_BYTES
"""Bytes of a record's entry in front of its payload."""
BODY_BYTES_MIN: Final = _DROP.size

_RECORD_KINDS: Final = {int(kind): kind for kind in RecordKind}


class EntryKind(IntEnum):
    """Kinds of entries. On disk: never reuse a number."""

    RECORD = 1
    TRUNCATE = 2
    VOTE = 3
    DROP = 4
    SEGMENT = 5
    FILL = 6
    GIVE_UP = 7
    BASE = 8
    REMOVED = 9


class DamagedEntryError(ValueError):
    """Bytes that are not the entry they should be; the text says what is wrong."""


class RecordPosition(NamedTuple):
    """The fields of a record that the index needs, without its payload."""

    channel: ChannelId
    term: Term
    base_seq: Seq
    rows: int


@dataclass(frozen=True, slots=True)
class Fill:
    """A record that other replicas gave back for one that was damaged here."""

    record: RecordPosition


@dataclass(frozen=True, slots=True)
class GiveUp:
    """Forget what is held of the channel behind its first hole."""

    channel: ChannelId


@dataclass(frozen=True, slots=True)
class Truncation:
    """Remove records with base_seq >= from_seq."""

    channel: ChannelId
    from_seq: Seq


@dataclass(frozen=True, slots=True)
class Vote:
    """Term and vote of a channel."""

    channel: ChannelId
    term: Term
    voted_for: NodeId | None


@dataclass(frozen=True, slots=True)
class Drop:
    """The channel's table was dropped; the id is refused for ever after (S0.8)."""

    channel: ChannelId


@dataclass(frozen=True, slots=True)
class Removed:
    """The replica of this number is removed: its records and acknowledgements count no more.

    Term and vote stay: a later replica of the node, of a higher number, goes on from them.
    """

    channel: ChannelId
    number: int
    term: Term
    voted_for: NodeId | None


@dataclass(frozen=True, slots=True)
class Based:
    """The channel's log begins behind ``base`` from here on."""

    channel: ChannelId
    base: Base
    end: History
    """(term, seq) of the last record of the log, or of the base."""
    term: Term
    voted_for: NodeId | None
    replaces: bool
    """Whatever the log held before is gone; else records behind the base stay where they are."""


@dataclass(frozen=True, slots=True)
class SegmentHeader:
    """First entry of a segment file."""

    version: int
    store_uuid: bytes
    number: int
    previous_chain: int


Entry = RecordPosition | Truncation | Vote | Drop | SegmentHeader | Fill | GiveUp | Based | Removed


def first_chain(store_uuid: bytes) -> int:
    """Return the chain before the first entry of a store: other stores' files never fit."""
    return crc32(store_uuid)


def next_chain(chain: int, length: int, crc: int) -> int:
    """Return the chain after an entry whose header says this."""
    return crc32(_LINK.pack(length, crc), chain)


def _framed(body: bytes, chain: int) -> tuple[bytes, int]:
    crc = crc32(body)
    chain = next_chain(chain, len(body), crc)
    return HEADER.pack(len(body), crc, chain) + body, chain


def encode_record(
    channel: ChannelId, record: Record, chain: int, kind: EntryKind = EntryKind.RECORD
) -> tuple[bytes, int]:
    """Return everything in front of the payload, and the chain; the payload follows as it is.

    ``kind``: RECORD or FILL.
    """
    payload = record.payload
    digest = record.digest
    length, digest_bytes = META_BYTES + len(payload), len(digest)
    if length > BODY_BYTES_MAX or digest_bytes > DIGEST_BYTES:
        raise StorageError(
            f"a record with a payload of {len(payload)} bytes and a digest of {digest_bytes} "
            f"cannot be stored; the limits are {BODY_BYTES_MAX - META_BYTES} and {DIGEST_BYTES}"
        )
    meta = _META.pack(
        kind,
        channel,
        record.term,
        record.base_seq,
        record.rows,
        record.guid,
        record.timestamp_ms,
        record.kind,
        digest_bytes,
        digest,
    )
    meta_crc = crc32(meta)
    sealed_meta = meta + _META_CRC.pack(meta_crc)
    crc = crc32(payload, crc32(sealed_meta))
    chain = crc32(_LINK.pack(length, crc), chain)  # as next_chain, without a call
    return HEADER.pack(length, crc, chain) + sealed_meta, chain


def encode_truncation(channel: ChannelId, from_seq: Seq, chain: int) -> tuple[bytes, int]:
    """Return the whole entry and the chain after it."""
    return _framed(_TRUNCATE.pack(EntryKind.TRUNCATE, channel, from_seq), chain)


def encode_vote(
    channel: ChannelId, term: Term, voted_for: NodeId | None, chain: int
) -> tuple[bytes, int]:
    """Return the whole entry and the chain after it."""
    body = _VOTE.pack(EntryKind.VOTE, channel, term, voted_for is not None)
    return _framed(body + (voted_for or "").encode(), chain)


def encode_drop(channel: ChannelId, chain: int) -> tuple[bytes, int]:
    """Return the whole entry and the chain after it."""
    return _framed(_DROP.pack(EntryKind.DROP, channel), chain)


def encode_removed(entry: Removed, chain: int) -> tuple[bytes, int]:
    """Return the whole entry and the chain after it."""
    voted = entry.voted_for is not None
    body = _REMOVED.pack(EntryKind.REMOVED, entry.channel, entry.number, entry.term, voted)
    return _framed(body + (entry.voted_for or "").encode(), chain)


def encode_give_up(channel: ChannelId, chain: int) -> tuple[bytes, int]:
    """Return the whole entry and the chain after it."""
    return _framed(_DROP.pack(EntryKind.GIVE_UP, channel), chain)


def encode_base(entry: Based, chain: int) -> tuple[bytes, int]:
    """Return the whole entry and the chain after it. Raises StorageError if it is too large."""
    base, name = entry.base, (entry.voted_for or "").encode()
    length = _BASE.size + len(name) + len(base.folds)
    if length > BODY_BYTES_MAX:
        raise StorageError(
            f"the base of channel {entry.channel.hex()} at seq {base.seq} takes {length} bytes and "
            f"cannot be stored; the limit is {BODY_BYTES_MAX}"
        )
    flags = (_VOTED if entry.voted_for is not None else 0) | (_REPLACES if entry.replaces else 0)
    body = _BASE.pack(
        EntryKind.BASE,
        entry.channel,
        flags,
        entry.term,
        len(name),
        *base.history,
        *entry.end,
        base.chain_hash,
    )
    return _framed(body + name + base.folds, chain)


def encode_segment(store_uuid: bytes, number: int, chain: int) -> tuple[bytes, int]:
    """Return the first entry of segment ``number``, which continues ``chain``."""
    body = _SEGMENT.pack(
        EntryKind.SEGMENT, SEGMENT_MAGIC, FORMAT_VERSION, store_uuid, number, chain
    )
    return _framed(body, chain)


def decode_record(entry: bytes | memoryview) -> Record:
    """Decode a whole RECORD entry, verifying it by its own checksum (not by the chain)."""
    if len(entry) < RECORD_HEAD_BYTES:
        raise DamagedEntryError(f"only {len(entry)} bytes are left of a record")
    length, crc, _ = HEADER.unpack_from(entry)
    view = memoryview(entry)
    if length != len(entry) - HEADER_BYTES:
        raise DamagedEntryError(f"it claims {length} bytes instead of {len(entry) - HEADER_BYTES}")
    if crc32(view[HEADER_BYTES:]) != crc:
        raise DamagedEntryError("its checksum does not match")
    return _record(entry, bytes(view[RECORD_HEAD_BYTES:]))


def decode_record_head(head: bytes) -> Record:
    """Decode a record without its payload (b""), verified by the checksum of its fields."""
    if len(head) < RECORD_HEAD_BYTES:
        raise DamagedEntryError(f"only {len(head)} bytes are left of a record")
    meta = head[HEADER_BYTES : HEADER_BYTES + _META.size]
    if crc32(meta) != _META_CRC.unpack_from(head, HEADER_BYTES + _META.size)[0]:
        raise DamagedEntryError("the checksum of its fields does not match")
    return _record(head, b"")


def _record(entry: bytes | memoryview, payload: bytes) -> Record:
    fields = _META.unpack_from(entry, HEADER_BYTES)
    kind, _, term, base_seq, rows, guid, timestamp_ms, record_kind, digest_bytes, digest = fields
    if kind not in (EntryKind.RECORD, EntryKind.FILL):
        raise DamagedEntryError(f"an entry of kind {kind} is no record")
    known = _RECORD_KINDS.get(record_kind)
    if known is None:
        raise _newer("a record", record_kind)
    return Record(term, base_seq, rows, guid, timestamp_ms, digest[:digest_bytes], known, payload)


def record_channel(head: bytes) -> ChannelId:
    """Return the channel of a RECORD entry's head."""
    return ChannelId(_META.unpack_from(head, HEADER_BYTES)[1])


def decode_entries(
    data: bytes | memoryview, chain: int | None, offset: int = 0
) -> Iterator[tuple[int, int, int, Entry]]:
    """Yield (offset, length with header, chain after it, entry) from ``offset`` of a segment on.

    ``chain``: None where it is not known; then the first entry is believed without it.

    Raises DamagedEntryError at the first byte that cannot be believed, and NewerFormatError at the
    first entry that only a newer version can read; everything yielded before is intact and in its
    place. A file that ends exactly after an entry just ends.
    """
    view = memoryview(data)
    while offset < len(view):
        if offset + HEADER_BYTES > len(view):
            raise DamagedEntryError("a header is cut off")
        length, crc, link = HEADER.unpack_from(view, offset)
        # An all-zero header would otherwise pass as an empty entry: crc32(b"") is 0.
        if not BODY_BYTES_MIN <= length <= BODY_BYTES_MAX:
            raise DamagedEntryError(f"an entry claims {length} bytes")
        start = offset + HEADER_BYTES
        if start + length > len(view):
            raise DamagedEntryError(f"an entry of {length} bytes is cut off")
        body = view[start : start + length]
        if crc32(body) != crc:
            raise DamagedEntryError("the checksum of an entry does not match")
        if chain is not None and next_chain(chain, length, crc) != link:
            raise DamagedEntryError("an entry does not continue the one before it")
        chain = link
        yield offset, HEADER_BYTES + length, chain, decode_body(body)
        offset = start + length


def peek_header(data: bytes) -> SegmentHeader | None:
    """Return the segment header a file starts with, whatever chain it continues; None: damaged."""
    if len(data) < HEADER_BYTES:
        return None
    length, crc, _ = HEADER.unpack_from(data)
    body = memoryview(data)[HEADER_BYTES : HEADER_BYTES + length]
    if len(body) < _SEGMENT.size or len(body) != length or crc32(body) != crc:
        return None
    try:
        entry = decode_body(body)
    except (DamagedEntryError, NewerFormatError):
        return None
    return entry if isinstance(entry, SegmentHeader) else None


def forget_kinds(kinds: Iterable[RecordKind]) -> None:
    """Take records of these kinds for those of a newer version from now on, in the whole process.

    For faults on purpose (``raftstore.faults``).
    """
    for kind in kinds:
        _RECORD_KINDS.pop(int(kind), None)


def decode_body(body: memoryview) -> Entry:
    """Return the entry of an intact body; DamagedEntryError, NewerFormatError as above."""
    kind = body[0]
    try:
        if kind in (EntryKind.RECORD, EntryKind.FILL):
            _, channel, term, base_seq, rows, _, _, record_kind, *_ = _META.unpack_from(body)
            if record_kind not in _RECORD_KINDS:
                raise _newer("a record", record_kind)
            found = RecordPosition(channel, term, base_seq, rows)
            return found if kind == EntryKind.RECORD else Fill(found)
        if kind == EntryKind.TRUNCATE:
            _, channel, from_seq = _TRUNCATE.unpack(body)
            return Truncation(channel, from_seq)
        if kind in (EntryKind.DROP, EntryKind.GIVE_UP):
            _, channel = _DROP.unpack(body)
            return Drop(channel) if kind == EntryKind.DROP else GiveUp(channel)
        if kind in _WITH_A_VOTE:
            return _WITH_A_VOTE[kind](body)
        if kind == EntryKind.SEGMENT:
            _, magic, version, store_uuid, number, previous = _SEGMENT.unpack_from(body)
            if magic != SEGMENT_MAGIC:
                raise DamagedEntryError("a segment header has the magic of something else")
            return SegmentHeader(version, store_uuid, number, previous)
    except (ValueError, StructError) as error:
        raise DamagedEntryError(f"an entry of kind {kind} has a wrong form: {error}") from error
    # GAP-15: its checksums fit, so it is whole; it is only not ours to read.
    raise _newer("an entry", kind)


def _decode_base(body: memoryview) -> Based:
    fields = _BASE.unpack_from(body)
    _, channel, flags, term, name_bytes, base_term, base_seq, *end, chain_hash = fields
    rest = bytes(body[_BASE.size :])
    name = NodeId(rest[:name_bytes].decode())
    return Based(
        channel,
        Base(base_term, base_seq, chain_hash, rest[name_bytes:]),
        History(*end),
        term,
        name if flags & _VOTED else None,
        bool(flags & _REPLACES),
    )


def _decode_vote(body: memoryview) -> Vote:
    _, channel, term, voted = _VOTE.unpack_from(body)
    name = NodeId(bytes(body[_VOTE.size :]).decode())
    return Vote(channel, term, name if voted else None)


def _decode_removed(body: memoryview) -> Removed:
    _, channel, number, term, voted = _REMOVED.unpack_from(body)
    name = NodeId(bytes(body[_REMOVED.size :]).decode())
    return Removed(channel, number, term, name if voted else None)


_WITH_A_VOTE: Final[dict[int, Callable[[memoryview], Entry]]] = {
    EntryKind.VOTE: _decode_vote,
    EntryKind.BASE: _decode_base,
    EntryKind.REMOVED: _decode_removed,
}


def _newer(what: str, kind: int) -> NewerFormatError:
    return NewerFormatError(
        f"{what} of the log has the unknown kind {kind}, its checksums fit: it was written by a "
        "newer raftstore; run a newer version on this node"
    )
