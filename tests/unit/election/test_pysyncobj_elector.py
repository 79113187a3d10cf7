"""Behaviours of pysyncobj that must not happen here: one test for each that the adapter guards.

Each docstring names the behaviour of pysyncobj 0.3.17 that would break the channel.
"""

from __future__ import annotations

import gc
import threading
import weakref
from pathlib import Path

import pytest

from raftstore.election import pysyncobj_elector
from raftstore.election.pysyncobj_elector import PySyncObjMachine, pysyncobj_elector_factory
from raftstore.errors import ElectionError, PersistError
from raftstore.types import History, NodeId, Role, Seq, Term
from tests.unit.election.election_hosts import (
    CHANNEL,
    OUTSIDER,
    SETTINGS,
    A,
    B,
    C,
    D,
    E,
    RecordingHost,
    announce,
    elector,
    granted,
    history,
    lead,
    node,
    pre_granted,
    refused,
    stale,
    stand,
    step_down_notice,
    transfer_now,
    vote_request,
)

FIVE = ((A, B, C, D, E),)


def raft_of(elect):
    """The SyncObj behind an elector."""
    return elect._state._machine._raft


def test_votes_of_one_voter_count_once_when_its_reply_is_doubled():
    """pysyncobj counts replies, not voters: five nodes, one voter, two deliveries = leader."""
    host = RecordingHost(voter_sets=FIVE)
    elect = elector(host)
    now = stand(elect, host, helpers=2)
    for _ in range(4):
        elect.on_message(B, granted(4), now)
    assert elect.role is Role.CANDIDATE
    elect.on_message(C, granted(4), now)
    assert elect.role is Role.LEADER


def test_votes_of_outsiders_do_not_count():
    """pysyncobj does not look at the sender of a vote."""
    host = RecordingHost(voter_sets=FIVE, learners=(node("l"),))
    elect = elector(host)
    now = stand(elect, host, helpers=2)
    for sender in (OUTSIDER, node("l"), OUTSIDER, A):
        elect.on_message(sender, granted(4), now)
    assert elect.role is Role.CANDIDATE


def test_vote_is_granted_again_when_the_candidate_asks_again():
    """pysyncobj stays silent to the candidate it voted for, so a lost reply loses the vote."""
    host = RecordingHost()
    elect = elector(host)
    for _ in range(3):
        elect.on_message(B, vote_request(4, history(3, 10)), 0)
        assert host.sent() == [(B, granted(4))]


def test_vote_is_granted_again_after_a_restart():
    """The vote on disk is the vote: the same candidate may ask the restarted node."""
    host = RecordingHost()
    elect = elector(host, term=4, voted_for=B)
    elect.on_message(B, vote_request(4, history(3, 10)), 0)
    elect.on_message(C, vote_request(4, history(3, 99)), 0)
    assert host.take() == [("send", B, granted(4)), ("send", C, refused(4, term=4))]


def test_candidate_of_a_past_term_is_told_the_term():
    """pysyncobj does not answer it, so it would climb one term per timeout (NATS-191)."""
    host = RecordingHost()
    elect = elector(host, term=9)
    elect.on_message(B, vote_request(5, history(4, 99)), 0)
    assert host.take() == [("send", B, refused(5, term=9))]


def test_leader_of_a_past_term_is_told_the_term():
    """pysyncobj does not answer a stale leader, which would believe in itself."""
    host = RecordingHost()
    elect = elector(host, term=9)
    elect.on_message(B, announce(5), 0)
    assert host.take() == [("send", B, stale(9))]
    assert not elect.on_leader(B, Term(8), 0)


def test_refusal_raises_the_term_of_the_candidate_in_one_step():
    """A candidate that is behind learns the cluster's term from one refusal."""
    host = RecordingHost()
    elect = elector(host)
    now = stand(elect, host)
    elect.on_message(C, refused(4, term=40), now)
    assert (elect.term, elect.voted_for, elect.role) == (40, None, Role.FOLLOWER)
    assert host.take() == [("persist", 40, None)]


