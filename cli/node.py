"""``raftstore node``: one node process."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from pathlib import Path

import click

from raftstore.cli.common import Context, pass_context
from raftstore.cli.errors import EXIT_UNAVAILABLE
from raftstore.errors import ArgumentError, StillMemberError
from raftstore.node.http_port import StartHttp
from raftstore.node.logs import configure_logging
from raftstore.node.settings import SettingType, node_settings, resolve_settings
from raftstore.node.units import parse_duration_ms

DECOMMISSION_LOOK_S = 0.5
"""Pause between two looks whether the node has replicas left."""


@click.group(invoke_without_command=True)
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
@click.option("--failure-domain", help="What fails with it, such as a rack [default: none].")
@click.option("--join", help="A token of `raftstore cluster token` (first start only).")
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
@click.pass_context
def node(
    context: click.Context,
    /,
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
    if context.invoked_subcommand is not None:
        return 0
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


@node.command()
@click.argument("name")
@click.option(
    "--wait",
    default="10m",
    show_default=True,
    metavar="TIME",
    help="Longest time that its replicas may take to be elsewhere.",
)
@pass_context
def decommission(context: Context, name: str, wait: str) -> int:
    """Let a node go: drain it, wait until it has no replica, and retire it.

    Stopping it with Ctrl-C, or the end of --wait, leaves the node draining: repeat it later.

    \b
    Example:
      raftstore node decommission n3
    """
    try:
        left_s = parse_duration_ms(wait) / 1000
    except ValueError as error:
        raise ArgumentError(f"--wait: {error}") from error
    context.confirm(f"Node {name} leaves the cluster for ever.")
    until_s = time.monotonic() + left_s
    said = ""
    with context.connect() as client:
        client.drain_node(name)
        while True:
            try:
                client.remove_node(name)
            except StillMemberError as error:
                if time.monotonic() >= until_s:
                    raise
                if str(error) != said:
                    said = str(error)
                    context.say(said)
                time.sleep(DECOMMISSION_LOOK_S)
            else:
                break
    context.say(f"{name} has left the cluster; its data directory may be removed")
    return 0


@node.command()
@click.argument("names", nargs=-1)
@pass_context
def checkpoint(context: Context, names: tuple[str, ...]) -> int:
    """Have nodes sync what they acknowledged before it was on their disks.

    Tables with --durability buffered or memory acknowledge writes before they are synced. Behind a
    checkpoint nothing of that can be lost, until the next write: before power is switched off, or a
    disk's image is taken. Without names it is done by all nodes. The signal SIGUSR1 does it at one
    node, and a clean stop (SIGTERM) does it, too.

    \b
    Example:
      raftstore node checkpoint
      raftstore node checkpoint n1
    """
    with context.connect() as client:
        said = client.checkpoint(names)
    rows = [
        {"node": name, "channel": channel, "durable_seq": seq}
        for name, found in said.items()
        if not isinstance(found, str)
        for channel, seq in sorted(found.items())
    ]
    context.show(said, rows)
    failed = {name: why for name, why in said.items() if isinstance(why, str)}
    for name, why in failed.items():
        context.say(f"{name} made no checkpoint: {why}")
    if not rows and not failed:
        context.say("every table here asks for fsync: its writes are synced before they count")
    return EXIT_UNAVAILABLE if failed else 0


def _follow_parent() -> None:
    """End when stdin does: the process that started this one is gone."""
    while os.read(sys.stdin.fileno(), 1024):
        continue
    os.kill(os.getpid(), signal.SIGTERM)
