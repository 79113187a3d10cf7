"""Spark writes into raftstore: the ``raftstore`` format and its helpers.

Purpose: turn a DataFrame's rows into the records of a table, on Spark's executors, and report an
outcome Spark can act on. Two doors with the same guarantee: the format (batch and append-mode
streams) and ``upsert`` (update-mode streams, by way of ``foreachBatch``, because Spark refuses
update mode on Python sinks).

Guarantee: a row is applied when its record is acknowledged; a task that fails is repeated by Spark
and a micro-batch that was interrupted is replayed, and both are harmless because a row is an upsert
by key. Not promised here: that a micro-batch becomes visible all at once (rows of a batch that
failed half-way stay until its replay overwrites them).

Owns no protocol rule and no state: everything goes through the public client. Nothing but
``raftstore.demo`` and programs may import this package; ``import raftstore`` does not, so the
library works without Spark. pyspark itself is imported only when a name that needs it is used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from raftstore.spark.upsert import upsert, upsert_batches

if TYPE_CHECKING:
    from raftstore.spark.datasource import RaftStoreDataSource

__all__ = ["RaftStoreDataSource", "upsert", "upsert_batches"]


def __getattr__(name: str) -> Any:
    """Import the data source on first use, so that helpers work before Java is found."""
    if name == "RaftStoreDataSource":
        from raftstore.spark.datasource import RaftStoreDataSource

        return RaftStoreDataSource
    message = f"module {__name__!r} has no attribute {name!r}"
    raise AttributeError(message)