def test_vote_request_does_not_depose_a_leader_that_is_heard():
    """pysyncobj has no stickiness: a request with term 9 and an empty log ends any leadership."""
    host = RecordingHost(heard={B: 1_000})
    elect = elector(host)
    elect.on_leader(B, Term(4), 1_000)
    host.take()
    elect.on_message(C, vote_request(9, history(0, 0)), 1_000 + SETTINGS.sticky_ms - 1)
    assert (elect.term, elect.leader, host.take()) == (4, B, [])
    elect.on_message(C, vote_request(9, history(9, 99)), 1_000 + SETTINGS.sticky_ms)
    assert elect.term == 9


def test_leader_cut_off_steps_down_at_once_when_told():
    """pysyncobj leads on for 30 s without any answer; the engine's quorum contact decides here."""
    host = RecordingHost()
    elect = elector(host)
    lead(elect, host)
    elect.step_down("no quorum in contact")
    assert (elect.role, elect.leader, elect.term, elect.voted_for) == (Role.FOLLOWER, None, 4, A)


def test_leader_survives_any_change_of_its_members():
    """pysyncobj raises KeyError when members change under a leader; it knows one virtual peer."""
    host = RecordingHost()
    elect = elector(host)
    lead(elect, host)
    host.voter_sets = ((A, B, C), (A, D, E))
    elect.on_message(C, stale(9), 0)
    host.take()
    now = stand(elect, host, helpers=4)
    elect.on_message(B, granted(10), now)
    assert elect.role is Role.CANDIDATE
    elect.on_message(E, granted(10), now)
    assert elect.role is Role.LEADER


def test_failed_store_of_a_vote_stops_the_elector_for_good():
    """pysyncobj's memory is ahead of the disk after a failed write and would carry on (S0.4)."""
    host = RecordingHost(fail_persist=PersistError("no space left"))
    elect = elector(host)
    with pytest.raises(PersistError):
        elect.on_message(B, vote_request(4, history(3, 10)), 0)
    assert host.take() == []
    assert (elect.term, elect.voted_for) == (3, None)
    host.fail_persist = None
    with pytest.raises(ElectionError, match="could not be stored"):
        elect.on_message(C, vote_request(4, history(3, 10)), 0)


@pytest.mark.parametrize("known", [False, True])
def test_election_starts_with_and_without_a_known_leader(known):
    """timeout_now is accepted only from the leader pysyncobj knows, None included."""
    host = RecordingHost()
    elect = elector(host)
    if known:
        elect.on_leader(C, Term(3), 0)
    stand(elect, host)
    assert (elect.term, elect.voted_for, elect.leader) == (4, A, None)


def test_nothing_from_the_network_reaches_pysyncobj(monkeypatch):
    """pysyncobj unpickles apply_command messages; only four kinds, made here, ever get in."""
    kinds = []
    receive = pysyncobj_elector._Raft.receive

    def spy(self, sender, message):
        kinds.append(message["type"])
        assert set(message) <= {"type", "term", "commit_index", "last_log_index", "last_log_term"}
        receive(self, sender, message)

    monkeypatch.setattr(pysyncobj_elector._Raft, "receive", spy)
    host = RecordingHost()
    elect = elector(host)
    lead(elect, host)
    for message in (
        vote_request(5, history(9, 9)),
        granted(5),
        refused(5, term=6),
        pre_granted(7),
        announce(8),
        transfer_now(8),
        step_down_notice(9),
        stale(10),
    ):
        elect.on_message(B, message, 0)
    assert sorted(set(kinds)) == ["append_entries", "request_vote", "response_vote", "timeout_now"]


def test_learning_a_leader_sends_and_stores_nothing_in_the_same_term():
    """append_entries without entries sets the leader and is not answered."""
    host = RecordingHost()
    elect = elector(host)
    assert elect.on_leader(B, Term(3), 0)
    assert elect.leader == B
    assert host.take() == []


def test_requests_go_out_in_the_order_of_the_configuration():
    """pysyncobj iterates a set of strings: its order changes with PYTHONHASHSEED."""
    host = RecordingHost(voter_sets=((E, A, D, B, C),))
    elect = elector(host)
    elect.suspect(0, 0)
    elect.poll(0)
    assert [to for to, _ in host.sent()] == [E, D, B, C]


def test_role_changes_are_told_after_the_term_is_stored():
    """pysyncobj reports CANDIDATE before it raised and stored the term."""
    host = RecordingHost()
    elect = elector(host)
    elect.suspect(0, 0)
    elect.poll(0)
    elect.on_message(B, pre_granted(4), 0)
    kinds = [call[:3] for call in host.calls if call[0] in ("persist", "role")]
    assert kinds == [("persist", 4, A), ("role", 4, Role.CANDIDATE)]


