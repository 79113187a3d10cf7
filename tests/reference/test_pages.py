"""The documentation says what the code does: every setting, error, message, command and rule."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from raftstore.http.metrics import HELP
from raftstore.node.settings import resolve_settings
from tests.reference.pages import (
    DOCS,
    PAGES,
    REMEDIES,
    commands,
    exported_names,
    request_errors,
    setting_texts,
)

ROOT = DOCS.parent
RULE = re.compile(r"\bS\d{1,2}\.\d{1,2}\b")
TERM = re.compile(r"^\| \*\*(.+?)\*\* \|", re.MULTILINE)


@pytest.mark.parametrize("name", PAGES)
def test_reference_page_is_what_the_code_says(name: str) -> None:
    """`make docs` writes it again (N15)."""
    assert (DOCS / name).read_text(encoding="utf-8") == PAGES[name]()


def test_every_setting_is_explained() -> None:
    """A key without a meaning helps nobody at 3 a.m."""
    assert sorted(setting_texts()) == sorted(resolve_settings())


def test_every_error_has_a_remedy() -> None:
    """No remedy of an error that is gone is left."""
    assert sorted(REMEDIES) == sorted(cls.code for cls in request_errors())


def test_every_command_shows_an_example() -> None:
    """People copy examples; `-h` has one for each command that does something."""
    for name, command, _ in commands():
        if not hasattr(command, "list_commands"):
            assert "Example:" in (command.help or ""), name


def test_every_rule_in_the_code_is_explained_in_the_documentation() -> None:
    """A comment that cites S5.6 must be understandable without asking anybody."""
    cited: dict[str, str] = {}
    for path in sorted((ROOT / "raftstore").rglob("*.py")):
        cited |= dict.fromkeys(RULE.findall(path.read_text(encoding="utf-8")), str(path))
    explained = set(RULE.findall((DOCS / "protocol.md").read_text(encoding="utf-8")))
    assert sorted(set(cited) - explained) == []


def test_every_link_between_pages_leads_somewhere() -> None:
    """A page that was renamed is renamed everywhere."""
    pages = [ROOT / "README.md", *sorted(DOCS.rglob("*.md"))]
    for page in pages:
        for target in re.findall(r"\]\(([^)#:]+\.md)", page.read_text(encoding="utf-8")):
            assert (page.parent / target).exists(), f"{page.name} links to {target}"


def test_every_page_can_be_found_from_the_readme() -> None:
    """Every page of the documentation is linked from the README or from another page."""
    text = "".join(page.read_text() for page in [ROOT / "README.md", *DOCS.glob("*.md")])
    linked = {Path(target).name for target in re.findall(r"\]\(([^)#:]+\.md)", text)}
    assert sorted({page.name for page in DOCS.glob("*.md")} - linked) == []


def test_glossary_is_in_order() -> None:
    """A glossary is looked things up in."""
    terms = TERM.findall((DOCS / "glossary.md").read_text(encoding="utf-8"))
    assert len(terms) > 20
    assert terms == sorted(terms, key=str.casefold)


def test_every_metric_that_is_told_has_a_meaning_and_the_other_way_round() -> None:
    """Every exported metric has a meaning in docs/metrics.md, and the page names no other."""
    assert {name.removesuffix("_total") for name in exported_names()} == set(HELP)


PLACE = re.compile(r"`((?:raftstore|jepsen_like|tests|benchmarks|cli|docs|examples)/[\w/.-]+)`")


def test_files_and_rooms_that_people_read_of_exist() -> None:
    """README and the pages name the places of the present tree: newcomers look there."""
    # The map of requirements shortens the paths of its tests.
    pages = [page for page in DOCS.glob("*.md") if page.name != "requirements.md"]
    named = [
        (page.name, m)
        for page in [ROOT / "README.md", *pages]
        for m in PLACE.findall(page.read_text())
    ]
    assert len(named) > 50
    assert [(page, place) for page, place in named if not (ROOT / place).exists()] == []
