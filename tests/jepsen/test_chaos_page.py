"""docs/chaos.md keeps its word."""

from __future__ import annotations

import re
from pathlib import Path

from click.testing import CliRunner

from jepsen_like.cli import main
from raftstore.cli.main import cli

PAGE = (Path(__file__).parents[2] / "docs" / "chaos.md").read_text(encoding="utf-8")


def test_history_of_the_page_is_read_and_judged(tmp_path: Path) -> None:
    """Given the page's example alone, a reader can write histories of another store."""
    lines = re.findall(r'^\{"process".*\}$', PAGE, flags=re.MULTILINE)
    history = tmp_path / "history.jsonl"
    history.write_text("\n".join(lines) + "\n")
    done = CliRunner().invoke(main, ["check", str(history), "--model", "register"])
    assert done.exit_code == 0, done.output
    history.write_text("\n".join(lines).replace('"result": 1', '"result": 2') + "\n")
    assert CliRunner().invoke(main, ["check", str(history), "--model", "register"]).exit_code == 7


def test_commands_of_the_page_have_the_options_it_shows() -> None:
    """A renamed option is noticed here, not by a reader."""
    shown = re.findall(r"^raftstore chaos (\w+)(.*)$", PAGE, flags=re.MULTILINE)
    assert {command for command, _ in shown} >= {"list", "run", "report", "simulate"}
    for command, rest in shown:
        help_ = CliRunner().invoke(cli, ["chaos", command, "-h"])
        assert help_.exit_code == 0, command
        for option in re.findall(r"--[a-z-]+", rest):
            assert option in help_.output, f"chaos {command} {option}"
