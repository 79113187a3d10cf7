"""Help: every command shows an example that can be copied as it stands."""

from __future__ import annotations

import re
from collections.abc import Iterator

import click
import pytest
from click.testing import CliRunner

from raftstore.cli.main import COMMANDS, cli


def leaves(group: click.Group, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Every command without sub-commands, by the words that name it."""
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        if isinstance(command, click.Group):
            yield from leaves(command, (*path, name))
        else:
            yield (*path, name)


@pytest.mark.parametrize("path", list(leaves(cli)), ids=" ".join)
def test_every_option_says_what_it_does(path: tuple[str, ...]) -> None:
    """A name, a type and a default are no explanation."""
    command: click.Command | None = cli
    for name in path:
        assert isinstance(command, click.Group)
        command = command.get_command(click.Context(command), name)
    assert command is not None
    options = [option for option in command.params if isinstance(option, click.Option)]
    mute = [
        option.opts
        for option in options
        if not option.hidden and not re.sub(r"\[default: .*?\]", "", option.help or "").strip()
    ]
    assert mute == []


@pytest.mark.parametrize("path", list(leaves(cli)), ids=" ".join)
def test_example_stands_on_lines_of_its_own_before_the_options(path: tuple[str, ...]) -> None:
    """An example wrapped like prose could not be copied."""
    shown = CliRunner().invoke(cli, [*path, "-h"]).output
    before_options = shown.partition("\nOptions:\n")[0].splitlines()
    start = next(n for n, line in enumerate(before_options) if line.startswith("  Example:"))
    example = before_options[start + 1]
    assert example.startswith("    raftstore ")
    assert all(word in example.split() for word in path)
    assert "\\b" not in shown


def test_help_of_the_program_names_every_command_and_exit_code() -> None:
    """The first thing a stranger reads."""
    shown = CliRunner().invoke(cli, ["-h"]).output
    assert "\n    raftstore dev --dir data\n" in shown
    for name in COMMANDS:
        assert f"\n  {name} " in shown
    assert "78 bad configuration" in " ".join(shown.split())


def test_mistyped_command_is_answered_with_the_likely_one() -> None:
    """A typo costs one look, and ends with the code of wrong usage."""
    result = CliRunner().invoke(cli, ["stauts"])
    assert result.exit_code == 2
    assert "Did you mean 'status'?" in result.output


def test_group_lists_what_it_has_at_hand_and_what_it_imports_later() -> None:
    """A command that the help does not list is found by nobody."""
    shown = CliRunner().invoke(cli, ["chaos", "-h"]).output
    for name in ("list", "run", "report", "corrupt", "power", "simulate", "campaign"):
        assert f"\n  {name} " in shown
