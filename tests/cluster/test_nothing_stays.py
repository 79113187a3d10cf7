"""Given a runner of faults that is killed at the worst moment, its nodes end too."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path
from typing import Final

import pytest

from tests.cluster.watching import eventually

pytestmark = [pytest.mark.cluster, pytest.mark.slow]
WAIT_S: Final = 60.0
RUNNER: Final = """
import sys
from pathlib import Path
from jepsen_like.target.processes.target import ProcessTarget

with ProcessTarget(Path(sys.argv[1])) as target:
    target.pause(target.nodes)
    print(*(target.cluster.pid(node) for node in target.nodes), flush=True)
    sys.stdin.read()
"""


def test_paused_nodes_end_when_their_runner_is_killed(tmp_path: Path) -> None:
    """A stopped process notices nothing by itself; somebody wakes it, and then it ends."""
    with subprocess.Popen(
        [sys.executable, "-c", RUNNER, str(tmp_path / "run")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as runner:
        assert runner.stdout is not None
        pids = [int(word) for word in runner.stdout.readline().split()]
        assert len(pids) == 3
        # A signal stops a process when it gets to run again, which may take a moment.
        eventually(lambda: [_state(pid) for pid in pids], lambda states: set(states) == {"T"})
        runner.kill()
    end = time.monotonic() + WAIT_S
    while any(_state(pid) not in ("", "Z") for pid in pids):
        assert time.monotonic() < end, "a node outlived its runner"
        time.sleep(0.05)


def _state(pid: int) -> str:
    """Of the process: T stopped, Z dead and not waited for; "" when there is none."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return ""
    return stat.rpartition(")")[2].split()[0]
