"""Scenarios of the model of micro-batches, and the states that its worlds go through."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from raftstore.protocol.staged import BatchApply

UNKNOWN, ALREADY = 0, -1
"""What a task knows of its attempt, besides its number."""
WAITS, RUNS, COMMITS, ENDED = "waits", "runs", "commits", "ended"


class Violation(AssertionError):
    """A promise was broken; the text is followed by the shortest way there."""


@dataclass(frozen=True)
class BatchPlan:
    """One batch as one driver cuts it: the channels of each task. An empty batch has one task
    without channels, for its driver begins and commits it."""

    tasks: tuple[tuple[int, ...], ...]
    truncate: bool = False


@dataclass(frozen=True)
class WriterPlan:
    """The drivers of one writer, in the order in which they start, with their batches."""

    name: str
    drivers: tuple[tuple[BatchPlan, ...], ...]


@dataclass(frozen=True)
class Scenario:
    """A small world. ``runs``: attempts of each task; ``attempts_max``: attempts ever opened."""

    writers: tuple[WriterPlan, ...]
    channels: int = 2
    attempts_max: int = 3
    runs: int = 1
    tasks_begin: bool = False
    """Each task asks for its attempt by itself, as Spark's tasks do; else the driver for all."""


class Driver(NamedTuple):
    """Knowledge of one driver. ``known``: per task an attempt, UNKNOWN or ALREADY."""

    phase: str = WAITS
    batch: int = 0
    known: tuple[int, ...] = ()


class Decided(NamedTuple):
    """A commit in the order of n, with what is pushed for it."""

    owner: int
    attempt: int
    batch: int
    pushes: tuple[tuple[int, BatchApply], ...]


class World(NamedTuple):
    """One state of everything."""

    coordinator: int
    channels: tuple[int, ...]
    applied: tuple[tuple[int, ...], ...]
    """Per channel the commits in the order in which it applied them."""
    owners: tuple[tuple[int, int], ...]
    """Per attempt the driver and the batch it was opened for."""
    begun: frozenset[tuple[int, int]]
    """(driver, batch) whose BEGIN is on its way."""
    tasks_on: frozenset[tuple[int, int]]
    """(attempt, task) that stage."""
    acked: frozenset[tuple[int, int, int, int]]
    """(attempt, task, run, channel) of chunks that a quorum kept once."""
    asked: tuple[tuple[int, tuple[int, ...]], ...]
    """(attempt, winning runs) whose COMMIT is on its way."""
    commits: tuple[Decided, ...]
    drivers: tuple[Driver, ...]
    log: tuple[int, ...]
    """Per writer the newest batch in Spark's commit log."""
    told: tuple[tuple[int, ...], ...] = ()
    """Per writer and channel the highest F that is on its way (``keeps_answers``)."""
    held: frozenset[tuple[int, tuple[int, ...], int]] = frozenset()
    """(attempt, winning runs, channel) where a channel once said that it holds its part."""
