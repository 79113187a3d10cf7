"""Replicas whose logs begin behind a base: where they start, what they ask and what they answer."""

from __future__ import annotations

from typing import Any

import pytest

from raftstore.config import ReplicationSettings
from raftstore.core.configs import encode_config
from raftstore.core.effects import (
    CommitAdvanced,
    Effect,
    Halt,
    ModeChanged,
    ReplicaSnapshotNeeded,
    ServeSync,
)
from raftstore.core.events import Applied
from raftstore.core.folds import advance
from raftstore.core.found_table import FoundTable
from raftstore.core.write_outcome import Fence, WriteOutcome, WriteOutcomeFound, write_outcome_of
from raftstore.engine.channel.history_feed import history_for
from raftstore.errors import CorruptRecordError
from raftstore.ports.log import EMPTY_BASE, Base, MessageLog
from raftstore.protocol.publish import PubAck, PubReject
from raftstore.protocol.records import Record
from raftstore.protocol.replication import CommitNotice, MsgSyncRequest, StoreAck
from raftstore.types import (
    NO_GUID,
    ChannelConfig,
    FollowerMode,
    History,
    LineageEntry,
    RecordKind,
    Seq,
    Term,
)
from tests.core_bench import (
    CHANNEL,
    N1,
    N2,
    N3,
    Bench,
    guid,
    make_replica,
    pub_msg,
    record,
    term_start,
)

LOG = [
    term_start(1, 1),
    record(2, rows=3, payload=b"value 2"),
    record(5, kind=RecordKind.CONDITIONAL),
    term_start(6, 2),
    record(7, term=2),
]
BASE = advance(EMPTY_BASE, LOG)
GUESSED = advance(EMPTY_BASE, [*LOG[:3], term_start(6, 10), record(7, term=10)])
"""Of other terms: a log of terms 8 and 9 shares none, and may be equal up to seq 5."""


def behind(
    *records: Record, base: Base = BASE, applied_seq: int | None = None, **more: Any
) -> Bench:
    """A replica whose log holds these records behind a base."""
    applied = base.seq if applied_seq is None else applied_seq
    return Bench(make_replica(base=base, records=records, applied_seq=applied, **more))


def request_of(bench: Bench) -> MsgSyncRequest:
    """The newest request for history."""
    sent: list[MsgSyncRequest] = bench.sent(MsgSyncRequest, bench.all_effects)
    return sent[-1]


def served(bench: Bench, from_seq: int, lineage: tuple[tuple[int, int], ...] = ()) -> ServeSync:
    """The leader's decision about a request."""
    runs = tuple(LineageEntry(Term(term), Seq(end)) for term, end in lineage)
    request = MsgSyncRequest(CHANNEL, bench.replica.term, 1, Seq(from_seq), runs, 1_000)
    bench.receive(request, N2)
    [serve] = bench.of(ServeSync)
    assert isinstance(serve, ServeSync)
    return serve


def leading(*, base: Base = BASE) -> Bench:
    """A leader whose log begins behind the base; all of it is committed and applied."""
    bench, term = behind(base=base), base.term + 1
    bench.lead(term)
    bench.persist()
    bench.receive(StoreAck(CHANNEL, Term(term), bench.replica.last_seq), N2)
    bench.do(Applied(bench.replica.last_seq))
    return bench


# --- where a replica starts -----------------------------------------------------------------------


def test_s6_5_replica_starts_where_its_base_ends() -> None:
    """S6.5: all that the base stands for was committed, and is the history in elections (S1.1)."""
    replica = behind().replica
    assert (replica.base, replica.history()) == (BASE, History(Term(2), Seq(7)))
    assert (replica.last_seq, replica.durable_seq, replica.commit_seq) == (7, 7, 7)
    assert replica.verified_seq == 0
    assert replica.may_vote()
    assert replica.chain_hash_at_commit() == (7, BASE.chain_hash)
    assert replica.batches_between(Seq(7), Seq(7)) == (0, 0)


