"""Writing one piece of a record that is too large for one atomic batch, a slice at a time.

A micro-batch may bring any number of rows to a channel at once. They are written in slices, each an
atomic batch of bounded size, while readers look at a snapshot from before the first. LevelDB loses
only the newest batches in a crash, so what is found afterwards is the state before the first slice,
or that state, some slices, and the mark that came with the first. The applied position comes with
the last slice alone: a record whose slices are not all there is applied again as a whole, and a row
that it wrote before is recognised by its seq.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import islice
from operator import lt
from typing import Final, NamedTuple

from raftstore import faults
from raftstore.config import MIB
from raftstore.ports.tables import Piece
from raftstore.record_machine import Row, is_expired
from raftstore.rows.sealing import SEAL_BYTES, seal
from raftstore.state_machines.expiry import UNSTATED_MS, moved, stored_time
from raftstore.storage.tables.applied_channel import AppliedChannel
from raftstore.storage.tables.channel_database import WriteBatch
from raftstore.storage.tables.keys import applied_key, encode_applied, marker_key, row_head
from raftstore.types import ChannelId, History, Seq

SLICE_BYTES_MAX: Final = 1 * MIB
"""Bytes of keys and values in one atomic batch, but for a last row and the changes of state."""
TRUNCATED_ROWS_MAX: Final = 65_536
"""Rows that one piece removes: others' records are applied between the pieces."""

Change = tuple[bytes, bytes | None]


class PieceRows(NamedTuple):
    """The rows of a piece in key order, and what has to be in the state before any of them: what
    became of the chunks. ``expires_ms``: of those of the rows that expire."""

    changes: list[Change]
    outcomes: list[Change]
    expires_ms: dict[bytes, int]


def put_state(batch: WriteBatch, channel: ChannelId, writes: Iterable[Change]) -> None:
    """Take changes of the state beside the rows into a batch; values get their seal here."""
    for key, value in writes:
        if value is None:
            batch.delete(channel + key)
        else:
            batch.put(channel + key, seal(key, value))


def rows_of_piece(
    state: AppliedChannel,
    piece: Piece,
    get: Callable[[ChannelId, bytes], Row | None],
    state_get: Callable[[ChannelId, bytes], bytes | None],
) -> PieceRows:
    """The rows of a piece in key order, which LevelDB likes best; the last one of a key counts."""
    machine, seq = state.pieces, piece.record.last_seq
    rows: list[Change] = []
    outcomes: list[Change] = []
    expires_of: dict[bytes, int] = {}
    if any(piece.ttls_ms) and not state.time_ms:
        state.time_ms = UNSTATED_MS
        outcomes.append(stored_time(UNSTATED_MS))
    newest: dict[bytes, bytes | None] = {}
    get_state = partial(state_get, state.channel)
    seen = 0

    def read(key: bytes) -> Row | None:
        nonlocal seen
        if seen < len(rows):
            newest.update(rows[seen:])
            seen = len(rows)
        if key not in newest:
            # S10: by the channel time before the record, which a second run finds again.
            row = get(state.channel, key)
            return None if row is None or is_expired(row.expires_ms, state.time_ms) else row
        sealed = newest[key]
        return None if sealed is None else Row(key, sealed[SEAL_BYTES:], seq)

    if piece.chunks:
        assert machine is not None, "a machine without pieces was sent one"
        for number, (mode, payload) in enumerate(piece.chunks, piece.first_chunk):
            written = machine.rows_of((seq, number), mode, payload, read, get_state)
            outcomes += machine.outcomes_of((seq, number), mode, payload, written, get_state)
            rows += written
            if piece.ttls_ms:
                ttl_ms = piece.ttls_ms[number - piece.first_chunk]
                expires_ms = piece.record.timestamp_ms + ttl_ms if ttl_ms else 0
                expires_of.update((key, expires_ms) for key, _ in written)
    return PieceRows(_in_key_order(rows), outcomes, expires_of)


def index_of_row(
    state: AppliedChannel,
    change: Change,
    expires_ms: int,
    get: Callable[[ChannelId, bytes], Row | None],
) -> tuple[Change, ...]:
    """Changes of the index of expiries that belong into one atomic batch with that of a row."""
    if not state.time_ms:
        return ()  # no row of the channel ever had an expiry
    key, sealed = change
    row = get(state.channel, key)
    before_ms = 0 if row is None else row.expires_ms
    return moved(key, before_ms, 0 if sealed is None else expires_ms)


