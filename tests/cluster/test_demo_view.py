"""The demo's live view: drawn from a real cluster's status, on a terminal and elsewhere."""

from __future__ import annotations

import asyncio
import io

import pytest
from rich.console import Console

from raftstore import LocalCluster, aio
from raftstore.demo.load import Load
from raftstore.demo.view import Scene, View

pytestmark = pytest.mark.cluster


def draw(*, is_terminal: bool) -> str:
    """Show a scene with a cluster, a table and some load; return what was printed."""
    output = io.StringIO()
    console = Console(file=output, force_terminal=is_terminal, width=120)

    async def show(cluster: LocalCluster) -> None:
        client = await aio.connect(cluster.endpoints, timeout=20.0)
        await client.create_table("orders", key="id", partitions=2)
        scene = Scene(rows_total=10)
        scene.load = Load(client, [("orders", [1])])
        scene.load.writes.succeeded()
        scene.status = await client.cluster_status(timeout=20.0)
        with View(scene, console) as view:
            view.tell("kill -9 n2, which leads most channels")
            view.tick()
            console.print(view._render())
        await client.close()

    with LocalCluster(nodes=3) as cluster:
        asyncio.run(show(cluster))
    return output.getvalue()


def test_view_draws_channels_leaders_and_what_happened_on_a_terminal() -> None:
    """A person sees each channel with its leader and lag, the clients and the events."""
    text = draw(is_terminal=True)
    for part in ("orders/0", "orders/1", "LEADER", "steady", "single puts", "kill -9 n2"):
        assert part in text


def test_view_prints_plain_lines_when_not_on_a_terminal() -> None:
    """A log file gets one line at a time, without cursor movements."""
    text = draw(is_terminal=False)
    assert "kill -9 n2" in text
    assert "rows 0 of 10" in text
    assert "\x1b[" not in text
