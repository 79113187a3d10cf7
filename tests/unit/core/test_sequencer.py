"""Publishing at the leader: who is refused, who waits, and what each is answered (S4, S5.6,
S10)."""

from __future__ import annotations

from typing import Any

import pytest

from raftstore.config import PAYLOAD_BYTES_MAX, ReplicationSettings
from raftstore.core import sequencer
from raftstore.core.effects import Append, Send
from raftstore.core.events import Applied, PublishReceived, RoleChanged
from raftstore.errors import Refusal, StoreTooOldError
from raftstore.protocol.publish import PayloadRelay, PubAck, PubMsg, PubReject
from raftstore.protocol.replication import StoreAck, StoreRequest
from raftstore.types import (
    BASE_SEQ_MAX,
    NO_GUID,
    PUBLISHED_SEQ_MAX,
    Guid,
    RecordKind,
    Role,
    Seq,
    Term,
)
from tests.core_world import CHANNEL, N1, N2, N3, Bench, guid, make_replica, pub_msg, record


@pytest.fixture
def bench() -> Bench:
    """A leader of term 1 whose term-start record is committed."""
    return leading()


def leading(settings: ReplicationSettings | None = None) -> Bench:
    """A leader of term 1 whose term-start record is committed."""
    bench = Bench(make_replica(N1, settings=settings))
    bench.lead()
    commit(bench)
    return bench


def commit(bench: Bench) -> list[Any]:
    """Make everything durable here and on one follower."""
    effects = bench.persist()
    ack = StoreAck(CHANNEL, bench.replica.term, bench.replica.last_seq)
    return effects + bench.receive(ack, N2)


def only_answer(bench: Bench, effects: list[Any] | None = None) -> Any:
    """The one answer among the effects."""
    ((_, answer),) = bench.replies(effects)
    return answer


def test_publish_gets_consecutive_seqs_and_is_acknowledged_when_committed(bench: Bench) -> None:
    """S4.4: OK comes with the commit, and says where the rows stand and on how many replicas.

    Shows NATS-040, NATS-056.
    """
    assert bench.replies(bench.publish(1, rows=3)) == []
    assert bench.appended()[0].base_seq == 2
    answer = only_answer(bench, commit(bench))
    assert isinstance(answer, PubAck)
    assert (answer.base_seq, answer.last_seq, answer.record_term) == (2, 4, 1)
    assert (answer.durability, answer.replicas_acked, answer.conflict) == ("fsync", 2, False)


def test_leader_sends_metadata_without_payload_before_it_writes(bench: Bench) -> None:
    """NATS-049, NATS-050: StoreRequests leave first, and carry no payload to healthy replicas.

    Shows NATS-186.
    """
    effects = bench.publish(1)
    kinds = [type(effect) for effect in effects]
    assert kinds == [Send, Send, Append]
    request = bench.sent(StoreRequest)[0]
    meta = request.records[0]
    assert meta.payload is None
    assert (meta.guid, meta.length, request.prev_term) == (guid(1), 7, 1)
    assert [effect.to for effect in bench.of(Send)] == [N2, N3]


def test_payload_is_relayed_only_to_members_the_publisher_names(bench: Bench) -> None:
    """A replica the publisher cannot reach gets the payload from the leader, before metadata."""
    bench.publish(1, relay_to=(N3, N1))
    sends = [(effect.to, type(effect.message)) for effect in bench.of(Send)]
    assert sends == [(N3, PayloadRelay), (N2, StoreRequest), (N3, StoreRequest)]


def test_payload_is_relayed_once_however_often_a_member_is_named(bench: Bench) -> None:
    """A publisher must not make the leader send a payload a thousand times."""
    bench.publish(1, relay_to=(N3, N2, N3, N3))
    relays = [e.to for e in bench.of(Send) if isinstance(e.message, PayloadRelay)]
    assert relays == [N3, N2]


