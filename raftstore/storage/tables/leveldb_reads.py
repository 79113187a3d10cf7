"""Reading the tables: rows, state and positions, in the database or in a snapshot of it.

Everything that is read is verified: LevelDB checks its blocks, each row and each value of the state
carries a seal of its own, a position its checksum. The first damage or error poisons the tables
(S0.4); it is remembered here, since readers meet it first.

Any thread may read.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from contextlib import closing
from itertools import islice
from pathlib import Path
from struct import Struct
from struct import error as StructError
from typing import Any, Final

from raftstore.crc import crc32
from raftstore.errors import CorruptRecordError, PersistError, StorageError
from raftstore.ports.scrub import TableStep
from raftstore.ports.table_copy import CopyPage
from raftstore.ports.tables import Counted, ExpiryPage, SealedPage
from raftstore.record_machine import Row, is_expired
from raftstore.rows.sealing import SEAL_BYTES, check_seal, unseal
from raftstore.state_machines.expiry import channel_time
from raftstore.storage.tables.keys import (
    MARKER,
    REMOVED_KEY,
    ROWS_TAG,
    SEQ_BYTES,
    STATE_END,
    STATE_START,
    ContentHasher,
    applied_key,
    channel_end,
    decode_applied,
    decode_count,
    marker_key,
    rows_end,
    rows_prefix,
    shown,
    split_row,
)
from raftstore.storage.tables.leveldb_database import (
    DATABASE_ERRORS,
    is_damage,
    iterated,
    translate,
)
from raftstore.storage.tables.pair_checks import check_pairs
from raftstore.storage.tables.tables_directory import ask_for_rebuild
from raftstore.types import EMPTY_HISTORY, ChannelId, History, Seq

_VALUE_AT: Final = SEQ_BYTES + SEAL_BYTES
_seq_and_seal: Final[Callable[[bytes], tuple[Seq, int]]] = Struct(">QI").unpack_from
"""What is stored before a row's value."""


