"""Catching up: probing, batches from the leader only, and the way back to steady state (S6)."""

from __future__ import annotations

from raftstore.config import ReplicationSettings
from raftstore.core.catch_up import SYNC_BATCHES_UNDURABLE_MAX
from raftstore.core.chain import digest_of
from raftstore.core.effects import Append, CommitAdvanced, Halt, Truncate
from raftstore.core.events import RoleChanged
from raftstore.core.history import LINEAGE_ENTRIES_MAX
from raftstore.protocol.records import Record
from raftstore.protocol.replication import (
    CaughtUp,
    CommitNotice,
    MsgSyncRequest,
    StoreAck,
    StoreReject,
)
from raftstore.types import FollowerMode, LineageEntry, Role, Seq, Term
from tests.core_world import CHANNEL, N1, N2, N3, Bench, make_replica, record, term_start


def behind(*records: Record, term: int = 2, settings: ReplicationSettings | None = None) -> Bench:
    """A follower of n2 with some records, which has just learned of its leader."""
    bench = Bench(make_replica(N1, records=records, settings=settings))
    bench.follow(N2, term=term)
    return bench


def asked(bench: Bench) -> MsgSyncRequest:
    """The newest request."""
    request = bench.sent(MsgSyncRequest, bench.all_effects)[-1]
    assert isinstance(request, MsgSyncRequest)
    return request


def acks(bench: Bench) -> list[int]:
    """Matches acknowledged in the last step."""
    return [ack.match_seq for ack in bench.sent(StoreAck)]


def test_new_leader_is_asked_for_the_match_point_by_lineage() -> None:
    """S6.2, S2.6: catching up starts from probing, newest term first (NATS-136)."""
    bench = behind(record(1, term=1), record(2, term=1), record(3, term=4), term=5)
    assert asked(bench).from_seq == 0
    assert asked(bench).lineage == (LineageEntry(Term(4), Seq(3)), LineageEntry(Term(1), Seq(2)))


def test_empty_log_asks_from_the_start() -> None:
    """Nothing to compare: history begins at seq 1."""
    bench = behind(term=1)
    assert (asked(bench).from_seq, asked(bench).lineage) == (1, ())


def test_equal_log_becomes_steady_by_an_empty_answer() -> None:
    """NATS-159: up to date means no data, a word to the leader, and an ack of what is verified.

    Shows NATS-139.
    """
    bench = behind(record(1), record(2))
    bench.sync(request_id=1, from_seq=3, prev_term=1, term=2)
    assert bench.replica.mode is FollowerMode.STEADY
    assert [message.seq for message in bench.sent(CaughtUp)] == [2]
    assert acks(bench) == [2]


def test_batches_are_appended_and_the_next_is_asked_before_the_disk_is_done() -> None:
    """One request outstanding, pipelined with persistence (NATS-140, NATS-156)."""
    bench = behind(record(1))
    bench.sync(record(2), record(3), request_id=1, from_seq=2, prev_term=1, term=2, last_seq=9)
    assert [stored.base_seq for stored in bench.appended()] == [2, 3]
    assert asked(bench).from_seq == 4
    assert bench.replica.durable_seq == 1


def test_fetching_waits_for_a_disk_that_is_far_behind() -> None:
    """Bound: at most a few batches are ahead of the disk; asking goes on when it catches up."""
    bench = behind(record(1))
    for number in range(SYNC_BATCHES_UNDURABLE_MAX):
        bench.sync(
            record(number + 2),
            request_id=number + 1,
            from_seq=number + 2,
            prev_term=1,
            term=2,
            last_seq=99,
        )
    assert bench.sent(MsgSyncRequest) == []
    bench.persist(2)
    assert [request.from_seq for request in bench.sent(MsgSyncRequest)] == [6]


