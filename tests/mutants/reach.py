"""Which tests reach which line: recorded once, then kept while the code changes.

The record lies in ``.mutants/`` with the sources that it is of. A line that has moved since is
found again; one that is new has the tests of its function, or else of its file. Test files that
changed are recorded anew, all others are not (``--record`` forgets everything).
"""

from __future__ import annotations

import ast
import difflib
import hashlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

from tests.mutants.mutator import ROOT, Mutant, source_of
from tests.mutants.recorder import ROOMS, files_of

PLACES = ("unit", "contract", "design", "integration", "jepsen", "model", "scripts", "simulation")
TEST_PLACES = tuple(f"tests/{place}" for place in (*PLACES, "stateful", "cli/test_log.py"))
"""Tests of the rooms; those of ``storage/stopped`` are among its command's. Tests that read sources
as text would notice everything: they are no part."""
LEFT_OUT = tuple(f"tests/unit/{room}" for room in ("spark", "demo", "benchmarks"))
MARKERS = "not cluster and not spark"
QUICK = f"{MARKERS} and not slow"
FOLDER = ROOT / ".mutants"
RECORDS = {MARKERS: FOLDER / "reach.json", QUICK: FOLDER / "quick.json"}


class Reach:
    """The record, as it is needed for the sources of now."""

    def __init__(self, record: dict[str, Any]) -> None:
        self._record = record
        self._tests: list[str] = record["tests"]
        self.seconds: dict[str, float] = dict(zip(self._tests, record["seconds"], strict=True))

    def tests_of(self, mutant: Mutant) -> list[str]:
        """Those that reach what it changes, fastest first."""
        lines = self._record["lines"].get(mutant.path, {})
        wanted = range(mutant.line, mutant.last_line + 1)
        old = _old_lines(self._record["sources"].get(mutant.path, ""), mutant.path)
        found = _union(lines, [old[line] for line in wanted if line in old])
        if not found:
            source = self._record["sources"].get(mutant.path, "")
            found = _union(lines, _lines_of_function(source, mutant.function))
        if not found:
            found = _union(lines, lines)
        return sorted((self._tests[number] for number in found), key=self.seconds.__getitem__)


def _union(lines: dict[str, list[int]], chosen: Any) -> set[int]:
    return {number for line in chosen for number in lines.get(str(line), ())}


@cache
def _old_lines(old_source: str, path: str) -> dict[int, int]:
    """Line of now -> the same line when it was recorded."""
    old = old_source.splitlines()
    new = source_of(path).splitlines()
    matcher = difflib.SequenceMatcher(None, old, new, autojunk=False)
    return {
        block.b + offset + 1: block.a + offset + 1
        for block in matcher.get_matching_blocks()
        for offset in range(block.size)
    }


@cache
def _lines_of_function(source: str, name: str) -> range:
    node: ast.AST = ast.parse(source)
    for part in name.split("."):
        inner = {getattr(n, "name", ""): n for n in getattr(node, "body", ())}
        if part not in inner:
            return range(0)
        node = inner[part]
    assert isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    assert node.end_lineno is not None
    # Its head is reached by the import alone.
    return range(node.body[0].lineno, node.end_lineno + 1)


def load(markers: str = MARKERS, *, anew: bool = False) -> Reach:
    """The record of these tests, after whatever is missing in it was recorded."""
    path = RECORDS[markers]
    record: dict[str, Any] = {"tests": [], "seconds": [], "lines": {}, "sources": {}, "files": {}}
    if path.exists() and not anew:
        record = json.loads(path.read_text(encoding="utf-8"))
    files = {file: _digest(ROOT / file) for file in _test_files()}
    changed = [file for file, digest in files.items() if record["files"].get(file) != digest]
    if changed:
        # Lines are reported as they are now, so what was recorded before is reported so, too.
        record = _merged(_moved(record), _recorded(changed, markers), set(changed), set(files))
        record["files"] = files
        FOLDER.mkdir(exist_ok=True)
        path.write_text(json.dumps(record), encoding="utf-8")
    return Reach(record)


def _test_files() -> list[str]:
    return [
        path.relative_to(ROOT).as_posix()
        for place in TEST_PLACES
        for path in (sorted((ROOT / place).rglob("test_*.py")) or [ROOT / place])
        if not path.relative_to(ROOT).as_posix().startswith(LEFT_OUT)
    ]


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()[:16]


def _recorded(files: Sequence[str], markers: str) -> dict[str, Any]:
    """Run these files once; what fails is left out later, for it cannot notice anything."""
    with tempfile.TemporaryDirectory() as base:
        target = Path(base) / "reach.json"
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
        command += ["-p", "tests.mutants.recorder", "--record-reach", str(target)]
        environment = {**os.environ, "RAFTSTORE_TEST_PROFILE": "quick"}
        subprocess.run(
            [*command, "-m", markers, *files], cwd=ROOT, env=environment, check=False, timeout=3_600
        )
        recorded: dict[str, Any] = json.loads(target.read_text(encoding="utf-8"))
        return recorded


def sources_now() -> dict[str, str]:
    """Text of every file of the rooms."""
    return {path: source_of(path) for room in ROOMS for path in files_of(room)}


def _moved(record: dict[str, Any]) -> dict[str, Any]:
    """The record with the line numbers of now; lines that are gone are forgotten."""
    sources = sources_now()
    lines: dict[str, dict[str, list[int]]] = {}
    for path, reached in record["lines"].items():
        if path in sources:
            old = _old_lines(record["sources"][path], path)
            lines[path] = {
                str(new): reached[str(before)]
                for new, before in old.items()
                if str(before) in reached
            }
    return {**record, "lines": lines, "sources": sources}


def _merged(
    record: dict[str, Any], newer: dict[str, Any], changed: set[str], existing: set[str]
) -> dict[str, Any]:
    """Both, without what the older one says of files that changed or are gone."""
    kept = {
        number: test
        for number, test in enumerate(record["tests"])
        if (file := test.partition("::")[0]) in existing and file not in changed
    }
    tests = [*kept.values(), *newer["tests"]]
    new_number = {old: new for new, old in enumerate(kept)}
    seconds = [record["seconds"][number] for number in kept] + newer["seconds"]
    lines: dict[str, dict[str, list[int]]] = {}
    for path, reached in record["lines"].items():
        lines[path] = {
            line: [new_number[number] for number in numbers if number in new_number]
            for line, numbers in reached.items()
        }
    for path, reached in newer["lines"].items():
        into = lines.setdefault(path, {})
        for line, numbers in reached.items():
            into.setdefault(line, []).extend(number + len(kept) for number in numbers)
    return {**record, "tests": tests, "seconds": seconds, "lines": lines}