class LevelDbReads:
    """Verified reads of a ``source``: the database of a channel, or a snapshot of it."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._failure: str | None = None

    # --- whether anything can be read -------------------------------------------------------------

    def check(self) -> None:
        """Raise PersistError if the tables failed before or are closed."""
        if self._failure is not None:
            raise PersistError(f"the tables are not usable any more: {self._failure}")

    def failed(self, error: Exception, channel: ChannelId | None) -> StorageError:
        """Poison the tables (S0.4); damage of a channel is also remembered for the next start."""
        ours = error if isinstance(error, StorageError) else translate(error)
        self._failure = self._failure or str(ours)
        if isinstance(ours, CorruptRecordError):
            ask_for_rebuild(self._directory, channel, str(ours))
        return ours

    def closed(self) -> None:
        """Nothing is read from now on."""
        self._failure = self._failure or "they were closed"

    # --- rows -------------------------------------------------------------------------------------

    def row(self, source: Any, channel: ChannelId, key: bytes) -> Row | None:
        """One row, expired or not; raises CorruptRecordError if its checksum is wrong."""
        if self._failure is not None:
            self.check()
        try:
            stored = source.get(channel + ROWS_TAG + key, verify_checksums=True)
        except DATABASE_ERRORS as error:
            raise self.failed(error, channel) from error
        return None if stored is None else self.unsealed(channel, key, stored)

    def some(
        self,
        source: Any,
        channel: ChannelId,
        keys: Sequence[bytes],
        bytes_max: int,
        time_ms: int,
    ) -> tuple[list[bytes | None], list[Seq], int]:
        """The rows of the keys that have not expired at this channel time, each checked, up to the
        one that goes beyond the bytes: sealed values, seqs and size, as in ``FoundRows``."""
        values, seqs = list[bytes | None](), list[Seq]()
        size, prefix = 0, rows_prefix(channel)
        try:
            for key in keys:
                stored = source.get(prefix + key, verify_checksums=True)
                if time_ms and stored is not None:
                    stored = next((row for _, row in shown(((key, stored),), time_ms)), None)
                if stored is None:
                    values.append(None)
                    seqs.append(Seq(0))
                    continue
                sealed = stored[SEQ_BYTES:]
                check_seal(key, sealed)
                values.append(sealed)
                seqs.append(Seq(int.from_bytes(stored[:SEQ_BYTES], "big")))
                size += len(key) + len(sealed) - SEAL_BYTES
                if size > bytes_max:
                    break
        except (*DATABASE_ERRORS, CorruptRecordError) as error:
            raise self.failed(error, channel) from error
        return values, seqs, size

    def rows(
        self,
        source: Any,
        channel: ChannelId,
        *,
        start: bytes = b"",
        stop: bytes = b"",
        time_ms: int = 0,
    ) -> Generator[Row, None, None]:
        """Rows of [start, stop) that have not expired at this channel time, each checked."""
        prefix = rows_prefix(channel)
        end = prefix + stop if stop else rows_end(channel)
        try:
            with iterated(source, start=prefix + start, stop=end) as rows:
                for key, stored in rows:
                    row = self.unsealed(channel, key[len(prefix) :], stored)
                    if not is_expired(row.expires_ms, time_ms):
                        yield row
        except DATABASE_ERRORS as error:
            raise self.failed(error, channel) from error

    def sealed_page(
        self,
        source: Any,
        channel: ChannelId,
        start: bytes,
        stop: bytes,
        limit: int,
        bytes_max: int,
        *,
        time_ms: int,
    ) -> SealedPage:
        """A page of rows that have not expired at this channel time, each checked, as they are
        stored: one loop, as they are many."""
        self.check()
        prefix = rows_prefix(channel)
        end = prefix + stop if stop else rows_end(channel)
        cut, at, left = len(prefix), _VALUE_AT, bytes_max
        found: list[tuple[bytes, bytes, Seq]] = []
        try:
            with iterated(source, start=prefix + start, stop=end) as rows:
                live = shown(rows, time_ms) if time_ms else rows
                for stored_key, stored in islice(live, limit + 1):
                    key = stored_key[cut:]
                    seq, checksum = _seq_and_seal(stored)
                    # What check_seal does: calling it for each row would take a tenth of the page.
                    if crc32(key + stored[at:]) != checksum:
                        check_seal(key, stored[SEQ_BYTES:])
                    left -= len(key) + len(stored) - at
                    if left < 0 and found:
                        return SealedPage(found, more=True)
                    found.append((key, stored[SEQ_BYTES:], seq))
        except StructError as error:
            raise self.failed(CorruptRecordError(f"a row has no seal: {error}"), channel) from error
        except (*DATABASE_ERRORS, CorruptRecordError) as error:
            raise self.failed(error, channel) from error
        more = len(found) > limit
        if more:
            found.pop()
        return SealedPage(found, more=more)

    def copy_page(
        self, source: Any, channel: ChannelId, after: bytes | None, bytes_max: int
    ) -> CopyPage:
        """All that a table consists of, behind the key ``after``: rows, states and position, each
        checked, as they are stored; at least one, and at most ``bytes_max`` bytes then."""
        self.check()
        start = channel if after is None else channel + after + b"\0"
        cut, left, more = len(channel), bytes_max, False
        keys, values = list[bytes](), list[bytes]()
        try:
            with iterated(source, start=start, stop=channel_end(channel)) as pairs:
                for stored_key, stored in pairs:
                    left -= len(stored_key) - cut + len(stored)
                    if left < 0 and keys:
                        more = True
                        break
                    keys.append(stored_key[cut:])
                    values.append(stored)
            check_pairs(channel, keys, values)
        except (*DATABASE_ERRORS, CorruptRecordError) as error:
            raise self.failed(error, channel) from error
        return CopyPage(list(zip(keys, values, strict=True)), more=more)

    def verify(
        self, source: Any, channel: ChannelId, after: bytes | None, bytes_max: int
    ) -> TableStep:
        """Read on and check as ``copy_page`` does, returning no pairs. Damage is reported, and
        the tables stay usable: the next read of those rows meets it again."""
        self.check()
        start = channel if after is None else channel + after + b"\0"
        cut, size, more = len(channel), 0, False
        keys, values = list[bytes](), list[bytes]()
        try:
            with iterated(source, start=start, stop=channel_end(channel)) as pairs:
                for stored_key, stored in pairs:
                    keys.append(stored_key[cut:])
                    values.append(stored)
                    size += len(stored_key) + len(stored)
                    if size >= bytes_max:
                        more = True
                        break
            check_pairs(channel, keys, values)
        except CorruptRecordError as error:
            return TableStep(None, size, str(error))
        except DATABASE_ERRORS as error:
            if not is_damage(error):
                raise self.failed(error, channel) from error
            return TableStep(None, size, f"LevelDB reports: {error}")
        return TableStep(keys[-1] if more else None, size)

    def unsealed(self, channel: ChannelId, key: bytes, stored: bytes) -> Row:
        """The row with its seal checked and taken off."""
        seq, expires_ms, sealed = split_row(stored)
        try:
            value = unseal(key, sealed)
        except CorruptRecordError as error:
            raise self.failed(error, channel) from error
        return Row(key, value, seq, expires_ms)

    def count(
        self, source: Any, channel: ChannelId, start: bytes, stop: bytes, limit: int, time_ms: int
    ) -> Counted:
        """Count rows of [start, stop) that have not expired at this channel time, at most ``limit``
        of them; values are not looked at, but for an expiry where rows have one."""
        self.check()
        prefix = rows_prefix(channel)
        end = prefix + stop if stop else rows_end(channel)
        try:
            with iterated(
                source, start=prefix + start, stop=end, include_value=time_ms > 0
            ) as found:
                keys = (key for key, _ in shown(found, time_ms)) if time_ms else found
                rows = sum(1 for _ in islice(keys, limit - 1))
                last = next(keys, None)
        except DATABASE_ERRORS as error:
            raise self.failed(error, channel) from error
        if last is None:
            return Counted(rows, None)
        # The lowest key above the last one counted: nothing is between a key and key + NUL.
        return Counted(rows + 1, last[len(prefix) :] + b"\0")

    def expiries(
        self, source: Any, channel: ChannelId, start: bytes, stop: bytes, limit: int, time_ms: int
    ) -> ExpiryPage:
        """When the rows of [start, stop) expire that have not at this channel time, each checked;
        at most ``limit`` rows are read."""
        self.check()
        with closing(self.rows(source, channel, start=start, stop=stop)) as rows:
            found = [
                (row.key, row.expires_ms)
                for row in islice(rows, limit)
                if row.expires_ms and not is_expired(row.expires_ms, time_ms)
            ]
            following = next(rows, None)
        return ExpiryPage(found, b"" if following is None else following.key)

    # --- what is beside the rows ------------------------------------------------------------------

    def channel_time(self, source: Any, channel: ChannelId) -> int:
        """The channel time, by which rows have expired; 0: none ever had an expiry."""
        return channel_time(lambda key: self.state_get(source, channel, key))

    def removed(self, source: Any, channel: ChannelId) -> int:
        """About how many rows were removed since the files were merged last."""
        self.check()
        try:
            return decode_count(source.get(REMOVED_KEY, verify_checksums=True))
        except DATABASE_ERRORS as error:
            raise self.failed(error, channel) from error

    def position(self, source: Any, channel: ChannelId) -> History:
        """The applied position: written in one batch with the rows (S10)."""
        return self._history(source, channel, applied_key(channel))

    def marker(self, source: Any, channel: ChannelId) -> History:
        """The record whose pieces were being written; nothing (0, 0) if none was."""
        return self._history(source, channel, marker_key(channel))

    def state_get(self, source: Any, channel: ChannelId, key: bytes) -> bytes | None:
        """A value of the state beside the rows."""
        self.check()
        try:
            stored = source.get(channel + key, verify_checksums=True)
            return None if stored is None else unseal(key, stored)
        except (*DATABASE_ERRORS, CorruptRecordError) as error:
            raise self.failed(error, channel) from error

    def state_scan(
        self, source: Any, channel: ChannelId, start: bytes, stop: bytes, limit: int
    ) -> list[tuple[bytes, bytes]]:
        """At most ``limit`` pairs of [start, stop), in key order."""
        self.check()
        return list(islice(self._state(source, channel, start, stop), limit))

    def content_hash(self, source: Any, channel: ChannelId) -> tuple[bytes, int, Seq]:
        """Digest over the rows and the state beside them, number of rows, and applied seq."""
        applied = self.position(source, channel)
        hasher = ContentHasher()
        for row in self.rows(source, channel):
            hasher.add(row.key, row.value, row.seq, row.expires_ms)
        for key, value in self._state(source, channel, STATE_START, STATE_END):
            hasher.add_state(key, value)
        return hasher.digest(), hasher.rows, applied.seq

    def _state(
        self, source: Any, channel: ChannelId, start: bytes, stop: bytes
    ) -> Generator[tuple[bytes, bytes], None, None]:
        try:
            with iterated(source, start=channel + start, stop=channel + stop) as pairs:
                for stored_key, stored in pairs:
                    key = stored_key[len(channel) :]
                    if key != MARKER:
                        yield key, unseal(key, stored)
        except (*DATABASE_ERRORS, CorruptRecordError) as error:
            raise self.failed(error, channel) from error

    def _history(self, source: Any, channel: ChannelId, key: bytes) -> History:
        try:
            stored = source.get(key, verify_checksums=True)
            return EMPTY_HISTORY if stored is None else decode_applied(channel, stored)
        except (*DATABASE_ERRORS, CorruptRecordError) as error:
            raise self.failed(error, channel) from error
