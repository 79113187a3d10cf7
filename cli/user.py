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
@click.option("--role", type=click.Choice(["read", "write", "admin"]), required=True)
@click.option("--file", type=click.Path(path_type=Path), required=True, help="http.users_file")
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

    if not name or ":" in name or name.startswith("#") or name != name.strip():
        raise ConfigError(f"{name!r} is no name of a user; use letters and digits")
    if file.exists() and name in {known.name for known in read_users(file)}:
        raise ConfigError(f"{file} has a user {name!r} already; remove the line first")
    if token:
        secret = os.urandom(24).hex()
        line = token_entry(name, Role(role), secret)
    else:
        secret = click.prompt("Password", hide_input=True, confirmation_prompt=True, err=True)
        line = password_entry(name, Role(role), secret, os.urandom(SALT_BYTES))
    descriptor = os.open(file, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    with os.fdopen(descriptor, "a", encoding="utf-8") as users:
        users.write(line + "\n")
    if token:
        click.echo(secret)
    context.say(f"{name} may {role}; start the nodes again to let them know")
