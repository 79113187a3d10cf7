"""Followers forget, keep and report things when its connection or its disk has been away (S6)."""

from __future__ import annotations

from raftstore.config import ReplicationSettings
from raftstore.core.batches import BatchCounts
from raftstore.core.effects import StepDown
from raftstore.core.events import RoleChanged, StorageStalled
from raftstore.protocol.payload import encode_mark
from raftstore.protocol.replication import MsgSyncRequest, StoreAck, StoreReject
from raftstore.types import FollowerMode, RecordKind, Role, Seq, Term
from tests.core_bench import N1, N2, Bench, make_replica, record, term_start


def following(*, settings: ReplicationSettings | None = None) -> Bench:
    """A follower of n2 that holds two records and has asked for more."""
    log = [term_start(1, 1), record(2)]
    bench = Bench(make_replica(N1, records=log, settings=settings))
    bench.follow(N2)
    return bench


def test_request_that_was_lost_with_the_connection_is_asked_anew() -> None:
    """Under a new id, at once: not when its time is up."""
    bench = following()
    (lost,) = bench.sent(MsgSyncRequest, bench.all_effects)
    (again,) = bench.sent(MsgSyncRequest, bench.do(RoleChanged(Term(1), Role.FOLLOWER, N2)))
    assert again.request_id > lost.request_id
    assert again.from_seq == lost.from_seq


def test_acknowledgement_is_repeated_over_a_new_connection() -> None:
    """The one before may have been lost with the old one."""
    bench = Bench(make_replica(N1, records=[term_start(1, 1), record(2)]))
    bench.steady()
    bench.do(RoleChanged(Term(1), Role.FOLLOWER, N2))
    assert [ack.match_seq for ack in bench.sent(StoreAck)] == [2]


def test_overflow_of_the_live_queue_names_the_last_record_that_came() -> None:
    """The leader is informed how far the follower heard of records."""
    bench = Bench(
        make_replica(
            N1,
            records=[term_start(1, 1), record(2)],
            settings=ReplicationSettings(live_queue_messages_max=2),
        )
    )
    bench.steady()
    bench.store_request(record(3), record(4), record(5), record(6))
    (reject,) = bench.sent(StoreReject)
    assert (reject.reason, reject.seq) == ("live_queue_overflow", 6)
    assert bench.replica.mode is FollowerMode.CATCHING_UP


def test_marks_that_are_committed_can_be_kept_in_a_base() -> None:
    """S6.7: a cut behind them leaves them, and what is restored knows them."""
    counts = BatchCounts()
    for seq, batch in ((1, 7), (2, 8)):
        payload = encode_mark("writer", batch)
        counts.append(record(seq, kind=RecordKind.BATCH_MARK, payload=payload))
    counts.commit(Seq(2))
    restored = BatchCounts()
    restored.restore(counts.encode(), Seq(2))
    replay = record(3, kind=RecordKind.BATCH_MARK, payload=encode_mark("writer", 8))
    restored.append(replay)
    restored.commit(Seq(3))
    assert restored.at(Seq(3)) == 2


def test_replica_that_is_elected_while_its_disk_hangs_gives_the_role_away() -> None:
    """S0.4: at once, or it would lead on without being able to store anything."""
    bench = Bench(make_replica(N1))
    bench.do(StorageStalled("the disk hangs"))
    bench.lead()
    bench.wait(ReplicationSettings().hand_over_timeout_ms)
    assert StepDown("the disk hangs") in bench.all_effects
