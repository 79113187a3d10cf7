"""``raftstore dev``: a supervised cluster on this machine."""

from __future__ import annotations

import json
import signal
import threading
from pathlib import Path

import click

from raftstore.cli.common import Context, pass_context
from raftstore.local_cluster import LocalCluster

RESTART_AFTER_S = 1.0


@click.command()
@click.option("--nodes", type=int, default=3, show_default=True)
@click.option("--dir", "directory", type=click.Path(path_type=Path), help="Keeps data and logs.")
@click.option("--no-restart", is_flag=True, help="Leave a node that died dead.")
@pass_context
def dev(context: Context, *, nodes: int, directory: Path | None, no_restart: bool) -> None:
    r"""Run a local cluster of real node processes until Ctrl-C.

    \b
    Example:
      raftstore dev --nodes 3 --dir data
    """
    stop = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stop.set())
    with LocalCluster(nodes, directory=directory) as cluster:
        _introduce(context, cluster)
        while not stop.wait(RESTART_AFTER_S):
            dead = [name for name in cluster.endpoints_by_node() if name not in cluster.running()]
            for name in () if no_restart else dead:
                context.say(f"{name} died; starting it again (log: {cluster.log_file(name)})")
                cluster.start(name)
        context.say("stopping")
        for name in cluster.running():
            cluster.stop(name)


def _introduce(context: Context, cluster: LocalCluster) -> None:
    rows = [
        {
            "id": name,
            "endpoint": endpoint,
            "pid": cluster.pid(name),
            "dir": str(cluster.directory / name),
        }
        for name, endpoint in cluster.endpoints_by_node().items()
    ]
    if context.output == "json":
        click.echo(json.dumps({"nodes": rows}))
    else:
        context.show(rows, rows)
        context.say(f"export RAFTSTORE_ENDPOINTS={','.join(cluster.endpoints)}")
