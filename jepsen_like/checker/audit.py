"""The live audit held to recorded histories: what nodes and clients judge in production (N7).

The judge is raftstore's own (``raftstore.audit``), so this finds nothing that the other checkers
do not; it shows that an audit of every key raises no false alarm under the faults of a run.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from jepsen_like.checker.facts import (
    Findings,
    is_answered,
    is_conflict,
    level_of,
    positions_of,
    table_of,
    token,
)
from jepsen_like.checker.staleness import RATE_MIN, SLOW_CLOCKS
from jepsen_like.checker.verdict import Verdict
from jepsen_like.history import Operation
from jepsen_like.workload.base import Run
from raftstore.audit.finding import FindingKind
from raftstore.audit.judge import Judge
from raftstore.audit.observation import NO_ROW, Action, Observation, hash_of_key, hash_of_row

KEYS_MAX = 1_000_000
_ACTIONS = {"get": Action.GET, "put": Action.PUT, "put_if": Action.PUT, "delete": Action.DELETE}
_MS = 1_000_000


def check_audit(run: Run, table: str) -> Verdict | None:
    """Have an audit of all keys judge the answered gets, puts and deletes of one table.

    As in production it sees each operation when it was answered. Clocks of nodes may be as slow as
    the faults of the run made them. None when nothing states a position that it could judge.
    """
    struck = [SLOW_CLOCKS.get(str(fault.get("kind")), RATE_MIN) for fault in run.faults]
    judge = Judge(keys_max=KEYS_MAX, clocks_differ=1 / min([RATE_MIN, *struck]) - 1)
    findings = Findings("audit", *FindingKind)
    answered = [op for op in run.history if table_of(op) == table and is_answered(op)]
    for operation in sorted(answered, key=lambda each: each.returned or 0):
        for partition, seen in _observations(operation):
            for finding in judge.observe(partition, f"{table}/{partition}", seen):
                findings.add(finding.kind, finding.text, operation)
    if not judge.observed:
        return None
    sound = f"an audit of all keys finds nothing wrong with {judge.observed} operations"
    return findings.verdict({"observed": judge.observed}, sound, None)


def _observations(operation: Operation) -> Iterator[tuple[int, Observation]]:
    """Observations that an audit would have made; none of an answer without position and seqs."""
    action, places = _ACTIONS.get(operation.action), positions_of(operation)
    if action is None or len(places) != 1 or is_conflict(operation):
        return
    ((partition, seq),) = places.items()
    if action is not Action.GET:
        is_delete = action is Action.DELETE
        row = NO_ROW if is_delete else _hash(operation.value)
        yield partition, _seen(operation, action, seq, 0 if is_delete else seq, row)
        return
    versions = operation.details.get("seqs")
    if isinstance(versions, list) and len(versions) == 1 and isinstance(versions[0], int):
        row = NO_ROW if operation.result is None else _hash(operation.result)
        yield partition, _seen(operation, action, seq, versions[0], row)


def _seen(operation: Operation, action: Action, seq: int, version: int, row: bytes) -> Observation:
    details = operation.details
    return Observation(
        action,
        hash_of_key(repr(token(operation.key)).encode()),
        operation.invoked / _MS,
        (operation.returned or 0) / _MS,
        seq,
        version,
        row,
        str(details.get("served_by", "")),
        _number(details.get("term")) or 0,
        level_of(operation),
        _number(details.get("staleness_ms")),
        _number(details.get("lag")),
        max(positions_of(operation, "at_least").values(), default=0),
        _number(details.get("max_staleness_ms")),
        _number(details.get("max_lag")),
    )


def _hash(value: Any) -> bytes:
    return hash_of_row(repr(token(value)).encode())


def _number(value: Any) -> int | None:
    return value if isinstance(value, int) else None
