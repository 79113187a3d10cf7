"""Inputs of one channel by themselves: what reaches its elector and its core, when, and in which
order."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from raftstore.config import (
    PAYLOAD_BYTES_MAX,
    ReadSettings,
    ReplicationSettings,
)
from raftstore.core import events
from raftstore.core.effects import ReadReady
from raftstore.engine.node_ports import CLIENT_HANDLE_SELF
from raftstore.errors import OverloadedError, Refusal
from raftstore.protocol.election import TransferNow
from raftstore.protocol.node import Hole
from raftstore.protocol.payload import encode_rows
from raftstore.protocol.publish import PubMsg
from raftstore.protocol.replication import StaleTerm, StoreRequest
from raftstore.protocol.staged import ChunkHeader, encode_staged
from raftstore.rows.sealing import seal
from raftstore.types import (
    NodeId,
    RecordKind,
    Role,
    Seq,
    Term,
    make_guid,
)
from tests.unit.engine.runner_bench import (
    CHANGED,
    CHANNEL,
    ME,
    NOW,
    PEER,
    STRANGER,
    TERM,
    THIRD,
    VOTE,
    Bench,
    ack,
    notice,
)

# --- what the node looks at -----------------------------------------------------------------------


@pytest.mark.parametrize(
    "act",
    [
        lambda runner: runner.on_replication(PEER, notice(), NOW),
        lambda runner: runner.on_replication(PEER, ack(), NOW),
        lambda runner: runner.on_election(PEER, VOTE, NOW),
        lambda runner: runner.on_publish(9, write(), NOW),
        lambda runner: runner.on_stalled(NOW),
        lambda runner: runner.request_read(lambda _: None, lambda *_: None, NOW),
        lambda runner: runner.suspect_leader(50, NOW),
    ],
)
def test_every_input_notes_the_channel_before_the_core_moves(act: Callable[[Any], Any]) -> None:
    """S7.3: positions, views and deadlines are looked at again, even if the core raises."""
    bench = Bench()
    noted: list[bool] = []
    step = bench.core.step

    def look(event: Any, now_ms: int) -> list[Any]:
        noted.append(CHANNEL in bench.active.touched)
        return step(event, now_ms)

    bench.core.step = look  # type: ignore[method-assign]
    act(bench.runner)
    assert list(bench.active.take_touched()) == [CHANNEL]
    assert all(noted)


# --- elections ------------------------------------------------------------------------------------


def test_change_of_leader_reaches_the_core_with_the_message_that_made_it() -> None:
    """The core must not go on for a leader of the past; it learns that at the time of the
    message."""
    bench = Bench()
    bench.moves()
    bench.runner.on_election(PEER, VOTE, NOW)
    assert bench.elector.told == [("message", PEER, VOTE, NOW)]
    assert bench.stepped() == [(CHANGED, NOW)]


def test_candidate_is_heard_whatever_the_configuration_here_names() -> None:
    """M16: the log here may lack the record that makes it a member, and it may need this vote."""
    bench = Bench()
    bench.runner.on_election(STRANGER, VOTE, NOW)
    assert bench.elector.told == [("message", STRANGER, VOTE, NOW)]


def test_replica_that_knows_of_its_removal_does_not_stand() -> None:
    """M13: nor does it call elections; it votes as before (M16)."""
    bench = Bench()
    assert bench.runner.may_stand()
    assert bench.runner.may_vote()
    bench.core.is_removed = True
    assert not bench.runner.may_stand()
    assert bench.runner.may_vote()


def test_channel_with_a_hole_ignores_peers() -> None:
    """S0.3: no vote, no ack and no term before the log is whole."""
    bench = Bench()
    bench.runner.hole = Hole(Seq(2), Seq(3), Term(1), ())
    bench.runner.on_election(PEER, VOTE, NOW)
    bench.runner.on_replication(PEER, notice(TERM + 1), NOW)
    bench.runner.on_leader_claim(PEER, Term(TERM + 1), NOW)
    assert bench.is_untouched()


@pytest.mark.parametrize("follows", [True, False])
def test_claim_to_lead_is_taken_or_answered_with_the_newer_term(follows: bool) -> None:
    """S1.4: a leader of the past learns that it is one."""
    bench = Bench()
    bench.elector.follows = follows
    bench.runner.on_leader_claim(PEER, TERM, NOW)
    assert bench.elector.told == [("leader", PEER, TERM, NOW)]
    stale = ("known", PEER, StaleTerm(channel=CHANNEL, term=TERM))
    assert bench.sent == ([] if follows else [stale])


def test_claim_that_changes_the_leader_reaches_the_core() -> None:
    """Without any message of the channel itself."""
    bench = Bench()
    bench.moves()
    bench.runner.on_leader_claim(THIRD, Term(TERM + 1), NOW)
    assert bench.stepped() == [(CHANGED, NOW)]


def test_suspicion_reaches_the_elector_and_what_follows_the_core() -> None:
    """The node looks for the channel's next deadline even if nothing follows."""
    bench = Bench()
    bench.runner.suspect_leader(40, NOW)
    assert bench.elector.told == [("suspect", NOW, 40)]
    assert bench.stepped() == []
    bench.moves()
    bench.runner.suspect_leader(40, NOW + 1)
    assert bench.stepped() == [(CHANGED, NOW + 1)]


