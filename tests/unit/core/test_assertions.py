"""The core's invariants are asserted where they are kept: a broken one ends the node at once.

Nothing outside the program reaches them (``test_hostile_leader``), so each is broken by hand here.
"""

from __future__ import annotations

import pytest

from raftstore.config import ReplicationSettings
from raftstore.core.leader import Leader
from raftstore.core.progress import Progress
from raftstore.core.state import ChannelState
from raftstore.ports.log import RecoveredChannel
from raftstore.types import History, Role, Seq, Term
from tests.core_bench import CHANNEL, N1, TRIO, record, term_start


def state_of(
    *, term: int = 3, role: Role = Role.FOLLOWER, shortfall: History | None = None
) -> ChannelState:
    """A channel with two records of term 1, none of them committed."""
    held = [term_start(1, 1), record(2)]
    state = ChannelState(
        me=N1,
        channel=CHANNEL,
        creation_config=TRIO,
        settings=ReplicationSettings(),
        durability="fsync",
        recovered=RecoveredChannel(CHANNEL, Term(term), None, (), Seq(2), shortfall),
        records=held,
        applied_seq=Seq(0),
    )
    state.role = role
    return state


def test_a_record_of_a_term_to_come_is_not_appended() -> None:
    """S1.5: a replica has no record of a term above its own."""
    with pytest.raises(AssertionError, match="a record of term 4 is appended in term 3"):
        state_of().append(record(3, term=4))


def test_a_follower_commits_only_what_is_verified() -> None:
    """S3.5: what another leader's log may lack is not committed by a number."""
    state = state_of()
    state.verified_seq = Seq(1)
    with pytest.raises(AssertionError, match="a follower commits 2, verified are 1"):
        state.advance_commit(Seq(2))


def test_a_commit_beyond_the_log_is_impossible() -> None:
    """S3.1: a quorum holds what this log holds, too."""
    with pytest.raises(AssertionError, match="commit seq 0 to 3 of 2"):
        state_of(role=Role.LEADER).advance_commit(Seq(3))


def test_the_commit_seq_told_to_the_engine_never_falls() -> None:
    """S2.5: what was committed stays committed."""
    state = state_of(role=Role.LEADER)
    state.advance_commit(Seq(2))
    state.commit_seq = Seq(1)
    with pytest.raises(AssertionError, match="the commit seq fell from 2 to 1"):
        state.take_effects()


def test_only_what_is_committed_is_applied() -> None:
    """S10: applied <= committed."""
    with pytest.raises(AssertionError, match="seq 2 is applied, committed are 0"):
        state_of().apply_outcomes(Seq(2), ())


def test_the_durable_term_never_falls() -> None:
    """S0.5: what the disk said stays said."""
    with pytest.raises(AssertionError, match="the durable term would fall from 3 to 2"):
        state_of().on_persisted(Seq(2), Term(2))


def test_a_term_that_was_never_adopted_is_not_durable() -> None:
    """S0.5: the disk has no newer term than the core, found at the end of the step."""
    state = state_of()
    state.on_persisted(Seq(2), Term(4))
    with pytest.raises(AssertionError, match="term 4 is durable and the present one is 3"):
        state.take_effects()


def test_a_term_is_won_once() -> None:
    """S13: a replica that wins a term twice gave one of its votes twice."""
    state = state_of(role=Role.LEADER)
    state.won(Term(3))
    with pytest.raises(AssertionError, match="term 3 was won twice"):
        state.won(Term(3))


def test_a_recovering_replica_never_leads() -> None:
    """S0.3: its log lacks acknowledged records."""
    state = state_of(role=Role.LEADER, shortfall=History(Term(1), Seq(9)))
    with pytest.raises(AssertionError, match="a leader lacks"):
        Leader(state)


def test_terms_never_fall_along_a_log() -> None:
    """S1.5: the message names both terms."""
    lineage = state_of().lineage
    lineage.append(record(3, term=3))
    with pytest.raises(AssertionError, match="of term 2 would follow one of term 3"):
        lineage.append(record(4, term=2))


def test_a_reminder_waits_for_a_bounded_number_of_intervals() -> None:
    """S3.5: a follower that is silent for long is reminded seldom, but reminded."""
    progress = Progress(_resend_factor=9)
    with pytest.raises(AssertionError, match="9 intervals"):
        progress.arm_resend(0, 100)
