"""Transactions: what lists and registers share when their histories are searched for cycles.

An operation ``txn`` has steps ``[[what, key, value], ...]`` as its value and, once answered, the
same steps with the reads filled in as its result. ``r`` reads; ``append`` and ``w`` write.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

from jepsen_like.checker.cycles import RT, RW, WR, WW, Graph, Step, find_cycle
from jepsen_like.checker.facts import Findings, elements, is_answered, is_conflict, shown, token
from jepsen_like.history import Operation
from raftstore.types import Outcome

CYCLES: Final = tuple(
    name + suffix for suffix in ("", "-realtime") for name in ("G0", "G1c", "G-single", "G2")
)
"""Kinds of cycles as `find_cycle` names them, grave ones first."""
_VERBS: Final = {
    WW: "is overwritten by", WR: "is read by", RW: "missed what was written by", RT: "ended before",
}  # fmt: skip

TxnStep = tuple[str, Hashable, Any]
"""(what, key as `token` makes it, value)."""


@dataclass(frozen=True, slots=True)
class Txn:
    """One transaction that may have taken effect, or was refused."""

    number: int
    operation: Operation
    steps: tuple[TxnStep, ...]
    """With the reads filled in if it was answered; else only its writes."""
    committed: bool
    """Certainly: it was answered OK."""
    aborted: bool
    """Certainly not. Neither: nobody knows."""


def transactions(history: Sequence[Operation], write: str, findings: Findings) -> list[Txn]:
    """All of them in order of invocation; an answer that is none of its question is a finding."""
    asked = [operation for operation in history if operation.action == "txn"]
    found = []
    for number, operation in enumerate(sorted(asked, key=lambda one: one.invoked)):
        aborted = operation.outcome is Outcome.NOT_APPLIED or is_conflict(operation)
        committed = is_answered(operation) and not aborted
        steps = _answered(operation.value, operation.result) if committed else None
        if committed and steps is None:
            text = f"{operation.process} was answered {shown(operation.result)}"
            findings.add("unreadable", f"{text}, which answers other steps", operation)
        if steps is None:
            steps = [step for step in _steps(operation.value) if step[0] == write]
        found.append(Txn(number, operation, tuple(steps), committed, aborted))
    return found


def _steps(reported: Any) -> list[TxnStep]:
    """Elements of an answer that can be read as steps."""
    return [
        (step[0], token(step[1]), step[2])
        for step in elements(reported) or ()
        if isinstance(step, list | tuple) and len(step) == 3
    ]


def _answered(asked: Any, reported: Any) -> list[TxnStep] | None:
    """The steps of the answer; None unless they are those asked, but for what reads found."""
    if not isinstance(asked, list | tuple) or not isinstance(reported, list | tuple):
        return None
    if len(asked) != len(reported):
        return None
    steps: list[TxnStep] = []
    for question, step in zip(asked, reported, strict=True):
        if not isinstance(question, list | tuple) or not isinstance(step, list | tuple):
            return None
        if len(question) != 3 or len(step) != 3:
            return None
        what, key, value = step
        if what != question[0] or key != question[1] or (what != "r" and value != question[2]):
            return None
        steps.append((what, token(key), value))
    return steps


def add_time(graph: Graph, txns: Sequence[Txn]) -> None:
    """Add the order of time: a transaction that was answered before another began comes first.

    Moments are a chain of waypoints; one stands for all answers between two invocations.
    """
    begun = [(txn.operation.invoked, 0, txn.number) for txn in txns if not txn.aborted]
    ended = [(txn.operation.returned or 0, 1, txn.number) for txn in txns if txn.committed]
    last: int | None = None
    is_open = False
    # At one instant invocations come first: such operations are concurrent.
    for _, is_end, number in sorted([*begun, *ended]):
        if is_end:
            if not is_open:
                moment = graph.waypoint()
                if last is not None:
                    graph.add(RT, last, moment)
                last, is_open = moment, True
            assert last is not None
            graph.add(RT, number, last)
        else:
            is_open = False
            if last is not None:
                graph.add(RT, last, number)


def judge_cycles(graph: Graph, txns: Sequence[Txn], findings: Findings) -> None:
    """Add the gravest cycle to the findings, if there is one."""
    found = find_cycle(graph)
    if found is None:
        return
    name, steps = found
    operations = [txns[step.source].operation for step in steps]
    text = "; ".join(_sentence(step, txns[step.source], txns[step.target]) for step in steps)
    findings.add(name, f"{name}: {text}", operations[0], *operations[1:])


def _sentence(step: Step, source: Txn, target: Txn) -> str:
    keys: list[Any] = []
    if step.kind != RT:
        wanted = {WW: (False, False), WR: (False, True), RW: (True, False)}[step.kind]
        touched = [
            [key for what, key, _ in txn.steps if (what == "r") is is_read]
            for txn, is_read in zip((source, target), wanted, strict=True)
        ]
        keys = [key for key in dict.fromkeys(touched[0]) if key in touched[1]]
    on = f" on {' or '.join(map(shown, keys))}" if keys else ""
    return f"{_name(source)} {_VERBS[step.kind]} {_name(target)}{on}"


def _name(txn: Txn) -> str:
    return f"T{txn.number} of {txn.operation.process}"


class Writers:
    """The transaction that wrote each value of each key; values are unique, or their writer is not
    known.
    """

    def __init__(self, txns: Sequence[Txn], write: str) -> None:
        self._of: dict[tuple[Hashable, Hashable], list[Txn]] = {}
        self._final: dict[tuple[int, Hashable], Hashable] = {}
        for txn in txns:
            for what, key, value in txn.steps:
                if what == write:
                    self._of.setdefault((key, token(value)), []).append(txn)
                    self._final[txn.number, key] = token(value)

    def of(self, key: Hashable, value: Hashable) -> Txn | None:
        """The one transaction that wrote it and may have taken effect; None: not known."""
        tried = [txn for txn in self._of.get((key, value), ()) if not txn.aborted]
        return tried[0] if len(tried) == 1 else None

    def refused(self, key: Hashable, value: Hashable) -> Txn | None:
        """Somebody wrote it, and everybody who did was refused."""
        tried = self._of.get((key, value), ())
        return tried[0] if tried and all(txn.aborted for txn in tried) else None

    def is_known(self, key: Hashable, value: Hashable) -> bool:
        """Somebody tried to write it."""
        return (key, value) in self._of

    def is_final(self, txn: Txn, key: Hashable, value: Hashable) -> bool:
        """The value is the last that the transaction wrote to the key."""
        return self._final.get((txn.number, key)) == value

    def all(self) -> Iterator[tuple[Hashable, Hashable, Txn]]:
        """(key, value, writer) where the writer is known."""
        for key, value in self._of:
            txn = self.of(key, value)
            if txn is not None:
                yield key, value, txn
