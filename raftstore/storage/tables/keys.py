"""Keys and values of the table store, format version 1, and the hash over a channel's contents.

Under each channel id (18 bytes): ``00`` is the channel's applied position, ``01 key`` are its rows,
``02 ..`` is its state beside the rows for micro-batches, ``03 ..`` the same for what partition 0
decides for its table; no tag reaches ``ff``. The machines know what is in these two
(``raftstore.state_machines``), but for ``02 04``: the record whose pieces are being written. Ids of
channels start with a random UUID, so the all-zero id is free for the store's own keys. The order of
a channel's keys is the order of the row keys' bytes.

A row's value is ``[seq u64][sealed value]``: the last seq of the record that wrote it, and the
value under the seal of its writer (``raftstore.rows.sealing``). The highest bit of the seq, which
no seq reaches, says that the row has an expiry: ``[seq u64][expiry in ms u64][sealed value]``. The
applied position is ``[seq u64][term u64][crc u32]`` and is written in the same WriteBatch as the
rows it counts (S10); with the term, an applied position beyond the log's end says which record the
log lost. The mark of a record in pieces has the same form. A value of the state is stored under a
seal over its key, the tag included.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from hashlib import blake2b
from struct import Struct
from typing import Final

from raftstore.config import KEY_BYTES_MAX
from raftstore.crc import crc32
from raftstore.errors import CorruptRecordError
from raftstore.record_machine import is_expired
from raftstore.state_machines.state_keys import UNHASHED
from raftstore.types import CHANNEL_ID_BYTES, ChannelId, History, Seq, Term

POSITION: Final = b"\x00"
"""Behind the channel id: the key of its applied position."""
ROWS_TAG: Final = b"\x01"
STATE_START: Final = b"\x02"
STATE_END: Final = b"\x04"
"""Behind the channel id: where the state beside the rows begins, and what comes behind it."""
MARKER: Final = b"\x02\x04"
"""The record whose pieces are being written; never among what machines read, nor in a hash."""
STORE_ID: Final = bytes(CHANNEL_ID_BYTES)
DROPPING_PREFIX: Final = STORE_ID + b"\x00dropping/"
"""Channels whose rows are being deleted: finished at the next start."""
BARRIER_KEY: Final = STORE_ID + b"\x00barrier"
"""The applied position that the newest barrier made durable; written so that failures are
noticed."""
BEHIND_ALL_KEYS: Final = (b"\xff" * 20, b"\xff" * 21)
"""A range without keys: to merge it flushes the memory table all the same."""
MERGED_KEY: Final = STORE_ID + b"\x00merged"
"""Bytes that the files took after the last merge on purpose, or that it kept something."""
REMOVED_KEY: Final = STORE_ID + b"\x00removed"
"""About how many rows were removed since then."""
SEQ_BYTES: Final = 8
EXPIRES_BYTE: Final = b"\x80"
"""What is stored of a row with an expiry begins with this, or with more."""
CONTENT_DIGEST_BYTES: Final = 16

_APPLIED: Final = Struct(">QQI")
_COUNT: Final = Struct(">QI")
_ROW_SIZES: Final = Struct(">IIQ")
_EXPIRING: Final = Struct(">QQ")
_EXPIRES_BIT: Final = 1 << 63


def row_head(seq: Seq, expires_ms: int = 0) -> bytes:
    """Return what is stored before a row's sealed value."""
    if expires_ms:
        return _EXPIRING.pack(seq | _EXPIRES_BIT, expires_ms)
    return seq.to_bytes(SEQ_BYTES, "big")


def split_row(stored: bytes) -> tuple[Seq, int, bytes]:
    """Return seq, expiry (0: none) and sealed value of a row as it is stored."""
    if stored[:1] >= EXPIRES_BYTE and len(stored) >= _EXPIRING.size:
        seq, expires_ms = _EXPIRING.unpack_from(stored)
        return Seq(seq ^ _EXPIRES_BIT), expires_ms, stored[_EXPIRING.size :]
    return Seq(int.from_bytes(stored[:SEQ_BYTES], "big")), 0, stored[SEQ_BYTES:]