def _in_key_order(rows: list[Change]) -> list[Change]:
    """Rows by key, the last one of each; as they are if they arrived so, as Spark's mostly do."""
    keys = [key for key, _ in rows]
    if all(map(lt, keys, islice(keys, 1, None))):
        return rows
    return sorted(dict(rows).items())


class PieceWriter:
    """Writes pieces; belongs to the apply thread.

    ``get`` returns a verified row as it is in the database, whatever readers see meanwhile,
    ``state_get`` a value of the state; ``keys`` all keys of a channel's rows from one on.
    """

    def __init__(
        self,
        *,
        new_batch: Callable[[ChannelId], WriteBatch],
        write: Callable[[WriteBatch], None],
        get: Callable[[ChannelId, bytes], Row | None],
        state_get: Callable[[ChannelId, bytes], bytes | None],
        keys: Callable[[ChannelId, bytes], Iterator[bytes]],
    ) -> None:
        self._new_batch = new_batch
        self._write_batch = write
        self._get = get
        self._state_get = state_get
        self._keys = keys

    def write(self, state: AppliedChannel, piece: Piece) -> None:
        """Write one piece; everything of the channel before it is written."""
        outcomes: list[Change] = []
        if piece.truncate_from is not None:
            changes: Iterable[Change] = self._removals(state, piece.truncate_from)
            expires_of = dict[bytes, int]()
        else:
            changes, outcomes, expires_of = rows_of_piece(state, piece, self._get, self._state_get)
        record, channel = piece.record, state.channel
        prefix, stamp = state.prefix, row_head(record.last_seq)
        position = History(record.term, record.last_seq)
        is_begun = not piece.first
        batch, size = self._new_batch(channel), 0
        for outcome in outcomes:
            if size >= SLICE_BYTES_MAX:
                self._write_slice(batch, state, position, is_begun=is_begun)
                is_begun = True
                batch, size = self._new_batch(channel), 0
            put_state(batch, channel, (outcome,))
            size += len(outcome[1] or b"")
        put = batch.put
        for key, value in changes:
            if size >= SLICE_BYTES_MAX:
                self._write_slice(batch, state, position, is_begun=is_begun)
                is_begun = True
                batch, size = self._new_batch(channel), 0
                put = batch.put
            if value is None or state.time_ms:
                expires_ms = expires_of.get(key, 0)
                size += self._put_row(batch, state, record.last_seq, (key, value), expires_ms)
            else:
                put(prefix + key, stamp + value)
                size += len(key) + len(value)
        if not piece.last:
            self._write_slice(batch, state, position, is_begun=is_begun)
            return
        put_state(batch, channel, piece.state_writes)
        batch.delete(marker_key(channel))
        # S10: the applied position only with the last slice: until then nothing is applied of it.
        batch.put(applied_key(channel), encode_applied(channel, position))
        state.tell_removed(batch)
        faults.reach("batch.before-last-slice")
        self._write_batch(batch)
        faults.reach("batch.after-apply")
        state.reach(position)

    def _put_row(
        self, batch: WriteBatch, state: AppliedChannel, seq: Seq, change: Change, expires_ms: int
    ) -> int:
        """Take a row that is removed, or may expire, into a batch; return its bytes."""
        key, value = change
        put_state(batch, state.channel, index_of_row(state, change, expires_ms, self._get))
        if value is None:
            batch.delete(state.prefix + key)
            state.removed += 1
            return len(key)
        batch.put(state.prefix + key, row_head(seq, expires_ms) + value)
        return len(key) + len(value)

    def _write_slice(
        self, batch: WriteBatch, state: AppliedChannel, position: History, *, is_begun: bool
    ) -> None:
        state.tell_removed(batch)
        if is_begun:
            self._write_batch(batch)
            faults.reach("batch.mid-slice")
            return
        # With the first slice, so that no start serves a channel that has some and not others.
        batch.put(marker_key(state.channel), encode_applied(state.channel, position))
        self._write_batch(batch)
        faults.reach("batch.first-slice")

    def _removals(self, state: AppliedChannel, start: bytes) -> Iterator[Change]:
        # From the database, not from what readers see: after a crash there are rows of before it.
        keys = self._keys(state.channel, start)
        for key in islice(keys, TRUNCATED_ROWS_MAX):
            yield key, None
        state.truncated = next(keys, None)
