"""Waiting work on a node is bounded: requests beyond the bound are refused at once and may be
retried.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from raftstore.config import WAITING_COMMANDS_MAX, ReadSettings
from raftstore.protocol.admin import ContentHash, CreateTable, DropTable, StepDown
from raftstore.protocol.message import Failed, Message
from raftstore.protocol.reads import Get, Scan
from raftstore.testing.sim_cluster import SimCluster
from raftstore.testing.sim_node import SimNode
from raftstore.types import ChannelId, Outcome, Seq
from tests.unit.engine.engine_world import ask, calm_cluster, error_class, run

NEVER = Seq(1_000_000)
CLIENT = 777
"""The client handle that ``ask`` uses."""


@pytest.fixture
def world() -> tuple[SimCluster, SimNode, ChannelId]:
    """A calm cluster and the node that leads its only table."""
    cluster, channel = calm_cluster()
    return cluster, cluster.leaders()[channel], channel


def limit(node: SimNode, part: Any, **settings: int) -> None:
    """Other bounds for a part of the node."""
    assert node.runner is not None
    part._settings = ReadSettings(**settings)


def codes(answers: list[Message]) -> list[str]:
    """Codes of the refusals; each may be retried, and its request was not applied."""
    failed = [answer for answer in answers if isinstance(answer, Failed)]
    for answer in failed:
        error = error_class(answer.code)
        assert error.outcome is Outcome.NOT_APPLIED
        assert error.retriable
    return [answer.code for answer in failed]


def test_reads_whose_keys_would_fill_the_memory_are_refused(
    world: tuple[SimCluster, SimNode, ChannelId],
) -> None:
    """A read that waits keeps its keys; ten thousand of them may be as large as frames."""
    cluster, node, channel = world
    limit(node, node.runner.reader, waiting_reads_bytes_max=10)
    answers = ask(
        cluster,
        node,
        Get(1, channel, (b"1234", b"5678"), "any", None, NEVER, 1_000),
        Get(2, channel, (b"abc",), "any", None, NEVER, 1_000),
        Scan(3, channel, b"a", b"b", 9, "any", None, NEVER, 1_000),
    )
    run(cluster, 200)
    assert codes(answers) == ["overloaded"]
    run(cluster, 2_000)
    assert codes(answers) == ["overloaded", "not_up_to_bound", "not_up_to_bound"]
    assert node.runner.reader.waiting == 0
    answers = ask(cluster, node, Get(4, channel, (b"0123456789",), "any", None, NEVER, 1_000))
    run(cluster, 200)
    assert codes(answers) == []


def test_content_hashes_beyond_the_limit_are_refused_until_one_is_done(
    world: tuple[SimCluster, SimNode, ChannelId],
) -> None:
    """Each holds a snapshot, which LevelDB cannot compact away."""
    cluster, node, channel = world
    limit(node, node.runner.hashes, content_hashes_max=2)
    later: list[Callable[[], None]] = []

    def start(of: ChannelId, done: Callable[..., None]) -> None:
        later.append(lambda: done(*node.tables.content_hash(of)))

    node.tables.start_content_hash = start  # type: ignore[method-assign]
    answers = ask(cluster, node, *(ContentHash(number, channel) for number in range(3)))
    run(cluster, 100)
    assert codes(answers) == ["overloaded"]
    later.pop()()
    answers = ask(cluster, node, ContentHash(4, channel), ContentHash(5, channel))
    run(cluster, 100)
    assert codes(answers) == ["overloaded"]


@pytest.mark.parametrize("kind", ["create", "drop", "step_down"])
def test_commands_beyond_the_limit_are_refused_before_anything_is_done(
    world: tuple[SimCluster, SimNode, ChannelId], kind: str
) -> None:
    """S4.1: not applied is certain, so nothing may have been proposed or handed over."""
    cluster, _, channel = world
    node = cluster.leaders()[cluster.nodes[cluster.node_ids[0]].runner.metadata_channel]
    controller, runner = node.runner.controller, node.runner
    asked: dict[str, Message] = {
        "create": CreateTable(1, "new", ("k",), 1, 3, "fsync", None, "", False, timeout_ms=1_000),
        "drop": DropTable(1, "t", 1_000),
        "step_down": StepDown(1, runner.metadata_channel, None, 1_000),
    }
    now_ms = node.clock.now_ms()
    for number in range(WAITING_COMMANDS_MAX):
        request = StepDown(number, channel, None, 60_000)
        assert controller.commands.await_step_down(CLIENT, request, controller.metadata, now_ms)
    answers = ask(cluster, node, asked[kind])
    run(cluster, 2_000)
    assert codes(answers) == ["overloaded"]
    assert [*controller.catalog.tables] == ["t"]
    assert cluster.leaders()[runner.metadata_channel] is node
