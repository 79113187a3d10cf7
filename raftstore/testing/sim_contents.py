"""Contents of a simulated channel: rows, the state beside them, and the applied position."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator

from raftstore.errors import CorruptRecordError
from raftstore.ports.table_copy import Pair
from raftstore.ports.tables import Page
from raftstore.record_machine import Row, is_expired
from raftstore.rows.sealing import check_seal, seal, unseal
from raftstore.state_machines.expiry import channel_time
from raftstore.storage.tables.keys import (
    MARKER,
    POSITION,
    ROWS_TAG,
    STATE_START,
    ContentHasher,
    decode_applied,
    encode_applied,
    row_head,
    split_row,
)
from raftstore.types import EMPTY_HISTORY, ChannelId, History, Seq


def is_sealed(row: Row) -> bool:
    """Whether a stored row matches its checksum."""
    try:
        check_seal(row.key, row.value)
    except CorruptRecordError:
        return False
    return True


class SimContents:
    """One state of a channel; a copy of it is a view."""

    __slots__ = ("rows", "state", "applied", "_sorted_keys", "_hashed")

    def __init__(self) -> None:
        self.rows: dict[bytes, Row] = {}  # values sealed, as on a disk
        self.state: dict[bytes, bytes] = {}
        self.applied = EMPTY_HISTORY
        self._sorted_keys: list[bytes] | None = None
        self._hashed: tuple[bytes, int] | None = None

    def copy(self) -> SimContents:
        """The same, which stays as it is."""
        copied = SimContents()
        copied.rows, copied.state = dict(self.rows), dict(self.state)
        copied.applied = self.applied
        copied._sorted_keys, copied._hashed = self._sorted_keys, self._hashed
        return copied

    def clear(self) -> None:
        """Everything is gone."""
        self.rows.clear()
        self.state.clear()
        self._sorted_keys = self._hashed = None
        self.applied = EMPTY_HISTORY

    def marked(self, channel: ChannelId) -> History:
        """The record that was being written in pieces; (0, 0): none was."""
        stored = self.state.get(MARKER)
        return EMPTY_HISTORY if stored is None else decode_applied(channel, stored)

    # --- changes ----------------------------------------------------------------------------------

    def put(self, key: bytes, row: Row | None) -> Row | None:
        """Set or remove a row; return the one before."""
        before = self.rows.get(key)
        self._hashed = None
        if row is None:
            self.rows.pop(key, None)
        else:
            self.rows[key] = row
        if (before is None) != (row is None):
            self._sorted_keys = None
        return before

    def put_state(self, key: bytes, value: bytes | None) -> bytes | None:
        """Set or remove a value of the state; return the one before."""
        before = self.state.get(key)
        self._hashed = None
        if value is None:
            self.state.pop(key, None)
        else:
            self.state[key] = value
        return before

    # --- reads ------------------------------------------------------------------------------------

    def keys_in_order(self) -> list[bytes]:
        """All keys of rows, sorted."""
        if self._sorted_keys is None:
            self._sorted_keys = sorted(self.rows)
        return self._sorted_keys

    def keys_between(self, start: bytes, stop: bytes) -> list[bytes]:
        """Keys of [start, stop); b"" is open."""
        keys = self.keys_in_order()
        end = bisect_left(keys, stop) if stop else len(keys)
        return keys[bisect_left(keys, start) : end]

    def shown_between(self, start: bytes, stop: bytes) -> list[bytes]:
        """Keys of that range that have not expired."""
        keys, time_ms = self.keys_between(start, stop), channel_time(self.state.get)
        if not time_ms:
            return keys
        return [key for key in keys if not is_expired(self.rows[key].expires_ms, time_ms)]

    def get(self, key: bytes) -> Row | None:
        """One row, expired or not; raises CorruptRecordError if its seal does not fit."""
        stored = self.rows.get(key)
        if stored is None:
            return None
        value = unseal(stored.key, stored.value)
        return Row(stored.key, value, stored.seq, stored.expires_ms)

    def get_shown(self, key: bytes) -> Row | None:
        """One row, unless it has expired at the channel time of this state."""
        row = self.get(key)
        if row is None or is_expired(row.expires_ms, channel_time(self.state.get)):
            return None
        return row

    def page(self, start: bytes, stop: bytes, limit: int, bytes_max: int | None) -> Page:
        """As ports.TableStore.scan."""
        keys = self.shown_between(start, stop)
        rows: list[Row] = []
        size = 0
        for key in keys[:limit]:
            row = self.get(key)
            assert row is not None
            size += row.size
            if rows and bytes_max is not None and size > bytes_max:
                break
            rows.append(row)
        return Page(rows, len(rows) < len(keys), self.applied.seq)

    def state_between(self, start: bytes, stop: bytes, limit: int) -> list[tuple[bytes, bytes]]:
        """As ports.TableStore.state_scan."""
        pairs = sorted(self.state.items())
        return [pair for pair in pairs if start <= pair[0] < stop and pair[0] != MARKER][:limit]

    # --- as they are on a disk --------------------------------------------------------------------

    def pairs(self, channel: ChannelId, after: bytes | None) -> Iterator[Pair]:
        """Keys and values as LevelDB holds them, in key order behind ``after``; each checked."""
        if after is None:
            yield POSITION, encode_applied(channel, self.applied)
        keys = self.keys_in_order()
        begin = 0
        if after is not None and after >= ROWS_TAG:
            begin = bisect_right(keys, after[len(ROWS_TAG) :]) if after < STATE_START else len(keys)
        for key in keys[begin:]:
            row = self.rows[key]
            check_seal(key, row.value)
            yield ROWS_TAG + key, row_head(row.seq, row.expires_ms) + row.value
        for key, value in sorted(self.state.items()):
            if after is None or key > after:
                yield key, value if key == MARKER else seal(key, value)

    def stored_pairs(self, channel: ChannelId) -> Iterator[Pair]:
        """All of them, as the files of LevelDB hold them: nobody looks at them."""
        yield POSITION, encode_applied(channel, self.applied)
        for key in self.keys_in_order():
            row = self.rows[key]
            yield ROWS_TAG + key, row_head(row.seq, row.expires_ms) + row.value
        for key, value in sorted(self.state.items()):
            yield key, value if key == MARKER else seal(key, value)

    def take(self, channel: ChannelId, pairs: Iterable[Pair]) -> None:
        """Become what ``pairs`` gave of another, further."""
        for key, value in pairs:
            if key == POSITION:
                self.applied = decode_applied(channel, value)
            elif key.startswith(ROWS_TAG):
                seq, expires_ms, sealed = split_row(value)
                row_key = key[len(ROWS_TAG) :]
                self.put(row_key, Row(row_key, sealed, seq, expires_ms))
            else:
                self.put_state(key, value if key == MARKER else unseal(key, value))

    def content_hash(self) -> tuple[bytes, int, Seq]:
        """As ports.TableStore.content_hash."""
        if self._hashed is None:
            hasher = ContentHasher()
            for key in self.keys_in_order():
                row = self.get(key)
                assert row is not None
                hasher.add(row.key, row.value, row.seq, row.expires_ms)
            for key, value in sorted(self.state.items()):
                if key != MARKER:
                    hasher.add_state(key, value)
            self._hashed = hasher.digest(), hasher.rows
        return *self._hashed, self.applied.seq
