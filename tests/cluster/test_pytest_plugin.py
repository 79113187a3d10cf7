"""The fixture ``raftstore_cluster`` in a project of a user: one cluster for all tests of a run."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.pytest_plugin.test_plugin import pytest_run

pytestmark = [pytest.mark.cluster, pytest.mark.slow]

MACHINE = """
import raftstore

class Doubler(raftstore.StateMachine):
    commands = results = answers = raftstore.codec(int)

    def apply(self, command, context):
        context.state.put(context.key, b"%d" % (2 * command))
        return 2 * command

    def query(self, request, context):
        return int(context.state.get(context.key) or 0)
"""
TESTS = """
import raftstore
from doublers import Doubler

def test_command(raftstore_cluster):
    with raftstore.connect(raftstore_cluster.endpoints) as client:
        client.create_channelset("doubles", Doubler, partitions=1)
        assert client.channelset("doubles").command("a", 4) == 8
        raftstore_cluster.kill(client.channelset("doubles").query_result("a").node)

def test_the_same_cluster_lives_on(raftstore_cluster):
    assert len(raftstore_cluster.running()) == 2
    with raftstore.connect(raftstore_cluster.endpoints) as client:
        assert client.channelset("doubles").query("a", timeout=30) == 8
"""


def test_tests_of_a_user_share_a_cluster_that_has_their_machines(tmp_path: Path) -> None:
    """The nodes import the machine from where the tests do; a node may be killed."""
    (tmp_path / "doublers.py").write_text(MACHINE, encoding="utf-8")
    (tmp_path / "test_doublers.py").write_text(TESTS, encoding="utf-8")
    done = pytest_run(tmp_path)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-1000:]
    assert "2 passed" in done.stdout
