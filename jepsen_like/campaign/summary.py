"""The figures of a campaign as a page of documentation: reached against goal, part by part."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from jepsen_like.campaign.ledger import Entry, add_up
from jepsen_like.campaign.parts import Part

BEGIN = "<!-- campaign: written by raftstore chaos campaign --write -->"
END = "<!-- campaign ends -->"


def markdown(parts: Sequence[Part], entries: Sequence[Entry], facts: str) -> str:
    """The section, markers included."""
    lines = [BEGIN, "", f"Measured on {facts}.", ""]
    lines += ["| part | what | reached | goal | violations |", "| --- | --- | ---: | ---: | ---: |"]
    for part in parts:
        mine = [entry for entry in entries if entry.part == part.name]
        failed = sum(1 for entry in mine if not entry.passed)
        reached = f"{_units(mine):,} {part.unit}"
        lines.append(f"| {part.name} | {part.text} | {reached} | {part.goal:,} | {failed} |")
    for part in parts:
        mine = [entry for entry in entries if entry.part == part.name]
        if mine:
            lines += ["", *_part_lines(part, mine)]
    ran: Counter[str] = Counter()
    for entry in entries:
        ran[entry.code] += len(entry.units)
    reported = ", ".join(f"{code} {count:,}" for code, count in ran.most_common())
    lines += ["", f"Units by the state of the code they ran on: {reported or 'none'}."]
    failures = [entry for entry in entries if not entry.passed]
    if failures:
        lines += ["", "Violations:", ""]
        lines += [f"- `{entry.replay}`: {entry.failure}" for entry in failures]
    return "\n".join([*lines, "", END])


def replace_section(page: str, section: str) -> str:
    """The page with its old section replaced; ValueError if it has no place for one."""
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        message = f"the page has no section between {BEGIN} and {END}"
        raise ValueError(message)
    return before + section + after


def _units(entries: Sequence[Entry]) -> int:
    return sum(len(entry.units) for entry in entries)


def _part_lines(part: Part, entries: Sequence[Entry]) -> list[str]:
    total = add_up(entries)
    plain = [f"{_number(value)} {name}" for name, value in total.items() if _is_number(value)]
    lines = [f"{part.name}: {', '.join(plain)}." if plain else f"{part.name}:"]
    for name, value in total.items():
        if isinstance(value, Mapping):
            ordered = sorted(value.items(), key=lambda pair: (-pair[1], pair[0]))
            shown = ", ".join(f"{key} {_number(number)}" for key, number in ordered)
            lines += ["", f"{part.name}, {name}: {shown}."]
    return lines


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float)


def _number(value: float) -> str:
    return f"{value:,}" if isinstance(value, int) else f"{value:,.1f}"
