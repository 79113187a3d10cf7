"""How far a long call is, for who shows it."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple


class Progress(NamedTuple):
    """One report of a call that goes on."""

    what: str
    """The table, or the file, that it is at."""
    rows: int
    """Rows done, of all tables."""
    rows_total: int | None
    """Rows to do; None: it is not known before they are read."""


OnProgress = Callable[[Progress], None]
"""Called on the thread of the call. What it raises ends the call."""


def nobody(_: Progress) -> None:
    """Nothing is shown."""
