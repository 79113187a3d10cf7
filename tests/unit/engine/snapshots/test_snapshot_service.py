"""Replica snapshots of a node as its runner sees them: each message and event to its side."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from raftstore.engine.snapshots.service import ReplicaSnapshots
from raftstore.ports.table_copy import digest_of_pairs
from raftstore.protocol.replica_snapshots import (
    AskBase,
    AskReplicaSnapshot,
    AskSnapshotChunk,
    BaseOffer,
    ReplicaSnapshotOffer,
    SnapshotChunk,
)
from raftstore.types import Role, Seq, Term
from tests.unit.engine.snapshots_bench import CHANNEL, FIRST_ID, OTHER, PAIRS, SETTINGS, B, Bench, C

ASKED = FIRST_ID + 1
LED_BY_B = (Term(4), Role.FOLLOWER, B)


class Both(Bench):
    """A node that leads one channel and needs a table or a base for another."""

    def __init__(self) -> None:
        super().__init__()
        self.both = ReplicaSnapshots(self.parts)
        self.needy = self.channels[OTHER]
        self.needy.core.lacks_rows = True

    def say(self, message: Any) -> None:
        """A message of the node B."""
        self.both.on_message(B, message, self.now_ms)

    def needs(self) -> None:
        """The question for a table was sent."""
        self.both.on_needed(self.needy, self.now_ms)
        self.both.on_timer(self.now_ms)
        self.barrier(40)

    def copies_table(self) -> None:
        """The first chunks were asked for."""
        self.needs()
        self.say(ReplicaSnapshotOffer(OTHER, ASKED, 55, Term(4), Seq(60), Seq(9), 90))
        self.said()

    def serves(self) -> int:
        """A snapshot is served to the node B; return its number."""
        self.say(AskReplicaSnapshot(CHANNEL, 5, Seq(0), Seq(9)))
        self.barrier(33)
        [offer] = self.said()
        return int(offer.snapshot_id)


def test_questions_go_to_the_sending_side() -> None:
    """For a table, its chunks, and a base."""
    bench = Both()
    number = bench.serves()
    assert bench.both.pinned(CHANNEL) == {B: 33}
    assert bench.both.pinned(OTHER) == {}
    bench.say(AskSnapshotChunk(CHANNEL, number, 0))
    bench.run_steps()
    [chunk] = bench.said()
    assert chunk.pairs == tuple(PAIRS[:2])
    bench.say(AskBase(CHANNEL, 8, Seq(30)))
    assert [type(one) for one in bench.said()] == [BaseOffer]


def test_answers_go_to_the_receiving_side() -> None:
    """An offer, chunks, and a base."""
    bench = Both()
    bench.copies_table()
    pairs = tuple(PAIRS[:2])
    bench.say(SnapshotChunk(OTHER, 55, 0, pairs, digest_of_pairs(pairs)))
    bench.run_steps()
    assert bench.copies[0].pairs == PAIRS[:2]
    bench = Both()
    bench.needy.core.lacks_rows, bench.needy.core.trimmed_to = False, Seq(6)
    bench.needs()
    bench.told()
    bench.say(BaseOffer(OTHER, ASKED, Term(0), Seq(0), b"h" * 16, b"", "not here"))
    [(name, fields)] = bench.told()
    assert (name, fields["reason"]) == ("replica_snapshot_failed", "not here")


def test_both_sides_have_their_timers() -> None:
    """Moments of the node are theirs, the same objects for ever."""
    bench = Both()
    deadlines = bench.both.deadlines
    bench.serves()
    bench.needs()
    assert sorted(each.next_ms for each in deadlines)[:2] == [
        1_000 + SETTINGS.request_ms,
        1_000 + SETTINGS.session_ms,
    ]
    bench.said()
    bench.now_ms = 1_000 + SETTINGS.session_ms
    bench.both.on_timer(bench.now_ms)
    assert bench.snapshots[0].closed
    assert bench.told()[-1][0] == "replica_snapshot_failed"


def test_moment_at_which_a_chunk_may_leave_is_one_of_the_nodes() -> None:
    """The chunk waits for nothing else to happen."""
    bench = Both()
    number = bench.serves()
    for each in (0, 1):
        bench.say(AskSnapshotChunk(CHANNEL, number, each))
    bench.run_steps()
    assert len(bench.said()) == 1
    assert min(each.next_ms for each in bench.both.deadlines) == 1_001
    bench.both.on_timer(1_001)
    assert len(bench.said()) == 1


def test_closed_channel_is_closed_on_both_sides() -> None:
    """Snapshots that it serves, and the one that it takes."""
    bench = Both()
    bench.serves()
    bench.needs()
    bench.both.on_closed(bench.channels[CHANNEL])
    assert bench.snapshots[0].closed
    assert bench.both.receiver.transfers
    bench.both.on_closed(bench.needy)
    assert not bench.both.receiver.transfers


@pytest.mark.parametrize(
    ("before", "is_another"),
    [
        (LED_BY_B, False),
        ((Term(4), Role.CANDIDATE, B), False),
        ((Term(3), Role.FOLLOWER, B), True),
        ((Term(4), Role.FOLLOWER, C), True),
        ((Term(4), Role.FOLLOWER, None), True),
    ],
)
def test_another_term_or_leader_begins_anew_another_role_does_not(
    before: Any, is_another: bool
) -> None:
    """S6.2: a snapshot belongs to one leader in one term."""
    bench = Both()
    bench.needs()
    bench.needy.elector = SimpleNamespace(term=Term(4), role=Role.FOLLOWER, leader=B)
    bench.both.leader_changed(bench.needy, before, 2_000)
    assert bool(bench.told()) == is_another
    assert (bench.both.receiver.deadlines.next_ms == 2_000 + SETTINGS.retry_ms) == is_another


@pytest.mark.parametrize("what", ["applied", "durable"])
def test_transfer_at_its_end_goes_on_with_what_is_applied_and_durable(what: str) -> None:
    """S0.5."""
    bench = Both()
    bench.copies_table()
    pairs = tuple(PAIRS)
    digest = digest_of_pairs(pairs)
    bench.last_operation = 41
    chunk = SnapshotChunk(OTHER, 55, 0, pairs, digest, True, 5, digest)
    bench.say(chunk)
    bench.run_steps()
    assert bench.done()[-1] == "pause orders/4"
    bench.durable_operation = 41
    if what == "applied":
        bench.both.on_applied(bench.needy, (), 3_000)
    else:
        bench.both.on_durable(3_000)
    bench.run_steps()
    assert bench.done() == ["complete", "install orders/4", "reopen orders/4"]


def test_node_that_does_not_know_replica_snapshots_is_told_nothing() -> None:
    """Its version may have changed since it spoke."""
    bench = Both()
    assert bench.parts.knows(B)
    bench.parts.send(C, AskBase(CHANNEL, 1, Seq(1)))
    assert len(bench.said()) == 1
    bench.known.discard(C)
    assert not bench.parts.knows(C)
    bench.parts.send(C, AskBase(CHANNEL, 1, Seq(1)))
    assert not bench.sent