def test_step_down_is_told_with_its_reason_and_reaches_the_core() -> None:
    """An operator sees why a leadership ended."""
    bench = Bench()
    bench.moves()
    bench.runner.step_down("no quorum", NOW)
    assert bench.elector.told == [("step_down", "no quorum")]
    assert bench.stepped() == [(CHANGED, NOW)]
    told = {"channel": "orders/0", "term": TERM, "reason": "no quorum"}
    assert bench.events[0] == ("step_down", told)


def test_change_of_role_is_told_once_with_what_was_before() -> None:
    """The parts of the node learn of it when the elector shows it already."""
    bench = Bench()
    heard: list[tuple[Any, ...]] = []
    bench.notices.leader_changed = (lambda *told: heard.append(told),)
    for _ in range(2):
        bench.runner.role_changed(Term(6), Role.LEADER, ME)
    assert heard == [(bench.runner, (Term(0), Role.FOLLOWER, None), NOW)]
    [(name, fields)] = bench.events
    assert (name, fields["leader"], fields["was"]) == ("role", "n1", "follower")
    bench.runner.role_changed(Term(7), Role.FOLLOWER, None)
    assert bench.events[-1][1]["leader"] is None
    bench.runner.suspect_leader(0, NOW)
    assert [event.term for event, _ in bench.stepped()] == [6, 7]


def test_vote_enters_the_log_and_is_awaited() -> None:
    """S0.5: what says no more than the term waits for that operation alone."""
    bench = Bench()
    runner = bench.runner
    assert not bench.awaits()
    runner.persist_vote(Term(6), PEER)
    operation = bench.log.last_operation()
    assert bench.awaits()
    assert list(bench.active.take_awaiting()) == [CHANNEL]
    runner.send_election(PEER, TransferNow(CHANNEL, Term(6)))
    runner.send_election(PEER, VOTE)
    assert bench.sent == [
        (f"term {operation}", PEER, TransferNow(CHANNEL, Term(6))),
        ("known", PEER, VOTE),
    ]
    bench.active.take_touched()
    runner.on_log_durable(operation - 1, NOW)
    assert bench.core.stepped == []
    runner.on_log_durable(operation, NOW)
    assert bench.core.stepped == [(events.Persisted(Seq(0), Term(6)), NOW)]
    assert not bench.awaits()


def test_delay_after_a_failed_round_is_within_its_bounds() -> None:
    """Drawn anew each time, so that two candidates do not meet again."""
    bench = Bench()
    assert bench.runner.backoff_ms() == 27
    bench.drawn = 70
    assert bench.runner.backoff_ms() == 90


