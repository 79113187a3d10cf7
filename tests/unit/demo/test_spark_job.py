"""The job's process without Spark: its configuration and how it fails."""

import json
import os
import signal

import msgspec
import pytest

from raftstore.demo import spark_job
from raftstore.demo.data import Aggregate, DemoData
from raftstore.demo.sources import Measure
from raftstore.demo.spark_job import JobConfig, expected_path, main
from raftstore.errors import ConfigError


def config(tmp_path) -> JobConfig:
    measures = (Measure("rows", "count", "id"),)
    data = DemoData(
        source="input",
        description="3 rows",
        table="t",
        key=("id",),
        columns=(("id", "int64"),),
        directory=str(tmp_path),
        files=("part-0000.parquet",),
        rows=3,
        aggregate=Aggregate("g", "id", measures, groups=3, hot_key=1, hot_rows=1),
    )
    return JobConfig(bootstrap_servers="a:1", data=data, work_dir=str(tmp_path))


def events(capfdbinary):
    return [json.loads(line) for line in capfdbinary.readouterr().out.splitlines()]


def test_config_survives_its_json_when_it_is_handed_to_the_process(tmp_path):
    """The demo's configuration survives the JSON in which the job gets it."""
    given = config(tmp_path)

    assert msgspec.json.decode(msgspec.json.encode(given), type=JobConfig) == given
    assert expected_path(given, "t") == tmp_path / "expected" / "t"


@pytest.mark.parametrize(
    ("text", "said"),
    [("{", "truncated"), ("{}", "missing required field"), ('{"cores": "x"}', "cores")],
)
def test_job_fails_with_one_event_when_its_config_is_wrong(text, said, capfdbinary):
    """A bad configuration ends with code 1 and says what is wrong."""
    assert main(["--config", text]) == 1

    (event,) = events(capfdbinary)
    assert event["event"] == "failed"
    assert said in event["message"]


def test_job_fails_with_the_remedy_when_there_is_no_java(tmp_path, monkeypatch, capfdbinary):
    """The sentence about Java reaches the demo; the config may come from a file."""
    (tmp_path / "job.json").write_bytes(msgspec.json.encode(config(tmp_path)))

    def refuse():
        raise ConfigError("no Java 17 or 21 for Spark: install one")

    monkeypatch.setattr(spark_job, "prepare_environment", refuse)

    assert main(["--config", f"@{tmp_path / 'job.json'}"]) == 1
    assert events(capfdbinary) == [
        {"event": "failed", "message": "no Java 17 or 21 for Spark: install one"}
    ]


def test_job_exits_when_it_is_terminated(tmp_path, monkeypatch):
    """SIGTERM becomes an exit, which Spark follows because its parent is gone."""
    before = signal.getsignal(signal.SIGTERM)
    monkeypatch.setattr(spark_job, "_run", lambda _config: os.kill(os.getpid(), signal.SIGTERM))

    with pytest.raises(SystemExit) as stopped:
        main(["--config", msgspec.json.encode(config(tmp_path)).decode()])

    assert stopped.value.code == 128 + signal.SIGTERM
    assert signal.getsignal(signal.SIGTERM) is before
