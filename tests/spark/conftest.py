"""One Spark session for all tests of a process, and a store of files behind the format."""

import asyncio
import threading
import uuid
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from raftstore.spark.java import prepare_environment
from tests.integration.client.fake_cluster import FakeCluster
from tests.spark.file_store import FileDataSource, FileStore


@pytest.fixture(scope="session")
def spark(tmp_path_factory):
    """A local session; two attempts a task, so that retries are seen."""
    prepare_environment()
    work = tmp_path_factory.mktemp("spark")
    session = (
        SparkSession.builder.appName("raftstore tests")
        .master("local[2,2]")
        .config("spark.driver.memory", "1g")
        .config("spark.driver.extraJavaOptions", "-XX:+UseSerialGC -XX:TieredStopAtLevel=1")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.local.dir", str(work))
        .config("spark.sql.warehouse.dir", str(work / "warehouse"))
        .config("spark.sql.session.timeZone", "America/New_York")
        .config("spark.sql.shuffle.partitions", "2")
        .getOrCreate()
    )
    session.sparkContext.setLogLevel("OFF")
    yield session
    session.stop()


@pytest.fixture(scope="session")
def files(spark):
    """The same Spark, with the format writing to stores of files."""
    session = spark.newSession()
    session.dataSource.register(FileDataSource)
    return session


@pytest.fixture
def store(tmp_path: Path) -> FileStore:
    """An empty store of files."""
    return FileStore(tmp_path / f"store-{uuid.uuid4().hex}")


@pytest.fixture
def scripted():
    """Three scripted nodes on a loop of their own, so that they answer while Spark runs."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name="scripted nodes")
    thread.start()

    def call(coroutine):
        return asyncio.run_coroutine_threadsafe(coroutine, loop).result(10)

    async def make():
        return FakeCluster()

    cluster = call(make())
    call(cluster.__aenter__())
    yield cluster
    call(cluster.__aexit__())
    loop.call_soon_threadsafe(loop.stop)
    thread.join(10)
    loop.close()
