"""Lists that transactions append to and read: a read shows the order of all appends before it.

Elements are unique per key, so a read shows the versions of its list one by one. From them follow
the edges: write after write (ww), read of a write (wr), and write after a read (rw).
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import replace
from typing import Any

from jepsen_like.checker.cycles import RW, WR, WW, Graph
from jepsen_like.checker.facts import Findings, elements, shown, token
from jepsen_like.checker.txn import CYCLES, Txn, Writers, add_time, judge_cycles, transactions
from jepsen_like.checker.verdict import Verdict
from jepsen_like.history import Operation

_KINDS = (
    "unreadable", "invented", "duplicate", "G1a", "G1b", "internal", "incompatible", "lost",
    *CYCLES,
)  # fmt: skip
_Read = tuple[Txn, list[Any]]


def check_list_append(history: Sequence[Operation], *, realtime: bool = True) -> Verdict:
    """Judge ``txn`` operations of ``r`` and ``append``; without ``realtime`` only their order.

    With ``realtime``: strictly serializable. Without: serializable. An answer of None to a read
    is an empty list. Lost: an acknowledged append that a read begun later, and every other, lacks.
    """
    return _Judge(history, realtime=realtime).verdict()


def appends_and_gets(history: Sequence[Operation]) -> list[Operation]:
    """Gets, and conditional puts that made a list one element longer, as transactions.

    The put's details name the element as ``append``. A put is a read of what it was made from,
    and an append, in one step.
    """
    reported = []
    for operation in history:
        if operation.action == "get":
            asked, answer = [["r", operation.key, None]], [["r", operation.key, operation.result]]
            reported.append(replace(operation, action="txn", value=asked, result=answer))
        elif operation.action == "put_if" and "append" in operation.details:
            added = ["append", operation.key, operation.details["append"]]
            base = (elements(operation.value) or [])[:-1]
            reported.append(
                replace(
                    operation,
                    action="txn",
                    value=[["r", operation.key, None], added],
                    result=[["r", operation.key, base], added],
                )
            )
    return reported


class _Judge:
    def __init__(self, history: Sequence[Operation], *, realtime: bool) -> None:
        self._findings = Findings("list_append", *_KINDS)
        self._realtime = realtime
        self._txns = transactions(history, "append", self._findings)
        self._writers = Writers(self._txns, "append")
        self._graph = Graph(len(self._txns))
        self._reads: dict[Hashable, list[_Read]] = {}
        self._unread: dict[Hashable, dict[Hashable, Txn]] = {}

    def verdict(self) -> Verdict:
        for txn in self._txns:
            if txn.committed:
                self._look_inside(txn)
        for key, value, txn in self._writers.all():
            if txn.committed:
                self._unread.setdefault(key, {})[value] = txn
        for key, reads in self._reads.items():
            self._judge_key(key, reads)
        if self._realtime:
            add_time(self._graph, self._txns)
        judge_cycles(self._graph, self._txns, self._findings)
        reads_judged = sum(map(len, self._reads.values()))
        figures = {
            "transactions": len(self._txns), "keys": len(self._reads), "reads": reads_judged,
        }  # fmt: skip
        sound = f"{reads_judged} reads of {len(self._reads)} lists fit one order of appends"
        doubt = None if reads_judged else "no list was read, so no order was shown"
        return self._findings.verdict(figures, sound, doubt)

    def _look_inside(self, txn: Txn) -> None:
        """A transaction sees its own appends at the end of what it read before."""
        known: dict[Hashable, list[Any]] = {}
        own: dict[Hashable, list[Any]] = {}
        every: dict[Hashable, list[Any]] = {}
        for what, key, value in txn.steps:
            if what == "append":
                every.setdefault(key, []).append(value)
        for what, key, value in txn.steps:
            if what == "append":
                own.setdefault(key, []).append(value)
            elif what == "r":
                found = elements(value)
                if found is None:
                    text = f"{txn.operation.process} read {shown(value)}, which is no list"
                    self._findings.add("unreadable", text, txn.operation)
                    continue
                mine = own.get(key, [])
                outside = found[: len(found) - len(mine)]
                is_early = any(value in outside for value in every.get(key, ()))
                if is_early or found[len(outside) :] != mine or known.get(key, outside) != outside:
                    text = f"{txn.operation.process} read {shown(found)} against its own steps"
                    self._findings.add("internal", text, txn.operation)
                elif key not in known:
                    known[key] = outside
                    self._reads.setdefault(key, []).append((txn, outside))

    def _judge_key(self, key: Hashable, reads: list[_Read]) -> None:
        reader, longest = max(reads, key=lambda read: len(read[1]))
        order = [token(element) for element in longest]
        self._judge_elements(key, reader, order)
        by_length: dict[int, list[Txn]] = {}
        for txn, found in reads:
            if found != longest[: len(found)]:
                text = f"{key!r} was read as {shown(found)} and as {shown(longest)}"
                self._findings.add("incompatible", text, txn.operation, reader.operation)
                self._judge_elements(key, txn, [token(element) for element in found])
            else:
                by_length.setdefault(len(found), []).append(txn)
        self._intermediate(key, order, by_length)
        self._link(key, order, by_length)

    def _judge_elements(self, key: Hashable, reader: Txn, found: list[Hashable]) -> None:
        if len(set(found)) < len(found):
            text = f"{reader.operation.process} read an element of {key!r} twice"
            self._findings.add("duplicate", text, reader.operation)
        for value in found:
            refused = self._writers.refused(key, value)
            if refused is not None:
                text = f"{shown(value)}, whose append was refused, was read in {key!r}"
                self._findings.add("G1a", text, reader.operation, refused.operation)
            elif not self._writers.is_known(key, value):
                text = f"{shown(value)}, which nobody appended, was read in {key!r}"
                self._findings.add("invented", text, reader.operation)

    def _intermediate(
        self, key: Hashable, order: list[Hashable], by_length: dict[int, list[Txn]]
    ) -> None:
        for length, readers in by_length.items():
            last = order[length - 1] if length else None
            writer = self._writers.of(key, last) if length else None
            if writer is None or self._writers.is_final(writer, key, last):
                continue
            for reader in readers:
                if reader is not writer:
                    text = f"{reader.operation.process} read {key!r} in the middle of a transaction"
                    self._findings.add("G1b", text, reader.operation, writer.operation)

    def _link(self, key: Hashable, order: list[Hashable], by_length: dict[int, list[Txn]]) -> None:
        """Edges of one list; appends that nobody read come after the longest read."""
        unread = self._unread.get(key, {})
        writers: list[Txn | None] = []
        for value in order:
            writers.append(self._writers.of(key, value))
            unread.pop(value, None)
        after = [txn.number for txn in unread.values()]
        self._lost(key, unread, by_length)
        for at, writer in enumerate(writers):
            if writer is None:
                continue
            following = writers[at + 1] if at + 1 < len(writers) else None
            if following is not None:
                self._graph.add(WW, writer.number, following.number)
            elif at + 1 == len(writers):
                self._graph.add_many(WW, [writer.number], after)
            for reader in by_length.get(at + 1, ()):
                self._graph.add(WR, writer.number, reader.number)
        for length, readers in by_length.items():
            over = writers[length] if length < len(order) else None
            numbers = [reader.number for reader in readers]
            if over is not None:
                self._graph.add_many(RW, numbers, [over.number])
            elif length == len(order):
                self._graph.add_many(RW, numbers, after)

    def _lost(
        self, key: Hashable, unread: dict[Hashable, Txn], by_length: dict[int, list[Txn]]
    ) -> None:
        if not unread or not self._realtime:
            return
        readers = [reader.operation for some in by_length.values() for reader in some]
        last = max(readers, key=lambda operation: operation.invoked)
        for value, txn in unread.items():
            if (txn.operation.returned or 0) < last.invoked:
                text = f"{shown(value)}, appended to {key!r} and acknowledged, is in no read of it"
                self._findings.add("lost", text, txn.operation, last)
