"""``raftstore user``: lines of the file that ``http.users_file`` names."""

from __future__ import annotations

import os
import stat
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from raftstore.cli.common import Context, pass_context
from raftstore.errors import ConfigError

_READ_AGAIN = "running nodes read the file again within a second or two"


@click.group()
def user() -> None:
    """Users of the HTTP interface: the lines of the file that http.users_file names."""


def _file_option(command: Callable[..., Any]) -> Callable[..., Any]:
    return click.option(
        "--file",
        type=click.Path(path_type=Path),
        required=True,
        help="The file that http.users_file names; `add` makes it if it is missing.",
    )(command)


def _secret_options(command: Callable[..., Any]) -> Callable[..., Any]:
    for option in (
        click.option(
            "--password-stdin",
            is_flag=True,
            help="Take the password from the first line of stdin, without asking.",
        ),
        click.option(
            "--token", is_flag=True, help="Make a token and print it, instead of a password."
        ),
    ):
        command = option(command)
    return command


@user.command()
@click.argument("name")
@click.option(
    "--role",
    type=click.Choice(["read", "write", "admin"]),
    required=True,
    help="What the user may do; each role may what those before it may.",
)
@_file_option
@_secret_options
@pass_context
def add(
    context: Context,
    /,
    name: str,
    *,
    role: str,
    file: Path,
    token: bool,
    password_stdin: bool,
) -> None:
    """Add a user, asking for the password.

    \b
    Example:
      raftstore user add ann --role admin --file /etc/raftstore/users
      pass show raftstore | raftstore user add job --role write --file users --password-stdin
    """
    is_name = name.isprintable() and name == name.strip() and name and ":" not in name
    if not is_name or name.startswith("#"):
        raise ConfigError(f"{name!r} is no name of a user; use letters and digits")
    before = _lines(file)
    if name in _roles(file, before):
        raise ConfigError(
            f"{file} has a user {name!r} already; change the password with `raftstore user passwd`"
        )
    line, secret = _entry(name, role, token=token, password_stdin=password_stdin)
    is_cut = bool(before) and not before[-1].endswith("\n")
    _append(file, ("\n" if is_cut else "") + line + "\n")
    if token:
        click.echo(secret)
    context.say(f"{name} may {role}; {_READ_AGAIN}")


@user.command("ls")
@_file_option
@pass_context
def list_users(context: Context, *, file: Path) -> None:
    """List users with their roles, and whether each has a password or a token.

    \b
    Example:
      raftstore user ls --file /etc/raftstore/users
    """
    from raftstore.http.auth import read_users

    rows = [
        {
            "name": known.name,
            "role": known.role.value,
            "secret": "token" if known.secret.startswith("sha256$") else "password",
        }
        for known in (read_users(file) if _roles(file, _lines(file)) else ())
    ]
    context.show(rows, rows)


@user.command("rm")
@click.argument("name")
@_file_option
@pass_context
def remove(context: Context, /, name: str, *, file: Path) -> None:
    """Remove a user. The last one cannot be removed: a file without users is none.

    \b
    Example:
      raftstore user rm ann --file /etc/raftstore/users
    """
    before = _lines(file)
    roles = _known(file, before, name)
    if len(roles) == 1:
        raise ConfigError(
            f"{name!r} is the last user of {file}, and nodes do not start with a file that names "
            "none; to let everybody in, take http.users_file out of their settings"
        )
    _replace(file, [line for line in before if not _is_of(line, name)])
    context.say(f"{name} is removed; {_READ_AGAIN}")


@user.command()
@click.argument("name")
@_file_option
@_secret_options
@pass_context
def passwd(
    context: Context, /, name: str, *, file: Path, token: bool, password_stdin: bool
) -> None:
    """Give a user another password, or a token, asking for the password; the role stays.

    \b
    Example:
      raftstore user passwd ann --file /etc/raftstore/users
    """
    before = _lines(file)
    role = _known(file, before, name)[name]
    line, secret = _entry(name, role, token=token, password_stdin=password_stdin)
    _replace(file, [line + "\n" if _is_of(old, name) else old for old in before])
    if token:
        click.echo(secret)
    context.say(f"{name} has another {'token' if token else 'password'}; {_READ_AGAIN}")


def _entry(name: str, role: str, *, token: bool, password_stdin: bool) -> tuple[str, str]:
    """A line of the file, and the secret in it."""
    from raftstore.http.auth import SALT_BYTES, password_entry, token_entry
    from raftstore.http.roles import Role

    if token and password_stdin:
        raise click.UsageError("--token makes its secret itself: leave --password-stdin out.")
    if token:
        secret = os.urandom(24).hex()
        return token_entry(name, Role(role), secret), secret
    if password_stdin:
        secret = sys.stdin.readline().rstrip("\r\n")
        if not secret:
            raise click.UsageError("--password-stdin: the first line of stdin is empty.")
    else:
        if not sys.stdin.isatty():
            raise click.UsageError(
                "There is no terminal to ask for the password: pass --password-stdin, or --token."
            )
        secret = click.prompt("Password", hide_input=True, confirmation_prompt=True, err=True)
    return password_entry(name, Role(role), secret, os.urandom(SALT_BYTES)), secret


def _known(file: Path, lines: list[str], name: str) -> dict[str, str]:
    """The roles of all users; ConfigError unless one has this name."""
    roles = _roles(file, lines)
    if name not in roles:
        known = ", ".join(sorted(roles)) or "none"
        raise ConfigError(f"{file} has no user {name!r} (there are: {known})")
    return roles


def _roles(file: Path, lines: list[str]) -> dict[str, str]:
    """Role by name; a file without users is none that a node takes, but one to begin with."""
    from raftstore.http.auth import read_users

    if not any(line.strip() and not line.strip().startswith("#") for line in lines):
        return {}
    return {known.name: known.role.value for known in read_users(file)}


def _is_of(line: str, name: str) -> bool:
    text = line.strip()
    return not text.startswith("#") and text.partition(":")[0] == name


def _append(file: Path, text: str) -> None:
    try:
        descriptor = os.open(file, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        with os.fdopen(descriptor, "a", encoding="utf-8") as users:
            users.write(text)
    except OSError as error:
        raise ConfigError(f"{file} cannot be written: {error.strerror}") from error


def _replace(file: Path, lines: list[str]) -> None:
    """Put a whole file in the place of the old one: a node never reads half of it."""
    try:
        before = file.stat()
        descriptor, name = tempfile.mkstemp(dir=file.parent, prefix=f".{file.name}.")
        try:
            with os.fdopen(descriptor, "w", encoding="utf-8") as users:
                users.writelines(lines)
                users.flush()
                os.fchmod(users.fileno(), stat.S_IMODE(before.st_mode))
                os.fchown(users.fileno(), before.st_uid, before.st_gid)
                os.fsync(users.fileno())
            Path(name).replace(file)
        except BaseException:
            Path(name).unlink(missing_ok=True)
            raise
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
