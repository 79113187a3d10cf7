"""The table of planted bugs, for people: in docs/testing.md between two markers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from jepsen_like.planted.bug import PlantedBug
from jepsen_like.planted.catalogue import NOT_YET
from jepsen_like.planted.catcher import Catch, median_seeds
from jepsen_like.planted.guard import DirectedTests

BEGIN = "<!-- planted bugs: begin -->"
END = "<!-- planted bugs: end -->"


class TableError(Exception):
    """The page has no place for the table."""


def as_markdown(bugs: Sequence[PlantedBug], catches: Mapping[str, Catch]) -> str:
    """A sentence with the sums, the table, what random worlds do not see, and what must wait."""
    caught = [catches[bug.name] for bug in bugs if bug.name in catches]
    in_worlds = sum(not bug.is_directed for bug in bugs)
    lines = [
        f"{len(caught)} of {len(bugs)} planted bugs are caught: {in_worlds} by runs drawn from a "
        f"seed (median {median_seeds(caught):g} seeds), {len(bugs) - in_worlds} by directed tests.",
        "",
        "| Rule | Planted bug | Workload | Caught by | Seeds |",
        "|---|---|---|---|---|",
    ]
    for bug in bugs:
        found = catches.get(bug.name)
        by = "nobody" if found is None else f"`{found.by}`"
        if found is None:
            seeds = ""
        elif found.seed is None:
            seeds = "-"
        else:
            seeds = f"{found.seeds} (seed {found.seed})"
        lines.append(
            f"| {bug.rule} | {bug.name}: {bug.text} | {bug.guard.label} | {by} | {seeds} |"
        )
    lines += ["", "Why random worlds do not catch those that directed tests do:", ""]
    for bug in bugs:
        if isinstance(bug.guard, DirectedTests):
            lines.append(f"* {bug.name}: {bug.guard.why}.")
    lines += ["", "Planted together with the feature they need:", ""]
    lines += [f"* {rule}, with {feature}: {text}." for rule, text, feature in NOT_YET]
    return "\n".join(lines)


def write_table(page: Path, table: str) -> None:
    """Put the table between the markers of a page; TableError if it has none."""
    text = page.read_text()
    if text.count(BEGIN) != 1 or text.count(END) != 1 or text.index(BEGIN) > text.index(END):
        raise TableError(f"{page} needs one line {BEGIN!r} and one line {END!r} behind it")
    head, tail = text[: text.index(BEGIN)], text[text.index(END) :]
    page.write_text(f"{head}{BEGIN}\n{table}\n{tail}")
