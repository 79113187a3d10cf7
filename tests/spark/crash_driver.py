"""A Spark driver that is killed with -9 at a named point of a micro-batch. Run as a program.

``python -m tests.spark.crash_driver STORE INPUT CHECKPOINT POINT BATCH``: writes each file of INPUT
as one micro-batch into a store of files, until the first to reach POINT of BATCH, a task or the
commit, kills the driver with its JVM.
"""

import os
import signal
import sys
from contextlib import contextmanager
from pathlib import Path

from pyspark.sql import functions as f

from tests.spark.file_store import FileDataSource, FileStager, FileStore

POINTS = ("before-begin", "after-begin", "after-stage", "before-commit", "after-commit")


class KillingStore(FileStore):
    """A store of files whose file ``kill`` names the point, the batch and the driver."""

    def come_to(self, point, batch_id):
        """Kill the driver, and end this process, if this is the point."""
        order = self.directory / "kill"
        if not order.exists():
            return
        wanted, batch, group = order.read_text().split()
        if (wanted, int(batch)) == (point, batch_id):
            order.unlink()
            os.killpg(int(group), signal.SIGKILL)
            os._exit(9)

    def begin(self, name, identity, options):
        self.come_to("before-begin", identity.batch_id)
        ticket = super().begin(name, identity, options)
        self.come_to("after-begin", identity.batch_id)
        return ticket

    @contextmanager
    def stager(self, name, ticket, partition_id, task_attempt_id, _window):
        yield KillingStager(self, name, ticket, partition_id, task_attempt_id)

    def commit(self, name, ticket, staged, mode, options):
        self.come_to("before-commit", ticket.batch_id)
        result = super().commit(name, ticket, staged, mode, options)
        self.come_to("after-commit", ticket.batch_id)
        return result


class KillingStager(FileStager):
    """Stages; what it staged is there when the driver dies."""

    def __init__(self, store, name, ticket, partition_id, task_attempt_id):
        super().__init__(store, name, ticket, partition_id, task_attempt_id)
        self._killing, self._batch_id = store, ticket.batch_id

    def flush(self):
        staged = super().flush()
        self._killing.come_to("after-stage", self._batch_id)
        return staged


@contextmanager
def connect_killing(options):
    yield KillingStore(Path(options.bootstrap_servers))


class KillingDataSource(FileDataSource):
    """The format with that store behind it."""

    connect = staticmethod(connect_killing)


def write_stream(session, store, source, checkpoint, text, partitions):
    """Write each file of ``source`` as one micro-batch whose rows say ``text``."""
    stream = session.readStream.schema("id LONG").option("maxFilesPerTrigger", 1)
    return (
        stream.json(str(source))
        .withColumn("text", f.lit(text))
        .repartition(partitions)
        .writeStream.format("raftstore")
        .options(**{"bootstrap.servers": str(store), "key": "id", "partitions": "4"})
        .option("checkpointLocation", str(checkpoint))
        .trigger(availableNow=True)
        .start("t")
    )


def main():
    """See the module."""
    from pyspark.sql import SparkSession

    from raftstore.spark.java import prepare_environment

    store, source, checkpoint, point, batch = sys.argv[1:]
    prepare_environment()
    session = (
        SparkSession.builder.master("local[2]")
        .config("spark.driver.memory", "512m")
        .config("spark.driver.extraJavaOptions", "-XX:+UseSerialGC -XX:TieredStopAtLevel=1")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.ui.enabled", "false")
        .getOrCreate()
    )
    session.sparkContext.setLogLevel("OFF")
    session.dataSource.register(KillingDataSource)
    FileStore(Path(store))
    (Path(store) / "kill").write_text(f"{point} {batch} {os.getpgid(0)}")
    write_stream(session, store, source, checkpoint, "first", 3).awaitTermination(120)
    sys.exit("it was not killed")


if __name__ == "__main__":
    main()
