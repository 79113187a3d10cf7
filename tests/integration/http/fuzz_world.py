"""The application for the fuzzer, which calls it from threads and loops of its own."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from raftstore import aio
from raftstore.http.app import build_app
from raftstore.protocol.admin import ClusterView, ClusterViewAnswer
from raftstore.protocol.message import Done, Request
from raftstore.protocol.reads import Bounds
from raftstore.protocol.requests import ClientAnswer
from raftstore.types import NodeId
from tests.integration.client.fake_cluster import CLUSTER_ID, FakeCluster
from tests.integration.client.play import QUICK
from tests.integration.http.http_play import FakeGateway, call
from tests.integration.http.test_rows import schema_of


def own_node(request: Request) -> ClientAnswer:
    """Answer like a node that knows nobody else."""
    if isinstance(request, ClusterView):
        return ClusterViewAnswer(
            request.request_id, NodeId("n1.x"), CLUSTER_ID, 1, 0, Bounds(10_000), (), ()
        )
    return Done(request.request_id)


@contextmanager
def bridged_app() -> Iterator[Any]:
    """An ASGI application that runs on one loop for all of its callers."""
    ready: list[Any] = []
    started = threading.Event()

    async def serve() -> None:
        async with FakeCluster() as cluster:
            cluster.add_table("t", 2)
            cluster.add_table("doubles", 1, schema_json=schema_of(id="double", v="double"))
            async with await aio.connect(cluster.endpoints, settings=QUICK) as client:
                done = asyncio.Event()
                app = build_app(FakeGateway(real=client, own=own_node))
                ready.extend((app, asyncio.get_running_loop(), done))
                started.set()
                await done.wait()

    thread = threading.Thread(target=lambda: asyncio.run(serve()))
    thread.start()
    started.wait()
    app, loop, done = ready

    async def bridge(scope: dict[str, Any], receive: Any, send: Any) -> None:
        assert scope["type"] == "http"
        body, more = b"", True
        while more:
            message = await receive()
            body += message.get("body", b"")
            more = message.get("more_body", False)
        future = asyncio.run_coroutine_threadsafe(call(app, scope, body), loop)
        reply = await asyncio.wrap_future(future)
        headers = [(name.encode(), value.encode()) for name, value in reply.headers.items()]
        await send({"type": "http.response.start", "status": reply.status, "headers": headers})
        await send({"type": "http.response.body", "body": reply.content})

    try:
        yield bridge
    finally:
        loop.call_soon_threadsafe(done.set)
        thread.join()
