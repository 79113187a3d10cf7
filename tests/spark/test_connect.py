"""The format in a session of Spark Connect; needs what ``raftstore[connect]`` installs."""

import json
import os
import subprocess
import sys
from importlib.metadata import distribution

import msgspec
import pytest

import raftstore


def is_editable():
    """Whether raftstore is installed as a link to a checkout."""
    origin = distribution("raftstore").read_text("direct_url.json")
    return bool(origin) and "editable" in msgspec.json.decode(origin).get("dir_info", {})


@pytest.mark.spark
@pytest.mark.connect
@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_connect_session_writes_reads_and_is_refused_by_name(scripted, tmp_path):
    """Append, complete and upsert are the same tables as from a classic session; upsert without a
    writer, an unknown option and Spark's default mode are refused, each by its class."""
    # The server's Python starts in a directory of the session and lists the packages on its path.
    assert not is_editable(), "make spark-old installs what the server of Spark Connect finds"
    environment = os.environ | {"SPARK_LOCAL_IP": "127.0.0.1"}
    environment.pop("PYTHONPATH", None)
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
