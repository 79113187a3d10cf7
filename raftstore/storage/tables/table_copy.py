"""A channel's table that is built from another replica's, in a generation of its own.

LevelDB is not synced while it is written. What makes the copy durable is opening it anew: LevelDB
then brings its write-ahead logs into table files, syncs these and the MANIFEST that names them, and
reports an error of any of it, which its ``compact_range`` does not. Only what is read back from
that database counts, and only then the file is made that says the copy is whole.

On a thread of copies, but for ``__init__``, ``source`` and ``close``.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from itertools import chain
from operator import itemgetter
from pathlib import Path
from typing import Any, Final

from raftstore import faults
from raftstore.config import KIB, MIB, StorageSettings
from raftstore.errors import CorruptRecordError
from raftstore.ports.table_copy import CopyDigest, Pair, ResumePoint
from raftstore.storage.files import FileOps, persisting
from raftstore.storage.tables.generations import BEGUN_NAME, COMPLETE_NAME, encode_complete
from raftstore.storage.tables.keys import applied_key, decode_applied
from raftstore.storage.tables.leveldb_database import (
    DATABASE_ERRORS,
    DatabaseShare,
    close_while_serving,
    create,
    errors_at_end,
    open_checked,
    translate,
)
from raftstore.types import EMPTY_HISTORY, ChannelId, History

FILLING_BUFFER_BYTES_MAX: Final = 4 * MIB
"""Memory table of a copy while it is filled, beside those of all channels. Keys come in order, so
its files are never merged and a larger one would gain nothing; the table has its share from when it
is opened anew."""
READ_BYTES: Final = 256 * KIB
"""Bytes read back at once: a ms or two of work, behind which the thread may rest."""


class LevelDbCopy:
    """ports.TableCopy over plyvel."""

    in_files = False

    def __init__(
        self,
        channel: ChannelId,
        position: History,
        path: Path,
        settings: StorageSettings,
        share: DatabaseShare,
    ) -> None:
        self.channel = channel
        self.position = position
        self.path = path
        self._settings = settings
        self._share = share
        self._ops = FileOps()
        self.source: Any = None
        """The open database; None: there is none."""
        self._reading: Iterator[Pair] | None = None
        self._digest = CopyDigest()
        self._position = EMPTY_HISTORY
        self._last_key = b""
        self.is_complete = self.is_abandoned = False
        self.give_way: Callable[[], object] = lambda: None
        """Called between two parts of what is read back in one call."""

    def write(self, pairs: list[Pair]) -> None:
        """Take in what comes next in key order."""
        try:
            if self.source is None:
                self._create()
            channel, batch = self.channel, self.source.write_batch()
            put = batch.put
            for key, value in pairs:
                put(channel + key, value)
            faults.reach("copy.before-write")
            batch.write()
        except DATABASE_ERRORS as error:
            raise translate(error) from error

    def _create(self) -> None:
        share = self._share._replace(
            write_buffer_bytes=min(self._share.write_buffer_bytes, FILLING_BUFFER_BYTES_MAX)
        )
        self.source = create(self.path, self._settings, share)
        with persisting(self.path, "beginning a copied table"):
            content = encode_complete(self.channel, self.position)
            self._ops.create_file(self.path / BEGUN_NAME, content)

    def finish(self) -> None:
        """All pairs are written: make them durable."""
        self._close(close_while_serving)
        faults.reach("copy.before-sync")
        self._open_durably()

    def _open_durably(self) -> None:
        """Have LevelDB open what was written, and make the names of its files durable."""
        try:
            self.source = open_checked(self.path, self._settings, self._share)
        except DATABASE_ERRORS as error:
            raise translate(error) from error
        with persisting(self.path, "making a copied table durable"):
            self._ops.sync_directory(self.path)
            self._ops.sync_directory(self.path.parent)
        faults.reach("copy.after-sync")

    def verify(self, bytes_max: int) -> bool:
        """Read on, about so many bytes; True when everything was read back."""
        left = bytes_max
        while True:
            left -= self._read(min(left, READ_BYTES))
            if self._reading is None or left <= 0:
                return self._reading is None
            self.give_way()

    def _read(self, bytes_max: int) -> int:
        """Read on, about so many bytes; return how many."""
        cut, size = len(self.channel), 0
        keys, values = list[bytes](), list[bytes]()
        try:
            if self.source is None:  # of another life
                self.source = open_checked(self.path, self._settings, self._share)
            if self._reading is None:
                self._digest, self._position, self._last_key = CopyDigest(), EMPTY_HISTORY, b""
                options = {"verify_checksums": True, "fill_cache": False}
                found = self.source.iterator(**options)
                self._reading = chain(found, errors_at_end(found))
            for key, value in self._reading:
                keys.append(key)
                values.append(value)
                size += len(key) - cut + len(value)
                if size >= bytes_max:
                    break
            else:
                self._reading = None
        except DATABASE_ERRORS as error:
            raise translate(error) from error
        if keys:
            self._take_in(keys, values)
        return size

    def _take_in(self, keys: list[bytes], values: list[bytes]) -> None:
        """Take what was read back, in key order."""
        channel, cut = self.channel, len(self.channel)
        # In the order of keys all are of the channel if the first and the last one are.
        for key in (keys[0], keys[-1]):
            if key[:cut] != channel:
                raise CorruptRecordError(
                    f"{self.path} holds the key {key.hex()} of another channel"
                )
        if keys[0] == applied_key(channel):  # the first of all that there may be
            self._position = decode_applied(channel, values[0])
        own = list(map(itemgetter(slice(cut, None)), keys))
        self._last_key = own[-1]
        self._digest.add_columns(own, values)

    def found(self) -> tuple[bytes, int, History]:
        """Digest, pairs and applied position as they were read back."""
        return self._digest.digest(), self._digest.pairs, self._position

    def resume_point(self) -> ResumePoint:
        """How far what was read back goes."""
        return ResumePoint(self._last_key, self._digest.pairs, self._digest.digest())

    def complete(self) -> None:
        """The switch: from now on this is the channel's table after a crash."""
        faults.reach("copy.before-switch")
        with persisting(self.path, "switching to a copied table"):
            # Everything in it is durable, so it is the name alone that counts.
            content = encode_complete(self.channel, self._position)
            self._ops.create_file(self.path / COMPLETE_NAME, content)
        self.is_complete = True
        faults.reach("copy.after-switch")

    def abandon(self) -> None:
        """Remove it, unless it is complete."""
        self._close(close_while_serving)
        self.is_abandoned = True
        if not self.is_complete and self.path.exists():
            with persisting(self.path, "removing a copied table"):
                shutil.rmtree(self.path)

    def taken(self) -> Any:
        """Hand the open database over to the channel; loop thread, after ``complete``."""
        assert self.is_complete, "a table that is not complete is never read (S6.4)"
        source, self.source = self.source, None
        return source

    def close(self) -> None:
        """Close the database, if it is open."""
        self._close(lambda source: source.close())

    def _close(self, how: Callable[[Any], None]) -> None:
        self._reading = None
        source, self.source = self.source, None
        if source is not None:
            how(source)
