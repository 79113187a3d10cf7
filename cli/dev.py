"""``raftstore dev``: a supervised cluster on this machine."""

from __future__ import annotations

import signal
import threading
from pathlib import Path

import click

from raftstore.cli.common import Context, json_text, pass_context
from raftstore.cli.errors import EXIT_CONFIG
from raftstore.local_cluster import LocalCluster

RESTART_AFTER_S = 1.0


@click.command()
@click.option(
    "--nodes", type=int, default=3, show_default=True, help="How many, each a process of its own."
)
@click.option("--dir", "directory", type=click.Path(path_type=Path), help="Keeps data and logs.")
@click.option("--no-restart", is_flag=True, help="Leave a node that died dead.")
@pass_context
def dev(context: Context, *, nodes: int, directory: Path | None, no_restart: bool) -> None:
    """Run a local cluster of real node processes until Ctrl-C.

    The nodes take free ports; the line `export RAFTSTORE_ENDPOINTS=…` that it prints shows other
    shells where they are.

    \b
    Example:
      raftstore dev --nodes 3 --dir data
    """
    # Until everything runs, either signal ends the start; after that the loop below ends.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with LocalCluster(nodes, directory=directory, http=True) as cluster:
        stop = threading.Event()
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, lambda *_: stop.set())
        _introduce(context, cluster)
        _supervise(context, cluster, stop, is_restarting=not no_restart)
        context.say("stopping")
        for name in cluster.running():
            cluster.stop(name)


def _supervise(
    context: Context, cluster: LocalCluster, stop: threading.Event, *, is_restarting: bool
) -> None:
    """Report every death; start a dead node again a second later, unless it would be in vain."""
    dead: dict[str, bool] = {}  # name -> whether it shall be started again
    while not stop.wait(RESTART_AFTER_S):
        for name, is_wanted in tuple(dead.items()):
            if is_wanted:
                del dead[name]
                cluster.start(name)
                context.say(f"{name} is started again, pid {cluster.pid(name)}")
        for name, code in cluster.ended().items():
            if name not in dead:
                dead[name] = is_restarting and code != EXIT_CONFIG
                what = "starting it again" if dead[name] else "it stays down"
                context.say(
                    f"{name} ended with exit code {code}; {what} (log: {cluster.log_file(name)})"
                )


def _introduce(context: Context, cluster: LocalCluster) -> None:
    rows = [
        {
            "id": name,
            "endpoint": endpoint,
            "http": cluster.http_by_node()[name],
            "pid": cluster.pid(name),
            "dir": str(cluster.directory / name),
        }
        for name, endpoint in cluster.endpoints_by_node().items()
    ]
    if context.output == "json":
        click.echo(json_text({"nodes": rows}))
    else:
        context.show(rows, rows)
        context.say(f"export RAFTSTORE_ENDPOINTS={','.join(cluster.endpoints)}")
