"""Spark writes into raftstore and reads it: the ``raftstore`` format and its helpers.

Purpose: turn a DataFrame's rows into the records of a table, on Spark's executors, and report an
outcome Spark can act on. Two doors with the same guarantee: the format (batch and append-mode
streams) and ``upsert`` (update-mode streams, by way of ``foreachBatch``, because Spark refuses
update mode on Python sinks). And the way back: the format reads tables, ``lookup`` adds columns of
a table to the rows of a job.

Guarantee (isolation=batch, the default): each write, and each micro-batch of a stream, becomes
visible in all partitions at once, and once only, whatever is repeated (docs/protocol.md has the
protocol). isolation=row: a row is applied when its record is acknowledged; repetitions are harmless
because a row is an upsert by key, but a batch that failed half-way is half visible.

Owns no protocol rule and no state: everything goes through the public client. Nothing but
``raftstore.demo`` and programs may import this package; ``import raftstore`` does not, so the
library works without Spark. pyspark itself is imported only when a name that needs it is used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from raftstore.spark.read.lookup import lookup
from raftstore.spark.write.upsert import upsert, upsert_batches

if TYPE_CHECKING:
    from raftstore.spark.datasource import RaftStoreDataSource

__all__ = ["RaftStoreDataSource", "lookup", "upsert", "upsert_batches"]


def __getattr__(name: str) -> Any:
    """Import the data source on first use, so that helpers work before Java is found."""
    if name == "RaftStoreDataSource":
        from raftstore.spark.datasource import RaftStoreDataSource

        return RaftStoreDataSource
    message = f"module {__name__!r} has no attribute {name!r}"
    raise AttributeError(message)
