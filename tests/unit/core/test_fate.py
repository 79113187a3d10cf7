"""The fate of a write: answered only when it is certain, and true for ever after (N4, S5.6)."""

from __future__ import annotations

from typing import Any

from raftstore.config import GUID_WINDOW
from raftstore.core.dedupe import DedupeTable
from raftstore.core.events import Applied
from raftstore.core.write_outcome import Fence, WriteOutcome, WriteOutcomeFound
from raftstore.errors import GuidFencedError
from raftstore.protocol.publish import PubReject
from raftstore.protocol.replication import StoreAck
from raftstore.types import RecordKind, Seq, Term
from tests.core_bench import CHANNEL, N1, N2, Bench, guid, make_replica, record, term_start


def leading() -> Bench:
    """A leader of term 1 whose term-start record is committed and applied."""
    bench = Bench(make_replica(N1))
    bench.lead()
    commit(bench, 1)
    return bench


def commit(bench: Bench, seq: int) -> None:
    """Durable at the leader and one follower, and applied here."""
    bench.persist()
    bench.receive(StoreAck(CHANNEL, Term(1), Seq(seq)), N2)
    bench.do(Applied(Seq(seq)))


def fate(bench: Bench, counter: int) -> WriteOutcomeFound:
    """The answer for the counter-th write."""
    found = bench.replica.tell_write_outcome(guid(counter))
    assert found is not None
    return found


def rejects(bench: Bench) -> list[Any]:
    """Codes with which publishers were refused in the last step."""
    return [
        effect.message.code
        for effect in bench.effects
        if isinstance(getattr(effect, "message", None), PubReject)
    ]


def test_n4_committed_write_is_told_with_its_place() -> None:
    """Seq and term, as its acknowledgement has them."""
    bench = leading()
    bench.publish(1)
    commit(bench, 2)
    assert fate(bench, 1) == WriteOutcomeFound(WriteOutcome.COMMITTED, Seq(2), Term(1))


def test_n4_write_that_is_not_committed_yet_is_pending() -> None:
    """S4.1: it may still commit, so nothing else may be reported."""
    bench = leading()
    bench.publish(1)
    assert fate(bench, 1).fate is WriteOutcome.PENDING
    commit(bench, 2)
    assert fate(bench, 1).fate is WriteOutcome.COMMITTED


def test_n4_write_told_to_be_not_applied_is_refused_when_it_comes_late() -> None:
    """S5.6: a copy that was under way when its fate was reported must not make the answer
    untrue."""
    bench = leading()
    assert fate(bench, 1).fate is WriteOutcome.NOT_APPLIED
    bench.publish(1)
    assert rejects(bench) == [GuidFencedError.code]
    bench.publish(1, attempt=7)
    assert rejects(bench) == [GuidFencedError.code]
    assert bench.replica.last_seq == 1


def test_n4_fence_is_of_one_write_only() -> None:
    """Others of the same publisher go on."""
    bench = leading()
    assert fate(bench, 1).fate is WriteOutcome.NOT_APPLIED
    bench.publish(2)
    assert rejects(bench) == []
    assert bench.replica.last_seq == 2


def test_n4_follower_and_stopped_leader_tell_nothing() -> None:
    """Only the leader has a log that says what is not in any other."""
    bench = leading()
    bench.follow(N2, term=2)
    assert bench.replica.tell_write_outcome(guid(1)) is None


def test_n4_copy_addressed_to_a_leadership_that_is_over_is_not_sequenced() -> None:
    """S5.6: so the fence may be lost with the leadership."""
    bench = leading()
    assert fate(bench, 1).fate is WriteOutcome.NOT_APPLIED
    bench.follow(N2, term=2)
    bench.lead(term=3)
    end = bench.replica.last_seq
    bench.publish(1, term=1)
    assert bench.replica.last_seq == end


