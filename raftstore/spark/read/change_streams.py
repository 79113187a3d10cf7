"""Which reader of a stream of changes the Spark at hand can use."""

from __future__ import annotations

import importlib

import pyspark

from raftstore.errors import ConfigError
from raftstore.spark.options import SourceOptions
from raftstore.spark.read.changes_reader import ChangeStreamReader


def stream_reader_class(options: SourceOptions) -> type[ChangeStreamReader]:
    """Return the reader that this Spark can use; ConfigError for a limit that it cannot obey."""
    try:
        limited = importlib.import_module("raftstore.spark.read.limited_changes")
    except ImportError as error:
        if options.max_offsets_per_trigger is not None:
            raise ConfigError(
                f"[RAFTSTORE_SPARK_TOO_OLD] Spark {pyspark.__version__} cannot bound micro-batches "
                "of Python sources: install pyspark 4.2 or newer, or leave maxOffsetsPerTrigger out"
            ) from error
        return ChangeStreamReader
    kind: type[ChangeStreamReader] = limited.LimitedChangeStreamReader
    return kind
