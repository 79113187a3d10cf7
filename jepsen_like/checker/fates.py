"""Fates of writes: the outcome that a leader reports is true in the committed log for good (N4).

Committed: the record stands at that seq, and was committed by then. Never applied: it stands in no
log, however late a copy of it came. Unknown because it was forgotten: so much was written since
that the leader may have forgotten it (S4.5). No clock, however it jumped, has a part in that.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from jepsen_like.checker.facts import Findings, is_answered, table_of
from jepsen_like.checker.verdict import Verdict
from jepsen_like.history import Operation
from jepsen_like.workload.base import Committed, Run
from raftstore.client.writes.write_outcomes import parse_guid
from raftstore.config import GUID_WINDOW, PRODUCER_SESSIONS_MAX
from raftstore.core.dedupe import OUTCOMES_MAX
from raftstore.engine.reads.write_outcomes import PENDING_REASON
from raftstore.errors import SchemaError
from raftstore.types import Guid, Outcome, channel_partition, guid_counter, guid_session

_KINDS: Final = (
    "applied", "not_there", "elsewhere", "not_yet", "condition", "forgotten_early", "contradicted",
    "no_fate",
)  # fmt: skip


def check_fates(run: Run) -> Verdict | None:
    """Judge every question that was answered; None when none was.

    Applied: called never applied, and in the log. Not there, elsewhere: called committed, and not
    in the log or at another seq. Not yet: committed only after it was reported. Condition: held and
    was lost, or the reverse. Forgotten early: called forgotten while the leader must know.
    Contradicted: without a log, the opposite of what the writer was answered.
    """
    asked = [operation for operation in run.history if operation.action == "fate"]
    answered = [operation for operation in asked if is_answered(operation)]
    return _Judge(run).verdict(answered, len(asked)) if answered else None


@dataclass(frozen=True, slots=True)
class _Log:
    """One committed log by guid, and how often its sessions wrote."""

    rows: Mapping[bytes, Committed]
    counters: Mapping[bytes, list[int]]


class _Judge:
    def __init__(self, run: Run) -> None:
        self._findings = Findings("fates", *_KINDS)
        self._logs = {place: _log_of(rows) for place, rows in run.commits.items()}
        self._outcomes = {
            guid: operation.outcome
            for operation in run.history
            if operation.returned is not None
            for guid in operation.details.get("guids") or ()
        }
        self._counts = dict.fromkeys(("committed", "not_applied", "unknown"), 0)

    def verdict(self, answered: Sequence[Operation], asked: int) -> Verdict:
        for question in answered:
            self._judge(question)
        stated = ", ".join(f"{count} {fate}" for fate, count in self._counts.items())
        figures = {"asked": asked, **{f"fate_{name}": n for name, n in self._counts.items()}}
        return self._findings.verdict(figures, f"every fate reported is true: {stated}", None)

    def _judge(self, question: Operation) -> None:
        answer = question.result if isinstance(question.result, Mapping) else {}
        fate = answer.get("fate")
        if fate not in self._counts:
            text = f"{question.process} got {answer!r:.60} for a fate"
            self._findings.add("no_fate", text, question)
            return
        self._counts[fate] += 1
        name = str(question.details.get("guid"))
        try:
            channel, guid = parse_guid(name)
        except SchemaError:
            return
        log = self._logs.get((table_of(question), channel_partition(channel)))
        if log is None or not log.rows:
            self._judge_by_writer(question, name, fate)
        elif fate == "committed":
            self._judge_committed(question, log.rows.get(guid), answer)
        elif fate == "not_applied" and guid in log.rows:
            text = f"{guid.hex()} was reported as never applied, it is at {log.rows[guid].seq}"
            self._findings.add("applied", text, question)
        elif fate == "unknown" and answer.get("reason") != PENDING_REASON:
            self._judge_forgotten(question, log, guid)

    def _judge_committed(
        self, question: Operation, row: Committed | None, answer: Mapping[str, Any]
    ) -> None:
        seq, condition = answer.get("seq"), answer.get("condition")
        if row is None:
            text = f"a write was reported as committed at {seq} and is in no log"
            self._findings.add("not_there", text, question)
            return
        if seq != row.seq:
            text = f"{row.guid.hex()} was reported at {seq}, it is at {row.seq}"
            self._findings.add("elsewhere", text, question)
        if row.committed_at is not None and row.committed_at > (question.returned or 0):
            text = f"{row.guid.hex()} was reported as committed too early"
            self._findings.add("not_yet", text, question)
        if condition == ("held" if row.is_conflict else "conflict"):
            text = (
                f"the condition of {row.guid.hex()} was reported as {condition}, it was the reverse"
            )
            self._findings.add("condition", text, question)

    def _judge_forgotten(self, question: Operation, log: _Log, guid: Guid) -> None:
        later = [
            counter
            for counter in log.counters.get(guid_session(guid), ())
            if counter > guid_counter(guid)
        ]
        is_long_ago = (
            len(later) >= GUID_WINDOW
            or len(log.counters) > PRODUCER_SESSIONS_MAX
            or len(log.rows) > OUTCOMES_MAX
        )
        if not is_long_ago:
            text = (
                f"{guid.hex()} was reported as forgotten, {len(later)} writes of its session later"
            )
            self._findings.add("forgotten_early", text, question)

    def _judge_by_writer(self, question: Operation, name: str, fate: str) -> None:
        stated = self._outcomes.get(name)
        opposite = {Outcome.OK: "not_applied", Outcome.NOT_APPLIED: "committed"}
        if stated is not None and fate == opposite.get(stated):
            text = f"{name} is {fate}, its writer got {stated.name}"
            self._findings.add("contradicted", text, question)


def _log_of(rows: Sequence[Committed]) -> _Log:
    counters: dict[bytes, list[int]] = {}
    by_guid: dict[bytes, Committed] = {}
    for row in rows:
        if len(row.guid) and row.guid not in by_guid:
            counters.setdefault(guid_session(Guid(row.guid)), []).append(
                guid_counter(Guid(row.guid))
            )
        by_guid[row.guid] = row
    return _Log(by_guid, counters)