def test_n4_full_fence_promises_nothing_new() -> None:
    """A full fence takes no further guid: a write that is not remembered could not be refused, so
    its fate is not reported. Those in it stay.
    """
    fence = Fence(fenced_max=2)
    assert [fence.add(guid(counter)) for counter in (1, 2, 3, 2)] == [True, True, False, True]
    assert guid(3) not in fence


def test_n4_condition_is_told_when_this_leader_has_applied_it() -> None:
    """Held or not; unknown when it was applied before a restart."""
    bench = leading()
    bench.publish(1, kind=RecordKind.CONDITIONAL)
    bench.publish(2, kind=RecordKind.CONDITIONAL)
    bench.persist()
    bench.receive(StoreAck(CHANNEL, Term(1), Seq(3)), N2)
    assert fate(bench, 1).fate is WriteOutcome.PENDING
    bench.do(Applied(Seq(3), ((Seq(3), Seq(1)),)))
    assert [fate(bench, counter).condition for counter in (1, 2)] == ["held", "conflict"]
    log = [term_start(1, 1), record(2, kind=RecordKind.CONDITIONAL)]
    again = Bench(make_replica(N1, records=log, applied_seq=2))
    again.lead(term=2)
    assert fate(again, 2) == WriteOutcomeFound(WriteOutcome.COMMITTED, Seq(2), Term(1), "unknown")


def test_n4_command_is_pending_until_the_leader_has_applied_its_term_start() -> None:
    """S10: a record from before the term may make it nothing yet."""
    log = [term_start(1, 1), record(2, kind=RecordKind.MACHINE_COMMAND)]
    bench = Bench(make_replica(N1, records=log, applied_seq=2))
    bench.lead(term=2)
    bench.persist()
    bench.receive(StoreAck(CHANNEL, Term(2), Seq(3)), N2)
    assert fate(bench, 2).fate is WriteOutcome.PENDING
    bench.do(Applied(Seq(3), ()))
    assert fate(bench, 2).fate is WriteOutcome.COMMITTED


def test_n4_forgotten_write_is_unknown() -> None:
    """S4.5: its session wrote so much since that its outcome is not remembered."""
    log = [term_start(1, 1)]
    log += [record(seq, counter=seq - 1) for seq in range(2, GUID_WINDOW + 12)]
    bench = Bench(make_replica(N1, records=log, applied_seq=len(log)))
    bench.lead(term=2)
    assert fate(bench, 1).fate is WriteOutcome.UNKNOWN
    assert fate(bench, GUID_WINDOW + 99).fate is WriteOutcome.NOT_APPLIED


# --- what is forgotten (S4.5) ---------------------------------------------------------------------


def table(*records: Any, **bounds: int) -> DedupeTable:
    """A table that remembers these records as committed."""
    known = DedupeTable(**bounds)
    for each in records:
        known.append(each)
        known.commit(each.last_seq)
    return known


def test_n4_write_at_or_below_the_floor_of_its_session_is_unknown() -> None:
    """Its outcome was dropped to make room, or it never was: nobody knows."""
    known = table(*(record(seq) for seq in range(1, 6)), window=2)
    assert [known.is_complete_for(guid(counter)) for counter in (1, 3, 4, 6)] == [
        False,
        False,
        True,
        True,
    ]


def test_n4_any_write_of_no_session_is_unknown_once_a_session_was_forgotten() -> None:
    """However long ago that was: a question proves no age."""
    other = record(2, session=b"session2", timestamp_ms=10**9)
    known = table(record(1), other, sessions_max=1)
    assert not known.is_complete_for(guid(9))
    assert known.is_complete_for(guid(9, b"session2"))
    assert table(record(1)).is_complete_for(guid(9, b"session2"))


def test_n4_session_without_outcomes_keeps_what_it_never_wrote() -> None:
    """Above its highest counter nothing was written; at or below it nobody knows any more."""
    known = table(record(1, counter=5), record(2, session=b"session2"), outcomes_max=1)
    assert known.is_complete_for(guid(6))
    assert not known.is_complete_for(guid(4))
