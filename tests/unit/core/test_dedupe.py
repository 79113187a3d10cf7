"""Deduplication is a function of the log, and never lets a write in twice (S4.5, S4.6)."""

from __future__ import annotations

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from raftstore.core.chain import digest_of
from raftstore.core.dedupe import DedupeTable, Verdict
from raftstore.protocol.records import Record
from raftstore.types import RecordKind, Seq
from tests.core_world import guid, record, term_start

OTHER = b"session2"


def table(**bounds: int) -> DedupeTable:
    """A table with small bounds by default."""
    return DedupeTable(**bounds)


def write(dedupe: DedupeTable, *records: Record, commit: bool = True) -> None:
    """Append records, and commit them."""
    for stored in records:
        dedupe.append(stored)
        if commit:
            dedupe.commit(stored.last_seq)


def verdict(
    dedupe: DedupeTable,
    counter: int,
    payload: bytes,
    *,
    session: bytes = b"session1",
    in_doubt: bool = True,
    after_seq: int = 0,
) -> Verdict:
    """The judgement of a retry with this counter and payload."""
    asked = guid(counter, session), digest_of(payload)
    return dedupe.judge(*asked, in_doubt=in_doubt, after_seq=Seq(after_seq))[0]


def test_written_guid_is_a_duplicate_committed_or_not() -> None:
    """S4.5: a retry is recognised from the log alone and finds the first place."""
    dedupe = table()
    write(dedupe, record(1, rows=3, payload=b"a"))
    write(dedupe, record(4, payload=b"b"), commit=False)
    found, written = dedupe.judge(guid(1), digest_of(b"a"), in_doubt=True)
    assert found is Verdict.DUPLICATE
    assert written is not None
    assert (written.base_seq, written.last_seq, written.term) == (1, 3, 1)
    assert verdict(dedupe, 4, b"b") is Verdict.DUPLICATE
    assert verdict(dedupe, 5, b"c") is Verdict.NEW


def test_guid_with_another_payload_is_reused() -> None:
    """S4.6: one guid names one payload."""
    dedupe = table()
    write(dedupe, record(1, payload=b"a"))
    write(dedupe, record(2, payload=b"b"), commit=False)
    assert verdict(dedupe, 1, b"x") is Verdict.REUSED
    assert verdict(dedupe, 2, b"x") is Verdict.REUSED


def test_truncated_write_is_new_again() -> None:
    """S4.5: the table follows the log back."""
    dedupe = table()
    write(dedupe, record(1, payload=b"a"), record(2, payload=b"b"), commit=False)
    assert dedupe.uncommitted_from(Seq(2)) == [guid(2)]
    dedupe.truncate(Seq(2))
    assert verdict(dedupe, 2, b"b") is Verdict.NEW
    assert verdict(dedupe, 1, b"a") is Verdict.DUPLICATE


def test_counter_at_or_below_the_floor_is_expired() -> None:
    """S4.5: outside the window the answer is "expired", never a second application."""
    dedupe = table(window=3)
    write(dedupe, *(record(seq, payload=b"v") for seq in range(1, 7)))
    assert verdict(dedupe, 3, b"v") is Verdict.EXPIRED
    assert verdict(dedupe, 1, b"never seen") is Verdict.EXPIRED
    assert verdict(dedupe, 4, b"v") is Verdict.DUPLICATE
    assert dedupe.outcomes == 3


def test_counters_may_arrive_out_of_order_within_the_window() -> None:
    """The window holds the highest counters, in whatever order they were written."""
    dedupe = table(window=2)
    for seq, counter in enumerate((5, 2, 9, 7), start=1):
        write(dedupe, record(seq, counter=counter, payload=b"v"))
    assert verdict(dedupe, 5, b"v") is Verdict.EXPIRED
    assert verdict(dedupe, 6, b"new") is Verdict.NEW
    assert verdict(dedupe, 7, b"v") is Verdict.DUPLICATE


