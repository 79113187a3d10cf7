"""The client for asyncio programs.

::

    async with raftstore.aio.connect("127.0.0.1:4481") as client:
        await client.table("orders").put({"order_id": 1})

``client = await raftstore.aio.connect(...)`` does the same for those who close it themselves.
"""

# ruff: noqa: ASYNC109 - timeout is what our callers expect to name, here as in blocking.py

from __future__ import annotations

from collections.abc import Sequence

from raftstore.client.asyncio_client import AsyncClient
from raftstore.client.auditing.audit import Audit
from raftstore.client.batches.stager import AsyncStager
from raftstore.client.kip535 import AsyncReadOnlyStore
from raftstore.client.machines.channel_set import AsyncChannelSet
from raftstore.client.opened import opening
from raftstore.client.settings import ClientSettings
from raftstore.client.table import AsyncTable
from raftstore.client.writes.bulk import AsyncBulkWriter

__all__ = [
    "connect",
    "AsyncClient",
    "AsyncTable",
    "AsyncChannelSet",
    "AsyncBulkWriter",
    "AsyncStager",
    "AsyncReadOnlyStore",
]


@opening
async def connect(
    endpoints: str | Sequence[str],
    *,
    timeout: float | None = None,
    settings: ClientSettings | None = None,
    audit: Audit | None = None,
) -> AsyncClient:
    """Find a cluster by any of its nodes' addresses.

    Takes what ``raftstore.connect`` takes. Await it, or enter it with ``async with``, which closes
    the client at the end.
    """
    return await AsyncClient.connect(endpoints, timeout=timeout, settings=settings, audit=audit)
