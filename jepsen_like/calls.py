"""Calls of a workload's client to a target, and their answers: the same for every target.

Rows of every workload table have one key column ``k`` and one value column ``v``. Keys are
strings or integers, values anything JSON can hold.
"""

from __future__ import annotations

import enum
from dataclasses import asdict, dataclass, field
from typing import Any

from raftstore.types import Level, Outcome


class Action(enum.Enum):
    """The kind of a call."""

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
    PAGE = "page"
    """Read ``limit`` rows of a scan; ``token`` goes on with the states of the page before."""
    MARK = "mark"
    """Mark the end of a micro-batch in every partition."""
    FATE = "fate"
    """Ask what became of the write named ``guid``."""
    BATCH = "batch"
    """Write ``rows`` as the atomic micro-batch ``batch``."""
    STAGE = "stage"
    """Begin that and stage its rows, no more; ``token`` of the answer is what to commit."""
    COMMIT = "commit"
    """Commit what was staged under ``token``."""
    SNAPSHOT = "snapshot"
    """Read every row of the table as of one commit."""
    COMMAND = "command"
    """Have a channel set's state machine apply ``sent``, once more if it has a ``guid``."""
    QUERY = "query"
    """Ask the state machine of a channel set ``sent``."""


@dataclass(frozen=True, slots=True)
class Batch:
    """Which micro-batch, and who writes it."""

    writer: str
    number: int
    tasks: int = 1
    """How many tasks its rows are dealt to."""
    lost: tuple[tuple[str | int, Any], ...] = ()
    """Rows that another run of the first task stages, and that does not count."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """Which commit a snapshot shall be of: this one, or one that is not before it."""

    n: int
    vector: tuple[int, ...]
    is_exact: bool = False


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
    max_batches_behind: int | None = None
    """For level bounded: micro-batches."""
    at_least: tuple[tuple[int, int], ...] = ()
    """(partition, seq) the answer must include; for levels bounded and any."""
    session: str = ""
    """The same as an opaque text that an answer gave, where answers give one; it goes first."""
    limit: int = 0
    token: str = ""
    guid: str = ""
    ttl_ms: int = 0
    """PUT, PUT_IF: how long the row lives; 0: for ever."""
    batch: Batch | None = None
    wanted: Wanted | None = None
    patience_ms: int = 0
    """BATCH, COMMIT: give up after this time; 0: as late as any call."""
    node: str | None = None
    """Ask this node and no other; None: as a client does."""
    sent: bytes = b""
    """COMMAND, QUERY: key and value as ``encode_command`` makes them."""
    final: bool = False
    """Part of the read-back after healing."""
    note: dict[str, Any] = field(default_factory=dict)
    """Copied into the operation's details; for the workload's own checker."""


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer that the client got."""

    outcome: Outcome
    value: Any = None
    """GET: the row's value or None. GET_MANY: list in order of ``keys``. SCAN, PAGE: {key: value}.
    FATE: a map of fate, seq, condition and reason. BATCH, COMMIT: a map of n, vector and already.
    STAGE: a map of attempt. SNAPSHOT: a map of n, vector and rows."""
    seqs: tuple[int, ...] = ()
    """GET and GET_MANY: the row's seq per key (0: absent)."""
    conflict: bool = False
    """PUT_IF: the condition did not hold; nothing was written."""
    positions: tuple[tuple[int, int], ...] = ()
    """Writes: (partition, last seq) of the records. Reads: (partition, applied seq) served from."""
    term: int | None = None
    """PUT: of the record. GET: of the channel when it was served. None: the target does not say."""
    served_by: str | None = None
    lag: int | None = None
    """Reads: the lag in rows the replica reported; None: unknown."""
    leader_info_age_ms: int | None = None
    """Reads: how long ago the replica heard what its lag is counted from; None: never."""
    staleness_ms: int | None = None
    """Reads: all that was committed longer ago is in the answer, it said; None: unknown."""
    batches_behind: int | None = None
    """Reads: the micro-batches the replica said it was behind; None: unknown."""
    session: str = ""
    """The position that was served or written, as an opaque text; over HTTP."""
    token: str = ""
    """PAGE: where the scan goes on; empty: nowhere. STAGE: what to commit."""
    received: bytes | None = None
    """COMMAND, QUERY: the result or answer as it came; None: there is none."""
    is_rejected: bool = False
    """COMMAND, QUERY: the state machine refused it, ``value`` says why."""
    guids: tuple[str, ...] = ()
    """Writes: the names of its records; of an unknown outcome, of those that are in doubt."""
    error: str | None = None
    """The error code of anything that is not OK."""


def asked(call: Call) -> dict[str, Any]:
    """The fields of a call in a history, beside its action, key and value."""
    of_batches = {
        name: asdict(given)
        for name, given in (("batch", call.batch), ("wanted", call.wanted))
        if given is not None
    }
    lifetime = {"ttl_ms": call.ttl_ms} if call.ttl_ms else {}
    sent = {"sent": call.sent.hex()} if call.sent else {}
    return {
        **of_batches,
        **lifetime,
        **sent,
        "table": call.table,
        "level": call.level.value,
        "max_lag": call.max_lag,
        "max_staleness_ms": call.max_staleness_ms,
        "max_batches_behind": call.max_batches_behind,
        "at_least": [list(pair) for pair in call.at_least],
        "expected_seq": call.expected_seq,
        "guid": call.guid,
        "final": call.final,
        **call.note,
    }


def details_of(answer: Answer, now: int) -> dict[str, Any]:
    """The fields of an answer in a history, beside its outcome and value."""
    of_machine: dict[str, Any] = {"is_rejected": True} if answer.is_rejected else {}
    if answer.received is not None:
        of_machine["received"] = answer.received.hex()
    return {
        **of_machine,
        "seqs": list(answer.seqs),
        "positions": [list(pair) for pair in answer.positions],
        "conflict": answer.conflict,
        "term": answer.term,
        "served_by": answer.served_by,
        "lag": answer.lag,
        "leader_info_age_ms": answer.leader_info_age_ms,
        "staleness_ms": answer.staleness_ms,
        "batches_behind": answer.batches_behind,
        "guids": list(answer.guids),
        "error": answer.error,
        "told_at": now,
    }


def argument(call: Call) -> Any:
    """The value of a call's operation."""
    return [list(row) for row in call.rows] or list(call.keys) or call.value
