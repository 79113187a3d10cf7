"""Every promise of docs/guarantees.md is held by tests: ``tests/data/guarantees.txt`` says which.

The file has each sentence (and row of a table) of the page, and under it, indented, the tests that
fail when the sentence is false. A new or a changed sentence is not in the file until somebody has
looked which test holds it, and has written one where none does.
"""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "guarantees.md"
HELD = ROOT / "tests" / "data" / "guarantees.txt"
PROMISING = ("Writes", "Backups and restores", "Reads", "Durability")
"""The sections that promise; the others say where to read on, and what is not there."""
SENTENCES_MIN = 50


def sentences_of(page: str) -> list[str]:
    """Return the sentences and table rows of the sections that promise."""
    found: list[str] = []
    section = ""
    for line in page.splitlines():
        if line.startswith("#"):
            section = line.lstrip("# ")
        elif section in PROMISING and line and not line.startswith("|--"):
            found += [line] if line.startswith("|") else re.split(r"(?<=[.)]) (?=[A-Z`])", line)
    return [sentence for sentence in found if sentence not in ("", *HEADS)]


HEADS = (
    "| outcome | meaning | what to do |",
    "| level | promise |",
    "| durability | a replica counts a record | an acknowledged write may be lost only when |",
)


def held() -> dict[str, list[str]]:
    """Return the tests of each sentence."""
    found: dict[str, list[str]] = {}
    sentence = ""
    for line in HELD.read_text(encoding="utf-8").splitlines():
        if line.startswith("    "):
            found[sentence].append(line.strip())
        elif line:
            sentence = line
            assert sentence not in found, f"{HELD.name} has it twice: {sentence}"
            found[sentence] = []
    return found


def test_every_sentence_that_promises_names_the_tests_that_hold_it() -> None:
    """Both ways: no promise without a test, and no test for what is promised no more."""
    promised = sentences_of(PAGE.read_text(encoding="utf-8"))
    assert len(promised) >= SENTENCES_MIN
    known = held()
    new = [sentence for sentence in promised if not known.get(sentence)]
    assert not new, f"say in {HELD} which tests hold: {new}"
    assert not set(known) - set(promised), f"not promised any more: {set(known) - set(promised)}"


def test_tests_that_hold_promises_exist() -> None:
    """A test that was renamed or removed is missed here."""
    for sentence, tests in held().items():
        for test in tests:
            file, _, name = test.partition("::")
            text = (ROOT / file).read_text(encoding="utf-8") if (ROOT / file).exists() else ""
            assert re.search(rf"^(?:async )?def {name}\(", text, re.MULTILINE), (sentence, test)


def test_sentence_that_is_changed_or_new_is_not_taken_for_held() -> None:
    """Given a page with one sentence more, this sentence counts as held by no test."""
    page = PAGE.read_text(encoding="utf-8")
    first = sentences_of(page)[0]
    changed = sentences_of(page.replace(first, f"{first} Nothing is ever late.", 1))
    assert set(changed) - set(held()) == {"Nothing is ever late."}
