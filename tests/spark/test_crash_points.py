"""The driver is killed with -9 at each point of a micro-batch; Spark replays it another way."""

import json
import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from tests.spark.crash_driver import POINTS, write_stream

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(600)]
ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("point", POINTS)
def test_batch_is_written_once_when_its_driver_was_killed(files, store, tmp_path, point):
    """The replay has other rows in another number of partitions: what was committed stays, what was
    not is as if it had never been, and no rows of two attempts are mixed."""
    (tmp_path / "in").mkdir()
    for batch in range(2):
        lines = [json.dumps({"id": number}) for number in range(batch * 10, batch * 10 + 20)]
        file = tmp_path / "in" / f"{batch}.json"
        file.write_text("\n".join(lines))
        # Spark takes files by their times, in milliseconds: two of one millisecond in any order.
        os.utime(file, (1_700_000_000 + batch, 1_700_000_000 + batch))
    driver = subprocess.Popen(
        [
            *(sys.executable, "-m", "tests.spark.crash_driver"),
            *map(str, (store.directory, tmp_path / "in", tmp_path / "checkpoint", point, 1)),
        ],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        start_new_session=True,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        assert driver.wait(240) == -signal.SIGKILL
    finally:
        with suppress(ProcessLookupError):  # its JVM, too, if it was not killed
            os.killpg(driver.pid, signal.SIGKILL)
        driver.wait()
    before = store.rows("t")
    assert len(before) == (30 if point == "after-commit" else 20)

    query = write_stream(files, store.directory, tmp_path / "in", tmp_path / "checkpoint", "new", 2)
    assert query.awaitTermination(240), "the second driver has not come to its end"

    second = "first" if point == "after-commit" else "new"
    expected = [(number, "first" if number < 10 else second) for number in range(30)]
    assert [(row["id"], row["text"]) for row in store.rows("t")] == expected
    with store.batches("t") as truth:
        assert [(made.batch_id, made.writer) for made in truth.decisions] == [
            (0, str(query.id)),
            (1, str(query.id)),
        ]
