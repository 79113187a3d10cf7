"""Batches that went with a table that was dropped.

A stream counts its batches in its checkpoint, which outlives the table. Its next batch would begin
another table of the name with what came last, and nobody would see that the rest is missing. The
catalog remembers who had batches in a dropped table, so the coordinator knows such a stream from
one that begins: a new checkpoint has another lineage, whatever number its first batch has here.
"""

from __future__ import annotations

from collections.abc import Collection

from raftstore.errors import NoLeaderError, UnknownTableError
from raftstore.protocol.batches import BeginBatch
from raftstore.record_machine import StateReader
from raftstore.state_machines.batches.txn_records import Verdict
from raftstore.state_machines.batches.txn_state import read_writer


def judge_dropped(
    request: BeginBatch,
    table: str,
    state: StateReader,
    dropped: Collection[tuple[str, str]],
    *,
    is_current: bool,
) -> Verdict | None:
    """Refuse a BEGIN whose earlier batches are in a dropped table; None: they are not.

    ``dropped``: (writer, lineage) of those with batches in dropped tables of this name.
    ``is_current``: the state has all that was ever decided, else a writer may only look new.
    """
    if request.batch_id == 0 or (request.writer, request.lineage) not in dropped:
        return None
    if read_writer(request.writer, state) is not None:
        return None
    if not is_current:
        text = f"the leader has not applied yet whether writer {request.writer!r} is known; retry"
        return Verdict("refused", NoLeaderError.code, text)
    text = (
        f"batch {request.batch_id} of writer {request.writer!r} is refused: the table that had its "
        f"earlier batches was dropped, and this table {table!r} lacks them; begin with a new "
        "checkpoint, or go on without them as a writer of another name (writerId)"
    )
    return Verdict("refused", UnknownTableError.code, text)
