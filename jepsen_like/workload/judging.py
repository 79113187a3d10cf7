"""Judgements that several workloads share."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from jepsen_like.checker.audit import check_audit
from jepsen_like.checker.facts import READS, is_answered, level_of, positions_of, table_of
from jepsen_like.checker.fates import check_fates
from jepsen_like.checker.lost_writes import check_lost_writes
from jepsen_like.checker.sessions import check_sessions
from jepsen_like.checker.staleness import check_staleness
from jepsen_like.checker.stream import check_stream
from jepsen_like.checker.verdict import Validity, Verdict
from jepsen_like.history import Operation
from jepsen_like.workload.base import Run
from raftstore.types import Level, Outcome

Finding = tuple[str, Operation]
"""What is wrong, and the operation that shows it."""


def succeeded(history: Iterable[Operation], *actions: str) -> list[Operation]:
    """Operations of these actions that were answered OK and, if conditional, took effect."""
    return [
        operation
        for operation in history
        if operation.action in actions
        and operation.outcome is Outcome.OK
        and not operation.details.get("conflict")
    ]


def verdict_of(checker: str, findings: Sequence[Finding], judged: int, what: str) -> Verdict:
    """INVALID with the first finding, UNDECIDED when nothing could be judged, VALID otherwise."""
    figures = {"judged": judged, "findings": len(findings)}
    if findings:
        text, culprit = findings[0]
        return Verdict(checker, Validity.INVALID, text, (culprit,), culprit, figures)
    if not judged:
        summary = f"no {what} was answered, so nothing was shown"
        return Verdict(checker, Validity.UNDECIDED, summary, figures=figures)
    return Verdict(checker, Validity.VALID, f"{judged} {what} are right", figures=figures)


def as_register(history: Iterable[Operation]) -> list[Operation]:
    """Puts, conditional puts and linearizable gets in the words of a register's model.

    A conditional put compares seqs; as every written value is unique, that is the same as
    comparing with the value that was read with the seq.
    """
    reported: list[Operation] = []
    for operation in history:
        if operation.action == "put":
            reported.append(replace(operation, action="write"))
        elif operation.action == "put_if":
            change = [operation.details.get("from"), operation.value]
            reported.append(replace(operation, action="cas", value=change))
        elif operation.action == "get":
            if operation.details.get("level") == Level.LINEARIZABLE.value:
                reported.append(replace(operation, action="read"))
    return reported


def judge_rows(run: Run, tables: Iterable[str]) -> list[Verdict]:
    """The verdicts on the promises for every table, whatever is done with it.

    No acknowledged write is lost, the committed log is one order, reads are of the rows and the
    positions they give, and what promises a session keeps it. Reads that give no position, as
    scans over connections do not, leave the judgement of positions out; fates are judged where
    somebody asked and was answered.
    """
    verdicts = [check_lost_writes(run.history)]
    for table in tables:
        verdicts.append(_named(check_stream(run, table), table))
        if any(_is_placed(operation, table) for operation in run.history):
            verdicts.append(_named(check_staleness(run, table), table))
        audited = check_audit(run, table)
        if audited is not None:
            verdicts.append(_named(audited, table))
    in_session = [operation for operation in run.history if _promises_a_session(operation)]
    verdicts.append(check_sessions(in_session))
    fates = check_fates(run)
    return verdicts if fates is None else [*verdicts, fates]


def _named(verdict: Verdict, table: str) -> Verdict:
    return replace(verdict, checker=f"{verdict.checker} {table}")


def _is_placed(operation: Operation, table: str) -> bool:
    return (
        operation.action in READS
        and table_of(operation) == table
        and is_answered(operation)
        and bool(positions_of(operation))
    )


def _promises_a_session(operation: Operation) -> bool:
    """Every write, and reads that ask for the newest, or for a position."""
    return (
        operation.action not in READS
        or level_of(operation) == Level.LINEARIZABLE.value
        or bool(positions_of(operation, "at_least"))
    )
