"""Results of commands and queries: small frozen values."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from raftstore.client.position import Position
from raftstore.types import Level, Seq, Term


@dataclass(frozen=True, slots=True)
class CommandResult:
    """The result of a command, and its place."""

    result: Any
    """What the machine's ``apply`` returned."""
    position: Position
    """Give it to ``at_least`` of a query that is to see this command, at any replica."""
    partition: int
    seq: Seq
    term: Term
    durability: str
    replicas_acked: int
    """Replicas known to hold it durably when it was answered, the leader included."""
    guid: str
    """Names the command: ``command(..., guid=...)`` repeats it, ``client.fate`` asks for it."""


@dataclass(frozen=True, slots=True)
class QueryResult:
    """An answer of a machine, by whom it was given and how fresh the state was (S7.3)."""

    answer: Any
    """What the machine's ``query`` returned."""
    applied_position: Position
    """What the replica had applied: give it to ``at_least`` for queries that never go back."""
    applied_seq: Seq
    partition: int
    term: Term
    node: str
    level: Level
    lag: int | None
    """Commands the replica was behind what it knew to be committed; None = unknown."""
    leader_info_age_ms: int | None
    staleness_ms: int | None
    """Everything committed longer ago than this is in the state; None = not known."""
