"""``raftstore config``: what a node would be started with."""

from __future__ import annotations

import os
from pathlib import Path

import click

from raftstore.cli.common import Context, pass_context
from raftstore.runtime.settings import resolve_settings


@click.group()
def config() -> None:
    """Show settings and where they come from."""


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