def test_records_behind_the_base_are_followed_from_it() -> None:
    """S6.7: the chain goes on as in a log that holds all."""
    more = [record(8, term=2), record(9, term=2)]
    whole = make_replica(records=[*LOG, *more], applied_seq=9)
    assert behind(*more, applied_seq=9).replica.chain_hash_at_commit() == (
        whole.chain_hash_at_commit()
    )


@pytest.mark.parametrize(("applied", "commit"), [(3, 7), (7, 7), (8, 8), (20, 9)])
def test_commit_seq_at_the_start_is_neither_below_the_base_nor_beyond_the_end(
    applied: int, commit: int
) -> None:
    """S6.5: whatever the table says, what is derived from the log can be asked for there."""
    bench = behind(record(8, term=2), record(9, term=2), applied_seq=applied)
    assert bench.replica.commit_seq == commit
    assert bench.replica.batches_at(Seq(commit)) == 0


def test_base_that_cannot_be_read_starts_nothing() -> None:
    """A replica that guessed would take retries for new."""
    with pytest.raises(CorruptRecordError, match="of the log's base"):
        behind(base=Base(BASE.term, BASE.seq, BASE.chain_hash, b""))


@pytest.mark.parametrize("from_seq", [3, 7])
def test_s6_5_truncation_at_or_below_the_base_stops_the_node(from_seq: int) -> None:
    """S2.5, S6.5: only a bug of our own asks for it."""
    bench = behind(record(8, term=2))
    assert not bench.replica._state.truncate(Seq(from_seq))
    [halt] = bench.of(Halt, bench.replica._state.take_effects())
    assert f"from seq {from_seq} at or below the base 7" in halt.reason


# --- a table below the base -----------------------------------------------------------------------


def test_s0_3_replica_whose_copied_table_is_ahead_of_its_log_votes_and_does_nothing_else() -> None:
    """S0.3, S1.1: all that was acknowledged here is in its log, and votes are judged by that."""
    ahead = History(Term(2), Seq(9))
    bench = behind(applied_seq=9, found=FoundTable(ahead=ahead, is_copied=True))
    replica = bench.replica
    assert (replica.is_recovering, replica.may_vote(), replica.may_stand()) == (True, True, False)
    assert replica.history() == BASE.history
    bench.follow(N2, 3)
    request = request_of(bench)
    numbers = {"prev_term": 2, "term": 3, "last_seq": 9}
    bench.sync(record(8, term=2), request_id=request.request_id, from_seq=8, **numbers)
    bench.persist()
    assert not bench.sent(StoreAck, bench.all_effects)
    request = request_of(bench)
    bench.sync(record(9, term=2), request_id=request.request_id, from_seq=9, **numbers)
    bench.persist()
    assert (replica.is_recovering, replica.may_stand()) == (False, True)
    assert [ack.match_seq for ack in bench.sent(StoreAck)] == [9]


@pytest.mark.parametrize("why", ["mark", "own table", "rows"])
def test_s0_3_replica_that_lacks_what_it_acknowledged_does_not_vote(why: str) -> None:
    """Records that the mark names, or its own table; or rows acknowledged with them."""
    ahead = History(Term(2), Seq(9))
    more: dict[str, Any] = {"found": FoundTable(ahead=ahead, is_copied=True)}
    if why == "mark":
        more["shortfall"] = History(Term(2), Seq(8))
    elif why == "own table":
        more["found"] = FoundTable(ahead=ahead)
    else:
        more["found"] = FoundTable(ahead=ahead, is_copied=True, base_max=Seq(6))
    replica = behind(applied_seq=9, **more).replica
    assert (replica.is_recovering, replica.may_vote(), replica.may_stand()) == (True, False, False)


@pytest.mark.parametrize(("base_max", "lacks"), [(7, False), (6, True)])
def test_i1_staged_rows_below_the_base_are_lacking_rows(base_max: int, lacks: bool) -> None:
    """S6.5: an open attempt refers to records that the log does not hold any more."""
    bench = behind(applied_seq=7, found=FoundTable(base_max=Seq(base_max)))
    assert (bench.replica.lacks_rows, bench.replica.is_recovering) == (lacks, lacks)
    effects = bench.follow(N2, 3)
    needed = [ReplicaSnapshotNeeded(Seq(7), Seq(8))] if lacks else []
    assert bench.of(ReplicaSnapshotNeeded, effects) == needed