def test_oldest_outcome_of_the_channel_raises_the_floor_of_its_session() -> None:
    """S4.5: so many later writes were committed that nothing of the session can be reported."""
    dedupe = table(outcomes_max=2)
    write(dedupe, record(1, payload=b"a"))
    write(dedupe, *(record(seq, counter=seq, session=OTHER) for seq in (2, 3)))
    assert verdict(dedupe, 1, b"a") is Verdict.EXPIRED
    assert verdict(dedupe, 2, b"next") is Verdict.NEW
    assert (dedupe.sessions, dedupe.outcomes) == (2, 2)


def test_session_without_outcomes_that_writes_again_goes_on_above_its_floor() -> None:
    """A floor is never forgotten while the session is remembered."""
    dedupe = table(outcomes_max=1)
    write(dedupe, record(1, counter=7, payload=b"a"))
    write(dedupe, record(2, counter=1, session=OTHER))
    write(dedupe, record(3, counter=9, payload=b"b"))
    assert verdict(dedupe, 7, b"a") is Verdict.EXPIRED
    assert verdict(dedupe, 9, b"b") is Verdict.DUPLICATE


def test_retry_of_a_forgotten_session_is_expired_and_a_first_attempt_is_new() -> None:
    """S4.5: when sessions had to be forgotten, a retry of an unknown one is in doubt."""
    dedupe = table(sessions_max=2)
    for seq, session in enumerate((b"aaaaaaaa", b"bbbbbbbb", b"cccccccc"), start=1):
        write(dedupe, record(seq, counter=1, session=session, payload=b"v"))
    assert dedupe.sessions == 2
    assert verdict(dedupe, 1, b"v", session=b"aaaaaaaa") is Verdict.EXPIRED
    assert verdict(dedupe, 1, b"v", session=b"dddddddd", in_doubt=False) is Verdict.NEW
    assert verdict(dedupe, 1, b"v", session=b"cccccccc") is Verdict.DUPLICATE


def test_forgotten_session_that_writes_again_stays_in_doubt() -> None:
    """S4.5: what it wrote before it was forgotten must not be written again."""
    dedupe = table(sessions_max=2)
    for seq, session in enumerate((b"aaaaaaaa", b"bbbbbbbb", b"cccccccc"), start=1):
        write(dedupe, record(seq, counter=5, session=session, payload=b"v"))
    write(dedupe, record(4, counter=2, session=b"aaaaaaaa", payload=b"w"))
    assert verdict(dedupe, 2, b"w", session=b"aaaaaaaa") is Verdict.DUPLICATE
    assert verdict(dedupe, 5, b"v", session=b"aaaaaaaa") is Verdict.EXPIRED
    assert verdict(dedupe, 6, b"x", session=b"aaaaaaaa", in_doubt=False) is Verdict.NEW


def test_forgotten_session_stays_in_doubt_when_it_is_reduced_to_its_floor() -> None:
    """S4.5: the rest of a session that came back must not look like all of it."""
    dedupe = table(sessions_max=2, outcomes_max=3)
    for seq, session in enumerate((b"aaaaaaaa", b"bbbbbbbb", b"cccccccc"), start=1):
        write(dedupe, record(seq, counter=80, session=session, payload=b"v"))
    write(dedupe, record(4, counter=50, session=b"aaaaaaaa", payload=b"w"))
    assert verdict(dedupe, 80, b"v", session=b"aaaaaaaa") is Verdict.EXPIRED
    for seq in range(5, 8):
        write(dedupe, record(seq, counter=80 + seq, session=b"cccccccc", payload=b"v"))
    assert b"aaaaaaaa" in dedupe._sessions
    assert verdict(dedupe, 80, b"v", session=b"aaaaaaaa") is Verdict.EXPIRED
    write(dedupe, record(8, counter=51, session=b"aaaaaaaa", payload=b"w"))
    assert verdict(dedupe, 80, b"v", session=b"aaaaaaaa") is Verdict.EXPIRED


