"""A table as a stream from real nodes: each change once."""

import json
import pickle

import pyspark
import pytest
from pyspark.sql.types import StructType

from raftstore.errors import ConfigError, SchemaError
from raftstore.local_cluster import LocalCluster
from raftstore.spark.datasource import RaftStoreDataSource

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.cluster]
SCHEMA = StructType().add("id", "long").add("text", "string").json()
LIMITED = tuple(map(int, pyspark.__version__.split(".")[:2])) >= (4, 2)
"""Whether this Spark lets a Python source bound its micro-batches."""


def test_calls_of_spark_lead_through_the_changes_of_real_nodes(tmp_path):
    """Real nodes serve Spark's calls of the reader, made without Spark: offsets as JSON, the reader
    pickled to tasks.
    """
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
                "preferreplica": "any_in_bound",
            }
        )
        limited = RaftStoreDataSource(dict(source.options) | {"maxoffsetspertrigger": "500"})
        if LIMITED:
            reader = limited.streamReader(source.schema())
            reader.prepareForTriggerAvailableNow()
        else:
            with pytest.raises(ConfigError, match=r"\[RAFTSTORE_SPARK_TOO_OLD\] .* pyspark 4.2"):
                limited.streamReader(source.schema())
            reader = source.streamReader(source.schema())
        at = reader.initialOffset()

        def latest():
            limits = (at, reader.getDefaultReadLimit()) if LIMITED else ()
            return reader.latestOffset(*limits)

        table.put({"id": 0, "text": "for another run"})
        seen = []
        while (end := latest()) != at:
            parts = reader.partitions(at, json.loads(json.dumps(end)))
            in_task = pickle.loads(pickle.dumps(reader))
            seen.append([row for p in parts for b in in_task.read(p) for row in b.to_pylist()])
            at = end
        changes = [row for rows in seen for row in rows]
        written = {n: "put" if n < 500 else "batch" for n in range(1_200)}
        if LIMITED:
            assert list(map(len, seen)) == [600, 700]
        else:  # all that there is, at any time
            assert list(map(len, seen)) == [1_301]
            written[0] = "for another run"
        of_batch = [row for row in changes if row["_writer"] is not None]
        assert {(row["_writer"], row["_batch_id"]) for row in of_batch} == {("w", 3)}
        assert len(of_batch) == 700
        assert {row["id"]: row["text"] for row in changes} == written
        assert max(row["_seq"] for row in seen[-1]) in at.values()
        future = at | {"0": 10**9}
        with pytest.raises(SchemaError, match="RAFTSTORE_DATA_LOSS"):
            reader.partitions(at, future)
