"""A run whose ports another program took says so, and proves nothing either way."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import pytest

from jepsen_like.target.base import NotRunError
from jepsen_like.target.processes.deaths import EXIT_CONFIG
from jepsen_like.target.processes.target import ProcessTarget
from raftstore.errors import RaftstoreError
from raftstore.transport.endpoints import parse_endpoint

pytestmark = [pytest.mark.cluster, pytest.mark.slow]
WAIT_S: Final = 30.0


@contextmanager
def port_taken(target: ProcessTarget, node: str) -> Iterator[None]:
    """Somebody else listens where the node does."""
    with socket.create_server(parse_endpoint(target.cluster.endpoints_by_node()[node])):
        yield


def test_a_port_taken_at_the_start_is_a_run_that_did_not_take_place(tmp_path: Path) -> None:
    """The sentence names the node; no process stays."""
    target = ProcessTarget(tmp_path / "run")
    with (
        port_taken(target, "n2"),
        pytest.raises(NotRunError, match="another program took a port of n2; run it again"),
        target,
    ):
        pass
    assert target.cluster.running() == []


def test_a_port_taken_while_its_node_was_down_is_no_violation(tmp_path: Path) -> None:
    """A failure is blamed on the machine only while that is so; others stay what they are."""
    with ProcessTarget(tmp_path / "run") as target:
        target.kill(["n3"])
        with port_taken(target, "n3"):
            target.start(["n3"])
            end = time.monotonic() + WAIT_S
            while target.cluster.ended().get("n3") != EXIT_CONFIG:
                assert time.monotonic() < end, "the node did not refuse"
                time.sleep(0.05)
        with pytest.raises(NotRunError, match="port of n3"), target.blaming_the_machine():
            raise RaftstoreError("not whole")
        target.start(["n3"])
        with pytest.raises(RaftstoreError, match="not whole"), target.blaming_the_machine():
            raise RaftstoreError("not whole")
