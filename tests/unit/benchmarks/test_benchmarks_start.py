"""The benchmarks' command line and what it needs."""

import json
import subprocess
import sys

import pytest

from benchmarks.__main__ import _show
from benchmarks.spark_floor import _FRAME, pairs, payloads
from raftstore.protocol.payload import encode_rows

WITHOUT_SPARK = (
    "import sys\n"
    "sys.modules.update(dict.fromkeys(('pyspark', 'redis', 'aetcd', 'nats')))\n"
    "sys.argv = ['benchmarks', '-h']\n"
    "from benchmarks.__main__ import main\n"
    "main()\n"
)


@pytest.mark.slow
def test_benchmarks_start_when_neither_spark_nor_a_peer_is_installed():
    """Benchmarks start without Spark and peers: those that need them import them when they run."""
    told = subprocess.run(
        [sys.executable, "-c", WITHOUT_SPARK], capture_output=True, text=True, check=True
    )
    assert "spark_write" in told.stdout


def test_table_is_shown_row_by_row_and_stays_a_list_in_json(capsys):
    """A figure may be a list of rows of the same columns."""
    rows = [{"part": "a", "s": 1.5}, {"part": "b", "s": 2.0}]

    _show("where", rows)
    _show("rows", 7)

    told = capsys.readouterr().out.splitlines()
    assert [line.split() for line in told[1:4]] == [["part", "s"], ["a", "1.5"], ["b", "2.0"]]
    assert told[4].split() == ["rows:", "7"]
    assert json.loads(json.dumps(rows)) == rows


def test_payloads_come_back_from_their_file_as_they_were_cut(tmp_path):
    """The floor and the store alone take the same chunks."""
    chunks = [(3, [(b"a", b"1"), (b"b", b"2")]), (0, [(b"c", b"")])]
    with (tmp_path / "payloads").open("wb") as file:
        for partition, rows in chunks:
            payload = encode_rows(rows)
            file.write(_FRAME.pack(partition, len(rows), len(payload)) + payload)

    assert list(pairs(tmp_path / "payloads")) == [rows for _, rows in chunks]
    assert [(p, n) for p, n, _ in payloads(tmp_path / "payloads")] == [(3, 2), (0, 1)]
