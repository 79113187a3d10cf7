"""Calls a writer as Spark does, without a JVM."""

import pickle

import pyarrow as pa
from pyspark.sql.types import LongType, StringType, StructField, StructType

from raftstore.spark.identity import BATCH_PROPERTY, QUERY_PROPERTY
from raftstore.spark.write.writer import TaskPlace
from tests.spark.file_store import FileDataSource

SCHEMA = StructType([StructField("id", LongType()), StructField("text", StringType())])
QUERY = "5f0c6b52-8c2c-4f41-9d0f-3f0b0e8c2f11"


class Driver:
    """Calls a writer as Spark does: a new instance for each call, pickled twice to the tasks."""

    def __init__(self, store, *, is_overwrite=False, **options):
        given = {"bootstrap.servers": str(store.directory), "table": "t", **options}
        self.source = FileDataSource(given)
        self.is_overwrite = is_overwrite

    def stream(self):
        """One instance, as streamWriter() makes it."""
        return self.source.streamWriter(SCHEMA, self.is_overwrite)._task

    def job(self):
        """One instance, as writer() makes it."""
        return self.source.writer(SCHEMA, self.is_overwrite)._task


def place(batch_id, task=0, attempt=0, query=QUERY):
    """Where a task of a stream runs."""
    properties = {BATCH_PROPERTY: str(batch_id), QUERY_PROPERTY: query}
    return TaskPlace(task, 100 * task + attempt, properties.get)


def rows(*numbers, text="a"):
    return iter([pa.record_batch({"id": list(numbers), "text": [text] * len(numbers)})])


def write(task, batches, where=None):
    """The message that the task of a pickled writer returns, pickled."""
    shipped = pickle.loads(pickle.dumps(pickle.loads(pickle.dumps(task))))
    return pickle.loads(pickle.dumps(shipped.write(batches, lambda: 0.0, where or TaskPlace())))


def ids(store):
    return [row["id"] for row in store.rows("t")]