def test_timestamp_is_the_leaders_wall_clock_but_always_after_the_record_before() -> None:
    """S10: ts = max(now, last.ts + 1), decided by the leader and written in the record."""
    bench = Bench(make_replica(N1, records=[record(1, timestamp_ms=5_000_000)], term=1))
    bench.replica.wall_offset_ms = 1_000_000
    bench.lead(term=2)
    assert bench.appended()[0].timestamp_ms == 5_000_001
    bench.replica.wall_offset_ms = 7_000_000
    bench.publish(9, term=2)
    assert bench.appended()[0].timestamp_ms == bench.now_ms + 7_000_000


def test_duplicate_of_a_committed_write_is_answered_with_its_first_place(bench: Bench) -> None:
    """S4.5: a retry never gets a second seq (NATS-007)."""
    bench.publish(1)
    commit(bench)
    effects = bench.publish(1, client=8, attempt=1)
    assert bench.appended() == []
    assert only_answer(bench, effects).base_seq == 2


def test_duplicate_of_an_uncommitted_write_waits_for_its_commit(bench: Bench) -> None:
    """S4.5: both the first and the retry are answered with the commit, not before."""
    bench.publish(1, client=7)
    assert bench.replies(bench.publish(1, client=8, attempt=1)) == []
    assert bench.appended() == []
    assert [client for client, _ in bench.replies(commit(bench))] == [7, 8]


def test_same_client_is_answered_once_however_often_its_message_arrives(bench: Bench) -> None:
    """S12: a doubled message is one request."""
    bench.publish(1, client=7)
    bench.publish(1, client=7)
    assert len(bench.replies(commit(bench))) == 1


def test_guid_with_another_payload_is_refused_for_good(bench: Bench) -> None:
    """S4.6: the same guid with another digest is REJECTED, committed or not."""
    bench.publish(1, payload=b"one")
    assert only_answer(bench, bench.publish(1, payload=b"two")).code == "guid_reuse"
    commit(bench)
    assert only_answer(bench, bench.publish(1, payload=b"two")).code == "guid_reuse"
    assert bench.replica.last_seq == 2


def test_retry_below_the_floor_is_expired_not_applied_again() -> None:
    """S4.5: expired is UNKNOWN; the write is not appended a second time."""
    records = [record(seq, rows=1, counter=seq + 4_000) for seq in range(1, 1_030)]
    bench = Bench(make_replica(N1, records=records, applied_seq=1_029))
    bench.lead(term=2)
    answer = only_answer(bench, bench.publish(4_001, term=2, attempt=1))
    assert answer.code == "guid_expired"
    assert bench.appended() == []


def test_new_leader_recognises_a_retry_from_its_log_alone() -> None:
    """S4.5: after failover the retry finds the record the old leader stored, and its commit: the
    guid is stored with it (NATS-042)."""
    stored = record(1, counter=1, payload=b"value 1")
    bench = Bench(make_replica(N1, records=[stored]))
    bench.lead(term=2)
    assert bench.replies(bench.publish(1, term=2, attempt=1)) == []
    answer = only_answer(bench, commit(bench))
    assert (answer.base_seq, answer.record_term, answer.term) == (1, 1, 2)


def test_quorum_timeout_is_unknown_and_the_record_may_still_commit(bench: Bench) -> None:
    """S4.1: no durable quorum in time is not a failure; a later retry learns the outcome.

    Shows NATS-068.
    """
    bench.publish(1)
    answer = only_answer(bench, bench.wait(2_000))
    assert answer.code == "quorum_timeout"
    assert bench.replica.last_seq == 2
    assert bench.replies(commit(bench)) == []
    assert isinstance(only_answer(bench, bench.publish(1, attempt=1)), PubAck)


def test_quorum_timeout_of_a_committed_condition_says_that_it_is_committed(bench: Bench) -> None:
    """Given a committed condition that is not decided in time, the message says so: the operator
    has to look at the applying, not for a quorum.
    """
    bench.publish(1, kind=RecordKind.CONDITIONAL)
    commit(bench)
    answer = only_answer(bench, bench.wait(2_000))
    assert answer.code == "quorum_timeout"
    assert "is committed, it was not applied here within 2000 ms" in answer.message


