"""Which records of a leader a replica takes while its disk has little room (S0.4, GAP-13)."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import takewhile
from typing import Final

import msgspec

from raftstore.config import KIB
from raftstore.engine.channel.storage_guard import StorageGuard
from raftstore.protocol.publish import PayloadRelay
from raftstore.protocol.records import Record, RecordMeta
from raftstore.protocol.replication import (
    MsgSync,
    MsgSyncRequest,
    ReplicationMessage,
    StoreRequest,
)
from raftstore.types import RecordKind, Seq

WITH_RECORDS: Final = frozenset({StoreRequest, MsgSync, PayloadRelay})
"""Kinds that fill memory until the disk has their records."""
RECORD_BYTES: Final = 256
"""A record without its payload on the disk, at most."""
ASKED_BYTES: Final = 64 * KIB
"""Of history, asked for while most of the answer would not be taken."""
_OF_LEADERS: Final = frozenset({RecordKind.TERM_START, RecordKind.CONFIG})


def taken(
    guard: StorageGuard, message: ReplicationMessage, *, is_catalog: bool
) -> ReplicationMessage | None:
    """Return what a follower takes of a message: all of it, its first records, or None."""
    if type(message) not in WITH_RECORDS or guard.takes_records(is_catalog=is_catalog):
        return message
    return _beginning(guard, message) if isinstance(message, (StoreRequest, MsgSync)) else None


def asked(guard: StorageGuard, request: MsgSyncRequest) -> MsgSyncRequest:
    """Return a follower's question for history, for less while its disk takes no rows: they would
    be read, sent and thrown away again at each question."""
    if not guard.space.is_exhausted or request.max_bytes <= ASKED_BYTES:
        return request
    return msgspec.structs.replace(request, max_bytes=ASKED_BYTES)


def _beginning(guard: StorageGuard, message: StoreRequest | MsgSync) -> ReplicationMessage | None:
    """The first records, with which a new leader can commit the start of its term: before that it
    answers no linearizable read (S7.1), and where no quorum has room that would be never.

    They are few: leaders elsewhere refuse new writes by then. Once anything of the term is
    committed, or the records are writes of this very term, they wait for space as all others do.
    """
    if message.commit_seq or not message.records:
        return None
    records: Sequence[Record | RecordMeta] = message.records
    wanted = list(
        takewhile(lambda each: each.term < message.term or each.kind in _OF_LEADERS, records)
    )
    size = sum(RECORD_BYTES + len(each.payload or b"") for each in wanted)
    if not wanted or not guard.takes_beginning(size):
        return None
    if len(wanted) == len(records):
        return message
    if isinstance(message, MsgSync):
        return msgspec.structs.replace(message, records=tuple(wanted), done=False, next_seq=Seq(0))
    return msgspec.structs.replace(message, records=tuple(wanted))
