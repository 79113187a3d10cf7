"""``raftstore user add``: lines of the file that ``http.users_file`` names."""

from __future__ import annotations

import os
from pathlib import Path

import click

from raftstore.cli.common import Context, pass_context
from raftstore.errors import ConfigError


@click.group()
def user() -> None:
    """Users of the HTTP interface."""


@user.command()
@click.argument("name")
@click.option(
    "--role",
    type=click.Choice(["read", "write", "admin"]),
    required=True,
    help="What the user may do; each role may what those before it may.",
)
@click.option(
    "--file",
    type=click.Path(path_type=Path),
    required=True,
    help="The file that http.users_file names; made if missing.",
)
@click.option("--token", is_flag=True, help="Make a token and print it, instead of a password.")
@pass_context
def add(context: Context, /, name: str, *, role: str, file: Path, token: bool) -> None:
    """Add a user, asking for the password; nodes read the file when they start.

    \b
    Example:
      raftstore user add ann --role admin --file /etc/raftstore/users
    """
    from raftstore.serving.auth import SALT_BYTES, password_entry, read_users, token_entry
    from raftstore.serving.roles import Role

    is_name = name.isprintable() and name == name.strip() and name and ":" not in name
    if not is_name or name.startswith("#"):
        raise ConfigError(f"{name!r} is no name of a user; use letters and digits")
    before = _lines(file)
    # A file without users is none that a node takes, but one to begin with.
    has_users = any(line.strip() and not line.strip().startswith("#") for line in before)
    if has_users and name in {known.name for known in read_users(file)}:
        raise ConfigError(f"{file} has a user {name!r} already; remove the line first")
    if token:
        secret = os.urandom(24).hex()
        line = token_entry(name, Role(role), secret)
    else:
        secret = click.prompt("Password", hide_input=True, confirmation_prompt=True, err=True)
        line = password_entry(name, Role(role), secret, os.urandom(SALT_BYTES))
    is_cut = bool(before) and not before[-1].endswith("\n")
    _append(file, ("\n" if is_cut else "") + line + "\n")
    if token:
        click.echo(secret)
    context.say(f"{name} may {role}; start the nodes again to let them know")


def _append(file: Path, text: str) -> None:
    try:
        descriptor = os.open(file, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        with os.fdopen(descriptor, "a", encoding="utf-8") as users:
            users.write(text)
    except OSError as error:
        raise ConfigError(f"{file} cannot be written: {error.strerror}") from error


def _lines(file: Path) -> list[str]:
    """The lines of the file, with their ends; none of one that is still to be made."""
    try:
        return file.read_text(encoding="utf-8").splitlines(keepends=True)
    except FileNotFoundError:
        if file.parent.is_dir():
            return []
        raise ConfigError(f"there is no directory {file.parent}; make it first") from None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{file} cannot be read: {error}") from error
