"""Processor time of groups of processes, also of those that have ended."""

import subprocess
import sys

import pytest

from benchmarks.processor_time import JVM, OURSELVES, WORKERS, Used

SPIN = (
    "import sys, time\n"
    "sys.stdin.readline()\n"
    "end = time.process_time() + 0.5\n"
    "while time.process_time() < end: pass\n"
    "print('used', flush=True)\n"
    "sys.stdin.read()\n"
)


@pytest.mark.slow
@pytest.mark.parametrize("is_server", [False, True])
def test_used_counts_a_process_that_has_ended_when_nobody_inherits_its_time(is_server):
    """Each of the server's and of our own children is in one group; others used little."""
    command = [sys.executable, "-c", SPIN]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        servers = {"server": [child.pid] if is_server else []}
        with Used(servers) as used:
            child.stdin.write(b"go\n")
            child.stdin.flush()
            assert child.stdout.readline() == b"used\n"
            used._look()
            child.stdin.close()
            child.wait()

    group = "server" if is_server else WORKERS
    assert used.cpu_s.keys() == {JVM, WORKERS, OURSELVES, "server"}
    assert used.cpu_s[group] >= 0.45
    assert used.cpu_s[JVM] == 0.0
    others = sum(used.cpu_s.values()) - used.cpu_s[group]
    assert others == pytest.approx(used.cpu_s[OURSELVES])