# --- replication ----------------------------------------------------------------------------------


def test_message_of_the_leader_reaches_the_core_behind_the_change_that_it_makes() -> None:
    """S1.4: the core knows whose message it is."""
    bench = Bench()
    bench.moves()
    message = notice(TERM + 1)
    bench.runner.on_replication(THIRD, message, NOW)
    assert bench.elector.told == [("leader", THIRD, TERM + 1, NOW)]
    assert bench.stepped() == [(CHANGED, NOW), (events.Received(THIRD, message), NOW)]


def test_message_of_a_leader_of_the_past_is_answered_and_goes_no_further() -> None:
    """S1.4: with our term; it says nothing of the channel's position either."""
    bench = Bench()
    bench.elector.follows = False
    bench.runner.on_replication(PEER, notice(TERM - 1), NOW)
    assert bench.stepped() == []
    assert bench.sent == [("known", PEER, StaleTerm(channel=CHANNEL, term=TERM))]
    assert bench.heard_ms() is None


def test_message_for_a_leader_is_fenced_by_its_term() -> None:
    """S1.4: of the past it is answered, of the future it makes the elector move, both in vain."""
    bench = Bench()
    bench.runner.on_replication(PEER, ack(TERM - 1), NOW)
    assert bench.stepped() == []
    assert bench.sent == [("known", PEER, StaleTerm(channel=CHANNEL, term=TERM))]
    bench.runner.on_replication(PEER, ack(TERM), NOW)
    assert bench.stepped() == [(events.Received(PEER, ack(TERM)), NOW)]
    assert bench.elector.told == []
    bench.moves(leader=None)
    bench.runner.on_replication(PEER, ack(TERM + 1), NOW + 1)
    assert bench.elector.told == [("term", TERM + 1)]
    followed = events.RoleChanged(Term(TERM + 1), Role.FOLLOWER, None)
    assert bench.stepped() == [(followed, NOW + 1)], "it was meant for somebody else"
    assert len(bench.sent) == 1


def test_leader_is_followed_whatever_the_configuration_here_names() -> None:
    """M17: its term says that a quorum elected it; the log here may lack what makes it a member."""
    bench = Bench()
    bench.moves(leader=STRANGER)
    bench.runner.on_replication(STRANGER, notice(TERM + 1), NOW)
    assert bench.elector.told == [("leader", STRANGER, TERM + 1, NOW)]
    assert bench.stepped()[-1] == (events.Received(STRANGER, notice(TERM + 1)), NOW)


def test_follower_that_the_configuration_here_does_not_name_is_fenced_by_its_term() -> None:
    """M17: the core decides who counts; the term decides who is heard."""
    bench = Bench()
    bench.runner.on_replication(STRANGER, ack(TERM - 1), NOW)
    assert bench.sent == [("known", STRANGER, StaleTerm(channel=CHANNEL, term=TERM))]
    bench.runner.on_replication(STRANGER, ack(TERM), NOW)
    assert bench.stepped() == [(events.Received(STRANGER, ack(TERM)), NOW)]
    bench.runner.on_replication(STRANGER, ack(TERM + 1), NOW)
    assert bench.elector.told == [("term", TERM + 1)]


def test_records_are_not_taken_while_too_much_is_not_on_the_disk() -> None:
    """S0.4: they are caught up with later; all other messages are."""
    bench = Bench()
    bench.refusal = Refusal(OverloadedError, "full")
    request = StoreRequest(CHANNEL, TERM, TERM, Seq(3), ())
    bench.moves()
    bench.runner.on_replication(THIRD, request, NOW)
    assert bench.stepped() == [(CHANGED, NOW)], "but it says who leads"
    assert bench.heard_ms() is None
    bench.runner.on_replication(THIRD, notice(), NOW)
    assert [type(event) for event, _ in bench.stepped()] == [events.Received]


# --- the leader's position ------------------------------------------------------------------------


