"""A Spark stream goes on from its checkpoint on a cluster that was restored from a backup."""

import json

import pytest
from pyspark.sql import functions as f

from raftstore import backup
from raftstore.backup.restore import RESTORE_WRITER
from raftstore.local_cluster import LocalCluster

pytestmark = [pytest.mark.spark, pytest.mark.cluster, pytest.mark.slow]


def test_gap_12_stream_goes_on_from_its_checkpoint_on_the_restored_cluster(spark, tmp_path):
    """Spark repeats the last batch, which it does not know to be committed, with other rows: the
    table has it once, as it was first. The next one is taken. And Spark reads the backup itself."""
    place = tmp_path / "backups"
    (tmp_path / "in").mkdir()

    def feed(batch):
        lines = "\n".join(json.dumps({"id": n}) for n in range(batch * 20, batch * 20 + 40))
        (tmp_path / "in" / f"{batch}.json").write_text(lines)

    def run(cluster, text):
        stream = spark.readStream.schema("id LONG").json(str(tmp_path / "in"))
        query = (
            stream.withColumn("text", f.lit(text))
            .writeStream.format("raftstore")
            .option("bootstrap.servers", ",".join(cluster.endpoints))
            .options(key="id", partitions="2", replicas="1")
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start("t")
        )
        query.awaitTermination(120)

    def table_of(client):
        return {row["id"]: row["text"] for row in client.table("t").scan(timeout=30)}

    expected = {}
    with (
        LocalCluster(nodes=1, directory=tmp_path / "a") as cluster,
        cluster.connect(timeout=30.0) as client,
    ):
        for batch in range(2):
            feed(batch)
            run(cluster, f"first {batch}")
            expected |= dict.fromkeys(range(batch * 20, batch * 20 + 40), f"first {batch}")
        made = backup.create_backup(client, str(place))
        assert table_of(client) == expected
    files = [str(place / file.path) for file in made.tables[0].files]
    read = spark.read.parquet(*files).collect()
    assert {row["id"]: row["text"] for row in read} == expected
    for name in ("1", ".1.crc"):
        (tmp_path / "checkpoint" / "commits" / name).unlink(missing_ok=True)
    with (
        LocalCluster(nodes=1, directory=tmp_path / "b") as cluster,
        cluster.connect(timeout=30.0) as client,
    ):
        backup.restore_backup(client, str(place))
        run(cluster, "replay 1")
        assert table_of(client) == expected
        feed(2)
        run(cluster, "first 2")
        expected |= dict.fromkeys(range(40, 80), "first 2")
        assert table_of(client) == expected
        last = {view.writer: view.last_batch for view in client.table("t").writers().writers}
        del last[RESTORE_WRITER]
        assert list(last.values()) == [2]
