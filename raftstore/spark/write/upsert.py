"""The door for update mode: Spark refuses it on Python sinks, ``foreachBatch`` takes it.

Runs on the driver: once per micro-batch Spark calls the function made here, and that writes the
batch through the same format, tasks and guarantees as a direct write, under the query's name and
the batch's number.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final
from uuid import UUID

from raftstore.errors import ConfigError
from raftstore.spark.identity import QUERY_PROPERTY
from raftstore.spark.options import option_names, parse_options

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_REMOTE: Final = "SPARK_CONNECT_MODE_ENABLED"
"""Set by pyspark in sessions of Spark Connect."""
_RUN_PROPERTY: Final = "spark.jobGroup.id"
"""Each run of a query is a job group, named by a uuid."""
_written: Final[dict[tuple[str, str, str], tuple[str, int]]] = {}
"""(servers, table, writer) -> the run and batch written last by this driver."""


def upsert(
    table: str,
    *,
    bootstrap_servers: str | Sequence[str],
    key: str | Sequence[str] = (),
    **options: Any,
) -> Callable[[DataFrame, int], None]:
    """Return a function for ``foreachBatch`` that upserts each micro-batch into ``table``.

    ``key`` names the key columns (not needed when the table exists); other options as for the
    format, in snake_case or camelCase. They are checked here, when the query is written, not when
    its first batch arrives. Each micro-batch is written once, all at once: one that Spark replays
    is in the table already. The writer is the query, or ``writer_id``, which a Spark Connect
    session has to name, and which a query needs to go on with a new checkpoint's name. Two of these
    functions with one table in one query need two writers. Where Spark Connect does not reveal the
    checkpoint, ``lineage`` names it: give another one with each new checkpoint.

    ::

        counts = events.groupBy("page").count()
        counts.writeStream.outputMode("update").foreachBatch(
            upsert("page_counts", bootstrap_servers="127.0.0.1:4481", key="page")
        ).option("checkpointLocation", "/checkpoints/pages").start()
    """
    given = {"bootstrap.servers": bootstrap_servers, "table": table, **options}
    if key:
        given["key"] = key
    texts = option_names(given)
    parsed = parse_options(texts)
    if parsed.batch_id is not None:
        raise ConfigError(
            "[RAFTSTORE_OPTION_INVALID] batchId is Spark's in foreachBatch: leave it out"
        )
    if parsed.isolation == "batch" and not parsed.writer_id and os.environ.get(_REMOTE):
        raise _no_writer()

    def upsert_batch(batch: DataFrame, batch_id: int) -> None:
        writing = batch.write.format("raftstore").options(**texts)
        if parsed.isolation == "batch":
            query = _query_of(batch)
            writer = parsed.writer_id or query
            if not writer:
                raise _no_writer()
            place = (parsed.bootstrap_servers, parsed.table, writer)
            now = (_run_of(batch), batch_id)
            if now[0] and _written.get(place) == now:
                raise _written_twice(parsed.table, writer, batch_id)
            writing = writing.options(writerId=writer, batchId=batch_id)
            writing = writing.option("lineage", parsed.lineage or query)
            writing.mode("append").save()
            _written[place] = now
        else:
            writing.mode("append").save()

    return upsert_batch


def _query_of(batch: DataFrame) -> str:
    """Return the streaming query that a micro-batch belongs to; "" on Spark Connect."""
    return _local_property(batch, QUERY_PROPERTY)


def _run_of(batch: DataFrame) -> str:
    """Return the run of that query; "" where it is not known, or its program named the jobs."""
    run = _local_property(batch, _RUN_PROPERTY)
    try:
        return str(UUID(run))
    except ValueError:
        return ""


def _local_property(batch: DataFrame, name: str) -> str:
    context = getattr(batch.sparkSession, "_sc", None)
    return "" if context is None else context.getLocalProperty(name) or ""


def _written_twice(table: str, writer: str, batch_id: int) -> ConfigError:
    # The store would take it for a replay, and report that its rows are there.
    return ConfigError(
        f"[RAFTSTORE_WRITER_USED_TWICE] micro-batch {batch_id} was written to table {table!r} as "
        f"{writer!r} already: one writer has one write in a batch; give each its own writer_id, or "
        "write the rows at once"
    )


def _no_writer() -> ConfigError:
    return ConfigError(
        "[RAFTSTORE_WRITER_ID_MISSING] a Spark Connect session does not show which query a batch "
        'is of: name the writer, as in upsert(…, writer_id="page-counts")'
    )


upsert_batches = upsert
"""The same under the name that says what it is for."""