def test_n4_absence_is_never_certain_for_a_session_that_was_forgotten_and_came_back() -> None:
    """N4: "not applied" of a write that is committed would have it written again."""
    dedupe = table(sessions_max=2, outcomes_max=3)
    for seq, session in enumerate((b"aaaaaaaa", b"bbbbbbbb", b"cccccccc"), start=1):
        write(dedupe, record(seq, counter=80, session=session, payload=b"v"))
    write(dedupe, record(4, counter=50, session=b"aaaaaaaa", payload=b"w"))
    written = guid(80, b"aaaaaaaa")
    assert dedupe.find(written) is None
    assert not dedupe.is_complete_for(written)
    for seq in range(5, 8):
        write(dedupe, record(seq, counter=80 + seq, session=b"cccccccc", payload=b"v"))
    assert not dedupe.is_complete_for(written), "only its floor is left"
    write(dedupe, record(8, counter=51, session=b"aaaaaaaa", payload=b"w"))
    assert not dedupe.is_complete_for(written), "it came back a second time"


def test_retry_that_began_after_the_forgotten_sessions_ended_is_new() -> None:
    """S4.5: proof of age is a seq: what is younger than all that was forgotten is not among it."""
    dedupe = table(sessions_max=1)
    write(dedupe, record(1, rows=4, counter=1, session=b"aaaaaaaa", payload=b"v"))
    write(dedupe, record(5, counter=1, session=b"bbbbbbbb", payload=b"v"))
    for after_seq, expected in ((0, Verdict.EXPIRED), (3, Verdict.EXPIRED), (4, Verdict.NEW)):
        judged = verdict(dedupe, 1, b"v", session=b"dddddddd", after_seq=after_seq)
        assert judged is expected
    assert verdict(dedupe, 1, b"v", session=b"dddddddd", in_doubt=False) is Verdict.NEW


def test_session_that_came_after_the_forgotten_ones_stays_sure_of_itself() -> None:
    """S4.5: others that are forgotten later have nothing to do with it."""
    dedupe = table(sessions_max=2)
    for seq, session in enumerate((b"aaaaaaaa", b"bbbbbbbb", b"cccccccc", b"dddddddd"), start=1):
        write(dedupe, record(seq, counter=1, session=session, payload=b"v"))
    for seq in range(5, 10):
        write(dedupe, record(2 * seq, counter=1, session=b"passing%d" % seq))
        write(dedupe, record(2 * seq + 1, counter=seq, session=b"dddddddd", payload=b"v"))
    assert verdict(dedupe, 99, b"v", session=b"dddddddd", after_seq=2) is Verdict.NEW
    assert verdict(dedupe, 99, b"v", session=b"dddddddd", after_seq=0) is Verdict.EXPIRED


def test_no_timestamp_makes_a_retry_new() -> None:
    """S4.5, S10: a leader whose clock is years ahead, or goes back, changes nothing."""
    for later_ms in (2**53, 0):
        dedupe = table(sessions_max=1, window=2)
        write(dedupe, record(1, counter=1, session=b"aaaaaaaa", payload=b"v", timestamp_ms=10**9))
        write(dedupe, record(2, counter=1, session=b"bbbbbbbb", timestamp_ms=later_ms))
        write(dedupe, record(3, counter=2, session=b"bbbbbbbb", timestamp_ms=later_ms))
        assert verdict(dedupe, 1, b"v", session=b"aaaaaaaa") is Verdict.EXPIRED
        assert verdict(dedupe, 1, b"p2", session=b"bbbbbbbb") is Verdict.DUPLICATE


def test_all_outcomes_of_a_channel_are_bounded() -> None:
    """The oldest outcomes in the log go first when the channel holds too many."""
    dedupe = table(outcomes_max=4)
    for seq in range(1, 4):
        write(dedupe, record(seq, counter=seq, payload=b"v"))
    for seq in range(4, 7):
        write(dedupe, record(seq, counter=seq, session=OTHER, payload=b"v"))
    assert dedupe.outcomes == 4
    assert verdict(dedupe, 2, b"v") is Verdict.EXPIRED
    assert verdict(dedupe, 3, b"v") is Verdict.DUPLICATE
    assert verdict(dedupe, 6, b"v", session=OTHER) is Verdict.DUPLICATE


def test_records_without_a_publisher_are_not_remembered() -> None:
    """Term-start records carry no guid."""
    dedupe = table()
    dedupe.append(term_start(1, 1))
    assert (dedupe.sessions, dedupe.outcomes) == (0, 0)


