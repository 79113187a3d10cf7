"""The table of mutations, for people: in docs/mutations.md between two markers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.mutations.drawn import Catch, Key, median_seeds
from tests.mutations.guard import Directed, Guard
from tests.mutations.mutation import Mutation

DOCUMENTATION = Path(__file__).parents[2] / "docs" / "mutations.md"
"""The page that shows the table."""
BEGIN = "<!-- mutations: begin -->"
END = "<!-- mutations: end -->"


class TableError(Exception):
    """The page has no place for the table."""


def as_markdown(mutations: Sequence[Mutation], catches: Mapping[Key, Catch]) -> str:
    """A sentence with the sums, the table, and what runs from seeds do not see."""
    drawn = [(m.name, guard.label) for m in mutations for guard in m.drawn]
    caught = [catches[key] for key in drawn if key in catches]
    directed = sum(bool(mutation.tests) for mutation in mutations)
    lines = [
        f"{len(mutations)} mutations: {directed} are noticed by directed tests; {len(caught)} of "
        f"{len(drawn)} guards that are drawn from seeds catch theirs (median "
        f"{median_seeds(caught):g} seeds).",
        "",
        "| Rule | Mutation | Noticed by |",
        "|---|---|---|",
    ]
    for mutation in mutations:
        by = "; ".join(_noticed(mutation, guard, catches) for guard in mutation.guards)
        name = mutation.name.removeprefix(f"{mutation.rule}-")
        lines.append(f"| {', '.join(mutation.rules)} | {name}: {mutation.text} | {by} |")
    lines += ["", "Why runs drawn from seeds do not catch what only directed tests do:", ""]
    for mutation in mutations:
        for guard in mutation.guards:
            if isinstance(guard, Directed) and guard.why:
                lines.append(f"* {mutation.name}: {guard.why}.")
    return "\n".join(lines)


def _noticed(mutation: Mutation, guard: Guard, catches: Mapping[Key, Catch]) -> str:
    if isinstance(guard, Directed):
        return guard.label
    found = catches.get((mutation.name, guard.label))
    if found is None:
        return f"{guard.label} (nobody yet)"
    return f"{guard.label}: `{found.by}`, {found.seeds} (seed {found.seed})"


def write_table(page: Path, table: str) -> None:
    """Put the table between the markers of a page; TableError if it has none."""
    text = page.read_text()
    if text.count(BEGIN) != 1 or text.count(END) != 1 or text.index(BEGIN) > text.index(END):
        raise TableError(f"{page} needs one line {BEGIN!r} and one line {END!r} behind it")
    head, tail = text[: text.index(BEGIN)], text[text.index(END) :]
    page.write_text(f"{head}{BEGIN}\n{table}\n{tail}")
