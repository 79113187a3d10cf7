"""Lifetimes of rows: when a row has expired, and the index by which expired rows are found.

*Channel time* is what the log says: the newest "it is now T" of an EXPIRE record that is applied,
never more than that record's own timestamp, and it never goes back. A row is expired at a position
exactly when the channel time of this position is at or behind the row's expiry, so every replica
has the same at one position, whatever its own clock shows (S10). Expired rows are hidden from
readers and conditions at once, and are removed by the EXPIRE record that names them, or a later
one.

Beside the rows, as state of the channel (``state_keys``):

* ``02 05 expiry8 key``: there is a row ``key`` with this expiry. Written in one atomic batch with
  the row. Each row with an expiry has exactly one such entry, and each entry its row.
* ``02 06``: the channel time; 1 from the first row with a lifetime on, none before.

A condition at a record is decided by the channel time before that record.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final

import msgspec

from raftstore.config import KIB
from raftstore.protocol.lifetimes import decode_expire
from raftstore.protocol.payload import Cell
from raftstore.protocol.records import Record
from raftstore.record_machine import ApplyResult, Row, StateReader, is_expired
from raftstore.state_machines.outcomes import bits_outcome
from raftstore.state_machines.state_keys import CHANNEL_TIME, EXPIRIES, packed, unpacked

Change = tuple[bytes, bytes | None]
MOMENT_BYTES: Final = 8
UNSTATED_MS: Final = 1
"""The channel time of a channel that has rows with a lifetime, until an EXPIRE record states
one."""


class ChannelTime(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Milliseconds since 1970, as the newest EXPIRE record states it."""

    ms: int


def stored_time(time_ms: int) -> Change:
    """The channel time as state beside the rows."""
    return CHANNEL_TIME, packed(ChannelTime(time_ms))


def channel_time(get: Callable[[bytes], bytes | None]) -> int:
    """The channel time of a state; 0: it never had a row with a lifetime."""
    stored = get(CHANNEL_TIME)
    return 0 if stored is None else unpacked(stored, ChannelTime).ms


def expiry_key(expires_ms: int, key: bytes) -> bytes:
    """The key of a row's entry in the index."""
    return EXPIRIES + expires_ms.to_bytes(MOMENT_BYTES, "big") + key


def due_rows(
    scan: Callable[[bytes, bytes, int], list[tuple[bytes, bytes]]],
    until_ms: int,
    *,
    keys_max: int,
    bytes_max: int = 256 * KIB,
) -> list[tuple[int, bytes]]:
    """(expiry, key) of the rows that have expired at ``until_ms``, the earliest first, bounded by
    number and bytes of keys; ``scan`` reads the state beside the rows."""
    at = len(EXPIRIES)
    found: list[tuple[int, bytes]] = []
    size = 0
    for stored, _ in scan(EXPIRIES, expiry_key(until_ms + 1, b""), keys_max):
        if size >= bytes_max:
            break
        key = stored[at + MOMENT_BYTES :]
        found.append((int.from_bytes(stored[at : at + MOMENT_BYTES], "big"), key))
        size += len(key)
    return found


def moved(key: bytes, before_ms: int, after_ms: int) -> tuple[Change, ...]:
    """Changes of the index when a row's expiry becomes another; 0: it has none, or is no row."""
    if before_ms == after_ms:
        return ()
    changes: list[Change] = []
    if before_ms:
        changes.append((expiry_key(before_ms, key), None))
    if after_ms:
        changes.append((expiry_key(after_ms, key), b""))
    return tuple(changes)


def index_changes(
    writes: Iterable[tuple[bytes, Cell]], expires_ms: int, read: Callable[[bytes], Row | None]
) -> Iterator[Change]:
    """Changes of the index that go with the writes of one record, in their order.

    ``read`` gives the row there is, expired or not.
    """
    here: dict[bytes, int] = {}
    for key, sealed in writes:
        if key in here:
            before_ms = here[key]
        else:
            row = read(key)
            before_ms = 0 if row is None else row.expires_ms
        here[key] = 0 if sealed is None else expires_ms
        yield from moved(key, before_ms, here[key])


def visible(read: Callable[[bytes], Row | None], time_ms: int) -> Callable[[bytes], Row | None]:
    """The same reads, to which expired rows are absent."""

    def shown(key: bytes) -> Row | None:
        row = read(key)
        return None if row is None or is_expired(row.expires_ms, time_ms) else row

    return shown


def written(
    result: ApplyResult, expires_ms: int, read: Callable[[bytes], Row | None], time_ms: int
) -> ApplyResult:
    """The result of a record that writes rows, with what it changes in the index."""
    writes = list(result.writes)
    changes: list[Change] = [*index_changes(writes, expires_ms, read), *result.state_writes]
    stated_ms = 0
    if expires_ms and not time_ms:
        stated_ms = UNSTATED_MS
        changes.append(stored_time(stated_ms))
    return ApplyResult(
        writes, result.conflict_seq, tuple(changes), result.answer, expires_ms, stated_ms
    )


def expire(record: Record, read: Callable[[bytes], Row | None], time_ms: int) -> ApplyResult:
    """Move the channel time, and remove the named rows that have expired at it.

    A row that was written again since the leader named it has another expiry, or none, and stays:
    then it is written down which rows were removed.
    """
    until_ms, keys = decode_expire(record.payload)
    # S10: whatever a leader's clock was, the channel time neither goes back nor ahead of the log.
    time_ms = max(time_ms, min(until_ms, record.timestamp_ms))
    removed: dict[bytes, int] = {}
    for key in keys:
        row = read(key)
        if row is not None and is_expired(row.expires_ms, time_ms):
            removed[key] = row.expires_ms
    changes: list[Change] = [(expiry_key(at_ms, key), None) for key, at_ms in removed.items()]
    changes.append(stored_time(time_ms))
    if len(removed) < len(keys):
        changes.append(bits_outcome(record.last_seq, keys, frozenset(removed)))
    writes: Sequence[tuple[bytes, Cell]] = [(key, None) for key in removed]
    return ApplyResult(writes, state_writes=tuple(changes), time_ms=time_ms)


def time_of(state: StateReader) -> int:
    """The channel time of the state before the record at hand."""
    return channel_time(state.get)
