"""A channel's table that is built from the files of another replica's, in a generation of its own.

Each file is written and synced by itself, and a whole one has its name; what is there of another is
of use for a sender whose file begins just so. When all are there LevelDB opens them, finds each
that its MANIFEST names, and brings what it writes then to the disk. Only then rows are looked at,
all of them: every block is verified by its checksum, every row by its seal, and nothing but the
channel's keys may be there. Its position is what they say.
"""

from __future__ import annotations

import os
from itertools import chain, islice
from pathlib import Path
from typing import Final

from raftstore import faults
from raftstore.config import StorageSettings
from raftstore.errors import CorruptRecordError, StorageError
from raftstore.ports.table_copy import Pair, ResumePoint
from raftstore.ports.table_files import HELD_MAX, FileDigest, HeldFile, is_file_name
from raftstore.storage.files import persisting
from raftstore.storage.tables.generations import BEGUN_FILES_NAME
from raftstore.storage.tables.keys import (
    BARRIER_KEY,
    MARKER,
    MERGED_KEY,
    POSITION,
    REMOVED_KEY,
    channel_end,
    decode_applied,
)
from raftstore.storage.tables.leveldb_database import (
    BEHIND_ALL,
    DATABASE_ERRORS,
    DatabaseShare,
    close_while_serving,
    errors_at_end,
    keys_between,
    translate,
)
from raftstore.storage.tables.leveldb_files import version_in
from raftstore.storage.tables.pair_checks import check_pairs
from raftstore.storage.tables.table_copy import READ_BYTES, LevelDbCopy
from raftstore.types import EMPTY_HISTORY, ChannelId, History

PART_SUFFIX: Final = ".part"
"""Of a file that is not whole yet."""
ROWS_AT_ONCE: Final = 1_024
"""Rows read back in one call of LevelDB's iterator, at most."""
OWN_KEYS: Final = frozenset((BARRIER_KEY, MERGED_KEY, REMOVED_KEY))
"""What a store writes for itself beside a channel; it is about the files, and goes with them."""


