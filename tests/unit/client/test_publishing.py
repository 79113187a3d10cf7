"""The outcome of a write (S4, S5.6): every order of answers, losses and leader changes."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raftstore.client.cluster.backoff import Backoff
from raftstore.client.cluster.topology import Leader
from raftstore.client.writes.publishing import Finished, Publishing, PublishTimes, SendAttempt, Wait
from raftstore.client.writes.write_outcomes import parse_guid
from raftstore.errors import (
    ERRORS_BY_CODE,
    ConnectionInDoubtError,
    GuidExpiredError,
    LeadershipLostError,
    NoLeaderError,
    NotLeaderError,
    OverloadedError,
    PayloadTooLargeError,
    QuorumTimeoutError,
    RequestError,
    RequestTimeoutError,
    SchemaError,
    UnavailableError,
)
from raftstore.protocol.publish import PubAck, PubReject
from raftstore.types import ChannelId, Outcome, Seq, Term, guid_text, make_guid, node_id

CHANNEL = ChannelId(b"t" * 18)
GUID = make_guid(b"session1", 7)
WRITE = guid_text(CHANNEL, GUID)
A, B = node_id("a", b"a" * 16), node_id("b", b"b" * 16)
A1, B2 = Leader(A, Term(1)), Leader(B, Term(2))
TIMES = PublishTimes(
    deadline_ms=1_000, last_call_ms=50, grace_ms=20, suspect_ms=100, resend_ms=400, seek_ms=50
)
ACK = PubAck(CHANNEL, Term(1), GUID, Seq(1), Seq(1), Term(1), "fsync", 2)


def publishing(times: PublishTimes = TIMES) -> Publishing:
    backoff = Backoff(min_ms=10, max_ms=40, jitter=lambda: 0.0)
    return Publishing(guid=GUID, write_name=WRITE, what="t/0", times=times, backoff=backoff)


def sent(to: Leader = A1, now_ms: int = 0) -> Publishing:
    """A publish whose first attempt is on its way."""
    state = publishing()
    assert isinstance(state.poll(now_ms, to), SendAttempt)
    state.sent(to, now_ms)
    return state


def reject(code: str, term: int = 1, attempt: int = 0) -> PubReject:
    text = f"{code} said the node"
    return PubReject(CHANNEL, Term(term), GUID, code, text, attempt=attempt)


def result_of(state: Publishing, now_ms: int = 1_000, leader: Leader | None = None) -> object:
    action = state.poll(now_ms, leader)
    assert isinstance(action, Finished)
    return action.result


def test_publish_is_addressed_to_leader_and_term_when_one_is_known() -> None:
    """The first attempt names the leader and the term known for it (S5.6)."""
    assert publishing().poll(0, B2) == SendAttempt(B2, 0)


def test_publish_asks_for_a_leader_when_none_is_known() -> None:
    """Without a leader nothing is sent; the driver is asked to look for one, again and again."""
    state = publishing()
    assert state.poll(0, None) == Wait(50, wants_leader=True)
    assert state.poll(50, None) == Wait(100, wants_leader=True)


def test_publish_is_ok_when_the_leader_acks() -> None:
    """An ack is the outcome, and stays it."""
    state = sent()
    state.on_ack(ACK)
    assert result_of(state, 1) is ACK
    state.on_lost(A, "reset", 2)
    assert result_of(state, 5_000) is ACK


def test_publish_times_out_as_not_applied_when_nothing_was_sent() -> None:
    """A deadline before any byte left is RequestTimeoutError, NOT_APPLIED."""
    state = publishing()
    state.poll(0, A1)
    state.unsent(A1, "connection refused", 0)
    error = result_of(state)
    assert isinstance(error, RequestTimeoutError)
    assert error.outcome is Outcome.NOT_APPLIED
    assert "connection refused" in str(error)


def test_publish_waits_before_the_same_leader_but_not_before_another() -> None:
    """Back-off belongs to an address; a newer leader is tried at once."""
    state = sent()
    state.on_reject(A, reject("overloaded"), 10)
    assert state.poll(10, A1) == Wait(15, wants_leader=True)
    assert state.poll(10, B2) == SendAttempt(B2, 1)
    assert state.poll(15, A1) == SendAttempt(A1, 1)


def test_publish_goes_on_at_once_when_the_leader_becomes_reachable() -> None:
    """A new connection ends the pause after a refused one."""
    state = publishing()
    state.unsent(A1, "refused", 0)
    assert isinstance(state.poll(0, A1), Wait)
    state.on_reachable(B)
    assert isinstance(state.poll(0, A1), Wait)
    state.on_reachable(A)
    assert state.poll(0, A1) == SendAttempt(A1, 0)


@pytest.mark.parametrize("code", ["not_leader", "no_leader", "overloaded", "unavailable"])
def test_publish_is_not_applied_when_every_attempt_was_refused(code: str) -> None:
    """Refusals without doubt end, at the deadline, in the refusal itself."""
    state = sent()
    state.on_reject(A, reject(code), 10)
    error = result_of(state, leader=A1)
    assert isinstance(error, ERRORS_BY_CODE[code])
    assert error.outcome is Outcome.NOT_APPLIED


def test_publish_tells_that_there_is_no_leader_when_the_old_one_was_deposed() -> None:
    """After "not I" and no successor the error is NoLeaderError."""
    state = sent()
    state.on_reject(A, reject("not_leader"), 10)
    state.poll(20, None)
    assert isinstance(result_of(state), NoLeaderError)


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        ("payload_too_large", PayloadTooLargeError),
        ("schema", SchemaError),
        ("guid_expired", GuidExpiredError),
    ],
)
def test_publish_ends_at_once_when_the_refusal_is_final(
    code: str, kind: type[RequestError]
) -> None:
    """Final refusals are not tried again."""
    state = sent()
    state.on_reject(A, reject(code), 10)
    assert isinstance(result_of(state, 10, A1), kind)


def test_publish_expired_guid_is_unknown() -> None:
    """An expired guid says nothing about whether it was applied (S4.5)."""
    state = sent()
    state.on_reject(A, reject("guid_expired"), 10)
    error = result_of(state, 10, A1)
    assert isinstance(error, GuidExpiredError)
    assert error.outcome is Outcome.UNKNOWN
    assert not error.retriable


@pytest.mark.parametrize(
    ("code", "kind"),
    [("quorum_timeout", QuorumTimeoutError), ("leadership_lost", LeadershipLostError)],
)
def test_publish_is_unknown_when_the_leader_does_not_know(
    code: str, kind: type[RequestError]
) -> None:
    """Quorum timeout and lost leadership are UNKNOWN at the deadline, whatever follows (S4.1)."""
    state = sent()
    state.on_reject(A, reject(code), 10)
    assert state.poll(20, A1) == SendAttempt(A1, 1)
    state.sent(A1, 20)
    state.on_reject(A, reject("overloaded"), 30)
    error = result_of(state)
    assert isinstance(error, kind)
    assert error.outcome is Outcome.UNKNOWN
    assert GUID.hex() in str(error)


def test_publish_stays_unknown_when_a_lost_attempt_is_followed_by_refusals() -> None:
    """S5.6: once in doubt, a refusal of a later attempt does not make it NOT_APPLIED."""
    state = sent()
    state.on_lost(A, "reset", 10)
    assert state.poll(10, B2) == SendAttempt(B2, 1)
    state.sent(B2, 10)
    state.on_reject(B, reject("not_leader", 2, attempt=1), 20)
    assert state.addressed is None
    error = result_of(state)
    assert isinstance(error, ConnectionInDoubtError)
    assert error.outcome is Outcome.UNKNOWN


def test_publish_stays_unknown_when_a_final_refusal_follows_doubt() -> None:
    """A final refusal ends the attempts, but not the doubt about an earlier one."""
    state = sent()
    state.on_lost(A, "reset", 10)
    state.poll(10, B2)
    state.sent(B2, 10)
    state.on_reject(B, reject("payload_too_large", 2, attempt=1), 20)
    error = result_of(state, 20, B2)
    assert isinstance(error, ConnectionInDoubtError)
    assert "payload_too_large" in str(error)


def test_publish_ignores_a_late_refusal_of_an_earlier_attempt() -> None:
    """S12: it says nothing about the attempt under way at the same node, which may be applied."""
    state = sent()
    state.on_reject(A, reject("overloaded"), 10)
    assert isinstance(state.poll(50, A1), SendAttempt)
    state.sent(A1, 50)
    state.on_reject(A, reject("overloaded"), 60)  # the same answer once more
    assert state.addressed == A1
    state.on_reject(A, reject("payload_too_large", attempt=1), 70)
    assert isinstance(result_of(state, 70, A1), PayloadTooLargeError)


def test_publish_ends_with_a_result_that_is_not_kept_whatever_attempt_is_named() -> None:
    """S4.5: that is true of all attempts, and in doubt; asking again would bring the same."""
    state = sent()
    state.on_reject(A, reject("overloaded"), 10)
    assert isinstance(state.poll(50, A1), SendAttempt)
    state.sent(A1, 50)
    state.on_reject(A, reject("guid_expired"), 60)
    assert isinstance(result_of(state, 60, A1), GuidExpiredError)


def test_publish_is_ok_when_a_retry_after_doubt_is_acked() -> None:
    """An ack ends every doubt: the guid was applied once (S4.5)."""
    state = sent()
    state.on_lost(A, "reset", 10)
    state.poll(10, B2)
    state.sent(B2, 10)
    state.on_ack(ACK)
    assert result_of(state, 20, B2) is ACK


def test_publish_ignores_an_answer_of_a_node_it_is_not_addressed_to() -> None:
    """A late refusal of an earlier leader does not settle the present attempt."""
    state = sent()
    state.on_lost(A, "reset", 10)
    state.poll(10, B2)
    state.sent(B2, 10)
    state.on_reject(A, reject("not_leader", attempt=1), 20)
    assert state.addressed == B2
    state.on_lost(A, "reset", 20)
    assert state.addressed == B2


def test_publish_gives_a_succeeded_leader_a_moment_to_answer() -> None:
    """A newer leader is addressed after the grace, and the old attempt is in doubt then."""
    state = sent()
    assert state.poll(5, B2) == Wait(20, wants_leader=False)
    assert state.poll(20, B2) == SendAttempt(B2, 1)
    state.sent(B2, 20)
    state.on_reject(B, reject("overloaded", 2, attempt=1), 30)
    assert isinstance(result_of(state), ConnectionInDoubtError)


def test_publish_stays_certain_when_the_succeeded_leader_answers_in_time() -> None:
    """A refusal within the grace leaves nothing in doubt."""
    state = sent()
    state.poll(5, B2)
    state.on_reject(A, reject("not_leader"), 10)
    assert state.poll(10, B2) == SendAttempt(B2, 1)
    assert isinstance(result_of(state), NotLeaderError)


def test_publish_asks_about_a_silent_leader_and_sends_again() -> None:
    """Silence first makes the driver look for another leader, then the attempt is repeated."""
    state = sent()
    assert state.poll(0, A1) == Wait(100, wants_leader=False)
    assert state.poll(100, A1) == Wait(200, wants_leader=True)
    assert state.poll(150, A1) == Wait(200, wants_leader=False)
    assert state.poll(400, A1) == SendAttempt(A1, 1)
    assert isinstance(result_of(state), ConnectionInDoubtError)


def test_publish_is_unknown_when_the_deadline_finds_it_on_its_way() -> None:
    """Sent and not answered at the deadline is UNKNOWN."""
    error = result_of(sent(now_ms=950))
    assert isinstance(error, ConnectionInDoubtError)
    assert error.retriable


def test_publish_does_not_conclude_anything_from_an_unknown_code() -> None:
    """A code of a newer version is UNKNOWN and final."""
    state = sent()
    state.on_reject(A, reject("purple"), 10)
    error = result_of(state, 10, A1)
    assert isinstance(error, ConnectionInDoubtError)
    assert "purple" in str(error)
    assert not error.retriable


@pytest.mark.parametrize(("is_sent", "outcome"), [(False, "not_applied"), (True, "unknown")])
def test_publish_given_up_tells_what_is_known(is_sent: bool, outcome: str) -> None:
    """Closing the client ends a write: NOT_APPLIED only if nothing was sent."""
    state = sent() if is_sent else publishing()
    state.give_up(UnavailableError("closed"))
    error = result_of(state, 1, A1)
    assert isinstance(error, RequestError)
    assert error.outcome.value == outcome


def test_publish_makes_no_last_attempt_that_would_only_bring_doubt() -> None:
    """Shortly before the deadline a refused write stays refused; one in doubt still tries."""
    refused, doubtful = sent(), sent()
    refused.on_reject(A, reject("overloaded"), 900)
    doubtful.on_reject(A, reject("quorum_timeout"), 900)
    assert refused.poll(950, A1) == Wait(1_000, wants_leader=False)
    assert isinstance(result_of(refused), OverloadedError)
    assert doubtful.poll(950, A1) == SendAttempt(A1, 1)


def test_publish_keeps_the_leader_s_word_when_its_last_attempt_has_no_answer() -> None:
    """At the deadline "quorum timeout" says more than "no answer yet"."""
    state = sent()
    state.on_reject(A, reject("quorum_timeout"), 10)
    state.sent(A1, 20)
    assert isinstance(result_of(state), QuorumTimeoutError)


def test_publish_never_waits_past_its_deadline() -> None:
    """Every wait ends at the deadline at the latest."""
    state = sent(now_ms=990)
    assert state.poll(990, A1) == Wait(1_000, wants_leader=False)


@dataclass
class World:
    """The truth about one publish: what each attempt may still do."""

    settled: list[bool] = field(default_factory=list)
    """Per attempt: it certainly was not and never will be applied."""
    nodes: list[Leader] = field(default_factory=list)
    is_applied: bool = False
    guids: list[bytes] = field(default_factory=list)


CODES = sorted(ERRORS_BY_CODE.keys() | {"purple"})
LEADERS = st.one_of(
    st.none(),
    st.builds(Leader, st.sampled_from([A, B]), st.integers(1, 4).map(Term)),
)
EVENTS = st.one_of(
    st.tuples(st.just("answer"), st.sampled_from(CODES)),
    st.tuples(st.just("ack"), st.none()),
    st.tuples(st.just("late_answer"), st.sampled_from(CODES)),
    st.tuples(st.just("lose"), st.sampled_from([A, B])),
    st.tuples(st.just("open"), st.sampled_from([A, B])),
    st.tuples(st.just("pass"), st.integers(1, 300)),
    st.tuples(st.just("leader"), LEADERS),
    st.tuples(st.just("no_connection"), st.none()),
)


class Driver:
    """Plays events to a publish and to the world at the same time."""

    def __init__(self) -> None:
        self.world = World()
        self.state = publishing()
        self.now_ms = 0
        self.leader: Leader | None = None
        self.has_connection = True
        self.result: object = None

    def poll(self) -> None:
        for _ in range(10):
            action = self.state.poll(self.now_ms, self.leader)
            if isinstance(action, SendAttempt):
                if not self.has_connection:
                    self.state.unsent(action.leader, "refused", self.now_ms)
                    continue
                assert action.attempt == len(self.world.settled)
                self.world.settled.append(False)
                self.world.nodes.append(action.leader)
                self.world.guids.append(self.state.guid)
                self.state.sent(action.leader, self.now_ms)
            elif isinstance(action, Finished):
                self.result = action.result
                return
            else:
                assert self.now_ms < action.until_ms <= TIMES.deadline_ms
                return
        raise AssertionError("poll does not come to rest")

    def settle(self, attempt: int, code: str) -> None:
        """A node answers an attempt: a certain refusal settles it, anything else does not."""
        cls = ERRORS_BY_CODE.get(code)
        if cls is not None and cls.outcome is Outcome.NOT_APPLIED:
            self.world.settled[attempt] = True

    def play(self, kind: str, argument: object) -> None:
        world, state = self.world, self.state
        if kind == "answer" and state.addressed is not None:
            assert isinstance(argument, str)
            self.settle(len(world.settled) - 1, argument)
            state.on_reject(state.addressed.node, reject(argument), self.now_ms)
        elif kind == "late_answer" and len(world.settled) > 1 and not world.settled[0]:
            # The first attempt is answered after a later one was sent, maybe by the same node.
            assert isinstance(argument, str)
            self.settle(0, argument)
            state.on_reject(world.nodes[0].node, reject(argument), self.now_ms)
        elif kind == "ack" and any(not settled for settled in world.settled):
            world.is_applied = True
            state.on_ack(ACK)
        elif kind == "lose":
            state.on_lost(argument, "reset", self.now_ms)  # type: ignore[arg-type]
        elif kind == "open":
            self.has_connection = True
            state.on_reachable(argument)  # type: ignore[arg-type]
        elif kind == "pass":
            self.now_ms += argument  # type: ignore[operator]
        elif kind == "leader":
            self.leader = argument  # type: ignore[assignment]
        elif kind == "no_connection":
            self.has_connection = False


@given(st.lists(EVENTS, max_size=40))
def test_publish_outcome_is_never_better_than_the_truth(
    events: list[tuple[str, object]],
) -> None:
    """Given any order of events, the outcome is OK only if the write was applied and NOT_APPLIED
    only if it never can be; all attempts have one guid, the outcome comes by the deadline and never
    changes.
    """
    driver = Driver()
    driver.poll()
    for kind, argument in events:
        driver.play(kind, argument)
        driver.poll()
    driver.now_ms = max(driver.now_ms, TIMES.deadline_ms)
    driver.poll()
    result, world = driver.result, driver.world
    assert set(world.guids) <= {GUID}
    if isinstance(result, PubAck):
        assert world.is_applied
    else:
        assert isinstance(result, RequestError)
        if result.outcome is Outcome.NOT_APPLIED:
            assert all(world.settled)
            assert not world.is_applied
    driver.state.on_ack(ACK)
    driver.state.on_lost(A, "reset", driver.now_ms)
    assert driver.state.poll(driver.now_ms + 1, A1) == Finished(result)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "code", [code for code, kind in ERRORS_BY_CODE.items() if kind.outcome is Outcome.UNKNOWN]
)
def test_publish_in_doubt_ends_its_text_with_the_command_that_tells_the_fate(code: str) -> None:
    """A line of a log is often all one has: the guid in it is the one that ``fate`` takes."""
    state = sent()
    state.on_reject(A, reject(code), 1)
    error = result_of(state)
    assert isinstance(error, RequestError)
    assert error.outcome is Outcome.UNKNOWN
    text, _, command = str(error).rpartition(": ")
    assert command == f"raftstore fate {WRITE}"
    assert parse_guid(command.split()[-1]) == (CHANNEL, GUID)
    assert f"{code} said the node" in text
