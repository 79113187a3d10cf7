"""A replicated, durable key-value store for Spark state, with bounded-staleness reads.

::

    import raftstore

    with raftstore.connect("127.0.0.1:4481") as client:
        client.create_table("orders", key="order_id")
        orders = client.table("orders")
        ack = orders.put({"order_id": 1, "total": 9.5})
        orders.get(1)  # linearizable
        orders.get(1, max_lag=10_000)  # any replica within the bound
        orders.get(1, at_least=ack.position)  # any replica that has this write
        orders.write_batch([{"order_id": 2}], writer="import", batch_id=7)  # atomic, exactly once

``raftstore.aio`` has the same names for asyncio, ``raftstore.errors`` every exception,
``raftstore.spark`` the Spark side (needs ``raftstore[spark]``).
"""

from __future__ import annotations

import importlib
from typing import Any

from raftstore import aio, errors
from raftstore.client.batch_writes import BatchResult, BatchTicket, TableWriters
from raftstore.client.blocking import BulkWriter, Client, ReadOnlyStore, Table, connect
from raftstore.client.blocking_batches import Stager
from raftstore.client.kip535 import NodeMetadata
from raftstore.client.position import Position
from raftstore.client.results import (
    BulkResult,
    ClusterEvents,
    ClusterStatus,
    CountResult,
    GetResult,
    KeyQueryMetadata,
    NodeStatus,
    PageResult,
    ReplicaDigest,
    ServedPart,
    TableDigest,
    WriteAck,
    WriteFate,
    WriteSummary,
)
from raftstore.client.settings import ClientSettings
from raftstore.client.stager import StagedParts
from raftstore.cluster.lag import LagInfo
from raftstore.requests import TableInfo
from raftstore.types import Level, Outcome
from raftstore.version import VERSION

__version__ = VERSION

__all__ = [
    "connect",
    "aio",
    "errors",
    "Client",
    "Table",
    "BulkWriter",
    "ClientSettings",
    "Level",
    "Outcome",
    "Position",
    "WriteAck",
    "WriteSummary",
    "WriteFate",
    "BulkResult",
    "BatchTicket",
    "BatchResult",
    "Stager",
    "StagedParts",
    "TableWriters",
    "GetResult",
    "PageResult",
    "CountResult",
    "ServedPart",
    "KeyQueryMetadata",
    "NodeMetadata",
    "LagInfo",
    "ReadOnlyStore",
    "ClusterStatus",
    "ClusterEvents",
    "NodeStatus",
    "TableInfo",
    "TableDigest",
    "ReplicaDigest",
    "__version__",
]


def __getattr__(name: str) -> Any:
    """Import what only some programs need when it is first used (Spark may be missing)."""
    if name == "spark":
        return importlib.import_module("raftstore.spark")
    if name == "LocalCluster":
        return importlib.import_module("raftstore.local_cluster").LocalCluster
    message = f"module 'raftstore' has no attribute {name!r}"
    raise AttributeError(message)
