"""The order in which nodes are asked for a payload that is missing (NATS-205)."""

from __future__ import annotations

from raftstore.policy.payload_sources import ReportedLog, next_source
from raftstore.types import NodeId, Seq

A, B, C, D = (NodeId(name) for name in "abcd")


def log(first: int, end: int, *gaps: tuple[int, int]) -> ReportedLog:
    """A log as reported."""
    return ReportedLog(Seq(first), Seq(end), [(Seq(low), Seq(high)) for low, high in gaps])


def order(able: tuple[NodeId, ...], leader: NodeId | None, **reported: ReportedLog) -> list[NodeId]:
    """Everybody who is asked for 10, one after the other."""
    asked: list[NodeId] = []
    known = {NodeId(name): log for name, log in reported.items()}
    while node := next_source(Seq(10), leader=leader, able=able, reported=known, asked=asked):
        asked.append(node)
    return asked


def test_leader_is_asked_first_then_the_furthest_and_nobody_twice() -> None:
    """Of a node that reported nothing, nothing is known: it comes last."""
    reports = {"b": log(1, 11), "c": log(1, 12)}
    assert order((A, B, C, D), D, **reports) == [D, C, B, A]
    assert order((A, B, C), D, **reports) == [C, B, A]  # the leader cannot be asked
    assert order((A, B, C), None, **reports) == [C, B, A]
    assert order((), A) == []


def test_nobody_is_asked_who_reported_that_it_misses_the_record() -> None:
    """Trimmed, or in a gap, ends included; the leader is asked in any case."""
    trimmed, gap = log(11, 30), log(1, 30, (2, 3), (10, 12))
    assert order((A, B, C), None, a=trimmed, b=gap, c=log(10, 20, (8, 9), (11, 12))) == [C]
    assert order((A, B), None, a=log(1, 9), b=log(1, 30, (4, 10))) == [A]
    assert order((A, B), A, a=trimmed, b=gap) == [A]
