"""A log that is trimmed while its replica lives: what may be cut, and what goes on as before."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from raftstore.core.effects import Halt, Rebase, ReplicaSnapshotNeeded, ServeSync
from raftstore.core.events import Applied, Broken, TrimTo
from raftstore.core.folds import advance
from raftstore.ports.log import EMPTY_BASE, Base
from raftstore.protocol.records import Record
from raftstore.protocol.replication import MsgSyncRequest, StoreAck
from raftstore.types import History, LineageEntry, Seq, Term
from tests.core_bench import CHANNEL, N2, Bench, make_replica, record, term_start

LOG = [term_start(1, 1), record(2, rows=3), record(5), record(6), record(7), record(8)]


def base_at(seq: int, log: list[Record] = LOG) -> Base:
    """The base behind the record that ends there."""
    return advance(EMPTY_BASE, [one for one in log if one.last_seq <= seq])


def replica(applied: int = 7, **more: Any) -> Bench:
    """A replica that has this log, of which it applied so much."""
    return Bench(make_replica(records=LOG, applied_seq=applied, **more))


def trim(bench: Bench, base: Base) -> list[Rebase]:
    """The effects of trimming."""
    bench.do(TrimTo(base))
    return bench.of(Rebase)


@pytest.mark.parametrize("seq", [1, 4, 5, 7])
def test_s6_5_committed_and_applied_records_may_go(seq: int) -> None:
    """The base moves in the same step; the log's outline, its end and its votes stay."""
    bench = replica()
    before = bench.replica.history(), bench.replica.commit_seq, bench.replica.durable_seq
    assert trim(bench, base_at(seq)) == [Rebase(base_at(seq))]
    assert bench.replica.base == base_at(seq)
    after = bench.replica.history(), bench.replica.commit_seq, bench.replica.durable_seq
    assert after == before
    assert bench.replica.may_vote()
    assert not bench.of(ReplicaSnapshotNeeded, bench.all_effects)


def test_s6_5_base_never_goes_down() -> None:
    """A base that comes late, or again, changes nothing."""
    bench = replica()
    trim(bench, base_at(5))
    for seq in (5, 4, 1):
        assert trim(bench, base_at(seq)) == []
    assert bench.replica.base == base_at(5)
    assert not bench.of(Halt, bench.all_effects)
    assert trim(bench, base_at(6)) == [Rebase(base_at(6))]


def uncommitted(bench: Bench) -> None:
    """Seq 8 is in the log and not known to be committed."""


def undurable(bench: Bench) -> None:
    """Seq 9 is committed by others, applied by nobody and not on this disk."""
    bench.steady()
    bench.hold(record(9))
    bench.store_request(record(9), commit_seq=9)
    assert (bench.replica.commit_seq, bench.replica.durable_seq) == (9, 8)


def unapplied(bench: Bench) -> None:
    """Everything is committed and durable, and the table is at seq 7."""
    bench.steady()
    bench.persist()
    bench.store_request(commit_seq=8)


@pytest.mark.parametrize(("prepare", "seq"), [(uncommitted, 8), (undurable, 9), (unapplied, 8)])
def test_s6_5_nothing_goes_that_is_not_committed_durable_and_applied_here(
    prepare: Callable[[Bench], None], seq: int
) -> None:
    """It would be acknowledged and nowhere, or a gap between table and log: the node stops."""
    bench = replica()
    prepare(bench)
    assert trim(bench, base_at(seq, [*LOG, record(9)])) == []
    [halt] = bench.of(Halt)
    assert f"begin behind seq {seq}" in halt.reason
    assert bench.replica.base == EMPTY_BASE


@pytest.mark.parametrize(
    "base",
    [
        msgspec.structs.replace(base_at(5), chain_hash=bytes(16)),
        msgspec.structs.replace(base_at(5), term=Term(2)),
        msgspec.structs.replace(base_at(5), seq=Seq(3)),
    ],
    ids=["another chain hash", "another term", "no end of a record"],
)
def test_s13_base_of_another_log_stops_the_node(base: Base) -> None:
    """It was made of what is on the disk: then the disk holds something else than was followed."""
    bench = replica()
    assert trim(bench, base) == []
    assert bench.of(Halt)
    assert bench.replica.base == EMPTY_BASE


def test_replica_that_is_damaged_or_stopped_keeps_its_log() -> None:
    """S0.3, S13: what it holds is what the others are compared with."""
    stopped = replica()
    stopped.do(Broken("a batch lacks rows"))
    assert trim(stopped, base_at(5)) == []
    recovering = replica(shortfall=History(Term(1), Seq(20)))
    assert trim(recovering, base_at(5)) == []
    for bench in (stopped, recovering):
        assert bench.replica.base == EMPTY_BASE
        assert not bench.of(Halt, bench.all_effects)


