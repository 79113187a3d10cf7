"""The verdict of a checker."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from jepsen_like.history import Operation


class Validity(enum.IntEnum):
    """How a history was judged; the worst of several is their maximum."""

    VALID = 0
    UNDECIDED = 1
    """The budget of steps was used up."""
    INVALID = 2


@dataclass(frozen=True, slots=True)
class Verdict:
    """One checker's judgement of one history."""

    checker: str
    validity: Validity
    summary: str
    """One sentence: what was checked, or what is wrong."""
    evidence: Sequence[Operation] = ()
    """The shortest window of operations that shows the violation, in order of invocation."""
    culprit: Operation | None = None
    """The operation that cannot be explained."""
    figures: dict[str, Any] = field(default_factory=dict)
    """Counts worth printing: operations, lost, duplicated, worst lag, …"""

    @property
    def is_valid(self) -> bool:
        """Nothing is wrong, and everything was judged."""
        return self.validity is Validity.VALID


def worst(verdicts: Sequence[Verdict]) -> Validity:
    """The validity of all together; where nothing was judged, nothing is known to be right."""
    return max((verdict.validity for verdict in verdicts), default=Validity.UNDECIDED)