def test_tick_starts_nothing_by_itself():
    """pysyncobj's deadline after a vote or at start is a second away; here it never comes."""
    host = RecordingHost()
    elect = elector(host)
    elect.on_message(B, vote_request(4, history(3, 10)), 0)
    elect.on_message(C, vote_request(5, history(0, 0)), 0)
    host.take()
    for _ in range(3):
        raft_of(elect).doTick(0)
    assert (elect.role, elect.term, host.take()) == (Role.FOLLOWER, 5, [])


def test_transfer_request_to_a_leader_leaves_no_election_behind():
    """timeout_now to a LEADER makes pysyncobj stand by surprise after it stepped down."""
    host = RecordingHost()
    elect = elector(host)
    lead(elect, host)
    elect.on_message(B, transfer_now(4), 0)
    assert (elect.role, host.take()) == (Role.LEADER, [])
    elect.on_message(B, stale(5), 0)
    raft_of(elect).doTick(0)
    assert (elect.role, elect.term) == (Role.FOLLOWER, 5)


def test_terms_and_votes_go_through_the_hosts_log_only():
    """pysyncobj's own journal file is never synced and forgets votes when it cannot be read."""
    host = RecordingHost()
    elect = elector(host, term=7, voted_for=C)
    elect.on_message(B, vote_request(8, history(3, 10)), 0)
    assert host.take() == [("persist", 8, None), ("persist", 8, B), ("send", B, granted(8))]


def test_vote_belongs_to_the_store_and_not_to_the_name():
    """S0.1: a node that came back with a new store does not inherit the old one's vote."""
    host = RecordingHost()
    elect = elector(host)
    reborn = NodeId("b@" + "f" * 32)
    elect.on_message(B, vote_request(4, history(3, 10)), 0)
    host.take()
    elect.on_message(reborn, vote_request(4, history(3, 10)), 0)
    assert host.take() == [("send", reborn, refused(4, term=4))]


def held() -> tuple[int, int]:
    """File descriptors and threads of this process."""
    return len(list(Path("/proc/self/fd").iterdir())), threading.active_count()


def test_instances_hold_no_descriptors_and_no_threads():
    """Stock settings open a pipe, a socket or a thread per instance."""
    before = held()
    hosts = [RecordingHost() for _ in range(20)]
    electors = [elector(host) for host in hosts]
    for elect in electors:
        elect.on_message(B, vote_request(4, history(3, 10)), 0)
    assert held() == before
    assert all(elect.evict() for elect in electors)


def test_instance_is_lazy_and_freed_by_eviction():
    """A channel without an election holds no SyncObj, and an evicted one needs no collector."""
    host = RecordingHost()
    elect = elector(host)
    assert not elect.evict()
    elect.on_leader(B, Term(3), 0)
    raft = weakref.ref(raft_of(elect))
    gc.disable()
    try:
        assert elect.evict()
        assert raft() is None
    finally:
        gc.enable()
    assert not elect.evict()


def test_instance_cannot_be_evicted_from_a_candidate():
    """The role of a candidate is kept in the instance alone."""
    host = RecordingHost()
    elect = elector(host)
    stand(elect, host)
    assert not elect.evict()
    assert elect.role is Role.CANDIDATE


def test_instance_is_small():
    """Neither the list of names for compaction nor the callbacks of the base class are kept."""
    host = RecordingHost()
    elect = elector(host)
    elect.on_leader(B, Term(3), 0)
    raft = raft_of(elect)
    assert "_SyncObj__properies" not in raft.__dict__
    assert not hasattr(raft.transport, "__dict__") or raft.transport.__dict__.keys() <= {
        "_owner",
        "connected",
        "deliver",
    }
    assert dir(raft) == []


def test_repeated_leader_messages_do_not_touch_pysyncobj(monkeypatch):
    """In steady state a leader's message costs a comparison."""
    host = RecordingHost(heard={B: 0})
    elect = elector(host)
    elect.on_leader(B, Term(3), 0)
    monkeypatch.setattr(pysyncobj_elector._Raft, "receive", None)
    assert all(elect.on_leader(B, Term(3), now) for now in range(5))
    assert elect.next_deadline_ms() is None


