"""The format in a session of Spark Connect; needs what ``raftstore[connect]`` installs."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import raftstore

PROJECT = Path(__file__).parents[2]


@pytest.mark.spark
@pytest.mark.connect
@pytest.mark.slow
def test_connect_session_writes_reads_and_is_refused_by_name(scripted, tmp_path):
    """Append, complete and upsert are the same tables as from a classic session; upsert without a
    writer, an unknown option and Spark's default mode are refused, each by its class."""
    environment = os.environ | {"SPARK_LOCAL_IP": "127.0.0.1"}
    # The server's Python starts in a directory of the session and lists the packages on its path,
    # where what is installed as editable does not show. A path does, as an installation would.
    environment["PYTHONPATH"] = str(PROJECT)
    done = subprocess.run(
        [sys.executable, "-m", "tests.spark.connect_job", scripted.endpoints, str(tmp_path)],
        env=environment, capture_output=True, text=True, timeout=900, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    told = json.loads(done.stdout.splitlines()[-1])
    assert told["session"].startswith("pyspark.sql.connect")
    assert (told["read"], told["found"]) == (50, 50)
    assert told["no_writer"].startswith("[RAFTSTORE_WRITER_ID_MISSING]")
    assert "did you mean 'key'?" in told["unknown"]
    assert "[RAFTSTORE_OPTION_UNKNOWN]" in told["unknown"]
    assert "[UNSUPPORTED_DATA_SOURCE_SAVE_MODE]" in told["mode"]
    with raftstore.connect(scripted.endpoints) as client:
        rows = [{"id": n, "town": n % 5} for n in range(50)]
        assert list(client.table("rows").scan()) == list(client.table("streamed").scan()) == rows
        counts = [{"town": n, "count": 10} for n in range(5)]
        assert list(client.table("completed").scan()) == counts
        assert list(client.table("upserted").scan()) == counts
    (made,) = scripted.channels[scripted.tables["upserted"].channels[0].channel].batches.decisions
    assert made.writer == "towns"
