"""The door for update mode: Spark refuses it on Python sinks, ``foreachBatch`` takes it.

Runs on the driver: once per micro-batch Spark calls the function made here, and that writes the
batch through the same format, tasks and guarantees as a direct write.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from raftstore.spark.options import option_names, parse_options

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


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
    its first batch arrives. A replayed batch writes the same rows again, which changes nothing.

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
    parse_options(texts)

    def upsert_batch(batch: DataFrame, _batch_id: int) -> None:
        batch.write.format("raftstore").options(**texts).mode("append").save()

    return upsert_batch


upsert_batches = upsert
"""The same under the name that says what it is for."""