def test_deposed_leader_does_not_deny_a_write_that_it_may_have_forgotten() -> None:
    """S4.1, S4.5: a doubled copy comes when only the floor of its session is left."""
    bench = leading()
    bench.replica._state.dedupe._outcomes_max = 10
    bench.publish(1)
    for counter in range(1, 20):
        bench.publish(counter, session=b"session2")
    commit(bench)
    bench.do(RoleChanged(Term(3), Role.FOLLOWER, N2))
    assert only_answer(bench, bench.publish(1)).code == "leadership_lost"
    assert only_answer(bench, bench.publish(2)).code == "not_leader"


def test_node_that_never_led_a_term_denies_what_was_addressed_to_it_there() -> None:
    """S5.6: nobody else sequences it, so it is certain, whatever the log has forgotten."""
    bench = leading()
    bench.replica._state.dedupe._sessions_max = 1
    bench.publish(1, session=b"session2")
    bench.publish(1, session=b"session3")
    commit(bench)
    bench.do(RoleChanged(Term(3), Role.FOLLOWER, N2))
    assert only_answer(bench, bench.publish(1, term=2)).code == "not_leader"
    assert only_answer(bench, bench.publish(1, term=1)).code == "leadership_lost"


def test_retry_of_a_forgotten_session_is_never_written_a_second_time() -> None:
    """S4.5: its leader's clock a year ahead makes it no newer; proof of its age does."""
    bench = leading()
    bench.replica._state.dedupe._sessions_max = 1
    bench.publish(1, session=b"session1")
    bench.publish(1, session=b"session2")
    commit(bench)
    bench.replica.wall_offset_ms = 365 * 86_400_000
    end = bench.replica.last_seq
    assert (
        only_answer(bench, bench.publish(1, session=b"session1", attempt=1)).code == "guid_expired"
    )
    late = {"session": b"session1", "after_seq": 1}
    assert only_answer(bench, bench.publish(1, **late)).code == "guid_expired", "a late copy"
    assert bench.replica.last_seq == end
    bench.publish(1, session=b"session4", attempt=1, is_settled=True)
    bench.publish(1, session=b"session5", attempt=1, after_seq=end)
    assert bench.replica.last_seq == end + 2


def test_step_down_leaves_pending_publishes_unknown(bench: Bench) -> None:
    """S4.3: waiting publishers get the outcome unknown, with a hint to the new leader."""
    bench.publish(1)
    answer = only_answer(bench, bench.do(RoleChanged(Term(2), Role.FOLLOWER, N2)))
    assert (answer.code, answer.leader_hint) == ("leadership_lost", N2)


def test_publish_to_a_follower_addressed_to_it_is_refused_with_a_hint() -> None:
    """S5.6: a node that does not lead the term addressed says so."""
    bench = Bench(make_replica(N1))
    bench.follow(N2, term=3)
    answer = only_answer(bench, bench.publish(1, leader=N1, term=2))
    assert (answer.code, answer.leader_hint) == ("not_leader", N2)


def test_publish_of_another_term_is_never_sequenced(bench: Bench) -> None:
    """S5.6: only the leader addressed, in the term addressed, gives a write a seq."""
    assert only_answer(bench, bench.publish(1, term=0, attempt=1)).code == "leadership_lost"
    assert only_answer(bench, bench.publish(2, term=2)).code == "not_leader"
    assert bench.replica.last_seq == 1


def test_publish_addressed_elsewhere_is_never_sequenced_nor_answered(bench: Bench) -> None:
    """S5.6: a payload received for another leader stays cache, or its NOT_APPLIED were a lie."""
    assert bench.publish(1, leader=N2, term=1) == []
    assert bench.replica.last_seq == 1
    follower = Bench(make_replica(N1))
    follower.follow(N2)
    follower.publish(1, leader=N2)
    assert follower.replies(follower.do(RoleChanged(Term(2), Role.LEADER, N1))) == []
    assert [r.kind for r in follower.appended()] == [RecordKind.TERM_START]


