"""``raftstore user add``: every file that it leaves is one that a node takes."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from raftstore.cli.main import cli
from raftstore.errors import ConfigError
from raftstore.http.auth import read_users
from raftstore.http.roles import Role


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
    """A missing directory and one in the file's place are reported, not thrown."""
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
    """The line there is stays as it is; a line that is none is reported with its number."""
    file = tmp_path / "users"
    add(file, "ann")
    before = file.read_text()
    assert isinstance(add(file, "ann").exception, ConfigError)
    assert file.read_text() == before
    file.write_text("nonsense\n")
    assert "line 1" in str(add(file, "bob").exception)


def user(*arguments: str, file: Path, text: str = "") -> Result:
    """Any command of this group, with a text on its stdin."""
    return CliRunner().invoke(cli, ["user", *arguments, "--file", str(file)], input=text)


def test_password_comes_from_stdin_without_being_asked_for(tmp_path: Path) -> None:
    """For scripts: the first line is the password; without it there has to be a terminal."""
    file = tmp_path / "users"
    result = user("add", "ann", "--role", "read", "--password-stdin", file=file, text="secret\n")
    assert (result.exit_code, result.stdout) == (0, "")
    assert read_users(file)[0].secret.startswith("scrypt$")
    asked = user("add", "bob", "--role", "read", file=file)
    assert (asked.exit_code, "--password-stdin" in asked.output) == (2, True)
    empty = user("add", "bob", "--role", "read", "--password-stdin", file=file, text="\n")
    assert (empty.exit_code, "is empty" in empty.output) == (2, True)


def test_password_can_be_changed_and_a_user_removed(tmp_path: Path) -> None:
    """The role, the comments, the other lines and the mode of the file stay."""
    file = tmp_path / "users"
    file.write_text("# who may what\n")
    file.chmod(0o640)
    add(file, "ann")
    user("add", "bob", "--role", "admin", "--password-stdin", file=file, text="one\n")
    before = {known.name: known.secret for known in read_users(file)}
    assert user("passwd", "bob", "--password-stdin", file=file, text="two\n").exit_code == 0
    after = {known.name: known for known in read_users(file)}
    assert after["ann"].secret == before["ann"]
    assert after["bob"].secret != before["bob"]
    assert after["bob"].role is Role.ADMIN
    assert user("rm", "ann", file=file).exit_code == 0
    assert [known.name for known in read_users(file)] == ["bob"]
    assert file.read_text().startswith("# who may what\n")
    assert file.stat().st_mode & 0o777 == 0o640
    assert [found.name for found in tmp_path.iterdir()] == ["users"]


def test_users_are_listed_without_their_secrets(tmp_path: Path) -> None:
    """Name, role, and whether it is a password or a token."""
    file = tmp_path / "users"
    add(file, "ann")
    user("add", "bob", "--role", "admin", "--password-stdin", file=file, text="one\n")
    result = user("ls", file=file)
    assert [line.split() for line in result.stdout.splitlines()] == [
        ["name", "role", "secret"],
        ["ann", "read", "token"],
        ["bob", "admin", "password"],
    ]


def test_last_user_and_an_unknown_one_are_not_removed(tmp_path: Path) -> None:
    """A file without users would keep nodes from starting; a slip names who there is."""
    file = tmp_path / "users"
    add(file, "ann")
    before = file.read_text()
    assert "the last user" in str(user("rm", "ann", file=file).exception)
    assert "there are: ann" in str(user("rm", "anne", file=file).exception)
    assert "there are: ann" in str(user("passwd", "anne", "--token", file=file).exception)
    assert file.read_text() == before
