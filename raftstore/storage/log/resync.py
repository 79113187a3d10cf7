"""Behind damaged bytes: where the next intact entry of a segment begins, and how that is proven.

The chain of checksums binds the headers of all entries, whatever became of their bodies. So three
kinds of damage are distinguished, each by a 32-bit proof that no payload can forge, since the chain
starts from the UUID of the store:

* **a body**: the header continues the chain, so its length and checksum are right, and exactly one
  entry is damaged. If the fields of a record kept their own checksum, it is known which record.
* **a header**: the bytes up to a later header make that one continue the chain. So these bytes are
  exactly one entry and its body is intact: nothing is lost, and the header is written again.
* **more**: from some intact entry on, all entries continue each other up to the end of the file,
  and the next file continues them. What was in between is not known.

Pure functions over bytes. Bounds: candidates are found by a pattern over the file, and at most
``CHECKED_BYTES_MAX`` bytes of bodies are checked for one damage; beyond that, the rest of the file
counts as damaged.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from raftstore.config import MIB
from raftstore.crc import crc32
from raftstore.errors import NewerFormatError
from raftstore.storage.log.records import (
    BODY_BYTES_MAX,
    BODY_BYTES_MIN,
    HEADER,
    HEADER_BYTES,
    RECORD_HEAD_BYTES,
    DamagedEntryError,
    Entry,
    EntryKind,
    decode_body,
    decode_record_head,
    next_chain,
)

CHECKED_BYTES_MAX: Final = 1024 * MIB
_HEADERS: Final = re.compile(
    rb"(?=\x00.{%d}[\x01-\x%02x])" % (HEADER_BYTES - 1, max(EntryKind)), re.DOTALL
)
"""What may be a header: a length below 16 MiB, then a known kind."""


@dataclass(frozen=True, slots=True)
class Damage:
    """Damaged bytes of a segment from ``offset`` to ``end``, and the chain from there on."""

    offset: int
    end: int
    chain: int | None
    """None: not known, the next entry says what it is."""
    is_single: bool
    """They are exactly one entry."""
    lost: Entry | None = None
    """That entry, if its fields are known: a record without its payload."""
    repair: bytes | None = None
    """What belongs at ``offset`` instead; then nothing is lost."""


def damage_at(
    data: bytes, offset: int, chain: int | None, following_chain: int | None
) -> Damage | None:
    """The damage at ``offset``, where the chain is ``chain`` (None: not known).

    ``following_chain``: what the next segment says that it continues; None: there is none, or it
    says nothing. Returns None when nothing behind ``offset`` is proven.
    """
    if chain is not None:
        found = _damaged_body(data, offset, chain)
        if found is None:
            found = _damaged_header(data, offset, chain, following_chain)
        if found is not None:
            return found
    return None if following_chain is None else _intact_rest(data, offset, following_chain)


def damaged_segment_header(
    data: bytes, expected: bytes, chain: int, following_chain: int | None
) -> Damage | None:
    """A segment's first entry, which is known without it: ``expected``, leading to ``chain``."""
    end = len(expected)
    if end == len(data):
        fits = chain == following_chain
    elif end + HEADER_BYTES <= len(data):
        length, crc, link = HEADER.unpack_from(data, end)
        fits = next_chain(chain, length, crc) == link
    else:
        fits = False
    return Damage(0, end, chain, is_single=True, repair=expected) if fits else None


def _damaged_body(data: bytes, offset: int, chain: int) -> Damage | None:
    if offset + HEADER_BYTES > len(data):
        return None
    length, crc, link = HEADER.unpack_from(data, offset)
    end = offset + HEADER_BYTES + length
    if not BODY_BYTES_MIN <= length <= BODY_BYTES_MAX or end > len(data):
        return None
    if next_chain(chain, length, crc) != link:
        return None
    lost: Entry | None = None
    try:
        decode_record_head(data[offset : offset + RECORD_HEAD_BYTES])
        if end - offset >= RECORD_HEAD_BYTES:
            lost = decode_body(memoryview(data)[offset + HEADER_BYTES : end])
    except (DamagedEntryError, NewerFormatError):
        pass  # its fields are damaged, or it never was a record
    return Damage(offset, end, link, is_single=True, lost=lost)


def _damaged_header(
    data: bytes, offset: int, chain: int, following_chain: int | None
) -> Damage | None:
    body = offset + HEADER_BYTES
    crc, done = 0, body
    view = memoryview(data)
    stop = min(len(data), body + BODY_BYTES_MAX)
    for match in _HEADERS.finditer(data, body + BODY_BYTES_MIN):
        end = match.start()
        if end > stop:
            break
        crc, done = crc32(view[done:end], crc), end
        after = next_chain(chain, end - body, crc)
        length, body_crc, link = HEADER.unpack_from(data, end)
        if next_chain(after, length, body_crc) == link:
            return _whole(offset, end, crc, after)
    if following_chain is not None and body + BODY_BYTES_MIN <= len(data) <= stop:
        crc = crc32(view[done:], crc)
        after = next_chain(chain, len(data) - body, crc)
        if after == following_chain:
            return _whole(offset, len(data), crc, after)
    return None


def _whole(offset: int, end: int, crc: int, after: int) -> Damage:
    header = HEADER.pack(end - offset - HEADER_BYTES, crc, after)
    return Damage(offset, end, after, is_single=True, repair=header)


def _intact_rest(data: bytes, offset: int, following_chain: int) -> Damage | None:
    left = CHECKED_BYTES_MAX
    for match in _HEADERS.finditer(data, offset + 1):
        start = match.start()
        chain, checked = _chain_to_end(data, start)
        left -= checked
        if chain == following_chain:
            return Damage(offset, start, None, is_single=False)
        if left < 0:
            return None
    return None


def _chain_to_end(data: bytes, offset: int) -> tuple[int | None, int]:
    """The chain at the end if all entries from ``offset`` on are intact, and the bytes checked."""
    view = memoryview(data)
    chain: int | None = None
    start = offset
    while offset < len(data):
        if offset + HEADER_BYTES > len(data):
            return None, offset - start
        length, crc, link = HEADER.unpack_from(data, offset)
        end = offset + HEADER_BYTES + length
        if not BODY_BYTES_MIN <= length <= BODY_BYTES_MAX or end > len(data):
            return None, offset - start
        if chain is not None and next_chain(chain, length, crc) != link:
            return None, offset - start
        if crc32(view[offset + HEADER_BYTES : end]) != crc:
            return None, end - start
        chain, offset = link, end
    return chain, offset - start
