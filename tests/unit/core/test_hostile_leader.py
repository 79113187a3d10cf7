"""Messages of a peer that no log can be behind (S12): refused, and never the end of the node.

An assertion of the core ends the node, so none may depend on what a message says.
"""

from __future__ import annotations

import random
from typing import Any

import pytest

from raftstore.core.effects import Halt
from raftstore.protocol.message import Message
from raftstore.protocol.replication import (
    CaughtUp,
    CommitNotice,
    FreshReply,
    FreshRequest,
    MsgSync,
    MsgSyncRequest,
    ReadIndexReply,
    ReadIndexRequest,
    StoreAck,
    StoreRequest,
)
from raftstore.types import LineageEntry, Seq, Term
from tests.core_bench import (
    CHANNEL,
    N2,
    N3,
    Bench,
    make_replica,
    meta_of,
    record,
    term_start,
)

TERM = 5
LOG = [term_start(1, 2), record(2, term=2, rows=3), record(5, term=4), record(6, term=4, rows=2)]


def follower(term: int = TERM) -> Bench:
    """A follower of n2 with records of terms 2 and 4."""
    bench = Bench(make_replica(records=LOG, term=term))
    bench.follow(N2, term=term)
    return bench


def asked(bench: Bench) -> MsgSyncRequest:
    """The newest request for history."""
    requests: list[MsgSyncRequest] = bench.sent(MsgSyncRequest, bench.all_effects)
    return requests[-1]


@pytest.mark.parametrize("term", [1, 3, TERM + 1])
def test_metadata_of_a_term_that_cannot_follow_is_refused(term: int) -> None:
    """Terms never fall along a log, and no leader has a record of a higher term than its own."""
    bench = follower()
    bench.store_request(record(8, term=term), prev_term=4, term=TERM, inlined=True)
    assert bench.replica.history() == (4, 7)
    bench.store_request(record(8, term=TERM), prev_term=4, term=TERM, inlined=True)
    assert bench.replica.history() == (TERM, 8)


@pytest.mark.parametrize("term", [1, 3, TERM + 1])
def test_history_of_a_term_that_cannot_follow_is_refused(term: int) -> None:
    """The record is left out, and history asked for again."""
    bench = follower()
    first = asked(bench)
    wrong = record(8, term=term)
    bench.sync(wrong, request_id=first.request_id, from_seq=8, prev_term=4, term=TERM)
    assert bench.replica.history() == (4, 7)
    again = asked(bench)
    assert again.request_id > first.request_id
    bench.sync(
        record(8, term=TERM), request_id=again.request_id, from_seq=8, prev_term=4, term=TERM
    )
    assert bench.replica.history() == (TERM, 8)


def test_a_held_record_cannot_be_longer_than_it_is() -> None:
    """Verified is what the log holds: acks and commits count to there at most."""
    bench = follower()
    longer = record(6, term=4, rows=100)
    bench.store_request(longer, prev_term=4, term=TERM, commit_seq=50, inlined=True)
    bench.sync(
        longer,
        request_id=asked(bench).request_id,
        from_seq=6,
        prev_term=4,
        term=TERM,
        commit_seq=50,
    )
    assert bench.replica.verified_seq <= 7
    assert bench.replica.commit_seq <= 7


def test_no_record_is_cut_in_two() -> None:
    """The log removes whole records only, so an outline that ends within one would be another."""
    bench = follower()
    bench.store_request(record(7, term=TERM), prev_term=4, term=TERM, inlined=True)
    assert bench.replica.history() == (4, 7)
    assert not bench.of(Halt, bench.all_effects)


class Liar:
    """Messages in their ranges that say anything, near the log of the replica."""

    def __init__(self, seed: int) -> None:
        self._rng = random.Random(seed)

    def _seq(self) -> Seq:
        return Seq(self._rng.choice([0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 40, 2**62]))

    def _term(self) -> Term:
        return Term(self._rng.choice([0, 1, 2, 3, 4, 4, 5, 5, 5, 6, 9]))

    def _records(self) -> list[Any]:
        rng = self._rng
        base, made = rng.randint(1, 10), []
        for _ in range(rng.randint(0, 3)):
            rows = rng.choice([1, 1, 2, 40])
            made.append(record(base, term=self._term(), rows=rows, counter=rng.randint(1, 9)))
            base += rows if rng.random() < 0.9 else rng.randint(0, 3)
        return made

    def draw(self, bench: Bench) -> Message:
        """One message of the term."""
        rng, seq, records = self._rng, self._seq(), self._records()
        match rng.randrange(10):
            case 0 | 1 | 2:
                metas = tuple(meta_of(each, inlined=rng.random() < 0.8) for each in records)
                return StoreRequest(CHANNEL, Term(TERM), self._term(), seq, metas)
            case 3 | 4 | 5:
                requests = bench.sent(MsgSyncRequest, bench.all_effects)
                request_id = requests[-1].request_id if requests else 1
                from_seq = Seq(max(1, records[0].base_seq if records else seq))
                prev_term, last_seq = self._term(), self._seq()
                return MsgSync(
                    channel=CHANNEL,
                    term=Term(TERM),
                    request_id=request_id,
                    from_seq=from_seq,
                    prev_term=prev_term,
                    records=tuple(records),
                    commit_seq=seq,
                    last_seq=last_seq,
                    first_seq=Seq(1),
                    done=rng.random() < 0.5,
                )
            case 6:
                return CommitNotice(CHANNEL, Term(TERM), seq, self._seq(), self._term(), b"", seq)
            case 7:
                return StoreAck(CHANNEL, Term(TERM), seq, self._seq(), self._seq())
            case 8:
                lineage = tuple(LineageEntry(self._term(), self._seq()) for _ in records)
                return MsgSyncRequest(CHANNEL, Term(TERM), 1, seq, lineage, 1_000)
            case _:
                number = rng.randint(0, 5)
                return rng.choice(
                    [
                        ReadIndexRequest(CHANNEL, Term(TERM), number),
                        ReadIndexReply(CHANNEL, Term(TERM), number),
                        FreshRequest(CHANNEL, Term(TERM), number),
                        FreshReply(CHANNEL, Term(TERM), number, seq, -1),
                        CaughtUp(CHANNEL, Term(TERM), seq),
                    ]
                )


@pytest.mark.parametrize("seed", range(40))
def test_no_message_reaches_an_assertion(seed: int) -> None:
    """A follower and a leader refuse what a peer makes up in their term, or stop by a rule."""
    liar = Liar(seed)
    benches = [follower(), Bench(make_replica(records=LOG, term=TERM))]
    benches[1].lead(term=TERM)
    for number in range(60):
        bench = benches[number % 2]
        bench.receive(liar.draw(bench), N2 if number % 3 else N3)
        if number % 4 == 0:
            bench.persist()
        bench.wait(30)
