"""All ablations, in the order of the contract, and the table that docs/testing.md shows.

Rules that the contract does not number are named by their room, such as ``wire-checksum``; they
come after the contract's, in the order in which the lists below name them.
"""

from __future__ import annotations

import re
from pathlib import Path

from tests.ablations.ablation import Ablation
from tests.ablations.batch_rules import BATCH_RULES
from tests.ablations.bound_rules import BOUND_RULES
from tests.ablations.change_rules import CHANGE_RULES
from tests.ablations.client_rules import CLIENT_RULES
from tests.ablations.cluster_rules import CLUSTER_RULES
from tests.ablations.core_rules import CORE_RULES
from tests.ablations.election_rules import ELECTION_RULES
from tests.ablations.engine_rules import ENGINE_RULES
from tests.ablations.fate_rules import FATE_RULES
from tests.ablations.freshness_rules import FRESHNESS_RULES
from tests.ablations.level_rules import LEVEL_RULES
from tests.ablations.machine_rules import MACHINE_RULES
from tests.ablations.part_rules import PART_RULES
from tests.ablations.reading_rules import READING_RULES
from tests.ablations.row_rules import ROW_RULES
from tests.ablations.runtime_rules import RUNTIME_RULES
from tests.ablations.scan_rules import SCAN_RULES
from tests.ablations.sending_rules import SENDING_RULES
from tests.ablations.serving_rules import SERVING_RULES
from tests.ablations.share_rules import SHARE_RULES
from tests.ablations.simulated_rules import SIMULATED_RULES
from tests.ablations.snapshot_rules import SNAPSHOT_RULES
from tests.ablations.spark_rules import SPARK_RULES
from tests.ablations.storage_rules import STORAGE_RULES
from tests.ablations.transport_rules import TRANSPORT_RULES

DOCUMENTATION = Path(__file__).parents[2] / "docs" / "testing.md"
"""The page that shows the table."""


def _order(ablation: Ablation) -> tuple[bool, int, int]:
    number = re.fullmatch(r"S(\d+)(?:\.(\d+))?", ablation.rule)
    if number is None:
        return True, 0, 0
    return False, int(number[1]), int(number[2] or 0)


ABLATIONS: tuple[Ablation, ...] = (
    *sorted(
        (
            *ELECTION_RULES,
            *CORE_RULES,
            *ENGINE_RULES,
            *FRESHNESS_RULES,
            *BOUND_RULES,
            *FATE_RULES,
            *STORAGE_RULES,
            *SCAN_RULES,
            *PART_RULES,
            *CHANGE_RULES,
            *CLIENT_RULES,
            *READING_RULES,
            *TRANSPORT_RULES,
            *CLUSTER_RULES,
            *LEVEL_RULES,
            *MACHINE_RULES,
            *BATCH_RULES,
            *ROW_RULES,
            *SPARK_RULES,
            *SENDING_RULES,
            *SNAPSHOT_RULES,
            *RUNTIME_RULES,
            *SERVING_RULES,
            *SHARE_RULES,
        ),
        key=_order,
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
