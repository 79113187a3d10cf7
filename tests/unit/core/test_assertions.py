"""The core's invariants are asserted where they are kept: a broken one ends the node at once.

Nothing outside the program reaches them (``test_hostile_leader``), so each is broken by hand here.
"""

from __future__ import annotations

import pytest

from raftstore.config import ReplicationSettings
from raftstore.core.batches import BatchCounts
from raftstore.core.catch_up import SYNC_BATCHES_UNDURABLE_MAX, CatchUp
from raftstore.core.commit_proofs import Freshness
from raftstore.core.configs import ConfigEntry, ConfigStack
from raftstore.core.dedupe import DedupeTable
from raftstore.core.follower import Follower
from raftstore.core.leader import Leader
from raftstore.core.live_queue import LiveQueue
from raftstore.core.pending import PendingPayloads
from raftstore.core.progress import Progress
from raftstore.core.proof_requests import ProofRequests
from raftstore.core.state import ChannelState
from raftstore.core.tail import UncommittedTail
from raftstore.core.write_outcome import Fence, write_outcome_of
from raftstore.ports.log import Base, RecoveredChannel
from raftstore.protocol.replication import MsgSync, ReadIndexRequest, StoreRequest
from raftstore.types import FollowerMode, History, RecordKind, Role, Seq, Term
from tests.core_bench import CHANNEL, N1, N2, N3, TRIO, guid, meta_of, pub_msg, record, term_start


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
    if role is Role.LEADER:
        state.leader = N1
    return state


def follower_of(state: ChannelState) -> tuple[Follower, CatchUp, LiveQueue]:
    """A follower, and the catching-up side of another one with a queue of its own."""
    state.leader = N2
    payloads = PendingPayloads(messages_max=4, bytes_max=1_000, hold_ms=100)
    queue = LiveQueue(messages_max=4, bytes_max=1_000)
    return Follower(state, payloads), CatchUp(state, queue, payloads), queue


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


def test_a_term_is_won_by_its_leader_in_it() -> None:
    """S1.4, S1.5: neither by a follower nor in a term that is over."""
    with pytest.raises(AssertionError, match="term 3 is won in the role"):
        state_of().won(Term(3))
    with pytest.raises(AssertionError, match="term 2 is won in term 3"):
        state_of(role=Role.LEADER).won(Term(2))


def test_a_leader_never_cuts_its_own_log() -> None:
    """S2.5: only a leader proves a conflict, and its own log has none with itself."""
    with pytest.raises(AssertionError, match="the leader of 3 cuts its own log"):
        state_of(role=Role.LEADER).truncate(Seq(2))


def test_a_stopped_log_stays_as_it_is() -> None:
    """S13: what differs from others is kept to be looked at."""
    state = state_of()
    state.stop_serving("another history")
    with pytest.raises(AssertionError, match="appended to a stopped log: another history"):
        state.append(record(3))
    with pytest.raises(AssertionError, match="a stopped log is cut: another history"):
        state.truncate(Seq(2))


def test_a_leader_stays_steady() -> None:
    """S6.1: it catches up with nobody."""
    with pytest.raises(AssertionError, match="the mode of a leader"):
        state_of(role=Role.LEADER).set_mode(FollowerMode.STEADY, "caught_up")


def test_only_what_is_durable_is_applied() -> None:
    """S10: a crash must not leave a table that is ahead of its log."""
    state = state_of(role=Role.LEADER)
    state.advance_commit(Seq(2))
    state.durable_seq = Seq(1)
    with pytest.raises(AssertionError, match="seq 2 is applied, durable are 1"):
        state.apply_outcomes(Seq(2), ())


def test_the_durable_seq_never_falls() -> None:
    """S0.5: acknowledgements rest on it."""
    with pytest.raises(AssertionError, match="the durable seq would fall from 2 to 1"):
        state_of().on_persisted(Seq(1), Term(3))


def test_a_base_is_of_committed_records() -> None:
    """S6.5: only what was committed is ever removed from a log."""
    state = state_of()
    state.base = Base(Term(1), Seq(1), bytes(16), b"")
    with pytest.raises(AssertionError, match="the base is at 1, committed are 0"):
        state.take_effects()


def test_what_is_committed_is_known_to_be_so() -> None:
    """S3.5: a follower commits up to what a leader reported."""
    state = state_of(role=Role.LEADER)
    state.advance_commit(Seq(2))
    state.leader_commit = Seq(1)
    with pytest.raises(AssertionError, match="committed 2, reported by leaders are 1"):
        state.take_effects()


