"""The table of ablations fits the sources and the documentation; running it takes minutes."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.ablations.ablation import Ablation
from tests.ablations.runner import AblationError, check_edits
from tests.ablations.table import ABLATIONS, as_markdown

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize("ablation", ABLATIONS, ids=lambda ablation: ablation.name)
def test_ablation_fits_the_sources(ablation: Ablation) -> None:
    """Its texts occur exactly once and its tests exist."""
    check_edits(ROOT, [ablation])
    assert bool(ablation.tests) != bool(ablation.seeds)


def test_names_are_unique() -> None:
    """``--only`` names one ablation."""
    assert len({ablation.name for ablation in ABLATIONS}) == len(ABLATIONS)


def test_text_that_is_gone_is_told() -> None:
    """An edit that does nothing must not pass for a rule that nobody guards."""
    one = ABLATIONS[0]
    edit = type(one.edits[0])(one.edits[0].path, "no such text anywhere", "")
    with pytest.raises(AblationError, match="0 times"):
        check_edits(ROOT, [Ablation("S9-x", "", (edit,), tests=one.tests)])


def test_documentation_shows_the_table() -> None:
    """docs/testing.md holds what ``python -m tests.ablations --list`` prints."""
    assert as_markdown() in (ROOT / "docs" / "testing.md").read_text()
