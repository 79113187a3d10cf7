"""Nodes in network namespaces: link faults strike packets, and nothing stays on the machine.

It needs root. Elsewhere each test shows instead that the run is refused, and says what is missing.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Final

import pytest

from jepsen_like.checker.verdict import Validity, worst
from jepsen_like.nemesis.catalogue import CATALOGUE
from jepsen_like.nemesis.fault import injected
from jepsen_like.target.base import FaultUnavailableError
from jepsen_like.target.processes.namespaces import NAMED, remove_stale, why_unavailable
from jepsen_like.target.processes.network import NAMESPACES
from jepsen_like.target.processes.runner import run_on_processes
from jepsen_like.target.processes.target import ProcessTarget
from jepsen_like.workload.registry import workload_named
from tests.promises import promised

pytestmark = [pytest.mark.cluster, pytest.mark.slow]
WAIT_S: Final = 60.0
RUNNER: Final = """
import sys
from pathlib import Path
from jepsen_like.target.processes.target import ProcessTarget

with ProcessTarget(Path(sys.argv[1]), nodes=1, network="namespaces") as target:
    print(target.cluster.pid("n1"), flush=True)
    sys.stdin.read()
"""


def _is_refused(directory: Path) -> bool:
    """True on a machine without namespaces, after having seen that it says so."""
    reason = why_unavailable()
    if reason is None:
        return False
    with pytest.raises(FaultUnavailableError) as refused:
        ProcessTarget(directory, network=NAMESPACES)
    assert str(refused.value) == reason
    return True


def _names(pid: int) -> list[str]:
    """Of namespaces that a run of this process made."""
    found = sorted(path.name for path in NAMED.iterdir()) if NAMED.is_dir() else []
    return [name for name in found if name.startswith(f"raftstore-{pid}-")]


def _devices(pid: int) -> list[str]:
    """Of this machine, made by a run of this process."""
    devices = sorted(path.name for path in Path("/sys/class/net").iterdir())
    return [name for name in devices if name.startswith(f"rs{pid:x}-")]


def test_a_register_survives_cuts_and_lost_packets(tmp_path: Path) -> None:
    """Both faults strike packets, every checker is content, and the machine is as before."""
    if _is_refused(tmp_path / "run"):
        return
    workload = workload_named("register")
    run = run_on_processes(
        workload,
        [CATALOGUE["partition-halves"], CATALOGUE["loss"]],
        seconds=8.0,
        clients=3,
        seed=3,
        directory=tmp_path / "run",
        fault_pause_s=0.5,
        network=NAMESPACES,
    )
    meant = injected(run.faults)
    struck = {fault["kind"] for fault in meant if fault["fired"]}
    assert struck == {"partition-halves", "loss"}
    assert all(fault["fired"] for fault in meant), meant
    assert sum(fault["frames"]["blocked"] for fault in meant) > 0
    assert sum(fault["frames"]["lost"] for fault in meant) > 0
    verdicts = workload.check(run)
    promised(worst(verdicts) is not Validity.INVALID, str(verdicts))
    assert [verdict for verdict in verdicts if not verdict.is_valid] == []
    assert all(len(set(of.values())) == 1 for of in run.replica_hashes.values())
    assert (_names(os.getpid()), _devices(os.getpid())) == ([], [])


@pytest.mark.parametrize("ending", [signal.SIGKILL, signal.SIGINT])
def test_nothing_stays_when_a_runner_ends(tmp_path: Path, ending: signal.Signals) -> None:
    """Names, devices and node are gone soon, whether the runner could do anything or not."""
    if _is_refused(tmp_path / "run"):
        return
    with subprocess.Popen(
        [sys.executable, "-c", RUNNER, str(tmp_path / "run")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as runner:
        assert runner.stdout is not None
        node = int(runner.stdout.readline())
        assert len(_names(runner.pid)) == 1
        assert len(_devices(runner.pid)) == 2
        runner.send_signal(ending)
    end = time.monotonic() + WAIT_S
    while _names(runner.pid) or _devices(runner.pid) or Path(f"/proc/{node}/ns").exists():
        assert time.monotonic() < end, "something outlived its runner"
        time.sleep(0.05)


def test_the_next_run_takes_away_what_a_dead_one_left(tmp_path: Path) -> None:
    """Its process id may be another's by now; names of others and of the living stay."""
    if _is_refused(tmp_path / "run"):
        return
    stale, other = f"raftstore-{os.getpid()}-1-0-n1", f"raftstore-of-others-{os.getpid()}"
    for name in (stale, other):
        subprocess.run(["ip", "netns", "add", name], check=True)
    try:
        with ProcessTarget(tmp_path / "run", nodes=1, network=NAMESPACES):
            (alive,) = _names(os.getpid())
            assert alive != stale
            assert remove_stale() == []
            assert (NAMED / other).exists()
            assert _names(os.getpid()) == [alive]
    finally:
        subprocess.run(["ip", "netns", "del", other], check=True)
