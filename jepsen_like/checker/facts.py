"""Facts of an operation, read with care: a broken store may answer anything at all."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Mapping
from typing import Any, Final

from jepsen_like.checker.verdict import Validity, Verdict
from jepsen_like.history import Operation
from raftstore.types import Level, Outcome

WRITES: Final = ("put", "put_if", "put_many", "delete")
READS: Final = ("get", "get_many", "scan")

_PLAIN: Final = frozenset({str, int, bytes, bool, type(None)})

Row = tuple[Any, Any]
"""(key, value) as `token` makes them; the value None stands for a deleted or absent row."""


def token(value: Any) -> Hashable:
    """The value itself if it can be a key of a dict, else something equal for equal values."""
    if value.__class__ in _PLAIN:
        return value  # type: ignore[no-any-return]
    if isinstance(value, list | tuple):
        return ("list", *map(token, value))
    if isinstance(value, Mapping):
        pairs = ((str(key), token(inner)) for key, inner in value.items())
        return ("map", *sorted(pairs, key=repr))
    if isinstance(value, set | frozenset):
        return ("list", *sorted(map(token, value), key=repr))
    if isinstance(value, float) and value == value:  # noqa: PLR0124  (not-a-number is not equal)
        return value
    return (type(value).__name__, repr(value))


def elements(answer: Any) -> list[Any] | None:
    """Elements that an answer lists: an absent row lists nothing, and None is no list at all."""
    if answer is None:
        return []
    if isinstance(answer, list):
        return answer
    if isinstance(answer, str | bytes) or not isinstance(answer, Iterable):
        return None
    return list(answer)


def is_answered(operation: Operation) -> bool:
    """Whether it succeeded, and its client got the answer."""
    return operation.outcome is Outcome.OK and operation.returned is not None


def is_conflict(operation: Operation) -> bool:
    """A conditional write that was answered, and changed nothing."""
    return bool(operation.details.get("conflict"))


def level_of(operation: Operation) -> str:
    """The level of a read; reads that name none are linearizable, as calls are."""
    level = operation.details.get("level", Level.LINEARIZABLE)
    return level.value if isinstance(level, Level) else str(level)


def is_exact(operation: Operation) -> bool:
    """Whether it asked for the state of one commit, not for one that is not before it."""
    wanted = operation.details.get("wanted")
    return isinstance(wanted, Mapping) and bool(wanted.get("is_exact"))


def is_newest(operation: Operation) -> bool:
    """Whether it asked for all that was committed before it."""
    return level_of(operation) == Level.LINEARIZABLE.value and not is_exact(operation)


def table_of(operation: Operation) -> str:
    """The table; operations that name none belong to one table without a name."""
    return str(operation.details.get("table", ""))


def positions_of(operation: Operation, name: str = "positions") -> dict[int, int]:
    """Partition -> seq; whatever is no pair of integers is left out."""
    found: dict[int, int] = {}
    for pair in elements(operation.details.get(name)) or ():
        if isinstance(pair, list | tuple) and len(pair) == 2:
            partition, seq = pair
            if isinstance(partition, int) and isinstance(seq, int):
                found[partition] = seq
    return found


def rows_of_write(operation: Operation) -> list[Row]:
    """Rows that a write asked for, in its order."""
    if operation.action != "put_many":
        value = None if operation.action == "delete" else token(operation.value)
        return [(token(operation.key), value)]
    return _pairs(elements(operation.value) or operation.details.get("rows") or ())


def rows_of_read(operation: Operation) -> list[Row]:
    """Rows that a read found; a get_many that answered another number of rows found none."""
    if operation.action == "get":
        return [(token(operation.key), token(operation.result))]
    if operation.action == "scan":
        found = operation.result if isinstance(operation.result, Mapping) else {}
        return [(token(key), token(value)) for key, value in found.items()]
    values = elements(operation.result) or []
    keys = keys_of(operation)
    return list(zip(keys, map(token, values), strict=True)) if len(keys) == len(values) else []


def keys_of(operation: Operation) -> list[Any]:
    """The keys a get or get_many asked for."""
    if operation.action == "get":
        return [token(operation.key)]
    return [token(key) for key in elements(operation.details.get("keys", operation.value)) or []]


def _pairs(rows: Iterable[Any]) -> list[Row]:
    return [
        (token(row[0]), token(row[1]))
        for row in rows
        if isinstance(row, list | tuple) and len(row) == 2
    ]


def shown(value: Any) -> str:
    """A value for a sentence, cut to a readable length."""
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."


def window(*operations: Operation | None) -> list[Operation]:
    """The operations there are, once each, in order of invocation."""
    kept: dict[int, Operation] = {id(found): found for found in operations if found is not None}
    return sorted(kept.values(), key=lambda operation: operation.invoked)


class Findings:
    """Collects what is wrong, kind by kind, and keeps the first of each kind to show."""

    def __init__(self, checker: str, *kinds: str) -> None:
        self._checker = checker
        self._counts = dict.fromkeys(kinds, 0)
        self._first: dict[str, tuple[str, list[Operation], Operation | None]] = {}

    def add(
        self, kind: str, text: str, culprit: Operation | None, *others: Operation | None
    ) -> None:
        """One more of this kind."""
        self._counts[kind] += 1
        if kind not in self._first:
            self._first[kind] = (text, window(culprit, *others), culprit)

    @property
    def counts(self) -> dict[str, int]:
        """Kind -> how many."""
        return dict(self._counts)

    def verdict(self, figures: Mapping[str, Any], sound: str, doubt: str | None) -> Verdict:
        """INVALID with the first kind found, in the order the kinds were named; else as given.

        ``doubt`` says why nothing, or not everything, was judged; None: everything was.
        """
        reported = {**figures, **self._counts}
        for kind in self._counts:
            if kind in self._first:
                text, evidence, culprit = self._first[kind]
                summary = f"{text} ({kind}: {self._counts[kind]})"
                return Verdict(
                    self._checker, Validity.INVALID, summary, evidence, culprit, reported
                )
        if doubt is not None:
            return Verdict(self._checker, Validity.UNDECIDED, doubt, figures=reported)
        return Verdict(self._checker, Validity.VALID, sound, figures=reported)


def attempts(history: Iterable[Operation]) -> Iterator[tuple[Operation, Row]]:
    """Every row of every write, whatever came of it."""
    for operation in history:
        if operation.action in WRITES:
            for row in rows_of_write(operation):
                yield operation, row
