"""Look-ups of Spark jobs at real nodes, without Spark: a look-up takes and gives Arrow batches."""

import time

import pyarrow as pa
import pytest

from raftstore.local_cluster import LocalCluster
from raftstore.spark import lookup

pytestmark = [pytest.mark.cluster, pytest.mark.slow]

SCHEMA = """{"type": "struct", "fields": [
    {"name": "id", "type": "long", "nullable": false, "metadata": {}},
    {"name": "name", "type": "string", "nullable": true, "metadata": {}}]}"""


def test_look_up_is_answered_at_every_level_and_after_the_death_of_a_node(tmp_path):
    """3,000 keys in one multi-get over four partitions; nothing is served twice or left out."""
    keys = range(-10, 2_990)
    expected = [None if key < 0 else f"name {key}" for key in keys]
    with LocalCluster(nodes=3, directory=tmp_path / "cluster") as cluster:
        with cluster.connect(timeout=60.0) as client:
            client.create_table("people", key="id", partitions=4, schema=SCHEMA)
            client.table("people").put_many({"id": n, "name": f"name {n}"} for n in range(3_000))

        def look_up(**options):
            people = lookup(
                "people", key="who", bootstrap_servers=cluster.endpoints,
                request_timeout_ms=60_000, **options,
            )  # fmt: skip
            (found,) = people([pa.RecordBatch.from_pydict({"who": list(keys)})])
            return found["name"].to_pylist()

        def looked_up_soon(**options):
            """Replicas apply a moment after the acknowledgement, and these levels wait for none."""
            end = time.monotonic() + 20
            while (found := look_up(**options)) != expected:
                assert set(found) <= {*expected, None}
                assert time.monotonic() < end

        assert look_up(level="linearizable") == expected
        for options in ({}, {"max_staleness": 30.0}):
            looked_up_soon(**options)
        cluster.kill("n1")
        assert look_up(level="linearizable") == expected
        looked_up_soon(level="any")
