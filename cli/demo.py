"""``raftstore demo``: the main job."""

from __future__ import annotations

from pathlib import Path

import click
from rich.console import Console

from raftstore.errors import ConfigError


@click.command()
@click.option("--input", "input_path", type=click.Path(path_type=Path), help="csv, json, parquet.")
@click.option("--key", help="Key columns of --input, by comma [default: the first column].")
@click.option("--group-by", default="", help="Column of --input to aggregate by.")
@click.option(
    "--source",
    type=click.Choice(["packages", "files", "characters"]),
    help="Which data of this machine [default: the first with at least 50,000 rows].",
)
@click.option("--keep", type=click.Path(path_type=Path), help="Keep everything in this directory.")
@click.option("--short", is_flag=True, help="Fewer rows and files; for a quick check.")
def demo(
    *,
    input_path: Path | None,
    key: str | None,
    group_by: str,
    source: str | None,
    keep: Path | None,
    short: bool,
) -> int:
    """Spark into three nodes, queried through a kill -9, then compared with Spark's own result.

    \b
    Example:
      raftstore demo
      raftstore demo --input orders.csv --key order_id
    """
    try:
        from raftstore.demo.run import DemoOptions, run_demo
    except ImportError as error:
        raise ConfigError(
            f'the demo needs Spark ({error}); install it with pip install "raftstore[spark]"'
        ) from error
    options = DemoOptions(
        input_path=input_path,
        key=tuple(key.split(",")) if key else (),
        group_by=group_by,
        source=source or "",
        keep=keep,
        is_short=short,
    )
    return run_demo(options, Console())