def test_answers_with_nothing_new_do_not_wait_for_the_disk() -> None:
    """A follower that holds it all already writes nothing, so no word of the disk would come."""
    log = [record(seq) for seq in range(1, 10)]
    bench = Bench(make_replica(N1, records=log))
    bench.follow(N2)
    for seq in range(1, 9):
        held = [record(seq)]
        question = asked(bench)
        from_seq = question.from_seq or seq
        prev_term = 1 if from_seq > 1 else 0
        bench.sync(
            *held, request_id=question.request_id, from_seq=from_seq, prev_term=prev_term,
            last_seq=20,
        )  # fmt: skip
        assert asked(bench).request_id > question.request_id
        assert asked(bench).from_seq == seq + 1


def test_catch_up_data_of_anybody_but_the_leader_is_discarded() -> None:
    """S6.1: the source is the leader of the term only, whatever the request id."""
    bench = behind(record(1))
    effects = bench.sync(record(2), request_id=1, from_seq=2, prev_term=1, term=2, sender=N3)
    assert effects == []
    assert bench.replica.last_seq == 1


def test_catch_up_data_of_another_term_is_discarded() -> None:
    """S6.1: a batch served before the last election may be divergent."""
    bench = behind(record(1), term=3)
    assert bench.sync(record(2), request_id=1, from_seq=2, prev_term=1, term=2) == []
    assert bench.replica.last_seq == 1


def test_unasked_or_repeated_batch_is_discarded() -> None:
    """S12: only the answer to the outstanding request counts, and once."""
    bench = behind(record(1))
    assert bench.sync(record(2), request_id=9, from_seq=2, prev_term=1, term=2) == []
    bench.sync(record(2), request_id=1, from_seq=2, prev_term=1, term=2, last_seq=9)
    assert bench.sync(record(3), request_id=1, from_seq=3, prev_term=1, term=2) == []


def test_answer_that_does_not_follow_our_log_is_probed_deeper() -> None:
    """S2.6: the leader's guess is verified by 2.4; if it fails, older terms are offered."""
    bench = behind(record(1, term=1), record(2, term=3), record(3, term=5), term=8)
    effects = bench.sync(
        record(3, term=4), request_id=1, from_seq=3, prev_term=4, term=8, last_seq=7
    )
    assert bench.of(Append, effects) == []
    assert bench.of(Truncate, effects) == []
    # Every term was offered and none fitted: history is compared from its start.
    assert (asked(bench).from_seq, asked(bench).lineage) == (1, ())


def test_probing_goes_on_below_the_terms_already_offered() -> None:
    """S2.6: a long lineage is offered in pieces."""
    terms = LINEAGE_ENTRIES_MAX + 6
    bench = behind(*(record(seq, term=seq) for seq in range(1, terms + 1)), term=terms + 5)
    oldest_offered = asked(bench).lineage[-1].term
    assert oldest_offered == 7
    bench.sync(request_id=1, from_seq=50, prev_term=900, term=terms + 5, last_seq=60)
    assert asked(bench).lineage[0].term == oldest_offered - 1


def test_from_the_start_everything_held_is_verified_without_writing() -> None:
    """The last resort rewrites nothing that is equal."""
    log = [record(1), record(2)]
    bench = behind(*log)
    bench.sync(*log, record(3, term=2), request_id=1, from_seq=1, prev_term=0, term=2)
    assert [stored.base_seq for stored in bench.appended()] == [3]
    assert bench.of(Truncate) == []


def test_divergent_tail_is_cut_where_the_leaders_log_differs() -> None:
    """S2.5, GAP-03: only the conflicting part goes, in one batch with its replacement."""
    bench = behind(record(1), record(2), record(3), record(4))
    theirs = [record(2), record(3, term=2, counter=30)]
    bench.sync(*theirs, request_id=1, from_seq=2, prev_term=1, term=2)
    assert bench.of(Truncate) == [Truncate(Seq(3))]
    assert bench.appended() == [theirs[1]]
    assert bench.replica.history() == (2, 3)


def test_hole_in_a_batch_is_asked_for_again() -> None:
    """NATS-160: never a hole; what came before it is kept."""
    bench = behind(record(1))
    bench.sync(record(2), record(4), request_id=1, from_seq=2, prev_term=1, term=2)
    assert bench.replica.last_seq == 2
    assert asked(bench).from_seq == 3


