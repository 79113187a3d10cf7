"""Histories: what every client asked, when, and what it was answered.

A history is a list of operations in the order of their invocation. On disk it is one JSON object
a line (``Operation.as_json``), so that a run that dies leaves a readable history.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from raftstore.types import Outcome


class HistoryError(ValueError):
    """A history file that cannot be read; the text names the line and the remedy."""


@dataclass(slots=True)
class Operation:
    """One operation of one client.

    Times are nanoseconds of one clock (virtual time in a simulated world). ``returned`` is None
    for an operation that never got an answer; such an operation, like every UNKNOWN one, may take
    effect at any time after its invocation, or never. NOT_APPLIED never takes effect.
    """

    process: str
    """Who asked; a process has at most one open operation."""
    action: str
    """What: read, write, cas, add, append, … (the vocabulary of the model that judges it)."""
    key: Any = None
    value: Any = None
    """The argument."""
    invoked: int = 0
    returned: int | None = None
    outcome: Outcome = Outcome.UNKNOWN
    result: Any = None
    """The answer of an operation whose outcome is OK."""
    details: dict[str, Any] = field(default_factory=dict)
    """What checkers of positions and staleness need: level, served_by, applied_seq, lag, seq, …"""

    def as_json(self) -> dict[str, Any]:
        """A plain object; `from_json` reads it back."""
        plain: dict[str, Any] = {
            "process": self.process,
            "action": self.action,
            "key": self.key,
            "value": self.value,
            "invoked": self.invoked,
            "returned": self.returned,
            "outcome": self.outcome.name,
            "result": self.result,
        }
        if self.details:
            plain["details"] = self.details
        return plain

    @classmethod
    def from_json(cls, plain: dict[str, Any]) -> Operation:
        """The operation `as_json` made; KeyError or ValueError when a field is missing or wrong."""
        return cls(
            process=str(plain["process"]),
            action=str(plain["action"]),
            key=plain["key"],
            value=plain["value"],
            invoked=int(plain["invoked"]),
            returned=None if plain["returned"] is None else int(plain["returned"]),
            outcome=Outcome[plain["outcome"]],
            result=plain["result"],
            details=dict(plain.get("details", {})),
        )


def write_history(path: Path, operations: Iterable[Operation]) -> None:
    """Write one JSON object a line; an existing file is replaced."""
    with path.open("w", encoding="utf-8") as file:
        for operation in operations:
            file.write(json.dumps(operation.as_json(), ensure_ascii=False) + "\n")


def read_history(path: Path) -> list[Operation]:
    """Read what `write_history` wrote; HistoryError names the line that is no operation."""
    return list(_operations(path))


def _operations(path: Path) -> Iterator[Operation]:
    with path.open(encoding="utf-8") as file:
        for number, line in enumerate(file, 1):
            if not line.strip():
                continue
            try:
                yield Operation.from_json(json.loads(line))
            except (ValueError, KeyError, TypeError) as error:
                message = (
                    f"line {number} of {path} is no operation ({type(error).__name__}: {error}); "
                    "each line must be one JSON object as written by raftstore chaos run"
                )
                raise HistoryError(message) from error