def test_a_leader_follows_itself() -> None:
    """S1.5: and a follower does not, nor does it act in the role of a leader."""
    state = state_of(role=Role.LEADER)
    state.leader = N2
    with pytest.raises(AssertionError, match="a leader that follows n2"):
        Leader(state)
    with pytest.raises(AssertionError, match="a follower in the role"):
        follower_of(state)
    follower, _, _ = follower_of(state_of())
    for leader, words in ((None, "no leader to be followed"), (N1, "would follow itself")):
        follower._state.leader = leader
        with pytest.raises(AssertionError, match=words):
            follower.start("test")


def test_a_term_begins_with_its_term_start_record() -> None:
    """S2.2: a record of the term before it would be of another leader (S2.1)."""
    with pytest.raises(AssertionError, match="term 1 has a record before its leader wrote one"):
        Leader(state_of(term=1, role=Role.LEADER)).start()


def test_followers_are_told_of_the_next_record_only() -> None:
    """S2.1: before the leader's own log would refuse it."""
    with pytest.raises(AssertionError, match="sent seq 4 behind 2"):
        Leader(state_of(role=Role.LEADER))._replicate(record(4, term=3), inlined=True)


def test_a_stopped_replica_confirms_nothing() -> None:
    """S13: neither records nor reads."""
    state = state_of()
    follower, _, _ = follower_of(state)
    state.verified_seq = Seq(2)
    state.stop_serving("another history")
    with pytest.raises(AssertionError, match="acks although it stopped: another history"):
        follower._acknowledge(N2, Seq(2))
    with pytest.raises(AssertionError, match="confirms although it stopped: another history"):
        follower._confirm_reads(N2, ReadIndexRequest(CHANNEL, Term(3), 1))


def test_a_replica_that_lacks_what_it_acknowledged_confirms_nothing() -> None:
    """S0.3: neither records nor reads, before it has them back."""
    state = state_of(shortfall=History(Term(1), Seq(5)))
    follower, _, _ = follower_of(state)
    state.verified_seq = Seq(2)
    with pytest.raises(AssertionError, match="acks while it lacks"):
        follower._acknowledge(N2, Seq(2))
    with pytest.raises(AssertionError, match="confirms while it lacks"):
        follower._confirm_reads(N2, ReadIndexRequest(CHANNEL, Term(3), 1))


def test_only_a_steady_follower_takes_from_its_live_queue() -> None:
    """S6.3: what is live comes behind the history that is still missing."""
    state = state_of()
    follower, _, _ = follower_of(state)
    state.mode = FollowerMode.CATCHING_UP
    with pytest.raises(AssertionError, match="CATCHING_UP drains"):
        follower._drain()


def test_a_leader_commits_in_the_term_that_it_won() -> None:
    """S1.4: not in one that came meanwhile."""
    state = state_of(term=1, role=Role.LEADER)
    leading = Leader(state)
    leading._term = Term(2)
    state.durable_seq = Seq(2)
    for follower in (N2, N3):
        leading._progress[follower].match_seq = Seq(2)
    with pytest.raises(AssertionError, match="term 2 was won, 1 is present"):
        leading.advance_commit()


def test_moments_that_a_replica_keeps_rise() -> None:
    """S7.3: a later moment proves at least as much."""
    freshness = Freshness()
    freshness._times, freshness._seqs = [10, 5, 20], [Seq(1), Seq(9), Seq(30)]
    with pytest.raises(AssertionError, match="times rise"):
        freshness.learn(7, Seq(5))


def test_payloads_are_waited_for_in_order() -> None:
    """S5.4: behind a gap it is history that is missing."""
    follower, _, _ = follower_of(state_of())
    with pytest.raises(AssertionError, match="the payload of seq 4 is waited for behind 2"):
        follower._await_payload(Seq(4))


def test_no_follower_is_steady_behind_a_gap() -> None:
    """S6.3: nor steady twice."""
    state = state_of()
    _, catch_up, queue = follower_of(state)
    queue.offer(StoreRequest(CHANNEL, Term(3), Term(1), Seq(0), (meta_of(record(9)),)))
    with pytest.raises(AssertionError, match="a hole behind seq 2"):
        catch_up.leave()
    state.mode = FollowerMode.STEADY
    with pytest.raises(AssertionError, match="a steady follower catches up"):
        catch_up.leave()


