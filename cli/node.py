"""``raftstore node``: one node process."""

from __future__ import annotations

import os
import signal
import sys
import threading
from pathlib import Path

import click

from raftstore.node.http_port import StartHttp
from raftstore.node.logs import configure_logging
from raftstore.node.settings import SettingType, node_settings, resolve_settings


@click.command()
@click.option("--id", "node_id", help="The node's name, as in --initial-cluster.")
@click.option("--config", "file", type=click.Path(path_type=Path), help="A TOML file.")
@click.option("--data-dir", help="Where the node keeps everything; created if missing.")
@click.option("--listen", help="host:port to bind [default: 127.0.0.1:4481].")
@click.option("--http", help='host:port of HTTP; "" for none [default: 127.0.0.1:4480].')
@click.option("--advertise", help="host:port others use [default: the listen address].")
@click.option(
    "--initial-cluster",
    help="n1=host:port,n2=host:port,n3=host:port: the founding members (first start only).",
)
@click.option("--insecure", is_flag=True, default=None, help="Allow to bind beyond loopback.")
@click.option(
    "--log-level",
    type=click.Choice(["debug", "info", "warning", "error"]),
    help="The least that is logged [default: info].",
)
@click.option("--log-json", is_flag=True, help="Log lines as JSON.")
@click.option(
    "--allow-untested-pysyncobj",
    is_flag=True,
    help="Start with an untested pysyncobj version, if its self-test passes.",
)
@click.option("--exit-with-parent", is_flag=True, hidden=True)
def node(
    node_id: str | None,
    file: Path | None,
    *,
    log_json: bool,
    allow_untested_pysyncobj: bool,
    exit_with_parent: bool,
    http: str | None,
    **flags: str | bool | None,
) -> int:
    """Run one node until SIGTERM.

    \b
    Example: the first of three nodes:
      raftstore node --id n1 --data-dir /var/lib/raftstore --listen 127.0.0.1:4481 \\
        --initial-cluster n1=127.0.0.1:4481,n2=127.0.0.1:4491,n3=127.0.0.1:4501
    """
    from raftstore.node.process import run_node

    given: dict[str, tuple[str, SettingType]] = {
        f"node.{name}": (f"--{name.replace('_', '-')}", value)
        for name, value in {"name": node_id, **flags}.items()
        if value is not None
    }
    if "node.name" in given:
        given["node.name"] = ("--id", given["node.name"][1])
    if http is not None:
        given["http.listen"] = ("--http", http)
    settings = node_settings(resolve_settings(file=file, environment=os.environ, flags=given))
    configure_logging(level=settings.log_level, node=settings.name, json_lines=log_json)
    if exit_with_parent:
        threading.Thread(target=_follow_parent, name="raftstore-parent", daemon=True).start()
    start_http: StartHttp | None = None
    if settings.http.listen:
        from raftstore.http.server import check_http, start_http  # takes a moment to import

        check_http(settings)
    return run_node(
        settings, start_http=start_http, allow_untested_pysyncobj=allow_untested_pysyncobj
    )


def _follow_parent() -> None:
    """End when stdin does: the process that started this one is gone."""
    while os.read(sys.stdin.fileno(), 1024):
        continue
    os.kill(os.getpid(), signal.SIGTERM)
