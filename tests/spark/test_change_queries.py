"""A query over the changes of real nodes: each once, whatever ended the runs before."""

import pyspark
import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql.types import StructType

from raftstore.local_cluster import LocalCluster

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.cluster]
SCHEMA = StructType().add("id", "long").add("text", "string").json()
COLUMNS = ("_channel", "_seq", "id", "_change_type", "text", "_writer", "_batch_id")
LIMITED = tuple(map(int, pyspark.__version__.split(".")[:2])) >= (4, 2)
"""Whether this Spark lets a Python source bound its micro-batches."""
RUN_S = 200


class Seen:
    """The changes that a query's micro-batches showed."""

    def __init__(self):
        self.batches = {}
        self.refusing = False
        self.refused = {}

    def take(self, frame, batch):
        """Called for each micro-batch."""
        rows = sorted(tuple(row[name] for name in COLUMNS) for row in frame.collect())
        if self.refusing:
            self.refused[batch] = rows
            raise RuntimeError("the consumer of this micro-batch was lost")
        assert batch not in self.batches
        self.batches[batch] = rows

    def changes(self):
        """All of them, those of each partition in their order."""
        return [row for rows in self.batches.values() for row in rows]

    def told(self):
        """The changes without their place, sorted."""
        return sorted((row[2:] for row in self.changes()), key=str)

    def folded(self):
        """The rows that the changes lead to."""
        rows = {}
        for _, _, key, kind, text, *_ in self.changes():
            rows[key] = text if kind == "upsert" else None
        return {key: text for key, text in rows.items() if text is not None}


class Writes:
    """A table, and what was written into it."""

    def __init__(self, table):
        self.table = table
        self.done = []

    def put(self, ids, text):
        """Rows one by one, each a record, for a micro-batch takes whole ones."""
        for n in ids:
            self.table.put({"id": n, "text": text})
        self.done += [(n, "upsert", text, None, None) for n in ids]

    def delete(self, key):
        self.table.delete(key)
        self.done.append((key, "delete", None, None, None))

    def write_batch(self, ids, deleted):
        rows = [{"id": n, "text": "batch"} for n in ids]
        self.table.write_batch(rows, writer="w", batch_id=3, deletes=[deleted])
        self.done += [(n, "upsert", "batch", "w", 3) for n in ids]
        self.done.append((deleted, "delete", None, "w", 3))

    def told(self):
        return sorted(self.done, key=str)


def changes_of(spark, cluster):
    """The stream of the table's changes, in small micro-batches where Spark can have them."""
    limit = {"maxOffsetsPerTrigger": "40"} if LIMITED else {}
    servers = {"bootstrap.servers": ",".join(cluster.endpoints)}
    wanted = {"readChangeFeed": "true", "startingOffsets": "earliest"}
    return spark.readStream.format("raftstore").options(**servers, **wanted, **limit).load("t")


def test_query_shows_each_change_once_over_all_its_runs(spark, tmp_path):
    """A run that is stopped, one whose consumer fails within a micro-batch, and one that takes what
    is left and ends, all from one checkpoint; writes come before, during and between the runs. The
    micro-batch that failed comes again with the same rows, though more were written since."""
    seen = Seen()
    with (
        LocalCluster(nodes=3, directory=tmp_path / "cluster") as cluster,
        cluster.connect(timeout=60.0) as client,
    ):
        client.create_table("t", key="id", partitions=2, schema=SCHEMA)
        writes = Writes(client.table("t"))
        writing = changes_of(spark, cluster).writeStream.foreachBatch(seen.take)
        writing = writing.option("checkpointLocation", str(tmp_path / "checkpoint"))
        writes.put(range(60), "before")
        query = writing.start()
        query.processAllAvailable()
        assert seen.told() == writes.told()
        writes.put(range(50, 60), "while it runs")
        writes.delete(7)
        query.processAllAvailable()
        query.stop()
        assert seen.told() == writes.told()

        writes.write_batch(range(100, 110), deleted=8)
        writing = writing.trigger(availableNow=True)
        seen.refusing = True
        with pytest.raises(StreamingQueryException, match="was lost"):
            writing.start().awaitTermination(RUN_S)
        writes.put(range(200, 260), "after the failure")
        seen.refusing = False
        assert writing.start().awaitTermination(RUN_S)
        if not LIMITED:
            # Spark before 4.2 runs a single micro-batch for "available now" when a source bounds
            # none, and that was the failed one: what was written since comes with the next run.
            since = [each for each in writes.done if each[2] == "after the failure"]
            assert len(since) == 60
            missing = sorted(set(writes.done) - set(since), key=str)
            assert sorted(set(seen.told()), key=str) == missing
            assert writing.start().awaitTermination(RUN_S)
        final = {row["id"]: row["text"] for row in writes.table.scan()}

    ((again, rows),) = seen.refused.items()
    assert len(rows) == 11
    assert seen.batches[again] == rows
    assert seen.told() == writes.told()
    assert seen.folded() == final
    if LIMITED:
        assert max(map(len, seen.batches.values())) <= 40
        assert len(seen.batches) >= 6