def test_second_copy_of_a_sequenced_message_is_in_doubt_after_step_down(bench: Bench) -> None:
    """S4.1, S5.6: NOT_APPLIED must stay true although the first copy was sequenced."""
    bench.publish(1)
    bench.do(RoleChanged(Term(2), Role.FOLLOWER, N2))
    assert only_answer(bench, bench.publish(1, term=1)).code == "leadership_lost"
    assert only_answer(bench, bench.publish(2, term=1)).code == "not_leader"


def test_truncated_write_of_a_deposed_leader_is_in_doubt(bench: Bench) -> None:
    """S4.1: another replica may still hold what this one had to cut."""
    bench.publish(1)
    bench.persist()
    bench.follow(N2, term=2)
    request = bench.sent(object, bench.all_effects)[-1]
    bench.sync(
        record(2, term=2, counter=50),
        request_id=request.request_id,
        from_seq=2,
        prev_term=1,
        term=2,
    )
    assert bench.replica.history() == (2, 2)
    assert only_answer(bench, bench.publish(1, term=1)).code == "leadership_lost"


def test_restarted_node_does_not_claim_what_it_cannot_know() -> None:
    """S4.1: before the restart it may have led that term and sequenced the write."""
    bench = Bench(make_replica(N1, term=4))
    bench.follow(N2, term=5)
    assert only_answer(bench, bench.publish(1, term=4)).code == "leadership_lost"
    assert only_answer(bench, bench.publish(1, term=5)).code == "not_leader"


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"rows": 0}, "schema"),
        ({"rows": 70_000}, "schema"),
        ({"kind": RecordKind.CONFIG}, "schema"),
        ({"kind": RecordKind.TERM_START}, "schema"),
        ({"payload": bytes(PAYLOAD_BYTES_MAX + 1)}, "payload_too_large"),
    ],
)
def test_malformed_publish_is_refused_and_leaves_no_trace(
    bench: Bench, fields: dict[str, Any], code: str
) -> None:
    """Bad input is REJECTED: no seq was assigned (S4.1)."""
    assert only_answer(bench, bench.publish(1, **fields)).code == code
    assert bench.replica.last_seq == 1


TOO_LARGE = bytes(PAYLOAD_BYTES_MAX + 1)


def test_leader_refuses_a_payload_over_the_bound_and_stores_nothing(bench: Bench) -> None:
    """S12: bytes and bound are named, nothing gets a seq, and the next write is taken."""
    effects = bench.publish(1, payload=TOO_LARGE, relay_to=(N3,))
    answer = only_answer(bench, effects)
    assert (type(answer), answer.code) == (PubReject, "payload_too_large")
    assert answer.message == "a payload of 8388609 bytes is over the limit of 8388608; split it"
    assert bench.of(Append, effects) == bench.of(Send, effects) == []
    bench.publish(2, payload=TOO_LARGE[1:])
    assert bench.replica.last_seq == 2


def test_follower_refuses_a_payload_over_the_bound_and_holds_nothing() -> None:
    """S12: a copy meant for another leader is no way around the bound."""
    bench = Bench(make_replica(N1))
    bench.do(RoleChanged(Term(1), Role.FOLLOWER, N2))
    answer = only_answer(bench, bench.publish(1, leader=N2, payload=TOO_LARGE))
    assert (answer.code, "8388609" in answer.message) == ("payload_too_large", True)
    assert bench.replica.statistics().pending_payloads.messages == 0
    assert bench.replies(bench.publish(2, leader=N2, payload=TOO_LARGE[1:])) == []
    assert bench.replica.statistics().pending_payloads.messages == 1


@pytest.mark.parametrize("bad", [{"digest": bytes(16)}, {"guid": NO_GUID}, {"guid": Guid(b"x")}])
def test_publish_with_wrong_digest_or_guid_is_refused(bench: Bench, bad: dict[str, Any]) -> None:
    """S5.2: a payload that is not what its digest says never gets a seq (NATS-039)."""
    good = pub_msg(1)
    fields = {name: getattr(good, name) for name in good.__struct_fields__} | bad
    answer = only_answer(bench, bench.do(PublishReceived(7, PubMsg(**fields))))
    assert isinstance(answer, PubReject)
    assert answer.code == "schema"


