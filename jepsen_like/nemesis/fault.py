"""One fault: how it starts and how it ends."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from jepsen_like.target.base import Target

BY_MACHINE: Final = "machine"
"""Under ``by`` in the record of a fault that nobody injected: the machine failed the nodes."""


def injected(faults: Iterable[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Records of faults that were meant."""
    return [fault for fault in faults if fault.get("by") != BY_MACHINE]


Heal = Callable[[], None]
"""Ends the fault; safe to call when the node it hit has changed meanwhile.

Raises FaultUnavailableError, after it has healed, when what was armed never struck.
"""


@dataclass(frozen=True, slots=True)
class Fault:
    """A named fault; ``inject`` starts it and returns what ends it."""

    name: str
    """kill-leader, partition-halves, … (lower case with dashes)."""
    text: str
    """One sentence for lists."""
    inject: Callable[[Target, random.Random], Heal]
    """Raises FaultUnavailableError where the target cannot."""
    lasts_ms: tuple[float, float] = (500.0, 3_000.0)
    """How long it stays, drawn evenly."""
    is_minority: bool = True
    """At most a minority of any channel's replicas is hit, so every channel must make progress."""
    needs_root: bool = False
    repeats_ms: float = 0.0
    """It comes and goes with this period as long as it lasts; 0: it stays."""
