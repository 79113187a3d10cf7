"""``raftstore config``: what a node would be started with."""

from __future__ import annotations

import os
from pathlib import Path

import click

from raftstore.cli.common import Context, pass_context
from raftstore.node.settings import SettingType, node_settings, resolve_settings


@click.group()
def config() -> None:
    """Show settings and where they come from, and check files of them."""


@config.command()
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--id", "node_id", help="The node's name, where the file leaves it to the flag.")
@click.option("--data-dir", help="The node's directory, where the file leaves it to the flag.")
@pass_context
def validate(context: Context, file: Path, node_id: str | None, data_dir: str | None) -> None:
    """Check a file of settings as a node would before it starts; exit code 78 if it would not.

    Environment variables count as they would for the node. Nothing is opened, made or bound.

    \b
    Example:
      raftstore config validate /etc/raftstore/n1.toml
    """
    given: dict[str, tuple[str, SettingType]] = {}
    if node_id is not None:
        given["node.name"] = ("--id", node_id)
    if data_dir is not None:
        given["node.data_dir"] = ("--data-dir", data_dir)
    settings = node_settings(resolve_settings(file=file, environment=os.environ, flags=given))
    if settings.http.listen:
        from raftstore.http.server import check_http  # takes a moment to import

        check_http(settings)
    context.say(f"{file}: a node named {settings.name} can start with these settings")


@config.command()
@click.option("--config", "file", type=click.Path(path_type=Path), help="A TOML file.")
@click.option("--origin", is_flag=True, help="Also where each value comes from.")
@pass_context
def show(context: Context, *, file: Path | None, origin: bool) -> None:
    """Every setting a node would use: flag > environment > file > default.

    \b
    Example:
      raftstore config show --config raftstore.toml --origin
    """
    rows = []
    for setting in resolve_settings(file=file, environment=os.environ).values():
        row = {"key": setting.key, "value": setting.text()}
        if origin:
            row["origin"] = setting.origin
        rows.append(row)
    context.show(rows, rows)