def shown(pairs: Iterable[tuple[bytes, bytes]], time_ms: int) -> Iterator[tuple[bytes, bytes]]:
    """The stored rows that have not expired at this channel time, as if they had no expiry."""
    for key, stored in pairs:
        if stored[:1] >= EXPIRES_BYTE:
            seq, expires_ms, sealed = split_row(stored)
            if is_expired(expires_ms, time_ms):
                continue
            yield key, row_head(seq) + sealed
        else:
            yield key, stored


def applied_key(channel: ChannelId) -> bytes:
    """Return the key of the channel's applied position."""
    return channel + POSITION


def rows_prefix(channel: ChannelId) -> bytes:
    """Return what every row key of the channel starts with."""
    return channel + ROWS_TAG


def rows_end(channel: ChannelId) -> bytes:
    """Return the first key behind the channel's rows."""
    return channel + b"\x02"


def marker_key(channel: ChannelId) -> bytes:
    """Return the key of the record whose pieces are being written."""
    return channel + MARKER


def channel_end(channel: ChannelId) -> bytes:
    """Return the first key behind all keys of the channel, its rows and what lies beside them."""
    return channel + b"\xff"


def never_stored(key: bytes) -> bytes:
    """Return a key close behind this one that is longer than any that is stored.

    The channel's id without a tag, and ``channel_end``, are never stored either.
    """
    return key + bytes(2 * KEY_BYTES_MAX)


def encode_applied(channel: ChannelId, position: History) -> bytes:
    """Return the stored form of an applied position."""
    sealed = crc32(b"%d/%d" % position, crc32(channel))
    return _APPLIED.pack(position.seq, position.term, sealed)


def decode_applied(channel: ChannelId, stored: bytes) -> History:
    """Return the applied position; raise CorruptRecordError if it is damaged."""
    if len(stored) == _APPLIED.size:
        seq, term, sealed = _APPLIED.unpack(stored)
        if crc32(b"%d/%d" % (term, seq), crc32(channel)) == sealed:
            return History(Term(term), Seq(seq))
    raise CorruptRecordError(
        f"the applied position of channel {channel.hex()} does not match its checksum; "
        "the tables are rebuilt from the log at the next start"
    )


def encode_count(count: int) -> bytes:
    """Return the stored form of a number that only says what is worth doing."""
    return _COUNT.pack(count, crc32(b"%d" % count))


def decode_count(stored: bytes | None) -> int:
    """Return the number; 0 if there is none, or if it is damaged: nothing wrong comes of that."""
    if stored is not None and len(stored) == _COUNT.size:
        count, sealed = _COUNT.unpack(stored)
        if crc32(b"%d" % count) == sealed:
            return int(count)
    return 0


class ContentHasher:
    """Hash over a channel's rows in key order, then over the state beside them if there is any.

    Equal on every replica at the same applied seq; of a channel without such a state it is the hash
    over the rows alone.
    """

    def __init__(self) -> None:
        self._hash = blake2b(digest_size=CONTENT_DIGEST_BYTES)
        self.rows = 0
        self._has_state = False

    def add(self, key: bytes, sealed: bytes, seq: Seq, expires_ms: int = 0) -> None:
        """Take in the next row."""
        if expires_ms:
            self._hash.update(_ROW_SIZES.pack(len(key), len(sealed), seq | _EXPIRES_BIT))
            self._hash.update(expires_ms.to_bytes(SEQ_BYTES, "big"))
        else:
            self._hash.update(_ROW_SIZES.pack(len(key), len(sealed), seq))
        self._hash.update(key)
        self._hash.update(sealed)
        self.rows += 1

    def add_state(self, key: bytes, value: bytes) -> None:
        """Take in the next value of the state, behind the rows."""
        if key.startswith(UNHASHED):
            return
        if not self._has_state:
            # Where the rows end: no key is as long, so nothing else is hashed like it.
            self._hash.update(_ROW_SIZES.pack(0xFFFFFFFF, 0, self.rows))
            self._has_state = True
        self._hash.update(_ROW_SIZES.pack(len(key), len(value), 0))
        self._hash.update(key)
        self._hash.update(value)

    def digest(self) -> bytes:
        """Return 16 bytes."""
        return self._hash.digest()
