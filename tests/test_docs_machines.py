"""docs/state-machines.md keeps its word: its files are written, tested and run as they stand."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from raftstore.machine import COMMAND_BYTES_MAX, COMMAND_WRITES_MAX, RESULT_BYTES_MAX
from raftstore.testing import lint_machine
from raftstore.testing.machines.tracing import load_class

ROOT = Path(__file__).parent.parent
PAGE = (ROOT / "docs" / "state-machines.md").read_text(encoding="utf-8")
FILES = {
    name: text for text, name in re.findall(r"```python\n(# (\w+\.py)\n.*?)```", PAGE, re.DOTALL)
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """All files of the page, as its reader has them."""
    for name, text in FILES.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    return tmp_path


def run(folder: Path, *arguments: str) -> str:
    """Run Python as a reader does."""
    done = subprocess.run(
        [sys.executable, *arguments], cwd=folder, capture_output=True, text=True, timeout=200,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    return done.stdout


def test_every_example_has_a_name() -> None:
    """One that had none would not be run."""
    assert PAGE.count("```python") == len(FILES) == 6


@pytest.mark.slow
def test_tests_of_the_page_pass(folder: Path) -> None:
    """Its unit tests, its checks and its simulated worlds."""
    assert "4 passed" in run(folder, "-m", "pytest", "-q", "-p", "no:cacheprovider")


@pytest.mark.cluster
def test_the_counter_survives_kill_9(folder: Path) -> None:
    """The program that the page ends its first part with."""
    assert run(folder, "count.py") == "counted to 100\n"


@pytest.mark.cluster
def test_the_lock_is_held_by_one(folder: Path) -> None:
    """The shipped machine is found by every node."""
    assert ": host-a holds the lock under token 1 until " in run(folder, "locking.py")


def test_machines_of_the_page_are_clean(folder: Path) -> None:
    """Readers copy them."""
    for module, name in (("counters", "Counter"), ("jobs", "Jobs")):
        assert lint_machine(load_class(module, str(folder / f"{module}.py"), name)) == []


def test_simulations_of_the_page_take_at_most_twenty_lines() -> None:
    """Workload, check, test and imports: all that somebody writes who has a machine."""
    jobs = FILES["test_jobs.py"].splitlines()[1:]
    assert sum(bool(line) for line in jobs) <= 20
    counters = FILES["test_counters.py"]
    own = counters[counters.index("def workload") :].splitlines()
    imports = [line for line in counters.splitlines() if "import" in line]
    assert "simulate_machine(" in own[-1]
    assert sum(bool(line) for line in own) + len(imports) <= 20


def test_bounds_of_the_page_are_those_of_the_contract() -> None:
    """Numbers in prose age."""
    assert (COMMAND_BYTES_MAX, RESULT_BYTES_MAX) == (1024 * 1024, 64 * 1024)
    assert f"at most {COMMAND_WRITES_MAX:,} keys" in PAGE
