"""The Spark session of the benchmarks: two tasks at a time, everything in one directory."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SLOTS: Final = 2


def session(directory: Path) -> SparkSession:
    """Start Spark in this process; it keeps what it spills below ``directory``."""
    from pyspark.sql import SparkSession

    from raftstore.spark.java import prepare_environment

    prepare_environment()
    # The sinks are in this package, which is not installed: the workers find it by this.
    here = str(Path(__file__).parent.parent)
    os.environ["PYTHONPATH"] = os.pathsep.join(
        [here, *filter(None, [os.environ.get("PYTHONPATH")])]
    )
    return (
        SparkSession.builder.master(f"local[{SLOTS}]")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.memory", "2g")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.local.dir", str(directory))
        .config("spark.sql.warehouse.dir", str(directory / "warehouse"))
        .config("spark.sql.python.filterPushdown.enabled", "true")
        .getOrCreate()
    )
