"""What a workload's client asks of a target, and what it is told: the same for every target.

Rows of every workload table have one key column ``k`` and one value column ``v``. Keys are
strings or integers, values anything JSON can hold.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from typing import Any

from raftstore.types import Level, Outcome


class Action(enum.Enum):
    """What a call does."""

    PUT = "put"
    """Write one row."""
    PUT_IF = "put_if"
    """Write one row if its seq is still ``expected_seq`` (0: the row must be absent)."""
    PUT_MANY = "put_many"
    """Write ``rows``; rows of one partition are one record, visible together."""
    DELETE = "delete"
    GET = "get"
    GET_MANY = "get_many"
    """Read ``keys``; keys of one partition come from one position."""
    SCAN = "scan"
    """Read every row of the table, each partition at one position."""


@dataclass(frozen=True, slots=True)
class Call:
    """One request of one client."""

    action: Action
    table: str
    key: str | int | None = None
    value: Any = None
    rows: tuple[tuple[str | int, Any], ...] = ()
    keys: tuple[str | int, ...] = ()
    expected_seq: int = 0
    level: Level = Level.LINEARIZABLE
    max_lag: int | None = None
    """For level bounded: rows."""
    max_staleness_ms: int | None = None
    """For level bounded: time."""
    at_least: tuple[tuple[int, int], ...] = ()
    """(partition, seq) the answer must include; for levels bounded and any."""
    node: str | None = None
    """Ask this node and no other; None: as a client does."""
    final: bool = False
    """Part of the read-back after healing."""
    note: dict[str, Any] = field(default_factory=dict)
    """Copied into the operation's details; for the workload's own checker."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What the client was told."""

    outcome: Outcome
    value: Any = None
    """GET: the row's value or None. GET_MANY: list in order of ``keys``. SCAN: {key: value}."""
    seqs: tuple[int, ...] = ()
    """GET and GET_MANY: the row's seq per key (0: absent)."""
    conflict: bool = False
    """PUT_IF: the condition did not hold; nothing was written."""
    positions: tuple[tuple[int, int], ...] = ()
    """Writes: (partition, last seq) of the records. Reads: (partition, applied seq) served from."""
    served_by: str | None = None
    lag: int | None = None
    """Reads: the lag in rows the replica reported; None: unknown."""
    staleness_ms: int | None = None
    """Reads: all that was committed longer ago is in the answer, it said; None: unknown."""
    error: str | None = None
    """The error code of anything that is not OK."""
