"""docs/spark.md keeps its word: every piece of Python in it runs, in the order of the page."""

import ast
import re
from pathlib import Path

import pytest

from raftstore.local_cluster import LocalCluster

PAGE = (Path(__file__).parents[2] / "docs" / "spark.md").read_text(encoding="utf-8")
FENCE = re.compile(r"^```(python|diff)\n(.*?)^```", flags=re.DOTALL | re.MULTILINE)
STREAM_S = 240


def after(diff):
    """The new side of a diff: what a reader is left with."""
    lines = [line for line in diff.splitlines() if not line.startswith("-")]
    return "\n".join(line[1:].removeprefix(" ") for line in lines) + "\n"


def before(diff):
    """The old side."""
    lines = [line for line in diff.splitlines() if not line.startswith("+")]
    return "\n".join(line[1:].removeprefix(" ") for line in lines) + "\n"


def test_old_side_of_each_migration_is_python():
    """The old side of each migration is the program that readers of the guide have today: it must
    be valid Python.
    """
    diffs = [text for kind, text in FENCE.findall(PAGE) if kind == "diff"]
    assert len(diffs) >= 2
    for diff in diffs:
        assert ast.parse(before(diff)).body
        assert before(diff) != after(diff)


@pytest.mark.spark
@pytest.mark.cluster
@pytest.mark.slow
def test_every_snippet_of_the_guide_runs(spark, tmp_path, monkeypatch):
    """One after another with the names of those before, as a reader would type them in; streams
    take all their input. Only directories are put in place."""
    with LocalCluster(nodes=3, directory=tmp_path / "cluster") as cluster:
        servers = ",".join(cluster.endpoints)
        monkeypatch.setenv("RAFTSTORE_ENDPOINTS", servers)
        names = {"__name__": "guide"}
        for match in FENCE.finditer(PAGE):
            text = match[2] if match[1] == "python" else after(match[2])
            text = re.sub(r'"(?=(?:data|checkpoints)/)', f'"{tmp_path}/', text)
            line = PAGE.count("\n", 0, match.start()) + 1
            # Errors name the line of the page.
            code = compile("\n" * line + text, "docs/spark.md", "exec", dont_inherit=True)
            exec(code, names)
            finish_streams(spark)
        if "client" in names:
            names["client"].close()


def finish_streams(spark):
    """Let every stream that runs take what there is; a failed one fails the test."""
    for query in spark.streams.active:
        query.processAllAvailable()
        query.stop()
        query.awaitTermination(STREAM_S)