def test_conditioned_record_has_no_outcome_until_it_is_applied() -> None:
    """S10: only the state machine knows whether a condition held."""
    dedupe = table()
    dedupe.append(record(1, kind=RecordKind.CONDITIONAL))
    written = dedupe.find(guid(1))
    assert written is not None
    assert written.is_conditioned
    assert not written.outcome_known


BOUNDS = {"window": 3, "sessions_max": 2, "outcomes_max": 5}
SESSIONS = (b"aaaaaaaa", b"bbbbbbbb", b"cccccccc")
DAY_MS = 86_400_000


@st.composite
def logs(draw: st.DrawFn) -> list[Record]:
    """Logs of a few sessions with every GUID once, by leaders whose clocks jump by days."""
    pairs = draw(
        st.lists(st.tuples(st.sampled_from(SESSIONS), st.integers(1, 12)), max_size=25, unique=True)
    )
    clock, records = 50 * DAY_MS, []
    for seq, (session, counter) in enumerate(pairs, start=1):
        clock = max(clock + draw(st.sampled_from((1, 60, DAY_MS, -DAY_MS, 40 * DAY_MS))), 1)
        records.append(record(seq, counter=counter, session=session, timestamp_ms=clock))
    return records


def all_verdicts(dedupe: DedupeTable) -> list[object]:
    """Answers to every question about the sessions."""
    return [
        dedupe.judge(guid(counter, session), digest_of(payload), in_doubt=True, after_seq=after_seq)
        for session in (*SESSIONS, OTHER)
        for counter in range(1, 13)
        for payload in (b"p1", b"other")
        for after_seq in (Seq(0), Seq(4), Seq(30))
    ]


@given(logs(), st.data())
def test_table_is_a_function_of_the_log_whatever_was_cut_on_the_way(
    records: list[Record], data: st.DataObject
) -> None:
    """S4.5: a table that saw other tails, or committed in other steps, judges the same."""
    fresh, worn = table(**BOUNDS), table(**BOUNDS)
    for stored in records:
        if data.draw(st.booleans()):
            stray = record(stored.base_seq, counter=99, session=OTHER, payload=b"stray")
            worn.append(stray)
            worn.truncate(stored.base_seq)
        write(worn, stored, commit=data.draw(st.booleans()))
    end = records[-1].last_seq if records else Seq(0)
    worn.commit(end)
    write(fresh, *records, commit=False)
    fresh.commit(end)
    assert all_verdicts(fresh) == all_verdicts(worn)
    assert fresh.sessions == worn.sessions <= 2
    assert fresh.outcomes == worn.outcomes <= 5


@given(logs())
def test_timestamps_take_no_part_in_any_verdict(records: list[Record]) -> None:
    """S4.5, S10: the same writes by leaders with sane clocks are judged the same."""
    sane = [msgspec.structs.replace(one, timestamp_ms=seq) for seq, one in enumerate(records)]
    jumping, steady = table(**BOUNDS), table(**BOUNDS)
    for one, other in zip(records, sane, strict=True):
        write(jumping, one)
        write(steady, other)
        assert all_verdicts(jumping) == all_verdicts(steady)


@given(logs())
def test_no_written_guid_looks_new_however_late_its_retry_comes(records: list[Record]) -> None:
    """S4.5: whatever the bounds forget, a retry of a written GUID is never applied again."""
    dedupe = table(**BOUNDS)
    for index, stored in enumerate(records):
        write(dedupe, stored)
        for earlier in records[: index + 1]:
            # The most that its publisher can honestly claim: it began right before its record.
            claims = {"in_doubt": True, "after_seq": Seq(earlier.base_seq - 1)}
            judged, _ = dedupe.judge(earlier.guid, earlier.digest, **claims)
            assert judged in {Verdict.DUPLICATE, Verdict.EXPIRED}


@given(logs())
def test_n4_written_guid_is_found_or_in_doubt_for_ever(records: list[Record]) -> None:
    """N4: unlike a retry a question may come at any time, so no bound ever makes it certain."""
    dedupe = table(window=2, sessions_max=2, outcomes_max=3)
    for index, stored in enumerate(records):
        write(dedupe, stored)
        for earlier in records[: index + 1]:
            found = dedupe.find(earlier.guid)
            assert found is not None or not dedupe.is_complete_for(earlier.guid)