def test_record_that_is_not_what_its_digest_says_is_not_taken() -> None:
    """S0.3, S5.1: damaged history is asked for again, never stored."""
    bench = behind(record(1))
    good = record(2)
    bad = Record(
        good.term, good.base_seq, 1, good.guid, 20, digest_of(b"other"), good.kind, good.payload
    )
    bench.sync(bad, request_id=1, from_seq=2, prev_term=1, term=2)
    assert bench.replica.last_seq == 1
    assert asked(bench).from_seq == 2


def test_nothing_is_taken_from_behind_a_record_that_is_no_good() -> None:
    """S12: not even a whole one in its place; the leader is asked again from there."""
    good = record(2, term=2)
    unlike = Record(
        good.term, good.base_seq, 1, good.guid, 20, digest_of(b"other"), good.kind, good.payload
    )
    for bad in (unlike, record(2, term=3), record(3, term=2)):
        bench = behind(record(1))
        bench.sync(bad, good, request_id=1, from_seq=2, prev_term=1, term=2)
        assert bench.replica.last_seq == 1
        assert asked(bench).from_seq == 2
    bench = behind(record(1), record(2))
    bench.sync(record(2, rows=3), record(2), request_id=1, from_seq=2, prev_term=1, term=2)
    assert bench.replica.verified_seq == 1


def test_answer_to_another_question_is_no_answer_even_with_the_same_id() -> None:
    """S12: a batch queued before the peer's restart, when its log was longer, halts no replica."""
    bench = behind(record(1))
    bench.sync(record(2), request_id=1, from_seq=2, prev_term=1, term=2, last_seq=9)
    assert (asked(bench).request_id, asked(bench).from_seq) == (2, 3)
    late = record(8)
    bench.sync(late, request_id=2, from_seq=8, prev_term=1, term=2, last_seq=9)
    assert not [effect for effect in bench.all_effects if isinstance(effect, Halt)]
    bench.sync(record(3), request_id=2, from_seq=3, prev_term=1, term=2, last_seq=9)
    assert bench.replica.last_seq == 3


def test_requests_after_a_restart_and_of_two_leaders_have_other_ids() -> None:
    """S12: so nobody takes an answer to one for an answer to the other."""
    ids = []
    for first in (0, 1 << 40):
        bench = Bench(make_replica(N1, records=[record(1)], first_round_id=first))
        for term, leader in ((2, N2), (3, N3)):
            bench.follow(leader, term=term)
            ids.append(asked(bench).request_id)
    assert len(set(ids)) == 4


def test_request_without_answer_is_repeated_under_its_id() -> None:
    """A late answer to the first copy still counts; nothing is asked twice at once."""
    bench = behind(record(1))
    effects = bench.wait(1_000)
    assert [request.request_id for request in bench.sent(MsgSyncRequest, effects)] == [1]
    bench.sync(request_id=1, from_seq=2, prev_term=1, term=2)
    assert bench.replica.mode is FollowerMode.STEADY
    assert bench.replica.next_deadline_ms() is None


def test_live_requests_wait_in_the_queue_while_catching_up() -> None:
    """NATS-033: nothing of the live queue is written before history reaches it (NATS-157)."""
    bench = behind(record(1))
    live = record(5, term=2)
    bench.hold(live, term=2)
    effects = bench.store_request(live, term=2, prev_term=1)
    assert bench.of(Append, effects) == []
    assert bench.replica.live_queue() == ((5, 5),)


def test_nats_156_history_tells_what_is_committed() -> None:
    """Nothing else may come for a while: what the batch brings is committed as far as it says."""
    bench = behind(record(1))
    answer = [record(2, term=2), record(3, term=2)]
    bench.sync(*answer, request_id=1, from_seq=2, prev_term=1, term=2, last_seq=9, commit_seq=2)
    assert bench.replica.commit_seq == 2
    bench.persist()
    told = bench.of(CommitAdvanced, bench.all_effects)[-1]
    assert (told.commit_seq, told.apply_to) == (2, 2)


