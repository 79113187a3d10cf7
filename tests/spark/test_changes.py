"""A table as a stream from real nodes: each change once."""

import json
import pickle

import pytest
from pyspark.sql.types import StructType

from raftstore.errors import SchemaError
from raftstore.local_cluster import LocalCluster
from raftstore.spark.datasource import RaftStoreDataSource

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.cluster]
SCHEMA = StructType().add("id", "long").add("text", "string").json()


def test_calls_of_spark_lead_through_the_changes_of_real_nodes(tmp_path):
    """What Spark does with the reader, without it: offsets as JSON, the reader pickled to tasks."""
    with (
        LocalCluster(nodes=3, directory=tmp_path / "cluster") as cluster,
        cluster.connect(timeout=60.0) as client,
    ):
        client.create_table("t", key="id", partitions=2, schema=SCHEMA)
        table = client.table("t")
        table.put_many({"id": n, "text": "put"} for n in range(600))
        batch = [{"id": n, "text": "batch"} for n in range(500, 1_200)]
        table.write_batch(batch, writer="w", batch_id=3)
        source = RaftStoreDataSource(
            {
                "bootstrap.servers": ",".join(cluster.endpoints),
                "path": "t",
                "readchangefeed": "true",
                "startingoffsets": "earliest",
                "maxoffsetspertrigger": "500",
                "preferreplica": "any_in_bound",
            }
        )
        reader = source.streamReader(source.schema())
        at = reader.initialOffset()
        reader.prepareForTriggerAvailableNow()
        table.put({"id": 0, "text": "for another run"})
        seen = []
        while (end := reader.latestOffset(at, reader.getDefaultReadLimit())) != at:
            parts = reader.partitions(at, json.loads(json.dumps(end)))
            in_task = pickle.loads(pickle.dumps(reader))
            seen.append([row for p in parts for b in in_task.read(p) for row in b.to_pylist()])
            at = end
        assert list(map(len, seen)) == [600, 700]
        assert {(row["_writer"], row["_batch_id"]) for row in seen[1]} == {("w", 3)}
        assert {row["id"]: row["text"] for rows in seen for row in rows} == {
            n: "put" if n < 500 else "batch" for n in range(1_200)
        }
        assert max(row["_seq"] for row in seen[1]) in at.values()
        future = at | {"0": 10**9}
        with pytest.raises(SchemaError, match="RAFTSTORE_DATA_LOSS"):
            reader.partitions(at, future)
