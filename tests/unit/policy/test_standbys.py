"""Standbys in sync: who enters, who stays, who leaves (FIP-05, FIP-17, FIP-18), and the record."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from raftstore.core.progress import ProgressView
from raftstore.policy.channel_record import ChannelRecord, record_of
from raftstore.policy.standbys import CATCHES_UP, InSyncStandbys, hot_standbys
from raftstore.types import ChannelConfig, NodeId, Seq, Term
from tests.core_bench import N1, N2, N3, N4

MAX_LAG = 10


def look(judged: InSyncStandbys, applied: int, end: int, why_not: str = "") -> bool:
    """Whether n2 is in sync after a look at it."""
    return judged.judge(N2, Seq(applied), Seq(end), why_not).in_sync


def test_standby_enters_when_it_has_applied_everything() -> None:
    """FIP-17: a lag of 0 at some moment; being near is not enough to get in."""
    judged = InSyncStandbys(MAX_LAG)
    assert not look(judged, 99, 100)
    assert not look(judged, 99, 100)
    assert look(judged, 100, 100)
    assert judged.nodes == (N2,)


def test_standby_enters_under_load_by_what_the_log_held_a_moment_ago() -> None:
    """FIP-17: it never equals the present end, which moves on while its report travels."""
    judged = InSyncStandbys(MAX_LAG)
    assert not look(judged, 95, 100)
    assert not look(judged, 99, 105), "the end of the first look is not applied yet"
    assert look(judged, 100, 108)


def test_standby_stays_within_the_bound_and_leaves_beyond_it() -> None:
    """FIP-17, FIP-18: so it does not go in and out by turns."""
    judged = InSyncStandbys(MAX_LAG)
    assert look(judged, 100, 100)
    assert look(judged, 100, 110)
    assert judged.judge(N2, Seq(100), Seq(111)) == (False, True, "it has 11 rows to apply")
    assert not look(judged, 105, 111), "near is not enough to come back"
    assert not look(judged, 110, 115)
    assert look(judged, 111, 116)


def test_standby_far_behind_does_not_enter_however_old_the_end_is_that_it_reached() -> None:
    """FIP-17: what it reached long ago says nothing of how far it is now."""
    judged = InSyncStandbys(MAX_LAG)
    assert not look(judged, 95, 100)
    assert not look(judged, 100, 500)


def test_standby_that_is_silent_or_catches_up_is_not_in_sync() -> None:
    """FIP-18: whatever it has applied; it enters anew when that is over."""
    judged = InSyncStandbys(MAX_LAG)
    assert look(judged, 100, 100)
    assert judged.judge(N2, Seq(100), Seq(100), CATCHES_UP) == (False, True, CATCHES_UP)
    assert judged.judge(N2, Seq(100), Seq(100), CATCHES_UP) == (False, False, CATCHES_UP)
    assert look(judged, 100, 100)
    assert judged.leave(N2)
    assert not judged.leave(N2)
    assert N2 not in judged


@given(st.lists(st.tuples(st.integers(0, 30), st.integers(0, 40), st.booleans()), max_size=30))
def test_nobody_in_sync_is_ever_beyond_the_bound_or_silent(
    looks: list[tuple[int, int, bool]],
) -> None:
    """FIP-17: at every look, whatever came before; each change is reported as one."""
    judged, was = InSyncStandbys(MAX_LAG), False
    for applied, more, is_silent in looks:
        found = judged.judge(N2, Seq(applied), Seq(applied + more), "silent" if is_silent else "")
        assert not (found.in_sync and (is_silent or more > MAX_LAG))
        assert found.has_changed == (found.in_sync is not was)
        assert found.in_sync or found.reason
        was = found.in_sync


def test_leader_is_no_standby_of_itself() -> None:
    """FIP-05, FIP-07: all other replicas that have the table are hot standbys."""
    config = ChannelConfig(((N1, N2, N3),), (N4,))
    assert hot_standbys(config, N1) == (N2, N3, N4)
    assert hot_standbys(config, N4) == (N1, N2, N3)


def test_follower_keeps_up_while_it_holds_what_is_committed_or_is_steady() -> None:
    """FIP-06: not before it was heard in this term, nor while it catches up from behind."""
    view = ProgressView(Seq(5), Seq(5), 1, is_catching_up=True)
    assert view.keeps_up(Seq(5))
    assert not view.keeps_up(Seq(6))
    assert view._replace(is_catching_up=False).keeps_up(Seq(6))
    assert not view._replace(heard_ms=None).keeps_up(Seq(0))


# --- the record -----------------------------------------------------------------------------------


def record(leader: NodeId = N1, *, iss: tuple[NodeId, ...] = (N2,)) -> ChannelRecord:
    """Of replicas n1 to n3, of which n4 was one before."""
    return record_of(
        leader=leader,
        leader_epoch=Term(10),
        replicas=(N1, N2, N3),
        in_sync=(N2, N3, N4),
        hot_standbys=(N2, N3, N4),
        standbys_in_sync=iss,
        coordinator_epoch=Term(1000),
        bucket_epoch=Seq(7),
    )


def test_record_has_the_fields_of_version_2() -> None:
    """FIP-06: names as in the proposal; who is no replica any more is in none of its sets."""
    assert msgspec.to_builtins(record(iss=(N2, N4)).shown()) == {
        "version": 2,
        "leader": "n1",
        "leader_epoch": 10,
        "replicas": ["n1", "n2", "n3"],
        "isr": ["n1", "n2", "n3"],
        "hot_standby_replicas": ["n2", "n3"],
        "iss": ["n2"],
        "coordinator_epoch": 1000,
        "bucket_epoch": 7,
    }


def test_record_of_a_leader_that_is_to_leave_does_not_count_it() -> None:
    """FIP-07: a leader outside of its configuration is no replica, so it is in no set either."""
    found = record(N4)
    assert (found.isr, found.hot_standby_replicas) == ((N2, N3), (N2, N3))


@pytest.mark.parametrize(
    "wrong",
    [
        {"hot_standby_replicas": (N1, N2)},
        {"iss": (N3,), "isr": (N1, N2)},
        {"iss": (N3,), "hot_standby_replicas": (N2,)},
        {"isr": (N1, N4)},
    ],
    ids=["its own standby", "not in sync", "no standby", "no replica"],
)
def test_record_that_contradicts_itself_is_not_made(wrong: dict[str, tuple[NodeId, ...]]) -> None:
    """FIP-05, FIP-07: checked for every record."""
    with pytest.raises(AssertionError):
        record()._replace(**wrong).checked()
