"""Sets: an element that was acknowledged, or seen, is in every strong read that began later."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterator, Sequence

from jepsen_like.checker.facts import Findings, elements, is_answered, shown, token
from jepsen_like.checker.verdict import Verdict
from jepsen_like.history import Operation
from raftstore.types import Outcome

_KINDS = ("lost", "phantom", "duplicated", "stale", "unreadable")


def check_set(history: Sequence[Operation]) -> Verdict:
    """Judge ``add`` of elements and answered strong ``read`` operations listing them.

    The caller leaves out reads of weaker levels. An element is certain from its acknowledgement
    on, and from the answer of the first read that listed it, even if its add was never
    acknowledged. Lost: a certain element absent from the last read. Stale: absent from an earlier
    read only. Never read: acknowledged after the last read began. An add may be retried with the
    same value; it is still one element. An answer of None lists nothing, as an absent row does.
    """
    return _Judge(history).verdict()


class _Judge:
    """One pass over the reads in the order of their invocation."""

    def __init__(self, history: Sequence[Operation]) -> None:
        adds = [op for op in history if op.action == "add"]
        self._adds: dict[Hashable, Operation] = {}
        self._begun: dict[Hashable, int] = {}
        self._tried: dict[Hashable, Operation] = {}
        for add in adds:
            value = token(add.value)
            self._tried.setdefault(value, add)
            if add.outcome is not Outcome.NOT_APPLIED:
                self._adds.setdefault(value, add)
                self._begun[value] = min(add.invoked, self._begun.get(value, add.invoked))
        acked: dict[Hashable, int] = {}
        for add in adds:
            if is_answered(add):
                value, returned = token(add.value), add.returned or 0
                if returned < acked.get(value, returned + 1):
                    acked[value] = returned
                    self._adds[value] = add
        self._acked = sorted(acked.items(), key=lambda item: item[1])
        reads = [op for op in history if op.action == "read" and is_answered(op)]
        self._reads = sorted(reads, key=lambda op: op.invoked)
        self._known: set[Hashable] = set()
        self._seen_by: dict[Hashable, Operation] = {}
        self._findings = Findings("set", *_KINDS)

    def verdict(self) -> Verdict:
        reads, acked, findings = self._reads, self._acked, self._findings
        cursor = 0
        absent: set[Hashable] = set()
        missed: dict[Hashable, Operation] = {}
        for read, found, earlier in self._with_earlier():
            while cursor < len(acked) and acked[cursor][1] < read.invoked:
                self._known.add(acked[cursor][0])
                cursor += 1
            self._see(earlier)
            if found is None:
                text = f"{read.process} was answered {shown(read.result)}, which lists nothing"
                findings.add("unreadable", text, read)
                continue
            absent = self._known - found.keys()
            for value in absent:
                missed.setdefault(value, read)
            self._look_at(read, found)
        for value, read in missed.items():
            kind = "lost" if value in absent else "stale"
            text = f"element {shown(value)} is missing from a read begun after it was certain"
            findings.add(kind, text, read, self._adds.get(value), self._seen_by.get(value))
        unread = len(acked) - cursor
        doubt = None if reads and not unread else f"{unread} elements have no read after them"
        figures = {"reads": len(reads), "acknowledged": len(acked), "never_read": unread}
        sound = f"{len(acked)} acknowledged elements are in all {len(reads)} later reads"
        return findings.verdict(figures, sound, doubt)

    def _with_earlier(
        self,
    ) -> Iterator[
        tuple[Operation, Counter[Hashable] | None, list[tuple[Operation, set[Hashable]]]]
    ]:
        """Each read, what it listed how often, and the reads answered before it began."""
        by_return = sorted(
            range(len(self._reads)), key=lambda number: self._reads[number].returned or 0
        )
        listed: dict[int, set[Hashable]] = {}
        cursor = 0
        for number, read in enumerate(self._reads):
            earlier = []
            while (self._reads[by_return[cursor]].returned or 0) < read.invoked:
                before = by_return[cursor]
                earlier.append((self._reads[before], listed.pop(before)))
                cursor += 1
            values = elements(read.result)
            found = None if values is None else Counter(map(token, values))
            listed[number] = set(found or ())
            yield read, found, earlier

    def _see(self, earlier: list[tuple[Operation, set[Hashable]]]) -> None:
        for read, found in earlier:
            for value in found - self._known:
                if value in self._begun:
                    self._known.add(value)
                    self._seen_by[value] = read

    def _look_at(self, read: Operation, found: Counter[Hashable]) -> None:
        """Elements that cannot be there, or are there twice."""
        returned = read.returned or 0
        for value, count in found.items():
            if count > 1:
                text = f"element {shown(value)} is listed {count} times in one answer"
                self._findings.add("duplicated", text, read, self._adds.get(value))
            if value not in self._known and self._begun.get(value, returned + 1) > returned:
                text = f"element {shown(value)} is read, but no add can have put it there"
                self._findings.add("phantom", text, read, self._tried.get(value))
