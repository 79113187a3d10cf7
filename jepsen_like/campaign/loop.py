"""Which unit comes next, and on how many cores; what ended is in the ledger before the next."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Final

from jepsen_like.campaign.ledger import Entry, Ledger
from jepsen_like.campaign.parts import Part, Settings, run_unit
from raftstore.testing.workers import Workers

CHUNK_PER_JOB: Final = 16
"""Units a core is given before the parts are weighed against each other again."""

Tell = Callable[[Part, Entry], None]


def run_campaign(
    parts: Sequence[Part],
    ledger: Ledger,
    settings: Settings,
    *,
    jobs: int,
    until: float,
    tell: Tell,
) -> None:
    """Run until every goal is reached or ``time.monotonic()`` passes ``until``.

    The part that is furthest from its goal goes first, so that a short campaign shows something of
    each. A unit that fails is in the ledger like any other, and the campaign goes on. One that
    could not take place is reported and left to the next campaign on this ledger.
    """
    left_out: set[tuple[str, str]] = set()
    while time.monotonic() < until and (part := furthest(parts, ledger, left_out)) is not None:
        missing = _missing(part, ledger, left_out)
        if not part.is_parallel:
            entries = iter([run_unit(part.name, missing[0], settings)])
        else:
            entries = _side_by_side(part, missing[: jobs * CHUNK_PER_JOB], settings, jobs)
        for entry in entries:
            if entry.not_run:
                left_out.add((entry.part, entry.key))
            else:
                ledger.add(entry)
            tell(part, entry)
            if time.monotonic() >= until:
                return


def furthest(
    parts: Sequence[Part], ledger: Ledger, left_out: Collection[tuple[str, str]] = ()
) -> Part | None:
    """The part with the smallest share of its goal; None when all are reached or left out."""
    open_ = [part for part in parts if _missing(part, ledger, left_out)]
    return min(open_, key=lambda part: ledger.count(part.name) / part.goal, default=None)


def _missing(part: Part, ledger: Ledger, left_out: Collection[tuple[str, str]] = ()) -> list[int]:
    return [
        index
        for index in range(part.goal)
        if not ledger.has(part.name, part.key(index))
        and (part.name, part.key(index)) not in left_out
    ]


def _side_by_side(
    part: Part, indexes: Sequence[int], settings: Settings, jobs: int
) -> Iterator[Entry]:
    with Workers(jobs) as workers:
        yield from workers.each(_run_one, [(part.name, at, settings) for at in indexes])


def _run_one(unit: tuple[str, int, Settings]) -> Entry:
    return run_unit(*unit)
