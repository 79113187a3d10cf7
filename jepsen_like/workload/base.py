"""The shape of a workload.

A client is a generator: it yields a `Call` and is sent the `Answer`. It neither waits nor reads a
clock, so the same client runs on virtual time and against real processes. The runner records each
call as an `Operation` whose action is the call's action, and the workload translates these into
what its checkers judge.
"""

from __future__ import annotations

import random
from collections.abc import Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from jepsen_like.calls import Action, Answer, Call
from jepsen_like.checker.channelsets import ChannelSetLog
from jepsen_like.checker.repeats import RepeatWatch
from jepsen_like.checker.status import StatusWatch
from jepsen_like.checker.verdict import Verdict
from jepsen_like.checker.voters import VoterSets
from jepsen_like.history import Operation
from jepsen_like.target.processes.deaths import NodeWatch

Client = Generator[Call, Answer, None]
"""Yields calls for ever; the runner closes it."""


def read_each(table: str, keys: Iterable[str]) -> Client:
    """The read-back of a few keys: each once, at the level that a call has by default."""
    for key in keys:
        yield Call(Action.GET, table, key, final=True)


@dataclass(frozen=True, slots=True)
class Committed:
    """One row of a committed record, as found in the replicas' logs after the run."""

    seq: int
    guid: bytes
    key: Any
    value: Any
    """None: deleted."""
    is_conflict: bool = False
    committed_at: int | None = None
    """When it was first known to be committed, on the history's clock; None: not observed."""
    is_row: bool = True
    """False: a record without rows, as a term's first one; only seq and guid say something."""
    is_mark: bool = False
    """The end of a micro-batch."""
    is_batch: bool = False
    """It came with an atomic micro-batch."""
    span: int = 0
    """Seqs of the record, where they are not as many as its rows; 0: they are."""


@dataclass(slots=True)
class Run:
    """Everything a checker may look at after a run."""

    history: Sequence[Operation]
    commits: Mapping[tuple[str, int], Sequence[Committed]] = field(default_factory=dict)
    """(table, partition) -> rows of the committed log in order; empty where a target has none."""
    replica_hashes: Mapping[tuple[str, int], Mapping[str, str]] = field(default_factory=dict)
    """(table, partition) -> node -> hash of the replica's rows, after healing."""
    faults: Sequence[Mapping[str, Any]] = ()
    """Each fault: kind, started, ended (nanoseconds on the history's clock), where, fired."""
    status: StatusWatch = field(default_factory=StatusWatch)
    """What nodes said of the cluster."""
    repeats: RepeatWatch = field(default_factory=RepeatWatch)
    """Writes that were sent again on purpose."""
    held_ms: float = 0.0
    """So long the network may hold back a message, faults apart that are known to do so."""
    nodes: NodeWatch | None = None
    """What became of the nodes' processes; None: they are not ours, or simulated."""
    channelsets: Mapping[tuple[str, int], ChannelSetLog] = field(default_factory=dict)
    """(channel set, partition) -> its commands, and the states of its replicas."""
    voters: VoterSets = field(default_factory=VoterSets)
    """Who voted when, of partitions whose replicas moved; the others' are in ``replica_hashes``."""


class UniqueValues:
    """A workload whose clients number what they write, together."""

    _last = 0
    """The last number given out."""


class Workload(Protocol):
    """One kind of traffic and its judges."""

    name: str
    text: str
    """One sentence for lists."""
    tables: Mapping[str, int]
    """Table name -> partitions."""

    # A workload with ``is_over_http = True`` asks real nodes over HTTP. One with
    # ``rows_expire = True`` changes its replicas after the last call, too. ``machines`` names
    # those of its tables that are channel sets, ``environment`` variables of the nodes.

    def client(self, index: int, rng: random.Random) -> Client:
        """The traffic of one client; clients share the workload object for unique values."""
        ...

    def final_client(self, rng: random.Random) -> Client:
        """The read-back after healing; ends by itself."""
        ...

    def check(self, run: Run) -> list[Verdict]:
        """Judge the run; never raises for what a store did wrong."""
        ...
