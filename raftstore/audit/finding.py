"""A finding of an audit: an answer that cannot be right, with the operations that prove it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from raftstore.audit.observation import Observation

EVIDENCE_BYTES_MAX: Final = 3_072
"""Of one finding in JSON: an event with it fits into a line of a node's kept events."""


class FindingKind(StrEnum):
    """Which promise was broken."""

    STALE_READ = "stale_read"
    """A linearizable read without what was known to be committed before it began."""
    TOO_OLD = "too_old"
    """A read without what was committed longer ago than the age that it stated."""
    OVER_BOUND = "over_bound"
    """A bounded read that states more than its bound, or nothing."""
    TOO_EARLY = "too_early"
    """A read of a state before the position that it had to hold."""
    AHEAD = "ahead"
    """A row newer than the state that it was read from."""
    LOST_WRITE = "lost_write"
    """An acknowledged write that a state at or behind its position does not show."""
    OLD_WRITE = "old_write"
    """A write acknowledged at a position that was committed before it began."""
    TWO_ROWS = "two_rows"
    """Two different rows at one position."""


@dataclass(frozen=True, slots=True)
class AuditFinding:
    """One violation."""

    kind: FindingKind
    channel: str
    """As ``table/partition``."""
    text: str
    """What is wrong, in a sentence."""
    operations: tuple[Observation, ...]
    """The evidence, the operations that contradict each other first."""

    def evidence(self) -> str:
        """Return the operations as JSON; only so many as there is room for."""
        shown: list[str] = []
        size = 2
        for operation in self.operations:
            line = json.dumps(operation.shown(), separators=(",", ":"))
            size += len(line) + 1
            if size > EVIDENCE_BYTES_MAX:
                break
            shown.append(line)
        return f"[{','.join(shown)}]"


def distinct(operations: Sequence[Observation | None]) -> tuple[Observation, ...]:
    """Return the operations that there are, each once, in their order."""
    return tuple(dict.fromkeys(each for each in operations if each is not None))
