"""The demo's Spark job on a small input, against a store of files."""

import pyarrow as pa
import pytest
from pyarrow import parquet

from raftstore.demo.data import prepare_data
from raftstore.demo.spark_job import JobConfig, expected_path, run_job

pytestmark = [pytest.mark.spark, pytest.mark.slow]


@pytest.fixture
def config(store, tmp_path):
    """600 rows of the test's own in eight files, taken as fast as Spark can."""
    rows = [{"id": n, "town": f"town {n % 7 * (n % 3)}", "size": n * 1.5} for n in range(600)]
    parquet.write_table(pa.Table.from_pylist(rows), tmp_path / "input.parquet")
    data = prepare_data(
        tmp_path / "in", short=True, input_path=tmp_path / "input.parquet", key=["id"]
    )
    return JobConfig(
        bootstrap_servers=str(store.directory),
        data=data,
        work_dir=str(tmp_path / "work"),
        trigger_s=0.0,
    )


def test_job_fills_both_tables_as_spark_computes_them_when_it_has_run(files, store, config):
    """BLOG-01, pull queries on tables that persistent queries fill: eight micro-batches a query,
    and both tables equal Spark's own batch results."""
    seen = []

    run_job(files, config, seen.append)

    for query in ("input_rows", "input_groups"):
        batches = [event for event in seen if event.get("query") == query]
        assert [event["batch_id"] for event in batches] == list(range(8))
        assert batches[-1]["total_rows"] == 600
        expected = parquet.read_table(expected_path(config, query)).to_pylist()
        key = "id" if query == "input_rows" else "town"
        assert sorted(store.rows(query), key=lambda row: row[key]) == sorted(
            expected, key=lambda row: row[key]
        )
    assert store.table_info("input_groups").key_columns == ("town",)


def test_job_ends_with_the_reason_when_a_stream_fails(files, store, config):
    """A failed stream is reported at once, whatever the other one does."""
    store.add_table("input_rows", ("town",), 4, "")

    with pytest.raises(Exception, match="RAFTSTORE_KEY_MISMATCH"):
        run_job(files, config, lambda _event: None)
    for query in files.streams.active:
        query.stop()
