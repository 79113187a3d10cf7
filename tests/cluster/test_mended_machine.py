"""Code of a user's machine that is mended on real nodes, one after the other."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import raftstore
from raftstore import backup
from raftstore.client.blocking.client import Client
from raftstore.errors import MachineStoppedError, RequestError
from raftstore.local_cluster import LocalCluster
from raftstore.types import Outcome, node_name
from tests.cluster.under_load import shell_json
from tests.cluster.watching import eventually

pytestmark = pytest.mark.cluster
NAMES = ["n1", "n2", "n3"]
CODE = """
import raftstore

class Average(raftstore.StateMachine):
    commands = results = answers = raftstore.codec(int)
    version = {version}

    def apply(self, command, context):
        total = int(context.state.get(b"total") or 0) + {share}
        context.state.put(b"total", b"%d" % total)
        return total

    def query(self, request, context):
        return int(context.state.get(b"total") or 0)
"""
BROKEN = CODE.format(version=1, share="100 // command")
MENDED = CODE.format(version=2, share="(100 // command if command else 0)")


@pytest.fixture
def code(tmp_path: Path) -> Path:
    """The module that the nodes import, outside of everything else."""
    file = tmp_path / "code" / "averages.py"
    file.parent.mkdir()
    file.write_text(BROKEN)
    return file


@pytest.fixture
def cluster(tmp_path: Path, code: Path) -> Iterator[LocalCluster]:
    """Three nodes that find it."""
    environment = {name: {"RAFTSTORE_MACHINES_PATH": str(code.parent)} for name in NAMES}
    with LocalCluster(nodes=3, directory=tmp_path / "c", environment=environment) as running:
        yield running


def stops(cluster: LocalCluster) -> int:
    """Replicas whose machine stands, as each node's own report says."""
    shown = shell_json(cluster, "machine", "info", "averages")
    return sum(each["stopped"] is not None for each in shown["channels"])


def leader(client: Client) -> str | None:
    """The node that leads the only partition."""
    node = client.channelset_info("averages").channels[0].leader
    return None if node is None else node_name(node)


def test_mended_code_goes_on_where_the_former_stopped(cluster: LocalCluster, code: Path) -> None:
    """The command that stopped all replicas is the first one that mended code applies: at the first
    node that has it, which is given the leadership, and then at the others; nothing is lost."""
    with cluster.connect(timeout=10.0) as client:
        client.create_channelset("averages", "averages:Average", partitions=1)
        averages = client.channelset("averages", codec=raftstore.codec(int))
        assert averages.command("a", 4) == 25
        with pytest.raises(RequestError) as stuck:
            averages.command("a", 0, timeout=1.0)
        assert stuck.value.outcome is Outcome.UNKNOWN
        guid = stuck.value.guid
        assert guid is not None
        with pytest.raises(MachineStoppedError, match=r"ZeroDivisionError.*averages.py"):
            averages.command("a", 5, timeout=1.0)
        assert stops(cluster) == 1
        skip = r"ZeroDivisionError.*raftstore machine skip averages 0 \d+\).*make the backup again"
        with pytest.raises(MachineStoppedError, match=skip):
            backup.create_backup(client, str(code.parent.parent / "backup"))
        # One node gets mended code, and it is no leader.
        code.write_text(MENDED)
        first = next(name for name in NAMES if name != leader(client))
        cluster.kill(first)
        cluster.start(first)
        eventually(lambda: leader(client), lambda name: name == first)
        assert averages.command("a", 0, guid=guid, timeout=10.0) == 25
        assert averages.command("a", 5, timeout=10.0) == 45
        for name in NAMES:
            if name != first:
                cluster.kill(name)
                cluster.start(name)
        last = eventually(
            lambda: averages.command_result("a", 0, timeout=10.0), lambda seen: seen.result == 45
        )
        for name in NAMES:
            found = averages.query_result("a", 0, replica=name, at_least=last.position)
            assert (found.answer, found.node) == (45, name)
        assert stops(cluster) == 0
