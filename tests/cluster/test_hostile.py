"""No message of any sender ends a node: all kinds, with values at every edge."""

from __future__ import annotations

from pathlib import Path

import pytest

from jepsen_like.hostile import run_hostile
from jepsen_like.hostile_messages import HostileMessages, Truth
from raftstore.transport.handshake import TO_ACCEPTOR, Purpose
from raftstore.types import ChannelId, NodeId

MESSAGES = 1_000
DRAWN_MAX = 4_000
NEVER_WRONG = {"LeadershipRequest", *(kind.__name__ for kind in TO_ACCEPTOR[Purpose.BIRTH])}
"""Kinds without a number, and without an identity of a fixed length."""


@pytest.mark.cluster
def test_hostile_messages_end_no_node_and_harm_no_table_they_do_not_name(tmp_path: Path) -> None:
    """S12: from clients, and under a member's name (30,000: ``make fuzz-wire``)."""
    outcome = run_hostile(MESSAGES, "both", 20, tmp_path / "cluster")
    assert outcome.sent == MESSAGES
    assert outcome.wrong > MESSAGES // 20
    assert outcome.ended["malformed"] > 0
    assert outcome.deaths == []
    assert outcome.faults == []


@pytest.mark.parametrize("purpose", Purpose)
def test_messages_of_every_kind_are_drawn_right_and_wrong(purpose: Purpose) -> None:
    """Messages of every kind are drawn within their ranges and, where possible, outside them: a
    kind that is never sent shows nothing.
    """
    nodes = tuple(NodeId(f"n{number}@{bytes(16).hex()}") for number in (1, 2, 3))
    truth = Truth(b"c" * 16, nodes, (ChannelId(bytes(18)),), ("orders",))
    drawn, again = (HostileMessages(truth, "seed") for _ in range(2))
    assert drawn.draw(purpose, 1) == again.draw(purpose, 1)
    seen: set[tuple[str, bool]] = set()
    kinds = {kind.__name__ for kind in TO_ACCEPTOR[purpose]}
    wanted = {(kind, False) for kind in kinds} | {(kind, True) for kind in kinds - NEVER_WRONG}
    for number in range(DRAWN_MAX):
        sent = drawn.draw(purpose, number)
        seen.add((sent.kind, sent.is_wrong))
        if seen >= wanted:
            return
    assert seen >= wanted
