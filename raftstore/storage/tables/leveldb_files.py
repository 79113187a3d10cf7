"""Checks of LevelDB's own files before LevelDB may open them.

LevelDB takes some losses for the ordinary end of a file and goes on without a word, even with
paranoid checks. Lost rows at the end are no harm, since the applied position goes with them and the
log has them. Lost rows in front of others are: the position would lie beyond the hole. So, before
LevelDB opens (and tidies up) anything, these are looked for:

* the end of the MANIFEST is gone: it names a write-ahead log that was removed since;
* a write-ahead log has a hole: where a header should be are zeros, as a page leaves that never
  reached the disk, and LevelDB skips the block; or it lost its end, and another one follows (while
  a memory table becomes a file its log is kept beside the next one, and neither is synced). Each
  batch carries LevelDB's sequence number and how many it takes: a hole shows in these.

All of it is read only. What is damaged in other ways LevelDB reports itself.

The MANIFEST also says which table files the database consists of, for those who keep these
(``table_files``).
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

BLOCK_BYTES: Final = 32_768
HEADER_BYTES: Final = 7
BATCH_HEAD_BYTES: Final = 12
_LENGTH_AT: Final = 4
_TYPE_AT: Final = 6
_FULL, _FIRST, _LAST = 1, 2, 4

_COMPARATOR, _LOG_NUMBER, _NEXT_FILE, _LAST_SEQUENCE, _POINTER = 1, 2, 3, 4, 5
_DELETED_FILE, _NEW_FILE, _PREVIOUS_LOG = 6, 7, 9


def why_incomplete(directory: Path) -> str | None:
    """Why rows may be missing in front of the applied position; None: they are not."""
    needed = _log_number(directory)
    if needed is None:
        return None  # LevelDB will say what is wrong with CURRENT or MANIFEST.
    logs = {int(path.stem): path for path in directory.glob("*.log") if path.stem.isdigit()}
    if needed and needed not in logs:
        return f"the write-ahead log {needed:06d}.log that its MANIFEST names is missing"
    following: int | None = None
    emptied = ""
    for _, path in sorted((number, path) for number, path in logs.items() if number >= needed):
        data = path.read_bytes()
        if not data:
            emptied = path.name
            continue
        if emptied:
            return f"its write-ahead log {emptied} is empty, and another one follows"
        if not any(data[:HEADER_BYTES]) and any(data):
            return f"its write-ahead log {path.name} has a hole at its start"
        for sequence, count in _batches(data):
            if following not in (None, sequence):
                return f"its write-ahead log {path.name} lacks what came before {sequence}"
            following = sequence + count
    return None


def _batches(data: bytes) -> Iterator[tuple[int, int]]:
    """(sequence number, how many it takes) of each batch LevelDB would find, holes passed over."""
    for payload in _payloads(data):
        if len(payload) < BATCH_HEAD_BYTES:
            return  # LevelDB says that this is too small.
        yield int.from_bytes(payload[:8], "little"), int.from_bytes(payload[8:12], "little")


class Version(NamedTuple):
    """The newest state of a database, as its MANIFEST has it."""

    log_number: int
    """Of the oldest write-ahead log that holds something which is in no table file."""
    files: dict[int, int]
    """Numbers of its table files, and how many bytes each has."""


def version_in(manifest: bytes) -> Version:
    """The newest version that LevelDB would find in this MANIFEST: a last entry that is not whole
    is not looked at. Raises ValueError or IndexError: its form is unknown."""
    log_number, files = 0, dict[int, int]()
    for edit in _payloads(manifest):
        for tag, number, size in _fields(edit):
            if tag == _LOG_NUMBER:
                log_number = number
            elif tag == _DELETED_FILE:
                files.pop(number, None)
            elif tag == _NEW_FILE:
                files[number] = size
    return Version(log_number, files)


def manifest_of(directory: Path) -> str:
    """The name of the MANIFEST that CURRENT names. Raises OSError or ValueError."""
    return (directory / "CURRENT").read_text(encoding="ascii").strip()


def _log_number(directory: Path) -> int | None:
    """The oldest write-ahead log that the newest MANIFEST needs; None when it cannot be read."""
    try:
        data = (directory / manifest_of(directory)).read_bytes()
        numbers = [
            number
            for edit in _payloads(data)
            for tag, number, _ in _fields(edit)
            if tag == _LOG_NUMBER
        ]
    except (OSError, ValueError, IndexError):
        return None
    return numbers[-1] if numbers else None


def _payloads(data: bytes) -> Iterator[bytes]:
    """The whole payloads of a file in LevelDB's log format; checksums are LevelDB's business."""
    at = 0
    parts: list[bytes] = []
    while at + HEADER_BYTES <= len(data):
        left = BLOCK_BYTES - at % BLOCK_BYTES
        length = int.from_bytes(data[at + _LENGTH_AT : at + _TYPE_AT], "little")
        kind = data[at + _TYPE_AT]
        if left < HEADER_BYTES or not (length or kind):
            at += left  # The rest of a block, or zeros: passed over.
            continue
        payload = data[at + HEADER_BYTES : at + HEADER_BYTES + length]
        if len(payload) < length or length > left - HEADER_BYTES:
            return
        if kind in (_FULL, _FIRST):
            parts = []
        parts.append(payload)
        if kind in (_FULL, _LAST):
            yield b"".join(parts)
        at += HEADER_BYTES + length


def _fields(edit: bytes) -> Iterator[tuple[int, int, int]]:
    """The fields of a version edit that say something here: its tag, a number, and the bytes of a
    new file. Raises ValueError or IndexError: unknown form."""
    at = 0
    while at < len(edit):
        tag, at = _varint(edit, at)
        number = size = 0
        if tag in (_LOG_NUMBER, _NEXT_FILE, _LAST_SEQUENCE, _PREVIOUS_LOG):
            number, at = _varint(edit, at)
        elif tag == _COMPARATOR:
            at = _after_string(edit, at)
        elif tag == _POINTER:
            at = _after_string(edit, _varint(edit, at)[1])
        elif tag in (_DELETED_FILE, _NEW_FILE):
            number, at = _varint(edit, _varint(edit, at)[1])
            if tag == _NEW_FILE:
                size, at = _varint(edit, at)
                at = _after_string(edit, _after_string(edit, at))
        else:
            raise ValueError(f"a version edit has the unknown tag {tag}")
        yield tag, number, size


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while data[at] & 0x80:
        value |= (data[at] & 0x7F) << shift
        shift += 7
        at += 1
    return value | data[at] << shift, at + 1


def _after_string(data: bytes, at: int) -> int:
    length, at = _varint(data, at)
    return at + length
