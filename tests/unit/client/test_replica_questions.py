"""Questions to one replica: what is asked, of whom alone, and why there is no answer."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from raftstore.client.comparing import questions
from raftstore.client.comparing.questions import STEP_MS, ReplicaQuestions
from raftstore.errors import (
    ConnectionLostError,
    PageExpiredError,
    RequestTimeoutError,
    UnavailableError,
    UnsupportedRequestError,
)
from raftstore.policy.levels import CHECK_LEVEL
from raftstore.protocol.message import Failed
from raftstore.protocol.reads import ClosePin
from raftstore.protocol.replica_checks import (
    HashHistory,
    HashHistoryAnswer,
    HashRange,
    HashRangeAnswer,
    PinState,
    PinStateAnswer,
)
from raftstore.types import NodeId, Seq, Term, channel_id

CHANNEL = channel_id(b"t" * 16, 0)
ONE, OTHER = NodeId("n1@0"), NodeId("n2@0")


class Link:
    """A connection to one node, and the answer that it gives; None: it never does."""

    level, is_open, last_error = CHECK_LEVEL, True, "connection refused"

    def __init__(self, answer: Any = None) -> None:
        self.answer = answer
        self.asked: list[Any] = []

    async def open(self) -> bool:
        """Whether it can be reached."""
        return self.is_open

    def request(self, build: Any) -> Any:
        """Ask."""
        self.asked.append(build(7))
        answered = asyncio.get_running_loop().create_future()
        if isinstance(self.answer, Exception):
            raise self.answer
        if self.answer is not None:
            answered.set_result(self.answer)
        return answered


def asked(link: Link, question: Any, node: NodeId = ONE) -> Any:
    """Ask; what came of it."""

    def know(asked_of: NodeId, endpoint: str) -> Link:
        assert (asked_of, endpoint) == (ONE, "h:1")
        return link

    context: Any = SimpleNamespace(
        topology=SimpleNamespace(nodes={ONE: SimpleNamespace(endpoint="h:1")}),
        links=SimpleNamespace(know=know, query=lambda of: link if of == ONE else None),
    )

    async def run() -> Any:
        made = question(ReplicaQuestions(context, CHANNEL), node)
        return await made if asyncio.iscoroutine(made) else made

    return asyncio.run(run())


def pin(own: ReplicaQuestions, node: NodeId) -> Any:
    """Pin a state, within a moment."""
    return own.pin(node, Seq(5), 10)


PINNED = PinStateAnswer(7, 3, Seq(9), Term(2), 100)


@pytest.mark.parametrize(
    ("question", "request_", "answer"),
    [
        (pin, PinState(7, CHANNEL, Seq(5), 10), PINNED),
        (
            lambda own, node: own.history(node, Seq(4)),
            HashHistory(7, CHANNEL, Seq(4), STEP_MS),
            HashHistoryAnswer(7, Seq(1), Seq(9)),
        ),
        (
            lambda own, node: own.hashed(node, 3, b"a", b"b", 8, lists=True),
            HashRange(7, CHANNEL, 3, b"a", b"b", 8, STEP_MS, True),
            HashRangeAnswer(7, b"h", 1, 2, b""),
        ),
    ],
)
def test_question_is_asked_of_that_node_and_its_answer_given(
    question: Any, request_: Any, answer: Any
) -> None:
    """Another node's answer would say nothing of this replica."""
    link = Link(answer)
    assert asked(link, question) == answer
    assert link.asked == [request_]


def test_missing_answer_is_an_error_that_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    """A replica is left out of a comparison with these words."""
    monkeypatch.setattr(questions, "MARGIN_MS", 1)
    with pytest.raises(UnavailableError, match="n2 is no node of the cluster"):
        asked(Link(PINNED), pin, OTHER)
    link = Link(PINNED)
    link.is_open = False
    with pytest.raises(UnavailableError, match="n1 cannot be reached: connection refused"):
        asked(link, pin)
    link = Link(PINNED)
    link.level = CHECK_LEVEL - 1
    with pytest.raises(UnsupportedRequestError, match=f"n1 is at level {CHECK_LEVEL - 1}, and"):
        asked(link, pin)
    assert link.asked == []
    with pytest.raises(RequestTimeoutError, match="n1 did not answer within 11 ms"):
        asked(Link(), pin)
    with pytest.raises(PageExpiredError, match="it is gone"):
        asked(Link(Failed(7, "page_expired", "it is gone")), pin)


def test_state_that_is_needed_no_longer_is_given_back_where_somebody_listens() -> None:
    """A node drops it by itself in time."""

    def close(own: ReplicaQuestions, node: NodeId) -> None:
        own.close(node, 3)

    link = Link(PINNED)
    asked(link, close)
    assert link.asked == [ClosePin(7, CHANNEL, 3)]
    asked(Link(ConnectionLostError("it is gone")), close)
    asked(link, close, OTHER)
    link.is_open = False
    asked(link, close)
    assert len(link.asked) == 1
