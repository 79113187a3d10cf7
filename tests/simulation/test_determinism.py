"""One seed is one world, in every process and on every machine."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from raftstore.testing.options import draw_options

RUN = """
from raftstore.testing.campaign import run_seed
verdict = run_seed(11, {"operations": "150", "faults": "5", "fault_phase_ms": "4000"})
print(verdict.violation, verdict.digest, verdict.steps, verdict.messages)
"""


def run_with_hash_seed(hash_seed: str) -> str:
    """The world's verdict from a process of its own."""
    environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
    done = subprocess.run(
        [sys.executable, "-c", RUN], env=environment, capture_output=True, text=True, check=True
    )
    return done.stdout


@pytest.mark.slow
def test_seed_gives_the_same_world_whatever_the_hash_seed() -> None:
    """The digest of all trace lines is equal in two processes that order sets differently."""
    first = run_with_hash_seed("1")
    assert first.startswith("None ")
    assert first == run_with_hash_seed("4242")


def test_seed_draws_the_same_options_always() -> None:
    """The options of a seed are part of its identity; changing the drawing changes all worlds."""
    assert draw_options(17) == draw_options(17)
    assert draw_options(17) != draw_options(18)
