"""The number of micro-batches in a log is a function of its records (S10, BLOG-32)."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from raftstore.core.batches import BATCH_KINDS, NOT_REPORTED, BatchCounts, BatchMarks
from raftstore.core.events import FreshnessRequested, PeerHash
from raftstore.protocol.payload import encode_mark
from raftstore.protocol.records import Record
from raftstore.protocol.replication import (
    CommitNotice,
    FreshReply,
    FreshRequest,
    MsgSyncRequest,
    StoreAck,
)
from raftstore.types import RecordKind, Seq, Term
from tests.core_bench import CHANNEL, N1, N2, Bench, make_replica, record, term_start


def counts_of(kinds: str, marks_max: int = 4_096) -> BatchCounts:
    """A log with a mark at each "m" and rows at each "r"; nothing of it is committed."""
    counts = BatchCounts(marks_max)
    for base_seq, kind in enumerate(kinds, start=1):
        counts.append(
            record(base_seq, kind=RecordKind.BATCH_MARK if kind == "m" else RecordKind.ROWS)
        )
    return counts


def test_batches_are_counted_up_to_any_committed_seq() -> None:
    """The same for every replica, and for every state that one of them has applied."""
    counts = counts_of("rmrrmm")
    counts.commit(Seq(6))
    assert [counts.at(Seq(seq)) for seq in range(7)] == [0, 0, 1, 1, 1, 2, 3]


def test_both_kinds_of_ends_count() -> None:
    """A batch that was staged ends with BATCH_APPLY, one written row by row with a mark."""
    assert {RecordKind.BATCH_MARK, RecordKind.BATCH_APPLY} == BATCH_KINDS


def marks_of(*marks: tuple[str, int]) -> BatchCounts:
    """A log of nothing but marks."""
    counts = BatchCounts()
    for seq, (writer, batch) in enumerate(marks, start=1):
        counts.append(mark(seq, writer, batch))
    return counts


def mark(seq: int, writer: str, batch: int) -> Record:
    """The end of a writer's micro-batch."""
    return record(seq, kind=RecordKind.BATCH_MARK, payload=encode_mark(writer, batch))


def test_replayed_batch_counts_once() -> None:
    """BLOG-32: a writer that was started again marks its newest batch a second time."""
    counts = marks_of(("a", 1), ("b", 1), ("a", 1), ("a", 2), ("b", 1), ("a", 2))
    counts.commit(Seq(6))
    assert [counts.at(Seq(seq)) for seq in range(7)] == [0, 1, 2, 2, 3, 3, 3]


def test_writer_that_began_anew_counts_from_its_first_batch() -> None:
    """S7.3: never fewer than there are, or a state is served that lacks more than was allowed."""
    counts = marks_of(("a", 7), ("a", 0), ("a", 1))
    counts.commit(Seq(3))
    assert counts.at(Seq(3)) == 3


def test_mark_that_was_taken_back_is_no_reason_to_leave_out_its_repetition() -> None:
    """S2.5: the batch is not in the log, so the mark that comes then is its first."""
    counts = marks_of(("a", 1), ("a", 2))
    counts.commit(Seq(1))
    counts.truncate(Seq(2))
    counts.append(mark(2, "a", 2))
    counts.append(mark(3, "a", 1))
    counts.append(mark(4, "a", 1))
    counts.commit(Seq(4))
    assert [counts.at(Seq(seq)) for seq in range(1, 5)] == [1, 2, 3, 3]


def test_only_so_many_writers_are_remembered() -> None:
    """The one that marked longest ago is forgotten; with what forgot it, it comes back."""
    marks = BatchMarks(writers_max=2)
    for seq, writer in enumerate("abc", start=1):
        assert not marks.is_replay(mark(seq, writer, 0))
    marks.truncate(Seq(3))
    assert marks.is_replay(mark(3, "a", 0))
    assert not marks.is_replay(mark(3, "c", 0))
    assert marks.is_replay(mark(4, "b", 0))
    assert not marks.is_replay(mark(4, "a", 0))


@given(
    st.lists(st.tuples(st.sampled_from("ab"), st.integers(0, 1)), max_size=12),
    st.lists(st.tuples(st.sampled_from("ab"), st.integers(0, 1)), max_size=12),
    st.integers(1, 12),
)
def test_count_is_that_of_the_log_whatever_was_taken_back(
    taken: list[tuple[str, int]], kept: list[tuple[str, int]], cut: int
) -> None:
    """S10: a replica that truncated counts as one that never had those records."""
    cut = min(cut, len(taken) + 1)
    counts = marks_of(*taken)
    if cut <= len(taken):
        counts.truncate(Seq(cut))
    log = taken[: cut - 1] + kept
    for seq, (writer, batch) in enumerate(kept, start=cut):
        counts.append(mark(seq, writer, batch))
    counts.commit(Seq(len(log)))
    straight = marks_of(*log)
    straight.commit(Seq(len(log)))
    seqs = [Seq(seq) for seq in range(len(log) + 1)]
    assert [counts.at(seq) for seq in seqs] == [straight.at(seq) for seq in seqs]


def test_truncated_marks_do_not_count() -> None:
    """S2.5: what is taken back was never committed."""
    counts = counts_of("rmm")
    counts.commit(Seq(2))
    counts.truncate(Seq(3))
    counts.append(record(3))
    counts.commit(Seq(3))
    assert counts.at(Seq(3)) == 1


def test_long_log_forgets_where_old_batches_ended_but_not_how_many_there_were() -> None:
    """Memory is bounded; of a state too old the number is unknown, never a guess."""
    counts = counts_of("mmmmm", marks_max=2)
    counts.commit(Seq(5))
    assert [counts.at(Seq(seq)) for seq in range(6)] == [None, None, None, 3, 4, 5]
    assert counts.tell(Seq(1)) == NOT_REPORTED


