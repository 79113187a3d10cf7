"""When which fault strikes: drawn once, kept as a file, replayed as it was.

A schedule file has one fault a line, as JSON: ``at_ms`` (after the clients began), ``kind`` (a
name of ``raftstore chaos list``), ``lasts_ms`` and ``draw``, the seed of whatever the fault itself
chooses (its victim, mostly).
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from jepsen_like.nemesis.catalogue import CATALOGUE, faults_named


class ScheduleError(ValueError):
    """A schedule file cannot be used; the text names the line and what is wrong with it."""


@dataclass(frozen=True, slots=True)
class FaultEvent:
    """One fault: when it strikes, for how long, and the seed of its own choices."""

    at_ms: float
    kind: str
    lasts_ms: float
    draw: int


def draw_schedule(
    rng: random.Random, kinds: Sequence[str], *, until_ms: float, pause_ms: float
) -> tuple[FaultEvent, ...]:
    """Faults at random moments, ``pause_ms`` apart on average, each lasting as its kind does."""
    faults = faults_named(kinds)
    events: list[FaultEvent] = []
    at_ms = rng.expovariate(1.0 / pause_ms)
    while faults and at_ms < until_ms:
        fault = rng.choice(faults)
        lasts_ms = rng.uniform(*fault.lasts_ms)
        draw = rng.randrange(1_000_000_000)
        events.append(FaultEvent(round(at_ms, 2), fault.name, round(lasts_ms, 2), draw))
        at_ms += rng.expovariate(1.0 / pause_ms)
    return tuple(events)


def with_lone_fault(
    rng: random.Random, events: Iterable[FaultEvent], kind: str, *, at_ms: float, lasts_ms: float
) -> tuple[FaultEvent, ...]:
    """The schedule with one more fault; what would overlap it, and might end it, is left out."""
    lone = FaultEvent(round(at_ms, 2), kind, round(lasts_ms, 2), rng.randrange(1_000_000_000))
    end_ms = lone.at_ms + lone.lasts_ms
    before = [each for each in events if each.at_ms + each.lasts_ms < lone.at_ms]
    after = [each for each in events if each.at_ms > end_ms]
    return (*before, lone, *after)


def write_schedule(path: Path, events: Iterable[FaultEvent]) -> None:
    """One line per fault."""
    lines = [json.dumps(asdict(event)) + "\n" for event in events]
    path.write_text("".join(lines), encoding="utf-8")


def read_schedule(path: Path) -> tuple[FaultEvent, ...]:
    """Read a file of ``write_schedule`` or of a person; ScheduleError names the
    line that is wrong.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ScheduleError(f"the faults in {path} cannot be read: {error}") from None
    reported = [(number, line) for number, line in enumerate(lines, start=1) if line.strip()]
    return tuple(_parsed(f"{path}, line {number}", line) for number, line in reported)


def _parsed(where: str, line: str) -> FaultEvent:
    try:
        fields = json.loads(line)
        event = FaultEvent(
            at_ms=float(fields["at_ms"]),
            kind=str(fields["kind"]),
            lasts_ms=float(fields["lasts_ms"]),
            draw=int(fields["draw"]),
        )
    except (ValueError, TypeError, KeyError) as error:
        raise ScheduleError(
            f"{where} is no fault ({error}); a line holds at_ms, kind, lasts_ms and draw"
        ) from None
    if event.kind not in CATALOGUE:
        raise ScheduleError(
            f"{where} names the fault {event.kind!r}; raftstore chaos list shows those there are"
        )
    if event.at_ms < 0 or event.lasts_ms < 0:
        raise ScheduleError(f"{where} has a time below zero; times are milliseconds from 0 on")
    return event