def test_too_many_uncommitted_records_are_refused_as_overload() -> None:
    """Bounds: beyond uncommitted_records_max nothing gets a seq, so it is NOT_APPLIED."""
    bench = leading(ReplicationSettings(uncommitted_records_max=2))
    bench.publish(1)
    bench.publish(2)
    assert only_answer(bench, bench.publish(3)).code == "overloaded"
    commit(bench)
    bench.publish(4)
    assert len(bench.appended()) == 1


def test_too_many_uncommitted_bytes_are_refused_as_overload() -> None:
    """Bounds: beyond uncommitted_bytes_max nothing gets a seq; a single big record may pass."""
    bench = leading(ReplicationSettings(uncommitted_bytes_max=10))
    bench.publish(1, payload=bytes(50))
    assert len(bench.appended()) == 1
    assert only_answer(bench, bench.publish(2, payload=b"x")).code == "overloaded"


def test_second_copy_of_a_refused_message_is_refused_again() -> None:
    """S5.6: NOT_APPLIED stays true when the network delivers the same message twice."""
    bench = leading(ReplicationSettings(uncommitted_records_max=1))
    bench.publish(1)
    assert only_answer(bench, bench.publish(2)).code == "overloaded"
    commit(bench)
    assert only_answer(bench, bench.publish(2)).code == "unavailable"
    bench.publish(2, attempt=1)
    assert len(bench.appended()) == 1


def test_waiting_retries_are_bounded_and_stay_in_doubt() -> None:
    """A flood of retries of one write does not grow without bound; they are UNKNOWN."""
    bench = leading(ReplicationSettings(uncommitted_records_max=1))
    for client in range(2):
        assert bench.replies(bench.publish(1, client=client)) == []
    assert only_answer(bench, bench.publish(1, client=9)).code == "quorum_timeout"
    assert [client for client, _ in bench.replies(commit(bench))] == [0, 1], "9 does not wait"


def test_conditional_write_is_answered_with_its_applied_outcome(bench: Bench) -> None:
    """S10: only the state machine knows whether the condition held."""
    bench.publish(1, kind=RecordKind.CONDITIONAL)
    bench.publish(2, kind=RecordKind.CONDITIONAL, client=8)
    assert bench.replies(commit(bench)) == []
    effects = bench.do(Applied(Seq(3), ((Seq(3), Seq(2)),)))
    answers = dict(bench.replies(effects))
    assert (answers[7].conflict, answers[7].conflict_seq) == (False, 0)
    assert (answers[8].conflict, answers[8].conflict_seq) == (True, 2)


def test_duplicate_of_a_conditional_write_tells_the_same_outcome(bench: Bench) -> None:
    """S4.5: the retry learns what the first attempt did, before and after it is applied."""
    bench.publish(1, kind=RecordKind.CONDITIONAL)
    commit(bench)
    assert bench.replies(bench.publish(1, kind=RecordKind.CONDITIONAL, client=8)) == []
    effects = bench.do(Applied(Seq(2), ((Seq(2), Seq(0)),)))
    assert [answer.conflict for _, answer in bench.replies(effects)] == [True, True]
    again = only_answer(bench, bench.publish(1, kind=RecordKind.CONDITIONAL, client=9))
    assert (again.conflict, again.conflict_seq) == (True, 0)


def test_outcome_of_a_conditional_write_is_in_doubt_after_a_restart() -> None:
    """S4.5: what was applied before the restart is not known any more, so it is not guessed."""
    stored = record(1, counter=1, payload=b"value 1", kind=RecordKind.CONDITIONAL)
    bench = Bench(make_replica(N1, records=[stored], applied_seq=1))
    bench.lead(term=2)
    answer = only_answer(bench, bench.publish(1, term=2, kind=RecordKind.CONDITIONAL))
    assert answer.code == "guid_expired"