def test_r10_table_below_the_base_needs_a_snapshot_and_takes_part_in_nothing() -> None:
    """S0.3, S6.5: the records it lacks are in no log of this node, and only they would help."""
    bench = behind(record(8, term=2), applied_seq=5)
    assert bench.replica.is_recovering
    assert not bench.replica.may_vote()
    effects = bench.follow(N2, 3)
    assert bench.of(ReplicaSnapshotNeeded, effects) == [ReplicaSnapshotNeeded(Seq(5), Seq(8))]
    request = request_of(bench)
    effects = bench.sync(
        term_start(9, 3),
        request_id=request.request_id,
        from_seq=9,
        prev_term=2,
        term=3,
        commit_seq=9,
    )
    effects += bench.persist() + bench.wait(5_000)
    assert (bench.replica.commit_seq, bench.replica.last_seq) == (9, 9)
    assert bench.of(CommitAdvanced, bench.all_effects) == []
    assert bench.sent(StoreAck, bench.all_effects) == []
    assert bench.replica.is_recovering


# --- a follower with a base -----------------------------------------------------------------------


def test_follower_offers_no_run_that_ends_at_or_below_its_base() -> None:
    """S2.6: the base was committed, so the leader's log holds or held it: there is the bottom."""
    bench = behind(record(8, term=2), term_start(9, 3))
    bench.follow(N2, 4)
    request = request_of(bench)
    assert (request.from_seq, request.lineage) == (0, ((3, 9), (2, 8)))


def test_follower_with_nothing_behind_its_base_asks_from_there() -> None:
    """S6.2: the last resort is the base instead of the beginning."""
    bench = behind()
    bench.follow(N2, 3)
    assert (request_of(bench).from_seq, request_of(bench).lineage) == (8, ())
    bench.sync(
        term_start(8, 3), request_id=request_of(bench).request_id, from_seq=8, prev_term=2, term=3
    )
    assert bench.replica.last_seq == 8
    assert bench.replica.mode is FollowerMode.STEADY


def test_s2_4_answer_from_below_the_base_is_a_guess_and_is_not_taken() -> None:
    """S2.4, S2.6: the leader knows none of the terms that were offered and guesses below them; its
    records from there are of before the base, and truncating for them would be a bug."""
    bench = behind(record(8, term=3))
    bench.follow(N2, 4)
    old = [term_start(6, 2), record(7, term=2), record(8, term=4)]
    effects = bench.sync(
        *old, request_id=request_of(bench).request_id, from_seq=6, prev_term=1, term=4
    )
    assert bench.replica.verified_seq == 0
    assert bench.appended(effects) == []
    assert request_of(bench).from_seq == 8
    bench.sync(
        record(8, term=4), request_id=request_of(bench).request_id, from_seq=8, prev_term=2, term=4
    )
    assert bench.replica.history() == (4, 8)
    assert not bench.of(Halt, bench.all_effects)


def test_late_store_request_from_below_the_base_does_not_move_the_question_there() -> None:
    """S6.6: of records below the base a copy that comes late verifies what was committed anyhow."""
    bench = behind(term_start(8, 3), term=3)
    bench.follow(N2, 3)
    old = record(7, term=3)
    bench.store_request(record(2, rows=3, payload=b"value 2"), prev_term=1, term=3)
    bench.store_request(old, record(12, term=3), prev_term=2, term=3)
    bench.wait(5_000)
    assert request_of(bench).from_seq == 0
    assert all(run.end_seq > 7 for run in request_of(bench).lineage)
    assert not bench.of(Halt, bench.all_effects)