def test_payload_and_request_that_came_before_the_first_question_are_not_asked_for_again() -> None:
    """NATS-158: the request that shows the gap is in the queue, and its payload is held, when the
    first MsgSyncRequest leaves: history up to it is all that is missing."""
    bench = Bench(make_replica(N1, records=[record(1)]))
    live = record(3, term=2)
    bench.hold(live, term=2)
    bench.follow(N2, term=2)
    assert bench.replica.statistics().pending_payloads.messages == 1
    bench.store_request(live, term=2, prev_term=2)
    assert [request.request_id for request in bench.sent(MsgSyncRequest, bench.all_effects)] == [1]
    assert bench.replica.live_queue() == ((3, 3),)
    bench.sync(record(2, term=2), request_id=1, from_seq=2, prev_term=1, term=2)
    assert [stored.base_seq for stored in bench.appended()] == [2, 3]
    assert bench.replica.mode is FollowerMode.STEADY


def test_overlap_with_the_live_queue_ends_catching_up() -> None:
    """NATS-142, NATS-165: duplicates of live entries are discarded, the rest is drained.

    Shows NATS-164.
    """
    bench = behind(record(1))
    live = [record(3, term=2), record(4, term=2)]
    for stored, prev in zip(live, (1, 2), strict=True):
        bench.hold(stored, term=2)
        bench.store_request(stored, term=2, prev_term=prev)
    batch = [record(2), live[0]]
    bench.sync(*batch, request_id=1, from_seq=2, prev_term=1, term=2, last_seq=4)
    assert [stored.base_seq for stored in bench.appended()] == [2, 3, 4]
    assert bench.replica.mode is FollowerMode.STEADY
    assert bench.replica.live_queue() == ()
    assert bench.replica.statistics().pending_payloads.messages == 0


def test_done_batch_with_a_gap_before_the_live_queue_asks_on() -> None:
    """The leader's end moved on while the batch travelled; the gap is fetched."""
    bench = behind(record(1))
    bench.store_request(record(5, term=2), term=2, prev_term=2)
    bench.sync(record(2, term=2), request_id=1, from_seq=2, prev_term=1, term=2)
    assert bench.replica.mode is FollowerMode.CATCHING_UP
    assert asked(bench).from_seq == 3


def test_overflowed_live_queue_does_not_end_catching_up_at_the_overlap() -> None:
    """S6.3: what was dropped must be fetched first."""
    bench = behind(record(1), settings=ReplicationSettings(live_queue_messages_max=1))
    bench.store_request(record(3, term=2), term=2, prev_term=1)
    bench.store_request(record(4, term=2), term=2, prev_term=2)
    assert bench.replica.live_queue() == ((3, 3),)
    batch = [record(2), record(3, term=2)]
    bench.sync(*batch, request_id=1, from_seq=2, prev_term=1, term=2, last_seq=4)
    assert bench.replica.mode is FollowerMode.CATCHING_UP
    bench.sync(record(4, term=2), request_id=2, from_seq=4, prev_term=2, term=2, last_seq=4)
    assert bench.replica.mode is FollowerMode.STEADY


def test_first_store_request_that_fits_our_end_is_a_match_point() -> None:
    """S2.4: a new leader's term-start record that follows our end verifies all below it."""
    bench = behind(record(1), record(2))
    bench.store_request(term_start(3, 2), term=2, prev_term=1, inlined=True)
    assert bench.replica.mode is FollowerMode.STEADY
    assert bench.replica.verified_seq == 3
    assert bench.sync(request_id=1, from_seq=3, prev_term=1, term=2) == []


def test_store_request_that_does_not_fit_does_not_end_probing() -> None:
    """S2.4, S6.3: without (prev_term, seq - 1) a live entry proves nothing."""
    bench = behind(record(1), record(2))
    bench.store_request(term_start(4, 2), term=2, prev_term=1, inlined=True)
    assert bench.replica.mode is FollowerMode.CATCHING_UP
    bench.store_request(record(3, term=2), term=2, prev_term=0)
    assert bench.replica.verified_seq == 0


