"""NATS-038: every state meets every message, of every term, and does only what it may."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from raftstore.core.effects import Append, Halt, ReadReady, Reply, Send, SendIfKnown, Truncate
from raftstore.protocol.log_ends import AskLogEnd
from raftstore.protocol.payload_repair import RelayedAck
from raftstore.protocol.publish import PubAck
from raftstore.protocol.replication import ReadIndexReply, StoreAck, StoreRequest
from raftstore.types import Term
from tests.reference.role_table import (
    STATES,
    TERM,
    effects_of,
    publish_effects,
    replication_messages,
    role_table,
)

CELLS = list(itertools.product(STATES, replication_messages()))
IDS = [f"{state}-{kind.__name__}" for state, kind in CELLS]
LEADERS = [state for state in STATES if state.startswith("leader")]


def sends(effects: list[Any], kind: type[Any]) -> bool:
    """Whether a message of the kind is among the effects."""
    return any(isinstance(each, Send) and isinstance(each.message, kind) for each in effects)


@pytest.mark.slow
def test_table_has_a_cell_for_every_state_and_message() -> None:
    """A message or state that is added is tried out, too."""
    head, *rows = role_table()
    assert head[1:] == list(STATES)
    assert [row[0] for row in rows] == [k.__name__ for k in replication_messages()] + ["PubMsg"]
    assert all(len(row) == len(head) and all(row) for row in rows)


@pytest.mark.parametrize(("state", "kind"), CELLS, ids=IDS)
@pytest.mark.parametrize("term", [Term(1), Term(3)], ids=["lower", "higher"])
def test_message_of_another_term_has_no_effect_on_the_core(
    state: str, kind: type[Any], term: Term
) -> None:
    """S1.4: the engine refuses lower and adopts higher terms before; the core trusts nobody.

    Shows NATS-038. Where a log ends is said in any term: that takes over none (S0.6).
    """
    effects = effects_of(state, kind, term)
    if kind is AskLogEnd:
        effects = [each for each in effects if not isinstance(each, SendIfKnown)]
    assert effects == []


@pytest.mark.parametrize(("state", "kind"), CELLS, ids=IDS)
def test_state_does_only_what_it_may(state: str, kind: type[Any]) -> None:
    """Given any message, only the states that may write, acknowledge, confirm or answer do so."""
    effects = effects_of(state, kind)
    is_following = state in ("follower, steady", "follower, catching up")
    writes = any(isinstance(each, Append | Truncate) for each in effects)
    assert not writes or is_following or state.startswith("recovering")
    assert not sends(effects, StoreAck) or is_following, "S0.3, S3.4: who may count"
    assert not sends(effects, ReadIndexReply) or is_following, "S7.1: who may confirm"
    answers = [each for each in effects if isinstance(each, Reply | ReadReady)]
    is_handed_on = kind is RelayedAck  # S4.4: this OK is the leader's own, said to a follower
    assert not answers or (state in LEADERS) != is_handed_on
    halts = any(isinstance(each, Halt) for each in effects)
    assert not halts or state in LEADERS, "S13: only a second leader of the term is impossible"


@pytest.mark.parametrize("state", STATES)
def test_write_is_sequenced_by_the_leader_alone_and_answered_by_everybody(state: str) -> None:
    """S5.6: and never acknowledged before it is durable on a quorum. A leader that hands over
    answers when its successor is known."""
    effects = publish_effects(state)
    assert sends(effects, StoreRequest) == (state == "leader")
    assert any(isinstance(each, Append) for each in effects) == (state == "leader")
    replies = [each.message for each in effects if isinstance(each, Reply)]
    assert not any(isinstance(message, PubAck) for message in replies)
    assert bool(replies) == (state not in ("leader", "leader, handing over"))
    assert TERM == 2