def test_position_of_the_leader_is_as_old_as_its_newest_word() -> None:
    """S7.3: a word that says no position, or one that comes late, makes it no younger."""
    bench = Bench()
    runner = bench.runner
    runner.on_replication(PEER, notice(commit=0), NOW)
    assert bench.heard_ms() is None, "it has committed nothing in its term"
    runner.on_replication(PEER, notice(), NOW)
    assert bench.heard_ms() == NOW
    runner.on_leader_position(PEER, TERM, NOW - 5, NOW + 1)
    assert bench.heard_ms() == NOW
    runner.on_leader_position(PEER, TERM, NOW + 2, NOW + 9)
    assert bench.heard_ms() == NOW + 2
    runner.on_leader_position(THIRD, TERM, NOW + 5, NOW + 9)
    runner.on_leader_position(PEER, Term(TERM - 1), NOW + 5, NOW + 9)
    assert bench.heard_ms() == NOW + 2, "it is no leader, or of another term"


def test_stop_of_the_node_makes_every_position_unknown_until_one_is_proven() -> None:
    """S7.3: what arrives after it may have waited as long as the stop took."""
    bench = Bench()
    runner = bench.runner
    runner.on_position(NOW)
    runner.on_stalled(NOW + 50)
    assert bench.heard_ms() is None
    assert bench.stepped() == [(events.Stalled(), NOW + 50)]
    bench.core.is_trusting = False
    runner.on_position(NOW + 51)
    assert bench.heard_ms() is None
    runner.on_leader_position(PEER, TERM, NOW + 51, NOW + 52)
    wait_ms = ReplicationSettings().read_index_timeout_ms
    assert bench.stepped() == [(events.FreshnessRequested(NOW + 52 + wait_ms), NOW + 52)]
    assert bench.heard_ms() is None


def test_hash_of_a_peer_is_compared_once_for_each_of_its_positions_and_ours() -> None:
    """S13: an idle channel's report says the same each second."""
    bench = Bench()
    runner = bench.runner
    for _ in range(2):
        runner.on_peer_hash(PEER, Seq(3), b"hash", NOW, 2)
    runner.on_peer_hash(PEER, Seq(4), b"", NOW)
    assert bench.stepped() == [(events.PeerHash(PEER, Seq(3), b"hash", 2), NOW)]
    runner.on_peer_hash(THIRD, Seq(3), b"hash", NOW)
    runner.on_peer_hash(PEER, Seq(4), b"hash", NOW)
    bench.core.commit_seq = Seq(4)
    runner.on_peer_hash(PEER, Seq(4), b"hash", NOW)
    assert [event.sender for event, _ in bench.stepped()] == [THIRD, PEER, PEER]


def test_new_connection_to_the_leader_makes_the_core_begin_again() -> None:
    """Messages in flight are lost: as if the leader had just been elected."""
    bench = Bench()
    bench.runner.role_changed(TERM, Role.FOLLOWER, PEER)
    bench.runner.suspect_leader(0, NOW)
    bench.stepped()
    bench.runner.on_leader_reachable_again(NOW + 1)
    assert bench.stepped() == [(events.RoleChanged(TERM, Role.FOLLOWER, PEER), NOW + 1)]


# --- timers ---------------------------------------------------------------------------------------


def test_timers_of_elector_and_core_run_when_they_are_due() -> None:
    """The elector's first, if the channel may stand now; the core learns of its change before."""
    bench = Bench()
    elector, core, runner = bench.elector, bench.core, bench.runner
    assert runner.next_deadline_ms() is None
    elector.due_ms, core.due_ms = NOW + 1, NOW + 2
    assert runner.next_deadline_ms() == NOW + 1
    runner.on_timer(NOW)
    assert (elector.told, core.stepped) == ([], [])
    runner.on_timer(NOW + 1, may_stand=False)
    assert (elector.told, core.stepped) == ([], [])
    bench.moves()
    runner.on_timer(NOW + 2)
    assert elector.told == [("poll", NOW + 2)]
    assert bench.stepped() == [(CHANGED, NOW + 2), (events.TimerFired(), NOW + 2)]
    elector.due_ms = None
    assert runner.next_deadline_ms() == NOW + 2
    core.due_ms, elector.due_ms = None, NOW + 3
    assert runner.next_deadline_ms() == NOW + 3


