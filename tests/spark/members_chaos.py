"""``make members-chaos``: ``jepsen_like.members_chaos`` with a Spark stream beside the workloads.

A stream writes one file after the other, each a micro-batch, while the nodes and replicas change
and are killed; its drivers are killed, too. In the end the table must be the fold of each batch
once, up to the newest.
"""

import random
import time
from pathlib import Path
from typing import Any

import click

from jepsen_like.members_chaos import WORKLOADS, Run, execute
from raftstore.client.blocking.client import Client
from raftstore.errors import PageExpiredError
from tests.spark.chaos import Job
from tests.spark.chaos_table import TABLE, Files, Reader, Truth, write_inputs

FILES = 5_000
"""More than are written in any time."""
DRIVER_S = (40.0, 120.0)
"""How long a driver lives, once it has begun with a batch."""
START_S = 300.0
"""And how long it may take until then, on a machine that has other work."""
SCAN_S = 120.0
"""As long a scan that nodes leave in the midst of is begun again."""
FAILED_MAX = 50
BATCHES_MIN = 5


def stream(run: Run) -> None:
    """Write until the run is over, then look at the table. AssertionError for what is wrong."""
    rng = random.Random("stream")
    directory = run.directory / "stream"
    write_inputs(directory / "in", FILES)
    job = Job(directory, ",".join(run.cluster.endpoints), rng, ("local[2,4]",))
    truth, files = Truth(), Files(directory / "checkpoint")
    reader = Reader(run.cluster, truth, "linearizable")
    reader.start()
    failed = 0
    job.start()
    end, begun = time.monotonic() + START_S, files.batches
    try:
        while not run.is_over:
            time.sleep(0.2)
            files.look()
            if begun is not None and files.batches > begun:
                end, begun = time.monotonic() + rng.uniform(*DRIVER_S), None
            assert reader.failure is None, reader.failure
            ended = job.ended() is not None
            if ended or time.monotonic() > end:
                failed += ended
                assert failed <= FAILED_MAX, "the driver does not come back; see its logs"
                job.kill()
                job = _next(job, directory, run, rng)
                end, begun = time.monotonic() + START_S, files.batches
    finally:
        job.kill()
        reader.stop()
        reader.join(30.0)
    assert reader.failure is None, reader.failure
    with run.cluster.connect(timeout=60.0) as client:
        newest = truth.check(_rows(client))
        commits = client.table(TABLE).writers().next_commit - 1
    assert newest + 1 >= BATCHES_MIN, f"only {newest + 1} files were written"
    click.echo(
        f"  stream: {newest + 1} files in {commits} batches of {truth.drivers} drivers, each once "
        f"and whole; {reader.snapshots} snapshots; {failed} drivers ended by themselves"
    )


def _rows(client: Client) -> list[dict[str, Any]]:
    """All rows of the table; a scan begins anew where the node left that kept its state."""
    end = time.monotonic() + SCAN_S
    while True:
        try:
            return list(client.table(TABLE).scan())
        except PageExpiredError:
            if time.monotonic() > end:
                raise


def _next(job: Job, directory: Path, run: Run, rng: random.Random) -> Job:
    """The next driver asks the nodes that there are now."""
    following = Job(directory, ",".join(run.cluster.endpoints), rng, ("local[2,4]",))
    following.drivers = job.drivers
    following.start()
    return following


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--minutes", default=30.0, show_default=True, help="How long at least.")
@click.option("--seed", default=1, show_default=True, help="Of the plan of changes and kills.")
@click.option("--workload", "workloads", multiple=True, help="Instead of those that are usual.")
@click.option("--directory", type=click.Path(path_type=Path), help="Data and logs; kept.")
@click.option("--no-spark", is_flag=True, help="Without the stream.")
def main(
    minutes: float,
    seed: int,
    workloads: tuple[str, ...],
    directory: Path | None,
    *,
    no_spark: bool,
) -> None:
    """Change members of real nodes under load, among kills: nothing may be lost or stuck."""
    execute(minutes, seed, workloads or WORKLOADS, directory, None if no_spark else stream)


if __name__ == "__main__":
    main()