def test_leader_that_contradicts_the_base_stops_the_node() -> None:
    """S13: the base was committed; a leader without it was elected wrongly."""
    bench = behind()
    bench.follow(N2, 3)
    bench.sync(
        term_start(8, 3), request_id=request_of(bench).request_id, from_seq=8, prev_term=1, term=3
    )
    assert bench.of(Halt)


# --- a leader with a base -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("from_seq", "lineage"),
    [(1, ()), (7, ()), (0, ((1, 5),)), (0, ((9, 9), (8, 8)))],
)
def test_s6_6_leader_serves_nothing_below_its_base(
    from_seq: int, lineage: tuple[tuple[int, int], ...]
) -> None:
    """S6.6: a follower that matches below the base is informed where it begins, and gets no gap."""
    serve = served(leading(base=GUESSED if len(lineage) == 2 else BASE), from_seq, lineage)
    assert serve.first_seq == 8
    assert serve.from_seq < 8
    assert serve.prev_term == 0

    class Untouched:
        """A log of which nothing may be read."""

    log: Any = Untouched()
    answer = history_for(serve, CHANNEL, log, ReplicationSettings())
    assert (answer.records, answer.first_seq, answer.done) == ((), 8, False)


@pytest.mark.parametrize(("from_seq", "lineage"), [(8, ()), (0, ((2, 7),)), (0, ((2, 9),))])
def test_follower_that_matches_at_the_base_gets_the_records_behind_it(
    from_seq: int, lineage: tuple[tuple[int, int], ...]
) -> None:
    """S6.5: prevTerm at the boundary comes from the base."""
    serve = served(leading(), from_seq, lineage)
    assert (serve.from_seq, serve.prev_term, serve.first_seq) == (8, 2, 8)


def test_leader_with_a_base_sends_its_records_from_there() -> None:
    """S2.3: the term of the record before, which the log does not hold."""
    bench = behind()
    effects = bench.lead(3)
    sent = [message for message in bench.sent(object, effects) if hasattr(message, "prev_term")]
    assert {(message.prev_term, message.records[0].base_seq) for message in sent} == {(2, 8)}


# --- history was trimmed --------------------------------------------------------------------------


def trimmed(bench: Bench, first_seq: int = 8, term: int = 3) -> list[Effect]:
    """The leader's log begins above what the follower asked for."""
    request = request_of(bench)
    from_seq = request.from_seq or bench.replica.last_seq + 1
    return bench.sync(
        request_id=request.request_id,
        from_seq=from_seq,
        prev_term=0,
        last_seq=20,
        first_seq=first_seq,
        term=term,
    )


def test_s6_6_follower_below_the_leaders_base_says_that_it_needs_a_snapshot() -> None:
    """S6.6: once, with what it has and what there is; it acknowledges nothing for it."""
    bench = Bench(make_replica(records=LOG[:2], applied_seq=4))
    bench.follow(N2, 3)
    effects = trimmed(bench)
    assert bench.of(ReplicaSnapshotNeeded, effects) == [ReplicaSnapshotNeeded(Seq(4), Seq(8))]
    assert bench.of(ModeChanged, effects) == [
        ModeChanged(FollowerMode.CATCHING_UP, "history_trimmed")
    ]
    assert bench.sent(StoreAck, effects) == []
    assert (bench.replica.verified_seq, bench.replica.last_seq) == (0, 4)
    assert bench.sent(MsgSyncRequest, bench.wait(999)) == []
    again = bench.sent(MsgSyncRequest, bench.wait(2))
    assert [message.request_id for message in again] == [request_of(bench).request_id]
    assert bench.of(ReplicaSnapshotNeeded, trimmed(bench)) == []
    assert bench.of(ReplicaSnapshotNeeded, trimmed(bench, first_seq=9)) != []


def test_follower_goes_on_when_a_leader_has_the_history_after_all() -> None:
    """S6.2: another leader may have another base."""
    bench = Bench(make_replica(records=LOG[:2], applied_seq=4))
    bench.follow(N2, 3)
    trimmed(bench)
    bench.follow(N3, 4)
    request = request_of(bench)
    bench.sync(LOG[2], request_id=request.request_id, from_seq=5, prev_term=1, term=4, sender=N3)
    assert bench.replica.last_seq == 5
    assert bench.replica.mode is FollowerMode.STEADY


