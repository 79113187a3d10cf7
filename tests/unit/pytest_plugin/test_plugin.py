"""The pytest plugin: seeds from the command line, worlds, and nothing for those who use neither."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
TEST = """
import raftstore
from raftstore.recipes import Counter
from raftstore.testing import Command, Query

def additions(rng):
    return Command("a", rng.randint(1, 9)) if rng.random() < 0.7 else Query("a")

def test_counter(raftstore_world):
    runs = raftstore_world(Counter, additions, seeds=[1], operations=5)
    assert runs.seeds == SEEDS
"""


def pytest_run(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """A run of pytest as users have it, by the plugin alone."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "pytest_raftstore", *arguments]
    environment = {"PYTHONPATH": str(ROOT), "PATH": "", "HOME": str(folder)}
    return subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=120,
        check=False,
    )  # fmt: skip


@pytest.mark.slow
def test_seeds_of_the_command_line_replace_those_of_a_test(tmp_path: Path) -> None:
    """A failing seed is replayed without an edit."""
    (tmp_path / "test_worlds.py").write_text(TEST.replace("SEEDS", "[3, 4]"), encoding="utf-8")
    done = pytest_run(tmp_path, "--raftstore-seeds", "3..4")
    assert done.returncode == 0, done.stdout[-2000:]
    assert "1 passed" in done.stdout


@pytest.mark.slow
def test_a_wrong_range_of_seeds_is_refused_with_the_remedy(tmp_path: Path) -> None:
    """Nothing is simulated by mistake."""
    done = pytest_run(tmp_path, "--raftstore-seeds", "4..3")
    assert done.returncode == pytest.ExitCode.USAGE_ERROR
    assert "--raftstore-seeds 4..3 is no range; write A..B" in done.stderr


@pytest.mark.slow
def test_a_run_without_raftstore_imports_nothing_of_it(tmp_path: Path) -> None:
    """A run of somebody else's tests is not slowed down by the plugin being installed."""
    text = "import sys\ndef test_it():\n    assert 'raftstore' not in sys.modules\n"
    (tmp_path / "test_other.py").write_text(text, encoding="utf-8")
    done = pytest_run(tmp_path)
    assert done.returncode == 0, done.stdout[-2000:]


def test_seeds_are_an_environment_variable_of_the_simulation() -> None:
    """The plugin cannot import the name, so it has it once more."""
    import pytest_raftstore
    from raftstore.testing.machines.simulate import SEEDS_VARIABLE

    assert pytest_raftstore.SEEDS_VARIABLE == SEEDS_VARIABLE
