"""All ablations, in the order of the contract, and the table that docs/testing.md shows."""

from __future__ import annotations

import re
from pathlib import Path

from tests.ablations.ablation import Ablation
from tests.ablations.client_rules import CLIENT_RULES
from tests.ablations.core_rules import CORE_RULES
from tests.ablations.election_rules import ELECTION_RULES
from tests.ablations.engine_rules import ENGINE_RULES
from tests.ablations.simulated_rules import SIMULATED_RULES
from tests.ablations.storage_rules import STORAGE_RULES

DOCUMENTATION = Path(__file__).parents[2] / "docs" / "testing.md"
"""The page that shows the table."""


def _order(ablation: Ablation) -> tuple[int, int]:
    major, _, minor = ablation.rule.removeprefix("S").partition(".")
    return int(re.sub(r"\D", "", major)), int(minor or 0)


ABLATIONS: tuple[Ablation, ...] = (
    *sorted(
        (*ELECTION_RULES, *CORE_RULES, *ENGINE_RULES, *STORAGE_RULES, *CLIENT_RULES), key=_order
    ),
    *sorted(SIMULATED_RULES, key=_order),
)


def as_markdown() -> str:
    """The table of docs/testing.md."""
    lines = ["| Rule | Without it | Noticed by |", "|---|---|---|"]
    lines += [f"| {a.rule} | {a.off} | {a.guard} |" for a in ABLATIONS]
    return "\n".join(lines)


def write_table(path: Path) -> None:
    """Replace the table in a page by the present one; ValueError if the page has none."""
    lines = path.read_text().split("\n")
    table = as_markdown().split("\n")
    first = lines.index(table[0])
    after = next((n for n in range(first, len(lines)) if not lines[n].startswith("|")), len(lines))
    path.write_text("\n".join([*lines[:first], *table, *lines[after:]]))
