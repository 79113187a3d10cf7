"""``raftstore user add``: every file that it leaves is one that a node takes."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from raftstore.cli.main import cli
from raftstore.errors import ConfigError
from raftstore.serving.auth import read_users


def add(file: Path, name: str) -> Result:
    """Add a user with a token."""
    arguments = ["user", "add", name, "--role", "read", "--file", str(file), "--token"]
    return CliRunner().invoke(cli, arguments)


@pytest.mark.parametrize("text", ["", "\n", "# who may read\n", "  # no end of line"])
def test_file_without_users_is_one_to_begin_with(tmp_path: Path, text: str) -> None:
    """It may have been made beforehand, with its owner and a comment."""
    file = tmp_path / "users"
    file.write_text(text)
    assert add(file, "ann").exit_code == 0
    assert [user.name for user in read_users(file)] == ["ann"]
    assert file.read_text().startswith(text)


def test_line_without_end_is_ended_first(tmp_path: Path) -> None:
    """Editors leave such files; two entries on one line would keep nodes from starting."""
    file = tmp_path / "users"
    add(file, "ann")
    file.write_text(file.read_text().rstrip("\n"))
    assert add(file, "bob").exit_code == 0
    assert [user.name for user in read_users(file)] == ["ann", "bob"]


@pytest.mark.parametrize("place", ["missing/users", "."])
def test_file_that_cannot_be_written_is_named(tmp_path: Path, place: str) -> None:
    """A missing directory and one in the file's place are told, not thrown."""
    found = add(tmp_path / place, "ann")
    assert isinstance(found.exception, ConfigError)
    assert str(tmp_path) in str(found.exception)
    assert found.stdout == ""


@pytest.mark.parametrize("name", ["", " ann", "ann:x", "#ann", "ann\nbob", "\udcff"])
def test_name_that_the_file_cannot_hold_is_refused(tmp_path: Path, name: str) -> None:
    """Nothing is written that would be read as something else."""
    file = tmp_path / "users"
    assert isinstance(add(file, name).exception, ConfigError)
    assert not file.exists()


def test_user_is_added_once(tmp_path: Path) -> None:
    """The line there is stays as it is; a line that is none is told with its number."""
    file = tmp_path / "users"
    add(file, "ann")
    before = file.read_text()
    assert isinstance(add(file, "ann").exception, ConfigError)
    assert file.read_text() == before
    file.write_text("nonsense\n")
    assert "line 1" in str(add(file, "bob").exception)