def test_leader_change_in_the_middle_restarts_probing() -> None:
    """S6.2: the tail fetched from the old leader may be divergent; nothing is continued.

    Shows NATS-193, NATS-196.
    """
    bench = behind(record(1))
    bench.store_request(record(9, term=2), term=2, prev_term=2)
    bench.sync(record(2, term=2), request_id=1, from_seq=2, prev_term=1, term=2, last_seq=9)
    bench.do(RoleChanged(Term(3), Role.FOLLOWER, N3))
    assert bench.replica.live_queue() == ()
    assert bench.replica.verified_seq == 0
    assert asked(bench).from_seq == 0
    assert asked(bench).lineage[0] == (2, 2)
    old = bench.sync(record(3, term=2), request_id=2, from_seq=3, prev_term=2, term=2)
    assert old == []


def test_notice_that_shows_our_own_end_finishes_catching_up() -> None:
    """S2.4: a replica with the leader's last (term, seq) has its whole log."""
    bench = behind(record(1), record(2))
    notice = CommitNotice(CHANNEL, Term(2), Seq(2), Seq(2), Term(1), b"")
    bench.receive(notice)
    assert bench.replica.mode is FollowerMode.STEADY
    assert bench.replica.commit_seq == 2


def test_leader_that_contradicts_itself_halts_the_node() -> None:
    """S13: a leader never loses what was verified against it in its own term."""
    bench = behind(record(1), record(2))
    bench.sync(record(3, term=2), request_id=1, from_seq=3, prev_term=1, term=2, last_seq=9)
    effects = bench.sync(request_id=2, from_seq=4, prev_term=1, term=2, last_seq=9)
    assert [type(effect) for effect in effects] == [Halt]


def test_conflict_below_the_commit_position_halts() -> None:
    """S2.5: catch-up never replaces a committed record."""
    bench = Bench(make_replica(N1, records=[record(1), record(2)], applied_seq=2))
    bench.follow(N2, term=2)
    effects = bench.sync(
        record(2, term=2, counter=9), request_id=1, from_seq=2, prev_term=1, term=2
    )
    assert [type(effect) for effect in effects] == [Halt]


def test_two_records_for_one_seq_from_one_leader_halt() -> None:
    """S13: history and live data of one leader agree on every seq."""
    bench = behind(record(1))
    bench.store_request(record(2, term=1), term=2, prev_term=0)
    effects = bench.sync(record(2, term=2), request_id=1, from_seq=2, prev_term=1, term=2)
    assert [type(effect) for effect in effects] == [Halt]


def test_overlap_with_payloads_missing_goes_on_fetching() -> None:
    """A follower that missed some payloads does not stop at each of them to wait."""
    bench = behind(record(1))
    for seq in (2, 3, 4):
        bench.store_request(record(seq, term=2), term=2, prev_term=1 if seq == 2 else 2)
    bench.hold(record(3, term=2), term=2)
    bench.sync(record(2, term=2), request_id=1, from_seq=2, prev_term=1, term=2, last_seq=4)
    assert bench.replica.mode is FollowerMode.CATCHING_UP
    assert bench.replica.live_queue() == ((3, 3), (4, 4))
    assert asked(bench).from_seq == 3


def test_live_record_that_is_held_already_is_verified_and_acknowledged() -> None:
    """S2.4: given a new leader whose first live record is the last of the log, all of the log is
    acknowledged to it, and catching up is over.
    """
    bench = behind(record(1), record(2))
    bench.store_request(record(2), term=2, prev_term=1)
    assert bench.replica.mode is FollowerMode.STEADY
    assert acks(bench) == [2]


def test_live_record_behind_a_gap_does_not_end_catching_up() -> None:
    """S6.3: given a live record that the log does not reach yet, the history is fetched on, and the
    leader is not notified of the gap once more.
    """
    bench = behind(record(1))
    bench.store_request(record(5), term=2, prev_term=1)
    assert bench.replica.mode is not FollowerMode.STEADY
    assert bench.sent(StoreReject) == []