def test_follower_that_applied_a_conditional_write_knows_its_outcome_as_leader() -> None:
    """Every replica applies, so the next leader can answer the retry."""
    bench = Bench(make_replica(N1))
    bench.steady()
    stored = record(1, counter=1, payload=b"value 1", kind=RecordKind.CONDITIONAL)
    bench.hold(stored)
    bench.store_request(stored, prev_term=0, commit_seq=1)
    bench.persist()
    bench.do(Applied(Seq(1), ((Seq(1), Seq(0)),)))
    bench.lead(term=2)
    answer = only_answer(bench, bench.publish(1, term=2, kind=RecordKind.CONDITIONAL))
    assert answer.conflict


def test_result_of_a_command_waits_for_all_from_before_the_term() -> None:
    """S10: the leader may have applied, with code that others lacked, what they had skipped since.
    At its term start it has met every record that says so."""
    stored = record(1, counter=1, payload=b"value 1", kind=RecordKind.MACHINE_COMMAND)
    bench = Bench(make_replica(N1, records=[stored], applied_seq=1))
    bench.lead(term=2)
    assert bench.replies(bench.publish(1, term=2, kind=RecordKind.MACHINE_COMMAND)) == []
    assert bench.replies(commit(bench)) == []
    answer = only_answer(bench, bench.do(Applied(Seq(2), ())))
    assert isinstance(answer, PubAck)
    again = only_answer(bench, bench.publish(1, term=2, kind=RecordKind.MACHINE_COMMAND, client=8))
    assert (again.base_seq, again.last_seq) == (1, 1)


def test_command_from_before_the_term_is_answered_with_the_term_start() -> None:
    """S10: being applied in the term is not enough."""
    stored = record(1, counter=1, payload=b"value 1", kind=RecordKind.MACHINE_COMMAND)
    bench = Bench(make_replica(N1, records=[stored]))
    bench.lead(term=2)
    bench.publish(1, term=2, kind=RecordKind.MACHINE_COMMAND)
    assert bench.replies(commit(bench) + bench.do(Applied(Seq(1), ()))) == []
    assert isinstance(only_answer(bench, bench.do(Applied(Seq(2), ()))), PubAck)


def test_forgotten_truncations_leave_every_older_term_in_doubt() -> None:
    """S4.1: memory of truncated writes is bounded; beyond it the answer is doubt, not denial."""
    bench = leading(ReplicationSettings(uncommitted_records_max=1))
    bench.publish(1)
    commit(bench)
    bench.publish(2)
    bench.do(RoleChanged(Term(2), Role.FOLLOWER, N2))
    bench.store_request(record(3, term=2, counter=50), term=2, prev_term=1, inlined=True)
    bench.do(RoleChanged(Term(3), Role.FOLLOWER, N3))
    mine = record(3, term=3, counter=60)
    bench.store_request(mine, term=3, prev_term=1, inlined=True, sender=N3)
    assert only_answer(bench, bench.publish(7, term=2)).code == "leadership_lost"
    assert only_answer(bench, bench.publish(7, term=4)).code == "not_leader"
    assert len(bench.replica._state._removed_guids) == 1, "that is all that may be remembered"


def test_memory_of_refused_messages_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """S5.6: what can no longer be remembered as refused is never called not applied."""
    monkeypatch.setattr(sequencer, "REFUSED_MAX", 2)
    bench = leading(ReplicationSettings(uncommitted_records_max=1))
    bench.publish(1)
    for counter in (2, 3):
        assert only_answer(bench, bench.publish(counter)).code == "overloaded"
    assert only_answer(bench, bench.publish(4)).code == "in_doubt"
    commit(bench)
    for counter in (2, 3):
        assert only_answer(bench, bench.publish(counter)).code == "unavailable"