def history(request_id: int) -> MsgSync:
    """The record behind the two that are held."""
    return MsgSync(
        channel=CHANNEL,
        term=Term(3),
        request_id=request_id,
        from_seq=Seq(3),
        prev_term=Term(1),
        records=(record(3),),
        commit_seq=Seq(0),
        last_seq=Seq(9),
        first_seq=Seq(1),
        done=False,
    )


def test_history_is_fetched_a_bounded_number_of_batches_ahead_of_the_disk() -> None:
    """S6.1: each waits in memory until it is durable."""
    state = state_of()
    _, catch_up, _ = follower_of(state)
    catch_up.ask()
    catch_up._undurable.extend([Seq(2)] * SYNC_BATCHES_UNDURABLE_MAX)
    with pytest.raises(AssertionError, match="5 batches are ahead of the disk"):
        catch_up.on_sync(history(state.sync_request_id))


def test_only_a_follower_that_catches_up_takes_history() -> None:
    """S6.3: a steady one has the live queue's order."""
    state = state_of()
    _, catch_up, _ = follower_of(state)
    catch_up.ask()
    state.mode = FollowerMode.STEADY
    with pytest.raises(AssertionError, match="a steady follower waits for history"):
        catch_up.on_sync(history(state.sync_request_id))


@pytest.mark.parametrize(("from_seq", "words"), [(1, "the base is 1"), (4, "behind 2")])
def test_history_is_asked_for_between_base_and_end(
    from_seq: int, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S2.4, S6.5: below the base it was committed, beyond the end it would leave a hole."""
    state = state_of()
    _, catch_up, _ = follower_of(state)
    state.base = Base(Term(1), Seq(1), bytes(16), b"")
    monkeypatch.setattr(catch_up, "_where", lambda: (Seq(from_seq), ()))
    with pytest.raises(AssertionError, match=f"asked for from seq {from_seq}.* {words}"):
        catch_up.ask()


def test_bytes_are_counted_exactly() -> None:
    """An empty queue counts nothing: else a bound would shrink for ever."""
    _, _, queue = follower_of(state_of())
    queue.offer(StoreRequest(CHANNEL, Term(3), Term(1), Seq(0), (meta_of(record(9)),)))
    queue._bytes += 1
    with pytest.raises(AssertionError, match="1 bytes in an empty live queue"):
        queue.pop()
    payloads = PendingPayloads(messages_max=4, bytes_max=1_000, hold_ms=100)
    payloads.hold(guid(1), bytes(16), b"payload", 0)
    payloads._bytes += 1
    with pytest.raises(AssertionError, match="1 bytes of no held payload"):
        payloads.discard_all()
    for end in (UncommittedTail.truncate, UncommittedTail.commit):
        tail = UncommittedTail()
        tail.append(record(1))
        tail.bytes += 1
        with pytest.raises(AssertionError, match="1 bytes of no uncommitted record"):
            end(tail, Seq(1))


@pytest.mark.parametrize(
    ("leader", "term", "words"),
    [(N2, 3, "a write for n2.* comes to n1"), (N1, 2, "a write for 2 in term 3")],
    ids=["leader", "term"],
)
def test_a_write_for_another_leadership_gets_no_seq(leader: str, term: int, words: str) -> None:
    """S5.6: two leaders would sequence it."""
    leading = Leader(state_of(role=Role.LEADER))
    message = pub_msg(9, leader=leader, term=term)  # type: ignore[arg-type]
    with pytest.raises(AssertionError, match=words):
        leading.sequencer.admit(7, message)


def test_the_publisher_waits_for_its_own_record() -> None:
    """S4.5: not for an older one that happens to have its guid."""
    leading = Leader(state_of(role=Role.LEADER))
    leading._state.append(record(3, term=3))
    with pytest.raises(AssertionError, match="the write at seq 2 is not the newest, which is 3"):
        leading.sequencer.await_outcome(7, pub_msg(2, term=3))


def test_a_condition_is_decided_once_by_older_rows() -> None:
    """S10: by the rows in front of it, in the order of the log."""
    state = state_of(role=Role.LEADER)
    state.append(record(3, kind=RecordKind.CONDITIONAL, term=3))
    state.on_persisted(Seq(3), Term(3))
    leading = Leader(state)
    state.advance_commit(Seq(3))
    (written,) = state.apply_outcomes(Seq(3), ((Seq(3), Seq(3)),))
    with pytest.raises(AssertionError, match="the row of seq 3 was in the way of seq 3"):
        leading.sequencer._acknowledge(7, guid(3), written)
    state.dedupe._unapplied.append(written)
    with pytest.raises(AssertionError, match="seq 3 is decided twice"):
        state.apply_outcomes(Seq(3), ())


def test_sessions_are_forgotten_in_the_order_of_the_log() -> None:
    """S4.5: no session that was forgotten wrote above what is remembered of them all."""
    dedupe = DedupeTable(sessions_max=1)
    dedupe.append(record(1))
    dedupe.append(record(2, session=b"session2"))
    dedupe._forgotten_seq = Seq(5)
    with pytest.raises(AssertionError, match="a session of seq 1 outlived one of 5"):
        dedupe.commit(Seq(2))


def test_a_committed_batch_is_never_cut() -> None:
    """S2.5: its number was reported to readers."""
    counts = BatchCounts()
    counts.append(record(1, kind=RecordKind.BATCH_MARK))
    counts.commit(Seq(1))
    with pytest.raises(AssertionError, match="the batch that ends at seq 1 outlived a cut at 1"):
        counts.truncate(Seq(1))


def test_the_configuration_of_what_is_committed_is_known() -> None:
    """S8: a majority of nobody would be counted."""
    configs = ConfigStack(TRIO)
    configs._stack = [ConfigEntry(Seq(7), Term(1), TRIO)]
    with pytest.raises(AssertionError, match="no configuration is known at seq 3, the oldest"):
        configs.commit(Seq(3))


def test_no_target_is_waited_for_while_writes_come() -> None:
    """S9: it would never be equal."""
    hand_over = Leader(state_of(role=Role.LEADER)).hand_over
    hand_over._is_closed = True
    with pytest.raises(AssertionError, match="S9: a target is waited for"):
        hand_over._begin_try()


def test_one_round_of_reads_at_a_time() -> None:
    """S7.1: a read joins the next one, and those of later rounds see no less."""
    state = state_of(term=1, role=Role.LEADER)
    state.advance_commit(Seq(2))
    rounds = Leader(state).reads
    rounds.request(1)
    rounds._waiting = rounds._round.reads if rounds._round is not None else []
    with pytest.raises(AssertionError, match="round 2 begins within another"):
        rounds._start_round()
    assert rounds._round is not None
    rounds._confirmed.append((Seq(5), []))
    with pytest.raises(AssertionError, match="reads at seq 2 wait behind those at 5"):
        rounds._finish(rounds._round)
    state.role = Role.FOLLOWER
    with pytest.raises(AssertionError, match="has a round confirmed"):
        rounds._finish(rounds._round)


def test_reads_wait_in_order_and_are_counted() -> None:
    """S7.1: none is answered or refused twice, and none never."""
    state = state_of(term=1, role=Role.LEADER)
    rounds = Leader(state).reads
    for token, now_ms in ((1, 0), (2, 10)):
        state.now_ms = now_ms
        rounds.request(token)
    rounds._waiting.reverse()
    state.now_ms = state.settings.read_index_timeout_ms
    with pytest.raises(AssertionError, match="reads wait out of order"):
        rounds.on_timer()
    rounds._confirmed.append((Seq(0), []))
    rounds._confirmed_reads = 1
    with pytest.raises(AssertionError, match="1 confirmed reads are counted, and none waits"):
        rounds._answer_applied()


def test_one_proof_is_asked_for_at_a_time() -> None:
    """S7.3: a reply to the first would be taken for one to the second."""
    state = state_of()
    state.leader = N2
    proofs = ProofRequests(state, 0)
    proofs.request(100)
    with pytest.raises(AssertionError, match="two proofs are asked for"):
        proofs._begin()


def test_only_a_leader_that_serves_tells_of_a_write() -> None:
    """N4, S13: a follower's log may lack it, and that of a stopped replica is another one."""
    with pytest.raises(AssertionError, match="the outcome of a write"):
        write_outcome_of(state_of(), guid(1), Fence())
    state = state_of(role=Role.LEADER)
    state.stop_serving("another history")
    with pytest.raises(AssertionError, match="a stopped replica reports the outcome of a write"):
        write_outcome_of(state, guid(1), Fence())


def test_what_is_derived_from_a_log_ends_where_it_ends() -> None:
    """S6.7, S13: terms and hashes are of the same records."""
    folds = state_of().folds
    folds.chain.append(record(3))
    with pytest.raises(AssertionError, match="hashes end at seq 3, terms at 2"):
        folds.base()
    folds.lineage.append(record(3))
    folds.lineage.append(record(4))
    folds.lineage.append(record(5))
    with pytest.raises(AssertionError, match="hashes end at seq 3, terms at 4"):
        folds.truncate(Seq(5))
