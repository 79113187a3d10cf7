"""Replicas are waited for until they are equal, and compared again when time is up."""

from __future__ import annotations

from typing import Any

import pytest

from jepsen_like import equal_replicas
from jepsen_like.equal_replicas import difference
from raftstore.errors import RaftstoreError, UnavailableError

NODES = ("n1", "n2", "n3")


class Client:
    """Answers of each node in order; the last one stays."""

    def __init__(self, **answers: list[str | RaftstoreError]) -> None:
        self._answers = answers

    def content_hash(self, table: str, node: str, *, timeout: float) -> Any:
        """The table's contents at one node."""
        assert (table, timeout) == ("rows", equal_replicas.CALL_TIMEOUT_S)
        answers = self._answers[node]
        found = answers.pop(0) if len(answers) > 1 else answers[0]
        if isinstance(found, RaftstoreError):
            raise found
        return type("Digest", (), {"content": lambda _self: found})()


def different(client: Any, patience_s: float = 0.0) -> str:
    """The finding for one table."""
    return difference(client, "rows", NODES, patience_s)


def test_replicas_may_take_their_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """One applies later, another cannot be asked at first."""
    monkeypatch.setattr(equal_replicas, "POLL_S", 0)
    late = Client(n1=["a"], n2=["b", "a"], n3=[UnavailableError("starting"), "a"])
    assert different(late, 60.0) == ""


def test_replicas_that_stay_different_are_named_with_what_they_hold() -> None:
    """As a violation is reported."""
    assert different(Client(n1=["a"], n2=["a"], n3=["b"])) == (
        "the replicas of rows differ: ['a', 'b']"
    )


def test_replica_that_cannot_be_asked_is_no_equal_one() -> None:
    """However equal the others are."""
    gone = Client(n1=["a"], n2=["a"], n3=[UnavailableError("gone")])
    assert different(gone) == "a replica of rows cannot be asked: gone"
