"""The map of requirements: every id resolves, and what is called done is shown by a test."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.reference.requirements import (
    LONG_ID,
    NEED_REMARK,
    STATES,
    documents,
    ids_of,
    prefix_of,
    rows,
)
from tests.reference.requirements import tests_by_row as shown_by

ROOT = Path(__file__).parents[2]
FOLDERS = ("raftstore", "cli", "jepsen_like", "benchmarks", "tests", "docs")
NAMES_OF_DOCUMENTS = {"KIP-101", "KIP-279", "KIP-535"}
"""Other proposals that are named, not rows."""
PROGRAMS = ("raftstore", "cli", "jepsen_like")
SHORT_ID = re.compile(r"\b[INOPR]\d{1,2}\b")
RULE = re.compile(r"\bRule (\d+)\b")


def sources() -> Iterator[Path]:
    """Every file of code and documentation but the page itself."""
    for folder in FOLDERS:
        for path in sorted((ROOT / folder).rglob("*")):
            if path.suffix in (".py", ".md") and path.name != "requirements.md":
                yield path
    yield ROOT / "README.md"


@pytest.mark.slow
def test_every_id_in_code_and_docs_is_a_row() -> None:
    """A reader finds a sentence for each of them."""
    known = set(rows()) | NAMES_OF_DOCUMENTS
    unknown = {
        (found, path.relative_to(ROOT).as_posix())
        for path in sources()
        for found in LONG_ID.findall(path.read_text(encoding="utf-8"))
        if found not in known
    }
    assert sorted(unknown) == []


def test_every_id_that_a_test_names_is_a_row() -> None:
    """Those of test names and the short ones, too."""
    assert sorted(set(shown_by()) - set(rows()) - NAMES_OF_DOCUMENTS) == []


def unknown_short_ids(source: str) -> list[str]:
    """Ids of the lists without a long prefix, and rules of a micro-batch, that no page explains."""
    rules = set(
        re.findall(r"^(\d)\. ", (ROOT / "docs/protocol.md").read_text("utf-8"), re.MULTILINE)
    )
    return [found for found in SHORT_ID.findall(source) if found not in rows()] + [
        f"Rule {number}" for number in RULE.findall(source) if number not in rules
    ]


@pytest.mark.slow
def test_every_short_id_in_programs_resolves() -> None:
    """Nodes are n1 there, so N4, P13 and their like are ids wherever they stand."""
    found = {
        (unknown, path.relative_to(ROOT).as_posix())
        for path in sources()
        if path.suffix == ".py" and path.relative_to(ROOT).parts[0] in PROGRAMS
        for unknown in unknown_short_ids(path.read_text(encoding="utf-8"))
    }
    assert sorted(found) == []
    assert unknown_short_ids("# N4, R7 and P99; Rule 4, Rule 9") == ["R7", "P99", "Rule 9"]


@pytest.mark.parametrize("name", [name for name, row in rows().items() if row.state == "done"])
def test_row_that_is_called_done_has_a_test(name: str) -> None:
    """Its name or docstring says the id; a rule with parts has the tests of its parts."""
    tests = shown_by()
    assert any(row == name or row.startswith(f"{name}.") for row in tests)


def test_rows_are_whole() -> None:
    """A known state, a sentence, a document, and a remark where the state needs a reason."""
    for name, row in rows().items():
        assert row.state in STATES, name
        assert row.sentence.endswith((".", ";")), name
        assert prefix_of(name) in documents(), name
        assert bool(row.remark) or row.state not in NEED_REMARK, name
        assert " " in row.remark or not row.remark, f"{name}: no such remark as {row.remark}"


def test_ids_are_read_from_names_and_docstrings() -> None:
    """`N1` alone is the name of a node."""
    [test] = ast.parse(
        "def test_klip_50_51_and_52_of_n1():\n"
        '    """N9: a node (N4) such as N1 keeps S0.4 and NATS-004."""\n'
    ).body
    assert isinstance(test, ast.FunctionDef)
    wanted = {"KLIP-50", "KLIP-51", "KLIP-52", "N9", "N4", "S0.4", "NATS-004"}
    assert ids_of(test) == wanted
