"""Chain hashes at any committed seq of a log, also of one that is trimmed while they are asked."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from raftstore.core.chain import ChainHashes
from raftstore.engine.healing.chain_walks import (
    MILESTONE_RECORDS,
    RECORDS_PER_TURN,
    TURN_PAUSE_MS,
    WAITING_MAX,
    ChainWalks,
)
from raftstore.ports.log import EMPTY_BASE, Base
from raftstore.protocol.records import Record
from raftstore.types import ChannelId, Seq, Term
from tests.core_bench import CHANNEL, record

RECORDS = 3 * MILESTONE_RECORDS
ROWS = 2
"""Of each record: every second seq is the end of one."""
KEPT = 10
"""Newest hashes that the replica has at hand."""
Told = tuple[bool, bytes]


class Bench:
    """A node with one channel of ``RECORDS`` committed records."""

    def __init__(self) -> None:
        self.records = [record(1 + number * ROWS, rows=ROWS) for number in range(RECORDS)]
        chain = ChainHashes(RECORDS)
        for each in self.records:
            chain.append(each)
        self.chain = chain
        self.heads_read = 0
        self.core = SimpleNamespace(
            base=EMPTY_BASE,
            commit_seq=Seq(RECORDS * ROWS),
            chain_hashes_from=Seq((RECORDS - KEPT) * ROWS),
            chain_hash_of=chain.at,
        )
        self.runner: Any = SimpleNamespace(channel=CHANNEL, core=self.core, ignores_peers=False)
        log: Any = SimpleNamespace(heads=self._heads)
        self.walks = ChainWalks({CHANNEL: self.runner}, log)
        self.now_ms = 0
        self.told: list[tuple[int, Told]] = []

    def _heads(self, channel: ChannelId, after: Seq, *, to_seq: Seq, limit: int) -> list[Record]:
        assert channel == CHANNEL
        first = max(after, self.core.base.seq)
        found = [each for each in self.records if first < each.base_seq <= to_seq][:limit]
        self.heads_read += len(found)
        return [each for each in found if each.last_seq <= to_seq]

    def ask(self, seq: int) -> None:
        """Ask for the hash at a seq."""

        def done(is_known: bool, chain_hash: bytes) -> None:
            self.told.append((seq, (is_known, chain_hash)))

        self.walks.find(self.runner, Seq(seq), self.now_ms, done)

    def run(self, turns: int = 1_000) -> list[tuple[int, Told]]:
        """So many turns; what was answered since the last call."""
        for _ in range(turns):
            if not len(self.walks.deadlines):
                break
            self.walks.on_timer(self.now_ms)
            self.now_ms += TURN_PAUSE_MS
        told, self.told = self.told, []
        return told

    def trim(self, seq: int) -> None:
        """The log begins behind ``seq`` from now on."""
        chain_hash = self.chain.at(seq)
        assert chain_hash is not None, "a base is where a record ends"
        self.core.base = Base(Term(1), Seq(seq), chain_hash, b"")


@pytest.mark.parametrize("seq", [2, 2 * MILESTONE_RECORDS, 2 * MILESTONE_RECORDS + 2, 2 * RECORDS])
def test_hash_of_each_record_is_that_of_the_whole_chain(seq: int) -> None:
    """S13: whatever was asked before, and whether it is at hand or computed again."""
    bench = Bench()
    for _ in range(2):
        bench.ask(seq)
        assert bench.run() == [(seq, (True, bench.chain.at(seq)))]


def test_second_walk_goes_on_from_what_the_first_one_found() -> None:
    """A bisection walks a log once."""
    bench = Bench()
    bench.ask(2 * (RECORDS - KEPT - 1))
    bench.run()
    bench.heads_read = 0
    bench.ask(2 * (MILESTONE_RECORDS + 7))
    assert bench.run()[0][1][0]
    assert bench.heads_read == 7, "the log was read from its base again"


def test_seq_where_no_record_ends_has_no_hash() -> None:
    """It is known that there is none: another history."""
    bench = Bench()
    bench.ask(101)
    bench.ask(2 * (RECORDS - 3) + 1)
    assert sorted(bench.run()) == [(101, (True, b"")), (2 * (RECORDS - 3) + 1, (True, b""))]


def test_what_is_not_committed_or_trimmed_is_not_known() -> None:
    """S13: nothing is claimed of what the log cannot say."""
    bench = Bench()
    bench.trim(500)
    for seq in (0, 498, 2 * RECORDS + 2):
        bench.ask(seq)
    assert bench.run() == [(seq, (False, b"")) for seq in (0, 498, 2 * RECORDS + 2)]
    bench.ask(500)
    assert bench.run() == [(500, (True, bench.chain.at(500)))]


@pytest.mark.parametrize("turns", [0, 1], ids=["waiting", "under way"])
def test_log_that_is_trimmed_during_the_walk_does_not_know(turns: int) -> None:
    """S13: that no record ends there would count as another history, and two replicas that trim at
    the same time would be a quorum against the one that is right."""
    bench = Bench()
    seq = 2 * (RECORDS_PER_TURN + 100)
    bench.ask(seq)
    bench.run(turns)
    bench.trim(seq + 2)
    assert bench.run() == [(seq, (False, b""))]


@pytest.mark.parametrize("turns", [0, 1], ids=["waiting", "under way"])
def test_log_that_is_trimmed_up_to_what_is_asked_knows_it(turns: int) -> None:
    """The base holds its hash; and what is behind it is computed from there."""
    bench = Bench()
    seq = 2 * (RECORDS_PER_TURN + 100)
    bench.ask(seq)
    bench.ask(seq + 4)
    bench.run(turns)
    bench.trim(seq)
    told = [(each, (True, bench.chain.at(each))) for each in (seq, seq + 4)]
    assert bench.run() == told


def test_oldest_of_too_many_questions_is_told_that_nothing_is_known() -> None:
    """Bounded: a peer that asks and asks does not make a node hold more."""
    bench = Bench()
    for number in range(WAITING_MAX + 1):
        bench.ask(2 + 2 * number)
    assert bench.told == [(2, (False, b""))]
    assert len(bench.run()) == WAITING_MAX + 1


def test_channel_that_is_closed_answers_what_waits() -> None:
    """It is opened anew, with another log."""
    bench = Bench()
    bench.ask(2)
    bench.walks.closed(bench.runner)
    assert bench.run() == [(2, (False, b""))]
