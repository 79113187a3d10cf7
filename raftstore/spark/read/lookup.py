"""Enrichment inside a job: columns of a table added to the rows of a DataFrame, by key.

The tables that others keep up to date are read where the rows are, at a level and within a bound of
the caller's. Nothing is loaded beforehand and nothing is kept, so a stream sees what the table
holds when a batch comes by. What is wrong with the table, the options or the columns is reported
when ``lookup`` is called, on the driver, before any task runs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

    from raftstore.spark.read.enrichment import Lookup


def lookup(
    table: str,
    *,
    key: str | Sequence[str],
    bootstrap_servers: str | Sequence[str],
    columns: Sequence[str] | Mapping[str, str] | StructType | None = None,
    **options: Any,
) -> Lookup:
    """Return a function that adds columns of ``table`` to the rows of a DataFrame, by key.

    ``key``: the DataFrame's columns that hold the table's key, in the order of the table's.
    ``columns``: those wanted, or a map from their names to the names they get; all that are not of
    the key without it. A table that declares its key alone needs them as a StructType. A row
    without a match, or whose key is null, gets nulls; a key column among ``columns`` shows it
    apart from a row of nulls.

    Options: ``level`` (bounded; linearizable, leader, any), ``max_lag`` (rows), ``max_staleness``
    (seconds) and ``max_batches_behind`` as for reads of the client, ``prefer_replica``
    (any_in_bound, which spreads the load; leader, nearest), ``request_timeout_ms`` (30,000, for
    each multi-get).

    ::

        customer = lookup("customers", key="customer_id", columns=["name"], bootstrap_servers="…")
        orders.mapInArrow(customer, customer.schema(orders))
    """
    from raftstore.spark.read import enrichment

    servers = ",".join(enrichment.names_of(bootstrap_servers))
    keys = enrichment.names_of(key)
    return enrichment.plan_lookup((table, servers), keys, columns, options, enrichment.connected)
