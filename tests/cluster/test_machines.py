"""State machines of users on real nodes: exactly once over a killed leader, every level."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from raftstore.client.blocking.client import Client
from raftstore.client.blocking.machines import ChannelSet
from raftstore.errors import RejectedError, RequestError, UnknownMachineError
from raftstore.local_cluster import LocalCluster
from raftstore.types import Outcome, node_name
from tests.cluster.under_load import shell_json
from tests.cluster.watching import eventually

pytestmark = pytest.mark.cluster
NAMES = ["n1", "n2", "n3"]
COMMANDS = 100
"""Of each of two senders."""


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[LocalCluster]:
    """Three nodes that can import the machines of these tests."""
    root = str(Path(__file__).parents[2])
    environment = {name: {"PYTHONPATH": os.pathsep.join([root])} for name in NAMES}
    with LocalCluster(nodes=3, directory=tmp_path / "c", environment=environment) as running:
        yield running


def _leader(client: Client, name: str) -> str:
    channel = eventually(
        lambda: client.channelset_info(name).channels[0], lambda seen: seen.leader is not None
    )
    assert channel.leader is not None
    return node_name(channel.leader)


class Sender(threading.Thread):
    """Adds 1 again and again. What is unknown is repeated by its guid until it is known."""

    def __init__(self, counters: ChannelSet, key: str) -> None:
        super().__init__()
        self._counters = counters
        self._key = key
        self.totals: list[int] = []
        self.repeated = 0
        self.failure: BaseException | None = None

    def run(self) -> None:
        """Send."""
        try:
            for _ in range(COMMANDS):
                self.totals.append(self._send())
        except BaseException as error:  # noqa: BLE001 - raised in the thread of the test
            self.failure = error

    def _send(self) -> int:
        guid: str | None = None
        while True:
            try:
                total: int = self._counters.command(self._key, 1, guid=guid, timeout=0.3)
            except RequestError as error:
                if error.outcome is Outcome.UNKNOWN:
                    guid, self.repeated = error.guid, self.repeated + 1
                elif not error.retriable:
                    raise
            else:
                return total


def test_commands_are_applied_exactly_once_over_a_killed_leader(cluster: LocalCluster) -> None:
    """Two senders count while the leader is killed: every command has its result once, and the
    totals are exact at every level and at every replica afterwards; so says the shell."""
    with cluster.connect(timeout=10.0) as client:
        with pytest.raises(UnknownMachineError, match=r"tests\.cluster\.counting:Missing"):
            client.create_channelset("c", "tests.cluster.counting:Missing")
        client.create_channelset("counters", "tests.cluster.counting:Counter", partitions=1)
        client.create_channelset("memory", "tests.cluster.counting:MemoryCounter", partitions=1)
        counters = client.channelset("counters")
        senders = [
            Sender(counters, "a"),
            Sender(client.channelset("memory"), "a"),
        ]
        first = counters.command_result("first", 7)
        for sender in senders:
            sender.start()
        eventually(lambda: len(senders[0].totals), lambda count: count > 10)
        victim = _leader(client, "counters")
        cluster.kill(victim)
        for sender in senders:
            sender.join()
            assert sender.failure is None, sender.failure
            # One result for each command, none twice, none left out.
            assert sender.totals == list(range(1, COMMANDS + 1))
        # Given again over the failover it is the same command, with the result that it had.
        assert counters.command("first", 7, guid=first.guid) == 7
        with pytest.raises(RejectedError, match="-1 is below 0"):
            counters.command("none", -1)
        cluster.start(victim)
        cluster.wait_until_ready()
        last = counters.command_result("a", 0)
        for name, key in (("counters", "a"), ("memory", "a")):
            channelset = client.channelset(name)
            for level in ("linearizable", "leader"):
                assert channelset.query(key, level=level) == COMMANDS
            assert channelset.query(key, max_lag=0, max_staleness=60.0) == COMMANDS
        for replica in NAMES:
            found = counters.query_result("a", replica=replica, at_least=last.position)
            assert (found.answer, found.node) == (COMMANDS, replica)
            by_level = counters.query_result("a", replica=replica, level="any")
            assert by_level.answer == COMMANDS
        assert counters.query_all() == [COMMANDS + 7]
        with pytest.raises(RejectedError, match="LookupError: asked to fail"):
            counters.query("a", b"fail")
        assert shell_json(cluster, "machine", "query", "counters", "a") == COMMANDS
        assert shell_json(cluster, "machine", "command", "counters", "b", "3") == 3
        shown = shell_json(cluster, "machine", "info", "counters")
        assert [each["stopped"] for each in shown["channels"]] == [None]
        explained = shell_json(cluster, "explain", "query", "counters", "a", "--max-lag", "5")
        assert {each["node"] for each in explained["replicas"]} == set(NAMES)
