"""Worker processes of the simulator's campaigns: in order, and never lost in silence."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import pytest

from raftstore.errors import RaftstoreError
from raftstore.testing.workers import Workers


@pytest.mark.slow
def test_workers_answer_in_the_order_of_the_items() -> None:
    """Whichever process was faster."""
    with Workers(2) as workers:
        assert list(workers.each(abs, [-3, 1, -2])) == [3, 1, 2]


@pytest.mark.slow
def test_worker_that_dies_ends_the_work_with_a_sentence() -> None:
    """It is not started again, and nobody waits for its answer."""
    with Workers(2) as workers, pytest.raises(RaftstoreError, match="--jobs 1"):
        list(workers.each(os._exit, [3]))


@pytest.mark.slow
def test_workers_are_ended_when_their_work_is_not_wanted_any_more() -> None:
    """Leaving the block does not wait for what still runs."""
    started = time.monotonic()
    with Workers(2) as workers:
        answers = workers.each(time.sleep, [0, 600])
        next(answers)
    assert time.monotonic() - started < 60


COMMANDS = [
    pytest.param(["simulate"], id="simulate"),
    pytest.param(["chaos", "simulate"], id="chaos simulate"),
    pytest.param(["chaos", "simulate", "--twice"], id="chaos simulate twice"),
]


@pytest.mark.slow
@pytest.mark.parametrize("command", COMMANDS)
def test_command_whose_workers_cannot_start_ends_with_a_sentence(command: list[str]) -> None:
    """A main module that no worker can import ended nothing before: the start was tried again."""
    arguments = [*command, "--seeds", "1..2", "--jobs", "2"]
    ended = subprocess.run(
        [sys.executable, "-"],
        input=f"from raftstore.cli.main import main\nmain({arguments!r})\n",
        capture_output=True,
        text=True,
        timeout=50,
        check=False,
    )
    assert ended.returncode == 9, ended.stderr
    assert "error: a worker process ended before its work was done" in ended.stderr


@pytest.mark.slow
def test_ctrl_c_ends_a_command_with_workers() -> None:
    """At once, with the code of Ctrl-C; the workers end with it."""
    with subprocess.Popen(
        [sys.executable, "-m", "raftstore.cli.main", "simulate", "--seeds", "1..99", "--jobs", "2"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        while not process.stdout.readline().startswith("seed "):
            assert process.poll() is None
        process.send_signal(signal.SIGINT)
        _, told = process.communicate(timeout=30)
    assert process.returncode == 130, told
    assert told.splitlines()[-1] == "stopped"
