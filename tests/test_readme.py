"""The README keeps its word: its examples run, its links and commands exist."""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from raftstore.cli.main import cli

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
EXAMPLES = re.findall(r"```python\n(.*?)```", README, flags=re.DOTALL)


def run(example: str) -> None:
    """Run an example as a program of its own."""
    done = subprocess.run(
        [sys.executable, "-c", example], capture_output=True, text=True, timeout=200, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]


def test_readme_has_a_blocking_an_asyncio_and_a_spark_example() -> None:
    """The ways in are shown, in this order."""
    assert len(EXAMPLES) == 3
    assert "raftstore.aio" in EXAMPLES[1]
    assert "SparkSession" in EXAMPLES[2]


@pytest.mark.cluster
@pytest.mark.parametrize("number", [0, 1])
def test_python_example_runs(number: int) -> None:
    """The examples in Python work as they stand."""
    run(EXAMPLES[number])


@pytest.mark.spark
def test_spark_example_runs() -> None:
    """The Spark example works as it stands."""
    run(EXAMPLES[2])


@pytest.mark.parametrize(
    "page", sorted([ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]), ids=lambda page: page.name
)
def test_links_lead_somewhere(page: Path) -> None:
    """Every relative link of the documentation resolves."""
    for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text(encoding="utf-8")):
        assert (page.parent / target).exists(), f"{page.name} links to {target}"


def test_commands_of_the_readme_exist() -> None:
    """Every `raftstore …` line of the README names a command that there is."""
    named = set(
        re.findall(
            r"^raftstore (\w+) .*$", README.partition("## From a shell")[2], flags=re.MULTILINE
        )
    )
    context = cli.make_context("raftstore", ["-h"], resilient_parsing=True)
    assert named
    assert named <= set(cli.list_commands(context))


@pytest.mark.cluster
def test_shell_lines_run_as_they_stand(tmp_path: Path) -> None:
    """The first lines a stranger types work one after another, with what dev says to type."""
    block = README.partition("## From a shell")[2].partition("```\n")[2].partition("```")[0]
    lines = [line.partition("  #")[0].strip() for line in block.splitlines()]
    assert lines[0] == "raftstore dev --dir data"
    export, _, shown = lines[1].partition("=")
    assert shown.startswith("127.0.0.1:")
    program = [sys.executable, "-m", "raftstore.cli.main"]
    with (tmp_path / "table").open("w") as table, subprocess.Popen(
        [*program, "dev", "--dir", str(tmp_path / "data")],
        stdout=table, stderr=subprocess.PIPE, text=True,
    ) as dev:  # fmt: skip
        try:
            assert dev.stderr is not None
            told = next(line for line in dev.stderr if line.startswith(f"{export}="))
            variable, _, value = told.removeprefix("export ").strip().partition("=")
            for line in lines[2:]:
                done = subprocess.run(
                    [*program, *shlex.split(line)[1:]], capture_output=True, text=True,
                    timeout=60, check=False, env={**os.environ, variable: value}, cwd=tmp_path,
                )  # fmt: skip
                assert done.returncode == 0, f"{line}: {done.stderr[-1000:]}"
                if line.startswith("raftstore get"):
                    assert "9.5" in done.stdout
        finally:
            dev.send_signal(signal.SIGINT)
