"""The mark: what was promised, remembered outside the log (S0.3).

A chain of checksums cannot see a log that was cut at an entry's edge. The mark can: per channel it
holds the term, the vote and the last durable (term, seq), which is at or above everything that was
ever acknowledged. It also knows the floor: the first segment of the log that is still needed. Its
promise, for docs/guarantees.md:

* **Order.** The writer thread writes a group commit to the log before it writes that group's rows
  to the mark, so a killed process never leaves a mark ahead of its log.
* **Records.** While group commit N is being synced, the mark rows that cover everything up to group
  commit N-1 are synced in parallel, and N completes (its acknowledgements leave) only when both are
  durable. So the durable mark lags the acknowledged records by at most the newest group commit, and
  when nothing is written for 50 ms it does not lag at all: the writer thread then syncs the rest.
* **Terms, votes and dropped channels.** No lag: when a group commit holds one, the log is synced
  first, then the mark with everything the group holds, and only then the group completes.
* **Forgotten records.** What takes records out of a log without a proof that nobody needs them
  (what is kept behind a hole is given up, a base replaces a log) is written only when the mark
  covers everything acknowledged before it: nothing else would remember the newest of them.

So damage is noticed unless it hits the very newest group commit, within 50 ms of it, and is of a
form that a crash leaves too (a cut or broken end of the last file): that is taken for a torn write.

The file is preallocated, so that syncing it moves no metadata. It holds entries ``[magic][number]
[length][crc][body]`` behind each other, numbered without gaps; the first one is a snapshot of every
channel. It is rewritten (write aside, sync, rename, sync the directory) when it is full. A broken
entry followed by a later intact one is damage, since entries are synced one by one; a broken last
entry is a torn write. A damaged, shortened or missing mark is refused (S0.1): the node's vote state
is not known, so it may only come back under a new id.

* **Acknowledgements before the sync** (S0.6). Before the first one at a level below ``fsync`` a
  channel's row says so, and for ``buffered`` in which boot of the machine, without lag like a vote.
  It says so until the log was synced to its end (a clean stop, a checkpoint). A start that finds it
  and cannot exclude that records were lost writes *in doubt* instead, which stays until the channel
  is known to hold again what it acknowledged.

* **Removed replicas.** A row says up to which number the replicas of the channel are removed from
  this node, and in which segment the log says so. Everything else in the row is of the replica that
  came after, only term and vote go on (S0.1, S1.3).

A mark without a floor is of format 1, for programs that know no other; the first floor rewrites it
in format 2, which those refuse. One with a channel below ``fsync``, or in doubt, is of format 3;
one with a removed replica is of format 4.

One thread at a time: opened by the loop thread, then owned by the log writer thread.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from struct import Struct
from struct import error as StructError
from typing import Final, NamedTuple

from raftstore.config import FORMAT_VERSION, MIB
from raftstore.crc import crc32
from raftstore.errors import PromisesLostError, StoreIdentityError
from raftstore.storage.files import FileOps, starting
from raftstore.storage.identity import PROMISES_REMEDY
from raftstore.storage.presence import Place
from raftstore.types import EMPTY_HISTORY, ChannelId, Durability, History, NodeId, Seq, Term

MARK_NAME: Final = "mark"
MARK_BYTES: Final = 1 * MIB
"""Size of the file until the snapshot of all channels outgrows a quarter of it."""

_MAGIC: Final = b"RSMK"
_HEADER: Final = Struct(">4sQII")
_BODY: Final = Struct(">H16sII")
_FLOOR: Final = Struct(">QI")
FLOOR_FORMAT: Final = 2
"""Format version of a mark that has a floor."""
DURABILITY_FORMAT: Final = 3
"""Format version of a mark with channels that acknowledged before the sync; with a floor, too."""
REMOVED_FORMAT: Final = 4
"""Format version of a mark with removed replicas; with all that the others have, too."""
BOOT_BYTES: Final = 16
_ROW: Final = Struct(">18sBQQQH")
_DROPPED: Final = 1
_VOTED: Final = 2
_BUFFERED: Final = 4
_MEMORY: Final = 8
_IN_DOUBT: Final = 16
_REMOVED: Final = 32
_REMOVAL: Final = Struct(">QQ")
NO_FLOOR: Final = (0, 0)
"""A floor that is none, where the format has room for one."""


class Removal(NamedTuple):
    """Replicas of a channel up to ``number`` were removed from this node."""

    number: int
    segment: int
    """Of the log, where the entry is that says so."""


class MarkRow(NamedTuple):
    """The promise for one channel: ``durable`` is at or above everything acknowledged."""

    term: Term = Term(0)
    voted_for: NodeId | None = None
    durable: History = EMPTY_HISTORY
    dropped: bool = False
    durability: Durability = Durability.FSYNC
    """The lowest at which anything was acknowledged that may not be synced (S0.6)."""
    boot: bytes = b""
    """At ``buffered``: the boot of the machine in which that was."""
    in_doubt: bool = False
    """Acknowledged records may be lost, and nothing here shows which (S0.6)."""
    removed: Removal | None = None
    """``durable`` is of the replica that came after those (S0.1)."""

    @property
    def removed_number(self) -> int:
        """The highest number of a removed replica; -1: none was removed."""
        return -1 if self.removed is None else self.removed.number

    @property
    def format(self) -> int:
        """The lowest format version of a mark that has room for it."""
        if self.removed is not None:
            return REMOVED_FORMAT
        is_plain = self.durability is Durability.FSYNC and not self.in_doubt
        return FORMAT_VERSION if is_plain else DURABILITY_FORMAT


class Floor(NamedTuple):
    """The first segment of the log that is still needed, and the chain that it continues."""

    segment: int
    chain: int


_FLAG_OF: Final = {Durability.FSYNC: 0, Durability.BUFFERED: _BUFFERED, Durability.MEMORY: _MEMORY}


def _durability_of(flags: int) -> Durability:
    if flags & _MEMORY:
        return Durability.MEMORY
    return Durability.BUFFERED if flags & _BUFFERED else Durability.FSYNC


def _encode_rows(rows: Mapping[ChannelId, MarkRow]) -> bytes:
    parts = []
    for channel, row in rows.items():
        name = (row.voted_for or "").encode()
        flags = (_DROPPED if row.dropped else 0) | (_VOTED if row.voted_for is not None else 0)
        if row.format > FORMAT_VERSION:
            flags |= _IN_DOUBT if row.in_doubt else 0
            flags |= _FLAG_OF[row.durability]
            flags |= 0 if row.removed is None else _REMOVED
        parts.append(_ROW.pack(channel, flags, row.term, *row.durable, len(name)))
        parts.append(name)
        if flags & _BUFFERED:
            assert len(row.boot) == BOOT_BYTES, f"a boot of {len(row.boot)} bytes (S0.6)"
            parts.append(row.boot)
        if row.removed is not None:
            parts.append(_REMOVAL.pack(*row.removed))
    return b"".join(parts)


def _decode_rows(data: bytes, count: int) -> dict[ChannelId, MarkRow]:
    rows = {}
    offset = 0
    for _ in range(count):
        channel, flags, term, last_term, last_seq, name_bytes = _ROW.unpack_from(data, offset)
        offset += _ROW.size
        name = NodeId(data[offset : offset + name_bytes].decode())
        offset += name_bytes
        boot = data[offset : offset + BOOT_BYTES] if flags & _BUFFERED else b""
        offset += len(boot)
        removed = None
        if flags & _REMOVED:
            removed = Removal(*_REMOVAL.unpack_from(data, offset))
            offset += _REMOVAL.size
        rows[channel] = MarkRow(
            term,
            name if flags & _VOTED else None,
            History(Term(last_term), Seq(last_seq)),
            bool(flags & _DROPPED),
            _durability_of(flags),
            boot,
            bool(flags & _IN_DOUBT),
            removed,
        )
    return rows


def _format_of(rows: Mapping[ChannelId, MarkRow]) -> int:
    return max((row.format for row in rows.values()), default=FORMAT_VERSION)


def _encode_entry(
    number: int,
    store_uuid: bytes,
    capacity: int,
    rows: Mapping[ChannelId, MarkRow],
    floor: Floor | None = None,
    *,
    version: int = FORMAT_VERSION,
) -> bytes:
    body = _BODY.pack(version, store_uuid, capacity, len(rows))
    if version >= FLOOR_FORMAT:
        body += _FLOOR.pack(*(floor or NO_FLOOR))
    body += _encode_rows(rows)
    sealed = crc32(body, crc32(number.to_bytes(8, "big")))
    return _HEADER.pack(_MAGIC, number, len(body), sealed) + body


def _entry_at(data: bytes, offset: int) -> tuple[int, bytes] | None:
    """Return (number, body) of an intact entry at ``offset``."""
    if offset + _HEADER.size > len(data):
        return None
    magic, number, length, sealed = _HEADER.unpack_from(data, offset)
    body = data[offset + _HEADER.size : offset + _HEADER.size + length]
    if magic != _MAGIC or len(body) != length:
        return None
    return (number, body) if crc32(body, crc32(number.to_bytes(8, "big"))) == sealed else None


def _has_later_entry(data: bytes, offset: int, number: int) -> bool:
    """Whether an intact entry after ``number`` follows: entries are synced one by one."""
    while (offset := data.find(_MAGIC, offset)) >= 0:
        found = _entry_at(data, offset)
        if found is not None and found[0] > number:
            return True
        offset += 1
    return False


class MarkFile:
    """The journal of mark rows. ``rows`` is everything the file says, newest row per channel."""

    def __init__(self, ops: FileOps, path: Path, store_uuid: bytes) -> None:
        self._ops = ops
        self._path = path
        self._store_uuid = store_uuid
        self._descriptor = -1
        self._number = 0
        self._offset = 0
        self._capacity = MARK_BYTES
        self._version = FORMAT_VERSION
        """Of the entries that are written."""
        self.rows: dict[ChannelId, MarkRow] = {}
        self.floor: Floor | None = None
        """None: everything since the first segment is needed."""
        self.place: Place
        """Of the file that is written; replaced as a whole, so any thread may read it."""

    @property
    def version(self) -> int:
        """The format version of what is written."""
        return self._version

    @classmethod
    def create(cls, ops: FileOps, path: Path, store_uuid: bytes) -> None:
        """Create the mark of a new store; only ever called before the store's marker exists."""
        first = _encode_entry(1, store_uuid, MARK_BYTES, {})
        ops.create_file(path, first.ljust(MARK_BYTES, b"\0"))

    @classmethod
    def open(cls, ops: FileOps, path: Path, store_uuid: bytes) -> MarkFile:
        """Read the mark; raise PromisesLostError, touching nothing, if it is missing or damaged."""
        mark = cls(ops, path, store_uuid)
        if not ops.exists(path):
            raise mark._refusal("is missing")
        with starting(path, "reading the mark"):
            # A process may have been killed between the renaming of a new mark and the sync of its
            # name: a power cut would bring the old one back, without the votes given since.
            ops.sync_directory(path.parent)
            data = ops.read_file(path)
        mark._load(data)
        with starting(path, "opening the mark"):
            mark._descriptor = ops.open(path, os.O_WRONLY)
            mark.place = ops.place(path, mark._descriptor)
        return mark

    def _refusal(self, what: str) -> PromisesLostError:
        return PromisesLostError(
            f"the mark {self._path} {what}: terms and votes of this node are not known, so it must "
            f"not vote or acknowledge under its old id (S0.1); {PROMISES_REMEDY}"
        )

    def _load(self, data: bytes) -> None:
        first = _entry_at(data, 0)
        if first is None:
            raise self._refusal("is damaged at its start")
        version, store_uuid, capacity, _ = _BODY.unpack_from(first[1])
        if version > REMOVED_FORMAT:
            raise StoreIdentityError(
                f"the mark {self._path} has format version {version}, this program knows up to "
                f"{REMOVED_FORMAT}; start the newer raftstore that wrote it"
            )
        if store_uuid != self._store_uuid:
            raise StoreIdentityError(
                f"the mark {self._path} belongs to store {store_uuid.hex()}, not to "
                f"{self._store_uuid.hex()}; put back the file of this store"
            )
        if len(data) < capacity:
            raise self._refusal(f"has {len(data)} bytes instead of {capacity}")
        self._capacity = capacity
        self._number, self._version = first[0] - 1, version
        while (found := _entry_at(data, self._offset)) and found[0] == self._number + 1:
            number, body = found
            try:
                self._take(body)
            except (StructError, UnicodeDecodeError) as error:
                raise self._refusal(f"has an entry of a wrong form at {self._offset}") from error
            self._number = number
            self._offset += _HEADER.size + len(body)
        if _has_later_entry(data, self._offset, self._number + 1):
            raise self._refusal(f"is damaged at byte {self._offset}")

    def _take(self, body: bytes) -> None:
        version, _, _, count = _BODY.unpack_from(body)
        start = _BODY.size
        if version >= FLOOR_FORMAT:
            floor = _FLOOR.unpack_from(body, start)
            self.floor = None if floor == NO_FLOOR else Floor(*floor)
            start += _FLOOR.size
        self.rows.update(_decode_rows(body[start:], count))

    def raise_floor(self, floor: Floor, rows: Mapping[ChannelId, MarkRow]) -> None:
        """Write the floor, and rows with it; durable when this returns. Raises OSError."""
        assert self.floor is None or floor.segment > self.floor.segment, (
            f"the floor would go from segment {self.floor} to {floor} (S6.5)"
        )
        if rows:
            self.write(rows)
        self.floor = floor
        self._rewrite()

    def write(self, rows: Mapping[ChannelId, MarkRow]) -> None:
        """Write rows behind the others; durable after ``sync``. Raises OSError, never retried."""
        for channel, row in rows.items():
            held = self.rows.get(channel)
            assert held is None or row.dropped or row.term >= held.term, (
                f"the mark of channel {channel.hex()} would go from {held} to {row} (S0.3, S1.3)"
            )
            assert held is None or row.dropped or not held.dropped, (
                f"channel {channel.hex()} was dropped and is promised {row} (S0.8)"
            )
            assert held is None or row.dropped or row.removed_number >= held.removed_number, (
                f"channel {channel.hex()} lost its replica {held.removed} and is promised {row}"
            )
            assert (
                held is None
                or row.dropped
                or row.term > held.term
                or held.voted_for in (None, row.voted_for)
            ), (
                f"the vote of channel {channel.hex()} in term {row.term} would go from "
                f"{held.voted_for} to {row.voted_for} (S1.3)"
            )
        self.rows.update(rows)
        if self._version < REMOVED_FORMAT and self._version < _format_of(rows):
            self._rewrite()
            return
        entry = self._entry(self._number + 1, rows)
        if self._offset + len(entry) > self._capacity:
            self._rewrite()
            return
        self._ops.pwrite_all(self._descriptor, entry, self._offset)
        self._number += 1
        self._offset += len(entry)

    def sync(self) -> None:
        """Make everything written durable. Raises OSError, never retried (S0.4)."""
        self._ops.datasync(self._descriptor)

    def close(self) -> None:
        """Close the file; nothing more is synced."""
        if self._descriptor >= 0:
            self._ops.close(self._descriptor)
            self._descriptor = -1

    def _entry(self, number: int, rows: Mapping[ChannelId, MarkRow]) -> bytes:
        return _encode_entry(
            number, self._store_uuid, self._capacity, rows, self.floor, version=self._version
        )

    def _rewrite(self) -> None:
        number = self._number + 1
        self._version = FORMAT_VERSION if self.floor is None else FLOOR_FORMAT
        self._version = max(self._version, _format_of(self.rows))
        size = len(self._entry(number, self.rows))
        self._capacity = max(MARK_BYTES, 4 * size)
        entry = self._entry(number, self.rows)
        self._ops.replace_file(self._path, entry.ljust(self._capacity, b"\0"))
        self.close()
        self._descriptor = self._ops.open(self._path, os.O_WRONLY)
        self.place = self._ops.place(self._path, self._descriptor)
        self._number = number
        self._offset = len(entry)