class LevelDbFilesCopy(LevelDbCopy):
    """ports.FilesCopy over plyvel."""

    in_files = True

    def __init__(
        self,
        channel: ChannelId,
        position: History,
        path: Path,
        settings: StorageSettings,
        share: DatabaseShare,
    ) -> None:
        super().__init__(channel, position, path, settings, share)
        self._held: dict[str, HeldFile] = {}
        self._unread: list[Path] | None = None
        """Files of an earlier attempt that were not read yet."""
        self._descriptor = -1
        """Of the file that is written; -1: there is none."""
        self._written: set[str] = set()
        self._pairs = 0

    # --- what an earlier attempt left -------------------------------------------------------------

    def held(self) -> tuple[HeldFile, ...]:
        """The whole files that ``look`` found."""
        return tuple(self._held.values())

    def look(self, bytes_max: int) -> bool:
        """Read on through what is there, about so many bytes; True: that was all."""
        self._stop_writing()
        self._close(close_while_serving)
        left = bytes_max
        with persisting(self.path, "reading what was copied of a table"):
            if self._unread is None:
                self._held.clear()
                self._unread = self._kept_files()
            while self._unread and left > 0:
                path, digest = self._unread.pop(), FileDigest()
                with path.open("rb") as file:
                    while part := file.read(READ_BYTES):
                        digest.add(part)
                        self.give_way()
                left -= digest.bytes
                name = path.name.removesuffix(PART_SUFFIX)
                self._held[name] = HeldFile(name, digest.bytes, digest.digest())
        if self._unread:
            return False
        self._unread = None
        return True

    def _kept_files(self) -> list[Path]:
        """The files that may be used again; all others are removed."""
        if not self.path.exists():
            return []
        kept = list[Path]()
        for path in sorted(self.path.iterdir()):
            name = path.name.removesuffix(PART_SUFFIX)
            if name.endswith(".ldb") and is_file_name(name) and len(kept) < HELD_MAX:
                kept.append(path)
            elif path.name != BEGUN_FILES_NAME:
                path.unlink()
        return kept

    # --- writing ----------------------------------------------------------------------------------

    def begin(self, position: History) -> None:
        """A sender has the table of this position, or of a later one."""
        self.position = position
        self._written.clear()
        self._stop_writing()
        with persisting(self.path, "beginning a copied table"):
            if not self.path.exists():
                self.path.mkdir()
                self._ops.create_file(self.path / BEGUN_FILES_NAME, b"")

    def write(self, pairs: list[Pair]) -> None:
        """Never: this copy has files and no pairs."""
        raise AssertionError(f"a table that is copied in files takes no {len(pairs)} pairs")

    def resume_point(self) -> ResumePoint:
        """No point: there are no pairs."""
        return ResumePoint(b"", 0, b"")

    def write_part(self, name: str, at: int, content: bytes, *, is_last: bool) -> None:
        """Take in the next part of a file."""
        if not is_file_name(name) or name in self._written:
            raise CorruptRecordError(f"a copied table cannot have the file {name!r} now")
        path = self.path / (name + PART_SUFFIX)
        faults.reach("copy.before-write")
        with persisting(path, "writing a file of a copied table"):
            if at == 0:
                self._stop_writing()
                flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC
                self._descriptor = self._ops.open(path, flags)
            if self._descriptor < 0 or os.fstat(self._descriptor).st_size != at:
                raise CorruptRecordError(f"{name} is not there up to byte {at}")
            self._ops.write_all(self._descriptor, content)
            if is_last:
                self._end_file(path, name)

    def keep(self, name: str, *, is_whole: bool) -> None:
        """The sender has one of the held files just so, or one that begins so."""
        if name not in self._held or name in self._written:
            raise CorruptRecordError(f"a copied table has no file {name!r} of an earlier attempt")
        path, part = self.path / name, self.path / (name + PART_SUFFIX)
        with persisting(part, "going on with a file of a copied table"):
            if not part.exists():
                self._ops.rename(path, part)
            self._stop_writing()
            self._descriptor = self._ops.open(part, os.O_WRONLY | os.O_APPEND)
            if is_whole:
                self._end_file(part, name)

    def _end_file(self, path: Path, name: str) -> None:
        self._ops.datasync(self._descriptor)
        self._stop_writing()
        self._ops.rename(path, self.path / name)
        self._written.add(name)
        faults.reach("copy.after-file")

    def _stop_writing(self) -> None:
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            self._ops.close(descriptor)

    # --- what came out ----------------------------------------------------------------------------

    def finish(self) -> None:
        """All files are there: have LevelDB open them, and make their names durable."""
        faults.reach("copy.before-sync")
        self._stop_writing()
        with persisting(self.path, "ending a copied table"):
            manifests = [name for name in self._written if name.startswith("MANIFEST-")]
            if len(manifests) != 1:
                raise CorruptRecordError(f"a copied table came with the MANIFESTs {manifests}")
            for path in sorted(self.path.iterdir()):
                if path.name not in self._written and path.name != BEGUN_FILES_NAME:
                    path.unlink()  # of an earlier attempt
            self._name(manifests[0])
        self._open_durably()

    def _name(self, manifest: str) -> None:
        """Make the two files that were not sent: they have the name of the MANIFEST in them, and
        what was only in memory."""
        try:
            version = version_in((self.path / manifest).read_bytes())
        except (ValueError, IndexError) as error:
            raise CorruptRecordError(f"{manifest} of a copied table: {error}") from error
        self._ops.create_file(self.path / f"{version.log_number:06d}.log", b"")
        self._ops.create_file(self.path / "CURRENT", manifest.encode() + b"\n")

    def _read(self, bytes_max: int) -> int:
        """Check what comes next, about so many bytes; return how many."""
        size, keys, values = 0, list[bytes](), list[bytes]()
        try:
            if self._reading is None:
                self._pairs, self._position = 0, EMPTY_HISTORY
                self._check_others()
                own = self.source.prefixed_db(self.channel)
                found = own.iterator(verify_checksums=True, fill_cache=False)
                self._reading = chain(found, errors_at_end(found))
            for key, value in islice(self._reading, ROWS_AT_ONCE):
                keys.append(key)
                values.append(value)
                size += len(key) + len(value)
                if size >= bytes_max:
                    break
            else:
                if len(keys) < ROWS_AT_ONCE:
                    self._reading = None
        except DATABASE_ERRORS as error:
            raise translate(error) from error
        if keys:
            self._take_rows(keys, values)
        return size

    def _take_rows(self, keys: list[bytes], values: list[bytes]) -> None:
        check_pairs(self.channel, keys, values)
        if not self._pairs and keys[0] == POSITION:
            self._position = decode_applied(self.channel, values[0])
        if keys[0] <= MARKER <= keys[-1] and MARKER in keys:
            # Nothing is damaged: a record began while the files were taken.
            raise StorageError("the table was taken in the middle of a record; it is asked again")
        self._pairs += len(keys)

    def _check_others(self) -> None:
        """Nothing but the channel's keys is there, and what a store writes for itself."""
        behind = keys_between(self.source, channel_end(self.channel), BEHIND_ALL)
        before = keys_between(self.source, b"", self.channel)
        for key in (*islice(behind, 1), *islice(before, len(OWN_KEYS) + 1)):
            if key not in OWN_KEYS:
                raise CorruptRecordError(
                    f"{self.path} holds the key {key.hex()} of another channel"
                )

    def found(self) -> tuple[bytes, int, History]:
        """Pairs and applied position as they were read; the files were digested one by one."""
        return b"", self._pairs, self._position

    def abandon(self) -> None:
        """Remove it, unless it is complete."""
        self._stop_writing()
        super().abandon()

    def close(self) -> None:
        """Close what is open."""
        self._stop_writing()
        super().close()
