"""A node needs its assertions, so it does not run without them."""

from __future__ import annotations

import subprocess
import sys

import pytest

STARTED = """
from typing import cast
from raftstore.errors import ConfigError
from raftstore.node.process import run_node
from raftstore.node.settings import NodeSettings
try:
    run_node(cast(NodeSettings, None))
except ConfigError as error:
    print(error)
"""


@pytest.mark.slow
def test_a_node_refuses_to_start_without_assertions() -> None:
    """``python -O`` strips them: the refusal says so, and how to start it."""
    command = [sys.executable, "-O", "-c", STARTED]
    ended = subprocess.run(command, check=False, capture_output=True, text=True, timeout=60)
    assert ended.stdout == (
        "python -O strips the assertions that stop a broken node; start it without -O\n"
    ), ended.stderr