@given(st.text("rm", max_size=30), st.data())
def test_batches_are_those_of_a_plain_count(kinds: str, data: st.DataObject) -> None:
    """Given any commits and truncations, the number of batches up to a seq is a plain count of
    them.
    """
    counts, committed = counts_of(kinds, marks_max=3), 0
    while data.draw(st.booleans()):
        committed = data.draw(st.integers(committed, len(kinds)))
        counts.commit(Seq(committed))
        if committed < len(kinds) and data.draw(st.booleans()):
            cut = data.draw(st.integers(committed + 1, len(kinds)))
            counts.truncate(Seq(cut))
            kinds = kinds[: cut - 1]
    for seq in range(committed + 1):
        assert counts.at(Seq(seq)) in (kinds[:seq].count("m"), None)
    assert counts.at(Seq(committed)) == kinds[:committed].count("m")


def test_above_the_own_log_a_batch_needs_a_seq() -> None:
    """S7.3: what is not reported is not zero: every seq may end a batch."""
    counts = counts_of("rm")
    counts.commit(Seq(2))
    assert counts.at_most(Seq(2), Seq(2)) == 1
    assert counts.at_most(Seq(7), Seq(2)) == 1 + 5
    counts.reported(Seq(6), NOT_REPORTED)
    assert counts.at_most(Seq(7), Seq(2)) == 1 + 5


def test_number_that_was_told_counts_for_the_seq_it_is_of() -> None:
    """A reported number counts for the committed seq it is of; above that, every seq may end a
    batch.
    """
    counts = counts_of("rm")
    counts.commit(Seq(2))
    counts.reported(Seq(6), 3)
    counts.reported(Seq(4), 2)  # comes late, and says less
    assert (counts.at_most(Seq(6), Seq(2)), counts.at_most(Seq(8), Seq(2))) == (3, 5)
    assert counts.at_least(Seq(2)) == 3


def test_replica_counts_again_from_its_log_after_a_restart() -> None:
    """A mark without its payload, of an older store, counts for itself."""
    records = [
        term_start(1, 1),
        record(2, payload=b"", kind=RecordKind.BATCH_MARK),
        record(3),
        record(4, payload=b"", kind=RecordKind.BATCH_MARK),
    ]
    replica = make_replica(records=records, applied_seq=3)
    assert replica.batches_at(Seq(3)) == 1
    assert replica.batches_between(Seq(3), Seq(4)) == (0, 1)


def test_leader_tells_batches_with_every_position() -> None:
    """In notices and in what proves its position, always of the seq that is reported with it."""
    bench = Bench(make_replica(N1))
    bench.lead()
    bench.publish(1, kind=RecordKind.BATCH_MARK)
    bench.publish(2, kind=RecordKind.BATCH_MARK)
    bench.persist()
    bench.receive(StoreAck(CHANNEL, Term(1), Seq(2)), N2)
    notices = bench.sent(CommitNotice, bench.wait(1_000))
    assert {(notice.commit_seq, notice.commit_batches) for notice in notices} == {(2, 1)}


def test_replica_learns_batches_from_notices_proofs_and_reports() -> None:
    """Each is of a committed seq, so reports of any replica are true."""
    bench = Bench(make_replica(N1))
    bench.follow(N2)
    assert bench.replica.batches_between(Seq(0), Seq(9)) == (0, 9)
    bench.receive(CommitNotice(CHANNEL, Term(1), Seq(5), Seq(9), Term(1), b"", 2))
    assert bench.replica.batches_between(Seq(0), Seq(5)) == (2, 2)
    bench.do(FreshnessRequested(2_000))
    [request] = bench.sent(FreshRequest)
    bench.receive(FreshReply(CHANNEL, Term(1), request.round_id, Seq(6), 3))
    assert bench.replica.batches_between(Seq(0), Seq(6)) == (3, 3)
    bench.do(PeerHash(N2, Seq(9), b"", 4))
    assert bench.replica.batches_between(Seq(0), Seq(9)) == (4, 4)


def test_follower_takes_back_marks_that_conflict() -> None:
    """S2.5: the leader has another record there, so this mark was never committed."""
    held = [term_start(1, 1), record(2, kind=RecordKind.BATCH_MARK)]
    bench = Bench(make_replica(N1, records=held))
    bench.follow(N2, term=2)
    request = bench.sent(MsgSyncRequest, bench.all_effects)[-1]
    other = [term_start(2, 2), record(3, term=2)]
    bench.sync(
        *other,
        request_id=request.request_id,
        from_seq=2,
        prev_term=1,
        term=2,
        commit_seq=3,
    )
    bench.persist(term=2)
    assert bench.replica.commit_seq == 3
    assert bench.replica.batches_at(Seq(3)) == 0


def test_older_leader_tells_no_batches_and_none_are_assumed() -> None:
    """A node of a version without them says nothing, which is not "none"."""
    bench = Bench(make_replica(N1))
    bench.follow(N2)
    bench.receive(CommitNotice(CHANNEL, Term(1), Seq(5), Seq(9), Term(1), b""))
    assert bench.replica.batches_between(Seq(0), Seq(5)) == (0, 5)


def test_more_batches_than_seqs_are_not_believed() -> None:
    """S12: a batch needs a seq of its own; a view counted from such a word left every range."""
    counts = BatchCounts()
    counts.reported(Seq(5), 2**63 - 1)
    assert counts.at_least(Seq(0)) == 0
    assert counts.at_most(Seq(2**62), Seq(0)) <= 2**62
    counts.reported(Seq(5), 5)
    assert counts.at_least(Seq(0)) == 5