def test_wall_clock_reaches_the_core_where_it_may_make_a_record() -> None:
    """S10: times of records come from it, and nothing else does."""
    bench = Bench()
    bench.runner.on_stalled(NOW)
    assert bench.core.wall_offset_ms == 0
    bench.moves()
    bench.runner.suspect_leader(0, NOW)
    assert bench.core.wall_offset_ms == 1_700_000_000_000 - NOW


def test_timers_run_at_their_very_moment_and_those_that_are_not_set_never() -> None:
    """A deadline that is not met by then would be one of the past for ever."""
    bench = Bench()
    bench.elector.due_ms = NOW
    bench.runner.on_timer(NOW)
    assert (bench.elector.told, bench.core.stepped) == ([("poll", NOW)], [])
    bench.elector.due_ms, bench.core.due_ms = None, NOW + 1
    bench.runner.on_timer(NOW + 1)
    assert bench.elector.told == [("poll", NOW)]
    assert bench.stepped() == [(events.TimerFired(), NOW + 1)]


# --- requests of the node -------------------------------------------------------------------------


def test_hand_over_and_storage_name_the_voters_that_are_down() -> None:
    """S9: none of them is asked to take over."""
    bench = Bench()
    bench.down = (THIRD,)
    bench.runner.request_hand_over(PEER, "asked", NOW, keeps_trying=True)
    bench.runner.on_storage_stalled("hangs", NOW)
    assert [event for event, _ in bench.stepped()] == [
        events.HandOverRequested(PEER, "asked", (THIRD,), keeps_trying=True),
        events.StorageStalled("hangs", (THIRD,)),
    ]
    assert bench.runner.leader_last_heard_ms(PEER) == 77
    assert bench.runner.leader_last_heard_ms(THIRD) is None


def test_reads_that_are_dropped_are_told_to_the_core_and_called_no_more() -> None:
    """Their places are for others."""
    bench = Bench()
    called: list[object] = []
    token = bench.runner.request_read(called.append, lambda *_: called.append("refused"), NOW)
    bench.runner.drop_reads(frozenset({token}), NOW)
    assert [event for event, _ in bench.stepped()] == [
        events.ReadRequested(token),
        events.ReadsDropped(frozenset({token})),
    ]
    bench.runner.confirmations.confirm(token, Seq(1))
    assert called == []


@pytest.mark.parametrize("role", list(Role))
def test_channel_that_is_closed_gives_back_what_it_holds(role: Role) -> None:
    """S4.3: publishers learn what a lost leadership means; owners of reads know it already."""
    bench = Bench()
    called: list[object] = []
    token = bench.runner.request_read(called.append, lambda *_: called.append("refused"), NOW)
    bench.stepped()
    bench.core.role = role
    bench.runner.close(NOW)
    lost = (events.RoleChanged(TERM, Role.FOLLOWER, None), NOW)
    assert bench.core.stepped == ([lost] if role is Role.LEADER else [])
    assert bench.core.released == 1
    bench.runner.confirmations.confirm(token, Seq(1))
    assert called == []


def test_applied_records_reach_the_core_and_then_the_parts_of_the_node() -> None:
    """S4.2: who answers reads finds the position of the core; the next step may follow."""
    bench = Bench()
    heard: list[tuple[Any, ...]] = []
    runner = bench.runner
    runner.feed._outstanding = 1
    bench.notices.applied = (lambda *told: heard.append((*told, len(bench.core.stepped))),)
    answers: Any = (("guid", 1),)
    runner.on_applied(Seq(3), (), NOW, answers)
    assert heard == [(runner, answers, NOW, 1)]
    assert bench.stepped() == [(events.Applied(Seq(3), ()), NOW)]
    assert runner.feed._outstanding == 0


