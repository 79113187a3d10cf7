"""``raftstore dev``: a supervised cluster, and its clean end."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import raftstore
from tests.cluster.watching import eventually

pytestmark = pytest.mark.cluster


def test_dev_starts_a_killed_node_again_and_ends_with_ctrl_c(tmp_path: Path) -> None:
    """The first line names every node; after Ctrl-C no process is left and the rows are kept."""
    command = [
        sys.executable, "-m", "raftstore.cli.main", "dev", "-o", "json", "--dir", str(tmp_path),
    ]  # fmt: skip
    for start in range(2):
        with (tmp_path / "messages").open("w") as messages:
            dev = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=messages, text=True)
        assert dev.stdout is not None
        nodes = json.loads(dev.stdout.readline())["nodes"]
        assert [node["id"] for node in nodes] == ["n1", "n2", "n3"]
        with raftstore.connect([node["endpoint"] for node in nodes], timeout=15.0) as client:
            client.create_table("orders", key="id", partitions=1, if_not_exists=True)
            client.table("orders").put({"id": start})
            assert len(list(client.table("orders").scan())) == start + 1
            if start == 0:
                os.kill(nodes[1]["pid"], signal.SIGKILL)
                eventually(
                    (tmp_path / "messages").read_text,
                    lambda text: "n2 is started again" in text,
                )
        dev.send_signal(signal.SIGINT)
        assert dev.wait(20) == 0
        dev.stdout.close()
        assert not any(Path(f"/proc/{node['pid']}").exists() for node in nodes)
