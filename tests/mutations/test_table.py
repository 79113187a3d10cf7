"""The mutations fit the sources and the documentation; running them takes minutes."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import pytest

from tests.mutations.catalogue import (
    MUTATIONS,
    UnknownMutationError,
    chosen,
    mutation_named,
)
from tests.mutations.drawn import load_record
from tests.mutations.guard import KINDS
from tests.mutations.syntax import SourceTree
from tests.mutations.table import BEGIN, END, TableError, as_markdown, write_table

ROOT = Path(__file__).resolve().parents[2]
PARTS = 8


@cache
def _sources() -> SourceTree:
    return SourceTree(ROOT)


@cache
def _names_in(path: str) -> frozenset[str]:
    """Functions and methods of a file of tests, with the class in front."""
    text = (ROOT / path).read_text(encoding="utf-8")
    return frozenset(re.findall(r"^ *(?:async )?def (\w+)\(", text, re.MULTILINE))


@pytest.mark.slow
@pytest.mark.parametrize("part", range(PARTS))
def test_every_edit_fits_the_sources_once_and_changes_something(part: int) -> None:
    """A mutation whose code was rewritten has to follow it, not to be forgotten."""
    for mutation in MUTATIONS[part::PARTS]:
        assert mutation.edits, mutation.name
        _sources().check(mutation.edits)


def test_every_test_named_exists() -> None:
    """A test that was renamed would be missed only when the mutation is run."""
    for mutation in MUTATIONS:
        for test in mutation.tests:
            path, _, name = test.partition("::")
            name = name.rpartition("::")[2].partition("[")[0]
            assert name in _names_in(path), f"{mutation.name}: {path} has no {name}"


def test_every_mutation_is_guarded_and_told_apart() -> None:
    """One name, one sentence and at least one guard each; no guard twice."""
    assert len({mutation.name for mutation in MUTATIONS}) == len(MUTATIONS)
    for mutation in MUTATIONS:
        assert re.fullmatch(r"[\w.]+(-[\w.]+)*", mutation.name), mutation.name
        assert mutation.text.endswith("."), mutation.name
        assert mutation.guards, mutation.name
        assert {guard.kind for guard in mutation.guards} <= set(KINDS)
        for shown in (mutation.tests, [guard.label for guard in mutation.drawn]):
            assert len(set(shown)) == len(shown), mutation.name


def test_no_two_mutations_are_the_same() -> None:
    """The same edits are one mutation with all guards, or their number would mean nothing."""
    seen: dict[frozenset[tuple[str, str, str]], str] = {}
    for mutation in MUTATIONS:
        edits = frozenset((edit.name, edit.old, edit.new) for edit in mutation.edits)
        assert seen.setdefault(edits, mutation.name) == mutation.name


@pytest.mark.slow
def test_mutations_that_runs_from_seeds_catch_are_at_different_places() -> None:
    """Each breaks another line, so that the number of those caught says how much is seen.

    An assertion that would notice first is no rule, and may have to go for several.
    """
    # The first serves a cluster's very first records too early, so that no workload gets to begin.
    both = {"S4.2-uncommitted", "S4.2-uncommitted-records-served"}
    seen: dict[tuple[str, int], str] = {}
    for mutation in MUTATIONS:
        for edit in mutation.edits if mutation.drawn else ():
            if edit.new or not edit.old.startswith("assert "):
                place = _sources().line_of(edit)
                other = seen.setdefault(place, mutation.name)
                assert other == mutation.name or {other, mutation.name} == both, place


def test_at_least_seventy_mutations_are_caught_by_runs_drawn_from_seeds() -> None:
    """Directed tests come on top, for what random runs do not see."""
    assert sum(bool(mutation.drawn) for mutation in MUTATIONS) >= 70


def test_record_names_what_there_is_today() -> None:
    """Each guard that is drawn from seeds has its recorded catch, and nothing else has one."""
    drawn = [(m.name, guard.label) for m in MUTATIONS for guard in m.drawn]
    assert sorted(load_record()) == sorted(drawn)


def test_mutations_are_chosen_by_rule_and_by_name() -> None:
    """A typo is distinguished from a mutation that was removed."""
    assert mutation_named("S3.1-old-term") in chosen(["S3.1"], [])
    assert [m.name for m in chosen([], ["S3.1-old-term"])] == ["S3.1-old-term"]
    assert chosen([], []) == list(MUTATIONS)
    with pytest.raises(UnknownMutationError, match=r"'S3\.1-older-term'; is it .*S3\.1-old"):
        chosen([], ["S3.1-older-term"])
    with pytest.raises(UnknownMutationError, match=r"of the rule 'X99'"):
        chosen(["X99"], [])


def test_table_goes_between_the_markers_of_a_page(tmp_path: Path) -> None:
    """The table replaces the text between the markers of a page and keeps the rest; a page without
    markers is refused.
    """
    page = tmp_path / "page.md"
    page.write_text(f"before\n{BEGIN}\nold\n{END}\nafter\n")
    write_table(page, "new")
    assert page.read_text() == f"before\n{BEGIN}\nnew\n{END}\nafter\n"
    page.write_text("no markers")
    with pytest.raises(TableError, match="needs one line"):
        write_table(page, "new")


def test_documentation_shows_the_table() -> None:
    """docs/mutations.md holds what ``python -m tests.mutations --list`` prints."""
    table = as_markdown(MUTATIONS, load_record())
    assert f"{BEGIN}\n{table}\n{END}" in (ROOT / "docs" / "mutations.md").read_text()