def test_effect_that_causes_another_event_comes_to_its_end_first() -> None:
    """Effects of one event are carried out in their order, whatever they lead to."""
    bench = Bench()
    order: list[str] = []
    core = bench.core
    step = core.step

    def stepping(event: Any, now_ms: int) -> list[Any]:
        order.append(type(event).__name__)
        step(event, now_ms)
        return [ReadReady(1, Seq(3)), ReadReady(2, Seq(3))] if len(order) == 1 else []

    core.step = stepping  # type: ignore[method-assign]

    def confirmed(seq: Seq) -> None:
        order.append(f"confirmed at {seq}")
        bench.runner.on_stalled(NOW)

    for _ in range(2):
        bench.runner.confirmations.add(confirmed, lambda *_: order.append("refused"))
    bench.runner.request_proof(NOW + 5, NOW)
    assert order == [
        "FreshnessRequested", "confirmed at 3", "confirmed at 3", "Stalled", "Stalled",
    ]  # fmt: skip


def test_reason_why_nothing_can_be_applied_reaches_the_core() -> None:
    """S13: the channel stops serving."""
    bench = Bench()
    bench.runner.feed._on_broken("a batch that nobody can apply")
    assert bench.stepped() == [(events.Broken("a batch that nobody can apply"), 0)]


# --- publishing -----------------------------------------------------------------------------------


def write(
    leader: NodeId = ME, payload: bytes | None = None, kind: RecordKind = RecordKind.ROWS
) -> PubMsg:
    """A client's write."""
    return PubMsg(
        channel=CHANNEL,
        term=TERM,
        leader=leader,
        guid=make_guid(b"session!", 1),
        digest=b"d" * 16,
        rows=1,
        kind=kind,
        payload=encode_rows([(b"k", seal(b"k", b"v"))]) if payload is None else payload,
        relay_to=(),
    )


def test_write_reaches_the_core_with_why_it_must_not_be_sequenced() -> None:
    """The first reason counts: the caller's, then that of the disk."""
    bench = Bench()
    caller, disk = Refusal(OverloadedError, "caller"), Refusal(OverloadedError, "disk")
    bench.runner.on_publish(9, write(), NOW)
    bench.refusal = disk
    bench.runner.on_publish(9, write(), NOW)
    bench.runner.on_publish(9, write(), NOW, refusal=caller)
    assert bench.stepped() == [
        (events.PublishReceived(9, write(), reason), NOW) for reason in (None, disk, caller)
    ]
    assert bench.judged == [(len(write().payload), True)] * 2, "the caller's reason is enough"


def test_write_that_cannot_be_read_is_answered_and_never_sequenced() -> None:
    """S4.1: no replica could apply it. A copy for another leader is that one's to judge."""
    bench = Bench()
    bad = write(payload=b"\xc1")
    bench.runner.on_publish(9, bad, NOW)
    [(client, answer)] = bench.replies
    assert (client, answer.code, answer.leader_hint, answer.term) == (9, "schema", PEER, TERM)
    assert answer.guid == bad.guid
    assert bench.core.stepped == []
    bench.runner.on_publish(9, write(PEER, b"\xc1"), NOW)
    assert len(bench.stepped()) == 1


def staged(payload: bytes | None = None) -> PubMsg:
    """A chunk of a micro-batch."""
    header = ChunkHeader("orders", 1, 0, 0, 0)
    good = encode_staged(header, encode_rows([(b"k", seal(b"k", b"v"))]))
    return write(payload=good if payload is None else payload, kind=RecordKind.STAGED)