# --- what goes on ---------------------------------------------------------------------------------


def test_s6_6_leader_serves_nothing_below_a_base_that_moved() -> None:
    """S6.6: from the step in which it moved on, whatever the log still has."""
    bench = replica(applied=8)
    bench.lead(2)
    bench.persist()
    bench.receive(StoreAck(CHANNEL, Term(2), bench.replica.last_seq), N2)
    bench.do(Applied(bench.replica.last_seq))
    trim(bench, base_at(5))
    for from_seq, prev_term in ((5, 0), (6, 1)):
        bench.receive(MsgSyncRequest(CHANNEL, Term(2), 1, Seq(from_seq), (), 1_000), N2)
        [serve] = bench.of(ServeSync)
        assert (serve.first_seq, serve.from_seq, serve.prev_term) == (6, from_seq, prev_term)
    bench.publish(1, term=2, leader=bench.replica.leader)
    assert bench.replica.last_seq == 10
    assert not bench.of(Halt, bench.all_effects)


def asked(bench: Bench) -> MsgSyncRequest:
    """The newest request for history."""
    sent: list[MsgSyncRequest] = bench.sent(MsgSyncRequest, bench.all_effects)
    return sent[-1]


def test_follower_that_was_verified_below_a_base_that_moved_asks_anew() -> None:
    """A table may know more to be committed than this term's leader has verified: the answer to a
    question from below the base is dropped, and it is no reason to stop the node."""
    bench = replica()
    bench.follow(N2, 2)
    first = asked(bench)
    assert first.lineage == (LineageEntry(Term(1), Seq(8)),)
    bench.sync(
        *LOG[1:3],
        request_id=first.request_id,
        from_seq=2,
        prev_term=1,
        last_seq=9,
        term=2,
        commit_seq=0,
    )
    second = asked(bench)
    assert second.from_seq == 6
    assert trim(bench, base_at(7))
    bench.sync(
        *LOG[3:],
        term_start(9, 2),
        request_id=second.request_id,
        from_seq=6,
        prev_term=1,
        term=2,
    )
    third = asked(bench)
    assert third.from_seq == 0
    assert third.lineage == (LineageEntry(Term(1), Seq(8)),)
    bench.sync(
        term_start(9, 2), request_id=third.request_id, from_seq=9, prev_term=1, term=2, commit_seq=9
    )
    assert bench.replica.history() == (2, 9)
    assert bench.replica.verified_seq == 9
    assert not bench.of(Halt, bench.all_effects)


def test_s6_6_trimmed_leader_is_asked_again_in_a_while() -> None:
    """The pause begins with its answer; a snapshot is asked for once for each base it has."""
    bench = replica()
    bench.follow(N2, 2)
    request = asked(bench)
    fields: dict[str, Any] = {"from_seq": 9, "prev_term": 1, "term": 2, "last_seq": 90}
    for first_seq, needed in ((20, 1), (20, 0), (30, 1)):
        bench.now_ms += 700
        bench.sync(request_id=request.request_id, first_seq=first_seq, **fields)
        assert len(bench.of(ReplicaSnapshotNeeded)) == needed
        assert not bench.sent(MsgSyncRequest)
        assert bench.replica.next_deadline_ms() == bench.now_ms + 1_000
        assert bench.replica.trimmed_to == first_seq
    bench.wait(1_000)
    assert asked(bench) == request


def test_records_that_are_gathered_are_in_the_log_before_it_begins_anew() -> None:
    """The log gets what the core decided in the order in which it decided it."""
    bench = replica()
    bench.follow(N2, 1)
    bench.steady()
    assert trim(bench, base_at(7)) == [Rebase(base_at(7))]
    bench.hold(record(9))
    bench.store_request(record(9), commit_seq=8)
    assert [one.base_seq for one in bench.appended()] == [9]
    bench.persist()
    bench.do(Applied(Seq(8)))
    assert trim(bench, base_at(8)) == [Rebase(base_at(8))]
    assert bench.replica.durable_seq == 9


def test_restart_behind_a_base_that_moved_is_as_before_it() -> None:
    """S6.7: what is derived goes on as in a replica that kept everything."""
    bench = replica(applied=8)
    trim(bench, base_at(6))
    again = make_replica(base=bench.replica.base, records=LOG[4:], applied_seq=8)
    kept = bench.replica
    assert again.chain_hash_at_commit() == kept.chain_hash_at_commit()
    assert (again.history(), again.commit_seq) == (kept.history(), kept.commit_seq)