def test_refused_messages_are_forgotten_when_their_time_is_over(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """S5.6: no copy is under way any more; those that were refused later stay."""
    monkeypatch.setattr(sequencer, "REFUSED_MAX", 2)
    bench = leading(ReplicationSettings(uncommitted_records_max=1, refused_keep_ms=1_000))
    start_ms = bench.now_ms
    bench.publish(1)
    assert only_answer(bench, bench.publish(2)).code == "overloaded"
    bench.now_ms = start_ms + 10
    assert only_answer(bench, bench.publish(3)).code == "overloaded"
    bench.now_ms = start_ms + 999
    assert only_answer(bench, bench.publish(4)).code == "in_doubt"
    bench.now_ms = start_ms + 1_000
    assert only_answer(bench, bench.publish(4)).code == "overloaded"
    assert only_answer(bench, bench.publish(5)).code == "in_doubt"


def test_refused_write_is_forgotten_when_its_retry_is_accepted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """From then on the log knows the guid, and there is room for another refusal."""
    monkeypatch.setattr(sequencer, "REFUSED_MAX", 1)
    bench = leading(ReplicationSettings(uncommitted_records_max=1))
    bench.publish(1)
    assert only_answer(bench, bench.publish(2)).code == "overloaded"
    commit(bench)
    bench.publish(2, attempt=1)
    assert only_answer(bench, bench.publish(3)).code == "overloaded"


def test_late_copy_of_an_older_attempt_does_not_reopen_a_newer_one() -> None:
    """S5.6: the newest refused attempt counts, in whatever order the copies arrive."""
    bench = leading(ReplicationSettings(uncommitted_records_max=1))
    bench.publish(1)
    for attempt in (0, 1, 0):
        bench.publish(2, attempt=attempt)
    commit(bench)
    assert only_answer(bench, bench.publish(2, attempt=1)).code == "unavailable"


def test_channel_at_the_end_of_its_sequences_accepts_no_more() -> None:
    """NATS-040: the 64-bit sequence never wraps around."""
    last = record(2**64 - 2, counter=1)
    first = record(1, rows=2**64 - 3, counter=9)
    bench = Bench(make_replica(N1, records=[first, last], applied_seq=2**64 - 2))
    bench.lead(term=2)
    assert only_answer(bench, bench.publish(10, term=2)).code == "unavailable"


TOO_OLD = Refusal(StoreTooOldError, "n2 is at level 0")


def test_refusal_of_the_engine_gives_no_seq_and_is_remembered(bench: Bench) -> None:
    """S5.6: NOT_APPLIED stays true for this copy when the reason is gone; the next one counts."""
    refused = bench.do(PublishReceived(7, pub_msg(1), TOO_OLD))
    assert bench.of(Append, refused) == []
    answer = only_answer(bench, refused)
    assert (answer.code, answer.message) == ("store_too_old", TOO_OLD.text)
    assert only_answer(bench, bench.publish(1)).code == "unavailable"
    assert bench.replies(bench.publish(1, attempt=1)) == []
    assert isinstance(only_answer(bench, commit(bench)), PubAck)


def test_refusal_of_the_engine_changes_no_outcome(bench: Bench) -> None:
    """S4.5: a write that was sequenced before has its outcome, whatever is refused since."""
    bench.publish(1)
    assert bench.replies(bench.do(PublishReceived(8, pub_msg(1), TOO_OLD))) == []
    assert {type(answer) for _, answer in bench.replies(commit(bench))} == {PubAck}
    again = only_answer(bench, bench.do(PublishReceived(9, pub_msg(1), TOO_OLD)))
    assert isinstance(again, PubAck)


def test_last_seqs_are_left_for_the_terms_to_come(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S12: a channel that takes no write any more still has leaders, whose records can be read."""
    assert PUBLISHED_SEQ_MAX + 2**32 <= BASE_SEQ_MAX
    monkeypatch.setattr(sequencer, "PUBLISHED_SEQ_MAX", 3)
    answer = only_answer(bench, bench.publish(1, rows=3))
    assert "no record may end above 3; write to a new table" in answer.message
    assert bench.replies(bench.publish(2, rows=2)) == []
    answer = only_answer(bench, bench.publish(3))
    assert "no record may end above 3; write to a new table" in answer.message
    bench.lead(2)
    assert bench.appended()[0].base_seq == 4
