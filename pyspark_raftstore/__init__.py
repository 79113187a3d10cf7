"""Lets Spark find the format ``raftstore`` without a call to register it.

Spark imports every top-level package whose name begins with ``pyspark_`` and looks for
``DefaultSource``. A package that fails to import there breaks every Python data source of the
session, so this one imports nothing, and where raftstore's sink cannot work it says why and has no
``DefaultSource``.
"""

from __future__ import annotations

import warnings
from typing import Any


def __getattr__(name: str) -> Any:
    if name != "DefaultSource":
        message = f"module {__name__!r} has no attribute {name!r}"
        raise AttributeError(message)
    try:
        from raftstore.spark.datasource import RaftStoreDataSource
    # Not ImportError alone: a numpy that pyarrow was not built for raises ValueError, for one, and
    # a search for data sources passes over AttributeError only.
    except Exception as error:
        message = (
            f"the Spark format raftstore is not available ({error}): "
            'install it with pip install "raftstore[spark]" (pyspark 4.1 or newer)'
        )
        warnings.warn(message, RuntimeWarning, stacklevel=2)
        raise AttributeError(message) from error
    return RaftStoreDataSource
