"""The programs in examples/ run, and what they serve is right."""

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

from raftstore.local_cluster import LocalCluster

EXAMPLES = sorted((Path(__file__).parents[2] / "examples").glob("*.py"))


def load(name):
    """Import an example, which is in no package; Spark's workers get its functions by value."""
    (path,) = [path for path in EXAMPLES if path.stem == name]
    spec = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.slow
@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_example_tells_what_it_does_and_starts_nothing_for_that(path):
    """-h shows the docstring and the options."""
    command = [sys.executable, str(path), "-h"]
    told = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert load(path.stem).__doc__.splitlines()[0] in told
    assert "--bootstrap-servers" in told


def test_state_of_runs_goes_on_where_it_was_left():
    """Runs may cross the boundary of two micro-batches."""
    following = load("served_state").following
    codes = [3, 4, 7, 8, 9, 20]
    for cut in range(len(codes) + 1):
        state = following(following(None, codes[:cut]), codes[cut:])
        assert state == (6, 20, 20, 3, 7)


@pytest.mark.spark
@pytest.mark.cluster
@pytest.mark.slow
def test_examples_run_and_serve_what_spark_computed(spark, tmp_path, capsys):
    """Both, small, one after another on one cluster."""
    graph, served = load("package_graph"), load("served_state")
    with LocalCluster(nodes=3, directory=tmp_path / "cluster") as cluster:
        servers = ",".join(cluster.endpoints)
        graph.run(spark, servers, tmp_path / "graph", 400, "")
        served.run(spark, servers, tmp_path / "state", 1_000, "LATIN")
        printed = capsys.readouterr().out
        _, edges = graph.find_edges(400)
        needs = {}
        for edge in edges.to_pylist():
            if edge["relation"] in graph.STRONG:
                needs.setdefault(edge["package"], set()).add(edge["target"])
        with cluster.connect(timeout=30.0) as client:
            rows = {
                row["package"]: set(row["needs"]) for row in client.table("requirements").scan()
            }
            assert rows == needs
            assert client.table("dependencies").count().rows == len(edges)
            characters = served.write_files(1_000, tmp_path / "again").to_pylist()
            codes = {}
            for row in characters:
                codes.setdefault(row["script"], []).append(row["code_point"])
            runs = {
                row["script"]: tuple(row.values())[1:]
                for row in client.table("longest_runs").scan()
            }
            assert runs == {name: served.following(None, given) for name, given in codes.items()}
    assert "needs" in printed
    assert "LATIN: " in printed
