"""Common to all machines: records that change nothing, and records that cannot be applied."""

from __future__ import annotations

from typing import Final

from raftstore.errors import CorruptRecordError, NewerFormatError
from raftstore.protocol.records import Record
from raftstore.record_machine import ApplyResult

NO_CHANGE: Final = ApplyResult(())
"""Of records that leave rows and state as they are."""


def refuse_kind(machine: str, record: Record) -> NewerFormatError:
    """The error for a committed record that this machine cannot apply.

    Skipping it would silently part this replica from those that understand it, so it is a
    StorageError: the node stops with everything it has still intact (S0.4). It is no damage, which
    would have the tables built again.
    """
    return NewerFormatError(
        f"record {record.last_seq} of term {record.term} is of kind {record.kind:d}, which a "
        f"{machine} of this version cannot apply; run a newer version on this node"
    )


def refuse_payload(record: Record, reason: Exception) -> CorruptRecordError:
    """The error for a committed record whose payload cannot be read."""
    return CorruptRecordError(
        f"record {record.last_seq} of term {record.term} cannot be applied: {reason}; "
        "compare it with another replica"
    )