@pytest.mark.parametrize(
    "use",
    [
        lambda journal: journal.add(b"\x00data", 2, 3),
        lambda journal: journal.clear(),
        lambda journal: journal.deleteEntriesFrom(1),
        lambda journal: journal.deleteEntriesTo(1),
    ],
)
def test_log_of_pysyncobj_must_not_be_used(use):
    """Data belongs to the channel's log; pysyncobj touching one is a bug that stops the node.

    Shows NATS-003, NATS-024.
    """
    host = RecordingHost()
    elect = elector(host)
    elect.on_leader(B, Term(3), 0)
    with pytest.raises(ElectionError, match="pysyncobj tried to"):
        use(raft_of(elect)._journal)


def test_unknown_message_of_pysyncobj_stops_the_node():
    """Given a message type or descriptor that the adapter does not know, it stops the node."""
    host = RecordingHost()
    elect = elector(host)
    elect.on_leader(B, Term(3), 0)
    with pytest.raises(ElectionError, match="unexpected 'next_node_idx'"):
        raft_of(elect).transport.send(None, {"type": "next_node_idx"})
    with pytest.raises(ElectionError, match="file descriptor"):
        raft_of(elect)._poller.subscribe(3)


def test_machine_refuses_a_pysyncobj_that_does_not_restore_the_term(monkeypatch):
    """A release that ignores the stored term would vote twice after a restart."""
    monkeypatch.setattr(pysyncobj_elector._Journal, "getCurrentTerm", lambda self: 2)
    elect = elector(RecordingHost())
    with pytest.raises(ElectionError, match="in term 2 where term 3 is on disk"):
        elect.on_leader(B, Term(3), 0)


def test_machine_refuses_a_pysyncobj_that_keeps_its_log_elsewhere(monkeypatch):
    """The replaced log must be assigned exactly once, or pysyncobj reads another."""
    monkeypatch.setattr(
        pysyncobj_elector._Raft,
        "_SyncObj__raftLog",
        property(lambda self: self._journal, lambda self, value: None),
    )
    elect = elector(RecordingHost())
    with pytest.raises(ElectionError, match="where it is replaced"):
        elect.on_leader(B, Term(3), 0)


def test_history_slot_orders_like_history_and_never_exceeds_a_term():
    """S1.1 in pysyncobj's term slot: ordered among themselves, below any integer in max()."""
    slots = [pysyncobj_elector._HistorySlot(history(t, s)) for t, s in ((2, 9), (3, 1), (3, 2))]
    for left in range(3):
        for right in range(3):
            assert (slots[left] < slots[right]) is (left < right)
            assert (slots[left] > slots[right]) is (left > right)
            assert (slots[left] == slots[right]) is (left == right)
    assert max(0, slots[2]) == 0
    never = pysyncobj_elector._NEVER
    assert never < slots[0]
    assert never != never  # noqa: PLR0124 - that it equals nothing is the point


def test_factory_makes_electors_from_the_durable_state():
    """The factory's elector starts as a follower of what is on disk and touches nothing.

    Shows NATS-206.
    """
    host = RecordingHost()
    elect = pysyncobj_elector_factory(SETTINGS)(host, CHANNEL, Term(6), C)
    assert (elect.term, elect.voted_for, elect.role, elect.leader) == (6, C, Role.FOLLOWER, None)
    assert (host.calls, elect.next_deadline_ms()) == ([], None)


def test_term_of_the_last_record_is_a_term_of_its_own():
    """A log that ends in a later term than the stored one proves that term, without a vote."""
    elect = elector(RecordingHost(end=History(Term(8), Seq(1))), term=7, voted_for=B)
    assert (elect.term, elect.voted_for) == (8, None)


def test_machine_is_a_follower_after_rebuild():
    """Rebuilt from (term, vote for itself), the machine refuses rivals as a leader does."""
    host = RecordingHost()
    elect = elector(host)
    lead(elect, host)
    machine = PySyncObjMachine(elect._state)
    assert (machine.role, machine.term, machine.leader) == (Role.FOLLOWER, 4, None)
    machine.request_vote(B, Term(4), history(9, 9))
    assert host.take() == []