def test_notices_of_a_leader_do_not_make_a_trimmed_follower_ask_more_often() -> None:
    """The question is bounded by its time-out, however much the leader says."""
    bench = Bench(make_replica(records=LOG[:2], applied_seq=4))
    bench.follow(N2, 3)
    trimmed(bench)
    for _ in range(5):
        notice = CommitNotice(CHANNEL, Term(3), Seq(0), Seq(20), Term(3), b"")
        assert bench.sent(MsgSyncRequest, bench.receive(notice)) == []


# --- writes below the base ------------------------------------------------------------------------


def test_s4_5_retry_of_a_write_below_the_base_is_acknowledged_with_its_place() -> None:
    """S4.5: the first outcome, never a second application."""
    bench = leading()
    effects = bench.publish(2, term=3, payload=b"value 2", rows=3, attempt=1)
    [(_, answer)] = bench.replies(effects)
    assert isinstance(answer, PubAck)
    assert (answer.base_seq, answer.last_seq, answer.record_term) == (2, 4, 1)
    assert bench.appended(effects) == []
    [(_, answer)] = bench.replies(bench.publish(2, term=3, payload=b"another", attempt=1))
    assert isinstance(answer, PubReject)
    assert answer.code == "guid_reuse"


def test_retry_of_a_condition_below_the_base_is_unknown() -> None:
    """S4.5: whether it held is not answered twice; it is not decided twice, either."""
    bench = leading()
    effects = bench.publish(
        5, term=3, payload=LOG[2].payload, kind=RecordKind.CONDITIONAL, attempt=1
    )
    [(_, answer)] = bench.replies(effects)
    assert isinstance(answer, PubReject)
    assert answer.code == "guid_expired"
    assert bench.appended(effects) == []


def test_n4_fate_of_a_write_below_the_base_is_told() -> None:
    """N4: committed with its place; a condition is unknown; what never was is not applied."""
    state, fence = leading().replica._state, Fence()
    assert write_outcome_of(state, guid(2), fence) == WriteOutcomeFound(
        WriteOutcome.COMMITTED, Seq(4), Term(1)
    )
    conditioned = write_outcome_of(state, guid(5), fence)
    assert conditioned == WriteOutcomeFound(WriteOutcome.COMMITTED, Seq(5), Term(1), "unknown")
    assert write_outcome_of(state, guid(99), fence).fate is WriteOutcome.NOT_APPLIED


def test_s10_timestamps_go_on_behind_those_below_the_base() -> None:
    """S10: always after the record before, which the log does not hold."""
    ahead = record(1, timestamp_ms=10**12)
    bench = behind(base=advance(EMPTY_BASE, [ahead]))
    [started] = bench.appended(bench.lead(2))
    assert started.timestamp_ms == 10**12 + 1
    assert (started.guid, pub_msg(1).term) == (NO_GUID, 1)


def test_s8_configuration_below_the_base_counts() -> None:
    """S8: the newest one of the log, wherever it stands."""
    pair = ChannelConfig(((N1, N2),))
    told = record(1, kind=RecordKind.CONFIG, payload=encode_config(pair))
    replica = behind(base=advance(EMPTY_BASE, [told])).replica
    assert (replica.config(), replica.config_committed()) == (pair, True)


def test_history_feed_reads_from_the_log_what_it_holds() -> None:
    """S6.1: at the first seq of the log nothing is refused."""
    bench = leading()
    stored = record(8, term=3)

    class Held:
        """A log with one record."""

        def extent(self, _: object) -> Held:
            """Of one record."""
            return self

        def reach(self, *_: object, **__: object) -> Seq:
            """Its end."""
            return stored.last_seq

        def read(self, *_: object, **__: object) -> list[Record]:
            """All of it."""
            return [stored]

    log: Any = Held()
    typed: MessageLog = log
    assert history_for(served(bench, 8), CHANNEL, typed, ReplicationSettings()).records == (stored,)
