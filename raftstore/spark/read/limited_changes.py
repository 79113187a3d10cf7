"""The stream of changes for a Spark that asks for limits: 4.2 or newer.

Importing this fails before 4.2, which is how ``datasource`` finds out.
"""

from __future__ import annotations

from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from raftstore.spark.read.changes_reader import ChangeStreamReader


class LimitedChangeStreamReader(ChangeStreamReader, SupportsTriggerAvailableNow):
    """Micro-batches of a bounded size, also where a query takes what there is and ends."""

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 - Spark's name
        """Rows of one micro-batch."""
        rows_max = self._options.max_offsets_per_trigger
        return ReadAllAvailable() if rows_max is None else ReadMaxRows(rows_max)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's name
        """Remember where this run ends: what comes from now on is for another."""
        self._target = self.reportLatestOffset()