def test_chunk_of_a_batch_is_refused_for_what_the_leader_knows_of_the_batch() -> None:
    """After the caller's own reason and before the disk's."""
    bench = Bench()
    caller, disk = Refusal(OverloadedError, "caller"), Refusal(OverloadedError, "disk")
    batch = Refusal(OverloadedError, "batch")
    bench.runner.on_publish(9, staged(), NOW)
    bench.staging, bench.refusal = batch, disk
    bench.runner.on_publish(9, staged(), NOW)
    bench.runner.on_publish(9, staged(), NOW, refusal=caller)
    assert [event.refusal for event, _ in bench.stepped()] == [None, batch, caller]
    bench.runner.on_publish(9, staged(b"\xc1"), NOW)
    assert [answer.code for _, answer in bench.replies] == ["schema"]
    assert bench.core.stepped == []


def test_payload_that_is_too_large_is_left_to_the_core_unread() -> None:
    """S12: it is refused by its size; to read it first would cost what the bound saves."""
    bench = Bench()
    message = write(payload=b"\xc1" * (PAYLOAD_BYTES_MAX + 1))
    bench.runner.on_publish(9, message, NOW)
    assert bench.replies == []
    assert len(bench.stepped()) == 1


def test_proposal_of_the_node_itself_is_no_clients_payload() -> None:
    """S4.1: commands come from here alone."""
    bench = Bench()
    bench.runner.on_publish(CLIENT_HANDLE_SELF, write(payload=b"\xc1"), NOW)
    assert bench.replies == []
    assert len(bench.stepped()) == 1


def test_record_that_no_machine_takes_is_not_proposed_by_the_node_itself() -> None:
    """S0.4: committed, it would end every node that hosts the channel."""
    bench = Bench()
    message = write(payload=b"", kind=RecordKind.COMMAND)
    bench.runner.on_publish(CLIENT_HANDLE_SELF, message, NOW)
    assert bench.core.stepped == []
    assert "a table takes no records of kind 3" in bench.replies[0][1].message


# --- kept versions and terms ----------------------------------------------------------------------


def test_state_that_was_replaced_is_kept_for_its_time() -> None:
    """It is found when records were applied, and let go by the channel's own timer."""
    bench = Bench()
    tables: Any = bench.runner.parts.tables
    bench.runner.feed._outstanding = 1
    released: list[int] = []
    tables.versions = lambda channel: (6,)
    tables.release_version = lambda channel, label: released.append(label)
    bench.runner.on_applied(Seq(3), (), NOW)
    due_ms = NOW + ReadSettings().versions_keep_ms
    assert bench.runner.next_deadline_ms() == due_ms
    bench.runner.on_timer(due_ms - 1)
    assert released == []
    bench.runner.on_timer(due_ms)
    assert released == [6]
    assert bench.runner.next_deadline_ms() is None


def test_leader_of_a_term_that_nobody_voted_in_waits_for_no_operation() -> None:
    """S0.5: its term was durable before the node started."""
    bench = Bench()
    message = TransferNow(CHANNEL, TERM)
    bench.runner.send_election(PEER, message)
    assert bench.sent == [("term 0", PEER, message)]


def test_change_that_the_timer_of_the_elector_makes_reaches_the_core_at_once() -> None:
    """The core itself need not be due."""
    bench = Bench()
    bench.elector.due_ms = NOW
    bench.moves()
    bench.runner.on_timer(NOW)
    assert bench.stepped() == [(CHANGED, NOW)]


def test_change_of_a_role_makes_the_node_look_at_the_channel_and_is_told_once() -> None:
    """With what was before; a role that stays is no change."""
    bench = Bench()
    heard: list[tuple[Any, ...]] = []
    bench.notices.leader_changed = (lambda *told: heard.append(told),)
    for _ in range(2):
        bench.runner.role_changed(TERM, Role.FOLLOWER, PEER)
    assert list(bench.active.take_touched()) == [CHANNEL]
    # The first term of the log was 0, without a leader.
    assert heard == [(bench.runner, (Term(0), Role.FOLLOWER, None), NOW)]
    fields = {"channel": "orders/0", "role": "follower", "term": 5, "leader": "n2"}
    assert bench.events == [("role", {**fields, "was": "follower"})]
