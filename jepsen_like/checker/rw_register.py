"""Registers that transactions write and read: values are unique, their order must be inferred.

What is known of the order of a key's values: nothing comes before the first one; a transaction
that read a value wrote its own after it; and, where the order of time counts, a write that was
answered before another began comes first.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Hashable, Sequence
from dataclasses import replace
from typing import Final

from jepsen_like.checker.cycles import RW, WR, WW, Graph, components
from jepsen_like.checker.facts import Findings, shown, token
from jepsen_like.checker.txn import CYCLES, Txn, Writers, add_time, judge_cycles, transactions
from jepsen_like.checker.verdict import Verdict
from jepsen_like.history import Operation

_KINDS: Final = (
    "unreadable", "invented", "G1a", "G1b", "internal", "cyclic-versions", *CYCLES,
)  # fmt: skip
_FIRST: Final = None
"""The value before any write."""
_Version = tuple[Hashable, Hashable]
"""(key, value)."""


def check_rw_register(
    history: Sequence[Operation], *, realtime: bool = True, is_whole: bool = True
) -> Verdict:
    """Judge ``txn`` operations of ``r`` and ``w``.

    With ``realtime``: strictly serializable. Without: serializable. Not ``is_whole``: somebody
    else may have written too, so that a value without a writer, or an early one, proves nothing.
    """
    return _Judge(history, realtime=realtime, is_whole=is_whole).verdict()


def puts_and_gets(history: Sequence[Operation]) -> list[Operation]:
    """Gets, puts and conditional puts as transactions; those read ``details["from"]`` and write."""
    reported = []
    for operation in history:
        key = operation.key
        if operation.action == "get":
            asked, answer = [["r", key, None]], [["r", key, operation.result]]
        elif operation.action == "put":
            asked = answer = [["w", key, operation.value]]
        elif operation.action == "put_if" and "from" in operation.details:
            asked = [["r", key, None], ["w", key, operation.value]]
            answer = [["r", key, operation.details["from"]], ["w", key, operation.value]]
        else:
            continue
        reported.append(replace(operation, action="txn", value=asked, result=answer))
    return reported


class _Judge:
    def __init__(self, history: Sequence[Operation], *, realtime: bool, is_whole: bool) -> None:
        self._findings = Findings("rw_register", *_KINDS)
        self._realtime = realtime
        self._is_whole = is_whole
        self._txns = transactions(history, "w", self._findings)
        self._writers = Writers(self._txns, "w")
        self._graph = Graph(len(self._txns))
        self._readers: dict[_Version, list[Txn]] = {}
        self._next: dict[Hashable, dict[Hashable, dict[Hashable, None]]] = {}
        """key -> value -> values known to come later."""
        self._written: dict[Hashable, dict[Hashable, Txn]] = {}

    def verdict(self) -> Verdict:
        for txn in self._txns:
            if txn.committed:
                self._look_inside(txn)
        for (key, value), readers in self._readers.items():
            self._judge_value(key, value, readers)
        for key, value, txn in self._writers.all():
            # A write of unknown outcome counts once somebody read it.
            if txn.committed or (key, value) in self._readers:
                self._written.setdefault(key, {})[value] = txn
        for key in dict.fromkeys([*self._written, *(key for key, _ in self._readers)]):
            self._link(key)
        if self._realtime:
            add_time(self._graph, self._txns)
        judge_cycles(self._graph, self._txns, self._findings)
        reads = sum(map(len, self._readers.values()))
        keys = len({key for key, _ in self._readers})
        figures = {"transactions": len(self._txns), "keys": keys, "reads": reads}
        doubt = None if reads else "no register was read, so no order was shown"
        return self._findings.verdict(figures, f"{reads} reads of {keys} registers fit", doubt)

    def _look_inside(self, txn: Txn) -> None:
        """A transaction reads what it wrote last, or what it read before."""
        known: dict[Hashable, Hashable] = {}
        for what, key, value in txn.steps:
            found = token(value)
            if what == "w":
                if key in known:
                    self._order(key, known[key], found)
                known[key] = found
            elif what == "r":
                if key not in known:
                    self._readers.setdefault((key, found), []).append(txn)
                    known[key] = found
                elif known[key] != found:
                    text = f"{txn.operation.process} read {shown(value)} against its own steps"
                    self._findings.add("internal", text, txn.operation)

    def _order(self, key: Hashable, before: Hashable, after: Hashable) -> None:
        self._next.setdefault(key, {}).setdefault(before, {})[after] = None

    def _judge_value(self, key: Hashable, value: Hashable, readers: list[Txn]) -> None:
        if value is _FIRST:
            return
        reader = readers[0].operation
        refused, writer = self._writers.refused(key, value), self._writers.of(key, value)
        if refused is not None:
            text = f"{shown(value)}, whose write was refused, was read from {key!r}"
            self._findings.add("G1a", text, reader, refused.operation)
        elif not self._writers.is_known(key, value):
            if self._is_whole:
                text = f"{shown(value)}, which nobody wrote, was read from {key!r}"
                self._findings.add("invented", text, reader)
        elif writer is not None and not self._writers.is_final(writer, key, value):
            for other in readers:
                if other is not writer:
                    text = f"{other.operation.process} read {key!r} in the middle of a transaction"
                    self._findings.add("G1b", text, other.operation, writer.operation)

    def _link(self, key: Hashable) -> None:
        """Edges of one register."""
        written = self._written.get(key, {})
        if self._realtime:
            self._order_by_time(key, written)
        order = self._next.get(key, {})
        if self._is_cyclic(key, written, order):
            return
        for value, writer in written.items():
            for reader in self._readers.get((key, value), ()):
                self._graph.add(WR, writer.number, reader.number)
        first = self._readers.get((key, _FIRST), ())
        if self._is_whole and first:
            writers = [writer.number for writer in written.values()]
            self._graph.add_many(RW, [reader.number for reader in first], writers)
        for before, later in order.items():
            over = [written[value].number for value in later if value in written]
            if before in written:
                self._graph.add_many(WW, [written[before].number], over)
            readers = [reader.number for reader in self._readers.get((key, before), ())]
            self._graph.add_many(RW, readers, over)

    def _order_by_time(self, key: Hashable, written: dict[Hashable, Txn]) -> None:
        """Each value comes before the writes that began next after its own was answered."""
        begun = sorted(written, key=lambda value: written[value].operation.invoked)
        moments = [written[value].operation.invoked for value in begun]
        for value, writer in written.items():
            returned = writer.operation.returned
            if returned is None or not writer.committed:
                continue
            earliest: int | None = None
            for at in range(bisect_right(moments, returned), len(begun)):
                if earliest is not None and moments[at] > earliest:
                    break
                self._order(key, value, begun[at])
                following = written[begun[at]]
                if following.committed and following.operation.returned is not None:
                    ended = following.operation.returned
                    earliest = ended if earliest is None else min(earliest, ended)

    def _is_cyclic(
        self,
        key: Hashable,
        written: dict[Hashable, Txn],
        order: dict[Hashable, dict[Hashable, None]],
    ) -> bool:
        """Values that come before themselves."""
        values = dict.fromkeys([*order, *(value for later in order.values() for value in later)])
        numbers = {value: number for number, value in enumerate(values)}
        edges: list[list[int]] = [[] for _ in numbers]
        for before, later in order.items():
            edges[numbers[before]] = [numbers[value] << 2 for value in later]
        names = list(numbers)
        for group in components(range(len(edges)), edges):
            is_itself = group[0] << 2 in edges[group[0]]
            if len(group) > 1 or is_itself:
                reported = [names[number] for number in sorted(group)]
                writers = [written[value].operation for value in reported if value in written]
                text = f"the values {shown(reported)} of {key!r} each come before the others"
                culprit = writers[0] if writers else None
                self._findings.add("cyclic-versions", text, culprit, *writers[1:])
                return True
        return False
